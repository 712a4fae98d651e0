//! Tests of interrupted transactions: what goes on, and how they are decided.
//!
//! Invariant: no broker decides here: a test sets what is committed.

use super::*;
use crate::engine::assignment::AssignmentChange;
use crate::engine::cursor::Cursor;
use crate::engine::takeover::TakeoverRequest;
use crate::environment::transaction::{OffsetCommit, TransactionError};
use crate::model::Timestamp;
use crate::scheduler::partition_task::{PartitionState, PartitionTask};
use crate::scheduler::test_partition::{
    active_with, all_read, due_at, partition_config, register, register_with, restoring,
};
use crate::test_environment::store::TestStore;
use crate::test_environment::{NOW, TestEnvironment};

type TestScheduler = Scheduler<TestEnvironment>;

/// An active partition with a fire that is decided.
fn fired(id: PartitionId) -> PartitionTask<TestStore> {
    due_at(id, NOW)
}

fn unknown() -> TransactionError {
    TransactionError::Unknown("timeout".to_owned())
}

/// The partitions are ours, and the transaction of what is due in them has failed like this: its
/// commit, if that is unknown.
fn failed(
    world: &TestEnvironment,
    error: TransactionError,
    tasks: impl IntoIterator<Item = PartitionTask<TestStore>>,
) -> TestScheduler {
    let mut scheduler = world.scheduler_owning(tasks);
    scheduler.fire_all_due(Duration::ZERO).unwrap();
    let mut sending = world.producer.sending();
    match error {
        TransactionError::Unknown(_) => sending.commit_fails = Some(error),
        error => sending.fails = Some(error),
    }
    drop(sending);
    scheduler.commit_if_ready().unwrap();
    scheduler.poll_transaction(Duration::ZERO).unwrap();
    scheduler
}

/// What was sent since the last call: the number of records, and the offsets.
fn sent(world: &TestEnvironment) -> (usize, Vec<OffsetCommit>) {
    let records = world.producer.sent().len();
    let mut sending = world.producer.sending();
    (records, std::mem::take(&mut sending.offsets))
}

/// This is committed, and what was left open has ended.
fn decide(
    world: &TestEnvironment,
    scheduler: &mut TestScheduler,
    committed: Option<(Offset, String)>,
) {
    world.member.membership().committed = committed;
    scheduler.poll_producer_jobs(Duration::ZERO).unwrap();
    scheduler.poll_interrupted(Duration::ZERO).unwrap();
}

/// The offset and the metadata that were sent for a partition.
fn sent_for(offsets: &[OffsetCommit], id: PartitionId) -> Option<(Offset, String)> {
    let commit = offsets.iter().find(|commit| commit.partition == id);
    commit.map(|commit| (commit.offset, commit.metadata.clone()))
}

/// The offsets that the interrupted transaction commits.
fn commits(scheduler: &TestScheduler) -> Vec<OffsetCommit> {
    let batch = scheduler.batch.as_ref().expect("it is kept");
    batch.offset_commits("o.triggers", "me")
}

/// What was committed before it: the same owner, an earlier step.
fn before() -> Option<(Offset, String)> {
    Some((0, Cursor::initial(0, 0).to_metadata("me")))
}

fn is_active(scheduler: &TestScheduler, id: PartitionId) -> bool {
    let task = scheduler.tasks.get(&id);
    task.is_some_and(|task| matches!(task.state, PartitionState::Active(_)))
}

#[test]
fn partitions_go_on_while_a_transaction_is_interrupted_and_their_next_step_is_bounded() {
    let world = TestEnvironment::default();
    world.hold("producers");
    let config =
        crate::engine::config::PartitionConfig { records_per_step_max: 2, ..partition_config() };
    let mut scheduler = failed(&world, unknown(), [fired(0), active_with(1, config)]);
    assert!(is_active(&scheduler, 0) && is_active(&scheduler, 1));
    assert!(scheduler.batch.is_some() && scheduler.producer.is_none());
    let readiness = world.reporter.readiness("broker").unwrap();
    assert!(readiness.starts_with("not ready: "), "{readiness}");
    assert_eq!(world.reporter.readiness("partitions"), None, "they are as they were");
    assert_eq!(world.triggers.calls(), [""; 0], "no reader is stopped");
    let task = scheduler.tasks.get_mut(&1).unwrap();
    for offset in 0..5 {
        let _behind = task.active().unwrap().observe_clock(NOW);
        if !task.is_full() {
            register(task, offset, NOW);
        }
    }
    all_read(task, NOW);
    assert_eq!(task.next_trigger, 2, "it accepts what fits in a step");
    for _ in 0..3 {
        scheduler.poll_once().unwrap();
    }
    let task = scheduler.tasks.get_mut(&1).unwrap();
    assert_eq!(task.active().unwrap().drafted_records(), 2, "it has fired them");
    assert!(task.is_full() && task.is_ready_to_commit(), "its step is not sealed");
    let began = world.clock.monotonic();
    scheduler.poll_once().unwrap();
    assert!(world.clock.monotonic() > began, "a turn waits, although something is due");
    assert!(!scheduler.assignment.is_idle());
}

