//! Receivers of callbacks: they answer, fail, break off after they have done it, or hang until the
//! attempt is over.
//!
//! Invariant: every request is remembered, with who made it and when.

use std::cell::RefCell;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use orloj_core::environment::Clock as _;
use orloj_core::model::definition::Target;
use orloj_core::model::fire::Fire;
use orloj_core::model::fire_id::FireId;
use orloj_core::model::outcome::CircuitState;
use orloj_core::model::{Millis, Offset, Timestamp};
use orloj_core::worker::callback::{
    Callback, CallbackEnd, CallbackMaking, WorkerBytes, WorkerEnvironment, WorkerReporter,
};
use orloj_core::worker::circuit::Route;
use orloj_core::worker::disposition::CallbackResponse;
use orloj_core::worker::queue::{CallerName, QueueLimits};

use crate::simulation::group::NodeId;
use crate::simulation::process::{
    SimulatedClock, SimulatedEnvironment, SimulatedProcess, SimulatedReporter, index,
};

/// How long an attempt may take, in ms.
pub(super) const TIMEOUT: Millis = 150;

/// An assignment of a partition to a worker: until it ends, the worker makes each callback once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AssignmentId {
    pub(super) node: NodeId,
    /// How often this worker was started.
    pub(super) start: u64,
    /// How often the partition was assigned to it since.
    pub(super) assignment: u64,
}

/// A request to a receiver.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) partition: usize,
    pub(super) offset: Offset,
    pub(super) id: FireId,
    pub(super) assigned_by: AssignmentId,
    /// When the partition was assigned, in ms since the epoch.
    pub(super) assigned_at: Timestamp,
}

/// All requests of a run.
pub(super) type RequestLog = Rc<RefCell<Vec<Request>>>;

/// A callback in progress.
struct InProgress {
    ends_at: Timestamp,
    began: Timestamp,
    callback: Callback,
    response: CallbackResponse,
}

/// The requests of one process.
pub(in crate::simulation) struct SimulatedCallbacks {
    process: SimulatedProcess,
    /// How often this worker was started.
    start: u64,
    requests: RequestLog,
    in_progress: Vec<InProgress>,
}

impl SimulatedCallbacks {
    pub(super) fn new(process: SimulatedProcess, start: u64, requests: RequestLog) -> Self {
        Self { process, start, requests, in_progress: Vec::new() }
    }

    fn response(&self) -> (CallbackResponse, Millis) {
        self.process.call(|cluster, _| {
            let rng = &mut cluster.rng;
            let answered = |status, retry_after| CallbackResponse::Answered {
                status,
                retry_after,
                body: "a body".to_owned(),
            };
            let takes = rng.pick(&[0, 1, 3, 10, 40]);
            match rng.below(100) {
                0..60 => (answered(204, None), takes),
                60..75 => (answered(500, None), takes),
                75..80 => (answered(503, Some(20)), takes),
                80..85 => (answered(410, None), takes),
                // It may have done what was requested.
                85..92 => (CallbackResponse::NoResponse("broken off".to_owned()), takes),
                92..98 => (CallbackResponse::NoResponse("timed out".to_owned()), TIMEOUT),
                _ => (CallbackResponse::Unsendable("forbidden".to_owned()), 0),
            }
        })
    }
}

impl CallbackMaking for SimulatedCallbacks {
    fn route(&self, fire: &Fire) -> Route {
        let host = match &fire.definition.target {
            Target::Http(target) => target.url.clone(),
            Target::Topic(_) => "".into(),
        };
        Route { caller: fire.definition.caller.clone(), host }
    }

    fn limits(&self, caller: &CallerName) -> QueueLimits {
        let rate = caller.as_ref().filter(|it| it.as_str() == "slow").and(NonZeroU32::new(200));
        QueueLimits { concurrent: 4, waiting: 20, rate }
    }

    fn have_limits_changed(&mut self) -> bool {
        false
    }

    fn start(&mut self, callback: Callback) {
        let (response, takes) = self.response();
        let place = callback.place;
        let partition = index(place.partition);
        let now = self.process.true_time();
        let (node, assignment, assigned_at) = {
            let state = self.process.state();
            let (assignment, at) = state.assignments[partition];
            (state.id, assignment, at)
        };
        let request = Request {
            partition,
            offset: place.offset,
            id: callback.fire.id.clone(),
            assigned_by: AssignmentId { node, start: self.start, assignment },
            assigned_at,
        };
        self.requests.borrow_mut().push(request);
        self.in_progress.push(InProgress { ends_at: now + takes, began: now, callback, response });
    }

    fn poll(&mut self, timeout: Duration) -> Option<CallbackEnd> {
        self.process.call(|cluster, _| {
            cluster.broker.now += u64::from(!timeout.is_zero() && cluster.rng.one_in(4));
        });
        let now = self.process.true_time();
        let ended = self.in_progress.iter().position(|it| it.ends_at <= now)?;
        let InProgress { callback, response, began, .. } = self.in_progress.remove(ended);
        let at = SimulatedClock(self.process.clone()).now_ms();
        Some(CallbackEnd { callback, response, took: now - began, at })
    }
}

impl WorkerEnvironment for SimulatedEnvironment {
    type Callbacks = SimulatedCallbacks;
}

impl WorkerReporter for SimulatedReporter {
    fn callbacks(&self, _in_flight: usize, _waiting: usize) {}
    fn memory(&self, _bytes: WorkerBytes) {}
    fn result_committed(&self, _result: &'static str) {}
    fn dead_letter_committed(&self, _reason: &'static str) {}
    fn deferred(&self, _reason: &'static str) {}
    fn circuits(&self, _state: CircuitState, _count: usize) {}
}
