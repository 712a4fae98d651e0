//! Which partitions a process owns, and what the end of a transaction means for them: the rules of
//! assignment, revocation, loss and unknown outcomes, as a state machine without I/O.
//!
//! Invariant: group changes are processed only while no transaction of ours is in progress, so that
//! no partition is released in the middle of one. If the outcome of a transaction is unknown,
//! everything decided since the last committed one is dropped: the broker completes or aborts the
//! transaction, and every partition is taken over again, unless its takeover is in progress. Until
//! then partitions may be released: the old transaction is committed only if it contains their
//! offsets, for which the next owner waits.
//!
//! ```text
//!   idle ──begin──► in transaction ──committed──► idle: apply (and release, after a final commit)
//!    ▲                   │ ▲ └─stale generation─► send again, a few times
//!    │                   └─┘
//!    ├──not committed: take everything over again
//!    └──recreated── recreating ◄──anything else: new producer, then take everything over again
//! ```

use std::collections::BTreeSet;

use crate::model::{Millis, PartitionId, Timestamp};

/// How often a transaction is sent again whose generation was refused: our client learns of a new
/// generation a moment after the broker has it.
const TRANSACTION_ATTEMPTS_MAX: u32 = 20;

/// A change of the assignment, in the order in which the group reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssignmentChange {
    /// The changes after this one are the group's to the member with this id. A process that the
    /// group has expelled gets a new id when it joins again.
    Joined(String),
    /// These partitions are ours now.
    Assigned(Vec<PartitionId>),
    /// These are to be given up. They stay ours until we release them.
    Revoked(Vec<PartitionId>),
    /// These were taken away; another member may own them already.
    Lost(Vec<PartitionId>),
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionOutcome {
    /// It is committed.
    Committed,
    /// The group has a newer generation, and the broker refused the offsets: nothing is committed.
    StaleGeneration,
    /// It was aborted, and cannot be sent again: this process is not a member of the group now.
    Aborted,
    /// A timeout, a refusal, a newer producer with our id: unknown, or failed for good.
    Unknown,
}

/// What the shell must do next, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssignmentAction {
    /// Take the partition over, beginning with what its store holds.
    TakeOver(PartitionId),
    /// Commit what is decided about these, with the cursor marked clean. The transaction counts as
    /// started.
    FinalCommit(Vec<PartitionId>),
    /// Drop these with everything that is decided and not committed, and inform the group.
    Release(Vec<PartitionId>),
    /// The transaction is committed: spill its rows, send its responses.
    ApplyCommitted,
    /// Abort, and send the same steps with the current generation. All their partitions are still
    /// ours, because a partition is released only when a group change is processed.
    RetryTransaction,
    /// Drop the producer and create a new one with the same id: the broker then completes or
    /// aborts the open transaction of the old one.
    RecreateProducer,
}

/// The partitions that one process owns.
#[derive(Debug)]
pub struct GroupAssignment {
    owned: BTreeSet<PartitionId>,
    /// The member that was assigned what is owned; empty if nothing was.
    member_id: String,
    grace: Millis,
    revocation: Option<PendingRevocation>,
    producer: ProducerState,
}

/// Partitions that are being given up.
#[derive(Debug)]
struct PendingRevocation {
    partitions: BTreeSet<PartitionId>,
    release_at: Timestamp,
}

#[derive(Debug, PartialEq, Eq)]
enum ProducerState {
    /// No transaction is open.
    Idle,
    /// One is. `releasing`: the partitions whose final commit it contains.
    InTransaction { attempts: u32, releasing: Vec<PartitionId> },
    /// The producer is being replaced.
    Recreating,
}

impl GroupAssignment {
    /// A process that owns nothing yet. Revoked partitions continue to fire for `grace` ms before
    /// they are released: no member gets them before we have joined again, and the client joins at
    /// most once in that time. 0 if the group stops all members anyway.
    #[must_use]
    pub fn new(grace: Millis) -> Self {
        Self {
            owned: BTreeSet::new(),
            member_id: String::new(),
            grace,
            revocation: None,
            producer: ProducerState::Idle,
        }
    }

