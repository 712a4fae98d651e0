//! Deletes what is older than the retention: settled triggers with all their rows, executions, dead
//! letters.
//!
//! Invariant: in small steps between two batches, each by an index, so that no query waits long.
//! What is not settled is kept.

use std::collections::HashMap;
use std::time::Duration;

use rusqlite::params;

use super::ViewError;
use super::projector::{Projector, encode_position};
use crate::model::{Millis, Offset, PartitionId, Timestamp};
use crate::telemetry;

/// Triggers, or rows of another kind, that are deleted in one step.
const STEP_MAX: i64 = 500;
/// Pause between two steps, in ms; a full step is followed by the next at once.
const PAUSE_MS: Millis = 1_000;

/// The state of the retention.
#[derive(Debug)]
pub(super) struct Retention {
    audit_period: Millis,
    next_run: Timestamp,
    /// The first offset of each partition of the dead letters.
    dead_letter_starts: HashMap<PartitionId, Offset>,
}

impl Retention {
    /// Settled triggers are kept for `audit`.
    pub(super) fn new(audit: Duration) -> Self {
        let audit = Millis::try_from(audit.as_millis()).unwrap_or(Millis::MAX);
        Self { audit_period: audit, next_run: 0, dead_letter_starts: HashMap::new() }
    }

    /// The first dead letter of a partition that is still there: older ones cannot be replayed.
    pub(super) fn set_dead_letter_start(&mut self, partition: PartitionId, low: Offset) {
        let _before = self.dead_letter_starts.insert(partition, low);
    }

    /// Whether a step is due at `now` (ms since the epoch).
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        now >= self.next_run
    }

    /// Deletes some of what is too old at `now`, in ms since the epoch.
    pub(super) fn run_step(
        &mut self,
        projector: &mut Projector<'_>,
        now: Timestamp,
    ) -> Result<(), ViewError> {
        let before = now.saturating_sub(self.audit_period).cast_signed();
        let mut deleted = projector.delete_settled(before)?;
        deleted = deleted.max(projector.delete_old(before)?);
        for (partition, low) in &self.dead_letter_starts {
            let sql = "DELETE FROM letter WHERE lid BETWEEN ?1 AND ?2";
            let bounds = [encode_position(*partition, 0), encode_position(*partition, *low) - 1];
            let _deleted = projector.db.prepare_cached(sql)?.execute(bounds)?;
        }
        self.next_run = if deleted >= STEP_MAX { now } else { now + PAUSE_MS };
        let sql = "SELECT coalesce(sum(count), 0) FROM tally";
        let rows: i64 = projector.db.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
        metrics::gauge!(telemetry::VIEW_ROWS).set(rows as f64);
        Ok(())
    }
}

impl Projector<'_> {
    /// Deletes triggers that settled before; returns how many.
    fn delete_settled(&mut self, before: i64) -> Result<i64, ViewError> {
        let sql = "SELECT place, sid, caller, status FROM listed INDEXED BY listed_settled \
                   WHERE settled_at < ?1 LIMIT ?2";
        let mut select = self.db.prepare_cached(sql)?;
        let rows = select.query_map([before, STEP_MAX], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })?;
        let rows: Vec<(i64, i64, i64, i64)> = rows.collect::<Result<_, _>>()?;
        for (place, sid, caller, status) in &rows {
            self.delete_row(*place, *caller, *status)?;
            for sql in [
                "DELETE FROM version WHERE gid IN (SELECT gid FROM generation WHERE sid = ?1)",
                "DELETE FROM execution WHERE sid = ?1",
                "DELETE FROM generation WHERE sid = ?1",
                "DELETE FROM subject WHERE sid = ?1",
            ] {
                let _deleted = self.db.prepare_cached(sql)?.execute([sid])?;
            }
        }
        Ok(rows.len() as i64)
    }

    /// Deletes executions, handled letters and circuits from before; returns the count of the kind
    /// that had most.
    fn delete_old(&mut self, before: i64) -> Result<i64, ViewError> {
        let mut most = 0;
        for sql in [
            "DELETE FROM execution WHERE xid IN \
             (SELECT xid FROM execution INDEXED BY execution_at WHERE at < ?1 LIMIT ?2)",
            "DELETE FROM letter WHERE lid IN \
             (SELECT lid FROM letter INDEXED BY letter_handled WHERE handled_at < ?1 LIMIT ?2)",
            "DELETE FROM circuit WHERE key IN \
             (SELECT key FROM circuit INDEXED BY circuit_since WHERE since < ?1 LIMIT ?2)",
        ] {
            let deleted = self.db.prepare_cached(sql)?.execute(params![before, STEP_MAX])?;
            most = most.max(deleted as i64);
        }
        Ok(most.max(self.delete_replaced(before)?))
    }

    /// Deletes generations that were replaced or ignored before, and ids that have no other row;
    /// returns how many.
    fn delete_replaced(&mut self, before: i64) -> Result<i64, ViewError> {
        let sql = "DELETE FROM generation WHERE gid IN \
                   (SELECT gid FROM generation INDEXED BY generation_past \
                   WHERE past < ?1 LIMIT ?2) RETURNING sid, gid";
        let mut delete = self.db.prepare_cached(sql)?;
        let deleted = delete.query_map([before, STEP_MAX], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let deleted: Vec<(i64, i64)> = deleted.collect::<Result<_, _>>()?;
        let sql = "DELETE FROM subject WHERE sid = ?1 AND row IS NULL AND next IS NULL \
                   AND NOT EXISTS (SELECT 1 FROM generation AS g WHERE g.sid = ?1) \
                   AND NOT EXISTS (SELECT 1 FROM listed AS l WHERE l.sid = ?1)";
        let mut forget = self.db.prepare_cached(sql)?;
        let sql = "DELETE FROM version WHERE gid = ?1";
        let mut forget_versions = self.db.prepare_cached(sql)?;
        for (sid, gid) in &deleted {
            let _deleted = forget.execute([sid])?;
            let _deleted = forget_versions.execute([gid])?;
        }
        Ok(deleted.len() as i64)
    }
}
