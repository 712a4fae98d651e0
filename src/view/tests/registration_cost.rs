//! What a registration or a change costs the view does not depend on how many there were of its
//! trigger before.

use std::ops::Range;
use std::time::Duration;

use super::ViewFixture;
use super::fixture_events::{CREATED, definition_of};
use super::history_actions::HistoryTriggerKind;
use crate::clock;
use crate::engine::cursor::Cursor;
use crate::model::Offset;
use crate::model::entry::FireRow;
use crate::model::input::{ChangedParts, Registration, Request, TriggerRecord};
use crate::model::lifecycle::{Dependencies, Lifecycle, OnFailure};
use crate::model::timeline::TimelineKey;
use crate::view::filter::Scope;
use crate::view::results::Status;

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
    let first = measure(1..MEASURED, &mut apply);
    let _most = measure(MEASURED..EARLIER, &mut apply);
    let last = measure(EARLIER..EARLIER + MEASURED, &mut apply);
    assert!(last <= first * TIMES_MAX, "the first took {first:?}, the last {last:?}");
}

fn measure(offsets: Range<Offset>, apply: impl FnMut(Offset)) -> Duration {
    let began = clock::monotonic();
    offsets.for_each(apply);
    (clock::monotonic() - began).max(Duration::from_millis(5))
}

