//! The scheduler: owns partitions, drives the engine.
//!
//! Invariant: one OS thread runs the loop — land, group, take over, read, fire, launch —, a second
//! one makes the transaction under way, a third one brings into the stores what is committed. The
//! group is polled only while no transaction is open.
//!
//! ```text
//!   triggers[p], signals[p] ─poll─► decode ──► engine.ingest ─┐
//!                                                             ├─► Step ─► one transaction ─► store
//!   wheel.due(now) ──────────────────────────► engine.fire  ──┘
//! ```

mod commit_lead;
mod committed_offset;
mod committer;
mod end_offset_poller;
mod inputs;
pub mod instance_lock;
mod local_store;
mod partition_task;
mod record_sender;
mod report;
mod restore_pool;
mod standby;
mod store_writer;
mod takeover;
mod targets;
mod transaction_batch;
mod transactions;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::codec::schemas::Schemas;
use crate::config::{Assignor, Settings};
use crate::engine::assignment::{AssignmentChange, GroupAssignment};
use crate::engine::partition::{CorruptRow, PartitionConfig};
use crate::engine::step::InputTopics;
use crate::engine::takeover::PartitionOffsets;
use crate::fault;
use crate::health::Health;
use crate::kafka::Names;
use crate::kafka::admin_client::KafkaAdminClient;
use crate::kafka::member::Member;
use crate::kafka::orphaned_transactions::OrphanedTransactions;
use crate::kafka::producer_pair::ProducerPair;
use crate::kafka::reader::LogReader;
use crate::kafka::transaction::TransactionError;
use crate::model::{Millis, PartitionId, Timestamp};
use crate::store::{StoreError, StoreFactory};
use committer::Committer;
use end_offset_poller::EndOffsetPoller;
use inputs::InputDecoder;
use instance_lock::{InstanceLock, InstanceLockError};
use partition_task::{PartitionState, PartitionTask};
use record_sender::RecordSender;
use restore_pool::RestorePool;
use standby::Standby;
use store_writer::StoreWriter;
use targets::Targets;
use transaction_batch::TransactionBatch;

/// Why the scheduler ended without a request to shut down.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// The data directory cannot be used.
    #[error(transparent)]
    InstanceLock(#[from] InstanceLockError),
    /// A client could not be made.
    #[error("Kafka: {0}; check [kafka]")]
    Kafka(#[from] KafkaError),
    /// The group has thrown this member out again and again.
    #[error(
        "the group throws this member out: {0}; does another process have the same \
             scheduler.instance_id?"
    )]
    FencedRepeatedly(KafkaError),
    /// The local store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The topics are not as they must be.
    #[error("topic {0} does not exist; create the topics with `orloj topics apply`")]
    NoTopic(String),
    /// Another process runs under the same identity.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// A schema cannot be read.
    #[error("schemas: {0}")]
    Schemas(String),
}

/// How long the loop waits at most when there is nothing to do: the group wants to be served.
const IDLE_WAIT: Duration = Duration::from_millis(10);
/// How long a call to the broker may take before it counts as away.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a leaving member waits for the others to take its partitions.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(15);

/// librdkafka joins once a second at most; with a little room, in ms.
const REJOIN_INTERVAL_MS: Millis = 1_050;

/// Whether the broker can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Apache Kafka, or a broker with the same guarantees.
    Guaranteed,
    /// librdkafka's built-in broker, which keeps no committed offsets of transactions: there is
    /// one scheduler, its cursor is in memory, and nothing is ever taken over.
    Trial,
}

/// Runs a scheduler until `shutdown`; blocks. Serves readiness through `health`.
#[expect(clippy::needless_pass_by_value, reason = "every role is started alike")]
pub fn run(
    settings: &Settings,
    shutdown: CancellationToken,
    health: Arc<Health>,
) -> Result<(), SchedulerError> {
    Scheduler::start(settings, health, Mode::Guaranteed)?.serve(&shutdown)
}

/// The same on librdkafka's built-in broker: for trying, never evidence of a guarantee.
#[expect(clippy::needless_pass_by_value, reason = "every role is started alike")]
pub fn run_trial(
    settings: &Settings,
    shutdown: CancellationToken,
    health: Arc<Health>,
) -> Result<(), SchedulerError> {
    Scheduler::start(settings, health, Mode::Trial)?.serve(&shutdown)
}

