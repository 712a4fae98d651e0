//! A store for tests of what does not use it.
//!
//! Invariant: it has no rows.

use std::collections::BTreeSet;

use crate::engine::index_row::{IdHash, IndexRow};
use crate::engine::prefetch::TimelineRows;
use crate::engine::step::RowOp;
use crate::environment::store::{LocalState, RowStore, Scan, StoreError, StoreMemoryUsage};
use crate::model::Offset;
use crate::model::timeline::TimelineKey;

#[derive(Debug)]
pub(super) struct NoStore;

impl RowStore for NoStore {
    fn state(&self) -> Result<Option<LocalState>, StoreError> {
        Ok(None)
    }

    fn bulk_load(&self, _rows: &[RowOp]) -> Result<(), StoreError> {
        Ok(())
    }

    fn apply(&self, _rows: &[RowOp], _state: &LocalState) -> Result<(), StoreError> {
        Ok(())
    }

    fn lookup(&self, hashes: &[IdHash]) -> Result<Vec<Option<IndexRow>>, StoreError> {
        Ok(hashes.iter().map(|_| None).collect())
    }

    fn scan(&self, _: TimelineKey, until: TimelineKey, _: usize) -> Result<Scan, StoreError> {
        Ok(Scan { entries: Vec::new(), reached: until })
    }

    fn timeline_rows(&self, _keys: &[TimelineKey]) -> Result<TimelineRows, StoreError> {
        Ok(TimelineRows::default())
    }

    fn skip_marks(&self) -> Result<BTreeSet<Offset>, StoreError> {
        Ok(BTreeSet::new())
    }

    fn drop_through(&self, _fired_through: TimelineKey) -> Result<(), StoreError> {
        Ok(())
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn flush_in_background(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn memory(&self) -> Result<StoreMemoryUsage, StoreError> {
        Ok(StoreMemoryUsage::default())
    }
}
