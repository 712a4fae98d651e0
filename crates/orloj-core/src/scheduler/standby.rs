//! The standby: follows partitions that other processes own, in repeated passes, so that taking one
//! over replays only seconds. It fires nothing and commits nothing.
//!
//! Invariant: it is a job that runs beside the loop as long as the process. A store is either here
//! or in a partition task: see `standby_stores`. A pass over a partition that is assigned to this
//! process is abandoned, and the loop gets the store with the state that the last complete pass
//! has left.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::config::{SchedulerConfig, StandbyConfig};
use super::inputs::InputDecoder;
use super::local_store::{local_state, valid_state};
use super::standby_pass::{POLL, PassError, PassProgress, RunningPass, StandbyReader};
use super::standby_stores::{FollowedStore, StandbyStores, TakenStore};
use crate::codec::schemas::Schemas;
use crate::engine::cursor::Cursor;
use crate::engine::standby::{CatchUpPass, partitions_to_follow};
use crate::environment::group::GroupQueries as _;
use crate::environment::job::{Job, JobQueue as _, JobStep, Threads};
use crate::environment::store::{RowStore as _, StoreDirectory as _, StoreError};
use crate::environment::{Clock as _, ClusterQueries as _, Environment, Reporter as _};
use crate::model::{PartitionId, Timestamp};

/// What a standby works with, besides what it shares with the loop.
#[expect(missing_debug_implementations, reason = "clients have nothing to show")]
pub struct StandbyParts<E: Environment> {
    /// Whom it follows, and when.
    pub config: StandbyConfig,
    /// Reads the ledger.
    pub ledger: E::Reader,
    /// Reads `triggers`.
    pub triggers: E::Reader,
    /// Answers questions about topics within a fraction of a second.
    pub cluster: E::Cluster,
    /// Answers questions about the group.
    pub group: E::Group,
    /// The schemas of producers.
    pub schemas: E::Schemas,
}

/// What the standby shares with the loop.
pub(super) struct SharedParts<'a, E: Environment> {
    pub(super) environment: &'a E,
    pub(super) clock: &'a E::Clock,
    pub(super) reporter: &'a E::Reporter,
    pub(super) stores: &'a Arc<E::Stores>,
    pub(super) codec: &'a Arc<Schemas>,
}

/// The loop's side of the standby.
pub(super) struct Standby<E: Environment> {
    stores: Arc<StandbyStores<E::Store>>,
    queue: E::Queue<StandbyJob<E>>,
}

impl<E: Environment> Standby<E> {
    /// Starts to follow.
    pub(super) fn start(
        config: &SchedulerConfig,
        parts: StandbyParts<E>,
        shared: &SharedParts<'_, E>,
    ) -> Self {
        let stores = Arc::new(StandbyStores::new());
        let rules = &config.partition;
        let StandbyParts { config: standby, ledger, triggers, cluster, group, schemas } = parts;
        let codec = Arc::clone(shared.codec);
        let mut queue = shared.environment.start_queue("standby", Threads::Fixed(1), || ());
        queue.submit(StandbyJob {
            reader: StandbyReader {
                clock: shared.clock.clone(),
                names: config.names.clone(),
                ledger,
                triggers,
                cluster: cluster.clone(),
                decoder: InputDecoder::new(
                    &config.names,
                    rules.partitioner,
                    rules.partitions,
                    codec,
                    schemas,
                ),
                timeout: standby.read_timeout,
                batch: standby.batch,
                batch_bytes_max: config.read_ahead().batch_bytes_max(),
            },
            config: standby,
            cluster_id: config.cluster_id.clone(),
            state_age_max: config.state_age_max,
            reporter: shared.reporter.clone(),
            cluster,
            group,
            directory: Arc::clone(shared.stores),
            stores: Arc::clone(&stores),
            followed: BTreeMap::new(),
            round: VecDeque::new(),
            running: None,
            members_read_at: None,
        });
        Self { stores, queue }
    }

