//! What a worker says at `/readyz` while its group has assigned it nothing, while it cannot read,
//! and after a transaction that was not answered.
//!
//! Invariant: the worker reaches its broker through a proxy; the test itself does not.

use std::collections::BTreeMap;
use std::time::Duration;

use orloj::config::{Layers, Settings};
use orloj::environment::group::GroupQueries as _;
use orloj::kafka::standby_client::StandbyClient;
use orloj::model::PartitionId;

use crate::endpoint::Endpoint;
use crate::faults::proxy::{END_TXN, FETCH, JOIN_GROUP, Proxy};
use crate::fire_producer::FireProducer;
use crate::kafka_server::{KafkaServer, Options, free_ports};
use crate::process::OrlojProcess;
use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster};
use crate::wait::until;
use crate::worker::fire_to;

const DEADLINE: Duration = Duration::from_secs(60);
/// How long a question about the group may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A session that outlasts what a test does to the broker.
const LONG_SESSION: &str = "60s";
/// Callbacks in progress while the broker is away.
const CALLBACKS: usize = 12;

/// A worker that is alone in its group, and a receiver of its callbacks.
struct ProxiedWorker {
    worker: OrlojProcess,
    cluster: TestCluster,
    proxy: Proxy,
    endpoint: Endpoint,
    server: KafkaServer,
}

impl ProxiedWorker {
    fn start(test: &str, session_timeout: &str) -> Self {
        let [listener, port] = free_ports();
        let proxied = Some([listener, port]);
        let server = KafkaServer::start(&Options { proxied, ..Options::default() });
        let proxy = Proxy::start(port, format!("127.0.0.1:{listener}"));
        let kafka = [("bootstrap.servers", format!("127.0.0.1:{port}"))];
        let cluster = TestCluster::with_client(test, server.client(), &kafka)
            .set("scheduler.session_timeout", session_timeout)
            .set("worker.allow_addresses", "any")
            .set("worker.timeout", "2min")
            .set("worker.timeout_max", "2min");
        let mut worker = cluster.start("worker", "worker");
        worker.wait_until_ready(READY_DEADLINE);
        Self { worker, cluster, proxy, endpoint: Endpoint::start(), server }
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

    /// Publishes fires of so many triggers to each partition in turn.
    fn publish(&self, name: &str, count: usize, behaviour: &str) {
        let fires = FireProducer::open(self.cluster.kafka(), &self.cluster.names.fires());
        for n in 0..count {
            let partition = PartitionId::try_from(n).unwrap() % PARTITIONS;
            let url = self.endpoint.url(behaviour);
            fires.publish(partition, &fire_to(&format!("{name}-{n}"), &url));
        }
        fires.flush();
    }

    /// Waits until so many triggers have an outcome, and returns how many each has.
    fn outcomes(&self, count: usize) -> BTreeMap<String, usize> {
        until("the outcomes", DEADLINE, || {
            let outcomes = self.cluster.outcomes();
            let of = count_each(outcomes.iter().map(|outcome| outcome.trigger.as_str()));
            (of.len() == count).then_some(of)
        })
    }

    /// Publishes a fire, and waits until it has an outcome.
    fn fire(&self) {
        self.publish("single", 1, "ok");
        let _delivered = self.outcomes(1);
    }
}

fn count_each<'a>(triggers: impl Iterator<Item = &'a str>) -> BTreeMap<String, usize> {
    let mut count = BTreeMap::new();
    for trigger in triggers {
        *count.entry(trigger.to_owned()).or_default() += 1;
    }
    count
}

#[test]
fn a_worker_that_was_expelled_is_not_ready_until_the_group_has_assigned_again() {
    let mut proxied = ProxiedWorker::start("worker-expelled", "1s");
    proxied.proxy.close();
    proxied.wait_until_expelled();
    proxied.proxy.release_until(JOIN_GROUP);
    proxied.wait_until_not_ready("no group assignment");
    proxied.proxy.release();
    proxied.worker.wait_until_ready(READY_DEADLINE);
    proxied.fire();
}

#[test]
fn a_worker_that_cannot_read_is_not_ready_and_reads_on_where_it_was() {
    let mut proxied = ProxiedWorker::start("worker-unread", LONG_SESSION);
    proxied.publish("before", CALLBACKS, "hang");
    until("callbacks in progress", DEADLINE, || {
        (proxied.endpoint.requests().len() == CALLBACKS).then_some(())
    });
    proxied.proxy.cut();
    proxied.publish("meanwhile", CALLBACKS, "hang");
    proxied.wait_until_not_ready("fires cannot be read");
    proxied.proxy.release();
    proxied.worker.wait_until_ready(READY_DEADLINE);
    proxied.publish("after", CALLBACKS, "hang");
    proxied.endpoint.recover();
    let outcomes = proxied.outcomes(3 * CALLBACKS);
    assert!(outcomes.values().all(|count| *count == 1), "{outcomes:?}");
    let requests = proxied.endpoint.requests();
    let requests = count_each(requests.iter().map(|request| request.id.as_str()));
    assert!(requests.values().all(|count| *count == 1), "{requests:?}");
    assert_eq!(requests.len(), 3 * CALLBACKS);
}

/// An answer takes longer than the worker once waited before it read again.
#[test]
fn a_worker_whose_fetches_are_slow_is_ready_again_after_an_error() {
    let mut proxied = ProxiedWorker::start("worker-slow", LONG_SESSION);
    proxied.proxy.delay(FETCH, Duration::from_millis(1_500));
    proxied.proxy.cut();
    proxied.wait_until_not_ready("fires cannot be read");
    proxied.proxy.release();
    proxied.worker.wait_until_ready(READY_DEADLINE);
    proxied.fire();
}

/// Nothing is left to be committed then.
#[test]
fn a_worker_whose_transaction_was_committed_without_an_answer_is_ready_again() {
    let mut proxied = ProxiedWorker::start("worker-unanswered", LONG_SESSION);
    proxied.proxy.lose(&[END_TXN], 1);
    proxied.publish("single", 1, "ok");
    proxied.worker.wait_for_log("a transaction failed", DEADLINE);
    proxied.proxy.lose(&[], 0);
    proxied.worker.wait_until_ready(READY_DEADLINE);
    let outcomes = proxied.outcomes(1);
    assert_eq!(outcomes.values().sum::<usize>(), 1);
    assert_eq!(proxied.endpoint.requests().len(), 1);
}
