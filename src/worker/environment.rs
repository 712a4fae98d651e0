//! The worker's world in production: its group, its producers, and the requests to receivers; the
//! rest is that of any process.
//!
//! Invariant: nothing is decided here. Each function is a call of a client or of the system.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use orloj_core::worker::callback::{
    Callback, CallbackEnd, CallbackMaking, WorkerBytes, WorkerEnvironment, WorkerReporter,
};
use orloj_core::worker::circuit::Route;
use orloj_core::worker::queue::{CallerName, QueueLimits};
use tokio::runtime::Runtime;

use super::callback::CallbackClient;
use super::limits::{queue_limits, route_of};
use crate::callers::{CallerTable, Callers};
use crate::clock::{self, SystemClock};
use crate::config::{Settings, WorkerSettings};
use crate::engine::assignment::AssignmentChange;
use crate::environment::ProcessEnvironment;
use crate::environment::call_error::{CallError, CallResult};
use crate::environment::group::{CommittedOffsets, GroupMembership, GroupMetadataError};
use crate::environment::job::{Job, Threads};
use crate::environment::transaction::{OffsetCommit, ProducerFactory, TransactionError};
use crate::fault;
use crate::kafka::environment::{KafkaQueries, call};
use crate::kafka::error::ClientError;
use crate::kafka::group_metadata::GroupMetadata;
use crate::kafka::member::{self, CommitMode, Member};
use crate::kafka::reader::LogReader;
use crate::kafka::standby_client::StandbyClient;
use crate::kafka::transaction::TransactionalProducer;
use crate::model::fire::Fire;
use crate::model::outcome::CircuitState;
use crate::model::text::Text;
use crate::model::time::whole_ms;
use crate::model::{Offset, PartitionId};
use crate::role_reporter::RoleReporter;
use crate::telemetry;
use crate::thread_queue::ThreadQueue;

/// After how long the broker aborts the transaction of a worker that died. Shorter than that of a
/// scheduler: no other worker ends it, and what is behind it in the signals waits.
pub(super) const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may take to open a producer.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// Kafka, threads, and tokio for the requests.
#[derive(Debug)]
pub(super) struct KafkaWorker;

impl ProcessEnvironment for KafkaWorker {
    type Clock = SystemClock;
    type Reader = LogReader;
    type Member = WorkerMember;
    type Producer = TransactionalProducer;
    type Producers = WorkerProducers;
    type Cluster = KafkaQueries;
    type Reporter = RoleReporter;
    type Queue<J: Job> = ThreadQueue<J>;

    fn start_queue<J: Job>(
        &self,
        name: &'static str,
        threads: Threads,
        worker: impl Fn() -> J::Worker + Send + Sync + 'static,
    ) -> ThreadQueue<J> {
        ThreadQueue::start(name, threads, worker)
    }

    fn reached(point: &'static str) {
        fault::reached(point);
    }

    fn abort(&self) -> ! {
        std::process::abort()
    }
}

impl WorkerEnvironment for KafkaWorker {
    type Callbacks = HttpCallbacks;
}

/// The membership in the group of a pool.
#[derive(Debug)]
pub(super) struct WorkerMember {
    member: Member,
    /// Reads committed offsets, too.
    second_client: Arc<StandbyClient>,
    /// The last fatal error.
    fatal: Option<ClientError>,
}

impl WorkerMember {
    pub(super) fn new(member: Member, second_client: StandbyClient) -> Self {
        Self { member, second_client: Arc::new(second_client), fatal: None }
    }
}

impl GroupMembership for WorkerMember {
    type Metadata = GroupMetadata;
    type Offsets = WorkerOffsets;

    fn poll(&mut self, timeout: Duration) -> CallResult<Vec<AssignmentChange>> {
        self.member.poll(timeout).map_err(|fatal| {
            let text = CallError::new(&fatal);
            self.fatal = Some(fatal);
            text
        })
    }

    fn rejoin(&mut self) -> CallResult<()> {
        call(self.member.rejoin(self.fatal.take().unwrap_or(ClientError::Expelled)))
    }

    fn metadata(&self) -> Result<GroupMetadata, GroupMetadataError> {
        self.member.group_metadata()
    }

    fn is_member(&self, member_id: &str) -> bool {
        self.member.is_member(member_id)
    }

    fn release(&self, partitions: &[PartitionId]) -> CallResult<()> {
        call(self.member.release(partitions))
    }

    fn committed_offsets(&self) -> WorkerOffsets {
        let second_client = Arc::clone(&self.second_client);
        WorkerOffsets { offsets: self.member.committed_offsets(), second_client }
    }

    fn commit_offsets(&self, commits: &[OffsetCommit]) -> CallResult<()> {
        call(self.member.commit(commits, CommitMode::Async))
    }

    /// A dynamic member leaves when it is dropped.
    fn leave_gracefully(&self) -> CallResult<()> {
        Ok(())
    }

    fn has_released_all(&self) -> bool {
        self.member.has_released_all()
    }
}

/// Reads committed offsets.
#[derive(Debug)]
pub(super) struct WorkerOffsets {
    offsets: member::CommittedOffsets,
    second_client: Arc<StandbyClient>,
}

