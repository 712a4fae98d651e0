//! One partition of ours in the shell: its store, and the stage it is in.
//!
//! Invariant: a partition task fires nothing before its takeover is done, and a failed commit sends
//! it back to the beginning with whatever its store holds, which is only what was committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdkafka::message::{BorrowedMessage, Message};

use super::PartitionTaskError;
use super::local_store::fetch_index_rows;
use super::restore_pool::{LEDGER_BATCH, RawLedger, TRIGGERS_BATCH};
use crate::engine::index_row::IdHash;
use crate::engine::offset_bitmap::OffsetBitmap;
use crate::engine::partition::{Input, Partition};
use crate::engine::prefetch::{self, Prefetched};
use crate::engine::takeover::{Takeover, TakeoverError, TakeoverRequest};
use crate::kafka::reader::LogReader;
use crate::model::input::TriggerRecord;
use crate::model::ledger::LedgerKey;
use crate::model::{Offset, PartitionId, Timestamp};
use crate::store::{PartitionStore, StoreError};

/// So many records of the ledger a restart may read again for nothing: they take milliseconds,
/// and what an idle partition writes, a mirror of its cursor now and then, asks for no spill.
const LEDGER_SLACK: Offset = 100;

/// A partition assigned to this process.
#[derive(Debug)]
pub(super) struct PartitionTask {
    pub(super) id: PartitionId,
    /// Shared with the writer, which applies rows; read here.
    pub(super) store: Arc<PartitionStore>,
    pub(super) state: PartitionState,
    /// Where the takeover began, by the monotonic clock.
    pub(super) takeover_started_at: std::time::Instant,
    /// The offset of `triggers` expected next; what is below it has been seen.
    pub(super) next_trigger: Offset,
    /// The offset of `signals` expected next.
    pub(super) next_signal: Offset,
    /// Reading is held back until then (ms since the epoch): the schema registry is away.
    pub(super) paused_until: Option<Timestamp>,
    /// A check is under way of whether the end of `triggers` has really been reached.
    pub(super) end_check: EndCheck,
    /// When the last record of `triggers` was read, in ms since the epoch.
    pub(super) read_at: Timestamp,
    /// With the step that was sealed last, the store has what the ledger says below this.
    pub(super) ledger_position: Offset,
    /// Where the ledger ended when it was last read. What is below is of steps of ours that are
    /// sealed, if the next one can be committed at all; see [`Self::before_seal`].
    pub(super) ledger_end: Offset,
}

/// How far a partition is on its way.
#[derive(Debug)]
pub(super) enum PartitionState {
    /// Being taken over.
    Restoring(Box<PartitionRestore>),
    /// Taken over; the clock is behind what an earlier owner decided by.
    WaitingForClock(Box<Partition>),
    /// Firing.
    Active(Box<Partition>),
    /// An operator must decide something first.
    Refused(TakeoverError),
    /// From one stage to the next, within one call.
    Transitioning,
}

/// A takeover and what the reader has brought for it.
#[derive(Debug)]
pub(super) struct PartitionRestore {
    /// Away while a restorer applies what was read.
    pub(super) takeover: Option<Box<Takeover>>,
    /// What tells this takeover from every other.
    pub(super) nonce: u64,
    /// What has been asked of the world already.
    pub(super) requested: Option<TakeoverRequest>,
    pub(super) ledger: RawLedger,
    /// Where the next batch of it goes.
    pub(super) spare_buffer: RawLedger,
    /// Records that were read, of the ledger and the log.
    pub(super) records_read: usize,
    pub(super) ledger_position: Offset,
    /// Our own barrier is among what was read of the ledger: there is nothing to wait for.
    pub(super) barrier_read: bool,
    /// Below the end of the ledger that is sought no transaction is open any more.
    pub(super) ledger_is_stable: bool,
    pub(super) triggers: Vec<TriggerRecord>,
    /// What of the log need not be read.
    pub(super) covered: OffsetBitmap,
    /// When the last one of those was written that was met, in ms since the epoch.
    pub(super) covered_at: Timestamp,
    /// The reader has passed N.
    pub(super) triggers_complete: bool,
    /// Records from N on that arrived while the replay was still applied.
    pub(super) live_inputs: Vec<Input>,
    /// Tells the thread that reads the committed offset to give up.
    pub(super) cancelled: Arc<AtomicBool>,
}

impl Drop for PartitionRestore {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::SeqCst);
    }
}

/// Whether "no more records" has been believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndCheck {
    /// Nothing to check.
    Idle,
    /// The reader was started again at its position; if it meets the end once more without a
    /// record before, everything below this offset has been read.
    Confirming(Offset),
    /// A transaction of someone else's is open below the end: look again at this time.
    RetryAt(Timestamp),
}

impl PartitionTask {
    /// A task at the beginning of its takeover.
    pub(super) fn new(
        id: PartitionId,
        store: Arc<PartitionStore>,
        takeover: Takeover,
        since: std::time::Instant,
    ) -> Self {
        Self::in_state(
            id,
            store,
            PartitionState::Restoring(Box::new(PartitionRestore::new(takeover))),
            since,
        )
    }

