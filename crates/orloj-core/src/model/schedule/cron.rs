//! Cron expressions: five fields, or six with seconds first.
//!
//! Invariant: a refusal says which field is wrong and what may stand there. What is accepted has
//! an occurrence.
//!
//! Fields are `*`, `a`, `a-b`, each with `/step`, and lists of these; names are English, of three
//! letters or whole; a range may go round (`FRI-MON`, `22-6`). `L`, `L-3`, `LW` and `15W` are days
//! of the month, `FRI#2` and `FRIL` days of the week, and `?` is `*` in either. As in cron, a day
//! of the month and a day of the week that are both given mean either, unless one begins with `*`.
//!
//! Written here and not taken from croner (4.0.3), which was tried first: its errors do not name
//! the field; it takes names in any field (`MON * * * *` is minute 1) and empty items of lists; its
//! rule for changes of clocks cannot be chosen; and an expression holds five kilobytes, a byte a
//! year.

use super::calendar::{Calendar, TimesOfDay};
use super::days::{Days, DaysOfMonth, DaysOfWeek};

/// One field of an expression.
pub(super) struct CronField {
    /// What a value of it is called.
    name: &'static str,
    /// The lowest value.
    min: u32,
    /// The highest that may be written; Sunday is 0 and 7.
    max: u32,
    /// How many different values there are.
    count: u32,
    /// Names of the values, from the lowest on.
    names: &'static [&'static str],
    /// What may be given.
    help: &'static str,
}

const SECOND: CronField = CronField::numbers("second", 0, 59, "0 to 59");
const MINUTE: CronField = CronField::numbers("minute", 0, 59, "0 to 59");
const HOUR: CronField = CronField::numbers("hour", 0, 23, "0 to 23");
const DAY: CronField = CronField::numbers("day of the month", 1, 31, "1 to 31, L, L-3, LW or 15W");
/// A month.
pub(super) const MONTH: CronField = CronField {
    names: &[
        "january",
        "february",
        "march",
        "april",
        "may",
        "june",
        "july",
        "august",
        "september",
        "october",
        "november",
        "december",
    ],
    ..CronField::numbers("month", 1, 12, "1 to 12, or JAN to DEC")
};
/// A day of the week.
pub(super) const WEEKDAY: CronField = CronField {
    count: 7,
    names: &["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"],
    ..CronField::numbers("day of the week", 0, 7, "0 (Sunday) to 7, SUN to SAT, FRI#2 or FRIL")
};

/// Reads an expression.
pub(super) fn parse(expression: &str) -> Result<Calendar, String> {
    let lower = expression.trim().to_ascii_lowercase();
    let lower = expand_nickname(&lower)?;
    let fields: Vec<&str> = lower.split_ascii_whitespace().collect();
    let (second, minute, hour, day, month, weekday) = match *fields.as_slice() {
        [minute, hour, day, month, weekday] => ("0", minute, hour, day, month, weekday),
        [second, minute, hour, day, month, weekday] => (second, minute, hour, day, month, weekday),
        _ => {
            let count = fields.len();
            return Err(format!(
                "it has {count} fields: give 5 (minute, hour, day of the month, month, day of the \
                 week), or 6 with seconds first"
            ));
        }
    };
    let times = TimesOfDay {
        seconds: SECOND.parse_list(second)?,
        minutes: MINUTE.parse_list(minute)?,
        hours: HOUR.parse_list(hour)?,
    };
    let is_unrestricted = |field: &str| field.starts_with('*') || field == "?";
    let days = Days {
        of_month: days_of_month(day)?,
        of_week: days_of_week(weekday)?,
        either: !is_unrestricted(day) && !is_unrestricted(weekday),
    };
    Ok(Calendar { months: MONTH.parse_list(month)?, days, times: vec![times] })
}

/// `@daily` and its like.
fn expand_nickname(expression: &str) -> Result<&str, String> {
    match expression {
        "@yearly" | "@annually" => Ok("0 0 1 1 *"),
        "@monthly" => Ok("0 0 1 * *"),
        "@weekly" => Ok("0 0 * * 0"),
        "@daily" | "@midnight" => Ok("0 0 * * *"),
        "@hourly" => Ok("0 * * * *"),
        _ if expression.starts_with('@') => {
            Err("give @hourly, @daily, @weekly, @monthly, @yearly or five fields".to_owned())
        }
        _ if expression.contains("tz=") => Err("give the time zone as zone, beside it".to_owned()),
        _ => Ok(expression),
    }
}

