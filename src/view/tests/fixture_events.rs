//! Short names for the events of the tests of changes, queries and retention: registrations,
//! changes, entries of the ledger, outcomes, letters and circuits of partition 0.

use super::ViewFixture;
use super::history::definition;
use super::history_actions::HistoryTriggerKind;
use crate::engine::cursor::Cursor;
use crate::model::dead_letter::{Content, DeadLetter, Mark, Origin};
use crate::model::definition::Definition;
use crate::model::entry::{Entry, FireId, FireRow, Row};
use crate::model::fire::Fire;
use crate::model::input::{Change, ChangedParts, OnConflict, Registration, Request, TriggerRecord};
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::outcome::{Circuit, CircuitState, Outcome, OutcomeKind};
use crate::model::timeline::{RANK_DEFAULT, Source, TimelineKey};
use crate::model::{Offset, PartitionId, Timestamp};
use crate::view::projector::{RecordPosition, encode_position};
use crate::view::queries::Queries;
use crate::view::schema_use::SchemaUse;

/// When everything is registered unless it says otherwise, in ms since the epoch.
pub(super) const CREATED: Timestamp = 1_000;

/// A definition of this kind for this caller.
pub(super) fn definition_of(caller: &str, kind: HistoryTriggerKind) -> Definition {
    Definition { caller: Some(caller.into()), ..definition(kind) }
}

