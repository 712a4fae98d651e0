//! Bugs that can be planted in the production code, to show that the tests would find them.
//!
//! Invariant: at most one is planted, in the calling thread, for as long as a closure runs.

/// A rule of the protocol, broken. Those of the engine are planted where the rule stands; those of
/// the shell, which no simulator runs, in the simulator's node, which does what the shell does, and
/// those of workers in its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// What could not be read yet does not hold back what is due.
    NoWatermark,
    /// The ledger counts as read whole without a record of our own coming back.
    NoBarrier,
    /// L is where ingest stands.
    ReplayFromEqualsNextOffset,
    /// Nothing below N is replayed.
    NothingReplayed,
    /// What is due later than `ledger_after` stays out of the ledger.
    LongTriggerNotInLedger,
    /// A registration ignored for another's sake leaves no mark.
    IgnoredWithoutSkipMark,
    /// A cancel that finds nothing pending is forgotten.
    NoVeto,
    /// Signals are replayed as `triggers` are.
    ReplaySignals,
    /// L follows the clock of each owner, not what its predecessors have put on the timeline.
    ReplayHorizonByClock,
    /// A replay inserts what the ledger has said already.
    ReplayCovered,
    /// What the ledger has once held counts as held, whatever became of it.
    CoveredNeverCleared,
    /// The clock is the wall's, even if it is behind what was decided by.
    ClockMovesBack,
    /// W moves past what is not loaded yet.
    AdvancePastUnloaded,
    /// An attempt that was accepted is accepted once more.
    DuplicateRetryAccepted,
    /// Every mirror of the cursor counts as written at a shutdown.
    MirrorAlwaysClean,
    /// The next occurrence of a recurring trigger is not in the ledger.
    NextOccurrenceNotInLedger,
    /// What a command has fired before its time is forgotten at once.
    EarlyFireForgotten,
    /// A replay inserts what the ledger holds in any case, though it is settled.
    ReplaySettled,
    /// Whoever waits for a trigger does not hear that it failed.
    DependencyFailureIgnored,
    /// A takeover forgets how often a recurring trigger has come.
    OccurrenceCountLost,
    /// What is left out at the end of a schedule is left out again.
    SkippedTwice,
    /// An occurrence that waits for a callback goes ahead whenever it is looked at.
    QueuedFiresEarly,
    /// An occurrence that waits for a callback goes on waiting when that has ended.
    QueuedNeverReleased,
    /// What is paused is due all the same.
    PauseIgnored,
    /// Who waits for a trigger that nobody has registered is forgotten when somebody does.
    WatchersLost,
    /// A record in one caller's name touches what is another's.
    OtherCallerAllowed,
    /// Shell: an offset is read while a transaction with a later one is undecided.
    UnstableOffset,
    /// Shell: offsets are committed after the transaction, not in it.
    OffsetsOutsideTransaction,
    /// Shell: rows are applied before the transaction is committed.
    RowsBeforeCommit,
    /// Shell: the end of `triggers` is asked for with `read_committed`.
    ReadCommittedEndOffset,
    /// Shell: a store is resumed that is older than the ledger's tombstones.
    StaleStoreResumed,
    /// Shell: what is decided ahead of its time is committed at once.
    CommitTooEarly,
    /// Shell: a store counts as holding the ledger up to an end that was heard of too late.
    LedgerEndReadTooLate,
    /// Workers: a cancel withdraws what another worker may have begun.
    StartedCallbackWithdrawn,
}

impl Mutation {
    /// Every one of them.
    pub const ALL: [Self; 34] = [
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

/// Whether `bug` is planted in this thread.
#[cfg(not(feature = "faults"))]
#[must_use]
pub fn is_active(_mutation: Mutation) -> bool {
    false
}

#[cfg(feature = "faults")]
std::thread_local! {
    static ACTIVE: std::cell::Cell<Option<Mutation>> = const { std::cell::Cell::new(None) };
}

/// Whether `bug` is planted in this thread.
#[cfg(feature = "faults")]
#[must_use]
pub fn is_active(mutation: Mutation) -> bool {
    ACTIVE.get() == Some(mutation)
}

/// Runs `scenario` with `bug` planted in this thread.
#[cfg(feature = "faults")]
pub fn with_mutation<T>(mutation: Mutation, scenario: impl FnOnce() -> T) -> T {
    ACTIVE.set(Some(mutation));
    let result = scenario();
    ACTIVE.set(None);
    result
}
