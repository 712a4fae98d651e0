//! Clusters with millions of triggers pending, made once in a run and used by every case.
//!
//! Invariant: what is pending is due uniformly over the next 24 hours, in the partitions in which
//! is measured; it has been taken in by the scheduler, is in its ledger and on its disk.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use orloj::clock;
use orloj::model::Millis;

use crate::bench_cluster::BenchCluster;
use crate::load_generator::{LoadGenerator, scattered};
use crate::measured_process::MeasuredProcess;
use crate::output_reader::OutputReader;
use crate::progress::print_progress;

/// Ids of pending triggers begin with this.
const SERIES: &str = "pending";
/// Over how long they are due.
const DAY_MS: Millis = 24 * 3_600 * 1_000;

/// The clusters of a run.
#[derive(Default)]
pub(crate) struct PendingClusters(RefCell<BTreeMap<u32, Rc<BenchCluster>>>);

impl PendingClusters {
    /// A cluster with so many pending, its scheduler ended gracefully.
    pub(crate) fn with_pending(&self, bootstrap: &str, count: u32) -> Rc<BenchCluster> {
        let mut clusters = self.0.borrow_mut();
        let cluster =
            clusters.entry(count).or_insert_with(|| Rc::new(prepare(bootstrap, count, "")));
        Rc::clone(cluster)
    }
}

/// A new cluster with so many pending, its scheduler ended gracefully.
pub(crate) fn prepare(bootstrap: &str, count: u32, more: &str) -> BenchCluster {
    let cluster = BenchCluster::prepare_with(bootstrap, more);
    if count == 0 {
        return cluster;
    }
    let mut reader = OutputReader::open(&cluster, "scheduler");
    let begin = clock::now_ms();
    let mut generator = LoadGenerator::open(&cluster);
    let rate = generator.register_all(SERIES, count, |n| begin + scattered(n, DAY_MS));
    let mark = generator.write_marker();
    generator.flush();
    print_progress(&format!("{count} pending: written at {rate:.0}/s"));
    let scheduler = MeasuredProcess::scheduler(&cluster);
    let ready = clock::monotonic();
    reader.wait_for_marker(mark);
    let rate = f64::from(count) / (clock::monotonic() - ready).as_secs_f64();
    print_progress(&format!("{count} pending: taken in at {rate:.0}/s"));
    scheduler.wait_until_idle();
    let rested = (clock::monotonic() - ready).as_secs();
    scheduler.terminate();
    print_progress(&format!("{count} pending: at rest {rested} s after the start"));
    // What a process has written to the ledger is read by the next one, once.
    MeasuredProcess::scheduler(&cluster).terminate();
    cluster
}
