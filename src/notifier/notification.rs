//! A message: a digest as text for people, and as JSON for programs.
//!
//! Invariant: it is short, says what to do, and is the same each time it is sent.

use std::time::Duration;

use serde::Serialize;

use super::digest::{CircuitSummary, Digest};
use crate::model::Timestamp;
use crate::model::time::format_time;

/// The `type` of a webhook's message, for receivers of several kinds.
const EVENT_TYPE: &str = "orloj.failures";

/// One message for a recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The same however often it is sent.
    pub id: String,
    /// When it was written, in ms since the epoch.
    pub at: Timestamp,
    /// Whose triggers it is about; `None` for those without a known caller.
    pub caller: Option<String>,
    /// No other one follows within this.
    pub interval: Duration,
    /// What has happened.
    pub digest: Digest,
}

#[derive(Serialize)]
struct WebhookEvent<'a> {
    r#type: &'static str,
    timestamp: String,
    data: WebhookData<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WebhookData<'a> {
    caller: Option<&'a str>,
    summary: String,
    #[serde(flatten)]
    digest: &'a Digest,
}

impl Notification {
    /// One line.
    #[must_use]
    pub fn subject(&self) -> String {
        let Digest { dead_letters, circuits, .. } = &self.digest;
        let whose = self.of_caller();
        match (dead_letters, &circuits[..]) {
            (0, [CircuitSummary { host, closed: None, .. }]) => {
                format!("{host} is not called for a while: circuit {whose}")
            }
            (0, [CircuitSummary { host, .. }]) => {
                format!("{host} is called again: circuit {whose}")
            }
            (0, _) => format!("circuits {whose} have changed"),
            _ => self.dead_letter_count(),
        }
    }

    /// Plain text: what failed, how often, since when, a few examples, and what can be done.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = Vec::new();
        if self.digest.dead_letters > 0 {
            self.write_dead_letters(&mut lines);
        }
        if !self.digest.circuits.is_empty() {
            self.write_circuits(&mut lines);
        }
        let source = match &self.caller {
            Some(caller) => format!("`notify` of {caller} in callers.toml"),
            None => {
                "`notifier.operator_email`, or `notify` of anonymous in callers.toml".to_owned()
            }
        };
        lines.push("-- ".to_owned());
        lines.push(format!("You receive this because of {source}."));
        lines.push(format!("Change it there; this is at most one message in {:?}.", self.interval));
        lines.join("\n") + "\n"
    }

    /// The body of a webhook.
    #[must_use]
    pub fn json(&self) -> Vec<u8> {
        let data = WebhookData {
            caller: self.caller.as_deref(),
            summary: self.subject(),
            digest: &self.digest,
        };
        let event = WebhookEvent { r#type: EVENT_TYPE, timestamp: format_time(self.at), data };
        serde_json::to_vec(&event).expect("text and numbers make JSON")
    }

    fn write_dead_letters(&self, lines: &mut Vec<String>) {
        let Digest { first, last, other_causes, examples, .. } = &self.digest;
        let [first, last] = [first, last].map(|at| format_time(at.unwrap_or(self.at)));
        lines.push(format!("{}, {first} to {last}:", self.dead_letter_count()));
        for cause in self.digest.causes_by_count() {
            let host = cause.host.as_ref().map_or_else(String::new, |host| format!("{host}: "));
            lines.push(format!("{:>8}  {host}{}", cause.count, cause.reason));
        }
        if *other_causes > 0 {
            lines.push(format!("{other_causes:>8}  for other reasons"));
        }
        lines.push("\nThe first of them:".to_owned());
        for example in examples {
            let trigger = example.trigger.as_ref().map_or("no trigger", |trigger| trigger.as_str());
            let (letter, reason) = (&example.letter, &example.reason);
            lines.push(format!("  {trigger} (letter {letter}): {reason}"));
        }
        let caller = self.caller.as_ref();
        let caller =
            caller.map_or_else(String::new, |id| format!(" --caller {}", shell_quoted(id)));
        lines.push("\nSee them, and have them tried again when the cause is fixed:".to_owned());
        for command in ["list", "replay"] {
            lines.push(format!("  orloj dead-letters {command}{caller} --since {first}"));
        }
        lines.push(String::new());
    }

    fn write_circuits(&self, lines: &mut Vec<String>) {
        lines.push(
            "Hosts that failed too often are not called for a while, and then probed:".into(),
        );
        for CircuitSummary { host, opened, closed, reason } in &self.digest.circuits {
            let opened = opened.map(|at| format!("not called since {}", format_time(at)));
            let closed = closed.map(|at| format!("called again since {}", format_time(at)));
            let both: Vec<_> = opened.into_iter().chain(closed).collect();
            lines.push(format!("  {host}: {} ({reason})", both.join(", ")));
        }
        if self.digest.other_circuits > 0 {
            lines.push(format!("  and {} changes more", self.digest.other_circuits));
        }
        lines.push("All of them: orloj circuits\n".to_owned());
    }

    /// How many, and whose.
    fn dead_letter_count(&self) -> String {
        let whose = self.of_caller();
        match self.digest.dead_letters {
            1 => format!("1 dead letter {whose}"),
            count => format!("{count} dead letters {whose}"),
        }
    }

    fn of_caller(&self) -> String {
        self.caller.as_ref().map_or_else(|| "of no caller".to_owned(), |id| format!("of {id}"))
    }
}

