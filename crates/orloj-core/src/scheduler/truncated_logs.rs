//! Logs that seemed to end below the committed offset.
//!
//! Invariant: such a partition does not fire. It is taken over again from time to time: a broker
//! that lags behind, or is not the leader any more without knowing it, answers with an old end. But
//! a log that was truncated or created again has records below the committed offset that are newer
//! than the moment when it was seen to be shorter, and they would be passed over. Each takeover of
//! it, for whatever reason, looks for such records; if there are any, the partition waits for an
//! operator, however long the log becomes.

use std::collections::BTreeMap;
use std::time::Duration;

use super::config::SchedulerTiming;
use super::ms;
use crate::engine::takeover::TakeoverError;
use crate::model::{Offset, PartitionId, Timestamp};

/// The partitions with such a log. What another process does with them in between ends nothing.
#[derive(Debug)]
pub(super) struct TruncatedLogs {
    logs: BTreeMap<PartitionId, TruncatedLog>,
    /// How much later than by the clock of a broker it may be here.
    clock_skew: Duration,
    /// How long to wait before a partition is taken over again.
    retry: Duration,
}

#[derive(Debug)]
struct TruncatedLog {
    /// Why the last takeover was refused.
    refusal: TakeoverError,
    short: ShortLog,
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
        Self { logs: BTreeMap::new(), clock_skew, retry }
    }

    /// A takeover was refused at `now`, in ms since the epoch and on the monotonic clock.
    pub(super) fn on_refused(
        &mut self,
        id: PartitionId,
        refusal: &TakeoverError,
        now: (Timestamp, Duration),
    ) {
        let retry_at = now.1 + self.retry;
        let before = self.logs.remove(&id).map(|log| log.short);
        let short = match refusal {
            TakeoverError::TopicTruncated { topic, end, offset, .. } => {
                let (topic, end, offset) = (topic.clone(), *end, *offset);
                let new_from = now.0 + ms(self.clock_skew);
                Some(match before {
                    Some(short) if short.topic == topic => {
                        ShortLog { end: short.end.min(end), ..short }
                    }
                    _ => ShortLog { topic, end, offset, new_from },
                })
            }
            _ => before,
        };
        let refusal = refusal.clone();
        let log = short.map(|short| TruncatedLog { refusal, short, retry_at });
        self.logs.extend(log.map(|log| (id, log)));
    }

    /// The log of this partition that seemed to be shorter.
    pub(super) fn short_log(&self, id: PartitionId) -> Option<ShortLog> {
        self.logs.get(&id).map(|log| log.short.clone())
    }

    /// The partition is taken over.
    pub(super) fn on_taken_over(&mut self, id: PartitionId) {
        if let Some(log) = self.logs.remove(&id) {
            tracing::info!(partition = id, log.short.topic, "no longer shorter");
        }
    }

    /// Whether to take it over again at `now`, on the monotonic clock.
    pub(super) fn is_retry_due(&self, id: PartitionId, now: Duration) -> bool {
        self.logs.get(&id).is_some_and(|log| now >= log.retry_at)
    }

    /// Why a partition waits, for readiness.
    pub(super) fn reason(&self, id: PartitionId) -> Option<String> {
        self.logs.get(&id).map(|log| log.refusal.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn shorter(topic: &str, end: Offset, offset: Offset) -> TakeoverError {
        TakeoverError::TopicTruncated { partition: 3, topic: topic.to_owned(), end, offset }
    }

    fn short(topic: &str, end: Offset, offset: Offset, new_from: Timestamp) -> Option<ShortLog> {
        Some(ShortLog { topic: topic.to_owned(), end, offset, new_from })
    }

    #[test]
    fn a_log_is_new_from_the_moment_when_it_was_first_seen_to_be_shorter() {
        let mut logs = TruncatedLogs::new(&SchedulerTiming::default());
        logs.on_refused(3, &TakeoverError::MetadataDropped, (1_000, SECOND));
        assert_eq!((logs.short_log(3), logs.reason(3)), (None, None), "for another reason");
        logs.on_refused(3, &shorter("o.triggers", 5, 9), (10_000, SECOND));
        logs.on_refused(3, &shorter("o.triggers", 4, 12), (20_000, SECOND));
        logs.on_refused(3, &TakeoverError::MetadataDropped, (20_000, SECOND));
        assert_eq!(logs.short_log(3), short("o.triggers", 4, 9, 11_000));
        logs.on_refused(3, &shorter("o.signals", 6, 7), (30_000, SECOND));
        assert_eq!(logs.short_log(3), short("o.signals", 6, 7, 31_000), "another log");
        logs.on_taken_over(3);
        assert_eq!(logs.short_log(3), None);
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
