//! Reading and decoding the inputs, and giving each record to its partition.
//!
//! Invariant: a record is judged by its bytes; what cannot be judged just now (its schema registry
//! is away) is read again later, and nothing behind it is taken before it.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::message::{BorrowedMessage, Headers, Message};
use tokio::runtime::Runtime;

use super::end_offset_poller::{LogEnd, PolledLog};
use super::partition_task::{EndCheck, PartitionState, PartitionTask};
use super::{Scheduler, SchedulerError};
use crate::clock;
use crate::codec::ledger_key::STEP_HEADER;
use crate::codec::registration::{self, RawRecord, ReadContext, ReadError};
use crate::codec::schemas::{CodecError, Schemas};
use crate::config::Settings;
use crate::engine::partition::Input;
use crate::engine::takeover::TakeoverRequest;
use crate::kafka::Names;
use crate::kafka::reader::{LogReader, ReadEvent};
use crate::kafka::schema_cache::SchemaCache;
use crate::model::definition::Header;
use crate::model::input::{SignalRecord, TriggerRecord, Unreadable};
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::partitioner::Partitioner;
use crate::model::{Millis, Offset, PartitionId, Timestamp};

/// How long a record waits whose schema registry is away.
const REGISTRY_RETRY_MS: Millis = 1_000;
/// How long to wait before looking again whether someone's open transaction has ended.
const END_RETRY_MS: Millis = 200;
/// How long an end stays unreached before it is looked into.
const STALL_MS: Millis = 300;
/// How long the loop waits for a stable end: a partition without a leader holds up no other.
const STABLE_OFFSET_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the loop waits at most while nothing more can be taken in: the step that makes room
/// again needs the processor more.
const FULL_WAIT: Duration = Duration::from_millis(1);
/// Records taken from the secondary inputs in one turn.
const SIGNALS_AND_LEDGER_MAX: usize = 10_000;

/// What decoding needs.
pub(super) struct InputDecoder {
    triggers: String,
    signals: String,
    partitioner: Partitioner,
    partitions: i32,
    schemas: Schemas,
    writer_schemas: SchemaCache,
    /// Where requests to the registry run.
    _runtime: Option<Runtime>,
    ingest_max: usize,
}

impl InputDecoder {
    pub(super) fn new(
        settings: &Settings,
        names: &Names,
        partitions: i32,
    ) -> Result<Self, SchedulerError> {
        let (writers, runtime) =
            SchemaCache::open(&settings.triggers).map_err(SchedulerError::Schemas)?;
        Ok(Self {
            triggers: names.triggers(),
            signals: names.signals(),
            partitioner: settings.triggers.partitioner,
            partitions,
            schemas: Schemas::new(),
            writer_schemas: writers,
            _runtime: runtime,
            ingest_max: settings.scheduler.ingest_max.get(),
        })
    }

    pub(super) fn decode_trigger(
        &self,
        message: &BorrowedMessage<'_>,
        now: Timestamp,
    ) -> Result<TriggerRecord, ReadError> {
        let (_, partition, offset) = LogReader::position(message);
        let writers = self.writer_schemas.at(now);
        let context = ReadContext {
            partitioner: self.partitioner,
            partitions: self.partitions,
            schemas: &self.schemas,
            writers: &writers,
        };
        let headers = message.headers().map_or_else(Vec::new, |headers| {
            headers.iter().map(|header| (header.key, header.value)).collect()
        });
        let raw = RawRecord {
            partition,
            offset,
            timestamp: timestamp(message),
            key: message.key(),
            value: message.payload(),
            headers,
        };
        registration::read_trigger(&raw, &context)
    }

    fn decode_signal(&self, message: &BorrowedMessage<'_>) -> SignalRecord {
        let (_, _, offset) = LogReader::position(message);
        let decoded = self.schemas.decode_signal(message.payload().unwrap_or_default());
        let signal = decoded.map_err(|error| Box::new(unreadable(message, &error.to_string())));
        SignalRecord { offset, signal }
    }

    /// What decodes our own topics.
    pub(super) fn schemas(&self) -> &Schemas {
        &self.schemas
    }

    /// Whether this is the barrier with that nonce.
    fn is_barrier(&self, message: &BorrowedMessage<'_>, nonce: u64) -> bool {
        let key = message.key().unwrap_or_default();
        let read = || self.decode_ledger(message).ok()?.value;
        LedgerKey::BARRIER == key && read() == Some(LedgerValue::Barrier { nonce })
    }