/// An argument of a command, quoted for a shell.
fn shell_quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:@/".contains(c);
    if word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notifier::digest::samples;

    fn message(digest: Digest) -> Notification {
        let (id, caller) = ("m1".to_owned(), Some("billing".to_owned()));
        Notification {
            id,
            at: 1_800_000_040_000,
            caller,
            interval: Duration::from_secs(300),
            digest,
        }
    }

    #[test]
    fn the_text_says_what_failed_and_what_to_do() {
        let text = message(samples::outage()).text();
        let expected = "\
3 dead letters of billing, 2027-01-15T08:00:00Z to 2027-01-15T08:00:02Z:
       2  api.example.com: answered 500
       1  nothing says when

The first of them:
  order-0 (letter 3:40): attempt 6 was the last: answered 500: boom 0
  order-1 (letter 3:41): attempt 6 was the last: answered 500: boom 1
  order-2 (letter 3:42): nothing says when

See them, and have them tried again when the cause is fixed:
  orloj dead-letters list --caller billing --since 2027-01-15T08:00:00Z
  orloj dead-letters replay --caller billing --since 2027-01-15T08:00:00Z

Hosts that failed too often are not called for a while, and then probed:
  api.example.com: not called since 2027-01-15T08:00:03Z (20 of 20 failed)
All of them: orloj circuits

-- 
You receive this because of `notify` of billing in callers.toml.
Change it there; this is at most one message in 300s.
";
        assert_eq!(text, expected);
    }

    #[test]
    fn dead_letters_without_a_caller_go_to_the_operator() {
        let text = Notification { caller: None, ..message(samples::outage()) }.text();
        assert!(text.starts_with("3 dead letters of no caller, "), "{text}");
        assert!(text.contains("orloj dead-letters list --since 2027"), "{text}");
        assert!(text.contains("because of `notifier.operator_email`"), "{text}");
    }

    #[test]
    fn the_subject_counts_or_names_the_host() {
        let subject = |digest| message(digest).subject();
        assert_eq!(subject(samples::outage()), "3 dead letters of billing");
        let mut digest = samples::outage();
        digest.dead_letters = 0;
        let host = "api.example.com";
        assert_eq!(
            subject(digest.clone()),
            format!("{host} is not called for a while: circuit of billing")
        );
        digest.circuits[0].closed = Some(1);
        assert_eq!(subject(digest.clone()), format!("{host} is called again: circuit of billing"));
        digest.circuits.push(digest.circuits[0].clone());
        assert_eq!(subject(digest), "circuits of billing have changed");
    }

    #[test]
    fn the_json_is_an_event() {
        let json: serde_json::Value =
            serde_json::from_slice(&message(samples::outage()).json()).unwrap();
        assert_eq!(json["type"], "orloj.failures");
        assert_eq!(json["timestamp"], "2027-01-15T08:00:40Z");
        let data = &json["data"];
        assert_eq!((&data["caller"], &data["deadLetters"]), (&"billing".into(), &3.into()));
        assert_eq!(data["first"], "2027-01-15T08:00:00Z");
        assert_eq!(data["causes"][0]["host"], "api.example.com");
        assert_eq!(data["causes"][0]["count"], 2);
        assert_eq!(data["examples"][0]["letter"], "3:40");
        assert_eq!(data["circuits"][0]["opened"], "2027-01-15T08:00:03Z");
        assert_eq!(data["circuits"][0]["closed"], serde_json::Value::Null);
        assert!(data.get("beginnings").is_none());
    }

    #[test]
    fn a_caller_stays_one_word_of_a_command() {
        assert_eq!(shell_quoted("billing-7"), "billing-7");
        assert_eq!(shell_quoted("my shop"), "'my shop'");
        assert_eq!(shell_quoted("a'; rm -rf b"), r"'a'\''; rm -rf b'");
    }
}
