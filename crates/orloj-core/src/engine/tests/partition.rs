//! When a step is sealed, when it spills and copies the cursor, and when ingest must pause.
//!
//! Invariant: each test moves one clock or one limit past its value and nothing else.

use std::collections::BTreeSet;

use super::fixture::{EngineFixture, NOW};
use super::harness::{partition_config, registration_record};
use crate::engine::cursor::Cursor;
use crate::engine::index_row::IdHash;
use crate::engine::parked_schemas::ParkedSchemas;
use crate::engine::partition::{IndexRows, Input, Partition, PartitionConfig, PartitionStart};
use crate::engine::prefetch::{Prefetched, TimelineRows};
use crate::engine::step::{Emit, PartitionStep};
use crate::engine::wheel::Wheel;
use crate::model::Timestamp;
use crate::model::input::TriggerRecord;
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::timeline::TimelineKey;

/// An interval that does not end in these tests.
const NEVER: u64 = 1 << 40;

#[test]
fn a_partition_whose_clock_is_behind_w_waits_and_its_clock_never_runs_back() {
    let mut partition = partition(quiet(), NOW + 50);
    assert_eq!(partition.id(), 7);
    assert_eq!(partition.observe_clock(NOW + 40), 10);
    assert_eq!(partition.observe_clock(NOW + 50), 0);
    assert_eq!(partition.observe_clock(NOW), 0);
}

#[test]
fn a_draft_with_as_many_records_as_a_step_may_have_is_full_and_sealed() {
    let config = PartitionConfig { records_per_step_max: 2, ..quiet() };
    let mut partition = partition(config, 0);
    for (id, is_full) in [("a", false), ("b", true)] {
        register(&mut partition, id, NOW + 40);
        assert_eq!((partition.is_full(), partition.should_seal()), (is_full, is_full), "{id}");
    }
    assert_eq!(partition.drafted_records(), 0, "nothing is written for short ones");
}

#[test]
fn the_records_that_a_draft_writes_are_counted_and_it_is_sealed() {
    let mut partition = partition(quiet(), 0);
    assert!(!partition.should_seal());
    for count in [1, 2] {
        register(&mut partition, &format!("{count}"), NOW + 9_000);
        assert_eq!(partition.drafted_records(), count, "each is put into the ledger");
        assert!(partition.should_seal());
    }
}

#[test]
fn ingest_pauses_when_the_store_is_two_spills_behind() {
    let mut partition = partition(PartitionConfig { spill_bytes: 1, ..quiet() }, 0);
    assert!(!partition.is_full());
    register(&mut partition, "a", NOW + 40);
    assert!(partition.is_full());
    let step = seal(&mut partition);
    assert!(partition.is_full(), "it is not in the store yet");
    partition.on_applied(step.number);
    assert!(!partition.is_full());
}

#[test]
fn what_was_ingested_without_a_record_to_write_is_committed_after_idle_commit() {
    let mut partition = partition(PartitionConfig { idle_commit: 10, ..quiet() }, 0);
    register(&mut partition, "a", NOW + 40);
    let _first = seal(&mut partition);
    assert_seals_at(&mut partition, NOW + 10, false); // nothing has moved
    let _last = partition.seal_final();
    ingest(&mut partition, Input::SignalsDeleted(5));
    assert_seals_at(&mut partition, NOW + 19, false);
    assert_seals_at(&mut partition, NOW + 20, true);
}

#[test]
fn a_change_of_what_is_parked_is_committed_with_a_copy_of_the_cursor() {
    let config = PartitionConfig { idle_commit: 10, ..quiet() };
    let mut partition = partition(config, 0);
    let schemas: ParkedSchemas = [(7, 0)].into_iter().collect();
    register(&mut partition, "a", NOW + 40);
    assert!(mirrors(&seal(&mut partition)).is_empty());
    let mut now = NOW;
    for schemas in [schemas, ParkedSchemas::NONE] {
        ingest(&mut partition, Input::Unparked { ids: Vec::new(), schemas });
        assert_seals_at(&mut partition, now + 9, false);
        assert_seals_at(&mut partition, now + 10, true);
        now += 10;
        let step = seal(&mut partition);
        assert_eq!((step.cursor.parked, mirrors(&step)), (schemas, vec![false]));
    }
}

