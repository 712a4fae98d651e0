//! The scheduler: owns partitions and drives the engine.
//!
//! Invariant: this module opens the clients and stores and starts the loop, which
//! `orloj_core::scheduler` is. One OS thread runs the loop; jobs run on others.

mod environment;
pub mod instance_lock;
mod registry_schemas;
mod standby;

use std::sync::Arc;
use std::time::Duration;

use orloj_core::scheduler::config::{
    Mode, ParkingLimits, SchedulerConfig, SchedulerTiming, TargetPolicy, WheelConfig,
};
use orloj_core::scheduler::{self as core_scheduler, GRACE_MS, LoopError, SchedulerParts};
use tokio_util::sync::CancellationToken;

use crate::clock::SystemClock;
use crate::codec::schemas::Schemas;
use crate::config::{Assignor, ByteSize, Settings, TargetSettings};
use crate::engine::partition::PartitionConfig;
use crate::engine::step::InputTopics;
use crate::health::Health;
use crate::kafka::Names;
use crate::kafka::admin_client::KafkaAdminClient;
use crate::kafka::environment::KafkaQueries;
use crate::kafka::error::ClientError;
use crate::kafka::member::Member;
use crate::kafka::orphaned_transactions::{OrphanedTransactions, OwnerIds};
use crate::kafka::reader::LogReader;
use crate::kafka::spare_producers::{KEEP_ALIVE, SpareProducers};
use crate::kafka::transaction::TransactionError;
use crate::model::Millis;
use crate::model::time::whole_ms as ms;
use crate::role_reporter::RoleReporter;
use crate::store::{StoreError, StoreFactory};
use environment::{KafkaEnvironment, SchedulerMember, SchedulerProducers};
use instance_lock::{InstanceLock, InstanceLockError};
use registry_schemas::RegistrySchemas;

