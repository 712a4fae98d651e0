//! The replay rule, record by record: which rows a ledger and a log make.
//!
//! Invariant: an entry at W or below it has fired: no row of it is put, and none is deleted.

use std::collections::BTreeSet;

use super::fixture::{delete, in_ledger, index, put, topic_trigger, veto};
use super::harness::registration_record;
use crate::engine::partition::IndexRows;
use crate::engine::replay::Replay;
use crate::engine::step::RowOp;
use crate::model::entry::Entry;
use crate::model::input::{Request, TriggerRecord};
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};

#[test]
fn an_entry_of_the_ledger_at_w_has_no_row() {
    let at_w = topic_trigger("a", 3, 900);
    let mut replay = replay_through(&at_w);
    let known = index("a", &[&in_ledger(&at_w, true)]);
    assert_eq!(replay.apply_ledger(vec![main(Some(&at_w))], &IndexRows::default()), [known]);
    let after = topic_trigger("a", 4, 900);
    let rows = replay_through(&at_w).apply_ledger(vec![main(Some(&after))], &IndexRows::default());
    assert_eq!(rows, [put(&after), index("a", &[&in_ledger(&after, true)])]);
}

#[test]
fn a_newer_generation_deletes_the_row_of_an_older_one_unless_it_has_fired() {
    let (old, new) = (topic_trigger("a", 3, 900), topic_trigger("a", 4, 9_000));
    let known = index("a", &[&in_ledger(&new, true)]);
    for (through, deleted) in [(&old, None), (&topic_trigger("b", 2, 900), Some(delete(&old)))] {
        let mut replay = replay_through(through);
        let rows = replay.apply_ledger(vec![main(Some(&new))], &fetched(&old));
        let expected: Vec<_> = deleted.into_iter().chain([put(&new), known.clone()]).collect();
        assert_eq!(rows, expected);
    }
}

#[test]
fn the_end_of_a_ledger_entry_removes_it_and_nothing_that_is_in_the_log_alone() {
    let a = topic_trigger("a", 3, 940);
    let mut replay = replay_through(&topic_trigger("b", 2, 900));
    assert_eq!(replay.apply_ledger(vec![main(None)], &fetched(&a)), []);
    let rows = replay.apply_ledger(vec![main(None)], &fetched(&in_ledger(&a, true)));
    assert_eq!(rows, [delete(&a), index("a", &[])]);
}

#[test]
fn a_cancel_in_the_log_removes_nothing_that_is_in_the_ledger() {
    let a = topic_trigger("a", 3, 940);
    let request = Request::Cancel { id: "a".into(), caller: None };
    let cancel = TriggerRecord { request, ..registration_record("a", 4, 0) };
    let mut replay = replay_through(&topic_trigger("b", 2, 900));
    let rows = replay.apply_triggers(vec![cancel.clone()], &fetched(&in_ledger(&a, true)));
    assert_eq!(rows, []);
    assert_eq!(replay.apply_triggers(vec![cancel], &fetched(&a)), [delete(&a), index("a", &[])]);
}

#[test]
fn a_registration_in_the_log_at_w_has_fired() {
    for (through, is_pending) in [(3, false), (2, true)] {
        let a = topic_trigger("a", 3, 900);
        let record = registration_record("a", 3, 900);
        let mut replay = replay_through(&topic_trigger("b", through, 900));
        let rows = replay.apply_triggers(vec![record], &IndexRows::default());
        let expected = if is_pending { vec![put(&a), index("a", &[&a])] } else { Vec::new() };
        assert_eq!(rows, expected);
    }
}

#[test]
fn the_end_of_a_veto_in_the_ledger_removes_the_veto_and_not_the_trigger() {
    let (a, veto) = (topic_trigger("a", 3, 9_000), veto("a", 2, 5_000));
    let RowOp::Index { hash, row: Some(row) } = index("a", &[&a, &veto]) else {
        panic!("it has entries")
    };
    let mut replay = replay_through(&topic_trigger("b", 2, 900));
    let end = LedgerRecord { key: LedgerKey::Veto("a".into()), value: None, step: 7 };
    let rows = replay.apply_ledger(vec![end], &IndexRows::from_iter([(hash, row)]));
    assert_eq!(rows, [delete(&veto), index("a", &[&a])]);
}

/// W is at this entry, and S is 950.
fn replay_through(entry: &Entry) -> Replay {
    Replay::new(entry.key, 950, 2..5, BTreeSet::new())
}

/// The store knows this entry of `a`.
fn fetched(entry: &Entry) -> IndexRows {
    let RowOp::Index { hash, row: Some(row) } = index("a", &[entry]) else {
        panic!("it has an entry")
    };
    IndexRows::from_iter([(hash, row)])
}

fn main(entry: Option<&Entry>) -> LedgerRecord {
    let value = entry.cloned().map(LedgerValue::Entry);
    LedgerRecord { key: LedgerKey::Main("a".into()), value, step: 7 }
}
