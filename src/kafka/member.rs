//! Consumer group membership: the assigned partitions and their committed offsets.
//!
//! Invariant: the group is polled only while no transaction is open, so no partition is revoked
//! during a transaction. The member reads no records: it pauses every assigned partition.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{self, BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};

use super::error::{ClientError, ClientResult};
use super::group_consumer::{ForcedRejoin, GroupConsumer, is_cooperative, open_consumer, unassign};
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
/// How long a release waits for the assignment that follows it. The client has it within a few ms.
const ACCEPT_TIMEOUT: Duration = Duration::from_millis(50);
/// How many times a member may be fenced within [`FENCED_WINDOW`]. An unstable broker causes one or
/// two fencings; another process with the same instance id causes a new one after each join.
const FENCED_MAX: usize = 5;
/// Fencings older than this are not counted.
const FENCED_WINDOW: Duration = Duration::from_secs(60);

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
    /// A fatal error that [`Self::poll`] has not returned yet.
    fatal: Mutex<Option<ClientError>>,
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
            .set("heartbeat.interval.ms", scheduler.heartbeat_interval.as_millis().to_string())
            // A takeover waits until an offset is stable, and librdkafka would ask for it less and
            // less often.
            .set("retry.backoff.ms", "50")
            .set("retry.backoff.max.ms", "100");
        let consumer = Arc::new(open_consumer(&config, topic)?);
        let (topic, fatal) = (topic.to_owned(), Mutex::default());
        Ok(Self { config, consumer, topic, fenced_at: Vec::new(), fatal })
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
        *self.fatal() = None;
        Ok(())
    }

    /// Polls the group for at most `timeout` and returns the assignment changes, each after the
    /// member id. An error is fatal for the consumer: call [`rejoin`](Self::rejoin).
    pub fn poll(&self, timeout: Duration) -> ClientResult<Vec<AssignmentChange>> {
        self.serve(timeout);
        if let Some(fatal) = self.fatal().take() {
            return Err(fatal);
        }
        if let Err(error) = self.force_rejoin() {
            tracing::debug!(%error, "the subscription cannot be changed; trying again");
        }
        Ok(std::mem::take(&mut *self.changes()))
    }

    /// Lets the client report what the group has decided; waits at most `timeout` for it.
    fn serve(&self, timeout: Duration) {
        let Some(Err(error)) = self.consumer.poll(whole_ms(timeout)) else { return };
        if matches!(error, KafkaError::MessageConsumptionFatal(_)) {
            *self.fatal() = Some(error.into());
        } else {
            tracing::debug!(%error, "the group consumer returned an error");
        }
    }

    fn fatal(&self) -> MutexGuard<'_, Option<ClientError>> {
        self.fatal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changes(&self) -> MutexGuard<'_, Vec<AssignmentChange>> {
        self.consumer.context().changes.lock().expect("no thread panics with the lock held")
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
    /// affect them any more. The next [`poll`](Self::poll) also returns the changes that follow.
    pub fn release(&self, partitions: &[PartitionId]) -> ClientResult<()> {
        if partitions.is_empty() {
            return Ok(()); // the client has given up nothing already, and may have partitions again
        }
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for partition in partitions {
            let _element = list.add_partition(&self.topic, *partition);
        }
        fault::reached("member.before_release");
        let is_lost = self.consumer.assignment_lost();
        unassign(&self.consumer, &list)?;
        self.consumer.context().awaits_release.store(false, Ordering::SeqCst);
        fault::reached("member.after_release");
        if !is_lost && is_cooperative(&self.consumer) {
            self.accept_assignment();
        }
        Ok(())
    }

    /// After a release of revoked partitions the client joins the group again, so that they are
    /// assigned to another member, when this one has accepted the assignment that it keeps.
    fn accept_assignment(&self) {
        let began = clock::monotonic();
        let is_assigned = || {
            let is_assignment = |change: &_| matches!(change, AssignmentChange::Assigned(_));
            self.changes().iter().any(is_assignment)
        };
        while !is_assigned() && self.fatal().is_none() {
            let waited = clock::monotonic() - began;
            if waited >= ACCEPT_TIMEOUT {
                return;
            }
            self.serve(ACCEPT_TIMEOUT - waited);
        }
    }

    /// The current group metadata, for one transaction.
    pub fn group_metadata(&self) -> Result<GroupMetadata, GroupMetadataError> {
        GroupMetadata::from_consumer(&self.consumer)
    }

    /// Whether the client is the member with this id still, as far as it knows. A client without
    /// partitions does not report that the group has expelled it.
    #[must_use]
    pub fn is_member(&self, member_id: &str) -> bool {
        self.group_metadata().is_ok_and(|metadata| metadata.member_id() == member_id)
    }

    /// The committed offset of a partition of any topic and its metadata. An error (also a timeout)
    /// means that it is not known yet, not that there is none.
    pub fn committed(
        &self,
        topic: &str,
        partition: PartitionId,
        timeout: Duration,
    ) -> ClientResult<Option<(Offset, String)>> {
        committed(&self.consumer, topic, partition, timeout)
    }

    /// Commits offsets of partitions of any topics with their metadata, outside of a transaction.
    /// The broker refuses the commit if this client is not a member any more; only
    /// [`CommitMode::Sync`] reports that.
    pub fn commit(&self, commits: &[OffsetCommit], mode: CommitMode) -> ClientResult<()> {
        let mode = match mode {
            CommitMode::Sync => consumer::CommitMode::Sync,
            CommitMode::Async => consumer::CommitMode::Async,
        };
        Ok(self.consumer.commit(&offset_list(commits)?, mode)?)
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
