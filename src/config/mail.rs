//! The mail settings: addresses, and the mail server.
//!
//! Invariant: every address can be sent to. No `Debug` and no error shows a password.

use std::fmt;

use lettre::Address;
use lettre::message::Mailbox;
use reqwest::Url;
use serde::{Deserialize, Deserializer, de};

/// A password, which `Debug` does not show.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Password(String);

impl Password {
    /// The text, for the mail server only.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// An address; `None` if no server would accept it.
pub(crate) fn address(text: &str) -> Option<Address> {
    // The grammar allows quoted spaces and more, which are not safe in a line of SMTP.
    let is_plain = !text.contains(|c: char| c.is_whitespace() || c.is_control());
    text.parse().ok().filter(|_| is_plain)
}

/// For `#[serde(deserialize_with)]`: a list of addresses, perhaps empty.
pub(super) fn addresses<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Address>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let read = |text: &String| address(text).ok_or_else(|| de::Error::custom("write name@host"));
    texts.iter().map(read).collect()
}

/// For `#[serde(deserialize_with)]`: an address, perhaps with a name before it.
pub(super) fn sender<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mailbox, D::Error> {
    let text = String::deserialize(deserializer)?;
    let is_line = !text.contains(char::is_control);
    text.parse().ok().filter(|_| is_line).ok_or_else(|| {
        de::Error::custom("write an address such as orloj@example.com or Orloj <orloj@example.com>")
    })
}

/// For `#[serde(deserialize_with)]`: the URL of a mail server, or nothing.
pub(super) fn server<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() || is_server(&text) {
        return Ok(text);
    }
    Err(de::Error::custom(
        "write smtps://HOST, smtp://HOST?tls=required or smtp://HOST, perhaps with a :PORT; name \
         and password have settings of their own",
    ))
}

fn is_server(text: &str) -> bool {
    let Ok(url) = Url::parse(text) else { return false };
    // Opportunistic TLS protects against no active attacker, so it is not offered.
    let is_known = matches!(
        (url.scheme(), url.query()),
        ("smtps" | "smtp", None) | ("smtp", Some("tls=required"))
    );
    let is_bare = url.username().is_empty() && url.password().is_none();
    is_known && is_bare && url.host().is_some() && matches!(url.path(), "" | "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_that_a_line_of_smtp_can_hold() {
        for text in ["ops@example.com", "o.p+s@example.co.uk", "ops@localhost", "ops@[192.0.2.1]"] {
            assert_eq!(address(text).map(|address| address.to_string()), Some(text.to_owned()));
        }
        for text in [
            "",
            "ops",
            "ops@",
            "@example.com",
            "a b@example.com",
            "\"a b\"@example.com",
            "ops@example.com\r\nRCPT TO:<x@example.com>",
            "ops@example.com, x@example.com",
            "<ops@example.com>",
        ] {
            assert_eq!(address(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_server_is_named_with_how_it_is_secured() {
        for text in ["smtps://mail", "smtps://mail:4650/", "smtp://mail?tls=required"] {
            assert!(is_server(text), "{text}");
        }
        for text in [
            "mail.example.com",
            "https://mail",
            "smtp://mail?tls=opportunistic",
            "smtps://mail?tls=required",
            "smtps://me:secret@mail",
            "smtps://me@mail",
            "smtp:mail",
            "smtp://mail/path",
        ] {
            assert!(!is_server(text), "{text}");
        }
    }
}