    /// A task in any state.
    pub(super) fn in_state(
        id: PartitionId,
        store: Arc<PartitionStore>,
        state: PartitionState,
        since: std::time::Instant,
    ) -> Self {
        Self {
            id,
            store,
            state,
            takeover_started_at: since,
            next_trigger: 0,
            next_signal: 0,
            paused_until: None,
            end_check: EndCheck::Idle,
            read_at: 0,
            ledger_position: 0,
            ledger_end: 0,
        }
    }

    /// The ledger was read to end at `end`.
    pub(super) fn on_ledger_end(&mut self, end: Offset) {
        self.ledger_end = end;
        let grew = end > self.ledger_position + LEDGER_SLACK;
        if let Some(partition) = self.active().filter(|_| grew) {
            partition.request_spill();
        }
    }

    /// Called before a step is sealed: if it is committed, then no other process has written to the
    /// ledger before the end that we know of. With an end that is read later it would be too
    /// late: by then another owner may have written, and this store would lack it.
    pub(super) fn before_seal(&mut self) {
        if matches!(self.state, PartitionState::Active(_)) {
            self.ledger_position = self.ledger_position.max(self.ledger_end);
        }
    }

    /// The partition, if it is firing.
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
            | PartitionState::Refused(_)
            | PartitionState::Transitioning => false,
        }
    }

    /// Whether the next batch of a takeover is complete before the last one is applied.
    pub(super) fn is_over_buffered(&self) -> bool {
        match &self.state {
            PartitionState::Restoring(restoring) => restoring.is_over_buffered(),
            _ => false,
        }
    }

    /// Goes past the record of `triggers` at `offset`, written at `timestamp` (ms since the epoch),
    /// if it need not be read, because the ledger holds what it has registered.
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

    /// Takes the stage out, for the next one to be put in.
    pub(super) fn take_state(&mut self) -> PartitionState {
        std::mem::replace(&mut self.state, PartitionState::Transitioning)
    }

    /// Takes in records in log order.
    pub(super) fn ingest(&mut self, inputs: Vec<Input>) -> Result<(), PartitionTaskError> {
        let PartitionState::Active(partition) = &mut self.state else { return Ok(()) };
        let ids = inputs.iter().filter_map(prefetch::trigger_of).map(IdHash::of);
        let index = fetch_index_rows(
            &self.store,
            ids.filter(|hash| partition.needs_index_row(*hash)).collect(),
        )?;
        let rows = self.store.timeline_rows(&partition.rows_to_prefetch(&inputs, &index))?;
        partition.ingest(inputs, Prefetched { index: &index, rows: &rows })?;
        Ok(())
    }

    /// Fills the wheel from the store as far as it wants to be filled.
    pub(super) fn load(&mut self) -> Result<(), StoreError> {
        let PartitionState::Active(partition) = &mut self.state else { return Ok(()) };
        while let Some(load) = partition.load_request() {
            let scan = self.store.scan(load.from, load.until, load.bytes_max)?;
            partition.load(scan.entries, scan.reached);
        }
        Ok(())
    }
}

impl PartitionRestore {
    fn new(takeover: Takeover) -> Self {
        Self {
            nonce: takeover.nonce(),
            takeover: Some(Box::new(takeover)),
            requested: None,
            ledger: RawLedger::default(),
            spare_buffer: RawLedger::default(),
            records_read: 0,
            ledger_position: 0,
            barrier_read: false,
            ledger_is_stable: false,
            triggers: Vec::new(),
            covered: OffsetBitmap::default(),
            covered_at: 0,
            triggers_complete: false,
            live_inputs: Vec::new(),
            cancelled: Arc::default(),
        }
    }

    /// Takes a record of the ledger, if it is asked for: all of them, or only what can be the
    /// mirror of the cursor. A later owner's mirror does not belong to the offset that was read.
    pub(super) fn add_ledger_record(
        &mut self,
        message: &BorrowedMessage<'_>,
        is_our_barrier: bool,
    ) {
        let (_, _, offset) = LogReader::position(message);
        match self.requested {
            Some(TakeoverRequest::Ledger { .. }) => {
                self.barrier_read |= is_our_barrier;
                self.ledger.push(message);
            }
            Some(TakeoverRequest::Mirror { until, .. })
                if offset < until && message.key() == Some(LedgerKey::CURSOR) =>
            {
                self.ledger.push(message);
            }
            _ => {}
        }
        self.ledger_position = offset + 1;
    }

    fn is_over_buffered(&self) -> bool {
        let full = self.ledger.len() >= LEDGER_BATCH || self.triggers.len() >= TRIGGERS_BATCH;
        full && self.takeover.is_none()
    }

    /// The ledger is read again, from `from` on. The reader continued meanwhile: our own
    /// barrier may be among what it has brought, and would say that all before it has been read.
    pub(super) fn restart_ledger(&mut self, from: Offset) {
        self.ledger = RawLedger::default();
        self.ledger_position = from;
        self.barrier_read = false;
    }
}