fn days_of_month(text: &str) -> Result<DaysOfMonth, String> {
    if text == "?" {
        return Ok(DaysOfMonth::default());
    }
    let mut days = DaysOfMonth::NONE;
    for item in text.split(',') {
        if item == "l" {
            days.before_last |= 1;
        } else if item == "lw" || item == "wl" {
            days.last_working = true;
        } else if let Some(back) = item.strip_prefix("l-") {
            match back.parse() {
                Ok(back @ 1..=30_u32) => days.before_last |= 1 << back,
                _ => return Err(format!("{item:?} goes back too far: give L-1 to L-30")),
            }
        } else if let Some(day) = item.strip_suffix('w') {
            days.nearest |= 1 << DAY.parse_value(day)?;
        } else {
            days.numbered |= DAY.parse_item(item)?;
        }
    }
    Ok(days)
}

fn days_of_week(text: &str) -> Result<DaysOfWeek, String> {
    if text == "?" {
        return Ok(DaysOfWeek::default());
    }
    let mut days = DaysOfWeek::NONE;
    for item in text.split(',') {
        if let Some((day, nth)) = item.split_once('#') {
            match nth.parse() {
                Ok(nth @ 1..=5_usize) => days.nth[nth - 1] |= 1 << (WEEKDAY.parse_value(day)? % 7),
                _ => return Err(format!("{item:?} is none of a month's: give #1 to #5")),
            }
        } else if let Some(day) = item.strip_suffix('l') {
            days.last |= 1 << (WEEKDAY.parse_value(day)? % 7);
        } else {
            days.each |= WEEKDAY.parse_item(item)?;
        }
    }
    Ok(days)
}

impl CronField {
    const fn numbers(name: &'static str, min: u32, max: u32, help: &'static str) -> Self {
        Self { name, min, max, count: max - min + 1, names: &[], help }
    }

    /// The values of a list, each in its bit.
    pub(super) fn parse_list(&self, list: &str) -> Result<u64, String> {
        list.split(',').try_fold(0, |set, item| Ok(set | self.parse_item(item)?))
    }

    /// A value, by its number or name.
    pub(super) fn parse_value(&self, text: &str) -> Result<u32, String> {
        let is_named = |name: &&str| *name == text || name[..3] == *text;
        let named = self.names.iter().position(is_named);
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let value = match named {
            Some(at) => Some(self.min + at as u32),
            None if digits => text.parse().ok(),
            None => None,
        };
        value.filter(|value| (self.min..=self.max).contains(value)).ok_or_else(|| {
            let Self { name, help, .. } = self;
            format!("{text:?} is no {name}: give {help}")
        })
    }

    fn parse_item(&self, item: &str) -> Result<u64, String> {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (item, None),
        };
        let last = self.min + self.count - 1;
        let (from, mut to) = match (range, range.split_once('-')) {
            ("*", _) => (self.min, last),
            (_, Some((from, to))) => (self.parse_value(from)?, self.parse_value(to)?),
            (_, None) if step.is_some() => (self.parse_value(range)?, last),
            (_, None) => (self.parse_value(range)?, self.parse_value(range)?),
        };
        if to < from {
            to += self.count;
        }
        let step = step.map_or(Ok(1), |step| {
            let fits = |step: &u32| (1..=to.saturating_sub(from)).contains(step);
            let name = self.name;
            step.parse().ok().filter(fits).ok_or_else(|| match to.saturating_sub(from) {
                0 => format!("the {name} {item:?} leaves no room for a step: leave it out"),
                room => format!("the {name} {item:?} has no such step: give 1 to {room}"),
            })
        })?;
        let bit = |value: u32| 1_u64 << ((value - self.min) % self.count + self.min);
        Ok((from..=to).step_by(step as usize).fold(0, |set, value| set | bit(value)))
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::datetime;

    use super::*;
    use crate::model::schedule::days::set_bits;

    fn values(field: &CronField, text: &str) -> Vec<u32> {
        set_bits(field.parse_list(text).unwrap()).collect()
    }

