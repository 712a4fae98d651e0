//! The stores of a process, on its simulated disks.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use orloj_core::engine::index_row::{IdHash, IndexRow};
use orloj_core::engine::prefetch::TimelineRows;
use orloj_core::engine::step::RowOp;
use orloj_core::engine::wheel::LoadRequest;
use orloj_core::environment::store::{
    LocalState, RowStore, Scan, StoreDirectory, StoreError, StoreMemoryUsage,
};
use orloj_core::model::timeline::TimelineKey;
use orloj_core::model::{Offset, PartitionId};

use super::{SimulatedProcess, index};
use crate::simulation::cluster::SimulatedCluster;
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
            let (one_in, kind) = if state.is_standby() {
                (500, FaultKind::StandbyStoreFailed)
            } else {
                (20_000, FaultKind::StoreFailed)
            };
            let disk = &mut state.disks[self.id];
            if !cluster.calm && !disk.has_failed && cluster.rng.one_in(one_in) {
                cluster.counts.add(kind);
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

impl Drop for SimulatedStore {
    fn drop(&mut self) {
        // The disks of a process that has ended are taken from it.
        if let Some(disk) = self.process.state().disks.get_mut(self.id) {
            disk.close();
        }
    }
}

impl RowStore for SimulatedStore {
    fn state(&self) -> Result<Option<LocalState>, StoreError> {
        Ok(self.process.call(|cluster, process| {
            let (is_standby, age_max) = (process.is_standby(), cluster.state_age_max());
            let now = cluster.broker.now.saturating_add_signed(process.skew);
            let disk = &mut process.disks[self.id];
            let state = disk.rows.state.clone();
            let age = state.as_ref().map(|state| now.saturating_sub(state.caught_up_at));
            let is_old = age.is_some_and(|age| age >= age_max && age < now);
            if is_old {
                cluster.counts.add(FaultKind::StoreTooOld);
            }
            let was_followed = std::mem::replace(&mut disk.is_followed, is_standby);
            if was_followed && is_old {
                cluster.counts.add(FaultKind::StandbyTooOld);
            }
            if was_followed && !is_standby {
                let is_fresh = state.is_some() && !is_old;
                cluster.counts.add_many(FaultKind::TakenOverFromStandby, u64::from(is_fresh));
                cluster.counts.add_many(FaultKind::TakenDuringPass, u64::from(disk.has_loose_rows));
            }
            state
        }))
    }

    fn bulk_load(&self, rows: &[RowOp]) -> Result<(), StoreError> {
        self.on_disk(|disk| disk.add(rows))
    }

    fn apply(&self, rows: &[RowOp], state: &LocalState) -> Result<(), StoreError> {
        self.on_disk(|disk| disk.apply(rows, state.clone()))?;
        self.process.call(|cluster, process| {
            if process.is_standby() {
                cluster.counts.add(FaultKind::Followed);
                let took = cluster.broker.now - process.cursor_read_at;
                let lag = cluster.compaction_lag;
                assert!(took < lag, "the ledger may have been compacted during a pass");
            }
        });
        Ok(())
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

    fn flush_in_background(&self) -> Result<bool, StoreError> {
        Ok(self.process.call(|cluster, state| {
            let flushes = cluster.calm || cluster.rng.one_in(2);
            if flushes {
                state.disks[self.id].flush();
            }
            flushes
        }))
    }

    /// Reads never wait here.
    fn refresh_view(&self) {}

    fn memory(&self) -> Result<StoreMemoryUsage, StoreError> {
        Ok(StoreMemoryUsage::default())
    }
}

/// A disk that is full, or has an error, can be neither deleted nor opened.
fn refuse_sometimes(
    cluster: &mut SimulatedCluster,
    disk: &mut SimulatedDisk,
) -> Result<(), StoreError> {
    let is_refused = !cluster.calm && cluster.rng.one_in(1_000);
    cluster.counts.add_many(FaultKind::StoreRefused, u64::from(is_refused));
    if is_refused || disk.is_refused {
        let (path, reason) = (PathBuf::new(), "the disk is full".to_owned());
        return Err(StoreError::Failed { path, reason });
    }
    Ok(())
}

/// All stores of a process.
pub(in crate::simulation) struct SimulatedStores(pub(in crate::simulation) SimulatedProcess);

impl StoreDirectory for SimulatedStores {
    type Store = SimulatedStore;

    fn open(&self, partition: PartitionId) -> Result<Arc<SimulatedStore>, StoreError> {
        let id = index(partition);
        self.0.call(|cluster, state| {
            let is_standby = state.is_standby();
            let disk = &mut state.disks[id];
            assert!(!disk.is_open, "the store of partition {id} is opened twice");
            refuse_sometimes(cluster, disk)?;
            (disk.is_open, disk.is_followed) = (true, is_standby);
            Ok(())
        })?;
        Ok(Arc::new(SimulatedStore { process: self.0.clone(), id }))
    }

    fn wipe(&self, partition: PartitionId) -> Result<(), StoreError> {
        self.0.call(|cluster, state| {
            let disk = &mut state.disks[index(partition)];
            assert!(!disk.is_open, "an open store is deleted");
            refuse_sometimes(cluster, disk)?;
            disk.wipe();
            Ok(())
        })
    }

    fn cache_usage(&self) -> usize {
        0
    }
}
