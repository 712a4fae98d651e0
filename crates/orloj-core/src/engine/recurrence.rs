//! A recurring trigger when its time has come: whether the occurrence fires, and which is next.
//!
//! Invariant: the next occurrence follows from the schedule and this one, and is in the ledger in
//! the transaction of the fire. What was missed is decided once, by the trigger's own rule, and
//! made up for at a bounded rate, so that new work is not held up.

use super::index_row::{IndexEntry, IndexRow};
use super::partition::Partition;
use crate::fault::{Mutation, is_active};
use crate::model::entry::{FireRow, Row};
use crate::model::lifecycle::{Lifecycle, LifecyclePhase, Recurrence, RunningCallback};
use crate::model::outcome::OutcomeKind;
use crate::model::schedule::{Misfire, Overlap};
use crate::model::timeline::TimelineKey;
use crate::model::{Millis, Timestamp};

/// What becomes of an occurrence that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OccurrenceDecision {
    /// It fires.
    Fire,
    /// It, or the one that takes its place, waits until then, in ms since the epoch.
    WaitUntil(Timestamp),
    /// There is none any more.
    Finished,
}

/// Hands out times at a rate: the made-up occurrences of a partition share it.
#[derive(Debug, Default)]
pub(super) struct CatchUpLimiter {
    /// The next time to give, in µs since the epoch.
    next_us: u64,
}

impl CatchUpLimiter {
    /// The next time at which something missed may be made up for, in ms since the epoch.
    fn acquire(&mut self, now: Timestamp, rate: u32) -> Timestamp {
        let slot = self.next_us.max(now.saturating_mul(1_000));
        self.next_us = slot + 1_000_000 / u64::from(rate.max(1));
        slot / 1_000
    }
}

impl Partition {
    /// Decides about the occurrence in `row`, which is due at `due` by its place on the timeline.
    pub(super) fn decide_occurrence(
        &mut self,
        row: &mut FireRow,
        due: Timestamp,
    ) -> OccurrenceDecision {
        let Some(course) = row.lifecycle.as_deref_mut() else { return OccurrenceDecision::Fire };
        let called = course.fire_now_requested;
        let Some(series) = course.recurrence.as_deref_mut().filter(|_| !called) else {
            return OccurrenceDecision::Fire;
        };
        let trigger = row.id.trigger.clone();
        let (clock, grace) = (self.clock, self.config.misfire_grace);
        let on_time = |due: Timestamp| due.saturating_add(grace) >= clock;
        if series.due_before_jitter <= series.catch_up_until {
            // It was decided before; unless it has been missed again it fires.
            let slot = if on_time(due) { clock } else { self.catch_up_slot() };
            return if slot <= clock {
                OccurrenceDecision::Fire
            } else {
                OccurrenceDecision::WaitUntil(slot)
            };
        }
        if on_time(row.scheduled) {
            return OccurrenceDecision::Fire;
        }
        let missed = resolve_misfire(series, clock, grace);
        let from = series.due_before_jitter;
        // Without a next one it stands at the last of those that are left out.
        let last =
            missed.skipped.map(|(_, until)| until).filter(|_| !is_active(Mutation::SkippedTwice));
        series.due_before_jitter = missed.next.or(last).unwrap_or(from);
        series.catch_up_until = missed.catch_up_until;
        row.scheduled = series.schedule.jittered(trigger.as_str(), series.due_before_jitter);
        let made_up = series.due_before_jitter <= series.catch_up_until;
        if let Some((occurrences, until)) = missed.skipped {
            let generation = row.id.generation;
            let reason = "their time had passed: see misfire".to_owned();
            let verdict = OutcomeKind::Skipped { generation, occurrences, from, until, reason };
            self.emit_outcome(trigger, verdict);
        }
        if missed.next.is_none() {
            return OccurrenceDecision::Finished;
        }
        let slot = if made_up { self.catch_up_slot() } else { 0 };
        let due = row.scheduled.max(slot);
        // The clock may be ahead, and cancels up to it unread: what is decided goes up to W.
        let has_come = row.scheduled <= self.cursor.fired_through.due && slot <= self.clock;
        if has_come { OccurrenceDecision::Fire } else { OccurrenceDecision::WaitUntil(due) }
    }

