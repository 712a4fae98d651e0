//! One field of a registration in any form: read and checked by its bytes alone.
//!
//! Invariant: a refusal names the field, shows the value (cut to 80 characters) and says how
//! to fix it.

pub(super) use crate::model::field::{Reason, delay, delay_ms, refused, time, time_ms};

use crate::model::callback_url;
use crate::model::definition::is_pool_name;
use crate::model::field::SHOWN_CHARS_MAX;
use crate::model::input::{ChangedParts, OnConflict};
use crate::model::limits::{
    CALLER_BYTES_MAX, FINAL_STATUSES_MAX, ID_BYTES_MAX, POOL_BYTES_MAX, RETRY_ATTEMPTS_MAX,
    RETRY_DELAY_MAX_MS, RETRY_DELAYS_MAX, TIMEOUT_MAX_MS, TOPIC_BYTES_MAX,
};
use crate::model::text::Text;
use crate::model::{Millis, Offset, Timestamp};

/// The methods a callback may use. CONNECT and TRACE would address a proxy, not a receiver.
const METHODS: [&str; 5] = ["POST", "PUT", "PATCH", "DELETE", "GET"];

/// Bytes that must be UTF-8.
pub(super) fn utf8<'a>(field: &str, bytes: &'a [u8]) -> Result<&'a str, Reason> {
    std::str::from_utf8(bytes).map_err(|_| {
        // A reason need not show more than this, however long the value is.
        let start = &bytes[..bytes.len().min(4 * SHOWN_CHARS_MAX)];
        refused(field, String::from_utf8_lossy(start), "give UTF-8")
    })
}

/// A trigger id: the record's key.
pub(super) fn id(key: Option<&[u8]>) -> Result<Text, Reason> {
    let field = "the key (trigger id)";
    let Some(key) = key.filter(|key| !key.is_empty()) else {
        return Err(format!("{field} is missing: give each trigger an id as its record's key"));
    };
    name(field, utf8(field, key)?, ID_BYTES_MAX)
}

/// The caller that registers.
pub(super) fn caller(field: &str, text: &str) -> Result<Text, Reason> {
    name(field, text, CALLER_BYTES_MAX)
}

/// Seconds since the epoch, as kafka-message-scheduler counts them.
pub(super) fn time_seconds(field: &str, text: &str) -> Result<Timestamp, Reason> {
    let seconds: i64 =
        text.parse().map_err(|_| refused(field, text, "give seconds since the epoch"))?;
    time_ms(field, seconds.saturating_mul(1_000))
}

/// A topic's name, by Kafka's own rule.
pub(super) fn topic(field: &str, name: &str) -> Result<Text, Reason> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let sized = (1..=TOPIC_BYTES_MAX).contains(&name.len());
    if !sized || !name.bytes().all(legal) || name == "." || name == ".." {
        let way_out = format!(
            "a topic's name has 1 to {TOPIC_BYTES_MAX} letters, digits, dots, underscores or dashes"
        );
        return Err(refused(field, name, way_out));
    }
    Ok(Text::from(name))
}

/// A callback's URL. Whether policy allows it is checked by the gateway and the worker.
pub(super) fn url(field: &str, url: &str) -> Result<Text, Reason> {
    match callback_url::parse(url) {
        Ok(_) => Ok(Text::from(url)),
        Err(fault) => Err(refused(field, url, fault)),
    }
}

/// The method of a callback.
pub(super) fn method(field: &str, text: &str) -> Result<Text, Reason> {
    match METHODS.iter().find(|method| method.eq_ignore_ascii_case(text)) {
        Some(method) => Ok(Text::from(*method)),
        None => Err(refused(field, text, format!("give one of {}", METHODS.join(", ")))),
    }
}

/// A priority.
pub(super) fn priority(field: &str, text: &str) -> Result<u8, Reason> {
    text.parse().map_err(|_| refused(field, text, "give 0 (fires last) to 255 (fires first)"))
}

/// What to do about a pending trigger of the same id.
pub(super) fn on_conflict(field: &str, text: &str) -> Result<OnConflict, Reason> {
    match text {
        "replace" => Ok(OnConflict::Replace),
        "keep" => Ok(OnConflict::Keep),
        _ => Err(refused(field, text, "give replace or keep")),
    }
}