#[test]
fn the_cursor_is_copied_into_the_ledger_from_time_to_time_and_clean_at_the_end() {
    let config = PartitionConfig { cursor_copy_interval: 10, idle_commit: 0, ..quiet() };
    let mut partition = partition(config, 0);
    for (after, copied) in [(0, vec![false]), (9, vec![]), (10, vec![false]), (11, vec![])] {
        let _behind = partition.observe_clock(NOW + after);
        register(&mut partition, &format!("{after}"), NOW + 45);
        assert_eq!(mirrors(&seal(&mut partition)), copied, "after {after} ms");
    }
    let last = partition.seal_final();
    assert_eq!((last.is_final, mirrors(&last)), (true, vec![true]));
    assert!(last.spill.is_some(), "the store gets everything");
}

/// After the last fire nothing moves any more. If the offset is lost then, who accepts the copy
/// must not repeat what was fired longer ago than the interval.
#[test]
fn the_copy_of_the_cursor_has_the_last_step_when_the_interval_is_over() {
    let mut partition = partition(PartitionConfig { cursor_copy_interval: 10, ..quiet() }, 0);
    register(&mut partition, "a", NOW + 45);
    assert_eq!(mirrors(&seal(&mut partition)), [false]);
    register(&mut partition, "b", NOW + 45);
    assert_eq!(mirrors(&seal(&mut partition)), [false; 0]);
    assert_seals_at(&mut partition, NOW + 9, false);
    assert_seals_at(&mut partition, NOW + 10, true);
    assert_eq!(mirrors(&seal(&mut partition)), [false]);
    assert_seals_at(&mut partition, NOW + 20, false);
    partition.on_taken_over(); // the owner before may have made steps without a copy
    assert_seals_at(&mut partition, NOW + 29, false);
    assert_seals_at(&mut partition, NOW + 30, true);
    assert_eq!(mirrors(&seal(&mut partition)), [false]);
}

#[test]
fn rows_are_spilled_when_the_interval_is_over() {
    let mut partition = partition(PartitionConfig { spill_interval: 10, ..quiet() }, 0);
    assert_seals_at(&mut partition, NOW, false); // there is no row
    register(&mut partition, "a", NOW + 40);
    assert!(seal(&mut partition).spill.is_some());
    register(&mut partition, "b", NOW + 40);
    assert_seals_at(&mut partition, NOW + 9, false);
    assert_seals_at(&mut partition, NOW + 10, true);
    assert!(seal(&mut partition).spill.is_some());
    assert_seals_at(&mut partition, NOW + 20, false);
    partition.request_spill();
    assert_seals_at(&mut partition, NOW + 20, true);
    assert!(seal(&mut partition).spill.is_some(), "a checkpoint without rows");
    assert_seals_at(&mut partition, NOW + 30, false);
    partition.on_taken_over();
    assert_seals_at(&mut partition, NOW + 39, false);
    assert_seals_at(&mut partition, NOW + 40, true);
}

#[test]
fn a_step_between_two_spills_has_none() {
    let mut partition = partition(PartitionConfig { idle_commit: 0, ..quiet() }, 0);
    register(&mut partition, "a", NOW + 40);
    assert!(seal(&mut partition).spill.is_none());
}

#[test]
fn while_a_partition_catches_up_twice_as_many_rows_stay_in_memory() {
    // W is a second behind the clock in the first one, and a ms more in the second.
    let with_two_rows = |behind| {
        let mut partition = partition(quiet(), NOW + 9_000 - behind);
        let _behind = partition.observe_clock(NOW + 9_000);
        register(&mut partition, "a", NOW + 9_040);
        register(&mut partition, "b", NOW + 9_040);
        partition
    };
    let (mut current, mut late) = (with_two_rows(1_000), with_two_rows(1_001));
    let seals = |partition: &mut Partition, spill_bytes| {
        partition.config_mut().spill_bytes = spill_bytes;
        partition.should_seal()
    };
    let size = (1..).take_while(|bytes| seals(&mut current, *bytes)).last().unwrap();
    assert!(size > 100 && size % 2 == 0, "two rows of one length: {size}");
    assert!(!seals(&mut late, size));
    assert!(!seals(&mut late, size / 2 + 1));
    assert!(seals(&mut late, size / 2));
}

