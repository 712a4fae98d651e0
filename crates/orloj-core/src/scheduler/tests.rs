//! Tests of the loop: what it waits for, what it fires in a turn, and how it leaves its group.
//!
//! Invariant: the clock moves when a test says so.

use super::config::Mode;
use super::*;
use crate::codec::row;
use crate::engine::assignment::AssignmentChange;
use crate::engine::config::PartitionConfig;
use crate::engine::step::Emit;
use crate::engine::takeover::TakeoverRequest;
use crate::test_environment::NOW;
use crate::test_environment::clock::MS;
use crate::test_environment::store::TestStore;
use test_scheduler::config;

use crate::test_environment::TestEnvironment;
use test_partition::{
    active_at, active_with, all_read, partition_config, register, register_large, restoring,
};

/// An active partition in which triggers are due at these times. All that was written before NOW is
/// read.
fn with_triggers(id: PartitionId, due: &[Timestamp]) -> PartitionTask<TestStore> {
    let mut task = active_at(id);
    let _behind = task.active().unwrap().observe_clock(NOW);
    for (offset, due) in (0..).zip(due) {
        register(&mut task, offset, *due);
    }
    all_read(&mut task, NOW);
    task.load(|| false).unwrap();
    task
}

#[test]
fn the_loop_waits_until_a_fire_is_due_and_at_most_ten_ms() {
    for (due, wait) in [
        (vec![], 10),
        (vec![NOW + 11], 10),
        (vec![NOW + 9], 9),
        (vec![NOW + 9, NOW + 3], 3),
        (vec![NOW], 0),
        (vec![NOW - 5], 0),
    ] {
        let mut scheduler = TestEnvironment::default().scheduler_owning([with_triggers(0, &due)]);
        assert_eq!(scheduler.time_until_due(NOW), MS * wait, "{due:?}");
    }
}

#[test]
fn while_a_takeover_or_the_opening_of_a_store_is_in_progress_or_inputs_wait_it_waits_a_ms() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([restoring(TakeoverRequest::Offsets)]);
    assert_eq!(scheduler.time_until_due(NOW), MS);
    let rules = PartitionConfig { records_per_step_max: 1, ..partition_config() };
    let mut task = active_with(0, rules);
    (0..2).for_each(|offset| register(&mut task, offset, NOW + 50));
    let mut scheduler = world.scheduler_owning([task]);
    assert_eq!(scheduler.time_until_due(NOW), MS);
    let mut scheduler = world.scheduler_owning([]);
    scheduler.open_store(0, None, Duration::ZERO);
    assert_eq!(scheduler.time_until_due(NOW), MS);
}

#[test]
fn a_turn_that_has_read_for_long_fires_for_less_and_for_a_fifth_of_the_time_at_least() {
    let world = TestEnvironment::default();
    let scheduler = world.scheduler_owning([]);
    world.clock.advance(MS * 100);
    let began = world.clock.monotonic();
    for (read_for, until) in [(0, 50), (20, 70), (21, 70), (60, 70), (61, 71), (300, 310)] {
        world.clock.advance(began + MS * read_for - world.clock.monotonic());
        assert_eq!(scheduler.firing_deadline(began) - began, MS * until, "read for {read_for} ms");
    }
}

fn drafted(scheduler: &mut Scheduler<TestEnvironment>, id: PartitionId) -> usize {
    scheduler.tasks.get_mut(&id).unwrap().active().unwrap().drafted_records()
}

#[test]
fn a_step_has_at_most_as_many_fires_as_are_configured() {
    for (fires_max, fired) in [(4, 3), (3, 3), (2, 2), (1, 1)] {
        let world = TestEnvironment::default();
        let mut scheduler =
            world.scheduler_owning([with_triggers(0, &[NOW, NOW - 1, NOW, NOW + 1])]);
        scheduler.config.fires_per_step_max = fires_max;
        for _ in 0..3 {
            scheduler.fire_all_due(Duration::ZERO).unwrap();
            assert_eq!(drafted(&mut scheduler, 0), fired, "at most {fires_max}");
        }
        assert_eq!(scheduler.fire_after, None, "there was time");
    }
}

