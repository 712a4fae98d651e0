//! Occurrences whose time has passed: how many there are, and the last ones of them.
//!
//! Invariant: they are counted, not visited, so that the cost does not grow with their number. The
//! results are those of stepping from one occurrence to the next.

use jiff::civil::DateTime;
use jiff::tz::Offset;

use super::form::RecurrenceRule;
use super::interval::Interval;
use super::local_time::{self, WallClockSpan, moment};
use super::{Schedule, work};
use crate::model::{Millis, Timestamp};

/// Skipped occurrences that are counted: a larger number need not be exact.
const SKIPPED_MAX: u32 = 10_000;
/// How far before the end of a span the last occurrences are looked for first, in ms.
const NEAR_END_MS: i64 = 60_000;

/// The occurrences in a period, part by part in order.
struct Missed<'a> {
    rule: &'a RecurrenceRule,
    /// What a rule that counts days or months counts from.
    anchor: DateTime,
    parts: Vec<MissedPart>,
}

/// Occurrences of a part of the period.
enum MissedPart {
    /// One.
    Single(Timestamp),
    /// So many, this many ms apart.
    Steps { first: Timestamp, step: Millis, count: u64 },
    /// Those that the wall clock shows.
    WallClock(WallClockSpan),
}

impl Schedule {
    /// The latest occurrence after `last` and no later than `now`, and how many others there are
    /// between (10,000 stands for more). Finding it takes no longer the more there are.
    #[must_use]
    pub fn latest(&self, last: Timestamp, now: Timestamp) -> Option<(Timestamp, u32)> {
        let missed = self.missed(last, now)?;
        let latest = missed.nth_last(1)?;
        let others = missed.count() - 1;
        Some((latest, u32::try_from(others).map_or(SKIPPED_MAX, |all| all.min(SKIPPED_MAX))))
    }

    /// The first of the latest `count` occurrences after `last` and no later than `now`; `last` + 1
    /// if there are none. Finding it takes no longer the more there are.
    #[must_use]
    pub fn first_of_latest(&self, last: Timestamp, now: Timestamp, count: u32) -> Timestamp {
        let first = self.missed(last, now).and_then(|missed| {
            let wanted = u64::from(count.max(1)).min(missed.count());
            missed.nth_last(wanted)
        });
        first.unwrap_or_else(|| last.saturating_add(1))
    }

    /// The occurrences after `last` and no later than `now`.
    fn missed(&self, last: Timestamp, now: Timestamp) -> Option<Missed<'_>> {
        let anchor_ms = self.start.unwrap_or(last);
        let mut after = last.max(anchor_ms.saturating_sub(1));
        let until = self.end.map_or(now, |end| now.min(end.saturating_sub(1)));
        let anchor = self.zone.to_datetime(moment(anchor_ms)?);
        let mut missed = Missed { rule: &self.rule, anchor, parts: Vec::new() };
        if let RecurrenceRule::Interval(step) = self.rule {
            if let Interval::Millis(step) = step {
                let first = self.following(after, anchor_ms)?.at;
                let count = until.checked_sub(first)? / step + 1;
                missed.parts.push(MissedPart::Steps { first, step, count });
                return Some(missed);
            }
            if after < anchor_ms && anchor_ms <= until {
                missed.parts.push(MissedPart::Single(anchor_ms));
                after = anchor_ms;
            }
        }
        let is_in_gap = |from, until| missed.count_between(from, until) > 0;
        let spans = local_time::spans(&self.zone, self.dst, (after, until), is_in_gap);
        missed.parts.extend(spans.into_iter().map(MissedPart::WallClock));
        Some(missed)
    }
}