/// Nothing of it can be committed.
#[test]
fn a_transaction_that_fails_before_its_commit_is_sent_again_and_nothing_is_read() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([fired(0)]);
    scheduler.fire_all_due(Duration::ZERO).unwrap();
    world.producer.sending().fails = Some(unknown());
    scheduler.commit_if_ready().unwrap();
    scheduler.poll_transaction(Duration::ZERO).unwrap();
    let first = sent(&world);
    scheduler.poll_producer_jobs(Duration::ZERO).unwrap();
    scheduler.poll_interrupted(Duration::ZERO).unwrap();
    assert_eq!((scheduler.findings.requests(), sent(&world).0), (0, first.0), "the same records");
    assert_eq!(world.reporter.readiness("broker").unwrap(), "ready");
    scheduler.poll_transaction(Duration::ZERO).unwrap();
    assert!(scheduler.assignment.is_idle() && scheduler.batch.is_none());
}

#[test]
fn an_interrupted_transaction_that_is_committed_is_applied() {
    let world = TestEnvironment::default();
    let mut task = fired(0);
    task.active().unwrap().request_spill();
    let mut scheduler = failed(&world, unknown(), [task, active_with(1, partition_config())]);
    scheduler.targets.on_undelivered("out", 0);
    let (offsets, (records, _)) = (commits(&scheduler), sent(&world));
    decide(&world, &mut scheduler, sent_for(&offsets, 0));
    assert!(scheduler.assignment.is_idle() && scheduler.batch.is_none());
    assert!(is_active(&scheduler, 0) && is_active(&scheduler, 1));
    assert_eq!(sent(&world), (records, vec![]), "it is not sent again");
    assert_eq!(world.reporter.readiness("broker").unwrap(), "ready");
    assert_eq!(world.reporter.reported().committed.len(), 1);
    assert!(!scheduler.targets.has_failures(), "its target has taken a record");
    scheduler.await_stores().unwrap();
    let state = scheduler.tasks[&0].store.contents().state.clone();
    assert_eq!(state.map(|state| state.step), Some(1), "what it spills is written");
}

#[test]
fn an_interrupted_transaction_that_is_not_committed_is_sent_again() {
    let world = TestEnvironment::default();
    let mut scheduler = failed(&world, unknown(), [fired(0)]);
    let (offsets, (records, _)) = (commits(&scheduler), sent(&world));
    decide(&world, &mut scheduler, before());
    assert!(scheduler.batch.is_some() && !scheduler.assignment.accepts_changes());
    assert_eq!(world.reporter.readiness("broker").unwrap(), "ready");
    scheduler.poll_transaction(Duration::ZERO).unwrap();
    assert!(scheduler.assignment.is_idle() && scheduler.batch.is_none());
    assert_eq!(sent(&world), (2 * records, offsets), "the same once more");
    assert!(is_active(&scheduler, 0));
    assert_eq!(world.reporter.reported().committed.len(), 1);
}

