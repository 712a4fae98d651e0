//! The stores of partitions that are assigned to this process: taken from the standby, or opened;
//! and closed when they are released.
//!
//! Invariant: the loop neither opens, flushes nor deletes a store, and does not wait for one: a job
//! does it, and the standby gives one back when it is ready. The takeover starts in a later turn,
//! and counts from the assignment. A store is in one job at most, and open once at most: it is
//! closed when no other job uses it any more. One that can be neither opened nor deleted, because
//! the disk is full or fails, stops its partition and no other one, until it can.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::local_store::valid_state;
use super::partition_task::{PartitionRestore, PartitionState, PartitionTask};
use super::standby_stores::TakenStore;
use super::{LoopError, Scheduler};
use crate::engine::local_checkpoint::LocalCheckpoint;
use crate::environment::job::{Job, JobQueue as _, JobStep, Threads};
use crate::environment::store::{RowStore as _, StoreDirectory, StoreError};
use crate::environment::{Clock as _, Environment};
use crate::model::{Offset, PartitionId, Timestamp};

/// How long a job waits for others that still use the store that it closes.
const CLOSE_PAUSE: Duration = Duration::from_millis(1);

/// How far a store is, with its skip marks; `None` if it is new.
pub(super) type StoreContent = Option<(LocalCheckpoint, BTreeSet<Offset>)>;

/// A store that a partition waits for.
#[derive(Debug)]
pub(super) struct AwaitedStore {
    /// When the partition was assigned, on the monotonic clock.
    assigned_at: Duration,
    /// A job opens or closes it; else the standby is using it.
    is_in_job: bool,
    /// The job has failed: another one tries again at this time on the monotonic clock.
    retry_at: Option<Duration>,
    /// The partition was released meanwhile.
    is_released: bool,
    /// The takeover that goes on with it, if one had found its store to be invalid.
    restore: Option<Box<PartitionRestore>>,
}

/// The stores that partitions wait for.
pub(super) struct AwaitedStores<E: Environment> {
    partitions: BTreeMap<PartitionId, AwaitedStore>,
    /// When partitions whose stores have failed may be taken over again, on the monotonic clock.
    rebuild_at: BTreeMap<PartitionId, Duration>,
    openings: E::Queue<StoreJob<E::Stores>>,
    closings: E::Queue<StoreJob<E::Stores>>,
}

impl<E: Environment> AwaitedStores<E> {
    /// That many threads open stores, and as many close them. To close one may take long, and no
    /// opening waits for it.
    pub(super) fn start(environment: &E, threads: usize) -> Self {
        let openings = environment.start_queue("openings", Threads::Fixed(threads), || ());
        let closings = environment.start_queue("closings", Threads::Fixed(threads), || ());
        Self { partitions: BTreeMap::new(), rebuild_at: BTreeMap::new(), openings, closings }
    }

    /// The store of a partition has failed at `now`. It is rebuilt at once, but not if it has
    /// failed within `pause` before: the disk is full or broken.
    pub(super) fn on_failed(&mut self, partition: PartitionId, now: Duration, pause: Duration) {
        let has_failed = self.rebuild_at.get(&partition).is_some_and(|at| now < *at + pause);
        let rebuild_at = if has_failed { now + pause } else { now };
        let _before = self.rebuild_at.insert(partition, rebuild_at);
    }

    /// Whether a partition whose store has failed may be taken over again at `now`.
    pub(super) fn may_rebuild(&self, partition: PartitionId, now: Duration) -> bool {
        self.rebuild_at.get(&partition).is_none_or(|at| now >= *at)
    }

    /// Whether stores that were released are being closed; waits at most `timeout` for one.
    pub(super) fn is_closing(&mut self, timeout: Duration) -> bool {
        if self.closings.in_flight() > 0 {
            let _closed = self.closings.poll(timeout);
        }
        self.closings.in_flight() > 0
    }

