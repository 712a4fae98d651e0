//! A transaction that has failed: whether it is committed, which its partitions tell if its commit
//! was requested. Then it is applied, sent again, or its partitions are taken over again.
//!
//! Invariant: it is judged by a partition that has been ours without a break since its step was
//! sealed, and only after the broker has ended the transaction. It is sent again only if it is not
//! committed and all its partitions are such ones: a partition that was released and assigned again
//! begins from what is committed, and has nothing of it.

use std::collections::BTreeSet;

use super::cursor::{Cursor, epoch};
use crate::model::{Offset, PartitionId};

/// How often the same steps are sent in transactions that fail. What fails so often may fail
/// because of its content: then it is decided again.
const SENDS_MAX: u32 = 3;

/// The partitions of which a transaction contains something that outlives its failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransactionContent {
    /// Those with a step.
    pub steps: BTreeSet<PartitionId>,
    /// Those with the barrier of a takeover.
    pub barriers: BTreeSet<PartitionId>,
}

/// What is known of a transaction that has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionFailure {
    /// Its commit was not requested, and will not be: nothing of it is committed. If not, that is
    /// unknown.
    pub is_uncommitted: bool,
    /// A topic has not taken a record: it would not take it again.
    pub blames_target: bool,
}

/// Whether an interrupted transaction is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It is.
    Committed,
    /// It is not: what is committed is an earlier step of ours.
    NotCommitted,
    /// What is committed is not ours.
    Unclear,
}

/// Judges a transaction by one of its partitions, of which `sent` are offset and metadata of its
/// step, and `committed` those that are stable after the broker has ended the transaction.
#[must_use]
pub fn finding_of(sent: (Offset, &str), committed: Option<(Offset, &str)>) -> Finding {
    let Some(committed) = committed else { return Finding::Unclear };
    if committed == sent {
        return Finding::Committed;
    }
    let (Ok((ours, owner)), Ok((last, _))) =
        (Cursor::from_metadata(sent.0, sent.1), Cursor::from_metadata(committed.0, committed.1))
    else {
        return Finding::Unclear;
    };
    let is_earlier = epoch(last.step) == epoch(ours.step) && last.step < ours.step;
    let is_ours = Cursor::active_owner(committed.1) == Some(owner.as_str());
    if is_earlier && is_ours { Finding::NotCommitted } else { Finding::Unclear }
}

/// What is being done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// New producers are opened: the broker ends it.
    Opening,
    /// What this partition has committed is read.
    Reading(PartitionId),
    /// It is not committed, and is sent again as soon as the group gives metadata.
    Sending,
}

/// What an interruption has come to when one of its partitions was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AfterLoss {
    /// It goes on.
    GoesOn,
    /// Another partition must be read.
    Read(PartitionId),
    /// It ends: these partitions are taken over again.
    Ends(BTreeSet<PartitionId>),
}

/// A transaction whose outcome is not known.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InterruptedTransaction {
    /// What it contains of partitions that have been ours without a break since.
    content: TransactionContent,
    /// All partitions with a step are such ones.
    is_whole: bool,
    /// How often its steps were sent in a transaction that has failed.
    failures: u32,
    failure: TransactionFailure,
    phase: Phase,
}

impl InterruptedTransaction {
    /// Its steps were sent in so many transactions that have `failed` before.
    pub(super) fn new(
        content: TransactionContent,
        failed: u32,
        failure: TransactionFailure,
    ) -> Self {
        let (failures, phase) = (failed + 1, Phase::Opening);
        Self { content, is_whole: true, failures, failure, phase }
    }

    /// Whether it is sent again without a look at what is committed: its commit was not requested.
    /// Only once: a process that cannot reach the group's coordinator may have been expelled, and
    /// each transaction of it holds up readers of committed records.
    pub(super) fn needs_no_reading(&self) -> bool {
        self.failure.is_uncommitted && self.failures == 1
    }

    /// The partitions with a step that have been ours without a break.
    pub(super) fn steps(&self) -> &BTreeSet<PartitionId> {
        &self.content.steps
    }

    /// How often its steps were sent in a transaction that has failed.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether new producers are opened.
    pub(super) fn awaits_producers(&self) -> bool {
        self.phase == Phase::Opening
    }

