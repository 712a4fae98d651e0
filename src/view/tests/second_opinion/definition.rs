//! What a trigger is: its registration, and the changes that its owner has made.
//!
//! Invariant: `docs/reference/formats.md`, "Changes". All of a change counts but the parts that it
//! does not name. Where the outcome of a change is lost, the ledger has what has become of it.

use std::collections::BTreeSet;

use super::{RecordsRead, Registered};
use crate::model::definition::{Definition, Target};
use crate::model::entry::FireRow;
use crate::model::input::{Change, Request, TriggerRecord};
use crate::model::lifecycle::{Dependencies, Lifecycle};
use crate::model::outcome::OutcomeKind;
use crate::model::{Millis, Offset, Timestamp};

/// What a generation is.
#[derive(Clone, Debug)]
pub(super) struct DefinitionOpinion {
    /// The record that defines it.
    pub(super) revision: Offset,
    pub(super) definition: Definition,
    pub(super) schedule: Option<String>,
    pub(super) after: Option<Dependencies>,
    pub(super) expire_after: Option<Millis>,
    pub(super) retain: Option<Millis>,
    pub(super) priority: u8,
    /// When it was due since then.
    pub(super) fire_at: Timestamp,
}

/// A change that its owner has made, and when the trigger was due after it.
struct MadeChange<'a> {
    offset: Offset,
    change: &'a Change,
    fire_at: Timestamp,
}

impl RecordsRead {
    pub(super) fn defined(&self, one: &Registered<'_>) -> DefinitionOpinion {
        let new = one.new;
        let mut defined = DefinitionOpinion {
            revision: one.generation,
            definition: new.definition.clone(),
            schedule: new.schedule.as_ref().map(|schedule| schedule.to_json()),
            after: new.after.as_deref().cloned(),
            expire_after: new.expire_after,
            retain: new.retain,
            priority: new.priority,
            fire_at: new.fire_at,
        };
        let mut made = self.made_changes(one).into_iter().peekable();
        let held = self.entries(one.generation).filter_map(|(row, _)| lifecycle(row)?.revision);
        for revision in held.collect::<BTreeSet<_>>() {
            while let Some(made) = made.next_if(|made| made.offset <= revision) {
                defined.change(&made);
            }
            self.take_from_ledger(&mut defined, one, revision);
        }
        made.for_each(|made| defined.change(&made));
        defined
    }

    /// The changes of which an outcome says that they were made, in their order.
    fn made_changes(&self, one: &Registered<'_>) -> Vec<MadeChange<'_>> {
        let made = |record: &TriggerRecord| {
            self.outcomes.iter().find_map(|(_, outcome)| match outcome.kind {
                OutcomeKind::Changed { generation, revision, fire_at, .. }
                    if generation == one.generation && revision == record.offset =>
                {
                    Some(fire_at)
                }
                _ => None,
            })
        };
        let changes = self.triggers.iter().filter_map(|record| match &record.request {
            Request::Change(change) => {
                let fire_at = made(record)?;
                Some(MadeChange { offset: record.offset, change, fire_at })
            }
            _ => None,
        });
        changes.collect()
    }

    /// The ledger has had a generation after the change at `revision`.
    fn take_from_ledger(
        &self,
        defined: &mut DefinitionOpinion,
        one: &Registered<'_>,
        revision: Offset,
    ) {
        let is_since = |(row, _): &(&FireRow, u8)| {
            lifecycle(row).and_then(|lifecycle| lifecycle.revision) == Some(revision)
        };
        let rows: Vec<_> = self.entries(one.generation).filter(is_since).collect();
        let (newest, priority) = *rows.last().unwrap();
        let state = lifecycle(newest).unwrap();
        defined.definition = newest.definition.clone();
        (defined.expire_after, defined.retain) = (state.expire_after, state.retain);
        defined.priority = priority;
        // The outcome of that change, or of one before, may be lost. A trigger that has fired has
        // no schedule in the ledger, and waits for nothing.
        let waiting = rows.iter().rev().filter_map(|(row, _)| lifecycle(row));
        let waiting = waiting.filter(|lifecycle| lifecycle.phase.is_waiting());
        let waiting: Vec<&Lifecycle> = waiting.collect();
        if let Some(last) = waiting.first() {
            let recurrence = last.recurrence.as_ref();
            defined.schedule = recurrence.map(|recurrence| recurrence.schedule.to_json());
        }
        if defined.revision == revision {
            return;
        }
        (defined.revision, defined.fire_at) = (revision, newest.scheduled);
        if let Some(last) = waiting.iter().find(|lifecycle| lifecycle.dependencies_changed) {
            defined.after = last.dependencies.as_ref().map(|awaits| Dependencies {
                ids: awaits.remaining.clone(),
                on_failure: awaits.on_failure,
                timeout: awaits.until, // the records of these tests have no times
            });
        }
    }
}

impl DefinitionOpinion {
    fn change(&mut self, made: &MadeChange<'_>) {
        let Change { new, parts } = made.change;
        let mut definition = new.definition.clone();
        definition.caller.clone_from(&self.definition.caller);
        if !parts.payload {
            definition.payload.clone_from(&self.definition.payload);
        }
        if let (Target::Topic(before), Target::Topic(now)) =
            (&self.definition.target, &mut definition.target)
            && !parts.key
        {
            now.key.clone_from(&before.key);
        }
        self.definition = definition;
        if parts.time {
            self.schedule = new.schedule.as_ref().map(|schedule| schedule.to_json());
        }
        if parts.after {
            self.after = new.after.as_deref().cloned();
        }
        // A schedule has a misfire rule instead.
        self.expire_after = if self.schedule.is_some() { None } else { new.expire_after };
        (self.retain, self.priority) = (new.retain, new.priority);
        (self.revision, self.fire_at) = (made.offset, made.fire_at);
    }
}

fn lifecycle(row: &FireRow) -> Option<&Lifecycle> {
    row.lifecycle.as_deref()
}
