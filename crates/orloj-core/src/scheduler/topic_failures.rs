//! Target topics, and partitions of them, that have not taken a record.
//!
//! Invariant: a partition that has not acknowledged a record in time is left out, alone, until its
//! time is over and a look-up that was made since has an answer, whatever other answers say; and
//! for longer each time, until a record of that very partition is committed. If partitions of a
//! topic fail one after the other, and no record of it is committed meanwhile, each of them fails
//! the transactions of all topics: then the whole topic is left out for a time, and those that have
//! failed for longer. The number of failures that are remembered is limited.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::engine::catalog::TopicState;
use crate::model::PartitionId;

/// What fails again and again is left out for at most so many times the usual time.
const BACKOFF_MAX: u32 = 8;
/// How many failures are remembered, each of a topic or of a partition.
const REMEMBERED_MAX: usize = 10_000;
/// In place of a partition: all of the topic.
const WHOLE_TOPIC: PartitionId = -1;

/// All failures.
#[derive(Debug, Default)]
pub(super) struct TopicFailures(HashMap<String, FailuresOfTopic>);

/// How often a topic has not taken a record since one of its records was committed.
#[derive(Debug, Default)]
struct FailuresOfTopic {
    refused: u32,
    unauthorized: u32,
    /// Until then no look-up changes its state, on the monotonic clock.
    until: Duration,
    /// Those that have not acknowledged a record, and [`WHOLE_TOPIC`] while all are left out.
    partitions: BTreeMap<PartitionId, PartitionFailures>,
}

impl FailuresOfTopic {
    /// A partition has failed; returns until when it is left out.
    fn fail(&mut self, partition: PartitionId, length: Duration, now: Duration) -> Duration {
        let failures = self.partitions.entry(partition).or_default();
        failures.until = now + backoff(length, failures.undelivered);
        failures.undelivered = failures.undelivered.saturating_add(1);
        (failures.is_over, failures.is_latest) = (false, true);
        failures.until
    }

    /// The whole topic is left out, and what has failed until other partitions had their turn.
    fn fail_whole(&mut self, length: Duration, now: Duration) -> Duration {
        let until = self.fail(WHOLE_TOPIC, length, now);
        for (_, failures) in self.partitions.range_mut(0..) {
            failures.until = failures.until.max(until + length * BACKOFF_MAX);
            failures.is_over = false;
        }
        until
    }

    /// When the time of the first of its failures is over.
    fn first_end(&self) -> Duration {
        let partitions = self.partitions.values().map(|partition| partition.until);
        partitions.min().unwrap_or(self.until)
    }
}

/// How often a partition has not acknowledged a record since one of its records was committed.
#[derive(Debug, Default)]
struct PartitionFailures {
    undelivered: u32,
    /// It is left out at least until then, on the monotonic clock.
    until: Duration,
    /// A look-up since then has an answer.
    is_over: bool,
    /// No record of the topic was committed since it has failed.
    is_latest: bool,
}

/// For how long something is left out that has failed so many times before.
pub(super) fn backoff(length: Duration, before: u32) -> Duration {
    length * 1_u32.checked_shl(before).unwrap_or(BACKOFF_MAX).clamp(1, BACKOFF_MAX)
}

