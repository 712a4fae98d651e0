//! Other schedulers at the same work, in the same run.
//!
//! Invariant: each job is done by everyone in turn. What is judged is done in three rounds, the
//! rest once: those that are ten times slower need no third digit.

use super::burst::burst;
use super::lateness::of_scheduler;
use super::throughput;
use crate::bench_cluster::BenchCluster;
use crate::case::{BenchRun, CaseResult};
use crate::chart::Chart;
use crate::figures::{Figure, Goal, amount};
use crate::measured_process::MeasuredProcess;
use crate::peers::{PEERS, PeerResult, PeerScheduler};
use crate::progress::print_progress;

/// A peer that is judged by, and so is measured in all rounds.
const GOAL_PEER: &str = "kafka-streams";
/// Triggers that are pending in the last job, for everyone.
const PENDING: u32 = 1_000_000;
const OURS: &str = "orloj";
const MB: f64 = 1_000_000.0;

/// A quantity of what was measured: what is said behind a name, the unit, where it stands.
type Quantity = (&'static str, &'static str, fn(&PeerResult) -> Option<f64>);

const QUANTITIES: [Quantity; 3] =
    [("", "s", |m| m.seconds), (" p50", "ms", |m| m.p50_ms), (" p99", "ms", |m| m.p99_ms)];

/// What everyone is asked to do.
enum PeerWorkload {
    Burst { count: u32 },
    Sustained { count: u32 },
    Lateness { rate: u32, pending: u32 },
}

impl PeerWorkload {
    fn name(&self) -> String {
        match *self {
            Self::Burst { count } => format!("{} in one millisecond", amount(count.into())),
            Self::Sustained { count } => format!("{} registered and fired", amount(count.into())),
            Self::Lateness { rate, pending } => {
                format!("{}/s, {} pending", amount(rate.into()), amount(pending.into()))
            }
        }
    }

    fn by_peer(&self, run: &BenchRun, peer: &PeerScheduler) -> PeerResult {
        let case = match *self {
            Self::Burst { count } => vec!["burst".to_owned(), format!("count={count}")],
            Self::Sustained { count } => vec!["sustained".to_owned(), format!("count={count}")],
            Self::Lateness { rate, pending } => vec![
                "lateness".to_owned(),
                format!("rate={rate}"),
                format!("seconds={}", run.plan.measured_s),
                format!("pending={pending}"),
            ],
        };
        let mut measured = peer.measure(&case.iter().map(String::as_str).collect::<Vec<_>>());
        // A driver says everything it knows; what was asked for is one or the other.
        match self {
            Self::Lateness { .. } => measured.seconds = None,
            Self::Burst { .. } | Self::Sustained { .. } => {
                (measured.p50_ms, measured.p99_ms) = (None, None);
            }
        }
        measured
    }

    fn by_us(&self, run: &BenchRun, round: u32) -> PeerResult {
        match *self {
            Self::Burst { count } => {
                let (seconds, memory) = burst(&BenchCluster::prepare(run.bootstrap), count);
                let rss_mb = Some(memory.peak as f64 / MB);
                PeerResult { seconds: Some(seconds), rss_mb, ..PeerResult::default() }
            }
            Self::Sustained { count } => {
                let rate = throughput::register_and_fire(run, count);
                PeerResult { seconds: Some(f64::from(count) / rate), ..PeerResult::default() }
            }
            Self::Lateness { rate, pending } => {
                let cluster = run.pending_clusters.with_pending(run.bootstrap, pending);
                let scheduler = MeasuredProcess::scheduler(&cluster);
                scheduler.wait_until_idle();
                let lateness = of_scheduler(run, &cluster, &format!("peer{round}-{rate}"), rate);
                let rss_mb = Some(scheduler.memory().peak as f64 / MB);
                scheduler.terminate();
                let [p50_ms, p99_ms] = [lateness.p50_ms, lateness.p99_ms].map(Some);
                PeerResult { p50_ms, p99_ms, rss_mb, ..PeerResult::default() }
            }
        }
    }
}

