//! Tests of takeovers as the loop runs them: what is asked for and read, and when a partition is
//! active.
//!
//! Invariant: the engine decides what is requested; here it is done with what a test has set.

use super::*;
use crate::codec::ledger_key::STEP_HEADER;
use crate::codec::schemas::Schemas;
use crate::engine::assignment::AssignmentChange;
use crate::engine::local_checkpoint::LocalCheckpoint;
use crate::engine::partition::Input;
use crate::engine::partition_offsets::PartitionOffsets;
use crate::model::Offset;
use crate::model::input::{Request, TriggerRecord};
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::timeline::TimelineKey;
use crate::scheduler::config::SchedulerConfig;
use crate::scheduler::local_store::local_state;
use crate::scheduler::restore_pool::{LEDGER_BATCH, TRIGGERS_BATCH};
use crate::scheduler::test_partition::{active_at, register, restore_of, restoring};
use crate::scheduler::test_scheduler::config;
use crate::test_environment::clock::MS;
use crate::test_environment::cluster::TestBounds;
use crate::test_environment::reader::TestRecord;
use crate::test_environment::{NOW, TestEnvironment};

#[path = "clock_tests.rs"]
mod clock_tests;
#[path = "read_ahead_tests.rs"]
mod read_ahead_tests;

const TRIGGERS: &str = "o.triggers";

/// A scheduler of logs that end at `end`; of `triggers`, `N` are committed by an earlier owner.
fn scheduler(world: &TestEnvironment, (n, end): (Offset, Offset)) -> Scheduler<TestEnvironment> {
    world.clock.set(NOW);
    world.clock.advance(Duration::from_secs(100));
    for topic in [TRIGGERS, "o.signals", "o.ledger"] {
        world.cluster.set(topic, 0, TestBounds::whole(0, end));
    }
    let cursor = Cursor { next_offset: n, ..Cursor::initial(0, 0) };
    world.member.membership().committed = Some((n, cursor.to_metadata("earlier")));
    world.scheduler()
}

fn assign(world: &TestEnvironment, id: PartitionId) {
    world.member.membership().polls.push_back(Ok(vec![AssignmentChange::Assigned(vec![id])]));
}

/// Turns of the loop until the takeover has made this request.
fn run_until(scheduler: &mut Scheduler<TestEnvironment>, is: impl Fn(&TakeoverRequest) -> bool) {
    for _ in 0..20 {
        scheduler.poll_once().unwrap();
        let requested = scheduler.tasks.get_mut(&0).map(|task| match &task.state {
            PartitionState::Restoring(restoring) => restoring.requested.clone(),
            _ => None,
        });
        if requested.flatten().as_ref().is_some_and(&is) {
            return;
        }
    }
    panic!("it is not requested");
}

/// The offsets that the barrier has committed.
fn confirm_barrier(world: &TestEnvironment) {
    let commit = world.producer.sending().offsets.last().expect("a barrier").clone();
    world.member.membership().committed = Some((commit.offset, commit.metadata));
}

fn barrier(nonce: u64, offset: Offset) -> TestRecord {
    let value = Schemas::new().encode_ledger(&LedgerValue::Barrier { nonce });
    TestRecord {
        key: Some(LedgerKey::BARRIER.to_vec()),
        value: Some(value.to_vec()),
        headers: vec![(STEP_HEADER.to_owned(), b"0".to_vec())],
        ..TestRecord::at("o.ledger", 0, offset)
    }
}

/// A takeover that requests the ledger.
fn until_ledger(world: &TestEnvironment, scheduler: &mut Scheduler<TestEnvironment>) {
    assign(world, 0);
    run_until(scheduler, |it| matches!(it, TakeoverRequest::Barrier { .. }));
    for _ in 0..100 {
        if world.producer.sending().offsets.is_empty() {
            scheduler.poll_once().unwrap();
        }
    }
    confirm_barrier(world);
    run_until(scheduler, |it| matches!(it, TakeoverRequest::Ledger { .. }));
}

/// A takeover that has read the ledger, and requests `triggers`.
fn until_triggers(world: &TestEnvironment, scheduler: &mut Scheduler<TestEnvironment>) {
    until_ledger(world, scheduler);
    let task = scheduler.tasks.get_mut(&0).unwrap();
    task.has_fetched = true; // for an earlier takeover
    let nonce = restore_of(task).nonce;
    let other = TestRecord { key: Some(b"~".to_vec()), ..TestRecord::at("o.ledger", 0, 8) };
    world.signals_and_ledger.returns([other, barrier(nonce, 9)]);
    run_until(scheduler, |it| matches!(it, TakeoverRequest::Triggers { .. }));
}

