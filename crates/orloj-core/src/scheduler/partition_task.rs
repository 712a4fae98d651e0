//! A partition that is assigned to this process: its store and its state.
//!
//! Invariant: a partition fires nothing before its takeover is complete. If it is taken over again,
//! that begins with the content of the store, which is committed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::config::ReadAheadLimits;
use super::parking::Parking;
use super::read_pause::ReadPause;
use super::restore_pool::{LEDGER_BATCH, RawLedger, TRIGGERS_BATCH};
use crate::engine::offset_bitmap::OffsetBitmap;
use crate::engine::partition::{Input, Partition};
use crate::engine::takeover::{Takeover, TakeoverError, TakeoverRequest};
use crate::environment::PartitionBytes;
use crate::environment::log::LogRecord;
use crate::environment::store::{RowStore, StoreError};
use crate::model::input::TriggerRecord;
use crate::model::ledger::LedgerKey;
use crate::model::names::Names;
use crate::model::{Offset, PartitionId, Timestamp};

/// How many ledger records a restart may read again without need. Reading them takes milliseconds,
/// and so the cursor mirrors that an idle partition writes do not cause a spill.
const LEDGER_SLACK: Offset = 100;

/// A partition assigned to this process.
#[derive(Debug)]
pub(super) struct PartitionTask<S> {
    pub(super) id: PartitionId,
    /// Shared with the store writer, which writes the rows.
    pub(super) store: Arc<S>,
    pub(super) state: PartitionState,
    /// When the takeover started, on the monotonic clock.
    pub(super) takeover_started_at: Duration,
    /// Inputs that were read and do not fit in the open step: see [`Self::ingest`].
    pub(super) waiting_inputs: std::vec::IntoIter<Input>,
    /// The next offset of `triggers`. Records below it are ignored.
    pub(super) next_trigger: Offset,
    /// Something of `triggers` was fetched since reading was last started, so what the reader knows
    /// of its end is not from before.
    pub(super) has_fetched: bool,
    /// The next offset of `signals`.
    pub(super) next_signal: Offset,
    /// Reading is paused, because the schema registry is unavailable and no more can be parked.
    pub(super) pause: ReadPause,
    /// The records that cannot be read now.
    pub(super) parking: Parking,
    /// When the parked records are looked at again, on the monotonic clock.
    pub(super) release_at: Duration,
    /// Whether it is being checked that the end of `triggers` is reached.
    pub(super) end_check: EndCheck,
    /// When the last record was read, or reading was last started, on the monotonic clock.
    pub(super) read_at: Duration,
    /// Since when it accepts no more records, on the monotonic clock.
    pub(super) full_since: Option<Duration>,
    /// Reading is paused until it accepts records again.
    pub(super) is_paused: bool,
    /// How far `signals` is read, and how long it is.
    pub(super) signals_end: SignalsEnd,
    /// The takeover must start again, when no transaction is open.
    pub(super) must_start_again: bool,
    /// When the last sealed step is applied, the store has the ledger's content below this offset.
    pub(super) ledger_position: Offset,
    /// The last known end offset of the ledger. Records below it belong to sealed steps of ours,
    /// provided that the next step is committed; see [`Self::before_seal`].
    pub(super) ledger_end: Offset,
}

/// A log of a partition that the loop reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum InputLog {
    Triggers,
    Signals,
    Ledger,
}

impl InputLog {
    /// The name of the topic.
    pub(super) fn topic(self, names: &Names) -> String {
        match self {
            Self::Triggers => names.triggers(),
            Self::Signals => names.signals(),
            Self::Ledger => names.ledger(),
        }
    }
}

/// What is known of the end of `signals`.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignalsEnd {
    /// The last known end offset (exclusive).
    pub(super) end: Offset,
    /// The reader has reached this end.
    pub(super) read_until: Offset,
    /// Whether it is being checked that the end is reached.
    pub(super) check: EndCheck,
    /// When the last signal was read, on the monotonic clock.
    pub(super) read_at: Duration,
}

/// The state of an assigned partition.
#[derive(Debug)]
pub(super) enum PartitionState {
    /// The takeover is in progress.
    Restoring(Box<PartitionRestore>),
    /// Taken over, but the local clock is behind the time up to which an earlier owner has decided.
    WaitingForClock(Box<Partition>),
    /// Firing.
    Active(Box<Partition>),
    /// Its store has failed: it decides nothing until it is taken over again with a new store.
    StoreFailed,
    /// Not taken over: an operator must act first.
    Refused(TakeoverError),
    /// Used within one call while the state changes.
    Transitioning,
}

