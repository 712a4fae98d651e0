//! What a worker uses of the world besides what every process does: requests to receivers, the
//! limits of callers, and where it reports.
//!
//! Invariant: a callback that was started ends once. Nothing is decided by who makes it.

use std::time::Duration;

use super::circuit::{Route, Ticket};
use super::disposition::CallbackResponse;
use super::queue::{CallerName, QueueLimits};
use crate::environment::{ProcessEnvironment, ProcessReporter};
use crate::model::fire::Fire;
use crate::model::outcome::CircuitState;
use crate::model::{Millis, Offset, PartitionId, Timestamp};

/// The parts of a worker's world, as types.
pub trait WorkerEnvironment: ProcessEnvironment<Reporter: WorkerReporter> {
    /// Makes callbacks.
    type Callbacks: CallbackMaking;
}

/// The record of a fire, and for which assignment of its partition it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirePlace {
    /// The partition.
    pub partition: PartitionId,
    /// Unique in this process: no other assignment or restart of a partition has the same.
    pub epoch: u64,
    /// The offset.
    pub offset: Offset,
}

/// A callback to make.
#[derive(Debug)]
pub struct Callback {
    /// Its record.
    pub place: FirePlace,
    /// What to request.
    pub fire: Box<Fire>,
    /// How many bytes the fire counts for.
    pub bytes: usize,
    pub(crate) permit: Permit,
}

/// What a callback in progress occupies until it ends.
#[derive(Debug)]
pub(crate) struct Permit {
    pub(crate) route: Route,
    pub(crate) ticket: Ticket,
    /// On the monotonic clock.
    pub(crate) started: Duration,
}

/// A callback that has ended.
#[derive(Debug)]
pub struct CallbackEnd {
    /// Which.
    pub callback: Callback,
    /// Its result.
    pub response: CallbackResponse,
    /// How long it took, in ms.
    pub took: Millis,
    /// When it ended, in ms since the epoch.
    pub at: Timestamp,
}

/// Makes callbacks beside the loop, and knows their callers.
pub trait CallbackMaking: 'static {
    /// The caller and the host of a fire.
    fn route(&self, fire: &Fire) -> Route;

    /// The limits of a caller.
    fn limits(&self, caller: &CallerName) -> QueueLimits;

    /// Whether the limits of any caller may have changed since the last call.
    fn have_limits_changed(&mut self) -> bool;

    /// Starts a callback. Does not wait.
    fn start(&mut self, callback: Callback);

    /// The next callback that has ended; waits at most `timeout` for it.
    fn poll(&mut self, timeout: Duration) -> Option<CallbackEnd>;
}

/// Bytes that a worker has in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerBytes {
    /// Of fires that wait.
    pub waiting: usize,
    /// Of fires whose callbacks are in progress.
    pub in_flight: usize,
    /// Of results that are not committed.
    pub results: usize,
}

/// What a worker reports besides what every process does.
pub trait WorkerReporter: ProcessReporter {
    /// So many callbacks are in progress, and so many fires wait.
    fn callbacks(&self, in_flight: usize, waiting: usize);

    /// So many bytes are in memory.
    fn memory(&self, bytes: WorkerBytes);

    /// A result is committed: `delivered`, `retried`, `exhausted` or `withdrawn`.
    fn result_committed(&self, result: &'static str);

    /// A dead letter is committed: `exhausted`, `impossible`, `unreadable`, `refused` or `unknown`.
    fn dead_letter_committed(&self, reason: &'static str);

    /// A fire goes back to its owner without an attempt.
    fn deferred(&self, reason: &'static str);

    /// So many circuits are in this state.
    fn circuits(&self, state: CircuitState, count: usize);
}
