//! Reads and decodes the inputs, and passes each record to its partition.
//!
//! Invariant: the bytes of a record decide how it is handled. If a record cannot be decoded now
//! (its schema registry is unavailable), it is read again later, and no later record of the
//! partition is ingested before it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::end_offset_poller::{LogEnd, PolledLog};
use super::partition_task::{EndCheck, PartitionState, PartitionTask};
use super::{LoopError, Scheduler};
use crate::codec::ledger_key::STEP_HEADER;
use crate::codec::registration::{self, RawRecord, ReadContext, ReadError};
use crate::codec::schemas::{CodecError, Schemas};
use crate::engine::partition::Input;
use crate::engine::takeover::TakeoverRequest;
use crate::environment::log::{LogEvent, LogReading as _, LogRecord};
use crate::environment::store::RowStore;
use crate::environment::{Clock as _, ClusterQueries as _, Environment, SchemaSource};
use crate::model::definition::Header;
use crate::model::input::{SignalRecord, TriggerRecord, Unreadable};
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::names::Names;
use crate::model::partitioner::Partitioner;
use crate::model::{PartitionId, Timestamp};

/// How long the loop waits for a last stable offset. A partition without a leader must not delay
/// the others for longer.
const STABLE_OFFSET_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the loop waits at most while the partitions accept no more records. The committing
/// thread, which makes room, needs the CPU.
const FULL_WAIT: Duration = Duration::from_millis(1);
/// Records read from `signals` and the ledger in one turn.
const SIGNALS_AND_LEDGER_MAX: usize = 10_000;

/// Decodes input records.
#[derive(Debug)]
pub struct InputDecoder<S> {
    triggers: String,
    signals: String,
    partitioner: Partitioner,
    partitions: i32,
    schemas: Arc<Schemas>,
    writer_schemas: S,
}

impl<S: SchemaSource> InputDecoder<S> {
    /// Of topics with `partitions` partitions.
    pub fn new(
        names: &Names,
        partitioner: Partitioner,
        partitions: i32,
        schemas: Arc<Schemas>,
        writer_schemas: S,
    ) -> Self {
        Self {
            triggers: names.triggers(),
            signals: names.signals(),
            partitioner,
            partitions,
            schemas,
            writer_schemas,
        }
    }

    /// Reads a record of `triggers` at `now` (ms since the epoch). An error means that it cannot be
    /// read now.
    pub fn decode_trigger(
        &self,
        record: &impl LogRecord,
        now: Timestamp,
    ) -> Result<TriggerRecord, ReadError> {
        let writers = self.writer_schemas.at(now);
        let context = ReadContext {
            partitioner: self.partitioner,
            partitions: self.partitions,
            schemas: &self.schemas,
            writers: &writers,
        };
        let raw = RawRecord {
            partition: record.partition(),
            offset: record.offset(),
            timestamp: record.timestamp(),
            key: record.key(),
            value: record.value(),
            headers: record.headers().collect(),
        };
        registration::read_trigger(&raw, &context)
    }

    fn decode_signal(&self, record: &impl LogRecord) -> SignalRecord {
        let decoded = self.schemas.decode_signal(record.value().unwrap_or_default());
        let signal = decoded.map_err(|error| Box::new(unreadable(record, &error.to_string())));
        SignalRecord { offset: record.offset(), signal }
    }

    /// The codec of Orloj's own topics.
    pub(super) fn schemas(&self) -> &Schemas {
        &self.schemas
    }

    /// Whether this record is the barrier with that nonce.
    fn is_barrier(&self, record: &impl LogRecord, nonce: u64) -> bool {
        let key = record.key().unwrap_or_default();
        let value = || self.decode_ledger(record).ok()?.value;
        LedgerKey::BARRIER == key && value() == Some(LedgerValue::Barrier { nonce })
    }

    /// Reads a record of the ledger.
    pub fn decode_ledger(&self, record: &impl LogRecord) -> Result<LedgerRecord, CodecError> {
        let key = record.key().unwrap_or_default();
        self.schemas.decode_ledger(key, record.value(), record.header(STEP_HEADER))
    }
}

fn unreadable(record: &impl LogRecord, reason: &str) -> Unreadable {
    let headers = record.headers().map(|(name, value)| Header {
        name: name.into(),
        value: value.map(bytes::Bytes::copy_from_slice),
    });
    Unreadable {
        id: None,
        reason: reason.to_owned(),
        may_become_readable: false,
        key: record.key().map(bytes::Bytes::copy_from_slice),
        value: record.value().map(bytes::Bytes::copy_from_slice),
        headers: headers.collect(),
    }
}

impl<E: Environment> Scheduler<E> {
    /// Reads the available records, and waits at most `wait` for the first one.
    pub(super) fn read_inputs(&mut self, wait: Duration) -> Result<(), LoopError> {
        self.apply_end_offsets();
        let mut inputs = BTreeMap::new();
        self.read_signals_and_ledger(&mut inputs)?;
        // While a draft is full, no records are read: librdkafka's queue bounds the memory.
        let is_full = |task: &mut PartitionTask<E::Store>| {
            task.is_over_buffered() || task.active().is_some_and(|partition| partition.is_full())
        };
        if self.tasks.values_mut().any(is_full) {
            self.restore_pool.wait_for_result(wait.min(FULL_WAIT));
        } else {
            let wait = if inputs.is_empty() { wait } else { Duration::ZERO };
            self.read_triggers(wait, &mut inputs)?;
        }
        self.ingest(inputs)?;
        self.run_due_checks()
    }

