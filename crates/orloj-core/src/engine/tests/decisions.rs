//! One record at a time: the decisions about a registration, a cancel and an unreadable record.

use bytes::Bytes;

use super::fixture::{
    EngineFixture, callback_trigger, delete, in_ledger, index, ledger_delete, ledger_put,
    ledger_skip, put, topic_trigger, veto, withdraw, withdraw_from,
};
use crate::engine::catalog::TopicState;
use crate::engine::step::{Emit, RowOp};
use crate::model::Offset;
use crate::model::dead_letter::{Content, DeadLetter, Origin};
use crate::model::input::{Ack, Forward, Request, SignalRecord, Unreadable};
use crate::model::lifecycle::Command;
use crate::model::outcome::OutcomeKind;

#[test]
fn a_short_trigger_stays_out_of_the_ledger_until_it_fires() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_050);
    let a = topic_trigger("a", 0, 1_050);
    fixture.assert_decides(&[fixture.accepted(&a, None)], &[put(&a), index("a", &[&a])]);
    fixture.now = 1_049;
    fixture.assert_decides(&[], &[]);
    fixture.now = 1_050;
    fixture.assert_decides(&[fixture.fire_emit(&a)], &[]);
}

#[test]
fn a_long_trigger_is_in_the_ledger_from_its_first_transaction() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_051);
    let a = in_ledger(&topic_trigger("a", 0, 1_051), true);
    fixture.assert_decides(
        &[fixture.accepted(&a, None), ledger_put(&a)],
        &[put(&a), index("a", &[&a])],
    );
    fixture.now = 1_051;
    fixture.assert_decides(&[fixture.fire_emit(&a), ledger_delete(&a)], &[]);
}

#[test]
fn an_outcome_repeats_what_its_record_is_recognised_by() {
    let unreadable = Unreadable {
        id: Some("c".into()),
        reason: "why".to_owned(),
        may_become_readable: false,
        key: None,
        value: None,
        headers: Vec::new(),
    };
    for (wanted, answered) in [(true, vec![0, 1, 2, 3, 4, 5]), (false, vec![2, 3, 5])] {
        let mut fixture = EngineFixture::new();
        fixture.register("a", 1_020);
        fixture.register_keep("a", 1_030);
        let (id, command) = ("a".into(), Command::Pause);
        fixture.log.append(fixture.now, Request::Command { id, command, caller: None });
        fixture.cancel("a");
        fixture.cancel("b");
        let unreadable = Request::Unreadable(Box::new(unreadable.clone()));
        fixture.log.append(fixture.now, unreadable);
        for record in &mut fixture.log.triggers {
            let request = Some(format!("r-{}", record.offset).into());
            record.ack = Ack { wanted, request, idempotency_key: None };
        }
        fixture.run_until_idle();
        let outcomes = fixture.log.emitted.iter().filter_map(|(emit, ..)| match emit {
            Emit::Outcome(outcome) => Some((outcome.answers, outcome.request.clone())),
            _ => None,
        });
        let expected = answered.into_iter().map(|n| (Some(n), Some(format!("r-{n}").into())));
        assert_eq!(outcomes.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
}

#[test]
fn a_replacement_deletes_the_old_row_and_its_ledger_entry() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_060);
    fixture.run_until_idle();
    fixture.register("a", 1_020);
    let (old, new) = (in_ledger(&topic_trigger("a", 0, 1_060), true), topic_trigger("a", 1, 1_020));
    fixture.assert_decides(
        &[ledger_delete(&old), fixture.accepted(&new, Some(0))],
        &[delete(&old), put(&new), index("a", &[&new])],
    );
    fixture.now = 2_000;
    fixture.assert_decides(&[fixture.fire_emit(&new)], &[]);
}

#[test]
fn a_replacement_within_one_step_leaves_only_the_newest() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_020);
    fixture.register("a", 1_030);
    let (old, new) = (topic_trigger("a", 0, 1_020), topic_trigger("a", 1, 1_030));
    fixture.assert_decides(
        &[fixture.accepted(&old, None), fixture.accepted(&new, Some(0))],
        &[put(&new), index("a", &[&new])],
    );
    fixture.now = 2_000;
    fixture.assert_decides(&[fixture.fire_emit(&new)], &[]);
}