/// The loop's state.
struct Scheduler {
    settings: Settings,
    names: Names,
    rules: PartitionConfig,
    /// Holds the data directory for as long as the loop runs.
    _instance_lock: InstanceLock,
    mode: Mode,
    health: Arc<Health>,
    cluster: String,
    member: Member,
    triggers: LogReader,
    signals_and_ledger: LogReader,
    admin: KafkaAdminClient,
    orphaned_transactions: Arc<OrphanedTransactions>,
    producers: Arc<ProducerPair>,
    committer: Committer,
    batch: Option<Arc<TransactionBatch>>,
    /// When the last transaction began.
    last_transaction_at: Instant,
    assignment: GroupAssignment,
    writer: StoreWriter,
    restore_pool: RestorePool,
    stores: Arc<StoreFactory>,
    standby: Option<Standby>,
    tasks: BTreeMap<PartitionId, PartitionTask>,
    /// The partition that launches first next time.
    next_partition: PartitionId,
    started: Instant,
    /// When the memory of the stores was last reported.
    measured_at: Option<Instant>,
    decoder: InputDecoder,
    targets: Targets,
    end_offsets: EndOffsetPoller,
    committed_offsets: (Sender<CommittedOffsetReply>, Receiver<CommittedOffsetReply>),
    refused_topic: Option<String>,
}

/// A committed offset, read by a thread of its own because it may block for long.
type CommittedOffsetReply = (PartitionId, u64, PartitionOffsets);

impl Scheduler {
    fn start(settings: &Settings, health: Arc<Health>, mode: Mode) -> Result<Self, SchedulerError> {
        let scheduler = &settings.scheduler;
        let instance_lock = InstanceLock::acquire(&scheduler.data_dir, &scheduler.instance_id)?;
        let names = Names::new(&settings.topics.prefix);
        let id = names.transactional_id("scheduler", &instance_lock.instance_id);
        let admin = KafkaAdminClient::open(settings, CALL_TIMEOUT)?;
        let partitions = admin
            .partitions(&names.triggers())?
            .ok_or_else(|| SchedulerError::NoTopic(names.triggers()))?;
        health.not_ready("partitions", "no partition is assigned yet");
        let group = names.scheduler_group();
        let (triggers, others) =
            (LogReader::open(settings, &group)?, LogReader::open(settings, &group)?);
        let producers = open_producers(settings, &id)?;
        let pools = settings.topics.pools.iter().map(|pool| names.fires_of(pool));
        let output_topics = [names.ledger(), names.signals(), names.outcomes(), names.fires()];
        let output_topics = output_topics.into_iter().chain(pools);
        output_topics.into_iter().try_for_each(|topic| producers.prefetch_metadata(&topic))?;
        let orphaned_transactions =
            OrphanedTransactions::open(settings, &group, &names.triggers(), &id, CALL_TIMEOUT)?;
        triggers.prefetch_metadata(&names.triggers())?;
        others.prefetch_metadata(&names.signals())?;
        others.prefetch_metadata(&names.ledger())?;
        let stores = Arc::new(StoreFactory::new(&scheduler.data_dir, (&settings.store).into())?);
        let cluster = admin.cluster_id().unwrap_or_default();
        let standby = (settings.standby.replicas > 0 && mode == Mode::Guaranteed)
            .then(|| {
                Standby::start(settings, &names, partitions, &instance_lock, &cluster, &stores)
            })
            .transpose()?;
        // An eager group stops everybody anyway: there is nothing to fire on for.
        let cooperative = scheduler.assignor == Assignor::CooperativeSticky;
        let grace = if cooperative { REJOIN_INTERVAL_MS } else { 0 };
        Ok(Self {
            rules: rules(settings, &names, partitions, &id),
            producers: Arc::new(producers),
            member: Member::join(settings, &group, &names.triggers(), &instance_lock.instance_id)?,
            orphaned_transactions: Arc::new(orphaned_transactions),
            triggers,
            signals_and_ledger: others,
            committer: Committer::start(
                RecordSender::new(&names, Schemas::new()),
                scheduler.transaction_timeout * 2,
                scheduler.ahead_max,
            ),
            batch: None,
            last_transaction_at: clock::monotonic(),
            assignment: GroupAssignment::new(grace),
            writer: StoreWriter::start(),
            restore_pool: RestorePool::start(),
            stores,
            standby,
            tasks: BTreeMap::new(),
            next_partition: 0,
            started: clock::monotonic(),
            measured_at: None,
            decoder: InputDecoder::new(settings, &names, partitions)?,
            targets: Targets::new(settings.targets.clone(), names.clone(), admin.clone()),
            end_offsets: EndOffsetPoller::start(admin.clone(), &names),
            committed_offsets: channel(),
            refused_topic: None,
            cluster,
            settings: settings.clone(),
            admin,
            names,
            _instance_lock: instance_lock,
            mode,
            health,
        })
    }

