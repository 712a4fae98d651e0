//! A caller that does nothing wrong: small callbacks at a steady rate, to a receiver that answers
//! at once. How late they are says whether another caller can be felt.
//!
//! Invariant: a callback counts from its due time, or from its registration if the broker stored it
//! later; each is made, and each window of time has a 99th percentile of its own, of which the
//! median counts, before and at the bound: noise comes and goes. But in no window is it a second.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use orloj::clock;

use super::BoundTime;
use super::receiver::BoundReceiver;
use crate::background_thread::BackgroundThread;
use crate::test_cluster::TestCluster;
use crate::test_producer::TestProducer;
use crate::wait::{until, within};

/// What the ids begin with.
const PREFIX: &str = "steady";
/// From the registration to the due time, in ms.
const DELAY: u64 = 500;
/// Between two callbacks: about 50 a second.
const PAUSE: Duration = Duration::from_millis(20);
/// Until the last of them is called.
const DEADLINE: Duration = Duration::from_secs(120);
/// By how much measurements differ that should not, in ms: in the short form, with other tests
/// beside, and in the long form.
const NOISE_MS: (u64, u64) = (50, 25);

/// The 99th percentile of a window, in ms.
const WORST_MS_MAX: u64 = 1_000;

/// A caller that registers callbacks until it is ended.
pub(super) struct SteadyCaller {
    client: Arc<TestProducer>,
    thread: BackgroundThread,
}

/// How late each of its callbacks was.
pub(super) struct SteadyTimes {
    /// When it was due, in ms since the epoch, and how late it was, in ms.
    times: Vec<(u64, u64)>,
    /// Calls beyond the first one of each trigger.
    pub(super) repeated: usize,
}

impl SteadyCaller {
    pub(super) fn start(cluster: &TestCluster, receiver: &BoundReceiver) -> Self {
        let client = Arc::new(cluster.client());
        let (registers, url) = (Arc::clone(&client), receiver.url("quick"));
        let thread = BackgroundThread::start(move |ended| {
            for n in 0_u64.. {
                if within(PAUSE, || ended.load(Relaxed).then_some(())).is_some() {
                    return;
                }
                let due = clock::now_ms() + DELAY;
                registers.register_callback(&format!("{PREFIX}-{n}"), due, &url, PREFIX);
            }
        });
        until("the first callbacks", DEADLINE, || (receiver.called(PREFIX) >= 100).then_some(()));
        Self { client, thread }
    }

    /// Ends it, and waits until all are called.
    pub(super) fn end(self, receiver: &BoundReceiver) -> SteadyTimes {
        drop(self.thread);
        let commands = self.client.acknowledged();
        let all = commands.len();
        let calls = until("all of the steady caller's callbacks", DEADLINE, || {
            (receiver.called(PREFIX) == all).then(|| receiver.times())
        });
        let late = commands.iter().map(|(id, commands)| {
            let due = commands[0].appended.max(commands[0].registered_due().unwrap());
            (due, calls[id][0].saturating_sub(due))
        });
        let repeated = commands.keys().map(|id| calls[id].len() - 1).sum();
        SteadyTimes { times: late.collect(), repeated }
    }
}

impl SteadyTimes {
    /// The 99th percentile of each window between two times, which are in ms since the epoch.
    fn p99s(&self, (from, until): (u64, u64), window: u64) -> Vec<u64> {
        let windows = (until - from) / window;
        let p99 = |number| {
            let from = from + number * window;
            let of_window = |(due, _): &&(u64, u64)| (from..from + window).contains(due);
            let mut late: Vec<_> = self.times.iter().filter(of_window).map(|it| it.1).collect();
            late.sort_unstable();
            late[late.len() * 99 / 100]
        };
        (0..windows).map(p99).collect()
    }

    /// How many callbacks there were.
    pub(super) fn count(&self) -> usize {
        self.times.len()
    }

    /// Of those due between two times, in ms since the epoch, how late one was at most, in ms.
    pub(super) fn latest(&self, (from, until): (u64, u64)) -> u64 {
        let due = self.times.iter().filter(|(due, _)| (from..until).contains(due));
        due.map(|(_, late)| *late).max().unwrap()
    }

    /// Panics if, from one time to another, callbacks were more than twice as late as before, or
    /// those of any window [`WORST_MS_MAX`]; all times are in ms since the epoch.
    pub(super) fn assert_not_later(&self, before: (u64, u64), at_bound: (u64, u64), it: BoundTime) {
        self.assert_not_later_or(WORST_MS_MAX, before, at_bound, it);
    }

    /// The same, with another limit for the first window at the bound, in ms.
    pub(super) fn assert_not_later_or(
        &self,
        first_max: u64,
        before: (u64, u64),
        at_bound: (u64, u64),
        it: BoundTime,
    ) {
        let window = it.choose(4_000, 10_000);
        let [before, at_bound] = [before, at_bound].map(|span| self.p99s(span, window));
        eprintln!("  p99 of others in ms, before: {before:?}, at the bound: {at_bound:?}");
        for (window, p99) in at_bound.iter().copied().enumerate() {
            let most = if window == 0 { first_max } else { WORST_MS_MAX };
            assert!(p99 <= most, "p99 {p99} ms in a window");
        }
        let [before, at_bound] = [before, at_bound].map(median);
        let most = 2 * before + it.choose(NOISE_MS.0, NOISE_MS.1);
        assert!(at_bound <= most, "p99 {at_bound} ms at the bound, {before} ms before");
    }
}

fn median(mut p99s: Vec<u64>) -> u64 {
    p99s.sort_unstable();
    p99s[p99s.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 50 callbacks a second over 80 s, later from 40 s on.
    fn times(late_then: u64) -> SteadyTimes {
        let late = |due| if due < 40_000 { 18 } else { late_then };
        let times = (0..80_000).step_by(20).map(|due| (due, late(due))).collect();
        SteadyTimes { times, repeated: 0 }
    }

    #[test]
    fn twice_as_late_and_some_noise_is_allowed() {
        let long = BoundTime { seconds: 40, is_long: true };
        times(61).assert_not_later((0, 40_000), (40_000, 80_000), long);
    }

    #[test]
    #[should_panic(expected = "p99 62 ms at the bound, 18 ms before")]
    fn later_callbacks_are_found() {
        let long = BoundTime { seconds: 40, is_long: true };
        times(62).assert_not_later((0, 40_000), (40_000, 80_000), long);
    }

    #[test]
    #[should_panic(expected = "p99 1001 ms in a window")]
    fn one_window_with_late_callbacks_is_found() {
        let long = BoundTime { seconds: 40, is_long: true };
        let mut times = times(18);
        let late = times.times.iter_mut().filter(|(due, _)| (50_000..60_000).contains(due));
        late.for_each(|time| time.1 = 1_001);
        times.assert_not_later((0, 40_000), (40_000, 80_000), long);
    }
}
