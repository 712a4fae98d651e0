//! Which days of a month are meant.
//!
//! Invariant: the days of a month are a set of bits, day d in bit d, that follows from the month's
//! length and the weekday of its first day alone. So the next day is a shift and a count of zeros.

use jiff::civil::Date;

/// Bit d: day d of a month.
pub(super) type DaySet = u64;

/// Every day that a month can have.
pub(super) const EVERY_DAY: DaySet = 0xFFFF_FFFE;
/// Every day of a week, Sunday in bit 0.
pub(super) const EVERY_WEEKDAY: u64 = 0x7F;

/// The days that are meant, by their number, by their weekday or by both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Days {
    /// By their place in the month.
    pub(super) of_month: DaysOfMonth,
    /// By their place in the week.
    pub(super) of_week: DaysOfWeek,
    /// One of the two is enough; else both are needed.
    pub(super) either: bool,
}

/// Days by their place in the month.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DaysOfMonth {
    /// By their number.
    pub(super) numbered: DaySet,
    /// A number that a month lacks means its last day; else the month goes without.
    pub(super) clipped: bool,
    /// Bit n: the day n days before the last.
    pub(super) before_last: DaySet,
    /// The Monday to Friday nearest to these days, within the month.
    pub(super) nearest: DaySet,
    /// The last Monday to Friday.
    pub(super) last_working: bool,
}

/// Days by their weekday: bit w of a set is weekday w, Sunday 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DaysOfWeek {
    /// Each of them.
    pub(super) each: u64,
    /// The first, second, third, fourth and fifth of the month.
    pub(super) nth: [u64; 5],
    /// The last of the month.
    pub(super) last: u64,
}

/// Every day.
impl Default for DaysOfMonth {
    fn default() -> Self {
        Self { numbered: EVERY_DAY, ..Self::NONE }
    }
}

/// Every day.
impl Default for DaysOfWeek {
    fn default() -> Self {
        Self { each: EVERY_WEEKDAY, ..Self::NONE }
    }
}

impl Days {
    /// The days meant in the month of `date`.
    pub(super) fn in_month(&self, date: Date) -> DaySet {
        let first = date.first_of_month().weekday().to_sunday_zero_offset();
        let month =
            Month { first: first.unsigned_abs().into(), length: date.days_in_month() as u32 };
        let (by_number, by_weekday) = (self.of_month.days_in(month), self.of_week.days_in(month));
        if self.either { by_number | by_weekday } else { by_number & by_weekday }
    }
}

impl DaysOfMonth {
    /// No day at all.
    pub(super) const NONE: Self =
        Self { numbered: 0, clipped: false, before_last: 0, nearest: 0, last_working: false };

    fn days_in(&self, month: Month) -> DaySet {
        let has = |day: &u32| (1..=month.length).contains(day);
        let mut days = self.numbered & month.days();
        if self.clipped && days != self.numbered {
            days |= 1 << month.length;
        }
        for back in set_bits(self.before_last) {
            days |= (1 << month.length) >> back;
        }
        for day in set_bits(self.nearest).filter(has) {
            days |= 1 << month.nearest_working(day);
        }
        if self.last_working {
            days |= 1 << month.nearest_working(month.length);
        }
        days & month.days()
    }
}

impl DaysOfWeek {
    /// No day at all.
    pub(super) const NONE: Self = Self { each: 0, nth: [0; 5], last: 0 };

    fn days_in(&self, month: Month) -> DaySet {
        if *self == Self::default() {
            return month.days();
        }
        let mut days = 0;
        for day in 1..=month.length {
            let mut meant = self.each | self.nth[(day as usize - 1) / 7];
            if day + 7 > month.length {
                meant |= self.last;
            }
            days |= (meant >> month.weekday(day) & 1) << day;
        }
        days
    }
}

#[derive(Clone, Copy)]
struct Month {
    /// The weekday of day 1, Sunday 0.
    first: u32,
    /// How many days it has.
    length: u32,
}

impl Month {
    fn days(self) -> DaySet {
        EVERY_DAY & !(DaySet::MAX << (self.length + 1))
    }

    fn weekday(self, day: u32) -> u32 {
        (self.first + day - 1) % 7
    }

