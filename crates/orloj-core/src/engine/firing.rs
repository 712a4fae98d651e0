//! Firing: due entries go out, wait, or are settled, and W moves past them.
//!
//! Invariant: firing writes nothing per trigger into the store. W records that it happened; only an
//! entry that is in the ledger is settled there.

use std::collections::HashSet;

use super::catalog::CachingCatalog;
use super::config::PartitionContext;
use super::dispatch::{DispatchHandler, DispatchResult, PlainFire, plain_topic_fire};
use super::draft::StepDraft;
use super::due_entries::{DueEntries, trigger_hash};
use super::index_row::{IdHash, IndexEntry, IndexEntryKind};
use super::prefetch::Prefetched;
use super::recurrence::OccurrenceDecision;
use super::state::{CorruptRow, EngineState};
use super::step::{Emit, TopicFire};
use super::trigger_handler::{LiveEntry, OccurrenceResult, TriggerHandler};
use crate::codec::row::{self, RowBytes};
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::ledger::LedgerKey;
use crate::model::lifecycle::Recurrence;
use crate::model::outcome::OutcomeKind;
use crate::model::schedule::Overlap;
use crate::model::signal::{CallbackEnded, Signal};
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey};
use crate::model::{Millis, Timestamp};

/// How long an entry is postponed at least, in ms.
const POSTPONED_MIN: Millis = 100;

/// Fires the entries of a step.
pub(super) struct FireHandler<'p> {
    pub(super) context: &'p PartitionContext,
    pub(super) state: &'p mut EngineState,
    pub(super) output: &'p mut StepDraft,
    pub(super) topics: CachingCatalog<'p>,
    pub(super) prefetched: Prefetched<'p>,
}

impl<'p> FireHandler<'p> {
    /// Fires all of them; W moves past them.
    pub(super) fn fire(mut self, due: DueEntries) -> Result<(), CorruptRow> {
        self.output.reserve(due.len());
        let DueEntries { late, entries, held, withdrawals, pools, fired_through } = due;
        for withdrawal in withdrawals {
            self.dispatch().send_withdrawal(withdrawal, &pools);
        }
        self.state.begin_fire(fired_through);
        let fired = self.fire_entries(late.into_iter().chain(entries), &held);
        self.state.end_fire();
        fired
    }

    fn fire_entries(
        &mut self,
        due: impl Iterator<Item = (TimelineKey, RowBytes)>,
        held: &[IdHash],
    ) -> Result<(), CorruptRow> {
        let held: HashSet<_> = held.iter().copied().collect();
        for (key, row) in due {
            let corrupt = |reason| CorruptRow { key, reason };
            if !held.is_empty() && trigger_hash(&row).is_some_and(|id| held.contains(&id)) {
                self.hold(key, row::decode(&row).map_err(corrupt)?);
                continue;
            }
            let plain = plain_topic_fire(&row, &mut self.topics).map_err(corrupt)?;
            if let Some(PlainFire { partition, batch_bytes_max, scheduled }) = plain {
                let bytes = row.len();
                let fire = TopicFire { row, partition, batch_bytes_max, scheduled };
                self.output.emit_large(Emit::ToTopic(fire), bytes);
                continue;
            }
            match row::decode(&row).map_err(corrupt)? {
                Row::Veto { trigger, .. } => {
                    self.output.delete_ledger_entry(LedgerKey::Veto(trigger));
                }
                Row::Watch { trigger, .. } => self.trigger(&trigger).expire_watch(key, trigger),
                Row::Fire(fire) if fire.lifecycle.is_some() && key.source == Source::Triggers => {
                    self.fire_with_lifecycle(key, fire);
                }
                Row::Fire(fire) => self.fire_simple(key, fire, row),
            }
        }
        Ok(())
    }

