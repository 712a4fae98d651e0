//! One Kafka transaction at a time: begin, send, and commit with the offsets that fence it.
//!
//! Invariant: every partition that a transaction has an effect for has its offset in it. After any
//! error the outcome counts as unknown: the transactor is dropped and a new one opened under the
//! same id, which makes the broker decide what the old one left open. (librdkafka has no KIP-890:
//! a delayed request of an abandoned transaction could otherwise hit the next one.)
#![allow(
    unsafe_code,
    reason = "the crate's flush waits in 100 ms quanta and its metadata is opaque"
)]

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rdkafka::bindings as c;
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};
use rdkafka::{ClientContext, Offset as KafkaOffset, TopicPartitionList};

use super::client_config;
use super::group_metadata::GroupMetadata;
use crate::clock;
use crate::config::Settings;
use crate::fault;
use crate::model::{Offset, PartitionId, Timestamp};

/// How long a flush waits before it serves delivery errors once.
const FLUSH_POLL_MS: i32 = 50;
/// How long a full queue is left alone.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(1);
/// How long the broker may take to say where a topic's partitions are.
const METADATA_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an abort waits before it serves delivery reports once.
const ABORT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Drop the transactor, open a new one, take everything over again; only after
/// [`StaleGeneration`](Self::StaleGeneration) may the same records be sent again instead.
#[derive(Debug, thiserror::Error)]
pub enum TransactionError {
    /// A newer process runs under the same transactional id, or the broker gave up on this one.
    #[error("fenced: another process runs under the same identity ({0})")]
    Fenced(String),
    /// The broker refused our offsets: the group has a newer generation, or we are no member.
    /// Nothing is committed. [`abort`](TransactionalProducer::abort), and try once more under a new
    /// fence.
    #[error("the group's generation has moved on ({0})")]
    StaleGeneration(String),
    /// A record was refused: (topic, partition, why).
    #[error("{topic}[{partition}] refused a record: {reason}")]
    Refused {
        /// The topic.
        topic: String,
        /// The partition.
        partition: PartitionId,
        /// What the broker said.
        reason: String,
    },
    /// Timed out, or another error: committed or not, that is not known yet.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
}

