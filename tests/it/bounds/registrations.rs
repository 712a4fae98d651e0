//! Registrations in such numbers, or of such a size, that the test cannot keep them.
//!
//! Invariant: the broker has acknowledged each of them when `flush` returns.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};

use crate::test_cluster::TestCluster;
use crate::test_producer::CALLBACK_URL_HEADER;
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(300);

/// A producer of `triggers` that remembers nothing.
pub(super) struct RegistrationProducer {
    producer: ThreadedProducer<SendFailures>,
    triggers: String,
}

/// A callback to be registered.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallbackRegistration<'a> {
    pub(super) id: &'a str,
    /// In ms since the epoch.
    pub(super) due: u64,
    pub(super) url: &'a str,
    pub(super) caller: &'a str,
    pub(super) payload: &'a [u8],
}

impl RegistrationProducer {
    pub(super) fn connect(cluster: &TestCluster) -> Self {
        let mut config = cluster.kafka().clone();
        config
            .set("partitioner", "murmur2_random")
            .set("enable.idempotence", "true")
            .set("linger.ms", "5")
            .set("compression.type", "lz4")
            .set("queue.buffering.max.kbytes", "131072");
        let producer = config.create_with_context(SendFailures::default()).unwrap();
        Self { producer, triggers: cluster.names.triggers() }
    }

    /// Registers a callback, or replaces what is registered under its id.
    pub(super) fn register(&self, callback: CallbackRegistration<'_>) {
        let due = callback.due.to_string();
        let headers = OwnedHeaders::new()
            .insert(Header { key: "orloj-fire-at", value: Some(&due) })
            .insert(Header { key: CALLBACK_URL_HEADER, value: Some(callback.url) })
            .insert(Header { key: "orloj-caller", value: Some(callback.caller) });
        self.send(callback.id, Some(callback.payload), headers);
    }

    pub(super) fn cancel(&self, id: &str) {
        self.send(id, None, OwnedHeaders::new());
    }

    /// Waits until the broker has all of them.
    pub(super) fn flush(&self) {
        self.producer.flush(DEADLINE).unwrap();
        let failures = self.producer.context().0.load(Relaxed);
        assert_eq!(failures, 0, "records were not acknowledged");
    }

    fn send(&self, id: &str, payload: Option<&[u8]>, headers: OwnedHeaders) {
        let mut record = BaseRecord::<str, [u8]>::to(&self.triggers).key(id).headers(headers);
        record.payload = payload;
        let mut unsent = Some(record);
        until("room in the producer's queue", DEADLINE, || {
            unsent = self.producer.send(unsent.take()?).err().map(|(_full, record)| record);
            unsent.is_none().then_some(())
        });
    }
}

/// How many records were not acknowledged.
#[derive(Default)]
struct SendFailures(AtomicUsize);

impl ClientContext for SendFailures {}

impl ProducerContext for SendFailures {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        self.0.fetch_add(usize::from(result.is_err()), Relaxed);
    }
}
