//! Tests of transactions: what is sealed, and what the end of one means.
//!
//! Invariant: a transaction ends when its result is polled, unless it is held.

use super::*;
use crate::engine::assignment::AssignmentChange;
use crate::engine::catalog::TopicState;
use crate::engine::cursor::Cursor;
use crate::engine::interrupted_transaction::TransactionContent;
use crate::engine::partition_offsets::PartitionOffsets;
use crate::engine::takeover::TakeoverError;
use crate::environment::transaction::OffsetCommit;
use crate::scheduler::test_partition::{
    active_at, all_read, due_at, register_large, restore_of, restoring,
};
use crate::test_environment::clock::MS;
use crate::test_environment::store::TestStore;
use crate::test_environment::{NOW, TestEnvironment};

/// An active partition with a fire that is decided.
fn fired(id: PartitionId) -> PartitionTask<TestStore> {
    due_at(id, NOW)
}

/// The partitions are ours, and what is due in them is decided.
fn scheduler_of(
    world: &TestEnvironment,
    tasks: impl IntoIterator<Item = PartitionTask<TestStore>>,
) -> Scheduler<TestEnvironment> {
    let mut scheduler = world.scheduler_owning(tasks);
    scheduler.fire_all_due(Duration::ZERO).unwrap();
    scheduler
}

/// The partitions whose offsets were sent since the last call.
fn committed(world: &TestEnvironment) -> Vec<PartitionId> {
    std::mem::take(&mut world.producer.sending().offsets)
        .into_iter()
        .map(|commit| commit.partition)
        .collect()
}

/// Commits what is ready, and waits for the result.
fn commit(scheduler: &mut Scheduler<TestEnvironment>) {
    scheduler.commit_if_ready().unwrap();
    if !scheduler.assignment.is_idle() {
        scheduler.poll_transaction(Duration::ZERO).unwrap();
    }
}

#[test]
fn a_transaction_has_so_many_partitions_at_most_and_the_next_one_begins_after_them() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler_of(&world, (0..5).map(fired));
    scheduler.config.partitions_per_commit_max = 2;
    for partitions in [vec![0, 1], vec![2, 3], vec![4], vec![]] {
        commit(&mut scheduler);
        assert_eq!(committed(&world), partitions);
    }
    let _before = scheduler.tasks.insert(3, fired(3));
    let _before = scheduler.tasks.insert(0, fired(0));
    scheduler.next_partition = 1;
    scheduler.fire_all_due(Duration::ZERO).unwrap();
    commit(&mut scheduler);
    assert_eq!(committed(&world), [3, 0]);
    assert_eq!(scheduler.next_partition, 1);
}

#[test]
fn a_transaction_has_steps_of_so_many_bytes_at_most_and_one_however_large_it_is() {
    let large = |id| {
        let mut task = active_at(id);
        let _behind = task.active().unwrap().observe_clock(NOW);
        register_large(&mut task, (0, NOW), 100_000);
        all_read(&mut task, NOW);
        task
    };
    let bytes_of_one = scheduler_of(&TestEnvironment::default(), [large(0)]).seal(1).bytes();
    for (bytes_max, partitions) in [
        (1, [vec![0], vec![1]]),
        (bytes_of_one, [vec![0], vec![1]]),
        (150_000, [vec![0, 1], vec![2]]),
    ] {
        let world = TestEnvironment::default();
        let mut scheduler = scheduler_of(&world, (0..3).map(large));
        scheduler.config.bytes_per_commit_max = bytes_max;
        for partitions in &partitions {
            commit(&mut scheduler);
            assert_eq!(committed(&world), *partitions, "at most {bytes_max}");
        }
        let mut scheduler = scheduler_of(&world, (0..3).map(large));
        scheduler.config.bytes_per_commit_max = bytes_max;
        scheduler.assignment.on_transaction_begin(TransactionContent::default());
        scheduler.commit_final_steps(&[0, 1, 2]).unwrap();
        scheduler.poll_transaction(Duration::ZERO).unwrap();
        let offsets = std::mem::take(&mut world.producer.sending().offsets);
        let with_step = offsets.iter().filter(|commit| commit.offset > 0);
        let with_step: Vec<_> = with_step.map(|commit| commit.partition).collect();
        assert_eq!(with_step, partitions[0], "of those that are released");
        let has_left = |commit: &OffsetCommit| Cursor::active_owner(&commit.metadata).is_none();
        assert!(offsets.len() == 3 && offsets.iter().all(has_left), "their owner has left all");
    }
}

