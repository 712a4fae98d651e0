//! Tests of spills: when they are written, and when their rows are flushed.
//!
//! Invariant: a spill is written when its result is polled, unless the queue is held.

use std::time::Duration;

use super::StoreWriteResult;
use crate::environment::Clock as _;
use crate::environment::store::StoreError;
use crate::scheduler::Scheduler;
use crate::scheduler::partition_task::{PartitionState, PartitionTask};
use crate::scheduler::test_partition::due_at;
use crate::scheduler::test_scheduler::config;
use crate::test_environment::clock::{MS, SECOND};
use crate::test_environment::cluster::TestBounds;
use crate::test_environment::store::TestStore;
use crate::test_environment::{NOW, TestEnvironment};

/// The partition is ours, and what is due in it is decided.
fn owning(world: &TestEnvironment, task: PartitionTask<TestStore>) -> Scheduler<TestEnvironment> {
    let mut scheduler = world.scheduler_owning([task]);
    scheduler.fire_all_due(Duration::ZERO).unwrap();
    scheduler
}

/// Commits what is ready, and waits for the result.
fn commit(scheduler: &mut Scheduler<TestEnvironment>) {
    scheduler.commit_if_ready().unwrap();
    if !scheduler.assignment.is_idle() {
        scheduler.poll_transaction(Duration::ZERO).unwrap();
    }
}

/// A partition whose next step spills what is in memory.
fn spilling(world: &TestEnvironment) -> Scheduler<TestEnvironment> {
    let mut task = due_at(0, NOW);
    task.active().unwrap().request_spill();
    task.on_ledger_end(4);
    let mut scheduler = owning(world, task);
    // Another owner may have written what is there by now.
    world.cluster.set("o.ledger", 0, TestBounds::whole(0, 9));
    commit(&mut scheduler);
    scheduler
}

#[test]
fn what_a_step_spills_is_not_written_before_it_is_committed() {
    let world = TestEnvironment::default();
    world.hold("committer");
    let mut scheduler = spilling(&world);
    let is_written = |scheduler: &mut Scheduler<TestEnvironment>| {
        scheduler.await_stores().unwrap();
        scheduler.tasks[&0].store.contents().state.is_some()
    };
    assert!(!is_written(&mut scheduler));
    world.let_go("committer");
    scheduler.poll_transaction(Duration::ZERO).unwrap();
    assert!(is_written(&mut scheduler));
}

#[test]
fn what_a_committed_step_spills_is_written_with_how_far_the_store_is() {
    let world = TestEnvironment::default();
    world.hold("writer");
    let mut scheduler = spilling(&world);
    scheduler.poll_store_writer().unwrap();
    let store = scheduler.tasks[&0].store.clone();
    assert_eq!(store.contents().state, None);
    store.contents().refreshes = 0;
    world.let_go("writer");
    scheduler.poll_store_writer().unwrap();
    assert_eq!(store.contents().refreshes, 1, "the next read does not wait for the flush");
    let state = store.contents().state.clone().expect("it is written");
    assert_eq!((state.applied, state.step, state.caught_up_at), (1, 1, NOW));
    assert_eq!(state.ledger_position, 4, "the end that was known before the step was sealed");
    assert_eq!(state.cluster_id, config().cluster_id);
    assert_eq!(store.contents().background_flushes, 1);
}

#[test]
fn a_store_that_is_read_or_closed_next_has_all_committed_rows() {
    let world = TestEnvironment::default();
    let mut scheduler = spilling(&world);
    let store = scheduler.tasks[&0].store.clone();
    assert_eq!(store.contents().state, None);
    scheduler.await_stores().unwrap();
    assert_eq!(store.contents().state.as_ref().map(|state| state.step), Some(1));
}

#[test]
fn a_store_that_fails_to_write_is_rebuilt_if_its_partition_is_still_here() {
    let world = TestEnvironment::default();
    world.hold("writer");
    let mut scheduler = spilling(&world);
    scheduler.tasks[&0].store.contents().fails = true;
    world.let_go("writer");
    scheduler.poll_store_writer().unwrap();
    assert!(matches!(scheduler.tasks[&0].state, PartitionState::StoreFailed));
    let path = std::path::PathBuf::from("store");
    let removed = StoreWriteResult {
        partition: 9,
        step: 1,
        result: Err(StoreError::Unreadable { path, what: "a row" }),
    };
    let _calls = world.triggers.calls();
    scheduler.on_written(vec![removed]).unwrap();
    assert_eq!(world.triggers.calls(), [""; 0], "a partition that was released is only logged");
}

#[test]
fn a_partition_whose_store_has_failed_spills_nothing() {
    let world = TestEnvironment::default();
    world.hold("committer");
    let mut task = due_at(0, NOW);
    task.active().unwrap().request_spill();
    let mut scheduler = owning(&world, task);
    scheduler.commit_if_ready().unwrap();
    scheduler.tasks.get_mut(&0).unwrap().state = PartitionState::StoreFailed;
    world.let_go("committer");
    scheduler.poll_transaction(Duration::ZERO).unwrap();
    scheduler.poll_store_writer().unwrap();
    assert_eq!(scheduler.tasks[&0].store.contents().state, None);
}

/// A flush is skipped while compaction is behind. If nothing else happens in the partition, its
/// rows must not stay in memory for ever.
#[test]
fn a_flush_that_was_skipped_is_made_up_for_by_a_step_without_rows() {
    let world = TestEnvironment::default();
    world.hold("writer");
    let mut scheduler = spilling(&world);
    let store = scheduler.tasks[&0].store.clone();
    store.contents().skips_flushes = true;
    world.let_go("writer");
    let mut flushes_after = |passes, skips| {
        world.clock.advance(passes);
        store.contents().skips_flushes = skips;
        scheduler.fire_all_due(world.clock.monotonic()).unwrap();
        commit(&mut scheduler);
        scheduler.poll_store_writer().unwrap();
        store.contents().background_flushes
    };
    let spill_interval = SECOND;
    assert_eq!(flushes_after(Duration::ZERO, true), 1, "it is skipped");
    assert_eq!(flushes_after(spill_interval - MS, true), 1, "not before the spill interval");
    assert_eq!(flushes_after(MS, true), 2, "it is skipped again");
    assert_eq!(flushes_after(spill_interval, false), 3);
    assert_eq!(flushes_after(spill_interval, false), 3, "all rows are flushed");
}
