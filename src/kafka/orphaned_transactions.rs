//! Fences the transactions that a failed owner left open.
//!
//! Invariant: only the new owner of a partition fences the earlier one, and only if the earlier
//! owner did not mark its last commit as final. While the old transaction is open, read_committed
//! readers stop before it and its offset is not stable; without fencing, that lasts until the
//! transaction times out. If the earlier owner is still running, fencing it is correct: the group
//! has reassigned its partition.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::consumer::BaseConsumer;

use super::error::ClientResult;
use super::member_history::MemberHistory;
use super::producer_pair::ProducerPair;
use super::{client_config, group_members, look_for_coordinator, member};
use crate::clock;
use crate::config::Settings;
use crate::engine::cursor::Cursor;
use crate::environment::transaction::PRODUCERS_MAX;
use crate::model::PartitionId;

/// An owner is fenced once within this time, even if several of its partitions are taken over. A
/// takeover that still waits after that time fences it again.
const FENCED_TTL: Duration = Duration::from_secs(5);

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

/// What is to be asked of the group next.
#[derive(Debug, Default)]
struct MembersRequest {
    /// Who its members are.
    is_wanted: bool,
    /// Those that are absent are fenced.
    fences_absent: bool,
}

/// The next request, and whether a thread serves such.
#[derive(Debug, Default)]
struct NextRequest {
    request: MembersRequest,
    is_asking: bool,
}

/// The earlier owners that were fenced. Shared by the threads that read committed offsets.
pub struct OrphanedTransactions {
    consumer: BaseConsumer,
    settings: Settings,
    group: String,
    topic: String,
    ids: OwnerIds,
    members: Mutex<MemberHistory>,
    next_request: Mutex<NextRequest>,
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
        look_for_coordinator(&mut config);
        // Read the committed offset also while a transaction is open.
        config.set("group.id", group).set("isolation.level", "read_uncommitted");
        // By then the broker has ended what a member that is absent has left open.
        let kept = settings.scheduler.transaction_timeout;
        let opened = Self {
            consumer: config.create()?,
            settings: settings.clone(),
            group: group.to_owned(),
            topic: topic.to_owned(),
            members: Mutex::new(MemberHistory::new(&ids.instance, kept)),
            ids,
            next_request: Mutex::default(),
            fenced_at: Mutex::default(),
        };
        let _connected = opened.committed_metadata(0, timeout);
        Ok(opened)
    }

    /// Makes the broker end the open transaction of the owner that wrote `metadata`, if that owner
    /// is another process and its last commit was not final. Does not wait for it.
    pub fn fence_owner(&self, metadata: &str, timeout: Duration) {
        let own = self.ids.transactional_id(&self.ids.instance);
        let owner = Cursor::active_owner(metadata).filter(|owner| *owner != own);
        if let Some(owner) = owner {
            self.fence(owner, timeout);
        }
    }

    /// Remembers who is a member of the group, to find out later who is absent. Does not wait for
    /// the answer.
    pub fn look_at_members(self: &Arc<Self>, timeout: Duration) {
        self.ask_for_members(MembersRequest { is_wanted: true, fences_absent: false }, timeout);
    }

    /// Makes the broker end the open transactions of the members that are absent. Does not wait for
    /// it.
    pub fn fence_absent_members(self: &Arc<Self>, timeout: Duration) {
        self.ask_for_members(MembersRequest { is_wanted: true, fences_absent: true }, timeout);
    }

    /// Asks for the members beside the caller, once at a time: what is requested meanwhile is one
    /// request after it, however many ask.
    fn ask_for_members(self: &Arc<Self>, request: MembersRequest, timeout: Duration) {
        let mut next = self.next_request.lock().unwrap_or_else(PoisonError::into_inner);
        next.request.is_wanted |= request.is_wanted;
        next.request.fences_absent |= request.fences_absent;
        if next.is_asking {
            return;
        }
        let this = Arc::clone(self);
        let thread = std::thread::Builder::new().name("group-members".to_owned());
        match thread.spawn(move || this.serve_requests(timeout)) {
            Ok(_) => next.is_asking = true,
            Err(error) => tracing::warn!(
                %error,
                "a thread cannot be started; the group's members are not known"
            ),
        }
    }

    /// Asks for the members until no request is left.
    fn serve_requests(&self, timeout: Duration) {
        loop {
            let request = {
                let mut next = self.next_request.lock().unwrap_or_else(PoisonError::into_inner);
                next.is_asking = next.request.is_wanted;
                std::mem::take(&mut next.request)
            };
            if !request.is_wanted {
                return;
            }
            for instance in self.absent_members(timeout) {
                if request.fences_absent {
                    self.fence(&self.ids.transactional_id(&instance), timeout);
                }
            }
        }
    }

    /// The instance ids of members that are absent; none if that is not known.
    fn absent_members(&self, timeout: Duration) -> Vec<String> {
        match group_members::list_members(&self.consumer, &self.group, &self.topic, timeout) {
            Ok(members) => {
                let ids = members.iter().map(|member| member.member_id.as_str());
                let mut history = self.members.lock().unwrap_or_else(PoisonError::into_inner);
                history.update(ids, clock::monotonic())
            }
            Err(error) => {
                tracing::debug!(%error, "the members of the group are not known");
                Vec::new()
            }
        }
    }

    /// Makes the broker end the open transactions of the owner with this transactional id.
    fn fence(&self, owner: &str, timeout: Duration) {
        let mut fenced_at = self.fenced_at.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::monotonic();
        if fenced_at.get(owner).is_some_and(|at| now.duration_since(*at) < FENCED_TTL) {
            return;
        }
        let _previous = fenced_at.insert(owner.to_owned(), now);
        tracing::info!(
            owner,
            "fencing the earlier owner of a partition to end its open transaction"
        );
        // Any of them may have one. Of those that the broker cannot end now none waits for others.
        for number in 0..PRODUCERS_MAX {
            let (settings, name) = (self.settings.clone(), owner.to_owned());
            let thread = std::thread::Builder::new().name("fence-owner".to_owned());
            let started = thread.spawn(move || fence(&settings, (&name, number), timeout));
            if let Err(error) = started {
                let _not_fenced = fenced_at.remove(owner);
                tracing::warn!(%error, "a thread cannot be started; fencing again later");
            }
        }
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
fn fence(settings: &Settings, (owner, number): (&str, usize), timeout: Duration) {
    match ProducerPair::open(settings, (owner, number), timeout) {
        Ok(_fenced) => tracing::info!(owner, number, "the earlier owner is fenced"),
        Err(error) => tracing::warn!(
            owner,
            number,
            %error,
            "the earlier owner cannot be fenced; waiting for its transaction timeout"
        ),
    }
}
