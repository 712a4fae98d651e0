//! The state of a partition at its bounds: W, the end of what is loaded, L and N.
//!
//! Invariant: W is the key of the record at offset 100, due at 1,000, until a test moves it.

use std::collections::BTreeSet;

use super::fixture::{encode, ledger_skip, topic_trigger};
use super::harness::definition;
use crate::codec::row::RowBytes;
use crate::engine::cursor::Cursor;
use crate::engine::draft::StepDraft;
use crate::engine::index_row::{IdHash, IndexEntry, IndexEntryKind, IndexRow};
use crate::engine::parked_schemas::ParkedSchemas;
use crate::engine::prefetch::{IndexRows, Input, TimelineRows};
use crate::engine::row_op::RowOp;
use crate::engine::state::EngineState;
use crate::engine::wheel::{FiringCost, Wheel};
use crate::model::input::{Registration, Request, TriggerRecord};
use crate::model::lifecycle::Command;
use crate::model::timeline::{Source, TimelineKey};
use crate::model::{Offset, Timestamp};

/// W.
const W: TimelineKey = key(1_000, 100);

const fn key(due: Timestamp, offset: Offset) -> TimelineKey {
    TimelineKey { due, priority: 0, source: Source::Triggers, offset }
}

/// Nothing is stored, and what is due until 2,000 is loaded.
fn state() -> EngineState {
    state_with(BTreeSet::new(), 0)
}

fn state_with(skips: BTreeSet<Offset>, index_complete_from: Offset) -> EngineState {
    let cursor = Cursor { fired_through: W, replay_from: 0, ..Cursor::initial(101, 0) };
    let mut wheel = Wheel::new(10, 1_000, 1 << 20, W);
    let load = wheel.load_request(1_000).unwrap();
    wheel.load([], load.until);
    EngineState::new(cursor, wheel, skips, index_complete_from)
}

fn entry(key: TimelineKey, kind: IndexEntryKind) -> IndexEntry {
    IndexEntry { kind, ..IndexEntry::for_veto(key, key.offset) }
}

fn retry(key: TimelineKey) -> IndexEntry {
    entry(key, IndexEntryKind::Retry { occurrence: 0, attempt: 2, deferral: 0 })
}

fn row(offset: Offset) -> RowBytes {
    encode(&topic_trigger("a", offset, 1_000).row)
}

fn keys(rows: &[(TimelineKey, RowBytes)]) -> Vec<TimelineKey> {
    rows.iter().map(|(key, _)| *key).collect()
}

#[test]
fn an_entry_at_or_below_w_has_fired_unless_it_is_late() {
    let mut state = state();
    let late = key(900, 101);
    state.add_late(late, &topic_trigger("a", 101, 900).row);
    for (key, waits) in [(key(999, 99), false), (W, false), (W.successor(), true), (late, true)] {
        let main = entry(key, IndexEntryKind::Main);
        assert_eq!((state.is_pending(&main), state.is_live(&main)), (waits, waits), "{key:?}");
        assert!(!state.is_pending_retry(&main), "{key:?}");
        assert_eq!(state.is_pending_retry(&retry(key)), waits, "{key:?}");
        assert!(!state.is_live(&retry(key)), "{key:?}");
        let veto = entry(key, IndexEntryKind::Veto);
        assert!(!state.is_live(&veto) && !state.is_pending_retry(&veto), "{key:?}");
    }
}

#[test]
fn what_is_remembered_of_a_trigger_is_live_above_w_and_never_pending() {
    let state = state();
    for (key, is_live) in [(key(999, 99), false), (W, false), (W.successor(), true)] {
        let remembered = entry(key, IndexEntryKind::Remembered);
        assert_eq!((state.is_live(&remembered), state.is_pending(&remembered)), (is_live, false));
    }
}

#[test]
fn the_generation_that_fired_last_is_known_from_where_the_index_is_complete() {
    for (complete_from, is_known) in [(0, true), (100, true), (101, false)] {
        let state = state_with(BTreeSet::new(), complete_from);
        let fired = entry(W, IndexEntryKind::Main);
        let index_row = IndexRow { entries: [fired.clone()].into() };
        assert_eq!(state.last_fired(&index_row), is_known.then_some(fired), "{complete_from}");
    }
}

#[test]
fn the_next_offset_of_triggers_never_goes_back() {
    let mut state = state();
    state.set_next_offset(50);
    assert_eq!(state.cursor().next_offset, 101);
    state.park(101, &"a".into(), ParkedSchemas::NONE);
    assert_eq!(state.cursor().next_offset, 102);
    state.set_next_offset(300);
    state.park(200, &"a".into(), ParkedSchemas::NONE);
    assert_eq!(state.cursor().next_offset, 300);
}

