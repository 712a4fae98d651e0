//! The view: the records of the topics, projected into a SQLite file that can be listed, filtered
//! and searched. It can be deleted at any time; it is rebuilt from the topics.
//!
//! Invariant: nothing is decided here and nothing is written to Kafka. The offsets that were read
//! are committed in the same transaction as the rows, so a view that was killed continues where it
//! was, and a view that is built from nothing becomes the same.
//!
//! ```text
//!  triggers, ledger,      ┌────────── one thread ──────────┐
//!  outcomes, dead-letters ┼─► consumer ─► projector ───────┼─► SQLite ─► queries ─► View
//!  committed cursor ─► progress_poller ──► apply_cursor ─┘
//! ```

mod consumer;
mod decisions;
mod decode;
mod dump;
mod event_rows;
mod filter;
mod list_queries;
mod list_rows;
mod merged_outcomes;
mod pool;
mod progress;
mod progress_poller;
mod projector;
mod queries;
mod results;
mod retention;
mod schema;
mod schema_use;
mod search;
mod source;
mod status;
mod versions;
mod writer;

#[cfg(test)]
pub(crate) mod simulated;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::config::Settings;
use crate::health::Health;
use crate::kafka::error::ClientError;
use crate::model::{Offset, PartitionId, Timestamp};

pub use dump::dump;
pub use filter::{
    DeadLetterFilter, InvalidPageToken, Listing, PAGE_DEFAULT, PAGE_MAX, Page, PageToken, Scope,
    TriggerFilter,
};
pub use progress::{Freshness, ViewTopic, WritePosition};
pub use results::{
    CircuitView, DeadLetterView, ExecutionStatus, ExecutionView, LetterState, Overdue,
    RegistrationView, Status, TriggerView,
};
pub use search::{FINGERPRINT_HEADER, LABEL_HEADER_PREFIX, NAME_HEADER};

use pool::ConnectionPool;
use progress::ViewProgress;

/// The file's name in its directory.
const FILE_NAME: &str = "view.sqlite";

/// Why the view cannot answer, or cannot be opened.
#[derive(Debug, Error)]
pub enum ViewError {
    /// Answer "try again later": the file is being built, or was deleted.
    #[error("the view cannot be queried now: {0}")]
    Unavailable(String),
    /// Refuse the request.
    #[error(transparent)]
    InvalidToken(#[from] InvalidPageToken),
    /// The file cannot be used: it is deleted and rebuilt.
    #[error("the view's file cannot be used: {0}")]
    Incompatible(String),
    /// Tombstones may have been deleted before they were read: the file is deleted and rebuilt.
    #[error("the view's file may have missed tombstones of the ledger: {0}")]
    Outdated(String),
    /// The content of the file is invalid: it is deleted and rebuilt.
    #[error("the view's file is damaged: {0}")]
    Corrupt(String),
    /// The database returned an error. When writing, the file is deleted and rebuilt, unless a new
    /// one would fail in the same way.
    #[error("the view's database: {0}")]
    Database(#[from] rusqlite::Error),
    /// The cluster is unavailable; the file stays.
    #[error("the view cannot read the topics: {0}")]
    Kafka(#[from] ClientError),
    /// A newer version of Orloj wrote a record: upgrade this process.
    #[error("{0}; the view stands still until this process is upgraded")]
    NewerFormat(String),
    /// Give each gateway a directory of its own.
    #[error("another process uses {0}: give each gateway its own directory (gateway.view_dir)")]
    DirectoryLocked(PathBuf),
    /// Repair the directory, or configure another one.
    #[error("cannot use {0} (gateway.view_dir): {1}")]
    DirectoryUnusable(PathBuf, #[source] io::Error),
}

impl ViewError {
    /// Whether the content of the file is invalid, so that every further query fails too.
    fn is_corruption(&self) -> bool {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        match self {
            Self::Corrupt(_) => true,
            Self::Database(error) => {
                matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
            }
            _ => false,
        }
    }
}

/// The handle for queries; cheap to clone.
#[derive(Clone, Debug)]
pub struct View {
    pool: ConnectionPool,
    progress: ViewProgress,
    clock: ViewClock,
}

/// The clock of the machine, or that of a simulation.
#[derive(Clone)]
struct ViewClock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl fmt::Debug for ViewClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ViewClock").field(&(self.0)()).finish()
    }
}

/// Locks the directory of the view for this process.
#[derive(Debug)]
struct ViewDirLock {
    file: PathBuf,
    _lock: File,
}

impl ViewDirLock {
    fn acquire(dir: &Path) -> Result<Self, ViewError> {
        let unusable = |error| ViewError::DirectoryUnusable(dir.to_owned(), error);
        fs::create_dir_all(dir).map_err(unusable)?;
        let lock = File::create(dir.join("lock")).map_err(unusable)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => ViewError::DirectoryLocked(dir.to_owned()),
            TryLockError::Error(error) => unusable(error),
        })?;
        Ok(Self { file: dir.join(FILE_NAME), _lock: lock })
    }

