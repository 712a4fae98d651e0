//! The protocol in simulation: several nodes and partitions, years of faults in seconds,
//! everything decided by one seed. The scheduler, the engine and the codec are the production ones;
//! the checker is the one of the real runs.
//!
//! Invariant: nothing that the engine decides is decided here (tests/tidy.rs checks it). A
//! failure names its seed, and the same seed fails again.
//!
//! ```text
//!   clients ─► Broker ◄── process: the environment ◄── scheduler ──► engine    faults: crash, …
//!                 │          └──► Disk
//!                 └──► check ──► audit
//! ```

mod broker;
mod callbacks;
mod check;
mod clients;
mod cluster;
mod coordinator;
mod disk;
mod fault_kinds;
mod group;
mod interruptions;
mod late_requests;
mod lateness;
mod log;
mod log_faults;
mod node;
mod operator;
mod partition_outages;
mod process;
mod reading;
mod registered_schemas;
mod replay;
mod rng;
mod run;
mod target_partitions;
mod topic_faults;
mod trace;
mod transaction;
mod truncation;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use orloj_core::codec::schemas::Schemas;

use crate::audit::AuditReport;
use fault_kinds::{FaultCounts, FaultKind};
pub(crate) use rng::SimulationRng;
use run::SimulationRun;

/// Seeds of the short form: half a minute.
const SEEDS: u64 = 1_000;
/// So many seeds are run twice, to compare all that was written.
const SEEDS_RUN_TWICE: u64 = 20;
/// What the finding of a panic begins with.
const PANIC: &str = "PANIC";
/// How late a fire may be while another target refuses every record, in ms. A state is cached for 5
/// ms here, so that the target is tried again, and what was sent with it is taken over again, every
/// 40 ms.
const NEIGHBOUR_LATENESS: u64 = 1_000;
/// Threads, each with seeds of its own.
const THREADS: u64 = 2;

/// Totals over a number of runs.
#[derive(Debug, Default)]
struct RunTotals {
    seeds: u64,
    steps: u64,
    fires: u64,
    counts: FaultCounts,
    /// The lowest seed that failed, and its finding.
    failure: Option<(u64, String)>,
}

/// One seed: a phase with faults, then one without. Returns the first finding, if any.
fn try_seed(seed: u64, schemas: &Arc<Schemas>, totals: &mut RunTotals) -> Option<String> {
    let mut run = SimulationRun::new(seed, Arc::clone(schemas), check_before_replay);
    run.run_with_faults();
    let safety = check::check_run(&mut run, None);
    if let Some(why) = first_finding("while faults were injected", &safety, &run) {
        return Some(why);
    }
    let at_rest = run.calm();
    if let Some(why) = run.found_before_replay.take() {
        return Some(why);
    }
    let liveness = check::check_run(&mut run, Some(at_rest));
    totals.seeds += 1;
    totals.steps += run.cluster.steps;
    totals.fires += liveness.fired as u64;
    totals.counts.merge(&run.cluster.counts);
    let returns = run.cluster.broker.group.static_returns;
    totals.counts.add_many(FaultKind::StaticMemberReturned, returns);
    first_finding("after faults had stopped", &liveness, &run)
}

/// The first finding before an operator requests a replay.
fn check_before_replay(run: &mut SimulationRun) -> Option<String> {
    let safety = check::check_run(run, None);
    first_finding("before a replay", &safety, run)
}

/// The first finding of a report. For a single seed that is run again, also every record of its
/// trigger, or about the one that `ORLOJ_TRIGGER` names.
fn first_finding(when: &str, report: &AuditReport, run: &SimulationRun) -> Option<String> {
    let first = report.findings.first()?;
    let again = setting("ORLOJ_SEED").is_some();
    let trigger = std::env::var("ORLOJ_TRIGGER").unwrap_or_else(|_| first.trigger.clone());
    let history = if again { check::records_of(run, &trigger) } else { String::new() };
    Some(format!("{when}: {report}{history}"))
}

/// The same; a failed assertion of the engine is a finding too.
fn try_seed_catching_panics(
    seed: u64,
    schemas: &Arc<Schemas>,
    totals: &mut RunTotals,
) -> Option<String> {
    let tried = catch_unwind(AssertUnwindSafe(|| try_seed(seed, schemas, totals)));
    tried.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Some(format!("  {PANIC} {}", text.unwrap_or_default()))
    })
}

/// Seeds from `first` on, until `count` are done or one fails.
fn try_seeds(first: u64, count: u64) -> RunTotals {
    let (next, total) = (AtomicU64::new(first), Mutex::new(RunTotals::default()));
    let schemas = Arc::new(Schemas::new());
    let work = || {
        let mut totals = RunTotals::default();
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= first + count {
                break;
            }
            if let Some(why) = try_seed_catching_panics(seed, &schemas, &mut totals) {
                totals.failure = Some((seed, why));
                next.store(first + count, Relaxed);
            }
        }
        total.lock().unwrap().add(totals);
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    total.into_inner().unwrap()
}

impl RunTotals {
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
fn the_same_seed_is_the_same_run() {
    let schemas = Arc::new(Schemas::new());
    let trace = |seed| {
        let mut run = SimulationRun::new(seed, Arc::clone(&schemas), check_before_replay);
        run.run_with_faults();
        let at_rest = run.calm();
        assert!(at_rest, "seed {seed} did not become idle");
        run.cluster.broker.trace_hash()
    };
    let first: Vec<u64> = (1..=SEEDS_RUN_TWICE).map(trace).collect();
    let again: Vec<u64> = (1..=SEEDS_RUN_TWICE).map(trace).collect();
    assert_eq!(first, again, "a run depends on more than its seed");
    let distinct: BTreeSet<u64> = first.iter().copied().collect();
    assert_eq!(distinct.len(), first.len(), "two seeds are the same run");
}

#[test]
fn no_seed_breaks_the_promise() {
    let (first, count) = match setting("ORLOJ_SEED") {
        Some(seed) => (seed, setting("ORLOJ_SEEDS").unwrap_or(1)),
        None => (1, setting("ORLOJ_SEEDS").unwrap_or(SEEDS)),
    };
    let totals = try_seeds(first, count);
    let RunTotals { seeds, steps, fires, counts, failure } = &totals;
    println!("{seeds} seeds, {steps} committed steps, {fires} fires; faults:\n{counts}");
    if let Some((seed, why)) = failure {
        panic!("seed {seed}: {why}\nrun it again: make sim SEED={seed}");
    }
    assert!(count < SEEDS || counts.least() > 0, "a kind of fault never happened:\n{counts}");
}

#[test]
fn a_target_that_refuses_every_record_does_not_delay_the_others() {
    let schemas = Arc::new(Schemas::new());
    for seed in 1..=20 {
        let mut run = SimulationRun::new(seed, Arc::clone(&schemas), check_before_replay);
        run.run_with_refusals();
        let late = check::lateness_of_fires(&run);
        let most = late.iter().map(|(_, late)| *late).max().expect("some have fired");
        println!("seed {seed}: {} fires, at most {most} ms late", late.len());
        assert!(most <= NEIGHBOUR_LATENESS, "seed {seed}: a fire is {most} ms late");
        let is_idle = run.calm();
        let report = check::check_run(&mut run, Some(is_idle));
        assert!(report.findings.is_empty(), "seed {seed}: {report}");
    }
}
