//! From stored facts to the list: the row by which a trigger is found, computed again whenever a
//! fact of it changes, and what a cursor changes for a whole partition.
//!
//! Invariant: a row follows from facts alone (`status::status_of`). The cursor is a fact too: it is
//! applied only when everything that was in the logs when it was committed is read.

use rusqlite::{OptionalExtension as _, Row as SqlRow, params};

use super::ViewError;
use super::projector::{OwnerDecision, Projector, decode_position, encode_position};
use super::results::Status;
use super::search::{SearchAttributes, search_tokens, target_of};
use super::status::{
    LedgerFacts, OutcomeFacts, StatusDecision, StatusFacts, is_fired_through, status_of,
};
use crate::codec::row;
use crate::engine::cursor::Cursor;
use crate::model::definition::Definition;
use crate::model::entry::Row;
use crate::model::timeline::{Source, TimelineKey, rank};
use crate::model::{Millis, Offset, PartitionId, Timestamp};

/// Bits of a place in the lists that tell apart what was registered within one millisecond.
const TIE_BITS: u32 = 20;
/// Bits of those for the partition.
const PARTITION_BITS: u32 = 6;
/// How long after a registration its skip mark, or the tombstone of that, can be read, in ms: as
/// long as the ledger keeps tombstones (`delete.retention.ms`), less a day in which it is read.
const MARKS_READABLE_MS: Millis = 6 * 24 * 60 * 60 * 1_000;

/// A generation as the database has it.
#[derive(Debug)]
struct GenerationRow {
    gid: i64,
    /// Its registration is read, or the ledger has its definition.
    known: bool,
    decision: i64,
    may_be_ignored: bool,
    /// The `gid` that it replaces if that is pending; else it is ignored.
    wanted: Option<i64>,
    /// The offset of the newest change of its definition, or 0.
    newest_change: i64,
    created_at: Timestamp,
    fire_at: Timestamp,
    priority: u8,
    retain: Option<u64>,
    recurs: bool,
    awaits: bool,
    outcomes: OutcomeFacts,
}

/// What is listed of a trigger already.
#[derive(Debug, PartialEq, Eq)]
struct ListRow {
    place: i64,
    gid: i64,
    caller: i64,
    status: i64,
    fire_at: i64,
    wake: Option<i64>,
    settled_at: Option<i64>,
    executions: u32,
    reason: Option<String>,
}

/// The ledger entry of a trigger, and whether a newer one waits for its outcomes.
#[derive(Debug)]
struct LedgerState {
    entry: Option<LedgerFacts>,
    unconfirmed: bool,
}

