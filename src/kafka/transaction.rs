//! One Kafka transaction at a time: begin, send, and commit with the input offsets that fence it.
//!
//! Invariant: a transaction contains the offset of every partition that it affects. After an error
//! the outcome counts as unknown: the producer is dropped and a new one is opened with the same
//! transactional id, which makes the broker decide the old transaction. (librdkafka has no KIP-890:
//! a delayed request of the old transaction could otherwise be counted to the next one.)
#![allow(
    unsafe_code,
    reason = "rdkafka's flush waits in steps of 100 ms, and it gives no access to group metadata"
)]

use std::ffi::CStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rdkafka::bindings as c;
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};
use rdkafka::{ClientContext, Offset as KafkaOffset, TopicPartitionList};

use super::group_metadata::GroupMetadata;
use super::queued_bytes::QueuedBytes;
use super::transaction_error::{classify, classify_kafka_error, delivery_error};
use super::{
    await_connection, client_config, ms, producer_metadata, set_producer_timeouts, timeout_ms,
};
use crate::clock;
use crate::config::Settings;
use crate::engine::catalog::BATCH_BYTES_MAX;
use crate::environment::log::RecordHeader;
pub use crate::environment::transaction::{OffsetCommit, ProducerRecord, TransactionError};
use crate::fault;
use crate::model::Timestamp;

/// How long one flush call waits before delivery errors are checked.
const FLUSH_POLL_MS: i32 = 50;
/// How long all events that are there are handled for, such as the reports of a failed transaction.
const EVENTS_POLL: Duration = Duration::from_millis(1);
/// How long to wait before a record is sent again after the queue was full.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(1);
/// How long the broker may take to return the metadata of a topic.
const METADATA_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one abort call waits before delivery reports are polled.
const ABORT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The headers of a record in librdkafka's form; `None` if there are none.
pub(super) fn owned_headers(headers: &[RecordHeader<'_>]) -> Option<OwnedHeaders> {
    if headers.is_empty() {
        return None;
    }
    let empty = OwnedHeaders::new_with_capacity(headers.len());
    let insert = |headers: OwnedHeaders, (key, value): &RecordHeader<'_>| {
        headers.insert(Header { key, value: *value })
    };
    Some(headers.iter().fold(empty, insert))
}

/// A transactional producer.
pub struct TransactionalProducer {
    producer: BaseProducer<DeliveryErrors>,
    id: String,
    timeout: Duration,
    /// The timestamp of the records in ms since the epoch; 0 means the current time.
    record_timestamp: AtomicU64,
    /// What is queued for partitions whose batches are limited.
    queued: QueuedBytes,
}

/// The client of a transactional producer: it is connected, but it has no producer id yet. So it
/// neither ends the transaction of another producer with its transactional id, nor is it fenced.
pub struct ConnectedProducer {
    producer: BaseProducer<DeliveryErrors>,
    id: String,
    transaction_timeout: Duration,
}

impl std::fmt::Debug for ConnectedProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectedProducer").field("id", &self.id).finish_non_exhaustive()
    }
}

impl ConnectedProducer {
    /// Creates a client, and waits for its connection, at most `timeout`. It is also returned
    /// without one. The broker will abort its transactions after `transaction_timeout`.
    pub fn connect(
        settings: &Settings,
        id: &str,
        timeout: Duration,
        transaction_timeout: Duration,
    ) -> Result<Self, TransactionError> {
        let config = producer_config(settings, id, transaction_timeout);
        let producer: BaseProducer<DeliveryErrors> = config
            .create_with_context(DeliveryErrors::default())
            .map_err(|error| TransactionError::Unknown(error.to_string()))?;
        // Without a connection, librdkafka waits half a second before it looks for the coordinator
        // again.
        await_connection(producer.client(), timeout);
        Ok(Self { producer, id: id.to_owned(), transaction_timeout })
    }

    /// Fetches the metadata of a topic; waits at most `timeout`, also for a connection.
    pub fn fetch_metadata(&self, topic: &str, timeout: Duration) -> Result<(), TransactionError> {
        producer_metadata::fetch(&self.producer, topic, timeout)
    }

