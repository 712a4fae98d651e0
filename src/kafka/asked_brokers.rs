//! Which brokers are asked the same question, one after another, how long each of them may take,
//! and who leads what by their answers.
//!
//! Invariant: a broker that does not answer is not waited for as long as there is another one; all
//! of them together take no longer than one request may; and the last one has the most time, so
//! that brokers that always take longer answer in time.

use std::time::Duration;

use rdkafka::metadata::{Metadata, MetadataTopic};

use crate::model::{BrokerId, PartitionId};

/// How many brokers are asked the same question, until one answers.
const BROKERS_ASKED_MAX: usize = 3;

/// How long the first broker may take to answer; each one after it may take twice as long as the
/// one before. One that works needs a few milliseconds, and an answer that comes late says what was
/// true before.
pub(super) const FIRST_BROKER_TIMEOUT: Duration = Duration::from_millis(500);

/// How long each but the last one may take if the time is too short for that. The client asks
/// another broker only after one has not answered for 300 ms (`CHANGES.md` of `rdkafka-sys`).
const SHORT_TIMEOUT: Duration = Duration::from_millis(350);

/// The brokers to ask about a topic: the one that has just answered, unless the client does not
/// know yet which one that is; then those that lead, of which one may have died since; then all.
pub(super) fn brokers_to_ask(
    answered: i32,
    leaders: impl Iterator<Item = i32>,
    all: impl Iterator<Item = i32>,
) -> Vec<i32> {
    let mut brokers = Vec::new();
    for id in std::iter::once(answered).chain(leaders).chain(all).filter(|id| *id >= 0) {
        if brokers.len() < BROKERS_ASKED_MAX && !brokers.contains(&id) {
            brokers.push(id);
        }
    }
    brokers
}

/// Who leads which partition of a topic, by the answer of a broker. Those without a leader are
/// absent.
pub(super) fn leaders(
    metadata: &Metadata,
    topic: &str,
) -> impl Iterator<Item = (PartitionId, BrokerId)> {
    let topics = metadata.topics().iter();
    let known = topics.filter(move |found| found.name() == topic && found.error().is_none());
    let partitions = known.flat_map(MetadataTopic::partitions);
    let all = partitions.map(|found| (found.id(), found.leader()));
    all.filter(|(_, leader)| *leader >= 0)
}

/// `first`, then twice as long each time, but `longest` at most. It does not end.
pub(super) fn doubling(first: Duration, longest: Duration) -> impl Iterator<Item = Duration> {
    let next = move |last: &Duration| Some(last.saturating_mul(2).min(longest));
    std::iter::successors(Some(first.min(longest)), next)
}

/// How long each of so many attempts may take, all of them `timeout` together. The last one may
/// take what is left: brokers that always need longer than the first ones may take still answer.
fn attempt_timeouts(attempts: usize, timeout: Duration) -> impl Iterator<Item = Duration> {
    let count = u32::try_from(attempts.max(1)).unwrap_or(u32::MAX);
    let all: Duration = doubling(FIRST_BROKER_TIMEOUT, timeout).take(attempts).sum();
    let short = SHORT_TIMEOUT.min(timeout / count);
    let mut left = timeout;
    (1..=count).zip(doubling(FIRST_BROKER_TIMEOUT, timeout)).map(move |(attempt, doubled)| {
        let limit = match attempt == count {
            true => left,
            false if all <= timeout => doubled,
            false => short,
        };
        left -= limit;
        limit
    })
}

/// What the first of these brokers that answers says, and its place among them. The times are those
/// of [`first_answer`].
pub(super) fn first_answer_of<T>(
    brokers: &[BrokerId],
    timeout: Duration,
    ask: impl Fn(BrokerId, Duration) -> Option<T>,
) -> Option<(usize, T)> {
    let mut asked = brokers.iter().zip(attempt_timeouts(brokers.len(), timeout)).enumerate();
    asked.find_map(|(place, (broker, timeout))| Some((place, ask(*broker, timeout)?)))
}

