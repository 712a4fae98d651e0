//! Gateways that are killed, asked to end, and started again, while clients send requests to them.
//!
//! Invariant: each process has a number of its own, so that what one has answered is not expected
//! of the next.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use orloj::clock;
use rustix::process::Signal;

use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;

/// What a client sends requests to.
#[derive(Clone, Debug)]
pub(super) struct GatewayAddress {
    /// The number of the process.
    pub(super) number: usize,
    /// `host:port`.
    pub(super) address: String,
}

/// The gateways that serve, for clients.
pub(super) type ServingGateways = Arc<Mutex<Vec<GatewayAddress>>>;

/// Two gateways.
pub(super) struct Gateways {
    names: [&'static str; 2],
    processes: Mutex<Vec<Option<OrlojProcess>>>,
    serving: ServingGateways,
    started: Mutex<usize>,
}

impl Gateways {
    pub(super) fn start(cluster: &TestCluster) -> Self {
        let names = ["first-gateway", "second-gateway"];
        let gateways = Self {
            names,
            processes: Mutex::new(names.map(|_| None).into()),
            serving: ServingGateways::default(),
            started: Mutex::new(0),
        };
        (0..names.len()).for_each(|at| gateways.start_again(at, cluster));
        gateways
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Which serve now.
    pub(super) fn serving(&self) -> ServingGateways {
        Arc::clone(&self.serving)
    }

    /// Starts one that has ended, on the view that it has left.
    pub(super) fn start_again(&self, at: usize, cluster: &TestCluster) {
        let mut process = cluster.start("gateway", self.names[at]);
        process.wait_until_ready(READY_DEADLINE);
        let mut started = lock(&self.started);
        *started += 1;
        let (number, address) = (*started * self.len() + at, process.address());
        lock(&self.serving).push(GatewayAddress { number, address });
        lock(&self.processes)[at] = Some(process);
    }

    /// Ends one as a power failure would; clients send requests to it until then.
    pub(super) fn kill(&self, at: usize) {
        let process = lock(&self.processes)[at].take().expect("it was started again");
        process.kill();
        let _number = self.remove(at);
    }

    /// Asks one to end. Returns its number, and when it was asked.
    pub(super) fn begin_end(&self, at: usize) -> (usize, u64) {
        let processes = lock(&self.processes);
        let asked = clock::now_ms();
        processes[at].as_ref().expect("it was started again").signal(Signal::TERM);
        (self.remove(at), asked)
    }

    /// Waits until it has ended, which it must call a success.
    pub(super) fn await_end(&self, at: usize) {
        let mut process = lock(&self.processes)[at].take().expect("it was asked to end");
        let status = until("the gateway to end", READY_DEADLINE, || process.exit_status());
        assert!(status.success() && !process.panicked(), "{status}\n{}", process.log_text());
    }

    /// Whether one of those that run has panicked.
    pub(super) fn panicked(&self) -> bool {
        lock(&self.processes).iter().flatten().any(OrlojProcess::panicked)
    }

    /// No client chooses it any more.
    fn remove(&self, at: usize) -> usize {
        let mut serving = lock(&self.serving);
        let is_this = |gateway: &GatewayAddress| gateway.number % self.len() == at;
        let place = serving.iter().position(is_this).expect("it served");
        serving.remove(place).number
    }
}

pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