/// Why the scheduler ended without a request to shut down.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// The data directory cannot be used.
    #[error(transparent)]
    InstanceLock(#[from] InstanceLockError),
    /// A Kafka client cannot be created.
    #[error("Kafka: {0}; check [kafka]")]
    Kafka(#[from] ClientError),
    /// The local stores cannot be used.
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
    /// The loop has ended.
    #[error(transparent)]
    Loop(#[from] LoopError),
}

/// How long a request to the broker may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a broker may take to say what was committed last, before another one is looked for.
const LAST_COMMITTED_TIMEOUT: Duration = Duration::from_secs(2);

/// librdkafka joins a group at most once per second; in ms, with a small margin.
const REJOIN_INTERVAL_MS: Millis = 1_050;

/// The maximum number of threads that apply records during takeovers. More would compete for the
/// CPU with active partitions.
const RESTORE_THREADS_MAX: usize = 4;

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
    serve(settings, &shutdown, health, Mode::Guaranteed)
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
    serve(settings, &shutdown, health, Mode::Trial)
}

fn serve(
    settings: &Settings,
    shutdown: &CancellationToken,
    health: Arc<Health>,
    mode: Mode,
) -> Result<(), SchedulerError> {
    let scheduler = &settings.scheduler;
    // Locks the data directory while the loop runs.
    let instance_lock = InstanceLock::acquire(&scheduler.data_dir, &scheduler.instance_id)?;
    let (config, parts) = open_parts(settings, &instance_lock, health, mode)?;
    let running = core_scheduler::Scheduler::new(config, parts);
    Ok(running.serve(|| shutdown.is_cancelled())?)
}

/// Opens the clients and stores, in an order in which the first partition waits for nothing.
fn open_parts(
    settings: &Settings,
    instance_lock: &InstanceLock,
    health: Arc<Health>,
    mode: Mode,
) -> Result<(SchedulerConfig, SchedulerParts<KafkaEnvironment>), SchedulerError> {
    let (names, scheduler) = (Names::new(&settings.topics.prefix), &settings.scheduler);
    let id = names.transactional_id("scheduler", &instance_lock.instance_id);
    let cluster = KafkaAdminClient::open(settings, CALL_TIMEOUT)?;
    let partitions = cluster
        .partitions(&names.triggers())?
        .ok_or_else(|| SchedulerError::NoTopic(names.triggers()))?;
    health.not_ready("partitions", "no partition is assigned yet");
    let group = names.scheduler_group();
    let (triggers, signals_and_ledger) =
        (LogReader::open(settings, &group)?, LogReader::open(settings, &group)?);
    // Opening first ends the transactions of an earlier process with the same transactional id.
    let topics = output_topics(settings, &names);
    let spares = SpareProducers::new(settings, &id, topics, KEEP_ALIVE);
    let producer = spares.open_first(scheduler.transaction_timeout)?;
    let ids = OwnerIds {
        prefix: names.transactional_id("scheduler", ""),
        instance: instance_lock.instance_id.clone(),
    };
    let orphaned_transactions =
        OrphanedTransactions::open(settings, &group, &names.triggers(), ids, CALL_TIMEOUT)?;
    triggers.prefetch_metadata(&names.triggers())?;
    signals_and_ledger.prefetch_metadata(&names.signals())?;
    signals_and_ledger.prefetch_metadata(&names.ledger())?;
    let stores = Arc::new(StoreFactory::new(&scheduler.data_dir, (&settings.store).into())?);
    let cluster_id = cluster.cluster_id().unwrap_or_default();
    let standby = (settings.standby.replicas > 0 && mode == Mode::Guaranteed)
        .then(|| standby::open(settings, &names, instance_lock))
        .transpose()?;
    let member = Member::join(settings, &group, &names.triggers(), &instance_lock.instance_id)?;
    let parts = SchedulerParts {
        environment: KafkaEnvironment,
        clock: SystemClock::start(),
        reporter: RoleReporter(health),
        member: SchedulerMember::new(member, orphaned_transactions, names.ledger()),
        cluster: KafkaQueries { admin: cluster, reader: triggers.clone(), timeout: CALL_TIMEOUT },
        triggers,
        signals_and_ledger,
        producers: SchedulerProducers { spares, timeout: scheduler.transaction_timeout },
        producer,
        stores,
        standby,
        codec: Arc::new(Schemas::new()),
        schemas: RegistrySchemas::open(&settings.triggers).map_err(SchedulerError::Schemas)?,
        targets: Box::new(settings.targets.clone()),
    };
    Ok((scheduler_config(settings, &names, partitions, &id, cluster_id, mode), parts))
}

/// The topics to which a scheduler writes, but for those where triggers fire.
fn output_topics(settings: &Settings, names: &Names) -> Vec<String> {
    let pools = settings.topics.pools.iter().map(|pool| names.fires_of(pool));
    let topics = [names.ledger(), names.signals(), names.outcomes(), names.fires()];
    topics.into_iter().chain(pools).collect()
}

impl TargetPolicy for TargetSettings {
    fn refusal(&self, topic: &str) -> Option<String> {
        self.refusal(topic)
    }
}

fn scheduler_config(
    settings: &Settings,
    names: &Names,
    partitions: i32,
    owner: &str,
    cluster_id: String,
    mode: Mode,
) -> SchedulerConfig {
    let scheduler = &settings.scheduler;
    // The eager protocol stops all members during a rebalance, so firing during the grace period
    // has no use.
    let cooperative = scheduler.assignor == Assignor::CooperativeSticky;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    SchedulerConfig {
        partition: partition_config(settings, names, partitions, owner),
        names: names.clone(),
        cluster_id,
        mode,
        records_per_step_max: scheduler.records_per_step_max.get(),
        parking: ParkingLimits {
            records_max: settings.triggers.parked_records_max.get(),
            bytes_max: bytes(settings.triggers.parked_bytes_max),
        },
        fires_per_step_max: scheduler.fires_per_step_max.get(),
        partitions_per_commit_max: scheduler.partitions_per_commit_max.get(),
        bytes_per_commit_max: bytes(scheduler.bytes_per_commit_max),
        commit_interval_min: scheduler.commit_interval_min,
        commit_lead_max: scheduler.commit_lead_max,
        transaction_timeout: scheduler.transaction_timeout,
        session_timeout: scheduler.session_timeout,
        revocation_grace: if cooperative { REJOIN_INTERVAL_MS } else { 0 },
        leave_on_shutdown: scheduler.leave_on_shutdown,
        wheel: WheelConfig {
            tick: ms(settings.wheel.tick),
            horizon: ms(settings.wheel.horizon),
            memory_max: settings.wheel.memory_max.bytes(),
        },
        write_buffer: settings.store.write_buffer.bytes(),
        state_age_max: settings.store.state_age_max,
        lookup_ttl: settings.targets.lookup_ttl,
        restore_threads: cores.min(RESTORE_THREADS_MAX),
        timing: SchedulerTiming::default(),
    }
}

/// As much memory as can be addressed at most.
fn bytes(size: ByteSize) -> usize {
    usize::try_from(size.bytes()).unwrap_or(usize::MAX)
}

fn partition_config(
    settings: &Settings,
    names: &Names,
    partitions: i32,
    owner: &str,
) -> PartitionConfig {
    let scheduler = &settings.scheduler;
    PartitionConfig {
        ledger_after: ms(scheduler.ledger_after),
        veto_ttl: ms(scheduler.veto_ttl),
        sample_interval: ms(scheduler.sample_interval),
        idle_commit: ms(scheduler.idle_commit_interval),
        cursor_copy_interval: ms(scheduler.cursor_copy_interval),
        records_per_step_max: scheduler.records_per_step_max.get(),
        bytes_per_step_max: bytes(scheduler.bytes_per_step_max),
        spill_bytes: 0,
        spill_interval: ms(settings.store.flush_interval),
        cancel_grace: GRACE_MS,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layers;

    fn config(overrides: &[&str]) -> SchedulerConfig {
        let overrides = overrides.iter().map(|text| (*text).to_owned()).collect();
        let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
        let names = Names::new(&settings.topics.prefix);
        scheduler_config(&settings, &names, 8, "me", "cluster".to_owned(), Mode::Guaranteed)
    }

    #[test]
    fn a_revoked_partition_fires_on_only_if_the_others_are_not_stopped_meanwhile() {
        let cooperative = config(&["scheduler.assignor=cooperative-sticky"]);
        assert_eq!(cooperative.revocation_grace, REJOIN_INTERVAL_MS);
        assert_eq!(config(&["scheduler.assignor=range"]).revocation_grace, 0);
    }

    #[test]
    fn settings_reach_the_loop_in_its_units() {
        let config = config(&[
            "scheduler.ledger_after=70s",
            "scheduler.fires_per_step_max=71",
            "scheduler.bytes_per_step_max=76KiB",
            "scheduler.bytes_per_commit_max=77KiB",
            "wheel.horizon=72s",
            "store.flush_interval=73s",
            "targets.lookup_ttl=74s",
            "triggers.parked_bytes_max=75MiB",
            "topics.pools=[\"slow\"]",
        ]);
        assert_eq!(config.partition.ledger_after, 70_000);
        assert_eq!(config.fires_per_step_max, 71);
        assert_eq!(config.partition.bytes_per_step_max, 76 << 10);
        assert_eq!(config.bytes_per_commit_max, 77 << 10);
        assert_eq!(config.wheel.horizon, 72_000);
        assert_eq!(config.partition.spill_interval, 73_000);
        assert_eq!(config.lookup_ttl, Duration::from_secs(74));
        assert_eq!(config.parking.bytes_max, 75 << 20);
        assert_eq!(config.partition.pools.iter().collect::<Vec<_>>(), ["slow"]);
        assert_eq!((config.partition.partitions, config.partition.owner.as_str()), (8, "me"));
        assert_eq!(config.cluster_id, "cluster");
    }

    #[test]
    fn a_duration_in_whole_ms_has_a_largest_value() {
        let cases = [(1_999, 1), (2_000, 2), (u64::MAX, u64::MAX / 1_000)];
        for (micros, whole) in cases {
            assert_eq!(ms(Duration::from_micros(micros)), whole);
        }
        assert_eq!(ms(Duration::MAX), Millis::MAX);
    }

    #[test]
    fn the_policy_of_targets_is_that_of_the_settings() {
        let overrides = vec!["targets.deny=[\"secret\"]".to_owned()];
        let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
        let policy: &dyn TargetPolicy = &settings.targets;
        assert_eq!(policy.refusal("orders"), None);
        assert_eq!(policy.refusal("secret"), settings.targets.refusal("secret"));
        assert!(policy.refusal("secret").is_some_and(|why| why.contains("secret")));
    }
}
