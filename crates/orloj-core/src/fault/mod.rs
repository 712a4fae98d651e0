//! Bugs that can be activated in the production code, to show that the tests would find them.
//!
//! Invariant: at most one is active, in the calling thread, while a closure runs.

/// A rule of the protocol, broken in the code of the rule. What Kafka's clients promise, and what
/// workers do, is broken in the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Entries fire although input that was written before they were due is not read yet.
    NoWatermark,
    /// The ledger counts as read completely before our own barrier was read.
    NoBarrier,
    /// L equals N.
    ReplayFromEqualsNextOffset,
    /// Nothing below N is replayed.
    NothingReplayed,
    /// A trigger that is due later than `ledger_after` is not written to the ledger.
    LongTriggerNotInLedger,
    /// A registration that is ignored because of another leaves no mark.
    IgnoredWithoutSkipMark,
    /// A cancel that finds nothing pending is forgotten.
    NoVeto,
    /// Signals are replayed as `triggers` are.
    ReplaySignals,
    /// L follows the clock of each owner, not the entries that its predecessors have scheduled.
    ReplayHorizonByClock,
    /// A replay inserts what the ledger already contains.
    ReplayCovered,
    /// What the ledger has contained once counts as contained, even if it was deleted.
    CoveredNeverCleared,
    /// The clock is the wall clock, even if it is behind earlier decisions.
    ClockMovesBack,
    /// W moves past what is not loaded yet.
    AdvancePastUnloaded,
    /// An attempt that was accepted is accepted once more.
    DuplicateRetryAccepted,
    /// Every mirror of the cursor counts as written at a shutdown.
    MirrorAlwaysClean,
    /// The next occurrence of a recurring trigger is not in the ledger.
    NextOccurrenceNotInLedger,
    /// A trigger fired early by a command is forgotten at once.
    EarlyFireForgotten,
    /// A replay inserts a trigger that always needs the ledger, although it is settled.
    ReplaySettled,
    /// A trigger that waits for another does not learn that it failed.
    DependencyFailureIgnored,
    /// A takeover forgets how often a recurring trigger has fired.
    OccurrenceCountLost,
    /// Occurrences skipped at the end of a schedule are skipped again.
    SkippedTwice,
    /// An occurrence that waits for a callback fires whenever it is decided about.
    QueuedFiresEarly,
    /// An occurrence that waits for a callback continues to wait after the callback has ended.
    QueuedNeverReleased,
    /// A paused trigger is due.
    PauseIgnored,
    /// The watchers of a trigger that is not registered are forgotten when it is registered.
    WatchersLost,
    /// A record of one caller changes a trigger of another.
    OtherCallerAllowed,
    /// A trigger fires while a record that may cancel it is parked.
    ParkedTriggerFires,
    /// A registration that was parked is not written to the ledger.
    ReleasedNotInLedger,
    /// A takeover parks nothing again.
    ParkedForgotten,
    /// L and local stores pass parked records.
    ParkedCountsAsDecided,
    /// Client: an offset is read while a transaction with a later one is undecided.
    UnstableOffset,
    /// Client: offsets are committed after the transaction, not in it.
    OffsetsOutsideTransaction,
    /// Scheduler: rows are applied before the transaction is committed.
    RowsBeforeCommit,
    /// Client: the end of `triggers` is asked for with `read_committed`.
    ReadCommittedEndOffset,
    /// Scheduler: a store is resumed that is older than the ledger's tombstones.
    StaleStoreResumed,
    /// Scheduler: a step decided ahead of the clock is committed at once.
    CommitTooEarly,
    /// Scheduler: a store counts as containing the ledger up to an end that was read too late.
    LedgerEndReadTooLate,
    /// Workers: a cancel withdraws a callback that another worker may have started.
    StartedCallbackWithdrawn,
}

impl Mutation {
    /// Every one of them.
    pub const ALL: [Self; 38] = [
        Self::NoWatermark,
        Self::NoBarrier,
        Self::ReplayFromEqualsNextOffset,
        Self::NothingReplayed,
        Self::LongTriggerNotInLedger,
        Self::IgnoredWithoutSkipMark,
        Self::NoVeto,
        Self::ReplaySignals,
        Self::ReplayHorizonByClock,
        Self::ReplayCovered,
        Self::CoveredNeverCleared,
        Self::ClockMovesBack,
        Self::AdvancePastUnloaded,
        Self::DuplicateRetryAccepted,
        Self::MirrorAlwaysClean,
        Self::NextOccurrenceNotInLedger,
        Self::EarlyFireForgotten,
        Self::ReplaySettled,
        Self::DependencyFailureIgnored,
        Self::OccurrenceCountLost,
        Self::SkippedTwice,
        Self::QueuedFiresEarly,
        Self::QueuedNeverReleased,
        Self::PauseIgnored,
        Self::WatchersLost,
        Self::OtherCallerAllowed,
        Self::ParkedTriggerFires,
        Self::ReleasedNotInLedger,
        Self::ParkedForgotten,
        Self::ParkedCountsAsDecided,
        Self::UnstableOffset,
        Self::OffsetsOutsideTransaction,
        Self::RowsBeforeCommit,
        Self::ReadCommittedEndOffset,
        Self::StaleStoreResumed,
        Self::CommitTooEarly,
        Self::LedgerEndReadTooLate,
        Self::StartedCallbackWithdrawn,
    ];
}

/// Whether `mutation` is active in this thread.
#[cfg(not(feature = "faults"))]
#[must_use]
pub fn is_active(_mutation: Mutation) -> bool {
    false
}

#[cfg(feature = "faults")]
std::thread_local! {
    static ACTIVE: std::cell::Cell<Option<Mutation>> = const { std::cell::Cell::new(None) };
}

/// Whether `mutation` is active in this thread.
#[cfg(feature = "faults")]
#[must_use]
pub fn is_active(mutation: Mutation) -> bool {
    ACTIVE.get() == Some(mutation)
}

/// Runs `scenario` with `mutation` active in this thread.
#[cfg(feature = "faults")]
pub fn with_mutation<T>(mutation: Mutation, scenario: impl FnOnce() -> T) -> T {
    ACTIVE.set(Some(mutation));
    let result = scenario();
    ACTIVE.set(None);
    result
}
