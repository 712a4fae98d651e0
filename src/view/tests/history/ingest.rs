//! What the owner decides about the records of `triggers`, and about dependencies that settle.
//!
//! Invariant: what is ignored leaves a skip mark if it is a registration, and no trace otherwise,
//! unless an answer was asked for.

use super::firing::HistoryResult;
use super::{HistoryDefinition, LEDGER_AFTER, LiveTrigger, PartitionHistory, first_row};
use crate::model::input::{OnConflict, Registration, Request, TriggerRecord};
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::lifecycle::{Command, OnFailure};
use crate::model::outcome::OutcomeKind;
use crate::model::text::Text;
use crate::model::{Offset, Timestamp};
use crate::view::results::Status;

impl PartitionHistory {
    pub(super) fn ingest(&mut self, record: TriggerRecord) {
        let TriggerRecord { offset, timestamp, ack, request } = record;
        match request {
            Request::Register(new) => self.register(offset, timestamp, ack.wanted, new),
            Request::Change(change) => self.change(offset, timestamp, ack.wanted, *change),
            Request::Cancel { id, .. } => self.cancel(offset, id.as_str()),
            Request::Command { id, command, .. } => self.command(offset, id.as_str(), command),
            _ => {}
        }
    }

    fn register(&mut self, offset: Offset, timestamp: Timestamp, ack: bool, new: Registration) {
        let id = new.id.to_string();
        if let Some(why) = self.reason_to_ignore(&id, new.on_conflict) {
            let _new = self.ignored.insert(offset);
            let _new = self.marks.insert(offset);
            self.write_ledger(LedgerKey::Skip(offset), Some(LedgerValue::Skip));
            if ack {
                self.write_outcome(&id, Some(offset), why);
            }
            return;
        }
        let old = self.remove_live(&id);
        let fire_at = new.fire_at;
        if ack {
            let replaced = old.filter(|old| !old.has_fired()).map(|old| old.row.id.generation);
            let kind = OutcomeKind::Accepted { generation: offset, fire_at, replaced };
            self.write_outcome(&id, Some(offset), kind);
        }
        let defined = HistoryDefinition {
            revision: offset,
            definition: new.definition.clone(),
            schedule: new.schedule.as_ref().map(|schedule| schedule.to_json()),
            after: new.after.as_deref().cloned(),
            expire_after: new.expire_after,
            retain: new.retain,
            priority: new.priority,
            fire_at: Some(fire_at),
        };
        let _before = self.defined.insert((id, offset), defined);
        let priority = new.priority;
        let mut row = first_row(offset, timestamp, new);
        // By the time it was written: what is far off goes into the ledger.
        row.in_ledger = fire_at > timestamp + LEDGER_AFTER && fire_at > self.now;
        self.schedule_pending(LiveTrigger { row, priority, due: fire_at });
    }

    fn reason_to_ignore(&self, id: &str, on_conflict: OnConflict) -> Option<OutcomeKind> {
        let live = self.live.get(id);
        let pending = live.filter(|live| !live.has_fired());
        match on_conflict {
            OnConflict::Replace => None,
            OnConflict::Keep => {
                let stays = live.filter(|live| !live.has_fired() || live.retain().is_some())?;
                let (generation, fire_at) = (stays.row.id.generation, stays.row.scheduled);
                Some(OutcomeKind::Kept { generation, fire_at })
            }
            OnConflict::Match(wanted) => match pending {
                Some(live) if live.row.revision() == wanted => None,
                Some(live) => {
                    let (generation, fire_at) = (live.row.revision(), live.row.scheduled);
                    Some(OutcomeKind::Kept { generation, fire_at })
                }
                None => Some(OutcomeKind::NotPending { fired: None, withdrawal: false }),
            },
        }
    }

    fn cancel(&mut self, offset: Offset, id: &str) {
        let Some(live) = self.pending(id) else { return };
        let generation = live.row.id.generation;
        self.write_outcome(id, Some(offset), OutcomeKind::Cancelled { generation });
        if live.retain().is_some() {
            self.end_unfired(live, HistoryResult::Failed, Status::Cancelled);
        } else {
            let _removed = self.remove_live(id);
            self.show_end(&live.key(), Status::Cancelled, live.recurs());
        }
    }

    fn command(&mut self, offset: Offset, id: &str, command: Command) {
        let Some(mut live) = self.pending(id) else { return };
        let generation = live.row.id.generation;
        let (occurrence, fire_at) = (live.row.id.occurrence, live.row.scheduled);
        let lifecycle = live.row.lifecycle_mut();
        let is_effective = match command {
            Command::Pause => !lifecycle.paused,
            Command::Resume => lifecycle.paused,
            Command::FireNow => !lifecycle.fire_now_requested,
        };
        if !is_effective {
            return;
        }
        lifecycle.changed_by_command = true;
        let kind = match command {
            Command::Pause => {
                lifecycle.paused = true;
                OutcomeKind::Paused { generation, reason: "by a command".to_owned() }
            }
            Command::Resume => {
                lifecycle.paused = false;
                OutcomeKind::Resumed { generation, fire_at }
            }
            Command::FireNow => {
                (lifecycle.fire_now_requested, lifecycle.dependencies) = (true, None);
                OutcomeKind::Called { generation, occurrence }
            }
        };
        self.write_outcome(id, Some(offset), kind);
        self.schedule_pending(live);
    }

    /// The trigger, if it has not fired.
    pub(super) fn pending(&self, id: &str) -> Option<LiveTrigger> {
        self.live.get(id).filter(|live| !live.has_fired()).cloned()
    }

    /// A trigger of another partition has settled.
    pub(super) fn apply_settlement(&mut self, other: &Text, ok: bool) {
        let ids: Vec<String> = self.live.keys().cloned().collect();
        for id in ids {
            let Some(mut live) = self.pending(&id) else { continue };
            let lifecycle = live.row.lifecycle.as_deref_mut();
            let waits = lifecycle.and_then(|lifecycle| lifecycle.dependencies.as_deref_mut());
            let Some(dependencies) = waits else { continue };
            let before = dependencies.remaining.len();
            dependencies.remaining.retain(|id| id != other);
            if dependencies.remaining.len() == before {
                continue;
            }
            if !ok {
                let _first = dependencies.failed.get_or_insert_with(|| other.clone());
            }
            let has_failed = dependencies.failed.is_some();
            let ends = has_failed && dependencies.on_failure != OnFailure::Fire
                || dependencies.remaining.is_empty();
            if ends {
                self.finish_waiting(live);
            } else {
                self.schedule_pending(live);
            }
        }
    }

    /// A trigger stops waiting for others: it waits for its own time then, or ends.
    pub(super) fn finish_waiting(&mut self, mut live: LiveTrigger) {
        let Some(dependencies) = live.row.lifecycle_mut().dependencies.take() else { return };
        let (id, generation) = live.key();
        let then = dependencies.on_failure;
        let reason = match (&dependencies.failed, dependencies.remaining.first()) {
            (Some(failed), _) => format!("{failed} failed"),
            (None, Some(first)) => format!("{first} has not settled in time"),
            (None, None) => return self.schedule_pending(live),
        };
        self.write_outcome(&id, None, OutcomeKind::Unmet { generation, then, reason });
        match then {
            OnFailure::Fire => self.schedule_pending(live),
            OnFailure::Skip => {
                self.end_unfired(live, HistoryResult::Succeeded, Status::Cancelled);
            }
            OnFailure::Fail => self.end_unfired(live, HistoryResult::Failed, Status::Failed),
        }
    }
}