#[test]
fn a_takeover_reads_the_ledger_then_the_triggers_and_is_active_when_all_is_read() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world, (3, 10));
    until_triggers(&world, &mut scheduler);
    assert_eq!(world.signals_and_ledger.calls().last().unwrap(), "stop o.ledger[0]");
    assert_eq!(world.triggers.calls(), ["start o.triggers[0] at 0"]);
    assert!(!scheduler.tasks[&0].has_fetched);
    world.clock.advance(MS * 40);
    world.triggers.returns((0..4).map(|offset| TestRecord::at(TRIGGERS, 0, offset)));
    (0..4).for_each(|_| scheduler.poll_once().unwrap());
    let task = scheduler.tasks.get_mut(&0).unwrap();
    assert_eq!((task.next_trigger, task.ledger_position), (4, 10));
    let partition = task.active().expect("it is active");
    assert_eq!(partition.cursor().next_offset, 4, "the live record is ingested");
    assert_eq!(world.signals_and_ledger.calls().last().unwrap(), "start o.signals[0] at 0");
    assert_eq!(world.reporter.readiness("partitions").unwrap(), "ready");
    assert_eq!(world.reporter.reported().takeovers.len(), 1);
    let took = world.reporter.reported().takeovers[0];
    assert!((MS * 40..MS * 200).contains(&took), "{took:?} from its assignment on");
}

#[test]
fn a_partition_that_is_given_up_after_its_barrier_has_a_final_commit() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world, (3, 10));
    until_triggers(&world, &mut scheduler);
    world.producer.sending().offsets.clear();
    let revoked = AssignmentChange::Revoked(vec![0]);
    world.member.membership().polls.push_back(Ok(vec![revoked]));
    (0..3).for_each(|_| scheduler.poll_once().unwrap());
    assert!(scheduler.tasks.is_empty());
    let offsets = world.producer.sending().offsets.clone();
    assert_eq!((offsets.len(), offsets[0].offset), (1, 3));
    assert!(offsets[0].metadata.ends_with("left=1"), "{}", offsets[0].metadata);
}

/// All triggers below N are read, and are more than a batch.
fn all_read(world: &TestEnvironment) -> Scheduler<TestEnvironment> {
    let n = TRIGGERS_BATCH as Offset + 5;
    let mut scheduler = scheduler(world, (n, n));
    until_triggers(world, &mut scheduler);
    let restore = restore_of(scheduler.tasks.get_mut(&0).unwrap());
    let request = Request::Cancel { id: "a".into(), caller: None };
    let record = |offset| TriggerRecord {
        offset,
        timestamp: 0,
        ack: false.into(),
        request: request.clone(),
    };
    (0..n).map(record).for_each(|record| restore.add_trigger(record));
    restore.triggers_complete = true;
    scheduler.feed_triggers(0);
    scheduler
}

#[test]
fn a_takeover_is_not_complete_before_its_last_batch_is_applied() {
    let world = TestEnvironment::default();
    let mut scheduler = all_read(&world);
    scheduler.advance_takeovers().unwrap();
    let restore = restore_of(scheduler.tasks.get_mut(&0).unwrap());
    assert!(restore.triggers.is_empty() && restore.takeover.is_none(), "it is being applied");
    scheduler.advance_takeovers().unwrap();
    assert!(scheduler.tasks.get_mut(&0).unwrap().active().is_some());
}

#[test]
fn a_partition_that_is_given_up_while_records_are_applied_has_a_final_commit_too() {
    let world = TestEnvironment::default();
    let mut scheduler = all_read(&world);
    world.producer.sending().offsets.clear();
    let revoked = AssignmentChange::Revoked(vec![0]);
    world.member.membership().polls.push_back(Ok(vec![revoked]));
    scheduler.poll_group().unwrap();
    scheduler.poll_transaction(Duration::ZERO).unwrap();
    assert_eq!(world.producer.sending().offsets.len(), 1);
}

