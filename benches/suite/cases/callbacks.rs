//! Ten thousand callbacks at once in one worker, next to a plain loop around the same HTTP client.
//!
//! Invariant: both call the same receivers, one after the other, and are measured by them: from the
//! first request to the last answer. Memory is looked at before, half way, near the end and after.

use std::net::TcpListener;
use std::time::Duration;

use orloj::codec::schemas::Schemas;
use orloj::kafka::{Names, producer_config};
use orloj::model::PartitionId;
use orloj::model::definition::{Definition, HttpTarget, Target};
use orloj::model::entry::FireId;
use orloj::model::fire::Fire;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::bench_cluster::{BenchCluster, PARTITIONS};
use crate::case::{BenchRun, CaseResult};
use crate::chart::Chart;
use crate::figures::{Figure, Goal, amount};
use crate::load_generator::{PAYLOAD_BYTES, send};
use crate::measured_process::MeasuredProcess;
use crate::progress::print_progress;
use crate::receiver::BenchReceiver;

/// Callbacks under way at once.
const AT_ONCE: u32 = 10_000;
const CALLERS: u32 = 200;
const DEADLINE: Duration = Duration::from_secs(300);
const MIB: f64 = 1_048_576.0;

/// How a receiver answers, and how many callbacks it gets.
struct ReceiverKind {
    name: &'static str,
    pause: Duration,
    callbacks: u32,
}

const KINDS: [ReceiverKind; 2] = [
    ReceiverKind { name: "after 1 s", pause: Duration::from_secs(1), callbacks: 60_000 },
    ReceiverKind { name: "at once", pause: Duration::ZERO, callbacks: 120_000 },
];

/// What a round has found.
struct CallbackRound {
    /// Callbacks a second.
    worker: f64,
    /// Requests a second.
    plain_client: f64,
    /// The most callbacks that the worker had under way.
    max_concurrency: u32,
    /// Resident at the start, half way, near the end, and after; in MiB.
    resident: [f64; 4],
}

/// The delivery rate, and what it costs in memory.
pub(crate) fn ten_thousand_at_once(run: &BenchRun) -> CaseResult {
    let mut outcome = CaseResult::default();
    let mut bars = Vec::new();
    for kind in &KINDS {
        let rounds: Vec<_> = run.rounds().map(|number| round(run, kind, number)).collect();
        let figure = |name: &str, unit, value: &dyn Fn(&CallbackRound) -> f64| {
            let name = format!("{name}, answered {}", kind.name);
            Figure::new(name, unit, rounds.iter().map(value).collect())
        };
        let worker = figure("callbacks", "/s", &|round| round.worker);
        let plain = figure("plain requests", "/s", &|round| round.plain_client);
        let ratio = format!("worker ÷ plain loop, answered {}", kind.name);
        let growth = figure("resident near the end ÷ half way", "", &|round| {
            let [_, half_way, near_the_end, _] = round.resident;
            near_the_end / half_way
        });
        bars.extend([&worker, &plain].map(|figure| (figure.name.clone(), figure.median)));
        outcome.figures.push(Figure::ratio(ratio, &worker, &plain));
        outcome.figures.extend([worker, plain]);
        if !kind.pause.is_zero() {
            let most = figure("most at once", "", &|round| round.max_concurrency.into());
            let all = run.count(AT_ONCE);
            outcome.figures.push(most.with_goal(Goal::at_least(f64::from(all) * 0.99)));
        }
        outcome.figures.push(growth.with_goal(Goal::at_most(1.2)));
        for (at, when) in ["at the start", "half way", "near the end", "after"].iter().enumerate() {
            let resident = format!("resident {when}");
            outcome.figures.push(figure(&resident, "MiB", &|round| round.resident[at]));
        }
    }
    outcome.charts.push(Chart::bars("callbacks", "Callbacks a second", &bars));
    outcome
}

fn round(run: &BenchRun, kind: &ReceiverKind, number: u32) -> CallbackRound {
    let (count, at_once) = (run.count(kind.callbacks), run.count(AT_ONCE));
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let more = format!(
        "worker.allow_addresses = 'any'\nworker.in_flight_max = {at_once}\n\
         worker.listen = '{listen}'"
    );
    let cluster = BenchCluster::prepare_with(run.bootstrap, &more);
    let receiver = BenchReceiver::open(kind.pause, at_once);
    // What a worker sends back, for whatever reason, comes again by the scheduler.
    let _scheduler = MeasuredProcess::scheduler(&cluster);
    let worker = MeasuredProcess::worker(&cluster);
    let resident = || worker.memory().resident as f64 / MIB;
    let start = resident();
    write_fires(&cluster, &receiver.url(), count);
    receiver.rate(count / 2, DEADLINE);
    let half_way = resident();
    receiver.rate(count / 10 * 9, DEADLINE);
    let near_the_end = resident();
    let rate = receiver.rate(count, DEADLINE);
    worker.wait_until_idle();
    let resident = [start, half_way, near_the_end, resident()];
    worker.terminate();

    let most = receiver.in_flight_max();
    let receiver = BenchReceiver::open(kind.pause, at_once);
    let _caller = MeasuredProcess::caller(&cluster, &receiver.url(), count, at_once);
    let plain = receiver.rate(count, DEADLINE);
    print_progress(&format!(
        "round {number}, answered {}: {rate:.0}/s of {plain:.0}/s; {} MiB, {} near the end",
        kind.name,
        amount(start),
        amount(near_the_end)
    ));
    CallbackRound { worker: rate, plain_client: plain, max_concurrency: most, resident }
}

/// Writes so many fires, to all partitions in turn.
fn write_fires(cluster: &BenchCluster, url: &str, count: u32) {
    let producer: BaseProducer = producer_config(&cluster.settings).create().unwrap();
    let (topic, schemas) = (Names::new(&cluster.settings.topics.prefix).fires(), Schemas::new());
    let payload = format!("\"{}\"", "x".repeat(PAYLOAD_BYTES - 2));
    for n in 0..count {
        let trigger = format!("callback-{n:07}");
        let fire = Fire {
            id: FireId {
                trigger: trigger.as_str().into(),
                generation: n.into(),
                occurrence: 0,
                attempt: 1,
                deferral: 0,
            },
            scheduled: 1_000,
            fired: 1_001,
            definition: Definition {
                target: Target::from(HttpTarget::post(url)),
                payload: Some(payload.clone().into()),
                headers: Vec::new(),
                retry: None,
                // One alone may not have so many under way.
                caller: Some(format!("caller-{}", n % CALLERS).as_str().into()),
            },
            history: None,
            report_end: false,
            priority: 127,
        };
        let value = schemas.encode_fire(&fire);
        let partition: PartitionId = PARTITIONS[n as usize % PARTITIONS.len()];
        let record = BaseRecord::to(&topic).partition(partition);
        let record = record.key(trigger.as_str()).payload(value.as_slice());
        send(&producer, record);
    }
    producer.flush(DEADLINE).unwrap();
}
