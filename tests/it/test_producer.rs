//! A user of Orloj: writes registrations, replacements and cancels in the headers form, and knows
//! what the broker acknowledged.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use orloj::clock;
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::message::{Header, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};

use crate::audit::records::{RegisteredRecord, RegisteredRecords};
use crate::audit::{AcknowledgedCommand, AcknowledgedCommands, CommandKind};
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);

/// A producer of `triggers`.
pub(crate) struct TestProducer {
    producer: ThreadedProducer<AcknowledgedSends>,
    triggers: String,
}

/// Where a registration fires: the name of the header that says it, and its value.
pub(crate) type TargetHeader<'a> = (&'static str, &'a str);

/// What a registration asks of the record that it fires, beside its payload.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FiredRecord<'a> {
    /// Instead of the trigger's id.
    pub(crate) key: Option<&'a str>,
    pub(crate) headers: &'a [(&'a str, &'a str)],
}

/// The header of a target topic.
pub(crate) const TARGET_TOPIC_HEADER: &str = "orloj-target-topic";
/// The header of a callback.
pub(crate) const CALLBACK_URL_HEADER: &str = "orloj-callback-url";

impl TestProducer {
    /// With Java's partitioner, as every client that Orloj ships.
    pub(crate) fn connect(config: &ClientConfig, triggers: &str) -> Self {
        Self::with_partitioner(config, triggers, "murmur2_random")
    }

    pub(crate) fn with_partitioner(
        config: &ClientConfig,
        triggers: &str,
        partitioner: &str,
    ) -> Self {
        let mut config = config.clone();
        config
            .set("partitioner", partitioner)
            .set("enable.idempotence", "true")
            .set("linger.ms", "5")
            .set("queue.buffering.max.messages", "1000000");
        let producer = config.create_with_context(AcknowledgedSends::default()).unwrap();
        Self { producer, triggers: triggers.to_owned() }
    }

    /// Registers, or replaces what is registered under `id`; `due` in ms since the epoch.
    pub(crate) fn register(
        &self,
        id: &str,
        due: u64,
        to: TargetHeader<'_>,
        payload: &str,
        ack: bool,
    ) {
        self.register_record(id, due, to, payload, ack, FiredRecord::default());
    }

    /// The same, with what the fire carries beside the payload.
    pub(crate) fn register_record(
        &self,
        id: &str,
        due: u64,
        to: TargetHeader<'_>,
        payload: &str,
        ack: bool,
        fired: FiredRecord<'_>,
    ) {
        let at = due.to_string();
        let mut headers = OwnedHeaders::new()
            .insert(Header { key: "orloj-fire-at", value: Some(&at) })
            .insert(Header { key: to.0, value: Some(to.1) });
        if let Some(key) = fired.key {
            headers = headers.insert(Header { key: TARGET_KEY_HEADER, value: Some(key) });
        }
        for (key, value) in fired.headers {
            headers = headers.insert(Header { key, value: Some(*value) });
        }
        if ack {
            headers = headers.insert(ACK_HEADER);
        }
        let own = fired.headers.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let record = RegisteredRecord {
            due,
            key: fired.key.unwrap_or(id).as_bytes().to_vec(),
            headers: own.collect(),
        };
        let kind = CommandKind::Register { due, payload: payload.as_bytes().to_vec() };
        self.send(id, Some(payload), headers, SentCommand { ack, kind, record: Some(record) });
    }

    /// Registers with an envelope, which says the same as `due` and `payload`.
    pub(crate) fn register_encoded(&self, id: &str, due: u64, value: &[u8], payload: &[u8]) {
        let kind = CommandKind::Register { due, payload: payload.to_vec() };
        let record = RegisteredRecord { due, key: id.as_bytes().to_vec(), headers: Vec::new() };
        let sent = SentCommand { ack: true, kind, record: Some(record) };
        self.send_bytes(id, Some(value), OwnedHeaders::new().insert(ACK_HEADER), sent);
    }

    /// Registers a callback in the name of a caller; `due` in ms since the epoch.
    pub(crate) fn register_callback(&self, id: &str, due: u64, url: &str, caller: &str) {
        let (at, payload) = (due.to_string(), "{}");
        let headers = OwnedHeaders::new()
            .insert(Header { key: "orloj-fire-at", value: Some(&at) })
            .insert(Header { key: CALLBACK_URL_HEADER, value: Some(url) })
            .insert(Header { key: "orloj-caller", value: Some(caller) });
        let kind = CommandKind::Register { due, payload: payload.as_bytes().to_vec() };
        self.send(id, Some(payload), headers, SentCommand { ack: false, kind, record: None });
    }

