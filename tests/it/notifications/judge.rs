//! The judge of notifications: what mails and webhooks state, counted by recipient, and compared
//! with the topics.
//!
//! Invariant: nothing is judged by what the program says of itself, only by what arrived and by
//! what the topics have in the end. Only the time of a message is what its id says.

use std::collections::{BTreeMap, BTreeSet};

use orloj::clock;
use orloj::model::Timestamp;
use orloj::model::outcome::{CircuitState, OutcomeKind};
use orloj::model::text::Text;
use serde_json::Value;
use uuid::Uuid;

use super::WebhookReceiver;
use crate::callers::Delivery;
use crate::mail_server::{MailServer, ReceivedMail};
use crate::test_cluster::TestCluster;

/// Reasons of letters begin so.
pub(super) const REASON: &str = "reason-";
/// Hosts of circuits begin so.
pub(super) const HOST: &str = "host-";
/// Who is notified: a name, and the caller whose failures it is notified of.
pub(super) const RECIPIENTS: [(&str, &str); 3] =
    [("billing@example.com", "billing"), ("webhook", "billing"), ("shop@example.com", "shop")];

/// How often each fact is written or stated: the letters of a reason, and the beginning and the
/// end of a host's outage.
pub(super) type FactCounts = BTreeMap<String, u64>;

/// Where the recipients receive.
pub(super) struct NotificationSinks {
    pub(super) mail: MailServer,
    hook: WebhookReceiver,
}

/// What one message states.
#[derive(Debug, Default)]
pub(super) struct StatedFailures {
    /// When the message was written, in ms since the epoch.
    pub(super) written_at: Timestamp,
    /// How many letters, in all.
    letters: u64,
    /// Reasons, and how many letters of each.
    reasons: Vec<(String, u64)>,
    /// Hosts, and whether the circuit of each has opened and has closed.
    circuits: Vec<(String, bool, bool)>,
    /// Letters and changes that it counts without naming them.
    unnamed: u64,
}

impl NotificationSinks {
    pub(super) fn start() -> Self {
        Self { mail: MailServer::start(), hook: WebhookReceiver::start() }
    }

    /// The file of the callers. Their intervals differ, so that what one recipient has got holds
    /// back no offset, and what another one waits for does.
    pub(super) fn callers(&self) -> String {
        format!(
            "[callers.billing.notify]\nemail = [\"billing@example.com\"]\nwebhook = \"{}\"\n\
             interval = \"300ms\"\n[callers.shop.notify]\nemail = [\"shop@example.com\"]\n\
             interval = \"400ms\"\n",
            self.hook.url()
        )
    }

    /// How many messages each recipient has received.
    pub(super) fn received(&self) -> [usize; 3] {
        let mails = |to: &str| self.mail.received_by(to).len();
        [mails("billing@example.com"), self.hook.posted().len(), mails("shop@example.com")]
    }

    /// What each recipient has received.
    pub(super) fn messages(&self) -> [Vec<StatedFailures>; 3] {
        let mails = |to: &str| -> Vec<StatedFailures> {
            self.mail.received_by(to).iter().map(StatedFailures::of_mail).collect()
        };
        let posted = self.hook.posted();
        let posted = posted.iter().map(StatedFailures::of_webhook).collect();
        [mails("billing@example.com"), posted, mails("shop@example.com")]
    }

    /// How many of these facts the recipient that has the fewest has not received.
    pub(super) fn unreported(&self, written: &FactCounts) -> usize {
        self.messages().iter().map(|messages| missing(messages, written)).max().unwrap_or(0)
    }
}