#[test]
fn a_registration_with_keep_that_finds_one_pending_leaves_a_skip_mark() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_020);
    fixture.run_until_idle();
    fixture.register_keep("a", 1_010);
    let kept = OutcomeKind::Kept { generation: 0, fire_at: 1_020 };
    fixture.assert_decides(&[ledger_skip(1, true), fixture.response(1, "a", kept)], &[mark(1)]);
    fixture.now = 1_020;
    let a = topic_trigger("a", 0, 1_020);
    fixture.assert_decides(&[fixture.fire_emit(&a)], &[]);
}

#[test]
fn a_registration_with_keep_replaces_a_fired_trigger() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_020);
    fixture.run_until_idle();
    fixture.now = 1_020;
    fixture.run_until_idle();
    fixture.register_keep("a", 1_040);
    let (fired, new) = (topic_trigger("a", 0, 1_020), topic_trigger("a", 1, 1_040));
    fixture
        .assert_decides(&[fixture.accepted(&new, None)], &[put(&new), index("a", &[&fired, &new])]);
}

#[test]
fn late_registrations_fire_at_once_in_offset_order() {
    let mut fixture = EngineFixture::new();
    fixture.register("b", 999);
    fixture.register("a", 0);
    let (b, a) = (topic_trigger("b", 0, 999), topic_trigger("a", 1, 0));
    let fires = [fixture.fire_emit(&b), fixture.fire_emit(&a)];
    let accepted = [fixture.accepted(&b, None), fixture.accepted(&a, None)];
    fixture.assert_decides(&[accepted, fires].concat(), &[index("b", &[&b]), index("a", &[&a])]);
}

#[test]
fn a_cancel_in_time_removes_the_trigger_from_the_timeline() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_020);
    fixture.run_until_idle();
    fixture.cancel("a");
    let a = topic_trigger("a", 0, 1_020);
    fixture
        .assert_decides(&[fixture.response(1, "a", cancelled(0))], &[delete(&a), index("a", &[])]);
    fixture.now = 2_000;
    fixture.assert_decides(&[], &[]);
}

#[test]
fn a_cancel_of_a_long_trigger_deletes_its_ledger_entry() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_500);
    fixture.run_until_idle();
    fixture.cancel("a");
    let a = in_ledger(&topic_trigger("a", 0, 1_500), true);
    let emits = [ledger_delete(&a), fixture.response(1, "a", cancelled(0))];
    fixture.assert_decides(&emits, &[delete(&a), index("a", &[])]);
    fixture.now = 2_000;
    fixture.assert_decides(&[], &[]);
}

#[test]
fn a_cancel_after_the_fire_into_a_topic_gets_not_pending_and_leaves_no_veto() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_020);
    fixture.run_until_idle();
    fixture.now = 1_020;
    fixture.run_until_idle();
    fixture.cancel("a");
    let a = topic_trigger("a", 0, 1_020);
    fixture.assert_decides(
        &[fixture.response(1, "a", not_pending(Some(0), false))],
        &[index("a", &[&a])],
    );
}

#[test]
fn a_cancel_after_the_fire_of_a_callback_leaves_a_veto() {
    let mut fixture = EngineFixture::with_callback_in_flight();
    fixture.cancel("a");
    let (a, veto) = (callback_trigger("a", 0, 1_020), veto("a", 1, 6_020));
    fixture.assert_decides(
        &[
            ledger_put(&veto),
            fixture.response(1, "a", not_pending(Some(0), true)),
            withdraw("a", 1),
        ],
        &[put(&veto), index("a", &[&a, &veto])],
    );
}

#[test]
fn a_withdrawal_goes_to_every_pool_whose_topic_is_writable() {
    let mut fixture = EngineFixture::new();
    let away = TopicState::Unavailable("away".to_owned());
    let short = TopicState::usable(0, 1 << 20);
    let usable = TopicState::usable(1, 1 << 20);
    let without = |partition| TopicState::Usable {
        partitions: 2,
        record_bytes_max: 1 << 20,
        unavailable: [partition].into_iter().collect(),
    };
    let states = [
        ("away", away),
        ("short", short),
        ("slow", usable),
        ("no-leader", without(0)),
        ("other-partition", without(1)),
    ];
    for (pool, state) in states {
        fixture.owner.catalog.insert_pool(pool.to_owned(), state);
        fixture.owner.partition.config_mut().pools.push(pool.into());
    }
    fixture.owner.partition.config_mut().pools.push("unknown".into());
    fixture.cancel("a");
    let (veto, answer) = (veto("a", 0, 6_000), fixture.response(0, "a", not_pending(None, true)));
    let withdrawals = [None, Some("slow"), Some("other-partition")];
    let withdrawals = withdrawals.map(|pool| withdraw_from(pool, "a", 0));
    let emits = [&[ledger_put(&veto), answer][..], &withdrawals].concat();
    fixture.assert_decides(&emits, &[put(&veto), index("a", &[&veto])]);
}

