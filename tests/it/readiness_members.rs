//! What a scheduler and a notifier say at `/readyz` as members of their group: while there are more
//! of them than partitions, and after the group has expelled one.
//!
//! Invariant: the one that is expelled reaches its broker through a proxy; the other members and
//! the test itself do not.

use std::time::Duration;

use orloj::config::{Layers, Settings};
use orloj::environment::group::GroupQueries as _;
use orloj::kafka::standby_client::StandbyClient;

use crate::faults::proxy::{JOIN_GROUP, Proxy};
use crate::kafka_server::{KafkaServer, Options, free_ports};
use crate::process::OrlojProcess;
use crate::readiness::{assert_stay_ready, wait_for_refusal};
use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster};
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);
const ROLES: [&str; 2] = ["scheduler", "notifier"];

/// So many other members leave nothing to a further one.
const OTHERS: usize = PARTITIONS as usize;

fn start(cluster: &TestCluster, role: &str, name: &str) -> OrlojProcess {
    match role {
        "scheduler" => cluster.scheduler(name),
        _ => cluster.start(role, name),
    }
}

/// A client that knows the members of the role's group.
fn members_of(cluster: &TestCluster, role: &str, bootstrap: &str) -> StandbyClient {
    let (group, topic) = match role {
        "scheduler" => (cluster.names.scheduler_group(), cluster.names.triggers()),
        _ => (cluster.names.notifier_group(), cluster.names.dead_letters()),
    };
    let overrides = vec![format!("kafka.bootstrap.servers={bootstrap}")];
    let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
    StandbyClient::open(&settings, &group, &topic, DEADLINE).unwrap()
}

/// Waits until the group has so many members, each with so many partitions, in ascending order.
fn wait_for_members(members: &StandbyClient, owned: &[usize]) {
    until(&format!("members with {owned:?} partitions"), DEADLINE, || {
        let found = members.members().ok()?;
        let mut counts: Vec<_> = found.iter().map(|member| member.partitions.len()).collect();
        counts.sort_unstable();
        (counts == owned).then_some(())
    });
}

/// The group expels a process of the role that has joined after so many others.
fn expel(role: &str, others: usize) {
    let [listener, port] = free_ports();
    let proxied = Some([listener, port]);
    let server = KafkaServer::start(&Options { proxied, ..Options::default() });
    let proxy = Proxy::start(port, format!("127.0.0.1:{listener}"));
    let cluster = TestCluster::on_server("expelled", &server);
    let members = members_of(&cluster, role, server.bootstrap());
    let before = vec![1; others];
    let _others: Vec<_> =
        (0..others).map(|n| start(&cluster, role, &format!("other-{n}"))).collect();
    if others > 0 {
        wait_for_members(&members, &before);
    }
    let cluster = cluster
        .set("kafka.\"bootstrap.servers\"", format!("127.0.0.1:{port}"))
        .set("scheduler.session_timeout", "1s");
    let mut process = start(&cluster, role, "expelled");
    process.wait_until_ready(READY_DEADLINE);
    proxy.close();
    wait_for_members(&members, &before);
    proxy.release_until(JOIN_GROUP);
    wait_for_refusal(&process, "no group assignment");
    let log = process.log_text();
    let has_owned = (0..PARTITIONS).any(|id| log.contains(&format!("Assigned([{id}")));
    assert_eq!(has_owned, others == 0, "{role}");
    proxy.release();
    process.wait_until_ready(READY_DEADLINE);
}

/// As a worker does (`worker_readiness`).
#[test]
fn a_scheduler_or_notifier_that_was_expelled_is_not_ready_until_the_group_has_assigned_again() {
    ROLES.iter().for_each(|role| expel(role, 0));
}

/// Its client reports nothing then.
#[test]
fn a_scheduler_or_notifier_without_partitions_that_was_expelled_is_not_ready_either() {
    ROLES.iter().for_each(|role| expel(role, OTHERS));
}

#[test]
fn notifiers_are_ready_although_there_are_more_of_them_than_partitions() {
    let cluster = TestCluster::new("readiness-members");
    let bootstrap = cluster.kafka().get("bootstrap.servers").unwrap();
    let members = members_of(&cluster, "notifier", bootstrap);
    let mut notifiers: Vec<_> =
        (0..=OTHERS).map(|n| cluster.start("notifier", &format!("notifier-{n}"))).collect();
    let owned = [&[0][..], &[1; OTHERS]].concat();
    wait_for_members(&members, &owned);
    notifiers.iter_mut().for_each(|notifier| notifier.wait_until_ready(READY_DEADLINE));
    assert_stay_ready(&notifiers.iter().collect::<Vec<_>>());
}