#[test]
fn an_interrupted_transaction_is_sent_again_when_the_group_gives_metadata() {
    let world = TestEnvironment::default();
    let mut scheduler = failed(&world, unknown(), [fired(0)]);
    let _failed = sent(&world);
    let offsets = commits(&scheduler);
    world.member.membership().is_out = true;
    decide(&world, &mut scheduler, before());
    scheduler.poll_interrupted(Duration::ZERO).unwrap();
    assert_eq!(sent(&world).1, []);
    let readiness = world.reporter.readiness("broker").unwrap();
    assert!(readiness.starts_with("not ready: "), "{readiness}");
    assert!(scheduler.assignment.accepts_changes(), "the group is polled meanwhile");
    world.member.membership().is_out = false;
    scheduler.poll_interrupted(Duration::ZERO).unwrap();
    assert_eq!(world.reporter.readiness("broker").unwrap(), "ready");
    scheduler.poll_transaction(Duration::ZERO).unwrap();
    assert_eq!(sent(&world).1, offsets);
}

/// A broker that was paused may say what was committed before another one took its place.
#[test]
fn a_transaction_is_not_sent_again_while_two_clients_read_different_steps() {
    let world = TestEnvironment::default();
    let mut scheduler = failed(&world, unknown(), [fired(0)]);
    let (offsets, (records, _)) = (commits(&scheduler), sent(&world));
    let committed = sent_for(&offsets, 0);
    world.member.membership().latest = committed.clone().map(|(_, metadata)| metadata);
    decide(&world, &mut scheduler, before());
    assert!(scheduler.batch.is_some() && scheduler.assignment.accepts_changes());
    assert_eq!(sent(&world), (records, vec![]), "it is read again");
    world.member.membership().committed = committed;
    scheduler.poll_interrupted(Duration::ZERO).unwrap();
    assert!(scheduler.assignment.is_idle() && is_active(&scheduler, 0));
    assert_eq!(sent(&world), (records, vec![]), "it is committed");
}

#[test]
fn if_what_is_committed_is_not_ours_everything_is_taken_over_again() {
    let other = Cursor::initial(0, 0).to_metadata("another");
    for committed in [None, Some((0, String::new())), Some((0, other))] {
        let world = TestEnvironment::default();
        let others = active_with(1, partition_config());
        let mut scheduler = failed(&world, unknown(), [fired(0), others]);
        decide(&world, &mut scheduler, committed);
        assert!(scheduler.assignment.is_idle() && scheduler.batch.is_none());
        assert_eq!(scheduler.awaited_stores.len(), 2, "both are taken over again");
        assert_eq!(world.reporter.readiness("broker").unwrap(), "ready");
    }
}

#[test]
fn after_a_refusal_the_partitions_of_the_transaction_alone_are_taken_over_again() {
    let (topic, reason) = ("out".to_owned(), "no".to_owned());
    let refused = TransactionError::Refused { topic, partition: 0, reason: reason.clone() };
    let own_topic = "o.ledger".to_owned();
    let (topic, partition) = ("out".to_owned(), 0);
    for error in [
        refused,
        TransactionError::Refused { topic: own_topic, partition, reason: reason.clone() },
        TransactionError::Undelivered { topic, partition, reason: reason.clone() },
        TransactionError::UnusableTopic(reason),
    ] {
        let world = TestEnvironment::default();
        let others = active_with(1, partition_config());
        let mut scheduler = failed(&world, error.clone(), [fired(0), others]);
        let (records, _) = sent(&world);
        decide(&world, &mut scheduler, before());
        assert!(scheduler.assignment.is_idle(), "{error}");
        assert_eq!(sent(&world), (records, vec![]), "the same is not sent again: {error}");
        assert!(!scheduler.tasks.contains_key(&0) && is_active(&scheduler, 1), "{error}");
    }
}

/// It may have another leader when it is sent again.
#[test]
fn a_transaction_that_a_topic_of_ours_has_not_acknowledged_is_sent_again() {
    let (topic, reason) = ("o.ledger".to_owned(), "no leader".to_owned());
    let error = TransactionError::Undelivered { topic, partition: 0, reason };
    let world = TestEnvironment::default();
    let mut scheduler = failed(&world, error, [fired(0)]);
    decide(&world, &mut scheduler, before());
    scheduler.poll_transaction(Duration::ZERO).unwrap();
    assert!(scheduler.assignment.is_idle() && is_active(&scheduler, 0));
}

