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
use crate::environment::{Clock as _, Environment, SchemaSource};
use crate::model::definition::Header;
use crate::model::input::{SignalRecord, TriggerRecord, Unreadable};
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::names::Names;
use crate::model::partitioner::Partitioner;
use crate::model::{PartitionId, Timestamp};

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
        self.poll_log_bounds()?;
        let mut inputs = BTreeMap::new();
        self.read_signals_and_ledger(&mut inputs)?;
        // While a partition is full, no records are read: librdkafka's queue bounds the memory.
        if self.pause_full_partitions()? {
            self.restore_pool.wait_for_result(wait.min(FULL_WAIT));
        } else {
            let wait = if inputs.is_empty() { wait } else { Duration::ZERO };
            self.read_triggers(wait, &mut inputs)?;
        }
        self.ingest(inputs)?;
        self.run_due_checks()
    }

    /// Pauses a partition that has been full for long, so that the others are read, and resumes one
    /// that is not full any more. Returns whether one is full and not paused: most are so for a
    /// short time, and the records that were fetched are fetched again after a pause.
    fn pause_full_partitions(&mut self) -> Result<bool, LoopError> {
        let (now, patience) = (self.clock.monotonic(), self.config.timing.full_max);
        let names = &self.config.names;
        let mut must_wait = false;
        for task in self.tasks.values_mut() {
            if !task.is_full() {
                task.full_since = None;
                if std::mem::take(&mut task.is_paused) {
                    self.triggers.resume(&names.triggers(), task.id)?;
                    self.signals_and_ledger.resume(&names.signals(), task.id)?;
                    self.signals_and_ledger.resume(&names.ledger(), task.id)?;
                    task.read_at = now;
                }
            } else if now < *task.full_since.get_or_insert(now) + patience {
                must_wait |= !task.is_paused;
            } else {
                // Again and again: a reader that is started is not paused.
                (task.is_paused, task.full_since) = (true, Some(now));
                self.triggers.pause(&names.triggers(), task.id)?;
                self.signals_and_ledger.pause(&names.signals(), task.id)?;
                self.signals_and_ledger.pause(&names.ledger(), task.id)?;
            }
        }
        Ok(must_wait)
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
        let (now, read_at) = (self.clock.now_ms(), self.clock.monotonic());
        let mut paused = Vec::new();
        let (mut ended, mut out_of_range) = (Vec::new(), Vec::new());
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
                        Ok(trigger) => route_trigger(task, trigger, read_at, inputs),
                        Err(error) => {
                            tracing::warn!(
                                partition = id,
                                offset,
                                %error,
                                "reading triggers is paused"
                            );
                            task.paused_until = Some(now + self.config.timing.registry_retry);
                            task.end_check = EndCheck::Idle;
                            paused.push(id);
                        }
                    }
                }
                LogEvent::End(id) => ended.push(id),
                LogEvent::OutOfRange { topic, partition } => out_of_range.push((topic, partition)),
            }
        }
        for (topic, id) in out_of_range {
            self.on_out_of_range(topic, id);
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
            let Some(end) = end else { continue };
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
        let (mut ended, mut out_of_range) = (Vec::new(), Vec::new());
        let must_wait = |task: &PartitionTask<E::Store>| task.is_over_buffered() && !task.is_paused;
        if self.tasks.values().any(must_wait) {
            return Ok(());
        }
        let read_at = self.clock.monotonic();
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
                        (task.ledger_position, task.read_at) = (offset + 1, read_at);
                    }
                }
                LogEvent::End(id) => ended.push(id),
                LogEvent::OutOfRange { topic, partition } => out_of_range.push((topic, partition)),
            }
        }
        for (topic, id) in out_of_range {
            self.on_out_of_range(topic, id);
        }
        ended.into_iter().for_each(|id| self.on_ledger_end_reached(id));
        Ok(())
    }

    /// Handles the end of `triggers[p]`.
    fn on_triggers_end_reached(&mut self, id: PartitionId) -> Result<(), LoopError> {
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        if task.paused_until.is_some() {
            return Ok(()); // a record before the end is not read yet
        }
        match &mut task.state {
            PartitionState::Restoring(restoring) => {
                if let Some(TakeoverRequest::Triggers { .. }) = restoring.requested {
                    restoring.triggers_complete = true;
                }
                Ok(())
            }
            PartitionState::Active(_) => {
                if let EndCheck::Confirming { end, .. } = task.end_check {
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

    /// Checks end offsets again, starts silent readers again, and resumes paused partitions, if it
    /// is time.
    fn run_due_checks(&mut self) -> Result<(), LoopError> {
        let now = self.clock.monotonic();
        let (stall, silence) = (self.config.timing.stall, self.config.timing.silence_max);
        // If the last records are transaction markers, reading never reaches the end offset.
        let is_stalled = |task: &PartitionTask<E::Store>| match &task.state {
            PartitionState::Active(partition) => {
                partition.has_unread_input() && now >= task.read_at + stall
            }
            _ => false,
        };
        let is_check_due = |task: &PartitionTask<E::Store>| match task.end_check {
            _ if task.is_paused || task.paused_until.is_some() => false,
            EndCheck::Idle => is_stalled(task),
            EndCheck::Requested(_) => false,
            EndCheck::Confirming { until, .. } => now >= until,
            EndCheck::RetryAt(at) => now >= at,
        };
        let is_silent = |task: &PartitionTask<E::Store>| {
            task.is_waiting_for_reader() && now >= task.read_at + silence
        };
        let due: Vec<_> =
            self.tasks.values().filter(|task| is_check_due(task)).map(|task| task.id).collect();
        let silent: Vec<_> =
            self.tasks.values().filter(|task| is_silent(task)).map(|task| task.id).collect();
        due.into_iter().for_each(|id| self.confirm_end(id));
        for id in silent {
            self.restart_reader(id, now)?;
        }
        self.resume_paused()
    }

    fn resume_paused(&mut self) -> Result<(), LoopError> {
        let now = self.clock.now_ms();
        let pause_is_over =
            |task: &PartitionTask<E::Store>| task.paused_until.is_some_and(|until| now >= until);
        let resumed: Vec<_> =
            self.tasks.values().filter(|task| pause_is_over(task)).map(|task| task.id).collect();
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
    read_at: Duration,
    inputs: &mut BTreeMap<PartitionId, Vec<Input>>,
) {
    task.next_trigger = record.offset + 1;
    task.read_at = read_at;
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
