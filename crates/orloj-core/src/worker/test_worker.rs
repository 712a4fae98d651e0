//! A worker for tests: a test sets what is read and what receivers answer, and reads what is sent.
//!
//! Invariant: it decides nothing. A job is done when its queue is polled, unless the queue is held.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::callback::{
    Callback, CallbackEnd, CallbackMaking, WorkerBytes, WorkerEnvironment, WorkerReporter,
};
use super::circuit::{CircuitBreakerSettings, Route};
use super::config::{WorkerConfig, WorkerTiming};
use super::deferral::DeferralDelays;
use super::disposition::CallbackResponse;
use super::queue::{CallerName, QueueBounds, QueueLimits};
use super::{Worker, WorkerParts};
use crate::codec::schemas::Schemas;
use crate::engine::assignment::AssignmentChange;
use crate::model::dead_letter::DeadLetter;
use crate::model::definition::{Definition, HttpTarget, Target};
use crate::model::fire::Fire;
use crate::model::fire_id::FireId;
use crate::model::names::Names;
use crate::model::outcome::CircuitState;
use crate::model::retry::RetryPolicy;
use crate::model::{Offset, PartitionId, Timestamp};
use crate::test_environment::TestEnvironment;
use crate::test_environment::cluster::TestBounds;
use crate::test_environment::reader::TestRecord;
use crate::test_environment::reporter::TestReporter;

pub(super) type TestWorker = Worker<TestEnvironment>;

/// The topic that is read.
pub(super) const FIRES: &str = "o.fires";

/// Receivers, and the requests that they have got. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestCallbacks(Rc<RefCell<Receivers>>);

#[derive(Debug, Default)]
struct Receivers {
    /// The triggers that were requested, in order.
    requested: Vec<String>,
    in_progress: VecDeque<Callback>,
    /// Receivers answer at once, with this status; 0: they hang.
    status: u16,
    /// Hosts whose receivers hang whatever the others do.
    hanging: Vec<String>,
}

impl TestCallbacks {
    /// Receivers answer from now on with this status; 0: they hang.
    pub(super) fn answer(&self, status: u16) {
        self.0.borrow_mut().status = status;
    }

    /// The receivers at these hosts hang, and no others.
    pub(super) fn hang_at(&self, hosts: &[&str]) {
        self.0.borrow_mut().hanging = hosts.iter().map(|&host| host.to_owned()).collect();
    }

    /// What was requested since the last call.
    pub(super) fn requested(&self) -> Vec<String> {
        std::mem::take(&mut self.0.borrow_mut().requested)
    }
}

impl CallbackMaking for TestCallbacks {
    fn route(&self, fire: &Fire) -> Route {
        let Target::Http(http) = &fire.definition.target else { panic!("it is no callback") };
        let host = http.url.as_str().split('/').nth(2).expect("a URL has a host");
        Route { caller: fire.definition.caller.clone(), host: host.into() }
    }

    fn limits(&self, _caller: &CallerName) -> QueueLimits {
        QueueLimits { concurrent: 100, waiting: 1_000, rate: None }
    }

    fn have_limits_changed(&mut self) -> bool {
        false
    }

    fn start(&mut self, callback: Callback) {
        let mut receivers = self.0.borrow_mut();
        receivers.requested.push(callback.fire.id.trigger.as_str().to_owned());
        receivers.in_progress.push_back(callback);
    }

    fn poll(&mut self, _timeout: Duration) -> Option<CallbackEnd> {
        let mut receivers = self.0.borrow_mut();
        let status = receivers.status;
        if status == 0 {
            return None;
        }
        let hangs = |callback: &Callback| {
            receivers.hanging.contains(&callback.permit.route.host.to_string())
        };
        let place = receivers.in_progress.iter().position(|callback| !hangs(callback))?;
        let callback = receivers.in_progress.remove(place)?;
        let response =
            CallbackResponse::Answered { status, retry_after: None, body: String::new() };
        Some(CallbackEnd { callback, response, took: 1, at: 1_000 })
    }
}

impl WorkerEnvironment for TestEnvironment {
    type Callbacks = TestCallbacks;
}