#[test]
fn the_fires_of_a_step_have_so_many_bytes_at_most_and_there_is_one_however_large_it_is() {
    for (bytes_max, fired) in [(1, [1, 1, 1]), (150_000, [2, 1, 0]), (usize::MAX, [3, 0, 0])] {
        let world = TestEnvironment::default();
        let rules = PartitionConfig { bytes_per_step_max: bytes_max, ..partition_config() };
        let mut task = active_with(0, rules);
        let _behind = task.active().unwrap().observe_clock(NOW);
        (0..3).for_each(|offset| register_large(&mut task, (offset, NOW), 100_000));
        all_read(&mut task, NOW);
        let mut scheduler = world.scheduler_owning([task]);
        let mut offsets = Vec::new();
        let fired_in_step = |_| {
            scheduler.fire_all_due(Duration::ZERO).unwrap();
            scheduler.fire_all_due(Duration::ZERO).unwrap();
            let partition = scheduler.tasks.get_mut(&0).unwrap().active().unwrap();
            let fires = partition.seal().map(|step| step.emits).unwrap_or_default();
            let fires = fires.into_iter().filter_map(|emit| match emit {
                Emit::ToTopic(fire) => Some(row::view(&fire.row).unwrap().unwrap().trigger.into()),
                _ => None,
            });
            let fires: Vec<Vec<u8>> = fires.collect();
            let count = fires.len();
            offsets.extend(fires);
            count
        };
        assert_eq!([0, 1, 2].map(fired_in_step), fired, "at most {bytes_max}");
        assert_eq!(offsets, [b"t0", b"t1", b"t2"], "in their order");
    }
}

#[test]
fn the_next_turn_fires_first_after_the_partition_that_has_used_the_time_up() {
    let world = TestEnvironment::default();
    let tasks = (0..4).map(|id| with_triggers(id, &[NOW]));
    let mut scheduler = world.scheduler_owning(tasks);
    let _known = scheduler.targets.catalog(["out"].into_iter(), std::iter::empty());
    // The time is used up in the first partition after the one that fires.
    world.clock.set_between_looks(MS * 10);
    let fired = |scheduler: &mut Scheduler<TestEnvironment>| {
        scheduler.fire_all_due(world.clock.monotonic()).unwrap();
        (0..4).filter(|id| drafted(scheduler, *id) > 0).collect::<Vec<_>>()
    };
    assert_eq!((fired(&mut scheduler), scheduler.fire_after), (vec![0], Some(1)));
    assert_eq!((fired(&mut scheduler), scheduler.fire_after), (vec![0, 2], Some(3)));
    let _active = scheduler.tasks.insert(0, with_triggers(0, &[NOW]));
    assert_eq!((fired(&mut scheduler), scheduler.fire_after), (vec![0, 2], Some(1)));
    world.clock.set_between_looks(Duration::ZERO);
    assert_eq!((fired(&mut scheduler), scheduler.fire_after), (vec![0, 1, 2, 3], None));
}

/// The preparation of transactions has taken 5 ms.
fn prepare_for_5_ms(world: &TestEnvironment, scheduler: &mut Scheduler<TestEnvironment>) {
    for _ in 0..8 {
        let _active = scheduler.tasks.insert(0, with_triggers(0, &[NOW]));
        world.hold("committer");
        scheduler.poll_once().unwrap();
        world.clock.advance(MS * 5);
        world.let_go("committer");
        scheduler.poll_once().unwrap();
        assert!(scheduler.assignment.is_idle());
    }
    assert_eq!(scheduler.committer.commit_lead_ms(), 5);
}

