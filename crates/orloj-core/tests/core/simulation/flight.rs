//! What one transaction of a node carries, as `scheduler::flight` does.
//!
//! Law: every partition that it has an effect for has its offset in it.

use orloj_core::engine::step::{Emit, Step};
use orloj_core::model::ledger::{LedgerRecord, LedgerValue};
use orloj_core::model::{Offset, Timestamp};

use super::broker::{Decided, Outgoing, Progress, Raw, Sent};
use super::lane::Lane;

/// A transaction under way.
#[derive(Debug, Default)]
pub(super) struct Flight {
    pub(super) steps: Vec<(usize, Step, Decided)>,
    pub(super) barriers: Vec<(usize, Barrier)>,
    /// Of partitions that go before they were active.
    pub(super) farewells: Vec<Progress>,
    pub(super) leg: Leg,
}

/// What a takeover's barrier writes.
#[derive(Debug)]
pub(super) struct Barrier {
    pub(super) offset: Offset,
    pub(super) metadata: String,
    pub(super) value: LedgerValue,
    pub(super) step: u64,
}

/// How far a transaction is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Leg {
    #[default]
    Sealed,
    Sent,
    Offered,
}

impl Flight {
    pub(super) fn carries_nothing(&self) -> bool {
        self.steps.is_empty() && self.barriers.is_empty() && self.farewells.is_empty()
    }

    /// Before this it must not be committed, as `scheduler::flight` has it.
    pub(super) fn time(&self) -> Timestamp {
        self.steps.iter().map(|(_, step, _)| step.time).max().unwrap_or(0)
    }

    /// How far the partitions are once it is committed. `owner` is the transactional id.
    pub(super) fn progress(&self, owner: &str) -> Vec<Progress> {
        let steps = self.steps.iter().map(|(id, step, _)| {
            let cursor = &step.cursor;
            let said =
                if step.last { cursor.to_farewell(owner) } else { cursor.to_metadata(owner) };
            (*id, cursor.triggers, said)
        });
        let barriers = self.barriers.iter().map(|(id, b)| (*id, b.offset, b.metadata.clone()));
        steps.chain(barriers).chain(self.farewells.iter().cloned()).collect()
    }
}

/// A record of step `step` on its way. `before`: what was decided before it.
pub(super) fn outgoing(lane: &Lane, before: Decided, step: u64, emit: &Emit) -> Outgoing {
    let (tenure, clock) = (lane.tenure, lane.clock);
    let sent = || Sent { emit: emit.clone(), tenure, clock, before, order: 0, txn: None };
    match emit {
        Emit::Ledger { key, value } => {
            let (key, value) = (key.clone(), value.as_deref().cloned());
            Outgoing::Ledger(lane.id, LedgerRecord { key, value, step })
        }
        Emit::Forward(forward) => {
            let (key, value) = (forward.key.clone(), forward.value.clone());
            let raw = Raw { key, value, headers: forward.headers.clone() };
            Outgoing::Trigger(usize::try_from(forward.partition).unwrap(), raw)
        }
        Emit::Signal { partition, signal } => {
            Outgoing::Signal(usize::try_from(*partition).unwrap(), (**signal).clone())
        }
        Emit::ToWorker(_) | Emit::Withdraw { .. } => Outgoing::Fire(lane.id, sent()),
        Emit::ToTopic(_) | Emit::Outcome(_) | Emit::DeadLetter(_) => {
            Outgoing::Other(lane.id, sent())
        }
    }
}
