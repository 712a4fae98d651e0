//! `Retry-After`: how long a receiver asks not to be called.
//!
//! Invariant: no clock of another host is trusted. A date counts from the `Date` of the same
//! answer, both by the receiver's clock; only without one does it count from our own time.

use std::time::UNIX_EPOCH;

use reqwest::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};

use crate::model::{Millis, Timestamp};

/// The pause that an answer asks for, in ms; `now` is ours.
pub(super) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Millis> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok().map(str::trim);
    let wanted = text(RETRY_AFTER)?;
    if let Ok(seconds) = wanted.parse::<u64>() {
        return Some(seconds.saturating_mul(1_000));
    }
    let date = |text: &str| {
        let since = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
        Timestamp::try_from(since.as_millis()).ok()
    };
    let from = text(DATE).and_then(date).unwrap_or(now);
    Some(date(wanted)?.saturating_sub(from))
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    const NOON: &str = "Wed, 21 Oct 2026 12:00:00 GMT";
    const LATER: &str = "Wed, 21 Oct 2026 12:02:00 GMT";
    /// Noon by a clock that is a minute fast.
    const NOW: Timestamp = 1_792_584_060_000;

    fn of(after: &'static str, date: Option<&'static str>) -> Option<Millis> {
        let mut headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(after))]);
        headers.extend(date.map(|date| (DATE, HeaderValue::from_static(date))));
        retry_after(&headers, NOW)
    }

    #[test]
    fn seconds_are_seconds() {
        assert_eq!((of("120", None), of(" 0 ", Some(NOON))), (Some(120_000), Some(0)));
        assert_eq!(of("18446744073709551615", None), Some(u64::MAX));
        assert_eq!((of("-1", None), of("soon", None)), (None, None));
        assert_eq!(retry_after(&HeaderMap::new(), NOW), None);
    }

    #[test]
    fn a_date_counts_from_the_answers_own_date() {
        assert_eq!(of(LATER, Some(NOON)), Some(120_000));
        assert_eq!(of(LATER, None), Some(60_000));
        assert_eq!(of(LATER, Some("yesterday")), Some(60_000));
        assert_eq!(of(NOON, Some(LATER)), Some(0), "a date in the past means at once");
        assert_eq!(of("Wednesday, 21-Oct-26 12:02:00 GMT", Some(NOON)), Some(120_000));
    }
}
