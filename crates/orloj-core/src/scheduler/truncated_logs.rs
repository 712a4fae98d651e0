//! Logs that seemed to end below the committed offset.
//!
//! Invariant: such a partition does not fire. It is taken over again from time to time: a broker
//! that lags behind, or is not the leader any more without knowing it, answers with an old end,
//! which does not grow. A log that grows while it is shorter was truncated or created again: its
//! new records have offsets below the committed one and would be passed over, so that partition
//! waits for an operator, however long the log becomes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::engine::takeover::TakeoverError;
use crate::model::{Offset, PartitionId};

/// The partitions with such a log.
#[derive(Debug, Default)]
pub(super) struct TruncatedLogs(BTreeMap<PartitionId, TruncatedLog>);

#[derive(Debug)]
struct TruncatedLog {
    refusal: TakeoverError,
    topic: String,
    end: Offset,
    has_grown: bool,
    /// On the monotonic clock.
    retry_at: Duration,
}

impl TruncatedLogs {
    /// A takeover was refused. Does nothing if that was for another reason.
    pub(super) fn on_refused(
        &mut self,
        id: PartitionId,
        refusal: &TakeoverError,
        retry_at: Duration,
    ) {
        let TakeoverError::TopicTruncated { topic, end, .. } = refusal else { return };
        let grows =
            |before: &TruncatedLog| before.has_grown || before.topic == *topic && *end > before.end;
        let has_grown = self.0.get(&id).is_some_and(grows);
        let (refusal, topic, end) = (refusal.clone(), topic.clone(), *end);
        let log = TruncatedLog { refusal, topic, end, has_grown, retry_at };
        let _before = self.0.insert(id, log);
    }

    /// The partition is taken over.
    pub(super) fn on_taken_over(&mut self, id: PartitionId) {
        if let Some(log) = self.0.remove(&id) {
            tracing::info!(partition = id, log.topic, log.end, "no longer shorter");
        }
    }

    /// The partition is no longer ours.
    pub(super) fn forget(&mut self, id: PartitionId) {
        let _log = self.0.remove(&id);
    }

    /// Whether to take it over again at `now`, on the monotonic clock.
    pub(super) fn is_retry_due(&self, id: PartitionId, now: Duration) -> bool {
        self.0.get(&id).is_some_and(|log| !log.has_grown && now >= log.retry_at)
    }

    /// Why a partition waits, for readiness.
    pub(super) fn reason(&self) -> Option<String> {
        self.0.values().next().map(|log| log.refusal.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn refused_at(ends: &[Offset]) -> TruncatedLogs {
        let mut logs = TruncatedLogs::default();
        for end in ends {
            let topic = "o.triggers".to_owned();
            let refusal =
                TakeoverError::TopicTruncated { partition: 3, topic, end: *end, offset: 9 };
            logs.on_refused(3, &refusal, SECOND);
        }
        logs
    }

    #[test]
    fn a_log_that_does_not_grow_is_tried_again_when_it_is_time() {
        let mut logs = refused_at(&[5, 5]);
        assert!(!logs.is_retry_due(3, SECOND / 2) && logs.is_retry_due(3, SECOND));
        assert!(logs.reason().unwrap().contains("o.triggers ends at 5"));
        logs.on_taken_over(3);
        assert!(!logs.is_retry_due(3, SECOND) && logs.reason().is_none());
    }

    #[test]
    fn a_log_that_has_grown_waits_for_an_operator() {
        assert!(!refused_at(&[5, 6]).is_retry_due(3, SECOND * 9));
        assert!(!refused_at(&[5, 6, 6]).is_retry_due(3, SECOND * 9));
    }
}
