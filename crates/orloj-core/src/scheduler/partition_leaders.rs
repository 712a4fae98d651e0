//! Who leads the partitions of an input log, and when that is asked for.
//!
//! Invariant: a known leader says only with which others a partition is asked for: it may be wrong,
//! and proves nothing. At most one question is in flight, and while there is doubt one is sent in
//! each interval. A partition is not asked for while it has no leader.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::{BrokerId, PartitionId};

/// For how long leaders are asked for at the shorter interval: a cluster that can replace a leader
/// has done so by then. After that a leader may be missing for hours.
const SHORT_INTERVALS: Duration = Duration::from_secs(30);
/// The interval after that.
const LONG_INTERVAL: Duration = Duration::from_secs(1);
/// After so long without a question, the shorter interval is used again.
const QUIET_AFTER: Duration = Duration::from_secs(10);

/// The leaders of one log.
#[derive(Debug, Default)]
pub(super) struct PartitionLeaders {
    known: BTreeMap<PartitionId, BrokerId>,
    /// When they were last asked for, and first in this time of doubt, on the monotonic clock.
    asked_at: Option<Duration>,
    asked_first_at: Duration,
    is_asking: bool,
    /// Since they were last asked for, something says that they may be others.
    is_in_doubt: bool,
}

impl PartitionLeaders {
    /// The leader of a partition, as far as is known.
    pub(super) fn of(&self, partition: PartitionId) -> Option<BrokerId> {
        self.known.get(&partition).copied()
    }

    /// A leader is not known, or does not answer.
    pub(super) fn doubt(&mut self) {
        self.is_in_doubt = true;
    }

    /// Whether the leaders must be asked for at `now` on the monotonic clock. The caller does it.
    pub(super) fn ask(&mut self, now: Duration, interval: Duration) -> bool {
        if self.is_asking || !self.is_in_doubt {
            return false;
        }
        if self.asked_at.is_none_or(|at| now >= at + QUIET_AFTER) {
            self.asked_first_at = now;
        }
        let is_short = now < self.asked_first_at + SHORT_INTERVALS;
        let interval = if is_short { interval } else { interval.max(LONG_INTERVAL) };
        let asks = self.asked_at.is_none_or(|at| now >= at + interval);
        if asks {
            (self.asked_at, self.is_asking, self.is_in_doubt) = (Some(now), true, false);
        }
        asks
    }

    /// The answer, if there was one. A partition whose leader is known may have another one, or
    /// none, only if `may_move` says so: an answer may be older than what is known. Returns those
    /// of which another leader was known, or none.
    pub(super) fn on_answer(
        &mut self,
        leaders: Option<BTreeMap<PartitionId, BrokerId>>,
        may_move: impl Fn(PartitionId) -> bool,
    ) -> BTreeSet<PartitionId> {
        self.is_asking = false;
        let Some(leaders) = leaders else {
            self.is_in_doubt = true;
            return BTreeSet::new();
        };
        let has_moved = |id: &PartitionId| {
            let (known, found) = (self.of(*id), leaders.get(id).copied());
            known != found && (known.is_none() || may_move(*id))
        };
        let all: BTreeSet<_> = self.known.keys().chain(leaders.keys()).copied().collect();
        let moved: BTreeSet<_> = all.into_iter().filter(has_moved).collect();
        self.known.retain(|id, _| !moved.contains(id));
        self.known.extend(leaders.into_iter().filter(|(id, _)| moved.contains(id)));
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(200);

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn leaders_are_asked_for_once_in_an_interval_while_there_is_doubt() {
        let mut leaders = PartitionLeaders::default();
        assert!(!leaders.ask(at(0), INTERVAL), "there is no doubt");
        leaders.doubt();
        assert!(leaders.ask(at(0), INTERVAL));
        leaders.doubt();
        assert!(!leaders.ask(at(500), INTERVAL), "the question is in flight");
        assert!(leaders.on_answer(None, |_| true).is_empty());
        assert!(leaders.ask(at(500), INTERVAL), "it was not answered");
        let _moved = leaders.on_answer(Some(BTreeMap::new()), |_| true);
        assert!(!leaders.ask(at(900), INTERVAL), "there is no doubt any more");
        leaders.doubt();
        assert!(leaders.ask(at(900), INTERVAL));
        let _moved = leaders.on_answer(Some(BTreeMap::new()), |_| true);
        leaders.doubt();
        assert!(!leaders.ask(at(1_099), INTERVAL) && leaders.ask(at(1_100), INTERVAL));
    }

    #[test]
    fn leaders_that_are_in_doubt_for_long_are_asked_for_less_often_until_there_was_none() {
        let mut leaders = PartitionLeaders::default();
        let asked_in = |leaders: &mut PartitionLeaders, from: u64, until: u64| {
            let asks = |now: &u64| {
                leaders.doubt();
                let asks = leaders.ask(at(*now), INTERVAL);
                let _moved = leaders.on_answer(Some(BTreeMap::new()), |_| true);
                asks
            };
            (from..until).step_by(100).filter(asks).count()
        };
        assert_eq!(asked_in(&mut leaders, 0, 30_000), 150);
        assert_eq!(asked_in(&mut leaders, 30_000, 40_000), 10);
        assert_eq!(asked_in(&mut leaders, 50_000, 60_000), 50, "there was no doubt for 10 s");
    }

    #[test]
    fn a_partition_has_the_leader_that_was_named_last_if_it_may_move() {
        let mut leaders = PartitionLeaders::default();
        let moved = leaders.on_answer(Some([(0, 1), (1, 1), (2, 1)].into()), |_| false);
        assert_eq!(moved, BTreeSet::from([0, 1, 2]), "none was known");
        let moved = leaders.on_answer(Some([(0, 1), (1, 2), (2, 2)].into()), |id| id != 2);
        assert_eq!(moved, BTreeSet::from([1]));
        assert_eq!([0, 1, 2, 3].map(|id| leaders.of(id)), [Some(1), Some(2), Some(1), None]);
        let moved = leaders.on_answer(Some(BTreeMap::new()), |id| id != 2);
        assert_eq!(moved, BTreeSet::from([0, 1]), "they have no leader");
        assert_eq!([0, 1, 2].map(|id| leaders.of(id)), [None, None, Some(1)]);
    }
}