/// Parts of a trigger that a change names, none or several.
pub(super) fn changed_parts(field: &str, text: &str) -> Result<ChangedParts, Reason> {
    let mut parts = ChangedParts::default();
    for part in split_list(text) {
        let named = match part {
            "time" => &mut parts.time,
            "after" => &mut parts.after,
            "payload" => &mut parts.payload,
            "key" => &mut parts.key,
            _ => return Err(refused(field, part, "name time, after, payload or key")),
        };
        *named = true;
    }
    Ok(parts)
}

/// An offset, such as a generation.
pub(super) fn offset(field: &str, text: &str) -> Result<Offset, Reason> {
    let offset = text.parse().ok().filter(|offset| *offset <= i64::MAX.unsigned_abs());
    offset.ok_or_else(|| refused(field, text, "give the generation as a whole number"))
}

/// A pool's name: what can follow `<prefix>.fires.` in a topic's name, and holds no further dot.
pub(super) fn pool(field: &str, name: &str) -> Result<Text, Reason> {
    if is_pool_name(name) {
        return Ok(Text::from(name));
    }
    let way_out =
        format!("a pool's name has 1 to {POOL_BYTES_MAX} letters, digits, underscores or dashes");
    Err(refused(field, name, way_out))
}

/// How long an attempt may take, in ms.
pub(super) fn timeout(field: &str, timeout: Millis) -> Result<Millis, Reason> {
    if (1..=TIMEOUT_MAX_MS).contains(&timeout) {
        return Ok(timeout);
    }
    Err(refused(field, timeout, format!("give 1 to {TIMEOUT_MAX_MS} ms (an hour)")))
}

/// Attempts in all.
pub(super) fn attempts(field: &str, text: &str) -> Result<u32, Reason> {
    let attempts = text.parse().ok().filter(|count| (1..=RETRY_ATTEMPTS_MAX).contains(count));
    attempts.ok_or_else(|| refused(field, text, format!("give 1 to {RETRY_ATTEMPTS_MAX}")))
}

/// Percent of a pause.
pub(super) fn jitter(field: &str, text: &str) -> Result<u8, Reason> {
    let percent = text.parse().ok().filter(|percent| *percent <= 100);
    percent.ok_or_else(|| refused(field, text, "give percent of a pause, 0 to 100"))
}

/// Statuses, one by one, after which there is no further attempt.
pub(super) fn final_statuses<'a>(
    field: &str,
    texts: impl Iterator<Item = &'a str>,
) -> Result<Vec<u16>, Reason> {
    let mut statuses = Vec::new();
    for text in texts {
        match text.parse() {
            Ok(status @ 300..=599) => statuses.push(status),
            _ => return Err(refused(field, text, "give statuses from 300 to 599; 2xx is success")),
        }
        if statuses.len() > FINAL_STATUSES_MAX {
            return Err(format!("{field} has more than {FINAL_STATUSES_MAX} statuses: give fewer"));
        }
    }
    Ok(statuses)
}

/// What stands between commas.
pub(super) fn split_list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Pauses that were read one by one; none at all mean that a failed attempt is the last.
pub(super) fn delays(
    field: &str,
    delays: impl Iterator<Item = Result<Millis, Reason>>,
) -> Result<Vec<Millis>, Reason> {
    // One more than allowed is enough to know, however long the list is.
    let delays = delays.take(RETRY_DELAYS_MAX + 1).collect::<Result<Vec<_>, _>>()?;
    if delays.len() > RETRY_DELAYS_MAX {
        return Err(format!("{field} has more than {RETRY_DELAYS_MAX} delays: give fewer"));
    }
    match delays.iter().find(|delay| **delay > RETRY_DELAY_MAX_MS) {
        Some(delay) => {
            let way_out = format!("a retry waits at most {RETRY_DELAY_MAX_MS} ms (30 days)");
            Err(refused(field, delay, way_out))
        }
        None => Ok(delays),
    }
}