    /// What a job has done.
    fn poll_jobs(&mut self) -> Option<StoreJobResult<E::Store>> {
        let closed = self.closings.poll(Duration::ZERO);
        closed.or_else(|| self.openings.poll(Duration::ZERO))
    }

    /// How many partitions wait.
    pub(super) fn len(&self) -> usize {
        self.awaited_since().count()
    }

    /// Since when each of them does, on the monotonic clock.
    pub(super) fn awaited_since(&self) -> impl Iterator<Item = Duration> {
        let awaited = self.partitions.values().filter(|awaited| !awaited.is_released);
        awaited.map(|awaited| awaited.assigned_at)
    }

    /// Whether one of them is being opened, closed before that, or used by the standby.
    pub(super) fn has_jobs(&self) -> bool {
        let mut awaited = self.partitions.values().filter(|awaited| !awaited.is_released);
        awaited.any(|awaited| awaited.retry_at.is_none())
    }
}

/// Opens or closes the store of a partition.
#[derive(Debug)]
pub(super) struct StoreJob<D: StoreDirectory> {
    partition: PartitionId,
    stores: Arc<D>,
    work: StoreWork<D::Store>,
    cluster: String,
    age_max: Duration,
    now: Timestamp,
}

/// What a job does.
#[derive(Debug)]
enum StoreWork<S> {
    /// Opens the store as it is, if it can be used.
    Open,
    /// Closes and deletes the store, and opens a new one.
    Replace(Option<Arc<S>>),
    /// Flushes the store, and closes it.
    Close(Option<Arc<S>>),
}

/// What a job has done.
#[derive(Debug)]
pub(super) struct StoreJobResult<S> {
    partition: PartitionId,
    result: StoreWorkResult<S>,
}

#[derive(Debug)]
enum StoreWorkResult<S> {
    /// The store is open, or why it is not.
    Opened(Result<(Arc<S>, StoreContent), StoreError>),
    Closed,
}

impl<D: StoreDirectory> Job for StoreJob<D> {
    type Output = StoreJobResult<D::Store>;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<StoreJobResult<D::Store>> {
        let result = match &mut self.work {
            StoreWork::Open => StoreWorkResult::Opened(self.open()),
            // The loop has none any more, so nothing but earlier jobs uses it.
            StoreWork::Replace(store) | StoreWork::Close(store)
                if store.as_ref().is_some_and(is_shared) =>
            {
                return JobStep::Pause(CLOSE_PAUSE);
            }
            StoreWork::Replace(invalid) => {
                drop(invalid.take());
                StoreWorkResult::Opened(self.open_new())
            }
            StoreWork::Close(store) => {
                let store = store.take();
                self.close(store);
                StoreWorkResult::Closed
            }
        };
        JobStep::Done(StoreJobResult { partition: self.partition, result })
    }
}

fn is_shared<S>(store: &Arc<S>) -> bool {
    Arc::strong_count(store) > 1
}

impl<D: StoreDirectory> StoreJob<D> {
    /// Flushes and closes the store. One that cannot be flushed is deleted.
    fn close(&self, store: Option<Arc<D::Store>>) {
        let Some(store) = store else { return };
        let Err(error) = store.flush() else { return };
        tracing::warn!(partition = self.partition, %error, "the local store is removed");
        drop(store);
        if let Err(error) = self.stores.wipe(self.partition) {
            tracing::warn!(partition = self.partition, %error, "it cannot be removed");
        }
    }

    /// Opens the store as it is, or a new one if it cannot be used.
    fn open(&self) -> Result<(Arc<D::Store>, StoreContent), StoreError> {
        let content = |store: &D::Store| valid_state(store, &self.cluster, self.age_max, self.now);
        let opened = self.stores.open(self.partition);
        match opened.and_then(|store| content(&store).map(|content| (store, content))) {
            Ok((store, Some(content))) => return Ok((store, Some(content))),
            Ok((_, None)) => {}
            Err(newer @ StoreError::Newer { .. }) => return Err(newer),
            Err(error) => {
                let partition = self.partition;
                tracing::warn!(partition, %error, "the local store is rebuilt from Kafka");
            }
        }
        self.open_new()
    }