    /// Takes it into use. Blocks, for at most `timeout`, until the broker has ended the open
    /// transaction of an earlier producer with the same id.
    pub fn init(self, timeout: Duration) -> Result<TransactionalProducer, TransactionError> {
        let Self { producer, id, transaction_timeout } = self;
        fault::reached("transactor.before_init");
        producer.init_transactions(timeout).map_err(classify_kafka_error)?;
        fault::reached("transactor.after_init");
        Ok(TransactionalProducer {
            producer,
            id,
            timeout: transaction_timeout,
            record_timestamp: AtomicU64::new(0),
            queued: QueuedBytes::default(),
        })
    }
}

impl std::fmt::Debug for TransactionalProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionalProducer").field("id", &self.id).finish_non_exhaustive()
    }
}

impl TransactionalProducer {
    /// Opens a producer under `id`. Blocks, for at most `timeout`, until the broker has ended the
    /// open transaction of an earlier producer with the same id.
    pub fn open(
        settings: &Settings,
        id: &str,
        timeout: Duration,
    ) -> Result<Self, TransactionError> {
        Self::open_with(settings, id, timeout, settings.scheduler.transaction_timeout)
    }

    /// The same; the broker aborts a transaction after `transaction_timeout`.
    pub fn open_with(
        settings: &Settings,
        id: &str,
        timeout: Duration,
        transaction_timeout: Duration,
    ) -> Result<Self, TransactionError> {
        ConnectedProducer::connect(settings, id, timeout, transaction_timeout)?.init(timeout)
    }

    /// Fetches the metadata of a topic, so that the first record does not wait for it.
    pub fn prefetch_metadata(&self, topic: &str) -> Result<(), TransactionError> {
        producer_metadata::fetch(&self.producer, topic, METADATA_TIMEOUT)
    }

    /// Asks a broker who leads the partitions of all topics in use; waits at most `timeout`.
    pub fn refresh_metadata(&self, timeout: Duration) -> Result<(), TransactionError> {
        producer_metadata::refresh(&self.producer, timeout)
    }

    /// Begins a transaction. Nothing is sent yet.
    pub fn begin(&self) -> Result<(), TransactionError> {
        self.begin_at(0)
    }

    /// Begins a transaction for `time` (ms since the epoch), which may be slightly in the future.
    /// The records get that timestamp then, so that no record is older than its due time. The
    /// caller commits no earlier than at that time.
    pub fn begin_at(&self, time: Timestamp) -> Result<(), TransactionError> {
        let is_ahead = !clock::until(time).is_zero();
        self.record_timestamp.store(if is_ahead { time } else { 0 }, Ordering::Relaxed);
        self.queued.clear();
        self.producer.begin_transaction().map_err(classify_kafka_error)
    }

    /// Queues a record. Waits while librdkafka's queue is full. A refusal by the broker is returned
    /// by [`commit`](Self::commit).
    pub fn send(&self, record: ProducerRecord<'_>) -> Result<(), TransactionError> {
        let mut outgoing = BaseRecord::<[u8], [u8]>::to(record.topic);
        outgoing.partition = record.partition;
        outgoing.key = record.key;
        outgoing.payload = record.value;
        let time = self.record_timestamp.load(Ordering::Relaxed);
        outgoing.timestamp = i64::try_from(time).ok().filter(|time| *time > 0);
        outgoing.headers = owned_headers(record.headers);
        loop {
            let (error, returned) = match self.producer.send(outgoing) {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            };
            // The wait in rdkafka's own `poll` would use a full CPU core.
            self.producer.poll(Duration::ZERO);
            let code = error.rdkafka_error_code();
            if code != Some(RDKafkaErrorCode::QueueFull) {
                // After the first refusal librdkafka takes no other record, of whatever topic.
                self.first_delivery_error()?;
                if code == Some(RDKafkaErrorCode::State) {
                    return Err(self.failure());
                }
                let place = (record.topic, record.partition.unwrap_or(-1));
                return Err(delivery_error(code, place, error.to_string())
                    .unwrap_or_else(|| classify_kafka_error(error)));
            }
            std::thread::sleep(QUEUE_FULL_PAUSE);
            outgoing = returned;
        }
    }

    /// Makes room for `record` in a batch of at most `bytes_max`, which its topic takes at once:
    /// waits until what is queued for its partition is acknowledged, if it does not fit, at most
    /// `timeout`.
    pub fn limit_batch(
        &self,
        record: &ProducerRecord<'_>,
        bytes_max: usize,
        timeout: Duration,
    ) -> Result<(), TransactionError> {
        if !self.queued.fits(record, bytes_max) {
            let deadline = clock::monotonic() + timeout;
            self.flush(timeout).map_err(|error| match error {
                TransactionError::Unknown(reason) if clock::monotonic() >= deadline => {
                    let (topic, partition) = (record.topic.to_owned(), record.partition);
                    let partition = partition.unwrap_or(-1);
                    TransactionError::Undelivered { topic, partition, reason }
                }
                error => error,
            })?;
            self.queued.clear();
        }
        self.queued.add(record);
        Ok(())
    }

