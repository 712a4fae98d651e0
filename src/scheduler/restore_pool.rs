//! Threads that apply the records read for a takeover, in parallel to the loop, so that active
//! partitions do not wait for a partition that is being restored.
//!
//! Invariant: only one thread has a takeover at a time; until it is returned, it is not in its
//! partition task. The loop waits for it before it uses the store or the position of the takeover.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::local_store::{fetch_index_rows, local_state};
use crate::codec::ledger_key::STEP_HEADER;
use crate::codec::schemas::{CodecError, Schemas};
use crate::engine::takeover::{Takeover, TakeoverError};
use crate::fault;
use crate::kafka::record::ConsumerRecord;
use crate::model::input::TriggerRecord;
use crate::model::ledger::LedgerRecord;
use crate::model::{Offset, PartitionId, Timestamp};
use crate::store::{PartitionStore, StoreError};

/// Records of `triggers` per batch. The larger a sorted batch is compared with the memtable, the
/// closer each key is to the previous one, which makes inserting faster.
pub(super) const TRIGGERS_BATCH: usize = 16_384;
/// Records of the ledger per batch. A batch becomes one file of the store: smaller batches make
/// more files to merge later, larger ones need more memory (about 15 MiB per partition).
pub(super) const LEDGER_BATCH: usize = 32_768;

/// The maximum number of threads. More would compete for the CPU with active partitions.
const THREADS_MAX: usize = 4;

/// Submits records and returns the takeovers.
#[derive(Debug)]
pub(super) struct RestorePool {
    jobs: Sender<RestoreJob>,
    results: Receiver<RestoreResult>,
    in_flight: usize,
    /// Results that arrived during `wait_for_result`.
    finished: Vec<RestoreResult>,
}

/// Records of one partition, and what is needed to apply them.
#[derive(Debug)]
pub(super) struct RestoreJob {
    pub(super) partition: PartitionId,
    pub(super) takeover: Box<Takeover>,
    pub(super) store: Arc<PartitionStore>,
    pub(super) cluster: String,
    /// When the records were read, in ms since the epoch.
    pub(super) now: Timestamp,
    pub(super) work: RestoreWork,
}

/// The records to apply.
#[derive(Debug)]
pub(super) enum RestoreWork {
    /// Records of the ledger, and the offset after the last one.
    Ledger(RawLedger, Offset),
    /// Records of `triggers` below the committed offset.
    Triggers(LogBatch),
}

/// A part of `triggers` below the committed offset.
#[derive(Debug)]
pub(super) struct LogBatch {
    /// The records that the ledger does not cover.
    pub(super) records: Vec<TriggerRecord>,
    /// The newest timestamp of the covered records, in ms since the epoch.
    pub(super) covered_at: Timestamp,
    /// Whether this is the last batch.
    pub(super) last: bool,
}

/// A takeover after its records were applied.
#[derive(Debug)]
pub(super) struct RestoreResult {
    pub(super) partition: PartitionId,
    pub(super) takeover: Box<Takeover>,
    pub(super) result: Result<(), RestoreError>,
    /// An empty buffer for the next batch. Reusing it is cheaper than allocating a new one.
    pub(super) spare_buffer: RawLedger,
}