#[test]
fn an_entry_of_a_held_trigger_is_put_off_since_the_first_time_until_nothing_is_parked() {
    let mut state = state();
    let a = IdHash::of("a");
    assert_eq!(state.held_among([row(1)].iter()), []);
    state.hold(a);
    assert_eq!(state.held_among([row(1)].iter()), [a]);
    assert_eq!((state.held_since(a, 1_500), state.held_since(a, 1_600)), (1_500, 1_500));
    state.hold(a);
    assert_eq!(state.held_since(a, 1_700), 1_500);
    state.unpark(&["a".into()], ParkedSchemas::NONE);
    assert_eq!(state.held_among([row(1)].iter()), []);
    state.hold(a);
    assert_eq!(state.held_since(a, 1_800), 1_800);
}

#[test]
fn the_replay_offset_deletes_the_marks_it_passes_and_never_goes_back() {
    let mut state = state_with(BTreeSet::from([3, 4, 5]), 0);
    let mut output = StepDraft::default();
    state.mark_skipped(9, &mut output);
    state.advance_replay_from(5, 9, &mut output);
    let emits = [ledger_skip(9, true), ledger_skip(3, false), ledger_skip(4, false)];
    assert_eq!(output.emits(), emits);
    state.advance_replay_from(2, 9, &mut output);
    assert_eq!((state.cursor().replay_from, output.emits().len()), (5, 3));
    state.advance_replay_from(10, 3, &mut output);
    assert_eq!(output.emits()[3..], [ledger_skip(5, false)]);
    assert_eq!(state.cursor().replay_from, 9, "the step has deleted as many as it may");
    state.advance_replay_from(10, 9, &mut output);
    assert_eq!(output.emits()[4..], [ledger_skip(9, false)]);
    assert_eq!(state.cursor().replay_from, 10);
}

#[test]
fn the_replay_horizon_is_the_latest_due_time() {
    let mut state = state();
    for (due, horizon) in [(1_500, 1_500), (1_400, 1_500), (1_600, 1_600)] {
        state.extend_replay_horizon(due);
        assert_eq!(state.cursor().replay_horizon, horizon);
    }
}

#[test]
fn a_row_is_put_in_the_ms_after_w_at_the_earliest() {
    assert_eq!(state().min_due(), 1_001);
}

#[test]
fn steps_are_counted_from_1() {
    let mut state = state();
    assert_eq!([state.next_step(), state.next_step()], [1, 2]);
}

#[test]
fn an_entry_is_removed_from_where_it_is() {
    for (key, is_row) in [(key(999, 99), false), (W, false), (W.successor(), true)] {
        let mut state = state();
        state.add_late(key, &topic_trigger("a", 1, 900).row);
        state.remove_entry(key);
        assert_eq!(state.has_late(), is_row, "{key:?}");
        let changes: Vec<_> = state.write_buffer().timeline().cloned().collect();
        assert_eq!(changes, Vec::from_iter(is_row.then_some((key, None))));
    }
}

#[test]
fn w_follows_the_watermark_only_if_everything_until_then_is_taken() {
    // What the budget allows, and how far W moves: all three fire for 4.
    let before = |due: Timestamp| TimelineKey::last_at(due - 1);
    let cases = [
        (1_500, 4, 3, before(1_500)),
        (1_500, 3, 3, key(1_300, 103)),
        (1_500, 2, 2, key(1_200, 102)),
        (1_300, 4, 3, key(1_300, 103)),
        (1_050, 4, 0, before(1_050)),
        (1_000, 4, 0, W),
        (1_050, 0, 0, W),
        (1_999, 4, 3, before(1_999)),
        // What is due from 2,000 on may be in the store.
        (2_000, 4, 3, key(1_300, 103)),
        (9_000, 4, 3, key(1_300, 103)),
    ];
    let all = [key(1_100, 101), key(1_200, 102), key(1_300, 103)];
    for (watermark, budget, taken, fired_through) in cases {
        let mut state = state();
        for key in all {
            state.put_row(key, row(key.offset));
        }
        let (rows, w) = state.take_due(watermark, FiringCost::of_fires(budget));
        assert_eq!(keys(&rows), all[..taken], "at {watermark} for {budget}");
        assert_eq!(w, fired_through, "at {watermark} for {budget}");
    }
}

