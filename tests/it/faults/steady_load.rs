//! A load that does not end: triggers with short and long delays, some of them cancelled or
//! replaced, at a steady rate for as long as a fault lasts.
//!
//! Invariant: what is stopped, and when, follows from the trigger's number.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use orloj::clock;

use super::background::beside;
use crate::load::{self, ScheduledStop};
use crate::test_cluster::TestCluster;
use crate::test_producer::{TargetHeader, TestProducer};
use crate::wait::within;

/// From the registration until it is due, in ms: through memory, disk and ledger.
const DELAYS: [u64; 7] = [1_000, 50, 2_500, 300, 4_000, 600, 3_500];
/// Triggers written between two looks at the clock.
const WRITES_PER_ROUND: u64 = 5;
/// The writes that are late by more are left out.
const CATCH_UP_MAX: Duration = Duration::from_millis(100);

/// Where a flow's triggers go, and how many a second.
pub(crate) struct SteadyLoad<'a> {
    pub(crate) cluster: &'a TestCluster,
    pub(crate) client: &'a TestProducer,
    pub(crate) per_second: u64,
    /// Every command asks for an answer; else only those that stop a trigger.
    pub(crate) ack: bool,
    /// Fires there and not into the target topic of the installation; nothing is stopped then.
    pub(crate) other: Option<TargetHeader<'a>>,
}

impl SteadyLoad<'_> {
    /// Flows for as long as `body` runs.
    pub(crate) fn during<T>(&self, body: impl FnOnce() -> T) -> T {
        beside(|ended| self.write(ended), body).0
    }

    fn write(&self, ended: &AtomicBool) {
        let pause = Duration::from_millis(1_000 * WRITES_PER_ROUND / self.per_second);
        let mut stops = BinaryHeap::<Reverse<ScheduledStop>>::new();
        let (mut next, mut next_at) = (0, clock::monotonic());
        while !ended.load(Relaxed) {
            for trigger in next..next + WRITES_PER_ROUND {
                let due = clock::now_ms() + DELAYS[trigger as usize % DELAYS.len()];
                match self.other {
                    Some(target) => {
                        let (id, payload) =
                            (format!("other-{trigger}"), format!("{{\"n\": {trigger}}}"));
                        self.client.register(&id, due, target, &payload, false);
                    }
                    None => {
                        load::register(self.cluster, self.client, trigger, due, self.ack);
                        stops.extend(load::stop(trigger, due).map(Reverse));
                    }
                }
            }
            next += WRITES_PER_ROUND;
            while let Some(Reverse(stop)) = stops.peek()
                && stop.at <= clock::now_ms()
            {
                stop.write(self.cluster, self.client);
                let _written = stops.pop();
            }
            let now = clock::monotonic();
            // A wait is longer than it says: what it delays is written at once, and not after a
            // pause of the broker.
            next_at = (next_at + pause).max(now.checked_sub(CATCH_UP_MAX).unwrap_or(now));
            let wait = next_at.saturating_duration_since(now);
            let _ended = within(wait, || ended.load(Relaxed).then_some(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_stops_must_win_and_some_come_too_late() {
        let delay = |trigger: u64| DELAYS[trigger as usize % DELAYS.len()];
        let stop = |trigger: u64| Some((delay(trigger), load::stop(trigger, 10_000)?.at));
        // By how much a stop is before the due time, if it is not already late when it is written.
        let before = |(delay, at): (u64, u64)| 10_000_u64.saturating_sub(at).min(delay);
        let before: Vec<_> = (0..1_000).filter_map(stop).map(before).collect();
        let in_time = before.iter().filter(|before| **before >= load::MARGIN + 200).count();
        let late = before.iter().filter(|before| **before == 0).count();
        assert!(in_time >= 20 && late >= 5, "{in_time} in time, {late} late, of {}", before.len());
    }
}
