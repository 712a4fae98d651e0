//! The scheduler's world in production: its group, its producers, RocksDB; the rest is that of any
//! process.
//!
//! Invariant: nothing is decided here. Each function is a call of a client, a store or the system.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use super::registry_schemas::RegistrySchemas;
use super::{CALL_TIMEOUT, LAST_COMMITTED_TIMEOUT};
use crate::clock::SystemClock;
use crate::engine::assignment::AssignmentChange;
use crate::engine::index_row::{IdHash, IndexRow};
use crate::engine::prefetch::TimelineRows;
use crate::engine::step::RowOp;
use crate::environment::call_error::{CallError, CallResult};
use crate::environment::group::{CommittedOffsets, GroupMembership, GroupMetadataError};
use crate::environment::job::{Job, Threads};
use crate::environment::store::{
    LocalState, RowStore, Scan, StoreDirectory, StoreError, StoreMemoryUsage,
};
use crate::environment::transaction::{OffsetCommit, ProducerFactory, TransactionError};
use crate::environment::{Environment, ProcessEnvironment};
use crate::fault;
use crate::kafka::environment::{KafkaQueries, call};
use crate::kafka::error::ClientError;
use crate::kafka::group_metadata::GroupMetadata;
use crate::kafka::member::{self, CommitMode, Member};
use crate::kafka::orphaned_transactions::OrphanedTransactions;
use crate::kafka::producer_pair::ProducerPair;
use crate::kafka::reader::LogReader;
use crate::kafka::spare_producers::SpareProducers;
use crate::kafka::standby_client::StandbyClient;
use crate::model::timeline::TimelineKey;
use crate::model::{Offset, PartitionId};
use crate::role_reporter::RoleReporter;
use crate::store::{PartitionStore, StoreFactory};
use crate::thread_queue::ThreadQueue;

/// Kafka, RocksDB and threads.
#[derive(Debug)]
pub(super) struct KafkaEnvironment;

impl ProcessEnvironment for KafkaEnvironment {
    type Clock = SystemClock;
    type Reader = LogReader;
    type Member = SchedulerMember;
    type Producer = ProducerPair;
    type Producers = SchedulerProducers;
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

impl Environment for KafkaEnvironment {
    type Store = PartitionStore;
    type Stores = StoreFactory;
    type Group = StandbyClient;
    type Schemas = RegistrySchemas;

    fn nonce(&self) -> u64 {
        // The lower half has a counter and random bits; the upper one differs by the ms.
        uuid::Uuid::now_v7().as_u64_pair().1
    }
}

/// The membership in the schedulers' group.
#[derive(Debug)]
pub(super) struct SchedulerMember {
    member: Member,
    orphaned_transactions: Arc<OrphanedTransactions>,
    /// The topic to which a leaving member subscribes.
    other_topic: String,
    /// The last fatal error.
    fatal: Option<ClientError>,
    /// The generation of the group whose members are asked for; 0, which no member has, before.
    generation: AtomicI32,
}

impl SchedulerMember {
    pub(super) fn new(
        member: Member,
        orphaned_transactions: OrphanedTransactions,
        other_topic: String,
    ) -> Self {
        let orphaned_transactions = Arc::new(orphaned_transactions);
        let generation = AtomicI32::default();
        Self { member, orphaned_transactions, other_topic, fatal: None, generation }
    }
}

impl GroupMembership for SchedulerMember {
    type Metadata = GroupMetadata;
    type Offsets = SchedulerOffsets;

    fn poll(&mut self, timeout: Duration) -> CallResult<Vec<AssignmentChange>> {
        let changes = self.member.poll(timeout).map_err(|fatal| {
            let text = CallError::new(&fatal);
            self.fatal = Some(fatal);
            text
        })?;
        if !changes.is_empty() {
            self.orphaned_transactions.look_at_members();
        }
        Ok(changes)
    }

    fn rejoin(&mut self) -> CallResult<()> {
        call(self.member.rejoin(self.fatal.take().unwrap_or(ClientError::Expelled)))
    }

    fn metadata(&self) -> Result<GroupMetadata, GroupMetadataError> {
        let metadata = self.member.group_metadata()?;
        if self.generation.swap(metadata.generation, Ordering::Relaxed) != metadata.generation {
            self.orphaned_transactions.look_at_members();
        }
        Ok(metadata)
    }

    fn is_member(&self, member_id: &str) -> bool {
        self.member.is_member(member_id)
    }

    fn release(&self, partitions: &[PartitionId]) -> CallResult<()> {
        call(self.member.release(partitions))
    }

