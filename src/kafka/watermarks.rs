//! The first offset of a partition, and its end.
//!
//! Invariant: what a client remembers of a leader that has failed does not last: librdkafka sends
//! a request to the leader in its cached metadata, or sends none if it has forgotten that broker.
//! Only a new metadata request replaces it. And a broker that always takes long has the time to
//! answer, whatever the first attempts may take.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaResult;

use super::asked_brokers::{FIRST_BROKER_TIMEOUT, doubling, leaders};
use super::error::ClientResult;
use crate::clock;
use crate::model::{Offset, PartitionId};

/// How long the leader may take to answer before brokers are asked who leads.
const LEADER_TIMEOUT: Duration = Duration::from_secs(1);

/// With less time than this the leader has all of it at once: in a part of it a broker that takes
/// long would not answer. If it does not answer at all, librdkafka closes the connection, and asks
/// by itself who leads.
const SEVERAL_ATTEMPTS_MIN: Duration = Duration::from_secs(3);

/// With less time than that left no more is asked: librdkafka closes the connection to a broker
/// that does not answer in time.
const ATTEMPT_MIN: Duration = Duration::from_millis(50);

/// The first and the longest pause after an error that was answered soon. Each one is twice as long
/// as the one before.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);
const REFUSED_PAUSE_MAX: Duration = Duration::from_millis(500);

/// After so many answers that name no leader there is none: the first one may be of an election
/// that has ended, or of a broker that does not know of it yet.
const NO_LEADER_ANSWERS: usize = 2;

/// The first available offset of a partition, and its end offset (exclusive) at the isolation level
/// of the consumer. It takes `timeout` at most.
///
/// The leader may take a second. Then a broker is asked who leads, and the leader that it names has
/// the rest of the time, or the one that the client knows if the broker does not answer: what is
/// given up has to be connected again, and one that always takes long must answer some time. It is
/// over sooner if the partition has no leader.
pub(super) fn watermarks<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    partition: PartitionId,
    timeout: Duration,
) -> ClientResult<(Offset, Offset)> {
    let (low, end) = ask(&ClientBrokers { consumer, topic, partition }, timeout)?;
    Ok((Offset::try_from(low).unwrap_or(0), Offset::try_from(end).unwrap_or(0)))
}

/// Who is asked about a partition; and the time, because a test does not wait.
trait Brokers {
    fn now(&self) -> Instant;

    fn pause(&self, length: Duration);

    /// The first offset and the end, by the leader that the client knows.
    fn bounds(&self, timeout: Duration) -> KafkaResult<(i64, i64)>;

    /// Whether the partition has a leader, by any broker. The client knows it then.
    fn has_leader(&self, timeout: Duration) -> KafkaResult<bool>;
}

fn ask(brokers: &impl Brokers, timeout: Duration) -> KafkaResult<(i64, i64)> {
    let until = brokers.now() + timeout;
    let left = || until.saturating_duration_since(brokers.now());
    let is_short = timeout < SEVERAL_ATTEMPTS_MIN;
    let mut found = brokers.bounds(if is_short { timeout } else { LEADER_TIMEOUT });
    let mut no_leader = 0;
    for pause in doubling(REFUSED_PAUSE, REFUSED_PAUSE_MAX) {
        let limit = FIRST_BROKER_TIMEOUT.min(left());
        if found.is_ok() || limit < ATTEMPT_MIN {
            break;
        }
        let asked_at = brokers.now();
        // Not all of it: librdkafka counts in whole ms.
        let is_late = || brokers.now() - asked_at >= limit / 2;
        match brokers.has_leader(limit) {
            _ if left() < ATTEMPT_MIN => break,
            Ok(true) => found = brokers.bounds(left()),
            Ok(false) => {
                no_leader += 1;
                if no_leader == NO_LEADER_ANSWERS {
                    break;
                }
            }
            Err(_) if is_late() => found = brokers.bounds(left()),
            Err(error) => found = Err(error),
        }
        if found.is_err() {
            brokers.pause(pause.min(left()));
        }
    }
    found
}

/// The brokers of a client.
struct ClientBrokers<'a, C: ConsumerContext> {
    consumer: &'a BaseConsumer<C>,
    topic: &'a str,
    partition: PartitionId,
}