#[test]
fn a_partition_that_is_assigned_again_gets_nothing_of_the_transaction() {
    for is_assigned in [false, true] {
        let world = TestEnvironment::default();
        let spilling = |id| {
            let mut task = fired(id);
            task.active().unwrap().request_spill();
            task
        };
        let mut scheduler = failed(&world, unknown(), [spilling(0), spilling(1)]);
        let offsets = commits(&scheduler);
        world.member.membership().committed = sent_for(&offsets, 0);
        scheduler.poll_producer_jobs(Duration::ZERO).unwrap();
        let mut changes = vec![AssignmentChange::Revoked(vec![1])];
        if is_assigned {
            changes.push(AssignmentChange::Assigned(vec![1]));
        }
        world.member.membership().polls.push_back(Ok(changes));
        scheduler.poll_group().unwrap();
        assert_eq!(world.member.calls(), ["release [1]"], "at once");
        // Its store is open already.
        let again =
            is_assigned.then(|| PartitionTask { id: 1, ..restoring(TakeoverRequest::Offsets) });
        scheduler.tasks.extend(again.map(|task| (1, task)));
        scheduler.poll_interrupted(Duration::ZERO).unwrap();
        scheduler.await_stores().unwrap();
        assert!(scheduler.assignment.is_idle() && is_active(&scheduler, 0));
        assert!(scheduler.tasks[&0].store.contents().state.is_some());
        let of_1 = scheduler.tasks.get(&1).map(|task| task.store.contents().state.clone());
        assert_eq!(of_1, is_assigned.then_some(None), "it has only what its takeover reads");
    }
}

#[test]
fn what_is_committed_is_asked_for_until_it_is_answered_and_old_answers_do_not_count() {
    let world = TestEnvironment::default();
    let mut scheduler = failed(&world, unknown(), [fired(0), fired(1)]);
    let offsets = commits(&scheduler);
    world.member.membership().is_silent = true;
    decide(&world, &mut scheduler, sent_for(&offsets, 0));
    scheduler.poll_interrupted(Duration::ZERO).unwrap();
    assert!(!scheduler.assignment.is_idle());
    let readiness = world.reporter.readiness("broker").unwrap();
    assert!(readiness.starts_with("not ready: "), "{readiness}");
    // Partition 0 is lost, so that partition 1 is asked for.
    let lost = AssignmentChange::Lost(vec![0]);
    world.member.membership().polls.push_back(Ok(vec![lost]));
    scheduler.poll_group().unwrap();
    world.member.membership().is_silent = false;
    world.member.membership().committed = sent_for(&offsets, 1);
    scheduler.poll_interrupted(Duration::ZERO).unwrap();
    assert!(!scheduler.assignment.is_idle(), "the first request was cancelled");
    scheduler.poll_interrupted(Duration::ZERO).unwrap();
    assert!(scheduler.assignment.is_idle() && is_active(&scheduler, 1));
}

#[test]
fn on_the_built_in_broker_everything_starts_again() {
    let world = TestEnvironment::default();
    let mut scheduler = failed(&world, unknown(), [fired(0)]);
    scheduler.config.mode = Mode::Trial;
    let offsets = commits(&scheduler);
    decide(&world, &mut scheduler, sent_for(&offsets, 0));
    assert!(scheduler.assignment.is_idle() && scheduler.findings.requests() == 0);
    assert_eq!(scheduler.awaited_stores.len(), 1);
}

#[test]
fn a_transaction_of_a_call_that_does_not_return_is_decided_like_any_other() {
    let world = TestEnvironment::default();
    world.hold("committer");
    let mut scheduler = world.scheduler_owning([fired(0)]);
    scheduler.fire_all_due(Duration::ZERO).unwrap();
    scheduler.commit_if_ready().unwrap();
    let (limit, turn_max) = scheduler.config.timing.hang_limits(Duration::from_secs(10));
    for _ in 0..=limit.as_millis() / turn_max.as_millis() + 1 {
        world.clock.advance(turn_max);
        scheduler.poll_transaction(Duration::ZERO).unwrap();
    }
    assert!(scheduler.producer.is_none() && is_active(&scheduler, 0));
    world.let_go("committer");
    let _abandoned = sent(&world);
    decide(&world, &mut scheduler, before());
    scheduler.poll_transaction(Duration::ZERO).unwrap();
    assert!(!sent(&world).1.is_empty(), "it is sent again");
    assert!(scheduler.assignment.is_idle() && is_active(&scheduler, 0));
}

