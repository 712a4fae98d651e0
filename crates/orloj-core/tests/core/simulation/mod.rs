//! The protocol in a simulated world: several nodes and partitions, years of faults in seconds,
//! everything decided by one seed. The engine, the codec and the checker are the production ones
//! and the one of the real runs.
//!
//! Invariant: nothing that the engine decides is decided here (tests/tidy.rs looks after it). A
//! failure names its seed, and the same seed fails again.
//!
//! ```text
//!   people ──► Broker ◄──► Node ──► Lane ──► engine        strike: crash, silence, compaction, …
//!                 │          └──► Disk
//!                 └──► verdict ──► audit
//! ```

mod broker;
mod calamity;
mod dice;
mod disk;
mod flight;
mod group;
mod lane;
mod log;
mod node;
mod people;
mod run;
mod site;
mod standby;
mod verdict;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use orloj_core::fault::{self, Mutation};

use crate::audit::AuditReport;
use calamity::Counts;
pub(crate) use dice::SimulationRng;
use run::SimulationRun;

/// Seeds of the short form: half a minute.
const SEEDS: u64 = 1_000;
/// Within so many seeds every planted bug must be found.
const SEEDS_FOR_BUGS: u64 = 1_000;
/// Threads, each with seeds of its own.
const THREADS: u64 = 2;

/// What a number of runs came to.
#[derive(Debug, Default)]
struct Tally {
    seeds: u64,
    steps: u64,
    fires: u64,
    counts: Counts,
    /// The least seed that failed, and how.
    failure: Option<(u64, String)>,
}

/// A seed: faults all the time, then calm. Returns what is wrong with it, if anything.
fn try_seed(seed: u64, tally: &mut Tally) -> Option<String> {
    let mut run = SimulationRun::new(seed);
    run.storm();
    let safety = verdict::judge(&mut run, None);
    if let Some(why) = complaint("while faults struck", &safety, &run) {
        return Some(why);
    }
    let at_rest = run.calm();
    let liveness = verdict::judge(&mut run, Some(at_rest));
    tally.seeds += 1;
    tally.steps += run.site.steps;
    tally.fires += liveness.fired as u64;
    tally.counts.merge(&run.site.counts);
    complaint("after they had stopped", &liveness, &run)
}

/// What a report has found. Of a single seed that is run again, also all about the first trigger,
/// or about the one that `ORLOJ_TRIGGER` names.
fn complaint(when: &str, report: &AuditReport, run: &SimulationRun) -> Option<String> {
    let first = report.findings.first()?;
    let again = setting("ORLOJ_SEED").is_some();
    let trigger = std::env::var("ORLOJ_TRIGGER").unwrap_or_else(|_| first.trigger.clone());
    let history = if again { verdict::history(run, &trigger) } else { String::new() };
    Some(format!("{when}: {report}{history}"))
}

/// The same; the engine's own assertions are findings like any other.
fn survive(seed: u64, tally: &mut Tally) -> Option<String> {
    let tried = catch_unwind(AssertUnwindSafe(|| try_seed(seed, tally)));
    tried.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Some(format!("  PANIC {}", text.unwrap_or_default()))
    })
}

/// Seeds from `first` on, until `count` are done or one fails.
fn try_seeds(first: u64, count: u64, bug: Option<Mutation>) -> Tally {
    let (next, total) = (AtomicU64::new(first), Mutex::new(Tally::default()));
    let work = || {
        let mut tally = Tally::default();
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= first + count {
                break;
            }
            if let Some(why) = survive(seed, &mut tally) {
                tally.failure = Some((seed, why));
                next.store(first + count, Relaxed);
            }
        }
        total.lock().unwrap().add(tally);
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| bug.map_or_else(work, |bug| fault::with_mutation(bug, work)));
        }
    });
    total.into_inner().unwrap()
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.fires += other.fires;
        self.counts.merge(&other.counts);
        self.failure = self.failure.take().into_iter().chain(other.failure).min();
    }
}

/// A number from the environment: `make sim SEEDS=n` sets it.
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn no_seed_breaks_the_promise() {
    let (first, count) = match setting("ORLOJ_SEED") {
        Some(seed) => (seed, setting("ORLOJ_SEEDS").unwrap_or(1)),
        None => (1, setting("ORLOJ_SEEDS").unwrap_or(SEEDS)),
    };
    let tally = try_seeds(first, count, None);
    let Tally { seeds, steps, fires, counts, failure } = &tally;
    println!("{seeds} seeds, {steps} committed steps, {fires} fires; faults:\n{counts}");
    if let Some((seed, why)) = failure {
        panic!("seed {seed}: {why}\nrun it again: make sim SEED={seed}");
    }
    assert!(count < SEEDS || counts.least() > 0, "a kind of fault never happened:\n{counts}");
}

#[test]
fn every_planted_bug_is_found() {
    let mut survivors = Vec::new();
    let only = std::env::var("ORLOJ_BUG").ok();
    let seeds = setting("ORLOJ_SEEDS").filter(|_| only.is_some()).unwrap_or(SEEDS_FOR_BUGS);
    let meant = |bug: &Mutation| only.as_ref().is_none_or(|only| format!("{bug:?}") == *only);
    for bug in Mutation::ALL.into_iter().filter(meant) {
        match try_seeds(1, seeds, Some(bug)).failure {
            Some((seed, why)) => {
                let finding = why.lines().find(|line| line.starts_with("  ")).unwrap_or(&why);
                println!("{bug:?}: seed {seed}: {}", finding.trim());
            }
            None => survivors.push(bug),
        }
    }
    assert!(survivors.is_empty(), "nobody noticed {survivors:?}");
}
