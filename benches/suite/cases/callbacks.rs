//! Ten thousand callbacks at once in one worker, next to a plain loop around the same HTTP client.
//!
//! Law: both call the same receivers, one after the other, and are measured by them: from the first
//! request to the last answer. Memory is looked at before, half way, near the end and after.

use std::net::TcpListener;
use std::time::Duration;

use orloj::codec::schemas::Schemas;
use orloj::kafka::{Names, producer_config};
use orloj::model::PartitionId;
use orloj::model::definition::{Definition, HttpTarget, Target};
use orloj::model::entry::FireId;
use orloj::model::fire::Fire;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::chart::Chart;
use crate::contender::Contender;
use crate::figures::{Figure, Goal, amount};
use crate::receiver::Receiver;
use crate::registrar::{PAYLOAD_BYTES, send};
use crate::run::{Outcome, Run, say};
use crate::site::{PARTITIONS, Site};

/// Callbacks under way at once.
const AT_ONCE: u32 = 10_000;
const CALLERS: u32 = 200;
const DEADLINE: Duration = Duration::from_secs(300);
const MIB: f64 = 1_048_576.0;

/// How a receiver answers, and how many callbacks it gets.
struct Kind {
    name: &'static str,
    pause: Duration,
    callbacks: u32,
}

const KINDS: [Kind; 2] = [
    Kind { name: "after 1 s", pause: Duration::from_secs(1), callbacks: 60_000 },
    Kind { name: "at once", pause: Duration::ZERO, callbacks: 120_000 },
];

/// What a round has found.
struct Round {
    /// Callbacks a second.
    worker: f64,
    /// Requests a second.
    plain: f64,
    /// The most callbacks that the worker had under way.
    most: u32,
    /// Resident at the start, half way, near the end, and after; in MiB.
    resident: [f64; 4],
}

/// The delivery rate, and what it costs in memory.
pub(crate) fn ten_thousand_at_once(run: &Run) -> Outcome {
    let mut outcome = Outcome::default();
    let mut bars = Vec::new();
    for kind in &KINDS {
        let rounds: Vec<_> = run.rounds().map(|number| round(run, kind, number)).collect();
        let figure = |name: &str, unit, value: &dyn Fn(&Round) -> f64| {
            let name = format!("{name}, answered {}", kind.name);
            Figure::new(name, unit, rounds.iter().map(value).collect())
        };
        let worker = figure("callbacks", "/s", &|round| round.worker);
        let plain = figure("plain requests", "/s", &|round| round.plain);
        let ratio = format!("worker ÷ plain loop, answered {}", kind.name);
        let growth = figure("resident near the end ÷ half way", "", &|round| {
            let [_, half_way, near_the_end, _] = round.resident;
            near_the_end / half_way
        });
        bars.extend([&worker, &plain].map(|figure| (figure.name.clone(), figure.median)));
        outcome.figures.push(Figure::ratio(ratio, &worker, &plain));
        outcome.figures.extend([worker, plain]);
        if !kind.pause.is_zero() {
            let most = figure("most at once", "", &|round| round.most.into());
            let all = run.count(AT_ONCE);
            outcome.figures.push(most.asked(Goal::at_least(f64::from(all) * 0.99)));
        }
        outcome.figures.push(growth.asked(Goal::at_most(1.2)));
        for (at, when) in ["at the start", "half way", "near the end", "after"].iter().enumerate() {
            let resident = format!("resident {when}");
            outcome.figures.push(figure(&resident, "MiB", &|round| round.resident[at]));
        }
    }
    outcome.charts.push(Chart::bars("callbacks", "Callbacks a second", &bars));
    outcome
}

fn round(run: &Run, kind: &Kind, number: u32) -> Round {
    let (count, at_once) = (run.count(kind.callbacks), run.count(AT_ONCE));
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let more = format!(
        "worker.allow_addresses = 'any'\nworker.in_flight_max = {at_once}\n\
         worker.listen = '{listen}'"
    );
    let site = Site::prepare_with(run.bootstrap, &more);
    let receiver = Receiver::open(kind.pause, at_once);
    // What a worker sends back, for whatever reason, comes again by the scheduler.
    let _scheduler = Contender::scheduler(&site);
    let worker = Contender::worker(&site);
    let resident = || worker.memory().resident as f64 / MIB;
    let start = resident();
    write_fires(&site, &receiver.url(), count);
    receiver.rate(count / 2, DEADLINE);
    let half_way = resident();
    receiver.rate(count / 10 * 9, DEADLINE);
    let near_the_end = resident();
    let rate = receiver.rate(count, DEADLINE);
    worker.rest();
    let resident = [start, half_way, near_the_end, resident()];
    worker.terminate();

    let most = receiver.most();
    let receiver = Receiver::open(kind.pause, at_once);
    let _caller = Contender::caller(&site, &receiver.url(), count, at_once);
    let plain = receiver.rate(count, DEADLINE);
    say(&format!(
        "round {number}, answered {}: {rate:.0}/s of {plain:.0}/s; {} MiB, {} near the end",
        kind.name,
        amount(start),
        amount(near_the_end)
    ));
    Round { worker: rate, plain, most, resident }
}

/// Writes so many fires, to all partitions in turn.
fn write_fires(site: &Site, url: &str, count: u32) {
    let producer: BaseProducer = producer_config(&site.settings).create().unwrap();
    let (topic, schemas) = (Names::new(&site.settings.topics.prefix).fires(), Schemas::new());
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
            settles: false,
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