#[test]
fn nothing_is_sealed_while_this_process_is_not_a_member() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler_of(&world, [fired(0)]);
    world.member.membership().is_out = true;
    commit(&mut scheduler);
    assert!(scheduler.tasks.get_mut(&0).unwrap().is_ready_to_commit());
    world.member.membership().is_out = false;
    commit(&mut scheduler);
    assert_eq!(committed(&world), [0]);
}

#[test]
fn transactions_begin_no_sooner_after_one_another_than_configured() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler_of(&world, [fired(0)]);
    scheduler.config.commit_interval_min = MS * 10;
    world.clock.advance(MS * 9);
    assert_eq!(scheduler.spacing(), MS);
    commit(&mut scheduler);
    assert_eq!(committed(&world), [0; 0]);
    world.clock.advance(MS);
    assert_eq!(scheduler.spacing(), Duration::ZERO);
    commit(&mut scheduler);
    assert_eq!((committed(&world), scheduler.spacing()), (vec![0], MS * 10));
}

#[test]
fn no_transaction_begins_while_no_step_and_no_barrier_is_ready() {
    assert!(!active_at(0).is_ready_to_commit());
    assert!(!restoring(TakeoverRequest::Offsets).is_ready_to_commit());
    let world = TestEnvironment::default();
    let mut scheduler = scheduler_of(&world, [active_at(0)]);
    commit(&mut scheduler);
    assert!(scheduler.batch.is_none() && world.producer.began_at().is_none());
}

#[test]
fn a_commit_waits_no_longer_than_the_lead_if_the_clock_was_set_back() {
    for (set_back, commit_not_before) in [(0, NOW), (20, NOW), (80, NOW - 30)] {
        let world = TestEnvironment::default();
        let mut scheduler = scheduler_of(&world, [fired(0)]);
        world.clock.set(NOW - set_back);
        commit(&mut scheduler);
        assert_eq!(world.producer.began_at(), Some(commit_not_before), "by {set_back} ms");
    }
}

#[test]
fn a_transaction_of_a_stale_generation_is_aborted_and_sent_again() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler_of(&world, [fired(0)]);
    world.producer.sending().fails = Some(TransactionError::StaleGeneration("3".to_owned()));
    commit(&mut scheduler);
    assert!(!scheduler.assignment.is_idle());
    assert_eq!(world.reporter.reported().failed_transactions, 0);
    // It pauses first.
    scheduler.poll_producer_jobs(Duration::ZERO).unwrap();
    scheduler.poll_producer_jobs(Duration::ZERO).unwrap();
    scheduler.poll_transaction(Duration::ZERO).unwrap();
    assert!(scheduler.assignment.is_idle() && scheduler.batch.is_none());
    assert_eq!(committed(&world), [0]);
}

#[test]
fn an_aborted_transaction_of_a_process_that_has_left_is_dropped() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler_of(&world, [fired(0)]);
    world.producer.sending().fails = Some(TransactionError::StaleGeneration("3".to_owned()));
    commit(&mut scheduler);
    world.member.membership().is_out = true;
    scheduler.poll_producer_jobs(Duration::ZERO).unwrap();
    scheduler.poll_producer_jobs(Duration::ZERO).unwrap();
    assert!(scheduler.assignment.is_idle(), "it is not sent again");
    assert!(scheduler.tasks.is_empty(), "it is taken over again");
}

#[test]
fn after_a_failed_transaction_producers_are_opened_until_one_is_open() {
    let world = TestEnvironment::default();
    let mut failed = active_at(1);
    failed.state = PartitionState::StoreFailed;
    let mut scheduler = scheduler_of(&world, [fired(0), failed]);
    world.producer.sending().fails = Some(TransactionError::Unknown("timeout".to_owned()));
    commit(&mut scheduler);
    assert!(matches!(scheduler.tasks[&0].state, PartitionState::Active(_)));
    assert!(matches!(scheduler.tasks[&1].state, PartitionState::StoreFailed));
    assert!(scheduler.producer.is_none() && scheduler.batch.is_some());
    assert_eq!(world.reporter.reported().failed_transactions, 1);
    let readiness = world.reporter.readiness("broker").unwrap();
    assert!(readiness.starts_with("not ready: "), "{readiness}");
    world.producer.sending().fails = Some(TransactionError::Unknown("no broker".to_owned()));
    scheduler.poll_producer_jobs(Duration::ZERO).unwrap();
    let readiness = world.reporter.readiness("broker").unwrap();
    assert!(readiness.contains("no broker"), "{readiness}");
    scheduler.poll_producer_jobs(Duration::ZERO).unwrap();
    assert!(scheduler.producer.is_some() && !scheduler.assignment.is_idle());
    assert!(scheduler.tasks.len() == 2, "nothing is taken over again");
}