    fn catch_up_slot(&mut self) -> Timestamp {
        self.catch_up_limiter.acquire(self.clock, self.config.catch_up_rate)
    }

    /// Whether the callback of an earlier occurrence is in the way, and what becomes of this one:
    /// it fires (`None`), waits, or is left out.
    pub(super) fn check_overlap(&mut self, row: &mut FireRow) -> Option<Overlap> {
        let course = row.lifecycle.as_deref_mut()?;
        let series = course.recurrence.as_deref_mut().filter(|_| !course.fire_now_requested)?;
        // One that was queued is looked at again: time may be up for the other one, or a command
        // may have come, after which that one is under way still.
        let queued = std::mem::take(&mut course.phase) == LifecyclePhase::Queued;
        if queued && is_active(Mutation::QueuedFiresEarly) {
            series.open = None;
        }
        let open = series.open.filter(|open| open.until > self.clock)?;
        match series.schedule.overlap() {
            Overlap::Allow => None,
            Overlap::Skip => {
                let verdict = OutcomeKind::Skipped {
                    generation: row.id.generation,
                    occurrences: 1,
                    from: series.due_before_jitter,
                    until: series.due_before_jitter,
                    reason: format!("the callback of occurrence {} is under way", open.occurrence),
                };
                self.emit_outcome(row.id.trigger.clone(), verdict);
                Some(Overlap::Skip)
            }
            Overlap::Queue => {
                course.phase = LifecyclePhase::Queued;
                series.catch_up_until = series.catch_up_until.max(series.due_before_jitter);
                Some(Overlap::Queue)
            }
        }
    }

    /// When a queued occurrence waits no longer for the other one.
    pub(super) fn queued_until(row: &FireRow) -> Timestamp {
        let series = row.lifecycle.as_ref().and_then(|course| course.recurrence.as_ref());
        series.and_then(|series| series.open).map_or(0, |open| open.until)
    }

    /// An occurrence has fired, and another follows or none. `end`: how it came off; `None` if a
    /// worker will say.
    pub(super) fn advance_recurrence(
        &mut self,
        index_row: &mut IndexRow,
        slot: &IndexEntry,
        mut row: FireRow,
        end: Option<bool>,
    ) {
        let occurrence = row.id.occurrence;
        let Some(course) = row.lifecycle.as_deref_mut() else { return };
        let wants_end = course.reports_end();
        let called = std::mem::take(&mut course.fire_now_requested);
        let Some(series) = course.recurrence.as_deref_mut() else { return };
        match end {
            None if wants_end => {
                let until = self.clock.saturating_add(self.config.callback_result_timeout.max(1));
                series.open = Some(RunningCallback { occurrence, until });
            }
            None => {}
            Some(ok) => series.failures = if ok { 0 } else { series.failures.saturating_add(1) },
        }
        let watchers = end.map(|ok| (std::mem::take(&mut course.watchers), ok));
        if let Some((watchers, ok)) = watchers {
            self.notify_watchers(&row.id.trigger, watchers, ok);
        }
        self.pause_if_failing(&mut row);
        row.id.occurrence = occurrence + 1;
        self.schedule_next(index_row, slot, row, called, end);
    }

    /// The occurrence after the one in `row` takes its place; the same one if it was only called
    /// before its time. `end`: how the last one that fired came off, if that is known.
    fn schedule_next(
        &mut self,
        index_row: &mut IndexRow,
        slot: &IndexEntry,
        mut row: FireRow,
        called: bool,
        end: Option<bool>,
    ) {
        let executions = row.id.occurrence;
        let series =
            row.lifecycle.as_deref_mut().and_then(|course| course.recurrence.as_deref_mut());
        let Some(series) = series else { return };
        let left = series.schedule.max_executions().is_none_or(|most| executions < most);
        let next = if called {
            Some(series.due_before_jitter)
        } else {
            series.schedule.next(series.due_before_jitter)
        };
        let Some(next) = next.filter(|_| left) else {
            let (trigger, generation) = (row.id.trigger.clone(), row.id.generation);
            self.emit_outcome(trigger, OutcomeKind::Ended { generation, executions });
            return self.complete(index_row, slot, row, end);
        };
        series.due_before_jitter = next;
        let granted = next <= series.catch_up_until;
        row.scheduled = series.schedule.jittered(row.id.trigger.as_str(), next);
        let slot_at = if granted { self.catch_up_slot() } else { 0 };
        let due = self.due_of(&row).max(slot_at);
        if is_active(Mutation::NextOccurrenceNotInLedger) {
            self.remove_entry(index_row, slot);
            let key = TimelineKey { due, ..slot.key };
            index_row.entries.push(IndexEntry::for_row(key, &row));
            let bytes = self.encode(&Row::Fire(row));
            return self.put_row(key, bytes);
        }
        self.reschedule(index_row, slot, row, due);
    }