/// Why records could not be applied.
#[derive(Debug, thiserror::Error)]
pub(super) enum RestoreError {
    /// An operator must act first.
    #[error(transparent)]
    Refused(#[from] TakeoverError),
    /// Rebuild the store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl RestorePool {
    /// Starts one thread per core, up to `THREADS_MAX`.
    pub(super) fn start() -> Self {
        let (jobs, inbox) = channel();
        let (outbox, results) = channel();
        let inbox = Arc::new(Mutex::new(inbox));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..cores.min(THREADS_MAX) {
            let (inbox, outbox) = (Arc::clone(&inbox), outbox.clone());
            super::spawn("restorer", move || run_worker(&inbox, &outbox));
        }
        Self { jobs, results, in_flight: 0, finished: Vec::new() }
    }

    pub(super) fn submit(&mut self, job: RestoreJob) {
        self.in_flight += 1;
        self.jobs.send(job).expect("the restore threads run as long as the loop");
    }

    /// Waits at most `timeout` for a result.
    pub(super) fn wait_for_result(&mut self, timeout: Duration) {
        self.finished.extend(self.results.recv_timeout(timeout));
    }

    /// The results since the last call.
    pub(super) fn poll_results(&mut self) -> Vec<RestoreResult> {
        self.finished.extend(self.results.try_iter());
        self.in_flight -= self.finished.len();
        std::mem::take(&mut self.finished)
    }

    /// Waits for all submitted jobs and returns their results.
    pub(super) fn drain(&mut self) -> Vec<RestoreResult> {
        let missing = self.in_flight - self.finished.len();
        self.finished.extend(self.results.iter().take(missing));
        self.poll_results()
    }
}

fn run_worker(inbox: &Mutex<Receiver<RestoreJob>>, outbox: &Sender<RestoreResult>) {
    let schemas = Schemas::new();
    loop {
        let next = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        if outbox.send(job.run(&schemas)).is_err() {
            return;
        }
    }
}

impl RestoreJob {
    /// Applies the records. Releases the store before the takeover is returned.
    fn run(self, schemas: &Schemas) -> RestoreResult {
        let Self { partition, mut takeover, store, cluster, now, work } = self;
        let mut spare_buffer = RawLedger::default();
        let result = match work {
            RestoreWork::Ledger(raw, position) => {
                let records = raw.decode(partition, schemas).map_err(RestoreError::from);
                spare_buffer = raw.cleared();
                records.and_then(|records| {
                    apply_ledger(&mut takeover, &store, &cluster, records, position)
                })
            }
            RestoreWork::Triggers(batch) => {
                apply_triggers(&mut takeover, &store, &cluster, batch, now)
            }
        };
        drop(store);
        RestoreResult { partition, takeover, result, spare_buffer }
    }
}

/// Rows from the ledger alone are not a state to resume from. An existing store has no valid state
/// until `triggers` is replayed too; a new store has none yet.
fn apply_ledger(
    takeover: &mut Takeover,
    store: &PartitionStore,
    cluster: &str,
    records: Vec<LedgerRecord>,
    position: Offset,
) -> Result<(), RestoreError> {
    let fetched = fetch_index_rows(store, takeover.ids_in_ledger(&records))?;
    let rows = takeover.on_ledger(records, position, &fetched)?;
    if takeover.must_wipe() {
        store.bulk_load(&rows)?;
    } else {
        store.apply(&rows, &local_state(takeover.checkpoint(0), cluster, 0))?;
    }
    fault::reached("takeover.after_ledger");
    Ok(())
}

fn apply_triggers(
    takeover: &mut Takeover,
    store: &PartitionStore,
    cluster: &str,
    batch: LogBatch,
    now: Timestamp,
) -> Result<(), RestoreError> {
    let LogBatch { records, covered_at, last } = batch;
    let fetched = fetch_index_rows(store, takeover.ids_in_triggers(&records))?;
    let committed = takeover.cursor().next_offset;
    let applied =
        if last { committed } else { records.last().map_or(committed, |record| record.offset + 1) };
    let rows = takeover.on_triggers(records, &fetched);
    takeover.on_covered(covered_at);
    store.apply(&rows, &local_state(takeover.checkpoint(applied), cluster, now))?;
    fault::reached("takeover.after_replay");
    if last {
        takeover.on_triggers_end();
    }
    Ok(())
}

/// Ledger records as they were read, one after the other in one buffer. The loop only copies bytes;
/// the pool decodes them.
#[derive(Debug, Default)]
pub(super) struct RawLedger {
    bytes: Vec<u8>,
    records: Vec<RawLedgerRecord>,
}

/// The offset of a record and the lengths of its parts.
#[derive(Debug)]
struct RawLedgerRecord {
    offset: Offset,
    key: usize,
    value: Option<usize>,
    step: Option<usize>,
}

impl RawLedger {
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn push(&mut self, record: &ConsumerRecord<'_>) {
        let (key, value) = (record.key().unwrap_or_default(), record.value());
        let step = record.header(STEP_HEADER);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.unwrap_or_default());
        self.bytes.extend_from_slice(step.unwrap_or_default());
        let (value, step) = (value.map(<[u8]>::len), step.map(<[u8]>::len));
        self.records.push(RawLedgerRecord { offset: record.offset(), key: key.len(), value, step });
    }

    fn cleared(mut self) -> Self {
        self.bytes.clear();
        self.records.clear();
        self
    }

    /// Decodes the records. Corrupt ones are skipped. A record of a newer format is an error.
    pub(super) fn decode(
        &self,
        partition: PartitionId,
        schemas: &Schemas,
    ) -> Result<Vec<LedgerRecord>, TakeoverError> {
        let mut rest = &self.bytes[..];
        let mut take = |length: usize| rest.split_off(..length).unwrap_or_default();
        let mut decoded = Vec::with_capacity(self.records.len());
        for RawLedgerRecord { offset, key, value, step } in &self.records {
            let (key, value, step) = (take(*key), value.map(&mut take), step.map(&mut take));
            match schemas.decode_ledger(key, value, step) {
                Ok(record) => decoded.push(record),
                Err(CodecError::Newer { .. }) => {
                    return Err(TakeoverError::NewerLedger { offset: *offset });
                }
                Err(error @ CodecError::Corrupt { .. }) => {
                    tracing::error!(partition, offset, %error, "a corrupt record is skipped");
                }
            }
        }
        Ok(decoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restore_result(partition: PartitionId) -> RestoreResult {
        let takeover = Box::new(Takeover::new(partition, "o.triggers", "me", 1, None));
        RestoreResult { partition, takeover, result: Ok(()), spare_buffer: RawLedger::default() }
    }

    #[test]
    fn results_that_arrive_during_a_wait_are_returned_once() {
        let (jobs, _inbox) = channel();
        let (outbox, results) = channel();
        let mut pool = RestorePool { jobs, results, in_flight: 4, finished: Vec::new() };
        let ids = |restored: Vec<RestoreResult>| -> Vec<_> {
            restored.into_iter().map(|restored| restored.partition).collect()
        };
        pool.wait_for_result(Duration::ZERO);
        assert_eq!(ids(pool.poll_results()), [0; 0]);
        for id in [0, 1] {
            outbox.send(restore_result(id)).unwrap();
        }
        pool.wait_for_result(Duration::from_secs(60));
        assert_eq!(
            ids(pool.poll_results()),
            [0, 1],
            "the result that ended the wait, and the other one"
        );
        outbox.send(restore_result(2)).unwrap();
        pool.wait_for_result(Duration::from_secs(60));
        outbox.send(restore_result(3)).unwrap();
        assert_eq!(ids(pool.drain()), [2, 3]);
        assert_eq!(ids(pool.drain()), [0; 0], "no job is in progress");
    }
}
