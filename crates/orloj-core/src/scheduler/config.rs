//! What a scheduler process is configured with.
//!
//! Invariant: nothing here changes while the process runs.

use std::time::Duration;

pub use super::parking::ParkingLimits;
use crate::engine::partition::PartitionConfig;
use crate::model::Millis;
use crate::model::names::Names;

/// Threads for each kind of question to brokers: states of topics, bounds and ends of logs. A
/// leader that does not answer holds some for some seconds.
pub(super) const QUERY_THREADS: usize = 16;

/// Which guarantees the broker gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Apache Kafka, or a broker with the same guarantees.
    Guaranteed,
    /// librdkafka's built-in broker, which does not store the committed offsets of transactions.
    /// There is one scheduler, its cursor is in memory, and no partition is taken over. The
    /// view reads committed offsets, so they are committed once more without a transaction.
    Trial,
}

/// The timer wheels of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WheelConfig {
    /// Width of a bucket, in ms.
    pub tick: Millis,
    /// How far ahead triggers are held in memory, in ms.
    pub horizon: Millis,
    /// Memory of all wheels, in bytes.
    pub memory_max: u64,
}

/// How often the loop looks at what no event reports, and how long it waits. The default is what
/// production uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerTiming {
    /// Interval of the requests for end offsets. It is a fraction of the grace period of cancels,
    /// so that one slow request delays no fire.
    pub end_offset_interval: Duration,
    /// The ledger's end offset is requested once in so many intervals. A restart reads again what
    /// was written to the ledger since then.
    pub ledger_end_rounds: u32,
    /// How long a leader may take to answer where its logs end before it is asked whether there is
    /// another one. A healthy one takes some ms.
    pub leader_silence_max: Duration,
    /// How often that is asked while a leader is not known or does not answer.
    pub leaders_interval: Duration,
    /// How long the end offset may stay unreached before it is checked.
    pub stall: Duration,
    /// How long to wait before checking again whether another process's open transaction has ended.
    pub end_retry: Duration,
    /// How long to wait for records or the end of a log before it is read again from the same
    /// position. It is also the interval of the requests for the end offsets of `signals`.
    pub silence_max: Duration,
    /// How long to wait before a partition is taken over again whose topic seemed to be shorter
    /// than the committed offset.
    pub truncated_retry: Duration,
    /// How long to wait before a store is opened again that could not be opened.
    pub store_retry: Duration,
    /// By how much the clocks of this process and of a broker differ at most. It matters only if a
    /// topic seems to be shorter than the committed offset: what was written to it so long after
    /// that was seen is new. If clocks differ by more, a partition may wait for an operator without
    /// need; what is written in this time may be passed over.
    pub clock_skew: Duration,
    /// How long a full partition may keep the others from being read before it is paused.
    pub full_max: Duration,
    /// How long reading a partition is paused at most if the schema registry is unavailable and no
    /// more can be parked. The first pauses are shorter.
    pub registry_retry: Duration,
    /// After how long parked records are looked at again, and reading is first tried again: it
    /// delays them, and a look without a new schema costs a few look-ups in memory.
    pub parked_retry: Duration,
    /// How long the state of a target topic that cannot be reached is cached, in ms.
    pub unreachable_ttl: Millis,
    /// How long a leaving member waits until its partitions are reassigned.
    pub leave_timeout: Duration,
    /// How long a turn of the loop reads records at most, once there are some: decoding a large
    /// one takes long.
    pub reading_max: Duration,
    /// How long a turn of the loop fires at most. What is due after that fires in the next turn.
    pub firing_max: Duration,
    /// By how much the calls of a transaction may exceed its timeout. After that one of them hangs,
    /// and is abandoned.
    pub overrun_max: Duration,
    /// A longer time between two turns of the loop is a pause of the whole process.
    pub turn_max: Duration,
    /// How often the states of its targets are asked for while a transaction is in progress. Most
    /// have ended before the first time.
    pub slow_lookup_interval: Duration,
    /// How long the opening of producers may take before others are opened, too.
    pub producers_late: Duration,
}

impl SchedulerTiming {
    /// After how long a call of a transaction hangs, and how much of the time between two turns of
    /// the loop counts.
    pub(crate) fn hang_limits(&self, transaction_timeout: Duration) -> (Duration, Duration) {
        (transaction_timeout + self.overrun_max, self.turn_max)
    }
}

impl Default for SchedulerTiming {
    fn default() -> Self {
        Self {
            end_offset_interval: Duration::from_millis(200),
            ledger_end_rounds: 25,
            leader_silence_max: Duration::from_millis(300),
            leaders_interval: Duration::from_millis(200),
            stall: Duration::from_millis(300),
            end_retry: Duration::from_millis(200),
            silence_max: Duration::from_secs(10),
            truncated_retry: Duration::from_secs(5),
            store_retry: Duration::from_secs(1),
            clock_skew: Duration::from_secs(1),
            full_max: Duration::from_millis(50),
            registry_retry: Duration::from_secs(1),
            parked_retry: Duration::from_millis(20),
            unreachable_ttl: 1_000,
            leave_timeout: Duration::from_secs(15),
            reading_max: Duration::from_millis(50),
            firing_max: Duration::from_millis(50),
            overrun_max: Duration::from_secs(2),
            turn_max: Duration::from_secs(1),
            slow_lookup_interval: Duration::from_secs(1),
            // Usually it takes less than 100 ms.
            producers_late: Duration::from_millis(500),
        }
    }
}

