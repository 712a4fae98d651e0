//! Tests of the loop: what a transaction that fails leads to, and what is bounded.
//!
//! Invariant: no broker decides here: a test sets what is committed.

mod byte_bounds;

use super::circuit::CircuitBreakerSettings;
use super::queue::QueueBounds;
use super::test_worker::{
    FIRES, config, dead_letters, fire, offsets, record, topics, worker_after, worker_with,
};
use super::*;
use crate::engine::assignment::AssignmentChange;
use crate::environment::transaction::TransactionError;
use crate::model::Offset;
use crate::model::dead_letter::Content;
use crate::model::definition::Definition;
use crate::model::fire::Fire;
use crate::test_environment::cluster::TestBounds;
use crate::test_environment::reader::TestRecord;
use crate::test_environment::{NOW, TestEnvironment};

fn unknown() -> TransactionError {
    TransactionError::Unknown("timeout".to_owned())
}

/// Partition 0 of this topic refuses a record.
fn refused(topic: &str, reason: &str) -> TransactionError {
    let (topic, reason) = (topic.to_owned(), reason.to_owned());
    TransactionError::Refused { topic, partition: 0, reason }
}

/// Circuits that open at the first failure.
fn opens_at_once() -> WorkerConfig {
    let circuits = config().circuits;
    let circuits = CircuitBreakerSettings { attempts_min: 1, failures_percent: 50, ..circuits };
    WorkerConfig { circuits, ..config() }
}

/// Turns of the loop, a minute apart, in each of which a transaction fails like this.
fn run_failing(
    world: &TestEnvironment,
    worker: &mut test_worker::TestWorker,
    error: &TransactionError,
) {
    for _ in 0..40 {
        let _next = world.producer.sending().fails.get_or_insert_with(|| error.clone());
        worker.poll_once().unwrap();
        world.clock.advance(Duration::from_secs(60));
    }
}

/// Turns of the loop, until nothing more happens.
fn run(worker: &mut test_worker::TestWorker) {
    (0..20).for_each(|_| worker.poll_once().unwrap());
}

#[test]
fn a_callback_that_has_ended_is_committed_with_its_progress() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_with(&world, config());
    world.triggers.returns([record(0, NOW, &fire("a", 1)), record(1, NOW, &fire("b", 1))]);
    run(&mut worker);
    assert_eq!(callbacks.requested(), ["a", "b"]);
    assert_eq!(topics(&world), ["o.outcomes", "o.outcomes"]);
    assert_eq!(offsets(&world).last(), Some(&(0, 2)));
    assert!(worker.results.count() == 0 && worker.results.bytes() == 0);
}

#[test]
fn a_transaction_that_was_not_committed_is_sent_again_and_no_callback_is_repeated() {
    for error in [
        TransactionError::Fenced("by itself".to_owned()),
        TransactionError::StaleGeneration("newer".to_owned()),
        unknown(),
    ] {
        let world = TestEnvironment::default();
        let (mut worker, callbacks) = worker_with(&world, config());
        run(&mut worker);
        // What was committed with the first reservation.
        let reserved = world.producer.sending().offsets.last().cloned().unwrap();
        world.member.membership().committed = Some((reserved.offset, reserved.metadata));
        world.producer.sending().fails = Some(error.clone());
        world.triggers.returns([record(0, NOW, &fire("a", 1))]);
        run(&mut worker);
        assert_eq!(callbacks.requested(), ["a"], "{error:?}");
        assert_eq!(offsets(&world).last(), Some(&(0, 1)), "{error:?}");
        assert_eq!(worker.results.count(), 0, "{error:?}");
    }
}

