//! Steps of `every`: a fixed span of real time, or whole days or months of the calendar.
//!
//! Invariant: every time is counted from the anchor, never from the one before. So nothing drifts,
//! and monthly from 31 January on is 28 February, then 31 March.

use std::fmt;

use jiff::civil::DateTime;
use jiff::{SignedDuration, Span};

use crate::model::Millis;
use crate::model::limits::FUTURE_MAX_MS;

const DAY_MS: Millis = 86_400_000;
/// The shortest step, in ms: a second, as in cron.
const INTERVAL_MIN_MS: Millis = 1_000;

/// From one time to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interval {
    /// Milliseconds of real time, whatever the clocks on the wall do.
    Millis(Millis),
    /// Days at the same time of the wall clock.
    Days(i64),
    /// Months on the same day, or the last one that the month has.
    Months(i64),
}

impl Interval {
    /// Reads an ISO 8601 duration, or one like `1h30m`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let help = "give a duration such as PT15M, P1D, P2W or P3M";
        let span: Span = text.parse().map_err(|_| help.to_owned())?;
        let days = i64::from(span.get_weeks()) * 7 + i64::from(span.get_days());
        let months = i64::from(span.get_years()) * 12 + i64::from(span.get_months());
        let time = span.years(0).months(0).weeks(0).days(0);
        let time = SignedDuration::try_from(time).map_err(|_| help.to_owned())?;
        if time.subsec_nanos() % 1_000_000 != 0 {
            return Err("give whole milliseconds".to_owned());
        }
        let step = match (months, days, time.as_millis()) {
            (0, 0, ms) => Self::from_millis(Millis::try_from(ms).unwrap_or_default())?,
            (0, days @ 1.., 0) => Self::Days(days),
            (months @ 1.., 0, 0) => Self::Months(months),
            (..=0, ..=0, _) => return Err("a step goes forward".to_owned()),
            _ => {
                return Err("months, days and hours do not mix, because a day is not always 24 \
                            hours long: give one kind"
                    .to_owned());
            }
        };
        step.check_limit()
    }

    /// A step of real time.
    pub(super) fn from_millis(ms: Millis) -> Result<Self, String> {
        if ms < INTERVAL_MIN_MS {
            return Err("give a second or more".to_owned());
        }
        Self::Millis(ms).check_limit()
    }

    fn check_limit(self) -> Result<Self, String> {
        let longest = match self {
            Self::Millis(ms) => ms,
            Self::Days(days) => days.unsigned_abs().saturating_mul(DAY_MS),
            Self::Months(months) => months.unsigned_abs().saturating_mul(30 * DAY_MS),
        };
        if longest > FUTURE_MAX_MS {
            return Err("give ten years or less".to_owned());
        }
        Ok(self)
    }

    /// The first time of the wall clock from `from` on, counted from `anchor`. Of a step of the
    /// calendar only; real time knows no wall clock.
    pub(super) fn at_or_after(self, anchor: DateTime, from: DateTime) -> Option<DateTime> {
        self.nth(anchor, self.steps_before(anchor, from))
    }

    /// How many times of the wall clock there are from `from` until `until` (exclusive).
    pub(super) fn count(self, anchor: DateTime, from: DateTime, until: DateTime) -> u64 {
        let before = |at| self.steps_before(anchor, at);
        (before(until) - before(from)).try_into().unwrap_or(0)
    }

    /// How many times of the wall clock there are before `until`.
    fn steps_before(self, anchor: DateTime, until: DateTime) -> i64 {
        let (passed, step) = match self {
            Self::Millis(_) => return 0,
            Self::Days(days) => (anchor.date().duration_until(until.date()).as_hours() / 24, days),
            Self::Months(months) => {
                let of = |at: DateTime| i64::from(at.year()) * 12 + i64::from(at.month());
                (of(until) - of(anchor), months)
            }
        };
        let mut steps = (passed / step).max(0);
        while self.nth(anchor, steps).is_some_and(|time| time < until) {
            steps += 1;
        }
        steps
    }

    /// The time of the wall clock after so many steps, if the calendar reaches that far.
    fn nth(self, anchor: DateTime, steps: i64) -> Option<DateTime> {
        let span = match self {
            Self::Millis(_) => return None,
            Self::Days(days) => Span::new().try_days(steps * days),
            Self::Months(months) => Span::new().try_months(steps * months),
        };
        anchor.checked_add(span.ok()?).ok()
    }
}

/// As ISO 8601.
impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Millis(ms) => f.write_str(&iso(*ms)),
            Self::Days(days) => write!(f, "P{days}D"),
            Self::Months(months) => write!(f, "P{months}M"),
        }
    }
}

/// A span of real time as ISO 8601.
pub(super) fn iso(ms: Millis) -> String {
    SignedDuration::from_millis(i64::try_from(ms).unwrap_or(i64::MAX)).to_string()
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    #[test]
    fn an_interval_has_one_unit_kind() {
        let table = [
            ("PT15M", Interval::Millis(900_000), "PT15M"),
            ("90m", Interval::Millis(5_400_000), "PT1H30M"),
            ("PT1.5S", Interval::Millis(1_500), "PT1.5S"),
            ("PT48H", Interval::Millis(172_800_000), "PT48H"),
            ("P1D", Interval::Days(1), "P1D"),
            ("P2W", Interval::Days(14), "P14D"),
            ("P1W1D", Interval::Days(8), "P8D"),
            ("P1M", Interval::Months(1), "P1M"),
            ("P1Y6M", Interval::Months(18), "P18M"),
        ];
        for (text, step, canonical) in table {
            assert_eq!(Interval::parse(text), Ok(step), "{text}");
            assert_eq!(step.to_string(), canonical);
            assert_eq!(Interval::parse(canonical), Ok(step));
        }
        for (text, reason) in [
            ("", "give a duration"),
            ("15", "give a duration"),
            ("PT0S", "a second or more"),
            ("PT0.5S", "a second or more"),
            ("PT1.0005S", "whole milliseconds"),
            ("-PT5M", "a second or more"),
            ("-P5D", "goes forward"),
            ("P1DT12H", "do not mix"),
            ("P1M1D", "do not mix"),
            ("P11Y", "ten years"),
            ("P9999Y", "ten years"),
        ] {
            let refused = Interval::parse(text).unwrap_err();
            assert!(refused.contains(reason), "{text}: {refused}");
        }
    }

    #[test]
    fn months_are_clipped_and_do_not_drift() {
        let anchor = date(2027, 1, 31).at(9, 30, 0, 0);
        let mut from = anchor;
        for (month, day) in [(1, 31), (2, 28), (3, 31), (4, 30)] {
            let time = Interval::Months(1).at_or_after(anchor, from);
            assert_eq!(time, Some(date(2027, month, day).at(9, 30, 0, 0)));
            from = date(2027, month, day).at(9, 30, 0, 1);
        }
        assert_eq!(
            Interval::Months(5).at_or_after(anchor, date(2020, 1, 1).at(0, 0, 0, 0)),
            Some(anchor)
        );
    }

    #[test]
    fn days_keep_the_time_of_day() {
        let anchor = date(2027, 1, 31).at(9, 30, 0, 5);
        let from = date(2027, 2, 28).at(9, 30, 0, 6);
        let expected = date(2027, 3, 14).at(9, 30, 0, 5);
        assert_eq!(Interval::Days(14).at_or_after(anchor, from), Some(expected));
    }
}