/// What is read ahead of a takeover: as much as one step takes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadAheadLimits {
    pub(super) records_max: usize,
    pub(super) bytes_max: usize,
}

impl ReadAheadLimits {
    /// No limits.
    #[cfg(test)]
    pub(super) const NONE: Self = Self { records_max: usize::MAX, bytes_max: usize::MAX };

    /// The bytes of records that are applied to a store at once. With less than two steps, batches
    /// of small records would be smaller than is good for the store.
    pub(super) fn batch_bytes_max(self) -> usize {
        self.bytes_max.saturating_mul(2)
    }
}

/// Which topics triggers may fire into.
pub trait TargetPolicy: Send + 'static {
    /// Why nothing may fire into `topic`; `None` if it may.
    fn refusal(&self, topic: &str) -> Option<String>;
}

/// The configuration of a scheduler.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// The rules of every partition. `spill_bytes` is set for each from `write_buffer`.
    pub partition: PartitionConfig,
    /// The names of topics.
    pub names: Names,
    /// The Kafka cluster from which stores are built.
    pub cluster_id: String,
    /// Which guarantees the broker gives.
    pub mode: Mode,
    /// Records read in one turn of the loop. `partition.bytes_per_step_max` limits their bytes.
    pub records_per_step_max: usize,
    /// What may be parked in each partition.
    pub parking: ParkingLimits,
    /// Fires decided in one step.
    pub fires_per_step_max: usize,
    /// Partitions in one transaction.
    pub partitions_per_commit_max: usize,
    /// Bytes of the steps in one transaction; a step that exceeds it is the last one in it.
    pub bytes_per_commit_max: usize,
    /// The shortest time between the beginnings of two transactions.
    pub commit_interval_min: Duration,
    /// How early a fire is sent at most.
    pub commit_lead_max: Duration,
    /// After how long the broker aborts a transaction.
    pub transaction_timeout: Duration,
    /// After how long without a heartbeat the group expels this process.
    pub session_timeout: Duration,
    /// For how long revoked partitions continue to fire, in ms.
    pub revocation_grace: Millis,
    /// Whether a shutdown releases the partitions.
    pub leave_on_shutdown: bool,
    /// The timer wheels.
    pub wheel: WheelConfig,
    /// Memory for rows that are not in the stores yet, in bytes, of all partitions.
    pub write_buffer: u64,
    /// Oldest store that may be used.
    pub state_age_max: Duration,
    /// How long an answer about a topic is cached.
    pub lookup_ttl: Duration,
    /// Threads that apply records during takeovers.
    pub restore_threads: usize,
    /// How often the loop looks, and how long it waits.
    pub timing: SchedulerTiming,
}

impl SchedulerConfig {
    /// What a takeover reads ahead.
    pub(super) fn read_ahead(&self) -> ReadAheadLimits {
        let PartitionConfig { records_per_step_max, bytes_per_step_max, .. } = self.partition;
        ReadAheadLimits { records_max: records_per_step_max, bytes_max: bytes_per_step_max }
    }

    /// How long the state of a target topic is cached, that of an unavailable one, and how long its
    /// fires wait at most; the last two in ms.
    pub(super) fn target_times(&self) -> (Duration, Millis, Millis) {
        let retry_interval = self.partition.target_retry_interval;
        (self.lookup_ttl, self.timing.unreachable_ttl, retry_interval)
    }
}

/// The configuration of a standby. [`Self::new`] has the times that production uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandbyConfig {
    /// How many processes follow each partition besides its owner.
    pub replicas: usize,
    /// The start of this process's own member id.
    pub member_id_prefix: String,
    /// Pause between two flushes of a store.
    pub flush_interval: Duration,
    /// Pause between two rounds of passes over all followed partitions.
    pub round_pause: Duration,
    /// Interval between two reads of the group's members.
    pub members_interval: Duration,
    /// How long a pass waits for records that must exist.
    pub read_timeout: Duration,
    /// If a pass takes longer, the ledger may have been compacted during it. This is half of the
    /// ledger's `min.compaction.lag.ms`, because clocks differ.
    pub pass_max: Duration,
    /// Records applied in one batch.
    pub batch: usize,
}

impl StandbyConfig {
    /// With the times that production uses.
    #[must_use]
    pub fn new(replicas: usize, member_id_prefix: String, flush_interval: Duration) -> Self {
        Self {
            replicas,
            member_id_prefix,
            flush_interval,
            round_pause: Duration::from_millis(500),
            members_interval: Duration::from_secs(3),
            read_timeout: Duration::from_secs(10),
            pass_max: Duration::from_secs(30 * 60),
            batch: 10_000,
        }
    }
}