#[test]
fn a_transaction_of_unknown_outcome_is_not_sent_again_if_it_is_committed() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_with(&world, config());
    run(&mut worker);
    world.hold("findings");
    world.producer.sending().commit_fails = Some(unknown());
    world.triggers.returns([record(0, NOW, &fire("a", 1))]);
    run(&mut worker);
    let sent = world.producer.sending().offsets.last().cloned().unwrap();
    assert_eq!((sent.offset, worker.results.count()), (1, 1));
    world.member.membership().committed = Some((sent.offset, sent.metadata));
    let records = world.producer.sent().len();
    world.let_go("findings");
    run(&mut worker);
    assert_eq!((callbacks.requested().len(), world.producer.sent().len()), (1, records));
    assert_eq!(worker.results.count(), 0);
    assert!(!world.member.calls().contains(&"rejoin".to_owned()), "it is its own transaction");
    assert_eq!(world.reporter.readiness("broker").as_deref(), Some("ready"));
}

#[test]
fn a_worker_joins_again_if_another_one_has_committed_for_its_partition() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_with(&world, config());
    run(&mut worker);
    world.member.membership().committed = Some((50, String::new()));
    world.producer.sending().commit_fails = Some(unknown());
    world.triggers.returns([record(0, NOW, &fire("a", 1))]);
    let _calls = (world.triggers.calls(), world.member.calls());
    run(&mut worker);
    let (reads, calls) = (world.triggers.calls(), world.member.calls());
    assert!(calls.contains(&"rejoin".to_owned()), "{calls:?}");
    assert!(!reads.iter().any(|call| call.starts_with("start")), "it owns nothing: {reads:?}");
    assert_eq!((callbacks.requested().len(), worker.results.count()), (1, 0));
}

#[test]
fn a_commit_that_hangs_is_abandoned_and_its_results_go_on_with_a_spare() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_with(&world, config());
    run(&mut worker);
    let reserved = world.producer.sending().offsets.last().cloned().unwrap();
    world.member.membership().committed = Some((reserved.offset, reserved.metadata));
    world.hold("committer");
    world.triggers.returns([record(0, NOW, &fire("a", 1))]);
    run(&mut worker);
    for second in 1..=14 {
        world.clock.advance(Duration::from_secs(1));
        worker.poll_once().unwrap();
        let readiness = world.reporter.readiness("broker");
        if (4..=12).contains(&second) {
            assert!(readiness.unwrap().starts_with("not ready"), "after {second} s");
        }
    }
    world.let_go("committer");
    run(&mut worker);
    assert_eq!(callbacks.requested(), ["a"]);
    assert_eq!((offsets(&world).last(), worker.results.count()), (Some(&(0, 1)), 0));
}

#[test]
fn a_result_that_no_topic_takes_is_one_dead_letter_and_its_neighbours_go_on() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_with(&world, config());
    run(&mut worker);
    callbacks.answer(500);
    world.cluster.set_topic_state(crate::engine::catalog::TopicState::usable(1, 1_000));
    world.producer.sending().fails = Some(refused("o.signals", "too large"));
    world
        .triggers
        .returns([record(0, NOW, &fire("small", 1)), record(1, NOW, &fire("large", 2_000))]);
    run(&mut worker);
    assert_eq!(callbacks.requested(), ["small", "large"]);
    assert_eq!((offsets(&world).last(), worker.results.count()), (Some(&(0, 2)), 0));
    let letters = dead_letters(&world);
    let triggers: Vec<_> = letters.iter().map(|letter| letter.trigger().unwrap()).collect();
    assert_eq!(triggers, ["large"]);
    assert!(letters[0].reason.contains("too large"), "{letters:?}");
    let Content::Fire { fire, attempts: 1 } = &letters[0].content else { panic!("{letters:?}") };
    assert_eq!(fire.definition.payload.as_ref().map(bytes::Bytes::len), Some(2_000));
}

#[test]
fn a_dead_letter_that_is_too_large_loses_its_payload() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_with(&world, config());
    run(&mut worker);
    callbacks.answer(410);
    world.cluster.set_topic_state(crate::engine::catalog::TopicState::usable(1, 1_000));
    world.producer.sending().fails = Some(refused("o.dead-letters", "too large"));
    world.triggers.returns([record(0, NOW, &fire("large", 2_000))]);
    run(&mut worker);
    let letters = dead_letters(&world);
    let last = letters.last().unwrap();
    let Content::Fire { fire, .. } = &last.content else { panic!("{letters:?}") };
    let Definition { payload, .. } = &fire.definition;
    assert_eq!((payload, worker.results.count()), (&None, 0));
    assert!(last.reason.starts_with("final: answered 410"), "{}", last.reason);
}