    fn serve(mut self, shutdown: &CancellationToken) -> Result<(), SchedulerError> {
        while !shutdown.is_cancelled() {
            self.poll_once()?;
        }
        self.leave()
    }

    /// One turn of the loop: everything that can be done now, then a short wait.
    fn poll_once(&mut self) -> Result<(), SchedulerError> {
        let now = clock::now_ms();
        let wait = self.time_until_due(now);
        if !self.assignment.is_idle() {
            self.poll_transaction(wait.min(Duration::from_millis(1)))?;
        }
        self.poll_store_writer()?;
        if self.assignment.is_idle() {
            self.poll_group()?;
        }
        self.advance_takeovers()?;
        let wait = match self.spacing() {
            _ if !self.assignment.is_idle() => Duration::ZERO,
            Duration::ZERO => wait,
            spacing => wait.min(spacing),
        };
        self.read_inputs(wait)?;
        let now = clock::now_ms();
        for id in self.active_partitions() {
            if let Err(error) = self.fire_due(id, now) {
                self.rebuild_store(id, &error)?;
            }
        }
        if self.assignment.is_idle() {
            self.commit_if_ready()?;
        }
        self.report_memory();
        Ok(())
    }

    /// How long nothing is due.
    fn time_until_due(&mut self, now: Timestamp) -> Duration {
        let restoring =
            self.tasks.values().any(|l| matches!(l.state, PartitionState::Restoring(_)));
        if restoring {
            return Duration::from_millis(1);
        }
        let next = self.tasks.values_mut().filter_map(|task| task.active()?.next_wakeup()).min();
        let now = now + self.committer.commit_lead_ms();
        next.map_or(IDLE_WAIT, |due| Duration::from_millis(due.saturating_sub(now)).min(IDLE_WAIT))
    }

    /// Loads the wheel of a partition, fires what is due, and checks whether it may at all. What is
    /// decided ahead of its time is committed no sooner: see [`TransactionBatch::time`].
    fn fire_due(&mut self, id: PartitionId, now: Timestamp) -> Result<(), PartitionTaskError> {
        let decided_until = now + self.committer.commit_lead_ms();
        let fire_max = self.settings.scheduler.fire_max.get();
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        let Some(partition) = task.active() else { return Ok(()) };
        let _behind = partition.observe_clock(decided_until);
        // Without room what is late fires all the same: it belongs to the step that took it in.
        let room = fire_max.saturating_sub(partition.drafted_records());
        task.load()?;
        let PartitionState::Active(partition) = &mut task.state else { return Ok(()) };
        let due = partition.take_due(room);
        let catalog = self.targets.catalog(due.topics(), due.pools(), now);
        let fetched = local_store::fetch_index_rows(&task.store, due.ids_to_prefetch(&catalog))?;
        partition.fire(due, &catalog, &fetched)?;
        Ok(())
    }

    fn active_partitions(&self) -> Vec<PartitionId> {
        let active = |task: &&PartitionTask| matches!(task.state, PartitionState::Active(_));
        self.tasks.values().filter(active).map(|task| task.id).collect()
    }

    /// Polls the group. No transaction is open here.
    fn poll_group(&mut self) -> Result<(), SchedulerError> {
        match self.member.poll(Duration::ZERO) {
            Ok(changes) => {
                changes.into_iter().try_for_each(|change| self.apply_group_change(change))?
            }
            Err(fatal) => {
                tracing::warn!(error = %fatal, "removed from the group; joining again");
                let all = self.assignment.owned().iter().copied().collect();
                self.apply_group_change(AssignmentChange::Lost(all))?;
                self.member.rejoin(fatal).map_err(SchedulerError::FencedRepeatedly)?;
            }
        }
        let actions = self.assignment.on_tick(self.uptime());
        self.execute(actions)
    }

