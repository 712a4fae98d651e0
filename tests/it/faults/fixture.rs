//! An installation with a user, to which a case does what it likes, and which is judged afterwards.
//!
//! Invariant: nothing is judged before everything is due and has fired, or a deadline has passed.

use std::sync::OnceLock;

use orloj::clock;
use orloj::model::dead_letter::{Content, DeadLetter};
use rdkafka::message::{Message as _, OwnedMessage};

use super::other_kinds::OtherKinds;
use super::report::FaultFigures;
use super::steady_load::SteadyLoad;
use super::{COMPLETION_DEADLINE, print_progress, recorded, second_look};
use crate::audit::{self, AcknowledgedCommand};
use crate::kafka_server::KafkaServer;
use crate::load::MARGIN;
use crate::process::OrlojProcess;
use crate::records;
use crate::test_cluster::TestCluster;
use crate::test_producer::TestProducer;
use crate::wait::{until, within};

/// So many findings are shown with the records of their triggers.
const FINDINGS_SHOWN: usize = 10;

/// An installation with a user, under attack.
pub(super) struct FaultFixture {
    pub(super) cluster: TestCluster,
    pub(super) client: TestProducer,
    /// What [`Self::under_load`] writes beside the steady load.
    other_kinds: OnceLock<OtherKinds>,
    /// The dead letters that there must be, by [`letter_name`]; any other is a finding.
    pub(super) expected_letters: Vec<String>,
}

impl FaultFixture {
    /// On the broker that tests share.
    pub(super) fn new(name: &str) -> Self {
        Self::from_cluster(TestCluster::new(name))
    }

    /// On a broker that the case may do to as it likes.
    pub(super) fn on_server(name: &str, server: &KafkaServer) -> Self {
        Self::from_cluster(TestCluster::on_server(name, server))
    }

    /// A part of the load goes through the ledger.
    pub(super) fn from_cluster(cluster: TestCluster) -> Self {
        Self::with_ledger_after(cluster, "2s")
    }

    /// What is pending is in the replay tail, not in the ledger.
    pub(super) fn with_long_tail(cluster: TestCluster) -> Self {
        Self::with_ledger_after(cluster, "2h")
    }

    fn with_ledger_after(cluster: TestCluster, ledger_after: &str) -> Self {
        let cluster = cluster.set("scheduler.ledger_after", ledger_after);
        let (client, other_kinds) = (cluster.client(), OnceLock::new());
        Self { cluster, client, other_kinds, expected_letters: Vec::new() }
    }

    /// Runs the steady load, and triggers of other kinds beside it, for as long as `body` runs.
    pub(super) fn under_load<T>(&self, body: impl FnOnce() -> T) -> T {
        self.with_other_kinds(|| self.steady_load().during(body))
    }

    /// Writes triggers of other kinds for as long as `body` runs.
    pub(super) fn with_other_kinds<T>(&self, body: impl FnOnce() -> T) -> T {
        self.other_kinds.get_or_init(|| OtherKinds::of(&self.cluster)).during(body)
    }

