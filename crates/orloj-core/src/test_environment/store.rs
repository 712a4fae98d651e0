//! Stores for tests, which have no rows but the index rows that a test has set.
//!
//! Invariant: clones share what is set. What is written is kept as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::index_row::{IdHash, IndexRow};
use crate::engine::prefetch::TimelineRows;
use crate::engine::step::RowOp;
use crate::environment::store::{
    LocalState, RowStore, Scan, StoreDirectory, StoreError, StoreMemoryUsage,
};
use crate::model::timeline::TimelineKey;
use crate::model::{Millis, Offset, PartitionId};

/// What a store has, and what was done with it.
#[derive(Debug, Default)]
pub(crate) struct StoreContents {
    pub(crate) state: Option<LocalState>,
    pub(crate) index: BTreeMap<IdHash, IndexRow>,
    /// So many ms of the timeline are read at a time.
    pub(crate) scan_ms: Option<Millis>,
    /// A flush in the background would have to wait.
    pub(crate) skips_flushes: bool,
    /// Every call fails.
    pub(crate) fails: bool,
    pub(crate) memory: StoreMemoryUsage,
    /// How many rows were written at a time, and whether with a state.
    pub(crate) writes: Vec<(usize, bool)>,
    /// How often the view was refreshed.
    pub(crate) refreshes: usize,
    /// Flushes that were waited for, and those that were not.
    pub(crate) flushes: usize,
    pub(crate) background_flushes: usize,
}

/// Has no timeline.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestStore(Arc<Mutex<StoreContents>>);

impl TestStore {
    pub(crate) fn contents(&self) -> MutexGuard<'_, StoreContents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> Result<MutexGuard<'_, StoreContents>, StoreError> {
        let contents = self.contents();
        if contents.fails { Err(failed()) } else { Ok(contents) }
    }
}

fn failed() -> StoreError {
    StoreError::Failed { path: PathBuf::from("store"), reason: "the disk is full".to_owned() }
}

impl RowStore for TestStore {
    fn state(&self) -> Result<Option<LocalState>, StoreError> {
        Ok(self.check()?.state.clone())
    }

    fn bulk_load(&self, rows: &[RowOp]) -> Result<(), StoreError> {
        self.check()?.writes.push((rows.len(), false));
        Ok(())
    }

    fn apply(&self, rows: &[RowOp], state: &LocalState) -> Result<(), StoreError> {
        let mut contents = self.check()?;
        contents.writes.push((rows.len(), true));
        contents.state = Some(state.clone());
        Ok(())
    }

    fn lookup(&self, hashes: &[IdHash]) -> Result<Vec<Option<IndexRow>>, StoreError> {
        let contents = self.check()?;
        Ok(hashes.iter().map(|hash| contents.index.get(hash).cloned()).collect())
    }

    fn scan(&self, from: TimelineKey, until: TimelineKey, _: usize) -> Result<Scan, StoreError> {
        let of_time = self.check()?.scan_ms.map(|ms| TimelineKey::first_at(from.due + ms));
        Ok(Scan { entries: Vec::new(), reached: of_time.map_or(until, |key| key.min(until)) })
    }

    fn timeline_rows(&self, _keys: &[TimelineKey]) -> Result<TimelineRows, StoreError> {
        let _works = self.check()?;
        Ok(TimelineRows::default())
    }

    fn skip_marks(&self) -> Result<BTreeSet<Offset>, StoreError> {
        let _works = self.check()?;
        Ok(BTreeSet::new())
    }

    fn drop_through(&self, _fired_through: TimelineKey) -> Result<(), StoreError> {
        self.check().map(drop)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.check()?.flushes += 1;
        Ok(())
    }

    fn flush_in_background(&self) -> Result<bool, StoreError> {
        let mut contents = self.check()?;
        contents.background_flushes += 1;
        Ok(!contents.skips_flushes)
    }

    fn refresh_view(&self) {
        self.contents().refreshes += 1;
    }

    fn memory(&self) -> Result<StoreMemoryUsage, StoreError> {
        Ok(self.check()?.memory)
    }
}

/// What the stores of a process have, and what was done with them.
#[derive(Debug, Default)]
pub(crate) struct DirectoryContents {
    /// A store that is opened has this, until it is deleted.
    pub(crate) store: TestStore,
    /// No store can be opened.
    pub(crate) fails: bool,
    /// `open 0`, `wipe 0`.
    calls: Vec<String>,
}

/// One store, which is that of every partition.
#[derive(Debug, Default)]
pub(crate) struct TestStores(Mutex<DirectoryContents>);

impl TestStores {
    pub(crate) fn contents(&self) -> MutexGuard<'_, DirectoryContents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was done since the last call.
    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.contents().calls)
    }
}

impl StoreDirectory for TestStores {
    type Store = TestStore;

    fn open(&self, partition: PartitionId) -> Result<Arc<TestStore>, StoreError> {
        let mut contents = self.contents();
        contents.calls.push(format!("open {partition}"));
        if contents.fails { Err(failed()) } else { Ok(Arc::new(contents.store.clone())) }
    }

    fn wipe(&self, partition: PartitionId) -> Result<(), StoreError> {
        let mut contents = self.contents();
        contents.calls.push(format!("wipe {partition}"));
        contents.store = TestStore::default();
        Ok(())
    }

    fn cache_usage(&self) -> usize {
        77
    }
}
