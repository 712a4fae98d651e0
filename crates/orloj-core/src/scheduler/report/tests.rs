//! Tests of what is reported: readiness, the partitions, parked records and memory.
//!
//! Invariant: the clock stands still until a test moves it.

use super::*;
use crate::engine::assignment::AssignmentChange;
use crate::scheduler::parking::RecordForm;
use crate::scheduler::test_partition::{active_at, restore_of, restoring};
use crate::test_environment::TestEnvironment;
use crate::test_environment::clock::{MS, SECOND};
use crate::test_environment::reader::TestRecord;

#[test]
fn one_schema_that_is_denied_is_a_remark_and_more_need_a_person() {
    let denied = || Some("the schema registry answers 403".to_owned());
    let state = |is_full, missing: &[(u32, bool)], refusal| {
        RegistryReadiness::new(is_full, &missing.iter().copied().collect(), refusal)
    };
    let remark = || RegistryReadiness::Remark(denied().unwrap());
    assert_eq!(state(false, &[], None), RegistryReadiness::Ready, "it may be starting");
    assert_eq!(state(false, &[], denied()), remark());
    assert_eq!(state(false, &[(7, true)], denied()), remark(), "the registry answers others");
    let not_ready = |state| matches!(state, RegistryReadiness::NotReady(_));
    assert!(not_ready(state(false, &[(7, false)], None)), "it is away");
    assert!(not_ready(state(true, &[], None)));
    assert!(not_ready(state(true, &[(7, true)], denied())));
    assert!(not_ready(state(false, &[(7, true), (8, false)], denied())));
    match state(false, &[(7, true), (8, true)], denied()) {
        RegistryReadiness::NotReady(text) => assert!(text.ends_with("answers 403"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_process_is_ready_when_all_assigned_partitions_are_active() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler();
    scheduler.report_readiness();
    assert_eq!(world.reporter.readiness("partitions").unwrap(), "ready", "it owns nothing");
    let _none = scheduler.assignment.on_assignment_change(AssignmentChange::Lost(Vec::new()), 0);
    scheduler.report_readiness();
    let readiness = world.reporter.readiness("partitions").unwrap();
    assert_eq!(readiness, "not ready: no group assignment");
    let _none =
        scheduler.assignment.on_assignment_change(AssignmentChange::Assigned(Vec::new()), 0);
    let _none = scheduler.tasks.insert(0, active_at(0));
    scheduler.report_readiness();
    assert_eq!(world.reporter.readiness("partitions").unwrap(), "ready");
    assert_eq!(world.reporter.reported().owned, (1, 0));
    let _none = scheduler.tasks.insert(1, restoring(TakeoverRequest::Offsets));
    scheduler.open_store(2, None, Duration::ZERO);
    scheduler.report_readiness();
    let readiness = world.reporter.readiness("partitions").unwrap();
    assert_eq!(readiness, "not ready: 1 of 3 partitions active", "the third waits for its store");
    assert_eq!(world.reporter.reported().owned, (1, 2));
}

#[test]
fn a_process_without_partitions_that_was_expelled_is_not_ready_until_the_group_assigns_again() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler();
    let check_after = |scheduler: &mut Scheduler<TestEnvironment>, time| {
        world.clock.advance(time);
        scheduler.check_membership();
        world.reporter.readiness("partitions")
    };
    assert_eq!(check_after(&mut scheduler, SECOND), None, "nothing has changed");
    world.member.membership().is_out = true;
    assert_eq!(check_after(&mut scheduler, SECOND - MS), None, "it is checked every second");
    let expelled = Some("not ready: no group assignment".to_owned());
    assert_eq!(check_after(&mut scheduler, MS), expelled);
    world.member.membership().is_out = false;
    world.member.membership().member_id = "new".to_owned();
    assert_eq!(check_after(&mut scheduler, SECOND), None, "nothing is assigned to that member");
    let assigned = AssignmentChange::Assigned(Vec::new());
    let changes = vec![AssignmentChange::Joined("new".to_owned()), assigned];
    world.member.membership().polls.push_back(Ok(changes));
    scheduler.poll_group().unwrap();
    assert_eq!(world.reporter.readiness("partitions").unwrap(), "ready");
    assert_eq!(check_after(&mut scheduler, SECOND), None);
}

#[test]
fn takeovers_that_last_for_long_are_counted_by_what_they_wait_for() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler();
    let mut reading = restoring(TakeoverRequest::Ledger { from: 0 });
    restore_of(&mut reading).records_read = 7;
    let requested = [(0, active_at(0)), (1, restoring(TakeoverRequest::Offsets)), (2, reading)];
    scheduler.tasks.extend(requested);
    scheduler.open_store(3, None, SECOND);
    assert_eq!(scheduler.long_takeovers(SECOND * 9), LongTakeovers::default());
    let waits = |count| BTreeMap::from([("committed offset", 1), ("ledger", 1), ("store", count)]);
    let long = scheduler.long_takeovers(SECOND * 10);
    assert_eq!((long.longest, long.records), (SECOND * 10, 7));
    assert!(!long.waits.contains_key("store"), "assigned a second later");
    assert_eq!(scheduler.long_takeovers(SECOND * 11).waits, waits(1));
}

#[test]
fn readiness_says_why_a_partition_is_not_taken_over_also_while_that_is_tried_again() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler();
    let _none = scheduler.tasks.insert(0, active_at(0));
    assert_eq!(scheduler.refused_partitions().count(), 0);
    scheduler.refuse(0, TakeoverError::MetadataDropped);
    let reason = format!("not ready: {}", TakeoverError::MetadataDropped);
    assert_eq!(world.reporter.readiness("partitions").unwrap(), reason);
    assert_eq!(world.reporter.reported().owned, (0, 1));
    let refused: Vec<_> = scheduler.refused_partitions().map(|(id, _)| id).collect();
    assert_eq!(refused, [0]);
    let topic = "o.triggers".to_owned();
    let short = TakeoverError::TopicTruncated { partition: 0, topic, end: 3, offset: 5 };
    let reason = format!("not ready: {short}");
    scheduler.refuse(0, short);
    let _refused = scheduler.tasks.insert(0, restoring(TakeoverRequest::Offsets));
    scheduler.report_readiness();
    assert_eq!(world.reporter.readiness("partitions").unwrap(), reason);
}

