//! A dead letter: a record or a fire that no process will retry by itself, kept whole and with
//! the reason, so that a person can fix the cause and replay it.
//!
//! Invariant: what a person did about a letter follows it in its own partition, as a mark. So a
//! reader that has read a partition to its end knows which letters are still open.

use bytes::Bytes;

use super::callback_url::{self, Host};
use super::definition::{Header, Target};
use super::fire::Fire;
use super::limits::PAYLOAD_BYTES_MAX;
use super::signal::RetryRequest;
use super::text::Text;
use super::{Offset, PartitionId, Timestamp};

/// The header of that key.
const IDEMPOTENCY_KEY: &str = "orloj-idempotency-key";

/// A record or a fire that failed for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The record that caused it; of a mark, the letter that it marks.
    pub origin: Origin,
    /// Why, for people; names the thing and the way out.
    pub reason: String,
    /// When it was created, in ms since the epoch.
    pub at: Timestamp,
    /// What is kept of it.
    pub content: Content,
}

/// The position of the record that caused the letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The topic.
    pub topic: Text,
    /// The partition.
    pub partition: PartitionId,
    /// The offset.
    pub offset: Offset,
}

/// What is kept of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A record that could not be read or taken, verbatim.
    Record {
        /// Its key.
        key: Option<Bytes>,
        /// Its value, cut at the payload limit.
        value: Option<Bytes>,
        /// Its headers.
        headers: Vec<Header>,
    },
    /// A fire that could not be delivered.
    Fire {
        /// The fire of the last attempt; its history has every attempt that was made.
        fire: Fire,
        /// How many attempts were made.
        attempts: u32,
    },
    /// A person has handled the letter at `origin`.
    Mark(Mark),
}

/// What a person did about a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Asked for it to be tried again.
    Replayed,
    /// Archived it.
    Archived,
}

/// What is written to retry a letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayRequest {
    /// The owner makes another attempt of the fire.
    Signal(RetryRequest),
    /// The record is written to `triggers` again, with a key by which its owner recognises that it
    /// is written twice.
    Record {
        /// Its key.
        key: Option<Bytes>,
        /// Its value.
        value: Option<Bytes>,
        /// Its headers.
        headers: Vec<Header>,
    },
}

impl DeadLetter {
    /// The trigger that it is about, where that is known.
    #[must_use]
    pub fn trigger(&self) -> Option<&str> {
        match &self.content {
            Content::Fire { fire, .. } => Some(fire.id.trigger.as_str()),
            Content::Record { key, .. } => std::str::from_utf8(key.as_deref()?).ok(),
            Content::Mark(_) => None,
        }
    }

    /// The caller that registered it, if one is named.
    #[must_use]
    pub fn caller(&self) -> Option<&str> {
        match &self.content {
            Content::Fire { fire, .. } => fire.definition.caller.as_ref().map(Text::as_str),
            Content::Record { headers, .. } => {
                let header =
                    headers.iter().rfind(|header| header.name.as_str() == "orloj-caller")?;
                std::str::from_utf8(header.value.as_deref()?).ok()
            }
            Content::Mark(_) => None,
        }
    }

    /// The host that was to be called, as URLs have it, in small letters.
    #[must_use]
    pub fn host(&self) -> Option<String> {
        let Content::Fire { fire, .. } = &self.content else { return None };
        let Target::Http(target) = &fire.definition.target else { return None };
        Some(match callback_url::parse(target.url.as_str()).ok()?.host {
            Host::Name(name) => name.to_ascii_lowercase(),
            Host::Address(address) if address.is_ipv6() => format!("[{address}]"),
            Host::Address(address) => address.to_string(),
        })
    }

