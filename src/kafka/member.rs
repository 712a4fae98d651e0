//! Membership of a group: which partitions are ours, and their committed offsets.
//!
//! Invariant: the group is polled only while no transaction is open, so a partition never leaves us
//! in the middle of one. The member reads no records; it pauses whatever it is assigned.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Offset as KafkaOffset, TopicPartitionList};

use super::group_metadata::{GroupMetadata, GroupMetadataError};
use super::{consumer_config, whole_ms};
use crate::clock;
use crate::config::Settings;
use crate::engine::assignment::AssignmentChange;
use crate::fault;
use crate::model::{Offset, PartitionId};

/// How long the broker may take to say where a topic's partitions are.
const METADATA_TIMEOUT: Duration = Duration::from_secs(5);
/// So often may a member be thrown out within [`FENCED_WINDOW`]: a broker that comes and goes does
/// it once or twice, a rival of the same name does it at once every time.
const FENCED_MAX: usize = 5;
/// How long a member that was thrown out is remembered to have been.
const FENCED_WINDOW: Duration = Duration::from_secs(60);

/// A member of a group.
pub struct Member {
    config: ClientConfig,
    consumer: Arc<BaseConsumer<GroupContext>>,
    topic: String,
    /// When it was thrown out, of late.
    fenced_at: Vec<Instant>,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl Member {
    /// Joins `group` for `topic`, as the static member `instance`.
    pub fn join(
        settings: &Settings,
        group: &str,
        topic: &str,
        instance: &str,
    ) -> KafkaResult<Self> {
        Self::join_as(settings, group, topic, Some(instance))
    }

    /// Joins `group` for `topic` without a name that outlives the process. Such a member leaves
    /// the group when it is dropped, and its partitions move at once.
    pub fn join_dynamic(settings: &Settings, group: &str, topic: &str) -> KafkaResult<Self> {
        Self::join_as(settings, group, topic, None)
    }

    fn join_as(
        settings: &Settings,
        group: &str,
        topic: &str,
        instance: Option<&str>,
    ) -> KafkaResult<Self> {
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

    /// Joins again under the same name after an error that [`poll`](Self::poll) has returned.
    /// Whatever was ours is lost. Returns `fatal` when that has happened too often of late.
    ///
    /// The usual one says that someone else has our name, and is mostly wrong: after a broker was
    /// away for longer than a session, a late heartbeat of ours arrives after we have joined again,
    /// and is answered like that of an unknown member. The lock on the data directory keeps real
    /// ones away, unless the name was given to two by hand: those would throw each other out in
    /// turn.
    pub fn rejoin(&mut self, fatal: KafkaError) -> KafkaResult<()> {
        let context = self.consumer.context();
        if *context.forced_rejoin.lock().expect("no panic holds it") == ForcedRejoin::Leaving {
            context.released_all.store(true, Ordering::SeqCst); // nothing is left to hand over
            return Ok(());
        }
        let now = clock::monotonic();
        self.fenced_at.retain(|at| now.duration_since(*at) < FENCED_WINDOW);
        if self.fenced_at.len() == FENCED_MAX {
            return Err(fatal);
        }
        self.fenced_at.push(now);
        context.closing.store(true, Ordering::SeqCst);
        self.consumer = Arc::new(open_consumer(&self.config, &self.topic)?);
        Ok(())
    }

    /// Serves the group, waiting at most `timeout`, and says what has changed. An error is fatal
    /// for the consumer: only [`rejoin`](Self::rejoin) makes it a member again.
    pub fn poll(&self, timeout: Duration) -> Result<Vec<AssignmentChange>, KafkaError> {
        if let Some(Err(error)) = self.consumer.poll(whole_ms(timeout)) {
            if matches!(error, KafkaError::MessageConsumptionFatal(_)) {
                return Err(error);
            }
            tracing::debug!(%error, "the group's consumer reports");
        }
        if let Err(error) = self.force_rejoin() {
            tracing::debug!(%error, "the subscription is changed at the next poll");
        }
        Ok(std::mem::take(&mut *self.consumer.context().changes.lock().expect("no panic holds it")))
    }

    /// A static member that starts again inherits the assignment of the one before it, and the
    /// group does not look whether the subscription is still the same. If the one before had handed
    /// over, that is nothing of ours, and the group would never assign us more. Only a subscription
    /// that changes while we are a member makes the group assign again: so it changes, and back.
    fn force_rejoin(&self) -> KafkaResult<()> {
        let mut forced_rejoin =
            self.consumer.context().forced_rejoin.lock().expect("no panic holds it");
        match &*forced_rejoin {
            ForcedRejoin::Requested(other_topic) => {
                // librdkafka joins for no topic that it does not know.
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

    /// Lets revoked or lost partitions go: nothing that we do has an effect on them any more.
    pub fn release(&self, partitions: &[PartitionId]) -> KafkaResult<()> {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for partition in partitions {
            let _element = list.add_partition(&self.topic, *partition);
        }
        fault::reached("member.before_release");
        unassign(&self.consumer, &list)?;
        fault::reached("member.after_release");
        Ok(())
    }

    /// Proof of membership for one transaction, as of now.
    pub fn group_metadata(&self) -> Result<GroupMetadata, GroupMetadataError> {
        GroupMetadata::from_consumer(&self.consumer)
    }

    /// The committed offset of a partition of any topic. An error, timeouts included, means "not
    /// known yet", never "none".
    pub fn committed(
        &self,
        topic: &str,
        partition: PartitionId,
        timeout: Duration,
    ) -> KafkaResult<Option<Offset>> {
        Ok(committed(&self.consumer, topic, partition, timeout)?.map(|(offset, _)| offset))
    }

    /// Commits offsets of partitions of any topics, outside of a transaction. The broker refuses it
    /// to a client that is no member any more; without [`CommitMode::Sync`] no caller learns of
    /// that.
    pub fn commit(
        &self,
        offsets: &[(&str, PartitionId, Offset)],
        mode: CommitMode,
    ) -> KafkaResult<()> {
        let mut list = TopicPartitionList::with_capacity(offsets.len());
        for (topic, partition, offset) in offsets {
            let offset = i64::try_from(*offset).expect("Kafka's offsets are below 2^63");
            list.add_partition_offset(topic, *partition, KafkaOffset::Offset(offset))?;
        }
        self.consumer.commit(&list, mode)
    }

    /// A way to read committed offsets from another thread: it blocks while a transaction that
    /// an earlier owner left open is undecided.
    #[must_use]
    pub fn committed_offsets(&self) -> CommittedOffsets {
        CommittedOffsets { consumer: Arc::clone(&self.consumer), topic: self.topic.clone() }
    }

    /// Begins to give all partitions to the others while staying a member; poll until
    /// [`Self::has_released_all`]. A static member sends no LeaveGroup, so it asks for `another`
    /// topic instead, of which it reads nothing. It must exist, and must be known to: librdkafka
    /// joins for no other, and calls our partitions lost rather than revoked.
    pub fn leave_gracefully(&self, other_topic: &str, timeout: Duration) -> KafkaResult<()> {
        let _cached = self.consumer.fetch_metadata(Some(other_topic), timeout)?;
        self.consumer.context().released_all.store(false, Ordering::SeqCst);
        *self.consumer.context().forced_rejoin.lock().expect("no panic holds it") =
            ForcedRejoin::Leaving;
        self.consumer.subscribe(&[other_topic])
    }

    /// Whether the group has agreed to an assignment in which nothing is ours.
    #[must_use]
    pub fn has_released_all(&self) -> bool {
        self.consumer.context().released_all.load(Ordering::SeqCst)
    }
}

/// Reads committed offsets.
pub struct CommittedOffsets {
    consumer: Arc<BaseConsumer<GroupContext>>,
    topic: String,
}

impl std::fmt::Debug for CommittedOffsets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offsets").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl CommittedOffsets {
    /// The stable committed offset of a partition and its metadata. An error, timeouts included,
    /// means "not known yet", never "none".
    pub fn committed(
        &self,
        partition: PartitionId,
        timeout: Duration,
    ) -> KafkaResult<Option<(Offset, String)>> {
        committed(&self.consumer, &self.topic, partition, timeout)
    }
}

/// The committed offset of a partition and its metadata, as stable as the consumer reads.
pub(super) fn committed<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    partition: PartitionId,
    timeout: Duration,
) -> KafkaResult<Option<(Offset, String)>> {
    let mut list = TopicPartitionList::new();
    let _element = list.add_partition(topic, partition);
    let answer = consumer.committed_offsets(list, timeout)?;
    let elements = answer.elements();
    let Some(element) = elements.first() else {
        return Err(KafkaError::OffsetFetch(rdkafka::types::RDKafkaErrorCode::NoOffset));
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

impl Drop for Member {
    /// Closing revokes what is left, and no code will call `release` then.
    fn drop(&mut self) {
        self.consumer.context().closing.store(true, Ordering::SeqCst);
    }
}

/// A subscription to another topic, only to make the group assign again.
#[derive(Debug, Default, PartialEq, Eq)]
enum ForcedRejoin {
    #[default]
    None,
    /// We inherited partitions of this topic.
    Requested(String),
    Subscribed,
    /// The group has answered: subscribe to our topic alone.
    Rejoined,
    /// We are leaving, by a subscription that changes too.
    Leaving,
}

impl ForcedRejoin {
    /// We were assigned something, maybe of a topic that is not ours.
    fn on_assigned(&mut self, other_topic: Option<String>) {
        match (&self, other_topic) {
            (Self::None, Some(topic)) => *self = Self::Requested(topic),
            (Self::Subscribed, _) => *self = Self::Rejoined,
            _ => {}
        }
    }
}

/// Notes what the group says while it is polled.
#[derive(Default)]
struct GroupContext {
    topic: String,
    changes: Mutex<Vec<AssignmentChange>>,
    released_all: AtomicBool,
    forced_rejoin: Mutex<ForcedRejoin>,
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
        let assigned = event == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let result = if assigned {
            let owned = consumer.assignment().map(|owned| self.own_partitions(&owned));
            let none = partitions.is_empty() && owned.is_ok_and(|owned| owned.is_empty());
            self.released_all.store(none, Ordering::SeqCst);
            self.forced_rejoin
                .lock()
                .expect("no panic holds it")
                .on_assigned(self.other_topic(list));
            assign(consumer, list)
        } else if self.closing.load(Ordering::SeqCst) || partitions.is_empty() {
            unassign(consumer, list)
        } else {
            Ok(()) // `release` follows, once the last transaction is done
        };
        let change = match (assigned, consumer.assignment_lost()) {
            (true, _) => AssignmentChange::Assigned(partitions),
            (false, true) => AssignmentChange::Lost(partitions),
            (false, false) => AssignmentChange::Revoked(partitions),
        };
        match result {
            Ok(()) => self.changes.lock().expect("no panic holds it").push(change),
            Err(error) => tracing::error!(%error, ?change, "the assignment was not accepted"),
        }
    }
}

impl GroupContext {
    /// A topic other than ours.
    fn other_topic(&self, list: &TopicPartitionList) -> Option<String> {
        let elements = list.elements();
        let mut topics = elements.iter().map(|element| element.topic());
        topics.find(|topic| *topic != self.topic).map(str::to_owned)
    }

    /// The partitions of our topic: while handing over we have those of another one too.
    fn own_partitions(&self, list: &TopicPartitionList) -> Vec<PartitionId> {
        let elements = list.elements_for_topic(&self.topic);
        elements.iter().map(|element| element.partition()).collect()
    }
}

fn open_consumer(config: &ClientConfig, topic: &str) -> KafkaResult<BaseConsumer<GroupContext>> {
    let context = GroupContext { topic: topic.to_owned(), ..GroupContext::default() };
    let consumer: BaseConsumer<GroupContext> = config.create_with_context(context)?;
    consumer.subscribe(&[topic])?;
    Ok(consumer)
}

/// Takes partitions without reading them: the reader does that, from where the cursor says.
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