impl WorkerReporter for TestReporter {
    fn callbacks(&self, _in_flight: usize, _waiting: usize) {}
    fn memory(&self, _bytes: WorkerBytes) {}
    fn result_committed(&self, _result: &'static str) {}
    fn dead_letter_committed(&self, _reason: &'static str) {}
    fn deferred(&self, _reason: &'static str) {}
    fn circuits(&self, _state: CircuitState, _count: usize) {}
}

/// The settings of a worker that commits at once.
pub(super) fn config() -> WorkerConfig {
    let second = Duration::from_secs(1);
    WorkerConfig {
        names: Names::new("o"),
        topic: FIRES.to_owned(),
        id: "worker".into(),
        name: "worker".into(),
        default_retry_policy: RetryPolicy::from_pauses(vec![10]),
        in_flight_max: 1_000,
        queue: QueueBounds { fires: 1_000, bytes: 1 << 30, in_progress_bytes: 1 << 30 },
        results_bytes_max: 1 << 30,
        commit_bytes_max: 1 << 30,
        commit_interval: Duration::ZERO,
        circuits: CircuitBreakerSettings {
            window: second,
            attempts_min: 1_000,
            failures_percent: 100,
            open_duration: second,
            probes_required: 1,
            circuits_max: 10,
        },
        deferral: DeferralDelays {
            first: second,
            longest: second,
            after_probe: second,
            bytes_per_second_max: 32 << 20,
        },
        transaction_timeout: 10 * second,
        drain_max: second,
        fetch_timeout: second,
        offsets_retention: 100 * second,
        timing: WorkerTiming::default(),
    }
}

/// A worker that owns partition 0, of which nothing is committed and nothing is read yet.
pub(super) fn worker_with(
    world: &TestEnvironment,
    config: WorkerConfig,
) -> (TestWorker, TestCallbacks) {
    worker_after(world, config, (0, 0, 100))
}

/// The same; `committed` is the committed offset, and the bounds of the log follow. 0: none.
pub(super) fn worker_after(
    world: &TestEnvironment,
    config: WorkerConfig,
    (committed, low, end): (Offset, Offset, Offset),
) -> (TestWorker, TestCallbacks) {
    world.cluster.set(FIRES, 0, TestBounds::whole(low, end));
    let callbacks = TestCallbacks::default();
    callbacks.answer(204);
    {
        let mut membership = world.member.membership();
        membership.committed = (committed > 0).then(|| (committed, String::new()));
        membership.polls.push_back(Ok(vec![AssignmentChange::Assigned(vec![0])]));
    }
    let parts = WorkerParts {
        environment: world.clone(),
        clock: world.clock.clone(),
        reporter: world.reporter.clone(),
        member: world.member.clone(),
        reader: world.triggers.clone(),
        cluster: world.cluster.clone(),
        producers: world.producer.clone(),
        producer: (0, world.producer.clone()),
        callbacks: callbacks.clone(),
        schemas: Arc::new(Schemas::new()),
    };
    let mut worker = Worker::new(config, parts);
    worker.poll_once().unwrap();
    (worker, callbacks)
}

/// A fire of this trigger, with a payload of so many bytes.
pub(super) fn fire(trigger: &str, size: usize) -> Fire {
    let target = HttpTarget::post("http://host/").into();
    let payload = Some(vec![b'1'; size].into());
    Fire {
        id: FireId {
            trigger: trigger.into(),
            generation: 1,
            occurrence: 0,
            attempt: 1,
            deferral: 0,
        },
        scheduled: 1,
        fired: 1,
        definition: Definition { target, payload, headers: Vec::new(), retry: None, caller: None },
        history: None,
        report_end: false,
        priority: 127,
    }
}

/// Its record.
pub(super) fn record(offset: Offset, timestamp: Timestamp, fire: &Fire) -> TestRecord {
    TestRecord {
        topic: FIRES.to_owned(),
        partition: 0,
        offset,
        timestamp,
        value: Some(Schemas::new().encode_fire(fire)),
        ..TestRecord::default()
    }
}

/// The offsets that were sent since the last call: partition and offset.
pub(super) fn offsets(world: &TestEnvironment) -> Vec<(PartitionId, Offset)> {
    let mut sending = world.producer.sending();
    std::mem::take(&mut sending.offsets).iter().map(|it| (it.partition, it.offset)).collect()
}

/// The topics of all records that were sent so far.
pub(super) fn topics(world: &TestEnvironment) -> Vec<String> {
    world.producer.sent().into_iter().map(|record| record.topic).collect()
}

/// The dead letters that were sent so far.
pub(super) fn dead_letters(world: &TestEnvironment) -> Vec<DeadLetter> {
    let sent = world.producer.sent().into_iter();
    let letters = sent.filter(|record| record.topic == "o.dead-letters");
    letters
        .map(|record| Schemas::new().decode_dead_letter(&record.value.unwrap()).unwrap())
        .collect()
}
