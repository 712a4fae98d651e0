//! When the fires of each caller that were sent back to their owner return, by their bytes.
//!
//! Invariant: pure, time is an argument. A fire that is deferred is written to the log three times
//! more, with its payload. So the deferred fires of a caller return one after another, each after
//! as long as its bytes take at the rate that the setting allows: the log has time for other
//! callers. One that was deferred before counts double for each time: the longer a receiver hangs,
//! the less is written for it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::queue::CallerName;

/// Larger fires do not keep smaller ones of their caller waiting, bytes.
const SMALL_BYTES: usize = 16 * 1024;

/// Further deferrals of a fire do not count more.
const DOUBLINGS_MAX: u32 = 10;
/// Pause between two removals of callers of whom nothing returns any more.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Fires of a caller that return one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReturnGroup {
    /// Small ones that found no room.
    Small,
    /// Large ones that found no room.
    Large,
    /// Those that wait for a circuit.
    Circuit,
}

impl ReturnGroup {
    /// The group of a fire of so many bytes that found no room.
    pub(super) fn of_bytes(bytes: usize) -> Self {
        if bytes <= SMALL_BYTES { Self::Small } else { Self::Large }
    }
}

/// When the last deferred fire of each caller returns.
#[derive(Debug)]
pub(super) struct DeferredReturns {
    /// How many bytes of a caller return in a second.
    bytes_per_second_max: usize,
    /// No fire waits longer for others.
    wait_max: Duration,
    /// On the monotonic clock.
    last_return: BTreeMap<(CallerName, ReturnGroup), Duration>,
    swept_at: Duration,
}

impl DeferredReturns {
    pub(super) fn new(bytes_per_second_max: usize, wait_max: Duration) -> Self {
        let (last_return, swept_at) = (BTreeMap::new(), Duration::ZERO);
        Self { bytes_per_second_max, wait_max, last_return, swept_at }
    }

    /// How long a fire of so many bytes, which is deferred at `now` and was so often before, waits
    /// for those of its caller and group that return before it.
    pub(super) fn wait(
        &mut self,
        (caller, group): (&CallerName, ReturnGroup),
        bytes: usize,
        deferrals: u32,
        now: Duration,
    ) -> Duration {
        self.sweep(now);
        let seconds = bytes as f64 / self.bytes_per_second_max.max(1) as f64;
        let times = f64::from(1_u32 << deferrals.min(DOUBLINGS_MAX));
        let took = self.wait_max.min(Duration::from_secs_f64(seconds * times));
        let last = self.last_return.entry((caller.clone(), group)).or_insert(now);
        let wait = last.saturating_sub(now);
        *last = now + (wait + took).min(self.wait_max);
        wait
    }

    fn sweep(&mut self, now: Duration) {
        if now >= self.swept_at + SWEEP_INTERVAL {
            self.swept_at = now;
            self.last_return.retain(|_, last| *last > now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000);
    const SECOND: Duration = Duration::from_secs(1);

    fn returns() -> DeferredReturns {
        DeferredReturns::new(1_000, 600 * SECOND)
    }

    fn caller(name: &str) -> CallerName {
        Some(name.into())
    }

    #[test]
    fn fires_of_a_caller_return_one_after_another_and_wait_for_no_other_caller() {
        let mut returns = returns();
        let mut wait =
            |name, bytes, now| returns.wait((&caller(name), ReturnGroup::Large), bytes, 0, now);
        assert_eq!(wait("a", 2_000, NOW), Duration::ZERO);
        assert_eq!(wait("a", 500, NOW), 2 * SECOND);
        assert_eq!(wait("b", 500, NOW), Duration::ZERO);
        assert_eq!(wait("a", 500, NOW + SECOND), 3 * SECOND / 2);
        assert_eq!(wait("a", 500, NOW + 60 * SECOND), Duration::ZERO, "all have returned");
    }

    #[test]
    fn what_was_deferred_before_returns_more_slowly_up_to_a_maximum() {
        let mut returns = returns();
        let mut took = |deferrals| {
            let group = ReturnGroup::Large;
            let _first = returns.wait((&None, group), 1_000, deferrals, NOW);
            returns.last_return.remove(&(None, group)).unwrap() - NOW
        };
        assert_eq!([took(0), took(1), took(3)], [SECOND, 2 * SECOND, 8 * SECOND]);
        assert_eq!(took(u32::MAX), 600 * SECOND);
    }

    #[test]
    fn small_fires_and_those_of_circuits_do_not_wait_for_large_ones() {
        let mut returns = returns();
        let groups = [
            ReturnGroup::of_bytes(SMALL_BYTES + 1),
            ReturnGroup::of_bytes(SMALL_BYTES),
            ReturnGroup::Circuit,
        ];
        for group in groups {
            assert_eq!(returns.wait((&None, group), 5_000, 0, NOW), Duration::ZERO, "{group:?}");
            assert_eq!(returns.wait((&None, group), 5_000, 0, NOW), 5 * SECOND, "{group:?}");
        }
    }

    #[test]
    fn a_caller_of_whom_nothing_returns_is_forgotten() {
        let mut returns = returns();
        for number in 0..100 {
            let name = caller(&number.to_string());
            let now = NOW + number * 2 * SECOND;
            let _none = returns.wait((&name, ReturnGroup::Small), 1_000, 0, now);
        }
        assert_eq!(returns.last_return.len(), 1);
    }
}
