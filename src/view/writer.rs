//! The thread that writes the database: opens or creates it, reads the topics, and restarts after
//! an error.
//!
//! Invariant: whatever happens to the file, the gateway continues: the view reports what is
//! missing, deletes the file and rebuilds it. A failure of Kafka, the disk or the process leaves
//! the file as it is: a new one would fail in the same way.

use std::time::Duration;

use rusqlite::{Connection, ErrorCode};
use tokio_util::sync::CancellationToken;

use super::consumer::{HEALTH_PART, ViewConsumer};
use super::pool::ConnectionPool;
use super::progress::ProgressPublisher;
use super::{ViewDirLock, ViewError, schema};
use crate::clock;
use crate::config::Settings;
use crate::health::Health;
use crate::kafka::Names;
use crate::kafka::admin_client::KafkaAdminClient;
use crate::telemetry;

/// How long the broker may take to return the cluster id.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before the first restart; each further one doubles it.
const RESTART_PAUSE: Duration = Duration::from_millis(500);
/// How often it is doubled: half a minute.
const DOUBLINGS_MAX: u32 = 6;
/// How long the thread may take to notice a shutdown.
const SHUTDOWN_POLL: Duration = Duration::from_millis(50);

/// What the thread has.
pub(super) struct ViewWriter {
    pub(super) settings: Settings,
    pub(super) dir_lock: ViewDirLock,
    pub(super) pool: ConnectionPool,
    pub(super) progress: ProgressPublisher,
    pub(super) health: std::sync::Arc<Health>,
    pub(super) shutdown: CancellationToken,
}

impl ViewWriter {
    /// Runs, and restarts after each error, until the shutdown.
    pub(super) fn run(self) {
        self.health
            .ready_with_remark(HEALTH_PART, "it is being opened; lists may be old or missing");
        let mut failures = 0;
        while !self.shutdown.is_cancelled() {
            let mut caught_up = false;
            let Err(error) = self.run_once(&mut caught_up) else { return };
            failures = if caught_up { 0 } else { failures + 1 };
            self.health.ready_with_remark(HEALTH_PART, error.to_string());
            tracing::error!(%error, "the view restarts after an error");
            if needs_new_file(&error) {
                self.pool.file_closed(&error.to_string());
                metrics::counter!(telemetry::VIEW_REBUILDS).increment(1);
                if let Err(error) = self.dir_lock.wipe() {
                    tracing::error!(%error, "the view's file cannot be removed");
                }
            }
            self.wait_before_restart(RESTART_PAUSE * 2_u32.pow(failures.min(DOUBLINGS_MAX)));
        }
    }

    fn wait_before_restart(&self, pause: Duration) {
        let mut polls_left = pause.as_millis() / SHUTDOWN_POLL.as_millis();
        while polls_left > 0 && !self.shutdown.is_cancelled() {
            std::thread::sleep(SHUTDOWN_POLL);
            polls_left -= 1;
        }
    }

    fn run_once(&self, caught_up: &mut bool) -> Result<(), ViewError> {
        let identity = self.identity()?;
        let (db, is_new) = self.open(&identity)?;
        if is_new {
            self.progress.reset();
        }
        self.pool.file_opened();
        let mut consumer = ViewConsumer::new(&self.settings, &db, &self.progress, &self.health)?;
        let result = consumer.run(&self.shutdown, &self.pool);
        *caught_up = consumer.has_caught_up();
        result
    }

    /// The existing file if it can be used, else a new one; and whether it is a new one.
    fn open(&self, identity: &str) -> Result<(Connection, bool), ViewError> {
        let open = || {
            let (now, age_max) = (clock::now_ms(), self.settings.store.state_age_max);
            schema::open(&self.dir_lock.file, identity, now, age_max)
        };
        match open() {
            Ok((db, new)) => {
                let file = self.dir_lock.file.display();
                tracing::info!(%file, new, "the view is open");
                return Ok((db, new));
            }
            Err(error) if needs_new_file(&error) => {
                if matches!(error, ViewError::Outdated(_)) {
                    tracing::info!(%error, "the view's file is rebuilt");
                } else {
                    tracing::warn!(%error, "the view's file is rebuilt");
                }
                metrics::counter!(telemetry::VIEW_REBUILDS).increment(1);
            }
            Err(error) => return Err(error),
        }
        self.pool.file_closed("its file was deleted");
        self.dir_lock.wipe()?;
        Ok((open()?.0, true))
    }

