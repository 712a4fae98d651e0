//! The connections for queries, beside the one that writes.
//!
//! Invariant: a query runs on a thread that may block, no more of them at once than there are
//! connections, and never on a file that was deleted.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::ViewError;
use super::queries::Queries;
use super::schema;

/// Queries that run at once: each occupies a thread, and the others wait.
const CONNECTIONS: usize = 8;

/// Shared by all clones of the view; knows the current file.
#[derive(Clone, Debug)]
pub(super) struct ConnectionPool {
    permits: Arc<Semaphore>,
    state: Arc<Mutex<PoolState>>,
}

#[derive(Debug)]
struct PoolState {
    path: PathBuf,
    /// The number of the current file; `None` while there is none.
    current_file: Option<u64>,
    files_opened: u64,
    idle: Vec<(u64, Connection)>,
    /// The corruption that a query has found in the file.
    corruption: Option<String>,
    /// Why there is no file, for people.
    unavailable_reason: String,
}

impl ConnectionPool {
    pub(super) fn new(path: PathBuf) -> Self {
        let reason = "the view is being opened".to_owned();
        let state = PoolState {
            path,
            current_file: None,
            files_opened: 0,
            idle: Vec::new(),
            corruption: None,
            unavailable_reason: reason,
        };
        let permits = Arc::new(Semaphore::new(CONNECTIONS));
        Self { permits, state: Arc::new(Mutex::new(state)) }
    }

    /// There is a file to query.
    pub(super) fn file_opened(&self) {
        let mut state = self.lock();
        state.files_opened += 1;
        state.current_file = Some(state.files_opened);
        state.corruption = None;
    }

    /// The file is about to be deleted.
    pub(super) fn file_closed(&self, reason: &str) {
        let mut state = self.lock();
        state.current_file = None;
        state.idle.clear();
        reason.clone_into(&mut state.unavailable_reason);
    }

    /// Fails if a query has found the file corrupt.
    pub(super) fn check_corruption(&self) -> Result<(), ViewError> {
        self.lock().corruption.take().map_or(Ok(()), |damage| Err(ViewError::Corrupt(damage)))
    }

    /// Runs a query.
    pub(super) async fn query<T: Send + 'static>(
        &self,
        run: impl FnOnce(Queries<'_>) -> Result<T, ViewError> + Send + 'static,
    ) -> Result<T, ViewError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let pool = self.clone();
        let answer = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let (file, connection) = pool.acquire()?;
            let answer = run(Queries(&connection));
            pool.record_corruption(file, answer.as_ref().err());
            pool.release(file, connection);
            answer
        });
        answer.await.map_err(|error| ViewError::Unavailable(error.to_string()))?
    }

    fn acquire(&self) -> Result<(u64, Connection), ViewError> {
        let (file, path) = {
            let mut state = self.lock();
            let Some(file) = state.current_file else {
                return Err(ViewError::Unavailable(state.unavailable_reason.clone()));
            };
            if let Some(idle) = state.idle.pop() {
                return Ok(idle);
            }
            (file, state.path.clone())
        };
        let connection = schema::open_reader(&path);
        self.record_corruption(file, connection.as_ref().err());
        Ok((file, connection?))
    }

    /// Records the corruption, for the writer that can rebuild the file.
    fn record_corruption(&self, file: u64, error: Option<&ViewError>) {
        let Some(error) = error.filter(|error| error.is_corruption()) else { return };
        let mut state = self.lock();
        if state.current_file == Some(file) {
            state.corruption = Some(error.to_string());
        }
    }

    fn release(&self, file: u64, connection: Connection) {
        let mut state = self.lock();
        if state.current_file == Some(file) {
            state.idle.push((file, connection));
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