    /// Whether a transaction may be started.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.producer == ProducerState::Idle
    }

    /// Whether a group change may be processed.
    #[must_use]
    pub fn accepts_changes(&self) -> bool {
        matches!(self.producer, ProducerState::Idle | ProducerState::Recreating)
    }

    /// The partitions we own, including those that are being given up.
    #[must_use]
    pub fn owned(&self) -> &BTreeSet<PartitionId> {
        &self.owned
    }

    /// The id of the member that was assigned the partitions.
    /// Nothing may be committed for another one.
    #[must_use]
    pub fn assigned_member(&self) -> &str {
        &self.member_id
    }

    /// Whether a change shows that the group has expelled this process, which owns partitions, and
    /// let it join again. A client that is rebalancing does not report that. What is owned is lost,
    /// and this client is of no use any more.
    #[must_use]
    pub fn is_expelled(&self, change: &AssignmentChange) -> bool {
        let AssignmentChange::Joined(member_id) = change else { return false };
        !self.owned.is_empty() && self.member_id != *member_id
    }

    /// From now on revoked partitions are released at once: the process is shutting down.
    pub fn disable_grace(&mut self) {
        self.grace = 0;
    }

    /// The group's assignment changed, at `now` (ms of any monotonic clock).
    pub fn on_assignment_change(
        &mut self,
        change: AssignmentChange,
        now: Timestamp,
    ) -> Vec<AssignmentAction> {
        assert!(self.accepts_changes(), "the assignment changes only between transactions");
        match change {
            AssignmentChange::Joined(member_id) => {
                assert!(
                    self.owned.is_empty() || self.member_id == member_id,
                    "a member that was expelled has lost what it owned"
                );
                self.member_id = member_id;
                Vec::new()
            }
            // They are taken over with all others.
            AssignmentChange::Assigned(partitions) if !self.is_idle() => {
                self.owned.extend(&partitions);
                Vec::new()
            }
            // Nothing is decided about them that a final commit could contain.
            AssignmentChange::Revoked(partitions) if !self.is_idle() => self.release(partitions),
            AssignmentChange::Assigned(partitions) => {
                self.owned.extend(&partitions);
                partitions.into_iter().map(AssignmentAction::TakeOver).collect()
            }
            AssignmentChange::Revoked(partitions) => {
                let at = now + self.grace;
                let revocation = self.revocation.get_or_insert(PendingRevocation {
                    partitions: BTreeSet::new(),
                    release_at: at,
                });
                revocation.partitions.extend(partitions);
                Vec::new()
            }
            // The new owner may have fired already: released at once, without a final commit.
            AssignmentChange::Lost(partitions) => {
                self.revocation = None;
                self.release(partitions)
            }
        }
    }

    /// Time has passed: the final commit of revoked partitions may be due.
    pub fn on_tick(&mut self, now: Timestamp) -> Vec<AssignmentAction> {
        if self.producer == ProducerState::Recreating {
            let revocation = self.revocation.take();
            return revocation.map_or_else(Vec::new, |revoked| {
                self.release(revoked.partitions.into_iter().collect())
            });
        }
        if !self.is_idle() {
            return Vec::new();
        }
        let over = self.revocation.take_if(|revocation| now >= revocation.release_at);
        over.map(|PendingRevocation { partitions, .. }| {
            let partitions: Vec<_> = partitions.into_iter().collect();
            self.producer =
                ProducerState::InTransaction { attempts: 0, releasing: partitions.clone() };
            AssignmentAction::FinalCommit(partitions)
        })
        .into_iter()
        .collect()
    }

    /// A transaction was started.
    pub fn on_transaction_begin(&mut self) {
        assert!(self.is_idle(), "one transaction at a time");
        self.producer = ProducerState::InTransaction { attempts: 0, releasing: Vec::new() };
    }

    /// The transaction has ended; an empty one counts as committed.
    pub fn on_transaction_end(&mut self, outcome: TransactionOutcome) -> Vec<AssignmentAction> {
        let ProducerState::InTransaction { attempts, releasing } = &mut self.producer else {
            unreachable!("no transaction was open");
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
            TransactionOutcome::Aborted => {
                let releasing = std::mem::take(releasing);
                self.producer = ProducerState::Idle;
                let mut actions = self.release(releasing);
                actions.extend(self.take_all_over());
                actions
            }
            // Partitions that were being released need not be taken over again.
            TransactionOutcome::StaleGeneration | TransactionOutcome::Unknown => {
                let releasing = std::mem::take(releasing);
                self.producer = ProducerState::Recreating;
                let mut actions = self.release(releasing);
                actions.push(AssignmentAction::RecreateProducer);
                actions
            }
        }
    }

    /// The new producer is ready, and the broker has ended the old one's transaction.
    pub fn on_producer_recreated(&mut self) -> Vec<AssignmentAction> {
        assert_eq!(self.producer, ProducerState::Recreating, "no new producer was requested");
        self.producer = ProducerState::Idle;
        self.take_all_over().collect()
    }

    fn take_all_over(&self) -> impl Iterator<Item = AssignmentAction> {
        self.owned.iter().copied().map(AssignmentAction::TakeOver)
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
    fn a_partition_that_is_revoked_twice_is_given_up_once() {
        let mut assignment = assignment_of(&[1, 2]);
        assert_eq!(assignment.on_assignment_change(AssignmentChange::Revoked(vec![1]), 1_000), []);
        // The process is shutting down, and gives up all that it owns.
        let all = AssignmentChange::Revoked(vec![1, 2]);
        assert_eq!(assignment.on_assignment_change(all, 1_001), []);
        assert_eq!(assignment.on_tick(1_100), [AssignmentAction::FinalCommit(vec![1, 2])]);
    }

    #[test]
    fn a_lost_partition_is_released_without_a_final_commit() {
        let mut assignment = assignment_of(&[1, 2]);
        assert_eq!(assignment.on_assignment_change(AssignmentChange::Revoked(vec![1]), 1_000), []);
        let lost = assignment.on_assignment_change(AssignmentChange::Lost(vec![1, 2]), 1_001);
        assert_eq!(lost, [AssignmentAction::Release(vec![1, 2])]);
        assert_eq!(assignment.on_tick(9_999), [], "it is released already");
    }

    #[test]
    fn a_process_that_joins_as_another_member_has_lost_what_it_owned() {
        let joined = |id: &str| AssignmentChange::Joined(id.to_owned());
        let mut assignment = GroupAssignment::new(100);
        assert!(!assignment.is_expelled(&joined("a")), "it owns nothing");
        assert_eq!(assignment.on_assignment_change(joined("a"), 0), []);
        assert_eq!(assignment.assigned_member(), "a");
        let _taken = assignment.on_assignment_change(AssignmentChange::Assigned(vec![1]), 0);
        assert!(!assignment.is_expelled(&joined("a")), "a later generation");
        assert!(!assignment.is_expelled(&AssignmentChange::Revoked(vec![1])));
        assert!(assignment.is_expelled(&joined("b")));
        let lost = assignment.on_assignment_change(AssignmentChange::Lost(vec![1]), 0);
        assert_eq!(lost, [AssignmentAction::Release(vec![1])]);
        assert!(!assignment.is_expelled(&joined("b")));
        assert_eq!(assignment.on_assignment_change(joined("b"), 0), []);
        assert_eq!(assignment.assigned_member(), "b");
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
        assert!(!assignment.is_idle(), "no transaction begins meanwhile");
        assert_eq!(
            assignment.on_producer_recreated(),
            [AssignmentAction::TakeOver(1), AssignmentAction::TakeOver(2)]
        );
    }

    #[test]
    fn while_the_producer_is_recreated_partitions_are_assigned_and_released() {
        let mut assignment = assignment_of(&[1, 2, 3, 4]);
        assert_eq!(assignment.on_assignment_change(AssignmentChange::Revoked(vec![1]), 0), []);
        assignment.on_transaction_begin();
        let _recreate = assignment.on_transaction_end(TransactionOutcome::Unknown);
        let released = |id| vec![AssignmentAction::Release(vec![id])];
        assert_eq!(assignment.on_tick(1), released(1), "it has nothing left to fire");
        let revoked = AssignmentChange::Revoked(vec![2]);
        assert_eq!(assignment.on_assignment_change(revoked, 1), released(2));
        let lost = AssignmentChange::Lost(vec![3]);
        assert_eq!(assignment.on_assignment_change(lost, 1), released(3));
        let assigned = AssignmentChange::Assigned(vec![5]);
        assert_eq!(assignment.on_assignment_change(assigned, 1), []);
        assert_eq!(
            assignment.on_producer_recreated(),
            [AssignmentAction::TakeOver(4), AssignmentAction::TakeOver(5)]
        );
        assert_eq!(assignment.on_tick(1_000), []);
    }

    #[test]
    fn an_aborted_transaction_needs_no_new_producer() {
        let mut assignment = assignment_of(&[1, 2]);
        assert_eq!(assignment.on_assignment_change(AssignmentChange::Revoked(vec![2]), 0), []);
        assert_eq!(assignment.on_tick(100), [AssignmentAction::FinalCommit(vec![2])]);
        assert_eq!(
            assignment.on_transaction_end(TransactionOutcome::Aborted),
            [AssignmentAction::Release(vec![2]), AssignmentAction::TakeOver(1)]
        );
        assert!(assignment.is_idle());
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

    #[test]
    fn changes_are_accepted_only_between_transactions() {
        let mut assignment = assignment_of(&[1]);
        assert!(assignment.is_idle() && assignment.accepts_changes());
        assignment.on_transaction_begin();
        assert!(!assignment.is_idle() && !assignment.accepts_changes());
        let _recreate = assignment.on_transaction_end(TransactionOutcome::Unknown);
        assert!(!assignment.is_idle() && assignment.accepts_changes());
    }

    #[test]
    fn a_process_that_shuts_down_gives_no_grace() {
        let mut assignment = assignment_of(&[1]);
        assignment.disable_grace();
        assert_eq!(assignment.on_assignment_change(AssignmentChange::Revoked(vec![1]), 50), []);
        assert_eq!(assignment.on_tick(50), [AssignmentAction::FinalCommit(vec![1])]);
    }
}