#[test]
fn results_wait_for_a_topic_that_cannot_be_written_and_none_becomes_a_dead_letter() {
    for is_answered in [true, false] {
        let world = TestEnvironment::default();
        let (mut worker, callbacks) = worker_with(&world, config());
        run(&mut worker);
        callbacks.answer(500);
        if is_answered {
            let state = crate::engine::catalog::TopicState::Unusable("no right".to_owned());
            world.cluster.set_topic_state(state);
        } else {
            world.cluster.leave_topics_unanswered();
        }
        world.triggers.returns([record(0, NOW, &fire("a", 1))]);
        run_failing(&world, &mut worker, &refused("o.signals", "no right"));
        let reason = match is_answered {
            true => "o.signals cannot be written: no right",
            false => {
                "o.signals has refused a record: no right; no broker says whether it can be \
                 written: no answer"
            }
        };
        let readiness = world.reporter.readiness("broker").unwrap();
        assert_eq!(readiness, format!("not ready: {reason}"));
        assert_eq!((dead_letters(&world).len(), worker.results.count()), (0, 1));
        world.producer.sending().fails = None;
        run(&mut worker);
        assert_eq!((callbacks.requested(), worker.results.count()), (vec!["a".to_owned()], 0));
    }
}

#[test]
fn no_result_waits_for_one_that_is_refused_however_small_it_is() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_with(&world, config());
    run(&mut worker);
    world.cluster.set_topic_state(crate::engine::catalog::TopicState::usable(1, 1_000));
    world.producer.sending().refuses = Some(("bad", refused("o.outcomes", "by a rule")));
    world.triggers.returns([record(0, NOW, &fire("bad", 1)), record(1, NOW, &fire("good", 1))]);
    (0..5).for_each(|_| run(&mut worker));
    world.clock.advance(Duration::from_secs(1));
    run(&mut worker);
    assert_eq!(callbacks.requested(), ["bad", "good"]);
    let last = world.producer.sending().offsets.last().cloned().unwrap();
    assert_eq!((last.offset, worker.results.count()), (0, 1));
    assert!(last.metadata.contains(';'), "one of two is finished: {last:?}");
    world.producer.sending().refuses = None;
    run(&mut worker);
    assert_eq!(worker.results.count(), 1, "it is not sent at once");
    world.clock.advance(Duration::from_secs(60));
    run(&mut worker);
    assert_eq!((offsets(&world).last(), worker.results.count()), (Some(&(0, 2)), 0));
    assert_eq!(dead_letters(&world).len(), 0);
}

#[test]
fn results_wait_while_brokers_refuse_the_time_of_the_machine() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_with(&world, config());
    run(&mut worker);
    callbacks.answer(500);
    world.cluster.set_topic_state(crate::engine::catalog::TopicState::usable(1, 1_000));
    world.triggers.returns([record(0, NOW, &fire("a", 1))]);
    let (topic, reason) = ("o.outcomes".to_owned(), "an hour ahead".to_owned());
    let error = TransactionError::RefusedTime { topic, partition: 0, reason };
    run_failing(&world, &mut worker, &error);
    assert_eq!((dead_letters(&world).len(), worker.results.count()), (0, 1));
    let readiness = world.reporter.readiness("broker").unwrap();
    assert!(readiness.contains("an hour ahead"), "{readiness}");
    world.producer.sending().fails = None;
    run(&mut worker);
    assert_eq!((callbacks.requested(), worker.results.count()), (vec!["a".to_owned()], 0));
    assert_eq!(dead_letters(&world).len(), 0);
    assert_eq!(world.reporter.readiness("broker").as_deref(), Some("ready"));
}