    /// Takes the store of a partition that is assigned to this process.
    pub(super) fn take(&mut self, partition: PartitionId) -> TakenStore<E::Store> {
        // Panics if the standby has: no thread would give the store.
        let _runs = self.queue.poll(Duration::ZERO);
        self.stores.take(partition)
    }

    /// The store of the partition is closed: others may own it now.
    pub(super) fn give_back(&self, partition: PartitionId) {
        self.stores.give_back(partition);
    }
}

impl<E: Environment> Drop for Standby<E> {
    fn drop(&mut self) {
        self.stores.close();
    }
}

/// A followed partition.
#[derive(Clone, Copy, Debug, Default)]
struct FollowedPartition {
    /// On the monotonic clock.
    flushed_at: Duration,
    /// There are rows that are not flushed.
    must_flush: bool,
    caught_up: bool,
}

/// Follows partitions, until the loop ends.
pub(super) struct StandbyJob<E: Environment> {
    config: StandbyConfig,
    cluster_id: String,
    state_age_max: Duration,
    reader: StandbyReader<E>,
    reporter: E::Reporter,
    cluster: E::Cluster,
    group: E::Group,
    directory: Arc<E::Stores>,
    stores: Arc<StandbyStores<E::Store>>,
    followed: BTreeMap<PartitionId, FollowedPartition>,
    /// The partitions over which this round has not passed yet.
    round: VecDeque<PartitionId>,
    running: Option<PassStage<E::Store>>,
    /// On the monotonic clock.
    members_read_at: Option<Duration>,
}

impl<E: Environment> Job for StandbyJob<E> {
    type Output = ();
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<()> {
        if self.stores.is_closed() {
            return JobStep::Done(());
        }
        match self.running.take() {
            Some(PassStage::Started(started)) => {
                self.plan_pass(started);
                return JobStep::Continue;
            }
            Some(PassStage::Reading(running)) => return self.continue_pass(*running),
            None => {}
        }
        match self.round.pop_front() {
            Some(partition) => {
                self.begin_pass(partition);
                JobStep::Continue
            }
            None => {
                self.start_round();
                JobStep::Pause(self.config.round_pause)
            }
        }
    }
}

impl<E: Environment> StandbyJob<E> {
    fn start_round(&mut self) {
        let now = self.reader.clock.monotonic();
        if self.members_read_at.is_none_or(|at| now >= at + self.config.members_interval) {
            self.members_read_at = Some(now);
            self.refresh_partitions();
        }
        self.round.extend(self.followed.keys());
        let ours = |partition: &&PartitionId| !self.stores.is_taken(**partition);
        self.reporter.partitions_followed(self.followed.keys().filter(ours).count());
    }

    /// Reads the group's members and decides which partitions to follow. Closes the stores of the
    /// others; a pass opens what is not open.
    fn refresh_partitions(&mut self) {
        let members = match self.group.members() {
            Ok(members) => members,
            Err(error) => return tracing::debug!(%error, "the members of the group cannot be read"),
        };
        let members: Vec<_> =
            members.iter().map(|m| (m.member_id.as_str(), &m.partitions[..])).collect();
        let prefix = &self.config.member_id_prefix;
        let is_me = |member: &str| member.starts_with(prefix);
        let mut wanted = partitions_to_follow(&members, is_me, self.config.replicas);
        wanted.retain(|partition| !self.stores.is_taken(*partition));
        let followed: BTreeSet<_> = self.followed.keys().copied().collect();
        for partition in followed.difference(&wanted) {
            self.unfollow(*partition);
        }
        for partition in wanted {
            let _known = self.followed.entry(partition).or_default();
        }
    }

    /// Closes the store of a partition.
    fn unfollow(&mut self, partition: PartitionId) {
        match self.stores.begin(partition) {
            // The loop may give it back without having fetched it.
            FollowedStore::Taken => return,
            FollowedStore::Open(store) => drop(store),
            FollowedStore::Closed => {}
        }
        self.stores.remove(partition);
        let _known = self.followed.remove(&partition);
    }

