//! Queries about topics: the first and end offsets of partitions, who leads them, and which
//! partitions of a topic can be written.
//!
//! Invariant: end offsets are high watermarks (read_uncommitted). A read_committed client returns
//! the last stable offset instead, and a committed cancellation above it would be missed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::metadata::{Metadata, MetadataBroker, MetadataPartition};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};

use super::asked_brokers::{brokers_to_ask, first_answer, first_answer_of, leaders};
use super::error::{ClientError, ClientResult};
use super::topic_limits::{KnownLimits, TopicLimits};
use super::topic_rights::may_write;
use super::watermarks::watermarks;
use super::{client_config, cluster_id};
use crate::clock;
use crate::config::Settings;
use crate::engine::catalog::TopicState;
use crate::model::{BrokerId, Offset, PartitionId, Timestamp};

/// How long brokers may take together to say who leads what: 500 ms, 1 s and 2 s.
const LEADERS_TIMEOUT: Duration = Duration::from_millis(3_500);

/// A read_uncommitted client. Clones share its connections.
#[derive(Clone)]
pub struct KafkaAdminClient {
    consumer: Arc<BaseConsumer>,
    admin: Arc<AdminClient<DefaultClientContext>>,
    limits: Arc<KnownLimits>,
    timeout: Duration,
}

impl std::fmt::Debug for KafkaAdminClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaAdminClient").finish_non_exhaustive()
    }
}

impl KafkaAdminClient {
    /// Opens a client. Each of its requests takes at most `timeout`.
    pub fn open(settings: &Settings, timeout: Duration) -> ClientResult<Self> {
        let mut config = client_config(settings);
        let admin = Arc::new(config.create()?);
        config.remove("compression.type");
        let consumer = config.set("isolation.level", "read_uncommitted").create()?;
        Ok(Self { consumer: Arc::new(consumer), admin, limits: Arc::default(), timeout })
    }

    /// The first available offset of a partition, and its end offset (exclusive).
    pub fn bounds(&self, topic: &str, partition: PartitionId) -> ClientResult<(Offset, Offset)> {
        watermarks(&self.consumer, topic, partition, self.timeout)
    }

    /// Who leads each partition of a topic, as one broker knows it. A partition without a leader is
    /// absent. It takes three and a half seconds at most.
    pub fn leaders(&self, topic: &str) -> ClientResult<BTreeMap<PartitionId, BrokerId>> {
        let metadata = first_answer(self.timeout.min(LEADERS_TIMEOUT), |timeout| {
            self.consumer.fetch_metadata(Some(topic), timeout)
        })?;
        Ok(leaders(&metadata, topic).collect())
    }

    /// The end offsets (exclusive) of partitions, by one request to each leader of them. A
    /// partition is absent if its leader has none, or it has no leader. If one leader does not
    /// answer within `timeout`, librdkafka returns nothing of what the others have answered.
    pub fn end_offsets(
        &self,
        topic: &str,
        partitions: &[PartitionId],
        timeout: Duration,
    ) -> ClientResult<BTreeMap<PartitionId, Offset>> {
        let mut wanted = TopicPartitionList::with_capacity(partitions.len());
        for partition in partitions {
            // The timestamp with which Kafka is asked for the end of a log: -1.
            wanted.add_partition(topic, *partition).set_offset(KafkaOffset::End)?;
        }
        let found = self.consumer.offsets_for_times(wanted, timeout)?;
        let mut ends = BTreeMap::new();
        for element in found.elements() {
            let partition = element.partition();
            if let Err(error) = element.error() {
                tracing::debug!(topic, partition, %error, "the end of a partition is not known");
            } else if let KafkaOffset::Offset(end) = element.offset()
                && let Ok(end) = Offset::try_from(end)
            {
                let _none = ends.insert(partition, end);
            }
        }
        Ok(ends)
    }

    /// The offset of the first record whose timestamp is `time` (ms since the epoch) or later.
    /// Returns the end offset if there is no such record.
    pub fn offset_for_time(
        &self,
        topic: &str,
        partition: PartitionId,
        time: Timestamp,
    ) -> ClientResult<Offset> {
        let mut wanted = TopicPartitionList::new();
        let time = KafkaOffset::Offset(i64::try_from(time).unwrap_or(i64::MAX));
        wanted.add_partition_offset(topic, partition, time)?;
        let found = self.consumer.offsets_for_times(wanted, self.timeout)?;
        let found = found.find_partition(topic, partition);
        if let Some(found) = &found {
            found.error()?;
        }
        match found.and_then(|found| found.offset().to_raw()).map(Offset::try_from) {
            Some(Ok(offset)) => Ok(offset),
            // If no record matches, Kafka returns a special value (-1) and not an offset.
            _ => self.bounds(topic, partition).map(|(_low, end)| end),
        }
    }

    /// The cluster's id, if the broker has one.
    #[must_use]
    pub fn cluster_id(&self) -> Option<String> {
        cluster_id(self.consumer.client(), self.timeout)
    }

    /// Host and port of each broker, as advertised to clients. The request names one topic, because
    /// the answer to a request without a topic describes all topics.
    pub fn brokers(&self, topic: &str) -> ClientResult<Vec<(String, u16)>> {
        let metadata = self.consumer.fetch_metadata(Some(topic), self.timeout)?;
        let brokers = metadata.brokers().iter();
        let at = |port| u16::try_from(port).unwrap_or_default();
        Ok(brokers.map(|broker| (broker.host().to_owned(), at(broker.port()))).collect())
    }

