//! The scheduler: owns partitions and drives the engine.
//!
//! Invariant: one OS thread runs the loop: transaction results, consumer group, takeovers, inputs,
//! fires, next transaction. A second thread runs the open transaction, and a third one writes
//! committed rows to the stores. The group is polled only while no transaction is open.
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
use crate::kafka::error::{ClientError, ClientResult};
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
    /// A Kafka client cannot be created or failed.
    #[error("Kafka: {0}; check [kafka]")]
    Kafka(#[from] ClientError),
    /// The group has fenced this member repeatedly.
    #[error(
        "the group fences this member repeatedly: {0}; does another process have the same \
             scheduler.instance_id?"
    )]
    FencedRepeatedly(ClientError),
    /// The local store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A required topic does not exist.
    #[error("topic {0} does not exist; create the topics with `orloj topics apply`")]
    NoTopic(String),
    /// Another process runs with the same transactional id.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// A schema cannot be read.
    #[error("schemas: {0}")]
    Schemas(String),
}

/// How long one turn of the loop waits at most if nothing is due, because the group must be polled.
const IDLE_WAIT: Duration = Duration::from_millis(10);
/// How long a request to the broker may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a leaving member waits until its partitions are reassigned.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(15);

/// librdkafka joins a group at most once per second; in ms, with a small margin.
const REJOIN_INTERVAL_MS: Millis = 1_050;

/// Which guarantees the broker gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Apache Kafka, or a broker with the same guarantees.
    Guaranteed,
    /// librdkafka's built-in broker, which does not store the committed offsets of transactions.
    /// There is one scheduler, its cursor is in memory, and no partition is taken over. The
    /// view reads committed offsets, so they are committed once more without a transaction.
    Trial,
}

/// Runs a scheduler until `shutdown`; blocks. Serves readiness through `health`.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the start functions of all roles have this form"
)]
pub fn run(
    settings: &Settings,
    shutdown: CancellationToken,
    health: Arc<Health>,
) -> Result<(), SchedulerError> {
    Scheduler::start(settings, health, Mode::Guaranteed)?.serve(&shutdown)
}

/// Runs a scheduler on librdkafka's built-in broker, for trials. The delivery guarantees do not
/// hold there.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the start functions of all roles have this form"
)]
pub fn run_trial(
    settings: &Settings,
    shutdown: CancellationToken,
    health: Arc<Health>,
) -> Result<(), SchedulerError> {
    Scheduler::start(settings, health, Mode::Trial)?.serve(&shutdown)
}

