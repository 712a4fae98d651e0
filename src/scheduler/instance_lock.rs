//! The instance id of this process. It is stored in the data directory and survives restarts. Only
//! one process at a time can lock the directory, so two processes on one host have different ids.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// A locked data directory.
#[derive(Debug)]
pub(super) struct InstanceLock {
    /// The group's static member id, and part of the transactional id.
    pub(super) instance_id: String,
    _lock: File,
}

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InstanceLockError {
    /// Another process uses it: configure a different directory.
    #[error("another process uses {0}: give each scheduler its own directory (scheduler.data_dir)")]
    InUse(PathBuf),
    /// It cannot be created or written.
    #[error("cannot use {0} (scheduler.data_dir): {1}")]
    Unusable(PathBuf, #[source] io::Error),
}

impl InstanceLock {
    /// Locks `dir` until this value is dropped. `configured` is the instance id; if it is empty,
    /// the id is read from the directory, and created at the first start.
    pub(super) fn acquire(dir: &Path, configured: &str) -> Result<Self, InstanceLockError> {
        let unusable = |error| InstanceLockError::Unusable(dir.to_owned(), error);
        fs::create_dir_all(dir).map_err(unusable)?;
        let lock = File::create(dir.join("lock")).map_err(unusable)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => InstanceLockError::InUse(dir.to_owned()),
            TryLockError::Error(error) => unusable(error),
        })?;
        let instance_id = if configured.is_empty() {
            read_or_create_id(&dir.join("instance")).map_err(unusable)?
        } else {
            configured.to_owned()
        };
        Ok(Self { instance_id, _lock: lock })
    }
}

fn read_or_create_id(file: &Path) -> io::Result<String> {
    match fs::read_to_string(file) {
        Ok(name) if !name.trim().is_empty() => Ok(name.trim().to_owned()),
        Ok(_) => create_id(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => create_id(file),
        Err(error) => Err(error),
    }
}

fn create_id(file: &Path) -> io::Result<String> {
    let name = uuid::Uuid::now_v7().simple().to_string();
    fs::write(file, &name)?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_id_is_stored_and_its_directory_locked_once() {
        let dir = tempfile::tempdir().unwrap();
        let first = InstanceLock::acquire(dir.path(), "").unwrap();
        let second = InstanceLock::acquire(dir.path(), "");
        assert!(matches!(second, Err(InstanceLockError::InUse(_))));
        let name = first.instance_id.clone();
        drop(first);
        assert_eq!(InstanceLock::acquire(dir.path(), "").unwrap().instance_id, name);
        let _named = InstanceLock::acquire(dir.path(), "a").map(|i| assert_eq!(i.instance_id, "a"));
    }

    #[test]
    fn an_instance_id_that_cannot_be_read_is_an_error_and_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("instance");
        fs::write(&file, [0xff]).unwrap();
        let acquired = InstanceLock::acquire(dir.path(), "");
        assert!(matches!(acquired, Err(InstanceLockError::Unusable(..))), "{acquired:?}");
        assert_eq!(fs::read(&file).unwrap(), [0xff]);
        fs::write(&file, " \n").unwrap();
        let created = InstanceLock::acquire(dir.path(), "").unwrap().instance_id;
        assert!(!created.is_empty(), "there is none in the file");
        assert_eq!(fs::read_to_string(&file).unwrap(), created);
    }
}