    /// Deletes the store and opens a new one.
    fn open_new(&self) -> Result<(Arc<D::Store>, StoreContent), StoreError> {
        self.stores.wipe(self.partition)?;
        Ok((self.stores.open(self.partition)?, None))
    }
}

impl<E: Environment> Scheduler<E> {
    /// The store of a partition that is newly assigned; `None` if the standby is still using it, or
    /// if it must be opened: see [`Self::take_awaited_stores`].
    pub(super) fn take_store(&mut self, id: PartitionId) -> Option<Arc<E::Store>> {
        let now = self.clock.monotonic();
        if let Some(awaited) = self.awaited_stores.partitions.get_mut(&id).filter(|it| it.is_in_job)
        {
            // What was started with it is started again.
            awaited.restore = None;
            if std::mem::take(&mut awaited.is_released) {
                awaited.assigned_at = now;
            }
            return None;
        }
        let taken = self.standby.as_mut().map_or(TakenStore::Closed, |standby| standby.take(id));
        let assigned_at =
            self.awaited_stores.partitions.remove(&id).map_or(now, |it| it.assigned_at);
        match taken {
            TakenStore::Open(store) => return Some(store),
            TakenStore::Closed => self.open_store(id, None, assigned_at),
            TakenStore::InUse => {
                let awaited = AwaitedStore {
                    assigned_at,
                    is_in_job: false,
                    retry_at: None,
                    is_released: false,
                    restore: None,
                };
                let _none = self.awaited_stores.partitions.insert(id, awaited);
            }
        }
        None
    }

    /// Opens the store of a partition, in a job, after `invalid` is closed and deleted.
    pub(super) fn open_store(
        &mut self,
        partition: PartitionId,
        invalid: Option<Arc<E::Store>>,
        assigned_at: Duration,
    ) {
        let awaited = AwaitedStore {
            assigned_at,
            is_in_job: true,
            retry_at: None,
            is_released: false,
            restore: None,
        };
        let _none = self.awaited_stores.partitions.insert(partition, awaited);
        let work = if invalid.is_some() { StoreWork::Replace(invalid) } else { StoreWork::Open };
        self.submit_store_job(partition, work);
    }

    /// Flushes and closes the store of a partition that is released, in a job. Then the standby may
    /// use it.
    pub(super) fn close_store(&mut self, partition: PartitionId, store: Arc<E::Store>) {
        let closing = AwaitedStore {
            assigned_at: self.clock.monotonic(),
            is_in_job: true,
            retry_at: None,
            is_released: true,
            restore: None,
        };
        let _none = self.awaited_stores.partitions.insert(partition, closing);
        self.submit_store_job(partition, StoreWork::Close(Some(store)));
    }

    fn submit_store_job(&mut self, partition: PartitionId, work: StoreWork<E::Store>) {
        let is_closing = matches!(work, StoreWork::Close(_));
        let job = StoreJob {
            partition,
            stores: Arc::clone(&self.stores),
            work,
            cluster: self.config.cluster_id.clone(),
            age_max: self.config.state_age_max,
            now: self.clock.now_ms(),
        };
        if is_closing {
            self.awaited_stores.closings.submit(job);
        } else {
            self.awaited_stores.openings.submit(job);
        }
    }

    /// The local store cannot be used: replaces it with an empty one, with which the takeover goes
    /// on.
    pub(super) fn replace_store(&mut self, id: PartitionId) {
        let Some(task) = self.tasks.remove(&id) else { return };
        let PartitionTask { state, store, takeover_started_at, .. } = task;
        let PartitionState::Restoring(restoring) = state else { return };
        self.open_store(id, Some(store), takeover_started_at);
        if let Some(awaited) = self.awaited_stores.partitions.get_mut(&id) {
            awaited.restore = Some(restoring);
        }
    }

