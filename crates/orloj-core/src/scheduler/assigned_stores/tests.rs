//! Tests of the stores of assigned partitions: when they are opened, deleted and tried again.
//!
//! Invariant: a store is opened in the turn after it was asked for.

use super::*;
use crate::engine::assignment::AssignmentChange;
use crate::engine::takeover::TakeoverRequest;
use crate::environment::store::LocalState;
use crate::model::timeline::TimelineKey;
use crate::scheduler::test_partition::{restore_of, restoring};
use crate::test_environment::TestEnvironment;
use crate::test_environment::clock::{MS, SECOND};
use crate::test_environment::store::TestStore;

fn scheduler(world: &TestEnvironment) -> Scheduler<TestEnvironment> {
    world.clock.set(1_000_000);
    world.clock.advance(SECOND);
    world.scheduler()
}

/// The state of a store of this cluster or another one, written at the epoch's 1,000th second.
fn state_of(cluster: &str) -> LocalState {
    LocalState {
        applied: 5,
        step: 6,
        ledger_position: 7,
        fired_through: TimelineKey::MIN,
        cluster_id: cluster.to_owned(),
        caught_up_at: 1_000_000,
    }
}

#[test]
fn a_store_that_fails_twice_within_a_time_is_rebuilt_after_that_time() {
    let mut stores = AwaitedStores::start(&TestEnvironment::default(), 1);
    assert!(stores.may_rebuild(0, Duration::ZERO));
    stores.on_failed(0, SECOND * 10, SECOND);
    assert!(stores.may_rebuild(0, SECOND * 10), "at once");
    stores.on_failed(0, SECOND * 11, SECOND);
    assert!(stores.may_rebuild(0, SECOND * 11), "it is the first one for a second");
    stores.on_failed(0, SECOND * 12 - MS, SECOND);
    assert!(!stores.may_rebuild(0, SECOND * 13 - MS * 2));
    assert!(stores.may_rebuild(0, SECOND * 13 - MS) && stores.may_rebuild(1, SECOND * 12));
    stores.on_failed(0, SECOND * 13, SECOND);
    assert!(!stores.may_rebuild(0, SECOND * 14 - MS) && stores.may_rebuild(0, SECOND * 14));
}

#[test]
fn a_partition_is_taken_over_with_its_store_once_that_is_open() {
    for (cluster, calls, is_new) in [
        (Some("here"), vec!["open 0"], false),
        (Some("elsewhere"), vec!["open 0", "wipe 0", "open 0"], true),
        (None, vec!["open 0", "wipe 0", "open 0"], true),
    ] {
        let world = TestEnvironment::default();
        let mut scheduler = scheduler(&world);
        world.stores.contents().store.contents().state = cluster.map(state_of);
        scheduler.take_over(0).unwrap();
        assert!(scheduler.tasks.is_empty());
        assert_eq!(world.reporter.reported().owned, (0, 1));
        assert_eq!(
            (scheduler.awaited_stores.len(), scheduler.awaited_stores.has_jobs()),
            (1, true)
        );
        world.clock.advance(SECOND);
        scheduler.take_awaited_stores().unwrap();
        assert_eq!(world.stores.calls(), calls);
        assert_eq!(
            (scheduler.awaited_stores.len(), scheduler.awaited_stores.has_jobs()),
            (0, false)
        );
        let task = scheduler.tasks.get_mut(&0).unwrap();
        assert_eq!(task.takeover_started_at, SECOND, "when it was assigned");
        assert_eq!(restore_of(task).has_new_store, is_new);
        assert_eq!(restore_of(task).takeover.as_ref().unwrap().must_wipe(), is_new);
    }
}

#[test]
fn a_store_that_cannot_be_opened_is_deleted_and_tried_again_after_a_time() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world);
    world.stores.contents().fails = true;
    scheduler.take_over(0).unwrap();
    scheduler.take_awaited_stores().unwrap();
    assert_eq!(world.stores.calls(), ["open 0", "wipe 0", "open 0"]);
    assert!(scheduler.tasks.is_empty() && !scheduler.awaited_stores.has_jobs());
    let readiness = world.reporter.readiness("partitions").unwrap();
    assert_eq!(readiness, "not ready: 0 of 1 partitions active");
    let retry = scheduler.config.timing.store_retry;
    world.clock.advance(retry - MS);
    scheduler.take_awaited_stores().unwrap();
    assert_eq!(world.stores.calls(), [""; 0]);
    world.stores.contents().fails = false;
    world.clock.advance(MS);
    scheduler.take_awaited_stores().unwrap();
    assert!(scheduler.awaited_stores.has_jobs(), "it is being opened");
    scheduler.take_awaited_stores().unwrap();
    assert_eq!(world.stores.calls(), ["wipe 0", "open 0"]);
    assert!(restore_of(scheduler.tasks.get_mut(&0).unwrap()).has_new_store);
}

#[test]
fn a_store_whose_partition_is_released_while_it_is_opened_is_closed_again() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world);
    scheduler.take_over(0).unwrap();
    scheduler.give_back_stores(&[0]);
    assert_eq!((scheduler.awaited_stores.len(), scheduler.awaited_stores.has_jobs()), (0, false));
    world.hold("closings");
    scheduler.take_awaited_stores().unwrap();
    assert!(scheduler.tasks.is_empty());
    assert_eq!(scheduler.awaited_stores.partitions.len(), 1, "the loop does not close it");
    assert_eq!(world.stores.contents().store.contents().flushes, 0);
    world.let_go("closings");
    scheduler.take_awaited_stores().unwrap();
    assert_eq!(world.stores.contents().store.contents().flushes, 1);
    assert!(scheduler.awaited_stores.partitions.is_empty());
}

