//! Times of the wall clock, by the fields of the calendar: months, days, times of day.
//!
//! Invariant: nothing here knows of zones. The calendar repeats after 400 years, so what has not
//! come by then never comes.

use jiff::civil::{Date, DateTime, Time, time};

use super::days::Days;

/// Months after which the calendar repeats.
const CYCLE_MONTHS: u32 = 400 * 12;
/// Seconds of a day.
const DAY_SECONDS: u32 = 86_400;
/// Bits 0 to 23.
const EVERY_HOUR: u64 = 0xFF_FFFF;
/// Bits 1 to 12.
pub(super) const EVERY_MONTH: u64 = 0x1FFE;

/// What the calendar must show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Calendar {
    /// Bit m: month m.
    pub(super) months: u64,
    /// The days of these months.
    pub(super) days: Days,
    /// The times of these days; one at least, and none in two of them.
    pub(super) times: Vec<TimesOfDay>,
}

/// Times of day: every combination of these hours, minutes and seconds, none of them empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TimesOfDay {
    /// Bits 0 to 23.
    pub(super) hours: u64,
    /// Bits 0 to 59.
    pub(super) minutes: u64,
    /// Bits 0 to 59.
    pub(super) seconds: u64,
}

impl Calendar {
    /// The first time that is meant from `from` on, itself included.
    pub(super) fn at_or_after(&self, from: DateTime) -> Option<DateTime> {
        let date = from.date();
        if self.days_in(date) >> date.day() & 1 == 1
            && let Some(time) = self.time_at_or_after(second_of_day(from.time()))
        {
            return Some(date.to_datetime(time));
        }
        Some(self.date_after(date)?.to_datetime(self.time_at_or_after(0)?))
    }

    /// How many times are meant from `from` until `until` (exclusive).
    pub(super) fn count(&self, from: DateTime, until: DateTime) -> u64 {
        if until <= from {
            return 0;
        }
        let before = |at: DateTime| {
            let is_meant = self.days_in(at.date()) >> at.date().day() & 1;
            is_meant * self.times_before(second_of_day(at.time()))
        };
        let days = self.days_between(from.date(), until.date());
        days * self.times_before(DAY_SECONDS) + before(until) - before(from)
    }

    /// Whether it comes in every hour of a day: then it goes by the hour rather than by the day.
    pub(super) fn is_hourly(&self) -> bool {
        self.times.iter().any(|times| times.hours == EVERY_HOUR)
    }

