//! Signals. A worker, or the replay of a dead letter, asks the owner to hold an attempt until it is
//! due; others are about the lifecycle of a trigger.
//!
//! Invariant: signals are never replayed. An accepted attempt is in the ledger from the transaction
//! that accepts it; one that is known already, or vetoed by a later cancel, is not accepted.

use super::index_row::{IdHash, IndexEntry};
use super::partition::{CorruptRow, Partition};
use super::prefetch::Prefetched;
use crate::fault::{Mutation, is_active};
use crate::model::Offset;
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::input::SignalRecord;
use crate::model::lifecycle::Lifecycle;
use crate::model::outcome::OutcomeKind;
use crate::model::signal::{CallbackEnded, RetryRequest, Signal};
use crate::model::timeline::{Source, TimelineKey, rank};

impl Partition {
    pub(super) fn ingest_signal(
        &mut self,
        record: SignalRecord,
        prefetched: Prefetched<'_>,
    ) -> Result<(), CorruptRow> {
        let offset = record.offset;
        match record.signal {
            Ok(Signal::Retry(request)) => self.accept_retry(offset, request, prefetched),
            Ok(Signal::CallbackEnded(settled)) => self.on_callback_ended(settled, prefetched),
            Ok(Signal::Watch(watch)) => self.on_watch(offset, watch, prefetched),
            Ok(Signal::DependencySettled(settlement)) => {
                self.on_dependency_settled(settlement, prefetched)
            }
            Err(unreadable) => {
                let topic = self.config.topics.signals.clone();
                self.reject(topic, offset, *unreadable);
                Ok(())
            }
        }
    }

    fn accept_retry(
        &mut self,
        offset: Offset,
        request: RetryRequest,
        prefetched: Prefetched<'_>,
    ) -> Result<(), CorruptRow> {
        let fired_through = self.cursor.fired_through;
        let RetryRequest {
            id,
            due,
            scheduled,
            definition,
            history,
            report_end: settles,
            priority,
            ..
        } = request;
        let hash = IdHash::of(&id.trigger);
        let mut index_row = self.index_row(hash, prefetched.index);
        if index_row.is_vetoed(id.generation, fired_through) {
            self.emit_outcome(
                id.trigger.clone(),
                OutcomeKind::Cancelled { generation: id.generation },
            );
            let ended = CallbackEnded { id, ok: false };
            return if settles { self.on_callback_ended(ended, prefetched) } else { Ok(()) };
        }
        if index_row.has_attempt(&id) && !is_active(Mutation::DuplicateRetryAccepted) {
            return Ok(());
        }
        for earlier in index_row.extract_if(|entry| entry.is_retry_of(id.generation, id.occurrence))
        {
            if earlier.key > fired_through {
                self.delete_row(earlier.key);
            }
        }
        let (priority, source) = (rank(priority), Source::Signals);
        let key = TimelineKey { due, priority, source, offset };
        let late = key <= fired_through;
        let lifecycle =
            Lifecycle { report_end: settles, ..Lifecycle::default() }.boxed_unless_default();
        let row = FireRow { id, scheduled, in_ledger: !late, definition, history, lifecycle };
        index_row.entries.push(IndexEntry::for_row(key, &row));
        let entry = Entry { key, row: Row::Fire(row) };
        if late {
            let row = self.encode(&entry.row);
            self.draft.late.push((key, row));
        } else {
            self.schedule_entry(entry);
        }
        self.put_index_row(hash, index_row, prefetched.index);
        Ok(())
    }
}