    /// Opens the store of a partition, or begins a pass if it is open.
    fn begin_pass(&mut self, partition: PartitionId) {
        let store = match self.stores.begin(partition) {
            FollowedStore::Open(store) => store,
            FollowedStore::Closed => return self.open(partition),
            FollowedStore::Taken => {
                let _followed_again_later =
                    self.followed.insert(partition, FollowedPartition::default());
                return;
            }
        };
        let began_at = self.reader.clock.monotonic();
        let began_ms = self.reader.clock.now_ms();
        match self.committed_cursor(partition) {
            Ok(cursor) => {
                let started = StartedPass { partition, store, cursor, began_at, began_ms };
                self.running = Some(PassStage::Started(Box::new(started)));
            }
            Err(error) => self.give_up(partition, store, error),
        }
    }

    fn open(&mut self, partition: PartitionId) {
        match self.directory.open(partition) {
            Ok(store) => {
                tracing::info!(partition, "standby replay started");
                self.stores.put(partition, store);
                self.round.push_front(partition);
            }
            Err(error) => self.rebuild(partition, &error),
        }
    }

    /// The store, which is closed, cannot be used. A later pass starts with an empty one.
    fn rebuild(&mut self, partition: PartitionId, error: &StoreError) {
        tracing::error!(partition, %error, "the local store is rebuilt from Kafka");
        if let Err(error) = self.directory.wipe(partition) {
            tracing::error!(partition, %error, "the local store cannot be removed");
        }
        self.stores.remove(partition);
    }

    /// How far the owner is: the committed cursor, stable.
    fn committed_cursor(&self, id: PartitionId) -> Result<Cursor, PassError> {
        let not_ready = |what: &str| PassError::NotReady(what.to_owned());
        let committed = self.group.committed(id)?;
        let (offset, metadata) = committed.ok_or_else(|| not_ready("no offset is committed"))?;
        let (cursor, _owner) = Cursor::from_metadata(offset, &metadata)
            .map_err(|_unknown| not_ready("the cursor has an unknown format"))?;
        Ok(cursor)
    }

    /// The cursor is read: compares it with the store, and decides what to read.
    fn plan_pass(&mut self, started: Box<StartedPass<E::Store>>) {
        let StartedPass { partition, store, cursor, began_at, began_ms } = *started;
        let ledger = self.reader.names.ledger();
        let age_max = self.state_age_max;
        let local = valid_state(&*store, &self.cluster_id, age_max, began_ms);
        let read = local.map_err(PassError::from).and_then(|local| {
            // After the cursor, so that nothing below the end is missing that it includes.
            Ok((local, self.cluster.bounds(&ledger, partition)?))
        });
        let (local, (ledger_low, ledger_end)) = match read {
            Ok(read) => read,
            Err(error) => {
                return self.give_up(partition, store, error);
            }
        };
        if local.as_ref().is_some_and(|(local, _)| local.step == cursor.step) {
            // Nothing is new.
            return match self.flush_if_due(partition, &store) {
                Ok(()) => self.stores.put(partition, store),
                Err(error) => self.give_up(partition, store, error.into()),
            };
        }
        let pass = CatchUpPass::begin(local, cursor, ledger_end);
        let store = if pass.must_wipe() {
            drop(store);
            match self.recreate(partition) {
                Ok(store) => store,
                Err(error) => return self.rebuild(partition, &error),
            }
        } else {
            store
        };
        let running = RunningPass::new(partition, store, pass, (began_at, began_ms), ledger_low);
        self.running = Some(PassStage::Reading(Box::new(running)));
    }

    /// Replaces a closed store with an empty one.
    fn recreate(&self, id: PartitionId) -> Result<Arc<E::Store>, StoreError> {
        self.directory.wipe(id)?;
        self.directory.open(id)
    }

