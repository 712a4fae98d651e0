//! Tests of the target topics.
//!
//! Invariant: the clock moves when an answer takes time or a test says so.

use std::collections::VecDeque;

use super::*;
use crate::environment::call_error::CallError;
use crate::environment::job::{Job as _, JobStep};
use crate::test_environment::clock::MS;
use crate::test_environment::clock::TestClock;
use crate::test_environment::cluster::TestCluster;

/// Fires may be sent to every topic but one.
struct OneRefused;

pub(super) fn usable() -> TopicState {
    TopicState::usable(8, 1_000)
}

fn away() -> TopicState {
    TopicState::Unavailable("no leader".to_owned())
}

impl TargetPolicy for OneRefused {
    fn refusal(&self, topic: &str) -> Option<String> {
        (topic == "refused").then(|| "not by this policy".to_owned())
    }
}

/// Each answer takes `takes`; one at a time.
pub(super) struct SlowLookups {
    jobs: VecDeque<TopicLookup<TestCluster>>,
    /// How many were ever submitted.
    pub(super) submitted: usize,
    pub(super) takes: Duration,
    /// The answer, if it is not that of the cluster.
    pub(super) answer: Option<TopicState>,
    /// No broker answers.
    pub(super) is_unanswered: bool,
    clock: TestClock,
}

impl JobQueue<TopicLookup<TestCluster>> for SlowLookups {
    fn submit(&mut self, job: TopicLookup<TestCluster>) {
        self.submitted += 1;
        self.jobs.push_back(job);
    }

    fn poll(&mut self, timeout: Duration) -> Option<TopicAnswer> {
        self.clock.advance(self.takes.min(timeout));
        if self.takes > timeout {
            return None;
        }
        let JobStep::Done(answer) = self.jobs.pop_front()?.step(&mut ()) else {
            unreachable!("a look-up is one step")
        };
        let state = self.answer.clone().map_or(answer.state, Ok);
        let state = if self.is_unanswered { Err(CallError::new("no answer")) } else { state };
        Some(TopicAnswer { state, ..answer })
    }

    fn in_flight(&self) -> usize {
        self.jobs.len()
    }

    fn drain(&mut self) -> Vec<TopicAnswer> {
        unreachable!("look-ups are not awaited")
    }
}

pub(super) const TTL: Duration = Duration::from_secs(30);
const UNREACHABLE_TTL: Millis = 1_000;
pub(super) const UNREACHABLE: Duration = Duration::from_millis(UNREACHABLE_TTL);

pub(super) type TestTargets = Targets<TestCluster, TestClock, SlowLookups>;

pub(super) fn targets(takes: Duration) -> (TestTargets, TestClock) {
    let clock = TestClock::default();
    clock.set(1_000_000_000);
    let (jobs, submitted, answer, is_unanswered) = (VecDeque::new(), 0, None, false);
    let lookups =
        SlowLookups { jobs, submitted, takes, answer, is_unanswered, clock: clock.clone() };
    let (cluster, policy) = (TestCluster::default(), Box::new(OneRefused));
    cluster.set_topic_state(usable());
    let ttl = (TTL, UNREACHABLE_TTL, UNREACHABLE_TTL);
    let world = (cluster, clock.clone());
    (Targets::new(lookups, world, Names::new("o"), policy, ttl), clock)
}

pub(super) fn state_of(targets: &mut TestTargets, topic: &str) -> TopicState {
    let catalog = targets.catalog([topic].into_iter(), std::iter::empty());
    catalog.state(topic).cloned().expect("it was asked for")
}

/// Asks for the state of `topic`, which is unavailable then, and can be written after that.
fn take_away(targets: &mut TestTargets, topic: &str) {
    targets.lookups.answer = Some(away());
    assert_eq!(state_of(targets, topic), away());
    targets.lookups.answer = None;
}

#[test]
fn the_first_look_up_is_awaited() {
    let (mut targets, _clock) = targets(Duration::from_millis(5));
    assert_eq!(state_of(&mut targets, "a"), usable());
}

