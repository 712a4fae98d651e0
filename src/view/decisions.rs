//! What a committed cursor decides for its partition: which registrations were accepted, which
//! entries of the ledger were removed, and what has fired.
//!
//! Invariant: a cursor is applied only when everything is read that was in the logs when it was
//! committed. What is not there then was not written.

use std::collections::BTreeSet;

use rusqlite::{Row as SqlRow, params};

use super::ViewError;
use super::list_rows::GenerationRow;
use super::projector::{OwnerDecision, Projector, decode_position, encode_position};
use super::status::OutcomeFacts;
use crate::engine::cursor::Cursor;
use crate::model::{Millis, Offset, PartitionId, Timestamp};

/// How long after a registration its skip mark, or the tombstone of that, can be read, in ms: as
/// long as the ledger keeps tombstones (`delete.retention.ms`), less a day in which it is read.
const MARKS_READABLE_MS: Millis = 6 * 24 * 60 * 60 * 1_000;

impl Projector<'_> {
    /// Applies the committed cursor of a partition, after everything is read that was in its logs
    /// when it was committed: an entry that is not there now was removed. `ledger_end` is the end
    /// of the ledger, read before the ends of the outcomes.
    pub(super) fn apply_cursor(
        &mut self,
        partition: PartitionId,
        cursor: &Cursor,
        ledger_end: Offset,
    ) -> Result<(), ViewError> {
        let sql = "INSERT OR REPLACE INTO cursor VALUES (?1, ?2, ?3)";
        let offset = cursor.next_offset.cast_signed();
        let _changed = self.db.prepare_cached(sql)?.execute(params![
            partition,
            offset,
            cursor.to_metadata("")
        ])?;
        let _earlier = self.cache.cursors.insert(partition, *cursor);
        for sid in self.confirm_ledger_states(partition, ledger_end)? {
            self.refresh_row(sid)?;
        }
        for sid in self.decide_waiting(partition, cursor)? {
            self.refresh_row(sid)?;
        }
        for sid in self.rows_fired_through(partition, cursor)? {
            self.refresh_row(sid)?;
        }
        let sql = "DELETE FROM skip WHERE gid >= ?1 AND gid < ?2";
        let until = cursor.next_offset.min(cursor.replay_from);
        let bounds = [encode_position(partition, 0), encode_position(partition, until)];
        let _deleted = self.db.prepare_cached(sql)?.execute(bounds)?;
        self.forget_refused_changes(partition, cursor)?;
        self.forget_schema_uses(partition, cursor)
    }

    /// The newest ledger entries of triggers that may have ended are applied now.
    fn confirm_ledger_states(
        &self,
        partition: PartitionId,
        end: Offset,
    ) -> Result<Vec<i64>, ViewError> {
        let sql = "SELECT sid FROM subject \
                   WHERE partition = ?1 AND fresh > 0 AND fresh <= ?2";
        let sids = self.query_subject_ids(sql, &[i64::from(partition), end.cast_signed()])?;
        let sql = "UPDATE subject SET row = next, next = NULL, fresh = 0 WHERE sid = ?1";
        let mut confirm = self.db.prepare_cached(sql)?;
        for sid in &sids {
            let _changed = confirm.execute([sid])?;
        }
        Ok(sids)
    }

    /// Decided registrations were accepted, unless they have a skip mark. Their owner deletes it
    /// when no replay starts there, and the ledger deletes its tombstone days later: from then on
    /// the times of the earlier generations decide, as their changes have made them. Returns the
    /// triggers of which something is decided.
    fn decide_waiting(
        &mut self,
        partition: PartitionId,
        cursor: &Cursor,
    ) -> Result<BTreeSet<i64>, ViewError> {
        let db = self.db;
        let sql = "SELECT gid, sid, decided > 0 OR keeps <> 1, coalesce(created_at, 0), \
                   max(gid, revision, announced), \
                   EXISTS (SELECT 1 FROM version AS v WHERE v.gid = generation.gid) \
                   FROM generation WHERE waits = 1 AND gid >= ?1 AND gid < ?2 ORDER BY gid";
        let mut select = db.prepare_cached(sql)?;
        let until = encode_position(partition, cursor.next_offset);
        let bounds = [encode_position(partition, 0), until];
        let read = |row: &SqlRow<'_>| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
        };
        let waiting = select.query_map(bounds, read)?;
        let waiting: Vec<(i64, i64, bool, i64, i64, bool)> = waiting.collect::<Result<_, _>>()?;
        let sql = "UPDATE generation SET decided = ?2, waits = 0, \
                   past = iif(?2 = 2, created_at, past) WHERE gid = ?1";
        let mut update = db.prepare_cached(sql)?;
        let readable_from = cursor.fired_through.due.saturating_sub(MARKS_READABLE_MS);
        let mut sids = BTreeSet::new();
        for (gid, sid, certain, created_at, defined_by, has_versions) in waiting {
            let decided_until = self.decided_until(cursor, sid, partition)?;
            if has_versions {
                self.merge_versions(gid, decided_until)?;
                let _new = sids.insert(sid);
            }
            if defined_by >= decided_until {
                continue;
            }
            let (_, offset) = decode_position(gid);
            let marks_are_read =
                offset >= cursor.replay_from || created_at.cast_unsigned() > readable_from;
            let taken = certain || marks_are_read || self.is_accepted_by_times(sid, gid)?;
            let decided = if taken { OwnerDecision::Accepted } else { OwnerDecision::Ignored };
            let _changed = update.execute([gid, decided as i64])?;
            let _new = sids.insert(sid);
        }
        Ok(sids)
    }

    /// Whether a registration that may be ignored was accepted, judged by its time and those of the
    /// one before it: what it wants was pending, or nothing was pending or retained.
    fn is_accepted_by_times(&self, sid: i64, gid: i64) -> Result<bool, ViewError> {
        let Some(this) = self.generation(gid)? else { return Ok(true) };
        let earlier = self.newest_accepted(sid, gid)?;
        let earlier = earlier.map_or(Ok(None), |gid| self.generation(gid))?;
        let Some(earlier) = earlier else { return Ok(this.wanted.is_none()) };
        let until = pending_until(&earlier);
        Ok(match this.wanted {
            Some(wanted) => wanted == earlier.defined_by() && until > this.created_at,
            None => until.saturating_add(earlier.retain.unwrap_or(0)) <= this.created_at,
        })
    }

    /// Plain triggers whose time is below W.
    fn rows_fired_through(
        &self,
        partition: PartitionId,
        cursor: &Cursor,
    ) -> Result<Vec<i64>, ViewError> {
        let sql = "SELECT sid FROM listed WHERE partition = ?1 AND wake <= ?2";
        self.query_subject_ids(sql, &[i64::from(partition), cursor.fired_through.due.cast_signed()])
    }

    fn query_subject_ids(&self, sql: &str, values: &[i64]) -> Result<Vec<i64>, ViewError> {
        let mut select = self.db.prepare_cached(sql)?;
        let sids = select.query_map(rusqlite::params_from_iter(values), |row| row.get(0))?;
        Ok(sids.collect::<Result<_, _>>()?)
    }
}

/// Until when a trigger was pending, as far as outcomes and its time tell.
fn pending_until(generation: &GenerationRow) -> Timestamp {
    let OutcomeFacts { stop, last_occurrence, pause_reason, resumed_at, last_change, .. } =
        &generation.outcomes;
    let ended = last_occurrence.map(|(_, at)| at);
    if let Some(at) = stop.as_ref().map(|stop| stop.at).or(ended) {
        return at;
    }
    match generation.outcomes.called_at() {
        _ if generation.recurs => Timestamp::MAX,
        Some(called_at) => called_at,
        None if pause_reason.is_some() => Timestamp::MAX,
        None => {
            let changed_at = last_change.map_or(0, |(_, at)| at);
            generation.fire_at.max(resumed_at.unwrap_or(0)).max(changed_at)
        }
    }
}
