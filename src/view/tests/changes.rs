//! What is shown of a trigger that was changed, from whatever is left of the records about it.
//!
//! Invariant: a change is shown if and only if its owner has made it.

use super::ViewFixture;
use super::fixture_events::{CREATED, definition_of};
use super::history_actions::HistoryTriggerKind;
use crate::model::Timestamp;
use crate::model::definition::{Definition, Header, HttpTarget, Target};
use crate::model::entry::FireRow;
use crate::model::input::{ChangedParts, Registration, Request, TriggerRecord};
use crate::model::lifecycle::{
    Dependencies, Lifecycle, LifecyclePhase, OnFailure, PendingDependencies, Recurrence,
};
use crate::model::outcome::OutcomeKind;
use crate::model::schedule::Schedule;
use crate::view::filter::{Page, Scope, TriggerFilter};
use crate::view::results::{ExecutionStatus, Status, TriggerView};

const NONE: ChangedParts = ChangedParts { time: false, after: false, payload: false, key: false };
const TIME: ChangedParts = ChangedParts { time: true, ..NONE };

/// Another callback than those of the fixture, named green.
fn changed_definition() -> Definition {
    let name = Header { name: "orloj-name".into(), value: Some("green".into()) };
    Definition {
        target: HttpTarget::post("https://other.example/hook").into(),
        payload: Some("[2]".into()),
        headers: vec![name],
        retry: None,
        caller: None,
    }
}

fn changed(fire_at: Timestamp) -> Registration {
    Registration::one_time("tea", fire_at, changed_definition())
}

/// The changed trigger as the ledger has it, of the change at 1.
fn row(fire_at: Timestamp, lifecycle: Lifecycle) -> FireRow {
    let caller = Some("billing".into());
    let definition = Definition { caller, payload: Some("[3]".into()), ..changed_definition() };
    let lifecycle = Lifecycle { changed_by_command: true, revision: Some(1), ..lifecycle };
    let row = FireRow::first("tea".into(), 0, fire_at, definition);
    FireRow { lifecycle: Some(Box::new(lifecycle)), ..row }
}

fn tea(fixture: &ViewFixture) -> TriggerView {
    fixture.queries().trigger(&Scope::All, "tea").unwrap().unwrap().view
}

fn url(view: &TriggerView) -> &str {
    let Target::Http(target) = &view.definition.target else { panic!("{view:?}") };
    target.url.as_str()
}

/// The ids of triggers that a word finds.
fn found_by(fixture: &ViewFixture, word: &str) -> Vec<String> {
    let filter = TriggerFilter { text: Some(word.to_owned()), ..TriggerFilter::default() };
    let page = Page { size: 10, token: None };
    let found = fixture.queries().triggers(&Scope::All, &filter, &page).unwrap();
    found.items.into_iter().map(|view| view.id).collect()
}