    /// Flushes, adds the offsets with `group_metadata`, and commits. `Ok` means committed. Waits at
    /// most the transaction timeout: after that the broker has aborted the transaction.
    pub fn commit_with_offsets(
        &self,
        offset_commits: &[OffsetCommit],
        group_metadata: &GroupMetadata,
    ) -> Result<(), TransactionError> {
        let deadline = clock::monotonic() + self.timeout;
        let remaining = || deadline.saturating_duration_since(clock::monotonic());
        self.flush(self.timeout)?;
        fault::reached("commit.before_offsets");
        self.send_offsets(offset_commits, group_metadata, remaining())?;
        fault::reached("commit.before_end");
        self.commit(remaining())?;
        fault::reached("commit.after_end");
        Ok(())
    }

    /// Adds the offsets to the open transaction; waits at most `timeout`.
    pub fn send_offsets(
        &self,
        offset_commits: &[OffsetCommit],
        group_metadata: &GroupMetadata,
        timeout: Duration,
    ) -> Result<(), TransactionError> {
        assert!(!offset_commits.is_empty(), "a transaction without offsets cannot be fenced");
        let offsets = offset_list(offset_commits).map_err(classify_kafka_error)?;
        let native = self.producer.client().native_ptr();
        let (list, group) = (offsets.ptr(), group_metadata.as_ptr());
        // SAFETY: handle, list and metadata live through the call. We own the returned error, and
        // `check` destroys it.
        check(unsafe {
            c::rd_kafka_send_offsets_to_transaction(native, list, group, timeout_ms(timeout))
        })
    }

    /// Commits the open transaction. `Ok` means committed. Waits at most `timeout`.
    pub fn commit(&self, timeout: Duration) -> Result<(), TransactionError> {
        let native = self.producer.client().native_ptr();
        // SAFETY: the handle lives through the call. We own the returned error, and `check`
        // destroys it.
        check(unsafe { c::rd_kafka_commit_transaction(native, timeout_ms(timeout)) })?;
        self.first_delivery_error()
    }