impl Missed<'_> {
    fn count(&self) -> u64 {
        self.parts.iter().map(|part| self.count_in(part)).sum()
    }

    fn count_in(&self, part: &MissedPart) -> u64 {
        match *part {
            MissedPart::Single(_) | MissedPart::WallClock(WallClockSpan::Shifted { .. }) => 1,
            MissedPart::Steps { count, .. } => count,
            MissedPart::WallClock(WallClockSpan::Running { offset, from, until }) => {
                self.count_running(offset, from, until)
            }
        }
    }

    /// The occurrence after which there are `n` - 1 others.
    fn nth_last(&self, mut n: u64) -> Option<Timestamp> {
        for part in self.parts.iter().rev() {
            let count = self.count_in(part);
            if 0 < n && n <= count {
                return self.nth_last_in(part, count, n);
            }
            n -= count;
        }
        None
    }

    fn nth_last_in(&self, part: &MissedPart, count: u64, n: u64) -> Option<Timestamp> {
        match *part {
            MissedPart::Single(at) => Some(at),
            MissedPart::Steps { first, step, .. } => Some(first + (count - n) * step),
            MissedPart::WallClock(WallClockSpan::Shifted { at }) => Timestamp::try_from(at).ok(),
            MissedPart::WallClock(WallClockSpan::Running { offset, from, until }) => {
                let has_n = |from| self.count_running(offset, from, until) >= n;
                Timestamp::try_from(last_that(from, until, has_n)).ok()
            }
        }
    }

    /// How many the wall clock shows from `from` until `until` (exclusive), in ms since the epoch.
    fn count_running(&self, offset: Offset, from: i64, until: i64) -> u64 {
        let shown = |at| jiff::Timestamp::from_millisecond(at).map(|at| offset.to_datetime(at));
        match (shown(from), shown(until)) {
            (Ok(from), Ok(until)) => self.count_between(from, until),
            _ => 0,
        }
    }

    /// How many times of the wall clock are meant from `from` until `until` (exclusive).
    fn count_between(&self, from: DateTime, until: DateTime) -> u64 {
        work::count(1);
        match self.rule {
            RecurrenceRule::Interval(step) => step.count(self.anchor, from, until),
            RecurrenceRule::Calendar(calendar) => calendar.count(from, until),
        }
    }
}