#[test]
fn ledger_records_are_applied_when_a_batch_is_full_or_our_barrier_is_read() {
    for (records, has_barrier, is_applied) in [
        (1, false, false),
        (LEDGER_BATCH - 1, false, false),
        (LEDGER_BATCH, false, true),
        (1, true, true),
    ] {
        let mut scheduler = TestEnvironment::default().scheduler();
        let mut task = restoring(TakeoverRequest::Ledger { from: 0 });
        let restore = restore_of(&mut task);
        for offset in 0..records as Offset {
            restore.add_ledger_record(&TestRecord::at("o.ledger", 0, offset), has_barrier);
        }
        let _none = scheduler.tasks.insert(0, task);
        scheduler.feed_ledger(0).unwrap();
        let restore = restore_of(scheduler.tasks.get_mut(&0).unwrap());
        assert_eq!(restore.takeover.is_none(), is_applied, "{records}");
        let read = if is_applied { (0, records) } else { (records, 0) };
        assert_eq!((restore.ledger.len(), restore.records_read), read);
    }
}

#[test]
fn a_store_is_replaced_if_it_is_ahead_of_the_committed_cursor_and_not_if_it_is_new() {
    let again = vec!["open 0", "wipe 0", "open 0"];
    for (applied, calls) in [(None, again.clone()), (Some(2), vec!["open 0"]), (Some(9), again)] {
        let world = TestEnvironment::default();
        let mut scheduler = scheduler(&world, (3, 10));
        let state = applied.map(|applied_until| {
            let fired_through = TimelineKey::MIN;
            let local =
                LocalCheckpoint { applied_until, step: 0, ledger_position: 0, fired_through };
            local_state(local, "here", NOW)
        });
        world.stores.contents().store.contents().state = state;
        assign(&world, 0);
        run_until(&mut scheduler, |it| matches!(it, TakeoverRequest::Barrier { .. }));
        scheduler.poll_once().unwrap();
        assert_eq!(world.stores.calls(), calls, "it has applied {applied:?}");
    }
}

/// If nothing happens in the partition, no step has rows, and the next takeover would read the same
/// records again.
#[test]
fn the_rows_of_a_takeover_are_flushed_although_nothing_happens_afterwards() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world, (0, 10));
    until_triggers(&world, &mut scheduler);
    let store = world.stores.contents().store.clone();
    let mut flushes_after = |passes| {
        world.clock.advance(passes);
        (0..4).for_each(|_| scheduler.poll_once().unwrap());
        store.contents().background_flushes
    };
    assert_eq!(flushes_after(Duration::ZERO), 0, "fires come first");
    assert_eq!(flushes_after(Duration::from_secs(60)), 1);
}

#[test]
fn a_takeover_without_triggers_to_read_is_active_at_once() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world, (0, 10));
    until_triggers(&world, &mut scheduler);
    scheduler.poll_once().unwrap();
    assert!(scheduler.tasks.get_mut(&0).unwrap().active().is_some());
}

#[test]
fn the_first_triggers_are_applied_before_all_are_read_if_a_batch_is_full() {
    let world = TestEnvironment::default();
    let n = TRIGGERS_BATCH as Offset + 5;
    let mut scheduler = scheduler(&world, (n, n));
    scheduler.config.records_per_step_max = 1 << 20;
    until_triggers(&world, &mut scheduler);
    world.hold("restorer");
    for (until, read) in [(n - 6, 0), (n - 5, TRIGGERS_BATCH)] {
        let next = scheduler.tasks[&0].next_trigger;
        world.triggers.returns((next..until).map(|offset| TestRecord::at(TRIGGERS, 0, offset)));
        scheduler.poll_once().unwrap();
        scheduler.poll_once().unwrap();
        let restore = restore_of(scheduler.tasks.get_mut(&0).unwrap());
        let (left, is_applying) = (restore.triggers.len(), restore.takeover.is_none());
        assert_eq!(left + restore.records_read, until as usize + 2, "two of the ledger");
        assert_eq!(is_applying, read > 0);
    }
}

/// A record whose schema is missing.
fn avro(offset: Offset) -> TestRecord {
    let value = Some(vec![0, 0, 0, 0, 7, 1]);
    TestRecord { value, ..TestRecord::at(TRIGGERS, 0, offset) }
}

#[test]
fn a_new_record_that_was_parked_during_a_takeover_stays_parked() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world, (3, 10));
    until_triggers(&world, &mut scheduler);
    world.triggers.returns((0..3).map(|offset| TestRecord::at(TRIGGERS, 0, offset)));
    world.triggers.returns([avro(3)]);
    (0..4).for_each(|_| scheduler.poll_once().unwrap());
    let task = scheduler.tasks.get_mut(&0).unwrap();
    assert_eq!((task.next_trigger, task.parking.len()), (4, 1));
    let parked = task.active().expect("it is active").cursor().parked;
    assert_eq!(parked.first_offset(), Some(3));
}

