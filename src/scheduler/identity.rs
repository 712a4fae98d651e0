//! Who this process is: a name that survives restarts, kept in the data directory, which only one
//! process at a time may hold. Two processes on one host therefore differ.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// A claimed data directory.
#[derive(Debug)]
pub(super) struct Identity {
    /// The group's static member id, and part of the transactional id.
    pub(super) instance: String,
    _lock: File,
}

/// Why the directory cannot be ours.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Another process runs on it: give this one a directory of its own.
    #[error("another process uses {0}: give each scheduler its own directory (scheduler.data_dir)")]
    Taken(PathBuf),
    /// It cannot be written.
    #[error("cannot use {0} (scheduler.data_dir): {1}")]
    Unusable(PathBuf, #[source] io::Error),
}

impl Identity {
    /// Claims `dir` until this is dropped. `configured` names the process; empty means the name
    /// kept in the directory, made when it is first used.
    pub(super) fn claim(dir: &Path, configured: &str) -> Result<Self, IdentityError> {
        let unusable = |error| IdentityError::Unusable(dir.to_owned(), error);
        fs::create_dir_all(dir).map_err(unusable)?;
        let lock = File::create(dir.join("lock")).map_err(unusable)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => IdentityError::Taken(dir.to_owned()),
            TryLockError::Error(error) => unusable(error),
        })?;
        let instance = if configured.is_empty() {
            kept(&dir.join("instance")).map_err(unusable)?
        } else {
            configured.to_owned()
        };
        Ok(Self { instance, _lock: lock })
    }
}

fn kept(file: &Path) -> io::Result<String> {
    match fs::read_to_string(file) {
        Ok(name) if !name.trim().is_empty() => Ok(name.trim().to_owned()),
        Ok(_) => make(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(file),
        Err(error) => Err(error),
    }
}

fn make(file: &Path) -> io::Result<String> {
    let name = uuid::Uuid::now_v7().simple().to_string();
    fs::write(file, &name)?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_kept_and_held_once() {
        let dir = tempfile::tempdir().unwrap();
        let first = Identity::claim(dir.path(), "").unwrap();
        let second = Identity::claim(dir.path(), "");
        assert!(matches!(second, Err(IdentityError::Taken(_))));
        let name = first.instance.clone();
        drop(first);
        assert_eq!(Identity::claim(dir.path(), "").unwrap().instance, name);
        let _named = Identity::claim(dir.path(), "a").map(|i| assert_eq!(i.instance, "a"));
    }
}
