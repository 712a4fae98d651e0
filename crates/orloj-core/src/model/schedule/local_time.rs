//! Times of the wall clock in real time: time zones, and changes of clocks.
//!
//! Invariant: between two changes of a zone's offset the wall clock runs with real time, so each
//! such period is searched by itself, in order. So the next occurrence is always later than the
//! last, whatever the rules.
//!
//! ```text
//!   real time   ──────────────┬──────────────────────────┬────────────►
//!   wall clock  … 01:59 │ gap │ 03:00 … 02:59 (first pass) │ 02:00 (second pass) …
//! ```

use std::ops::ControlFlow;

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{SignedDuration, Timestamp as Moment};
use serde::Serialize;

use crate::model::Timestamp;

/// What happens when clocks change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Dst {
    /// About a time that does not come, because clocks go forward over it.
    pub gap: DstGap,
    /// About a time that comes twice, because clocks go back over it.
    pub overlap: DstOverlap,
}

/// What to do about a time that does not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DstGap {
    /// Nothing, that day.
    Skip,
    /// Fire at the first moment after the gap; once, however many times fell into it.
    Shift,
}

/// What to do about a time that comes twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DstOverlap {
    /// Fire when it comes for the first time.
    First,
    /// Fire when it comes for the second time.
    Last,
    /// Fire each time.
    Both,
}

/// A time at which a schedule is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// In ms since the epoch.
    pub at: Timestamp,
    /// What a change of the clocks has to do with it.
    pub note: Option<DstEffect>,
}

/// What a change of the clocks has to do with an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DstEffect {
    /// The time that was meant does not come; this is the first moment after the gap.
    Shifted,
    /// The wall clock shows this time twice; this is the first time.
    First,
    /// This is the second time.
    Second,
}

/// The first occurrence strictly after `after`; `at_or_after` tells which times of the wall clock
/// are meant.
pub(super) fn next(
    zone: &TimeZone,
    dst: Dst,
    after: Timestamp,
    at_or_after: impl Fn(DateTime) -> Option<DateTime>,
) -> Option<Occurrence> {
    let start = moment(after)?;
    let mut offset = zone.to_offset(start);
    let mut from = offset.to_datetime(moment(after + 1)?);
    let mut changes = zone.following(start);
    loop {
        let change = changes.next();
        let end = change.as_ref().map(|change| change.timestamp());
        let span = OffsetSpan { zone, offset, end };
        if let ControlFlow::Break(found) = span.search(dst.overlap, from, &at_or_after) {
            return found;
        }
        let change = change?;
        let before = offset.to_datetime(change.timestamp());
        offset = change.offset();
        from = offset.to_datetime(change.timestamp());
        let in_gap = |time: DateTime| before <= time && time < from;
        if dst.gap == DstGap::Shift && before < from && at_or_after(before).is_some_and(in_gap) {
            let at = Timestamp::try_from(change.timestamp().as_millisecond()).ok()?;
            return Some(Occurrence { at, note: Some(DstEffect::Shifted) });
        }
    }
}

/// What the wall clock does in a part of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WallClockSpan {
    /// It runs with real time at this offset, from `from` until `until` (exclusive), in ms since
    /// the epoch.
    Running { offset: Offset, from: i64, until: i64 },
    /// It goes forward over a time that is meant, which therefore comes now, in ms since the epoch.
    Shifted { at: i64 },
}

/// What the wall clock does after `after` and no later than `until`, without the passes in which
/// times that come twice are not meant. `is_in_gap` tells whether a time is meant from its first
/// argument until its second one (exclusive).
///
/// Clocks never change again before what an earlier change has doubled is over.
pub(super) fn spans(
    zone: &TimeZone,
    dst: Dst,
    (after, until): (Timestamp, Timestamp),
    is_in_gap: impl Fn(DateTime, DateTime) -> bool,
) -> Vec<WallClockSpan> {
    let mut spans = Vec::new();
    let Some(start) = moment(after) else { return spans };
    let max = Moment::MAX.as_millisecond();
    let end = i64::try_from(until).map_or(max, |until| until.saturating_add(1).min(max));
    let mut offset = zone.to_offset(start);
    let mut from = start.as_millisecond() + 1;
    if dst.overlap == DstOverlap::First {
        from = from.max(end_of_doubled(zone, start));
    }
    for change in zone.following(start).map(Some).chain([None]) {
        let at = change.as_ref().map_or(i64::MAX, |change| change.timestamp().as_millisecond());
        let jump = change.as_ref().map_or(0, |change| jump_ms(offset, change.offset()));
        let doubled = if dst.overlap == DstOverlap::Last { jump.min(0) } else { 0 };
        let until = (at + doubled).min(end);
        if from < until {
            spans.push(WallClockSpan::Running { offset, from, until });
        }
        let Some(change) = change.filter(|_| at < end) else { break };
        let before = offset.to_datetime(change.timestamp());
        offset = change.offset();
        from = at;
        if jump > 0 && dst.gap == DstGap::Shift {
            if is_in_gap(before, offset.to_datetime(change.timestamp())) {
                spans.push(WallClockSpan::Shifted { at });
                from = at + 1;
            }
        } else if dst.overlap == DstOverlap::First {
            from = at - jump.min(0);
        }
    }
    spans
}

