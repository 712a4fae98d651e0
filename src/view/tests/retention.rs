//! What is deleted after the retention, and what is not.

use std::time::Duration;

use super::ViewFixture;
use super::fixture_events::{CREATED, definition_of};
use super::history_actions::HistoryTriggerKind;
use crate::model::Timestamp;
use crate::model::dead_letter::Mark;
use crate::model::entry::FireRow;
use crate::model::outcome::{CircuitState, Outcome, OutcomeKind};
use crate::view::dump;
use crate::view::retention::Retention;

/// How long settled triggers are kept, in ms.
const AUDIT: u64 = 1_000;

fn retain() -> Retention {
    Retention::new(Duration::from_millis(AUDIT))
}

/// What is left of the view when everything that is too old at `now` is deleted.
fn dump_after_deletion(fixture: &mut ViewFixture, now: Timestamp) -> Vec<String> {
    retain().run_step(&mut fixture.projector(), now).unwrap();
    dump::lines(&fixture.db).unwrap()
}

fn ids(fixture: &ViewFixture) -> Vec<String> {
    let mut select = fixture.db.prepare("SELECT id FROM subject ORDER BY id").unwrap();
    let ids = select.query_map([], |row| row.get(0)).unwrap();
    ids.collect::<Result<_, _>>().unwrap()
}

