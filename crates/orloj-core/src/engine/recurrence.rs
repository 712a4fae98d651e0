//! A recurring trigger that is due: whether the occurrence fires, and which one is next.
//!
//! Invariant: the next occurrence follows from the schedule and this one, and is in the ledger in
//! the transaction of the fire. The misfire rule of a trigger is applied once to what was missed;
//! missed occurrences fire at a bounded rate, so that they do not delay new ones.

use super::catch_up_limiter::CatchUpLimiter;
use super::trigger_handler::{LiveEntry, OccurrenceResult, TriggerHandler};
use crate::model::entry::FireRow;
use crate::model::lifecycle::{Lifecycle, LifecyclePhase, Recurrence, RunningCallback};
use crate::model::outcome::OutcomeKind;
use crate::model::schedule::{Misfire, Overlap};
use crate::model::{Millis, Timestamp};

/// What happens to an occurrence that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OccurrenceDecision {
    /// It fires.
    Fire,
    /// It, or the one that replaces it, waits until then, in ms since the epoch.
    WaitUntil(Timestamp),
    /// The schedule has no further occurrence.
    Finished,
}

impl TriggerHandler<'_> {
    /// Decides about the occurrence in `row`, whose timeline key is due at `due`.
    pub(super) fn decide_occurrence(
        &mut self,
        row: &mut FireRow,
        due: Timestamp,
    ) -> OccurrenceDecision {
        let Some(lifecycle) = row.lifecycle.as_deref_mut() else { return OccurrenceDecision::Fire };
        let fire_now = lifecycle.fire_now_requested;
        let Some(recurrence) = lifecycle.recurrence.as_deref_mut().filter(|_| !fire_now) else {
            return OccurrenceDecision::Fire;
        };
        let trigger = row.id.trigger.clone();
        let (clock, grace) = (self.clock(), self.context.config.misfire_grace);
        if recurrence.due_before_jitter <= recurrence.catch_up_until {
            // Its misfire rule was applied before: it fires, unless it is late and too many are.
            return if CatchUpLimiter::is_in_time(due, clock) || self.may_catch_up() {
                OccurrenceDecision::Fire
            } else {
                OccurrenceDecision::WaitUntil(self.next_catch_up())
            };
        }
        if row.scheduled.saturating_add(grace) >= clock {
            return OccurrenceDecision::Fire;
        }
        let missed = resolve_misfire(recurrence, clock, grace);
        let from = recurrence.due_before_jitter;
        // Without a next one it stays at the last one that is skipped.
        let last = missed.skipped.map(|(_, until)| until);
        recurrence.due_before_jitter = missed.next.or(last).unwrap_or(from);
        recurrence.catch_up_until = missed.catch_up_until;
        row.scheduled =
            recurrence.schedule.jittered(trigger.as_str(), recurrence.due_before_jitter);
        let catches_up = recurrence.due_before_jitter <= recurrence.catch_up_until;
        if let Some((occurrences, until)) = missed.skipped {
            let generation = row.id.generation;
            let reason = "their time had passed: see misfire".to_owned();
            let kind = OutcomeKind::Skipped { generation, occurrences, from, until, reason };
            self.emit_outcome(trigger, kind);
        }
        if missed.next.is_none() {
            return OccurrenceDecision::Finished;
        }
        // The clock may be ahead of W, and cancels up to it unread: only what is due by W may fire.
        let is_due = row.scheduled <= self.state.fired_through().due;
        if is_due && (!catches_up || self.may_catch_up()) {
            return OccurrenceDecision::Fire;
        }
        let catch_up_at = if catches_up { self.next_catch_up() } else { 0 };
        OccurrenceDecision::WaitUntil(row.scheduled.max(catch_up_at))
    }

    fn may_catch_up(&mut self) -> bool {
        let (clock, rate) = (self.context.clock, self.context.config.catch_up_rate);
        self.state.catch_up_limiter().try_fire(clock, rate)
    }

    fn next_catch_up(&mut self) -> Timestamp {
        let (clock, rate) = (self.context.clock, self.context.config.catch_up_rate);
        self.state.catch_up_limiter().next_time(clock, rate)
    }

    /// What happens to this occurrence because of the callback of an earlier one: it fires
    /// (`Allow`), waits, or is skipped.
    pub(super) fn check_overlap(&mut self, row: &mut FireRow) -> Overlap {
        let Some(lifecycle) = row.lifecycle.as_deref_mut() else { return Overlap::Allow };
        let fire_now = lifecycle.fire_now_requested;
        let Some(recurrence) = lifecycle.recurrence.as_deref_mut().filter(|_| !fire_now) else {
            return Overlap::Allow;
        };
        // A queued one is checked again: the other callback may have timed out, or this one may be
        // due because of a command while the other one is still in progress.
        lifecycle.phase = LifecyclePhase::Pending;
        let Some(open) = recurrence.open.filter(|open| open.until > self.context.clock) else {
            return Overlap::Allow;
        };
        let overlap = recurrence.schedule.overlap();
        match overlap {
            Overlap::Allow => {}
            Overlap::Skip => {
                let kind = OutcomeKind::Skipped {
                    generation: row.id.generation,
                    occurrences: 1,
                    from: recurrence.due_before_jitter,
                    until: recurrence.due_before_jitter,
                    reason: format!("the callback of occurrence {} is under way", open.occurrence),
                };
                self.emit_outcome(row.id.trigger.clone(), kind);
            }
            Overlap::Queue => {
                lifecycle.phase = LifecyclePhase::Queued;
                recurrence.catch_up_until =
                    recurrence.catch_up_until.max(recurrence.due_before_jitter);
            }
        }
        overlap
    }

    /// When a queued occurrence stops waiting for the other one.
    pub(super) fn queued_until(row: &FireRow) -> Timestamp {
        let recurrence = row.lifecycle.as_ref().and_then(|lifecycle| lifecycle.recurrence.as_ref());
        recurrence.and_then(|recurrence| recurrence.open).map_or(0, |open| open.until)
    }

    /// An occurrence has fired; schedules the next one, if there is one.
    pub(super) fn advance_recurrence(&mut self, mut live: LiveEntry, result: OccurrenceResult) {
        let row = &mut live.row;
        let occurrence = row.id.occurrence;
        let Some(lifecycle) = row.lifecycle.as_deref_mut() else { return };
        let reports_end = lifecycle.reports_end();
        let fired_early = std::mem::take(&mut lifecycle.fire_now_requested);
        let Some(recurrence) = lifecycle.recurrence.as_deref_mut() else { return };
        match result {
            OccurrenceResult::Pending if reports_end => {
                let timeout = self.context.config.callback_result_timeout.max(1);
                let until = self.context.clock.saturating_add(timeout);
                recurrence.open = Some(RunningCallback { occurrence, until });
            }
            OccurrenceResult::Pending => {}
            OccurrenceResult::Succeeded => recurrence.failures = 0,
            OccurrenceResult::Failed => {
                recurrence.failures = recurrence.failures.saturating_add(1);
            }
        }
        if result != OccurrenceResult::Pending {
            let watchers = std::mem::take(&mut lifecycle.watchers);
            let ok = result == OccurrenceResult::Succeeded;
            self.notify_watchers(&row.id.trigger, watchers, ok);
        }
        self.pause_if_failing(row);
        row.id.occurrence = occurrence + 1;
        self.schedule_next(live, fired_early, result);
    }

    /// Replaces the occurrence by the next one, or by the same one if it was only fired early by a
    /// command. `result` is that of the last one that fired.
    fn schedule_next(&mut self, live: LiveEntry, fired_early: bool, result: OccurrenceResult) {
        let LiveEntry { entry, mut row } = live;
        let executions = row.id.occurrence;
        let recurrence =
            row.lifecycle.as_deref_mut().and_then(|lifecycle| lifecycle.recurrence.as_deref_mut());
        let Some(recurrence) = recurrence else { return };
        let left = recurrence.has_executions_left(executions);
        let next = if fired_early {
            Some(recurrence.due_before_jitter)
        } else {
            recurrence.schedule.next(recurrence.due_before_jitter)
        };
        let Some(next) = next.filter(|_| left) else {
            let (trigger, generation) = (row.id.trigger.clone(), row.id.generation);
            self.emit_outcome(trigger, OutcomeKind::Ended { generation, executions });
            return self.complete(LiveEntry { entry, row }, result);
        };
        recurrence.due_before_jitter = next;
        let catches_up = next <= recurrence.catch_up_until;
        row.scheduled = recurrence.schedule.jittered(row.id.trigger.as_str(), next);
        let catch_up_at = if catches_up { self.next_catch_up() } else { 0 };
        let due = self.due_of(&row).max(catch_up_at);
        self.reschedule(LiveEntry { entry, row }, due);
    }

    /// An occurrence does not fire, and the next one replaces it.
    pub(super) fn skip_occurrence(&mut self, live: LiveEntry) {
        self.schedule_next(live, false, OccurrenceResult::Succeeded);
    }

    /// A worker has reported how an occurrence ended while the next one waits.
    pub(super) fn on_occurrence_ended(&mut self, live: LiveEntry, occurrence: u32, ok: bool) {
        let LiveEntry { entry, mut row } = live;
        let before = row.clone();
        let Some(lifecycle) = row.lifecycle.as_deref_mut() else { return };
        let Some(recurrence) = lifecycle.recurrence.as_deref_mut() else { return };
        recurrence.failures = if ok { 0 } else { recurrence.failures.saturating_add(1) };
        let _closed = recurrence.open.take_if(|open| open.occurrence == occurrence);
        let released = lifecycle.phase == LifecyclePhase::Queued && recurrence.open.is_none();
        if released {
            lifecycle.phase = LifecyclePhase::Pending;
        }
        let watchers = std::mem::take(&mut lifecycle.watchers);
        self.notify_watchers(&row.id.trigger, watchers, ok);
        self.pause_if_failing(&mut row);
        if row == before {
            return;
        }
        let paused =
            |row: &FireRow| row.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.paused);
        let stays = paused(&row) == paused(&before) && !released;
        let due = if stays { entry.key.due } else { self.due_of(&row) };
        self.reschedule(LiveEntry { entry, row }, due);
    }

    /// Pauses a schedule after as many failures in a row as it allows.
    fn pause_if_failing(&mut self, row: &mut FireRow) {
        let Some(Lifecycle { recurrence: Some(recurrence), paused, .. }) =
            row.lifecycle.as_deref_mut()
        else {
            return;
        };
        let most = recurrence.schedule.pause_after();
        let failures = recurrence.failures;
        if *paused || most.is_none_or(|most| failures < most) {
            return;
        }
        *paused = true;
        recurrence.failures = 0;
        let reason = format!("{failures} failures in a row: see pauseAfter");
        let kind = OutcomeKind::Paused { generation: row.id.generation, reason };
        self.emit_outcome(row.id.trigger.clone(), kind);
    }
}

