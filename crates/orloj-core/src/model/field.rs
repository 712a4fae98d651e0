//! One value of a field that a user wrote, read and validated by its text alone.
//!
//! Invariant: a refusal names the field, shows the value (cut to 80 characters) and says how
//! to fix it.

use std::fmt::Display;

use jiff::{Span, SpanRelativeTo};

use super::{Millis, Timestamp};

/// Why a field is refused, for people.
pub(crate) type Reason = String;

/// Characters of a value that a reason shows.
pub(crate) const SHOWN_CHARS_MAX: usize = 80;

const DURATION_HELP: &str = "give milliseconds, or a duration such as 20m, 1h30m or PT20M";

/// The reason to refuse `value` as `field`.
pub(crate) fn refused(field: &str, value: impl Display, way_out: impl Display) -> Reason {
    let value = value.to_string();
    match value.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((cut, _)) => format!("{field} is {:?}…: {way_out}", &value[..cut]),
        None => format!("{field} is {value:?}: {way_out}"),
    }
}

/// Milliseconds since the epoch as digits, or RFC 3339.
pub(crate) fn time(field: &str, text: &str) -> Result<Timestamp, Reason> {
    if let Ok(ms) = text.parse() {
        return time_ms(field, ms);
    }
    let Ok(time) = text.parse::<jiff::Timestamp>() else {
        let way_out = "give milliseconds since the epoch, or RFC 3339 like 2030-01-31T08:00:00Z";
        return Err(refused(field, text, way_out));
    };
    // Rounded up, because a trigger never fires early.
    let ms = (time.as_nanosecond() + 999_999).div_euclid(1_000_000);
    Timestamp::try_from(ms).map_err(|_| refused(field, text, "give a time after 1970"))
}

/// Milliseconds since the epoch.
pub(crate) fn time_ms(field: &str, ms: i64) -> Result<Timestamp, Reason> {
    Timestamp::try_from(ms).map_err(|_| refused(field, ms, "give a time after 1970"))
}

/// Milliseconds as digits, or a duration with units.
pub(crate) fn delay(field: &str, text: &str) -> Result<Millis, Reason> {
    if let Ok(ms) = text.parse() {
        return delay_ms(field, ms);
    }
    let span = text.parse::<Span>();
    // A month has no fixed length, so a delay cannot be given in months or years.
    let duration = span.and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()));
    let Ok(duration) = duration else { return Err(refused(field, text, DURATION_HELP)) };
    let ms = (duration.as_nanos() + 999_999).div_euclid(1_000_000);
    if ms < 0 {
        return Err(refused(field, text, "a delay counts forward; give zero or more"));
    }
    Ok(Millis::try_from(ms).unwrap_or(Millis::MAX))
}

/// Milliseconds.
pub(crate) fn delay_ms(field: &str, ms: i64) -> Result<Millis, Reason> {
    Millis::try_from(ms)
        .map_err(|_| refused(field, ms, "a delay counts forward; give zero or more"))
}
