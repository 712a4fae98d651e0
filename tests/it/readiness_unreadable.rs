//! What each role says at `/readyz` while it may not read a topic of its own, and while one is
//! deleted.
//!
//! Invariant: a broker answers questions about a topic that may not be read, such as where a
//! partition ends. That makes no role ready.

use std::time::Duration;

use crate::faults::topic_admin::FaultTopicAdmin;
use crate::kafka_server::KafkaServer;
use crate::mail_server::MailServer;
use crate::notifications::{CALLERS, with_notifiers, write_letter};
use crate::process::OrlojProcess;
use crate::readiness::{wait_for_refusal, wait_until_leading};
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::{until, within};

const DEADLINE: Duration = Duration::from_secs(60);
/// For so long roles are watched that must not be ready: that nothing happens is no event to wait
/// for. They ask the brokers, or begin to lead, more often.
const WATCHED: Duration = Duration::from_secs(3);

/// Each of them says so and stays not ready.
fn assert_unreadable(roles: &[OrlojProcess], reasons: &[&str]) {
    for (role, reason) in roles.iter().zip(reasons) {
        wait_for_refusal(role, reason);
    }
    let ready = within(WATCHED, || roles.iter().position(OrlojProcess::is_ready));
    let reason = ready.map(|place| reasons[place]);
    assert_eq!(reason, None, "it calls itself ready again");
}

fn wait_until_ready(roles: &mut [OrlojProcess]) {
    roles.iter_mut().for_each(|role| role.wait_until_ready(READY_DEADLINE));
    assert!(roles.iter().all(|role| !role.panicked()));
}

#[test]
fn a_role_that_may_not_read_a_topic_of_its_own_is_not_ready_until_it_may() {
    let server = KafkaServer::with_rules();
    let cluster = TestCluster::on_server("readiness-denied", &server);
    let names = &cluster.names;
    let topics = [names.triggers(), names.fires(), names.outcomes(), names.dead_letters()];
    let reasons = [
        "scheduler triggers: triggers cannot be read: ",
        "worker partitions: fires cannot be read: ",
        "gateway outcomes: outcomes cannot be read: ",
        "notifier broker: topics cannot be read: ",
    ];
    let [worker, gateway, notifier] =
        ["worker", "gateway", "notifier"].map(|role| cluster.start(role, role));
    let mut roles = [cluster.scheduler("scheduler"), worker, gateway, notifier];
    wait_until_ready(&mut roles);
    roles[0].wait_until_owner(READY_DEADLINE);
    wait_until_leading(&roles[3]);
    topics.iter().for_each(|topic| server.allow_only_describe(topic));
    assert_unreadable(&roles, &reasons);
    topics.iter().for_each(|topic| server.allow_all(topic));
    wait_until_ready(&mut roles);
}

#[test]
fn a_gateway_and_a_notifier_are_not_ready_while_there_are_no_outcomes() {
    let cluster = cluster("readiness-deleted");
    let mut roles = ["gateway", "notifier"].map(|role| cluster.start(role, role));
    wait_until_ready(&mut roles);
    wait_until_leading(&roles[1]);
    FaultTopicAdmin::of(&cluster).delete(&cluster.names.outcomes());
    let reasons = ["gateway outcomes: outcomes cannot", "notifier broker: topics cannot be read: "];
    assert_unreadable(&roles, &reasons);
    until("the topic to be created again", DEADLINE, || cluster.apply_topics());
    wait_until_ready(&mut roles);
}

/// The partitions of this topic are what its group assigns.
#[test]
fn a_notifier_that_leads_is_not_ready_while_there_are_no_dead_letters() {
    let mail = MailServer::start();
    let (cluster, _folder) = with_notifiers(cluster("readiness-letters"), &mail, CALLERS);
    let mut notifiers = [cluster.start("notifier", "notifier")];
    wait_until_ready(&mut notifiers);
    wait_until_leading(&notifiers[0]);
    FaultTopicAdmin::of(&cluster).delete(&cluster.names.dead_letters());
    assert_unreadable(&notifiers, &["notifier "]);
    until("the topic to be created again", DEADLINE, || cluster.apply_topics());
    wait_until_ready(&mut notifiers);
    write_letter(&cluster, "billing");
    let mails = || mail.received_by("ops@example.com");
    let first = until("a mail", DEADLINE, || mails().into_iter().next());
    assert!(first.text.contains("Subject: 1 dead letter of billing\n"), "{}", first.text);
}

/// An installation whose clients notice soon that a topic is deleted.
fn cluster(test: &str) -> TestCluster {
    // With the default, a client that has just started waits for 30 s.
    TestCluster::new(test).set("kafka.\"topic.metadata.propagation.max.ms\"", "1000")
}