    fn apply_group_change(&mut self, change: AssignmentChange) -> Result<(), SchedulerError> {
        tracing::info!(?change, "group assignment changed");
        let actions = self.assignment.on_assignment_change(change, self.uptime());
        self.execute(actions)?;
        self.report_readiness();
        self.end_offsets.watch(self.assignment.owned().iter().copied());
        if let Some(standby) = &self.standby {
            standby.set_owned(self.assignment.owned());
        }
        Ok(())
    }

    /// Milliseconds since the start; never runs back.
    fn uptime(&self) -> Millis {
        let uptime = clock::monotonic().duration_since(self.started);
        ms(uptime)
    }

    /// Nothing of ours has an effect on these any more: the process that waits for them goes first,
    /// our disk comes after.
    fn release(&mut self, partitions: &[PartitionId]) -> Result<(), SchedulerError> {
        fault::reached("revoke.after_last_words");
        for partition in partitions {
            self.stop_reading(*partition)?;
        }
        let tasks: Vec<_> = partitions.iter().filter_map(|id| self.tasks.remove(id)).collect();
        self.member.release(partitions)?;
        self.await_stores()?;
        for task in tasks {
            task.store.flush()?;
        }
        Ok(())
    }

    fn stop_reading(&self, partition: PartitionId) -> Result<(), KafkaError> {
        self.triggers.stop(&self.names.triggers(), partition)?;
        self.signals_and_ledger.stop(&self.names.signals(), partition)?;
        self.signals_and_ledger.stop(&self.names.ledger(), partition)
    }

    /// Hands everything over (or, if so configured, keeps it for the next run) and ends.
    fn leave(mut self) -> Result<(), SchedulerError> {
        let deadline = clock::monotonic() + LEAVE_TIMEOUT;
        while !self.assignment.is_idle() && clock::monotonic() < deadline {
            self.poll_transaction(Duration::from_millis(10))?;
        }
        self.assignment.disable_grace();
        let hand_over = self.settings.scheduler.leave_on_shutdown && self.mode == Mode::Guaranteed;
        if hand_over {
            self.member.leave_gracefully(&self.names.ledger(), CALL_TIMEOUT)?;
        } else if self.assignment.is_idle() {
            let all = self.assignment.owned().iter().copied().collect();
            let actions =
                self.assignment.on_assignment_change(AssignmentChange::Revoked(all), self.uptime());
            self.execute(actions)?;
        }
        let has_left = |this: &Self| {
            this.assignment.owned().is_empty() && (!hand_over || this.member.has_released_all())
        };
        while !has_left(&self) && clock::monotonic() < deadline {
            self.poll_once()?;
        }
        Ok(())
    }
}

/// Why a partition's store must be looked at.
#[derive(Debug, thiserror::Error)]
enum PartitionTaskError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Corrupt(#[from] CorruptRow),
}

/// A thread that ends with the process or when its channel closes. Its name is what `top -H` shows.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.to_owned());
    let _detached = thread.spawn(run).expect("the system has room for a few threads");
}

fn open_producers(settings: &Settings, id: &str) -> Result<ProducerPair, TransactionError> {
    // Whatever an earlier process of this identity left open is ended first.
    let timeout = settings.scheduler.transaction_timeout * 3;
    ProducerPair::open(settings, id, timeout)
}

/// In whole ms.
fn ms(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

fn rules(settings: &Settings, names: &Names, partitions: i32, owner: &str) -> PartitionConfig {
    let scheduler = &settings.scheduler;
    PartitionConfig {
        ledger_after: ms(scheduler.ledger_after),
        veto_ttl: ms(scheduler.veto_ttl),
        sample_interval: ms(scheduler.sample_interval),
        idle_commit: ms(scheduler.idle_commit_interval),
        mirror_interval: ms(scheduler.mirror_interval),
        ingest_max: scheduler.ingest_max.get(),
        spill_bytes: 0,
        spill_interval: ms(settings.store.flush_interval),
        cancel_grace: end_offset_poller::GRACE_MS,
        park_interval: ms(scheduler.park),
        callback_result_timeout: ms(scheduler.open_ttl),
        misfire_grace: ms(scheduler.misfire_grace),
        catch_up_rate: scheduler.catch_up_rate.get(),
        partitioner: settings.triggers.partitioner,
        partitions,
        pools: settings.topics.pools.iter().map(|pool| pool.as_str().into()).collect(),
        owner: owner.to_owned(),
        topics: InputTopics { triggers: names.triggers().into(), signals: names.signals().into() },
    }
}