    fn continue_pass(&mut self, mut running: RunningPass<E::Store>) -> JobStep<()> {
        let id = running.partition;
        if self.stores.is_taken(id) {
            self.reader.stop(id);
            self.stores.put(id, running.store);
            return JobStep::Continue;
        }
        let error = match self.reader.read(&mut running) {
            Ok(PassProgress::Reading) => {
                self.running = Some(PassStage::Reading(Box::new(running)));
                return JobStep::Continue;
            }
            Ok(PassProgress::Waiting) => {
                self.running = Some(PassStage::Reading(Box::new(running)));
                return JobStep::Pause(POLL);
            }
            Ok(PassProgress::Complete) => {
                self.reader.stop(id);
                return self.complete(running);
            }
            Err(error) => error,
        };
        self.reader.stop(id);
        let RunningPass { store, .. } = running;
        self.give_up(id, store, error);
        JobStep::Continue
    }

    /// Everything is read and applied: says so in the store.
    fn complete(&mut self, running: RunningPass<E::Store>) -> JobStep<()> {
        let RunningPass { partition: id, store, pass, began_at, began_ms, .. } = running;
        let now = self.reader.clock.monotonic();
        if now - began_at > self.config.pass_max {
            tracing::warn!(
                partition = id,
                "a pass took too long: the ledger may have been compacted during it"
            );
            drop(store);
            if let Err(error) = self.directory.wipe(id) {
                tracing::error!(partition = id, %error, "the local store cannot be removed");
            }
            self.stores.remove(id);
            return JobStep::Continue;
        }
        let Some(followed) = self.followed.get_mut(&id) else {
            unreachable!("only what is followed is passed over")
        };
        let local = pass.finish();
        // What is read later than the cursor may be compacted, so the store is as old as that.
        let state = local_state(local, &self.cluster_id, began_ms);
        followed.must_flush = true;
        let was_caught_up = std::mem::replace(&mut followed.caught_up, true);
        let written = store
            .apply(&[], &state)
            .and_then(|()| store.drop_through(local.fired_through))
            .and_then(|()| self.flush_if_due(id, &store));
        if let Err(error) = written {
            self.give_up(id, store, error.into());
            return JobStep::Continue;
        }
        if !was_caught_up {
            tracing::info!(partition = id, offset = local.applied_until, "caught up");
        }
        self.stores.put(id, store);
        JobStep::Continue
    }

    /// Starts a flush of what was written since the one before, at most once a flush interval.
    fn flush_if_due(&mut self, id: PartitionId, store: &E::Store) -> Result<(), StoreError> {
        let now = self.reader.clock.monotonic();
        let Some(followed) = self.followed.get_mut(&id).filter(|followed| followed.must_flush)
        else {
            return Ok(());
        };
        if now >= followed.flushed_at + self.config.flush_interval && store.flush_in_background()? {
            (followed.flushed_at, followed.must_flush) = (now, false);
        }
        Ok(())
    }

    /// A pass ends early. The next one starts from the beginning.
    fn give_up(&mut self, id: PartitionId, store: Arc<E::Store>, error: PassError) {
        if let PassError::Store(error) = error {
            drop(store);
            return self.rebuild(id, &error);
        }
        tracing::debug!(partition = id, %error, "standby replay failed; trying again");
        self.stores.put(id, store);
    }
}

/// How far the pass in progress is. Others act between any two steps, so each step asks the
/// cluster once.
enum PassStage<S> {
    /// The cursor is read.
    Started(Box<StartedPass<S>>),
    /// The topics are being read.
    Reading(Box<RunningPass<S>>),
}

/// A pass that has read its cursor.
struct StartedPass<S> {
    partition: PartitionId,
    store: Arc<S>,
    cursor: Cursor,
    /// On the monotonic clock.
    began_at: Duration,
    /// In ms since the epoch.
    began_ms: Timestamp,
}

#[cfg(test)]
#[path = "standby/tests.rs"]
mod tests;
