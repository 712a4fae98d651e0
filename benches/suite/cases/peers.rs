//! Other schedulers at the same work, in the same run.
//!
//! Law: each job is done by everyone in turn. What is judged is done in three rounds, the rest
//! once: those that are ten times slower need no third digit.

use super::burst::burst;
use super::lateness::of_scheduler;
use super::throughput;
use crate::chart::Chart;
use crate::contender::Contender;
use crate::figures::{Figure, Goal, amount};
use crate::peers::{Measured, PEERS, Peer};
use crate::run::{Outcome, Run, say};
use crate::site::Site;

/// A peer that is judged by, and so is measured in all rounds.
const JUDGED: &str = "kafka-streams";
/// Triggers that are pending in the last job, for everyone.
const PENDING: u32 = 1_000_000;
const OURS: &str = "orloj";
const MB: f64 = 1_000_000.0;

/// A quantity of what was measured: what is said behind a name, the unit, where it stands.
type Quantity = (&'static str, &'static str, fn(&Measured) -> Option<f64>);

const QUANTITIES: [Quantity; 3] =
    [("", "s", |m| m.seconds), (" p50", "ms", |m| m.p50_ms), (" p99", "ms", |m| m.p99_ms)];

/// What everyone is asked to do.
enum Job {
    Burst { count: u32 },
    Sustained { count: u32 },
    Lateness { rate: u32, pending: u32 },
}

impl Job {
    fn name(&self) -> String {
        match *self {
            Self::Burst { count } => format!("{} in one millisecond", amount(count.into())),
            Self::Sustained { count } => format!("{} registered and fired", amount(count.into())),
            Self::Lateness { rate, pending } => {
                format!("{}/s, {} pending", amount(rate.into()), amount(pending.into()))
            }
        }
    }

    fn by_peer(&self, run: &Run, peer: &Peer) -> Measured {
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

    fn by_us(&self, run: &Run, round: u32) -> Measured {
        match *self {
            Self::Burst { count } => {
                let (seconds, memory) = burst(&Site::prepare(run.bootstrap), count);
                let rss_mb = Some(memory.peak as f64 / MB);
                Measured { seconds: Some(seconds), rss_mb, ..Measured::default() }
            }
            Self::Sustained { count } => {
                let rate = throughput::register_and_fire(run, count);
                Measured { seconds: Some(f64::from(count) / rate), ..Measured::default() }
            }
            Self::Lateness { rate, pending } => {
                let site = run.stock.with_pending(run.bootstrap, pending);
                let scheduler = Contender::scheduler(&site);
                scheduler.rest();
                let lateness = of_scheduler(run, &site, &format!("peer{round}-{rate}"), rate);
                let rss_mb = Some(scheduler.memory().peak as f64 / MB);
                scheduler.terminate();
                let [p50_ms, p99_ms] = [lateness.p50_ms, lateness.p99_ms].map(Some);
                Measured { p50_ms, p99_ms, rss_mb, ..Measured::default() }
            }
        }
    }
}

/// Everyone's figures, and the burst next to the peer that is judged by.
pub(crate) fn side_by_side(run: &Run) -> Outcome {
    let mut peers = PEERS.map(|name| (name, Peer::prepare(name, run.bootstrap)));
    let jobs = [
        Job::Burst { count: run.plan.burst },
        Job::Sustained { count: run.plan.burst },
        Job::Lateness { rate: 2_000, pending: 0 },
        Job::Lateness { rate: 10_000, pending: 0 },
        Job::Lateness { rate: 10_000, pending: run.count(PENDING) },
    ];
    let mut outcome = Outcome::default();
    let mut table = format!("| | {OURS} | {} |\n", PEERS.join(" | "));
    table.push_str(&format!("|{}", " --- |".repeat(PEERS.len() + 2)));
    for job in &jobs {
        let rounds = if matches!(job, Job::Burst { .. }) { run.plan.rounds } else { 1 };
        let all = in_turn(run, job, &peers, rounds);
        let cells: Vec<_> = all.iter().map(|(_, all)| middle(all).in_words()).collect();
        table.push_str(&format!("\n| {} | {} |", job.name(), cells.join(" | ")));
        report(job, &all, &mut outcome);
        for (peer, (_, measured)) in peers.iter_mut().zip(&all[1..]) {
            if peer.1.is_ok() && !measured.iter().all(Measured::keeps_up) {
                peer.1 = Err("it did not keep up with less".to_owned());
            }
        }
    }
    outcome.notes.push(table);
    outcome
}

/// What everyone has measured, we first; who is not judged by has one round.
fn in_turn(
    run: &Run,
    job: &Job,
    peers: &[(&'static str, Result<Peer, String>)],
    rounds: u32,
) -> Vec<(&'static str, Vec<Measured>)> {
    let mut all = vec![(OURS, Vec::new())];
    all.extend(peers.iter().map(|(name, _)| (*name, Vec::new())));
    for round in 1..=rounds {
        for (place, (name, measured)) in all.iter_mut().enumerate() {
            if round > 1 && *name != OURS && *name != JUDGED {
                continue;
            }
            let this = match place.checked_sub(1).map(|peer| &peers[peer].1) {
                None => job.by_us(run, round),
                Some(Ok(peer)) => job.by_peer(run, peer),
                Some(Err(why)) => Measured::skipped(why),
            };
            say(&format!("{}: {name}: {}", job.name(), this.in_words()));
            measured.push(this);
        }
    }
    all
}

/// The one whose seconds are the median.
fn middle(measured: &[Measured]) -> &Measured {
    let mut sorted: Vec<_> = measured.iter().collect();
    sorted.sort_by(|a, b| f64::total_cmp(&a.seconds.unwrap_or(0.0), &b.seconds.unwrap_or(0.0)));
    sorted[sorted.len() / 2]
}

fn report(job: &Job, all: &[(&'static str, Vec<Measured>)], outcome: &mut Outcome) {
    let what = job.name();
    for (quantity, unit, of) in QUANTITIES {
        let figure = |(name, measured): &(&'static str, Vec<Measured>)| {
            let whole = measured.iter().all(Measured::is_whole);
            let values: Option<Vec<_>> = measured.iter().map(of).collect();
            let figure = Figure::new(format!("{what}, {name}{quantity}"), unit, values?);
            whole.then_some((*name, figure))
        };
        let figures: Vec<_> = all.iter().filter_map(figure).collect();
        let find = |wanted| figures.iter().find(|(name, _)| *name == wanted).map(|(_, f)| f);
        if let (Job::Burst { .. }, Some(ours), Some(theirs)) = (job, find(OURS), find(JUDGED)) {
            let ratio = Figure::ratio(format!("{what}, {OURS} ÷ {JUDGED}"), ours, theirs);
            outcome.figures.push(ratio.asked(Goal::at_most(0.4)));
            let bars = figures.iter().map(|(name, figure)| ((*name).to_owned(), figure.median));
            let title = format!("Seconds until {what} are visible");
            outcome.charts.push(Chart::bars("peers-burst", &title, &bars.collect::<Vec<_>>()));
        }
        outcome.figures.extend(figures.into_iter().map(|(_, figure)| figure));
    }
}
