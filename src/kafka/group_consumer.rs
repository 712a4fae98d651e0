//! The client of a consumer group: what the group reports, and how the client is closed.
//!
//! Invariant: a revoked partition stays assigned until it is released, or until the client is
//! closed. No caller waits without a limit until it is.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Offset as KafkaOffset, TopicPartitionList};

use super::group_metadata::{GroupMetadata, MemberMetadata as _};
use crate::engine::assignment::AssignmentChange;
use crate::model::PartitionId;

/// How long the end of a membership waits until its consumer is closed and has left the group.
/// librdkafka gives a LeaveGroup request 5 s.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(6);

/// A consumer that is closed by a thread of its own. librdkafka waits for its thread without a
/// limit, and that thread may end without an answer if the group rebalances meanwhile.
pub(super) struct GroupConsumer(Option<BaseConsumer<GroupContext>>);

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
        let slot = Arc::new(Mutex::new(Some(consumer)));
        let to_close = Arc::clone(&slot);
        let close = move || {
            let consumer = to_close.lock().unwrap_or_else(PoisonError::into_inner).take();
            consumer.into_iter().for_each(close_consumer);
            drop(closed);
        };
        match std::thread::Builder::new().name("close-member".to_owned()).spawn(close) {
            Ok(_) if is_replaced => {}
            Ok(_) => {
                if is_closed.recv_timeout(CLOSE_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
                    tracing::warn!("the group consumer is not closed in time");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "no thread can close the group consumer; it stays open");
                std::mem::forget(slot); // closing it here might not return
            }
        }
    }
}

/// Closes a consumer; may not return.
fn close_consumer(consumer: BaseConsumer<GroupContext>) {
    // librdkafka waits for the release of what was revoked before.
    if consumer.context().awaits_release.load(Ordering::SeqCst)
        && let Ok(held) = consumer.assignment()
    {
        let released = unassign(&consumer, &held);
        tracing::debug!(?released, "closing the group consumer");
    }
    drop(consumer);
}

/// A subscription to another topic that forces the group to assign again.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum ForcedRejoin {
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
pub(super) struct GroupContext {
    pub(super) topic: String,
    pub(super) changes: Mutex<Vec<AssignmentChange>>,
    pub(super) released_all: AtomicBool,
    pub(super) forced_rejoin: Mutex<ForcedRejoin>,
    /// What was revoked is not released yet.
    pub(super) awaits_release: AtomicBool,
    /// Another consumer has joined in its place.
    pub(super) is_replaced: AtomicBool,
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
        // Not known any more when they are unassigned.
        let is_lost = consumer.assignment_lost();
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
            self.awaits_release.store(true, Ordering::SeqCst);
            Ok(()) // `release` is called after the last transaction has ended
        };
        let change = match (assigned, is_lost) {
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

pub(super) fn open_consumer(config: &ClientConfig, topic: &str) -> KafkaResult<GroupConsumer> {
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

pub(super) fn unassign(
    consumer: &BaseConsumer<GroupContext>,
    list: &TopicPartitionList,
) -> KafkaResult<()> {
    if is_cooperative(consumer) { consumer.incremental_unassign(list) } else { consumer.unassign() }
}

pub(super) fn is_cooperative(consumer: &BaseConsumer<GroupContext>) -> bool {
    matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative)
}