/// Else a topic that refuses every record would begin a long takeover again and again.
#[test]
fn a_takeover_continues_if_a_transaction_without_its_barrier_fails() {
    for has_barrier in [false, true] {
        let world = TestEnvironment::default();
        let mut restored = restoring(TakeoverRequest::Offsets);
        restored.id = 1;
        if has_barrier {
            let takeover = restore_of(&mut restored).takeover.as_mut().unwrap();
            takeover.on_offsets(PartitionOffsets::default()).unwrap();
        }
        let mut scheduler = scheduler_of(&world, [fired(0), restored]);
        world.producer.sending().commit_fails =
            Some(TransactionError::Unknown("timeout".to_owned()));
        commit(&mut scheduler);
        let continues = |scheduler: &Scheduler<TestEnvironment>| {
            let task = scheduler.tasks.get(&1);
            task.is_some_and(|task| matches!(task.state, PartitionState::Restoring(_)))
        };
        assert!(continues(&scheduler), "its barrier waits for new producers");
        scheduler.poll_producer_jobs(Duration::ZERO).unwrap();
        assert!(scheduler.producer.is_some() && scheduler.tasks.contains_key(&0));
        assert_eq!(continues(&scheduler), !has_barrier);
        // Nothing is committed: all partitions are taken over again.
        scheduler.poll_interrupted(Duration::ZERO).unwrap();
        assert!(scheduler.assignment.is_idle() && !scheduler.tasks.contains_key(&0));
        assert_eq!(continues(&scheduler), !has_barrier);
    }
}

#[test]
fn an_abort_that_fails_is_a_transaction_of_unknown_outcome() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler_of(&world, [fired(0)]);
    world.producer.sending().fails = Some(TransactionError::StaleGeneration("3".to_owned()));
    commit(&mut scheduler);
    world.producer.sending().fails = Some(TransactionError::Unknown("timeout".to_owned()));
    scheduler.poll_producer_jobs(Duration::ZERO).unwrap();
    scheduler.poll_producer_jobs(Duration::ZERO).unwrap();
    assert!(scheduler.producer.is_none() && scheduler.batch.is_some());
    assert_eq!(world.reporter.reported().failed_transactions, 1);
}

#[test]
fn a_topic_that_has_not_taken_a_record_is_left_out_if_it_is_a_target() {
    let refused = |topic: &str| TransactionError::Refused {
        topic: topic.to_owned(),
        partition: 0,
        reason: "too large".to_owned(),
    };
    let undelivered = |topic: &str| TransactionError::Undelivered {
        topic: topic.to_owned(),
        partition: 0,
        reason: "no leader".to_owned(),
    };
    let failure =
        |is_uncommitted, blames_target| TransactionFailure { is_uncommitted, blames_target };
    let (unknown, target) = (failure(true, false), failure(true, true));
    for (error, has_failures, outcome) in [
        (refused("out"), true, target),
        (undelivered("out"), true, target),
        (refused("o.fires.slow"), true, target),
        (undelivered("o.fires.slow"), true, target),
        (refused("o.ledger"), false, target),
        (undelivered("o.ledger"), false, unknown),
        (TransactionError::Fenced("by another".to_owned()), false, failure(false, false)),
    ] {
        let mut scheduler = scheduler_of(&TestEnvironment::default(), []);
        let failed = CommitFailure { error: error.clone(), is_uncommitted: true };
        assert_eq!(scheduler.report_failure(&failed), outcome, "{error}");
        let unknown = CommitFailure { is_uncommitted: false, ..failed };
        assert!(!scheduler.report_failure(&unknown).is_uncommitted, "{error}");
        assert_eq!(scheduler.targets.has_failures(), has_failures, "{error}");
    }
}

/// Their transactions would fail one after the other, and each may take its whole timeout.
#[test]
fn what_is_decided_for_a_target_that_cannot_be_written_by_now_is_dropped() {
    type World = (TestEnvironment, Scheduler<TestEnvironment>);
    type Failure = fn(&mut World);
    let has_no_failure = |_: &mut World| {};
    let other_partition_fails = |(_, it): &mut World| it.targets.on_undelivered("out", 3);
    let partition_fails = |(_, it): &mut World| it.targets.on_undelivered("out", 0);
    let has_refused = |(_, it): &mut World| it.targets.on_refused("out", "too large");
    let is_deleted = |(world, it): &mut World| {
        let topics = ["out".to_owned()].into();
        let _usable = it.targets.catalog(["out"].into_iter(), [].into_iter());
        world.cluster.set_topic_state(TopicState::Unusable("it was deleted".to_owned()));
        it.targets.on_unusable(&topics, "no such topic");
        it.targets.refresh_expired();
    };
    let failures: [(Failure, bool); 5] = [
        (has_no_failure, false),
        (other_partition_fails, false),
        (partition_fails, true),
        (has_refused, true),
        (is_deleted, true),
    ];
    for (place, (fail, is_dropped)) in failures.into_iter().enumerate() {
        let world = TestEnvironment::default();
        let scheduler = scheduler_of(&world, [fired(0)]);
        let mut world = (world, scheduler);
        fail(&mut world);
        world.1.commit_if_ready().unwrap();
        assert_eq!(world.1.batch.is_none(), is_dropped, "{place}");
        assert_eq!(world.1.tasks[&0].must_start_again, is_dropped, "{place}");
    }
}

