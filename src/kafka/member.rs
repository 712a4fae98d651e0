//! Consumer group membership: the assigned partitions and their committed offsets.
//!
//! Invariant: the group is polled only while no transaction is open, so no partition is revoked
//! during a transaction. The member reads no records: it pauses every assigned partition. No caller
//! waits without a limit until a consumer is closed.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{self, BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use rdkafka::{ClientContext, Offset as KafkaOffset, TopicPartitionList};

use super::error::{ClientError, ClientResult};
use super::group_metadata::{GroupMetadata, GroupMetadataError, MemberMetadata as _};
use super::transaction::{OffsetCommit, offset_list};
use super::{consumer_config, whole_ms};
use crate::clock;
use crate::config::Settings;
use crate::engine::assignment::AssignmentChange;
use crate::fault;
use crate::model::{Offset, PartitionId};

/// How long the broker may take to return the metadata of a topic.
const METADATA_TIMEOUT: Duration = Duration::from_secs(5);
/// How many times a member may be fenced within [`FENCED_WINDOW`]. An unstable broker causes one or
/// two fencings; another process with the same instance id causes a new one after each join.
const FENCED_MAX: usize = 5;
/// Fencings older than this are not counted.
const FENCED_WINDOW: Duration = Duration::from_secs(60);

/// How long the end of a membership waits until its consumer is closed and has left the group.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Whether a commit waits for the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitMode {
    /// Waits, and reports an error.
    Sync,
    /// Does not wait.
    Async,
}

