//! The clients that write to the inputs: users, who register, replace and cancel, sometimes with
//! errors; and workers, which make callbacks and report failures.
//!
//! Invariant: they know nothing of owners; what each record requests is kept for the checker.

mod avro;
mod requests;
mod workers;

use bytes::Bytes;
use orloj_core::model::Timestamp;
use orloj_core::model::definition::Header;

use avro::AvroRegistration;

use super::broker::{SimulatedOutput, SimulatedRawRecord};
use super::cluster::{PARTITIONS, REFUSING, SimulatedCluster, partition_of};
use super::fault_kinds::FaultKind;
use super::log::SimulatedTransactionState;
use super::registered_schemas::{DENIED, KNOWN, REFUSED, UNKNOWN};
use super::transaction::Producer;
use crate::audit::CommandKind;
pub(super) use requests::{RequestGenerator, RequestedChange, RequestedTrigger, UserRequest};
pub(super) use workers::Workers;

/// The header that says which command a record is, wherever it is forwarded to.
const SERIAL: &str = "serial";
/// A user's header that says the topic of a registration that only its schema can read.
pub(super) const AVRO_TOPIC: &str = "registered-topic";
/// The producer of users, beside those of the nodes and the workers.
const USERS: usize = 90;
/// Bytes of a payload that is larger than a step should be, in many runs.
const LARGE_PAYLOAD: usize = 8_000;

/// What a record requests.
#[derive(Clone, Debug)]
pub(super) enum Intent {
    /// About a trigger that fires once and has no lifecycle.
    Plain(CommandKind),
    /// About a trigger with a lifecycle.
    Lifecycle(Box<UserRequest>),
}

/// A record of `triggers` before it is written.
struct SimulatedWrite {
    id: String,
    intent: Intent,
    value: Option<Bytes>,
    headers: SimulatedHeaders,
}

