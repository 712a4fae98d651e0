//! Bugs that can be planted in the production code, to show that the tests would find them.
//!
//! Law: at most one is planted, in the calling thread, for as long as a closure runs.

/// A rule of the protocol, broken. Those of the engine are planted where the rule stands; those of
/// the shell, which no simulator runs, in the simulator's node, which does what the shell does, and
/// those of workers in its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// What could not be read yet does not hold back what is due.
    NoWatermark,
    /// The ledger counts as read whole without a record of our own coming back.
    NoBarrier,
    /// L is where ingest stands.
    NoLowWater,
    /// Nothing below N is replayed.
    ReplayFromN,
    /// What is due later than `ledger_after` stays out of the ledger.
    LongOutOfLedger,
    /// A registration ignored for another's sake leaves no mark.
    KeepUnmarked,
    /// A cancel that finds nothing pending is forgotten.
    NoVeto,
    /// Signals are replayed as `triggers` are.
    ReplaySignals,
    /// L follows the clock of each owner, not what its predecessors have put on the timeline.
    LowWaterByClock,
    /// A replay inserts what the ledger has said already.
    ReplayHeld,
    /// What the ledger has once held counts as held, whatever became of it.
    HeldForGood,
    /// The clock is the wall's, even if it is behind what was decided by.
    ClockRunsBack,
    /// W moves past what is not loaded yet.
    PastUnloaded,
    /// An attempt that was accepted is accepted once more.
    RetryAgain,
    /// Every mirror of the cursor counts as written at a shutdown.
    MirrorAlwaysClean,
    /// The next occurrence of a recurring trigger is not in the ledger.
    NextOutOfLedger,
    /// What a command has fired before its time is forgotten at once.
    CalledForgotten,
    /// A replay inserts what the ledger holds in any case, though it is settled.
    ReplayKept,
    /// Whoever waits for a trigger does not hear that it failed.
    FailureUnheard,
    /// A takeover forgets how often a recurring trigger has come.
    CountLost,
    /// What is left out at the end of a schedule is left out again.
    LeftOutAgain,
    /// An occurrence that waits for a callback goes ahead whenever it is looked at.
    QueueJumped,
    /// An occurrence that waits for a callback goes on waiting when that has ended.
    QueueStuck,
    /// What is paused is due all the same.
    PauseUnheeded,
    /// Who waits for a trigger that nobody has registered is forgotten when somebody does.
    WatchLost,
    /// A record in one caller's name touches what is another's.
    ForeignTouched,
    /// Shell: an offset is read while a transaction with a later one is undecided.
    UnstableOffset,
    /// Shell: offsets are committed after the transaction, not in it.
    OffsetsApart,
    /// Shell: rows are applied before the transaction is committed.
    RowsBeforeCommit,
    /// Shell: the end of `triggers` is asked for with `read_committed`.
    CommittedEnd,
    /// Shell: a store is resumed that is older than the ledger's tombstones.
    StaleStore,
    /// Shell: what is decided ahead of its time is committed at once.
    EndsEarly,
    /// Shell: a store counts as holding the ledger up to an end that was heard of too late.
    LedgerHeardLate,
    /// Workers: a cancel withdraws what another worker may have begun.
    WithdrawBegun,
}

impl Bug {
    /// Every one of them.
    pub const ALL: [Self; 34] = [
        Self::NoWatermark,
        Self::NoBarrier,
        Self::NoLowWater,
        Self::ReplayFromN,
        Self::LongOutOfLedger,
        Self::KeepUnmarked,
        Self::NoVeto,
        Self::ReplaySignals,
        Self::LowWaterByClock,
        Self::ReplayHeld,
        Self::HeldForGood,
        Self::ClockRunsBack,
        Self::PastUnloaded,
        Self::RetryAgain,
        Self::MirrorAlwaysClean,
        Self::NextOutOfLedger,
        Self::CalledForgotten,
        Self::ReplayKept,
        Self::FailureUnheard,
        Self::CountLost,
        Self::LeftOutAgain,
        Self::QueueJumped,
        Self::QueueStuck,
        Self::PauseUnheeded,
        Self::WatchLost,
        Self::ForeignTouched,
        Self::UnstableOffset,
        Self::OffsetsApart,
        Self::RowsBeforeCommit,
        Self::CommittedEnd,
        Self::StaleStore,
        Self::EndsEarly,
        Self::LedgerHeardLate,
        Self::WithdrawBegun,
    ];
}

/// Whether `bug` is planted in this thread.
#[cfg(not(feature = "faults"))]
#[must_use]
pub fn planted(_bug: Bug) -> bool {
    false
}

#[cfg(feature = "faults")]
std::thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Whether `bug` is planted in this thread.
#[cfg(feature = "faults")]
#[must_use]
pub fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Runs `scenario` with `bug` planted in this thread.
#[cfg(feature = "faults")]
pub fn with<T>(bug: Bug, scenario: impl FnOnce() -> T) -> T {
    PLANTED.set(Some(bug));
    let result = scenario();
    PLANTED.set(None);
    result
}