/// When the wall clock, set back the last time before `moment` or then, shows again what it showed
/// before that; in ms since the epoch.
fn end_of_doubled(zone: &TimeZone, moment: Moment) -> i64 {
    let tick = SignedDuration::from_nanos(1);
    let next = moment.checked_add(tick).ok();
    let Some(change) = next.and_then(|next| zone.preceding(next).next()) else { return i64::MIN };
    let before = change.timestamp().checked_sub(tick).map(|before| zone.to_offset(before));
    let jump = before.map_or(0, |before| jump_ms(before, change.offset()));
    change.timestamp().as_millisecond() - jump.min(0)
}

/// By how many ms the wall clock goes forward (or back, if negative).
fn jump_ms(before: Offset, then: Offset) -> i64 {
    i64::from(then.seconds() - before.seconds()) * 1_000
}

/// A period in which a zone keeps its offset.
struct OffsetSpan<'a> {
    zone: &'a TimeZone,
    offset: Offset,
    /// Where the next one begins, if there is a next one.
    end: Option<Moment>,
}

impl OffsetSpan<'_> {
    /// The first occurrence from `from` on; continues if it is not in this period.
    fn search(
        &self,
        overlap: DstOverlap,
        mut from: DateTime,
        at_or_after: impl Fn(DateTime) -> Option<DateTime>,
    ) -> ControlFlow<Option<Occurrence>> {
        loop {
            let time = at_or_after(from);
            let found = time.and_then(|time| Some((time, self.offset.to_timestamp(time).ok()?)));
            let Some((time, moment)) = found else { return ControlFlow::Break(None) };
            if self.end.is_some_and(|end| end <= moment) {
                return ControlFlow::Continue(());
            }
            let note = self.dst_effect(time);
            match (note, overlap) {
                // It comes again after the change, and so does what is left before it.
                (Some(DstEffect::First), DstOverlap::Last) => return ControlFlow::Continue(()),
                (Some(DstEffect::Second), DstOverlap::First) => {
                    match end_of_second_pass(self.zone, moment) {
                        Some(end) => from = end,
                        None => return ControlFlow::Break(None),
                    }
                }
                _ => {
                    let at = Timestamp::try_from(moment.as_millisecond()).ok();
                    return ControlFlow::Break(at.map(|at| Occurrence { at, note }));
                }
            }
        }
    }

    /// Whether a time of the wall clock comes twice, and which time this is.
    fn dst_effect(&self, time: DateTime) -> Option<DstEffect> {
        match self.zone.to_ambiguous_timestamp(time).offset() {
            AmbiguousOffset::Fold { before, .. } if before == self.offset => Some(DstEffect::First),
            AmbiguousOffset::Fold { .. } => Some(DstEffect::Second),
            AmbiguousOffset::Gap { .. } | AmbiguousOffset::Unambiguous { .. } => None,
        }
    }
}

/// What the wall clock showed when it was set back, the last time before `moment` or then.
fn end_of_second_pass(zone: &TimeZone, moment: Moment) -> Option<DateTime> {
    let tick = SignedDuration::from_nanos(1);
    let change = zone.preceding(moment.checked_add(tick).ok()?).next()?.timestamp();
    Some(zone.to_offset(change.checked_sub(tick).ok()?).to_datetime(change))
}

