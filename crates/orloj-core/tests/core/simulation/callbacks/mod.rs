//! The worker in simulation: several workers and partitions, receivers that answer, fail, hang or
//! break off, everything decided by one seed. The worker is the production one.
//!
//! Invariant: what is promised of callbacks is judged by what was requested and what is committed,
//! and by nothing that a worker says of itself.
//!
//! ```text
//!   Owner ─► fires ◄── process: the environment ◄── worker ──► receivers    faults: crash, …
//!     └─◄── signals ◄────────┘                                     │
//!                     judge ◄── outcomes, dead letters, requests ◄─┘
//! ```

mod committed;
mod judge;
mod owner;
mod receivers;
mod run;
mod worker_process;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use orloj_core::codec::schemas::Schemas;

use super::setting;
use judge::CallbackCounts;
use run::CallbackRun;

/// Seeds of the short form.
const SEEDS: u64 = 200;
/// So many seeds are run twice, to compare all that was written.
const SEEDS_RUN_TWICE: u64 = 5;

/// One seed: a phase with faults, then one without. Returns the first finding, if any.
fn try_seed(seed: u64, schemas: &Arc<Schemas>, counts: &mut CallbackCounts) -> Option<String> {
    let tried = catch_unwind(AssertUnwindSafe(|| {
        let mut run = CallbackRun::new(seed, Arc::clone(schemas));
        run.run_with_faults();
        if let Some(found) = judge::judge(&run, false, counts) {
            return Some(format!("while faults were injected: {found}"));
        }
        let is_idle = run.calm();
        let found = judge::judge(&run, true, counts);
        found.or_else(|| (!is_idle).then(|| format!("work is left: {}", run.describe_rest())))
    }));
    tried.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Some(format!("PANIC {}", text.unwrap_or_default()))
    })
}

#[test]
fn no_seed_breaks_the_promise_of_callbacks() {
    let (first, count) = match setting("ORLOJ_SEED") {
        Some(seed) => (seed, setting("ORLOJ_SEEDS").unwrap_or(1)),
        None => (1, setting("ORLOJ_SEEDS").unwrap_or(SEEDS)),
    };
    let (schemas, mut counts) = (Arc::new(Schemas::new()), CallbackCounts::default());
    for seed in first..first + count {
        if let Some(why) = try_seed(seed, &schemas, &mut counts) {
            panic!("seed {seed}: {why}\nrun it again with ORLOJ_SEED={seed}\n{counts}");
        }
    }
    println!("{count} seeds\n{counts}");
    if count >= SEEDS {
        counts.assert_all_happened();
    }
}

#[test]
fn the_same_seed_is_the_same_run_of_callbacks() {
    let schemas = Arc::new(Schemas::new());
    let trace = |seed| {
        let mut run = CallbackRun::new(seed, Arc::clone(&schemas));
        run.run_with_faults();
        let _is_idle = run.calm();
        run.cluster.broker.trace_hash()
    };
    let first: Vec<u64> = (1..=SEEDS_RUN_TWICE).map(trace).collect();
    let again: Vec<u64> = (1..=SEEDS_RUN_TWICE).map(trace).collect();
    assert_eq!(first, again, "a run depends on more than its seed");
}
