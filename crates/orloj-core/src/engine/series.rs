//! A recurring trigger when its time has come: whether the occurrence fires, and which is next.
//!
//! Law: the next occurrence follows from the schedule and this one, and is in the ledger in the
//! transaction of the fire. What was missed is decided once, by the trigger's own rule, and made up
//! for at a bounded rate, so that new work is not held up.

use super::known::{Known, Slot};
use super::partition::Partition;
use crate::fault::{Bug, planted};
use crate::model::course::{Course, Open, Series, Standing};
use crate::model::entry::{FireRow, Row};
use crate::model::outcome::Verdict;
use crate::model::schedule::{Misfire, Overlap};
use crate::model::timeline::TimelineKey;
use crate::model::{Millis, Timestamp};

/// What becomes of an occurrence that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judged {
    /// It fires.
    Fires,
    /// It, or the one that takes its place, waits until then, in ms since the epoch.
    Waits(Timestamp),
    /// There is none any more.
    Over,
}

/// Hands out times at a rate: the made-up occurrences of a partition share it.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The next time to give, in µs since the epoch.
    next: u64,
}

impl Pace {
    /// The next time at which something missed may be made up for, in ms since the epoch.
    fn take(&mut self, now: Timestamp, rate: u32) -> Timestamp {
        let slot = self.next.max(now.saturating_mul(1_000));
        self.next = slot + 1_000_000 / u64::from(rate.max(1));
        slot / 1_000
    }
}

impl Partition {
    /// Decides about the occurrence in `row`, which is due at `due` by its place on the timeline.
    pub(super) fn judge(&mut self, row: &mut FireRow, due: Timestamp) -> Judged {
        let Some(course) = row.course.as_deref_mut() else { return Judged::Fires };
        let called = course.called;
        let Some(series) = course.series.as_deref_mut().filter(|_| !called) else {
            return Judged::Fires;
        };
        let trigger = row.id.trigger.clone();
        let (clock, grace) = (self.clock, self.rules.misfire_grace);
        let on_time = |due: Timestamp| due.saturating_add(grace) >= clock;
        if series.nominal <= series.granted {
            // It was decided before; unless it has been missed again it fires.
            let slot = if on_time(due) { clock } else { self.made_up() };
            return if slot <= clock { Judged::Fires } else { Judged::Waits(slot) };
        }
        if on_time(row.scheduled) {
            return Judged::Fires;
        }
        let missed = misfire(series, clock, grace);
        let from = series.nominal;
        // Without a next one it stands at the last of those that are left out.
        let last = missed.skipped.map(|(_, until)| until).filter(|_| !planted(Bug::LeftOutAgain));
        series.nominal = missed.next.or(last).unwrap_or(from);
        series.granted = missed.granted;
        row.scheduled = series.schedule.jittered(trigger.as_str(), series.nominal);
        let made_up = series.nominal <= series.granted;
        if let Some((occurrences, until)) = missed.skipped {
            let generation = row.id.generation;
            let reason = "their time had passed: see misfire".to_owned();
            let verdict = Verdict::Skipped { generation, occurrences, from, until, reason };
            self.note(trigger, verdict);
        }
        if missed.next.is_none() {
            return Judged::Over;
        }
        let slot = if made_up { self.made_up() } else { 0 };
        let due = row.scheduled.max(slot);
        // The clock may be ahead, and cancels up to it unread: what is decided goes up to W.
        let has_come = row.scheduled <= self.cursor.w.due && slot <= self.clock;
        if has_come { Judged::Fires } else { Judged::Waits(due) }
    }

    fn made_up(&mut self) -> Timestamp {
        self.pace.take(self.clock, self.rules.catch_up_rate)
    }

    /// Whether the callback of an earlier occurrence is in the way, and what becomes of this one:
    /// it fires (`None`), waits, or is left out.
    pub(super) fn overlap(&mut self, row: &mut FireRow) -> Option<Overlap> {
        let course = row.course.as_deref_mut()?;
        let series = course.series.as_deref_mut().filter(|_| !course.called)?;
        // One that was queued is looked at again: time may be up for the other one, or a command
        // may have come, after which that one is under way still.
        let queued = std::mem::take(&mut course.standing) == Standing::Queued;
        if queued && planted(Bug::QueueJumped) {
            series.open = None;
        }
        let open = series.open.filter(|open| open.until > self.clock)?;
        match series.schedule.overlap() {
            Overlap::Allow => None,
            Overlap::Skip => {
                let verdict = Verdict::Skipped {
                    generation: row.id.generation,
                    occurrences: 1,
                    from: series.nominal,
                    until: series.nominal,
                    reason: format!("the callback of occurrence {} is under way", open.occurrence),
                };
                self.note(row.id.trigger.clone(), verdict);
                Some(Overlap::Skip)
            }
            Overlap::Queue => {
                course.standing = Standing::Queued;
                series.granted = series.granted.max(series.nominal);
                Some(Overlap::Queue)
            }
        }
    }

    /// When a queued occurrence waits no longer for the other one.
    pub(super) fn queued_until(row: &FireRow) -> Timestamp {
        let series = row.course.as_ref().and_then(|course| course.series.as_ref());
        series.and_then(|series| series.open).map_or(0, |open| open.until)
    }