/// A member of a consumer group.
pub struct Member {
    config: ClientConfig,
    consumer: Arc<GroupConsumer>,
    topic: String,
    /// The times of the recent fencings.
    fenced_at: Vec<Instant>,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl Member {
    /// Joins `group` for `topic` as the static member `instance`.
    pub fn join(
        settings: &Settings,
        group: &str,
        topic: &str,
        instance: &str,
    ) -> ClientResult<Self> {
        Self::join_as(settings, group, topic, Some(instance))
    }

    /// Joins `group` for `topic` as a dynamic member. When it is dropped, it leaves the group and
    /// its partitions are reassigned at once.
    pub fn join_dynamic(settings: &Settings, group: &str, topic: &str) -> ClientResult<Self> {
        Self::join_as(settings, group, topic, None)
    }

    fn join_as(
        settings: &Settings,
        group: &str,
        topic: &str,
        instance: Option<&str>,
    ) -> ClientResult<Self> {
        let scheduler = &settings.scheduler;
        let mut config = consumer_config(settings, group);
        if let Some(instance) = instance {
            config.set("group.instance.id", instance);
        }
        config
            .set("partition.assignment.strategy", scheduler.assignor.as_str())
            .set("session.timeout.ms", scheduler.session_timeout.as_millis().to_string())
            .set("heartbeat.interval.ms", scheduler.heartbeat_interval.as_millis().to_string());
        let consumer = Arc::new(open_consumer(&config, topic)?);
        Ok(Self { config, consumer, topic: topic.to_owned(), fenced_at: Vec::new() })
    }

    /// Joins the group again with the same instance id, after [`poll`](Self::poll) has returned an
    /// error, or if the member id has changed. All partitions are lost. Returns `fatal` if the
    /// member was fenced too often recently.
    ///
    /// The usual error says that another process uses the same instance id. In most cases this is
    /// wrong: after the broker was unavailable for longer than the session timeout, a delayed
    /// heartbeat arrives after this member has joined again, and the broker answers it as one of an
    /// unknown member. The lock on the data directory excludes a second process with the same id,
    /// unless the id was configured by hand in two places; then the two processes fence each other
    /// repeatedly.
    pub fn rejoin(&mut self, fatal: ClientError) -> ClientResult<()> {
        let context = self.consumer.context();
        if *context.forced_rejoin.lock().expect("no thread panics with the lock held")
            == ForcedRejoin::Leaving
        {
            context.released_all.store(true, Ordering::SeqCst); // no partition is left to release
            return Ok(());
        }
        let now = clock::monotonic();
        self.fenced_at.retain(|at| now.duration_since(*at) < FENCED_WINDOW);
        if self.fenced_at.len() == FENCED_MAX {
            return Err(fatal);
        }
        self.fenced_at.push(now);
        let replacement = open_consumer(&self.config, &self.topic)?;
        context.is_replaced.store(true, Ordering::SeqCst);
        self.consumer = Arc::new(replacement);
        Ok(())
    }

    /// Polls the group for at most `timeout` and returns the assignment changes, each after the
    /// member id. An error is fatal for the consumer: call [`rejoin`](Self::rejoin).
    pub fn poll(&self, timeout: Duration) -> ClientResult<Vec<AssignmentChange>> {
        if let Some(Err(error)) = self.consumer.poll(whole_ms(timeout)) {
            if matches!(error, KafkaError::MessageConsumptionFatal(_)) {
                return Err(error.into());
            }
            tracing::debug!(%error, "the group consumer returned an error");
        }
        if let Err(error) = self.force_rejoin() {
            tracing::debug!(%error, "the subscription cannot be changed; trying again");
        }
        Ok(std::mem::take(
            &mut *self
                .consumer
                .context()
                .changes
                .lock()
                .expect("no thread panics with the lock held"),
        ))
    }

    /// A static member that restarts gets the assignment of its earlier process, and the group does
    /// not compare the subscriptions. If the earlier process had released its partitions by
    /// subscribing to another topic, the inherited assignment has partitions of that topic only,
    /// and the group would not assign others. A subscription that changes after the join forces a
    /// new assignment: subscribe to both topics, then only to ours.
    fn force_rejoin(&self) -> KafkaResult<()> {
        let mut forced_rejoin = self
            .consumer
            .context()
            .forced_rejoin
            .lock()
            .expect("no thread panics with the lock held");
        match &*forced_rejoin {
            ForcedRejoin::Requested(other_topic) => {
                // librdkafka does not join for a topic that is not in its metadata.
                if self.consumer.fetch_metadata(Some(other_topic), METADATA_TIMEOUT).is_ok() {
                    self.consumer.subscribe(&[&self.topic, other_topic])?;
                    *forced_rejoin = ForcedRejoin::Subscribed;
                }
            }
            ForcedRejoin::Rejoined => {
                self.consumer.subscribe(&[&self.topic])?;
                *forced_rejoin = ForcedRejoin::None;
            }
            ForcedRejoin::None | ForcedRejoin::Subscribed | ForcedRejoin::Leaving => {}
        }
        Ok(())
    }

    /// Releases revoked or lost partitions. Call it when no transaction or record of ours can
    /// affect them any more.
    pub fn release(&self, partitions: &[PartitionId]) -> ClientResult<()> {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for partition in partitions {
            let _element = list.add_partition(&self.topic, *partition);
        }
        fault::reached("member.before_release");
        unassign(&self.consumer, &list)?;
        fault::reached("member.after_release");
        Ok(())
    }

    /// The current group metadata, for one transaction.
    pub fn group_metadata(&self) -> Result<GroupMetadata, GroupMetadataError> {
        GroupMetadata::from_consumer(&self.consumer)
    }

    /// The committed offset of a partition of any topic. An error (also a timeout) means that it is
    /// not known yet, not that there is none.
    pub fn committed(
        &self,
        topic: &str,
        partition: PartitionId,
        timeout: Duration,
    ) -> ClientResult<Option<Offset>> {
        Ok(committed(&self.consumer, topic, partition, timeout)?.map(|(offset, _)| offset))
    }

    /// Commits offsets of partitions of any topics, outside of a transaction. The broker refuses
    /// the commit if this client is not a member any more; only [`CommitMode::Sync`] reports that.
    pub fn commit(
        &self,
        offsets: &[(&str, PartitionId, Offset)],
        mode: CommitMode,
    ) -> ClientResult<()> {
        let mut list = TopicPartitionList::with_capacity(offsets.len());
        for (topic, partition, offset) in offsets {
            let offset = i64::try_from(*offset).expect("Kafka's offsets are below 2^63");
            list.add_partition_offset(topic, *partition, KafkaOffset::Offset(offset))?;
        }
        let mode = match mode {
            CommitMode::Sync => consumer::CommitMode::Sync,
            CommitMode::Async => consumer::CommitMode::Async,
        };
        Ok(self.consumer.commit(&list, mode)?)
    }

    /// Commits offsets with their metadata outside of a transaction, without waiting.
    pub fn commit_offsets(&self, commits: &[OffsetCommit]) -> ClientResult<()> {
        Ok(self.consumer.commit(&offset_list(commits)?, consumer::CommitMode::Async)?)
    }

    /// A handle that reads committed offsets on another thread. Such a read blocks while a
    /// transaction of an earlier owner is open.
    #[must_use]
    pub fn committed_offsets(&self) -> CommittedOffsets {
        CommittedOffsets { consumer: Arc::clone(&self.consumer), topic: self.topic.clone() }
    }

    /// Starts to release all partitions without leaving the group; poll until
    /// [`Self::has_released_all`]. A static member does not send LeaveGroup, so it subscribes to
    /// `other_topic` instead, of which it reads nothing. That topic must exist and be in
    /// librdkafka's metadata: otherwise librdkafka does not join again, and reports our partitions
    /// as lost, not as revoked.
    pub fn leave_gracefully(&self, other_topic: &str, timeout: Duration) -> ClientResult<()> {
        let _cached = self.consumer.fetch_metadata(Some(other_topic), timeout)?;
        self.consumer.context().released_all.store(false, Ordering::SeqCst);
        *self
            .consumer
            .context()
            .forced_rejoin
            .lock()
            .expect("no thread panics with the lock held") = ForcedRejoin::Leaving;
        Ok(self.consumer.subscribe(&[other_topic])?)
    }

    /// Whether the group has completed an assignment in which this member has no partitions.
    #[must_use]
    pub fn has_released_all(&self) -> bool {
        self.consumer.context().released_all.load(Ordering::SeqCst)
    }
}

/// Reads committed offsets.
pub struct CommittedOffsets {
    consumer: Arc<GroupConsumer>,
    topic: String,
}

impl std::fmt::Debug for CommittedOffsets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommittedOffsets").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl CommittedOffsets {
    /// The stable committed offset of a partition and its metadata. An error (also a timeout) means
    /// that it is not known yet, not that there is none.
    pub fn committed(
        &self,
        partition: PartitionId,
        timeout: Duration,
    ) -> ClientResult<Option<(Offset, String)>> {
        committed(&self.consumer, &self.topic, partition, timeout)
    }

