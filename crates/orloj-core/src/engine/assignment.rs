//! Which partitions a process owns, and what the end of a transaction means for them: the rules of
//! assignment, revocation, loss and unknown outcomes, as a state machine without I/O.
//!
//! Invariant: group changes are processed only while no transaction of ours is in progress, so that
//! no partition is released in the middle of one. If a transaction fails, its batch is kept, and
//! the broker is made to end it. If its commit was requested, what is committed tells whether it
//! is. Then the batch is applied or sent again, and no partition is taken over again. Meanwhile
//! partitions may be released: the old transaction is committed only if it contains their offsets,
//! for which the next owner waits.
//!
//! ```text
//!   idle ──begin──► in transaction ──committed──► idle: apply (and release, after a final commit)
//!    ▲                │ ▲  ▲   └─stale generation─► send again, a few times
//!    │                │ └──│───┘
//!    │       anything │    └───── not committed: send again, if it may be
//!    │       else     ▼                        │
//!    │           interrupted ──new producers──► read what one of its partitions has committed
//!    │                                         │
//!    ├── committed: apply ─────────────────────┤
//!    ├── not committed, not sent again: take its partitions over again
//!    └── neither: take everything over again ──┘
//! ```

use std::collections::BTreeSet;

use super::interrupted_transaction::{
    AfterLoss, Finding, InterruptedTransaction, TransactionContent, TransactionFailure,
};
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
    /// It has failed, for example with a timeout or because of a newer producer with our id.
    Failed(TransactionFailure),
}

/// What the shell must do next, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssignmentAction {
    /// Take the partition over, beginning with what its store holds.
    TakeOver(PartitionId),
    /// The same, unless its takeover is in progress: that one continues.
    TakeOverAgain(PartitionId),
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
    /// aborts the open transaction of the old one. Keep what is decided: it goes on.
    RecreateProducer,
    /// Read the stable committed offset of this partition, and judge the interrupted transaction
    /// by it. An earlier request of this kind is of no use any more.
    ReadCommitted(PartitionId),
    /// The interrupted transaction is committed: the same as [`Self::ApplyCommitted`], for these of
    /// its partitions alone.
    ApplyInterrupted(Vec<PartitionId>),
}

/// The partitions that one process owns.
#[derive(Debug)]
pub struct GroupAssignment {
    owned: BTreeSet<PartitionId>,
    /// The member that was assigned what is owned; empty if nothing was.
    member_id: String,
    /// The group has assigned partitions; none, if it has more members than partitions.
    is_assigned: bool,
    grace: Millis,
    revocation: Option<PendingRevocation>,
    transaction: TransactionState,
}

/// Partitions that are being given up.
#[derive(Debug)]
struct PendingRevocation {
    partitions: BTreeSet<PartitionId>,
    release_at: Timestamp,
}

#[derive(Debug, PartialEq, Eq)]
enum TransactionState {
    /// No transaction is open.
    Idle,
    /// One is.
    InTransaction(OpenTransaction),
    /// It is not known whether the last one is committed.
    Interrupted(InterruptedTransaction),
}