/// A takeover and the records that were read for it.
#[derive(Debug)]
pub(super) struct PartitionRestore {
    /// `None` while the restore pool applies records to it.
    pub(super) takeover: Option<Box<Takeover>>,
    /// Identifies this takeover.
    pub(super) nonce: u64,
    /// What is read ahead of it.
    limits: ReadAheadLimits,
    /// The store was empty when it began.
    pub(super) has_new_store: bool,
    /// The last request of the takeover that was started.
    pub(super) requested: Option<TakeoverRequest>,
    pub(super) ledger: RawLedger,
    /// An empty buffer for the next batch of ledger records.
    pub(super) spare_buffer: RawLedger,
    /// Records of the ledger and of `triggers` that were read.
    pub(super) records_read: usize,
    pub(super) ledger_position: Offset,
    /// Our own barrier was read from the ledger: all earlier records are read too.
    pub(super) barrier_read: bool,
    /// No transaction is open any more below the requested end of the ledger.
    pub(super) ledger_is_stable: bool,
    /// The request for the ledger's bounds, which checks that.
    pub(super) ledger_check: Option<u64>,
    pub(super) triggers: Vec<TriggerRecord>,
    /// About how much memory they take up, in bytes.
    triggers_bytes: usize,
    /// Offsets of `triggers` that need not be read, because the ledger has their content.
    pub(super) covered: OffsetBitmap,
    /// The newest timestamp of the skipped covered records, in ms since the epoch.
    pub(super) covered_at: Timestamp,
    /// The records from the first parked one on that an earlier owner has decided without effect
    /// on a trigger of this partition.
    pub(super) marked: BTreeSet<Offset>,
    /// The committed cursor's: see [`Cursor`](crate::engine::cursor::Cursor).
    pub(super) registry_from: Offset,
    /// The reader has passed the committed offset.
    pub(super) triggers_complete: bool,
    /// Records from the committed offset on, which were read before the replay was applied.
    pub(super) live_inputs: Vec<Input>,
    /// About how much memory they take up, in bytes.
    live_bytes: usize,
    /// Makes the thread that reads the committed offset end.
    pub(super) cancelled: Arc<AtomicBool>,
}

impl Drop for PartitionRestore {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::SeqCst);
    }
}

/// The check whether all records of a log are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndCheck {
    /// No check is in progress.
    Idle,
    /// The bounds were requested, with this number.
    Requested(u64),
    /// The reader was started again at its position. If it reaches `end` without a record, all
    /// records below it have been read.
    Confirming {
        /// The end offset (exclusive).
        end: Offset,
        /// Check again if nothing was read by then, on the monotonic clock.
        until: Duration,
    },
    /// Another process's transaction is open below the end, or the bounds are not known: check
    /// again at this time on the monotonic clock.
    RetryAt(Duration),
}

impl<S: RowStore> PartitionTask<S> {
    /// A task at the start of its takeover.
    pub(super) fn new(
        id: PartitionId,
        store: Arc<S>,
        takeover: Takeover,
        limits: ReadAheadLimits,
        takeover_started_at: Duration,
    ) -> Self {
        let restoring = Box::new(PartitionRestore::new(takeover, limits));
        Self::in_state(id, store, PartitionState::Restoring(restoring), takeover_started_at)
    }

    /// A task in the given state.
    pub(super) fn in_state(
        id: PartitionId,
        store: Arc<S>,
        state: PartitionState,
        takeover_started_at: Duration,
    ) -> Self {
        Self {
            id,
            store,
            state,
            takeover_started_at,
            waiting_inputs: Vec::new().into_iter(),
            next_trigger: 0,
            has_fetched: false,
            next_signal: 0,
            pause: ReadPause::default(),
            parking: Parking::default(),
            release_at: Duration::ZERO,
            end_check: EndCheck::Idle,
            read_at: Duration::ZERO,
            full_since: None,
            is_paused: false,
            signals_end: SignalsEnd {
                end: 0,
                read_until: 0,
                check: EndCheck::Idle,
                read_at: Duration::ZERO,
            },
            must_start_again: false,
            ledger_position: 0,
            ledger_end: 0,
        }
    }

    /// Reading `triggers` is started at `now` on the monotonic clock.
    pub(super) fn on_triggers_started(&mut self, now: Duration) {
        (self.has_fetched, self.read_at) = (false, now);
    }

