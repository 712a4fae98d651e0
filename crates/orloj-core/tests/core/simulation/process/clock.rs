//! The clock of a process: it is ahead of true time or behind it, and may be set back.

use std::time::Duration;

use orloj_core::environment::Clock;
use orloj_core::model::Timestamp;

use super::SimulatedProcess;

/// The clock of a process.
#[derive(Clone)]
pub(in crate::simulation) struct SimulatedClock(pub(in crate::simulation) SimulatedProcess);

impl Clock for SimulatedClock {
    fn now_ms(&self) -> Timestamp {
        self.0.call(|cluster, state| {
            let now = cluster.broker.now;
            let time = now.saturating_add_signed(state.skew);
            let (shown, at) = state.shown;
            state.shown = (time.max(shown + now.saturating_sub(at)), now);
            time
        })
    }

    fn until(&self, time: Timestamp) -> Duration {
        Duration::from_millis(time.saturating_sub(self.now_ms()))
    }

    /// Time passes during a turn of the loop, too.
    fn monotonic(&self) -> Duration {
        self.0.call(|cluster, _| {
            cluster.broker.now += u64::from(cluster.rng.one_in(256));
            Duration::from_millis(cluster.broker.now)
        })
    }

    /// Time passes for all.
    fn pause(&self, length: Duration) {
        self.0.call(|cluster, _| cluster.broker.now += u64::from(!length.is_zero()));
    }
}