    pub(super) fn decode_ledger(
        &self,
        message: &BorrowedMessage<'_>,
    ) -> Result<LedgerRecord, CodecError> {
        let step = message.headers().and_then(|headers| {
            headers.iter().find(|header| header.key == STEP_HEADER).and_then(|header| header.value)
        });
        let key = message.key().unwrap_or_default();
        self.schemas.decode_ledger(key, message.payload(), step)
    }
}

/// When a record was written, in ms since the epoch.
fn timestamp(message: &BorrowedMessage<'_>) -> Timestamp {
    message.timestamp().to_millis().and_then(|at| Timestamp::try_from(at).ok()).unwrap_or(0)
}

fn unreadable(message: &BorrowedMessage<'_>, reason: &str) -> Unreadable {
    let headers = message.headers().map_or_else(Vec::new, |headers| {
        let kept = |h: rdkafka::message::Header<'_, &[u8]>| Header {
            name: h.key.into(),
            value: h.value.map(bytes::Bytes::copy_from_slice),
        };
        headers.iter().map(kept).collect()
    });
    Unreadable {
        id: None,
        reason: reason.to_owned(),
        may_become_readable: false,
        key: message.key().map(bytes::Bytes::copy_from_slice),
        value: message.payload().map(bytes::Bytes::copy_from_slice),
        headers,
    }
}

impl Scheduler {
    /// Takes what the readers have, waiting at most `wait` for the first record.
    pub(super) fn read_inputs(&mut self, wait: Duration) -> Result<(), SchedulerError> {
        self.apply_end_offsets();
        let mut inputs = BTreeMap::new();
        self.read_signals_and_ledger(&mut inputs)?;
        // While a draft is full nothing more is taken: librdkafka's own queue is the bound.
        let full = |task: &mut PartitionTask| {
            task.is_over_buffered() || task.active().is_some_and(|partition| partition.is_full())
        };
        if self.tasks.values_mut().any(full) {
            self.restore_pool.wait_for_result(wait.min(FULL_WAIT));
        } else {
            let wait = if inputs.is_empty() { wait } else { Duration::ZERO };
            self.read_triggers(wait, &mut inputs)?;
        }
        self.ingest(inputs)?;
        self.run_due_checks()
    }

    fn ingest(&mut self, inputs: BTreeMap<PartitionId, Vec<Input>>) -> Result<(), SchedulerError> {
        let now = clock::now_ms();
        for (id, inputs) in inputs {
            let Some(task) = self.tasks.get_mut(&id) else { continue };
            if let Some(partition) = task.active() {
                let _behind = partition.observe_clock(now);
            }
            if let Err(error) = task.ingest(inputs) {
                self.rebuild_store(id, &error)?;
            }
        }
        Ok(())
    }

