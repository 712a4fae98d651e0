//! The settings of a worker's loop.
//!
//! Invariant: everything that waits has a limit here, in number and in bytes.

use std::time::Duration;

use super::circuit::CircuitBreakerSettings;
use super::deferral::DeferralDelays;
use super::queue::QueueBounds;
use crate::model::names::Names;
use crate::model::retry::RetryPolicy;
use crate::model::text::Text;

/// The settings of the loop.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// The names of our topics.
    pub names: Names,
    /// The fires of this pool.
    pub topic: String,
    /// The transactional id, which names this worker in the changes of its circuits.
    pub id: Text,
    /// The name of this worker in attempt histories.
    pub name: Text,
    /// For triggers that have no policy of their own.
    pub default_retry_policy: RetryPolicy,
    /// Callbacks in progress at once.
    pub in_flight_max: usize,
    /// Fires that wait, and the bytes of those whose callbacks are in progress.
    pub queue: QueueBounds,
    /// Bytes of results that are not committed. At this bound nothing is read and no callback
    /// starts.
    pub results_bytes_max: usize,
    /// Bytes of the results in one transaction.
    pub commit_bytes_max: usize,
    /// How long results are collected for a transaction.
    pub commit_interval: Duration,
    /// When circuits open and close.
    pub circuits: CircuitBreakerSettings,
    /// How long fires are deferred.
    pub deferral: DeferralDelays,
    /// After how long the broker aborts a transaction.
    pub transaction_timeout: Duration,
    /// How long the callbacks in progress may take when the process ends.
    pub drain_max: Duration,
    /// How long an answer to a fetch takes at most.
    pub fetch_timeout: Duration,
    /// How long the brokers keep the committed offsets of a group without members.
    pub offsets_retention: Duration,
    /// Times that are not settings.
    pub timing: WorkerTiming,
}

/// Times that are not settings, because no user has a reason to change them; a simulation does.
#[derive(Clone, Copy, Debug)]
pub struct WorkerTiming {
    /// By how much the calls of a transaction may exceed its timeout before they count as hanging.
    pub overrun_max: Duration,
    /// A longer time between two turns of the loop is a pause of the process.
    pub turn_max: Duration,
    /// Opening producers takes longer if the broker cannot end their transaction: then others are
    /// opened, too.
    pub producers_late: Duration,
    /// Pause after the second transaction that fails in a row; each further one doubles it.
    pub retry_pause: Duration,
    /// Pause before the committed progress is requested again after a failure.
    pub position_pause: Duration,
    /// How long a request to the broker may take.
    pub call_timeout: Duration,
    /// During a shutdown, a callback in progress for so long does not keep others from starting.
    pub slow_callback: Duration,
}

impl Default for WorkerTiming {
    fn default() -> Self {
        Self {
            overrun_max: Duration::from_secs(2),
            turn_max: Duration::from_secs(1),
            producers_late: Duration::from_secs(1),
            retry_pause: Duration::from_millis(200),
            position_pause: Duration::from_millis(200),
            call_timeout: Duration::from_secs(5),
            slow_callback: Duration::from_secs(1),
        }
    }
}

impl WorkerConfig {
    /// After how long a transaction hangs, and which time between two looks is a pause.
    pub(crate) fn hang_limits(&self) -> (Duration, Duration) {
        (self.transaction_timeout + self.timing.overrun_max, self.timing.turn_max)
    }
}