    /// An occurrence of a trigger without a lifecycle, or a retry.
    fn fire_simple(&mut self, key: TimelineKey, fire: FireRow, row: RowBytes) {
        let settled = fire.in_ledger.then(|| LedgerKey::of_fire(&fire.id));
        let ends = fire.reports_end().then(|| fire.id.clone());
        match self.dispatch().send(key, fire, row) {
            DispatchResult::Sent => {}
            DispatchResult::Postponed(fire) => {
                let due = self.trigger(&fire.id.trigger).postponed_until(fire.scheduled);
                return self.postpone(key, *fire, due);
            }
            DispatchResult::Delayed { fire, wait } => {
                let due = self.trigger(&fire.id.trigger).earliest() + wait;
                return self.postpone(key, *fire, due);
            }
            DispatchResult::DeadLettered => {
                if let Some(id) = ends {
                    let ended = Signal::CallbackEnded(CallbackEnded { id, ok: false });
                    self.output.send_signal(self.context.id, ended);
                }
            }
        }
        if let Some(key) = settled {
            self.output.delete_ledger_entry(key);
        }
    }

    /// An entry with a lifecycle: it fires, waits or is skipped, and the next one replaces it.
    fn fire_with_lifecycle(&mut self, key: TimelineKey, row: FireRow) {
        let Self { context, state, output, topics, prefetched } = self;
        let mut trigger = TriggerHandler::new(context, state, output, *prefetched, &row.id.trigger);
        let mut live = LiveEntry { entry: IndexEntry::for_row(key, &row), row };
        let lifecycle = live.row.lifecycle.as_ref();
        let waits = lifecycle.is_some_and(|lifecycle| lifecycle.dependencies.is_some());
        if live.entry.kind == IndexEntryKind::Remembered {
            trigger.expire_lifecycle(live);
        } else if waits {
            trigger.finish_waiting(live);
        } else if trigger.has_expired(&live.row) {
            let (generation, fire_at) = (live.row.id.generation, live.row.scheduled);
            let expired = OutcomeKind::Expired { generation, fire_at };
            trigger.emit_outcome(live.row.id.trigger.clone(), expired);
            trigger.complete_unfired(live, OccurrenceResult::Failed);
        } else {
            match trigger.decide_occurrence(&mut live.row, key.due) {
                OccurrenceDecision::WaitUntil(due) => {
                    let due = due.max(trigger.state.min_due());
                    trigger.reschedule(live, due);
                }
                OccurrenceDecision::Finished => trigger.skip_occurrence(live),
                OccurrenceDecision::Fire => match trigger.check_overlap(&mut live.row) {
                    Overlap::Skip => trigger.skip_occurrence(live),
                    Overlap::Queue => {
                        let due = TriggerHandler::queued_until(&live.row);
                        let due = due.max(trigger.state.min_due());
                        trigger.reschedule(live, due);
                    }
                    Overlap::Allow => trigger.fire_occurrence(live, topics),
                },
            }
        }
        trigger.save();
    }

    /// A record of the trigger is parked, which may cancel or replace it: the entry waits.
    fn hold(&mut self, key: TimelineKey, row: Row) {
        match row {
            Row::Veto { .. } => {}
            Row::Watch { trigger, .. } => self.trigger(&trigger).expire_watch(key, trigger),
            Row::Fire(row) if row.lifecycle.is_some() && key.source == Source::Triggers => {
                let id = IdHash::of(&row.id.trigger);
                let mut trigger = self.trigger(&row.id.trigger);
                let live = LiveEntry { entry: IndexEntry::for_row(key, &row), row };
                if live.entry.kind == IndexEntryKind::Remembered {
                    trigger.expire_lifecycle(live);
                } else {
                    let due = trigger.held_until(id);
                    trigger.reschedule(live, due);
                }
                trigger.save();
            }
            Row::Fire(row) => {
                let id = IdHash::of(&row.id.trigger);
                let due = self.trigger(&row.id.trigger).held_until(id);
                self.postpone(key, row, due);
            }
        }
    }

    /// It cannot fire now: the entry waits until `due`, in the ledger, because its new key depends
    /// on more than its record's bytes.
    fn postpone(&mut self, key: TimelineKey, mut row: FireRow, due: Timestamp) {
        let mut trigger = self.trigger(&row.id.trigger);
        let postponed = TimelineKey { due, ..key };
        let _fired = trigger.index_row.extract_if(|entry| entry.key == key);
        row.in_ledger = true;
        trigger.index_row.entries.push(IndexEntry::for_row(postponed, &row));
        trigger.state.schedule(Entry { key: postponed, row: Row::Fire(row) }, trigger.output);
        trigger.save();
    }