/// Everyone's figures, and the burst next to the peer that is judged by.
pub(crate) fn side_by_side(run: &BenchRun) -> CaseResult {
    let mut peers = PEERS.map(|name| (name, PeerScheduler::prepare(name, run.bootstrap)));
    let jobs = [
        PeerWorkload::Burst { count: run.plan.burst },
        PeerWorkload::Sustained { count: run.plan.burst },
        PeerWorkload::Lateness { rate: 2_000, pending: 0 },
        PeerWorkload::Lateness { rate: 10_000, pending: 0 },
        PeerWorkload::Lateness { rate: 10_000, pending: run.count(PENDING) },
    ];
    let mut outcome = CaseResult::default();
    let mut table = format!("| | {OURS} | {} |\n", PEERS.join(" | "));
    table.push_str(&format!("|{}", " --- |".repeat(PEERS.len() + 2)));
    for job in &jobs {
        let rounds = if matches!(job, PeerWorkload::Burst { .. }) { run.plan.rounds } else { 1 };
        let all = measure_in_turn(run, job, &peers, rounds);
        let cells: Vec<_> = all.iter().map(|(_, all)| median_of(all).in_words()).collect();
        table.push_str(&format!("\n| {} | {} |", job.name(), cells.join(" | ")));
        report(job, &all, &mut outcome);
        for (peer, (_, measured)) in peers.iter_mut().zip(&all[1..]) {
            if peer.1.is_ok() && !measured.iter().all(PeerResult::keeps_up) {
                peer.1 = Err("it did not keep up with less".to_owned());
            }
        }
    }
    outcome.notes.push(table);
    outcome
}

/// What everyone has measured, we first; who is not judged by has one round.
fn measure_in_turn(
    run: &BenchRun,
    job: &PeerWorkload,
    peers: &[(&'static str, Result<PeerScheduler, String>)],
    rounds: u32,
) -> Vec<(&'static str, Vec<PeerResult>)> {
    let mut all = vec![(OURS, Vec::new())];
    all.extend(peers.iter().map(|(name, _)| (*name, Vec::new())));
    for round in 1..=rounds {
        for (place, (name, measured)) in all.iter_mut().enumerate() {
            if round > 1 && *name != OURS && *name != GOAL_PEER {
                continue;
            }
            let this = match place.checked_sub(1).map(|peer| &peers[peer].1) {
                None => job.by_us(run, round),
                Some(Ok(peer)) => job.by_peer(run, peer),
                Some(Err(why)) => PeerResult::skipped(why),
            };
            print_progress(&format!("{}: {name}: {}", job.name(), this.in_words()));
            measured.push(this);
        }
    }
    all
}

/// The one whose seconds are the median.
fn median_of(measured: &[PeerResult]) -> &PeerResult {
    let mut sorted: Vec<_> = measured.iter().collect();
    sorted.sort_by(|a, b| f64::total_cmp(&a.seconds.unwrap_or(0.0), &b.seconds.unwrap_or(0.0)));
    sorted[sorted.len() / 2]
}

fn report(job: &PeerWorkload, all: &[(&'static str, Vec<PeerResult>)], outcome: &mut CaseResult) {
    let what = job.name();
    for (quantity, unit, of) in QUANTITIES {
        let figure = |(name, measured): &(&'static str, Vec<PeerResult>)| {
            let whole = measured.iter().all(PeerResult::is_whole);
            let values: Option<Vec<_>> = measured.iter().map(of).collect();
            let figure = Figure::new(format!("{what}, {name}{quantity}"), unit, values?);
            whole.then_some((*name, figure))
        };
        let figures: Vec<_> = all.iter().filter_map(figure).collect();
        let find = |wanted| figures.iter().find(|(name, _)| *name == wanted).map(|(_, f)| f);
        if let (PeerWorkload::Burst { .. }, Some(ours), Some(theirs)) =
            (job, find(OURS), find(GOAL_PEER))
        {
            let ratio = Figure::ratio(format!("{what}, {OURS} ÷ {GOAL_PEER}"), ours, theirs);
            outcome.figures.push(ratio.with_goal(Goal::at_most(0.4)));
            let bars = figures.iter().map(|(name, figure)| ((*name).to_owned(), figure.median));
            let title = format!("Seconds until {what} are visible");
            outcome.charts.push(Chart::bars("peers-burst", &title, &bars.collect::<Vec<_>>()));
        }
        outcome.figures.extend(figures.into_iter().map(|(_, figure)| figure));
    }
}
