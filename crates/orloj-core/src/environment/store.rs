//! The rows of a partition on disk. Everything in them can be rebuilt from the log.
//!
//! Invariant: rows and the state that says how far they are change together. After a crash the
//! store has the content of the last flush; rows of [`RowStore::bulk_load`] may be newer.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use crate::codec::row::RowBytes;
use crate::engine::index_row::{IdHash, IndexRow};
use crate::engine::prefetch::TimelineRows;
use crate::engine::step::RowOp;
use crate::model::timeline::TimelineKey;
use crate::model::{Offset, PartitionId, Timestamp};

/// Why the store failed. Each variant says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database failed, and may keep failing until it is reopened: close the store, wipe it,
    /// and rebuild it.
    #[error("the store in {path}: {reason}")]
    Failed {
        /// The database's directory.
        path: PathBuf,
        /// The database's error.
        reason: String,
    },
    /// Stored bytes are corrupt: wipe the store and rebuild it.
    #[error("the store in {path} holds bytes that cannot be read: {what}")]
    Unreadable {
        /// The database's directory.
        path: PathBuf,
        /// Which row.
        what: &'static str,
    },
    /// A newer Orloj wrote it: do not start, so that nothing is misinterpreted.
    #[error(
        "the store in {path} has format {found}, newer than this program: upgrade this process, or \
         remove that directory to have it rebuilt from Kafka"
    )]
    Newer {
        /// The database's directory.
        path: PathBuf,
        /// The format found.
        found: u32,
    },
    /// The directory cannot be written: an operator must act.
    #[error("cannot write {path} (scheduler.data_dir): {error}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
}

/// The state of a store: how far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalState {
    /// Records of `triggers` below this offset are applied.
    pub applied: Offset,
    /// Steps up to this one are applied.
    pub step: u64,
    /// Records of the ledger below this offset are applied, or were written by the applied steps.
    pub ledger_position: Offset,
    /// The fired watermark when this state was written.
    pub fired_through: TimelineKey,
    /// The Kafka cluster from which the store was built.
    pub cluster_id: String,
    /// When the store last contained everything committed, in ms since the epoch; 0 while it is
    /// being rebuilt.
    pub caught_up_at: Timestamp,
}

/// Memory that a store uses, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreMemoryUsage {
    /// Rows that are not flushed yet.
    pub memtables: u64,
    /// Memory of open files without cached blocks.
    pub tables: u64,
}

/// A sequence of timeline entries.
#[derive(Debug, PartialEq, Eq)]
pub struct Scan {
    /// In key order.
    pub entries: Vec<(TimelineKey, RowBytes)>,
    /// The scan is complete up to here (exclusive).
    pub reached: TimelineKey,
}

/// The store of one partition. Threads share it.
pub trait RowStore: Send + Sync + 'static {
    /// The state of the store; `None` if it is new, damaged or of an older format.
    fn state(&self) -> Result<Option<LocalState>, StoreError>;

    /// Writes rows in key order ([`RowOp::sort_key`]) without a state, which
    /// [`apply`](Self::apply) writes later.
    fn bulk_load(&self, rows: &[RowOp]) -> Result<(), StoreError>;

    /// Writes rows and the state in one atomic batch. Of several rows with the same key the last
    /// one is used.
    fn apply(&self, rows: &[RowOp], state: &LocalState) -> Result<(), StoreError>;

    /// The index rows of `hashes`, which must be sorted.
    fn lookup(&self, hashes: &[IdHash]) -> Result<Vec<Option<IndexRow>>, StoreError>;

    /// Timeline entries from `from` (inclusive) to `until` (exclusive). Stops after the entry with
    /// which the sum of row sizes and
    /// [`ENTRY_BYTES`](crate::engine::wheel::ENTRY_BYTES) reaches `bytes_max`, so it returns at
    /// least one entry if there is one.
    fn scan(
        &self,
        from: TimelineKey,
        until: TimelineKey,
        bytes_max: usize,
    ) -> Result<Scan, StoreError>;

    /// The existing rows at `timeline_keys`, which must be sorted.
    fn timeline_rows(&self, timeline_keys: &[TimelineKey]) -> Result<TimelineRows, StoreError>;

    /// The offsets of records that were ignored because of the state at that time.
    fn skip_marks(&self) -> Result<BTreeSet<Offset>, StoreError>;

    /// Everything up to `fired_through` has fired and is committed: its rows may be deleted.
    fn drop_through(&self, fired_through: TimelineKey) -> Result<(), StoreError>;

    /// Flushes all rows and waits for it. Called before the store is closed.
    fn flush(&self) -> Result<(), StoreError>;

    /// Starts to flush all rows without waiting for a flush or for compaction. Returns false, and
    /// does nothing, if it would have to: then call it again later.
    fn flush_in_background(&self) -> Result<bool, StoreError>;

    /// Makes the newest version of the rows the one that this thread reads. Without that its next
    /// read does it, and waits if a flush is writing to the disk by then.
    fn refresh_view(&self);

    /// The memory that the store uses.
    fn memory(&self) -> Result<StoreMemoryUsage, StoreError>;
}

/// The stores of a process.
pub trait StoreDirectory: Send + Sync + 'static {
    /// The store of one partition.
    type Store: RowStore;

    /// Opens the store of a partition, and creates it if it does not exist.
    fn open(&self, partition: PartitionId) -> Result<Arc<Self::Store>, StoreError>;

    /// Deletes the store of a partition. The store must be closed.
    fn wipe(&self, partition: PartitionId) -> Result<(), StoreError>;

    /// The size of the cache that all stores share, in bytes.
    fn cache_usage(&self) -> usize;
}
