//! Kinds of faults, counted: a kind that never happened has not been tested.

use std::collections::BTreeMap;
use std::fmt;

/// A kind of fault, or of a rare event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FaultKind {
    CrashBeforeSend,
    CrashBeforeCommit,
    CrashBeforeApply,
    CrashAfterApply,
    CrashInTakeover,
    DiskLost,
    StoreTooOld,
    StoreFailed,
    StoreRefused,
    Zombie,
    ExpelledUnreported,
    GenerationRefused,
    ProducerFenced,
    TransactionExpired,
    PredecessorEnded,
    AbsentEnded,
    OutcomeUnknownCommitted,
    OutcomeUnknownAborted,
    InterruptedCommitted,
    InterruptedSentAgain,
    InterruptedTakenOver,
    RequestFailed,
    CallTimedOut,
    CallHung,
    BeginFailed,
    RecordsLost,
    RecordsAnswerLost,
    RecordsLate,
    OffsetsLost,
    OffsetsAnswerLost,
    OffsetsLate,
    CommitLate,
    AbortLost,
    AbortAnswerLost,
    AbortLate,
    OpenFailed,
    OpenAnswerLost,
    OpenLate,
    LateRequestFenced,
    MarkersApart,
    OffsetUnstable,
    LeaderLost,
    CallWithoutLeader,
    TargetUndelivered,
    PartitionLost,
    PartitionShownOut,
    PartitionUndelivered,
    FiredBesideOutage,
    FiredAfterOutage,
    RecordRefused,
    TransactionDenied,
    RefusedDeadLetter,
    ReadFailed,
    ReaderPaused,
    FetchedInParts,
    OffsetGap,
    EndStale,
    EndMissing,
    EndOld,
    LeadersOld,
    LeaderMoved,
    LeaderSilent,
    EndEarly,
    OutOfRange,
    OffsetRefused,
    PartitionFull,
    LargePayload,
    StepDropped,
    OtherProducers,
    Rebalance,
    RevokedAll,
    StaticMemberReturned,
    Handover,
    ClockMoved,
    ClockStepped,
    ClockBehindWatermark,
    SettingsChanged,
    LedgerCompacted,
    TombstonesExpired,
    TriggersDeleted,
    UnreadDeleted,
    UnreadDeletedOfAll,
    TriggersCut,
    CutAccepted,
    LedgerDeleted,
    OffsetMoved,
    OffsetLostMirrorClean,
    OffsetLostMirrorUnclean,
    AllOffsetsLost,
    SignalDoubled,
    SignalLate,
    RetryMeetsCancel,
    Withdrawn,
    WorkerAborted,
    ProducerAborted,
    ProducerSlow,
    TopicUnavailable,
    LookUpUnanswered,
    Postponed,
    Followed,
    TakenOverFromStandby,
    TakenDuringPass,
    StandbyTooOld,
    StandbyStoreFailed,
    CrashDuringPass,
    Kept,
    WrongPartition,
    Unreadable,
    TimeJumped,
    OccurrenceSkipped,
    FailedTooOften,
    Called,
    Expired,
    Unmet,
    Idle,
    RegistryAway,
    RegistrySlow,
    SchemaRefused,
    SchemaUnknown,
    SchemaDenied,
    SchemaDeniedForLong,
    RecordsParked,
    ParkedTakenOver,
}

impl FaultKind {
    pub(super) const LAST: Self = Self::ParkedTakenOver;

    /// What has become of a transaction of unknown outcome, if it is known at this point of the
    /// code.
    pub(super) fn of_point(point: &str) -> Option<Self> {
        match point {
            "interrupted.committed" => Some(Self::InterruptedCommitted),
            "interrupted.sent_again" => Some(Self::InterruptedSentAgain),
            "interrupted.taken_over" => Some(Self::InterruptedTakenOver),
            _ => None,
        }
    }
}

/// How often each kind happened.
#[derive(Clone, Debug, Default)]
pub(super) struct FaultCounts(BTreeMap<FaultKind, u64>);

impl FaultCounts {
    pub(super) fn add(&mut self, what: FaultKind) {
        self.add_many(what, 1);
    }

    pub(super) fn add_many(&mut self, what: FaultKind, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    /// How often it happened.
    pub(super) fn count(&self, what: FaultKind) -> u64 {
        self.0.get(&what).copied().unwrap_or(0)
    }

    pub(super) fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(what, times)| self.add_many(*what, *times));
    }

    /// How often this kind happened.
    pub(super) fn of(&self, what: FaultKind) -> u64 {
        self.0.get(&what).copied().unwrap_or(0)
    }

    /// The kind that happened least, of all there are.
    pub(super) fn least(&self) -> u64 {
        let kinds = FaultKind::LAST as usize + 1;
        if self.0.len() < kinds { 0 } else { self.0.values().copied().min().unwrap_or(0) }
    }
}

impl fmt::Display for FaultCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(what, times)| writeln!(f, "  {times:>9} {what:?}"))
    }
}
