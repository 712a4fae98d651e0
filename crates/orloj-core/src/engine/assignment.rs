//! Which partitions a process holds, and what the end of a transaction means for them: the rules of
//! assignment, revocation, loss and unknown outcomes, as a state machine without I/O.
//!
//! Invariant: the group is heard only while no transaction is open, so that no partition leaves in
//! the middle of one. A transaction whose outcome is unknown takes everything decided since the
//! last committed one with it: the broker decides what became of it, and every partition is taken
//! over again.
//!
//! ```text
//!   free ──launched──► flying ──committed───────────► free: settle (and let go, after last words)
//!    ▲                   │ ▲ └─stale generation─────► send again, a few times
//!    │                   └─┘
//!    └──reopened── broken ◄──anything else: reopen, then take everything over again
//! ```

use std::collections::BTreeSet;

use crate::model::{Millis, PartitionId, Timestamp};

/// How often a transaction is sent again whose generation was refused: our client hears of a new
/// generation a moment after the broker has it.
const TRANSACTION_ATTEMPTS_MAX: u32 = 20;

/// A change of what is ours, in the order the group said it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssignmentChange {
    /// These are ours now.
    Assigned(Vec<PartitionId>),
    /// These shall go. They stay ours until we let go of them.
    Revoked(Vec<PartitionId>),
    /// These were taken away and may be someone else's already.
    Lost(Vec<PartitionId>),
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionOutcome {
    /// All of it is true.
    Committed,
    /// The group had moved on, and the broker refused the offsets: nothing of it is true.
    StaleGeneration,
    /// A timeout, a refusal, a newer producer of our name: nobody knows, or it failed for good.
    Unknown,
}

/// What the shell must do next, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssignmentAction {
    /// Take the partition over, beginning with what its store holds.
    TakeOver(PartitionId),
    /// Commit what is decided about these, with the cursor marked clean. It counts as launched.
    FinalCommit(Vec<PartitionId>),
    /// Drop these with whatever is decided and not committed, and tell the group.
    Release(Vec<PartitionId>),
    /// What the transaction carried is true: spill it, answer for it.
    ApplyCommitted,
    /// Abort, and send the same steps under the generation of now. Everything in them is still
    /// ours, because a partition leaves only when the group is heard.
    RetryTransaction,
    /// Drop the producer and open a new one of the same name, which makes the broker decide what
    /// the old one left open.
    RecreateProducer,
}

/// What one process holds.
#[derive(Debug)]
pub struct GroupAssignment {
    owned: BTreeSet<PartitionId>,
    grace: Millis,
    revocation: Option<PendingRevocation>,
    producer: ProducerState,
}

/// Partitions on their way to someone else.
#[derive(Debug)]
struct PendingRevocation {
    partitions: Vec<PartitionId>,
    release_at: Timestamp,
}

#[derive(Debug, PartialEq, Eq)]
enum ProducerState {
    /// No transaction is open.
    Idle,
    /// One is. `leaving`: the partitions whose last words it carries.
    InTransaction { attempts: u32, releasing: Vec<PartitionId> },
    /// The producer is being replaced.
    Recreating,
}

impl GroupAssignment {
    /// A process that holds nothing yet. Revoked partitions go on firing for `grace` ms before they
    /// are let go: nobody gets them before we have joined once more, and the client joins once in
    /// that time at most. 0 if the group stops everybody anyway.
    #[must_use]
    pub fn new(grace: Millis) -> Self {
        Self { owned: BTreeSet::new(), grace, revocation: None, producer: ProducerState::Idle }
    }