    /// Starts the takeovers whose stores are open, or which the standby does not use any more.
    pub(super) fn take_awaited_stores(&mut self) -> Result<(), LoopError> {
        while let Some(done) = self.awaited_stores.poll_jobs() {
            match done.result {
                StoreWorkResult::Opened(result) => self.on_store_opened(done.partition, result)?,
                StoreWorkResult::Closed => self.on_store_closed(done.partition),
            }
        }
        self.retry_failed_openings();
        let in_use =
            self.awaited_stores.partitions.iter().filter(|(_, awaited)| !awaited.is_in_job);
        let in_use: Vec<_> = in_use.map(|(id, awaited)| (*id, awaited.assigned_at)).collect();
        for (id, assigned_at) in in_use {
            if let Some(store) = self.take_store(id) {
                self.resume_with(id, store, assigned_at)?;
            }
        }
        Ok(())
    }

    /// Tries again to open stores, if it is time. What is left of them is deleted first: that it
    /// could not be deleted may be why.
    fn retry_failed_openings(&mut self) {
        let now = self.clock.monotonic();
        let partitions = self.awaited_stores.partitions.iter_mut();
        let is_due = |awaited: &AwaitedStore| awaited.retry_at.is_some_and(|at| now >= at);
        let due = partitions.filter(|(_, awaited)| is_due(awaited)).map(|(id, awaited)| {
            awaited.retry_at = None;
            *id
        });
        for id in due.collect::<Vec<_>>() {
            self.submit_store_job(id, StoreWork::Replace(None));
        }
    }

    /// A store that was released is closed. If its partition was assigned again meanwhile, it is
    /// opened.
    fn on_store_closed(&mut self, id: PartitionId) {
        let Some(awaited) = self.awaited_stores.partitions.remove(&id) else { return };
        if awaited.is_released {
            self.give_back_stores(&[id]);
        } else {
            self.open_store(id, None, awaited.assigned_at);
        }
    }

    fn on_store_opened(
        &mut self,
        id: PartitionId,
        result: Result<(Arc<E::Store>, StoreContent), StoreError>,
    ) -> Result<(), LoopError> {
        let Some(mut awaited) = self.awaited_stores.partitions.remove(&id) else { return Ok(()) };
        if awaited.is_released {
            match result {
                Ok((store, _)) => self.close_store(id, store),
                Err(_) => self.give_back_stores(&[id]),
            }
            return Ok(());
        }
        let (store, content) = match result {
            Ok(opened) => opened,
            Err(newer @ StoreError::Newer { .. }) => return Err(newer.into()),
            Err(error) => {
                tracing::error!(
                    partition = id,
                    %error,
                    "the local store cannot be opened; the partition waits, and it is tried again"
                );
                awaited.retry_at = Some(self.clock.monotonic() + self.config.timing.store_retry);
                let _none = self.awaited_stores.partitions.insert(id, awaited);
                self.report_readiness();
                return Ok(());
            }
        };
        let Some(mut restoring) = awaited.restore else {
            return self.start_takeover(id, store, content, awaited.assigned_at);
        };
        restoring.has_new_store = true;
        let state = PartitionState::Restoring(restoring);
        let task = PartitionTask::in_state(id, store, state, awaited.assigned_at);
        let _none = self.tasks.insert(id, task);
        self.report_readiness();
        Ok(())
    }

    /// The stores of these partitions are closed: the standby may use them.
    pub(super) fn give_back_stores(&mut self, partitions: &[PartitionId]) {
        for partition in partitions {
            let awaited = self.awaited_stores.partitions.get_mut(partition);
            if let Some(awaited) = awaited.filter(|it| it.is_in_job && it.retry_at.is_none()) {
                // It is given back when it is open and closed again.
                (awaited.is_released, awaited.restore) = (true, None);
                continue;
            }
            let _since = self.awaited_stores.partitions.remove(partition);
            if let Some(standby) = &self.standby {
                standby.give_back(*partition);
            }
        }
    }
}

#[cfg(test)]
#[path = "assigned_stores/tests.rs"]
mod tests;