#[test]
fn the_store_is_read_for_an_id_unless_a_newer_row_is_in_memory() {
    let mut partition = partition(PartitionConfig { spill_interval: 0, ..quiet() }, 0);
    let a = IdHash::of("a");
    assert!(partition.needs_index_row(a));
    register(&mut partition, "a", NOW + 40);
    assert!(!partition.needs_index_row(a));
    let step = seal(&mut partition);
    partition.on_applied(step.number);
    assert!(partition.needs_index_row(a));
}

#[test]
fn a_log_that_is_read_again_has_no_unread_end_until_it_is_asked_for_again() {
    let mut partition = partition(quiet(), 0);
    assert!(!partition.has_unread_input());
    partition.on_end_offset(5, NOW);
    assert!(partition.has_unread_input());
    assert_eq!([4, 5].map(|end| partition.were_triggers_longer(end)), [true, false]);
    register(&mut partition, "a", NOW + 40);
    assert_eq!(partition.triggers_read_until(), 1);
    ingest(&mut partition, Input::TriggersEnd(5));
    assert_eq!((partition.triggers_read_until(), partition.has_unread_input()), (5, false));
    partition.on_end_offset(9, NOW);
    partition.read_triggers_again_from(3);
    assert_eq!((partition.triggers_read_until(), partition.has_unread_input()), (3, false));
}

#[test]
fn a_partition_wakes_up_for_the_next_entry() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", NOW + 40);
    fixture.run_until_idle();
    let next = fixture.owner.partition.next_wakeup();
    assert!(next.is_some_and(|at| (NOW + 1..=NOW + 40).contains(&at)), "{next:?}");
}

/// Settings by which nothing is sealed because of the time, and nothing is copied or spilled.
fn quiet() -> PartitionConfig {
    let (idle_commit, cursor_copy_interval, spill_interval) = (NEVER, NEVER, NEVER);
    PartitionConfig { idle_commit, cursor_copy_interval, spill_interval, ..partition_config(50) }
}

/// Partition 7 with W just after everything due before `due`, at [`NOW`].
fn partition(config: PartitionConfig, due: Timestamp) -> Partition {
    let fired_through = TimelineKey::first_at(due);
    let start = PartitionStart {
        cursor: Cursor { fired_through, ..Cursor::initial(0, 0) },
        last_timestamp: 0,
        index_complete_from: 0,
        skips: BTreeSet::new(),
    };
    let mut partition =
        Partition::new(7, config, start, Wheel::new(10, 1_000, 1 << 16, fired_through));
    let _behind = partition.observe_clock(NOW);
    partition
}

/// A registration that asks for no answer is ingested.
fn register(partition: &mut Partition, id: &str, due: Timestamp) {
    let record = registration_record(id, partition.cursor().next_offset, due);
    ingest(partition, Input::Trigger(TriggerRecord { timestamp: NOW, ..record }));
}

fn ingest(partition: &mut Partition, input: Input) {
    let (index, rows) = (IndexRows::default(), TimelineRows::default());
    partition.ingest(vec![input], Prefetched { index: &index, rows: &rows }).unwrap();
}

/// Closes a step, whether or not it is time.
fn seal(partition: &mut Partition) -> PartitionStep {
    let idle_commit = std::mem::take(&mut partition.config_mut().idle_commit);
    let step = partition.seal().expect("something is drafted");
    partition.config_mut().idle_commit = idle_commit;
    step
}

#[track_caller]
fn assert_seals_at(partition: &mut Partition, at: Timestamp, seals: bool) {
    let _behind = partition.observe_clock(at);
    assert_eq!(partition.should_seal(), seals);
}

/// Whether they are clean, of all copies of the cursor in a step.
fn mirrors(step: &PartitionStep) -> Vec<bool> {
    let clean = |emit: &Emit| match emit {
        Emit::Ledger { key: LedgerKey::Cursor, value: Some(value) } => match **value {
            LedgerValue::Cursor { clean, .. } => Some(clean),
            _ => None,
        },
        _ => None,
    };
    step.emits.iter().filter_map(clean).collect()
}