#[test]
fn triggers_are_not_shorter_once_they_are_taken_over_unless_they_are_being_checked() {
    for is_checked in [false, true] {
        let world = TestEnvironment::default();
        let mut scheduler = scheduler(&world, (3, 10));
        until_triggers(&world, &mut scheduler);
        world.hold("log-bounds");
        scheduler.truncated_logs.on_seen(0, TRIGGERS, (2, 3), NOW);
        if is_checked {
            scheduler.check_range(0, InputLog::Triggers, 0);
        }
        world.triggers.returns((0..3).map(|offset| TestRecord::at(TRIGGERS, 0, offset)));
        world.triggers.returns([TestRecord::at(TRIGGERS, 0, 3)]);
        (0..4).for_each(|_| scheduler.poll_once().unwrap());
        assert!(scheduler.tasks.get_mut(&0).unwrap().active().is_some());
        assert_eq!(scheduler.truncated_logs.get(0, TRIGGERS).is_some(), is_checked);
    }
}

#[test]
fn an_offset_that_answers_an_earlier_takeover_is_not_used() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world, (3, 10));
    let _none = scheduler.tasks.insert(0, restoring(TakeoverRequest::Offsets));
    let reply = |nonce| {
        let offsets = Some(PartitionOffsets::default());
        CommittedOffsetReply { partition: 0, nonce, offsets }
    };
    let request = |scheduler: &mut Scheduler<TestEnvironment>| {
        restore_of(scheduler.tasks.get_mut(&0).unwrap()).takeover.as_ref().unwrap().next_request()
    };
    scheduler.on_committed_offset(reply(2));
    assert_eq!(request(&mut scheduler), TakeoverRequest::Offsets);
    scheduler.on_committed_offset(reply(1));
    assert_ne!(request(&mut scheduler), TakeoverRequest::Offsets);
}

#[test]
fn what_was_deleted_before_a_takeover_is_counted() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world, (3, 10));
    world.cluster.set(TRIGGERS, 0, TestBounds::whole(5, 10));
    assign(&world, 0);
    run_until(&mut scheduler, |it| matches!(it, TakeoverRequest::Barrier { .. }));
    assert_eq!(world.reporter.reported().lost, [5]);
}

#[test]
fn a_partition_whose_triggers_end_below_the_committed_offset_is_refused_and_tried_again() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world, (11, 10));
    assign(&world, 0);
    (0..5).for_each(|_| scheduler.poll_once().unwrap());
    assert!(matches!(scheduler.tasks[&0].state, PartitionState::Refused(_)));
    let readiness = world.reporter.readiness("partitions").unwrap();
    assert!(readiness.contains("o.triggers ends at 10"), "{readiness}");
    world.clock.advance(scheduler.config.timing.truncated_retry);
    scheduler.start_takeovers_again().unwrap();
    assert!(!matches!(
        scheduler.tasks.get(&0).map(|task| &task.state),
        Some(PartitionState::Refused(_))
    ));
}

#[test]
fn a_partition_whose_store_has_failed_is_taken_over_again_with_a_new_one() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world, (0, 0));
    let mut task = active_at(0);
    task.waiting_inputs = vec![Input::TriggersEnd(7)].into_iter();
    let _none = scheduler.tasks.insert(0, task);
    let error = || StoreError::Unreadable { path: "store".into(), what: "a row" }.into();
    scheduler.on_store_failed(0, &error()).unwrap();
    assert!(matches!(scheduler.tasks[&0].state, PartitionState::StoreFailed));
    assert!(!scheduler.tasks[&0].has_waiting_inputs(), "the signals of the others are read on");
    assert_eq!(world.triggers.calls(), ["stop o.triggers[0]"]);
    let readiness = world.reporter.readiness("partitions").unwrap();
    assert_eq!(readiness, "not ready: 0 of 1 partitions active");
    world.clock.advance(MS);
    scheduler.on_store_failed(0, &error()).unwrap();
    assert_eq!(world.reporter.readiness("partitions"), None, "another write of it");
    scheduler.start_takeovers_again().unwrap();
    assert!(scheduler.tasks.is_empty(), "at once: it failed once");
    scheduler.take_awaited_stores().unwrap();
    assert_eq!(world.stores.calls(), ["wipe 0", "open 0"]);
    assert!(restore_of(scheduler.tasks.get_mut(&0).unwrap()).has_new_store);
}

