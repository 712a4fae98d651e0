//! Jobs that apply the records read for a takeover, in parallel to the loop, so that active
//! partitions do not wait for a partition that is being restored.
//!
//! Invariant: only one job has a takeover at a time; until it is returned, it is not in its
//! partition task. The loop waits for it before it uses the store or the position of the takeover.

use std::sync::Arc;
use std::time::Duration;

use super::local_store::{fetch_index_rows, local_state};
use crate::codec::ledger_key::STEP_HEADER;
use crate::codec::schemas::{CodecError, Schemas};
use crate::engine::takeover::{Takeover, TakeoverError};
use crate::environment::Environment;
use crate::environment::job::{Job, JobQueue as _, JobStep, Threads};
use crate::environment::log::LogRecord;
use crate::environment::store::{RowStore, StoreError};
use crate::model::input::TriggerRecord;
use crate::model::ledger::LedgerRecord;
use crate::model::{Offset, PartitionId, Timestamp};

/// Records of `triggers` per batch. The larger a sorted batch is compared with the memtable, the
/// closer each key is to the previous one, which makes inserting faster.
pub(super) const TRIGGERS_BATCH: usize = 16_384;
/// Records of the ledger per batch. A batch becomes one file of the store: smaller batches make
/// more files to merge later, larger ones need more memory (about 15 MiB per partition). With large
/// payloads it has fewer records: see `batch_bytes_max`.
pub(super) const LEDGER_BATCH: usize = 32_768;

/// Submits records and returns the takeovers.
pub(super) struct RestorePool<E: Environment> {
    queue: E::Queue<RestoreJob<E>>,
    /// Results that arrived during `wait_for_result`.
    finished: Vec<RestoreResult>,
}

/// Records of one partition, and what is needed to apply them.
pub(super) struct RestoreJob<E: Environment>(Option<RestoreRequest<E::Store>>);

/// What is applied to which store.
#[derive(Debug)]
pub(super) struct RestoreRequest<S> {
    pub(super) partition: PartitionId,
    pub(super) takeover: Box<Takeover>,
    pub(super) store: Arc<S>,
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

impl<E: Environment> RestorePool<E> {
    /// Starts that many threads.
    pub(super) fn start(environment: &E, threads: usize, schemas: Arc<Schemas>) -> Self {
        let queue = environment
            .start_queue("restorer", Threads::Fixed(threads), move || Arc::clone(&schemas));
        Self { queue, finished: Vec::new() }
    }

    pub(super) fn submit(&mut self, request: RestoreRequest<E::Store>) {
        self.queue.submit(RestoreJob(Some(request)));
    }

    /// Waits at most `timeout` for a result.
    pub(super) fn wait_for_result(&mut self, timeout: Duration) {
        self.finished.extend(self.queue.poll(timeout));
    }

    /// The results since the last call.
    pub(super) fn poll_results(&mut self) -> Vec<RestoreResult> {
        self.finished.extend(std::iter::from_fn(|| self.queue.poll(Duration::ZERO)));
        std::mem::take(&mut self.finished)
    }

    /// Waits for all submitted jobs and returns their results.
    pub(super) fn drain(&mut self) -> Vec<RestoreResult> {
        self.finished.extend(self.queue.drain());
        std::mem::take(&mut self.finished)
    }
}

impl<E: Environment> Job for RestoreJob<E> {
    type Output = RestoreResult;
    type Worker = Arc<Schemas>;

    fn step(&mut self, schemas: &mut Arc<Schemas>) -> JobStep<RestoreResult> {
        JobStep::Done(self.0.take().expect("a job is done once").run::<E>(schemas))
    }
}

impl<S: RowStore> RestoreRequest<S> {
    /// Applies the records. Releases the store before the takeover is returned.
    fn run<E: Environment>(self, schemas: &Schemas) -> RestoreResult {
        let Self { partition, mut takeover, store, cluster, now, work } = self;
        let mut spare_buffer = RawLedger::default();
        let result = match work {
            RestoreWork::Ledger(raw, position) => {
                let records = raw.decode(partition, schemas).map_err(RestoreError::from);
                spare_buffer = raw.cleared();
                let applied = records.and_then(|records| {
                    apply_ledger(&mut takeover, &*store, &cluster, records, position)
                });
                E::reached("takeover.after_ledger");
                applied
            }
            RestoreWork::Triggers(batch) => {
                let last = batch.last;
                let applied = apply_triggers(&mut takeover, &*store, &cluster, batch, now);
                E::reached("takeover.after_replay");
                if last && applied.is_ok() {
                    takeover.on_triggers_end();
                }
                applied
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
    store: &impl RowStore,
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
    Ok(())
}

fn apply_triggers(
    takeover: &mut Takeover,
    store: &impl RowStore,
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

    /// The bytes of the records.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn push(&mut self, record: &impl LogRecord) {
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
#[path = "restore_pool/tests.rs"]
mod tests;
