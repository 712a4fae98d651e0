//! The result of each attempt to deliver a fire. The history travels with the fire, from signal
//! to row, ledger, fire and dead letter, so that a reader of the last one sees them all.
//!
//! Invariant: it is bounded. The newest attempts are kept whole, the older ones are counted; texts
//! are cut. No history is above [`HISTORY_BYTES_MAX`], and a first attempt has none at all.

use serde::{Deserialize, Serialize};

use super::avro_long;
use super::text::Text;
use super::{Millis, Timestamp};

/// Attempts that are kept whole.
pub const ATTEMPTS_KEPT_MAX: usize = 25;
/// Characters of each text of an attempt: enough to recognise an error page.
pub const TEXT_CHARS_MAX: usize = 300;
/// Bytes of a whole history at most: 25 attempts of one text of 300 characters (four bytes each), a
/// worker's name of as many, and numbers. A fire has a megabyte of headroom for it.
pub const HISTORY_BYTES_MAX: usize = 65_536;

/// One attempt that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Which, from 1.
    pub number: u32,
    /// When it began, in ms since the epoch by the worker's clock.
    #[serde(with = "avro_long")]
    pub at: Timestamp,
    /// The worker that made it.
    pub worker: Text,
    /// The HTTP status, if there was an answer.
    pub status: Option<u16>,
    /// Why there was no answer, as text for people.
    pub error: Option<Text>,
    /// How long it took, in ms.
    #[serde(with = "avro_long")]
    pub duration_ms: Millis,
    /// The beginning of the answer, for people.
    pub excerpt: Option<Text>,
}

/// The attempts so far, in order. `None` of it stands for none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Attempts made before the last replay: the retry policy counts from there.
    #[serde(rename = "before")]
    pub attempts_before_replay: u32,
    /// Older attempts that are only counted.
    #[serde(rename = "folded")]
    pub older_attempts: u32,
    /// The newest ones, whole.
    pub attempts: Vec<Attempt>,
}

impl History {
    /// `history` with one more attempt.
    #[must_use]
    pub fn with_attempt(history: Option<Box<Self>>, attempt: Attempt) -> Option<Box<Self>> {
        let mut history = history.unwrap_or_default();
        if history.attempts.len() >= ATTEMPTS_KEPT_MAX {
            let surplus = history.attempts.len() + 1 - ATTEMPTS_KEPT_MAX;
            history.attempts.drain(..surplus);
            history.older_attempts =
                history.older_attempts.saturating_add(u32::try_from(surplus).unwrap_or(0));
        }
        history.attempts.push(attempt);
        Some(history)
    }

    /// The number of the last attempt that was made; 0 if none was.
    #[must_use]
    pub fn last_number(&self) -> u32 {
        self.attempts.last().map_or(self.older_attempts, |attempt| attempt.number)
    }
}

/// The beginning of `text`, on one line and as long as an attempt may quote; `None` if it is empty.
#[must_use]
pub fn excerpt(text: &str) -> Option<Text> {
    let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let cut: String = printable.take(TEXT_CHARS_MAX).collect();
    let cut = cut.trim();
    (!cut.is_empty()).then(|| Text::from(cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(number: u32) -> Attempt {
        let long = "\u{1F600}".repeat(2 * TEXT_CHARS_MAX);
        Attempt {
            number,
            at: 1_700_000_000_000,
            worker: excerpt(&long).unwrap(),
            status: None,
            error: excerpt(&long),
            duration_ms: 30_000,
            excerpt: None,
        }
    }

    #[test]
    fn the_newest_are_whole_and_the_oldest_are_counted() {
        let mut history = None;
        for number in 1..=30 {
            history = History::with_attempt(history, attempt(number));
        }
        let history = history.unwrap();
        let numbers: Vec<_> = history.attempts.iter().map(|attempt| attempt.number).collect();
        assert_eq!((history.older_attempts, history.last_number()), (5, 30));
        assert!(numbers.into_iter().eq(6..=30));
        let bytes = serde_json::to_vec(&history).unwrap();
        assert!(bytes.len() <= HISTORY_BYTES_MAX, "{} bytes, even as JSON", bytes.len());
    }

    #[test]
    fn an_excerpt_is_one_short_line() {
        assert_eq!(excerpt(" a\nb\t"), Some("a b".into()));
        assert_eq!(excerpt("\r\n"), None);
        assert_eq!(excerpt(&"x".repeat(999)).map(|text| text.bytes().len()), Some(300));
    }
}
