//! What the processes use of the world: the log, the group, transactions, threads and the time; and
//! a scheduler stores and schemas. The program implements it with Kafka, RocksDB and threads, the
//! simulation with a cluster in memory; scheduler and worker above it are the same.
//!
//! Invariant: no type of a Kafka client or of a database is visible here, and every call that may
//! fail says so. A process can die between any two calls.

pub mod call_error;
pub mod group;
pub mod job;
pub mod log;
pub mod store;
pub mod transaction;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::codec::registration::WriterSchemas;
use crate::engine::catalog::TopicState;
use crate::model::{BrokerId, Offset, PartitionId, Timestamp};
use call_error::CallResult;
use group::{GroupMembership, GroupQueries};
use job::{Job, JobQueue, Threads};
use log::LogReading;
use store::{RowStore, StoreDirectory, StoreMemoryUsage};
use transaction::{ProducerFactory, TransactionalSending};

/// What every process that writes transactions uses of the world, as types. All calls are
/// dispatched statically.
pub trait ProcessEnvironment: Sized + 'static {
    /// The time.
    type Clock: Clock;
    /// Reads partitions from given offsets.
    type Reader: LogReading + Send + 'static;
    /// The membership in the consumer group.
    type Member: GroupMembership;
    /// Sends transactions.
    type Producer: TransactionalSending<Metadata = <Self::Member as GroupMembership>::Metadata>;
    /// Opens producers.
    type Producers: ProducerFactory<Producer = Self::Producer>;
    /// Answers questions about topics.
    type Cluster: ClusterQueries;
    /// Where the process reports.
    type Reporter: ProcessReporter;
    /// Runs jobs beside the loop.
    type Queue<J: Job>: JobQueue<J>;

    /// A queue that `threads` threads work on. Each has a worker of its own, which `worker` makes.
    fn start_queue<J: Job>(
        &self,
        name: &'static str,
        threads: Threads,
        worker: impl Fn() -> J::Worker + Send + Sync + 'static,
    ) -> Self::Queue<J>;

    /// The process has reached a point at which a test may stop it.
    fn reached(point: &'static str);

    /// Ends the process at once, because a call into a library does not return.
    fn abort(&self) -> !;
}

/// What a scheduler uses besides.
pub trait Environment: ProcessEnvironment<Reporter: Reporter> {
    /// The rows of one partition.
    type Store: RowStore;
    /// The stores of the process.
    type Stores: StoreDirectory<Store = Self::Store>;
    /// Answers questions about the group.
    type Group: GroupQueries;
    /// The schemas of producers.
    type Schemas: SchemaSource + Send + 'static;

    /// A number that no other call has returned, in any process.
    fn nonce(&self) -> u64;
}

/// The time.
pub trait Clock: Clone + Send + Sync + 'static {
    /// Milliseconds since the Unix epoch. May go back when the system's clock is set.
    fn now_ms(&self) -> Timestamp;

    /// How long it is until `time` (ms since the epoch), to the microsecond; zero if it has passed.
    fn until(&self, time: Timestamp) -> Duration;

    /// The time since some fixed moment. Never goes back.
    fn monotonic(&self) -> Duration;

    /// Blocks for that long.
    fn pause(&self, length: Duration);
}

/// Questions about topics.
pub trait ClusterQueries: Clone + Send + 'static {
    /// The first available offset of a partition, and its end offset (exclusive): the high
    /// watermark, below which nothing is missing that was written before the question.
    fn bounds(&self, topic: &str, partition: PartitionId) -> CallResult<(Offset, Offset)>;

    /// Who leads each partition of a topic, as one broker knows it. A partition is absent if that
    /// broker names no leader of it. It takes three and a half seconds at most.
    fn leaders(&self, topic: &str) -> CallResult<BTreeMap<PartitionId, BrokerId>>;

    /// The end offsets of these partitions, as [`Self::bounds`] has them. A partition is absent if
    /// its end cannot be read now. If a broker that leads one of them does not answer within
    /// `timeout`, there is no answer at all: ask for those of one leader at a time.
    fn end_offsets(
        &self,
        topic: &str,
        partitions: &[PartitionId],
        timeout: Duration,
    ) -> CallResult<BTreeMap<PartitionId, Offset>>;

    /// The last stable offset of a partition, where a reader stops. It may wait as long as a
    /// partition has no leader.
    fn last_stable_offset(&self, topic: &str, partition: PartitionId) -> CallResult<Offset>;

    /// The offset of the first record with this timestamp (ms since the epoch) or a later one,
    /// committed or not; the end offset if there is none.
    fn offset_for_time(
        &self,
        topic: &str,
        partition: PartitionId,
        time: Timestamp,
    ) -> CallResult<Offset>;

    /// Whether a topic can be written, how, and which of its partitions cannot take a record now.
    /// An error: no broker has answered, which says nothing about the topic.
    fn topic_state(&self, topic: &str) -> CallResult<TopicState>;
}