    fn trigger(&mut self, id: &Text) -> TriggerHandler<'_> {
        TriggerHandler::new(self.context, self.state, self.output, self.prefetched, id)
    }

    fn dispatch(&mut self) -> DispatchHandler<'_, 'p> {
        let (context, output, topics) = (self.context, &mut *self.output, &mut self.topics);
        DispatchHandler { context, output, topics }
    }
}

impl TriggerHandler<'_> {
    fn fire_occurrence(&mut self, live: LiveEntry, topics: &mut CachingCatalog<'_>) {
        let LiveEntry { entry, mut row } = live;
        let lifecycle = row.lifecycle.as_deref();
        let (recurs, fires_now) = lifecycle.map_or((false, false), |lifecycle| {
            (lifecycle.recurrence.is_some(), lifecycle.fire_now_requested)
        });
        let scheduled = row.scheduled;
        let in_time_until = self.in_time_until(&row);
        if recurs && fires_now {
            // It is due because of the command, in addition to the next regular one.
            row.scheduled = self.clock();
            self.output.set_fired_by_command_at(self.clock());
        }
        let open = row.definition.target.is_http() && row.reports_end();
        let bytes = self.state.encode(&Row::Fire(FireRow { lifecycle: None, ..row.clone() }));
        let mut dispatch = DispatchHandler { context: self.context, output: self.output, topics };
        let sent = dispatch.send(entry.key, row.clone(), bytes);
        row.scheduled = scheduled;
        let live = LiveEntry { entry, row };
        if let (DispatchResult::Sent, Some(until)) = (&sent, in_time_until) {
            self.output.limit_lateness(until);
        }
        let result = match sent {
            DispatchResult::Sent if open => OccurrenceResult::Pending,
            DispatchResult::Sent => OccurrenceResult::Succeeded,
            DispatchResult::DeadLettered => OccurrenceResult::Failed,
            DispatchResult::Postponed(_) => {
                // What a command fires ahead of its time is never late.
                let since = if fires_now { 0 } else { scheduled };
                let due = self.postponed_until(since);
                return self.reschedule(live, due);
            }
            DispatchResult::Delayed { wait, .. } => {
                let due = self.earliest() + wait;
                return self.reschedule(live, due);
            }
        };
        if recurs {
            self.advance_recurrence(live, result);
        } else {
            self.complete(live, result);
        }
    }

    /// Whether a one-time trigger is later than its `expireAfter`.
    fn has_expired(&self, row: &FireRow) -> bool {
        let lifecycle = row.lifecycle.as_deref().filter(|lifecycle| !lifecycle.fire_now_requested);
        let most = lifecycle.and_then(|lifecycle| lifecycle.expire_after);
        most.is_some_and(|most| row.scheduled.saturating_add(most) < self.clock())
    }

    /// After this time, in ms since the epoch, it would expire, or its misfire rule would apply.
    fn in_time_until(&self, row: &FireRow) -> Option<Timestamp> {
        let lifecycle =
            row.lifecycle.as_deref().filter(|lifecycle| !lifecycle.fire_now_requested)?;
        let misses =
            |recurrence: &&Recurrence| recurrence.due_before_jitter > recurrence.catch_up_until;
        let grace = lifecycle.recurrence.as_deref().filter(misses);
        let grace = grace.map(|_| self.context.config.misfire_grace);
        let most = lifecycle.expire_after.into_iter().chain(grace).min()?;
        Some(row.scheduled.saturating_add(most))
    }

    /// Until when an entry waits for a record of its trigger that is parked. How late it is says
    /// nothing of that record: a command may fire it early, or the process was stopped.
    fn held_until(&mut self, id: IdHash) -> Timestamp {
        let since = self.state.held_since(id, self.earliest());
        self.postponed_until(since)
    }

    /// Until when an entry waits that should have fired at `since`: for a short time, as it nearly
    /// always can by then, and then as long again as it is late.
    fn postponed_until(&self, since: Timestamp) -> Timestamp {
        let late = self.earliest().saturating_sub(since);
        let most = self.context.config.target_retry_interval.max(1);
        self.earliest() + late.max(POSTPONED_MIN).min(most)
    }

    fn earliest(&self) -> Timestamp {
        self.clock().max(self.state.fired_through().due)
    }
}