    /// An occurrence has fired, and another follows or none. `end`: how it came off; `None` if a
    /// worker will say.
    pub(super) fn advance(
        &mut self,
        known: &mut Known,
        slot: &Slot,
        mut row: FireRow,
        end: Option<bool>,
    ) {
        let occurrence = row.id.occurrence;
        let Some(course) = row.course.as_deref_mut() else { return };
        let wants_end = course.wants_end();
        let called = std::mem::take(&mut course.called);
        let Some(series) = course.series.as_deref_mut() else { return };
        match end {
            None if wants_end => {
                let until = self.clock.saturating_add(self.rules.open_ttl.max(1));
                series.open = Some(Open { occurrence, until });
            }
            None => {}
            Some(ok) => series.failures = if ok { 0 } else { series.failures.saturating_add(1) },
        }
        let watchers = end.map(|ok| (std::mem::take(&mut course.watchers), ok));
        if let Some((watchers, ok)) = watchers {
            self.tell(&row.id.trigger, watchers, ok);
        }
        self.pause_if_failing(&mut row);
        row.id.occurrence = occurrence + 1;
        self.follow(known, slot, row, called, end);
    }

    /// The occurrence after the one in `row` takes its place; the same one if it was only called
    /// before its time. `end`: how the last one that fired came off, if that is known.
    fn follow(
        &mut self,
        known: &mut Known,
        slot: &Slot,
        mut row: FireRow,
        called: bool,
        end: Option<bool>,
    ) {
        let executions = row.id.occurrence;
        let series = row.course.as_deref_mut().and_then(|course| course.series.as_deref_mut());
        let Some(series) = series else { return };
        let left = series.schedule.max_executions().is_none_or(|most| executions < most);
        let next = if called { Some(series.nominal) } else { series.schedule.next(series.nominal) };
        let Some(next) = next.filter(|_| left) else {
            let (trigger, generation) = (row.id.trigger.clone(), row.id.generation);
            self.note(trigger, Verdict::Ended { generation, executions });
            return self.rest(known, slot, row, end);
        };
        series.nominal = next;
        let granted = next <= series.granted;
        row.scheduled = series.schedule.jittered(row.id.trigger.as_str(), next);
        let slot_at = if granted { self.made_up() } else { 0 };
        let due = self.due_of(&row).max(slot_at);
        if planted(Bug::NextOutOfLedger) {
            self.lift(known, slot);
            let key = TimelineKey { due, ..slot.key };
            known.slots.push(Slot::of(key, &row));
            let bytes = self.encode(&Row::Fire(row));
            return self.put(key, bytes);
        }
        self.stand(known, slot, row, due);
    }

    /// An occurrence does not fire, and the next one takes its place.
    pub(super) fn leave_out(&mut self, known: &mut Known, slot: &Slot, row: FireRow) {
        self.follow(known, slot, row, false, Some(true));
    }

    /// A worker has said how an occurrence ended while the next one waits at `slot`.
    pub(super) fn occurrence_ended(
        &mut self,
        known: &mut Known,
        slot: &Slot,
        mut row: FireRow,
        occurrence: u32,
        ok: bool,
    ) {
        let before = row.clone();
        let Some(course) = row.course.as_deref_mut() else { return };
        let Some(series) = course.series.as_deref_mut() else { return };
        series.failures = if ok { 0 } else { series.failures.saturating_add(1) };
        let _closed = series.open.take_if(|open| open.occurrence == occurrence);
        let released = course.standing == Standing::Queued
            && series.open.is_none()
            && !planted(Bug::QueueStuck);
        if released {
            course.standing = Standing::Pending;
        }
        let watchers = std::mem::take(&mut course.watchers);
        self.tell(&row.id.trigger, watchers, ok);
        self.pause_if_failing(&mut row);
        if row == before {
            return;
        }
        let paused = |row: &FireRow| row.course.as_ref().is_some_and(|course| course.paused);
        let stays = paused(&row) == paused(&before) && !released;
        let due = if stays { slot.key.due } else { self.due_of(&row) };
        self.stand(known, slot, row, due);
    }

    /// After so many failures in a row as the schedule says a person must look at it.
    fn pause_if_failing(&mut self, row: &mut FireRow) {
        let Some(Course { series: Some(series), paused, .. }) = row.course.as_deref_mut() else {
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
        let verdict = Verdict::Paused { generation: row.id.generation, reason };
        self.note(row.id.trigger.clone(), verdict);
    }
}

/// What a misfire comes to.
struct Missed {
    /// How many are left out, and when the last of them was due.
    skipped: Option<(u32, Timestamp)>,
    /// The occurrence that is next.
    next: Option<Timestamp>,
    /// Occurrences up to here fire however late they are.
    granted: Timestamp,
}

/// The next occurrence of `series` and everything up to `now` by its rule.
fn misfire(series: &Series, now: Timestamp, grace: Millis) -> Missed {
    let Series { schedule, nominal, granted, .. } = series;
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
        Misfire::All { max } => (Some(schedule.last_of(before, now, max)), now),
    };
    // Without a next one, all there were are left out.
    let until = first.unwrap_or(Timestamp::MAX).saturating_sub(1);
    // Jitter may have made this one due, and late, before it comes by the schedule.
    let left_out = schedule.latest(before, until.min(now.max(*nominal)));
    let skipped = left_out.map(|(last, others)| (others.saturating_add(1), last));
    Missed { skipped, next: first, granted }
}