    fn read_triggers(
        &mut self,
        wait: Duration,
        inputs: &mut BTreeMap<PartitionId, Vec<Input>>,
    ) -> Result<(), SchedulerError> {
        let now = clock::now_ms();
        let mut paused = Vec::new();
        let mut ended = Vec::new();
        let mut taken = 0;
        let mut wait = wait;
        while taken < self.decoder.ingest_max {
            let read = match self.triggers.poll(wait) {
                Ok(Some(read)) => read,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "reading triggers");
                    break;
                }
            };
            wait = Duration::ZERO;
            match read {
                ReadEvent::Record(message) => {
                    taken += 1;
                    let (_, id, offset) = LogReader::position(&message);
                    let Some(task) = self.tasks.get_mut(&id) else { continue };
                    if offset < task.next_trigger || task.paused_until.is_some() {
                        continue;
                    }
                    if task.skip_covered(offset, timestamp(&message)) {
                        continue;
                    }
                    match self.decoder.decode_trigger(&message, now) {
                        Ok(record) => route_trigger(task, record, now, inputs),
                        Err(error) => {
                            tracing::warn!(partition = id, offset, %error, "reading triggers is paused");
                            task.paused_until = Some(now + REGISTRY_RETRY_MS);
                            paused.push(id);
                        }
                    }
                }
                ReadEvent::PartitionEof(id) => ended.push(id),
                ReadEvent::OutOfRange(error) => {
                    tracing::error!(error, "triggers: offset out of range")
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

    /// What the poller has read of the ends of `triggers` and the ledger.
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
    ) -> Result<(), SchedulerError> {
        let mut ended = Vec::new();
        if self.tasks.values().any(PartitionTask::is_over_buffered) {
            return Ok(());
        }
        for _ in 0..SIGNALS_AND_LEDGER_MAX {
            let read = match self.signals_and_ledger.poll(Duration::ZERO) {
                Ok(Some(read)) => read,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "reading signals and ledger");
                    break;
                }
            };
            match read {
                ReadEvent::Record(message) => {
                    let (topic, id, offset) = LogReader::position(&message);
                    let Some(task) = self.tasks.get_mut(&id) else { continue };
                    if topic == self.decoder.signals {
                        if offset >= task.next_signal && task.active().is_some() {
                            task.next_signal = offset + 1;
                            let input = Input::Signal(self.decoder.decode_signal(&message));
                            inputs.entry(id).or_default().push(input);
                        }
                    } else if let PartitionState::Restoring(restoring) = &mut task.state {
                        let ours = self.decoder.is_barrier(&message, restoring.nonce);
                        restoring.add_ledger_record(&message, ours);
                        task.ledger_position = offset + 1;
                    }
                }
                ReadEvent::PartitionEof(id) => ended.push(id),
                ReadEvent::OutOfRange(error) => {
                    tracing::error!(error, "signals: offset out of range")
                }
            }
        }
        ended.into_iter().try_for_each(|id| self.on_ledger_end_reached(id))
    }

    /// An end of `signals` or of the ledger. It means something only while the mirror of a cursor
    /// is sought; then only the ledger is being read. A reader stops where the first transaction is
    /// open, and the newest mirror may stand behind that one: the end counts when it is met after
    /// nothing was open below it any more.
    fn on_ledger_end_reached(&mut self, id: PartitionId) -> Result<(), SchedulerError> {
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        let PartitionState::Restoring(restoring) = &mut task.state else { return Ok(()) };
        let Some(TakeoverRequest::Mirror { from, until }) = restoring.requested else {
            return Ok(());
        };
        if restoring.ledger_is_stable {
            restoring.ledger_position = restoring.ledger_position.max(until);
            return Ok(());
        }
        let ledger = self.names.ledger();
        match self.signals_and_ledger.last_stable_offset(&ledger, id, STABLE_OFFSET_TIMEOUT) {
            Ok(stable) if stable >= until => restoring.ledger_is_stable = true,
            Ok(stable) => {
                tracing::info!(
                    partition = id,
                    stable,
                    until,
                    "the end of the ledger belongs to an open transaction"
                );
            }
            Err(error) => {
                tracing::debug!(partition = id, %error, "the end of the ledger cannot be read yet")
            }
        }
        self.signals_and_ledger.start(&ledger, id, restoring.ledger_position.max(from))?;
        Ok(())
    }

    /// The reader has met the end of `triggers[p]`.
    fn on_triggers_end_reached(&mut self, id: PartitionId) -> Result<(), SchedulerError> {
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
                        return self.rebuild_store(id, &error);
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Input is thought to be unread, yet the reader is at the end. Either what lies between are
    /// markers and aborted records, or someone's transaction is still open. If nothing is open
    /// now, read once more from where we stand: meeting the end again settles it.
    fn confirm_end(&mut self, id: PartitionId) -> Result<(), SchedulerError> {
        let topic = self.decoder.triggers.clone();
        let stable = self.triggers.last_stable_offset(&topic, id, STABLE_OFFSET_TIMEOUT);
        let ends = stable.and_then(|stable| Ok((stable, self.admin.bounds(&topic, id)?.1)));
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        match ends {
            Ok((stable, end)) if stable >= end => {
                task.end_check = EndCheck::Confirming(end);
                let next: Offset = task.next_trigger;
                self.triggers.start(&topic, id, next)?;
            }
            _ => task.end_check = EndCheck::RetryAt(clock::now_ms() + END_RETRY_MS),
        }
        Ok(())
    }

    /// What waits for a moment: ends to look at again, and records whose registry was away.
    fn run_due_checks(&mut self) -> Result<(), SchedulerError> {
        let now = clock::now_ms();
        // A log that ends in markers has an end that no record reaches.
        let stalled = |task: &PartitionTask| match &task.state {
            PartitionState::Active(partition) => {
                partition.has_unread_input() && now >= task.read_at + STALL_MS
            }
            _ => false,
        };
        let again = |task: &PartitionTask| match task.end_check {
            EndCheck::Idle => stalled(task),
            EndCheck::Confirming(_) => false,
            EndCheck::RetryAt(at) => now >= at,
        };
        let pause_is_over =
            |task: &PartitionTask| task.paused_until.is_some_and(|until| now >= until);
        let ends: Vec<_> = self.tasks.values().filter(|l| again(l)).map(|l| l.id).collect();
        let resumed: Vec<_> =
            self.tasks.values().filter(|l| pause_is_over(l)).map(|l| l.id).collect();
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

/// Gives a record to its partition, wherever that stands.
fn route_trigger(
    task: &mut PartitionTask,
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
        | PartitionState::Refused(_)
        | PartitionState::Transitioning => {}
    }
}
