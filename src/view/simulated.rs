//! A view without Kafka, for simulations of who asks it: records are applied when the simulation
//! says so.
//!
//! Invariant: queries and progress are those of production, and what is not committed is not seen.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rusqlite::Connection;

use super::pool::ConnectionPool;
use super::progress::{ProgressPublisher, progress_channel};
use super::projector::{Projector, ProjectorCache, RecordPosition};
use super::{FILE_NAME, View, ViewClock, schema};
use crate::engine::cursor::Cursor;
use crate::model::input::TriggerRecord;
use crate::model::ledger::LedgerRecord;
use crate::model::outcome::Outcome;
use crate::model::{Offset, Timestamp};

/// Payload bytes that are kept.
const PAYLOAD_MAX: usize = 4_096;

/// A view of one partition.
pub(crate) struct SimulatedView {
    db: Connection,
    cache: ProjectorCache,
    view: View,
    publisher: ProgressPublisher,
    /// The next offset of `triggers` and of `outcomes`.
    next: [Offset; 2],
    /// When everything was read.
    as_of: Timestamp,
    in_transaction: bool,
}

impl std::fmt::Debug for SimulatedView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedView").field("next", &self.next).finish_non_exhaustive()
    }
}

impl SimulatedView {
    /// With a new file in this directory, and the clock of the simulation.
    pub(crate) fn create(dir: &Path, clock: Arc<AtomicU64>) -> Self {
        let path = dir.join(FILE_NAME);
        let (db, _new) = schema::open(&path, "simulation", 0, Duration::MAX).unwrap();
        db.execute_batch("PRAGMA synchronous = OFF").unwrap();
        db.set_prepared_statement_cache_capacity(128);
        let cache = ProjectorCache::load(&db, PAYLOAD_MAX).unwrap();
        let pool = ConnectionPool::new(path);
        pool.file_opened();
        let (progress, publisher) = progress_channel(1);
        let clock = ViewClock(Arc::new(move || clock.load(Relaxed)));
        let view = View { pool, progress, clock };
        Self { db, cache, view, publisher, next: [0; 2], as_of: 0, in_transaction: false }
    }

    /// What requests use.
    pub(crate) fn view(&self) -> View {
        self.view.clone()
    }

    pub(crate) fn apply_trigger(&mut self, record: TriggerRecord) {
        self.next[0] = record.offset + 1;
        self.projector().apply_trigger(0, record).unwrap();
    }

    pub(crate) fn apply_ledger(&mut self, offset: Offset, at: Timestamp, record: LedgerRecord) {
        let position = RecordPosition { partition: 0, offset, timestamp: at };
        self.projector().apply_ledger(position, record).unwrap();
    }

    pub(crate) fn apply_outcome(&mut self, offset: Offset, outcome: &Outcome) {
        self.next[1] = offset + 1;
        self.projector().apply_outcome(0, offset, outcome).unwrap();
    }

    /// A cursor of which everything is applied that its owner wrote with it.
    pub(crate) fn apply_cursor(&mut self, cursor: &Cursor, ledger_end: Offset) {
        self.projector().apply_cursor(0, cursor, ledger_end).unwrap();
    }

    /// Everything that was applied can be seen from now on. `as_of`: it is all that was there then.
    pub(crate) fn commit(&mut self, as_of: Option<Timestamp>) {
        if std::mem::take(&mut self.in_transaction) {
            self.db.execute_batch("COMMIT").unwrap();
        }
        self.as_of = as_of.unwrap_or(self.as_of);
        let [triggers, outcomes] = self.next;
        self.publisher.publish([vec![triggers], vec![outcomes], vec![0]], &[self.as_of]);
    }

    fn projector(&mut self) -> Projector<'_> {
        if !std::mem::replace(&mut self.in_transaction, true) {
            self.db.execute_batch("BEGIN IMMEDIATE").unwrap();
        }
        Projector { db: &self.db, cache: &mut self.cache }
    }
}