    /// The end offset of the ledger was read.
    pub(super) fn on_ledger_end(&mut self, end: Offset) {
        self.ledger_end = end;
        let grew = end > self.ledger_position + LEDGER_SLACK;
        if let Some(partition) = self.active().filter(|_| grew) {
            partition.request_spill();
        }
    }

    /// Called before a step is sealed. If that step is committed, no other process has written to
    /// the ledger below the end offset that is known now. An end offset that is read later must not
    /// be used: another owner could have written by then, and this store would lack those records.
    pub(super) fn before_seal(&mut self) {
        if matches!(self.state, PartitionState::Active(_)) {
            self.ledger_position = self.ledger_position.max(self.ledger_end);
        }
    }

    /// Below this offset all of `triggers` is read, perhaps ingested later; 0 if it is not active.
    pub(super) fn triggers_read_until(&self) -> Offset {
        match &self.state {
            PartitionState::Active(partition) if self.has_waiting_inputs() => {
                partition.triggers_read_until().max(self.next_trigger)
            }
            PartitionState::Active(partition) => partition.triggers_read_until(),
            _ => 0,
        }
    }

    /// What it keeps in memory.
    pub(super) fn memory(&self) -> PartitionBytes {
        let (wheel, write_buffer, takeover) = match &self.state {
            PartitionState::Active(partition) | PartitionState::WaitingForClock(partition) => {
                let (wheel, write_buffer) = partition.memory();
                (wheel, write_buffer, 0)
            }
            PartitionState::Restoring(restoring) => (0, 0, restoring.bytes()),
            _ => (0, 0, 0),
        };
        PartitionBytes { wheel, write_buffer, parked: self.parking.bytes(), takeover }
    }

    /// The partition, if it is active.
    pub(super) fn active(&mut self) -> Option<&mut Partition> {
        match &mut self.state {
            PartitionState::Active(partition) => Some(partition),
            _ => None,
        }
    }

    /// Whether there is something to commit.
    pub(super) fn is_ready_to_commit(&mut self) -> bool {
        match &mut self.state {
            PartitionState::Active(partition) => partition.should_seal(),
            PartitionState::Restoring(restoring) => {
                let request = restoring.takeover.as_ref().map(|takeover| takeover.next_request());
                matches!(request, Some(TakeoverRequest::Barrier { .. }))
            }
            PartitionState::WaitingForClock(_)
            | PartitionState::StoreFailed
            | PartitionState::Refused(_)
            | PartitionState::Transitioning => false,
        }
    }

    /// Whether it accepts no more records for now.
    pub(super) fn is_full(&self) -> bool {
        match &self.state {
            PartitionState::Active(partition) => partition.is_full() || self.has_waiting_inputs(),
            PartitionState::Restoring(restoring) => {
                restoring.is_over_buffered() || restoring.is_live_full()
            }
            _ => false,
        }
    }

    /// Whether the next batch of a takeover is already full while the previous one is still being
    /// applied.
    pub(super) fn is_over_buffered(&self) -> bool {
        match &self.state {
            PartitionState::Restoring(restoring) => restoring.is_over_buffered(),
            _ => false,
        }
    }

    /// Records of `triggers` from `from` to `until` are read for the takeover.
    pub(super) fn start_replay(&mut self, from: Offset, until: Offset) {
        self.next_trigger = from;
        let PartitionState::Restoring(restoring) = &mut self.state else { return };
        restoring.triggers_complete = from >= until;
        let Some(takeover) = &mut restoring.takeover else { return };
        restoring.covered = takeover.take_covered();
        restoring.registry_from = takeover.cursor().registry_from;
        let parked = takeover.cursor().parked;
        if let Some(first) = parked.first_offset() {
            restoring.marked = takeover.marks_of_ignored().range(first..).copied().collect();
        }
        self.parking = Parking::restored(parked);
    }

    /// Skips the record of `triggers` at `offset` if the ledger has its content. `timestamp` is its
    /// timestamp (ms since the epoch). Returns whether it was skipped.
    pub(super) fn skip_covered(&mut self, offset: Offset, timestamp: Timestamp) -> bool {
        let PartitionState::Restoring(restoring) = &mut self.state else { return false };
        if !restoring.covered.contains(offset) {
            return false;
        }
        restoring.covered_at = restoring.covered_at.max(timestamp);
        restoring.records_read += 1;
        self.next_trigger = offset + 1;
        true
    }

    /// Takes the state, so that a new one can be set.
    pub(super) fn take_state(&mut self) -> PartitionState {
        std::mem::replace(&mut self.state, PartitionState::Transitioning)
    }