    /// Whether the group may be heard and a transaction be launched.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.producer == ProducerState::Idle
    }

    /// What we hold, those on their way out included.
    #[must_use]
    pub fn owned(&self) -> &BTreeSet<PartitionId> {
        &self.owned
    }

    /// From now on revoked partitions go at once: who leaves has nothing to wait for.
    pub fn disable_grace(&mut self) {
        self.grace = 0;
    }

    /// The group has spoken, at `now` (ms of any clock that never runs back).
    pub fn on_assignment_change(
        &mut self,
        change: AssignmentChange,
        now: Timestamp,
    ) -> Vec<AssignmentAction> {
        assert!(self.is_idle(), "the group is heard only while no transaction is open");
        match change {
            AssignmentChange::Assigned(partitions) => {
                self.owned.extend(&partitions);
                partitions.into_iter().map(AssignmentAction::TakeOver).collect()
            }
            AssignmentChange::Revoked(partitions) => {
                let at = now + self.grace;
                let revocation = self
                    .revocation
                    .get_or_insert(PendingRevocation { partitions: Vec::new(), release_at: at });
                revocation.partitions.extend(partitions);
                Vec::new()
            }
            // Whoever has them may have fired already: no last words, at once.
            AssignmentChange::Lost(partitions) => {
                self.revocation = None;
                self.release(partitions)
            }
        }
    }

    /// Time has passed: those on their way out may have to say their last words.
    pub fn on_tick(&mut self, now: Timestamp) -> Vec<AssignmentAction> {
        if !self.is_idle() {
            return Vec::new();
        }
        let over = self.revocation.take_if(|revocation| now >= revocation.release_at);
        over.map(|PendingRevocation { partitions, .. }| {
            self.producer =
                ProducerState::InTransaction { attempts: 0, releasing: partitions.clone() };
            AssignmentAction::FinalCommit(partitions)
        })
        .into_iter()
        .collect()
    }

    /// A transaction is under way.
    pub fn on_transaction_begin(&mut self) {
        assert!(self.is_idle(), "one transaction at a time");
        self.producer = ProducerState::InTransaction { attempts: 0, releasing: Vec::new() };
    }

    /// The transaction under way has ended; one that turned out to be empty was committed.
    pub fn on_transaction_end(&mut self, outcome: TransactionOutcome) -> Vec<AssignmentAction> {
        let ProducerState::InTransaction { attempts, releasing } = &mut self.producer else {
            unreachable!("no transaction was under way");
        };
        match outcome {
            TransactionOutcome::Committed => {
                let releasing = std::mem::take(releasing);
                self.producer = ProducerState::Idle;
                let mut actions = vec![AssignmentAction::ApplyCommitted];
                actions.extend(self.release(releasing));
                actions
            }
            TransactionOutcome::StaleGeneration if *attempts < TRANSACTION_ATTEMPTS_MAX => {
                *attempts += 1;
                vec![AssignmentAction::RetryTransaction]
            }
            // Those that wanted to go need not be taken over to go.
            TransactionOutcome::StaleGeneration | TransactionOutcome::Unknown => {
                let releasing = std::mem::take(releasing);
                self.producer = ProducerState::Recreating;
                let mut actions = self.release(releasing);
                actions.push(AssignmentAction::RecreateProducer);
                actions
            }
        }
    }

    /// A new producer stands, and the broker has decided what the old one left open.
    pub fn on_producer_recreated(&mut self) -> Vec<AssignmentAction> {
        assert_eq!(self.producer, ProducerState::Recreating, "nobody asked for a new producer");
        self.producer = ProducerState::Idle;
        self.owned.iter().copied().map(AssignmentAction::TakeOver).collect()
    }

    fn release(&mut self, partitions: Vec<PartitionId>) -> Vec<AssignmentAction> {
        self.owned.retain(|held| !partitions.contains(held));
        if partitions.is_empty() { Vec::new() } else { vec![AssignmentAction::Release(partitions)] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment_of(partitions: &[PartitionId]) -> GroupAssignment {
        let mut assignment = GroupAssignment::new(100);
        let actions =
            assignment.on_assignment_change(AssignmentChange::Assigned(partitions.to_vec()), 0);
        let taken: Vec<_> = partitions.iter().copied().map(AssignmentAction::TakeOver).collect();
        assert_eq!(actions, taken);
        assignment
    }

    #[test]
    fn a_revoked_partition_fires_during_the_grace_and_leaves_with_a_final_commit() {
        let mut assignment = assignment_of(&[1, 2]);
        assert_eq!(assignment.on_assignment_change(AssignmentChange::Revoked(vec![1]), 1_000), []);
        assert_eq!(assignment.on_tick(1_099), []);
        assignment.on_transaction_begin();
        assert_eq!(assignment.on_tick(1_100), [], "not in the middle of a transaction");
        assert_eq!(
            assignment.on_transaction_end(TransactionOutcome::Committed),
            [AssignmentAction::ApplyCommitted]
        );
        assert_eq!(assignment.on_tick(1_100), [AssignmentAction::FinalCommit(vec![1])]);
        assert!(!assignment.is_idle());
        let ended = assignment.on_transaction_end(TransactionOutcome::Committed);
        assert_eq!(ended, [AssignmentAction::ApplyCommitted, AssignmentAction::Release(vec![1])]);
        assert_eq!(assignment.owned(), &BTreeSet::from([2]));
    }

    #[test]
    fn without_a_grace_a_revoked_partition_is_released_at_once() {
        let mut assignment = assignment_of(&[1]);
        assignment.disable_grace();
        assert_eq!(assignment.on_assignment_change(AssignmentChange::Revoked(vec![1]), 1_000), []);
        assert_eq!(assignment.on_tick(1_000), [AssignmentAction::FinalCommit(vec![1])]);
    }

    #[test]
    fn a_lost_partition_is_released_without_a_final_commit() {
        let mut assignment = assignment_of(&[1, 2]);
        assert_eq!(assignment.on_assignment_change(AssignmentChange::Revoked(vec![1]), 1_000), []);
        let lost = assignment.on_assignment_change(AssignmentChange::Lost(vec![1, 2]), 1_001);
        assert_eq!(lost, [AssignmentAction::Release(vec![1, 2])]);
        assert_eq!(assignment.on_tick(9_999), [], "it is gone already");
    }

    #[test]
    fn a_transaction_with_a_stale_generation_is_retried_a_limited_number_of_times() {
        let mut assignment = assignment_of(&[1]);
        assignment.on_transaction_begin();
        for _ in 0..TRANSACTION_ATTEMPTS_MAX {
            assert_eq!(
                assignment.on_transaction_end(TransactionOutcome::StaleGeneration),
                [AssignmentAction::RetryTransaction]
            );
        }
        assert_eq!(
            assignment.on_transaction_end(TransactionOutcome::StaleGeneration),
            [AssignmentAction::RecreateProducer]
        );
    }

    #[test]
    fn an_unknown_outcome_takes_everything_over_again() {
        let mut assignment = assignment_of(&[1, 2]);
        assignment.on_transaction_begin();
        assert_eq!(
            assignment.on_transaction_end(TransactionOutcome::Unknown),
            [AssignmentAction::RecreateProducer]
        );
        assert!(!assignment.is_idle(), "nothing is launched, nobody heard meanwhile");
        assert_eq!(
            assignment.on_producer_recreated(),
            [AssignmentAction::TakeOver(1), AssignmentAction::TakeOver(2)]
        );
    }

    #[test]
    fn a_final_commit_that_fails_is_not_repeated() {
        let mut assignment = assignment_of(&[1, 2]);
        assert_eq!(assignment.on_assignment_change(AssignmentChange::Revoked(vec![2]), 0), []);
        assert_eq!(assignment.on_tick(100), [AssignmentAction::FinalCommit(vec![2])]);
        assert_eq!(
            assignment.on_transaction_end(TransactionOutcome::Unknown),
            [AssignmentAction::Release(vec![2]), AssignmentAction::RecreateProducer]
        );
        assert_eq!(assignment.on_producer_recreated(), [AssignmentAction::TakeOver(1)]);
    }
}