impl StatedFailures {
    fn of_mail(mail: &ReceivedMail) -> Self {
        let first_number = |text: &str| -> Option<u64> { text.split(' ').next()?.parse().ok() };
        let mut stated = Self::default();
        for line in mail.text.lines() {
            let text = line.trim_start();
            if let Some(subject) = line.strip_prefix("Subject: ") {
                // Without letters it begins with a word.
                stated.letters = first_number(subject).unwrap_or(0);
            } else if let Some(id) = line.strip_prefix("Message-ID: <") {
                stated.written_at = time_of(id.split('@').next().unwrap());
            } else if let Some((number, reason)) = text.split_once("  ") {
                match first_number(number) {
                    Some(count) if reason.starts_with(REASON) => {
                        stated.reasons.push((reason.to_owned(), count));
                    }
                    Some(count) => stated.unnamed += count,
                    None => {}
                }
            } else if text.starts_with(HOST) {
                let (host, changes) = text.split_once(": ").unwrap();
                let has = |change: &str| changes.contains(change);
                let (opened, closed) = (has("not called since "), has("called again since "));
                stated.circuits.push((host.to_owned(), opened, closed));
            } else if text.ends_with(" changes more") {
                stated.unnamed += 1;
            }
        }
        stated.checked()
    }

    fn of_webhook(delivery: &Delivery) -> Self {
        let event: Value = serde_json::from_slice(&delivery.body).unwrap();
        let data = &event["data"];
        let number = |value: &Value| value.as_u64().unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let reasons = data["causes"].as_array().unwrap().iter();
        let circuits = data["circuits"].as_array().unwrap().iter();
        let stated = Self {
            written_at: time_of(delivery.text("webhook-id")),
            letters: number(&data["deadLetters"]),
            reasons: reasons.map(|it| (text(&it["reason"]), number(&it["count"]))).collect(),
            circuits: circuits
                .map(|it| (text(&it["host"]), !it["opened"].is_null(), !it["closed"].is_null()))
                .collect(),
            unnamed: number(&data["otherCauses"]) + number(&data["otherCircuits"]),
        };
        stated.checked()
    }

    /// The message has an id and names all that it counts, and its counts agree.
    fn checked(self) -> Self {
        let named: u64 = self.reasons.iter().map(|(_, count)| count).sum();
        assert!(self.written_at > 0 && self.unnamed == 0 && self.letters == named, "{self:?}");
        self
    }

    fn add_to(&self, counts: &mut FactCounts) {
        for (reason, count) in &self.reasons {
            *counts.entry(reason.clone()).or_default() += count;
        }
        for (host, opened, closed) in &self.circuits {
            *counts.entry(opening_of(host)).or_default() += u64::from(*opened);
            *counts.entry(end_of(host)).or_default() += u64::from(*closed);
        }
    }

    /// Adds what may be stated again after a SIGKILL, if this message was among the last before it.
    /// A notifier that has reported an end, and reads an earlier probe again, reports the beginning
    /// again, too.
    pub(super) fn add_repeatable_to(&self, counts: &mut FactCounts) {
        let both = self.circuits.iter().map(|(host, ..)| (host.clone(), true, true)).collect();
        let reasons = self.reasons.clone();
        Self { reasons, circuits: both, ..Self::default() }.add_to(counts);
    }
}

/// When a message with this id was written: it is a UUID of version 7, which begins with the time.
fn time_of(id: &str) -> Timestamp {
    let time = Uuid::parse_str(id).unwrap().get_timestamp().unwrap();
    let (seconds, nanos) = time.to_unix();
    seconds * 1_000 + u64::from(nanos / 1_000_000)
}

fn opening_of(host: &str) -> String {
    format!("{host} opened")
}

fn end_of(host: &str) -> String {
    format!("{host} closed")
}