    /// Whether the group has reassigned the partitions without waiting for this member, as far as
    /// its client knows.
    #[must_use]
    pub fn is_assignment_lost(&self) -> bool {
        self.consumer.assignment_lost()
    }
}

/// The committed offset of a partition and its metadata, at the consumer's isolation level.
pub(super) fn committed<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    partition: PartitionId,
    timeout: Duration,
) -> ClientResult<Option<(Offset, String)>> {
    let mut list = TopicPartitionList::new();
    let _element = list.add_partition(topic, partition);
    let answer = consumer.committed_offsets(list, timeout)?;
    let elements = answer.elements();
    let Some(element) = elements.first() else {
        return Err(KafkaError::OffsetFetch(RDKafkaErrorCode::NoOffset).into());
    };
    element.error()?;
    Ok(match element.offset() {
        KafkaOffset::Offset(offset) => {
            let offset = Offset::try_from(offset).expect("a committed offset is not negative");
            Some((offset, element.metadata().to_owned()))
        }
        _ => None,
    })
}

/// A consumer that is closed by a thread of its own. librdkafka waits for its thread without a
/// limit, and that thread may end without an answer if the group rebalances meanwhile.
struct GroupConsumer(Option<BaseConsumer<GroupContext>>);

impl Deref for GroupConsumer {
    type Target = BaseConsumer<GroupContext>;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref().expect("it has a consumer until it is dropped")
    }
}

impl Drop for GroupConsumer {
    /// Waits until the consumer has left the group, unless another one has replaced it.
    fn drop(&mut self) {
        let Some(consumer) = self.0.take() else { return };
        consumer.context().closing.store(true, Ordering::SeqCst);
        let is_replaced = consumer.context().is_replaced.load(Ordering::SeqCst);
        let (closed, is_closed) = mpsc::channel::<()>();
        let close = move || {
            // Applies the change that the group has reported last. Then what was revoked before is
            // released: librdkafka waits for that.
            let _event = consumer.poll(Duration::ZERO);
            if let Ok(held) = consumer.assignment()
                && held.count() > 0
            {
                let released = unassign(&consumer, &held);
                tracing::debug!(?released, "closing the group consumer");
            }
            drop((consumer, closed));
        };
        match std::thread::Builder::new().name("close-member".to_owned()).spawn(close) {
            Ok(_) if is_replaced => {}
            Ok(_) => {
                if is_closed.recv_timeout(CLOSE_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
                    tracing::warn!("the group consumer is not closed in time");
                }
            }
            Err(error) => tracing::warn!(%error, "no thread can close the group consumer"),
        }
    }
}

/// A subscription to another topic that forces the group to assign again.
#[derive(Debug, Default, PartialEq, Eq)]
enum ForcedRejoin {
    #[default]
    None,
    /// Partitions of this other topic were inherited: subscribe to it.
    Requested(String),
    Subscribed,
    /// The group has assigned again: subscribe only to our topic.
    Rejoined,
    /// The member is leaving, also by a changed subscription.
    Leaving,
}