fn register_recurring(fixture: &mut ViewFixture) {
    let schedule = Schedule::from_json(r#"{"every": "PT1S"}"#).unwrap().anchored(CREATED);
    let what = definition_of("billing", HistoryTriggerKind::Http);
    let new = Registration::one_time("tea", CREATED, what);
    let request = Request::Register(Registration { schedule: Some(Box::new(schedule)), ..new });
    let record = TriggerRecord { offset: 0, timestamp: CREATED, ack: false.into(), request };
    fixture.projector().apply_trigger(0, record).unwrap();
}

fn delivered(occurrence: u32) -> OutcomeKind {
    OutcomeKind::Delivered { generation: 0, occurrence, attempt: 1, status: 200 }
}

/// It is what a view reads that is built after the callback was made. `orloj reconcile` makes the
/// call again that such a view shows.
#[test]
fn a_change_is_shown_when_the_ledger_has_forgotten_it() {
    for outcome_is_read_first in [false, true] {
        let mut fixture = ViewFixture::new();
        let read_outcome = |fixture: &mut ViewFixture| fixture.changed("tea", 1, CREATED, 3_000);
        if outcome_is_read_first {
            read_outcome(&mut fixture);
        }
        fixture.callback("tea", 0, 2_000);
        fixture.change(1, changed(3_000), TIME);
        if !outcome_is_read_first {
            read_outcome(&mut fixture);
        }
        assert_eq!(tea(&fixture).status, Status::Pending);
        fixture.fire_through(5_000);
        let view = tea(&fixture);
        assert_eq!((view.revision, view.is_behind), (1, false));
        assert_eq!((view.status, view.fire_at), (Status::InFlight, Some(3_000)));
        assert_eq!(
            (view.name.as_deref(), url(&view)),
            (Some("green"), "https://other.example/hook")
        );
        assert_eq!(view.definition.payload.as_deref(), Some(&b"{}"[..]), "it was not named");
        assert_eq!(view.caller.as_deref(), Some("billing"));
        assert_eq!(found_by(&fixture, "green"), ["tea"]);
        assert_eq!(found_by(&fixture, "api"), [""; 0], "of the URL before");
    }
}

#[test]
fn a_change_that_its_owner_has_not_made_is_not_shown() {
    let mut fixture = ViewFixture::new();
    fixture.callback("tea", 0, 2_000);
    let before = tea(&fixture);
    fixture.change(1, changed(3_000), TIME);
    assert_eq!(tea(&fixture), before);
    fixture.fire_through(1_500);
    assert_eq!(tea(&fixture), before);
    let sql = "SELECT count(*) FROM version";
    let left: i64 = fixture.db.query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0, "it was refused: everything was read");
}

#[test]
fn parts_that_changes_do_not_name_stay() {
    let mut fixture = ViewFixture::new();
    fixture.callback("tea", 0, 2_000);
    let payload = ChangedParts { payload: true, ..NONE };
    for (revision, parts) in [(1, payload), (2, TIME), (3, NONE)] {
        let new = Registration { priority: 7, ..changed(1_000 * revision) };
        fixture.change(revision, new, parts);
        fixture.changed("tea", revision, CREATED, 2_000);
    }
    let view = tea(&fixture);
    assert_eq!((view.revision, view.priority, view.fire_at), (3, 7, Some(2_000)));
    assert_eq!(view.definition.payload.as_deref(), Some(&b"[2]"[..]));
}

#[test]
fn what_the_ledger_has_is_shown_if_the_outcomes_of_changes_have_expired() {
    for entry_is_read_first in [false, true] {
        let mut fixture = ViewFixture::new();
        let read_entry =
            |fixture: &mut ViewFixture| fixture.held(0, row(3_000, Lifecycle::default()));
        if entry_is_read_first {
            read_entry(&mut fixture);
        }
        fixture.callback("tea", 0, 2_000);
        fixture.change(1, changed(3_000), TIME);
        if !entry_is_read_first {
            read_entry(&mut fixture);
        }
        fixture.fire_through(1_500);
        let view = tea(&fixture);
        assert_eq!((view.revision, view.is_behind, view.fire_at), (1, false, Some(3_000)));
        assert_eq!(view.definition.payload.as_deref(), Some(&b"[3]"[..]), "an earlier change's");
        fixture.settled(1, "tea");
        fixture.fire_through(5_000);
        let view = tea(&fixture);
        assert_eq!((view.status, view.revision), (Status::InFlight, 1));
        assert_eq!(view.definition.payload.as_deref(), Some(&b"[3]"[..]));
    }
}