/// What the topics have, by caller. A circuit that opens again after a probe is one outage.
pub(super) fn written(cluster: &TestCluster) -> BTreeMap<String, FactCounts> {
    let mut written = BTreeMap::<String, FactCounts>::new();
    for letter in cluster.dead_letters() {
        let caller = letter.caller().unwrap_or_default().to_owned();
        *written.entry(caller).or_default().entry(letter.reason).or_default() += 1;
    }
    for outcome in cluster.outcomes() {
        let OutcomeKind::Circuit(circuit) = outcome.kind else { continue };
        let caller = circuit.caller.as_ref().map_or("", Text::as_str).to_owned();
        let fact = match circuit.state {
            CircuitState::Open => opening_of(circuit.host.as_str()),
            CircuitState::Closed => end_of(circuit.host.as_str()),
            CircuitState::HalfOpen => continue,
        };
        written.entry(caller).or_default().insert(fact, 1);
    }
    written
}

/// What a recipient's messages state, all together.
pub(super) fn stated_by(messages: &[StatedFailures]) -> FactCounts {
    let mut counts = FactCounts::new();
    messages.iter().for_each(|message| message.add_to(&mut counts));
    counts
}

/// How many facts are stated less often than they are written.
pub(super) fn missing(messages: &[StatedFailures], written: &FactCounts) -> usize {
    let stated = stated_by(messages);
    let is_missing = |(fact, count): &(&String, &u64)| count_of(&stated, fact) < **count;
    written.iter().filter(is_missing).count()
}

/// The facts that are stated less often than they are written, or more often although they may not
/// be stated again.
pub(super) fn differences(
    messages: &[StatedFailures],
    written: &FactCounts,
    repeatable: &FactCounts,
) -> Vec<String> {
    let stated = stated_by(messages);
    let facts: BTreeSet<&String> = stated.keys().chain(written.keys()).collect();
    let difference = |fact: &String| {
        let (found, expected) = (count_of(&stated, fact), count_of(written, fact));
        let more = count_of(repeatable, fact);
        let is_right = (expected..=expected + more).contains(&found);
        let what = || format!("{fact}: {expected} written, {more} repeatable, {found} stated");
        (!is_right).then(what)
    };
    facts.into_iter().filter_map(difference).collect()
}

fn count_of(counts: &FactCounts, fact: &str) -> u64 {
    counts.get(fact).copied().unwrap_or(0)
}

#[test]
fn a_fact_that_is_missing_or_repeated_is_found() {
    let message = |letters| StatedFailures {
        written_at: 1,
        letters,
        reasons: vec![("reason-0".to_owned(), letters)],
        circuits: vec![("host-0".to_owned(), true, false)],
        unnamed: 0,
    };
    let none = FactCounts::new();
    let mut written = FactCounts::from([("reason-0".to_owned(), 5), (opening_of("host-0"), 1)]);
    assert_eq!(differences(&[message(5)], &written, &none), [""; 0]);
    let found = differences(&[message(4)], &written, &none);
    assert_eq!(found, ["reason-0: 5 written, 0 repeatable, 4 stated"]);
    let found = differences(&[message(5), message(2)], &written, &none);
    assert_eq!(found.len(), 2, "letters and a beginning are repeated: {found:?}");

    let mut repeatable = FactCounts::new();
    message(2).add_repeatable_to(&mut repeatable);
    assert_eq!(differences(&[message(5), message(2)], &written, &repeatable), [""; 0]);
    assert_eq!(differences(&[message(5), message(3)], &written, &repeatable).len(), 1);
    written.insert(end_of("host-0"), 1);
    assert_eq!(missing(&[message(5), message(2)], &written), 1, "the end is not stated");
}

#[test]
fn a_message_says_when_it_was_written() {
    let before = clock::now_ms();
    let id = Uuid::now_v7().simple();
    let lines = ["Subject: 5 dead letters of shop", "", "       5  reason-0\n"].join("\n");
    let text = format!("Message-ID: <{id}@orloj>\n{lines}");
    let mail = ReceivedMail { to: "shop@example.com".to_owned(), text, at: clock::monotonic() };
    let stated = StatedFailures::of_mail(&mail);
    assert_eq!(stated.reasons, [("reason-0".to_owned(), 5)]);
    assert!((before..=clock::now_ms()).contains(&stated.written_at), "{before} {stated:?}");
}
