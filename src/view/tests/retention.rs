//! What is deleted after the retention, and what is not.

use std::time::Duration;

use super::ViewFixture;
use super::fixture_events::{CREATED, definition_of};
use super::history::HistoryTriggerKind;
use crate::model::Timestamp;
use crate::model::dead_letter::Mark;
use crate::model::outcome::{CircuitState, OutcomeKind};
use crate::view::dump;
use crate::view::retention::Retention;

/// How long settled triggers are kept, in ms.
const AUDIT: u64 = 1_000;

fn retain() -> Retention {
    Retention::new(Duration::from_millis(AUDIT))
}

/// What is left of the view when everything that is too old at `now` is deleted.
fn dump_after_deletion(scene: &mut ViewFixture, now: Timestamp) -> Vec<String> {
    retain().run_step(&mut scene.projector(), now).unwrap();
    dump::lines(&scene.db).unwrap()
}

fn ids(scene: &ViewFixture) -> Vec<String> {
    let mut select = scene.db.prepare("SELECT id FROM subject ORDER BY id").unwrap();
    let ids = select.query_map([], |row| row.get(0)).unwrap();
    ids.collect::<Result<_, _>>().unwrap()
}

fn count(scene: &ViewFixture, table: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {table}");
    scene.db.query_row(&sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn settled_triggers_are_deleted_with_all_their_rows_after_the_audit_period() {
    let mut scene = ViewFixture::new();
    // They differ only in when they settle.
    for (offset, id) in (0..).zip(["flying", "newer", "older"]) {
        scene.callback(id, offset, 2_000);
    }
    scene.callback("pending", 4, 60_000);
    scene.fire_through(2_500);
    scene.delivered("older", 2, 5_000);
    scene.delivered("newer", 1, 9_000);
    let before = dump::lines(&scene.db).unwrap();
    assert_eq!(dump_after_deletion(&mut scene, 5_000 + AUDIT), before, "it is not older yet");

    let lines = dump_after_deletion(&mut scene, 5_001 + AUDIT);
    let kept = before.into_iter().filter(|line| !line.contains("|older|"));
    let kept = kept.map(|line| line.replace("tally|billing|5|2", "tally|billing|5|1"));
    assert_eq!(lines, kept.collect::<Vec<_>>());
    assert_eq!(ids(&scene), ["flying", "newer", "pending"]);
    assert_eq!((count(&scene, "words"), count(&scene, "generation")), (3, 3));

    let _lines = dump_after_deletion(&mut scene, Timestamp::MAX / 2);
    assert_eq!(ids(&scene), ["flying", "pending"], "what is not settled stays");
    assert_eq!(count(&scene, "execution"), 0);
}

#[test]
fn old_executions_and_generations_are_deleted_while_their_trigger_stays() {
    let mut scene = ViewFixture::new();
    scene.callback("flying", 0, 2_000);
    scene.fire_through(2_500);
    scene.retried("flying", 0, 2_600, 3_000);
    scene.callback("again", 1, 60_000);
    scene.callback("again", 2, 70_000);
    // Of these the registrations were never read, or were of no account.
    scene.delivered("ghost", 7, 2_600);
    scene.outcome("cancelled", 8, 9_000, OutcomeKind::Cancelled { generation: 9 });
    let at = CREATED + AUDIT;
    let _lines = dump_after_deletion(&mut scene, at);
    assert_eq!((count(&scene, "generation"), count(&scene, "execution")), (5, 2));
    let _lines = dump_after_deletion(&mut scene, at + 1);
    assert_eq!((count(&scene, "generation"), count(&scene, "execution")), (4, 2));
    let _lines = dump_after_deletion(&mut scene, 2_601 + AUDIT);
    assert_eq!((count(&scene, "generation"), count(&scene, "execution")), (3, 0));
    assert_eq!(ids(&scene), ["again", "cancelled", "flying"]);
    assert_eq!(count(&scene, "listed"), 2);
}

#[test]
fn dead_letters_are_deleted_after_an_action_or_when_the_log_is_truncated() {
    let mut scene = ViewFixture::new();
    for offset in 1..=4 {
        scene.dead_letter("billing", offset, 10 * offset, "answered 500");
    }
    scene.dead_letter_action(2, 5, 5_000, Mark::Replayed);
    scene.dead_letter_action(3, 6, 9_000, Mark::Archived);
    let letters = |scene: &ViewFixture| {
        let lines = dump::lines(&scene.db).unwrap();
        lines.iter().filter(|line| line.starts_with("letter|")).count()
    };
    let _lines = dump_after_deletion(&mut scene, 5_000 + AUDIT);
    assert_eq!(letters(&scene), 4);
    let _lines = dump_after_deletion(&mut scene, 5_001 + AUDIT);
    assert_eq!(letters(&scene), 3, "one was replayed long ago; open ones stay");
    let mut retain = retain();
    retain.set_dead_letter_start(0, 4);
    retain.run_step(&mut scene.projector(), 5_001 + AUDIT).unwrap();
    assert_eq!(letters(&scene), 1, "the one where the log begins");
}

#[test]
fn circuits_unchanged_for_the_audit_period_are_deleted() {
    let mut scene = ViewFixture::new();
    scene.circuit(Some("billing"), "a.example", 5_000, CircuitState::Open);
    scene.circuit(Some("billing"), "b.example", 9_000, CircuitState::Closed);
    assert_eq!(dump_after_deletion(&mut scene, 5_000 + AUDIT).len(), 2);
    let lines = dump_after_deletion(&mut scene, 5_001 + AUDIT);
    assert!(lines.len() == 1 && lines[0].contains("b.example"), "{lines:?}");
}

#[test]
fn large_deletions_run_in_steps_without_a_pause() {
    let mut scene = ViewFixture::new();
    for offset in 0..501 {
        scene.register(
            &format!("a{offset}"),
            offset,
            2_000,
            definition_of("billing", HistoryTriggerKind::Topic),
        );
    }
    scene.fire_through(5_000);
    let (mut retain, now) = (retain(), 60_000);
    for (rows, is_due) in [(1, true), (0, false)] {
        assert!(retain.is_due(now));
        retain.run_step(&mut scene.projector(), now).unwrap();
        assert_eq!((count(&scene, "listed"), retain.is_due(now)), (rows, is_due));
    }
    assert!(retain.is_due(now + 1_000));
}