#[test]
fn what_it_waits_for_is_shown_as_it_was_named() {
    let mut fixture = ViewFixture::new();
    let ids = vec!["a".into(), "b".into()];
    let (on_failure, timeout) = (OnFailure::Skip, 9_000);
    let after = Dependencies { ids, on_failure, timeout };
    let waiting = |remaining: &[&str]| {
        let remaining = remaining.iter().map(|id| (*id).into()).collect();
        let until = CREATED + timeout;
        let dependencies = PendingDependencies { remaining, on_failure, until, failed: None };
        let dependencies = Some(Box::new(dependencies));
        row(2_000, Lifecycle { dependencies, dependencies_changed: true, ..Lifecycle::default() })
    };
    fixture.held(0, waiting(&["a", "b"]));
    fixture.held(1, waiting(&["b"]));
    fixture.callback("tea", 0, 2_000);
    let new = Registration { after: Some(Box::new(after.clone())), ..changed(2_000) };
    fixture.change(1, new, ChangedParts { after: true, ..NONE });
    fixture.changed("tea", 1, CREATED, 2_000);
    let view = tea(&fixture);
    assert_eq!((view.status, view.after), (Status::Waiting, Some(after)));
}

#[test]
fn a_trigger_in_the_ledger_waits_for_others_from_the_change_on_that_says_so() {
    let mut fixture = ViewFixture::new();
    fixture.callback("tea", 0, 2_000);
    let mut held = row(2_000, Lifecycle::default());
    held.lifecycle = None;
    fixture.held(0, held);
    assert_eq!(tea(&fixture).status, Status::Pending);
    let (ids, on_failure, timeout) = (vec!["a".into()], OnFailure::Skip, 9_000);
    let after = Dependencies { ids, on_failure, timeout };
    let new = Registration { after: Some(Box::new(after)), ..changed(2_000) };
    fixture.change(1, new, ChangedParts { after: true, ..NONE });
    fixture.changed("tea", 1, CREATED, 2_000);
    assert_eq!(tea(&fixture).status, Status::Waiting, "the ledger is read later");
}

#[test]
fn an_occurrence_that_ended_before_a_change_is_not_the_last_one() {
    let mut fixture = ViewFixture::new();
    register_recurring(&mut fixture);
    fixture.outcome("tea", 40_000, 1_100, delivered(0));
    fixture.change(1, changed(3_000), TIME);
    assert_eq!(tea(&fixture).status, Status::Scheduled);
    fixture.changed_after(Some(1), "tea", 1, 1_200, 3_000);
    assert_eq!(tea(&fixture).status, Status::Pending);
    let mut once = row(3_000, Lifecycle::default());
    once.id.occurrence = 1;
    fixture.held(0, once);
    let view = tea(&fixture);
    assert_eq!((view.status, view.executions), (Status::Pending, 1));
    fixture.settled(1, "tea");
    fixture.fire_through(5_000);
    assert_eq!(tea(&fixture).status, Status::InFlight);
    fixture.outcome("tea", 60_000, 5_100, delivered(1));
    assert_eq!(tea(&fixture).status, Status::Completed);
}

/// The ledger has forgotten it: that it was called, or no trigger waits for its result.
#[test]
fn an_occurrence_that_ends_after_a_change_is_not_the_last_one_if_it_was_before() {
    let mut fixture = ViewFixture::new();
    register_recurring(&mut fixture);
    fixture.change(1, changed(3_000), TIME);
    fixture.changed_after(Some(2), "tea", 1, 1_200, 3_000);
    fixture.outcome("tea", 60_000, 1_300, delivered(1));
    let view = tea(&fixture);
    assert_eq!((view.status, view.executions), (Status::Pending, 2));
    fixture.fire_through(5_000);
    let view = tea(&fixture);
    assert_eq!((view.status, view.executions), (Status::InFlight, 3));
    let last = view.last_execution.unwrap();
    assert_eq!((last.occurrence, last.status), (2, ExecutionStatus::InFlight));
    let page = Page { size: 10, token: None };
    let executions = fixture.queries().executions(&Scope::All, "tea", None, &page).unwrap();
    let executions = executions.unwrap().items;
    assert_eq!(executions.iter().map(|one| one.occurrence).collect::<Vec<_>>(), [2, 1]);
    let overdue = fixture.queries().overdue(9_000, &page).unwrap().items;
    let [overdue] = &overdue[..] else { panic!("{overdue:?}") };
    assert_eq!(overdue.trigger.last_execution.as_ref().unwrap().occurrence, 2);
    fixture.outcome("tea", 70_000, 5_100, delivered(2));
    let view = tea(&fixture);
    assert_eq!((view.status, view.settled_at), (Status::Completed, Some(5_100)));
}