    /// How to try it again at `now`, or why it cannot be. `triggers` is the name of that topic;
    /// `replays` says how often it was replayed before.
    pub fn replay(
        self,
        triggers: &str,
        earlier_replays: u32,
        now: Timestamp,
    ) -> Result<ReplayRequest, &'static str> {
        match self.content {
            Content::Fire { fire, .. } => {
                Ok(ReplayRequest::Signal(RetryRequest::replay(fire, earlier_replays, now)))
            }
            Content::Mark(_) => Err("it is a mark"),
            Content::Record { .. } if self.origin.topic != *triggers => {
                Err("only Orloj writes such a record, and it was damaged: archive it")
            }
            Content::Record { value: Some(value), .. } if value.len() >= PAYLOAD_BYTES_MAX => {
                Err("its value was too large to be kept whole: register it again and archive it")
            }
            Content::Record { key, value, mut headers } => {
                headers.retain(|header| header.name != *IDEMPOTENCY_KEY);
                let Origin { partition, offset, .. } = self.origin;
                let once = format!("replay-{earlier_replays}-of-{partition}-{offset}");
                let (name, once) = (IDEMPOTENCY_KEY.into(), Some(Bytes::from(once)));
                headers.push(Header { name, value: once });
                Ok(ReplayRequest::Record { key, value, headers })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(topic: &str, bytes: usize) -> DeadLetter {
        DeadLetter {
            origin: Origin { topic: topic.into(), partition: 3, offset: 41 },
            reason: "nothing says when".to_owned(),
            at: 7,
            content: Content::Record {
                key: Some("a".into()),
                value: Some(vec![0; bytes].into()),
                headers: Vec::new(),
            },
        }
    }

    #[test]
    fn a_record_has_a_caller_and_perhaps_an_id() {
        let caller = Header { name: "orloj-caller".into(), value: Some("billing".into()) };
        let (key, headers) = (Some("order-7".into()), vec![caller]);
        let content = Content::Record { key, value: None, headers };
        let letter = DeadLetter { content, ..letter("o.triggers", 1) };
        assert_eq!((letter.caller(), letter.trigger()), (Some("billing"), Some("order-7")));
        assert_eq!(letter.host(), None);
    }

    /// Of two that are written at the same time, or after an unknown outcome, one is executed.
    #[test]
    fn a_replayed_registration_has_the_key_of_its_letter_and_of_the_replay() {
        let header = |name: &str, value: &'static str| Header {
            name: name.into(),
            value: Some(Bytes::from_static(value.as_bytes())),
        };
        let headers = |letter: DeadLetter, replays| {
            let Ok(ReplayRequest::Record { headers, .. }) = letter.replay("o.triggers", replays, 9)
            else {
                panic!("it is not replayed");
            };
            headers
        };
        let key = |replays| headers(letter("o.triggers", 1), replays);
        assert_eq!(key(0), [header("orloj-idempotency-key", "replay-0-of-3-41")]);
        assert_eq!(key(1), [header("orloj-idempotency-key", "replay-1-of-3-41")]);

        let mut again = letter("o.triggers", 1);
        let Content::Record { headers: before, .. } = &mut again.content else { unreachable!() };
        *before = vec![header("x", "y"), header("orloj-idempotency-key", "replay-0-of-3-7")];
        let expected = [header("x", "y"), header("orloj-idempotency-key", "replay-0-of-3-41")];
        assert_eq!(headers(again, 0), expected, "it was a replay itself");
    }

    #[test]
    fn a_registration_is_replayed_only_if_it_was_kept_whole() {
        let again = |topic, bytes| letter(topic, bytes).replay("o.triggers", 0, 9);
        assert!(matches!(again("o.triggers", 1), Ok(ReplayRequest::Record { .. })));
        assert!(again("o.triggers", PAYLOAD_BYTES_MAX).is_err());
        assert!(again("o.fires", 1).unwrap_err().contains("archive it"));
        let mark = DeadLetter { content: Content::Mark(Mark::Archived), ..letter("o", 1) };
        assert!(mark.replay("o.triggers", 0, 9).is_err());
    }
}
