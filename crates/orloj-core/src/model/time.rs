//! Points in time as people read and write them: RFC 3339. And lengths of time in ms.

use std::time::Duration;

use super::{Millis, Timestamp};

/// A length of time in whole ms.
#[must_use]
pub fn whole_ms(length: Duration) -> Millis {
    Millis::try_from(length.as_millis()).unwrap_or(Millis::MAX)
}

/// Reads one, in ms since the epoch.
#[must_use]
pub fn parse_time(text: &str) -> Option<Timestamp> {
    let time: jiff::Timestamp = text.parse().ok()?;
    Timestamp::try_from(time.as_millisecond()).ok()
}

/// Writes one, in ms since the epoch, in UTC.
#[must_use]
pub fn format_time(at: Timestamp) -> String {
    let time = i64::try_from(at).ok().and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
    time.map_or_else(|| at.to_string(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_formatted_time_parses_to_the_same_time() {
        assert_eq!(format_time(1_800_000_000_000), "2027-01-15T08:00:00Z");
        for at in [0, 1, 1_800_000_000_123] {
            assert_eq!(parse_time(&format_time(at)), Some(at));
        }
        assert_eq!(parse_time("1969-12-31T23:59:59Z"), None);
        assert_eq!(parse_time("soon"), None);
    }
}