/// What is known of another occurrence is not asked for again.
#[test]
fn the_last_occurrence_of_a_schedule_is_reconciled() {
    let mut fixture = ViewFixture::new();
    register_recurring(&mut fixture);
    fixture.outcome("tea", 60_000, 1_100, OutcomeKind::Ended { generation: 0, executions: 3 });
    fixture.outcome("tea", 60_001, 1_300, delivered(1));
    fixture.fire_through(5_000);
    let page = Page { size: 10, token: None };
    let overdue = fixture.queries().overdue(9_000, &page).unwrap().items;
    let [overdue] = &overdue[..] else { panic!("{overdue:?}") };
    let last = overdue.trigger.last_execution.as_ref().unwrap();
    assert_eq!((last.occurrence, last.attempt, last.status), (2, 1, ExecutionStatus::InFlight));
}

/// `maxExecutions` of the new schedule is of those that follow.
#[test]
fn the_executions_before_a_change_that_resets_the_count_are_shown() {
    let mut fixture = ViewFixture::new();
    register_recurring(&mut fixture);
    let schedule = Schedule::from_json(r#"{"every": "PT1S", "maxExecutions": 3}"#).unwrap();
    let recurrence = Recurrence {
        schedule: schedule.anchored(CREATED),
        due_before_jitter: 6_000,
        catch_up_until: 0,
        open: None,
        failures: 0,
        counted_from: 5,
    };
    let recurrence = Some(Box::new(recurrence));
    let mut held = row(6_000, Lifecycle { recurrence, ..Lifecycle::default() });
    held.id.occurrence = 6;
    fixture.held(0, held);
    let view = tea(&fixture);
    assert_eq!((view.executions, view.counted_from), (6, 5));
}

/// It does not say how often the trigger had fired.
#[test]
fn what_ended_before_a_change_by_an_earlier_version_is_not_the_last_occurrence() {
    let mut fixture = ViewFixture::new();
    register_recurring(&mut fixture);
    fixture.outcome("tea", 40_000, 1_100, delivered(4));
    fixture.change(1, changed(3_000), TIME);
    fixture.changed_after(None, "tea", 1, 1_200, 3_000);
    fixture.fire_through(5_000);
    let view = tea(&fixture);
    assert_eq!((view.status, view.executions), (Status::InFlight, 6));
}

/// Its delivery is unknown to a worker whose committed offsets have expired.
#[test]
fn a_failure_after_the_delivery_of_the_same_attempt_changes_nothing() {
    let mut fixture = ViewFixture::new();
    fixture.callback("tea", 0, 2_000);
    fixture.fire_through(3_000);
    fixture.outcome("tea", 40_000, 2_100, delivered(0));
    let before = tea(&fixture);
    assert_eq!(before.status, Status::Completed);
    let (occurrence, attempt) = (0, 1);
    let (status, reason, retry_at) = (None, "it is not known".to_owned(), None);
    let failed =
        OutcomeKind::Failed { generation: 0, occurrence, attempt, status, reason, retry_at };
    fixture.outcome("tea", 50_000, 9_000, failed);
    let view = tea(&fixture);
    assert_eq!((view.status, view.settled_at), (Status::Completed, before.settled_at));
}

#[test]
fn a_call_before_a_change_says_nothing_about_when_it_fires() {
    let mut fixture = ViewFixture::new();
    register_recurring(&mut fixture);
    fixture.outcome("tea", 1, 1_100, OutcomeKind::Called { generation: 0, occurrence: 0 });
    let topic = definition_of("billing", HistoryTriggerKind::Topic);
    fixture.change(1, Registration::one_time("tea", 3_000, topic), TIME);
    fixture.changed_after(Some(1), "tea", 1, 1_200, 3_000);
    fixture.fire_through(5_000);
    let view = tea(&fixture);
    assert_eq!((view.status, view.settled_at), (Status::Fired, Some(3_000)));
}

#[test]
fn a_request_that_is_repeated_does_not_move_the_time_at_which_it_fired() {
    let mut fixture = ViewFixture::new();
    fixture.register("tea", 0, 2_000, definition_of("billing", HistoryTriggerKind::Topic));
    for (offset, at) in [(1, 1_100), (2, 4_000)] {
        fixture.outcome("tea", offset, at, OutcomeKind::Called { generation: 0, occurrence: 0 });
    }
    fixture.fire_through(5_000);
    let view = tea(&fixture);
    assert_eq!((view.status, view.settled_at), (Status::Fired, Some(1_100)));
}

#[test]
fn a_trigger_that_a_change_has_made_late_has_fired_at_the_change() {
    let mut fixture = ViewFixture::new();
    let topic = || definition_of("billing", HistoryTriggerKind::Topic);
    fixture.register("tea", 0, 9_000, topic());
    fixture.change(1, Registration::one_time("tea", 1_500, topic()), TIME);
    fixture.changed("tea", 1, 3_000, 1_500);
    fixture.fire_through(5_000);
    let view = tea(&fixture);
    assert_eq!((view.status, view.settled_at), (Status::Fired, Some(3_000)));
    assert_eq!(view.fire_at, Some(1_500));
}

#[test]
fn the_view_is_behind_until_a_change_is_applied_or_its_record_is_lost() {
    let mut fixture = ViewFixture::new();
    fixture.callback("tea", 0, 2_000);
    fixture.changed("tea", 1, CREATED, 3_000);
    let view = tea(&fixture);
    assert_eq!((view.revision, view.is_behind, view.status), (0, true, Status::Pending));
    fixture.fire_through(5_000);
    let view = tea(&fixture);
    assert_eq!((view.is_behind, view.status), (false, Status::InFlight));
}

/// The step that makes the change has fired it, and the ledger has never had it.
#[test]
fn a_trigger_that_was_changed_and_fired_in_one_step_has_fired() {
    let mut fixture = ViewFixture::new();
    fixture.register("tea", 0, 9_000, definition_of("billing", HistoryTriggerKind::Topic));
    fixture.fire_through(1_500);
    let new = Registration::one_time("tea", 1_500, definition_of("", HistoryTriggerKind::Topic));
    fixture.change(1, new, TIME);
    fixture.changed("tea", 1, 1_600, 1_500);
    fixture.fire_through(1_700);
    assert_eq!(tea(&fixture).status, Status::Fired);
}

#[test]
fn a_paused_trigger_that_was_called_has_fired() {
    for phase in [None, Some(LifecyclePhase::Done)] {
        let mut fixture = ViewFixture::new();
        fixture.register("tea", 0, 2_000, definition_of("billing", HistoryTriggerKind::Topic));
        let reason = "by a command".to_owned();
        fixture.outcome("tea", 1, 1_500, OutcomeKind::Paused { generation: 0, reason });
        fixture.outcome("tea", 2, 3_000, OutcomeKind::Called { generation: 0, occurrence: 0 });
        if let Some(phase) = phase {
            let lifecycle = Lifecycle { phase, ..Lifecycle::default() };
            fixture.held(0, FireRow { lifecycle: Some(Box::new(lifecycle)), ..plain_row() });
            fixture.settled(1, "tea");
        }
        assert_eq!(tea(&fixture).status, Status::Paused, "{phase:?}");
        fixture.fire_through(5_000);
        let view = tea(&fixture);
        assert_eq!((view.status, view.settled_at), (Status::Fired, Some(3_000)), "{phase:?}");
    }
}

fn plain_row() -> FireRow {
    let what = definition_of("billing", HistoryTriggerKind::Topic);
    FireRow::first("tea".into(), 0, 2_000, what)
}
