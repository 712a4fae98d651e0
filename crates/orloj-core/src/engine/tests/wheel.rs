//! The bounds of the wheel, to the millisecond and the byte. What it fires after any sequence of
//! events, the tests in `wheel.rs` say.
//!
//! Invariant: nothing is in the store but what a test says.

use crate::codec::row::RowBytes;
use crate::engine::wheel::{ENTRY_BYTES, FiringCost, LoadRequest, Wheel};
use crate::model::Timestamp;
use crate::model::timeline::{Source, TimelineKey};
use crate::model::work::tests::counted;

/// Bytes of a row.
const ROW: usize = 10;
/// What an entry takes up.
const COST: usize = ENTRY_BYTES + ROW;
/// W of a new wheel.
const W: TimelineKey = key(1_000, 5);

const fn key(due: Timestamp, offset: u64) -> TimelineKey {
    TimelineKey { due, priority: 0, source: Source::Triggers, offset }
}

fn row() -> RowBytes {
    RowBytes::from(vec![7; ROW])
}

/// Its ticks are 10 ms; it holds what is due before 1,105.
fn loaded_wheel(budget: usize) -> Wheel {
    let mut wheel = Wheel::new(10, 105, budget, W);
    let load = wheel.load_request(1_000).unwrap();
    wheel.load([], load.until);
    assert_eq!(wheel.loaded_until(), TimelineKey::first_at(1_105));
    wheel
}

fn insert_all(wheel: &mut Wheel, keys: impl IntoIterator<Item = TimelineKey>) {
    for key in keys {
        wheel.insert(key, row());
    }
}

/// Takes entries that are due, each for 1 of `budget`; and whether some of it is left.
fn take(wheel: &mut Wheel, until: Timestamp, budget: usize) -> (Vec<TimelineKey>, bool) {
    let mut out = Vec::new();
    let (budget, one) = (FiringCost::of_fires(budget), FiringCost { fires: 1, bytes: 1 });
    let is_left = wheel.take_due(TimelineKey::last_at(until), budget, |_| one, &mut out);
    (out.into_iter().map(|(key, _)| key).collect(), is_left)
}

#[test]
fn only_what_is_above_w_and_below_the_end_of_what_is_loaded_is_held() {
    let cases = [
        (key(999, 9), false),
        (W, false),
        (W.successor(), true),
        (key(1_104, 9), true),
        (TimelineKey::first_at(1_105), false),
        (key(9_999, 9), false),
    ];
    for (key, is_held) in cases {
        let mut wheel = loaded_wheel(100 * COST);
        assert_eq!(wheel.insert(key, row()), is_held, "{key:?}");
        assert_eq!(wheel.bytes(), if is_held { COST } else { 0 }, "{key:?}");
        assert_eq!(take(&mut wheel, 1_104, 9).0, Vec::from_iter(is_held.then_some(key)));
    }
}

#[test]
fn the_removal_of_what_is_not_held_takes_no_memory() {
    let mut wheel = loaded_wheel(100 * COST);
    for offset in 10..20 {
        insert_all(&mut wheel, [key(1_000, offset), key(1_104, offset)]);
    }
    for key in [key(999, 9), W, TimelineKey::first_at(1_105), key(1_106, 9), key(9_999, 9)] {
        wheel.remove(key);
        assert_eq!(wheel.bytes(), 20 * COST, "{key:?}");
    }
}

#[test]
fn what_is_at_or_below_w_is_dropped_when_w_moves_and_not_held_again() {
    let mut wheel = loaded_wheel(100 * COST);
    let [below, w, above] = [1_049, 1_050, 1_051].map(|due| key(due, due));
    insert_all(&mut wheel, [above, w, below]);
    wheel.advance(w);
    assert_eq!(wheel.bytes(), COST);
    assert!(!wheel.insert(w, row()) && !wheel.insert(below, row()));
    wheel.advance(below);
    assert!(!wheel.insert(w, row()), "W does not go back");
    assert_eq!(take(&mut wheel, 1_104, 9).0, [above]);
    wheel.advance(TimelineKey::last_at(5_000));
    assert_eq!(wheel.loaded_until(), TimelineKey::first_at(5_001));
}

#[test]
fn inserting_an_entry_again_has_no_effect() {
    let mut wheel = loaded_wheel(100 * COST);
    insert_all(&mut wheel, [key(1_050, 0); 3]);
    assert_eq!(take(&mut wheel, 1_104, 9), (vec![key(1_050, 0)], true));
    assert_eq!(wheel.bytes(), 0);
}

#[test]
fn it_is_loaded_when_half_of_the_horizon_and_of_the_budget_is_left() {
    let budget = 40 * COST;
    let (from, until) = (TimelineKey::first_at(1_105), TimelineKey::first_at(1_053 + 105));
    let cases = [(0, Some(30 * COST)), (10, Some(20 * COST)), (20, Some(10 * COST)), (21, None)];
    for (entries, bytes_max) in cases {
        let mut wheel = loaded_wheel(budget);
        insert_all(&mut wheel, (0..entries).map(|offset| key(1_104, offset)));
        assert_eq!(wheel.load_request(1_052), None);
        let expected = bytes_max.map(|bytes_max| LoadRequest { from, until, bytes_max });
        assert_eq!(wheel.load_request(1_053), expected);
        assert_eq!(wheel.next_due(), Some(if expected.is_some() { 1_053 } else { 1_104 }));
    }
}