#[test]
fn a_fire_is_decided_ahead_by_the_time_that_its_transaction_is_prepared() {
    for (due_in, wait, fired) in [(8, 3, 0), (6, 1, 0), (5, 0, 1), (4, 0, 1)] {
        let world = TestEnvironment::default();
        let mut scheduler = world.scheduler_owning([active_at(0)]);
        prepare_for_5_ms(&world, &mut scheduler);
        let now = world.clock.now_ms();
        let mut task = with_triggers(0, &[now + due_in]);
        all_read(&mut task, now + 5);
        let _active = scheduler.tasks.insert(0, task);
        assert_eq!(scheduler.time_until_due(now), MS * wait, "due in {due_in} ms");
        scheduler.fire_all_due(world.clock.monotonic()).unwrap();
        assert_eq!(drafted(&mut scheduler, 0), fired, "due in {due_in} ms");
    }
}

#[test]
fn what_is_due_fires_once_the_timer_wheel_is_loaded_in_the_same_turn() {
    let world = TestEnvironment::default();
    let mut task = active_at(0);
    task.store.contents().scan_ms = Some(NOW / 2);
    let _behind = task.active().unwrap().observe_clock(NOW);
    register(&mut task, 0, NOW);
    all_read(&mut task, NOW);
    let mut scheduler = world.scheduler_owning([task]);
    scheduler.fire_all_due(Duration::ZERO).unwrap();
    assert_eq!(drafted(&mut scheduler, 0), 1);
}

#[test]
fn the_loop_waits_for_records_until_a_transaction_may_begin_and_not_while_one_is_open() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([with_triggers(0, &[])]);
    let waited = |scheduler: &mut Scheduler<TestEnvironment>| {
        world.triggers.reading().waits.clear();
        scheduler.poll_once().unwrap();
        world.triggers.reading().waits[0]
    };
    assert_eq!(waited(&mut scheduler), IDLE_WAIT);
    scheduler.config.commit_interval_min = MS * 4;
    assert_eq!(waited(&mut scheduler), MS * 4);
    scheduler.config.commit_interval_min = MS * 40;
    assert_eq!(waited(&mut scheduler), IDLE_WAIT);
    scheduler.config.commit_interval_min = Duration::ZERO;
    world.hold("committer");
    let _active = scheduler.tasks.insert(0, with_triggers(0, &[NOW]));
    scheduler.poll_once().unwrap();
    assert!(!scheduler.assignment.is_idle());
    assert_eq!(waited(&mut scheduler), Duration::ZERO);
}

#[test]
fn a_partition_whose_store_fails_while_it_fires_is_rebuilt_and_the_others_fire() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([active_at(0), with_triggers(1, &[NOW])]);
    scheduler.tasks[&0].store.contents().fails = true;
    scheduler.fire_all_due(Duration::ZERO).unwrap();
    assert!(matches!(scheduler.tasks[&0].state, PartitionState::StoreFailed));
    assert_eq!(drafted(&mut scheduler, 1), 1);
}

#[test]
fn a_member_that_is_fenced_loses_its_partitions_and_joins_again() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([active_at(0), active_at(1)]);
    world.member.membership().polls.push_back(Err(CallError::new("fenced")));
    scheduler.poll_group().unwrap();
    assert!(scheduler.tasks.is_empty() && scheduler.assignment.owned().is_empty());
    assert_eq!(world.member.calls(), ["release [0, 1]", "rejoin"]);
    let mut membership = world.member.membership();
    membership.polls.push_back(Err(CallError::new("fenced")));
    membership.is_fenced = true;
    drop(membership);
    let ended = scheduler.poll_group();
    assert!(matches!(ended, Err(LoopError::FencedRepeatedly(_))), "{ended:?}");
}

