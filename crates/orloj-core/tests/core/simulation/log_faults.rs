//! Faults of logs that take something away: retention that is too short, unclean elections, and
//! brokers that answer with what was true long ago.
//!
//! Invariant: what is lost by a fault is known to the checker.

use orloj_core::model::{BrokerId, Offset};

use super::cluster::{BROKERS, PARTITIONS, SimulatedCluster};
use super::fault_kinds::FaultKind;
use super::replay::DeletedOffsets;
use super::run::SimulationRun;

/// How many records a new leader lacks at most.
const MISSING_MAX: u64 = 6;

impl SimulationRun {
    /// Retention may delete records of `triggers` below `replay_from`, and signals below
    /// `next_signal_offset`.
    pub(super) fn delete_triggers(&mut self) {
        let p = self.cluster.rng.place(PARTITIONS);
        let Some(cursor) = self.cursor(p) else { return };
        let SimulatedCluster { broker, rng, counts, .. } = &mut *self.cluster;
        let low = rng.below(cursor.replay_from + 1).min(broker.triggers[p].high());
        if low > broker.triggers[p].low {
            broker.triggers[p].low = low;
            counts.add(FaultKind::TriggersDeleted);
        }
        broker.signals[p].low = broker.signals[p].low.max(rng.below(cursor.next_signal_offset + 1));
    }

    /// Retention is too short: it deletes what was not read yet, of one partition or of all. The
    /// lifecycles that depend on it are not judged, so there are none in such a run.
    pub(super) fn delete_unread(&mut self) {
        if self.cluster.rng.one_in(2) {
            let p = self.cluster.rng.place(PARTITIONS);
            return self.delete_unread_of(p);
        }
        self.cluster.counts.add(FaultKind::UnreadDeletedOfAll);
        (0..PARTITIONS).for_each(|p| self.delete_unread_of(p));
    }

    fn delete_unread_of(&mut self, p: usize) {
        let Some(cursor) = self.cursor(p).filter(|_| !self.cluster.has_lifecycles) else { return };
        let SimulatedCluster { broker, rng, counts, .. } = &mut *self.cluster;
        let DeletedOffsets { triggers, signals } = &mut self.deleted[p];
        let mut delete = |low: &mut Offset, needed: Offset, stable: Offset| {
            let cut = needed.min(stable) + rng.below(stable.saturating_sub(needed) + 1);
            let from = needed.max(*low);
            *low = cut.max(*low);
            (from < *low).then_some(from..*low)
        };
        let log = &mut broker.triggers[p];
        let stable = log.stable();
        triggers.extend(delete(&mut log.low, cursor.replay_from, stable));
        let log = &mut broker.signals[p];
        let stable = log.stable();
        signals.extend(delete(&mut log.low, cursor.next_signal_offset, stable));
        let unread =
            log.low > cursor.next_signal_offset || broker.triggers[p].low > cursor.next_offset;
        counts.add_many(FaultKind::UnreadDeleted, u64::from(unread));
    }

    /// A partition of `triggers` has a new leader that lacks its newest records, although they were
    /// acknowledged. The lifecycles that depend on them are not judged, so there are none in such a
    /// run.
    pub(super) fn cut_triggers(&mut self) {
        if self.cluster.has_lifecycles || !self.cluster.rng.one_in(4) {
            return;
        }
        let p = self.cluster.rng.place(PARTITIONS);
        let SimulatedCluster { broker, rng, counts, .. } = &mut *self.cluster;
        let (log, cut) = (&mut broker.triggers[p], &mut self.cut[p]);
        let (low, high) = (log.low, log.high());
        let end = high - rng.below((high - low).min(MISSING_MAX) + 1);
        for lost in log.cut(end) {
            let _known = cut.triggers.insert(String::from_utf8_lossy(&lost.key).into_owned());
        }
        cut.ranges.push(end..high);
        cut.end = Some(cut.end.map_or(end, |before| before.min(end)));
        counts.add(FaultKind::TriggersCut);
    }

    /// A partition of `triggers` has a new leader. It does not know yet how much of its log is
    /// committed: a reader reaches the end early, and the end offset is not available, or another
    /// broker answers that is asked.
    pub(super) fn lag_behind(&mut self) {
        let p = self.cluster.rng.place(PARTITIONS);
        let SimulatedCluster { broker, rng, lagging, another_answers, .. } = &mut *self.cluster;
        *another_answers = rng.one_in(2);
        let (low, high) = broker.bounds("triggers", p);
        let missing = rng.below(high - low + 1).min(30);
        lagging[p] = (high - missing, broker.now + rng.pick(&[5, 30]));
    }

    /// A broker that was the leader of a partition of an input answers for some time with the end
    /// offset of long ago.
    pub(super) fn answer_with_old_end(&mut self) {
        let p = self.cluster.rng.place(PARTITIONS);
        let SimulatedCluster { broker, rng, old_ends, .. } = &mut *self.cluster;
        let topic = rng.pick(&["signals", "triggers"]);
        let (low, high) = broker.bounds(topic, p);
        let (_end, until) =
            old_ends.entry((topic, p)).or_insert_with(|| (low + rng.below(high - low + 1), 0));
        *until = broker.now + rng.pick(&[5, 30]);
    }

    /// A broker does not say where logs end for some time. Often its partitions have another leader
    /// before that is over.
    pub(super) fn silence_leader(&mut self) {
        let SimulatedCluster { broker, rng, silent_leader, .. } = &mut *self.cluster;
        let leader = rng.pick(&BROKERS);
        *silent_leader = Some((leader, broker.now + rng.pick(&[5, 30, 200])));
    }

    /// A partition of our topics has another leader.
    pub(super) fn move_leader(&mut self) {
        let p = self.cluster.rng.place(PARTITIONS);
        let SimulatedCluster { rng, leaders, silent_leader, counts, .. } = &mut *self.cluster;
        let is_silent = |leader: &BrokerId| silent_leader.is_some_and(|(id, _)| id == *leader);
        let p = leaders.iter().position(is_silent).unwrap_or(p);
        let new = rng.pick(&BROKERS);
        counts.add_many(FaultKind::LeaderMoved, u64::from(new != leaders[p]));
        leaders[p] = new;
    }
}