impl TopicFailures {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, topic: &str) -> bool {
        self.0.contains_key(topic)
    }

    /// Whether no look-up changes the state of this topic now.
    pub(super) fn is_blocked(&self, topic: &str, now: Duration) -> bool {
        self.0.get(topic).is_some_and(|failures| now < failures.until)
    }

    /// No look-up changes the state of this topic until then, if it has failed.
    pub(super) fn block_until(&mut self, topic: &str, until: Duration) {
        if let Some(failures) = self.0.get_mut(topic) {
            failures.until = until;
        }
    }

    /// The topic has refused a record. Returns how often it has.
    pub(super) fn on_refused(&mut self, topic: &str, now: Duration) -> u32 {
        let refused = &mut self.of_topic(topic, now).refused;
        *refused = refused.saturating_add(1);
        *refused
    }

    /// A transaction with a record of the topic was refused. Returns how often that happened.
    pub(super) fn on_unauthorized(&mut self, topic: &str, now: Duration) -> u32 {
        let unauthorized = &mut self.of_topic(topic, now).unauthorized;
        *unauthorized = unauthorized.saturating_add(1);
        *unauthorized
    }

    /// A partition has not acknowledged a record in time: it is left out for `length`, and longer
    /// if that is repeated; with the whole topic, if it is not the only one, or it is not known
    /// which it is. Returns until when.
    pub(super) fn on_undelivered(
        &mut self,
        (topic, partition): (&str, PartitionId),
        length: Duration,
        now: Duration,
    ) -> Duration {
        let failures = self.of_topic(topic, now);
        let mut others = failures.partitions.range(0..).filter(|(id, _)| **id != partition);
        let is_one_of_many = others.any(|(_, other)| other.is_latest);
        if partition < 0 {
            return failures.fail_whole(length, now);
        }
        let until = failures.fail(partition, length, now);
        if is_one_of_many { failures.fail_whole(length, now) } else { until }
    }

    /// A look-up of this topic that was made at `asked_at` has an answer.
    pub(super) fn on_answer(&mut self, topic: &str, asked_at: Duration) {
        let Some(failures) = self.0.get_mut(topic) else { return };
        for partition in failures.partitions.values_mut() {
            partition.is_over |= asked_at >= partition.until;
        }
    }

    /// A record of this partition is committed: its topic takes records.
    pub(super) fn on_committed(&mut self, topic: &str, partition: PartitionId) {
        let Some(failures) = self.0.get_mut(topic) else { return };
        (failures.refused, failures.unauthorized) = (0, 0);
        failures.until = Duration::ZERO;
        failures.partitions.retain(|id, _| *id != WHOLE_TOPIC && *id != partition);
        failures.partitions.values_mut().for_each(|failures| failures.is_latest = false);
        if failures.partitions.is_empty() {
            let _recovered = self.0.remove(topic);
        }
    }

    /// When the first partition of this topic that is left out may be looked up for its return.
    pub(super) fn first_until(&self, topic: &str) -> Option<Duration> {
        let partitions = self.0.get(topic)?.partitions.values();
        partitions.filter(|partition| !partition.is_over).map(|partition| partition.until).min()
    }

    /// The state of a topic for fires, if a look-up has shown `state`: without the partitions that
    /// are left out.
    pub(super) fn applied_to(&self, topic: &str, state: &TopicState) -> TopicState {
        let TopicState::Usable { partitions, record_bytes_max, unavailable } = state else {
            return state.clone();
        };
        let Some(failures) = self.0.get(topic) else { return state.clone() };
        let left_out = failures.partitions.iter().filter(|(_, partition)| !partition.is_over);
        let mut left_out = left_out.map(|(id, _)| *id).peekable();
        if left_out.peek() == Some(&WHOLE_TOPIC) {
            return TopicState::Unavailable(format!(
                "topic {topic} has not taken a record in time"
            ));
        }
        TopicState::Usable {
            partitions: *partitions,
            record_bytes_max: *record_bytes_max,
            unavailable: unavailable.iter().chain(left_out).collect(),
        }
    }

    /// The failures of a topic. If there are too many, those whose time is over are forgotten, and
    /// then the one whose time is over first.
    fn of_topic(&mut self, topic: &str, now: Duration) -> &mut FailuresOfTopic {
        if self.remembered() >= REMEMBERED_MAX {
            self.retain(|until| now < until);
        }
        if self.remembered() >= REMEMBERED_MAX {
            let first = self.0.values().map(FailuresOfTopic::first_end).min();
            let mut is_left = true;
            self.retain(|until| Some(until) != first || !std::mem::take(&mut is_left));
        }
        self.0.entry(topic.to_owned()).or_default()
    }

    /// How many failures are remembered.
    fn remembered(&self) -> usize {
        self.0.values().map(|failures| failures.partitions.len().max(1)).sum()
    }

    /// Remembers only those of which `stays` is true, by when their time is over.
    fn retain(&mut self, mut stays: impl FnMut(Duration) -> bool) {
        self.0.retain(|_, failures| {
            failures.partitions.retain(|_, partition| stays(partition.until));
            let is_of_topic = failures.refused > 0 || failures.unauthorized > 0;
            !failures.partitions.is_empty() || is_of_topic && stays(failures.until)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The partitions of a topic that are left out.
    fn left_out(failures: &TopicFailures, topic: &str) -> Vec<PartitionId> {
        match failures.applied_to(topic, &TopicState::usable(1 << 20, 1_000)) {
            TopicState::Usable { unavailable, .. } => unavailable.iter().collect(),
            state => panic!("{state:?}"),
        }
    }

    #[test]
    fn of_too_many_failures_those_are_forgotten_whose_time_is_over_and_then_the_first_to_be() {
        let mut failures = TopicFailures::default();
        let topic = |n: usize| format!("topic-{n}");
        let half = REMEMBERED_MAX / 2;
        for n in 0..half {
            failures.on_undelivered((&topic(n), 7), SECOND, Duration::ZERO);
            failures.on_undelivered(("wide", n as PartitionId), SECOND * 2, Duration::ZERO);
            failures.on_committed("wide", PartitionId::MAX);
        }
        assert_eq!(failures.remembered(), REMEMBERED_MAX);
        failures.on_undelivered(("later", 0), SECOND, SECOND / 2);
        assert_eq!(failures.remembered(), REMEMBERED_MAX, "one is forgotten, of the first to end");
        assert_eq!((0..half).filter(|n| failures.contains(&topic(*n))).count(), half - 1);
        assert_eq!(left_out(&failures, "later"), [0]);
        failures.on_undelivered(("wide", half as PartitionId), SECOND, SECOND);
        assert_eq!(failures.remembered(), half + 2, "those that end now are forgotten");
        assert!(failures.contains("wide") && failures.contains("later"));
        assert_eq!(left_out(&failures, "wide").len(), half + 1);
    }

    #[test]
    fn the_time_of_a_topic_that_refuses_records_counts_among_too_many() {
        let mut failures = TopicFailures::default();
        assert_eq!(failures.on_refused("refusing", Duration::ZERO), 1);
        failures.block_until("refusing", SECOND * 3);
        for n in 1..REMEMBERED_MAX {
            failures.on_undelivered(("wide", n as PartitionId), SECOND, Duration::ZERO);
            failures.on_committed("wide", PartitionId::MAX);
        }
        failures.on_undelivered(("other", 1), SECOND, SECOND * 2);
        assert_eq!(failures.remembered(), 2);
        assert!(failures.is_blocked("refusing", SECOND * 2));
        assert!(!failures.is_blocked("refusing", SECOND * 3));
        assert_eq!(failures.on_refused("refusing", SECOND * 2), 2);
    }

    /// Whether fires wait for all of the topic.
    fn is_left_out(failures: &TopicFailures, topic: &str) -> bool {
        let state = failures.applied_to(topic, &TopicState::usable(1 << 20, 1_000));
        matches!(state, TopicState::Unavailable(_))
    }

    /// Each of its transactions would fail, and with it those of all topics.
    #[test]
    fn a_topic_whose_partitions_fail_one_after_the_other_is_left_out_as_a_whole_for_a_time() {
        let mut failures = TopicFailures::default();
        let fail = |failures: &mut TopicFailures, partition, now| {
            failures.on_undelivered(("a", partition), SECOND, now)
        };
        assert_eq!(fail(&mut failures, 0, SECOND), SECOND * 2);
        assert_eq!(fail(&mut failures, 0, SECOND * 9), SECOND * 11, "the same one");
        assert!(!is_left_out(&failures, "a"));
        let mut now = SECOND * 19;
        for (partition, factor) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 8)] {
            let until = now + SECOND * factor;
            assert_eq!(fail(&mut failures, partition, now), until);
            failures.on_answer("a", until - SECOND / 2);
            assert!(is_left_out(&failures, "a"), "{partition}");
            // The others have their turn, and those that have failed do not.
            failures.on_answer("a", until);
            assert_eq!(left_out(&failures, "a").len(), 1 + partition as usize);
            now = until + SECOND * 7;
        }
        failures.on_committed("a", 6);
        failures.on_answer("a", now);
        assert_eq!(left_out(&failures, "a").len(), 6, "their time is not over");
        failures.on_answer("a", now + SECOND);
        assert_eq!(left_out(&failures, "a"), [] as [PartitionId; 0]);
        // A record of it was committed.
        let _until = fail(&mut failures, 3, now);
        assert!(!is_left_out(&failures, "a"));
        assert_eq!(left_out(&failures, "a"), [3]);
        // All that have failed and not recovered are left out again.
        let _until = fail(&mut failures, 4, now);
        assert!(is_left_out(&failures, "a"));
        failures.on_answer("a", now + SECOND);
        assert_eq!(left_out(&failures, "a"), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_record_of_a_partition_that_is_not_known_counts_for_the_whole_topic() {
        let mut failures = TopicFailures::default();
        failures.on_undelivered(("a", 0), SECOND, Duration::ZERO);
        failures.on_committed("a", 9);
        failures.on_answer("a", SECOND);
        let until = failures.on_undelivered(("a", -1), SECOND, SECOND * 2);
        assert!(is_left_out(&failures, "a"));
        failures.on_answer("a", until);
        assert_eq!(left_out(&failures, "a"), [0], "it may be the one that has failed before");
        failures.on_committed("a", 0);
        assert!(failures.is_empty());
    }

    #[test]
    fn what_a_look_up_shows_and_what_has_failed_is_left_out_together() {
        let mut failures = TopicFailures::default();
        failures.on_undelivered(("a", 1), SECOND, Duration::ZERO);
        failures.on_committed("a", 0);
        let unavailable = [0, 1].into_iter().collect();
        let shown = TopicState::Usable { partitions: 3, record_bytes_max: 9, unavailable };
        assert_eq!(failures.applied_to("a", &shown), shown);
        failures.on_undelivered(("a", 2), SECOND, Duration::ZERO);
        let unavailable = [0, 1, 2].into_iter().collect();
        let both = TopicState::Usable { partitions: 3, record_bytes_max: 9, unavailable };
        assert_eq!(failures.applied_to("a", &shown), both);
        assert_eq!(failures.applied_to("b", &shown), shown);
        for state in [TopicState::Unknown, TopicState::Unusable("denied".to_owned())] {
            assert_eq!(failures.applied_to("a", &state), state);
        }
    }
}
