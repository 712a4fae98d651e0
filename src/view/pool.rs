//! The connections that answer questions, beside the one that writes.
//!
//! Law: a question runs on a thread where waiting is allowed, no more of them at once than there
//! are connections, and never on a file that was thrown away.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::ViewError;
use super::ask::Ask;
use super::schema;

/// Questions that are answered at once: each is a thread at work, and the rest waits its turn.
const CONNECTIONS: usize = 8;

/// Shared by all who ask; knows which file is the one to ask.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    turns: Arc<Semaphore>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    path: PathBuf,
    /// Counts the files there were; nothing while there is none.
    file: Option<u64>,
    files: u64,
    idle: Vec<(u64, Connection)>,
    /// What a question has found wrong with the file.
    damage: Option<String>,
    /// Why there is none, for people.
    reason: String,
}

impl Pool {
    pub(super) fn new(path: PathBuf) -> Self {
        let reason = "the view is being opened".to_owned();
        let state = State { path, file: None, files: 0, idle: Vec::new(), damage: None, reason };
        let turns = Arc::new(Semaphore::new(CONNECTIONS));
        Self { turns, state: Arc::new(Mutex::new(state)) }
    }

    /// There is a file to ask.
    pub(super) fn opened(&self) {
        let mut state = self.lock();
        state.files += 1;
        state.file = Some(state.files);
        state.damage = None;
    }

    /// The file is to be thrown away.
    pub(super) fn closed(&self, reason: &str) {
        let mut state = self.lock();
        state.file = None;
        state.idle.clear();
        reason.clone_into(&mut state.reason);
    }

    /// Fails if a question has found the file to be of no use.
    pub(super) fn check(&self) -> Result<(), ViewError> {
        self.lock().damage.take().map_or(Ok(()), |damage| Err(ViewError::Damaged(damage)))
    }

    /// Puts a question.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(Ask<'_>) -> Result<T, ViewError> + Send + 'static,
    ) -> Result<T, ViewError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let pool = self.clone();
        let answer = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let (file, connection) = pool.take()?;
            let answer = question(Ask(&connection));
            pool.note(file, answer.as_ref().err());
            pool.put_back(file, connection);
            answer
        });
        answer.await.map_err(|error| ViewError::Away(error.to_string()))?
    }

    fn take(&self) -> Result<(u64, Connection), ViewError> {
        let (file, path) = {
            let mut state = self.lock();
            let Some(file) = state.file else { return Err(ViewError::Away(state.reason.clone())) };
            if let Some(idle) = state.idle.pop() {
                return Ok(idle);
            }
            (file, state.path.clone())
        };
        let connection = schema::open_reader(&path);
        self.note(file, connection.as_ref().err());
        Ok((file, connection?))
    }

    /// Remembers what is wrong with the file, for who can make another one.
    fn note(&self, file: u64, error: Option<&ViewError>) {
        let Some(error) = error.filter(|error| error.is_damage()) else { return };
        let mut state = self.lock();
        if state.file == Some(file) {
            state.damage = Some(error.to_string());
        }
    }

    fn put_back(&self, file: u64, connection: Connection) {
        let mut state = self.lock();
        if state.file == Some(file) {
            state.idle.push((file, connection));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