    /// The number of partitions of a topic; `None` if the topic does not exist.
    pub fn partitions(&self, topic: &str) -> ClientResult<Option<i32>> {
        let metadata = self.consumer.fetch_metadata(Some(topic), self.timeout)?;
        let known = metadata.topics().iter().find(|t| t.name() == topic && t.error().is_none());
        let count = known.map_or(0, |t| t.partitions().len());
        Ok(i32::try_from(count).ok().filter(|count| *count > 0))
    }

    /// Whether a topic can be written, how, and which of its partitions cannot take a record now.
    /// An error: no broker has answered. Three questions are asked, each of several brokers if need
    /// be; each takes the timeout of a request at most.
    pub fn topic_state(&self, topic: &str) -> ClientResult<TopicState> {
        let asked_at = clock::monotonic();
        let state = self.ask_for_state(topic);
        let took_ms = (clock::monotonic() - asked_at).as_millis();
        tracing::debug!(topic, ?state, took_ms, "a topic was looked up");
        state
    }

    fn ask_for_state(&self, topic: &str) -> ClientResult<TopicState> {
        let metadata = self.topic_metadata(topic)?;
        let Some(found) = metadata.topics().iter().find(|t| t.name() == topic) else {
            return Ok(TopicState::Unavailable(format!(
                "topic {topic}: the broker's answer does not contain it"
            )));
        };
        if let Some(error) = found.error() {
            return Ok(topic_error_state(topic, error.into()));
        }
        if found.partitions().is_empty() {
            let reason = format!("topic {topic}: no partition of it is known");
            return Ok(TopicState::Unavailable(reason));
        }
        let leaders = found.partitions().iter().map(MetadataPartition::leader);
        let all = metadata.brokers().iter().map(MetadataBroker::id);
        let mut brokers = brokers_to_ask(metadata.orig_broker_id(), leaders, all);
        let rights = first_answer_of(&brokers, self.timeout, |broker, timeout| {
            may_write(self.admin.inner(), topic, broker, timeout)
        });
        match rights {
            Some((_, false)) => {
                let denied = RDKafkaErrorCode::TopicAuthorizationFailed;
                return Ok(topic_error_state(topic, denied));
            }
            // Those that have not answered are asked last.
            Some((place, true)) => brokers.rotate_left(place),
            None => {}
        }
        let Some(limits) = self.topic_limits(topic, &brokers) else {
            return Err(ClientError::NotAnswered("what the settings of the topic are"));
        };
        let can_write = |partition: &MetadataPartition| {
            let (replicas, in_sync) = (partition.replicas().len(), partition.isr().len());
            partition.leader() >= 0 && limits.are_enough(replicas, in_sync)
        };
        let unavailable = found.partitions().iter().filter(|partition| !can_write(partition));
        Ok(TopicState::Usable {
            partitions: i32::try_from(found.partitions().len()).unwrap_or(i32::MAX),
            record_bytes_max: limits.record_bytes_max,
            unavailable: unavailable.map(MetadataPartition::id).collect(),
        })
    }

    /// By the handle that asks for the configuration: it knows the leader then. A broker that has
    /// not answered the first time is not asked again if there is another one.
    fn topic_metadata(&self, topic: &str) -> ClientResult<Metadata> {
        let client = self.admin.inner();
        Ok(first_answer(self.timeout, |timeout| client.fetch_metadata(Some(topic), timeout))?)
    }

    /// Any broker can answer. librdkafka would ask the controller, which the built-in broker of
    /// `orloj dev` does not have: the whole timeout would pass.
    fn topic_limits(&self, topic: &str, brokers: &[i32]) -> Option<TopicLimits> {
        if brokers.is_empty() {
            return None;
        }
        let wanted = [ResourceSpecifier::Topic(topic)];
        let described = first_answer_of(brokers, self.timeout, |broker, timeout| {
            let options = AdminOptions::new().request_timeout(Some(timeout)).broker_id(broker);
            TopicLimits::from_answer(block_on(self.admin.describe_configs(&wanted, &options)))
        });
        self.limits.after(topic, described.map(|(_place, limits)| limits))
    }
}

fn topic_error_state(topic: &str, code: RDKafkaErrorCode) -> TopicState {
    match code {
        RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic => {
            TopicState::Unusable(format!("topic {topic} does not exist: create it and replay"))
        }
        RDKafkaErrorCode::InvalidTopic => {
            TopicState::Unusable(format!("{topic:?} is not a valid topic name"))
        }
        RDKafkaErrorCode::TopicAuthorizationFailed => TopicState::Unusable(format!(
            "the scheduler may not write topic {topic}: grant it WRITE, DESCRIBE and \
             DESCRIBE_CONFIGS"
        )),
        other => TopicState::Unavailable(format!("topic {topic}: {other}")),
    }
}

/// Waits on this thread until an admin request is complete. librdkafka's thread wakes the future.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let waker = std::task::Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    let mut context = std::task::Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(value) => return value,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

struct ThreadWaker(std::thread::Thread);

impl std::task::Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