/// They are written to the partition that their key belongs to, which may be another worker's.
#[test]
fn changes_of_circuits_wait_for_a_partition_without_a_leader_and_hold_up_nothing() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_with(&world, opens_at_once());
    run(&mut worker);
    let circuits_sent = || {
        let sent = world.producer.sent().into_iter();
        sent.filter(|it| it.key.as_ref().is_some_and(|key| key.starts_with(b"~circuit"))).count()
    };
    callbacks.answer(500);
    let (topic, reason) = ("o.outcomes".to_owned(), "no leader".to_owned());
    let undelivered = TransactionError::Undelivered { topic, partition: 7, reason };
    world.producer.sending().fails = Some(undelivered);
    world.triggers.returns([record(0, NOW, &fire("a", 1))]);
    run(&mut worker);
    assert_eq!((offsets(&world).last(), worker.results.count()), (Some(&(0, 1)), 0));
    let before = circuits_sent();
    world.clock.advance(Duration::from_secs(1));
    run(&mut worker);
    assert!(circuits_sent() > before, "they are sent again");
    assert!((0..20).any(|_| worker.leave().unwrap()), "nothing waits for that partition");
}

#[test]
fn one_result_beside_changes_of_circuits_is_not_blamed_for_a_refusal() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_with(&world, opens_at_once());
    run(&mut worker);
    callbacks.answer(500);
    world.cluster.set_topic_state(crate::engine::catalog::TopicState::usable(1, 1_000));
    world.producer.sending().fails = Some(refused("o.outcomes", "invalid record"));
    world.triggers.returns([record(0, NOW, &fire("a", 1))]);
    run(&mut worker);
    assert_eq!((dead_letters(&world).len(), worker.results.count()), (0, 0));
}

#[test]
fn a_partition_without_a_leader_holds_up_no_other() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_with(&world, config());
    world.cluster.set(FIRES, 1, TestBounds::whole(0, 100));
    world.member.membership().polls.push_back(Ok(vec![AssignmentChange::Assigned(vec![1])]));
    run(&mut worker);
    world.producer.sending().without_leader = Some(("o.outcomes", 0));
    let other =
        |offset, trigger| TestRecord { partition: 1, ..record(offset, NOW, &fire(trigger, 1)) };
    world.triggers.returns([record(0, NOW, &fire("a", 1)), other(0, "b")]);
    run(&mut worker);
    world.triggers.returns([other(1, "c")]);
    (0..5).for_each(|_| run(&mut worker));
    assert_eq!(callbacks.requested(), ["a", "b", "c"]);
    let committed = offsets(&world);
    assert!(committed.contains(&(1, 2)), "{committed:?}");
    assert_eq!(worker.results.count(), 1, "of the partition without a leader");
    let failed = world.reporter.reported().failed_transactions;
    (0..20).for_each(|_| run(&mut worker));
    assert_eq!(world.reporter.reported().failed_transactions, failed, "it is not tried at once");
    world.producer.sending().without_leader = None;
    world.clock.advance(Duration::from_secs(60));
    run(&mut worker);
    assert_eq!((offsets(&world).last(), worker.results.count()), (Some(&(0, 1)), 0));
}

#[test]
fn revoked_partitions_are_released_after_their_last_commit() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_after(&world, config(), (0, 0, 0));
    run(&mut worker);
    callbacks.answer(0);
    world.triggers.returns([record(0, NOW, &fire("a", 1)), record(1, NOW, &fire("b", 1))]);
    run(&mut worker);
    world.hold("committer");
    let revoked = vec![AssignmentChange::Revoked(vec![0])];
    world.member.membership().polls.push_back(Ok(revoked));
    let _calls = world.member.calls();
    worker.poll_once().unwrap();
    assert_eq!(world.member.calls(), [""; 0], "the last commit is in progress");
    world.let_go("committer");
    run(&mut worker);
    assert_eq!(world.member.calls(), ["release [0]"]);
    let last = world.producer.sending().offsets.last().cloned().unwrap();
    assert_eq!((last.offset, last.metadata.rsplit(';').next()), (0, Some("2")), "two have started");
    callbacks.answer(204);
    run(&mut worker);
    assert_eq!(worker.results.count(), 0, "their next owner makes them");
}

