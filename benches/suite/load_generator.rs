//! Who registers: writes triggers and tombstones in headers form, as fast as they are wanted.
//!
//! Invariant: all triggers are alike: 300 bytes of payload that compress as JSON does, an id, two
//! headers. Marks say how far they have been read: triggers whose time has passed when they come
//! fire in the step that takes them in.

use std::time::Duration;

use orloj::clock;
use orloj::kafka::{Names, producer_config};
use orloj::model::partitioner::Partitioner;
use orloj::model::{Millis, Timestamp};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::bench_cluster::{BenchCluster, PARTITIONS};

/// Bytes of a payload.
pub(crate) const PAYLOAD_BYTES: usize = 300;
/// Ids of marks begin with this.
pub(crate) const MARKER: &str = "mark";
const DEADLINE: Duration = Duration::from_secs(60);

/// A producer of `triggers`.
pub(crate) struct LoadGenerator {
    producer: BaseProducer,
    triggers: String,
    target: String,
    payload: Payload,
    markers: u32,
}

impl LoadGenerator {
    /// Registers with the scheduler of `cluster`.
    pub(crate) fn open(cluster: &BenchCluster) -> Self {
        Self {
            producer: producer_config(&cluster.settings).create().unwrap(),
            triggers: Names::new(&cluster.settings.topics.prefix).triggers(),
            target: cluster.output("scheduler"),
            payload: Payload::new(),
            markers: 0,
        }
    }

    /// Registers trigger `n` of a series.
    pub(crate) fn register(&mut self, series: &str, n: u32, due: Timestamp) {
        self.write(&trigger_id(series, n), due);
    }

    /// Registers recurring trigger `n` of a series; `schedule` is its JSON.
    pub(crate) fn recurring(&mut self, series: &str, n: u32, schedule: &str) {
        let headers = OwnedHeaders::new_with_capacity(2)
            .insert(Header { key: "orloj-schedule", value: Some(schedule) })
            .insert(Header { key: "orloj-target-topic", value: Some(&self.target) });
        let (id, payload) = (trigger_id(series, n), self.payload.next());
        let record =
            BaseRecord::to(&self.triggers).key(id.as_str()).payload(payload).headers(headers);
        send(&self.producer, record);
    }

    /// Cancels trigger `n` of a series.
    pub(crate) fn cancel(&mut self, series: &str, n: u32) {
        let id = trigger_id(series, n);
        self.send(BaseRecord::to(&self.triggers).key(&id));
    }

    /// Registers `count` triggers as fast as can be, and returns how many were written a second.
    pub(crate) fn register_all(
        &mut self,
        series: &str,
        count: u32,
        due: impl Fn(u32) -> Timestamp,
    ) -> f64 {
        let started = clock::monotonic();
        for n in 0..count {
            self.register(series, n, due(n));
        }
        self.flush();
        f64::from(count) / (clock::monotonic() - started).as_secs_f64()
    }

    /// Registers `count` triggers, `rate` a second, each `lead` ms before its time.
    #[expect(clippy::disallowed_methods, reason = "a pause that is too short does no harm here")]
    pub(crate) fn register_at_rate(&mut self, series: &str, count: u32, rate: u32, lead: Millis) {
        let begin = clock::now_ms();
        for n in 0..count {
            let now = begin + due_at_rate(n, rate);
            while clock::now_ms() < now {
                // The crate's own wait of a millisecond takes a processor of its own.
                self.producer.poll(Duration::ZERO);
                std::thread::park_timeout(Duration::from_millis(1));
            }
            self.register(series, n, now + lead);
        }
        self.flush();
    }

    /// Writes a mark into each partition and returns its number.
    pub(crate) fn write_marker(&mut self) -> u32 {
        let mark = self.markers;
        self.markers += 1;
        for partition in PARTITIONS {
            let right = |id: &String| {
                let partitions = i32::try_from(PARTITIONS.len()).unwrap();
                Partitioner::Murmur2.partition(id.as_bytes(), partitions) == Some(partition)
            };
            let id = (0..).map(|n| format!("{MARKER}-{mark:08}-{n}")).find(right).unwrap();
            self.write(&id, clock::now_ms() - 1);
        }
        mark
    }

    /// How many marks there are.
    pub(crate) fn marker_count(&self) -> u32 {
        self.markers
    }

    /// Serves the producer while nothing is written.
    pub(crate) fn poll(&self) {
        self.producer.poll(Duration::ZERO);
    }

    /// Waits until the broker has everything.
    pub(crate) fn flush(&self) {
        self.producer.flush(DEADLINE).unwrap();
    }

    fn write(&mut self, id: &str, due: Timestamp) {
        let due = due.to_string();
        let headers = OwnedHeaders::new_with_capacity(2)
            .insert(Header { key: "orloj-fire-at", value: Some(&due) })
            .insert(Header { key: "orloj-target-topic", value: Some(&self.target) });
        let payload = self.payload.next();
        let record = BaseRecord::to(&self.triggers).key(id).payload(payload).headers(headers);
        send(&self.producer, record);
    }

    fn send(&self, record: BaseRecord<'_, str, [u8]>) {
        send(&self.producer, record);
    }
}

/// Sends a record; waits while the producer's queue is full.
pub(crate) fn send(producer: &BaseProducer, mut record: BaseRecord<'_, str, [u8]>) {
    while let Err((error, back)) = producer.send(record) {
        let full = KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull);
        assert_eq!(error, full, "a record was refused");
        producer.poll(Duration::from_millis(10));
        record = back;
    }
}

/// Payloads like the JSON of an order: the same names, other values.
pub(crate) struct Payload {
    bytes: Vec<u8>,
    seed: u64,
}

impl Payload {
    pub(crate) fn new() -> Self {
        let mut bytes = br#"{"order":"00000000000000000000000000000000","#.to_vec();
        bytes.extend(br#""status":"awaiting-payment","customer":"0000000000000000","note":""#);
        let filler = b"please ring the bell twice and leave it with the neighbours ";
        bytes.extend(filler.iter().cycle().take(PAYLOAD_BYTES - bytes.len() - 2));
        bytes.extend(b"\"}");
        Self { bytes, seed: 0 }
    }

    /// Another payload: 48 digits of 300 bytes are new, which compression cannot remove.
    pub(crate) fn next(&mut self) -> &[u8] {
        for place in [10, 26, 84] {
            // splitmix64: a few instructions, and no two alike.
            self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut bits = self.seed;
            bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            bits ^= bits >> 31;
            for (digit, byte) in self.bytes[place..place + 16].iter_mut().enumerate() {
                let value = (bits >> (4 * digit)) & 15;
                *byte = b"0123456789abcdef"[usize::try_from(value).unwrap()];
            }
        }
        &self.bytes
    }
}

/// The id of trigger `n` of a series.
pub(crate) fn trigger_id(series: &str, n: u32) -> String {
    format!("{series}-{n:08}")
}

/// When the `n`-th of evenly spread events happens, in ms after the first.
pub(crate) fn due_at_rate(n: u32, per_second: u32) -> Millis {
    u64::from(n) * 1_000 / u64::from(per_second)
}

/// A number below `range` for each `n`, the same in every run: the times of unrelated callers.
pub(crate) fn scattered(n: u32, range: Millis) -> Millis {
    // A large odd factor visits neighbours far apart; the high bits are the mixed ones.
    let mixed = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (mixed * range) >> 32
}
