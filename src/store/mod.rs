//! The store: RocksDB, one database a partition. It holds nothing that the ledger and the log
//! could not rebuild.
//!
//! Invariant: rows are applied only after the transaction that decided them is committed, together
//! with how far that is, in one atomic batch. There is no write-ahead log: a crash goes back to the
//! last flush, which is consistent, and the rest is replayed.
//!
//! ```text
//!   timeline  key → row          one sequential scan is a due second
//!   index     xxh3_128(id) → slots   read when records of that id arrive, never at the fire
//!   default   state, skip marks
//! ```

mod index;
mod keys;
mod options;
mod partition;
mod state;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use options::RocksDbOptions;
use options::Template;
pub use partition::{PartitionStore, Scan, StoreMemoryUsage};
pub use state::LocalState;

use crate::model::PartitionId;

/// What failed, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// RocksDB failed. It may have latched the error: close the store, wipe it, and rebuild it.
    #[error("the store in {path}: {reason}")]
    Failed {
        /// The database's directory.
        path: PathBuf,
        /// What RocksDB said.
        reason: String,
    },
    /// A row is corrupt: wipe the store and rebuild it.
    #[error("the store in {path} holds bytes that cannot be read: {what}")]
    Unreadable {
        /// The database's directory.
        path: PathBuf,
        /// Which row.
        what: &'static str,
    },
    /// A newer Orloj wrote it: refuse to start, so that nothing is misread.
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
    /// The directory itself cannot be written: a person must look.
    #[error("cannot write {path} (scheduler.data_dir): {error}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// Opens the stores of a process; they share caches, memory limits and background threads.
#[derive(Debug)]
pub struct StoreFactory {
    dir: PathBuf,
    template: Template,
}

impl StoreFactory {
    /// Stores below `dir`.
    pub fn new(dir: &Path, settings: RocksDbOptions) -> Result<Self, StoreError> {
        let dir = dir.join("partitions");
        fs::create_dir_all(&dir)
            .map_err(|error| StoreError::Directory { path: dir.clone(), error })?;
        Ok(Self { dir, template: Template::new(settings) })
    }

    /// Opens (or creates) the store of a partition.
    pub fn open(&self, partition: PartitionId) -> Result<PartitionStore, StoreError> {
        PartitionStore::open(&self.path(partition), &self.template)
    }

    /// Deletes the store of a partition, which must be closed.
    pub fn wipe(&self, partition: PartitionId) -> Result<(), StoreError> {
        let path = self.path(partition);
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::Directory { path, error })
            }
            _ => Ok(()),
        }
    }

    /// What the block cache of the process holds, in bytes.
    #[must_use]
    pub fn cache_usage(&self) -> usize {
        self.template.cache_usage()
    }

    fn path(&self, partition: PartitionId) -> PathBuf {
        self.dir.join(format!("{partition:05}"))
    }
}