    /// An occurrence does not fire, and the next one takes its place.
    pub(super) fn skip_occurrence(
        &mut self,
        index_row: &mut IndexRow,
        slot: &IndexEntry,
        row: FireRow,
    ) {
        self.schedule_next(index_row, slot, row, false, Some(true));
    }

    /// A worker has said how an occurrence ended while the next one waits at `slot`.
    pub(super) fn on_occurrence_ended(
        &mut self,
        index_row: &mut IndexRow,
        slot: &IndexEntry,
        mut row: FireRow,
        occurrence: u32,
        ok: bool,
    ) {
        let before = row.clone();
        let Some(course) = row.lifecycle.as_deref_mut() else { return };
        let Some(series) = course.recurrence.as_deref_mut() else { return };
        series.failures = if ok { 0 } else { series.failures.saturating_add(1) };
        let _closed = series.open.take_if(|open| open.occurrence == occurrence);
        let released = course.phase == LifecyclePhase::Queued
            && series.open.is_none()
            && !is_active(Mutation::QueuedNeverReleased);
        if released {
            course.phase = LifecyclePhase::Pending;
        }
        let watchers = std::mem::take(&mut course.watchers);
        self.notify_watchers(&row.id.trigger, watchers, ok);
        self.pause_if_failing(&mut row);
        if row == before {
            return;
        }
        let paused = |row: &FireRow| row.lifecycle.as_ref().is_some_and(|course| course.paused);
        let stays = paused(&row) == paused(&before) && !released;
        let due = if stays { slot.key.due } else { self.due_of(&row) };
        self.reschedule(index_row, slot, row, due);
    }

    /// After so many failures in a row as the schedule says a person must look at it.
    fn pause_if_failing(&mut self, row: &mut FireRow) {
        let Some(Lifecycle { recurrence: Some(series), paused, .. }) = row.lifecycle.as_deref_mut()
        else {
            return;
        };
        let most = series.schedule.pause_after();
        let failures = series.failures;
        if *paused || most.is_none_or(|most| failures < most) {
            return;
        }
        *paused = true;
        series.failures = 0;
        let reason = format!("{failures} failures in a row: see pauseAfter");
        let verdict = OutcomeKind::Paused { generation: row.id.generation, reason };
        self.emit_outcome(row.id.trigger.clone(), verdict);
    }
}

/// What a misfire comes to.
struct MisfireResult {
    /// How many are left out, and when the last of them was due.
    skipped: Option<(u32, Timestamp)>,
    /// The occurrence that is next.
    next: Option<Timestamp>,
    /// Occurrences up to here fire however late they are.
    catch_up_until: Timestamp,
}

/// The next occurrence of `series` and everything up to `now` by its rule.
fn resolve_misfire(series: &Recurrence, now: Timestamp, grace: Millis) -> MisfireResult {
    let Recurrence { schedule, due_before_jitter: nominal, catch_up_until: granted, .. } = series;
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
    // Without a next one, all there were are left out.
    let until = first.unwrap_or(Timestamp::MAX).saturating_sub(1);
    // Jitter may have made this one due, and late, before it comes by the schedule.
    let left_out = schedule.latest(before, until.min(now.max(*nominal)));
    let skipped = left_out.map(|(last, others)| (others.saturating_add(1), last));
    MisfireResult { skipped, next: first, catch_up_until: granted }
}
