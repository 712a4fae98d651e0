//! Whether the group has assigned partitions to this worker, and whether they can be read.
//!
//! Invariant: pure, time is an argument. The client reports an error of the brokers once, however
//! long it lasts, and does not report its end. So after an error the worker is ready for a few
//! seconds more, and then only if every partition has returned a record or its end since, and the
//! brokers have answered a question. A partition at its end returns nothing until it is read again
//! from where it was. That discards what is being fetched, so the pause until the next time grows.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::environment::call_error::{CallError, CallResult};
use crate::model::PartitionId;

/// For how long the brokers may fail. A partition has another leader within seconds.
const FAILURE_MAX: Duration = Duration::from_secs(5);
/// Pause before the brokers are asked again after a failure.
const QUESTION_RETRY_PAUSE: Duration = Duration::from_millis(200);

/// What makes a worker not ready, beside partitions whose committed progress is not known yet.
#[derive(Debug)]
pub(crate) struct WorkerReadiness {
    /// The group has assigned partitions; none, if it has more members than partitions.
    is_assigned: bool,
    /// Pause after a partition was read again for the first time.
    read_pause: Duration,
    /// The last error.
    error: String,
    /// The first error after which not everything has answered.
    failing_since: Option<Duration>,
    /// The partitions that have returned nothing since an error.
    unread: BTreeMap<PartitionId, NextRead>,
    question: Question,
}

/// When a partition is read again.
#[derive(Debug)]
struct NextRead {
    at: Duration,
    /// Until the time after that.
    pause: Duration,
}

/// A question to the brokers: the committed progress of a partition, and the bounds of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    /// It was answered after the last error.
    Answered,
    /// To be asked after a pause.
    Due(Duration),
    Asked,
    /// It was asked before the last error: its answer says nothing.
    Outdated,
}

impl WorkerReadiness {
    /// A worker without an assignment. An answer to a fetch takes at most `fetch_timeout`.
    pub(crate) fn new(fetch_timeout: Duration) -> Self {
        Self {
            is_assigned: false,
            read_pause: fetch_timeout * 2,
            error: String::new(),
            failing_since: None,
            unread: BTreeMap::new(),
            question: Question::Answered,
        }
    }

    /// Pause between two attempts to read a partition.
    pub(crate) fn read_pause(&self) -> Duration {
        self.read_pause
    }

    /// The group has assigned partitions, or none.
    pub(crate) fn assigned(&mut self) {
        self.is_assigned = true;
    }

    /// Nothing is assigned until the group assigns again.
    pub(crate) fn unassigned(&mut self) {
        self.is_assigned = false;
    }

    /// The reader has failed while it read these partitions. Those that had returned something
    /// since the error before are read again at once.
    pub(crate) fn on_error(
        &mut self,
        error: &CallError,
        partitions: impl IntoIterator<Item = PartitionId>,
        now: Duration,
    ) {
        self.error = error.to_string();
        self.failing_since.get_or_insert(now);
        for partition in partitions {
            let next = NextRead { at: now, pause: self.read_pause };
            self.unread.entry(partition).or_insert(next);
        }
        self.question = match self.question {
            Question::Asked | Question::Outdated => Question::Outdated,
            Question::Answered | Question::Due(_) => Question::Due(Duration::ZERO),
        };
    }

    /// A partition was read, or is not read any more.
    pub(crate) fn on_read(&mut self, partition: PartitionId) {
        if self.unread.remove(&partition).is_some() {
            self.check_end();
        }
    }

    /// How the brokers have answered.
    pub(crate) fn on_answer(&mut self, answer: CallResult<()>) {
        self.question = match (answer, self.question) {
            (Ok(()), Question::Asked) => Question::Answered,
            (Ok(()), _) => Question::Due(Duration::ZERO),
            (Err(error), _) => {
                self.error = error.to_string();
                Question::Due(QUESTION_RETRY_PAUSE)
            }
        };
        self.check_end();
    }

    fn check_end(&mut self) {
        if self.unread.is_empty() && self.question == Question::Answered {
            self.failing_since = None;
        }
    }

    /// The partitions to read again now.
    pub(crate) fn next_reads(&mut self, now: Duration) -> Vec<PartitionId> {
        let due = self.unread.iter_mut().filter(|(_, next)| next.at <= now);
        let again = due.map(|(partition, next)| {
            *next = NextRead { at: now + next.pause, pause: next.pause * 2 };
            *partition
        });
        again.collect()
    }

    /// After which pause the brokers are to be asked, if they are: then
    /// [`on_answer`](Self::on_answer) follows.
    pub(crate) fn next_question(&mut self) -> Option<Duration> {
        let Question::Due(pause) = self.question else { return None };
        self.question = Question::Asked;
        Some(pause)
    }

