//! The scheduler: owns partitions and drives the engine.
//!
//! Invariant: one OS thread runs the loop: transaction results, consumer group, takeovers, inputs,
//! fires, next transaction. A second thread runs the open transaction, and a third one writes
//! committed rows to the stores; questions to brokers have threads of their own. The group is
//! polled only while no transaction is in progress.
//!
//! ```text
//!   triggers[p], signals[p] ─poll─► decode ──► engine.ingest ─┐
//!                                                             ├─► Step ─► one transaction ─► store
//!   wheel.due(now) ──────────────────────────► engine.fire  ──┘
//! ```

mod assigned_stores;
mod cached_topic;
mod committed_offset;
pub mod config;
mod end_offset_job;
mod end_offset_poller;
mod input_decoder;
pub mod inputs;
mod interrupted_transaction;
pub mod local_store;
mod log_checks;
mod membership;
mod memory_report;
mod parking;
mod partition_leaders;
mod partition_task;
mod range_checks;
mod read_pause;
mod record_sender;
mod report;
mod restore_pool;
mod slow_transaction;
pub mod standby;
mod standby_pass;
mod standby_stores;
mod store_writer;
mod takeover;
mod targets;
#[cfg(test)]
mod test_partition;
#[cfg(test)]
mod test_scheduler;
mod topic_failures;
mod transaction_batch;
mod transactions;
mod trigger_intake;
mod triggers_reading;
mod truncated_logs;
mod turn;
mod waiting_inputs;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::codec::schemas::Schemas;
use crate::commit::committer::Committer;
use crate::commit::finding_reader::FindingReader;
use crate::commit::producer_jobs::ProducerJobs;
use crate::engine::assignment::GroupAssignment;
use crate::engine::partition::CorruptRow;
use crate::environment::call_error::CallError;
use crate::environment::job::Threads;
use crate::environment::store::StoreError;
use crate::environment::{Clock as _, Environment};
use crate::model::time::whole_ms as ms;
use crate::model::{PartitionId, Timestamp};
use assigned_stores::AwaitedStores;
use committed_offset::CommittedOffsetJobOf;
use config::{QUERY_THREADS, SchedulerConfig, TargetPolicy};
use end_offset_poller::EndOffsetPoller;
pub use end_offset_poller::GRACE_MS;
use inputs::InputDecoder;
use log_checks::LogBoundsJob;
use membership::Leaving;
use memory_report::MemoryReport;
use partition_task::{PartitionState, PartitionTask};
use range_checks::RangeChecks;
use record_sender::RecordSender;
use restore_pool::RestorePool;
use slow_transaction::SlowTransaction;
use standby::{SharedParts, Standby, StandbyParts};
use store_writer::StoreWriter;
use targets::{Targets, TargetsOf};
use transaction_batch::TransactionBatch;
use triggers_reading::TriggersReading;
use truncated_logs::TruncatedLogs;
use turn::TurnTimer;

/// Why the loop ended without a request to shut down.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// A Kafka client failed.
    #[error("Kafka: {0}; check [kafka]")]
    Call(#[from] CallError),
    /// The group has fenced this member repeatedly.
    #[error(
        "the group fences this member repeatedly: {0}; does another process have the same \
             scheduler.instance_id?"
    )]
    FencedRepeatedly(CallError),
    /// The local store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How long one turn of the loop waits at most if nothing is due, because the group must be polled.
const IDLE_WAIT: Duration = Duration::from_millis(10);

/// So long after a turn began nothing more is fired in it: the commit follows, and no turn should
/// take over 100 ms.
const FIRING_END: Duration = Duration::from_millis(70);

/// This part of the time for firing is left in any turn.
const FIRING_SHARE_MIN: u32 = 5;

/// How much a partition decides between two looks at the clock: see [`Partition::take_due`].
///
/// [`Partition::take_due`]: crate::engine::partition::Partition::take_due
const FIRING_BUDGET: usize = 4_000;

/// Why a partition has stopped firing in this turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FiringEnd {
    /// Nothing more is due, or its step is full.
    AllDue,
    /// The time of this turn is used up.
    OutOfTime,
}