impl<C: ConsumerContext> Brokers for ClientBrokers<'_, C> {
    fn now(&self) -> Instant {
        clock::monotonic()
    }

    fn pause(&self, length: Duration) {
        std::thread::sleep(length);
    }

    fn bounds(&self, timeout: Duration) -> KafkaResult<(i64, i64)> {
        self.consumer.fetch_watermarks(self.topic, self.partition, timeout)
    }

    fn has_leader(&self, timeout: Duration) -> KafkaResult<bool> {
        let metadata = self.consumer.fetch_metadata(Some(self.topic), timeout)?;
        Ok(leaders(&metadata, self.topic).any(|(id, _)| id == self.partition))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use rdkafka::error::{KafkaError, RDKafkaErrorCode};

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const TIMEOUT: Duration = Duration::from_secs(5);
    const NEVER: Duration = Duration::from_secs(3_600);
    const FOUND: (i64, i64) = (3, 7);

    /// Brokers that take a given time to answer.
    struct SlowBrokers {
        began: Instant,
        /// How long ago that was.
        passed: Cell<Duration>,
        /// How long the leader takes, and the others to say who it is.
        takes: [Duration; 2],
        /// When the partition has a leader, since `began`.
        elected_at: Duration,
        /// The leader refuses to answer, at once.
        refuses: bool,
        /// What was asked, and the ms that it may take, and how long the pauses were.
        asked: RefCell<Vec<(&'static str, u128)>>,
    }

    impl SlowBrokers {
        fn new(takes: [Duration; 2]) -> Self {
            let (passed, asked) = (Cell::default(), RefCell::default());
            let began = clock::monotonic();
            Self { began, passed, takes, elected_at: Duration::ZERO, refuses: false, asked }
        }

        /// Passes the time, and writes it down.
        fn spend(&self, what: &'static str, limit: Duration, time: Duration) {
            self.asked.borrow_mut().push((what, limit.as_millis()));
            self.passed.set(self.passed.get() + time.min(limit));
        }

        fn is_elected(&self) -> bool {
            self.passed.get() >= self.elected_at
        }
    }

    fn error(code: RDKafkaErrorCode) -> KafkaError {
        KafkaError::MetadataFetch(code)
    }

    impl Brokers for SlowBrokers {
        fn now(&self) -> Instant {
            self.began + self.passed.get()
        }

        fn pause(&self, length: Duration) {
            self.spend("pause", length, length);
        }

        fn bounds(&self, timeout: Duration) -> KafkaResult<(i64, i64)> {
            let is_refused = self.refuses || !self.is_elected();
            let takes = if is_refused { Duration::ZERO } else { self.takes[0] };
            self.spend("bounds", timeout, takes);
            if is_refused {
                return Err(error(RDKafkaErrorCode::NotLeaderForPartition));
            }
            if takes > timeout {
                return Err(error(RDKafkaErrorCode::OperationTimedOut));
            }
            Ok(FOUND)
        }

        fn has_leader(&self, timeout: Duration) -> KafkaResult<bool> {
            self.spend("leader", timeout, self.takes[1]);
            if self.takes[1] > timeout {
                return Err(error(RDKafkaErrorCode::OperationTimedOut));
            }
            Ok(self.is_elected())
        }
    }

    /// It had half a second each time, so that one that takes longer never answered in time.
    #[test]
    fn a_leader_that_has_not_answered_in_a_second_has_the_rest_of_the_time() {
        for (broker, limit) in [(Duration::ZERO, 4_000), (NEVER, 3_500)] {
            let brokers = SlowBrokers::new([NEVER, broker]);
            assert!(ask(&brokers, TIMEOUT).is_err());
            let asked = [("bounds", 1_000), ("leader", 500), ("bounds", limit)];
            assert_eq!(brokers.asked.borrow()[..3], asked);
            assert_eq!(brokers.passed.get(), TIMEOUT);
        }
    }

    /// It would not be answered in time, and would cost the connection.
    #[test]
    fn nothing_is_asked_in_the_last_moment() {
        let mut brokers = SlowBrokers::new([Duration::ZERO, 490 * MS]);
        brokers.refuses = true;
        assert!(ask(&brokers, TIMEOUT).is_err());
        let asked = brokers.asked.borrow();
        assert!(asked.iter().all(|(what, ms)| *what == "pause" || *ms >= 50), "{asked:?}");
    }

    #[test]
    fn brokers_that_are_slow_have_enough_time_to_answer() {
        for ms in [0_u32, 400, 600, 900, 1_100, 1_500, 3_400] {
            let brokers = SlowBrokers::new([ms * MS; 2]);
            assert_eq!(ask(&brokers, TIMEOUT).ok(), Some(FOUND), "{ms} ms");
        }
        for ms in [100_u32, 300, 900, 2_900] {
            let brokers = SlowBrokers::new([ms * MS; 2]);
            assert_eq!(ask(&brokers, ms * MS).ok(), Some(FOUND), "{ms} ms, and no more time");
        }
    }

    /// 50 ms each: some 75 requests a second, of each thread, to brokers that had just elected.
    #[test]
    fn refusals_are_answered_by_longer_and_longer_pauses() {
        let mut brokers = SlowBrokers::new([Duration::ZERO; 2]);
        brokers.refuses = true;
        assert!(ask(&brokers, TIMEOUT).is_err());
        let asked = brokers.asked.borrow();
        let pauses = asked.iter().filter(|(what, _)| *what == "pause");
        let pauses: Vec<_> = pauses.map(|(_, ms)| *ms).collect();
        assert_eq!(pauses[..6], [50, 100, 200, 400, 500, 500]);
        assert_eq!((pauses.len(), brokers.passed.get()), (13, TIMEOUT));
    }

    #[test]
    fn a_partition_without_a_leader_is_not_waited_for_after_the_second_answer() {
        let mut brokers = SlowBrokers::new([Duration::ZERO; 2]);
        brokers.elected_at = NEVER;
        assert!(ask(&brokers, TIMEOUT).is_err());
        let asked = [("bounds", 1_000), ("leader", 500), ("pause", 50), ("leader", 500)];
        assert_eq!(*brokers.asked.borrow(), asked);
        let mut brokers = SlowBrokers::new([Duration::ZERO; 2]);
        brokers.elected_at = 20 * MS;
        assert_eq!(ask(&brokers, TIMEOUT).ok(), Some(FOUND), "an election ends meanwhile");
    }
}
