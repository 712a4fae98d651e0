//! Short names for the events of the tests of queries and retention: registrations, outcomes,
//! letters and circuits of partition 0.

use super::ViewFixture;
use super::history::definition;
use super::history_actions::HistoryTriggerKind;
use crate::engine::cursor::Cursor;
use crate::model::dead_letter::{Content, DeadLetter, Mark, Origin};
use crate::model::definition::Definition;
use crate::model::entry::FireId;
use crate::model::fire::Fire;
use crate::model::input::{Registration, Request, TriggerRecord};
use crate::model::outcome::{Circuit, CircuitState, Outcome, OutcomeKind};
use crate::model::timeline::TimelineKey;
use crate::model::{Offset, PartitionId, Timestamp};
use crate::view::projector::encode_position;
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
        let record = TriggerRecord { offset: at, timestamp: CREATED, ack: false, request };
        self.projector().apply_trigger(0, record).unwrap();
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
        let record = TriggerRecord { offset: 0, timestamp, ack: false, request };
        self.projector().apply_trigger(partition, record).unwrap();
    }

    /// Writes this outcome of a trigger.
    pub(super) fn outcome(&mut self, id: &str, offset: Offset, at: Timestamp, kind: OutcomeKind) {
        let outcome = Outcome { trigger: id.into(), answers: None, at, kind };
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
        self.projector().apply_cursor(0, &cursor, 0).unwrap();
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
        let outcome = Outcome { trigger, answers: None, at, kind };
        self.projector().apply_outcome(0, 300_000 + at, &outcome).unwrap();
    }
}