fn count(fixture: &ViewFixture, table: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {table}");
    fixture.db.query_row(&sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn settled_triggers_are_deleted_with_all_their_rows_after_the_audit_period() {
    let mut fixture = ViewFixture::new();
    // They differ only in when they settle.
    for (offset, id) in (0..).zip(["flying", "newer", "older"]) {
        fixture.callback(id, offset, 2_000);
    }
    fixture.callback("pending", 4, 60_000);
    fixture.fire_through(2_500);
    fixture.delivered("older", 2, 5_000);
    fixture.delivered("newer", 1, 9_000);
    let before = dump::lines(&fixture.db).unwrap();
    assert_eq!(dump_after_deletion(&mut fixture, 5_000 + AUDIT), before, "it is not older yet");

    let lines = dump_after_deletion(&mut fixture, 5_001 + AUDIT);
    let kept = before.into_iter().filter(|line| !line.contains("|older|"));
    let kept = kept.map(|line| line.replace("tally|billing|5|2", "tally|billing|5|1"));
    assert_eq!(lines, kept.collect::<Vec<_>>());
    assert_eq!(ids(&fixture), ["flying", "newer", "pending"]);
    assert_eq!((count(&fixture, "words"), count(&fixture, "generation")), (3, 3));

    let _lines = dump_after_deletion(&mut fixture, Timestamp::MAX / 2);
    assert_eq!(ids(&fixture), ["flying", "pending"], "what is not settled stays");
    assert_eq!(count(&fixture, "execution"), 0);
}

#[test]
fn old_executions_and_generations_are_deleted_while_their_trigger_stays() {
    let mut fixture = ViewFixture::new();
    fixture.callback("flying", 0, 2_000);
    fixture.fire_through(2_500);
    fixture.retried("flying", 0, 2_600, 3_000);
    fixture.callback("again", 1, 60_000);
    fixture.callback("again", 2, 70_000);
    // Of these the registrations were never read, or were of no account.
    fixture.delivered("ghost", 7, 2_600);
    fixture.outcome("cancelled", 8, 9_000, OutcomeKind::Cancelled { generation: 9 });
    let at = CREATED + AUDIT;
    let _lines = dump_after_deletion(&mut fixture, at);
    assert_eq!((count(&fixture, "generation"), count(&fixture, "execution")), (5, 2));
    let _lines = dump_after_deletion(&mut fixture, at + 1);
    assert_eq!((count(&fixture, "generation"), count(&fixture, "execution")), (4, 2));
    let _lines = dump_after_deletion(&mut fixture, 2_601 + AUDIT);
    assert_eq!((count(&fixture, "generation"), count(&fixture, "execution")), (3, 0));
    assert_eq!(ids(&fixture), ["again", "cancelled", "flying"]);
    assert_eq!(count(&fixture, "listed"), 2);
}

/// A pending trigger of this generation as the ledger has it.
fn pending_row(generation: u64) -> FireRow {
    let what = definition_of("billing", HistoryTriggerKind::Topic);
    FireRow::first("tea".into(), generation, 60_000, what)
}

#[test]
fn a_pending_trigger_is_not_deleted_if_an_outcome_of_it_was_read_first() {
    let mut fixture = ViewFixture::new();
    let reason = "by a command".to_owned();
    fixture.outcome("tea", 1, 2_000, OutcomeKind::Paused { generation: 0, reason });
    fixture.held(0, pending_row(0));
    let _lines = dump_after_deletion(&mut fixture, Timestamp::MAX / 2);
    assert_eq!((count(&fixture, "generation"), count(&fixture, "listed")), (1, 1));
}

#[test]
fn a_pending_trigger_is_not_deleted_if_its_replacement_was_refused() {
    let mut fixture = ViewFixture::new();
    fixture.callback("tea", 0, 60_000);
    fixture.callback("tea", 1, 70_000);
    let (trigger, kind) = ("tea".into(), OutcomeKind::Taken { generation: 0 });
    let refused = Outcome { trigger, answers: Some(1), request: None, at: 2_000, kind };
    fixture.projector().apply_outcome(0, 0, &refused).unwrap();
    let _lines = dump_after_deletion(&mut fixture, Timestamp::MAX / 2);
    assert_eq!((count(&fixture, "generation"), count(&fixture, "listed")), (1, 1));
}

#[test]
fn a_replaced_generation_is_deleted_if_the_next_one_was_read_first() {
    let mut fixture = ViewFixture::new();
    fixture.held(0, pending_row(5));
    fixture.callback("tea", 3, 50_000);
    let _lines = dump_after_deletion(&mut fixture, Timestamp::MAX / 2);
    assert_eq!((count(&fixture, "generation"), count(&fixture, "listed")), (1, 1));
}

#[test]
fn a_registration_that_was_ignored_is_deleted_while_its_trigger_stays() {
    let mut fixture = ViewFixture::new();
    fixture.callback("tea", 0, Timestamp::MAX / 2);
    fixture.callback_if_absent("tea", 1, 60_000);
    fixture.ignored(1);
    fixture.ignored(2);
    fixture.callback_if_absent("tea", 2, 60_000);
    let _lines = dump_after_deletion(&mut fixture, CREATED + AUDIT);
    assert_eq!(count(&fixture, "generation"), 3, "they are not older yet");
    let _lines = dump_after_deletion(&mut fixture, CREATED + AUDIT + 1);
    assert_eq!((count(&fixture, "generation"), count(&fixture, "listed")), (1, 1));
}

#[test]
fn dead_letters_are_deleted_after_an_action_or_when_the_log_is_truncated() {
    let mut fixture = ViewFixture::new();
    for offset in 1..=4 {
        fixture.dead_letter("billing", offset, 10 * offset, "answered 500");
    }
    fixture.dead_letter_action(2, 5, 5_000, Mark::Replayed);
    fixture.dead_letter_action(3, 6, 9_000, Mark::Archived);
    let letters = |fixture: &ViewFixture| {
        let lines = dump::lines(&fixture.db).unwrap();
        lines.iter().filter(|line| line.starts_with("letter|")).count()
    };
    let _lines = dump_after_deletion(&mut fixture, 5_000 + AUDIT);
    assert_eq!(letters(&fixture), 4);
    let _lines = dump_after_deletion(&mut fixture, 5_001 + AUDIT);
    assert_eq!(letters(&fixture), 3, "one was replayed long ago; open ones stay");
    let mut retain = retain();
    retain.set_dead_letter_start(0, 4);
    retain.run_step(&mut fixture.projector(), 5_001 + AUDIT).unwrap();
    assert_eq!(letters(&fixture), 1, "the one where the log begins");
}

#[test]
fn circuits_unchanged_for_the_audit_period_are_deleted() {
    let mut fixture = ViewFixture::new();
    fixture.circuit(Some("billing"), "a.example", 5_000, CircuitState::Open);
    fixture.circuit(Some("billing"), "b.example", 9_000, CircuitState::Closed);
    assert_eq!(dump_after_deletion(&mut fixture, 5_000 + AUDIT).len(), 2);
    let lines = dump_after_deletion(&mut fixture, 5_001 + AUDIT);
    assert!(lines.len() == 1 && lines[0].contains("b.example"), "{lines:?}");
}

#[test]
fn large_deletions_run_in_steps_without_a_pause() {
    let mut fixture = ViewFixture::new();
    for offset in 0..501 {
        fixture.register(
            &format!("a{offset}"),
            offset,
            2_000,
            definition_of("billing", HistoryTriggerKind::Topic),
        );
    }
    fixture.fire_through(5_000);
    let (mut retain, now) = (retain(), 60_000);
    for (rows, is_due) in [(1, true), (0, false)] {
        assert!(retain.is_due(now));
        retain.run_step(&mut fixture.projector(), now).unwrap();
        assert_eq!((count(&fixture, "listed"), retain.is_due(now)), (rows, is_due));
    }
    assert!(retain.is_due(now + 1_000));
}