#[test]
fn a_cancel_of_an_unknown_id_leaves_a_veto_that_expires() {
    let mut fixture = EngineFixture::new();
    fixture.cancel("a");
    let veto = veto("a", 0, 6_000);
    fixture.assert_decides(
        &[ledger_put(&veto), fixture.response(0, "a", not_pending(None, true)), withdraw("a", 0)],
        &[put(&veto), index("a", &[&veto])],
    );
    fixture.now = 5_999;
    fixture.assert_decides(&[], &[]);
    fixture.now = 6_000;
    fixture.assert_decides(&[ledger_delete(&veto)], &[]);
}

#[test]
fn a_second_cancel_replaces_the_veto_of_the_first() {
    let mut fixture = EngineFixture::new();
    fixture.cancel("a");
    fixture.run_until_idle();
    fixture.now = 1_100;
    fixture.cancel("a");
    let (first, second) = (veto("a", 0, 6_000), veto("a", 1, 6_100));
    fixture.assert_decides(
        &[ledger_put(&second), fixture.response(1, "a", not_pending(None, true)), withdraw("a", 1)],
        &[delete(&first), put(&second), index("a", &[&second])],
    );
    fixture.now = 6_099;
    fixture.assert_decides(&[], &[]);
}

/// Its topic may be unavailable: then it would wait beside the record after it.
#[test]
fn a_late_registration_is_pending_until_its_step_fires() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 900);
    fixture.cancel("a");
    let a = topic_trigger("a", 0, 900);
    let cancelled = fixture.response(1, "a", OutcomeKind::Cancelled { generation: 0 });
    fixture.assert_decides(&[fixture.accepted(&a, None), cancelled], &[]);
    fixture.register("a", 900);
    fixture.register("a", 1_030);
    let (late, new) = (topic_trigger("a", 2, 900), topic_trigger("a", 3, 1_030));
    fixture.assert_decides(
        &[fixture.accepted(&late, None), fixture.accepted(&new, Some(2))],
        &[put(&new), index("a", &[&new])],
    );
}

#[test]
fn only_records_with_ack_get_a_response_but_a_cancellation_is_always_recorded() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_020);
    fixture.clear_ack_of_last_record();
    let a = topic_trigger("a", 0, 1_020);
    fixture.assert_decides(&[], &[put(&a), index("a", &[&a])]);
    fixture.register_keep("a", 1_020);
    fixture.clear_ack_of_last_record();
    fixture.assert_decides(&[ledger_skip(1, true)], &[mark(1)]);
    fixture.cancel("a");
    fixture.clear_ack_of_last_record();
    let rows = [delete(&a), index("a", &[])];
    fixture.assert_decides(&[fixture.response(2, "a", cancelled(0))], &rows);
    fixture.cancel("a");
    fixture.clear_ack_of_last_record();
    let veto = veto("a", 3, 6_000);
    fixture.assert_decides(
        &[ledger_put(&veto), withdraw("a", 3)],
        &[put(&veto), index("a", &[&veto])],
    );
}

#[test]
fn an_unreadable_record_is_a_dead_letter_and_its_neighbours_are_processed() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_020);
    fixture.log.append(fixture.now, Request::Unreadable(Box::new(unreadable(Some("b"), false))));
    fixture.log.append(fixture.now, Request::Unreadable(Box::new(unreadable(None, false))));
    fixture.register("c", 1_020);
    let (a, c) = (topic_trigger("a", 0, 1_020), topic_trigger("c", 3, 1_020));
    let emits = [
        fixture.accepted(&a, None),
        fixture.response(1, "b", rejected()),
        dead_letter_of(&fixture, "o.triggers", 1),
        dead_letter_of(&fixture, "o.triggers", 2),
        fixture.accepted(&c, None),
    ];
    fixture.assert_decides(&emits, &[put(&a), put(&c), index("a", &[&a]), index("c", &[&c])]);
}

