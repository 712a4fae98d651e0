//! One pass over a followed partition: reads what the owner has committed and applies it to the
//! store. `engine::standby` defines what a pass does; here it is read in small steps.
//!
//! Invariant: a topic counts as read up to an offset if that offset was passed, or if its end was
//! reached after no transaction was open below the offset. A pass that ends earlier leaves the
//! state of the store as it was.

use std::sync::Arc;
use std::time::Duration;

use super::inputs::{InputDecoder, bytes_of};
use super::local_store::fetch_index_rows;
use crate::codec::registration::ReadError;
use crate::codec::schemas::CodecError;
use crate::engine::standby::CatchUpPass;
use crate::environment::call_error::CallError;
use crate::environment::log::{LogEvent, LogReading, LogRecord as _};
use crate::environment::store::{RowStore as _, StoreError};
use crate::environment::{Clock as _, ClusterQueries as _, Environment};
use crate::model::input::TriggerRecord;
use crate::model::ledger::LedgerRecord;
use crate::model::names::Names;
use crate::model::{Offset, PartitionId, Timestamp};

/// How long one poll waits.
pub(super) const POLL: Duration = Duration::from_millis(20);

/// Why a pass was not completed. The next pass starts from the beginning.
#[derive(Debug, thiserror::Error)]
pub(super) enum PassError {
    #[error("not yet: {0}")]
    NotReady(String),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("a record of the ledger cannot be read: {0}")]
    Ledger(#[from] CodecError),
    #[error("a record of triggers cannot be read: {0}")]
    Triggers(#[from] ReadError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Reads the two topics. One reader per topic, because the end of a partition does not contain the
/// topic.
pub(super) struct StandbyReader<E: Environment> {
    pub(super) clock: E::Clock,
    pub(super) names: Names,
    pub(super) ledger: E::Reader,
    pub(super) triggers: E::Reader,
    pub(super) cluster: E::Cluster,
    pub(super) decoder: InputDecoder<E::Schemas>,
    /// How long a pass waits for records that must exist.
    pub(super) timeout: Duration,
    /// Records applied in one batch.
    pub(super) batch: usize,
    /// The bytes of records from which on a batch is full.
    pub(super) batch_bytes_max: usize,
}

/// A pass in progress.
#[derive(Debug)]
pub(super) struct RunningPass<S> {
    pub(super) partition: PartitionId,
    pub(super) store: Arc<S>,
    pub(super) pass: CatchUpPass,
    /// When it began, on the monotonic clock.
    pub(super) began_at: Duration,
    /// When it began, in ms since the epoch.
    pub(super) began_ms: Timestamp,
    ledger: TopicRange,
    triggers: TopicRange,
    /// The last stable offset of the topic that is being read, before it was started; `None` if it
    /// is to be started.
    stable: Option<Offset>,
    /// When a record was read last, on the monotonic clock.
    progress_at: Duration,
    ledger_records: Vec<(Offset, LedgerRecord)>,
    trigger_records: Vec<TriggerRecord>,
    /// The bytes of the records that are not applied yet.
    bytes: usize,
}

/// The part of a topic that is still to be read.
#[derive(Clone, Copy, Debug)]
struct TopicRange {
    next: Offset,
    until: Offset,
}

impl TopicRange {
    fn is_read(self) -> bool {
        self.next >= self.until
    }
}

/// What a step of a pass has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassProgress {
    /// There is more to read.
    Reading,
    /// Another process's transaction is open below the end, or the broker does not answer: pause.
    Waiting,
    /// Everything is read and applied.
    Complete,
}

/// Why a step has stopped to poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollEnd {
    /// A batch is full, or nothing more has arrived.
    Paused,
    /// The end of the partition was reached.
    End,
}

impl<S> RunningPass<S> {
    /// A pass that begins. `ledger_low` is the first available offset of the ledger: a read from
    /// below it would never begin.
    pub(super) fn new(
        partition: PartitionId,
        store: Arc<S>,
        pass: CatchUpPass,
        (began_at, began_ms): (Duration, Timestamp),
        ledger_low: Offset,
    ) -> Self {
        let plan = pass.plan();
        Self {
            partition,
            store,
            pass,
            began_at,
            began_ms,
            ledger: TopicRange { next: plan.ledger_from.max(ledger_low), until: plan.ledger_until },
            triggers: TopicRange { next: plan.triggers_from, until: plan.triggers_until },
            stable: None,
            progress_at: began_at,
            ledger_records: Vec::new(),
            trigger_records: Vec::new(),
            bytes: 0,
        }
    }

    fn is_ledger_read(&self) -> bool {
        self.ledger.is_read() || self.pass.is_ledger_read()
    }
}

