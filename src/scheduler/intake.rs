//! Reading and decoding the inputs, and giving each record to its partition.
//!
//! Law: a record is judged by its bytes; what cannot be judged just now (its schema registry is
//! away) is read again later, and nothing behind it is taken before it.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::message::{BorrowedMessage, Headers, Message};
use tokio::runtime::Runtime;

use super::lane::{EndCheck, Lane, Stage};
use super::sentinel::{End, Log};
use super::{Scheduler, SchedulerError};
use crate::clock;
use crate::codec::ledger_key::STEP;
use crate::codec::registration::{self, RawRecord, ReadContext, ReadError};
use crate::codec::schemas::{CodecError, Schemas};
use crate::config::Settings;
use crate::engine::partition::Input;
use crate::engine::takeover::Ask;
use crate::kafka::Names;
use crate::kafka::reader::{Read, Reader};
use crate::kafka::schemas::SchemaCache;
use crate::model::definition::Header;
use crate::model::input::{SignalRecord, TriggerRecord, Unreadable};
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::partitioner::Partitioner;
use crate::model::{Millis, Offset, PartitionId, Timestamp};

/// How long a record waits whose schema registry is away.
const HOLD_MS: Millis = 1_000;
/// How long to wait before looking again whether someone's open transaction has ended.
const END_AGAIN_MS: Millis = 200;
/// How long an end stays unreached before it is looked into.
const STALL_MS: Millis = 300;
/// How long the loop waits for a stable end: a partition without a leader holds up no other.
const STABLE_END_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the loop waits at most while nothing more can be taken in: whoever makes room again
/// needs the processor more.
const FULL_WAIT: Duration = Duration::from_millis(1);
/// Records taken from the secondary inputs in one turn.
const OTHERS_MAX: usize = 10_000;

/// What decoding needs.
pub(super) struct Intake {
    triggers: String,
    signals: String,
    partitioner: Partitioner,
    partitions: i32,
    schemas: Schemas,
    writers: SchemaCache,
    /// Where requests to the registry run.
    _runtime: Option<Runtime>,
    max: usize,
}