/// Its fires would be written to the ledger again and again.
#[test]
fn a_topic_whose_first_look_up_has_no_answer_for_long_counts_as_unavailable() {
    let (mut targets, clock) = targets(Duration::from_secs(60));
    assert_eq!(state_of(&mut targets, "a"), TopicState::Unknown);
    clock.advance(Duration::from_secs(1));
    let state = state_of(&mut targets, "a");
    assert!(matches!(state, TopicState::Unavailable(_)), "{state:?}");
}

#[test]
fn many_unknown_topics_do_not_hold_up_the_loop() {
    let (mut targets, clock) = targets(Duration::from_millis(5));
    let topics: Vec<_> = (0..1_000).map(|n| format!("topic-{n}")).collect();
    let _catalog = targets.catalog(topics.iter().map(String::as_str), std::iter::empty());
    let took = clock.monotonic();
    assert!(took <= FIRST_LOOKUP_WAIT * 2, "it took {took:?}");
}

#[test]
fn topics_that_are_no_longer_used_are_forgotten() {
    let (mut targets, clock) = targets(Duration::ZERO);
    for n in 0..100_000 {
        let _state = state_of(&mut targets, &format!("topic-{n}"));
        clock.advance(Duration::from_millis(10));
    }
    assert!(targets.cached.len() <= 10_000, "{} are cached", targets.cached.len());
}

#[test]
fn a_topic_waits_no_longer_if_the_clock_is_set_back() {
    let (mut targets, clock) = targets(Duration::ZERO);
    take_away(&mut targets, "a");
    clock.set(1_000_000);
    clock.advance(Duration::from_millis(UNREACHABLE_TTL + 1));
    targets.refresh_expired();
    assert_eq!(state_of(&mut targets, "a"), usable());
}
#[test]
fn a_known_topic_is_asked_for_again_once_its_state_is_old() {
    let (mut targets, clock) = targets(Duration::ZERO);
    for topic in ["a", "b", "a"] {
        assert_eq!(state_of(&mut targets, topic), usable());
    }
    clock.advance(TTL - MS);
    let _state = state_of(&mut targets, "a");
    assert_eq!(targets.lookups.submitted, 2, "both are known");
    clock.advance(MS);
    targets.lookups.takes = MS;
    for _ in 0..3 {
        assert_eq!(state_of(&mut targets, "a"), usable(), "no fire waits for the answer");
    }
    assert_eq!(targets.lookups.submitted, 3, "it is asked for already");
}

#[test]
fn a_topic_that_was_unavailable_is_asked_for_again_before_its_fires_return() {
    let (mut targets, clock) = targets(Duration::ZERO);
    take_away(&mut targets, "a");
    clock.advance(UNREACHABLE - MS);
    targets.refresh_expired();
    assert_eq!(targets.lookups.submitted, 1, "its time is not over");
    clock.advance(MS);
    targets.refresh_expired();
    targets.refresh_expired();
    assert_eq!(targets.lookups.submitted, 2);
    assert_eq!(state_of(&mut targets, "a"), usable());
}

#[test]
fn a_topic_that_cannot_be_used_is_asked_for_as_long_as_fires_wait_for_it() {
    let (mut targets, clock) = targets(Duration::ZERO);
    take_away(&mut targets, "a");
    targets.lookups.answer = Some(away());
    for n in 1..=20 {
        clock.advance(UNREACHABLE);
        targets.refresh_expired();
        assert_eq!(targets.lookups.submitted, 1 + n.min(10), "it was used {n} s ago");
        while let Some(answer) = targets.lookups.poll(Duration::ZERO) {
            targets.on_answer(answer, clock.monotonic());
        }
    }
    assert_ne!(state_of(&mut targets, "a"), usable());
    assert_eq!(targets.lookups.submitted, 12, "it is used again");
}

