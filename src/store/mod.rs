//! The store: RocksDB, one database per partition. Everything in it can be rebuilt from the ledger
//! and `triggers`.
//!
//! Invariant: rows are written only after the transaction that decided them is committed, together
//! with the state (how far the store is) in one atomic batch. There is no write-ahead log: after a
//! crash the store has the content of the last flush, which is consistent, and the rest is
//! replayed.
//!
//! ```text
//!   timeline  key → row              the rows of one due second are one sequential scan
//!   index     xxh3_128(id) → entries read when records of that id arrive, never when it fires
//!   default   state, skip marks
//! ```

mod index;
mod iterators;
mod keys;
mod options;
mod partition;
mod state;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use iterators::RowReader;
pub use options::RocksDbOptions;
use options::Template;
pub use partition::PartitionStore;

pub use crate::environment::store::{LocalState, Scan, StoreError, StoreMemoryUsage};
use crate::model::PartitionId;

/// Opens the stores of a process. They share caches, memory limits and background threads.
#[derive(Debug)]
pub struct StoreFactory {
    dir: PathBuf,
    template: Template,
    reader: RowReader,
}

impl StoreFactory {
    /// Opens stores in directories below `dir`.
    pub fn new(dir: &Path, settings: RocksDbOptions) -> Result<Self, StoreError> {
        let dir = dir.join("partitions");
        fs::create_dir_all(&dir)
            .map_err(|error| StoreError::Directory { path: dir.clone(), error })?;
        let reader = RowReader::start()
            .map_err(|error| StoreError::Directory { path: dir.clone(), error })?;
        Ok(Self { dir, template: Template::new(settings), reader })
    }

    /// Opens the store of a partition, and creates it if it does not exist.
    pub fn open(&self, partition: PartitionId) -> Result<PartitionStore, StoreError> {
        PartitionStore::open(&self.path(partition), &self.template, self.reader.clone())
    }

    /// Deletes the store of a partition. The store must be closed.
    pub fn wipe(&self, partition: PartitionId) -> Result<(), StoreError> {
        let path = self.path(partition);
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::Directory { path, error })
            }
            _ => Ok(()),
        }
    }

    /// The size of the shared block cache, in bytes.
    #[must_use]
    pub fn cache_usage(&self) -> usize {
        self.template.cache_usage()
    }

    fn path(&self, partition: PartitionId) -> PathBuf {
        self.dir.join(format!("{partition:05}"))
    }
}
