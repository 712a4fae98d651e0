//! What a registration costs the view does not depend on how many there were of its trigger before.

use std::time::{Duration, Instant};

use super::ViewFixture;
use crate::engine::cursor::Cursor;
use crate::model::Offset;
use crate::model::timeline::TimelineKey;

/// When everything is due, in ms since the epoch.
const DUE: u64 = 60_000;
/// Registrations of the trigger before the last ones.
const EARLIER: Offset = 6_000;
/// How many are measured at once.
const MEASURED: Offset = 250;
/// The last ones may take so many times as long as the first ones.
const TIMES_MAX: u32 = 5;

/// How long `apply` takes for each of the first offsets, and of the last ones.
fn assert_costs_the_same(mut apply: impl FnMut(Offset)) {
    let mut measure = |offsets: std::ops::Range<Offset>| {
        let began = Instant::now();
        offsets.for_each(&mut apply);
        began.elapsed().max(Duration::from_millis(5))
    };
    let first = measure(1..MEASURED);
    let _most = measure(MEASURED..EARLIER);
    let last = measure(EARLIER..EARLIER + MEASURED);
    assert!(last <= first * TIMES_MAX, "the first took {first:?}, the last {last:?}");
}

#[test]
fn ignored_registrations_of_a_trigger_cost_the_same_however_many_there_were() {
    let mut fixture = ViewFixture::new();
    fixture.callback("hot", 0, DUE);
    assert_costs_the_same(|offset| {
        fixture.callback_if_absent("hot", offset, DUE);
        fixture.ignored(offset);
    });
}

#[test]
fn registrations_that_are_not_decided_cost_the_same_however_many_there_were() {
    let mut fixture = ViewFixture::new();
    fixture.callback("hot", 0, DUE);
    assert_costs_the_same(|offset| fixture.callback_if_absent("hot", offset, DUE));
}

/// Their skip marks are deleted long ago.
#[test]
fn registrations_that_are_decided_by_times_cost_the_same_however_many_there_were() {
    let mut fixture = ViewFixture::new();
    fixture.callback("hot", 0, 10 * DUE + 1_000_000_000);
    assert_costs_the_same(|offset| {
        fixture.callback_if_absent("hot", offset, DUE);
        let fired_through = TimelineKey::last_at(1_000_000_000);
        let cursor = Cursor { fired_through, ..Cursor::initial(offset + 1, 0) };
        let cursor = Cursor { replay_from: offset + 1, ..cursor };
        fixture.projector().apply_cursor(0, &cursor, 0).unwrap();
    });
    let ignored = "SELECT count(*) FROM generation WHERE decided = 2";
    let ignored: i64 = fixture.db.query_row(ignored, [], |row| row.get(0)).unwrap();
    assert_eq!(ignored.cast_unsigned(), EARLIER + MEASURED - 1);
}