/// A caller's topic must not delay the fires of others.
#[test]
fn a_known_topic_is_never_awaited() {
    let (mut targets, clock) = targets(MS);
    for topic in ["a", "b"] {
        take_away(&mut targets, topic);
    }
    clock.advance(TTL);
    let before = clock.monotonic();
    for topic in ["a", "b"] {
        assert_ne!(state_of(&mut targets, topic), usable());
    }
    assert_eq!(clock.monotonic(), before);
}

#[test]
fn topics_that_were_unavailable_are_asked_for_when_the_brokers_may_be_back() {
    let (mut targets, clock) = targets(Duration::ZERO);
    assert_eq!(state_of(&mut targets, "usable"), usable());
    take_away(&mut targets, "a");
    targets.refresh_unavailable();
    assert_eq!(targets.lookups.in_flight(), 0, "its time is not over");
    clock.advance(TTL);
    targets.refresh_unavailable();
    assert_eq!(targets.lookups.in_flight(), 1, "the other one is usable");
    assert_eq!(state_of(&mut targets, "a"), usable());
}

#[test]
fn after_a_late_answer_no_other_one_is_awaited_until_all_have_come() {
    let (mut targets, clock) = targets(Duration::from_secs(1));
    assert_ne!(state_of(&mut targets, "a"), usable());
    let waited = clock.monotonic();
    assert_eq!(waited, FIRST_LOOKUP_WAIT);
    assert_ne!(state_of(&mut targets, "b"), usable());
    assert_eq!(clock.monotonic(), waited, "the first one is late");
    targets.lookups.takes = Duration::ZERO;
    assert_eq!((state_of(&mut targets, "a"), state_of(&mut targets, "b")), (usable(), usable()));
    targets.lookups.takes = MS;
    assert_eq!(state_of(&mut targets, "c"), usable(), "it is awaited");
}

#[test]
fn a_topic_that_refuses_a_second_record_is_not_written_for_a_time() {
    let (mut targets, clock) = targets(Duration::ZERO);
    targets.on_refused("a", "too large");
    assert_ne!(state_of(&mut targets, "a"), usable(), "it may have been deleted meanwhile");
    assert_eq!(state_of(&mut targets, "a"), usable());
    targets.on_refused("a", "too large");
    let TopicState::Unusable(reason) = state_of(&mut targets, "a") else { panic!("usable") };
    assert!(reason.contains("too large"), "{reason}");
    clock.advance(TTL);
    assert_ne!(state_of(&mut targets, "a"), usable(), "it is asked for");
    assert_eq!(state_of(&mut targets, "a"), usable());
}

#[test]
fn the_topics_of_a_transaction_that_cannot_be_used_wait_if_that_is_repeated() {
    let (mut targets, clock) = targets(Duration::ZERO);
    let topics: BTreeSet<_> = ["a".to_owned(), "b".to_owned()].into();
    for topic in &topics {
        let _known = state_of(&mut targets, topic);
    }
    for _ in 0..UNUSABLE_MAX {
        let submitted = targets.lookups.submitted;
        targets.on_unusable(&topics, "no right");
        assert_eq!(targets.lookups.submitted, submitted + 2);
        for topic in &topics {
            assert_eq!(state_of(&mut targets, topic), usable());
        }
    }
    targets.on_unusable(&topics, "no right");
    let TopicState::Unavailable(reason) = state_of(&mut targets, "a") else { panic!("usable") };
    assert!(reason.contains("no right"), "{reason}");
    // They return one after the other.
    clock.advance(UNREACHABLE);
    targets.refresh_expired();
    assert_eq!(state_of(&mut targets, "a"), usable());
    assert_ne!(state_of(&mut targets, "b"), usable());
    targets.on_committed("a", 0);
    // The one that is refused again waits for longer, and longer.
    for factor in [1, 2, 4, 8, 8] {
        targets.on_unusable(&["b".to_owned()].into(), "no right");
        clock.advance(TTL * factor - MS);
        assert_ne!(state_of(&mut targets, "b"), usable());
        clock.advance(MS);
        let _asked_for = state_of(&mut targets, "b");
        assert_eq!(state_of(&mut targets, "b"), usable(), "factor {factor}");
    }
    targets.on_unusable(&topics, "no right");
    assert_eq!(state_of(&mut targets, "a"), usable(), "a record of it was committed");
}

