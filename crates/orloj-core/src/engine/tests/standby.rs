//! Passes over a partition that someone else owns: what is read, what is applied, how far it is.
//!
//! Invariant: a pass leaves a store that is exactly as far as the cursor that it was started with.

use std::collections::BTreeSet;

use super::fixture::{in_ledger, index, put, topic_trigger};
use super::harness::registration_record;
use super::takeover::{CURSOR, local_checkpoint};
use crate::engine::cursor::Cursor;
use crate::engine::index_row::IdHash;
use crate::engine::local_checkpoint::LocalCheckpoint;
use crate::engine::partition::IndexRows;
use crate::engine::standby::{CatchUpPass, ReadPlan};
use crate::engine::step::RowOp;
use crate::model::Offset;
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};

#[test]
fn a_pass_reads_only_what_the_store_does_not_have() {
    let all = ReadPlan { ledger_from: 0, ledger_until: 9, triggers_from: 2, triggers_until: 5 };
    let rest = ReadPlan { ledger_from: 3, triggers_from: 4, ..all };
    let ahead = LocalCheckpoint { step: 8, ..local_checkpoint() };
    for (local, plan, must_wipe) in
        [(None, all, true), (Some(local_checkpoint()), rest, false), (Some(ahead), all, true)]
    {
        let pass = begin(local, CURSOR);
        assert_eq!((pass.plan(), pass.must_wipe()), (plan, must_wipe), "{local:?}");
    }
    let new = begin(None, Cursor::initial(0, 0)).plan();
    assert_eq!((new.triggers_from, new.triggers_until), (0, 0), "nothing is ingested yet");
}

#[test]
fn a_pass_ends_before_the_first_parked_record() {
    let parked = [(7, 3)].into_iter().collect();
    let pass = begin(Some(local_checkpoint()), Cursor { parked, ..CURSOR });
    assert_eq!((pass.plan().triggers_from, pass.plan().triggers_until), (3, 3));
    assert_eq!(pass.finish().applied_until, 3);
}

#[test]
fn a_pass_knows_from_where_on_the_ledger_has_registrations_of_the_registry() {
    assert_eq!(begin(None, Cursor { registry_from: 4, ..CURSOR }).registry_from(), 4);
}

#[test]
fn a_pass_applies_the_steps_after_the_stores_up_to_the_cursors() {
    let mut pass = begin(Some(local_checkpoint()), CURSOR);
    let records = vec![(3, mark(1, 6)), (4, mark(2, 7))];
    assert_eq!(pass.on_ledger(records, &IndexRows::default()), [marked(2)], "6 was applied");
    assert!(!pass.is_ledger_read());
    let records = vec![(5, mark(3, 7)), (6, mark(4, 8)), (7, mark(5, 7))];
    assert_eq!(pass.on_ledger(records, &IndexRows::default()), [marked(3)]);
    assert!(pass.is_ledger_read(), "step 8 is later than the cursor's");
    assert_eq!(pass.on_ledger(vec![(8, mark(6, 9))], &IndexRows::default()), []);
    let LocalCheckpoint { step, ledger_position, .. } = pass.finish();
    assert_eq!((step, ledger_position), (7, 6), "the next pass reads step 8");
}

#[test]
fn after_a_pass_the_store_is_as_far_as_the_cursor() {
    let expected = LocalCheckpoint {
        applied_until: 5,
        step: 7,
        ledger_position: 9,
        fired_through: CURSOR.fired_through,
    };
    for local in [None, Some(local_checkpoint())] {
        assert_eq!(begin(local, CURSOR).finish(), expected);
    }
}

#[test]
fn a_pass_replays_the_log_except_what_the_ledger_contains() {
    let mut pass = begin(None, CURSOR);
    let value = Some(LedgerValue::Entry(topic_trigger("long", 3, 9_000)));
    let long = LedgerRecord { key: LedgerKey::Main("long".into()), value, step: 7 };
    let rows = pass.on_ledger(vec![(4, long)], &IndexRows::default());
    let long = topic_trigger("long", 3, 9_000);
    assert_eq!(rows, [put(&long), index("long", &[&in_ledger(&long, true)])]);
    assert_eq!([3, 4].map(|offset| pass.is_covered(offset)), [true, false]);
    let short = topic_trigger("short", 4, 950);
    let rows = pass.on_triggers(vec![registration_record("short", 4, 950)], &IndexRows::default());
    assert_eq!(rows, [put(&short), index("short", &[&short])]);
}

#[test]
fn an_empty_store_is_not_read_for_an_id_that_is_met_for_the_first_time() {
    let key = LedgerKey::Main("a".into());
    let ledger = [(0, LedgerRecord { key, value: None, step: 7 })];
    let triggers = [registration_record("b", 4, 950)];
    let [a, b] = ["a", "b"].map(|id| vec![IdHash::of(id)]);
    for (local, first) in
        [(None, [vec![], vec![]]), (Some(local_checkpoint()), [a.clone(), b.clone()])]
    {
        let mut pass = begin(local, CURSOR);
        assert_eq!([pass.ids_in_ledger(&ledger), pass.ids_in_triggers(&triggers)], first);
        let again = [pass.ids_in_ledger(&ledger), pass.ids_in_triggers(&triggers)];
        assert_eq!(again, [a.clone(), b.clone()]);
    }
}

/// A pass with this store, and the mark of record 3 in it; the ledger ends at 9.
fn begin(local: Option<LocalCheckpoint>, cursor: Cursor) -> CatchUpPass {
    CatchUpPass::begin(local.map(|local| (local, BTreeSet::from([3]))), cursor, 9)
}

fn mark(offset: Offset, step: u64) -> LedgerRecord {
    LedgerRecord { key: LedgerKey::Skip(offset), value: Some(LedgerValue::Skip), step }
}

fn marked(offset: Offset) -> RowOp {
    RowOp::Skip { offset, marked: true }
}
