//! What a worker says at `/readyz` while its group has assigned it nothing, and while it cannot
//! read.
//!
//! Invariant: the worker reaches its broker through a proxy; the test itself does not.

use std::time::Duration;

use orloj::config::{Layers, Settings};
use orloj::environment::group::GroupQueries as _;
use orloj::kafka::standby_client::StandbyClient;

use crate::faults::proxy::{JOIN_GROUP, Proxy};
use crate::fire_producer::FireProducer;
use crate::kafka_server::{KafkaServer, Options, free_ports};
use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;
use crate::worker::fire_to;

const DEADLINE: Duration = Duration::from_secs(60);
/// How long a question about the group may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A worker that is alone in its group.
struct ProxiedWorker {
    worker: OrlojProcess,
    cluster: TestCluster,
    proxy: Proxy,
    server: KafkaServer,
}

impl ProxiedWorker {
    fn start(test: &str) -> Self {
        let [listener, port] = free_ports();
        let proxied = Some([listener, port]);
        let server = KafkaServer::start(&Options { proxied, ..Options::default() });
        let proxy = Proxy::start(port, format!("127.0.0.1:{listener}"));
        let kafka = [("bootstrap.servers", format!("127.0.0.1:{port}"))];
        let cluster = TestCluster::with_client(test, server.client(), &kafka)
            .set("scheduler.session_timeout", "1s");
        let mut worker = cluster.start("worker", "worker");
        worker.wait_until_ready(READY_DEADLINE);
        Self { worker, cluster, proxy, server }
    }

    /// Waits until it is not ready, and says why.
    fn wait_until_not_ready(&self, reason: &str) {
        until(&format!("the worker to say {reason:?}"), DEADLINE, || {
            self.worker.readiness().contains(reason).then_some(())
        });
    }

    /// Waits until the group has no member.
    fn wait_until_expelled(&self) {
        let overrides = vec![format!("kafka.bootstrap.servers={}", self.server.bootstrap())];
        let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
        let (group, topic) = (self.cluster.names.worker_group(""), self.cluster.names.fires());
        let group = StandbyClient::open(&settings, &group, &topic, TIMEOUT).unwrap();
        until("the end of the session", DEADLINE, || {
            group.members().unwrap().is_empty().then_some(())
        });
    }

    /// Publishes a fire, and waits until it has an outcome.
    fn fire(&self, trigger: &str) {
        let fires = FireProducer::open(self.cluster.kafka(), &self.cluster.names.fires());
        fires.publish(0, &fire_to(trigger, "http://127.0.0.1:1/"));
        fires.flush();
        until("the outcome", DEADLINE, || {
            let outcomes = self.cluster.outcomes();
            outcomes.iter().any(|outcome| outcome.trigger == *trigger).then_some(())
        });
    }
}

#[test]
fn a_worker_that_was_expelled_is_not_ready_until_the_group_has_assigned_again() {
    let mut proxied = ProxiedWorker::start("worker-expelled");
    proxied.proxy.close();
    proxied.wait_until_expelled();
    proxied.proxy.release();
    proxied.proxy.hold_next(JOIN_GROUP);
    proxied.wait_until_not_ready("no group assignment");
    proxied.proxy.release();
    proxied.worker.wait_until_ready(READY_DEADLINE);
    proxied.fire("after");
}

#[test]
fn a_worker_that_cannot_read_is_not_ready_and_reads_on_where_it_was() {
    let mut proxied = ProxiedWorker::start("worker-unread");
    proxied.fire("before");
    proxied.proxy.cut();
    proxied.wait_until_not_ready("fires cannot be read");
    proxied.proxy.release();
    proxied.worker.wait_until_ready(READY_DEADLINE);
    proxied.fire("after");
    let outcomes = proxied.cluster.outcomes();
    let triggers: Vec<_> = outcomes.iter().map(|outcome| outcome.trigger.as_str()).collect();
    assert_eq!(triggers, ["before", "after"]);
}