    /// The partition whose committed offset is read.
    pub(super) fn is_read(&self) -> Option<PartitionId> {
        match self.phase {
            Phase::Reading(partition) => Some(partition),
            Phase::Opening | Phase::Sending => None,
        }
    }

    /// Whether it is sent again as soon as that is possible.
    pub(super) fn must_be_sent_again(&self) -> bool {
        self.phase == Phase::Sending
    }

    /// The broker has ended it. Returns the partitions whose takeover begins again: its barrier is
    /// committed, or it is not.
    pub(super) fn take_barriers(&mut self) -> BTreeSet<PartitionId> {
        std::mem::take(&mut self.content.barriers)
    }

    /// The partition to read next; `None` if nothing of it is left that could be used.
    pub(super) fn read_next(&mut self) -> Option<PartitionId> {
        let partition = self.content.steps.first().copied()?;
        self.phase = Phase::Reading(partition);
        Some(partition)
    }

    /// It is not committed. Returns whether it is sent again.
    pub(super) fn send_again(&mut self) -> bool {
        let is_sent = self.is_whole && !self.failure.blames_target && self.failures < SENDS_MAX;
        if is_sent {
            self.phase = Phase::Sending;
        }
        is_sent
    }

    /// These are not ours any more, or a takeover of them begins.
    pub(super) fn on_lost(&mut self, partitions: &[PartitionId]) -> AfterLoss {
        let count = self.content.steps.len();
        self.content.steps.retain(|id| !partitions.contains(id));
        self.content.barriers.retain(|id| !partitions.contains(id));
        self.is_whole &= self.content.steps.len() == count;
        match self.phase {
            Phase::Reading(partition) if partitions.contains(&partition) => {
                self.read_next().map_or(AfterLoss::Ends(BTreeSet::new()), AfterLoss::Read)
            }
            Phase::Sending if !self.is_whole => {
                AfterLoss::Ends(std::mem::take(&mut self.content.steps))
            }
            Phase::Opening | Phase::Reading(_) | Phase::Sending => AfterLoss::GoesOn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: &str = "orloj.scheduler.1";

    /// The cursor after this step of the third epoch.
    fn cursor(step: u64) -> Cursor {
        Cursor { step: (2 << 40) + step, ..Cursor::initial(40, 7) }
    }

    /// What is said of our step 5, if this is committed.
    fn judged(committed: Option<(Offset, String)>) -> Finding {
        let sent = cursor(5).to_metadata(OWNER);
        finding_of((40, &sent), committed.as_ref().map(|(offset, text)| (*offset, text.as_str())))
    }

    #[test]
    fn a_transaction_is_committed_if_offset_and_metadata_are_those_of_its_step() {
        assert_eq!(judged(Some((40, cursor(5).to_metadata(OWNER)))), Finding::Committed);
        let others = [
            (41, cursor(5).to_metadata(OWNER)),
            (40, cursor(5).to_metadata("orloj.scheduler.2")),
            (40, cursor(5).to_final_metadata(OWNER)),
            (40, Cursor { next_signal_offset: 8, ..cursor(5) }.to_metadata(OWNER)),
        ];
        for other in others {
            assert_eq!(judged(Some(other.clone())), Finding::Unclear, "{other:?}");
        }
    }

    #[test]
    fn a_transaction_is_not_committed_if_an_earlier_step_of_the_same_owner_and_epoch_is() {
        for earlier in [4, 1] {
            let committed = Some((39, cursor(earlier).to_metadata(OWNER)));
            assert_eq!(judged(committed), Finding::NotCommitted);
        }
        let earlier_epoch = Cursor { step: (1 << 40) + 4, ..cursor(4) };
        let unclear = [
            None,
            Some((40, String::new())),
            Some((40, "an operator".to_owned())),
            Some((40, cursor(6).to_metadata(OWNER))),
            Some((39, cursor(4).to_metadata("orloj.scheduler.2"))),
            Some((39, cursor(4).to_final_metadata(OWNER))),
            Some((39, earlier_epoch.to_metadata(OWNER))),
            Some((39, cursor(4).to_metadata(OWNER).replace("orloj1", "orloj9"))),
        ];
        for committed in unclear {
            assert_eq!(judged(committed.clone()), Finding::Unclear, "{committed:?}");
        }
    }
}