/// What the first broker that answers says, of as many as are asked; or the error of the last one.
/// `ask` gets the time that it may take; all of them together take `timeout` at most.
pub(super) fn first_answer<T, E>(
    timeout: Duration,
    ask: impl Fn(Duration) -> Result<T, E>,
) -> Result<T, E> {
    let mut timeouts = attempt_timeouts(BROKERS_ASKED_MAX, timeout);
    let first = ask(timeouts.next().unwrap_or(timeout));
    timeouts.fold(first, |answer, timeout| answer.or_else(|_| ask(timeout)))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn the_broker_that_answered_is_asked_first_and_others_if_it_is_not_known() {
        let ask = |answered, leaders: &[i32], all: &[i32]| {
            brokers_to_ask(answered, leaders.iter().copied(), all.iter().copied())
        };
        assert_eq!(ask(2, &[1, 1, 3], &[1, 2, 3]), [2, 1, 3]);
        assert_eq!(ask(-1, &[-1], &[4, 5, 6, 7]), [4, 5, 6]);
        assert_eq!(ask(-1, &[-1], &[]), [0; 0]);
    }

    fn ms(timeouts: impl Iterator<Item = Duration>) -> Vec<u128> {
        timeouts.map(|timeout| timeout.as_millis()).collect()
    }

    #[test]
    fn each_time_is_twice_as_long_up_to_the_longest() {
        let times = |first, longest| {
            let (first, longest) = (Duration::from_millis(first), Duration::from_millis(longest));
            ms(doubling(first, longest).take(5))
        };
        assert_eq!(times(50, 500), [50, 100, 200, 400, 500]);
        assert_eq!(times(500, 5_000), [500, 1_000, 2_000, 4_000, 5_000]);
        assert_eq!(times(500, 300), [300; 5]);
    }

    /// Each had the whole time: the answer of the next one was received seconds later.
    #[test]
    fn a_broker_is_waited_for_no_longer_than_a_second_if_another_one_can_be_asked() {
        let timeouts = |attempts, ms_all| {
            let timeouts = ms(attempt_timeouts(attempts, Duration::from_millis(ms_all)));
            assert_eq!(timeouts.iter().sum::<u128>(), u128::from(ms_all), "{timeouts:?}");
            timeouts
        };
        assert_eq!(timeouts(3, 5_000), [500, 1_000, 3_500]);
        assert_eq!(timeouts(3, 3_500), [500, 1_000, 2_000]);
        assert_eq!(timeouts(2, 5_000), [500, 4_500]);
        assert_eq!(timeouts(1, 5_000), [5_000], "there is no other one");
        assert_eq!(timeouts(0, 300), [300]);
    }

    #[test]
    fn each_broker_has_its_turn_and_the_last_one_the_rest_if_the_time_is_short() {
        let timeouts = |ms_all| ms(attempt_timeouts(3, Duration::from_millis(ms_all)));
        assert_eq!(timeouts(3_499), [350, 350, 2_799]);
        assert_eq!(timeouts(1_500), [350, 350, 800]);
        assert_eq!(timeouts(1_050), [350; 3]);
        assert_eq!(timeouts(300), [100; 3]);
    }

    #[test]
    fn the_first_answer_counts_and_the_last_error() {
        let asked = RefCell::new(Vec::new());
        let ask = |answers_after: u64| {
            asked.borrow_mut().clear();
            first_answer(Duration::from_secs(5), |timeout| {
                asked.borrow_mut().push(timeout.as_millis());
                let is_in_time = timeout > Duration::from_millis(answers_after);
                is_in_time.then_some("answer").ok_or(timeout.as_millis())
            })
        };
        assert_eq!(ask(10), Ok("answer"));
        assert_eq!(*asked.borrow(), [500], "no other one is asked");
        assert_eq!(ask(3_000), Ok("answer"));
        assert_eq!(*asked.borrow(), [500, 1_000, 3_500]);
        assert_eq!(ask(4_000), Err(3_500));
    }
}