/// Names and values.
type SimulatedHeaders = Vec<(&'static str, String)>;

/// All users.
pub(super) struct Users {
    ids: u64,
    /// Some register in the wire format of a schema registry.
    uses_registry: bool,
    generator: RequestGenerator,
    /// What each record requests, by its serial number.
    pub(super) intents: Vec<Intent>,
    /// The latest due time of all, in ms since the epoch.
    pub(super) last_due: Timestamp,
    open: Option<(Producer, Timestamp)>,
}

impl Users {
    pub(super) fn new(cluster: &mut SimulatedCluster) -> Self {
        let ids = cluster.rng.pick(&[4, 12, 60]);
        Self {
            ids,
            uses_registry: cluster.rng.one_in(2),
            generator: RequestGenerator::new(cluster),
            intents: Vec::new(),
            last_due: 0,
            open: None,
        }
    }

    /// Writes a few records, perhaps in a transaction that stays open for a while.
    pub(super) fn write(&mut self, cluster: &mut SimulatedCluster) {
        let now = cluster.broker.now;
        self.end_transaction(cluster, |until| until <= now);
        if self.open.is_none() && cluster.rng.one_in(12) {
            let until = now + cluster.rng.pick(&[0, 5, 55]);
            self.open = cluster.broker.init(USERS).ok().map(|producer| (producer, until));
            cluster.counts.add(FaultKind::ProducerSlow);
        }
        for _ in 0..cluster.rng.pick(&[1, 1, 2, 5]) {
            self.write_one(cluster);
        }
    }

    /// Ends the open transaction if it is time to, one way or the other.
    pub(super) fn end_transaction(
        &mut self,
        cluster: &mut SimulatedCluster,
        is_time: impl Fn(Timestamp) -> bool,
    ) {
        let Some((producer, _)) = self.open.take_if(|(_, until)| is_time(*until)) else { return };
        let state = cluster.rng.pick(&[
            SimulatedTransactionState::Committed,
            SimulatedTransactionState::Committed,
            SimulatedTransactionState::Aborted,
        ]);
        if state == SimulatedTransactionState::Aborted {
            cluster.counts.add(FaultKind::ProducerAborted);
        }
        // If it is too late, the broker has aborted it.
        let _late = cluster.broker.end(producer, state);
    }

    fn write_one(&mut self, cluster: &mut SimulatedCluster) {
        let serial = self.intents.len();
        let more = self.generator.choose(serial, cluster, &mut self.last_due);
        let SimulatedWrite { id, intent, value, headers } =
            more.unwrap_or_else(|| self.plain(serial, cluster));
        self.intents.push(intent);
        let mut p = partition_of(id.as_bytes());
        if cluster.rng.one_in(12) {
            p = (p + 1) % PARTITIONS;
            cluster.counts.add(FaultKind::WrongPartition);
        }
        let headers = command_headers(serial, headers);
        let record = SimulatedOutput::Trigger(
            p,
            SimulatedRawRecord { key: Bytes::from(id), value, headers },
        );
        match self.open {
            Some((producer, _)) if cluster.rng.one_in(2) => {
                if cluster.broker.send(producer, record).is_err() {
                    self.open = None;
                }
            }
            _ => {
                let _offset = cluster.broker.write(record);
            }
        }
    }

    fn plain(&mut self, serial: usize, cluster: &mut SimulatedCluster) -> SimulatedWrite {
        let id = format!("t{}", cluster.rng.below(self.ids));
        let (kind, value, headers) = self.command(serial, cluster);
        SimulatedWrite { id, intent: Intent::Plain(kind), value, headers }
    }

    fn command(
        &mut self,
        serial: usize,
        cluster: &mut SimulatedCluster,
    ) -> (CommandKind, Option<Bytes>, SimulatedHeaders) {
        if cluster.rng.one_in(4) {
            return (CommandKind::Cancel, None, Vec::new());
        }
        let mut payload = format!("payload {serial}");
        if cluster.rng.one_in(20) {
            cluster.counts.add(FaultKind::LargePayload);
            payload.push_str(&".".repeat(LARGE_PAYLOAD));
        }
        let value = Some(Bytes::from(payload.clone()));
        if cluster.rng.one_in(60) {
            cluster.counts.add(FaultKind::Unreadable);
            return (CommandKind::Malformed, value, vec![("orloj-fire-at", "soon".to_owned())]);
        }
        if cluster.rng.one_in(12) {
            cluster.counts.add(FaultKind::Idle);
            return idle(value, cluster);
        }
        let ahead = cluster.rng.pick(&[-5, 0, 1, 3, 10, 25, 45, 50, 51, 70, 100, 200, 900]);
        let due = cluster.broker.now.saturating_add_signed(ahead);
        self.last_due = self.last_due.max(due);
        let (name, target) = match cluster.rng.below(6) {
            5 => ("orloj-target-topic", REFUSING.to_owned()),
            0 | 1 => ("orloj-callback-url", "https://example.com/".to_owned()),
            to => ("orloj-target-topic", format!("topic-{to}")),
        };
        let priority = cluster.rng.pick(&["7", "128", "128", "255"]).to_owned();
        let mut headers =
            vec![("orloj-fire-at", due.to_string()), (name, target), ("orloj-priority", priority)];
        let payload = payload.into_bytes();
        if self.uses_registry && cluster.rng.one_in(3) {
            return avro(due, payload, cluster);
        }
        if name == "orloj-target-topic" && cluster.rng.one_in(4) {
            headers.push(("orloj-target-key", format!("key {serial}")));
        }
        if cluster.rng.one_in(4) {
            headers.push(("orloj-on-conflict", "keep".to_owned()));
            return (CommandKind::Keep { due, payload }, value, headers);
        }
        (CommandKind::Register { due, payload }, value, headers)
    }
}

/// A registration with a writer schema that must be looked up.
fn avro(
    due: Timestamp,
    payload: Vec<u8>,
    cluster: &mut SimulatedCluster,
) -> (CommandKind, Option<Bytes>, SimulatedHeaders) {
    let topic = cluster.rng.pick(&[None, Some("topic-2"), Some("topic-3"), Some("topic-4")]);
    let keeps = cluster.rng.one_in(4);
    let priority = cluster.rng.pick(&[7, 128, 128, 255]);
    let new = AvroRegistration { due, payload: &payload, keeps, priority, topic };
    let headers = topic.map(|topic| (AVRO_TOPIC, topic.to_owned())).into_iter().collect();
    if cluster.rng.one_in(20) {
        cluster.counts.add(FaultKind::SchemaUnknown);
        return (CommandKind::Malformed, Some(new.encode(UNKNOWN)), headers);
    }
    if cluster.rng.one_in(20) {
        cluster.counts.add(FaultKind::SchemaRefused);
        return (CommandKind::Malformed, Some(new.encode(REFUSED)), Vec::new());
    }
    if cluster.rng.one_in(20) {
        return (CommandKind::Malformed, Some(new.encode(DENIED)), headers);
    }
    let value = Some(new.encode(cluster.rng.pick(&KNOWN)));
    let kind = if keeps {
        CommandKind::Keep { due, payload }
    } else {
        CommandKind::Register { due, payload }
    };
    (kind, value, headers)
}

/// A command without an effect: see [`CommandKind::NoEffect`].
fn idle(
    value: Option<Bytes>,
    cluster: &mut SimulatedCluster,
) -> (CommandKind, Option<Bytes>, SimulatedHeaders) {
    if cluster.rng.one_in(2) {
        return (CommandKind::NoEffect, None, vec![("orloj-caller", "unknown".to_owned())]);
    }
    let headers = vec![
        ("orloj-delay", cluster.rng.pick(&["0", "10", "100"]).to_owned()),
        ("orloj-target-topic", "topic-2".to_owned()),
        ("orloj-if-generation", "999999999".to_owned()),
    ];
    (CommandKind::NoEffect, value, headers)
}

/// The headers of a record: those of the command, its number, and the request for an answer.
pub(super) fn command_headers(serial: usize, mut headers: SimulatedHeaders) -> Vec<Header> {
    headers.extend([(SERIAL, serial.to_string()), ("orloj-ack", "true".to_owned())]);
    let header = |(name, value): (&str, String)| Header {
        name: name.into(),
        value: Some(Bytes::from(value)),
    };
    headers.into_iter().map(header).collect()
}

/// Which command a record is.
pub(super) fn serial(raw: &SimulatedRawRecord) -> usize {
    serial_of(&raw.headers)
}

/// The same, by its headers.
pub(super) fn serial_of(headers: &[Header]) -> usize {
    let header = headers.iter().find(|header| header.name == *SERIAL);
    let value = header.and_then(|header| header.value.as_ref()).expect("every record has one");
    std::str::from_utf8(value).unwrap().parse().unwrap()
}