/// Asks for the state of topic `a`, and answers after a second.
fn answer(targets: &mut TestTargets, state: &TopicState) -> TopicState {
    targets.look_up("a", targets.clock.monotonic());
    let answer = targets.lookups.poll(Duration::ZERO).unwrap();
    let state = Ok(state.clone());
    targets.on_answer(TopicAnswer { state, ..answer }, Duration::from_secs(1));
    targets.cached["a"].state.clone()
}

/// After an outage a broker may not know its topics yet; and a topic may be replaced.
#[test]
fn a_topic_that_was_usable_is_asked_for_twice_before_it_is_unusable() {
    let (mut targets, clock) = targets(Duration::ZERO);
    let away = TopicState::Unavailable("no leader".to_owned());
    let unusable = TopicState::Unusable("unknown".to_owned());
    let doubted = TopicState::Unavailable("unknown".to_owned());
    assert_eq!(state_of(&mut targets, "a"), usable());
    for (state, expected, after) in [
        (&away, &away, UNREACHABLE),
        (&unusable, &doubted, UNREACHABLE),
        (&away, &away, UNREACHABLE),
        (&unusable, &unusable, TTL),
        (&usable(), &usable(), TTL),
        (&unusable, &doubted, UNREACHABLE),
        (&unusable, &unusable, TTL),
    ] {
        assert_eq!(answer(&mut targets, state), *expected);
        assert_eq!(targets.cached["a"].expires_at, Duration::from_secs(1) + after);
    }
    // Nor is a doubt of long ago an answer.
    let _usable = answer(&mut targets, &usable());
    assert_eq!(answer(&mut targets, &unusable), doubted);
    clock.advance(UNREACHABLE * USED_FOR + MS);
    let _used_again = state_of(&mut targets, "a");
    targets.cached.get_mut("a").unwrap().pending = None;
    assert_eq!(answer(&mut targets, &unusable), doubted);
}

#[test]
fn a_topic_that_was_never_usable_is_unusable_at_the_first_answer() {
    let (mut targets, _clock) = targets(Duration::from_secs(1));
    let unusable = TopicState::Unusable("unknown".to_owned());
    assert_ne!(state_of(&mut targets, "a"), unusable, "no answer yet");
    targets.lookups.takes = Duration::ZERO;
    let first = targets.lookups.poll(Duration::ZERO).unwrap();
    targets.on_answer(TopicAnswer { state: Ok(unusable.clone()), ..first }, Duration::ZERO);
    assert_eq!(targets.cached["a"].state, unusable);
}

/// It may have been created meanwhile: that was a dead letter a month ago.
#[test]
fn what_was_known_of_a_topic_long_ago_makes_no_dead_letter() {
    let (mut targets, clock) = targets(Duration::ZERO);
    targets.on_refused("a", "too large");
    targets.on_refused("a", "too large");
    assert!(matches!(state_of(&mut targets, "a"), TopicState::Unusable(_)));
    clock.advance(TTL * 100);
    assert!(matches!(state_of(&mut targets, "a"), TopicState::Unavailable(_)), "it is asked for");
    assert_eq!(state_of(&mut targets, "a"), usable());
}

/// It was given by brokers that were away.
#[test]
fn an_answer_to_an_earlier_question_does_not_count() {
    let (mut targets, clock) = targets(Duration::ZERO);
    take_away(&mut targets, "a");
    clock.advance(UNREACHABLE);
    targets.refresh_expired();
    assert_eq!(targets.lookups.in_flight(), 1);
    targets.refresh_unavailable();
    let [first, second] =
        [(), ()].map(|()| targets.lookups.poll(Duration::ZERO).expect("both are asked"));
    let unusable = TopicState::Unusable("unknown".to_owned());
    targets.on_answer(TopicAnswer { state: Ok(unusable), ..first }, clock.monotonic());
    assert_eq!(targets.cached["a"].state, away());
    targets.on_answer(second, clock.monotonic());
    assert_eq!(targets.cached["a"].state, usable());
    // Nor one to a question before it has failed.
    clock.advance(TTL);
    let _asked_for = state_of(&mut targets, "a");
    targets.on_refused("a", "unknown");
    targets.refresh_expired();
    assert_ne!(targets.cached["a"].state, usable());
}