/// Ms since the epoch, if the calendar reaches that far.
pub(super) fn moment(at: Timestamp) -> Option<Moment> {
    Moment::from_millisecond(i64::try_from(at).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;
    use jiff::tz::TimeZoneDatabase;

    use super::*;

    fn zone(name: &str) -> TimeZone {
        TimeZoneDatabase::bundled().get(name).unwrap()
    }

    fn ms(text: &str) -> Timestamp {
        text.parse::<Moment>().unwrap().as_millisecond() as Timestamp
    }

    /// All occurrences between two times of UTC, as the wall clock and its offset show them.
    fn shown(
        zone: &TimeZone,
        dst: Dst,
        (from, to): (&str, &str),
        at_or_after: impl Fn(DateTime) -> Option<DateTime>,
    ) -> Vec<String> {
        let (mut after, to) = (ms(from) - 1, ms(to));
        let mut all = Vec::new();
        while let Some(found) = next(zone, dst, after, &at_or_after).filter(|o| o.at < to) {
            assert!(found.at > after);
            after = found.at;
            let at = moment(found.at).unwrap().to_zoned(zone.clone());
            let note = found.note.map_or_else(String::new, |note| format!(" {note:?}"));
            all.push(format!("{}{note}", at.strftime("%m-%d %H:%M%:z")));
        }
        all
    }

    fn daily(hour: i8, minute: i8) -> impl Fn(DateTime) -> Option<DateTime> {
        move |from| {
            let today = from.date().at(hour, minute, 0, 0);
            if from <= today { Some(today) } else { today.tomorrow().ok() }
        }
    }

    fn every_20_minutes(from: DateTime) -> Option<DateTime> {
        let mut time = from.date().at(from.hour(), from.minute() / 20 * 20, 0, 0);
        while time < from {
            time = time.checked_add(SignedDuration::from_mins(20)).ok()?;
        }
        Some(time)
    }

    const FORWARD: (&str, &str) = ("2026-03-28T00:00:00Z", "2026-03-31T00:00:00Z");
    const BACK: (&str, &str) = ("2026-10-24T00:00:00Z", "2026-10-27T00:00:00Z");

    #[test]
    fn a_time_in_the_gap_is_skipped_or_shifted() {
        let prague = zone("Europe/Prague");
        let dst = |gap| Dst { gap, overlap: DstOverlap::First };
        let shifted = shown(&prague, dst(DstGap::Shift), FORWARD, daily(2, 30));
        assert_eq!(
            shifted,
            ["03-28 02:30+01:00", "03-29 03:00+02:00 Shifted", "03-30 02:30+02:00"]
        );
        let skipped = shown(&prague, dst(DstGap::Skip), FORWARD, daily(2, 30));
        assert_eq!(skipped, ["03-28 02:30+01:00", "03-30 02:30+02:00"]);
        // The end of the gap is no part of it, its start is.
        let table = [(3, "03-29 03:00+02:00"), (2, "03-29 03:00+02:00 Shifted")];
        for (hour, expected) in table {
            assert_eq!(shown(&prague, dst(DstGap::Shift), FORWARD, daily(hour, 0))[1], expected);
        }
    }

    #[test]
    fn a_search_from_just_before_a_gap_finds_the_shifted_time() {
        let prague = zone("Europe/Prague");
        let dst = Dst { gap: DstGap::Shift, overlap: DstOverlap::First };
        let change = ms("2026-03-29T01:00:00Z");
        let found = next(&prague, dst, change - 1, daily(2, 30)).unwrap();
        assert_eq!((found.at, found.note), (change, Some(DstEffect::Shifted)));
        let tomorrow = next(&prague, dst, change, daily(2, 30)).unwrap();
        assert_eq!(tomorrow.at, ms("2026-03-30T00:30:00Z"));
    }

    #[test]
    fn a_time_that_comes_twice_fires_as_chosen() {
        let prague = zone("Europe/Prague");
        let during_the_change = |overlap| {
            let dst = Dst { gap: DstGap::Skip, overlap };
            let mut all = shown(&prague, dst, BACK, daily(2, 30));
            assert_eq!(all.remove(0), "10-24 02:30+02:00");
            assert_eq!(all.pop().unwrap(), "10-26 02:30+01:00");
            all
        };
        assert_eq!(during_the_change(DstOverlap::First), ["10-25 02:30+02:00 First"]);
        assert_eq!(during_the_change(DstOverlap::Last), ["10-25 02:30+01:00 Second"]);
        let both = ["10-25 02:30+02:00 First", "10-25 02:30+01:00 Second"];
        assert_eq!(during_the_change(DstOverlap::Both), both);
    }

    #[test]
    fn a_change_at_midnight_or_of_half_an_hour_is_like_any_other() {
        // Santiago goes forward at midnight, Lord Howe by half an hour, Troll by two hours.
        let shift = Dst { gap: DstGap::Shift, overlap: DstOverlap::Last };
        let day = ("2026-09-06T00:00:00Z", "2026-09-06T23:00:00Z");
        let shown_there = shown(&zone("America/Santiago"), shift, day, daily(0, 0));
        assert_eq!(shown_there, ["09-06 01:00-03:00 Shifted"]);
        let lord_howe = zone("Australia/Lord_Howe");
        let day = ("2026-10-03T13:00:00Z", "2026-10-04T13:00:00Z");
        assert_eq!(shown(&lord_howe, shift, day, daily(2, 15)), ["10-04 02:30+11:00 Shifted"]);
        let day = ("2026-04-04T13:00:00Z", "2026-04-05T13:00:00Z");
        assert_eq!(shown(&lord_howe, shift, day, daily(1, 45)), ["04-05 01:45+10:30 Second"]);
        let day = ("2026-03-29T00:00:00Z", "2026-03-29T12:00:00Z");
        let troll = shown(&zone("Antarctica/Troll"), shift, day, daily(1, 30));
        assert_eq!(troll, ["03-29 03:00+02:00 Shifted"]);
    }

    #[test]
    fn a_skipped_calendar_day_is_a_gap() {
        let apia = zone("Pacific/Apia");
        let days = ("2011-12-29T12:00:00Z", "2012-01-01T12:00:00Z");
        let at_noon =
            |gap| shown(&apia, Dst { gap, overlap: DstOverlap::First }, days, daily(12, 0));
        let around = ["12-29 12:00-10:00", "12-31 12:00+14:00", "01-01 12:00+14:00"];
        assert_eq!(at_noon(DstGap::Skip), around);
        assert_eq!(at_noon(DstGap::Shift)[1], "12-31 00:00+14:00 Shifted");
        assert_eq!(at_noon(DstGap::Shift)[2], around[1]);
    }

    /// Hourly schedules follow real time: no extra occurrence, and none missing.
    #[test]
    fn hourly_schedules_follow_real_time() {
        let prague = zone("Europe/Prague");
        let dst = Dst { gap: DstGap::Skip, overlap: DstOverlap::Both };
        for (from, to) in [FORWARD, BACK] {
            let (from, to) = (ms(from), ms(to));
            let mut at = from;
            while at < to {
                let found = next(&prague, dst, at, every_20_minutes).unwrap();
                assert_eq!(found.at - at, 20 * 60_000);
                at = found.at;
            }
        }
    }

    #[test]
    fn the_pass_that_is_not_chosen_is_skipped_completely() {
        let prague = zone("Europe/Prague");
        let night = ("2026-10-24T23:40:00Z", "2026-10-25T02:20:00Z");
        let dst = |overlap| Dst { gap: DstGap::Skip, overlap };
        let first = shown(&prague, dst(DstOverlap::First), night, every_20_minutes);
        let shared = |text: &str| text.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let times: Vec<_> = first.iter().map(|text| shared(text)).collect();
        let expected = [
            "10-25 01:40+02:00",
            "10-25 02:00+02:00",
            "10-25 02:20+02:00",
            "10-25 02:40+02:00",
            "10-25 03:00+01:00",
        ];
        assert_eq!(times, expected);
        let last = shown(&prague, dst(DstOverlap::Last), night, every_20_minutes);
        let times: Vec<_> = last.iter().map(|text| shared(text)).collect();
        let expected = [
            "10-25 01:40+02:00",
            "10-25 02:00+01:00",
            "10-25 02:20+01:00",
            "10-25 02:40+01:00",
            "10-25 03:00+01:00",
        ];
        assert_eq!(times, expected);
    }

    #[test]
    fn nothing_is_found_after_the_end_of_the_calendar() {
        let dst = Dst { gap: DstGap::Shift, overlap: DstOverlap::Both };
        let last = date(9999, 12, 31).at(12, 0, 0, 0);
        let never = |from: DateTime| (from <= last).then_some(last);
        for name in ["UTC", "Europe/Prague"] {
            let found = next(&zone(name), dst, ms("9999-12-30T00:00:00Z"), never);
            assert!(found.is_none_or(|found| found.at > ms("9999-12-30T00:00:00Z")));
            assert_eq!(next(&zone(name), dst, Timestamp::MAX, never), None);
            assert_eq!(next(&zone(name), dst, ms("9999-12-30T21:00:00Z") * 2, never), None);
        }
    }
}