/// The state of the loop.
struct Scheduler {
    settings: Settings,
    names: Names,
    rules: PartitionConfig,
    /// Locks the data directory while the loop runs.
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
    /// When the last transaction was submitted.
    last_transaction_at: Instant,
    assignment: GroupAssignment,
    writer: StoreWriter,
    restore_pool: RestorePool,
    stores: Arc<StoreFactory>,
    standby: Option<Standby>,
    tasks: BTreeMap<PartitionId, PartitionTask>,
    /// The partition that `seal` starts with next time.
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

/// A committed offset with the partition and the takeover's nonce. A separate thread reads it,
/// because the request may block for long.
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
        let (triggers, signals_and_ledger) =
            (LogReader::open(settings, &group)?, LogReader::open(settings, &group)?);
        let producers = open_producers(settings, &id)?;
        let pools = settings.topics.pools.iter().map(|pool| names.fires_of(pool));
        let output_topics = [names.ledger(), names.signals(), names.outcomes(), names.fires()];
        let output_topics = output_topics.into_iter().chain(pools);
        output_topics.into_iter().try_for_each(|topic| producers.prefetch_metadata(&topic))?;
        let orphaned_transactions =
            OrphanedTransactions::open(settings, &group, &names.triggers(), &id, CALL_TIMEOUT)?;
        triggers.prefetch_metadata(&names.triggers())?;
        signals_and_ledger.prefetch_metadata(&names.signals())?;
        signals_and_ledger.prefetch_metadata(&names.ledger())?;
        let stores = Arc::new(StoreFactory::new(&scheduler.data_dir, (&settings.store).into())?);
        let cluster = admin.cluster_id().unwrap_or_default();
        let standby = (settings.standby.replicas > 0 && mode == Mode::Guaranteed)
            .then(|| {
                Standby::start(settings, &names, partitions, &instance_lock, &cluster, &stores)
            })
            .transpose()?;
        // The eager protocol stops all members during a rebalance, so firing during the grace
        // period has no use.
        let cooperative = scheduler.assignor == Assignor::CooperativeSticky;
        let grace = if cooperative { REJOIN_INTERVAL_MS } else { 0 };
        Ok(Self {
            rules: rules(settings, &names, partitions, &id),
            producers: Arc::new(producers),
            member: Member::join(settings, &group, &names.triggers(), &instance_lock.instance_id)?,
            orphaned_transactions: Arc::new(orphaned_transactions),
            triggers,
            signals_and_ledger,
            committer: Committer::start(
                RecordSender::new(&names, Schemas::new()),
                scheduler.transaction_timeout * 2,
                scheduler.commit_lead_max,
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

    /// One turn of the loop: does all work that is possible now, then waits for a short time.
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

    /// The time until the next fire is due, at most `IDLE_WAIT`.
    fn time_until_due(&mut self, now: Timestamp) -> Duration {
        let restoring =
            self.tasks.values().any(|task| matches!(task.state, PartitionState::Restoring(_)));
        if restoring {
            return Duration::from_millis(1);
        }
        let next = self.tasks.values_mut().filter_map(|task| task.active()?.next_wakeup()).min();
        let now = now + self.committer.commit_lead_ms();
        next.map_or(IDLE_WAIT, |due| Duration::from_millis(due.saturating_sub(now)).min(IDLE_WAIT))
    }

    /// Loads the timer wheel of a partition and fires what is due, if the clock allows it. Fires
    /// that are decided early are committed no earlier than their time: see
    /// [`TransactionBatch::commit_not_before`].
    fn fire_due(&mut self, id: PartitionId, now: Timestamp) -> Result<(), PartitionTaskError> {
        let decided_until = now + self.committer.commit_lead_ms();
        let fires_per_step_max = self.settings.scheduler.fires_per_step_max.get();
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        let Some(partition) = task.active() else { return Ok(()) };
        let _behind = partition.observe_clock(decided_until);
        // With no room left, late fires are still decided: they belong to the step that ingested
        // them.
        let room = fires_per_step_max.saturating_sub(partition.drafted_records());
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

    /// Polls the group. No transaction is open at this point.
    fn poll_group(&mut self) -> Result<(), SchedulerError> {
        match self.member.poll(Duration::ZERO) {
            Ok(changes) => {
                changes.into_iter().try_for_each(|change| self.apply_group_change(change))?
            }
            Err(fatal) => {
                tracing::warn!(error = %fatal, "fenced by the group; joining again");
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

    /// Milliseconds since the start, on the monotonic clock.
    fn uptime(&self) -> Millis {
        ms(clock::monotonic().duration_since(self.started))
    }

    /// Releases partitions that no transaction or record of ours can affect any more. The group is
    /// informed before the stores are flushed, because another process waits for the partitions.
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

    fn stop_reading(&self, partition: PartitionId) -> ClientResult<()> {
        self.triggers.stop(&self.names.triggers(), partition)?;
        self.signals_and_ledger.stop(&self.names.signals(), partition)?;
        self.signals_and_ledger.stop(&self.names.ledger(), partition)
    }

    /// Releases all partitions and ends. If so configured, the partitions stay assigned to this
    /// instance id for the next start.
    fn leave(mut self) -> Result<(), SchedulerError> {
        let deadline = clock::monotonic() + LEAVE_TIMEOUT;
        while !self.assignment.is_idle() && clock::monotonic() < deadline {
            self.poll_transaction(Duration::from_millis(10))?;
        }
        self.assignment.disable_grace();
        let releases_partitions =
            self.settings.scheduler.leave_on_shutdown && self.mode == Mode::Guaranteed;
        if releases_partitions {
            self.member.leave_gracefully(&self.names.ledger(), CALL_TIMEOUT)?;
        } else if self.assignment.is_idle() {
            let all = self.assignment.owned().iter().copied().collect();
            let actions =
                self.assignment.on_assignment_change(AssignmentChange::Revoked(all), self.uptime());
            self.execute(actions)?;
        }
        let has_left = |scheduler: &Self| {
            scheduler.assignment.owned().is_empty()
                && (!releases_partitions || scheduler.member.has_released_all())
        };
        while !has_left(&self) && clock::monotonic() < deadline {
            self.poll_once()?;
        }
        Ok(())
    }
}

/// Why the store of a partition must be rebuilt.
#[derive(Debug, thiserror::Error)]
enum PartitionTaskError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Corrupt(#[from] CorruptRow),
}

/// Starts a thread that ends with the process or when its channel is closed. `top -H` shows its
/// name.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.to_owned());
    let _detached = thread.spawn(run).expect("a thread can be started");
}

fn open_producers(settings: &Settings, id: &str) -> Result<ProducerPair, TransactionError> {
    // Opening first ends the transactions of an earlier process with the same transactional id.
    let timeout = settings.scheduler.transaction_timeout * 3;
    ProducerPair::open(settings, id, timeout)
}

/// Converts to whole ms.
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
        cursor_copy_interval: ms(scheduler.cursor_copy_interval),
        records_per_step_max: scheduler.records_per_step_max.get(),
        spill_bytes: 0,
        spill_interval: ms(settings.store.flush_interval),
        cancel_grace: end_offset_poller::GRACE_MS,
        target_retry_interval: ms(scheduler.target_retry_interval),
        callback_result_timeout: ms(scheduler.callback_result_timeout),
        misfire_grace: ms(scheduler.misfire_grace),
        catch_up_rate: scheduler.catch_up_rate.get(),
        partitioner: settings.triggers.partitioner,
        partitions,
        pools: settings.topics.pools.iter().map(|pool| pool.as_str().into()).collect(),
        owner: owner.to_owned(),
        topics: InputTopics { triggers: names.triggers().into(), signals: names.signals().into() },
    }
}