#[test]
fn answers_are_taken_also_if_nothing_fires() {
    let (mut targets, clock) = targets(Duration::ZERO);
    take_away(&mut targets, "a");
    clock.advance(UNREACHABLE);
    targets.refresh_expired();
    targets.refresh_expired();
    assert_eq!(targets.cached["a"].state, usable());
}

#[test]
fn a_topic_that_has_refused_a_record_is_asked_for_before_its_next_one() {
    let (mut targets, _clock) = targets(Duration::ZERO);
    assert_eq!(state_of(&mut targets, "a"), usable());
    targets.on_refused("a", "unknown");
    assert_ne!(state_of(&mut targets, "a"), usable());
    let answer = targets.lookups.poll(Duration::ZERO).unwrap();
    let state = Ok(TopicState::Unusable("unknown".to_owned()));
    targets.on_answer(TopicAnswer { state, ..answer }, Duration::ZERO);
    let state = &targets.cached["a"].state;
    assert!(matches!(state, TopicState::Unavailable(_)), "the broker may not know it yet");
}

#[test]
fn topics_of_ours_and_of_kafka_and_those_that_the_policy_refuses_are_no_targets() {
    let (mut targets, _clock) = targets(Duration::ZERO);
    for topic in ["o.triggers", "__consumer_offsets", "refused"] {
        let state = state_of(&mut targets, topic);
        assert!(matches!(state, TopicState::Unusable(_)), "{topic}: {state:?}");
    }
    assert_eq!(targets.lookups.submitted, 0);
}

#[test]
fn a_topic_that_has_failed_stays_so_however_many_others_are_used() {
    let (mut targets, _clock) = targets(Duration::ZERO);
    for _ in 0..REFUSALS_MAX {
        targets.on_refused("bad", "too large");
    }
    for n in 0..=CACHED_MAX {
        let _state = state_of(&mut targets, &format!("topic-{n}"));
    }
    let TopicState::Unusable(reason) = state_of(&mut targets, "bad") else { panic!("it is") };
    assert!(reason.contains("too large"), "{reason}");
}

/// Its fires would wait for longer than it does.
#[test]
fn a_topic_that_is_used_again_is_asked_for_when_its_state_expires() {
    let (mut targets, clock) = targets(Duration::ZERO);
    for _ in 0..REFUSALS_MAX {
        targets.on_refused("a", "too large");
    }
    let not_used_any_more = UNREACHABLE * (USED_FOR + 1);
    clock.advance(not_used_any_more);
    targets.refresh_expired();
    let before_it_expires = TTL - not_used_any_more - MS;
    clock.advance(before_it_expires);
    assert_ne!(state_of(&mut targets, "a"), usable());
    let submitted = targets.lookups.submitted;
    clock.advance(MS);
    targets.refresh_expired();
    assert_eq!(targets.lookups.submitted, submitted + 1);
}

#[test]
fn a_topic_for_which_fires_wait_stays_known_however_many_others_are_used() {
    let (mut targets, clock) = targets(Duration::from_secs(1));
    assert_eq!(state_of(&mut targets, "away"), TopicState::Unknown);
    targets.lookups.takes = Duration::ZERO;
    let answer = targets.lookups.poll(Duration::ZERO).unwrap();
    let state = TopicState::Unavailable("no leader".to_owned());
    targets.on_answer(TopicAnswer { state: Ok(state.clone()), ..answer }, clock.monotonic());
    for n in 0..=CACHED_MAX {
        let _state = state_of(&mut targets, &format!("topic-{n}"));
    }
    assert_eq!(state_of(&mut targets, "away"), state);
}