impl ForcedRejoin {
    /// Called when the group has assigned partitions; `other_topic` is set if some are not of our
    /// topic.
    fn on_assigned(&mut self, other_topic: Option<String>) {
        match (&self, other_topic) {
            (Self::None, Some(topic)) => *self = Self::Requested(topic),
            (Self::Subscribed, _) => *self = Self::Rejoined,
            _ => {}
        }
    }
}

/// Collects the assignment changes while the group is polled.
#[derive(Default)]
struct GroupContext {
    topic: String,
    changes: Mutex<Vec<AssignmentChange>>,
    released_all: AtomicBool,
    forced_rejoin: Mutex<ForcedRejoin>,
    /// Another consumer has joined in its place.
    is_replaced: AtomicBool,
    /// What is revoked is released at once: no code calls `release` any more.
    closing: AtomicBool,
}

impl ClientContext for GroupContext {
    fn error(&self, error: KafkaError, reason: &str) {
        super::log_error(&error, reason);
    }
}

impl ConsumerContext for GroupContext {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        event: RDKafkaRespErr,
        list: &mut TopicPartitionList,
    ) {
        let partitions = self.own_partitions(list);
        // librdkafka has none if the group has expelled this member since; it joins again after
        // this change, as another member.
        let member_id = GroupMetadata::from_consumer(consumer).map(|it| it.member_id()).ok();
        let assigned = event == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let result = if assigned {
            let owned = consumer.assignment().map(|owned| self.own_partitions(&owned));
            let none = partitions.is_empty() && owned.is_ok_and(|owned| owned.is_empty());
            self.released_all.store(none, Ordering::SeqCst);
            self.forced_rejoin
                .lock()
                .expect("no thread panics with the lock held")
                .on_assigned(self.other_topic(list));
            assign(consumer, list)
        } else if self.closing.load(Ordering::SeqCst) || partitions.is_empty() {
            unassign(consumer, list)
        } else {
            Ok(()) // `release` is called after the last transaction has ended
        };
        let change = match (assigned, consumer.assignment_lost()) {
            (true, _) => AssignmentChange::Assigned(partitions),
            (false, true) => AssignmentChange::Lost(partitions),
            (false, false) => AssignmentChange::Revoked(partitions),
        };
        match result {
            Ok(()) => {
                let mut changes = self.changes.lock().expect("no thread panics with the lock held");
                changes.extend(member_id.map(AssignmentChange::Joined));
                changes.push(change);
            }
            Err(error) => {
                tracing::error!(%error, ?change, "the assignment change cannot be applied")
            }
        }
    }
}

impl GroupContext {
    /// A topic in the list that is not ours.
    fn other_topic(&self, list: &TopicPartitionList) -> Option<String> {
        let elements = list.elements();
        let mut topics = elements.iter().map(|element| element.topic());
        topics.find(|topic| *topic != self.topic).map(str::to_owned)
    }

    /// The partitions of our topic. While the member releases its partitions, the list also has
    /// partitions of another topic.
    fn own_partitions(&self, list: &TopicPartitionList) -> Vec<PartitionId> {
        let elements = list.elements_for_topic(&self.topic);
        elements.iter().map(|element| element.partition()).collect()
    }
}

fn open_consumer(config: &ClientConfig, topic: &str) -> KafkaResult<GroupConsumer> {
    let context = GroupContext { topic: topic.to_owned(), ..GroupContext::default() };
    let consumer: BaseConsumer<GroupContext> = config.create_with_context(context)?;
    consumer.subscribe(&[topic])?;
    Ok(GroupConsumer(Some(consumer)))
}

/// Accepts the assignment without reading from it: a `LogReader` reads the partitions, from the
/// cursor's offset on.
fn assign(consumer: &BaseConsumer<GroupContext>, list: &mut TopicPartitionList) -> KafkaResult<()> {
    list.set_all_offsets(KafkaOffset::End)?;
    if is_cooperative(consumer) {
        consumer.incremental_assign(list)
    } else {
        consumer.assign(list)
    }?;
    if list.count() == 0 { Ok(()) } else { consumer.pause(list) }
}

fn unassign(consumer: &BaseConsumer<GroupContext>, list: &TopicPartitionList) -> KafkaResult<()> {
    if is_cooperative(consumer) { consumer.incremental_unassign(list) } else { consumer.unassign() }
}

fn is_cooperative(consumer: &BaseConsumer<GroupContext>) -> bool {
    matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative)
}