#[test]
fn a_process_leaves_while_a_transaction_is_interrupted() {
    for silent in ["producers", "findings"] {
        let world = TestEnvironment::default();
        world.hold(silent);
        let mut scheduler = failed(&world, unknown(), [fired(0)]);
        scheduler.poll_producer_jobs(Duration::ZERO).unwrap();
        assert!(!scheduler.leave().unwrap());
        let revoked = AssignmentChange::Revoked(vec![0]);
        world.member.membership().polls.push_back(Ok(vec![revoked]));
        world.member.membership().has_released_all = true;
        let turns = (1..=10).find(|_| scheduler.leave().unwrap());
        assert_eq!(turns, Some(2), "without waiting for {silent}");
        assert_eq!(world.member.calls(), ["leave", "release [0]"]);
    }
}

/// It may be usable by then, for smaller records than before.
#[test]
fn what_is_decided_for_a_target_that_refuses_a_record_meanwhile_is_decided_again() {
    for (target, is_dropped) in [("out", true), ("other", false)] {
        let (topic, reason) = (target.to_owned(), "too large".to_owned());
        let error = TransactionError::Refused { topic, partition: 0, reason };
        let world = TestEnvironment::default();
        world.hold("committer");
        let mut scheduler = world.scheduler_owning([fired(0), active_with(1, partition_config())]);
        scheduler.fire_all_due(Duration::ZERO).unwrap();
        scheduler.commit_if_ready().unwrap();
        let _before = scheduler.tasks.insert(1, fired(1));
        scheduler.fire_all_due(Duration::ZERO).unwrap();
        world.producer.sending().fails = Some(error);
        world.let_go("committer");
        scheduler.poll_transaction(Duration::ZERO).unwrap();
        assert_eq!(scheduler.tasks[&1].must_start_again, is_dropped, "{target}");
        assert!(
            is_active(&scheduler, 0),
            "its own steps are decided again when producers are open"
        );
    }
}

/// An active partition whose fire expires a second after [`NOW`].
fn expiring(id: PartitionId) -> PartitionTask<TestStore> {
    let mut task = active_with(id, partition_config());
    let _behind = task.active().unwrap().observe_clock(NOW);
    register_with(&mut task, (0, NOW), |registration| registration.expire_after = Some(1_000));
    all_read(&mut task, NOW);
    task
}

/// Any commit may take as long as a transaction.
const IN_TIME: Timestamp = NOW + 1_000 + 10_000;

#[test]
fn steps_that_would_come_too_late_are_not_sent_again() {
    for (now, is_sent) in [(IN_TIME, true), (IN_TIME + 1, false)] {
        let world = TestEnvironment::default();
        let tasks = [expiring(0), active_with(1, partition_config())];
        let mut scheduler = failed(&world, unknown(), tasks);
        world.clock.set(now);
        decide(&world, &mut scheduler, before());
        assert_eq!(!scheduler.assignment.accepts_changes(), is_sent, "{now}");
        assert_eq!(is_active(&scheduler, 0), is_sent, "{now}: it is taken over again");
        assert!(is_active(&scheduler, 1) && scheduler.batch.is_some() == is_sent);
    }
}

#[test]
fn what_has_waited_for_too_long_is_decided_again_and_not_committed() {
    for (now, is_sent) in [(IN_TIME, true), (IN_TIME + 1, false)] {
        let world = TestEnvironment::default();
        let mut scheduler = world.scheduler_owning([expiring(0)]);
        scheduler.fire_all_due(Duration::ZERO).unwrap();
        world.clock.set(now);
        scheduler.commit_if_ready().unwrap();
        assert_eq!(scheduler.batch.is_some(), is_sent, "{now}");
        if !is_sent {
            scheduler.start_takeovers_again().unwrap();
            assert_eq!(scheduler.awaited_stores.len(), 1, "it is taken over again");
        }
        let mut scheduler = world.scheduler_owning([expiring(0)]);
        scheduler.fire_all_due(Duration::ZERO).unwrap();
        world.clock.set(now);
        let revoked = AssignmentChange::Revoked(vec![0]);
        let _joins = scheduler.assignment.on_assignment_change(revoked, 0);
        let actions = scheduler.assignment.on_tick(0);
        scheduler.execute(actions).unwrap();
        let batch = scheduler.batch.as_ref().expect("its last offset is committed");
        assert_eq!(batch.steps.is_empty(), !is_sent, "{now}");
    }
}
