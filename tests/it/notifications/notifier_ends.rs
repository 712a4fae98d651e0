//! Notifiers that join, end, are killed and are replaced while letters and changes of circuits are
//! written all the time. Once all have ended, and the offsets of their group are deleted.
//!
//! Invariant: every recipient is notified of each letter, each beginning of an outage and each end
//! as often as the topics have it, whichever notifier leads. Only what the last messages before a
//! SIGKILL stated may be stated once more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use orloj::clock;
use orloj::model::Timestamp;

use super::judge::{
    FactCounts, HOST, NotificationSinks, REASON, RECIPIENTS, StatedFailures, differences, missing,
    stated_by, written,
};
use super::unknown_offsets::delete_group;
use super::{DEADLINE, cluster, failure_log};
use crate::process::OrlojProcess;
use crate::test_cluster::TestCluster;
use crate::wait::{until, within};

/// Messages that each recipient gets between two ends of notifiers.
const MESSAGES: usize = 6;
/// So many messages of a recipient, the last before a SIGKILL, may not be committed: the next
/// message of another recipient holds the offsets back for 400 ms, and a commit may be on its way.
const IN_FLIGHT_MESSAGES: usize = 6;
/// From the last letter until all is reported. The judge names what is not.
const COMPLETION_DEADLINE: Duration = Duration::from_secs(30);
/// Outages in a run, at least: fewer would prove little.
const OUTAGES_MIN: usize = 5;

/// The notifiers of an installation, and what their recipients get.
struct JudgedNotifiers<'a> {
    cluster: &'a TestCluster,
    sinks: Arc<NotificationSinks>,
    running: Vec<OrlojProcess>,
    started: usize,
    /// When each leader that was killed had ended, in ms since the epoch. The next one leads
    /// seconds later.
    killed_at: Vec<Timestamp>,
}

#[test]
fn each_letter_and_each_outage_is_notified_once_however_notifiers_end() {
    let sinks = Arc::new(NotificationSinks::start());
    let (cluster, _folder) = cluster("notify-ends", &sinks.mail, &sinks.callers());
    let cluster = cluster.set("notifier.batch_delay", "100ms");
    let mut notifiers = JudgedNotifiers::new(&cluster, Arc::clone(&sinks));
    // From its first start on nothing is missed.
    notifiers.start_one();
    let failures = failure_log::start(&cluster, sinks);
    notifiers.wait_for_messages();
    notifiers.start_one();
    notifiers.wait_for_messages();
    for is_killed in [false, true, false, true] {
        if is_killed {
            notifiers.kill_leader();
        } else {
            notifiers.end_leader();
        }
        notifiers.start_one();
        notifiers.wait_for_messages();
    }
    notifiers.end_all();
    delete_group(&cluster);
    notifiers.start_one();
    notifiers.start_one();
    notifiers.wait_for_messages();

    drop(failures);
    let written = written(&cluster);
    notifiers.wait_for_all(&written);
    notifiers.end_all();
    notifiers.judge(&written);
    assert_has_enough(&written);
}

impl<'a> JudgedNotifiers<'a> {
    fn new(cluster: &'a TestCluster, sinks: Arc<NotificationSinks>) -> Self {
        Self { cluster, sinks, running: Vec::new(), started: 0, killed_at: Vec::new() }
    }

    fn start_one(&mut self) {
        let name = format!("notifier-{}", self.started);
        self.running.push(self.cluster.start_ready("notifier", &name));
        self.started += 1;
    }

    /// Waits until each recipient has got some messages more.
    fn wait_for_messages(&self) {
        let before = self.sinks.received();
        until("messages to each recipient", DEADLINE, || {
            let now = self.sinks.received();
            let mut counts = now.iter().zip(&before);
            counts.all(|(now, before)| *now >= before + MESSAGES).then_some(())
        });
    }

    /// The place of the notifier that sends.
    fn leader(&self) -> usize {
        let delivered =
            |notifier: &OrlojProcess| notifier.log_text().matches("notification delivered").count();
        let before: Vec<usize> = self.running.iter().map(delivered).collect();
        until("a notifier to send", DEADLINE, || {
            let mut counts = self.running.iter().map(delivered).zip(&before);
            counts.position(|(now, before)| now > *before)
        })
    }

    fn end_leader(&mut self) {
        let leader = self.leader();
        end(self.running.remove(leader));
    }

    fn kill_leader(&mut self) {
        let leader = self.leader();
        self.running.remove(leader).kill();
        self.killed_at.push(clock::now_ms());
    }

    /// What may be stated again of these messages of a recipient: what the last ones before each
    /// SIGKILL state.
    fn repeatable(&self, messages: &[StatedFailures]) -> FactCounts {
        let mut repeatable = FactCounts::new();
        for killed_at in &self.killed_at {
            let before = messages.iter().rev().filter(|message| message.written_at <= *killed_at);
            let last = before.take(IN_FLIGHT_MESSAGES);
            last.for_each(|message| message.add_repeatable_to(&mut repeatable));
        }
        repeatable
    }

    fn end_all(&mut self) {
        self.running.drain(..).for_each(end);
    }

    /// Waits until each recipient has got everything at least once.
    fn wait_for_all(&self, written: &BTreeMap<String, FactCounts>) {
        let _complete = within(COMPLETION_DEADLINE, || {
            let messages = self.sinks.messages();
            let mut recipients = RECIPIENTS.iter().zip(&messages);
            let has_all = |((_, caller), messages): (&(&str, &str), &Vec<StatedFailures>)| {
                missing(messages, &written[*caller]) == 0
            };
            recipients.all(has_all).then_some(())
        });
    }

    /// Compares what each recipient has got with what the topics have.
    fn judge(&self, written: &BTreeMap<String, FactCounts>) {
        let messages = self.sinks.messages();
        for ((name, caller), messages) in RECIPIENTS.iter().zip(&messages) {
            let written = &written[*caller];
            let letters = |counts: &FactCounts| -> u64 {
                let reasons = counts.iter().filter(|(fact, _)| fact.starts_with(REASON));
                reasons.map(|(_, count)| count).sum()
            };
            println!(
                "{name}: {} letters in {} messages, {} written",
                letters(&stated_by(messages)),
                messages.len(),
                letters(written)
            );
            let found = differences(messages, written, &self.repeatable(messages));
            assert!(found.is_empty(), "{name}:\n{}", found.join("\n"));
        }
    }
}

/// Ends a notifier as an operator does.
fn end(notifier: OrlojProcess) {
    assert!(!notifier.panicked());
    notifier.terminate();
}

/// Enough was written, and every outage has its end.
fn assert_has_enough(written: &BTreeMap<String, FactCounts>) {
    for (_, caller) in RECIPIENTS {
        let facts = written[caller].keys();
        let outages = facts.filter(|fact| fact.starts_with(HOST));
        let (ends, beginnings): (Vec<_>, Vec<_>) =
            outages.partition(|fact| fact.ends_with(" closed"));
        assert_eq!(ends.len(), beginnings.len(), "{ends:?} {beginnings:?}");
        assert!(ends.len() >= OUTAGES_MIN, "{ends:?}");
    }
}
