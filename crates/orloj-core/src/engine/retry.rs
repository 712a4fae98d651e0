//! Signals. A worker, or who replays a dead letter, asks the owner to hold an attempt until it is
//! due; others are about the course of a trigger.
//!
//! Law: signals are never replayed. What is accepted is in the ledger from the transaction that
//! accepts it; what is known already for its occurrence, or vetoed by a later cancel, is not.

use super::known::{IdHash, Slot};
use super::partition::{CorruptRow, Partition};
use super::rows::Stored;
use crate::fault::{Bug, planted};
use crate::model::Offset;
use crate::model::course::Course;
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::input::SignalRecord;
use crate::model::outcome::Verdict;
use crate::model::signal::{RetryRequest, Settled, Signal};
use crate::model::timeline::{Source, TimelineKey, rank};

impl Partition {
    pub(super) fn ingest_signal(
        &mut self,
        record: SignalRecord,
        stored: Stored<'_>,
    ) -> Result<(), CorruptRow> {
        let offset = record.offset;
        match record.signal {
            Ok(Signal::Retry(request)) => self.accept_retry(offset, request, stored),
            Ok(Signal::Settled(settled)) => self.settled(settled, stored),
            Ok(Signal::Watch(watch)) => self.watched(offset, watch, stored),
            Ok(Signal::Settlement(settlement)) => self.settlement(settlement, stored),
            Err(unreadable) => {
                let topic = self.rules.topics.signals.clone();
                self.reject(topic, offset, *unreadable);
                Ok(())
            }
        }
    }

    fn accept_retry(
        &mut self,
        offset: Offset,
        request: RetryRequest,
        stored: Stored<'_>,
    ) -> Result<(), CorruptRow> {
        let w = self.cursor.w;
        let RetryRequest { id, due, scheduled, definition, history, settles, priority, .. } =
            request;
        let hash = IdHash::of(&id.trigger);
        let mut known = self.known(hash, stored.index);
        if known.vetoes(id.generation, w) {
            self.note(id.trigger.clone(), Verdict::Cancelled { generation: id.generation });
            let ended = Settled { id, ok: false };
            return if settles { self.settled(ended, stored) } else { Ok(()) };
        }
        if known.knows_attempt(&id) && !planted(Bug::RetryAgain) {
            return Ok(());
        }
        for earlier in known.take(|slot| slot.retries(id.generation, id.occurrence)) {
            if earlier.key > w {
                self.delete(earlier.key);
            }
        }
        let (priority, source) = (rank(priority), Source::Signals);
        let key = TimelineKey { due, priority, source, offset };
        let late = key <= w;
        let course = Course { settles, ..Course::default() }.some();
        let row = FireRow { id, scheduled, in_ledger: !late, definition, history, course };
        known.slots.push(Slot::of(key, &row));
        let entry = Entry { key, row: Row::Fire(row) };
        if late {
            let row = self.encode(&entry.row);
            self.draft.late.push((key, row));
        } else {
            self.schedule(entry);
        }
        self.know(hash, known, stored.index);
        Ok(())
    }
}
