//! A real worker between hostile receivers: every second callback of a partition goes to one of
//! them, every other one to a good receiver.
//!
//! Invariant: as of one attempt; the good ones are called as if there were no others, and each
//! hostile one is tried again or not as it should be.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use orloj::clock;
use orloj::model::Millis;
use orloj::model::outcome::{Outcome, OutcomeKind};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::cases::{CASES, ExpectedEnd, HostileCase};
use super::receiver::HostileReceiver;
use super::{certificates, fire_at};
use crate::fire_producer::FireProducer;
use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster, exclusive_machine};
use crate::wait::until;
use crate::worker::fire_to;

/// An attempt may take a second longer than its timeout, in ms.
const GRACE: Millis = 1_000;
const MIB: u64 = 1_048_576;

#[test]
fn a_partition_moves_on_between_hostile_receivers() {
    let _machine = exclusive_machine();
    let load = HostileLoad::start("hostile", 4_000);
    let before = load.worker.footprint();
    load.round(0, 1);
    let grown = load.worker.footprint().peak - before.resident;
    assert!(grown <= 64 * MIB, "{} MiB more than before", grown / MIB);
    load.worker.terminate();
}

mod delivery {
    use super::*;
    use crate::fd_limit;

    const COPIES: usize = 20;

    /// Each behaviour so often at once, over and over: the first round may cost memory, what
    /// follows must not.
    #[test]
    #[ignore = "three minutes; `make test-delivery` runs it"]
    fn memory_stays_flat_between_hostile_receivers() {
        let _machine = exclusive_machine();
        fd_limit::raise_open_files_limit(COPIES * CASES.len() * 4);
        let load = HostileLoad::start("hostile-long", 15_000);
        let before = load.worker.footprint();
        let mut after = Vec::new();
        for round in 0..5 {
            load.round(round, COPIES);
            after.push(load.worker.footprint());
        }
        let mib = after.iter().map(|memory| (memory.resident / MIB, memory.peak / MIB));
        eprintln!("resident and peak after each round, in MiB: {:?}", mib.collect::<Vec<_>>());
        let (first, last) = (after[0], after[after.len() - 1]);
        assert!(last.resident <= first.resident + 32 * MIB, "{first:?} grew to {last:?}");
        assert!(last.peak <= before.resident + 512 * MIB, "{before:?} grew to {last:?}");
        load.worker.terminate();
    }
}

struct HostileLoad {
    cluster: TestCluster,
    fires: FireProducer,
    worker: OrlojProcess,
    /// Of the worker, in ms.
    timeout: Millis,
    good: GoodReceiver,
    hostile: Vec<(&'static HostileCase, HostileReceiver)>,
    _theirs: Runtime,
}

impl HostileLoad {
    fn start(name: &str, timeout: Millis) -> Self {
        let limit = format!("{timeout}ms");
        let mut cluster = TestCluster::new(name)
            .set("worker.allow_addresses", "any")
            .set("worker.timeout", limit.as_str())
            .set("worker.connect_timeout", limit.as_str());
        let root = certificates::root();
        cluster.settings = cluster.settings.environment("SSL_CERT_FILE", root.to_str().unwrap());
        let theirs = Runtime::new().unwrap();
        let receive = |case: &'static HostileCase| {
            (case, HostileReceiver::start(&theirs, case.connection, case.script))
        };
        let hostile = CASES.iter().map(receive).collect();
        let good = GoodReceiver::start(&theirs);
        let mut worker = cluster.start("worker", "worker");
        worker.wait_until_ready(READY_DEADLINE);
        let fires = FireProducer::open(cluster.kafka(), &cluster.names.fires());
        let load = Self { cluster, fires, worker, timeout, good, hostile, _theirs: theirs };
        // What the first callback of a process costs does not count.
        load.publish_good("first");
        until("the first callback", READY_DEADLINE, || load.good.arrived("first"));
        load
    }

