//! Fences the transactions that a failed owner left open.
//!
//! Invariant: only the new owner of a partition fences the earlier one, and only if the earlier
//! owner did not mark its last commit as final; and those that may have been owners since and have
//! left the group. While the old transaction is open, read_committed readers stop before it and
//! its offset is not stable; without fencing, that lasts until the transaction times out. If the
//! earlier owner is still running, fencing it is correct: the group has reassigned its partition.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::consumer::BaseConsumer;

use super::absent_members::AbsentMembers;
use super::error::ClientResult;
use super::member_history::MemberHistory;
use super::producer_pair::ProducerPair;
use super::{client_config, group_members, member};
use crate::clock;
use crate::config::Settings;
use crate::engine::cursor::Cursor;
use crate::environment::transaction::PRODUCERS_MAX;
use crate::model::PartitionId;

/// An owner is fenced once within this time, even if several of its partitions are taken over. A
/// takeover that still waits after that time fences it again.
const FENCED_TTL: Duration = Duration::from_secs(5);

/// How long the brokers may take to name the members. One that does not answer is not waited for.
const MEMBERS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a coordinator may take to end a transaction.
const FENCE_TIMEOUT: Duration = Duration::from_secs(5);
/// Brokers look so often for transactions that have timed out
/// (`transaction.abort.timed.out.transaction.cleanup.interval.ms`).
const EXPIRY_MAX: Duration = Duration::from_secs(10);

/// How the members of a group name their transactions.
#[derive(Clone, Debug)]
pub struct OwnerIds {
    /// A transactional id is this and an instance id.
    pub prefix: String,
    /// The instance id of this process.
    pub instance: String,
}

impl OwnerIds {
    fn transactional_id(&self, instance: &str) -> String {
        format!("{}{instance}", self.prefix)
    }
}

/// The earlier owners that were fenced. Shared by the threads that read committed offsets.
pub struct OrphanedTransactions {
    consumer: BaseConsumer,
    settings: Settings,
    group: String,
    topic: String,
    ids: OwnerIds,
    absent: AbsentMembers,
    fenced_at: Mutex<BTreeMap<String, Instant>>,
}

impl std::fmt::Debug for OrphanedTransactions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OrphanedTransactions")
            .field("fenced_at", &self.fenced_at)
            .finish_non_exhaustive()
    }
}

impl OrphanedTransactions {
    /// Opens a client for the partitions of `topic` in `group`. Connects to the group coordinator
    /// now, waiting at most `timeout`, so that a takeover does not wait for the connection.
    pub fn open(
        settings: &Settings,
        group: &str,
        topic: &str,
        ids: OwnerIds,
        timeout: Duration,
    ) -> ClientResult<Self> {
        let mut config = client_config(settings);
        config.remove("compression.type");
        // Read the committed offset also while a transaction is open.
        config.set("group.id", group).set("isolation.level", "read_uncommitted");
        // By then the broker has ended what a member that is absent has left open.
        let kept = settings.scheduler.transaction_timeout + EXPIRY_MAX;
        let opened = Self {
            consumer: config.create()?,
            settings: settings.clone(),
            group: group.to_owned(),
            topic: topic.to_owned(),
            absent: AbsentMembers::new(MemberHistory::new(&ids.instance, kept)),
            ids,
            fenced_at: Mutex::default(),
        };
        let _connected = opened.committed_metadata(0, timeout);
        Ok(opened)
    }

    /// Makes the broker end the open transaction of the owner that wrote `metadata`, if that owner
    /// is another process and its last commit was not final. Does not wait for it.
    pub fn fence_owner(&self, metadata: &str) {
        let own = self.ids.transactional_id(&self.ids.instance);
        let owner = Cursor::active_owner(metadata).filter(|owner| *owner != own);
        if let Some(owner) = owner {
            let _started = self.fence(owner);
        }
    }

    /// Remembers who is a member of the group, to find out later who is absent. Does not wait for
    /// the answer.
    pub fn look_at_members(self: &Arc<Self>) {
        self.ask_for_members(false);
    }

    /// Makes the broker end the open transactions of the members that are absent. Does not wait for
    /// it.
    pub fn fence_absent_members(self: &Arc<Self>) {
        self.ask_for_members(true);
    }

    fn ask_for_members(self: &Arc<Self>, fences: bool) {
        if !self.absent.want(fences, clock::monotonic()) {
            return;
        }
        let this = Arc::clone(self);
        let thread = std::thread::Builder::new().name("group-members".to_owned());
        let started = thread.spawn(move || {
            let fence = |instance: &str| this.fence(&this.ids.transactional_id(instance));
            let ask = || this.member_ids();
            this.absent.serve(ask, fence, clock::monotonic, std::thread::sleep);
        });
        if let Err(error) = started {
            self.absent.give_up();
            tracing::warn!(
                %error,
                "a thread cannot be started; the group's members are not known"
            );
        }
    }

    fn member_ids(&self) -> ClientResult<Vec<String>> {
        let Self { consumer, group, topic, .. } = self;
        let members = group_members::list_members(consumer, group, topic, MEMBERS_TIMEOUT)?;
        Ok(members.into_iter().map(|member| member.member_id).collect())
    }

    /// Makes the broker end the open transactions of the owner with this transactional id. Returns
    /// whether that is started now, and was not lately.
    fn fence(&self, owner: &str) -> bool {
        let mut fenced_at = self.fenced_at.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::monotonic();
        if fenced_at.get(owner).is_some_and(|at| now.duration_since(*at) < FENCED_TTL) {
            return false;
        }
        fenced_at.retain(|_, at| now.duration_since(*at) < FENCED_TTL);
        let _previous = fenced_at.insert(owner.to_owned(), now);
        tracing::info!(
            owner,
            "fencing the earlier owner of a partition to end its open transaction"
        );
        // Any of them may have one. Of those that the broker cannot end now none waits for others.
        for number in 0..PRODUCERS_MAX {
            let (settings, name) = (self.settings.clone(), owner.to_owned());
            let thread = std::thread::Builder::new().name("fence-owner".to_owned());
            let started = thread.spawn(move || fence(&settings, (&name, number)));
            if let Err(error) = started {
                let _not_fenced = fenced_at.remove(owner);
                tracing::warn!(%error, "a thread cannot be started; fencing again later");
            }
        }
        true
    }

    /// The metadata of the last committed offset, stable or not; empty if none was committed.
    pub fn committed_metadata(
        &self,
        partition: PartitionId,
        timeout: Duration,
    ) -> ClientResult<String> {
        let committed = member::committed(&self.consumer, &self.topic, partition, timeout)?;
        Ok(committed.map_or_else(String::new, |(_offset, metadata)| metadata))
    }
}

/// Opening a producer is enough: it makes the broker end the transaction of the earlier one.
fn fence(settings: &Settings, (owner, number): (&str, usize)) {
    match ProducerPair::open(settings, (owner, number), FENCE_TIMEOUT) {
        Ok(_fenced) => tracing::info!(owner, number, "the earlier owner is fenced"),
        Err(error) => tracing::warn!(
            owner,
            number,
            %error,
            "the earlier owner cannot be fenced; waiting for its transaction timeout"
        ),
    }
}