    fn nearest_working(self, day: u32) -> u32 {
        match self.weekday(day) {
            6 if day == 1 => 3,
            6 => day - 1,
            0 if day == self.length => day - 2,
            0 => day + 1,
            _ => day,
        }
    }
}

/// The bits that are set, the lowest first.
pub(super) fn set_bits(mut set: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lowest = (set != 0).then(|| set.trailing_zeros())?;
        set &= set - 1;
        Some(lowest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(days: &Days, year: i16, month: i8) -> Vec<u32> {
        set_bits(days.in_month(Date::constant(year, month, 17))).collect()
    }

    #[test]
    fn a_number_that_a_month_lacks_is_skipped_or_clipped() {
        let of_month = DaysOfMonth { numbered: 1 << 31 | 1 << 5, ..DaysOfMonth::NONE };
        let mut days = Days { of_month, ..Days::default() };
        assert_eq!((meant(&days, 2026, 1), meant(&days, 2026, 2)), (vec![5, 31], vec![5]));
        days.of_month.clipped = true;
        assert_eq!((meant(&days, 2026, 2), meant(&days, 2024, 2)), (vec![5, 28], vec![5, 29]));
    }

    #[test]
    fn days_count_from_the_end() {
        let of_month = DaysOfMonth { before_last: 0b1001, ..DaysOfMonth::NONE };
        let days = Days { of_month, ..Days::default() };
        assert_eq!((meant(&days, 2026, 2), meant(&days, 2026, 4)), (vec![25, 28], vec![27, 30]));
        let of_month = DaysOfMonth { before_last: 1 << 30, ..DaysOfMonth::NONE };
        let days = Days { of_month, ..Days::default() };
        assert_eq!((meant(&days, 2026, 1), meant(&days, 2026, 2)), (vec![1], vec![]));
    }

    /// 2026-08-01 is a Saturday, 2026-05-31 a Sunday, 2026-02-28 a Saturday.
    #[test]
    fn the_nearest_working_day_stays_in_its_month() {
        let near = |nearest, last_working| Days {
            of_month: DaysOfMonth { nearest, last_working, ..DaysOfMonth::NONE },
            ..Days::default()
        };
        assert_eq!(meant(&near(1 << 1, false), 2026, 8), [3]);
        assert_eq!(meant(&near(1 << 15, false), 2026, 8), [14]);
        assert_eq!(meant(&near(1 << 16, false), 2026, 8), [17]);
        assert_eq!(meant(&near(1 << 31, false), 2026, 5), [29]);
        assert_eq!(meant(&near(1 << 31, false), 2026, 2), [0; 0]);
        assert_eq!(
            (meant(&near(0, true), 2026, 5), meant(&near(0, true), 2026, 2)),
            (vec![29], vec![27])
        );
    }

    /// August 2026 has five Saturdays and Sundays, and five Mondays.
    #[test]
    fn weekdays_are_counted_within_the_month() {
        let week = |of_week| Days { of_week, ..Days::default() };
        let first_monday = DaysOfWeek { nth: [0b10, 0, 0, 0, 0], ..DaysOfWeek::NONE };
        assert_eq!(meant(&week(first_monday), 2026, 8), [3]);
        let fifth_monday = DaysOfWeek { nth: [0, 0, 0, 0, 0b10], ..DaysOfWeek::NONE };
        assert_eq!(meant(&week(fifth_monday.clone()), 2026, 8), [31]);
        assert_eq!(meant(&week(fifth_monday), 2026, 9), [0; 0]);
        let last_friday = DaysOfWeek { last: 1 << 5, ..DaysOfWeek::NONE };
        assert_eq!(meant(&week(last_friday.clone()), 2026, 8), [28]);
        assert_eq!(meant(&week(last_friday), 2026, 7), [31], "and not the 24th, a week before");
    }

    /// Fridays and thirteenths of February 2026: the 13th is a Friday.
    #[test]
    fn days_match_by_both_conditions_or_by_either() {
        let of_month = DaysOfMonth { numbered: 1 << 13 | 1 << 14, ..DaysOfMonth::NONE };
        let of_week = DaysOfWeek { each: 1 << 5, ..DaysOfWeek::NONE };
        let mut days = Days { of_month, of_week, either: true };
        assert_eq!(meant(&days, 2026, 2), [6, 13, 14, 20, 27]);
        days.either = false;
        assert_eq!(meant(&days, 2026, 2), [13]);
    }
}