#[test]
fn partitions_that_are_revoked_during_the_shutdown_are_released() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_with(&world, config());
    run(&mut worker);
    callbacks.answer(0);
    world.triggers.returns([record(0, NOW, &fire("a", 1))]);
    run(&mut worker);
    assert!(!worker.leave().unwrap());
    let changes = vec![AssignmentChange::Revoked(vec![0])];
    world.member.membership().polls.push_back(Ok(changes));
    let _calls = world.member.calls();
    (0..10).for_each(|_| assert!(!worker.leave().unwrap()));
    assert_eq!(world.member.calls(), ["release [0]"]);
    assert!(worker.partitions.is_empty());
    callbacks.answer(204);
    assert!((0..20).any(|_| worker.leave().unwrap()));
}

#[test]
fn without_committed_offsets_only_fires_that_cannot_have_been_delivered_are_delivered() {
    let world = TestEnvironment::default();
    world.clock.set(NOW);
    let (mut worker, callbacks) = worker_with(&world, config());
    // The brokers keep offsets for 100 s.
    let (old, young) = (NOW - 100_001, NOW - 99_999);
    let unknown = Fire { report_end: true, ..fire("old", 1) };
    world.triggers.returns([record(0, old, &unknown), record(1, young, &fire("young", 1))]);
    run(&mut worker);
    assert_eq!(callbacks.requested(), ["young"]);
    // The owner may have been notified when it was made.
    assert_eq!(topics(&world), ["o.dead-letters", "o.outcomes", "o.outcomes"]);
    let letters = dead_letters(&world);
    let triggers: Vec<_> = letters.iter().map(|letter| letter.trigger().unwrap()).collect();
    assert_eq!(triggers, ["old"]);
    assert!(letters[0].reason.starts_with("it is not known whether it was delivered"));
    assert_eq!(offsets(&world).last(), Some(&(0, 2)));
}

#[test]
fn with_committed_offsets_old_fires_are_delivered() {
    let world = TestEnvironment::default();
    world.clock.set(NOW);
    let (mut worker, callbacks) = worker_after(&world, config(), (1, 0, 100));
    world.triggers.returns([record(1, 5, &fire("old", 1))]);
    run(&mut worker);
    assert_eq!((callbacks.requested(), dead_letters(&world).len()), (vec!["old".to_owned()], 0));
}

#[test]
fn a_worker_that_ends_waits_for_its_callbacks_and_commits_them() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_with(&world, config());
    run(&mut worker);
    callbacks.answer(0);
    world.triggers.returns([record(0, NOW, &fire("a", 1))]);
    run(&mut worker);
    assert!(!worker.leave().unwrap() && !worker.leave().unwrap());
    callbacks.answer(204);
    assert!((0..20).any(|_| worker.leave().unwrap()));
    assert_eq!((offsets(&world).last(), worker.results.count()), (Some(&(0, 1)), 0));
}

/// The next records are large, so that not all of them wait for a commit that reserves them.
#[test]
fn a_partition_is_read_on_although_hundreds_of_its_fires_wait_for_a_caller_that_hangs() {
    const FAR: Offset = 30_000;
    let world = TestEnvironment::default();
    let queue = QueueBounds { fires: 10_000, ..config().queue };
    let (mut worker, callbacks) = worker_with(&world, WorkerConfig { queue, ..config() });
    run(&mut worker);
    callbacks.answer(0);
    world.triggers.returns((0..700).map(|at| record(at, NOW, &fire("hangs", 1))));
    run(&mut worker);
    assert_eq!((callbacks.requested().len(), worker.queue.waiting()), (100, 600));
    let _calls = world.triggers.calls();
    world.triggers.returns((FAR..FAR + 3).map(|at| record(at, NOW, &fire("large", 2 << 20))));
    run(&mut worker);
    assert_eq!(
        world.triggers.calls(),
        [format!("stop {FIRES}[0]"), format!("start {FIRES}[0] at {FAR}"),]
    );
}