#[test]
fn at_most_4_mib_are_loaded_at_once() {
    let wheel = loaded_wheel(1 << 30);
    assert_eq!(wheel.load_request(1_053).unwrap().bytes_max, 4 << 20);
}

#[test]
fn some_of_the_budget_is_left_only_if_nothing_else_is_due() {
    for (budget, taken) in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3)] {
        let mut wheel = loaded_wheel(100 * COST);
        insert_all(&mut wheel, (0..3).map(|offset| key(1_050, offset)));
        let (keys, is_left) = take(&mut wheel, 1_050, budget);
        assert_eq!((keys.len(), is_left), (taken, budget == 4), "{budget}");
    }
}

#[test]
fn what_fills_the_budget_exactly_is_kept() {
    let mut wheel = loaded_wheel(4 * COST);
    insert_all(&mut wheel, (0..4).map(|offset| key(1_050, offset)));
    assert_eq!((wheel.bytes(), wheel.loaded_until().due), (4 * COST, 1_105));
}

#[test]
fn over_budget_the_later_half_of_the_last_tick_is_dropped() {
    let mut wheel = loaded_wheel(4 * COST);
    insert_all(&mut wheel, (0..4).map(|offset| key(1_050, offset)));
    assert!(!wheel.insert(key(1_050, 4), row()), "it is dropped at once");
    assert_eq!((wheel.bytes(), wheel.loaded_until()), (2 * COST, key(1_050, 2)));
    // What was loaded now would be dropped again.
    assert_eq!((wheel.load_request(1_050), wheel.next_due()), (None, Some(1_050)));
    assert_eq!(take(&mut wheel, 1_050, 1), (vec![key(1_050, 0)], false));
    assert_eq!(wheel.load_request(1_050).unwrap().from, key(1_050, 2));
}

#[test]
fn a_tick_with_one_entry_is_dropped_whole_if_it_is_not_the_only_one() {
    let mut wheel = loaded_wheel(2 * COST);
    insert_all(&mut wheel, [1_010, 1_020, 1_030].map(|due| key(due, due)));
    assert_eq!((wheel.bytes(), wheel.loaded_until()), (2 * COST, key(1_030, 1_030)));
    assert_eq!(take(&mut wheel, 1_104, 9).0, [1_010, 1_020].map(|due| key(due, due)));
}

#[test]
fn a_tick_in_which_everything_was_cancelled_does_not_keep_others_in_memory() {
    let mut wheel = loaded_wheel(10 * COST);
    insert_all(&mut wheel, [key(1_020, 0), key(1_090, 1), key(1_090, 1), key(1_090, 1)]);
    wheel.remove(key(1_090, 1));
    let large = RowBytes::from(vec![7; 20 * COST]);
    assert!(wheel.insert(key(1_010, 2), large));
    assert_eq!(wheel.bytes(), ENTRY_BYTES + 20 * COST, "one entry is left");
    assert_eq!(wheel.loaded_until(), key(1_020, 0));
}

#[test]
fn a_partition_that_is_far_behind_holds_the_last_ms_of_its_horizon() {
    for (tick, now) in (1..=10).flat_map(|tick| (1_000_000..1_000_010).map(move |now| (tick, now)))
    {
        for horizon in [tick, 2 * tick + 1, 100] {
            let mut wheel = Wheel::new(tick, horizon, 100 * COST, TimelineKey::MIN);
            let load = wheel.load_request(now).unwrap();
            let keys = [key(now, 1), key(now + horizon - 1, 2)];
            wheel.load(keys.map(|key| (key, row())), load.until);
            assert_eq!(take(&mut wheel, now + horizon, 9).0, keys);
        }
    }
}

#[test]
fn what_is_due_in_other_ticks_is_no_work_for_a_fire() {
    for first in [TimelineKey::MIN, key(999_990, 0)] {
        let now = 1_000_000;
        let mut wheel = Wheel::new(10, 10_000, 1 << 30, first);
        let load = wheel.load_request(now).unwrap();
        wheel.load([], load.until);
        insert_all(&mut wheel, (0..1_000).rev().map(|offset| key(now + 9_000, offset)));
        let fire_each_ms = |wheel: &mut Wheel| {
            for due in now..now + 500 {
                wheel.insert(key(due, due), row());
                assert_eq!(take(wheel, due, 9).0, [key(due, due)]);
                wheel.advance(TimelineKey::last_at(due));
            }
        };
        let ((), work) = counted(|| fire_each_ms(&mut wheel));
        assert!(work <= 2 * 500, "{work}");
    }
}

#[test]
fn the_entries_of_a_tick_are_sorted_once_however_few_fire_at_a_time() {
    let mut wheel = loaded_wheel(1 << 30);
    insert_all(&mut wheel, (0..1_000).rev().map(|offset| key(1_050, offset)));
    let one_by_one = |wheel: &mut Wheel| {
        for offset in 0..1_000 {
            assert_eq!(take(wheel, 1_050, 1).0, [key(1_050, offset)]);
        }
    };
    let ((), work) = counted(|| one_by_one(&mut wheel));
    assert!(work <= 2 * 1_000, "{work}");
}
