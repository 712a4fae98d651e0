//! Which brokers are asked about a topic, one after another, and how long each of them may take.
//!
//! Invariant: a broker that does not answer is not waited for as long as there is another one, and
//! all of them together take no longer than one request may.

use std::time::Duration;

/// How many brokers are asked the same question, until one answers.
pub(super) const BROKERS_ASKED_MAX: usize = 3;

/// How long a broker may take to answer if another one can be asked. One that works needs a few
/// milliseconds, and an answer that comes late says what was true before.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

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

/// How long each of so many attempts may take, all of them `timeout` at most. The last one may take
/// what is left: brokers that always need longer than the first ones may take still answer.
pub(super) fn attempt_timeouts(
    attempts: usize,
    timeout: Duration,
) -> impl Iterator<Item = Duration> {
    let count = u32::try_from(attempts.max(1)).unwrap_or(u32::MAX);
    let each = ANSWER_TIMEOUT.min(timeout / count);
    let last = timeout.saturating_sub(each * (count - 1));
    (1..=count).map(move |attempt| if attempt < count { each } else { last })
}

#[cfg(test)]
mod tests {
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

    /// Each had the whole time: the answer of the next one came seconds later.
    #[test]
    fn a_broker_is_waited_for_no_longer_than_a_second_if_another_one_can_be_asked() {
        let timeouts = |attempts, ms| {
            let each = attempt_timeouts(attempts, Duration::from_millis(ms));
            each.map(|timeout| timeout.as_millis()).collect::<Vec<_>>()
        };
        assert_eq!(timeouts(3, 5_000), [1_000, 1_000, 3_000]);
        assert_eq!(timeouts(2, 5_000), [1_000, 4_000]);
        assert_eq!(timeouts(1, 5_000), [5_000], "there is no other one");
        assert_eq!(timeouts(3, 300), [100; 3], "each has its turn");
        assert_eq!(timeouts(0, 300), [300]);
    }
}