    fn committed_offsets(&self) -> SchedulerOffsets {
        SchedulerOffsets {
            offsets: self.member.committed_offsets(),
            orphaned_transactions: Arc::clone(&self.orphaned_transactions),
        }
    }

    fn commit_offsets(&self, commits: &[OffsetCommit]) -> CallResult<()> {
        call(self.member.commit(commits, CommitMode::Async))
    }

    fn leave_gracefully(&self) -> CallResult<()> {
        call(self.member.leave_gracefully(&self.other_topic, CALL_TIMEOUT))
    }

    fn has_released_all(&self) -> bool {
        self.member.has_released_all()
    }
}

/// Reads committed offsets, and fences earlier owners.
#[derive(Debug)]
pub(super) struct SchedulerOffsets {
    offsets: member::CommittedOffsets,
    orphaned_transactions: Arc<OrphanedTransactions>,
}

impl CommittedOffsets for SchedulerOffsets {
    fn stable(
        &self,
        partition: PartitionId,
        timeout: Duration,
    ) -> CallResult<Option<(Offset, String)>> {
        call(self.offsets.committed(partition, timeout))
    }

    fn latest_metadata(&self, partition: PartitionId) -> CallResult<String> {
        call(self.orphaned_transactions.committed_metadata(partition, LAST_COMMITTED_TIMEOUT))
    }

    fn fence_owner(&self, metadata: &str) {
        if !self.offsets.is_assignment_lost() {
            self.orphaned_transactions.fence_owner(metadata);
        }
    }

    fn fence_absent_members(&self) {
        if !self.offsets.is_assignment_lost() {
            self.orphaned_transactions.fence_absent_members();
        }
    }
}

/// Opens the producers of this process.
#[derive(Clone, Debug)]
pub(super) struct SchedulerProducers {
    pub(super) spares: SpareProducers,
    /// How long the broker may take to end the transactions of earlier ones.
    pub(super) timeout: Duration,
}

impl ProducerFactory for SchedulerProducers {
    type Producer = ProducerPair;

    fn open(&self, number: usize) -> Result<ProducerPair, TransactionError> {
        self.spares.open(number, self.timeout)
    }

    fn prepare(&self, number: usize) {
        self.spares.prepare(number);
    }
}

impl StoreDirectory for StoreFactory {
    type Store = PartitionStore;

    fn open(&self, partition: PartitionId) -> Result<Arc<PartitionStore>, StoreError> {
        self.open(partition).map(Arc::new)
    }

    fn wipe(&self, partition: PartitionId) -> Result<(), StoreError> {
        self.wipe(partition)
    }

    fn cache_usage(&self) -> usize {
        self.cache_usage()
    }
}

impl RowStore for PartitionStore {
    fn state(&self) -> Result<Option<LocalState>, StoreError> {
        self.state()
    }

    fn bulk_load(&self, rows: &[RowOp]) -> Result<(), StoreError> {
        self.bulk_load(rows)
    }

    fn apply(&self, rows: &[RowOp], state: &LocalState) -> Result<(), StoreError> {
        self.apply(rows, state)
    }

    fn lookup(&self, hashes: &[IdHash]) -> Result<Vec<Option<IndexRow>>, StoreError> {
        self.lookup(hashes)
    }

    fn scan(
        &self,
        from: TimelineKey,
        until: TimelineKey,
        bytes_max: usize,
    ) -> Result<Scan, StoreError> {
        self.scan(from, until, bytes_max)
    }

    fn timeline_rows(&self, timeline_keys: &[TimelineKey]) -> Result<TimelineRows, StoreError> {
        self.timeline_rows(timeline_keys)
    }

    fn skip_marks(&self) -> Result<BTreeSet<Offset>, StoreError> {
        self.skip_marks()
    }

    fn drop_through(&self, fired_through: TimelineKey) -> Result<(), StoreError> {
        self.drop_through(fired_through)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.flush()
    }

    fn flush_in_background(&self) -> Result<bool, StoreError> {
        self.flush_in_background()
    }

    fn refresh_view(&self) {
        self.refresh_view();
    }