    /// Deletes the file, and the files of SQLite next to it.
    fn wipe(&self) -> Result<(), ViewError> {
        for suffix in ["", "-wal", "-shm"] {
            let mut path = self.file.clone().into_os_string();
            path.push(suffix);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(ViewError::DirectoryUnusable(path.into(), error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl View {
    /// Opens or creates the database and reads the topics on threads of its own until `shutdown`.
    /// Part "view" of `health` reports its state; it is ready while the view still catches up,
    /// because writes do not need it.
    pub fn open(
        settings: &Settings,
        health: Arc<Health>,
        shutdown: CancellationToken,
    ) -> Result<Self, ViewError> {
        let dir_lock = ViewDirLock::acquire(&settings.gateway.view_dir)?;
        let pool = ConnectionPool::new(dir_lock.file.clone());
        let partitions = settings.topics.partitions.get();
        let (progress, report) = progress::progress_channel(usize::from(partitions));
        let writer = writer::ViewWriter {
            settings: settings.clone(),
            dir_lock,
            pool: pool.clone(),
            progress: report,
            health,
            shutdown,
        };
        let _detached = std::thread::spawn(move || writer.run());
        Ok(Self { pool, progress, clock: ViewClock(Arc::new(clock::now_ms)) })
    }

    /// Waits, at most `timeout`, until the view has everything up to these records; returns how
    /// fresh it is then.
    pub async fn wait_for(&self, marks: &[WritePosition], timeout: Duration) -> Freshness {
        let reached = self.progress.wait_for(marks, timeout).await;
        self.progress.freshness(self.now(), reached)
    }

    /// The time, in ms since the epoch, that
    /// [`wait_until_each`](Self::wait_until_each) compares with.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.clock.0)()
    }

    /// Waits, at most `timeout`, until the view has everything of these partitions that was written
    /// at the partition's time or before, in ms since the epoch; returns how fresh it is then.
    pub async fn wait_until_each(
        &self,
        times: &[(PartitionId, Timestamp)],
        timeout: Duration,
    ) -> Freshness {
        let reached = self.progress.wait_for_times(times, timeout).await;
        self.progress.freshness(self.now(), reached)
    }

    /// How fresh the view is.
    #[must_use]
    pub fn freshness(&self) -> Freshness {
        self.progress.freshness(self.now(), true)
    }

    /// A trigger; `None` if there is none that may be seen.
    pub async fn trigger(&self, scope: &Scope, id: &str) -> Result<Option<TriggerView>, ViewError> {
        let (scope, id) = (scope.clone(), id.to_owned());
        self.pool
            .query(move |queries| Ok(queries.trigger(&scope, &id)?.map(|found| found.view)))
            .await
    }

    /// The same, with its newest change: waits, at most `timeout`, for what that has changed, and
    /// for what its owner says of a newer registration that it may ignore.
    pub async fn current_trigger(
        &self,
        scope: &Scope,
        id: &str,
        timeout: Duration,
    ) -> Result<Option<TriggerView>, ViewError> {
        let mut progress = self.progress.clone();
        let newest = async {
            loop {
                let (scope, id) = (scope.clone(), id.to_owned());
                let query = self.pool.query(move |queries| {
                    let found = queries.trigger(&scope, &id)?.map(|found| found.view);
                    Ok((found, queries.has_undecided(&id)?))
                });
                let (found, is_undecided) = query.await?;
                let is_behind = found.as_ref().is_some_and(|trigger| trigger.is_behind);
                if !(is_behind || is_undecided) || !progress.changed().await {
                    return Ok(found);
                }
            }
        };
        match tokio::time::timeout(timeout, newest).await {
            Ok(found) => found,
            Err(_elapsed) => self.trigger(scope, id).await,
        }
    }

    /// Triggers, the newest registration first; of those due within a time, the latest due first.
    pub async fn triggers(
        &self,
        scope: &Scope,
        filter: &TriggerFilter,
        page: &Page,
    ) -> Result<Listing<TriggerView>, ViewError> {
        let (scope, filter, page) = (scope.clone(), filter.clone(), page.clone());
        self.pool.query(move |queries| queries.triggers(&scope, &filter, &page)).await
    }

    /// The executions of a trigger, the newest first; `None` if there is no trigger that may be
    /// seen.
    pub async fn executions(
        &self,
        scope: &Scope,
        id: &str,
        status: Option<ExecutionStatus>,
        page: &Page,
    ) -> Result<Option<Listing<ExecutionView>>, ViewError> {
        let (scope, id, page) = (scope.clone(), id.to_owned(), page.clone());
        self.pool.query(move |queries| queries.executions(&scope, &id, status, &page)).await
    }

    /// Dead letters, the latest given up first.
    pub async fn dead_letters(
        &self,
        scope: &Scope,
        filter: &DeadLetterFilter,
        page: &Page,
    ) -> Result<Listing<DeadLetterView>, ViewError> {
        let (scope, filter, page) = (scope.clone(), filter.clone(), page.clone());
        self.pool.query(move |queries| queries.dead_letters(&scope, &filter, &page)).await
    }

    /// A dead letter by its id, `<partition>-<offset>`.
    pub async fn dead_letter(
        &self,
        scope: &Scope,
        id: &str,
    ) -> Result<Option<DeadLetterView>, ViewError> {
        let (scope, id) = (scope.clone(), id.to_owned());
        self.pool.query(move |queries| queries.dead_letter(&scope, &id)).await
    }

    /// How many dead letters there are. Reads each of them if the filter has more than caller,
    /// state and time.
    pub async fn count_dead_letters(
        &self,
        scope: &Scope,
        filter: &DeadLetterFilter,
    ) -> Result<u64, ViewError> {
        let (scope, filter) = (scope.clone(), filter.clone());
        self.pool.query(move |queries| queries.count_dead_letters(&scope, &filter)).await
    }

    /// The newest state of each circuit, the latest change first.
    pub async fn circuits(&self, scope: &Scope) -> Result<Vec<CircuitView>, ViewError> {
        let scope = scope.clone();
        self.pool.query(move |queries| queries.circuits(&scope)).await
    }

    /// How many triggers of a caller are not settled.
    pub async fn pending_count(&self, caller: &str) -> Result<u64, ViewError> {
        let caller = caller.to_owned();
        self.pool.query(move |queries| queries.pending_count(&caller)).await
    }

    /// The registration of `id` with this generation, whatever its status.
    pub async fn registration(
        &self,
        id: &str,
        generation: Offset,
    ) -> Result<Option<RegistrationView>, ViewError> {
        let id = id.to_owned();
        self.pool.query(move |queries| queries.registration(&id, generation)).await
    }

    /// One-time callbacks that have not ended and whose next attempt was due before `before` (ms
    /// since the epoch), the latest first.
    pub async fn overdue(
        &self,
        before: Timestamp,
        page: &Page,
    ) -> Result<Listing<Overdue>, ViewError> {
        let page = page.clone();
        self.pool.query(move |queries| queries.overdue(before, &page)).await
    }

    /// All that [`overdue`](Self::overdue) lists, page by page.
    pub async fn for_each_overdue(
        &self,
        before: Timestamp,
        mut visit: impl FnMut(Overdue),
    ) -> Result<(), ViewError> {
        let mut token = None;
        loop {
            let page = Page { size: PAGE_MAX, token };
            let listing = self.overdue(before, &page).await?;
            listing.items.into_iter().for_each(&mut visit);
            token = listing.next;
            if token.is_none() {
                return Ok(());
            }
        }
    }
}