    /// Registers a schedule, of no account to the checker.
    pub(crate) fn register_schedule(&self, id: &str, schedule: &str, to: TargetHeader<'_>) {
        let headers = OwnedHeaders::new()
            .insert(Header { key: "orloj-schedule", value: Some(schedule) })
            .insert(Header { key: to.0, value: Some(to.1) });
        let sent = SentCommand { ack: false, kind: CommandKind::Malformed, record: None };
        self.send(id, Some("every minute"), headers, sent);
    }

    /// Writes an envelope, or a command with its header and an empty value; of no account to the
    /// checker. Asks what becomes of it.
    pub(crate) fn post(&self, id: &str, value: &str, command: Option<&str>) {
        let mut headers = OwnedHeaders::new().insert(ACK_HEADER);
        if let Some(command) = command {
            headers = headers.insert(Header { key: "orloj-command", value: Some(command) });
        }
        self.send(
            id,
            Some(value),
            headers,
            SentCommand { ack: true, kind: CommandKind::Malformed, record: None },
        );
    }

    /// Cancels, and asks what became of it.
    pub(crate) fn cancel(&self, id: &str) {
        let headers = OwnedHeaders::new().insert(ACK_HEADER);
        let kind = CommandKind::Cancel;
        self.send(id, None, headers, SentCommand { ack: true, kind, record: None });
    }

    /// Waits until the broker has acknowledged everything, and returns all of it, in log order.
    pub(crate) fn acknowledged(&self) -> AcknowledgedCommands {
        self.producer.flush(DEADLINE).unwrap();
        let mut commands = HashMap::clone(&lock(&self.producer.context().commands));
        for commands in commands.values_mut() {
            commands.sort_unstable_by_key(|command| command.offset);
        }
        commands
    }

    /// What the registrations that are acknowledged now say of the records that they fire.
    pub(crate) fn registered(&self) -> RegisteredRecords {
        self.producer.flush(DEADLINE).unwrap();
        HashMap::clone(&lock(&self.producer.context().records))
    }

    fn send(&self, id: &str, payload: Option<&str>, headers: OwnedHeaders, sent: SentCommand) {
        self.send_bytes(id, payload.map(str::as_bytes), headers, sent);
    }

    fn send_bytes(
        &self,
        id: &str,
        payload: Option<&[u8]>,
        headers: OwnedHeaders,
        sent: SentCommand,
    ) {
        let mut record = BaseRecord::with_opaque_to(&self.triggers, Box::new(sent));
        record = record.key(id).headers(headers);
        record.payload = payload;
        let mut unsent = Some(record);
        until("room in the producer's queue", DEADLINE, || {
            unsent = self.producer.send(unsent.take()?).err().map(|(_full, record)| record);
            unsent.is_none().then_some(())
        });
    }
}

/// The header that asks for an answer.
const ACK_HEADER: Header<'static, &str> = Header { key: "orloj-ack", value: Some("true") };
/// The header that gives the fire another key than the trigger's id.
const TARGET_KEY_HEADER: &str = "orloj-target-key";

/// What a record was meant to be, until the broker says where it stands.
struct SentCommand {
    ack: bool,
    kind: CommandKind,
    /// Of a registration that fires into a topic.
    record: Option<RegisteredRecord>,
}

#[derive(Default)]
struct AcknowledgedSends {
    commands: Mutex<AcknowledgedCommands>,
    records: Mutex<RegisteredRecords>,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ClientContext for AcknowledgedSends {}

impl ProducerContext for AcknowledgedSends {
    type DeliveryOpaque = Box<SentCommand>;

    fn delivery(&self, result: &DeliveryResult<'_>, sent: Box<SentCommand>) {
        let Ok(record) = result else {
            if std::thread::panicking() {
                return; // the test has failed already, and a second panic would hide why
            }
            // An unknown outcome would make every kind uncertain.
            panic!("a registration was not acknowledged: {result:?}")
        };
        let id = std::str::from_utf8(record.key().unwrap()).unwrap().to_owned();
        let offset = u64::try_from(record.offset()).unwrap();
        let appended = u64::try_from(record.timestamp().to_millis().unwrap()).unwrap();
        let SentCommand { ack, kind, record } = *sent;
        let acknowledged = clock::now_ms();
        let command = AcknowledgedCommand { offset, appended, acknowledged, ack, kind };
        if let Some(record) = record {
            lock(&self.records).insert((id.clone(), offset), record);
        }
        lock(&self.commands).entry(id).or_default().push(command);
    }
}