#[derive(Debug, Default, PartialEq, Eq)]
struct OpenTransaction {
    /// How often it was sent again because its generation was refused.
    attempts: u32,
    /// The partitions whose final commit it contains.
    releasing: Vec<PartitionId>,
    content: TransactionContent,
    /// How often its steps were sent in a transaction before that has failed.
    failures: u32,
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
            is_assigned: false,
            grace,
            revocation: None,
            transaction: TransactionState::Idle,
        }
    }

    /// Whether this process is a member to which the group has assigned partitions, or none.
    #[must_use]
    pub fn is_assigned(&self) -> bool {
        self.is_assigned
    }

    /// Whether a transaction may be started.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.transaction == TransactionState::Idle
    }

    /// Whether the open transaction has the last steps of partitions that are released with it.
    #[must_use]
    pub fn is_releasing(&self) -> bool {
        let TransactionState::InTransaction(open) = &self.transaction else { return false };
        !open.releasing.is_empty()
    }

    /// Whether a group change may be processed.
    #[must_use]
    pub fn accepts_changes(&self) -> bool {
        matches!(self.transaction, TransactionState::Idle | TransactionState::Interrupted(_))
    }

    /// Whether the interrupted transaction is to be sent again, without its barriers, as soon as
    /// the group gives metadata: see [`Self::on_sent_again`].
    #[must_use]
    pub fn must_be_sent_again(&self) -> bool {
        self.interrupted().is_some_and(InterruptedTransaction::must_be_sent_again)
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
            // There is no final commit: the transaction that it would follow is not decided.
            AssignmentChange::Revoked(partitions) if !self.is_idle() => self.release(partitions),
            AssignmentChange::Assigned(partitions) => {
                self.is_assigned = true;
                let mut actions = self.on_lost(&partitions);
                self.owned.extend(&partitions);
                actions.extend(partitions.into_iter().map(AssignmentAction::TakeOver));
                actions
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
                (self.is_assigned, self.revocation) = (false, None);
                self.release(partitions)
            }
        }
    }

    /// Time has passed: the final commit of revoked partitions may be due.
    pub fn on_tick(&mut self, now: Timestamp) -> Vec<AssignmentAction> {
        if self.interrupted().is_some() {
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
            // They are released whatever becomes of it: nothing of it outlives its failure.
            self.transaction = TransactionState::InTransaction(OpenTransaction {
                releasing: partitions.clone(),
                ..OpenTransaction::default()
            });
            AssignmentAction::FinalCommit(partitions)
        })
        .into_iter()
        .collect()
    }

    /// A transaction with this content was started.
    pub fn on_transaction_begin(&mut self, content: TransactionContent) {
        assert!(self.is_idle(), "one transaction at a time");
        let transaction = OpenTransaction { content, ..OpenTransaction::default() };
        self.transaction = TransactionState::InTransaction(transaction);
    }

    /// The transaction has ended; an empty one counts as committed.
    pub fn on_transaction_end(&mut self, outcome: TransactionOutcome) -> Vec<AssignmentAction> {
        let TransactionState::InTransaction(transaction) = &mut self.transaction else {
            unreachable!("no transaction was open");
        };
        match outcome {
            TransactionOutcome::Committed => {
                let releasing = std::mem::take(&mut transaction.releasing);
                self.transaction = TransactionState::Idle;
                let mut actions = vec![AssignmentAction::ApplyCommitted];
                actions.extend(self.release(releasing));
                actions
            }
            TransactionOutcome::StaleGeneration
                if transaction.attempts < TRANSACTION_ATTEMPTS_MAX =>
            {
                transaction.attempts += 1;
                vec![AssignmentAction::RetryTransaction]
            }
            TransactionOutcome::Aborted => {
                let releasing = std::mem::take(&mut transaction.releasing);
                self.transaction = TransactionState::Idle;
                let mut actions = self.release(releasing);
                actions.extend(self.take_all_over());
                actions
            }
            TransactionOutcome::StaleGeneration => {
                let transaction = std::mem::take(transaction);
                self.interrupt(transaction, TransactionFailure::default())
            }
            TransactionOutcome::Failed(failure) => {
                let transaction = std::mem::take(transaction);
                self.interrupt(transaction, failure)
            }
        }
    }

    fn interrupt(
        &mut self,
        transaction: OpenTransaction,
        failure: TransactionFailure,
    ) -> Vec<AssignmentAction> {
        let OpenTransaction { releasing, content, failures, .. } = transaction;
        let interrupted = InterruptedTransaction::new(content, failures, failure);
        self.transaction = TransactionState::Interrupted(interrupted);
        let mut actions = self.release(releasing);
        actions.push(AssignmentAction::RecreateProducer);
        actions
    }

    /// The new producer is ready, and the broker has ended the old one's transaction. A takeover
    /// whose barrier was in it begins again.
    pub fn on_producer_recreated(&mut self) -> Vec<AssignmentAction> {
        let TransactionState::Interrupted(interrupted) = &mut self.transaction else {
            unreachable!("no new producer was requested");
        };
        assert!(interrupted.awaits_producers(), "no new producer was requested");
        let barriers = interrupted.take_barriers();
        let mut actions: Vec<_> = barriers.into_iter().map(AssignmentAction::TakeOver).collect();
        match interrupted.read_next() {
            Some(partition) if interrupted.needs_no_reading() => {
                actions.extend(self.on_finding(partition, Finding::NotCommitted));
            }
            Some(partition) => actions.push(AssignmentAction::ReadCommitted(partition)),
            None => self.transaction = TransactionState::Idle,
        }
        actions
    }

    /// What this partition has committed says so of the interrupted transaction.
    pub fn on_finding(
        &mut self,
        partition: PartitionId,
        finding: Finding,
    ) -> Vec<AssignmentAction> {
        let TransactionState::Interrupted(interrupted) = &mut self.transaction else {
            return Vec::new();
        };
        if interrupted.is_read() != Some(partition) {
            return Vec::new(); // it was released meanwhile
        }
        let steps: Vec<_> = interrupted.steps().iter().copied().collect();
        match finding {
            Finding::NotCommitted if interrupted.send_again() => Vec::new(),
            Finding::Committed => {
                self.transaction = TransactionState::Idle;
                vec![AssignmentAction::ApplyInterrupted(steps)]
            }
            Finding::NotCommitted => {
                self.transaction = TransactionState::Idle;
                steps.into_iter().map(AssignmentAction::TakeOverAgain).collect()
            }
            Finding::Unclear => {
                self.transaction = TransactionState::Idle;
                self.take_all_over().collect()
            }
        }
    }

    /// The interrupted transaction was sent again, without its barriers.
    pub fn on_sent_again(&mut self) {
        let interrupted = self.interrupted().filter(|interrupted| interrupted.must_be_sent_again());
        let interrupted = interrupted.expect("it is sent again if it is not committed");
        let failures = interrupted.failures();
        let steps = interrupted.steps().clone();
        let content = TransactionContent { steps, ..TransactionContent::default() };
        let transaction = OpenTransaction { content, failures, ..OpenTransaction::default() };
        self.transaction = TransactionState::InTransaction(transaction);
    }

    /// The interrupted transaction cannot be sent again: too much time has passed.
    pub fn on_too_late(&mut self) -> Vec<AssignmentAction> {
        let interrupted = self.interrupted().filter(|it| it.must_be_sent_again());
        let steps = interrupted.expect("it was to be sent again").steps().clone();
        self.transaction = TransactionState::Idle;
        steps.into_iter().map(AssignmentAction::TakeOverAgain).collect()
    }

    fn interrupted(&self) -> Option<&InterruptedTransaction> {
        match &self.transaction {
            TransactionState::Interrupted(interrupted) => Some(interrupted),
            _ => None,
        }
    }

    fn take_all_over(&self) -> impl Iterator<Item = AssignmentAction> {
        self.owned.iter().copied().map(AssignmentAction::TakeOverAgain)
    }

    fn release(&mut self, partitions: Vec<PartitionId>) -> Vec<AssignmentAction> {
        self.owned.retain(|held| !partitions.contains(held));
        if partitions.is_empty() {
            return Vec::new();
        }
        let follows = self.on_lost(&partitions);
        let mut actions = vec![AssignmentAction::Release(partitions)];
        actions.extend(follows);
        actions
    }

    /// What follows for an interrupted transaction if these partitions are released, or assigned.
    fn on_lost(&mut self, partitions: &[PartitionId]) -> Vec<AssignmentAction> {
        let TransactionState::Interrupted(interrupted) = &mut self.transaction else {
            return Vec::new();
        };
        match interrupted.on_lost(partitions) {
            AfterLoss::GoesOn => Vec::new(),
            AfterLoss::Read(partition) => vec![AssignmentAction::ReadCommitted(partition)],
            AfterLoss::Ends(left) => {
                self.transaction = TransactionState::Idle;
                left.into_iter().map(AssignmentAction::TakeOverAgain).collect()
            }
        }
    }
}

#[cfg(test)]
#[path = "assignment/tests.rs"]
mod tests;