/// The writer schemas of producers. A look-up never waits.
pub trait SchemaSource {
    /// The schemas for look-ups at `now` on the monotonic clock.
    fn at(&self, now: Duration) -> impl WriterSchemas + '_;

    /// Why the registry refuses to answer this process at `now` on the monotonic clock, if it does:
    /// a person must act.
    fn refusal(&self, now: Duration) -> Option<String>;

    /// Whether the registry refuses to give this schema, as far as is known at `now` on the
    /// monotonic clock.
    fn denies(&self, schema: u32, now: Duration) -> bool;
}

/// Where a process reports its readiness, and its transactions.
pub trait ProcessReporter: Clone + Send + Sync + 'static {
    /// A part is ready.
    fn ready(&self, part: &'static str);

    /// A part is ready, and there is something that a person should know.
    fn ready_with_remark(&self, part: &'static str, remark: String);

    /// A part is not ready; `reason` is for people.
    fn not_ready(&self, part: &'static str, reason: String);

    /// A transaction has ended, so long after it was submitted.
    fn transaction_ended(&self, took: Duration);

    /// A transaction was not committed, or it is not known whether it was.
    fn transaction_failed(&self);
}

/// What a scheduler reports besides.
pub trait Reporter: ProcessReporter {
    /// How many of the owned partitions are active, and how many are not.
    fn partitions_owned(&self, active: usize, other: usize);

    /// A partition is active, so long after it was assigned.
    fn taken_over(&self, took: Duration);

    /// How many partitions of other owners this process follows.
    fn partitions_followed(&self, count: usize);

    /// So many records are parked, and the first of them for so long (whole seconds).
    fn parked(&self, records: usize, oldest: Duration);

    /// A turn of the loop has ended, so long after it began.
    fn turn_ended(&self, took: Duration);

    /// So many offsets of an input were deleted before they were read.
    fn offsets_lost(&self, count: u64);

    /// A transaction with these records was committed.
    fn committed(&self, counts: CommittedRecords);

    /// Records how much later than its due time each fire of a transaction is committed.
    fn lateness(&self) -> impl FnMut(Duration);

    /// The memory of all stores, and of the cache that they share (bytes).
    fn store_memory(&self, stores: StoreMemoryUsage, cache: usize);

    /// The memory of the partitions.
    fn partition_memory(&self, bytes: PartitionBytes);
}

/// What partitions keep in memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionBytes {
    /// Triggers that are due soon.
    pub wheel: usize,
    /// Decisions that are not in a store yet.
    pub write_buffer: usize,
    /// Records that wait for their schema.
    pub parked: usize,
    /// Records that a takeover has read.
    pub takeover: usize,
}

impl std::ops::AddAssign for PartitionBytes {
    fn add_assign(&mut self, other: Self) {
        self.wheel += other.wheel;
        self.write_buffer += other.write_buffer;
        self.parked += other.parked;
        self.takeover += other.takeover;
    }
}

/// How many records of each kind a transaction contained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommittedRecords {
    /// Records of `triggers` and `signals` that were read.
    pub ingested: u64,
    /// Fires into topics.
    pub topic_fires: u64,
    /// Fires for workers.
    pub callbacks: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Those of them that are records which could not be read.
    pub rejected: u64,
    /// Records written again to another partition.
    pub forwarded: u64,
}
