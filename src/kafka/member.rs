//! Membership of a group: which partitions are ours, and their committed offsets.
//!
//! Law: the group is polled only while no transaction is open, so a partition never leaves us in
//! the middle of one. The member reads no records; it pauses whatever it is assigned.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Offset as KafkaOffset, TopicPartitionList};

use super::fence::{Fence, FenceError};
use super::{consumer_config, whole_ms};
use crate::clock;
use crate::config::Settings;
use crate::engine::tenure::Change;
use crate::fault;
use crate::model::{Offset, PartitionId};

/// How long the broker may take to say where a topic's partitions are.
const METADATA_TIMEOUT: Duration = Duration::from_secs(5);
/// So often may a member be thrown out within [`OUTCAST_WINDOW`]: a broker that comes and goes does
/// it once or twice, a rival of the same name does it at once every time.
const OUTCAST_MAX: usize = 5;
/// How long a member that was thrown out is remembered to have been.
const OUTCAST_WINDOW: Duration = Duration::from_secs(60);

/// A member of a group.
pub struct Member {
    config: ClientConfig,
    consumer: Arc<BaseConsumer<Changes>>,
    topic: String,
    /// When it was thrown out, of late.
    outcast: Vec<Instant>,
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
    pub fn join_unnamed(settings: &Settings, group: &str, topic: &str) -> KafkaResult<Self> {
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
        let consumer = Arc::new(subscribed(&config, topic)?);
        Ok(Self { config, consumer, topic: topic.to_owned(), outcast: Vec::new() })
    }

    /// Joins again under the same name after an error that [`poll`](Self::poll) has returned.
    /// Whatever was ours is lost. Returns `fatal` when that has happened too often of late.
    ///
    /// The usual one says that someone else has our name, and is mostly wrong: after a broker was
    /// away for longer than a session, a late heartbeat of ours arrives after we have joined
    /// again, and is answered like a stranger's. The lock on the data directory keeps real ones
    /// away, unless the name was given to two by hand: those would throw each other out in turn.
    pub fn join_anew(&mut self, fatal: KafkaError) -> KafkaResult<()> {
        let context = self.consumer.context();
        if *context.detour.lock().expect("no panic holds it") == Detour::Never {
            context.handed_over.store(true, Ordering::SeqCst); // nothing is left to hand over
            return Ok(());
        }
        let now = clock::monotonic();
        self.outcast.retain(|at| now.duration_since(*at) < OUTCAST_WINDOW);
        if self.outcast.len() == OUTCAST_MAX {
            return Err(fatal);
        }
        self.outcast.push(now);
        context.closing.store(true, Ordering::SeqCst);
        self.consumer = Arc::new(subscribed(&self.config, &self.topic)?);
        Ok(())
    }

    /// Serves the group, waiting at most `timeout`, and says what has changed. An error is fatal
    /// for the consumer: only [`join_anew`](Self::join_anew) makes it a member again.
    pub fn poll(&self, timeout: Duration) -> Result<Vec<Change>, KafkaError> {
        if let Some(Err(error)) = self.consumer.poll(whole_ms(timeout)) {
            if matches!(error, KafkaError::MessageConsumptionFatal(_)) {
                return Err(error);
            }
            tracing::debug!(%error, "the group's consumer reports");
        }
        if let Err(error) = self.outgrow_inheritance() {
            tracing::debug!(%error, "the subscription is changed at the next poll");
        }
        Ok(std::mem::take(&mut *self.consumer.context().noted.lock().expect("no panic holds it")))
    }