    pub(super) fn steady_load(&self) -> SteadyLoad<'_> {
        let (cluster, client) = (&self.cluster, &self.client);
        SteadyLoad { cluster, client, per_second: 100, ack: false, other: None }
    }

    /// Waits until everything is due and has fired, and judges; then ends the schedulers and looks
    /// again at what one with an empty disk adds: nothing may be wrong.
    pub(super) fn settled(&self, schedulers: &mut [&mut OrlojProcess]) -> audit::AuditReport {
        let mut report = self.judged();
        second_look::assert_nothing_fires_again(self, schedulers);
        self.check_topics();
        if let Some(other_kinds) = self.other_kinds.get() {
            report.lateness.extend(other_kinds.assert_fired(&self.cluster));
            report.lateness.sort_unstable();
        }
        report
    }

    /// Nothing is written to the topics any more: `orloj reconcile` finds no callback in them that
    /// has not ended, and they are kept for a comparison with what a view shows of them.
    pub(super) fn check_topics(&self) {
        recorded::keep(&self.cluster);
        let reconcile = ["reconcile", "--older-than", "0s", "--dry-run"];
        let (said, done) = self.cluster.settings.run(&reconcile);
        assert!(done && said.contains("0 callbacks have not ended"), "{said}");
    }

    /// The figures of a report of [`Self::settled`], with those of the triggers of other kinds.
    pub(super) fn figures(&self, report: &audit::AuditReport) -> FaultFigures {
        let figures = FaultFigures::of(report);
        match self.other_kinds.get() {
            Some(other_kinds) => other_kinds.count_in(figures),
            None => figures,
        }
    }

    /// Waits until everything is due and has fired, and judges: nothing may be wrong.
    pub(super) fn judged(&self) -> audit::AuditReport {
        let commands = self.client.acknowledged();
        let soon = clock::now_ms() + 60_000;
        let due = commands.values().flatten().filter_map(AcknowledgedCommand::registered_due);
        let last = due.filter(|due| *due < soon).max().unwrap_or_default();
        until("everything to be due", COMPLETION_DEADLINE, || {
            (clock::now_ms() > last).then_some(())
        });
        let complete = || Some(self.judged_now()).filter(audit::AuditReport::is_complete);
        let report = within(COMPLETION_DEADLINE, complete).unwrap_or_else(|| self.judged_now());
        if !report.is_clean() {
            self.print_records(&report);
        }
        assert_clean("the first look", &report);
        if let Some(other_kinds) = self.other_kinds.get() {
            other_kinds.settle(&self.cluster);
        }
        report
    }

    /// Prints what the log has of the triggers that are findings: a client that was not answered
    /// may have written a record twice.
    fn print_records(&self, report: &audit::AuditReport) {
        let commands = self.client.acknowledged();
        let records = records::read_all(self.cluster.kafka(), &self.cluster.names.triggers());
        for finding in report.findings.iter().take(FINDINGS_SHOWN) {
            let of_trigger = |record: &&OwnedMessage| {
                record.key().is_some_and(|key| key == finding.trigger.as_bytes())
            };
            let written = records.iter().filter(of_trigger).map(|record| {
                (record.offset(), record.timestamp().to_millis(), record.payload().map(<[u8]>::len))
            });
            let known = commands.get(&finding.trigger).map_or(&[][..], Vec::as_slice);
            let known = known.iter().map(|command| (command.offset, command.appended));
            print_progress(&format!(
                "  {}: offset, ms and bytes of its records {:?}; acknowledged {:?}",
                finding.trigger,
                written.collect::<Vec<_>>(),
                known.collect::<Vec<_>>()
            ));
        }
    }

    /// Judges what is there now.
    pub(super) fn judged_now(&self) -> audit::AuditReport {
        let mut report = self.cluster.audit(&self.client, MARGIN);
        let letters: Vec<_> = self.cluster.dead_letters().iter().map(letter_name).collect();
        report.check_dead_letters(&letters, &self.expected_letters);
        report
    }
}

/// What identifies a dead letter to a case that expects it: of a fire its trigger, of a record its
/// topic and value. (Its partition may be another one by then.)
fn letter_name(letter: &DeadLetter) -> String {
    match &letter.content {
        Content::Fire { fire, .. } => fire.id.trigger.as_str().to_owned(),
        Content::Record { value, .. } => {
            record_letter(letter.origin.topic.as_str(), value.as_deref().unwrap_or_default())
        }
        Content::Mark(mark) => format!("{mark:?} of {:?}", letter.origin),
    }
}

/// The same, for a record that is going to be one.
pub(super) fn record_letter(topic: &str, value: &[u8]) -> String {
    format!("{topic} {}", value.escape_ascii())
}

pub(super) fn assert_clean(look: &str, report: &audit::AuditReport) {
    assert!(report.is_clean(), "{look}: {report}");
}
