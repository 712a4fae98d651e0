//! The stores of a process, on its simulated disks.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use orloj_core::engine::index_row::{IdHash, IndexRow};
use orloj_core::engine::prefetch::TimelineRows;
use orloj_core::engine::step::RowOp;
use orloj_core::engine::wheel::LoadRequest;
use orloj_core::environment::StandbyStores;
use orloj_core::environment::store::{
    LocalState, RowStore, Scan, StoreDirectory, StoreError, StoreMemoryUsage,
};
use orloj_core::model::timeline::TimelineKey;
use orloj_core::model::{Offset, PartitionId};

use super::{SimulatedProcess, index};
use crate::simulation::disk::SimulatedDisk;
use crate::simulation::fault_kinds::FaultKind;

/// The store of a partition.
pub(in crate::simulation) struct SimulatedStore {
    process: SimulatedProcess,
    id: usize,
}

impl SimulatedStore {
    /// A store that has failed once fails until it is wiped.
    fn on_disk<T>(&self, act: impl FnOnce(&mut SimulatedDisk) -> T) -> Result<T, StoreError> {
        self.process.call(|cluster, state| {
            let disk = &mut state.disks[self.id];
            if !cluster.calm && !disk.has_failed && cluster.rng.one_in(20_000) {
                cluster.counts.add(FaultKind::StoreFailed);
                disk.has_failed = true;
            }
            if disk.has_failed {
                let (path, reason) = (PathBuf::new(), "an error of the disk".to_owned());
                return Err(StoreError::Failed { path, reason });
            }
            Ok(act(disk))
        })
    }
}

impl RowStore for SimulatedStore {
    fn state(&self) -> Result<Option<LocalState>, StoreError> {
        Ok(self.process.call(|cluster, process| {
            let state = process.disks[self.id].rows.state.clone();
            let now = cluster.broker.now.saturating_add_signed(process.skew);
            let is_old = |at| at > 0 && now.saturating_sub(at) >= cluster.state_age_max();
            if state.as_ref().is_some_and(|state| is_old(state.caught_up_at)) {
                cluster.counts.add(FaultKind::StoreTooOld);
            }
            state
        }))
    }

    fn bulk_load(&self, rows: &[RowOp]) -> Result<(), StoreError> {
        self.on_disk(|disk| disk.add(rows))
    }

    fn apply(&self, rows: &[RowOp], state: &LocalState) -> Result<(), StoreError> {
        self.on_disk(|disk| disk.apply(rows, state.clone()))
    }

    fn lookup(&self, hashes: &[IdHash]) -> Result<Vec<Option<IndexRow>>, StoreError> {
        self.on_disk(|disk| hashes.iter().map(|hash| disk.rows.index.get(hash).cloned()).collect())
    }

    fn scan(
        &self,
        from: TimelineKey,
        until: TimelineKey,
        bytes_max: usize,
    ) -> Result<Scan, StoreError> {
        self.on_disk(|disk| {
            let (entries, reached) = disk.scan(LoadRequest { from, until, bytes_max });
            Scan { entries, reached }
        })
    }

    fn timeline_rows(&self, timeline_keys: &[TimelineKey]) -> Result<TimelineRows, StoreError> {
        self.on_disk(|disk| disk.rows_at(timeline_keys))
    }

    fn skip_marks(&self) -> Result<BTreeSet<Offset>, StoreError> {
        self.on_disk(|disk| disk.rows.skips.clone())
    }

    /// The compaction filter removes such rows, sooner or later.
    fn drop_through(&self, _fired_through: TimelineKey) -> Result<(), StoreError> {
        self.process.call(|cluster, state| {
            if cluster.rng.one_in(3) {
                state.disks[self.id].forget_decided();
            }
        });
        Ok(())
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.on_disk(SimulatedDisk::flush)
    }

    fn flush_in_background(&self) -> Result<(), StoreError> {
        self.process.call(|cluster, state| {
            if cluster.rng.one_in(2) {
                state.disks[self.id].flush();
            }
        });
        Ok(())
    }

    fn memory(&self) -> Result<StoreMemoryUsage, StoreError> {
        Ok(StoreMemoryUsage::default())
    }
}

/// All stores of a process.
pub(in crate::simulation) struct SimulatedStores(pub(in crate::simulation) SimulatedProcess);

impl StoreDirectory for SimulatedStores {
    type Store = SimulatedStore;

    fn open(&self, partition: PartitionId) -> Result<Arc<SimulatedStore>, StoreError> {
        Ok(Arc::new(SimulatedStore { process: self.0.clone(), id: index(partition) }))
    }

    fn wipe(&self, partition: PartitionId) -> Result<(), StoreError> {
        self.0.call(|_, state| state.disks[index(partition)].wipe());
        Ok(())
    }

    fn cache_usage(&self) -> usize {
        0
    }
}

/// Standby stores are on the same disks: see `SimulatedNode::follow_standby`.
pub(in crate::simulation) struct SimulatedStandby;

impl StandbyStores<SimulatedStore> for SimulatedStandby {
    fn set_owned(&self, _partitions: &BTreeSet<PartitionId>) {}

    fn release(&self, _partition: PartitionId) -> Option<Arc<SimulatedStore>> {
        None
    }
}
