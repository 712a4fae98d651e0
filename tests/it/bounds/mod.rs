//! Each role at its bounds: for as long as a test lasts, more is due, is written or waits than the
//! role may have in memory.
//!
//! Invariant: what a test compares with is measured in the same run, before; and the metrics of the
//! process show that it is at the bound while it is measured. A test is short unless
//! `ORLOJ_BOUND_SECONDS` says how many seconds it stays at the bound.

mod hanging_caller;
mod hot_id;
mod hot_view;
mod receiver;
mod registrations;
mod resident_memory;
mod slow_broker;
mod slow_receiver;
mod slow_view;
mod steady_caller;

use std::time::Duration;

use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::within;

/// How long a test stays at its bound.
#[derive(Clone, Copy, Debug)]
struct BoundTime {
    /// A count from 1.
    seconds: u64,
    /// Chosen by `ORLOJ_BOUND_SECONDS`: the machine is expected to be quiet.
    is_long: bool,
}

impl BoundTime {
    /// As long as the environment says, or else for so many seconds.
    fn or_short(seconds: u64) -> Self {
        match std::env::var("ORLOJ_BOUND_SECONDS") {
            Ok(chosen) => Self { seconds: chosen.parse().unwrap(), is_long: true },
            Err(_) => Self { seconds, is_long: false },
        }
    }

    /// The first value in the short form, the second one in the long form.
    fn choose<T>(self, short: T, long: T) -> T {
        if self.is_long { long } else { short }
    }
}

/// Starts a process of each of these roles, which is called as its role is, and waits until all are
/// ready.
fn start_all<const N: usize>(cluster: &TestCluster, roles: [&str; N]) -> [OrlojProcess; N] {
    let mut processes = roles.map(|role| match role {
        "scheduler" => cluster.scheduler(role),
        _ => cluster.start(role, role),
    });
    processes.iter_mut().for_each(|process| process.wait_until_ready(READY_DEADLINE));
    processes
}

/// Ends processes; panics if one of them has.
fn end_all<const N: usize>(processes: [OrlojProcess; N]) {
    assert!(!processes.iter().any(OrlojProcess::panicked));
    processes.into_iter().for_each(OrlojProcess::terminate);
}

/// Lets so many ms pass: what happens meanwhile is the test.
fn wait_for_ms(ms: u64) {
    let _nothing: Option<()> = within(Duration::from_millis(ms), || None);
}