#[test]
fn what_is_at_or_below_w_is_neither_held_nor_spilled_any_more() {
    let mut state = state();
    let [fired, waits] = [1_100, 1_200].map(|due| key(due, due));
    for key in [fired, waits] {
        state.put_row(key, row(key.offset));
    }
    state.begin_fire(fired);
    assert_eq!((state.fired_through(), state.min_due()), (fired, 1_101));
    let both_held = state.wheel().bytes();
    state.end_fire();
    assert_eq!(state.wheel().bytes(), both_held / 2);
    assert_eq!(state.spill(1).rows(), [RowOp::Put { key: waits, row: row(1_200) }]);
}

#[test]
fn a_load_adds_what_is_not_in_the_store_yet_and_removes_what_was_deleted() {
    let mut state = state();
    let [put, deleted, stored, far] = [2_100, 2_200, 2_300, 9_000].map(|due| key(due, due));
    state.put_row(put, row(1));
    state.put_row(far, row(2));
    state.delete_row(deleted);
    let load = state.wheel().load_request(1_500).unwrap();
    state.load(vec![(deleted, row(3)), (stored, row(4))], load.until);
    let (rows, _) = state.take_due(9_999, FiringCost::of_fires(9));
    assert_eq!(keys(&rows), [put, stored]);
}

/// The rows that a request about `a` needs, if the store has this index row of it.
fn rows_for(request: Request, entries: &[IndexEntry]) -> Vec<TimelineKey> {
    let record = TriggerRecord { offset: 200, timestamp: 1_000, ack: false.into(), request };
    let index_row = IndexRow { entries: entries.iter().cloned().collect() };
    let fetched = IndexRows::from_iter([(IdHash::of("a"), index_row)]);
    state().rows_to_prefetch(&[Input::Trigger(record)], &fetched)
}

#[test]
fn a_command_reads_the_live_rows_of_its_trigger_and_other_records_those_with_a_lifecycle() {
    let command = || Request::Command { id: "a".into(), command: Command::Pause, caller: None };
    let cancel = |id: &str| Request::Cancel { id: id.into(), caller: None };
    let register = Registration::one_time("a", 9_000, definition(false));
    let plain = entry(key(2_000, 1), IndexEntryKind::Main);
    let with_lifecycle =
        IndexEntry { has_lifecycle: true, ..entry(key(3_000, 2), IndexEntryKind::Main) };
    let has_fired = IndexEntry { key: W, ..with_lifecycle };
    let entries = [plain.clone(), with_lifecycle.clone(), has_fired, retry(key(4_000, 3))];
    assert_eq!(rows_for(command(), &entries), [plain.key, with_lifecycle.key]);
    assert_eq!(rows_for(command(), std::slice::from_ref(&plain)), [plain.key]);
    assert_eq!(rows_for(cancel("a"), &entries), [with_lifecycle.key]);
    assert_eq!(rows_for(Request::Register(register), &entries), [with_lifecycle.key]);
    assert_eq!(rows_for(cancel("a"), &[plain]), []);
    assert_eq!(rows_for(cancel("b"), &entries), []);
}

#[test]
fn a_late_entry_has_no_row_in_the_store() {
    let mut state = state();
    let late = IndexEntry { has_lifecycle: true, ..entry(W, IndexEntryKind::Main) };
    state.add_late(late.key, &topic_trigger("a", 100, 1_000).row);
    let fetched = IndexRows::from_iter([(IdHash::of("a"), IndexRow { entries: [late].into() })]);
    let request = Request::Cancel { id: "a".into(), caller: None };
    let record = TriggerRecord { offset: 200, timestamp: 1_000, ack: false.into(), request };
    assert_eq!(state.rows_to_prefetch(&[Input::Trigger(record)], &fetched), []);
}

#[test]
fn the_newest_row_of_an_entry_is_read() {
    let mut state = state();
    let (late, decided, stored) = (key(900, 1), key(1_100, 2), key(1_200, 3));
    let at = |due| topic_trigger("a", 7, due).row;
    state.add_late(late, &at(1));
    state.put_row(decided, encode(&at(2)));
    let fetched = [(decided, encode(&at(8))), (stored, encode(&at(3)))];
    let fetched = TimelineRows::from_iter(fetched);
    for (key, due) in [(late, 1), (decided, 2), (stored, 3)] {
        let read = state.read_row(&entry(key, IndexEntryKind::Main), &fetched);
        assert_eq!(read.unwrap(), at(due));
    }
    let nowhere = state.read_row(&entry(key(1_300, 4), IndexEntryKind::Main), &fetched);
    assert_eq!(nowhere.unwrap_err().key, key(1_300, 4));
}