impl CommittedOffsets for WorkerOffsets {
    fn stable(
        &self,
        partition: PartitionId,
        timeout: Duration,
    ) -> CallResult<Option<(Offset, String)>> {
        call(self.offsets.committed(partition, timeout))
    }

    fn latest_metadata(&self, partition: PartitionId) -> CallResult<String> {
        let committed = call(self.second_client.committed(partition))?;
        Ok(committed.map_or_else(String::new, |(_, metadata)| metadata))
    }

    /// The broker ends the transaction of a worker that has died, after its timeout.
    fn fence_owner(&self, _metadata: &str) {}

    fn fence_absent_members(&self) {}
}

/// Opens the producers of a worker.
#[derive(Clone, Debug)]
pub(super) struct WorkerProducers {
    pub(super) settings: Arc<Settings>,
    /// The transactional id of the first; `<id>/2` and so on of the others.
    pub(super) id: String,
}

impl ProducerFactory for WorkerProducers {
    type Producer = TransactionalProducer;

    fn open(&self, number: usize) -> Result<TransactionalProducer, TransactionError> {
        let id = match number {
            0 => self.id.clone(),
            number => format!("{}/{}", self.id, number + 1),
        };
        TransactionalProducer::open_with(&self.settings, &id, OPEN_TIMEOUT, TRANSACTION_TIMEOUT)
    }

    fn prepare(&self, _number: usize) {}
}

/// Makes callbacks in tokio tasks.
#[derive(Debug)]
pub(super) struct HttpCallbacks {
    client: Arc<CallbackClient>,
    callers: Callers,
    /// Whose limits the loop applies.
    applied: Arc<CallerTable>,
    defaults: WorkerSettings,
    runtime: Runtime,
    ends: (Sender<CallbackEnd>, Receiver<CallbackEnd>),
}

impl HttpCallbacks {
    pub(super) fn new(
        client: CallbackClient,
        callers: Callers,
        defaults: &WorkerSettings,
        runtime: Runtime,
    ) -> Self {
        Self {
            client: Arc::new(client),
            applied: callers.current(),
            callers,
            defaults: defaults.clone(),
            runtime,
            ends: channel(),
        }
    }
}

impl CallbackMaking for HttpCallbacks {
    fn route(&self, fire: &Fire) -> Route {
        route_of(fire)
    }

    fn limits(&self, caller: &CallerName) -> QueueLimits {
        let caller = self.applied.by_id(caller.as_ref().map(Text::as_str));
        queue_limits(caller, &self.defaults)
    }

    fn have_limits_changed(&mut self) -> bool {
        let current = self.callers.current();
        let is_new = !Arc::ptr_eq(&current, &self.applied);
        self.applied = current;
        is_new
    }

    fn start(&mut self, callback: Callback) {
        let (client, ends) = (Arc::clone(&self.client), self.ends.0.clone());
        let _detached = self.runtime.spawn(async move {
            fault::reached("worker.before_request");
            let started = clock::monotonic();
            let response = client.call(&callback.fire, clock::now_ms()).await;
            let took = clock::monotonic() - started;
            fault::reached("worker.after_request");
            metrics::histogram!(telemetry::CALLBACK_DURATION).record(took.as_secs_f64());
            let (took, at) = (whole_ms(took), clock::now_ms());
            // The loop has ended if the channel is closed.
            let _is_open = ends.send(CallbackEnd { callback, response, took, at }).is_ok();
        });
    }

    fn poll(&mut self, timeout: Duration) -> Option<CallbackEnd> {
        if timeout.is_zero() {
            return self.ends.1.try_recv().ok();
        }
        self.ends.1.recv_timeout(timeout).ok()
    }
}

impl WorkerReporter for RoleReporter {
    fn callbacks(&self, in_flight: usize, waiting: usize) {
        // A gauge is a float; no process has 2^52 callbacks.
        metrics::gauge!(telemetry::CALLBACKS_IN_FLIGHT).set(in_flight as f64);
        metrics::gauge!(telemetry::CALLBACKS_WAITING).set(waiting as f64);
    }

    fn memory(&self, bytes: WorkerBytes) {
        let gauge = |of, bytes: usize| {
            metrics::gauge!(telemetry::WORKER_MEMORY, "of" => of).set(bytes as f64);
        };
        gauge("waiting", bytes.waiting);
        gauge("in_flight", bytes.in_flight);
        gauge("results", bytes.results);
    }

    fn result_committed(&self, result: &'static str) {
        metrics::counter!(telemetry::CALLBACKS, "result" => result).increment(1);
    }

    fn dead_letter_committed(&self, reason: &'static str) {
        metrics::counter!(telemetry::DEAD_LETTERS, "reason" => reason).increment(1);
    }

    fn deferred(&self, reason: &'static str) {
        metrics::counter!(telemetry::DEFERRED, "reason" => reason).increment(1);
    }

    fn circuits(&self, state: CircuitState, count: usize) {
        let state = match state {
            CircuitState::Closed => "closed",
            CircuitState::Open => "open",
            CircuitState::HalfOpen => "half_open",
        };
        metrics::gauge!(telemetry::CIRCUITS, "state" => state).set(count as f64);
    }
}
