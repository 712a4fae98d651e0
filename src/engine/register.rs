//! A registration: put it on the timeline, and in the ledger if it will outlive the replay tail.
//!
//! Law: whether it is ignored depends on state, so an ignored one leaves a skip mark.

use super::known::{IdHash, Known, Slot, SlotKind};
use super::partition::{Fetched, Partition};
use super::step::Emit;
use crate::fault::{Bug, planted};
use crate::model::Offset;
use crate::model::dead_letter::{Content, DeadLetter, Origin};
use crate::model::entry::{Entry, FireId, FireRow, Row};
use crate::model::input::{OnConflict, Registration, Request, TriggerRecord, Unreadable};
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::outcome::{Outcome, Verdict};
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey};

impl Partition {
    pub(super) fn ingest_trigger(&mut self, record: TriggerRecord, fetched: &Fetched) {
        let TriggerRecord { offset, ack, request, .. } = record;
        match request {
            Request::Register(registration) => self.register(offset, ack, registration, fetched),
            Request::Cancel { id } => self.cancel(offset, ack, id, fetched),
            Request::Forward(forward) => {
                self.skip(offset);
                self.draft.emits.push(Emit::Forward(forward));
            }
            Request::Unreadable(unreadable) => {
                if unreadable.may_pass {
                    self.skip(offset);
                }
                let topic = self.rules.topics.triggers.clone();
                self.reject(topic, offset, *unreadable);
            }
        }
    }

    fn register(&mut self, offset: Offset, ack: bool, new: Registration, fetched: &Fetched) {
        let hash = IdHash::of(&new.id);
        let mut known = self.known(hash, fetched);
        let pending = known.slots.iter().find(|slot| self.is_pending(slot));
        let pending = pending.map(|slot| (slot.generation, slot.key.due));
        if let (OnConflict::Keep, Some((generation, fire_at))) = (new.on_conflict, pending) {
            if !planted(Bug::KeepUnmarked) {
                self.skip(offset);
            }
            self.answer(ack, offset, new.id, Verdict::Kept { generation, fire_at });
            return;
        }
        self.drop_main(&new.id, &mut known);
        if ack {
            let replaced = pending.map(|(generation, _)| generation);
            let verdict = Verdict::Accepted { generation: offset, fire_at: new.fire_at, replaced };
            self.answer(true, offset, new.id.clone(), verdict);
        }
        let slot = self.place(offset, new);
        known.slots.push(slot);
        self.know(hash, known, fetched);
    }

    /// Puts a new trigger where it belongs, and says where that is.
    fn place(&mut self, offset: Offset, new: Registration) -> Slot {
        let (due, priority) = (new.fire_at, new.priority);
        let key = TimelineKey { due, priority, source: Source::Triggers, offset };
        let late = key <= self.cursor.w;
        let long = due > self.clock + self.rules.ledger_after;
        let http = new.definition.target.is_http();
        let id =
            FireId { trigger: new.id, generation: offset, occurrence: 0, attempt: 1, deferral: 0 };
        let in_ledger = long && !late && !planted(Bug::LongOutOfLedger);
        let definition = new.definition;
        let row = FireRow { id, scheduled: due, in_ledger, definition, history: None };
        if late {
            let row = self.encode(&Row::Fire(row));
            self.draft.late.push((key, row));
        } else {
            if !long {
                self.cursor.horizon = self.cursor.horizon.max(due);
            }
            self.schedule(Entry { key, row: Row::Fire(row) });
        }
        Slot { key, kind: SlotKind::Main, generation: offset, in_ledger, http }
    }

    /// Puts an entry on the timeline, and into the ledger if its row says that it is held there.
    pub(super) fn schedule(&mut self, entry: Entry) {
        let row = self.encode(&entry.row);
        self.put(entry.key, row);
        if let Some(key) = ledger_key(&entry.row) {
            let value = Some(Box::new(LedgerValue::Entry(entry)));
            self.draft.emits.push(Emit::Ledger { key, value });
        }
    }

    /// Takes the trigger's pending occurrence off the timeline and out of the ledger.
    pub(super) fn drop_main(&mut self, id: &Text, known: &mut Known) -> Option<Slot> {
        let dropped = known.take(|slot| self.is_pending(slot));
        assert!(dropped.len() <= 1, "a trigger has one pending occurrence");
        let slot = dropped.into_iter().next()?;
        if slot.key > self.cursor.w {
            self.delete(slot.key);
        } else {
            self.draft.late.retain(|(key, _)| *key != slot.key);
        }
        if slot.in_ledger {
            self.settle(LedgerKey::Main(id.clone()));
        }
        Some(slot)
    }

    /// Whether the trigger's occurrence has not fired yet. What was due when it came is late, and
    /// pending until the next firing: its topic may be away, and then it has to wait on.
    fn is_pending(&self, slot: &Slot) -> bool {
        let late = slot.generation >= self.fired_from;
        slot.kind == SlotKind::Main && (slot.key > self.cursor.w || late)
    }

    pub(super) fn settle(&mut self, key: LedgerKey) {
        self.draft.emits.push(Emit::Ledger { key, value: None });
    }

    /// Answers a record that asked to be answered.
    pub(super) fn answer(&mut self, ack: bool, offset: Offset, trigger: Text, verdict: Verdict) {
        if ack {
            let outcome = Outcome { trigger, answers: Some(offset), at: self.clock, verdict };
            self.draft.emits.push(Emit::Outcome(Box::new(outcome)));
        }
    }

    /// A record that says nothing we can do: to the dead letters, and always on the audit trail.
    pub(super) fn reject(&mut self, topic: Text, offset: Offset, record: Unreadable) {
        let Unreadable { id, reason, key, value, headers, .. } = record;
        if let Some(trigger) = id {
            self.answer(true, offset, trigger, Verdict::Rejected { reason: reason.clone() });
        }
        let letter = DeadLetter {
            origin: Origin { topic, partition: self.id, offset },
            reason,
            at: self.clock,
            content: Content::Record { key, value, headers },
        };
        self.draft.emits.push(Emit::DeadLetter(Box::new(letter)));
    }
}

/// Under which key the ledger holds a row, if it does.
pub(super) fn ledger_key(row: &Row) -> Option<LedgerKey> {
    match row {
        Row::Veto { trigger, .. } => Some(LedgerKey::Veto(trigger.clone())),
        Row::Fire(row) if !row.in_ledger => None,
        Row::Fire(row) => Some(fire_ledger_key(&row.id)),
    }
}

/// Under which key the ledger holds an occurrence, or a retry of one.
pub(super) fn fire_ledger_key(id: &FireId) -> LedgerKey {
    if id.attempt == 1 && id.deferral == 0 {
        LedgerKey::Main(id.trigger.clone())
    } else {
        LedgerKey::Retry {
            trigger: id.trigger.clone(),
            generation: id.generation,
            occurrence: id.occurrence,
        }
    }
}
