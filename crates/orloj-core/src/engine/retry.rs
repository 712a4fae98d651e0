//! A retry: a worker, or the replay of a dead letter, asks the owner to hold an attempt until it is
//! due.
//!
//! Invariant: signals are never replayed. An accepted attempt is in the ledger from the transaction
//! that accepts it; one that is known already, or vetoed by a later cancel, is not accepted. One
//! trigger has a bounded number of them: what exceeds it is a dead letter.

use super::index_row::IndexEntry;
use super::state::CorruptRow;
use super::trigger_handler::TriggerHandler;
use crate::model::Offset;
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::ledger::LedgerKey;
use crate::model::lifecycle::Lifecycle;
use crate::model::limits::RETRIES_PENDING_MAX;
use crate::model::outcome::OutcomeKind;
use crate::model::signal::{CallbackEnded, RetryRequest, Signal};
use crate::model::timeline::{Source, TimelineKey, rank};

impl TriggerHandler<'_> {
    pub(super) fn accept_retry(
        mut self,
        offset: Offset,
        request: RetryRequest,
    ) -> Result<(), CorruptRow> {
        let fired_through = self.state.fired_through();
        let RetryRequest { id, due, scheduled, definition, history, report_end, priority, .. } =
            request;
        if self.index_row.is_vetoed(id.generation, fired_through) {
            let cancelled = OutcomeKind::Cancelled { generation: id.generation };
            self.emit_outcome(id.trigger.clone(), cancelled);
            let ended = CallbackEnded { id, ok: false };
            return if report_end { self.on_callback_ended(ended) } else { Ok(()) };
        }
        if self.index_row.has_attempt(&id) {
            return Ok(());
        }
        let (priority, source) = (rank(priority), Source::Signals);
        let key = TimelineKey { due, priority, source, offset };
        let late = key <= fired_through;
        let lifecycle = Lifecycle { report_end, ..Lifecycle::default() }.boxed_unless_default();
        let row = FireRow { id, scheduled, in_ledger: !late, definition, history, lifecycle };
        let others = self.index_row.other_pending_retries(&row.id, fired_through);
        if others >= RETRIES_PENDING_MAX && !late {
            self.refuse_retry(key, row);
            return Ok(());
        }
        let is_earlier =
            |entry: &IndexEntry| entry.is_retry_of(row.id.generation, row.id.occurrence);
        for earlier in self.index_row.extract_if(is_earlier) {
            // One that is late might be postponed, and overwrite this one in the ledger.
            self.state.remove_entry(earlier.key);
            if late && earlier.in_ledger && earlier.key > fired_through {
                self.output.delete_ledger_entry(LedgerKey::of_fire(&row.id));
            }
        }
        self.index_row.entries.push(IndexEntry::for_row(key, &row));
        if late {
            self.state.add_late(key, &Row::Fire(row));
        } else {
            self.state.schedule(Entry { key, row: Row::Fire(row) }, self.output);
        }
        self.save();
        Ok(())
    }

    /// More retries of the trigger are pending than its index row may hold: this one is not made,
    /// and known, so that a repeated request for it has no effect.
    fn refuse_retry(mut self, key: TimelineKey, row: FireRow) {
        let fired_through = self.state.fired_through();
        let due = fired_through.due.saturating_sub(1);
        let known = TimelineKey { due, ..key }.min(fired_through);
        let refused = IndexEntry { in_ledger: false, ..IndexEntry::for_row(known, &row) };
        self.index_row.entries.push(refused);
        let ended = row.reports_end().then(|| CallbackEnded { id: row.id.clone(), ok: false });
        let reason = format!(
            "{RETRIES_PENDING_MAX} retries of this trigger are pending, as many as one may have: \
             replay this one when those are made"
        );
        self.output.emit_dead_letter(self.context, key, row, reason);
        if let Some(ended) = ended {
            self.output.send_signal(self.context.id, Signal::CallbackEnded(ended));
        }
        self.save();
    }
}
