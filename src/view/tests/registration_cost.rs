//! What a registration or a change costs the view does not depend on how many there were of its
//! trigger before.

use std::time::{Duration, Instant};

use super::ViewFixture;
use super::fixture_events::{CREATED, definition_of};
use super::history_actions::HistoryTriggerKind;
use crate::engine::cursor::Cursor;
use crate::model::Offset;
use crate::model::entry::FireRow;
use crate::model::input::{ChangedParts, Registration};
use crate::model::lifecycle::Lifecycle;
use crate::model::timeline::TimelineKey;
use crate::view::filter::Scope;

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

/// The change at `offset` is read, and what its owner has written of it.
fn change(fixture: &mut ViewFixture, offset: Offset) {
    let fire_at = DUE + offset;
    let definition = definition_of("billing", HistoryTriggerKind::Http);
    let parts = ChangedParts { time: true, payload: true, ..ChangedParts::default() };
    fixture.change(offset, Registration::one_time("hot", fire_at, definition.clone()), parts);
    fixture.changed("hot", offset, CREATED, fire_at);
    let revision = Some(offset);
    let lifecycle = Lifecycle { changed_by_command: true, revision, ..Lifecycle::default() };
    let row = FireRow::first("hot".into(), 0, fire_at, definition);
    fixture.held(offset, FireRow { lifecycle: Some(Box::new(lifecycle)), ..row });
}

/// Everything before `offset` is decided.
fn apply_cursor(fixture: &mut ViewFixture, offset: Offset) {
    let cursor = Cursor { fired_through: TimelineKey::last_at(1), ..Cursor::initial(offset, 0) };
    fixture.projector().apply_cursor(0, &cursor, offset).unwrap();
}

fn assert_shows_change(fixture: &ViewFixture, offset: Offset) {
    let view = fixture.queries().trigger(&Scope::All, "hot").unwrap().unwrap().view;
    let shown = (view.revision, view.fire_at, view.is_behind);
    assert_eq!(shown, (offset, Some(DUE + offset), false));
    let versions = "SELECT count(*) FROM version";
    let versions: i64 = fixture.db.query_row(versions, [], |row| row.get(0)).unwrap();
    assert!(versions <= 2, "{versions} versions are kept");
}

#[test]
fn changes_of_a_trigger_cost_the_same_however_many_there_were() {
    let mut fixture = ViewFixture::new();
    fixture.callback("hot", 0, DUE);
    assert_costs_the_same(|offset| {
        change(&mut fixture, offset);
        if offset % 10 == 9 {
            apply_cursor(&mut fixture, offset + 1);
        }
    });
    assert_shows_change(&fixture, EARLIER + MEASURED - 1);
}

/// A view that is built again reads them all before the first cursor.
#[test]
fn changes_of_a_trigger_that_are_not_decided_cost_the_same_however_many_there_were() {
    let mut fixture = ViewFixture::new();
    fixture.callback("hot", 0, DUE);
    assert_costs_the_same(|offset| change(&mut fixture, offset));
    apply_cursor(&mut fixture, EARLIER + MEASURED);
    assert_shows_change(&fixture, EARLIER + MEASURED - 1);
}