#[test]
fn the_targets_of_a_transaction_that_may_not_be_written_are_looked_up_again() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler_of(&world, [fired(0)]);
    let state_of = |scheduler: &mut Scheduler<TestEnvironment>| {
        let catalog = scheduler.targets.catalog(["out"].into_iter(), [].into_iter());
        catalog.state("out").cloned().unwrap()
    };
    let usable = state_of(&mut scheduler);
    let _before = world.cluster.looked_up();
    world.producer.sending().fails = Some(TransactionError::UnusableTopic("no".to_owned()));
    commit(&mut scheduler);
    assert!(scheduler.producer.is_none());
    assert_eq!(state_of(&mut scheduler), usable, "until there is an answer");
    assert_eq!(world.cluster.looked_up(), ["out"]);
}

#[test]
fn a_partition_of_a_target_has_recovered_when_a_record_of_it_is_committed() {
    let world = TestEnvironment::default();
    world.hold("committer");
    let mut scheduler = scheduler_of(&world, [fired(0)]);
    scheduler.commit_if_ready().unwrap();
    for partition in [0, 1] {
        scheduler.targets.on_undelivered("out", partition);
    }
    world.let_go("committer");
    scheduler.poll_transaction(Duration::ZERO).unwrap();
    assert!(scheduler.targets.has_failures(), "that of the other partition");
    scheduler.targets.on_committed("out", 1);
    assert!(!scheduler.targets.has_failures());
}

#[test]
fn the_offsets_of_a_transaction_are_committed_once_more_on_the_built_in_broker_alone() {
    for (mode, count) in [(Mode::Guaranteed, 0), (Mode::Trial, 1)] {
        let world = TestEnvironment::default();
        let mut scheduler = scheduler_of(&world, [fired(0)]);
        scheduler.config.mode = mode;
        commit(&mut scheduler);
        let commits = world.member.membership().commits.clone();
        assert_eq!(commits.len(), count);
        let of = |commit: &OffsetCommit| commit.topic == "o.triggers" && commit.offset == 1;
        assert!(commits.iter().all(of));
    }
}

#[test]
fn the_final_commit_has_the_last_steps_and_the_offsets_of_partitions_that_were_not_active() {
    let world = TestEnvironment::default();
    let mut waiting = active_at(1);
    if let PartitionState::Active(partition) = waiting.take_state() {
        waiting.state = PartitionState::WaitingForClock(partition);
    }
    let mut refused = active_at(2);
    refused.state = PartitionState::Refused(TakeoverError::MetadataDropped);
    let mut early = restoring(TakeoverRequest::Offsets);
    early.id = 3;
    let mut scheduler = scheduler_of(&world, [fired(0), waiting, refused, early]);
    let revoked = AssignmentChange::Revoked(vec![0, 1, 2, 3]);
    world.member.membership().polls.push_back(Ok(vec![revoked]));
    scheduler.poll_group().unwrap();
    scheduler.poll_transaction(Duration::ZERO).unwrap();
    let offsets = world.producer.sending().offsets.clone();
    let of: Vec<_> = offsets.iter().map(|commit| (commit.partition, commit.offset)).collect();
    assert_eq!(of, [(0, 1), (1, 0)]);
    assert!(offsets.iter().all(|commit| commit.metadata.ends_with("left=1")));
    assert!(scheduler.tasks.is_empty());
    assert_eq!(world.member.calls(), ["release [0, 1, 2, 3]"]);
}

#[test]
fn partitions_without_a_last_step_are_released_without_a_transaction() {
    for is_out in [true, false] {
        let world = TestEnvironment::default();
        let tasks = if is_out { vec![fired(0)] } else { vec![restoring(TakeoverRequest::Offsets)] };
        let mut scheduler = scheduler_of(&world, tasks);
        world.member.membership().is_out = is_out;
        let revoked = AssignmentChange::Revoked(vec![0]);
        world.member.membership().polls.push_back(Ok(vec![revoked]));
        scheduler.poll_group().unwrap();
        assert_eq!(world.member.calls(), ["release [0]"]);
        assert_eq!(world.producer.began_at(), None);
    }
}