/// The result of applying a misfire rule.
struct MisfireResult {
    /// How many are skipped, and when the last of them was due.
    skipped: Option<(u32, Timestamp)>,
    /// The occurrence that is next.
    next: Option<Timestamp>,
    /// Occurrences up to here fire however late they are.
    catch_up_until: Timestamp,
}

/// The next occurrence of `recurrence` and everything up to `now` by its rule.
fn resolve_misfire(recurrence: &Recurrence, now: Timestamp, grace: Millis) -> MisfireResult {
    let Recurrence { schedule, due_before_jitter: nominal, catch_up_until: granted, .. } =
        recurrence;
    let before = nominal.saturating_sub(1);
    let (first, granted) = match schedule.misfire() {
        Misfire::Skip => {
            let cutoff = now.saturating_sub(grace).max(*nominal + 1) - 1;
            let last = schedule.latest(before, cutoff).map_or(*nominal, |(last, _)| last);
            (schedule.next(last), *granted)
        }
        Misfire::Latest => {
            let latest = schedule.latest(before, now).map_or(*nominal, |(latest, _)| latest);
            (Some(latest), latest)
        }
        Misfire::All { max } => (Some(schedule.first_of_latest(before, now, max)), now),
    };
    // Without a next one, all missed ones are skipped.
    let until = first.unwrap_or(Timestamp::MAX).saturating_sub(1);
    // Jitter may have made this one due, and late, before its time without jitter.
    let left_out = schedule.latest(before, until.min(now.max(*nominal)));
    let skipped = left_out.map(|(last, others)| (others.saturating_add(1), last));
    MisfireResult { skipped, next: first, catch_up_until: granted }
}