#[test]
fn a_takeover_that_starts_again_keeps_its_store_if_that_is_valid() {
    for (cluster, calls) in [("here", vec![]), ("elsewhere", vec!["wipe 0", "open 0"])] {
        let world = TestEnvironment::default();
        let mut scheduler = scheduler(&world, (0, 0));
        let task = active_at(0);
        task.store.contents().state = Some(local_state(
            LocalCheckpoint {
                applied_until: 0,
                step: 0,
                ledger_position: 0,
                fired_through: TimelineKey::MIN,
            },
            cluster,
            NOW,
        ));
        let _none = scheduler.tasks.insert(0, task);
        scheduler.take_over(0).unwrap();
        scheduler.take_awaited_stores().unwrap();
        assert_eq!(world.stores.calls(), calls, "of {cluster}");
        let restore = restore_of(scheduler.tasks.get_mut(&0).unwrap());
        assert_eq!(restore.has_new_store, !calls.is_empty());
        assert_eq!(world.triggers.calls(), ["stop o.triggers[0]"]);
    }
}

#[test]
fn what_an_earlier_takeover_has_applied_is_not_used_and_a_refusal_is() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world, (0, 0));
    let _none = scheduler.tasks.insert(0, restoring(TakeoverRequest::Offsets));
    let takeover = |nonce| Box::new(Takeover::new(0, &scheduler.config.names, "me", nonce, None));
    let refused = |nonce| RestoreResult {
        partition: 0,
        takeover: takeover(nonce),
        result: Err(RestoreError::Refused(TakeoverError::MetadataDropped)),
        spare_buffer: Default::default(),
    };
    let (earlier, this) = (refused(7), refused(1));
    scheduler.on_restored(vec![earlier]).unwrap();
    assert!(matches!(scheduler.tasks[&0].state, PartitionState::Restoring(_)));
    scheduler.on_restored(vec![this]).unwrap();
    assert!(matches!(scheduler.tasks[&0].state, PartitionState::Refused(_)));
}

#[test]
fn takeovers_have_different_nonces_if_the_numbers_of_their_processes_are_different() {
    let world = TestEnvironment::default();
    let scheduler = world.scheduler();
    let numbers = [0, 1, 1 << 48, 3 << 48];
    let nonces = [0, 1, 2].map(|id| {
        numbers.map(|number| {
            world.set_nonce(number);
            scheduler.takeover(id, None).nonce()
        })
    });
    for (id, nonces) in (0..).zip(nonces) {
        let distinct: std::collections::BTreeSet<_> = nonces.into_iter().collect();
        assert_eq!(distinct.len(), numbers.len(), "of partition {id}");
        assert_eq!(nonces[0] >> 48, id, "those of partitions are apart");
    }
}

#[test]
fn partitions_share_the_memory_for_rows() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_with(SchedulerConfig { write_buffer: 600, ..config() });
    let is_full = |scheduler: &Scheduler<TestEnvironment>, rows: Offset| {
        let start = PartitionStart {
            cursor: Cursor::initial(0, 0),
            last_timestamp: 0,
            index_complete_from: 0,
            skips: Default::default(),
        };
        let mut task = active_at(0);
        task.state = PartitionState::Active(Box::new(scheduler.partition(0, start)));
        (0..rows).for_each(|offset| register(&mut task, offset, NOW));
        task.is_full()
    };
    let rows = (1..100).find(|rows| is_full(&scheduler, *rows)).expect("it is full then");
    let _none = scheduler.tasks.insert(0, active_at(0));
    assert_eq!((1..100).find(|rows| is_full(&scheduler, *rows)), Some(rows), "it is one");
    let _none = scheduler.tasks.insert(1, active_at(1));
    let of_two = (1..100).find(|rows| is_full(&scheduler, *rows)).expect("it is full then");
    assert!(of_two < rows, "{of_two} of {rows}");
}

#[test]
fn without_guarantees_a_partition_starts_at_the_beginning_and_is_active_at_once() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world, (3, 10));
    scheduler.config.mode = Mode::Trial;
    scheduler.take_over(0).unwrap();
    scheduler.take_awaited_stores().unwrap();
    assert_eq!(world.triggers.calls(), ["start o.triggers[0] at 0"]);
    assert_eq!(world.signals_and_ledger.calls(), ["start o.signals[0] at 0"]);
    assert!(scheduler.tasks.get_mut(&0).unwrap().active().is_some());
    assert_eq!(world.reporter.readiness("partitions").unwrap(), "ready");
}
