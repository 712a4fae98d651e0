//! What can go wrong in a run, counted: a kind of fault that never happened has proven nothing.

use std::collections::BTreeMap;
use std::fmt;

/// A kind of fault, or of bad luck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Calamity {
    CrashBeforeSend,
    CrashBeforeCommit,
    CrashBeforeApply,
    CrashAfterApply,
    CrashInTakeover,
    DiskLost,
    StoreTooOld,
    Zombie,
    GenerationRefused,
    ProducerFenced,
    TransactionExpired,
    PredecessorEnded,
    OutcomeUnknownCommitted,
    OutcomeUnknownAborted,
    StepDropped,
    Rebalance,
    Handover,
    ClockMoved,
    ClockBehindW,
    SettingsChanged,
    LedgerCompacted,
    TombstonesExpired,
    TriggersDeleted,
    OffsetMoved,
    OffsetLostMirrorClean,
    OffsetLostMirrorUnclean,
    SignalDoubled,
    SignalLate,
    RetryMeetsCancel,
    Withdrawn,
    WorkerAborted,
    ProducerAborted,
    ProducerHesitates,
    TopicAway,
    Parked,
    Followed,
    PassBroken,
    Kept,
    WrongPartition,
    Unreadable,
    TimeLeapt,
    LeftOut,
    FailedTooOften,
    Called,
    Expired,
    Unmet,
    Idle,
}

impl Calamity {
    pub(super) const LAST: Self = Self::Idle;
}

/// How often what went wrong.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts(BTreeMap<Calamity, u64>);

impl Counts {
    pub(super) fn add(&mut self, what: Calamity) {
        self.add_many(what, 1);
    }

    pub(super) fn add_many(&mut self, what: Calamity, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(what, times)| self.add_many(*what, *times));
    }

    /// The kind that happened least, of all there are.
    pub(super) fn least(&self) -> u64 {
        let kinds = Calamity::LAST as usize + 1;
        if self.0.len() < kinds { 0 } else { self.0.values().copied().min().unwrap_or(0) }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(what, times)| writeln!(f, "  {times:>9} {what:?}"))
    }
}