    /// A static member that starts again inherits the assignment of the one before it, and the
    /// group does not look whether the subscription is still the same. If the one before had handed
    /// over, that is nothing of ours, and nobody would ever give us more. Only a subscription that
    /// changes while we are a member makes the group share out anew: so it changes, and back.
    fn outgrow_inheritance(&self) -> KafkaResult<()> {
        let mut detour = self.consumer.context().detour.lock().expect("no panic holds it");
        match &*detour {
            Detour::Wanted(another) => {
                // librdkafka joins for no topic that it does not know.
                if self.consumer.fetch_metadata(Some(another), METADATA_TIMEOUT).is_ok() {
                    self.consumer.subscribe(&[&self.topic, another])?;
                    *detour = Detour::Taken;
                }
            }
            Detour::Ended => {
                self.consumer.subscribe(&[&self.topic])?;
                *detour = Detour::None;
            }
            Detour::None | Detour::Taken | Detour::Never => {}
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
    pub fn fence(&self) -> Result<Fence, FenceError> {
        Fence::take(&self.consumer)
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

    /// Commits offsets of partitions of any topics, outside of a transaction. The broker refuses
    /// it to one who is no member any more; without [`CommitMode::Sync`] nobody hears of that.
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
    pub fn offsets(&self) -> Offsets {
        Offsets { consumer: Arc::clone(&self.consumer), topic: self.topic.clone() }
    }

    /// Begins to give all partitions to the others while staying a member; poll until
    /// [`Self::has_handed_over`]. A static member sends no LeaveGroup, so it asks for `another`
    /// topic instead, of which it reads nothing. It must exist, and must be known to: librdkafka
    /// joins for no other, and calls our partitions lost rather than revoked.
    pub fn hand_over(&self, another: &str, timeout: Duration) -> KafkaResult<()> {
        let _cached = self.consumer.fetch_metadata(Some(another), timeout)?;
        self.consumer.context().handed_over.store(false, Ordering::SeqCst);
        *self.consumer.context().detour.lock().expect("no panic holds it") = Detour::Never;
        self.consumer.subscribe(&[another])
    }

    /// Whether the group has agreed to an assignment in which nothing is ours.
    #[must_use]
    pub fn has_handed_over(&self) -> bool {
        self.consumer.context().handed_over.load(Ordering::SeqCst)
    }
}

/// Reads committed offsets.
pub struct Offsets {
    consumer: Arc<BaseConsumer<Changes>>,
    topic: String,
}

impl std::fmt::Debug for Offsets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offsets").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl Offsets {
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
    /// Closing revokes what is left, and nobody will call `release` then.
    fn drop(&mut self) {
        self.consumer.context().closing.store(true, Ordering::SeqCst);
    }
}

/// A subscription to another topic, only to make the group share out anew.
#[derive(Debug, Default, PartialEq, Eq)]
enum Detour {
    #[default]
    None,
    /// We inherited partitions of this topic.
    Wanted(String),
    Taken,
    /// The group has answered: subscribe to our topic alone.
    Ended,
    /// We are leaving, by a subscription that changes too.
    Never,
}

impl Detour {
    /// We were assigned something, maybe of a topic that is not ours.
    fn hear(&mut self, stranger: Option<String>) {
        match (&self, stranger) {
            (Self::None, Some(stranger)) => *self = Self::Wanted(stranger),
            (Self::Taken, _) => *self = Self::Ended,
            _ => {}
        }
    }
}

/// Notes what the group says while it is polled.
#[derive(Default)]
struct Changes {
    topic: String,
    noted: Mutex<Vec<Change>>,
    handed_over: AtomicBool,
    detour: Mutex<Detour>,
    closing: AtomicBool,
}

impl ClientContext for Changes {
    fn error(&self, error: KafkaError, reason: &str) {
        super::report(&error, reason);
    }
}

impl ConsumerContext for Changes {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        event: RDKafkaRespErr,
        list: &mut TopicPartitionList,
    ) {
        let partitions = self.ours(list);
        let assigned = event == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let result = if assigned {
            let owned = consumer.assignment().map(|owned| self.ours(&owned));
            let none = partitions.is_empty() && owned.is_ok_and(|owned| owned.is_empty());
            self.handed_over.store(none, Ordering::SeqCst);
            self.detour.lock().expect("no panic holds it").hear(self.stranger(list));
            assign(consumer, list)
        } else if self.closing.load(Ordering::SeqCst) || partitions.is_empty() {
            unassign(consumer, list)
        } else {
            Ok(()) // `release` follows, once the last transaction is done
        };
        let change = match (assigned, consumer.assignment_lost()) {
            (true, _) => Change::Assigned(partitions),
            (false, true) => Change::Lost(partitions),
            (false, false) => Change::Revoked(partitions),
        };
        match result {
            Ok(()) => self.noted.lock().expect("no panic holds it").push(change),
            Err(error) => tracing::error!(%error, ?change, "the assignment was not taken"),
        }
    }
}

impl Changes {
    /// A topic other than ours.
    fn stranger(&self, list: &TopicPartitionList) -> Option<String> {
        let elements = list.elements();
        let mut topics = elements.iter().map(|element| element.topic());
        topics.find(|topic| *topic != self.topic).map(str::to_owned)
    }

    /// The partitions of our topic: while handing over we have those of another one too.
    fn ours(&self, list: &TopicPartitionList) -> Vec<PartitionId> {
        let elements = list.elements_for_topic(&self.topic);
        elements.iter().map(|element| element.partition()).collect()
    }
}

fn subscribed(config: &ClientConfig, topic: &str) -> KafkaResult<BaseConsumer<Changes>> {
    let changes = Changes { topic: topic.to_owned(), ..Changes::default() };
    let consumer: BaseConsumer<Changes> = config.create_with_context(changes)?;
    consumer.subscribe(&[topic])?;
    Ok(consumer)
}

/// Takes partitions without reading them: the reader does that, from where the cursor says.
fn assign(consumer: &BaseConsumer<Changes>, list: &mut TopicPartitionList) -> KafkaResult<()> {
    list.set_all_offsets(KafkaOffset::End)?;
    if is_cooperative(consumer) {
        consumer.incremental_assign(list)
    } else {
        consumer.assign(list)
    }?;
    if list.count() == 0 { Ok(()) } else { consumer.pause(list) }
}

fn unassign(consumer: &BaseConsumer<Changes>, list: &TopicPartitionList) -> KafkaResult<()> {
    if is_cooperative(consumer) { consumer.incremental_unassign(list) } else { consumer.unassign() }
}

fn is_cooperative(consumer: &BaseConsumer<Changes>) -> bool {
    matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative)
}