    /// Every behaviour `copies` times at once, and judges each callback.
    fn round(&self, round: usize, copies: usize) {
        let mut published = HashMap::new();
        for copy in 0..copies {
            let prefix = format!("{round}:{copy}:");
            for (place, (case, receiver)) in self.hostile.iter().enumerate() {
                let good = format!("{prefix}{place}:ok");
                self.publish_good(&good);
                published.insert(good, clock::now_ms());
                let bad = format!("{place}:{round}:{copy}");
                let mut fire = fire_at(case, receiver, &bad);
                // Of a caller of its own, without failures so far.
                fire.definition.caller = Some(format!("{place}:{round}").as_str().into());
                self.fires.publish(0, &fire);
                published.insert(bad, clock::now_ms());
            }
            // The next ones come to a worker that has all of these.
            let limit = Duration::from_millis(self.timeout);
            until("the good ones to be called", limit, || {
                let of_this_copy = |id: &&String| id.ends_with("ok") && id.starts_with(&prefix);
                published.keys().filter(of_this_copy).all(|id| self.good.has(id)).then_some(())
            });
        }
        let all = published.len();
        let limit = Duration::from_millis(self.timeout + GRACE) + READY_DEADLINE;
        let outcomes = until("an outcome of each callback", limit, || {
            let mut outcomes = self.cluster.outcomes();
            outcomes.retain(|outcome| published.contains_key(outcome.trigger.as_str()));
            (outcomes.len() >= all).then_some(outcomes)
        });
        let judged = outcomes.iter().filter_map(|outcome| {
            let from = published[outcome.trigger.as_str()];
            let finding = self.finding(outcome, from)?;
            Some(format!("{finding} {outcome:?} published at {from}"))
        });
        let mut findings: Vec<_> = judged.collect();
        if outcomes.len() != all {
            findings.push(format!("{} outcomes of {all} callbacks", outcomes.len()));
        }
        for (case, receiver) in &self.hostile {
            let (asked, most) = (receiver.requests(), (round + 1) * copies);
            if asked > most {
                findings.push(format!("{}: {asked} requests of {most} attempts", case.name));
            }
        }
        assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
    }

    /// In which a fire comes through Kafka, on a machine that floods itself: long before the first
    /// of the hostile ones has ended. In ms.
    fn delivery_time_max(&self) -> Millis {
        self.timeout / 2
    }

    fn publish_good(&self, trigger: &str) {
        self.fires.publish(0, &fire_to(trigger, &self.good.url));
    }

    /// What is wrong with an outcome.
    fn finding(&self, outcome: &Outcome, published: Millis) -> Option<String> {
        let trigger = outcome.trigger.as_str();
        if trigger.ends_with("ok") {
            let arrived = self.good.arrived(trigger)?;
            let late = arrived.saturating_sub(published);
            return (late > self.delivery_time_max()).then(|| format!("{late} ms late:"));
        }
        let place: usize = trigger.split(':').next().unwrap().parse().unwrap();
        let case = self.hostile[place].0;
        let is_in_time = outcome.at <= published + self.timeout + GRACE + self.delivery_time_max();
        let is_right = case.leads_to(&outcome.kind);
        (!is_in_time || !is_right).then(|| format!("{}:", case.name))
    }
}

impl HostileCase {
    fn leads_to(&self, kind: &OutcomeKind) -> bool {
        match (self.end, kind) {
            (
                ExpectedEnd::Answered(200) | ExpectedEnd::Race,
                OutcomeKind::Delivered { status: 200, .. },
            ) => true,
            (
                ExpectedEnd::Answered(wanted) | ExpectedEnd::AnsweredLate(wanted),
                OutcomeKind::Failed { status, retry_at: Some(_), .. },
            ) => *status == Some(wanted),
            (ExpectedEnd::Race, OutcomeKind::Failed { status: None, retry_at: Some(_), .. }) => {
                true
            }
            (
                ExpectedEnd::Silent(words),
                OutcomeKind::Failed { status: None, reason, retry_at: Some(_), .. },
            ) => reason.contains(words),
            (
                ExpectedEnd::TimedOut,
                OutcomeKind::Failed { status: None, reason, retry_at: Some(_), .. },
            ) => reason.starts_with("timed out"),
            _ => false,
        }
    }
}

/// A receiver as it should be.
struct GoodReceiver {
    url: String,
    /// When each trigger was called first, in ms since the epoch.
    arrivals: Arrivals,
}

type Arrivals = Arc<Mutex<HashMap<String, Millis>>>;

impl GoodReceiver {
    fn start(runtime: &Runtime) -> Self {
        let arrivals = Arrivals::default();
        let routes = Router::new().route("/", post(receive)).with_state(Arc::clone(&arrivals));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        runtime.spawn(async { axum::serve(listener, routes).await.unwrap() });
        Self { url: format!("http://{address}/"), arrivals }
    }

    fn has(&self, trigger: &str) -> bool {
        self.arrived(trigger).is_some()
    }

    fn arrived(&self, trigger: &str) -> Option<Millis> {
        self.arrivals.lock().unwrap().get(trigger).copied()
    }
}

async fn receive(State(arrivals): State<Arrivals>, headers: HeaderMap) {
    let trigger = headers["x-trigger-id"].to_str().unwrap().to_owned();
    arrivals.lock().unwrap().entry(trigger).or_insert_with(clock::now_ms);
}