/// What a scheduler works with.
#[expect(missing_debug_implementations, reason = "clients have nothing to show")]
pub struct SchedulerParts<E: Environment> {
    /// Threads, and numbers.
    pub environment: E,
    /// The time.
    pub clock: E::Clock,
    /// Reports readiness and metrics.
    pub reporter: E::Reporter,
    /// The membership in the schedulers' group.
    pub member: E::Member,
    /// Reads `triggers`.
    pub triggers: E::Reader,
    /// Reads `signals` and the ledger.
    pub signals_and_ledger: E::Reader,
    /// Answers questions about topics.
    pub cluster: E::Cluster,
    /// Opens producers.
    pub producers: E::Producers,
    /// The number of the producer that was opened first, and this producer.
    pub producer: (usize, E::Producer),
    /// The stores of this process.
    pub stores: Arc<E::Stores>,
    /// Follows partitions that others own.
    pub standby: Option<StandbyParts<E>>,
    /// The schemas of Orloj's own records.
    pub codec: Arc<Schemas>,
    /// The schemas of producers.
    pub schemas: E::Schemas,
    /// Which topics triggers may fire into.
    pub targets: Box<dyn TargetPolicy>,
}

/// The state of the loop.
#[expect(missing_debug_implementations, reason = "clients have nothing to show")]
pub struct Scheduler<E: Environment> {
    config: SchedulerConfig,
    environment: E,
    clock: E::Clock,
    reporter: E::Reporter,
    member: E::Member,
    triggers: E::Reader,
    signals_and_ledger: E::Reader,
    cluster: E::Cluster,
    producers: E::Producers,
    /// `None` while new ones are opened.
    producer: Option<Arc<E::Producer>>,
    producer_jobs: ProducerJobs<E>,
    committer: Committer<E, TransactionBatch>,
    slow_transaction: SlowTransaction,
    /// Of the open transaction, or of the interrupted one.
    batch: Option<Arc<TransactionBatch>>,
    /// Reads whether the interrupted transaction is committed.
    findings: FindingReader<E>,
    /// When the last transaction was submitted, on the monotonic clock.
    last_transaction_at: Duration,
    assignment: GroupAssignment,
    writer: StoreWriter<E>,
    restore_pool: RestorePool<E>,
    stores: Arc<E::Stores>,
    standby: Option<Standby<E>>,
    /// The partitions whose stores are being opened, or which the standby is still using.
    awaited_stores: AwaitedStores<E>,
    tasks: BTreeMap<PartitionId, PartitionTask<E::Store>>,
    /// The partition that `seal` starts with next time.
    next_partition: PartitionId,
    /// The partition after which the next turn begins to fire: it has used up the last one.
    fire_after: Option<PartitionId>,
    /// On the monotonic clock.
    started: Duration,
    /// When takeovers that last for long were last reported, on the monotonic clock.
    takeovers_reported_at: Duration,
    memory_report: MemoryReport<E>,
    decoder: InputDecoder<E::Schemas>,
    triggers_reading: TriggersReading,
    last_reports: report::LastReports,
    targets: TargetsOf<E>,
    end_offsets: EndOffsetPoller<E>,
    committed_offsets: E::Queue<CommittedOffsetJobOf<E>>,
    log_bounds: E::Queue<LogBoundsJob<E::Cluster>>,
    /// How many bounds of logs were requested.
    bounds_requests: u64,
    range_checks: RangeChecks,
    truncated_logs: TruncatedLogs,
    leaving: Option<Leaving>,
}

fn targets<E: Environment>(
    environment: &E,
    (cluster, clock): (&E::Cluster, &E::Clock),
    policy: Box<dyn TargetPolicy>,
    config: &SchedulerConfig,
) -> TargetsOf<E> {
    let lookups = environment.start_queue("targets", Threads::Fixed(QUERY_THREADS), || ());
    let clients = (cluster.clone(), clock.clone());
    Targets::new(lookups, clients, config.names.clone(), policy, config.target_times())
}

