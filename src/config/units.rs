//! Durations and sizes as people write them: a whole number and a unit, never a bare number.
//!
//! Invariant: zero is refused, because no setting uses it for "never" or "nothing".

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

/// Written instead of a duration.
const NONE: &str = "none";

const DURATION_UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("min", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

const SIZE_UNITS: [(&str, u64); 4] =
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// A positive number of bytes, written `64MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(u64);

impl ByteSize {
    /// That many bytes.
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, scale) = SIZE_UNITS
            .iter()
            .rev()
            .find(|(_, scale)| self.0.is_multiple_of(*scale))
            .unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / scale)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text, &SIZE_UNITS).map(Self).ok_or_else(|| {
            de::Error::custom("write a positive whole number and B, KiB, MiB or GiB")
        })
    }
}

/// For `#[serde(deserialize_with)]`: a positive duration such as `10s`.
pub(super) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse_duration(&String::deserialize(deserializer)?).map_err(de::Error::custom)
}

/// For `#[serde(deserialize_with)]`: a positive duration, or "none", which is zero.
pub(super) fn duration_or_none<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Duration, D::Error> {
    match String::deserialize(deserializer)?.as_str() {
        NONE => Ok(Duration::ZERO),
        text => parse_duration(text)
            .map_err(|error| de::Error::custom(format!("{error}, or \"{NONE}\""))),
    }
}

/// For `#[serde(deserialize_with)]`, with `default`: a positive duration, or nothing.
pub(crate) fn maybe_duration<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    duration(deserializer).map(Some)
}

/// For `#[serde(deserialize_with)]`: a list of positive durations, perhaps empty.
pub(super) fn durations<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Duration>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts
        .iter()
        .map(|text| parse_duration(text))
        .collect::<Result<_, _>>()
        .map_err(de::Error::custom)
}

fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    parse(text, &DURATION_UNITS)
        .map(Duration::from_millis)
        .ok_or("write a positive whole number and ms, s, min, h or d")
}

/// The number times its unit; `None` if the text is malformed, zero or too large.
fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*scale).filter(|&product| product > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_positive_number_and_a_known_unit() {
        for (text, millis) in [("250ms", 250), ("10s", 10_000), ("2 min", 120_000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse_duration("7d"), Ok(Duration::from_secs(7 * 86_400)));
        for text in ["", "10", "s", "0s", "-1s", "1.5s", "10 sec", "1h30min", "99999999999999999d"]
        {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn no_duration_is_none() {
        #[derive(Deserialize)]
        struct TestTable {
            #[serde(deserialize_with = "duration_or_none")]
            most: Duration,
        }
        let read = |text: &str| toml::from_str::<TestTable>(&format!("most = {text:?}"));
        assert_eq!(read("none").unwrap().most, Duration::ZERO);
        assert_eq!(read("20ms").unwrap().most, Duration::from_millis(20));
        let refused = read("0ms").err().unwrap().to_string();
        assert!(refused.contains("or \"none\""), "{refused}");
    }

    #[test]
    fn sizes_print_as_they_are_written() {
        for text in ["1B", "1500B", "64KiB", "1MiB", "2GiB"] {
            let size = parse(text, &SIZE_UNITS).map(ByteSize).unwrap();
            assert_eq!(size.to_string(), text);
        }
        assert_eq!(parse("1MB", &SIZE_UNITS), None);
    }
}
