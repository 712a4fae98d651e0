//! Whether what a process reads can be read after an error of the brokers.
//!
//! Invariant: pure, time is an argument. The client reports an error of the brokers once, however
//! long it lasts, and does not report its end. So after an error all can be read for a few seconds
//! more, and then only if every partition has returned a record or its end since, and the brokers
//! have answered a question, if one is asked. They answer it although a topic may not be read. A
//! partition at its end returns nothing until it is read again from where it was. That discards
//! what is being fetched, so the pause until the next time grows.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

/// For how long the brokers may fail. A partition has another leader within seconds.
pub const FAILURE_MAX: Duration = Duration::from_secs(5);
/// Pause before the brokers are asked again after a failure.
const QUESTION_RETRY_PAUSE: Duration = Duration::from_millis(200);

/// What has returned nothing since an error. `K` names a partition.
#[derive(Debug)]
pub struct ReadRecovery<K> {
    /// From an error until a partition is read again for the first time.
    first_pause: Duration,
    /// From then until the second time.
    read_pause: Duration,
    /// The brokers are asked, too.
    asks: bool,
    /// The last error.
    error: String,
    /// The first error after which not everything has answered.
    failing_since: Option<Duration>,
    unread: BTreeMap<K, NextRead>,
    question: BrokerQuestion,
}

/// When a partition is read again.
#[derive(Debug)]
struct NextRead {
    at: Duration,
    /// Until the time after that.
    pause: Duration,
}

/// A question to the brokers about what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BrokerQuestion {
    /// It was answered after the last error.
    Answered,
    /// To be asked at this time.
    Due(Duration),
    Asked,
    /// It was asked before the last error: its answer says nothing.
    Outdated,
}

impl<K: Copy + Ord> ReadRecovery<K> {
    /// There was no error. A partition that returns nothing after one is read again after
    /// `first_pause`, and then after `read_pause` and longer pauses.
    #[must_use]
    pub fn new(first_pause: Duration, read_pause: Duration) -> Self {
        Self {
            first_pause,
            read_pause,
            asks: false,
            error: String::new(),
            failing_since: None,
            unread: BTreeMap::new(),
            question: BrokerQuestion::Answered,
        }
    }

    /// After an error the brokers are asked, too: a process that reads nothing would not find out
    /// that they are back, or that a topic is deleted.
    #[must_use]
    pub fn with_questions(mut self) -> Self {
        self.asks = true;
        self
    }

    /// Pause between two attempts to read a partition.
    #[must_use]
    pub fn read_pause(&self) -> Duration {
        self.read_pause
    }

    /// The reader has failed while it read these partitions. The pauses of those that have returned
    /// nothing since the error before go on.
    pub fn on_error(
        &mut self,
        error: &impl Display,
        partitions: impl IntoIterator<Item = K>,
        now: Duration,
    ) {
        self.error = error.to_string();
        let _since = self.failing_since.get_or_insert(now);
        let (at, pause) = (now + self.first_pause, self.read_pause);
        for partition in partitions {
            let _next = self.unread.entry(partition).or_insert(NextRead { at, pause });
        }
        self.question = match self.question {
            question if !self.asks => question,
            BrokerQuestion::Asked | BrokerQuestion::Outdated => BrokerQuestion::Outdated,
            BrokerQuestion::Answered | BrokerQuestion::Due(_) => BrokerQuestion::Due(now),
        };
        self.check_end();
    }

    /// A partition was read, or is not read any more.
    pub fn on_read(&mut self, partition: K) {
        if self.unread.remove(&partition).is_some() {
            self.check_end();
        }
    }

    /// How the brokers have answered, at `now`.
    pub fn on_answer(&mut self, answer: Result<(), impl Display>, now: Duration) {
        self.question = match (answer, self.question) {
            (Ok(()), BrokerQuestion::Asked) => BrokerQuestion::Answered,
            (Ok(()), _) => BrokerQuestion::Due(now),
            (Err(error), _) => {
                self.error = error.to_string();
                BrokerQuestion::Due(now + QUESTION_RETRY_PAUSE)
            }
        };
        self.check_end();
    }

    fn check_end(&mut self) {
        if self.unread.is_empty() && self.question == BrokerQuestion::Answered {
            self.failing_since = None;
        }
    }

    /// The partitions to read again now.
    pub fn next_reads(&mut self, now: Duration) -> Vec<K> {
        let due = self.unread.iter_mut().filter(|(_, next)| next.at <= now);
        let again = due.map(|(partition, next)| {
            *next = NextRead { at: now + next.pause, pause: next.pause * 2 };
            *partition
        });
        again.collect()
    }

    /// Whether the brokers are to be asked now: then [`on_answer`](Self::on_answer) follows.
    pub fn next_question(&mut self, now: Duration) -> bool {
        let is_due = matches!(self.question, BrokerQuestion::Due(at) if at <= now);
        if is_due {
            self.question = BrokerQuestion::Asked;
        }
        is_due
    }