impl<E: Environment> StandbyReader<E> {
    /// Reads and applies what is available, at most one batch.
    pub(super) fn read(
        &self,
        running: &mut RunningPass<E::Store>,
    ) -> Result<PassProgress, PassError> {
        let reads_ledger = !running.is_ledger_read();
        if !reads_ledger && running.triggers.is_read() {
            return Ok(PassProgress::Complete);
        }
        let range = if reads_ledger { running.ledger } else { running.triggers };
        let stable = match running.stable {
            Some(stable) => stable,
            None => {
                let Some(stable) = self.start(running.partition, reads_ledger, range.next)? else {
                    return self.wait(running);
                };
                running.stable = Some(stable);
                stable
            }
        };
        let (before, end) = (range.next, self.poll_batch(running, reads_ledger)?);
        let range = if reads_ledger { &mut running.ledger } else { &mut running.triggers };
        let has_read = range.next > before;
        if end == PollEnd::End {
            running.stable = None;
            if reads_ledger && stable >= range.until {
                range.next = range.until;
            } else if !reads_ledger {
                // The broker that is read may lag behind the one that has answered. Compaction can
                // leave nothing at the end of the ledger that a reader would pass.
                let topic = self.names.triggers();
                let position = self.triggers.position(&topic, running.partition)?;
                range.next = range.next.max(position.unwrap_or(0));
            }
        }
        let is_read = range.is_read();
        self.apply(running, is_read || end == PollEnd::End)?;
        if is_read || reads_ledger && running.pass.is_ledger_read() {
            running.stable = None;
            return Ok(PassProgress::Reading);
        }
        if has_read {
            running.progress_at = self.clock.monotonic();
            return Ok(PassProgress::Reading);
        }
        self.wait(running)
    }

    /// Nothing has arrived.
    fn wait(&self, running: &RunningPass<E::Store>) -> Result<PassProgress, PassError> {
        if self.clock.monotonic() >= running.progress_at + self.timeout {
            return Err(PassError::NotReady("no records arrive".to_owned()));
        }
        // A reader that is started has waited.
        let is_started = running.stable.is_some();
        Ok(if is_started { PassProgress::Reading } else { PassProgress::Waiting })
    }

    /// Starts to read a topic. Returns its last stable offset before that; `None` if the broker
    /// does not answer.
    fn start(
        &self,
        partition: PartitionId,
        reads_ledger: bool,
        from: Offset,
    ) -> Result<Option<Offset>, PassError> {
        let (reader, topic) = self.source(reads_ledger);
        match self.cluster.last_stable_offset(&topic, partition) {
            Ok(stable) => {
                reader.start(&topic, partition, from)?;
                Ok(Some(stable))
            }
            Err(error) => {
                tracing::debug!(partition, topic, %error, "the stable offset cannot be read");
                Ok(None)
            }
        }
    }

    fn source(&self, is_ledger: bool) -> (&E::Reader, String) {
        if is_ledger {
            (&self.ledger, self.names.ledger())
        } else {
            (&self.triggers, self.names.triggers())
        }
    }

    fn poll_batch(
        &self,
        running: &mut RunningPass<E::Store>,
        reads_ledger: bool,
    ) -> Result<PollEnd, PassError> {
        let (reader, topic) = self.source(reads_ledger);
        let mut wait = POLL;
        while !self.is_batch_full(running) {
            let event = match reader.poll(wait) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(topic, %error, "a topic cannot be read");
                    break;
                }
            };
            wait = Duration::ZERO;
            let record = match event {
                LogEvent::Record(record) => record,
                LogEvent::End(_) => return Ok(PollEnd::End),
                LogEvent::OutOfRange => {
                    let reason = format!("its position in {topic} does not exist");
                    return Err(PassError::NotReady(reason));
                }
            };
            let offset = record.offset();
            if reads_ledger {
                running.bytes += bytes_of(&record);
                running.ledger_records.push((offset, self.decoder.decode_ledger(&record)?));
                running.ledger.next = offset + 1;
                continue;
            }
            if offset < running.triggers.until && !running.pass.is_covered(offset) {
                let registry_from = running.pass.registry_from();
                let now = self.clock.monotonic();
                let record = self.decoder.decode_replayed(&record, now, registry_from)?;
                running.bytes += record.memory_bytes();
                running.trigger_records.push(record);
            }
            running.triggers.next = offset + 1;
            if running.triggers.is_read() {
                break;
            }
        }
        Ok(PollEnd::Paused)
    }

    fn is_batch_full(&self, running: &RunningPass<E::Store>) -> bool {
        let count = running.ledger_records.len() + running.trigger_records.len();
        count >= self.batch || running.bytes >= self.batch_bytes_max
    }

    /// Applies the records that were read, once there are enough, or if they are the last ones for
    /// now.
    fn apply(&self, running: &mut RunningPass<E::Store>, are_last: bool) -> Result<(), StoreError> {
        if !are_last && !self.is_batch_full(running) {
            return Ok(());
        }
        let RunningPass { store, pass, ledger_records, trigger_records, bytes, .. } = running;
        if !ledger_records.is_empty() {
            let records = std::mem::take(ledger_records);
            let fetched = fetch_index_rows(&**store, pass.ids_in_ledger(&records))?;
            store.bulk_load(&pass.on_ledger(records, &fetched))?;
        }
        if !trigger_records.is_empty() {
            let records = std::mem::take(trigger_records);
            let fetched = fetch_index_rows(&**store, pass.ids_in_triggers(&records))?;
            store.bulk_load(&pass.on_triggers(records, &fetched))?;
        }
        *bytes = 0;
        Ok(())
    }

    /// Stops reading a partition.
    pub(super) fn stop(&self, partition: PartitionId) {
        for reads_ledger in [true, false] {
            let (reader, topic) = self.source(reads_ledger);
            if let Err(error) = reader.stop(&topic, partition) {
                tracing::debug!(partition, topic, %error, "reading cannot be stopped");
            }
        }
    }
}

#[cfg(test)]
#[path = "standby_pass/tests.rs"]
mod tests;
