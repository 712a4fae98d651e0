//! Membership of the schedulers' group: which partitions are ours, and their committed offsets.
//!
//! Law: the group is polled only while no transaction is open, so a partition never leaves us in
//! the middle of one. The member reads no records; it pauses whatever it is assigned.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Offset as KafkaOffset, TopicPartitionList};

use super::consumer_config;
use super::fence::{Fence, FenceError};
use crate::config::Settings;
use crate::model::{Offset, PartitionId};

/// A change of what is ours, in the order the group said it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// These are ours now: take them over.
    Assigned(Vec<PartitionId>),
    /// These shall go. They stay ours until [`Member::release`] says that we are done with them.
    Revoked(Vec<PartitionId>),
    /// These were taken away and may be someone else's already.
    Lost(Vec<PartitionId>),
}

/// A member of the schedulers' group.
pub struct Member {
    consumer: Arc<BaseConsumer<Changes>>,
    topic: String,
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
        let scheduler = &settings.scheduler;
        let mut config = consumer_config(settings, group);
        config
            .set("group.instance.id", instance)
            .set("partition.assignment.strategy", scheduler.assignor.as_str())
            .set("session.timeout.ms", scheduler.session_timeout.as_millis().to_string())
            .set("heartbeat.interval.ms", scheduler.heartbeat_interval.as_millis().to_string());
        let consumer: BaseConsumer<Changes> = config.create_with_context(Changes::default())?;
        consumer.subscribe(&[topic])?;
        Ok(Self { consumer: Arc::new(consumer), topic: topic.to_owned() })
    }

    /// Serves the group, waiting at most `timeout`, and says what has changed.
    pub fn poll(&self, timeout: Duration) -> Result<Vec<Change>, KafkaError> {
        if let Some(Err(error)) = self.consumer.poll(timeout) {
            if matches!(error, KafkaError::MessageConsumptionFatal(_)) {
                return Err(error);
            }
            tracing::debug!(%error, "the group's consumer reports");
        }
        Ok(std::mem::take(&mut *self.consumer.context().noted.lock().expect("no panic holds it")))
    }

    /// Lets revoked or lost partitions go: nothing that we do has an effect on them any more.
    pub fn release(&self, partitions: &[PartitionId]) -> KafkaResult<()> {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for partition in partitions {
            let _element = list.add_partition(&self.topic, *partition);
        }
        unassign(&self.consumer, &list)
    }

    /// Proof of membership for one transaction, as of now.
    pub fn fence(&self) -> Result<Fence, FenceError> {
        Fence::take(&self.consumer)
    }

    /// A way to read committed offsets from another thread: it blocks while a transaction that
    /// an earlier owner left open is undecided.
    #[must_use]
    pub fn offsets(&self) -> Offsets {
        Offsets { consumer: Arc::clone(&self.consumer), topic: self.topic.clone() }
    }

    /// Gives all partitions to the others and stays a member without any. A static member sends
    /// no LeaveGroup, so it asks for a topic that nobody has instead.
    pub fn hand_over(&self) -> KafkaResult<()> {
        self.consumer.subscribe(&[&format!("{}.leaving", self.topic)])
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
        let mut list = TopicPartitionList::new();
        let _element = list.add_partition(&self.topic, partition);
        let answer = self.consumer.committed_offsets(list, timeout)?;
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
}

impl Drop for Member {
    /// Closing revokes what is left, and nobody will call `release` then.
    fn drop(&mut self) {
        self.consumer.context().closing.store(true, Ordering::SeqCst);
    }
}

/// Notes what the group says while it is polled.
#[derive(Default)]
struct Changes {
    noted: Mutex<Vec<Change>>,
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
        let partitions = list.elements().iter().map(|e| e.partition()).collect::<Vec<_>>();
        let assigned = event == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let result = if assigned {
            assign(consumer, list)
        } else if self.closing.load(Ordering::SeqCst) {
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
    if is_cooperative(consumer) {
        consumer.incremental_unassign(list)
    } else {
        consumer.unassign()
    }
}

fn is_cooperative(consumer: &BaseConsumer<Changes>) -> bool {
    matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative)
}