    #[test]
    fn fields_are_lists_of_ranges_with_steps() {
        assert_eq!(values(&MINUTE, "5,50-52,7"), [5, 7, 50, 51, 52]);
        assert_eq!(values(&MINUTE, "*/20"), [0, 20, 40]);
        assert_eq!(values(&MINUTE, "50/4"), [50, 54, 58]);
        assert_eq!(values(&HOUR, "22-2"), [0, 1, 2, 22, 23]);
        assert_eq!(values(&HOUR, "20-4/2"), [0, 2, 4, 20, 22]);
        assert_eq!(values(&DAY, "30-2"), [1, 2, 30, 31]);
        assert_eq!(values(&MONTH, "jan,september-nov"), [1, 9, 10, 11]);
        assert_eq!(values(&WEEKDAY, "*"), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(values(&WEEKDAY, "5-7"), [0, 5, 6]);
        assert_eq!(values(&WEEKDAY, "sat-sunday"), [0, 6]);
        assert_eq!(values(&WEEKDAY, "fri-mon"), [0, 1, 5, 6]);
        assert_eq!(values(&WEEKDAY, "7"), [0]);
    }

    #[test]
    fn expressions_match_the_times_that_cron_would() {
        // From 2026-08-01, a Saturday, on.
        let table = [
            ("0 9 * * MON-FRI", (8, 3, 9, 0, 0)),
            ("*/15 * * * *", (8, 1, 0, 0, 0)),
            ("30 15 10 * * *", (8, 1, 10, 15, 30)),
            ("0 0 L * *", (8, 31, 0, 0, 0)),
            ("0 0 L-2 * ?", (8, 29, 0, 0, 0)),
            ("0 0 LW * *", (8, 31, 0, 0, 0)),
            ("0 0 1W * *", (8, 3, 0, 0, 0)),
            ("0 0 15w * *", (8, 14, 0, 0, 0)),
            ("0 0 ? * MON#1", (8, 3, 0, 0, 0)),
            ("0 0 * * 1#5", (8, 31, 0, 0, 0)),
            ("0 0 * * 7l", (8, 30, 0, 0, 0)),
            ("0 0 * * FriL", (8, 28, 0, 0, 0)),
            ("0 0 13 * FRI", (8, 7, 0, 0, 0)),
            ("0 0 */2 * FRI", (8, 7, 0, 0, 0)),
            ("0 0 */2 * SUN", (8, 9, 0, 0, 0)),
            ("@monthly", (8, 1, 0, 0, 0)),
            ("@weekly", (8, 2, 0, 0, 0)),
        ];
        for (text, (month, day, hour, minute, second)) in table {
            let next = parse(text).unwrap().at_or_after(datetime(2026, 8, 1, 0, 0, 0, 0));
            let expected = datetime(2026, month, day, hour, minute, second, 0);
            assert_eq!(next, Some(expected), "{text}");
        }
    }

    #[test]
    fn errors_name_the_wrong_field() {
        let table = [
            ("", "it has 0 fields: give 5"),
            ("* * * *", "it has 4 fields"),
            ("0 0 0 1 1 ? 2030", "it has 7 fields"),
            ("*/0 * * * *", "the minute \"*/0\" has no such step: give 1 to 59"),
            ("*/60 * * * *", "the minute \"*/60\" has no such step"),
            ("* * * * */7", "the day of the week \"*/7\" has no such step: give 1 to 6"),
            ("59/5 * * * *", "leaves no room for a step"),
            ("60 * * * *", "\"60\" is no minute: give 0 to 59"),
            ("* 24 * * *", "\"24\" is no hour"),
            ("* * 0 * *", "\"0\" is no day of the month"),
            ("* * 32W * *", "\"32\" is no day of the month"),
            ("* * L-31 * *", "give L-1 to L-30"),
            ("* * * 13 *", "\"13\" is no month"),
            ("* * * * 8", "\"8\" is no day of the week"),
            ("* * * * MOON", "\"moon\" is no day of the week: give 0 (Sunday) to 7, SUN to SAT"),
            ("* * * * L", "\"\" is no day of the week"),
            ("* * * * MON#6", "give #1 to #5"),
            ("MON * * * *", "\"mon\" is no minute"),
            ("1,,2 * * * *", "\"\" is no minute"),
            ("+5 * * * *", "\"+5\" is no minute"),
            ("1-2-3 * * * *", "\"2-3\" is no minute"),
            ("1/2/3 * * * *", "\"1/2/3\" has no such step"),
            ("@reboot", "give @hourly"),
            ("TZ=UTC 0 0 * * *", "give the time zone as zone"),
            ("ä ö ü ß *", "\"ä\" is no minute"),
        ];
        for (text, expected) in table {
            let reason = parse(text).unwrap_err();
            assert!(reason.contains(expected), "{text}: {reason}");
        }
    }
}