#[test]
fn partitions_that_wait_for_the_clock_are_counted() {
    let mut scheduler = TestEnvironment::default().scheduler();
    for id in 0..3 {
        let mut task = active_at(id);
        if id > 0
            && let PartitionState::Active(partition) = task.take_state()
        {
            task.state = PartitionState::WaitingForClock(partition);
        }
        let _none = scheduler.tasks.insert(id, task);
    }
    assert_eq!(scheduler.partitions_waiting_for_clock(), 2);
}

/// Parks a record of the partition, whose schema is missing, now.
fn park(
    world: &TestEnvironment,
    scheduler: &mut Scheduler<TestEnvironment>,
    id: PartitionId,
    schema: u32,
) {
    let task = scheduler.tasks.entry(id).or_insert_with(|| active_at(id));
    let (offset, now) = (task.parking.len() as u64, world.clock.monotonic());
    let form = RecordForm { id: "a".into(), schema: Some(schema) };
    task.parking.park(form, &TestRecord::at("o.triggers", id, offset), now, || false);
}

#[test]
fn records_that_wait_for_a_schema_for_ten_minutes_need_a_person() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler();
    let report = |scheduler: &mut Scheduler<TestEnvironment>| {
        scheduler.report_registry();
        let parked = std::mem::take(&mut world.reporter.reported().parked);
        (world.reporter.readiness("registry"), parked)
    };
    assert_eq!(report(&mut scheduler), (None, vec![]), "nothing is parked, as before");
    park(&world, &mut scheduler, 0, 7);
    world.clock.advance(MS * 900);
    park(&world, &mut scheduler, 1, 8);
    let ready = |records, oldest| (Some("ready".to_owned()), vec![(records, oldest)]);
    assert_eq!(report(&mut scheduler), ready(2, Duration::ZERO));
    world.clock.advance(MS * 99);
    assert_eq!(report(&mut scheduler), (None, vec![]), "in whole seconds nothing has changed");
    world.clock.advance(MS);
    assert_eq!(report(&mut scheduler), ready(2, SECOND));
    world.clock.advance(SECOND * 599 - MS);
    assert_eq!(report(&mut scheduler), ready(2, SECOND * 599));
    world.clock.advance(MS);
    let (readiness, parked) = report(&mut scheduler);
    assert_eq!(parked, [(2, SECOND * 600)]);
    let readiness = readiness.unwrap();
    assert!(readiness.starts_with("not ready: records have waited"), "{readiness}");
}

#[test]
fn what_a_registry_denies_is_remarked_as_long_as_it_is_one_schema() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler();
    world.schemas.answers().refusal = Some("it answers 403".to_owned());
    world.schemas.answers().denied = vec![7, 8];
    park(&world, &mut scheduler, 0, 7);
    park(&world, &mut scheduler, 1, 7);
    world.clock.advance(PARKED_MAX);
    scheduler.report_registry();
    assert_eq!(world.reporter.readiness("registry").unwrap(), "ready: it answers 403");
    park(&world, &mut scheduler, 2, 8);
    world.clock.advance(PARKED_MAX);
    scheduler.report_registry();
    let readiness = world.reporter.readiness("registry").unwrap();
    assert!(readiness.starts_with("not ready: ") && readiness.ends_with("403"), "{readiness}");
}

#[test]
fn a_partition_in_which_no_more_can_be_parked_is_reported_once_its_pauses_are_long() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler();
    let timing = scheduler.config.timing;
    let _none = scheduler.tasks.insert(0, active_at(0));
    for _ in 0..7 {
        scheduler.report_registry();
        assert_eq!(world.reporter.readiness("registry"), None);
        scheduler.tasks.get_mut(&0).unwrap().pause.begin(&world.clock, &timing);
    }
    scheduler.report_registry();
    let readiness = world.reporter.readiness("registry").unwrap();
    assert!(readiness.contains("no more can be parked"), "{readiness}");
}

#[test]
fn a_process_that_no_broker_answers_is_not_ready_although_it_has_nothing_to_commit() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler();
    scheduler.end_offsets.watch([0].into_iter());
    world.clock.advance(UNANSWERED_MAX - MS);
    scheduler.report_brokers();
    assert_eq!(world.reporter.readiness("topics"), None);
    world.clock.advance(MS);
    scheduler.report_brokers();
    let readiness = world.reporter.readiness("topics").unwrap();
    assert_eq!(readiness, "not ready: no broker answers");
    scheduler.end_offsets.watch([].into_iter());
    scheduler.report_brokers();
    assert_eq!(world.reporter.readiness("topics").unwrap(), "ready");
}