    fn date_after(&self, date: Date) -> Option<Date> {
        let (mut year, mut month, mut passed) = (date.year(), date.month(), date.day());
        for _ in 0..=CYCLE_MONTHS {
            let first = Date::new(year, month, 1).ok()?;
            let left = self.days_in(first) & u64::MAX << (passed + 1);
            if left != 0 {
                return Date::new(year, month, left.trailing_zeros() as i8).ok();
            }
            passed = 0;
            (year, month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
        }
        None
    }

    /// How many days are meant from `from` until `until` (exclusive).
    fn days_between(&self, from: Date, until: Date) -> u64 {
        if self.months == EVERY_MONTH && self.days == Days::default() {
            return (from.duration_until(until).as_hours() / 24).unsigned_abs();
        }
        let first_of = |date: Date| (date.year(), date.month());
        let (mut year, mut month) = first_of(from);
        let mut count = 0;
        while (year, month) <= first_of(until) {
            let Ok(first) = Date::new(year, month, 1) else { break };
            let mut days = self.days_in(first);
            if (year, month) == first_of(from) {
                days &= u64::MAX << from.day();
            }
            if (year, month) == first_of(until) {
                days &= !(u64::MAX << until.day());
            }
            count += u64::from(days.count_ones());
            (year, month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
        }
        count
    }

    /// How many times are meant before this second of a day.
    fn times_before(&self, second: u32) -> u64 {
        self.times.iter().map(|times| times.count_before(second)).sum()
    }

    fn days_in(&self, date: Date) -> u64 {
        if self.months >> date.month() & 1 == 1 { self.days.in_month(date) } else { 0 }
    }

    fn time_at_or_after(&self, second: u32) -> Option<Time> {
        let second = self.times.iter().filter_map(|times| times.at_or_after(second)).min()?;
        Some(time((second / 3_600) as i8, (second / 60 % 60) as i8, (second % 60) as i8, 0))
    }
}

impl TimesOfDay {
    /// This time of day and no other.
    pub(super) fn once(hour: u32, minute: u32, second: u32) -> Self {
        Self { hours: 1 << hour, minutes: 1 << minute, seconds: 1 << second }
    }

    /// How many there are before this second of the day.
    fn count_before(&self, second: u32) -> u64 {
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        let below = |set: u64, bit: u32| u64::from((set & !(u64::MAX << bit)).count_ones());
        let (in_hour, in_minute) =
            (u64::from(self.minutes.count_ones()), u64::from(self.seconds.count_ones()));
        let seconds = (self.minutes >> minute & 1) * below(self.seconds, second);
        let minutes = below(self.minutes, minute) * in_minute + seconds;
        below(self.hours, hour) * in_hour * in_minute + (self.hours >> hour & 1) * minutes
    }

    /// In seconds of the day.
    fn at_or_after(&self, second: u32) -> Option<u32> {
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        let (first_minute, first_second) =
            (self.minutes.trailing_zeros(), self.seconds.trailing_zeros());
        let of = |hour, minute, second| Some(hour * 3_600 + minute * 60 + second);
        if self.hours >> hour & 1 == 1 {
            if self.minutes >> minute & 1 == 1
                && let Some(second) = lowest_bit_from(self.seconds, second)
            {
                return of(hour, minute, second);
            }
            if let Some(minute) = lowest_bit_from(self.minutes, minute + 1) {
                return of(hour, minute, first_second);
            }
        }
        of(lowest_bit_from(self.hours, hour + 1)?, first_minute, first_second)
    }
}

/// The lowest bit of `set` that is set, from bit `from` on.
fn lowest_bit_from(set: u64, from: u32) -> Option<u32> {
    let remaining = set & u64::MAX << from;
    (remaining != 0).then(|| remaining.trailing_zeros())
}

/// Rounded up: what comes at a full second is not to be found within it. May be the next midnight.
fn second_of_day(time: Time) -> u32 {
    let fields = [time.hour(), time.minute(), time.second()].map(|field| field as u32);
    let [hour, minute, second] = fields;
    hour * 3_600 + minute * 60 + second + u32::from(time.subsec_nanosecond() > 0)
}

#[cfg(test)]
mod tests {
    use jiff::civil::{date, datetime};

    use super::*;

    fn calendar(months: u64, days: Days, times: &[TimesOfDay]) -> Calendar {
        Calendar { months, days, times: times.to_vec() }
    }

    #[test]
    fn the_next_time_is_the_nearest() {
        let every_20_min =
            TimesOfDay { hours: 0b11 << 8, minutes: 1 | 1 << 20 | 1 << 40, seconds: 1 };
        let every_day = calendar(EVERY_MONTH, Days::default(), &[every_20_min]);
        let at = |h, m, s| datetime(2026, 12, 31, h, m, s, 0);
        let table = [
            (at(0, 0, 0), at(8, 0, 0)),
            (at(8, 0, 0), at(8, 0, 0)),
            (at(8, 0, 1), at(8, 20, 0)),
            (at(8, 20, 1), at(8, 40, 0)),
            (at(8, 59, 0), at(9, 0, 0)),
            (at(9, 40, 1), datetime(2027, 1, 1, 8, 0, 0, 0)),
            (datetime(2026, 12, 31, 8, 19, 59, 1), at(8, 20, 0)),
            (datetime(2026, 12, 31, 23, 59, 59, 1), datetime(2027, 1, 1, 8, 0, 0, 0)),
        ];
        for (from, expected) in table {
            assert_eq!(every_day.at_or_after(from), Some(expected), "{from}");
        }
        let midnight = calendar(EVERY_MONTH, Days::default(), &[TimesOfDay::once(0, 0, 0)]);
        let from = datetime(2026, 12, 31, 23, 59, 59, 1);
        assert_eq!(midnight.at_or_after(from), Some(datetime(2027, 1, 1, 0, 0, 0, 0)));
    }

    #[test]
    fn several_times_a_day_need_no_pattern() {
        let times = [TimesOfDay::once(17, 30, 0), TimesOfDay::once(9, 0, 0)];
        let twice = calendar(EVERY_MONTH, Days::default(), &times);
        let mut at = datetime(2026, 1, 1, 9, 0, 0, 1);
        for (day, hour, minute) in [(1, 17, 30), (2, 9, 0), (2, 17, 30)] {
            at = twice.at_or_after(at).unwrap();
            assert_eq!(at, date(2026, 1, day).at(hour, minute, 0, 0));
            at = at.checked_add(jiff::SignedDuration::from_secs(1)).unwrap();
        }
    }

    /// A 29 February on a Monday: 2044, 2072, then not before 2112, because 2100 has none.
    #[test]
    fn rare_days_are_found_and_impossible_ones_are_not() {
        let mut days = Days::default();
        days.of_month.numbered = 1 << 29;
        days.of_week.each = 1 << 1;
        let leap_mondays = calendar(1 << 2, days.clone(), &[TimesOfDay::once(0, 0, 0)]);
        let next = |year| leap_mondays.at_or_after(datetime(year, 3, 1, 0, 0, 0, 0)).unwrap();
        assert_eq!([2026, 2044, 2072].map(|year| next(year).year()), [2044, 2072, 2112]);
        days.of_month.numbered = 1 << 30;
        let never = calendar(1 << 2, days, &[TimesOfDay::once(0, 0, 0)]);
        assert_eq!(never.at_or_after(datetime(2026, 1, 1, 0, 0, 0, 0)), None);
    }
}