    fn memory(&self) -> Result<StoreMemoryUsage, StoreError> {
        self.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::codec::row::RowBytes;
    use crate::config::{Layers, Settings};
    use crate::environment::Clock;

    fn keys() -> [TimelineKey; 2] {
        [1_000, 2_000].map(TimelineKey::first_at)
    }

    fn stores(dir: &std::path::Path) -> StoreFactory {
        let settings = Settings::load(&Layers::default()).unwrap();
        StoreFactory::new(dir, (&settings.store).into()).unwrap()
    }

    fn state() -> LocalState {
        LocalState {
            applied: 5,
            step: 6,
            ledger_position: 7,
            fired_through: TimelineKey::MIN,
            cluster_id: "here".to_owned(),
            caught_up_at: 8,
        }
    }

    fn rows() -> Vec<RowOp> {
        let put = |key| RowOp::Put { key, row: RowBytes::from(*b"row") };
        let index = RowOp::Index { hash: IdHash::of("a"), row: Some(IndexRow::default()) };
        keys()
            .map(put)
            .into_iter()
            .chain([index, RowOp::Skip { offset: 9, marked: true }])
            .collect()
    }

    fn stored_keys(store: &impl RowStore) -> Vec<TimelineKey> {
        let scan = store.scan(TimelineKey::MIN, TimelineKey::first_at(9_000), 1 << 20).unwrap();
        scan.entries.into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn the_loop_writes_and_reads_rows_of_a_store() {
        fn check(stores: &impl StoreDirectory) {
            let store = stores.open(3).unwrap();
            assert_eq!(store.state().unwrap(), None);
            store.apply(&rows(), &state()).unwrap();
            assert_eq!(store.state().unwrap(), Some(state()));
            assert_eq!(stored_keys(&*store), keys());
            let mut hashes = ["a", "b"].map(IdHash::of);
            hashes.sort_unstable();
            let found = store.lookup(&hashes).unwrap();
            let is_a = hashes.map(|hash| hash == IdHash::of("a"));
            assert_eq!(found, is_a.map(|is_a| is_a.then(IndexRow::default)));
            assert_eq!(store.timeline_rows(&keys()).unwrap().len(), 2);
            assert_eq!(store.skip_marks().unwrap(), BTreeSet::from([9]));
            assert!(store.memory().unwrap().memtables > 0);
        }
        let dir = tempfile::tempdir().unwrap();
        check(&stores(dir.path()));
    }

    #[test]
    fn a_store_that_is_deleted_is_empty_and_takes_many_rows_at_once() {
        fn check(stores: &impl StoreDirectory) {
            stores.open(3).unwrap().apply(&rows(), &state()).unwrap();
            stores.wipe(3).unwrap();
            let store = stores.open(3).unwrap();
            assert_eq!((store.state().unwrap(), stored_keys(&*store)), (None, Vec::new()));
            store.bulk_load(&rows()).unwrap();
            assert_eq!(stored_keys(&*store), keys());
            store.flush().unwrap();
            let _found = store.lookup(&[IdHash::of("a")]).unwrap();
            assert!(stores.cache_usage() > 0);
        }
        let dir = tempfile::tempdir().unwrap();
        check(&stores(dir.path()));
    }

    #[test]
    fn the_clock_of_the_loop_is_that_of_the_system() {
        fn check(clock: &impl Clock) {
            let (before, monotonic) = (clock::now_ms(), clock.monotonic());
            let now = clock.now_ms();
            assert!((before..=clock::now_ms()).contains(&now));
            assert!(clock.until(before).is_zero());
            assert!(clock.until(before + 60_000) > Duration::from_secs(50));
            clock.pause(Duration::from_millis(5));
            let passed = clock.monotonic() - monotonic;
            assert!(passed >= Duration::from_millis(1) && passed < Duration::from_secs(50));
        }
        check(&SystemClock::start());
    }

    #[test]
    fn what_was_flushed_is_in_a_file() {
        fn check(stores: &impl StoreDirectory, dir: &std::path::Path) {
            let store = stores.open(3).unwrap();
            store.apply(&rows(), &state()).unwrap();
            assert!(!has_table(dir));
            store.flush().unwrap();
            assert!(has_table(dir));
        }
        let dir = tempfile::tempdir().unwrap();
        check(&stores(dir.path()), dir.path());
    }

    /// Whether there is a file with rows in this folder.
    fn has_table(dir: &std::path::Path) -> bool {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().path()).any(|path| match path.extension() {
            _ if path.is_dir() => has_table(&path),
            extension => extension.is_some_and(|extension| extension == "sst"),
        })
    }

    #[test]
    fn each_takeover_has_a_random_nonce_of_its_own() {
        let nonces: Vec<_> = (0..100).map(|_| KafkaEnvironment.nonce()).collect();
        assert_eq!(nonces.iter().collect::<BTreeSet<_>>().len(), 100);
        // Another process must not return them, either: they do not count up.
        let is_near = |pair: &&[u64]| pair[0].abs_diff(pair[1]) & 0xffff_ffff < 1_000;
        assert!(nonces.windows(2).filter(is_near).count() < 5, "{nonces:?}");
    }
}