impl<E: Environment> Scheduler<E> {
    /// A scheduler that has joined its group and owns nothing yet.
    #[must_use]
    pub fn new(config: SchedulerConfig, parts: SchedulerParts<E>) -> Self {
        let SchedulerParts { environment, clock, reporter, cluster, .. } = parts;
        let (names, codec) = (config.names.clone(), parts.codec);
        let sender = {
            let (names, codec) = (names.clone(), Arc::clone(&codec));
            move || RecordSender::new(&names, Arc::clone(&codec))
        };
        let limits = config.timing.hang_limits(config.transaction_timeout);
        let (partitioner, partitions) = (config.partition.partitioner, config.partition.partitions);
        let shared = SharedParts {
            environment: &environment,
            clock: &clock,
            reporter: &reporter,
            stores: &parts.stores,
            codec: &codec,
        };
        let standby = parts.standby.map(|parts| Standby::start(&config, parts, &shared));
        let ((number, producer), late) = (parts.producer, config.timing.producers_late);
        let clients = (&parts.producers, &reporter);
        Self {
            committer: Committer::start(&environment, sender, limits, config.commit_lead_max),
            writer: StoreWriter::start(&environment),
            restore_pool: RestorePool::start(
                &environment,
                config.restore_threads,
                Arc::clone(&codec),
            ),
            targets: targets(&environment, (&cluster, &clock), parts.targets, &config),
            end_offsets: EndOffsetPoller::start(
                &environment,
                (cluster.clone(), clock.clone()),
                &names,
                &config.timing,
            ),
            committed_offsets: environment.start_queue("offsets", Threads::PerJob, || ()),
            log_bounds: environment.start_queue("log-bounds", Threads::Fixed(QUERY_THREADS), || ()),
            bounds_requests: 0,
            decoder: InputDecoder::new(&names, partitioner, partitions, codec, parts.schemas),
            assignment: GroupAssignment::new(config.revocation_grace),
            last_transaction_at: clock.monotonic(),
            started: clock.monotonic(),
            takeovers_reported_at: clock.monotonic(),
            memory_report: MemoryReport::start(&environment),
            member: parts.member,
            triggers: parts.triggers,
            signals_and_ledger: parts.signals_and_ledger,
            producer_jobs: ProducerJobs::start(&environment, clients, number, late),
            producers: parts.producers,
            producer: Some(Arc::new(producer)),
            slow_transaction: SlowTransaction::default(),
            batch: None,
            findings: FindingReader::start(&environment),
            stores: parts.stores,
            standby,
            awaited_stores: AwaitedStores::start(&environment, config.restore_threads),
            tasks: BTreeMap::new(),
            next_partition: 0,
            fire_after: None,
            range_checks: RangeChecks::default(),
            truncated_logs: TruncatedLogs::new(&config.timing),
            triggers_reading: TriggersReading::new(config.timing.silence_max),
            last_reports: report::LastReports::default(),
            leaving: None,
            config,
            environment,
            clock,
            reporter,
            cluster,
        }
    }

    /// Runs until `is_shut_down`, and releases the partitions if so configured.
    pub fn serve(mut self, is_shut_down: impl Fn() -> bool) -> Result<(), LoopError> {
        while !is_shut_down() {
            self.poll_once()?;
        }
        while !self.leave()? {}
        Ok(())
    }

    /// One turn of the loop: does all work that is possible now, then waits for a short time.
    pub fn poll_once(&mut self) -> Result<(), LoopError> {
        let mut turn = TurnTimer::begin(self.clock.monotonic());
        let now = self.clock.now_ms();
        let wait = self.time_until_due(now);
        if !self.assignment.is_idle() {
            let wait = self.wait_for_transaction(wait);
            self.poll_transaction(wait)?;
            self.poll_producer_jobs(wait)?;
            self.poll_interrupted(wait)?;
        } else {
            // Transactions of earlier producers may have ended.
            self.poll_producer_jobs(Duration::ZERO)?;
        }
        turn.part_ended("transaction", self.clock.monotonic());
        self.poll_store_writer()?;
        if self.assignment.is_idle() {
            self.start_takeovers_again()?;
        }
        turn.part_ended("stores", self.clock.monotonic());
        if self.assignment.accepts_changes() {
            self.poll_group()?;
        }
        turn.part_ended("group", self.clock.monotonic());
        self.advance_takeovers()?;
        turn.part_ended("takeovers", self.clock.monotonic());
        let wait = match self.spacing() {
            // It waits for the group.
            _ if self.assignment.must_be_sent_again() => self.wait_for_transaction(wait),
            _ if !self.assignment.is_idle() => Duration::ZERO,
            Duration::ZERO => wait,
            spacing => wait.min(spacing),
        };
        self.read_inputs(wait, turn.began())?;
        turn.part_ended("reading", self.clock.monotonic());
        self.fire_all_due(turn.began())?;
        turn.part_ended("firing", self.clock.monotonic());
        if self.assignment.is_idle() {
            self.commit_if_ready()?;
        }
        self.report_long_takeovers();
        self.report_memory();
        let now = self.clock.monotonic();
        turn.part_ended("commit", now);
        turn.end(now, &self.reporter);
        Ok(())
    }

