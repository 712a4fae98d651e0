//! A cancel: nothing of the trigger fires from here on.
//!
//! Law: the owner's transaction is the one point where cancel and fire meet. A cancel that finds
//! nothing pending may meet a callback in flight: it leaves a veto, so that a retry reported
//! later for an older generation is refused, and publishes a withdrawal, so that workers do not
//! make what they have not begun.

use super::known::{IdHash, Known, Slot, SlotKind};
use super::partition::{Fetched, Partition};
use crate::fault::{Bug, planted};
use crate::model::Offset;
use crate::model::entry::{Entry, Row};
use crate::model::fire::Withdrawal;
use crate::model::ledger::LedgerKey;
use crate::model::outcome::Verdict;
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey};

impl Partition {
    pub(super) fn cancel(&mut self, offset: Offset, ack: bool, id: Text, fetched: &Fetched) {
        let w = self.cursor.w;
        let hash = IdHash::of(&id);
        let mut known = self.known(hash, fetched);
        let seen_from = self.seen_from;
        let fired = known.fired_main(w).filter(|slot| slot.generation >= seen_from).cloned();
        let main = self.drop_main(&id, &mut known);
        let retry = self.drop_retries(&id, &mut known);
        // Only a fire that went to a worker can come back as a retry. If the last generation is
        // known to have fired into a topic, none can.
        let in_flight = main.is_none() && fired.as_ref().is_none_or(|slot| slot.http);
        if in_flight && !planted(Bug::NoVeto) {
            self.veto(offset, &id, &mut known);
        }
        match main.or(retry) {
            Some(Slot { generation, .. }) => {
                self.answer(true, offset, id, Verdict::Cancelled { generation });
            }
            None => {
                let fired = fired.map(|slot| slot.generation);
                let verdict = Verdict::NotPending { fired, withdrawal: in_flight };
                self.answer(ack, offset, id, verdict);
            }
        }
        self.know(hash, known, fetched);
    }

    /// Takes all pending retries off the timeline and out of the ledger; returns the last one.
    fn drop_retries(&mut self, id: &Text, known: &mut Known) -> Option<Slot> {
        let w = self.cursor.w;
        let pending = |s: &Slot| matches!(s.kind, SlotKind::Retry { .. }) && s.key > w;
        let dropped = known.take(pending);
        for slot in &dropped {
            let SlotKind::Retry { occurrence, .. } = slot.kind else { continue };
            self.delete(slot.key);
            let (trigger, generation) = (id.clone(), slot.generation);
            self.settle(LedgerKey::Retry { trigger, generation, occurrence });
        }
        dropped.into_iter().next_back()
    }

    /// Remembers the cancel for a while, in the ledger and as an entry that ends it, and has the
    /// workers told.
    fn veto(&mut self, cancel: Offset, id: &Text, known: &mut Known) {
        let w = self.cursor.w;
        for older in known.take(|slot| slot.kind == SlotKind::Veto && slot.key > w) {
            self.delete(older.key);
        }
        // Never at or below W: the veto would end before it began.
        let due = self.clock.max(w.due) + self.rules.veto_ttl.max(1);
        let key = TimelineKey { due, priority: u8::MAX, source: Source::Triggers, offset: cancel };
        known.slots.push(Slot {
            key,
            kind: SlotKind::Veto,
            generation: cancel,
            in_ledger: true,
            http: false,
        });
        self.schedule(Entry { key, row: Row::Veto { trigger: id.clone(), cancel } });
        self.draft.withdrawals.push(Withdrawal { trigger: id.clone(), cancel });
    }
}