#[test]
fn a_partition_that_is_assigned_again_while_its_store_is_opened_waits_for_that() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world);
    scheduler.take_over(0).unwrap();
    world.clock.advance(SECOND);
    assert!(scheduler.take_store(0).is_none());
    let since = |scheduler: &Scheduler<TestEnvironment>| {
        scheduler.awaited_stores.partitions[&0].assigned_at
    };
    assert_eq!(since(&scheduler), SECOND, "it was not released");
    scheduler.give_back_stores(&[0]);
    assert!(scheduler.take_store(0).is_none());
    assert_eq!((since(&scheduler), scheduler.awaited_stores.len()), (SECOND * 2, 1));
    scheduler.take_awaited_stores().unwrap();
    assert_eq!(scheduler.tasks.len(), 1);
    assert_eq!(world.stores.calls(), ["open 0", "wipe 0", "open 0"], "once");
}

#[test]
fn a_partition_that_is_released_while_its_store_fails_waits_for_nothing() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world);
    world.stores.contents().fails = true;
    scheduler.take_over(0).unwrap();
    scheduler.take_awaited_stores().unwrap();
    scheduler.give_back_stores(&[0]);
    assert!(scheduler.awaited_stores.partitions.is_empty());
}

#[test]
fn a_takeover_goes_on_with_a_new_store_where_it_is() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world);
    let mut task = restoring(TakeoverRequest::Ledger { from: 4 });
    restore_of(&mut task).records_read = 77;
    task.takeover_started_at = MS;
    let _none = scheduler.tasks.insert(0, task);
    world.hold("openings");
    scheduler.replace_store(0);
    scheduler.take_awaited_stores().unwrap();
    assert!(scheduler.tasks.is_empty());
    assert_eq!(scheduler.awaited_stores.len(), 1);
    world.let_go("openings");
    scheduler.take_awaited_stores().unwrap();
    assert_eq!(world.stores.calls(), ["wipe 0", "open 0"]);
    let task = scheduler.tasks.get_mut(&0).unwrap();
    assert_eq!(task.takeover_started_at, MS);
    let restore = restore_of(task);
    assert_eq!((restore.records_read, restore.has_new_store), (77, true));
    assert_eq!(world.reporter.reported().owned, (0, 1));
}

/// A job that writes what was committed, or applies what was read, may still use it.
#[test]
fn a_store_that_is_released_is_closed_when_nothing_uses_it_any_more() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([restoring(TakeoverRequest::Offsets)]);
    let used = Arc::clone(&scheduler.tasks[&0].store);
    scheduler.release(&[0]).unwrap();
    scheduler.take_awaited_stores().unwrap();
    assert_eq!(used.contents().flushes, 0);
    assert_eq!(scheduler.awaited_stores.partitions.len(), 1);
    let store = TestStore::clone(&used);
    drop(used);
    scheduler.take_awaited_stores().unwrap();
    assert_eq!(store.contents().flushes, 1);
    assert!(scheduler.awaited_stores.partitions.is_empty());
}

#[test]
fn a_store_is_replaced_when_nothing_uses_it_any_more() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world);
    let used = Arc::new(TestStore::default());
    scheduler.open_store(0, Some(Arc::clone(&used)), SECOND);
    scheduler.take_awaited_stores().unwrap();
    assert_eq!(world.stores.calls(), [""; 0]);
    drop(used);
    scheduler.take_awaited_stores().unwrap();
    assert_eq!(world.stores.calls(), ["wipe 0", "open 0"]);
}

#[test]
fn a_partition_that_is_assigned_again_while_its_store_is_closed_opens_it_afterwards() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([restoring(TakeoverRequest::Offsets)]);
    world.hold("closings");
    scheduler.release(&[0]).unwrap();
    assert_eq!(scheduler.awaited_stores.len(), 0, "no partition waits for it");
    world.clock.advance(SECOND);
    let assigned_at = world.clock.monotonic();
    scheduler.take_over(0).unwrap();
    assert_eq!((world.stores.calls(), scheduler.awaited_stores.len()), (Vec::new(), 1));
    world.let_go("closings");
    scheduler.take_awaited_stores().unwrap();
    scheduler.take_awaited_stores().unwrap();
    assert_eq!(world.stores.calls()[0], "open 0", "once it is closed");
    assert_eq!(scheduler.tasks[&0].takeover_started_at, assigned_at);
}

#[test]
fn a_process_ends_when_its_stores_are_closed() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([restoring(TakeoverRequest::Offsets)]);
    let store = TestStore::clone(&scheduler.tasks[&0].store);
    world.member.membership().has_released_all = true;
    assert!(!scheduler.leave().unwrap(), "it owns a partition");
    world.hold("closings");
    let lost = scheduler.assignment.on_assignment_change(AssignmentChange::Lost(vec![0]), 0);
    scheduler.execute(lost).unwrap();
    assert_eq!(store.contents().flushes, 0);
    assert!(!scheduler.leave().unwrap(), "its store is being closed");
    world.let_go("closings");
    assert!(scheduler.leave().unwrap());
    assert_eq!(store.contents().flushes, 1);
}

#[test]
fn a_process_does_not_wait_for_longer_than_it_may_until_its_stores_are_closed() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([restoring(TakeoverRequest::Offsets)]);
    world.member.membership().has_released_all = true;
    assert!(!scheduler.leave().unwrap(), "it owns a partition");
    world.hold("closings");
    let lost = scheduler.assignment.on_assignment_change(AssignmentChange::Lost(vec![0]), 0);
    scheduler.execute(lost).unwrap();
    let limit = scheduler.config.timing.leave_timeout;
    world.clock.advance(limit - SECOND);
    assert!(!scheduler.leave().unwrap());
    world.clock.advance(SECOND);
    assert!(scheduler.leave().unwrap());
}