#[test]
fn a_store_is_flushed_in_a_job_when_its_partition_is_released_and_removed_if_that_fails() {
    for (fails, flushes, wiped) in [(false, 1, vec![]), (true, 0, vec!["wipe 0"])] {
        let world = TestEnvironment::default();
        let mut scheduler = world.scheduler_owning([active_at(0)]);
        let store = TestStore::clone(&scheduler.tasks[&0].store);
        store.contents().fails = fails;
        scheduler.release(&[0]).unwrap();
        assert_eq!(world.member.calls(), ["release [0]"]);
        assert_eq!(store.contents().flushes, 0, "the loop does not wait for it");
        scheduler.take_awaited_stores().unwrap();
        assert_eq!(store.contents().flushes, flushes);
        assert_eq!(world.stores.calls(), wiped);
        assert_eq!(world.triggers.calls(), ["stop o.triggers[0]"]);
    }
}

/// How many turns it takes to leave, at most ten.
fn turns_to_leave(scheduler: &mut Scheduler<TestEnvironment>) -> Option<usize> {
    (1..=10).find(|_| scheduler.leave().unwrap())
}

#[test]
fn a_process_leaves_when_the_group_has_taken_its_partitions() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([active_at(0)]);
    assert!(!scheduler.leave().unwrap());
    assert_eq!(world.member.calls(), ["leave"]);
    let revoked = AssignmentChange::Revoked(vec![0]);
    world.member.membership().has_released_all = true;
    assert_eq!(turns_to_leave(&mut scheduler), None, "it owns a partition");
    world.member.membership().has_released_all = false;
    world.member.membership().polls.push_back(Ok(vec![revoked]));
    assert_eq!(turns_to_leave(&mut scheduler), None, "the group has not completed it");
    assert!(scheduler.tasks.is_empty());
    assert_eq!(world.member.calls(), ["release [0]"]);
    world.member.membership().has_released_all = true;
    assert_eq!(turns_to_leave(&mut scheduler), Some(1));
    assert_eq!(world.member.calls(), [""; 0], "it has asked once");
}

#[test]
fn a_process_serves_until_it_is_shut_down_and_then_leaves() {
    let world = TestEnvironment::default();
    let scheduler = world.scheduler_owning([active_at(0)]);
    world.member.membership().has_released_all = true;
    let looks = std::cell::Cell::new(0);
    let is_shut_down = || {
        if looks.get() == 2 {
            let revoked = AssignmentChange::Revoked(vec![0]);
            world.member.membership().polls.push_back(Ok(vec![revoked]));
        }
        looks.replace(looks.get() + 1) == 2
    };
    scheduler.serve(is_shut_down).unwrap();
    assert_eq!(looks.get(), 3);
    assert_eq!(world.member.calls(), ["leave", "release [0]"]);
}

#[test]
fn a_process_waits_for_a_transaction_for_twice_its_timeout() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([with_triggers(0, &[NOW])]);
    world.hold("committer");
    scheduler.poll_once().unwrap();
    for _ in 0..19 {
        world.clock.advance(MS * 1_000);
        scheduler.poll_once().unwrap();
    }
    world.let_go("committer");
    scheduler.poll_once().unwrap();
    assert!(scheduler.assignment.is_idle(), "the process has not ended");
}

#[test]
fn a_process_that_keeps_its_partitions_gives_them_up_without_the_group() {
    for (mode, leave_on_shutdown) in [(Mode::Guaranteed, false), (Mode::Trial, true)] {
        let world = TestEnvironment::default();
        let mut scheduler = world.scheduler_owning([active_at(0)]);
        scheduler.config = SchedulerConfig { mode, leave_on_shutdown, ..config() };
        assert!(turns_to_leave(&mut scheduler).is_some(), "{mode:?}");
        assert!(scheduler.tasks.is_empty());
        assert_eq!(world.member.calls(), ["release [0]"], "the group is not asked");
        let offsets = world.producer.sending().offsets.clone();
        assert!(offsets[0].metadata.ends_with("left=1"), "it ends with a final commit");
    }
}

