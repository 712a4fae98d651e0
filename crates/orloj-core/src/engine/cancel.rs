//! A cancel: nothing of the trigger fires from here on.
//!
//! Law: the owner's transaction is the one point where cancel and fire meet. A cancel that finds
//! nothing pending may meet a callback in flight: it leaves a veto, so that a retry reported
//! later for an older generation is refused, and publishes a withdrawal, so that workers do not
//! make what they have not begun.

use smallvec::SmallVec;

use super::known::{Claim, IdHash, Known, Slot, SlotKind};
use super::partition::{CorruptRow, Partition};
use super::rows::Stored;
use crate::fault::{Bug, planted};
use crate::model::Offset;
use crate::model::course::Standing;
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::fire::Withdrawal;
use crate::model::ledger::LedgerKey;
use crate::model::outcome::Verdict;
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey};

impl Partition {
    pub(super) fn cancel(
        &mut self,
        offset: Offset,
        ack: bool,
        id: Text,
        caller: Option<Text>,
        stored: Stored<'_>,
    ) -> Result<(), CorruptRow> {
        let hash = IdHash::of(&id);
        let mut known = self.known(hash, stored.index);
        let standing = self.standing_slot(&known);
        if known.is_foreign(standing.as_ref(), caller.as_ref()) && !planted(Bug::ForeignTouched) {
            // What it is said to be about is not there, for this caller.
            self.skip(offset);
            self.answer(ack, offset, id, Verdict::NotPending { fired: None, withdrawal: false });
            return Ok(());
        }
        let is_known = known.slots.iter().any(|slot| slot.claim != Claim::Free);
        let fired = self.last_fired(&known);
        let row = match &standing {
            Some(slot) if slot.course => Some(self.row(slot, stored)?),
            _ => None,
        };
        let recurs = row.as_ref().is_some_and(has_fired_before);
        let (main, past, row) = match (standing, row) {
            (Some(slot), row) if slot.kind == SlotKind::Past => (None, Some(slot), row),
            (Some(slot), Some(Row::Fire(row))) if is_retained(&row) => {
                self.end_unfired(&mut known, &slot, row, false);
                (Some(slot), None, None)
            }
            (_, row) => (self.drop_standing(&id, &mut known), None, row),
        };
        let retries = self.drop_retries(&id, &mut known);
        let fired = self.end_by_cancel(&mut known, row, past, &retries).or(fired);
        let retry = retries.into_iter().next_back();
        // Only a fire that went to a worker can come back as a retry. If the last generation is
        // known to have fired into a topic, none can. Of a recurring one an earlier occurrence may.
        let none_pending = main.as_ref().is_none_or(|slot| recurs && slot.http);
        let in_flight = none_pending && (recurs || fired.as_ref().is_none_or(|slot| slot.http));
        // What is not known at all may be another caller's, and his callback is under way.
        let in_flight = in_flight && (caller.is_none() || is_known);
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
        self.know(hash, known, stored.index);
        Ok(())
    }

    /// Whoever waited for a trigger that is cancelled learns that it failed. One whose callback is
    /// under way is left to the worker's word, unless its retry was taken away: then nobody will
    /// say. Returns the slot of what is known to have fired.
    fn end_by_cancel(
        &mut self,
        known: &mut Known,
        row: Option<Row>,
        past: Option<Slot>,
        retries: &[Slot],
    ) -> Option<Slot> {
        let Some(Row::Fire(row)) = row else { return None };
        let standing = row.course.as_ref().map(|course| course.standing);
        match past {
            None => {
                let watchers = row.course.map_or_else(Vec::new, |course| course.watchers);
                self.tell(&row.id.trigger, watchers, false);
                None
            }
            Some(slot) => {
                // A retry of an older generation tells nothing of this one.
                let dropped = retries.iter().any(|retry| retry.generation == slot.generation);
                if standing == Some(Standing::Open) && dropped {
                    self.rest(known, &slot, row, Some(false));
                }
                Some(slot)
            }
        }
    }

    /// Takes all pending retries off the timeline and out of the ledger; returns them.
    fn drop_retries(&mut self, id: &Text, known: &mut Known) -> SmallVec<[Slot; 1]> {
        let w = self.cursor.w;
        let pending = |s: &Slot| matches!(s.kind, SlotKind::Retry { .. }) && s.key > w;
        let dropped = known.take(pending);
        for slot in &dropped {
            let SlotKind::Retry { occurrence, .. } = slot.kind else { continue };
            self.delete(slot.key);
            let (trigger, generation) = (id.clone(), slot.generation);
            self.settle(LedgerKey::Retry { trigger, generation, occurrence });
        }
        dropped
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
        known.slots.push(Slot::of_veto(key, cancel));
        self.schedule(Entry { key, row: Row::Veto { trigger: id.clone(), cancel } });
        self.draft.withdrawals.push(Withdrawal { trigger: id.clone(), cancel });
    }
}

/// Whether it is remembered once it has settled.
fn is_retained(row: &FireRow) -> bool {
    row.course.as_ref().is_some_and(|course| course.retain.is_some())
}

/// Whether it is a recurring trigger that has fired, so that a callback may be in flight.
fn has_fired_before(row: &Row) -> bool {
    let Row::Fire(row) = row else { return false };
    let recurs = row.course.as_ref().is_some_and(|course| course.series.is_some());
    recurs && row.id.occurrence > 0
}