    /// What must be equal for a file to be used again.
    fn identity(&self) -> Result<String, ViewError> {
        let admin = KafkaAdminClient::open(&self.settings, TIMEOUT)?;
        let topics = &self.settings.topics;
        let triggers = Names::new(&topics.prefix).triggers();
        let Some(partitions) = admin.partitions(&triggers)? else {
            return Err(ViewError::Unavailable(format!("there is no topic {triggers}")));
        };
        let cluster = admin.cluster_id().unwrap_or_default();
        Ok(format!("{cluster}/{}/{partitions}", topics.prefix))
    }
}

/// Whether a new file would solve it.
fn needs_new_file(error: &ViewError) -> bool {
    match error {
        ViewError::Incompatible(_) | ViewError::Outdated(_) | ViewError::Corrupt(_) => true,
        ViewError::Database(error) => !matches!(
            error.sqlite_error_code(),
            Some(
                ErrorCode::DatabaseBusy
                    | ErrorCode::DatabaseLocked
                    | ErrorCode::DiskFull
                    | ErrorCode::OutOfMemory
                    | ErrorCode::CannotOpen
                    | ErrorCode::PermissionDenied
                    | ErrorCode::ReadOnly
            )
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;
    use crate::config::Layers;
    use crate::model::Timestamp;
    use crate::view::filter::Scope;
    use crate::view::progress;
    use crate::view::results::TriggerView;

    /// A writer in a directory of its own, which never contacts the cluster.
    fn writer() -> (ViewWriter, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let (_progress, report) = progress::progress_channel(1);
        let dir_lock = ViewDirLock::acquire(folder.path()).unwrap();
        let writer = ViewWriter {
            settings: Settings::load(&Layers::default()).unwrap(),
            pool: ConnectionPool::new(dir_lock.file.clone()),
            dir_lock,
            progress: report,
            health: Health::new("view"),
            shutdown: CancellationToken::new(),
        };
        (writer, folder)
    }

    fn is_empty(db: &Connection) -> bool {
        let sql = "SELECT count(*) FROM name";
        db.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap() == 0
    }

    /// A file of this identity with something in it.
    fn write(writer: &ViewWriter, identity: &str) {
        let db = writer.open(identity).unwrap().0;
        db.execute("INSERT INTO name (text) VALUES ('tea')", []).unwrap();
        assert!(!is_empty(&writer.open(identity).unwrap().0), "the file is used again");
    }

    #[test]
    fn an_unusable_file_is_rebuilt() {
        type CorruptFile = fn(&ViewWriter);
        let harms: [(&str, CorruptFile); 6] = [
            ("no database", |writer| fs::write(&writer.dir_lock.file, [7; 8_192]).unwrap()),
            ("cut", |writer| {
                let file = fs::File::options().write(true).open(&writer.dir_lock.file).unwrap();
                file.set_len(5_000).unwrap();
            }),
            ("of a newer version", |writer| {
                let db = Connection::open(&writer.dir_lock.file).unwrap();
                db.execute_batch("PRAGMA user_version = 99").unwrap();
            }),
            ("of another cluster", |writer| {
                let db = Connection::open(&writer.dir_lock.file).unwrap();
                db.execute_batch("UPDATE meta SET value = 'other' WHERE key = 'identity'").unwrap();
            }),
            ("of an unknown age", |writer| {
                let db = Connection::open(&writer.dir_lock.file).unwrap();
                db.execute_batch("DELETE FROM meta WHERE key = 'as_of'").unwrap();
            }),
            ("without its tables", |writer| {
                let db = Connection::open(&writer.dir_lock.file).unwrap();
                db.execute_batch("DROP TABLE meta").unwrap();
            }),
        ];
        for (name, harm) in harms {
            let (writer, _folder) = writer();
            write(&writer, "cluster/orloj/1");
            harm(&writer);
            assert!(is_empty(&writer.open("cluster/orloj/1").unwrap().0), "{name}");
            assert!(
                is_empty(&writer.open("cluster/orloj/1").unwrap().0),
                "{name}: the new file can be used"
            );
        }
    }

    #[test]
    fn a_file_that_may_have_missed_a_tombstone_is_rebuilt() {
        let (writer, _folder) = writer();
        let age_max = Timestamp::try_from(writer.settings.store.state_age_max.as_millis()).unwrap();
        for (age, is_rebuilt) in [(0, false), (age_max - 60_000, false), (age_max, true)] {
            write(&writer, "cluster");
            let db = writer.open("cluster").unwrap().0;
            let as_of = (clock::now_ms() - age).to_string();
            let sql = "UPDATE meta SET value = ?1 WHERE key = 'as_of'";
            let _changed = db.execute(sql, [as_of]).unwrap();
            drop(db);
            assert_eq!(is_empty(&writer.open("cluster").unwrap().0), is_rebuilt, "{age}");
            writer.dir_lock.wipe().unwrap();
        }
    }

    #[test]
    fn wal_files_are_deleted_with_the_database() {
        let (writer, folder) = writer();
        for name in ["view.sqlite", "view.sqlite-wal", "view.sqlite-shm", "notes.txt"] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        writer.dir_lock.wipe().unwrap();
        writer.dir_lock.wipe().unwrap();
        let left = fs::read_dir(folder.path()).unwrap();
        let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["lock", "notes.txt"]);
    }

    #[test]
    fn the_directory_is_locked_by_one_process() {
        let (_writer, folder) = writer();
        assert!(matches!(ViewDirLock::acquire(folder.path()), Err(ViewError::DirectoryLocked(_))));
    }

    #[test]
    fn the_file_is_rebuilt_only_for_errors_that_a_new_file_fixes() {
        let sqlite = |code| {
            ViewError::Database(rusqlite::Error::SqliteFailure(
                rusqlite::ffi::Error::new(code),
                None,
            ))
        };
        for (error, needs_new) in [
            (ViewError::Incompatible(String::new()), true),
            (ViewError::Outdated(String::new()), true),
            (ViewError::Corrupt(String::new()), true),
            (sqlite(rusqlite::ffi::SQLITE_CORRUPT), true),
            (sqlite(rusqlite::ffi::SQLITE_NOTADB), true),
            (sqlite(rusqlite::ffi::SQLITE_BUSY), false),
            (sqlite(rusqlite::ffi::SQLITE_LOCKED), false),
            (sqlite(rusqlite::ffi::SQLITE_FULL), false),
            (sqlite(rusqlite::ffi::SQLITE_NOMEM), false),
            (sqlite(rusqlite::ffi::SQLITE_CANTOPEN), false),
            (sqlite(rusqlite::ffi::SQLITE_READONLY), false),
            (sqlite(rusqlite::ffi::SQLITE_PERM), false),
            (ViewError::Unavailable(String::new()), false),
            (ViewError::NewerFormat(String::new()), false),
        ] {
            assert_eq!(needs_new_file(&error), needs_new, "{error}");
        }
    }

    async fn query_trigger(writer: &ViewWriter) -> Result<Option<TriggerView>, ViewError> {
        let query = |queries: crate::view::queries::Queries<'_>| {
            Ok(queries.trigger(&Scope::All, "tea")?.map(|found| found.view))
        };
        writer.pool.query(query).await
    }

    #[tokio::test]
    async fn corruption_found_by_a_query_is_reported_to_the_writer() {
        let (writer, _folder) = writer();
        let db = writer.open("cluster").unwrap().0;
        writer.pool.file_opened();
        assert!(matches!(query_trigger(&writer).await, Ok(None)));
        assert!(writer.pool.check_corruption().is_ok());
        db.execute_batch("DROP TABLE subject").unwrap();
        assert!(query_trigger(&writer).await.is_err());
        assert!(writer.pool.check_corruption().is_ok(), "it may be an error of the query");
        drop(db);

        writer.dir_lock.wipe().unwrap();
        fs::write(&writer.dir_lock.file, [7; 8_192]).unwrap();
        writer.pool.file_closed("x");
        writer.pool.file_opened();
        assert!(query_trigger(&writer).await.is_err());
        let error = writer.pool.check_corruption().unwrap_err();
        assert!(needs_new_file(&error), "{error}");
        assert!(query_trigger(&writer).await.is_err());
        writer.pool.file_closed("x");
        writer.pool.file_opened();
        assert!(writer.pool.check_corruption().is_ok(), "that was another file");
    }
}