    /// Whether not everything has answered since an error.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.failing_since.is_some()
    }

    /// The error because of which not everything can be read; `None` if it can.
    #[must_use]
    pub fn reason(&self, now: Duration) -> Option<&str> {
        let since = self.failing_since?;
        (now.saturating_sub(since) >= FAILURE_MAX).then_some(self.error.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000);
    const READ_PAUSE: Duration = Duration::from_secs(6);
    const MS: Duration = Duration::from_millis(1);

    fn asking() -> ReadRecovery<i32> {
        ReadRecovery::new(Duration::ZERO, READ_PAUSE).with_questions()
    }

    fn answer(recovery: &mut ReadRecovery<i32>, now: Duration) {
        assert!(recovery.next_question(now));
        recovery.on_answer(Ok::<_, &str>(()), now);
    }

    #[test]
    fn after_an_error_all_can_be_read_for_a_few_seconds() {
        let (mut recovery, now) = (asking(), NOW);
        assert_eq!(recovery.reason(now + FAILURE_MAX), None);
        recovery.on_error(&"away", [1, 2], now);
        let almost = now + FAILURE_MAX.saturating_sub(MS);
        recovery.on_error(&"denied", [1, 2], almost);
        assert_eq!(recovery.reason(almost), None);
        assert_eq!(recovery.reason(now + FAILURE_MAX), Some("denied"));
    }

    #[test]
    fn what_is_being_fetched_has_time_to_arrive() {
        for first_pause in [Duration::ZERO, MS * 900] {
            let mut recovery = ReadRecovery::new(first_pause, READ_PAUSE);
            recovery.on_error(&"away", [1, 2], NOW);
            let mut now = NOW + first_pause;
            if !first_pause.is_zero() {
                assert!(recovery.next_reads(now.saturating_sub(MS)).is_empty());
            }
            assert_eq!(recovery.next_reads(now), [1, 2]);
            for pause in [1, 2, 4] {
                recovery.on_error(&"away", [1, 2], now);
                let next = now + READ_PAUSE * pause;
                let almost = next.saturating_sub(MS);
                assert!(recovery.next_reads(almost).is_empty(), "an answer may be on its way");
                assert_eq!(recovery.next_reads(next), [1, 2]);
                now = next;
            }
            recovery.on_read(2);
            recovery.on_error(&"away", [1, 2], now);
            now += first_pause;
            assert_eq!(recovery.next_reads(now), [2], "it has returned something");
        }
    }

    #[test]
    fn all_can_be_read_when_every_partition_was_read_and_the_brokers_have_answered() {
        let (mut recovery, now) = (asking(), NOW);
        recovery.on_error(&"away", [1, 2], now);
        let later = now + FAILURE_MAX;
        answer(&mut recovery, later);
        recovery.on_read(3);
        recovery.on_read(2);
        assert!(recovery.reason(later).is_some(), "1 has returned nothing");
        recovery.on_read(1);
        assert_eq!(recovery.reason(later), None);
        recovery.on_error(&"away", [1], later);
        assert_eq!(recovery.reason(later), None, "the time is counted again");
        recovery.on_read(1);
        assert!(recovery.reason(later + FAILURE_MAX).is_some(), "no broker has answered");
    }

    #[test]
    fn a_process_that_reads_nothing_asks_the_brokers_until_they_answer() {
        let (mut recovery, now) = (asking(), NOW);
        assert!(!recovery.next_question(now));
        recovery.on_error(&"away", [], now);
        let later = now + FAILURE_MAX;
        assert!(recovery.next_question(now));
        assert!(!recovery.next_question(later), "it was asked");
        recovery.on_answer(Err("no such topic"), now);
        assert_eq!(recovery.reason(later), Some("no such topic"));
        let retry = now + QUESTION_RETRY_PAUSE;
        assert!(!recovery.next_question(retry.saturating_sub(MS)));
        assert!(recovery.next_question(retry));
        recovery.on_error(&"away", [], retry);
        recovery.on_answer(Ok::<_, &str>(()), retry);
        assert!(recovery.reason(later).is_some(), "it was asked before the last error");
        answer(&mut recovery, retry);
        assert_eq!(recovery.reason(later), None);
    }

    #[test]
    fn without_questions_only_what_is_read_counts() {
        let mut recovery = ReadRecovery::new(Duration::ZERO, READ_PAUSE);
        let later = NOW + FAILURE_MAX;
        recovery.on_error(&"away", [], NOW);
        assert_eq!(recovery.reason(later), None, "nothing is read");
        recovery.on_error(&"away", [1], NOW);
        assert!(recovery.reason(later).is_some() && !recovery.next_question(later));
        recovery.on_read(1);
        assert_eq!(recovery.reason(later), None);
    }
}