impl Projector<'_> {
    /// Updates the listed row of a trigger from its facts.
    pub(super) fn refresh_row(&mut self, sid: i64) -> Result<(), ViewError> {
        let ledger_state = self.ledger_state(sid)?;
        let Some(current) = self.current_generation(sid, ledger_state.entry.as_ref())? else {
            // It may have been listed before its owner refused it.
            return self.unlist(sid);
        };
        let (partition, offset) = decode_position(current.gid);
        let entry = ledger_state.entry.as_ref().filter(|held| held.generation == offset);
        let definition = self.definition(current.gid)?;
        let kept = current.recurs
            || current.awaits
            || current.retain.is_some()
            || current.newest_change > 0;
        let place = TimelineKey {
            due: current.fire_at,
            priority: rank(current.priority),
            source: Source::Triggers,
            offset,
        };
        let cursor = self.cache.cursors.get(&partition).filter(|_| !ledger_state.unconfirmed);
        let decided = match cursor {
            Some(cursor) => self.is_decided(cursor, sid, current.gid)?,
            None => false,
        };
        let facts = StatusFacts {
            is_callback: definition.target.is_http(),
            recurs: current.recurs,
            awaits: current.awaits,
            always_in_ledger: kept,
            created_at: current.created_at,
            fire_at: current.fire_at,
            decided,
            is_fired_through: decided
                && cursor.is_some_and(|cursor| is_fired_through(&cursor.fired_through, &place)),
            ledger: entry,
            outcomes: &current.outcomes,
        };
        let decision = status_of(&facts);
        let wakes = entry.is_none() && !kept && decision.status == Status::Pending;
        let wake = wakes.then_some(current.fire_at.cast_signed());
        self.upsert_row(sid, &current, &definition, decision, wake)
    }

    /// Takes a trigger out of the lists, if it is there.
    pub(super) fn unlist(&mut self, sid: i64) -> Result<(), ViewError> {
        self.find_row(sid)?.map_or(Ok(()), |old| self.remove_row(&old))
    }

    fn ledger_state(&self, sid: i64) -> Result<LedgerState, ViewError> {
        let sql = "SELECT row, fresh > 0 FROM subject WHERE sid = ?1";
        let mut select = self.db.prepare_cached(sql)?;
        let (entry, fresh): (Option<String>, bool) =
            select.query_row([sid], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let entry = entry.map(|text| serde_json::from_str(&text)).transpose();
        Ok(LedgerState {
            entry: entry.map_err(|error| ViewError::Corrupt(error.to_string()))?,
            unconfirmed: fresh,
        })
    }

    /// The generation that defines a trigger now: the newest that is not ignored, nor may be.
    fn current_generation(
        &self,
        sid: i64,
        entry: Option<&LedgerFacts>,
    ) -> Result<Option<GenerationRow>, ViewError> {
        let sql = "SELECT gid, known > 0, decided, keeps, created_at, fire_at, priority, retain, \
                   schedule IS NOT NULL, after IS NOT NULL, outcomes, wanted, \
                   max(revision, announced) FROM generation \
                   WHERE sid = ?1 ORDER BY gid DESC";
        let mut select = self.db.prepare_cached(sql)?;
        let mut rows = select.query([sid])?;
        while let Some(row) = rows.next()? {
            let generation = GenerationRow::from_row(row)?;
            let (_, offset) = decode_position(generation.gid);
            let in_ledger = entry.is_some_and(|held| held.generation == offset);
            let taken = generation.decision == OwnerDecision::Accepted as i64;
            let ignored = generation.decision == OwnerDecision::Ignored as i64;
            if generation.known && (in_ledger || taken || !(ignored || generation.may_be_ignored)) {
                return Ok(Some(generation));
            }
        }
        Ok(None)
    }

    fn definition(&self, gid: i64) -> Result<Definition, ViewError> {
        let mut select = self.db.prepare_cached("SELECT row FROM generation WHERE gid = ?1")?;
        let bytes: Vec<u8> = select.query_row([gid], |row| row.get(0))?;
        decode_definition(&bytes)
    }

    fn upsert_row(
        &mut self,
        sid: i64,
        current: &GenerationRow,
        definition: &Definition,
        decision: StatusDecision,
        wake: Option<i64>,
    ) -> Result<(), ViewError> {
        let caller = self.name_id(definition.caller.as_ref().map(|caller| caller.as_str()))?;
        let listed = self.find_row(sid)?;
        let place = match &listed {
            Some(old) if old.gid == current.gid && is_created_at(old.place, current.created_at) => {
                old.place
            }
            _ => {
                self.supersede(sid, current)?;
                self.free_place(current)?
            }
        };
        let new = ListRow {
            place,
            gid: current.gid,
            caller,
            status: decision.status.number(),
            fire_at: decision.fire_at.cast_signed(),
            wake,
            settled_at: decision.settled_at.map(u64::cast_signed),
            executions: decision.executions,
            reason: decision.reason,
        };
        match listed {
            Some(old) if old == new => return Ok(()),
            Some(old) if old.place == place => self.update_row(old.status, &new)?,
            Some(old) => {
                self.remove_row(&old)?;
                self.insert_row(sid, &new, definition)?;
            }
            None => self.insert_row(sid, &new, definition)?,
        }
        Ok(())
    }

    /// Marks the generations before this one as replaced.
    fn supersede(&self, sid: i64, by: &GenerationRow) -> Result<(), ViewError> {
        let sql = "UPDATE generation SET past = ?3 WHERE sid = ?1 AND gid < ?2 AND past IS NULL";
        let values = params![sid, by.gid, by.created_at.cast_signed()];
        let _changed = self.db.prepare_cached(sql)?.execute(values)?;
        Ok(())
    }

    fn find_row(&self, sid: i64) -> Result<Option<ListRow>, ViewError> {
        let sql = "SELECT place, gid, caller, status, fire_at, wake, settled_at, executions, \
                   reason FROM listed WHERE sid = ?1";
        let read = |row: &SqlRow<'_>| {
            Ok(ListRow {
                place: row.get(0)?,
                gid: row.get(1)?,
                caller: row.get(2)?,
                status: row.get(3)?,
                fire_at: row.get(4)?,
                wake: row.get(5)?,
                settled_at: row.get(6)?,
                executions: row.get(7)?,
                reason: row.get(8)?,
            })
        };
        Ok(self.db.prepare_cached(sql)?.query_row([sid], read).optional()?)
    }

    /// A free place in the lists: by the time of registration, then by offset.
    fn free_place(&self, current: &GenerationRow) -> Result<i64, ViewError> {
        let (partition, offset) = decode_position(current.gid);
        let tie = (offset << PARTITION_BITS) + u64::from(partition.unsigned_abs());
        let time = current.created_at << TIE_BITS;
        let mut place = (time | tie & ((1 << TIE_BITS) - 1)).cast_signed();
        let mut taken = self.db.prepare_cached("SELECT 1 FROM listed WHERE place = ?1")?;
        while taken.exists([place])? {
            place += 1;
        }
        Ok(place)
    }

    fn insert_row(
        &mut self,
        sid: i64,
        new: &ListRow,
        definition: &Definition,
    ) -> Result<(), ViewError> {
        let target = self.name_id(Some(&target_of(definition)))?;
        let (partition, _) = decode_position(new.gid);
        let sql = "INSERT INTO listed VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
        let _new = self.db.prepare_cached(sql)?.execute(params![
            new.place,
            sid,
            new.gid,
            partition,
            new.caller,
            target,
            new.status,
            new.fire_at,
            new.wake,
            new.settled_at,
            new.executions,
            new.reason,
        ])?;
        let sql = "SELECT id FROM subject WHERE sid = ?1";
        let id: String = self.db.prepare_cached(sql)?.query_row([sid], |row| row.get(0))?;
        let words = search_tokens(&id, new.caller, &SearchAttributes::of(definition), definition);
        let sql = "INSERT INTO words (rowid, tokens) VALUES (?1, ?2)";
        let _new = self.db.prepare_cached(sql)?.execute(params![new.place, words])?;
        self.add_to_tally(new.caller, new.status, 1)
    }

    fn update_row(&mut self, before: i64, new: &ListRow) -> Result<(), ViewError> {
        let sql = "UPDATE listed SET status = ?2, fire_at = ?3, wake = ?4, settled_at = ?5, \
                   executions = ?6, reason = ?7 WHERE place = ?1";
        let _changed = self.db.prepare_cached(sql)?.execute(params![
            new.place,
            new.status,
            new.fire_at,
            new.wake,
            new.settled_at,
            new.executions,
            new.reason,
        ])?;
        if before != new.status {
            self.add_to_tally(new.caller, before, -1)?;
            self.add_to_tally(new.caller, new.status, 1)?;
        }
        Ok(())
    }

    fn remove_row(&mut self, old: &ListRow) -> Result<(), ViewError> {
        self.delete_row(old.place, old.caller, old.status)
    }

    /// Takes a row out of the lists.
    pub(super) fn delete_row(
        &mut self,
        place: i64,
        caller: i64,
        status: i64,
    ) -> Result<(), ViewError> {
        let _deleted =
            self.db.prepare_cached("DELETE FROM listed WHERE place = ?1")?.execute([place])?;
        let _deleted =
            self.db.prepare_cached("DELETE FROM words WHERE rowid = ?1")?.execute([place])?;
        self.add_to_tally(caller, status, -1)
    }

    fn add_to_tally(&mut self, caller: i64, status: i64, by: i64) -> Result<(), ViewError> {
        let sql = "INSERT INTO tally VALUES (?1, ?2, ?3) \
                   ON CONFLICT (caller, status) DO UPDATE SET count = count + ?3";
        let _changed = self.db.prepare_cached(sql)?.execute([caller, status, by])?;
        Ok(())
    }

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
        let sql = "DELETE FROM skip WHERE gid BETWEEN ?1 AND ?2";
        let passed = cursor.next_offset.min(cursor.replay_from).saturating_sub(1);
        let bounds = [encode_position(partition, 0), encode_position(partition, passed)];
        let _deleted = self.db.prepare_cached(sql)?.execute(bounds)?;
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
    /// the times of the earlier generations decide.
    fn decide_waiting(
        &self,
        partition: PartitionId,
        cursor: &Cursor,
    ) -> Result<Vec<i64>, ViewError> {
        let sql = "SELECT gid, sid, decided > 0 OR NOT keeps, created_at FROM generation \
                   WHERE waits = 1 AND gid BETWEEN ?1 AND ?2 ORDER BY gid";
        let mut select = self.db.prepare_cached(sql)?;
        let last = encode_position(partition, cursor.next_offset.max(1) - 1);
        let bounds = [encode_position(partition, 0), last];
        let read = |row: &SqlRow<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        let waiting = select.query_map(bounds, read)?;
        let waiting: Vec<(i64, i64, bool, i64)> = waiting.collect::<Result<_, _>>()?;
        let sql = "UPDATE generation SET decided = ?2, waits = 0, \
                   past = CASE ?2 WHEN 2 THEN created_at END WHERE gid = ?1";
        let mut update = self.db.prepare_cached(sql)?;
        let readable_from = cursor.fired_through.due.saturating_sub(MARKS_READABLE_MS);
        let mut sids = Vec::with_capacity(waiting.len());
        for (gid, sid, certain, created_at) in waiting {
            if !self.is_decided(cursor, sid, gid)? {
                continue;
            }
            let (_, offset) = decode_position(gid);
            let marks_are_read =
                offset >= cursor.replay_from || created_at.cast_unsigned() > readable_from;
            let taken = certain || marks_are_read || self.is_accepted_by_times(sid, gid)?;
            let decided = if taken { OwnerDecision::Accepted } else { OwnerDecision::Ignored };
            let _changed = update.execute([gid, decided as i64])?;
            sids.push(sid);
        }
        Ok(sids)
    }

    /// Whether a registration that may be ignored was accepted, judged by its time and those of the
    /// one before it: what it wants was pending, or nothing was pending or retained.
    fn is_accepted_by_times(&self, sid: i64, gid: i64) -> Result<bool, ViewError> {
        let sql = "SELECT gid, known > 0, decided, keeps, created_at, fire_at, priority, retain, \
                   schedule IS NOT NULL, after IS NOT NULL, outcomes, wanted, \
                   max(revision, announced) FROM generation \
                   WHERE sid = ?1 AND gid <= ?2 ORDER BY gid DESC";
        let mut select = self.db.prepare_cached(sql)?;
        let mut rows = select.query([sid, gid])?;
        let Some(this) = rows.next()? else { return Ok(true) };
        let this = GenerationRow::from_row(this)?;
        while let Some(row) = rows.next()? {
            let earlier = GenerationRow::from_row(row)?;
            if !earlier.known || earlier.decision == OwnerDecision::Ignored as i64 {
                continue;
            }
            let off = earlier.outcomes.stop.as_ref().map(|off| off.at);
            let ended = earlier.outcomes.last_occurrence.map(|(_, at)| at);
            let until = match off.or(ended) {
                Some(at) => at,
                None if earlier.recurs => Timestamp::MAX,
                None => earlier.fire_at,
            };
            return Ok(match this.wanted {
                Some(wanted) => wanted == earlier.defined_by() && until > this.created_at,
                None => until.saturating_add(earlier.retain.unwrap_or(0)) <= this.created_at,
            });
        }
        Ok(this.wanted.is_none())
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

impl GenerationRow {
    /// The position of the record that defines it now: its registration, or the newest change.
    fn defined_by(&self) -> i64 {
        let (partition, _) = decode_position(self.gid);
        self.gid.max(encode_position(partition, self.newest_change.cast_unsigned()))
    }

    fn from_row(row: &SqlRow<'_>) -> Result<Self, ViewError> {
        let number = |at| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(at)?.unwrap_or(0));
        let outcomes: Option<String> = row.get(10)?;
        let outcomes = outcomes
            .map_or_else(|| Ok(OutcomeFacts::default()), |text| serde_json::from_str(&text));
        Ok(Self {
            gid: row.get(0)?,
            known: row.get(1)?,
            decision: row.get(2)?,
            may_be_ignored: number(3)? != 0,
            wanted: row.get(11)?,
            newest_change: row.get(12)?,
            created_at: number(4)?.cast_unsigned(),
            fire_at: number(5)?.cast_unsigned(),
            priority: u8::try_from(number(6)?).unwrap_or_default(),
            retain: row.get::<_, Option<i64>>(7)?.map(i64::cast_unsigned),
            recurs: row.get(8)?,
            awaits: row.get(9)?,
            outcomes: outcomes.map_err(|error| ViewError::Corrupt(error.to_string()))?,
        })
    }
}

/// Whether a place in the lists is that of something registered at `created_at`.
fn is_created_at(place: i64, created_at: Timestamp) -> bool {
    place >> TIE_BITS == created_at.cast_signed()
}

/// The definition in the bytes of a generation.
pub(super) fn decode_definition(bytes: &[u8]) -> Result<Definition, ViewError> {
    match row::decode(bytes) {
        Ok(Row::Fire(row)) => Ok(row.definition),
        Ok(_) => Err(ViewError::Corrupt("a generation is no fire".to_owned())),
        Err(error) => Err(ViewError::Corrupt(error.to_string())),
    }
}
