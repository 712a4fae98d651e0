//! Notifiers that lack a right on their log.
//!
//! Invariant: as long as all offsets are committed they send, and are ready. If some are missing,
//! they send nothing before they have read the log.

use std::time::Duration;

use orloj::model::outcome::CircuitState;

use super::failure_log::FailureLog;
use super::group_offsets::{is_recorded, recorded};
use super::judge::NotificationSinks;
use super::unknown_offsets::{
    SOURCE_PARTITIONS, assert_reported_once, delete_group, set_offsets, wait_for_all,
};
use super::unwritable_log::wait_for_state;
use super::{CALLERS, DEADLINE, mail_number, with_notifiers, write_letter};
use crate::kafka_server::KafkaServer;
use crate::mail_server::MailServer;
use crate::readiness::wait_for_refusal;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::{until, within};

/// For so long a notifier is watched that must wait: that nothing happens is no event to wait for.
/// It tries once more meanwhile: it pauses for 1 s, and reads its log for 5 s.
const WATCHED: Duration = Duration::from_secs(7);

/// The broker refuses each transaction.
#[test]
fn a_notifier_sends_and_is_ready_while_it_may_not_write_to_its_log() {
    let server = KafkaServer::with_rules();
    let cluster = TestCluster::on_server("notify-unwritten", &server);
    let topic = cluster.names.notifications();
    // To read a topic's settings is what a process needs to start.
    send_without(&server, cluster, ["--topic", &topic], &["Read", "DescribeConfigs"]);
}

/// The broker refuses each producer.
#[test]
fn a_notifier_sends_and_is_ready_while_it_may_not_use_its_transactional_id() {
    let server = KafkaServer::with_rules();
    let cluster = TestCluster::on_server("notify-unopened", &server);
    let id = cluster.names.transactional_id("notifier", "leader");
    send_without(&server, cluster, ["--transactional-id", &id], &["Describe"]);
}

/// A notifier starts with no more than these rights on a resource, and gets the others while it
/// runs.
fn send_without(
    server: &KafkaServer,
    cluster: TestCluster,
    resource: [&str; 2],
    operations: &[&str],
) {
    let mail = MailServer::start();
    let (cluster, _folder) = with_notifiers(cluster, &mail, CALLERS);
    let cluster = cluster.set("notifier.batch_delay", "100ms");
    set_offsets(&cluster, 0);
    server.allow_only(resource, operations);
    let notifier = cluster.start_ready("notifier", "notifier");
    let remark = "notifier log: ready, but what was reported cannot be written to ";
    let remark = format!("{remark}{}: ", cluster.names.notifications());
    for number in 1..=2 {
        write_letter(&cluster, "billing");
        let mail = mail_number(&mail, number);
        assert!(mail.text.contains("Subject: 1 dead letter of billing\n"), "{}", mail.text);
        wait_for_state(&notifier, &remark);
        assert!(notifier.is_ready());
    }
    assert!(recorded(&cluster).is_empty());

    server.allow_again(resource, operations);
    wait_for_state(&notifier, "notifier log: ready\n");
    until("what is committed to be recorded", DEADLINE, || is_recorded(&cluster).then_some(()));
    // It was the first transaction. Letters are counted by their offsets.
    let first: Vec<_> = recorded(&cluster).values().map(|offsets| offsets[0]).collect();
    assert_eq!((first.len(), first.iter().sum::<i64>()), (SOURCE_PARTITIONS, 2), "{first:?}");
    notifier.terminate();
}

/// An outage that was reported ends while no notifier runs.
#[test]
fn a_notifier_without_offsets_waits_until_it_may_read_its_log_and_continues_there() {
    let (server, sinks) = (KafkaServer::with_rules(), NotificationSinks::start());
    let cluster = TestCluster::on_server("notify-unread", &server);
    let (cluster, _folder) = with_notifiers(cluster, &sinks.mail, &sinks.callers());
    let cluster = cluster.set("notifier.batch_delay", "100ms");
    let failures = FailureLog::open(&cluster);
    let first = cluster.start_ready("notifier", "first");
    failures.write("host-0", CircuitState::Open);
    failures.write_letters("reason-0");
    wait_for_all(&sinks, &cluster);
    first.terminate();
    let before = sinks.received();
    failures.write("host-0", CircuitState::HalfOpen);
    failures.write("host-0", CircuitState::Closed);
    failures.write_letters("reason-1");
    delete_group(&cluster);

    let topic = cluster.names.notifications();
    let (resource, operations) = (["--topic", topic.as_str()], ["Write", "DescribeConfigs"]);
    server.allow_only(resource, &operations);
    let mut second = cluster.start("notifier", "second");
    wait_for_refusal(&second, &format!("notifier lead: {topic} cannot be read to its end: "));
    let goes_on = || second.is_ready() || sinks.received() != before;
    assert_eq!(within(WATCHED, || goes_on().then_some(())), None, "it does not wait");
    server.allow_again(resource, &operations);
    second.wait_until_ready(READY_DEADLINE);
    second.wait_for_log("no committed offset: using the recorded one", DEADLINE);
    wait_for_all(&sinks, &cluster);
    second.terminate();
    assert_reported_once(&sinks, &cluster, 4);
}