/// The last time from `from` on and before `until` at which `holds`; it holds at `from`, and after
/// the last time no more. Looks near the end first.
fn last_that(from: i64, until: i64, holds: impl Fn(i64) -> bool) -> i64 {
    let (mut low, mut high, mut back) = (from, until, NEAR_END_MS);
    while low < until.saturating_sub(back) {
        let near = until - back;
        if holds(near) {
            low = near;
        } else {
            high = near;
            back = back.saturating_mul(8);
        }
    }
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZoneDatabase;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::model::schedule::tests::any_cron;

    /// Occurrences that a test visits at most.
    const VISITED_MAX: usize = 11_000;
    /// Changes by an hour, half an hour, two hours, at midnight, of a whole day, twice a year more
    /// often than elsewhere, and none.
    const ZONES: [&str; 9] = [
        "UTC",
        "Europe/Prague",
        "America/Santiago",
        "America/Havana",
        "Australia/Lord_Howe",
        "Antarctica/Troll",
        "Africa/Casablanca",
        "Pacific/Apia",
        "Asia/Kolkata",
    ];

    /// The occurrences after `last` and no later than `now`, from one to the next.
    fn visited(schedule: &Schedule, last: Timestamp, now: Timestamp) -> Vec<Timestamp> {
        let anchor = schedule.start.unwrap_or(last);
        let next = |at| Some(schedule.following(at, anchor)?.at);
        let first = next(last.max(anchor.saturating_sub(1)));
        let all = std::iter::successors(first, |at| next(*at)).take_while(|at| *at <= now);
        all.take(VISITED_MAX).collect()
    }

    fn any_form() -> impl Strategy<Value = String> {
        let time = (0..24, 0..60).prop_map(|(hour, minute)| format!(r#""{hour}:{minute:02}""#));
        let times = proptest::collection::vec(time, 1..4).prop_map(|times| times.join(","));
        let days = select(vec!["mon", "sat-sun", "weekdays"]);
        let dates = select(vec!["1", "31", r#""last""#, r#""first monday""#, r#""last weekday""#]);
        prop_oneof![
            4 => any_cron().prop_map(|cron| format!(r#""cron": "{cron}""#)),
            1 => Just(r#""cron": "* * * * *""#.to_owned()),
            1 => Just(r#""cron": "*/30 * * * * *""#.to_owned()),
            1 => (1_000..1_000_000_000_u64).prop_map(|ms| format!(r#""every": {ms}"#)),
            1 => (1..40).prop_map(|days| format!(r#""every": "P{days}D""#)),
            1 => (1..14).prop_map(|months| format!(r#""every": "P{months}M""#)),
            2 => times.clone().prop_map(|at| format!(r#""daily": [{at}]"#)),
            1 => (days, times.clone())
                .prop_map(|(on, at)| format!(r#""weekly": {{"on": "{on}", "at": [{at}]}}"#)),
            1 => (dates, times)
                .prop_map(|(on, at)| format!(r#""monthly": {{"on": [{on}], "at": [{at}]}}"#)),
        ]
    }

    /// A schedule, and a time near a change of its zone's clocks.
    fn any_case() -> impl Strategy<Value = (Schedule, Timestamp)> {
        let rules = (select(vec!["", "skip", "shift"]), select(vec!["first", "last", "both"]));
        let bounds = (any::<bool>(), 0..200_000_000_u64, any::<bool>(), 0..4_000_000_000_u64);
        let time = (1_300_000_000_000..2_200_000_000_000_u64, -20_000_000..20_000_000_i64);
        (any_form(), select(ZONES.to_vec()), rules, bounds, time).prop_filter_map(
            "it never comes",
            |(form, zone, (gap, overlap), (starts, before, ends, after), (time, distance))| {
                let changes = TimeZoneDatabase::bundled().get(zone).unwrap();
                let change = changes.following(moment(time)?).next();
                let change = change.map_or(time, |at| at.timestamp().as_millisecond() as u64);
                let near = change.saturating_add_signed(distance);
                let mut json = format!(r#"{{{form}, "zone": "{zone}""#);
                if starts || form.contains("every") {
                    json += &format!(r#", "start": {}"#, near - before);
                }
                if ends {
                    json += &format!(r#", "end": {}"#, near + after);
                }
                let dst = format!(r#", "dst": {{"gap": "{gap}", "overlap": "{overlap}"}}"#);
                let dst = if gap.is_empty() { "" } else { &dst };
                let read = |dst| Schedule::from_json(&format!("{json}{dst}}}")).ok();
                Some((read(dst).or_else(|| read(""))?, near))
            },
        )
    }

    fn assert_counted_as_visited(schedule: &Schedule, last: Timestamp, now: Timestamp) {
        let visited = visited(schedule, last, now);
        // Where there are too many to visit, up to the last one that was.
        let now = if visited.len() == VISITED_MAX { visited[VISITED_MAX - 1] } else { now };
        let others = visited.len().saturating_sub(1).min(SKIPPED_MAX as usize) as u32;
        let latest = visited.last().map(|latest| (*latest, others));
        assert_eq!(schedule.latest(last, now), latest, "{schedule:?} from {last} until {now}");
        for count in [0, 1, 2, 3, 10, 1_000, 20_000] {
            let first = visited.len().saturating_sub(count.max(1));
            let first = visited.get(first).copied().unwrap_or(last + 1);
            let found = schedule.first_of_latest(last, now, count as u32);
            assert_eq!(found, first, "{count} of {schedule:?} from {last} until {now}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn what_is_counted_is_what_a_visit_of_each_finds(
            (schedule, near) in any_case(),
            before in 0..90_000_000_u64,
            after_log in 0.0..27.0_f64,
            part in 0.0..1.0_f64,
        ) {
            let (last, now) = (near - before, near + after_log.exp() as u64);
            assert_counted_as_visited(&schedule, last, now);
            let visited = visited(&schedule, last, now);
            if visited.len() < 2 {
                return Ok(());
            }
            let (first, later) = visited.split_at((visited.len() as f64 * part) as usize);
            let (Some(one), Some(other)) = (first.last(), later.last()) else { return Ok(()) };
            for (one, other) in [(*one, *other), (one - 1, *other - 1), (*one, other + 1)] {
                assert_counted_as_visited(&schedule, one, other);
            }
        }
    }

    /// What `spans` relies on.
    #[test]
    fn no_zone_changes_again_before_what_it_has_doubled_is_over() {
        let (mut changes, mut doubled) = (0, 0);
        for name in TimeZoneDatabase::bundled().available() {
            let zone = TimeZoneDatabase::bundled().get(name.as_str()).unwrap();
            let mut offset = zone.to_offset(moment(0).unwrap());
            let mut over = i64::MIN;
            for change in zone.following(moment(0).unwrap()).take(300) {
                let at = change.timestamp().as_millisecond();
                let jump = i64::from(change.offset().seconds() - offset.seconds()) * 1_000;
                assert!(over <= at - jump.min(0).abs(), "{name}: {}", change.timestamp());
                over = at - jump.min(0);
                offset = change.offset();
                changes += 1;
                doubled += u32::from(jump < 0);
            }
        }
        assert!(changes > 10_000 && doubled > 1_000, "{changes} changes, {doubled} back");
    }
}