impl Intake {
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
            writers,
            _runtime: runtime,
            max: settings.scheduler.ingest_max.get(),
        })
    }

    pub(super) fn trigger(
        &self,
        message: &BorrowedMessage<'_>,
        now: Timestamp,
    ) -> Result<TriggerRecord, ReadError> {
        let (_, partition, offset) = Reader::place(message);
        let writers = self.writers.at(now);
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

    fn signal(&self, message: &BorrowedMessage<'_>) -> SignalRecord {
        let (_, _, offset) = Reader::place(message);
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
        let read = || self.ledger(message).ok()?.value;
        LedgerKey::BARRIER == key && read() == Some(LedgerValue::Barrier { nonce })
    }

    pub(super) fn ledger(&self, message: &BorrowedMessage<'_>) -> Result<LedgerRecord, CodecError> {
        let step = message.headers().and_then(|headers| {
            headers.iter().find(|header| header.key == STEP).and_then(|header| header.value)
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
        may_pass: false,
        key: message.key().map(bytes::Bytes::copy_from_slice),
        value: message.payload().map(bytes::Bytes::copy_from_slice),
        headers,
    }
}

impl Scheduler {
    /// Takes what the readers have, waiting at most `wait` for the first record.
    pub(super) fn read_inputs(&mut self, wait: Duration) -> Result<(), SchedulerError> {
        self.hear_sentinel();
        let mut inputs = BTreeMap::new();
        self.read_others(&mut inputs)?;
        // While a draft is full nothing more is taken: librdkafka's own queue is the bound.
        let full = |lane: &mut Lane| {
            lane.is_overfed() || lane.active().is_some_and(|partition| partition.is_full())
        };
        if self.lanes.values_mut().any(full) {
            self.restorers.wait(wait.min(FULL_WAIT));
        } else {
            let wait = if inputs.is_empty() { wait } else { Duration::ZERO };
            self.read_triggers(wait, &mut inputs)?;
        }
        self.ingest(inputs)?;
        self.look_at_ends()
    }

    fn ingest(&mut self, inputs: BTreeMap<PartitionId, Vec<Input>>) -> Result<(), SchedulerError> {
        let now = clock::now_ms();
        for (id, inputs) in inputs {
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            if let Some(partition) = lane.active() {
                let _behind = partition.observe(now);
            }
            if let Err(error) = lane.ingest(inputs) {
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
        let mut held = Vec::new();
        let mut ended = Vec::new();
        let mut taken = 0;
        let mut wait = wait;
        while taken < self.intake.max {
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
                Read::Record(message) => {
                    taken += 1;
                    let (_, id, offset) = Reader::place(&message);
                    let Some(lane) = self.lanes.get_mut(&id) else { continue };
                    if offset < lane.next_trigger || lane.held_until.is_some() {
                        continue;
                    }
                    if lane.pass(offset, timestamp(&message)) {
                        continue;
                    }
                    match self.intake.trigger(&message, now) {
                        Ok(record) => take_trigger(lane, record, now, inputs),
                        Err(error) => {
                            tracing::warn!(partition = id, offset, %error, "intake waits");
                            lane.held_until = Some(now + HOLD_MS);
                            held.push(id);
                        }
                    }
                }
                Read::End(id) => ended.push(id),
                Read::OutOfRange(error) => tracing::error!(error, "triggers: offset out of range"),
            }
        }
        for id in held {
            self.triggers.stop(&self.intake.triggers, id)?;
        }
        for id in ended {
            self.meet_end(id)?;
        }
        Ok(())
    }

    /// What the sentinel has seen of the ends of `triggers` and the ledger.
    fn hear_sentinel(&mut self) {
        for End { log, partition, end, at } in self.sentinel.seen() {
            let Some(lane) = self.lanes.get_mut(&partition) else { continue };
            match log {
                Log::Triggers => {
                    if let Some(partition) = lane.active() {
                        partition.input_known(end, at);
                    }
                }
                Log::Ledger => lane.ledger_ends(end),
            }
        }
    }

    fn read_others(
        &mut self,
        inputs: &mut BTreeMap<PartitionId, Vec<Input>>,
    ) -> Result<(), SchedulerError> {
        let mut ended = Vec::new();
        if self.lanes.values().any(Lane::is_overfed) {
            return Ok(());
        }
        for _ in 0..OTHERS_MAX {
            let read = match self.others.poll(Duration::ZERO) {
                Ok(Some(read)) => read,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "reading signals and ledger");
                    break;
                }
            };
            match read {
                Read::Record(message) => {
                    let (topic, id, offset) = Reader::place(&message);
                    let Some(lane) = self.lanes.get_mut(&id) else { continue };
                    if topic == self.intake.signals {
                        if offset >= lane.next_signal && lane.active().is_some() {
                            lane.next_signal = offset + 1;
                            let input = Input::Signal(self.intake.signal(&message));
                            inputs.entry(id).or_default().push(input);
                        }
                    } else if let Stage::Restoring(restoring) = &mut lane.stage {
                        let ours = self.intake.is_barrier(&message, restoring.nonce);
                        restoring.take_ledger(&message, ours);
                        lane.ledger_position = offset + 1;
                    }
                }
                Read::End(id) => ended.push(id),
                Read::OutOfRange(error) => tracing::error!(error, "signals: offset out of range"),
            }
        }
        ended.into_iter().try_for_each(|id| self.meet_others_end(id))
    }

    /// An end of `signals` or of the ledger. It means something only while the mirror of a cursor
    /// is sought; then only the ledger is being read. A reader stops where the first transaction is
    /// open, and the newest mirror may stand behind that one: the end counts when it is met after
    /// nothing was open below it any more.
    fn meet_others_end(&mut self, id: PartitionId) -> Result<(), SchedulerError> {
        let Some(lane) = self.lanes.get_mut(&id) else { return Ok(()) };
        let Stage::Restoring(restoring) = &mut lane.stage else { return Ok(()) };
        let Some(Ask::Mirror { from, until }) = restoring.asked else { return Ok(()) };
        if restoring.ledger_is_stable {
            restoring.ledger_position = restoring.ledger_position.max(until);
            return Ok(());
        }
        let ledger = self.names.ledger();
        match self.others.stable_end(&ledger, id, STABLE_END_TIMEOUT) {
            Ok(stable) if stable >= until => restoring.ledger_is_stable = true,
            Ok(stable) => {
                tracing::info!(partition = id, stable, until, "the ledger's end is undecided yet");
            }
            Err(error) => tracing::debug!(partition = id, %error, "the ledger's end: not yet"),
        }
        self.others.start(&ledger, id, restoring.ledger_position.max(from))?;
        Ok(())
    }

    /// The reader has met the end of `triggers[p]`.
    fn meet_end(&mut self, id: PartitionId) -> Result<(), SchedulerError> {
        let Some(lane) = self.lanes.get_mut(&id) else { return Ok(()) };
        match &mut lane.stage {
            Stage::Restoring(restoring) => {
                if let Some(Ask::Triggers { .. }) = restoring.asked {
                    restoring.triggers_passed = true;
                }
                Ok(())
            }
            Stage::Active(_) => {
                if let EndCheck::Confirming(end) = lane.end_check {
                    lane.end_check = EndCheck::Idle;
                    if let Err(error) = lane.ingest(vec![Input::TriggersEnd(end)]) {
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
    fn check_end(&mut self, id: PartitionId) -> Result<(), SchedulerError> {
        let topic = self.intake.triggers.clone();
        let stable = self.triggers.stable_end(&topic, id, STABLE_END_TIMEOUT);
        let ends = stable.and_then(|stable| Ok((stable, self.probe.bounds(&topic, id)?.1)));
        let Some(lane) = self.lanes.get_mut(&id) else { return Ok(()) };
        match ends {
            Ok((stable, end)) if stable >= end => {
                lane.end_check = EndCheck::Confirming(end);
                let next: Offset = lane.next_trigger;
                self.triggers.start(&topic, id, next)?;
            }
            _ => lane.end_check = EndCheck::Again(clock::now_ms() + END_AGAIN_MS),
        }
        Ok(())
    }

    /// What waits for a moment: ends to look at again, and records whose registry was away.
    fn look_at_ends(&mut self) -> Result<(), SchedulerError> {
        let now = clock::now_ms();
        // A log that ends in markers has an end that no record reaches.
        let stalled = |lane: &Lane| match &lane.stage {
            Stage::Active(partition) => partition.lags() && now >= lane.read_at + STALL_MS,
            _ => false,
        };
        let again = |lane: &Lane| match lane.end_check {
            EndCheck::Idle => stalled(lane),
            EndCheck::Confirming(_) => false,
            EndCheck::Again(at) => now >= at,
        };
        let held = |lane: &Lane| lane.held_until.is_some_and(|until| now >= until);
        let ends: Vec<_> = self.lanes.values().filter(|l| again(l)).map(|l| l.id).collect();
        let release: Vec<_> = self.lanes.values().filter(|l| held(l)).map(|l| l.id).collect();
        for id in ends {
            self.check_end(id)?;
        }
        for id in release {
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            lane.held_until = None;
            self.triggers.start(&self.intake.triggers, id, lane.next_trigger)?;
        }
        Ok(())
    }
}

/// Gives a record to its partition, wherever that stands.
fn take_trigger(
    lane: &mut Lane,
    record: TriggerRecord,
    now: Timestamp,
    inputs: &mut BTreeMap<PartitionId, Vec<Input>>,
) {
    lane.next_trigger = record.offset + 1;
    lane.read_at = now;
    lane.end_check = EndCheck::Idle;
    match &mut lane.stage {
        Stage::Active(_) => inputs.entry(lane.id).or_default().push(Input::Trigger(record)),
        Stage::Restoring(restoring) => match restoring.asked {
            Some(Ask::Triggers { until, .. }) if record.offset < until => {
                restoring.triggers.push(record);
            }
            _ => {
                restoring.triggers_passed = true;
                restoring.live.push(Input::Trigger(record));
            }
        },
        Stage::Waiting(_) | Stage::Refused(_) | Stage::Changing => {}
    }
}