#[test]
fn a_process_asks_again_to_leave_if_the_broker_does_not_answer_and_ends_after_a_time() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([active_at(0)]);
    world.member.membership().cannot_leave = true;
    assert!(!scheduler.leave().unwrap() && !scheduler.leave().unwrap());
    assert_eq!(world.member.calls(), ["leave", "leave"]);
    world.member.membership().cannot_leave = false;
    assert!(!scheduler.leave().unwrap() && !scheduler.leave().unwrap());
    assert_eq!(world.member.calls(), ["leave"]);

    let mut scheduler = world.scheduler_owning([active_at(0)]);
    world.member.membership().cannot_leave = true;
    assert!(!scheduler.leave().unwrap());
    world.clock.advance(scheduler.config.timing.leave_timeout);
    assert!(scheduler.leave().unwrap());
}

#[test]
fn a_process_leaves_after_a_time_although_its_partitions_are_not_taken() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([active_at(0)]);
    let timeout = scheduler.config.timing.leave_timeout;
    assert!(!scheduler.leave().unwrap());
    world.clock.advance(timeout - MS);
    assert!(!scheduler.leave().unwrap());
    world.clock.advance(timeout);
    let turns = world.reporter.reported().turns.len();
    assert!(scheduler.leave().unwrap());
    assert_eq!(world.reporter.reported().turns.len(), turns, "it does nothing more");
}

#[test]
fn a_process_leaves_its_group_after_the_open_transaction_or_after_a_time() {
    for ends in [true, false] {
        let world = TestEnvironment::default();
        let mut scheduler = world.scheduler_owning([with_triggers(0, &[NOW])]);
        world.hold("committer");
        scheduler.poll_once().unwrap();
        assert!(!scheduler.assignment.accepts_changes(), "a transaction is open");
        assert!(!scheduler.leave().unwrap());
        assert_eq!(world.member.calls(), [""; 0]);
        if ends {
            world.let_go("committer");
        } else {
            world.clock.advance(scheduler.config.timing.leave_timeout);
        }
        let turns = turns_to_leave(&mut scheduler);
        assert_eq!((turns.is_some(), world.member.calls()), (!ends, vec!["leave".to_owned()]));
    }
}

#[test]
fn revoked_partitions_go_on_for_their_grace_from_when_the_process_knows() {
    let world = TestEnvironment::default();
    world.clock.advance(MS * 700);
    world.clock.set(NOW);
    let mut scheduler = world.scheduler_with(SchedulerConfig { revocation_grace: 100, ..config() });
    let assigned = AssignmentChange::Assigned(vec![0]);
    let _actions = scheduler.assignment.on_assignment_change(assigned, 0);
    let _none = scheduler.tasks.insert(0, active_at(0));
    world.clock.advance(MS * 300);
    assert_eq!(scheduler.uptime(), 300);
    let revoked = AssignmentChange::Revoked(vec![0]);
    world.member.membership().polls.push_back(Ok(vec![revoked]));
    scheduler.poll_group().unwrap();
    world.clock.advance(MS * 99);
    scheduler.poll_group().unwrap();
    assert!(scheduler.assignment.is_idle());
    world.clock.advance(MS);
    scheduler.poll_group().unwrap();
    assert!(!scheduler.assignment.is_idle(), "the final commit is open");
}

/// A trigger that is due, from a turn of the loop to its record.
#[test]
fn what_is_due_is_committed_in_one_turn_and_reported_in_the_next() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([with_triggers(0, &[NOW])]);
    scheduler.poll_once().unwrap();
    assert!(!scheduler.assignment.is_idle());
    scheduler.poll_once().unwrap();
    let sent = world.producer.sent();
    assert_eq!(sent.iter().filter(|record| record.topic == "out").count(), 1);
    assert_eq!(world.reporter.reported().committed.len(), 1);
    assert_eq!(world.reporter.reported().transactions.len(), 1);
    assert_eq!(world.reporter.reported().turns.len(), 2);
    let offsets = world.producer.sending().offsets.clone();
    assert_eq!((offsets[0].topic.as_str(), offsets[0].offset), ("o.triggers", 1));
}