#[test]
fn ignored_registrations_of_a_trigger_cost_the_same_however_many_there_were() {
    let mut fixture = ViewFixture::new();
    fixture.callback("hot", 0, DUE);
    assert_costs_the_same(|offset| {
        fixture.callback_if_absent("hot", offset, DUE);
        fixture.ignored(offset);
        // It is asked for each read of the trigger.
        assert!(!fixture.queries().has_undecided("hot").unwrap());
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

/// The record at `offset` is read, which is to change the trigger.
fn request_change(fixture: &mut ViewFixture, offset: Offset) {
    let definition = definition_of("billing", HistoryTriggerKind::Http);
    let parts = ChangedParts { time: true, payload: true, ..ChangedParts::default() };
    fixture.change(offset, Registration::one_time("hot", DUE + offset, definition), parts);
}

/// The same, and that its owner has changed it.
fn announce_change(fixture: &mut ViewFixture, offset: Offset) {
    request_change(fixture, offset);
    fixture.changed("hot", offset, CREATED, DUE + offset);
}

/// The same, and what the ledger has had since then.
fn change(fixture: &mut ViewFixture, offset: Offset) {
    announce_change(fixture, offset);
    hold(fixture, offset);
}

/// What the ledger has had since the change at `offset` is read.
fn hold(fixture: &mut ViewFixture, offset: Offset) {
    let definition = definition_of("billing", HistoryTriggerKind::Http);
    let revision = Some(offset);
    let lifecycle = Lifecycle { changed_by_command: true, revision, ..Lifecycle::default() };
    let row = FireRow::first("hot".into(), 0, DUE + offset, definition);
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
    let versions = count_versions(fixture);
    assert!(versions <= 4, "{versions} versions are kept");
}

fn count_versions(fixture: &ViewFixture) -> i64 {
    let versions = "SELECT count(*) FROM version";
    fixture.db.query_row(versions, [], |row| row.get(0)).unwrap()
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

/// Something newer is always read already.
#[test]
fn changes_of_which_the_newest_is_never_decided_cost_the_same_however_many_there_were() {
    let mut fixture = ViewFixture::new();
    fixture.callback("hot", 0, DUE);
    assert_costs_the_same(|offset| {
        change(&mut fixture, offset);
        if offset % 100 == 99 {
            let view = fixture.queries().trigger(&Scope::All, "hot").unwrap().unwrap().view;
            assert_eq!((view.revision, view.is_behind), (offset, false));
            apply_cursor(&mut fixture, offset);
        }
    });
    apply_cursor(&mut fixture, EARLIER + MEASURED - 1);
    assert_shows_change(&fixture, EARLIER + MEASURED - 1);
}

/// Its record was deleted, or is read later.
#[test]
fn changes_of_an_unknown_registration_cost_the_same_however_many_there_were() {
    let mut fixture = ViewFixture::new();
    assert_costs_the_same(|offset| announce_change(&mut fixture, offset));
    fixture.callback("hot", 0, DUE);
    apply_cursor(&mut fixture, EARLIER + MEASURED);
    assert_shows_change(&fixture, EARLIER + MEASURED - 1);
}

/// A record of another trigger is parked before them.
#[test]
fn changes_beside_a_parked_record_are_shown_and_merged() {
    const CHANGES: Offset = 100;
    let mut fixture = ViewFixture::new();
    fixture.callback("hot", 0, DUE);
    fixture.names_schema("parked", 5, 7);
    fixture.callback("parked", 5, DUE);
    (6..CHANGES).for_each(|offset| change(&mut fixture, offset));
    fixture.fire_through_except(1_500, &[(7, 5)]);
    assert_shows_change(&fixture, CHANGES - 1);
}

/// What is newer was read first.
#[test]
fn a_definition_says_that_many_changes_are_not_applied_yet() {
    const CHANGES: Offset = 100;
    let mut fixture = ViewFixture::new();
    fixture.callback("hot", 0, DUE);
    for offset in (1..CHANGES).rev() {
        announce_change(&mut fixture, offset);
    }
    for newer in [None, Some(CHANGES)] {
        newer.into_iter().for_each(|offset| announce_change(&mut fixture, offset));
        let view = fixture.queries().trigger(&Scope::All, "hot").unwrap().unwrap().view;
        assert!(view.is_behind, "{view:?}");
    }
    apply_cursor(&mut fixture, CHANGES + 1);
    assert_shows_change(&fixture, CHANGES);
}

/// The outcomes are read before the records that they are about.
#[test]
fn changes_that_are_announced_first_cost_the_same_however_many_there_were() {
    let mut fixture = ViewFixture::new();
    fixture.callback("hot", 0, DUE);
    announce_change(&mut fixture, 1);
    assert_costs_the_same(|offset| {
        fixture.changed("hot", offset + 1, CREATED, DUE + offset + 1);
    });
    (2..=EARLIER + MEASURED).for_each(|offset| request_change(&mut fixture, offset));
    apply_cursor(&mut fixture, EARLIER + MEASURED + 1);
    assert_shows_change(&fixture, EARLIER + MEASURED);
}

#[test]
fn a_change_costs_the_same_however_many_more_are_announced() {
    let took = |announced: Offset| {
        let mut fixture = ViewFixture::new();
        fixture.callback("hot", 0, DUE);
        announce_change(&mut fixture, 1);
        for offset in 2..=announced {
            fixture.changed("hot", offset, CREATED, DUE + offset);
        }
        measure(2..MEASURED, |offset| request_change(&mut fixture, offset))
    };
    let (few, many) = (took(MEASURED), took(EARLIER));
    assert!(many <= few * TIMES_MAX, "before few others {few:?}, before many {many:?}");
}

/// The ledger has nothing of the changes yet.
#[test]
fn changes_of_a_trigger_that_waits_for_others_cost_the_same_however_many_there_were() {
    let mut fixture = ViewFixture::new();
    let definition = definition_of("billing", HistoryTriggerKind::Http);
    let after = Dependencies { ids: vec!["a".into()], on_failure: OnFailure::Skip, timeout: DUE };
    let after = Some(Box::new(after));
    let new = Registration { after, ..Registration::one_time("hot", DUE, definition.clone()) };
    let (timestamp, request) = (CREATED, Request::Register(new));
    let record = TriggerRecord { offset: 0, timestamp, ack: false.into(), request };
    fixture.projector().apply_trigger(0, record).unwrap();
    fixture.held(0, FireRow::first("hot".into(), 0, DUE, definition));
    assert_costs_the_same(|offset| announce_change(&mut fixture, offset));
    let view = fixture.queries().trigger(&Scope::All, "hot").unwrap().unwrap().view;
    assert_eq!((view.revision, view.is_behind), (EARLIER + MEASURED - 1, false));
}

/// The records of the changes are lost.
#[test]
fn a_trigger_ends_as_ever_however_many_changes_of_it_are_not_known() {
    let ended = |changes: Offset, is_known_first: bool| {
        let mut fixture = ViewFixture::new();
        if is_known_first {
            fixture.callback("hot", 0, DUE);
        }
        for offset in 1..=changes {
            fixture.changed("hot", offset, CREATED, DUE);
        }
        if !is_known_first {
            fixture.callback("hot", 0, DUE);
        }
        fixture.delivered("hot", 0, DUE);
        apply_cursor(&mut fixture, changes + 1);
        let view = fixture.queries().trigger(&Scope::All, "hot").unwrap().unwrap().view;
        (view.status, view.is_behind)
    };
    for is_known_first in [true, false] {
        let both = [20, 100].map(|changes| ended(changes, is_known_first));
        assert_eq!(both, [(Status::Completed, false); 2], "{is_known_first}");
    }
}

/// They were read before the registration, and their outcomes have expired.
#[test]
fn what_the_ledger_has_had_is_merged_although_the_registration_is_read_late() {
    const CHANGES: Offset = 100;
    let mut fixture = ViewFixture::new();
    (1..CHANGES).for_each(|offset| hold(&mut fixture, offset));
    fixture.callback("hot", 0, DUE);
    apply_cursor(&mut fixture, CHANGES);
    assert_shows_change(&fixture, CHANGES - 1);
}