    fn ingest(&mut self, inputs: BTreeMap<PartitionId, Vec<Input>>) -> Result<(), LoopError> {
        let now = self.clock.now_ms();
        for (id, inputs) in inputs {
            let Some(task) = self.tasks.get_mut(&id) else { continue };
            if let Some(partition) = task.active() {
                let _behind = partition.observe_clock(now);
            }
            if let Err(error) = task.ingest(inputs) {
                self.on_store_failed(id, &error)?;
            }
        }
        Ok(())
    }

    fn read_triggers(
        &mut self,
        wait: Duration,
        inputs: &mut BTreeMap<PartitionId, Vec<Input>>,
    ) -> Result<(), LoopError> {
        let now = self.clock.now_ms();
        let mut paused = Vec::new();
        let mut ended = Vec::new();
        let mut records_read = 0;
        let mut wait = wait;
        while records_read < self.config.records_per_step_max {
            let event = match self.triggers.poll(wait) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "triggers cannot be read");
                    break;
                }
            };
            wait = Duration::ZERO;
            match event {
                LogEvent::Record(record) => {
                    records_read += 1;
                    let (_, id, offset) = record.position();
                    let Some(task) = self.tasks.get_mut(&id) else { continue };
                    if offset < task.next_trigger || task.paused_until.is_some() {
                        continue;
                    }
                    if task.skip_covered(offset, record.timestamp()) {
                        continue;
                    }
                    match self.decoder.decode_trigger(&record, now) {
                        Ok(trigger) => route_trigger(task, trigger, now, inputs),
                        Err(error) => {
                            tracing::warn!(
                                partition = id,
                                offset,
                                %error,
                                "reading triggers is paused"
                            );
                            task.paused_until = Some(now + self.config.timing.registry_retry);
                            paused.push(id);
                        }
                    }
                }
                LogEvent::End(id) => ended.push(id),
                LogEvent::OutOfRange(error) => {
                    tracing::error!(error, "the offset in triggers is out of range")
                }
            }
        }
        for id in paused {
            self.triggers.stop(&self.decoder.triggers, id)?;
        }
        for id in ended {
            self.on_triggers_end_reached(id)?;
        }
        Ok(())
    }

    /// Applies the end offsets that the poller has read.
    fn apply_end_offsets(&mut self) {
        for LogEnd { log, partition, end, at } in self.end_offsets.poll_ends() {
            let Some(task) = self.tasks.get_mut(&partition) else { continue };
            match log {
                PolledLog::Triggers => {
                    if let Some(partition) = task.active() {
                        partition.on_end_offset(end, at);
                    }
                }
                PolledLog::Ledger => task.on_ledger_end(end),
            }
        }
    }

    fn read_signals_and_ledger(
        &mut self,
        inputs: &mut BTreeMap<PartitionId, Vec<Input>>,
    ) -> Result<(), LoopError> {
        let mut ended = Vec::new();
        if self.tasks.values().any(|task| task.is_over_buffered()) {
            return Ok(());
        }
        for _ in 0..SIGNALS_AND_LEDGER_MAX {
            let event = match self.signals_and_ledger.poll(Duration::ZERO) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "signals and the ledger cannot be read");
                    break;
                }
            };
            match event {
                LogEvent::Record(record) => {
                    let (topic, id, offset) = record.position();
                    let Some(task) = self.tasks.get_mut(&id) else { continue };
                    if topic == self.decoder.signals {
                        if offset >= task.next_signal && task.active().is_some() {
                            task.next_signal = offset + 1;
                            let input = Input::Signal(self.decoder.decode_signal(&record));
                            inputs.entry(id).or_default().push(input);
                        }
                    } else if let PartitionState::Restoring(restoring) = &mut task.state {
                        let is_our_barrier = self.decoder.is_barrier(&record, restoring.nonce);
                        restoring.add_ledger_record(&record, is_our_barrier);
                        task.ledger_position = offset + 1;
                    }
                }
                LogEvent::End(id) => ended.push(id),
                LogEvent::OutOfRange(error) => {
                    tracing::error!(error, "the offset in signals or the ledger is out of range")
                }
            }
        }
        ended.into_iter().try_for_each(|id| self.on_ledger_end_reached(id))
    }

    /// Handles the end of `signals` or of the ledger. It matters only while the mirror of a cursor
    /// is being read; then only the ledger is assigned. A read_committed reader stops at the first
    /// open transaction, and the newest mirror may be after it. The end is therefore accepted only
    /// if it is reached after no transaction was open below it.
    fn on_ledger_end_reached(&mut self, id: PartitionId) -> Result<(), LoopError> {
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        let PartitionState::Restoring(restoring) = &mut task.state else { return Ok(()) };
        let Some(TakeoverRequest::Mirror { from, until }) = restoring.requested else {
            return Ok(());
        };
        if restoring.ledger_is_stable {
            restoring.ledger_position = restoring.ledger_position.max(until);
            return Ok(());
        }
        let ledger = self.config.names.ledger();
        match self.signals_and_ledger.last_stable_offset(&ledger, id, STABLE_OFFSET_TIMEOUT) {
            Ok(stable) if stable >= until => restoring.ledger_is_stable = true,
            Ok(stable) => {
                tracing::info!(
                    partition = id,
                    stable,
                    until,
                    "a transaction is open below the end of the ledger"
                );
            }
            Err(error) => {
                tracing::debug!(partition = id, %error, "the ledger's stable offset cannot be read")
            }
        }
        self.signals_and_ledger.start(&ledger, id, restoring.ledger_position.max(from))?;
        Ok(())
    }

    /// Handles the end of `triggers[p]`.
    fn on_triggers_end_reached(&mut self, id: PartitionId) -> Result<(), LoopError> {
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        match &mut task.state {
            PartitionState::Restoring(restoring) => {
                if let Some(TakeoverRequest::Triggers { .. }) = restoring.requested {
                    restoring.triggers_complete = true;
                }
                Ok(())
            }
            PartitionState::Active(_) => {
                if let EndCheck::Confirming(end) = task.end_check {
                    task.end_check = EndCheck::Idle;
                    if let Err(error) = task.ingest(vec![Input::TriggersEnd(end)]) {
                        return self.on_store_failed(id, &error);
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Input seems to be unread, but the reader is at the end of the partition. Either only
    /// transaction markers and aborted records follow, or another process's transaction is still
    /// open. If none is open now, read again from the current position: reaching the end again
    /// proves that all is read.
    fn confirm_end(&mut self, id: PartitionId) -> Result<(), LoopError> {
        let topic = self.decoder.triggers.clone();
        let stable = self.triggers.last_stable_offset(&topic, id, STABLE_OFFSET_TIMEOUT);
        let ends = stable.and_then(|stable| Ok((stable, self.cluster.bounds(&topic, id)?.1)));
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        match ends {
            Ok((stable, end)) if stable >= end => {
                task.end_check = EndCheck::Confirming(end);
                self.triggers.start(&topic, id, task.next_trigger)?;
            }
            _ => {
                task.end_check =
                    EndCheck::RetryAt(self.clock.now_ms() + self.config.timing.end_retry)
            }
        }
        Ok(())
    }

    /// Checks end offsets again and resumes paused partitions, if it is time.
    fn run_due_checks(&mut self) -> Result<(), LoopError> {
        let now = self.clock.now_ms();
        let stall = self.config.timing.stall;
        // If the last records are transaction markers, reading never reaches the end offset.
        let is_stalled = |task: &PartitionTask<E::Store>| match &task.state {
            PartitionState::Active(partition) => {
                partition.has_unread_input() && now >= task.read_at + stall
            }
            _ => false,
        };
        let is_check_due = |task: &PartitionTask<E::Store>| match task.end_check {
            EndCheck::Idle => is_stalled(task),
            EndCheck::Confirming(_) => false,
            EndCheck::RetryAt(at) => now >= at,
        };
        let pause_is_over =
            |task: &PartitionTask<E::Store>| task.paused_until.is_some_and(|until| now >= until);
        let ends: Vec<_> =
            self.tasks.values().filter(|task| is_check_due(task)).map(|task| task.id).collect();
        let resumed: Vec<_> =
            self.tasks.values().filter(|task| pause_is_over(task)).map(|task| task.id).collect();
        for id in ends {
            self.confirm_end(id)?;
        }
        for id in resumed {
            let Some(task) = self.tasks.get_mut(&id) else { continue };
            task.paused_until = None;
            self.triggers.start(&self.decoder.triggers, id, task.next_trigger)?;
        }
        Ok(())
    }
}

/// Passes a record to its partition according to the partition's state.
fn route_trigger<S: RowStore>(
    task: &mut PartitionTask<S>,
    record: TriggerRecord,
    now: Timestamp,
    inputs: &mut BTreeMap<PartitionId, Vec<Input>>,
) {
    task.next_trigger = record.offset + 1;
    task.read_at = now;
    task.end_check = EndCheck::Idle;
    match &mut task.state {
        PartitionState::Active(_) => {
            inputs.entry(task.id).or_default().push(Input::Trigger(record))
        }
        PartitionState::Restoring(restoring) => match restoring.requested {
            Some(TakeoverRequest::Triggers { until, .. }) if record.offset < until => {
                restoring.triggers.push(record);
            }
            _ => {
                restoring.triggers_complete = true;
                restoring.live_inputs.push(Input::Trigger(record));
            }
        },
        PartitionState::WaitingForClock(_)
        | PartitionState::StoreFailed
        | PartitionState::WaitingForProducer
        | PartitionState::Refused(_)
        | PartitionState::Transitioning => {}
    }
}
