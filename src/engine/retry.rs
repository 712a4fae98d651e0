//! A signal: a worker, or who replays a dead letter, asks the owner to hold an attempt until it is
//! due.
//!
//! Law: signals are never replayed. What is accepted is in the ledger from the transaction that
//! accepts it; what is known already for its occurrence, or vetoed by a later cancel, is not.

use super::known::{IdHash, Slot, SlotKind};
use super::partition::{Fetched, Partition};
use crate::fault::{Bug, planted};
use crate::model::Offset;
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::input::{PRIORITY_DEFAULT, SignalRecord};
use crate::model::outcome::Verdict;
use crate::model::signal::{RetryRequest, Signal};
use crate::model::timeline::{Source, TimelineKey};

impl Partition {
    pub(super) fn ingest_signal(&mut self, record: SignalRecord, fetched: &Fetched) {
        match record.signal {
            Ok(Signal::Retry(request)) => self.accept_retry(record.offset, request, fetched),
            Err(unreadable) => {
                let topic = self.rules.topics.signals.clone();
                self.reject(topic, record.offset, *unreadable);
            }
        }
    }

    fn accept_retry(&mut self, offset: Offset, request: RetryRequest, fetched: &Fetched) {
        let w = self.cursor.w;
        let RetryRequest { id, due, scheduled, definition, history, .. } = request;
        let hash = IdHash::of(&id.trigger);
        let mut known = self.known(hash, fetched);
        if known.vetoes(id.generation, w) {
            let verdict = Verdict::Cancelled { generation: id.generation };
            let outcome = crate::model::outcome::Outcome {
                trigger: id.trigger,
                answers: None,
                at: self.clock,
                verdict,
            };
            self.draft.emits.push(super::step::Emit::Outcome(Box::new(outcome)));
            return;
        }
        if known.knows_attempt(&id) && !planted(Bug::RetryAgain) {
            return;
        }
        for earlier in known.take(|slot| slot.retries(id.generation, id.occurrence)) {
            if earlier.key > w {
                self.delete(earlier.key);
            }
        }
        let key = TimelineKey { due, priority: PRIORITY_DEFAULT, source: Source::Signals, offset };
        let late = key <= w;
        known.slots.push(Slot {
            key,
            kind: SlotKind::Retry {
                occurrence: id.occurrence,
                attempt: id.attempt,
                deferral: id.deferral,
            },
            generation: id.generation,
            in_ledger: !late,
            http: definition.target.is_http(),
        });
        let row = FireRow { id, scheduled, in_ledger: !late, definition, history };
        let entry = Entry { key, row: Row::Fire(row) };
        if late {
            let row = self.encode(&entry.row);
            self.draft.late.push((key, row));
        } else {
            self.schedule(entry);
        }
        self.know(hash, known, fetched);
    }
}
