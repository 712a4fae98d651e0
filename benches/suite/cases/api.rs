//! Registering over HTTP: from the moment a request should be made to the owner's answer.
//!
//! Invariant: requests are made at their times, however long those before them take, and each
//! answer is the owner's: 201, or the measurement has failed. Some are followed by a look at what
//! was made, which must be there.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use orloj::clock;
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::lateness::{WARM_UP_S, of_ticker};
use crate::bench_cluster::BenchCluster;
use crate::case::{BenchRun, CaseResult};
use crate::figures::{Figure, Goal, amount};
use crate::measured_process::MeasuredProcess;
use crate::progress::print_progress;

/// Requests a second while their time is measured.
const RATE: u32 = 1_000;
/// Every so many-th is followed by a look.
const GET_EVERY: u32 = 20;
/// Clients that register as fast as they are answered.
const CLIENTS: u32 = 1_024;
/// Registrations of theirs.
const SUSTAINED: u32 = 100_000;
/// From a registration to its time, in s: it is in the ledger, as most of what comes over HTTP.
const DELAY_S: u32 = 3_600;

/// What a round has measured.
struct ApiRound {
    ticker_p99: f64,
    p50: f64,
    p99: f64,
    get_p99: f64,
    sustained: f64,
}

/// Of `POST /v1/triggers`.
pub(crate) fn acknowledged(run: &BenchRun) -> CaseResult {
    let rounds: Vec<_> = run.rounds().map(|number| round(run, number)).collect();
    let figure = |name: String, unit, of: &dyn Fn(&ApiRound) -> f64| {
        Figure::new(name, unit, rounds.iter().map(of).collect())
    };
    let rate = amount(RATE.into());
    let p99 = figure(format!("p99 at {rate}/s, POST"), "ms", &|round| round.p99);
    let ticker = figure(format!("p99 at {rate}/s, ticker"), "ms", &|round| round.ticker_p99);
    let ratio = Figure::ratio("POST ÷ ticker, p99", &p99, &ticker).with_goal(Goal::at_most(3.0));
    CaseResult {
        figures: vec![
            ratio,
            p99,
            ticker,
            figure(format!("p50 at {rate}/s, POST"), "ms", &|round| round.p50),
            figure("p99, GET of what was just made".to_owned(), "ms", &|r| r.get_p99),
            figure("POST, as fast as answered".to_owned(), "/s", &|round| round.sustained),
        ],
        ..CaseResult::default()
    }
}

fn round(run: &BenchRun, number: u32) -> ApiRound {
    let ticker = of_ticker(run, RATE);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let more = format!(
        "gateway.listen = '{free}'\ngateway.view_dir = '{}'",
        folder.path().join("view").display()
    );
    let cluster = BenchCluster::prepare_with(run.bootstrap, &more);
    let scheduler = MeasuredProcess::scheduler(&cluster);
    let gateway = MeasuredProcess::gateway(&cluster);
    let runtime = Runtime::new().unwrap();
    let api = Arc::new(ApiTarget {
        client: Client::builder().no_proxy().build().unwrap(),
        url: format!("http://{free}/v1/triggers"),
        topic: cluster.output("scheduler"),
    });
    let count = RATE * (WARM_UP_S + run.plan.measured_s);
    let (mut made, mut looked) = runtime.block_on(at_fixed_rate(&api, count));
    let sustained = runtime.block_on(closed_loop(&api, run.count(SUSTAINED)));
    gateway.terminate();
    scheduler.terminate();
    let (p50, p99) = (percentile(&mut made, 50), percentile(&mut made, 99));
    let looked_p99 = percentile(&mut looked, 99);
    print_progress(&format!(
        "round {number}: POST p50 {p50} ms, p99 {p99}; GET p99 {looked_p99}; {sustained:.0}/s"
    ));
    ApiRound { ticker_p99: ticker.p99_ms, p50, p99, get_p99: looked_p99, sustained }
}

struct ApiTarget {
    client: Client,
    url: String,
    topic: String,
}

impl ApiTarget {
    /// Registers, and says under which id.
    async fn register(&self) -> String {
        let body = json!({
            "topic": self.topic, "delaySeconds": DELAY_S,
            "payload": {"order": "a".repeat(280)},
        });
        let answer = self.client.post(&self.url).json(&body).send().await.unwrap();
        let status = answer.status();
        let body: Value = answer.json().await.unwrap();
        assert_eq!(status, StatusCode::CREATED, "{body}");
        body["triggerId"].as_str().unwrap().to_owned()
    }

    async fn get(&self, id: &str) {
        let answer = self.client.get(format!("{}/{id}", self.url)).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{id} was made, and is not there");
    }
}

/// How long each request took, in ms, from when it should have been made; and each poll. What was
/// received while everything warmed up is left out.
async fn at_fixed_rate(api: &Arc<ApiTarget>, count: u32) -> (Vec<f64>, Vec<f64>) {
    let begin = clock::monotonic();
    let mut requests = JoinSet::new();
    let mut tick = tokio::time::interval(Duration::from_millis(1));
    for n in 0..count {
        let due = begin + Duration::from_secs(1) * n / RATE;
        while clock::monotonic() < due {
            tick.tick().await;
        }
        let api = Arc::clone(api);
        requests.spawn(async move {
            let id = api.register().await;
            let made = since(due);
            if n % GET_EVERY != 0 {
                return (n, made, None);
            }
            let asked = clock::monotonic();
            api.get(&id).await;
            (n, made, Some(since(asked)))
        });
    }
    let measured = requests.join_all().await.into_iter();
    let measured: Vec<_> = measured.filter(|(n, ..)| *n >= RATE * WARM_UP_S).collect();
    let looks = measured.iter().filter_map(|(_, _, looked)| *looked).collect();
    (measured.into_iter().map(|(_, made, _)| made).collect(), looks)
}

/// Registrations a second.
async fn closed_loop(api: &Arc<ApiTarget>, count: u32) -> f64 {
    let (started, taken) = (clock::monotonic(), Arc::new(AtomicU32::new(0)));
    let clients = (0..CLIENTS).map(|_| {
        let (api, taken) = (Arc::clone(api), Arc::clone(&taken));
        async move {
            while taken.fetch_add(1, Relaxed) < count {
                let _id = api.register().await;
            }
        }
    });
    let _all = clients.collect::<JoinSet<_>>().join_all().await;
    f64::from(count) / (clock::monotonic() - started).as_secs_f64()
}

fn since(moment: Instant) -> f64 {
    (clock::monotonic() - moment).as_secs_f64() * 1_000.0
}

fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) * percent / 100]
}
