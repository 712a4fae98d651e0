//! Target topics, and partitions of them, that have not taken a record.
//!
//! Invariant: a partition that has not acknowledged a record in time is left out, alone, until its
//! time is over and a look-up that was made since has an answer, whatever other answers say; and
//! for longer each time, until a record of that very partition is committed. Those of a topic
//! return one at a time: the next one when a record of the last is committed, or its turn is over
//! without one. If one fails again, the others that have returned without a record are left out
//! too, and none returns for a time, which grows; partitions that have not failed go on. If
//! partitions fail one after the other that have not failed before, and no record of the topic is
//! committed meanwhile, each of them fails the transactions of all topics: then the whole topic is
//! left out for a time, and those that have failed for longer. The number of failures that are
//! remembered is limited.

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
    unusable: u32,
    /// Until then no look-up changes its state, on the monotonic clock.
    until: Duration,
    /// How often a partition has not acknowledged a record since one that had failed recovered.
    undelivered: u32,
    /// For how long no other one returns after a partition, if no record of that is committed.
    turn: Duration,
    /// No partition returns before, on the monotonic clock.
    next_return_at: Duration,
    /// Those that have not acknowledged a record, and [`WHOLE_TOPIC`] while all are left out.
    partitions: BTreeMap<PartitionId, PartitionFailures>,
}

impl FailuresOfTopic {
    /// A partition has failed; returns until when it is left out.
    fn fail(&mut self, partition: PartitionId, length: Duration, now: Duration) -> Duration {
        let failures = self.partitions.entry(partition).or_default();
        failures.until = now + backoff(length, failures.undelivered);
        failures.is_latest |= failures.undelivered == 0;
        failures.undelivered = failures.undelivered.saturating_add(1);
        failures.is_over = false;
        failures.shown = Shown::Nothing;
        failures.until
    }

    /// A partition that has failed before has failed again. Others that have returned may be as it
    /// is: each would fail a transaction.
    fn fail_again(&mut self, partition: PartitionId, length: Duration, now: Duration) -> Duration {
        self.partitions.range_mut(0..).for_each(|(_, other)| other.is_over = false);
        self.next_return_at = now + backoff(length, self.undelivered);
        self.undelivered = self.undelivered.saturating_add(1);
        self.fail(partition, length, now)
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

    /// A look-up at `asked_at` has an answer: the partition returns whose time was over first.
    fn let_one_return(&mut self, asked_at: Duration) {
        if asked_at < self.next_return_at {
            return;
        }
        let waiting = self.partitions.range_mut(0..).map(|(_, partition)| partition);
        let is_back =
            |partition: &&mut PartitionFailures| !partition.is_over && asked_at >= partition.until;
        if let Some(first) = waiting.filter(is_back).min_by_key(|partition| partition.until) {
            first.is_over = true;
            self.next_return_at = asked_at + self.turn;
        }
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
    /// A look-up since then has an answer, and it was its turn.
    is_over: bool,
    /// No record of the topic was committed since it has failed for the first time.
    is_latest: bool,
    /// What the answers since it has failed show.
    shown: Shown,
}

/// What look-ups have shown of a partition since it has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Shown {
    /// Nothing that differs from before.
    #[default]
    Nothing,
    Unavailable,
    /// It was unavailable, and is not any more.
    Back,
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
    pub(super) fn on_unusable(&mut self, topic: &str, now: Duration) -> u32 {
        let unusable = &mut self.of_topic(topic, now).unusable;
        *unusable = unusable.saturating_add(1);
        *unusable
    }

    /// A partition has not acknowledged a record in time: it is left out for `length`, and longer
    /// if that is repeated; with the whole topic, if it is one after the other, or it is not known
    /// which it is. Returns until when.
    pub(super) fn on_undelivered(
        &mut self,
        (topic, partition): (&str, PartitionId),
        length: Duration,
        now: Duration,
    ) -> Duration {
        let failures = self.of_topic(topic, now);
        failures.turn = length * BACKOFF_MAX;
        if partition < 0 {
            return failures.fail_whole(length, now);
        }
        if failures.partitions.contains_key(&partition) {
            return failures.fail_again(partition, length, now);
        }
        let mut others = failures.partitions.range(0..);
        let is_one_of_many = others.any(|(_, other)| other.is_latest);
        failures.undelivered = failures.undelivered.saturating_add(1);
        let until = failures.fail(partition, length, now);
        if is_one_of_many { failures.fail_whole(length, now) } else { until }
    }

    /// A partition that is left out is so at least until then, unless it was shown to be back.
    pub(super) fn leave_out_until(
        &mut self,
        (topic, partition): (&str, PartitionId),
        until: Duration,
    ) {
        let Some(failures) = self.0.get_mut(topic) else { return };
        if let Some(partition) = failures.partitions.get_mut(&partition.max(WHOLE_TOPIC))
            && partition.shown != Shown::Back
        {
            partition.until = partition.until.max(until);
        }
    }

    /// A look-up of this topic that was made at `asked_at` shows this.
    pub(super) fn on_answer(&mut self, topic: &str, asked_at: Duration, state: &TopicState) {
        let Some(failures) = self.0.get_mut(topic) else { return };
        if let TopicState::Usable { unavailable, .. } = state {
            for (id, partition) in failures.partitions.range_mut(0..) {
                partition.shown = match partition.shown {
                    _ if unavailable.contains(*id) => Shown::Unavailable,
                    Shown::Unavailable => Shown::Back,
                    shown => shown,
                };
            }
        }
        if let Some(whole) = failures.partitions.get_mut(&WHOLE_TOPIC) {
            whole.is_over |= asked_at >= whole.until;
        }
        failures.let_one_return(asked_at);
    }

    /// A record of this partition is committed: its topic takes records.
    pub(super) fn on_committed(&mut self, topic: &str, partition: PartitionId) {
        let Some(failures) = self.0.get_mut(topic) else { return };
        (failures.refused, failures.unusable) = (0, 0);
        failures.until = Duration::ZERO;
        if failures.partitions.contains_key(&partition) {
            (failures.undelivered, failures.next_return_at) = (0, Duration::ZERO);
        }
        failures.partitions.retain(|id, _| *id != WHOLE_TOPIC && *id != partition);
        failures.partitions.values_mut().for_each(|failures| failures.is_latest = false);
        if failures.partitions.is_empty() {
            let _recovered = self.0.remove(topic);
        }
    }

    /// When the first partition of this topic that is left out may be looked up for its return.
    pub(super) fn first_until(&self, topic: &str) -> Option<Duration> {
        let failures = self.0.get(topic)?;
        let left_out = failures.partitions.iter().filter(|(_, partition)| !partition.is_over);
        let until = left_out.map(|(id, partition)| match *id {
            WHOLE_TOPIC => partition.until,
            _ => partition.until.max(failures.next_return_at),
        });
        until.min()
    }

    /// Whether this partition of the topic is left out, alone or with the whole topic.
    pub(super) fn is_left_out(&self, topic: &str, partition: PartitionId) -> bool {
        let Some(failures) = self.0.get(topic) else { return false };
        [WHOLE_TOPIC, partition].iter().any(|id| {
            let failures = failures.partitions.get(id);
            failures.is_some_and(|partition| !partition.is_over)
        })
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
            let is_of_topic = failures.refused > 0 || failures.unusable > 0;
            !failures.partitions.is_empty() || is_of_topic && stays(failures.until)
        });
    }
}

#[cfg(test)]
#[path = "topic_failures/tests.rs"]
mod tests;