#[test]
fn an_unreadable_record_that_a_replay_might_read_leaves_a_skip_mark() {
    let mut fixture = with_one_pending();
    fixture.log.append(fixture.now, Request::Unreadable(Box::new(unreadable(Some("b"), true))));
    let rejected = fixture.response(1, "b", rejected());
    fixture.assert_decides(
        &[ledger_skip(1, true), rejected, dead_letter_of(&fixture, "o.triggers", 1)],
        &[mark(1)],
    );
}

#[test]
fn the_reason_of_a_dead_letter_is_short_whatever_the_record_is() {
    // A reader repeats the value that it cannot use.
    let mut fixture = EngineFixture::new();
    let reason = "\u{e9}".repeat(1_000_000);
    let long = Unreadable { reason, ..unreadable(Some("b"), false) };
    fixture.log.append(fixture.now, Request::Unreadable(Box::new(long)));
    let reasons: Vec<_> = fixture
        .step()
        .unwrap()
        .emits
        .into_iter()
        .filter_map(|emit| match emit {
            Emit::DeadLetter(letter) => Some(letter.reason),
            Emit::Outcome(outcome) => match outcome.kind {
                OutcomeKind::Rejected { reason } => Some(reason),
                _ => None,
            },
            _ => None,
        })
        .collect();
    assert_eq!(reasons.len(), 2);
    assert!(reasons.iter().all(|reason| reason.len() <= 2_000 && reason.len() > 500));
}

#[test]
fn an_unreadable_signal_is_a_dead_letter_of_its_own_topic() {
    let mut fixture = EngineFixture::new();
    let signal = Err(Box::new(unreadable(None, false)));
    fixture.log.signals.push(SignalRecord { offset: 0, signal });
    fixture.assert_decides(&[dead_letter_of(&fixture, "o.signals", 0)], &[]);
}

#[test]
fn a_forwarded_record_leaves_a_skip_mark() {
    let mut fixture = with_one_pending();
    let key = Bytes::from_static(b"a");
    let forward = Forward { partition: 3, key, value: None, headers: vec![] };
    fixture.log.append(fixture.now, Request::Forward(Box::new(forward.clone())));
    fixture.assert_decides(&[ledger_skip(1, true), Emit::Forward(Box::new(forward))], &[mark(1)]);
}

#[test]
fn a_resume_of_a_trigger_that_is_not_paused_changes_nothing() {
    let mut fixture = with_one_pending();
    let resume =
        || Request::Command { id: "pending".into(), command: Command::Resume, caller: None };
    fixture.log.append(fixture.now, resume());
    let resumed = OutcomeKind::Resumed { generation: 0, fire_at: 1_050 };
    fixture.assert_decides(&[fixture.response(1, "pending", resumed)], &[]);
    fixture.log.append(fixture.now, resume());
    fixture.clear_ack_of_last_record();
    fixture.assert_decides(&[], &[]);
}

/// A fixture in which L does not advance, so that a mark is not deleted at once.
fn with_one_pending() -> EngineFixture {
    let mut fixture = EngineFixture::new();
    fixture.register("pending", 1_050);
    fixture.run_until_idle();
    fixture
}

fn cancelled(generation: Offset) -> OutcomeKind {
    OutcomeKind::Cancelled { generation }
}

fn not_pending(fired: Option<Offset>, withdrawal: bool) -> OutcomeKind {
    OutcomeKind::NotPending { fired, withdrawal }
}

fn rejected() -> OutcomeKind {
    OutcomeKind::Rejected { reason: "not JSON".to_owned() }
}

fn mark(offset: Offset) -> RowOp {
    RowOp::Skip { offset, marked: true }
}

fn unreadable(id: Option<&str>, may_pass: bool) -> Unreadable {
    Unreadable {
        id: id.map(Into::into),
        reason: "not JSON".to_owned(),
        may_become_readable: may_pass,
        key: Some(Bytes::from_static(b"k")),
        value: Some(Bytes::from_static(b"{")),
        headers: vec![],
    }
}

/// The dead letter of an [`unreadable`] record.
fn dead_letter_of(fixture: &EngineFixture, topic: &str, offset: Offset) -> Emit {
    let Unreadable { reason, key, value, headers, .. } = unreadable(None, false);
    let origin = Origin { topic: topic.into(), partition: 0, offset };
    let content = Content::Record { key, value, headers };
    Emit::DeadLetter(Box::new(DeadLetter { origin, reason, at: fixture.now, content }))
}