    /// Why the worker is not ready. `is_member`: its client is the member that was assigned.
    pub(crate) fn reason(&self, is_member: bool, now: Duration) -> Option<String> {
        if !self.is_assigned || !is_member {
            return Some("no group assignment".to_owned());
        }
        let since = self.failing_since?;
        let is_failing = now.saturating_sub(since) >= FAILURE_MAX;
        is_failing.then(|| format!("fires cannot be read: {}", self.error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000);
    const FETCH_TIMEOUT: Duration = Duration::from_secs(3);

    fn assigned() -> (WorkerReadiness, Duration) {
        let mut readiness = WorkerReadiness::new(FETCH_TIMEOUT);
        readiness.assigned();
        (readiness, NOW)
    }

    fn error() -> CallError {
        CallError::new("away")
    }

    fn answer(readiness: &mut WorkerReadiness) {
        assert!(readiness.next_question().is_some());
        readiness.on_answer(Ok(()));
    }

    #[test]
    fn a_worker_is_ready_without_partitions_only_if_the_group_has_assigned_none() {
        let (mut readiness, now) = (WorkerReadiness::new(FETCH_TIMEOUT), NOW);
        let reason = Some("no group assignment".to_owned());
        assert_eq!(readiness.reason(true, now), reason);
        readiness.assigned();
        assert_eq!(readiness.reason(true, now), None);
        assert_eq!(readiness.reason(false, now), reason, "it was expelled");
        readiness.unassigned();
        assert_eq!(readiness.reason(true, now), reason);
    }

    #[test]
    fn after_an_error_a_worker_is_ready_for_a_few_seconds() {
        let (mut readiness, now) = assigned();
        readiness.on_error(&error(), [1, 2], now);
        let almost = now + FAILURE_MAX.saturating_sub(Duration::from_millis(1));
        readiness.on_error(&error(), [1, 2], almost);
        assert_eq!(readiness.reason(true, almost), None);
        let reason = format!("fires cannot be read: {}", error());
        assert_eq!(readiness.reason(true, now + FAILURE_MAX), Some(reason));
    }

    #[test]
    fn what_is_being_fetched_has_time_to_arrive() {
        let (mut readiness, began) = assigned();
        readiness.on_error(&error(), [1, 2], began);
        assert_eq!(readiness.next_reads(began), [1, 2]);
        let mut now = began;
        for pause in [2, 4, 8] {
            readiness.on_error(&error(), [1, 2], now);
            let next = now + FETCH_TIMEOUT * pause;
            let almost = next.checked_sub(Duration::from_millis(1)).unwrap();
            assert!(readiness.next_reads(almost).is_empty(), "an answer may be on its way");
            assert_eq!(readiness.next_reads(next), [1, 2]);
            now = next;
        }
        readiness.on_read(2);
        readiness.on_error(&error(), [1, 2], now);
        assert_eq!(readiness.next_reads(now), [2], "it has returned something");
    }

    #[test]
    fn a_worker_is_ready_again_when_every_partition_was_read_and_the_brokers_have_answered() {
        let (mut readiness, now) = assigned();
        readiness.on_error(&error(), [1, 2], now);
        let later = now + FAILURE_MAX;
        answer(&mut readiness);
        readiness.on_read(3);
        readiness.on_read(2);
        assert!(readiness.reason(true, later).is_some(), "1 has returned nothing");
        readiness.on_read(1);
        assert_eq!(readiness.reason(true, later), None);
        readiness.on_error(&error(), [1], later);
        assert_eq!(readiness.reason(true, later), None, "the time is counted again");
        readiness.on_read(1);
        assert!(readiness.reason(true, later + FAILURE_MAX).is_some(), "no broker has answered");
    }

    #[test]
    fn a_worker_that_reads_nothing_asks_the_brokers_until_they_answer() {
        let (mut readiness, now) = assigned();
        assert_eq!(readiness.next_question(), None);
        readiness.on_error(&error(), [], now);
        let later = now + FAILURE_MAX;
        assert_eq!(readiness.next_question(), Some(Duration::ZERO));
        assert_eq!(readiness.next_question(), None, "it was asked");
        readiness.on_answer(Err(error()));
        assert!(readiness.reason(true, later).is_some());
        assert_eq!(readiness.next_question(), Some(QUESTION_RETRY_PAUSE));
        readiness.on_error(&error(), [], now);
        readiness.on_answer(Ok(()));
        assert!(readiness.reason(true, later).is_some(), "it was asked before the last error");
        answer(&mut readiness);
        assert_eq!(readiness.reason(true, later), None);
    }
}