    /// How long a turn waits for the transaction in progress, if a fire is due after `wait`. While
    /// one is interrupted, what is due may have no room in the next step for as long.
    fn wait_for_transaction(&self, wait: Duration) -> Duration {
        let most = Duration::from_millis(1);
        if self.assignment.accepts_changes() { most } else { wait.min(most) }
    }

    /// The time until the next fire is due, at most `IDLE_WAIT`.
    fn time_until_due(&mut self, now: Timestamp) -> Duration {
        let is_busy = |task: &PartitionTask<E::Store>| {
            matches!(task.state, PartitionState::Restoring(_)) || task.has_waiting_inputs()
        };
        if self.tasks.values().any(is_busy) || self.awaited_stores.has_jobs() {
            return Duration::from_millis(1);
        }
        let next = self.tasks.values_mut().filter_map(|task| task.active()?.next_wakeup()).min();
        let now = now + self.committer.commit_lead_ms();
        next.map_or(IDLE_WAIT, |due| Duration::from_millis(due.saturating_sub(now)).min(IDLE_WAIT))
    }

    /// Until when a turn that began at `turn_began` may fire, or release parked records, from now
    /// on; all on the monotonic clock. One that has read for long fires for less.
    fn firing_deadline(&self, turn_began: Duration) -> Duration {
        let (firing_max, begin) = (self.config.timing.firing_max, self.clock.monotonic());
        let left = (turn_began + FIRING_END).max(begin + firing_max / FIRING_SHARE_MIN);
        left.min(begin + firing_max)
    }

    /// Fires what is due in all partitions, for a limited time in a turn that began at `turn_began`
    /// on the monotonic clock. The next turn begins after
    /// the partition that has used it up.
    fn fire_all_due(&mut self, turn_began: Duration) -> Result<(), LoopError> {
        let now = self.clock.now_ms();
        for (topic, partition) in self.producer_jobs.not_ended() {
            self.targets.on_not_ended(topic, partition);
        }
        self.targets.refresh_expired();
        let deadline = self.firing_deadline(turn_began);
        let last = self.fire_after.take();
        let (mut ids, before): (Vec<_>, Vec<_>) =
            self.active_partitions().into_iter().partition(|id| Some(*id) > last);
        ids.extend(before);
        for id in ids {
            match self.fire_due(id, now, deadline) {
                Ok(FiringEnd::AllDue) => {}
                Ok(FiringEnd::OutOfTime) => {
                    let _first = self.fire_after.get_or_insert(id);
                }
                Err(error) => self.on_store_failed(id, &error)?,
            }
        }
        Ok(())
    }

    /// Loads the timer wheel of a partition and fires what is due, if the clock allows it, until
    /// `deadline` on the monotonic clock. Fires that are decided early are committed no earlier
    /// than their time: see [`TransactionBatch::commit_not_before`].
    fn fire_due(
        &mut self,
        id: PartitionId,
        now: Timestamp,
        deadline: Duration,
    ) -> Result<FiringEnd, PartitionTaskError> {
        let decided_until = now + self.committer.commit_lead_ms();
        loop {
            let Some(task) = self.tasks.get_mut(&id) else { return Ok(FiringEnd::AllDue) };
            let Some(partition) = task.active() else { return Ok(FiringEnd::AllDue) };
            let _behind = partition.observe_clock(decided_until);
            let drafted = partition.drafted_records();
            let room = self.config.fires_per_step_max.saturating_sub(drafted);
            let is_late = self.clock.monotonic() >= deadline;
            // With no budget left, late fires are still decided: they belong to the step that
            // ingested them.
            let budget = if is_late { 0 } else { room.min(FIRING_BUDGET) };
            task.load(|| self.clock.monotonic() >= deadline)?;
            let PartitionState::Active(partition) = &mut task.state else {
                return Ok(FiringEnd::AllDue);
            };
            let due = partition.take_due(budget);
            let is_empty = due.is_empty();
            let catalog = self.targets.catalog(due.topics(), due.pools());
            let ids = due.ids_to_prefetch(&catalog);
            let fetched = local_store::fetch_index_rows(&*task.store, ids)?;
            partition.fire(due, &catalog, &fetched)?;
            if is_late {
                return Ok(FiringEnd::OutOfTime);
            }
            if is_empty || room == 0 {
                return Ok(FiringEnd::AllDue);
            }
        }
    }

    fn active_partitions(&self) -> Vec<PartitionId> {
        let active =
            |task: &&PartitionTask<E::Store>| matches!(task.state, PartitionState::Active(_));
        self.tasks.values().filter(active).map(|task| task.id).collect()
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

#[cfg(test)]
mod tests;