    /// Loads rows from the store into the timer wheel, as far as the wheel requests them and until
    /// `is_late`. Nothing fires that is later than what is loaded.
    pub(super) fn load(&mut self, is_late: impl Fn() -> bool) -> Result<(), StoreError> {
        let PartitionState::Active(partition) = &mut self.state else { return Ok(()) };
        while let Some(load) = partition.load_request() {
            let scan = self.store.scan(load.from, load.until, load.bytes_max)?;
            partition.load(scan.entries, scan.reached);
            if is_late() {
                break;
            }
        }
        Ok(())
    }
}

impl PartitionRestore {
    fn new(takeover: Takeover, limits: ReadAheadLimits) -> Self {
        Self {
            limits,
            nonce: takeover.nonce(),
            has_new_store: false,
            takeover: Some(Box::new(takeover)),
            requested: None,
            ledger: RawLedger::default(),
            spare_buffer: RawLedger::default(),
            records_read: 0,
            ledger_position: 0,
            barrier_read: false,
            ledger_is_stable: false,
            ledger_check: None,
            triggers: Vec::new(),
            triggers_bytes: 0,
            covered: OffsetBitmap::default(),
            covered_at: 0,
            marked: BTreeSet::new(),
            registry_from: 0,
            triggers_complete: false,
            live_inputs: Vec::new(),
            live_bytes: 0,
            cancelled: Arc::default(),
        }
    }

    /// Keeps a ledger record if the takeover requested it: all records, or only possible mirrors of
    /// the cursor. A mirror at or above `until` was written by a later owner and does not belong to
    /// the committed offset.
    pub(super) fn add_ledger_record(&mut self, record: &impl LogRecord, is_our_barrier: bool) {
        let offset = record.offset();
        match self.requested {
            Some(TakeoverRequest::Ledger { .. }) => {
                self.barrier_read |= is_our_barrier;
                self.ledger.push(record);
            }
            Some(TakeoverRequest::Mirror { until, .. })
                if offset < until && record.key() == Some(LedgerKey::CURSOR) =>
            {
                self.ledger.push(record);
            }
            _ => {}
        }
        self.ledger_position = offset + 1;
    }

    fn is_over_buffered(&self) -> bool {
        (self.is_ledger_batch_full() || self.is_triggers_batch_full()) && self.takeover.is_none()
    }

    /// Keeps a record from the committed offset on: all below it is read.
    pub(super) fn add_live(&mut self, input: Input) {
        self.triggers_complete = true;
        self.live_bytes += input.memory_bytes();
        self.live_inputs.push(input);
    }

    /// Bytes of what was read and is not in the store.
    fn bytes(&self) -> usize {
        self.ledger.bytes() + self.triggers_bytes + self.live_bytes
    }

    /// Whether as many records from the committed offset on were read as a step takes in.
    fn is_live_full(&self) -> bool {
        let ReadAheadLimits { records_max, bytes_max } = self.limits;
        self.live_inputs.len() >= records_max || self.live_bytes >= bytes_max
    }

    /// Whether the ledger records that were read are a batch.
    pub(super) fn is_ledger_batch_full(&self) -> bool {
        self.ledger.len() >= LEDGER_BATCH || self.ledger.bytes() >= self.limits.batch_bytes_max()
    }

    /// Whether the records of `triggers` that were read are a batch.
    pub(super) fn is_triggers_batch_full(&self) -> bool {
        self.triggers.len() >= TRIGGERS_BATCH
            || self.triggers_bytes >= self.limits.batch_bytes_max()
    }

    /// Keeps a record of `triggers` below the committed offset.
    pub(super) fn add_trigger(&mut self, record: TriggerRecord) {
        self.triggers_bytes += record.memory_bytes();
        self.triggers.push(record);
    }

    /// Takes a batch of those records.
    pub(super) fn take_triggers(&mut self) -> Vec<TriggerRecord> {
        let count = self.triggers.len().min(TRIGGERS_BATCH);
        let records: Vec<_> = self.triggers.drain(..count).collect();
        self.triggers_bytes -= records.iter().map(TriggerRecord::memory_bytes).sum::<usize>();
        self.records_read += count;
        records
    }

    /// The ledger is read again from `from` on. Records that were read before are dropped,
    /// including our own barrier: it would mean that all earlier records are read.
    pub(super) fn restart_ledger(&mut self, from: Offset) {
        self.ledger = RawLedger::default();
        self.ledger_position = from;
        self.barrier_read = false;
        self.ledger_check = None;
    }
}

#[cfg(test)]
#[path = "partition_task/tests.rs"]
mod tests;
