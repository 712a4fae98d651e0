//! Logs that seemed to end below the offset until which they were read.
//!
//! Invariant: a broker that lags behind, or is not the leader any more without knowing it, answers
//! with an old end. But a log that was truncated or created again has records below that offset
//! that are newer than the moment when it was first seen to be shorter, and they would be passed
//! over. So that moment is kept, until the log is seen not to be shorter and to have no such
//! records. Each takeover, for whatever reason, looks for them too. A partition whose `triggers` is
//! shorter than the committed offset does not fire, and is taken over again from time to time; one
//! that has such records waits for an operator, however long the log becomes.

use std::collections::BTreeMap;
use std::time::Duration;

use super::config::SchedulerTiming;
use super::ms;
use crate::engine::takeover::TakeoverError;
use crate::model::{Offset, PartitionId, Timestamp};

/// The partitions with such a log. What another process does with their `triggers` in between ends
/// nothing.
#[derive(Debug)]
pub(super) struct TruncatedLogs {
    /// By partition and topic.
    short: BTreeMap<(PartitionId, String), ShortLog>,
    /// Those that were not taken over.
    refused: BTreeMap<PartitionId, RefusedTakeover>,
    /// How much later than by the clock of a broker it may be here.
    clock_skew: Duration,
    /// How long to wait before a partition is taken over again.
    retry: Duration,
}

#[derive(Debug)]
struct RefusedTakeover {
    /// Why the last takeover was refused.
    refusal: TakeoverError,
    /// On the monotonic clock.
    retry_at: Duration,
}

/// A log that seemed to be shorter than it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShortLog {
    pub(super) topic: String,
    /// The lowest end that was seen.
    pub(super) end: Offset,
    /// Until where it was read.
    pub(super) offset: Offset,
    /// What has this timestamp or a later one was written after that, in ms since the epoch.
    pub(super) new_from: Timestamp,
}

impl TruncatedLogs {
    pub(super) fn new(timing: &SchedulerTiming) -> Self {
        let SchedulerTiming { clock_skew, truncated_retry: retry, .. } = *timing;
        Self { short: BTreeMap::new(), refused: BTreeMap::new(), clock_skew, retry }
    }

    /// A log seemed to end at `end` at `now`, in ms since the epoch, and was read until `offset`.
    pub(super) fn on_seen(
        &mut self,
        id: PartitionId,
        topic: &str,
        (end, offset): (Offset, Offset),
        now: Timestamp,
    ) {
        let new_from = now + ms(self.clock_skew);
        let new = ShortLog { topic: topic.to_owned(), end, offset, new_from };
        let short = self.short.entry((id, topic.to_owned())).or_insert(new);
        short.end = short.end.min(end);
    }

    /// It is not shorter, and no record was written to it again below that offset.
    pub(super) fn on_not_shorter(&mut self, id: PartitionId, topic: &str) {
        if let Some(short) = self.short.remove(&(id, topic.to_owned())) {
            tracing::info!(partition = id, topic, end = short.end, "no longer shorter");
        }
    }

    /// A takeover was refused at `now`, in ms since the epoch and on the monotonic clock.
    pub(super) fn on_refused(
        &mut self,
        id: PartitionId,
        refusal: &TakeoverError,
        now: (Timestamp, Duration),
    ) {
        if let TakeoverError::TopicTruncated { topic, end, offset, .. } = refusal {
            self.on_seen(id, topic, (*end, *offset), now.0);
        }
        if self.of(id).is_empty() {
            return;
        }
        let (refusal, retry_at) = (refusal.clone(), now.1 + self.retry);
        let _before = self.refused.insert(id, RefusedTakeover { refusal, retry_at });
    }

    /// A log that seemed to be shorter.
    pub(super) fn get(&self, id: PartitionId, topic: &str) -> Option<&ShortLog> {
        if self.short.is_empty() {
            return None; // nearly always
        }
        self.short.get(&(id, topic.to_owned()))
    }

    /// The logs of this partition that seemed to be shorter.
    pub(super) fn of(&self, id: PartitionId) -> Vec<ShortLog> {
        let of_partition = self.short.iter().filter(|((of, _), _)| *of == id);
        of_partition.map(|(_, short)| short.clone()).collect()
    }

    /// The partition is taken over.
    pub(super) fn on_taken_over(&mut self, id: PartitionId) {
        let _refused = self.refused.remove(&id);
    }

    /// Whether to take it over again at `now`, on the monotonic clock.
    pub(super) fn is_retry_due(&self, id: PartitionId, now: Duration) -> bool {
        self.refused.get(&id).is_some_and(|refused| now >= refused.retry_at)
    }

    /// Why a partition waits, for readiness.
    pub(super) fn reason(&self, id: PartitionId) -> Option<String> {
        self.refused.get(&id).map(|refused| refused.refusal.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_environment::clock::SECOND;
    const TRIGGERS: &str = "o.triggers";

    fn shorter(topic: &str, end: Offset, offset: Offset) -> TakeoverError {
        TakeoverError::TopicTruncated { partition: 3, topic: topic.to_owned(), end, offset }
    }

    fn short(topic: &str, end: Offset, offset: Offset, new_from: Timestamp) -> ShortLog {
        ShortLog { topic: topic.to_owned(), end, offset, new_from }
    }

    #[test]
    fn a_log_is_new_from_the_moment_when_it_was_first_seen_to_be_shorter() {
        let mut logs = TruncatedLogs::new(&SchedulerTiming::default());
        logs.on_refused(3, &TakeoverError::MetadataDropped, (1_000, SECOND));
        assert_eq!((logs.of(3), logs.reason(3)), (vec![], None), "for another reason");
        logs.on_seen(3, TRIGGERS, (5, 9), 10_000);
        assert_eq!(logs.reason(3), None, "no takeover was refused");
        logs.on_refused(3, &shorter(TRIGGERS, 4, 12), (20_000, SECOND));
        logs.on_refused(3, &TakeoverError::MetadataDropped, (20_000, SECOND));
        let triggers = short(TRIGGERS, 4, 9, 11_000);
        assert_eq!(logs.of(3), std::slice::from_ref(&triggers));
        logs.on_seen(3, "o.signals", (6, 7), 30_000);
        let signals = short("o.signals", 6, 7, 31_000);
        assert_eq!(logs.of(3), [signals.clone(), triggers], "another log");
        logs.on_not_shorter(3, TRIGGERS);
        assert_eq!((logs.get(3, TRIGGERS), logs.get(3, "o.signals")), (None, Some(&signals)));
        assert!(logs.reason(3).is_some(), "it is not taken over yet");
        logs.on_taken_over(3);
        assert_eq!((logs.reason(3), logs.of(3)), (None, vec![signals]));
    }

    #[test]
    fn it_is_looked_at_again_when_it_is_time() {
        let mut logs = TruncatedLogs::new(&SchedulerTiming::default());
        assert!(!logs.is_retry_due(3, SECOND * 9));
        logs.on_refused(3, &shorter("o.triggers", 5, 9), (0, SECOND));
        assert!(logs.reason(3).unwrap().contains("o.triggers ends at 5"));
        assert!(!logs.is_retry_due(3, SECOND * 5) && logs.is_retry_due(3, SECOND * 6));
        logs.on_refused(3, &TakeoverError::MetadataDropped, (0, SECOND * 6));
        assert!(!logs.is_retry_due(3, SECOND * 10) && logs.is_retry_due(3, SECOND * 11));
    }
}