    /// Aborts the open transaction; waits at most `timeout`. An error means that the outcome is
    /// unknown.
    pub fn abort(&self, timeout: Duration) -> Result<(), TransactionError> {
        let deadline = clock::monotonic() + timeout;
        loop {
            // Delivery reports are polled on this thread, so one long abort call would wait for
            // reports that nothing polls.
            match self.producer.abort_transaction(ABORT_POLL_INTERVAL) {
                Ok(()) => {
                    // What is still reported is about records of this transaction.
                    self.producer.poll(Duration::ZERO);
                    let _aborted = self.first_delivery_error();
                    return Ok(());
                }
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

    /// Waits until every record is acknowledged or refused, at most `timeout`: more is an error.
    pub fn flush(&self, timeout: Duration) -> Result<(), TransactionError> {
        if self.is_flushed(timeout)? {
            return Ok(());
        }
        // `message.timeout.ms` should refuse such records before.
        let reason = "flush: records were neither acknowledged nor refused in time";
        Err(TransactionError::Unknown(reason.to_owned()))
    }

    /// Waits until every record is acknowledged or refused, at most `timeout`. Returns whether they
    /// are.
    pub fn is_flushed(&self, timeout: Duration) -> Result<bool, TransactionError> {
        let deadline = clock::monotonic() + timeout;
        let native = self.producer.client().native_ptr();
        loop {
            // SAFETY: the handle lives through the call, which only waits.
            let result = unsafe { c::rd_kafka_flush(native, FLUSH_POLL_MS) };
            // Of many events, `poll` handles one if it may not wait.
            let is_waiting = result != c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;
            self.producer.poll(if is_waiting { EVENTS_POLL } else { Duration::ZERO });
            self.first_delivery_error()?;
            match result {
                c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => return Ok(true),
                c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR__TIMED_OUT => {
                    if clock::monotonic() >= deadline {
                        return Ok(false);
                    }
                }
                other => return Err(TransactionError::Unknown(format!("flush: {other:?}"))),
            }
        }
    }

    /// Why the open transaction must be aborted. Another one cannot begin before that, and the
    /// refusal says why.
    fn failure(&self) -> TransactionError {
        let native = self.producer.client().native_ptr();
        // SAFETY: the handle lives through the call; `check` destroys the error.
        let refused = check(unsafe { c::rd_kafka_begin_transaction(native) });
        refused.err().unwrap_or_else(|| TransactionError::Unknown("none was open".to_owned()))
    }

    fn first_delivery_error(&self) -> Result<(), TransactionError> {
        let mut refused =
            self.producer.context().first.lock().expect("no thread panics with the lock held");
        refused.take().map_or(Ok(()), Err)
    }
}

/// The settings of a transactional producer.
pub(super) fn producer_config(
    settings: &Settings,
    id: &str,
    transaction_timeout: Duration,
) -> ClientConfig {
    let mut config = client_config(settings);
    config
        .set("transactional.id", id)
        .set("transaction.timeout.ms", ms(transaction_timeout))
        .set("enable.idempotence", "true")
        .set("partitioner", "murmur2_random")
        .set("delivery.report.only.error", "true")
        .set("retry.backoff.ms", "10")
        .set("retry.backoff.max.ms", "100")
        .set("linger.ms", "5")
        .set("batch.size", BATCH_BYTES_MAX.to_string())
        .set("queue.buffering.max.messages", "1000000")
        .set("queue.buffering.max.kbytes", "262144");
    set_producer_timeouts(&mut config, settings);
    // A record that is not acknowledged is known before the broker aborts its transaction.
    let delivery = settings.timeouts.delivery.min(transaction_timeout * 2 / 3);
    let request = settings.timeouts.request.min(delivery);
    config.set("message.timeout.ms", ms(delivery)).set("socket.timeout.ms", ms(request));
    config
}

/// Receives the delivery reports of records that were not delivered.
#[derive(Default)]
struct DeliveryErrors {
    first: Mutex<Option<TransactionError>>,
}

impl ClientContext for DeliveryErrors {}

impl ProducerContext for DeliveryErrors {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, message)) = result {
            let place = (message.topic(), message.partition());
            let error = delivery_error(error.rdkafka_error_code(), place, error.to_string());
            let mut first = self.first.lock().expect("no thread panics with the lock held");
            if first.is_none() {
                *first = error;
            }
        }
    }
}

/// The offsets to commit, with their metadata.
pub(super) fn offset_list(commits: &[OffsetCommit]) -> KafkaResult<TopicPartitionList> {
    let mut offsets = TopicPartitionList::with_capacity(commits.len());
    for commit in commits {
        let offset = i64::try_from(commit.offset).expect("Kafka's offsets are below 2^63");
        let mut element = offsets.add_partition(&commit.topic, commit.partition);
        element.set_offset(KafkaOffset::Offset(offset))?;
        element.set_metadata(&commit.metadata);
    }
    Ok(offsets)
}

fn check(error: *mut c::rd_kafka_error_t) -> Result<(), TransactionError> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: a non-null error is valid and ours. Its text is copied before it is destroyed.
    let (code, fatal, text) = unsafe {
        let code: RDKafkaErrorCode = c::rd_kafka_error_code(error).into();
        let fatal = c::rd_kafka_error_is_fatal(error) != 0;
        let text = CStr::from_ptr(c::rd_kafka_error_string(error)).to_string_lossy().into_owned();
        c::rd_kafka_error_destroy(error);
        (code, fatal, text)
    };
    Err(classify(Some(code), fatal, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_client_is_read_and_none_is_success() {
        assert_eq!(check(std::ptr::null_mut()), Ok(()));
        let error = |code| {
            // SAFETY: the format and the text are NUL-terminated and fit; `check` destroys it.
            unsafe { c::rd_kafka_error_new(code, c"%s".as_ptr(), c"text".as_ptr()) }
        };
        let text = || "text".to_owned();
        use c::rd_kafka_resp_err_t as code;
        for (code, expected) in [
            (code::RD_KAFKA_RESP_ERR__STATE, TransactionError::Unknown(text())),
            (code::RD_KAFKA_RESP_ERR__FENCED, TransactionError::Fenced(text())),
            (code::RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION, TransactionError::StaleGeneration(text())),
        ] {
            assert_eq!(check(error(code)), Err(expected));
        }
        assert_eq!(
            classify(None, true, text()),
            TransactionError::Unknown("fatal: text".to_owned())
        );
    }
}