/// A record to write; everything borrowed, librdkafka copies it.
#[derive(Clone, Copy, Debug)]
pub struct ProducerRecord<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition; `None` lets the key decide.
    pub partition: Option<PartitionId>,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value; `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    /// The headers, in order.
    pub headers: &'a [(&'a str, Option<&'a [u8]>)],
}

/// What a transaction says about one input partition.
#[derive(Clone, Debug)]
pub struct OffsetCommit {
    /// The input topic.
    pub topic: String,
    /// The partition.
    pub partition: PartitionId,
    /// The next offset to read.
    pub offset: Offset,
    /// Travels with the offset.
    pub metadata: String,
}

/// A transactional producer.
pub struct TransactionalProducer {
    producer: BaseProducer<DeliveryErrors>,
    id: String,
    timeout: Duration,
    /// What the open transaction is for, in ms since the epoch; 0 if it is for now.
    record_timestamp: AtomicU64,
    /// That time by the monotonic clock.
    commit_not_before: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for TransactionalProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transactor").field("id", &self.id).finish_non_exhaustive()
    }
}

impl TransactionalProducer {
    /// Opens a producer under `id`. Blocks until the broker has ended whatever an earlier one of
    /// that id left open, at most `timeout`.
    pub fn open(
        settings: &Settings,
        id: &str,
        timeout: Duration,
    ) -> Result<Self, TransactionError> {
        let config = producer_config(settings, id);
        let producer: BaseProducer<DeliveryErrors> = config
            .create_with_context(DeliveryErrors::default())
            .map_err(|error| TransactionError::Unknown(error.to_string()))?;
        // Connect first: librdkafka that finds no connection looks for the coordinator again only
        // half a second later.
        let _connected = producer.client().fetch_cluster_id(timeout);
        fault::reached("transactor.before_init");
        producer.init_transactions(timeout).map_err(classify_kafka_error)?;
        fault::reached("transactor.after_init");
        let timeout = settings.scheduler.transaction_timeout;
        let (id, record_timestamp, commit_not_before) =
            (id.to_owned(), AtomicU64::new(0), Mutex::new(None));
        Ok(Self { producer, id, timeout, record_timestamp, commit_not_before })
    }

    /// Gets to know a topic, so that the first record for it does not wait for that.
    pub fn prefetch_metadata(&self, topic: &str) -> Result<(), TransactionError> {
        let client = self.producer.client();
        client.fetch_metadata(Some(topic), METADATA_TIMEOUT).map(drop).map_err(classify_kafka_error)
    }

    /// Begins a transaction; nothing is sent yet.
    pub fn begin(&self) -> Result<(), TransactionError> {
        self.begin_at(0)
    }

    /// The same, for a `time` that may be a little ahead (ms since the epoch): until then the
    /// commit waits, and the records bear that timestamp, so that none is older than it was due.
    pub fn begin_at(&self, time: Timestamp) -> Result<(), TransactionError> {
        let ahead = clock::until(time);
        let is_ahead = !ahead.is_zero();
        self.record_timestamp.store(if is_ahead { time } else { 0 }, Ordering::Relaxed);
        *self.commit_not_before() = is_ahead.then(|| clock::monotonic() + ahead);
        self.producer.begin_transaction().map_err(classify_kafka_error)
    }

    /// Queues a record. Waits while librdkafka's queue is full; the broker's answer shows at
    /// [`commit`](Self::commit).
    pub fn send(&self, record: ProducerRecord<'_>) -> Result<(), TransactionError> {
        let mut outgoing = BaseRecord::<[u8], [u8]>::to(record.topic);
        outgoing.partition = record.partition;
        outgoing.key = record.key;
        outgoing.payload = record.value;
        let time = self.record_timestamp.load(Ordering::Relaxed);
        outgoing.timestamp = i64::try_from(time).ok().filter(|time| *time > 0);
        if !record.headers.is_empty() {
            let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
            for (key, value) in record.headers {
                headers = headers.insert(Header { key, value: *value });
            }
            outgoing.headers = Some(headers);
        }
        loop {
            let (error, back) = match self.producer.send(outgoing) {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            };
            if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
                return Err(TransactionError::Refused {
                    topic: record.topic.to_owned(),
                    partition: record.partition.unwrap_or(-1),
                    reason: error.to_string(),
                });
            }
            // The crate's own wait of a millisecond would take a processor of its own.
            self.producer.poll(Duration::ZERO);
            std::thread::park_timeout(QUEUE_FULL_PAUSE);
            outgoing = back;
        }
    }

    /// Flushes, adds the offsets under `fence`, and commits. `Ok` means committed, and says since
    /// when nothing but the end was missing. Waits for the broker no longer than a transaction
    /// lasts: after that it has aborted this one, if not more.
    pub fn commit(
        &self,
        offset_commits: &[OffsetCommit],
        group_metadata: &GroupMetadata,
    ) -> Result<Instant, TransactionError> {
        assert!(!offset_commits.is_empty(), "a transaction without offsets is not fenced");
        let deadline = clock::monotonic() + self.timeout;
        self.flush(deadline)?;
        fault::reached("commit.before_offsets");
        let mut offsets = TopicPartitionList::with_capacity(offset_commits.len());
        for p in offset_commits {
            let offset = i64::try_from(p.offset).expect("Kafka's offsets are below 2^63");
            let mut element = offsets.add_partition(&p.topic, p.partition);
            element.set_offset(KafkaOffset::Offset(offset)).map_err(classify_kafka_error)?;
            element.set_metadata(&p.metadata);
        }
        let native = self.producer.client().native_ptr();
        let (list, group, timeout_ms) =
            (offsets.ptr(), group_metadata.as_ptr(), ms_until(deadline));
        // SAFETY: handle, list and metadata live through the call. The returned error is ours, and
        // `check` destroys it.
        check(unsafe { c::rd_kafka_send_offsets_to_transaction(native, list, group, timeout_ms) })?;
        let ready = clock::monotonic();
        self.wait_for_commit_time();
        fault::reached("commit.before_end");
        // SAFETY: as above.
        check(unsafe { c::rd_kafka_commit_transaction(native, ms_until(deadline)) })?;
        fault::reached("commit.after_end");
        self.first_delivery_error().map(|()| ready)
    }

    fn wait_for_commit_time(&self) {
        let Some(then) = *self.commit_not_before() else { return };
        loop {
            let left = then.saturating_duration_since(clock::monotonic());
            if left.is_zero() {
                return;
            }
            std::thread::park_timeout(left);
        }
    }

    fn commit_not_before(&self) -> MutexGuard<'_, Option<Instant>> {
        self.commit_not_before.lock().expect("no panic holds it")
    }

    /// Aborts what is open, waiting at most `timeout`. An error means that the outcome is
    /// unknown.
    pub fn abort(&self, timeout: Duration) -> Result<(), TransactionError> {
        let deadline = clock::monotonic() + timeout;
        loop {
            // Single-threaded, an abort that waits longer would wait for reports that only we
            // can take.
            match self.producer.abort_transaction(ABORT_POLL_INTERVAL) {
                Ok(()) => return Ok(()),
                Err(error) if clock::monotonic() >= deadline => {
                    return Err(classify_kafka_error(error));
                }
                Err(KafkaError::Transaction(error)) if error.is_retriable() => {
                    self.producer.poll(Duration::ZERO);
                }
                Err(error) => return Err(classify_kafka_error(error)),
            }
        }
    }

    /// Waits until every record is acknowledged or refused, or the deadline has passed.
    fn flush(&self, deadline: Instant) -> Result<(), TransactionError> {
        let native = self.producer.client().native_ptr();
        loop {
            // SAFETY: the handle lives through the call, which only waits.
            let result = unsafe { c::rd_kafka_flush(native, FLUSH_POLL_MS) };
            self.producer.poll(Duration::ZERO);
            self.first_delivery_error()?;
            match result {
                c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => return Ok(()),
                // message.timeout.ms should turn what hangs into a refusal before that.
                c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR__TIMED_OUT => {
                    if clock::monotonic() >= deadline {
                        let unanswered = "flush: records were neither taken nor refused in time";
                        return Err(TransactionError::Unknown(unanswered.to_owned()));
                    }
                }
                other => return Err(TransactionError::Unknown(format!("flush: {other:?}"))),
            }
        }
    }

    fn first_delivery_error(&self) -> Result<(), TransactionError> {
        let mut refused = self.producer.context().first.lock().expect("no panic holds it");
        refused.take().map_or(Ok(()), Err)
    }
}

fn producer_config(settings: &Settings, id: &str) -> ClientConfig {
    let timeout_ms = settings.scheduler.transaction_timeout.as_millis();
    let mut config = client_config(settings);
    config
        .set("transactional.id", id)
        .set("transaction.timeout.ms", timeout_ms.to_string())
        .set("message.timeout.ms", (timeout_ms * 2 / 3).to_string())
        .set("enable.idempotence", "true")
        .set("partitioner", "murmur2_random")
        .set("delivery.report.only.error", "true")
        .set("retry.backoff.ms", "10")
        .set("linger.ms", "5")
        .set("queue.buffering.max.messages", "1000000")
        .set("queue.buffering.max.kbytes", "262144");
    config
}

/// Receives only reports of records that were refused.
#[derive(Default)]
struct DeliveryErrors {
    first: Mutex<Option<TransactionError>>,
}

impl ClientContext for DeliveryErrors {}

impl ProducerContext for DeliveryErrors {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, message)) = result {
            let mut refused = self.first.lock().expect("no panic holds it");
            let _first = refused.get_or_insert_with(|| TransactionError::Refused {
                topic: message.topic().to_owned(),
                partition: message.partition(),
                reason: error.to_string(),
            });
        }
    }
}

fn ms_until(deadline: Instant) -> i32 {
    let left = deadline.saturating_duration_since(clock::monotonic());
    i32::try_from(left.as_millis()).unwrap_or(i32::MAX)
}

fn check(error: *mut c::rd_kafka_error_t) -> Result<(), TransactionError> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: a non-null error is valid and ours; its text is copied before it is destroyed.
    let (code, fatal, text) = unsafe {
        let code: RDKafkaErrorCode = c::rd_kafka_error_code(error).into();
        let fatal = c::rd_kafka_error_is_fatal(error) != 0;
        let text = CStr::from_ptr(c::rd_kafka_error_string(error)).to_string_lossy().into_owned();
        c::rd_kafka_error_destroy(error);
        (code, fatal, text)
    };
    Err(classify(Some(code), fatal, text))
}

fn classify_kafka_error(error: KafkaError) -> TransactionError {
    let fatal = matches!(&error, KafkaError::Transaction(inner) if inner.is_fatal());
    classify(error.rdkafka_error_code(), fatal, error.to_string())
}

fn classify(code: Option<RDKafkaErrorCode>, fatal: bool, text: String) -> TransactionError {
    match code {
        Some(
            RDKafkaErrorCode::IllegalGeneration
            | RDKafkaErrorCode::UnknownMemberId
            | RDKafkaErrorCode::FencedInstanceId
            | RDKafkaErrorCode::RebalanceInProgress,
        ) => TransactionError::StaleGeneration(text),
        Some(RDKafkaErrorCode::Fenced | RDKafkaErrorCode::ProducerFenced) => {
            TransactionError::Fenced(text)
        }
        _ if fatal => TransactionError::Unknown(format!("fatal: {text}")),
        _ => TransactionError::Unknown(text),
    }
}