fn name(field: &str, text: &str, bytes_max: usize) -> Result<Text, Reason> {
    if text.len() > bytes_max {
        let way_out = format!("it has {} bytes; {bytes_max} are allowed", text.len());
        return Err(refused(field, text, way_out));
    }
    // Nearly every name is ASCII, and quickly looked through.
    let has_control = if text.is_ascii() {
        text.bytes().any(|byte| byte.is_ascii_control())
    } else {
        text.contains(char::is_control)
    };
    if text.is_empty() || has_control {
        return Err(refused(field, text, "it must not be empty or hold control characters"));
    }
    Ok(Text::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_milliseconds_or_rfc_3339() {
        let table = [
            ("0", Some(0)),
            ("1700000000123", Some(1_700_000_000_123)),
            ("2023-11-14T22:13:20.123Z", Some(1_700_000_000_123)),
            ("2023-11-14T23:13:20.1230001+01:00", Some(1_700_000_000_124)),
            ("-1", None),
            ("1969-12-31T00:00:00Z", None),
            ("tomorrow", None),
            ("", None),
            ("99999999999999999999", None),
        ];
        for (text, expected) in table {
            assert_eq!(time("fireAt", text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn delays_are_milliseconds_or_durations() {
        let table = [
            ("0", Some(0)),
            ("1500", Some(1_500)),
            ("20m", Some(1_200_000)),
            ("1h30m", Some(5_400_000)),
            ("1.5s", Some(1_500)),
            ("PT20M", Some(1_200_000)),
            ("P1D", Some(86_400_000)),
            ("2w", Some(1_209_600_000)),
            ("1us", Some(1)),
            ("P1M", None),
            ("-5", None),
            ("-5s", None),
            ("-PT5S", None),
            ("5 bananas", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(delay("delay", text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn retry_delays_are_bounded() {
        let parsed = |text| delays("retry", split_list(text).map(|text| delay("retry", text)));
        assert_eq!(parsed("1s, 5s,PT1M"), Ok(vec![1_000, 5_000, 60_000]));
        assert_eq!(parsed(""), Ok(vec![]));
        assert!(parsed("31d").unwrap_err().contains("30 days"));
        assert!(parsed(&"1s,".repeat(33)).unwrap_err().contains("more than 32"));
    }

    #[test]
    fn the_other_fields_of_a_retry_policy_are_bounded() {
        assert_eq!((attempts("a", "1"), attempts("a", "1000")), (Ok(1), Ok(1_000)));
        assert!(["0", "1001", "-1", "x"].iter().all(|text| attempts("a", text).is_err()));
        assert_eq!((jitter("j", "0"), jitter("j", "100")), (Ok(0), Ok(100)));
        assert!(["101", "-1", "x"].iter().all(|text| jitter("j", text).is_err()));
        let statuses = |text| final_statuses("s", split_list(text));
        assert_eq!(statuses("404, 422"), Ok(vec![404, 422]));
        for bad in ["200", "99", "600", "x"] {
            assert!(statuses(bad).unwrap_err().contains("2xx is success"), "{bad}");
        }
        assert!(statuses(&"404,".repeat(65)).unwrap_err().contains("more than 64"));
        assert_eq!((timeout("t", 1), timeout("t", 3_600_000)), (Ok(1), Ok(3_600_000)));
        assert!(timeout("t", 0).is_err() && timeout("t", 3_600_001).is_err());
        for good in ["slow", "a-b_9"] {
            assert_eq!(pool("pool", good), Ok(good.into()));
        }
        for bad in ["", "a.b", "ä", "a b", &"x".repeat(65)] {
            assert!(pool("pool", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn topics_and_urls_are_validated_by_their_syntax() {
        for good in ["a", "a.b_c-9"] {
            assert!(topic("topic", good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a b", "ä", &"x".repeat(250)] {
            assert!(topic("topic", bad).is_err(), "{bad}");
        }
        for good in ["http://h", "HTTPS://h:1/p?q"] {
            assert!(url("url", good).is_ok(), "{good}");
        }
        let refusal = url("callbackUrl", "http://a@h/").unwrap_err();
        assert!(refusal.starts_with("callbackUrl is \"http://a@h/\": `@` before"), "{refusal}");
        assert_eq!(method("method", "put"), Ok("PUT".into()));
        assert!(method("method", "CONNECT").is_err());
    }

    #[test]
    fn a_reason_shows_80_characters() {
        let reason = refused("topic", "ä".repeat(500), "shorten it");
        assert_eq!(reason, format!("topic is \"{}\"…: shorten it", "ä".repeat(80)));
    }
}