impl ViewFixture {
    pub(super) fn queries(&self) -> Queries<'_> {
        Queries(&self.db)
    }

    /// A callback of billing.
    pub(super) fn callback(&mut self, id: &str, offset: Offset, fire_at: Timestamp) {
        self.register(id, offset, fire_at, definition_of("billing", HistoryTriggerKind::Http));
    }

    /// The record at `offset`, which is about this trigger, names a schema of a registry.
    pub(super) fn names_schema(&mut self, id: &str, offset: Offset, schema: u32) {
        let named = SchemaUse { trigger: id.into(), schema };
        self.projector().apply_schema_use(encode_position(0, offset), &named).unwrap();
    }

    pub(super) fn register(&mut self, id: &str, at: Offset, fire_at: Timestamp, what: Definition) {
        let request = Request::Register(Registration::one_time(id, fire_at, what));
        let record = TriggerRecord { offset: at, timestamp: CREATED, ack: false.into(), request };
        self.projector().apply_trigger(0, record).unwrap();
    }

    /// A callback of billing, if none of its id is pending.
    pub(super) fn callback_if_absent(&mut self, id: &str, offset: Offset, fire_at: Timestamp) {
        let what = definition_of("billing", HistoryTriggerKind::Http);
        let new = Registration {
            on_conflict: OnConflict::Keep,
            ..Registration::one_time(id, fire_at, what)
        };
        let (timestamp, request) = (CREATED, Request::Register(new));
        let record = TriggerRecord { offset, timestamp, ack: false.into(), request };
        self.projector().apply_trigger(0, record).unwrap();
    }

    /// The owner has ignored the registration at `offset`.
    pub(super) fn ignored(&mut self, offset: Offset) {
        self.write_ledger(offset, LedgerKey::Skip(offset), Some(LedgerValue::Skip));
    }

    /// The first record of a partition registers this.
    pub(super) fn register_in(
        &mut self,
        partition: PartitionId,
        timestamp: Timestamp,
        id: &str,
        what: Definition,
    ) {
        let request = Request::Register(Registration::one_time(id, 60_000, what));
        let record = TriggerRecord { offset: 0, timestamp, ack: false.into(), request };
        self.projector().apply_trigger(partition, record).unwrap();
    }

    /// The record at `offset` is to change a trigger.
    pub(super) fn change(&mut self, offset: Offset, new: Registration, parts: ChangedParts) {
        let request = Request::Change(Box::new(Change { new, parts }));
        let record = TriggerRecord { offset, timestamp: CREATED, ack: false.into(), request };
        self.projector().apply_trigger(0, record).unwrap();
    }

    /// The owner has made the change at `revision` of what is registered at 0, which is due at
    /// `fire_at` from then on.
    pub(super) fn changed(
        &mut self,
        id: &str,
        revision: Offset,
        at: Timestamp,
        fire_at: Timestamp,
    ) {
        self.changed_after(Some(0), id, revision, at, fire_at);
    }

    /// The same, of a trigger that has fired so often; `None`: an earlier version wrote it.
    pub(super) fn changed_after(
        &mut self,
        executions: Option<u32>,
        id: &str,
        revision: Offset,
        at: Timestamp,
        fire_at: Timestamp,
    ) {
        let kind = OutcomeKind::Changed { generation: 0, revision, fire_at, executions };
        self.outcome(id, 50_000 + revision, at, kind);
    }

    /// The ledger holds this row from `offset` on.
    pub(super) fn held(&mut self, offset: Offset, row: FireRow) {
        let (due, priority, source) = (row.scheduled, RANK_DEFAULT, Source::Triggers);
        let key = TimelineKey { due, priority, source, offset: row.id.generation };
        let id = row.id.trigger.clone();
        let entry = Entry { key, row: Row::Fire(FireRow { in_ledger: true, ..row }) };
        self.write_ledger(offset, LedgerKey::Main(id), Some(LedgerValue::Entry(entry)));
    }

    /// The ledger does not hold the trigger from `offset` on.
    pub(super) fn settled(&mut self, offset: Offset, id: &str) {
        self.write_ledger(offset, LedgerKey::Main(id.into()), None);
    }

    fn write_ledger(&mut self, offset: Offset, key: LedgerKey, value: Option<LedgerValue>) {
        let at = RecordPosition { partition: 0, offset, timestamp: CREATED };
        let record = LedgerRecord { key, value, step: offset };
        self.projector().apply_ledger(at, record).unwrap();
    }

    /// Writes this outcome of a trigger.
    pub(super) fn outcome(&mut self, id: &str, offset: Offset, at: Timestamp, kind: OutcomeKind) {
        let outcome = Outcome { trigger: id.into(), answers: None, request: None, at, kind };
        self.projector().apply_outcome(0, offset, &outcome).unwrap();
    }

    /// The callback of a generation was answered.
    pub(super) fn delivered(&mut self, id: &str, generation: Offset, at: Timestamp) {
        let (occurrence, attempt, status) = (0, 1, 200);
        let kind = OutcomeKind::Delivered { generation, occurrence, attempt, status };
        self.outcome(id, 100_000 + generation, at, kind);
    }

    /// An attempt of it failed, and another follows.
    pub(super) fn retried(
        &mut self,
        id: &str,
        generation: Offset,
        at: Timestamp,
        retry_at: Timestamp,
    ) {
        let (occurrence, attempt, status) = (0, 1, Some(500));
        let (reason, retry_at) = ("answered 500".to_owned(), Some(retry_at));
        let kind =
            OutcomeKind::Failed { generation, occurrence, attempt, status, reason, retry_at };
        self.outcome(id, 200_000 + generation, at, kind);
    }

    /// The owner has read all registrations and fired what was due by then.
    pub(super) fn fire_through(&mut self, until: Timestamp) {
        self.fire_through_except(until, &[]);
    }

    /// The same, but records are parked: these schemas are missing, from these offsets on.
    pub(super) fn fire_through_except(&mut self, until: Timestamp, parked: &[(u32, Offset)]) {
        let w = TimelineKey::last_at(until);
        let parked = parked.iter().copied().collect();
        let cursor = Cursor { fired_through: w, parked, ..Cursor::initial(50_000, 0) };
        self.projector().apply_cursor(0, &cursor, 1_000).unwrap();
    }

    /// A callback of `caller` was given up.
    pub(super) fn dead_letter(
        &mut self,
        caller: &str,
        offset: Offset,
        at: Timestamp,
        reason: &str,
    ) {
        let trigger = format!("order-{offset}").as_str().into();
        let fire = Fire {
            id: FireId { trigger, generation: 1, occurrence: 0, attempt: 1, deferral: 0 },
            scheduled: at,
            fired: at,
            definition: definition_of(caller, HistoryTriggerKind::Http),
            history: None,
            report_end: false,
            priority: 127,
        };
        self.write_dead_letter(offset, at, reason, Content::Fire { fire, attempts: 3 }, 0);
    }

    /// A mark for the letter at `about`.
    pub(super) fn dead_letter_action(
        &mut self,
        about: Offset,
        offset: Offset,
        at: Timestamp,
        mark: Mark,
    ) {
        self.write_dead_letter(offset, at, "", Content::Mark(mark), about);
    }

    fn write_dead_letter(
        &mut self,
        at: Offset,
        when: Timestamp,
        why: &str,
        what: Content,
        about: Offset,
    ) {
        let origin = Origin { topic: "t".into(), partition: 0, offset: about };
        let letter = DeadLetter { origin, reason: why.to_owned(), at: when, content: what };
        self.projector().apply_dead_letter(0, at, &letter).unwrap();
    }

    /// A worker reports the state of a circuit.
    pub(super) fn circuit(
        &mut self,
        caller: Option<&str>,
        host: &str,
        at: Timestamp,
        state: CircuitState,
    ) {
        let circuit = Circuit {
            worker: "worker-1".into(),
            caller: caller.map(Into::into),
            host: host.into(),
            state,
            reason: format!("{host} at {at}"),
            probe_at: (state == CircuitState::Open).then_some(at + 50),
        };
        let (trigger, kind) = (circuit.key(), OutcomeKind::Circuit(circuit));
        let outcome = Outcome { trigger, answers: None, request: None, at, kind };
        self.projector().apply_outcome(0, 300_000 + at, &outcome).unwrap();
    }
}
