//! The thread that writes the database: opens it or makes it, follows the topics, and begins anew
//! where that comes to nothing.
//!
//! Law: whatever befalls the file, the gateway goes on: the view says what it lacks, throws the
//! file away and makes it again. What befalls Kafka, the disk or the process leaves the file as it
//! is: another one would fare no better.

use std::time::Duration;

use rusqlite::{Connection, ErrorCode};
use tokio_util::sync::CancellationToken;

use super::follow::Follow;
use super::pool::Pool;
use super::progress::Report;
use super::{Claim, ViewError, schema};
use crate::config::Settings;
use crate::health::Health;
use crate::kafka::Names;
use crate::kafka::probe::Probe;
use crate::telemetry;

/// The part of the gateway's health that this is.
pub(super) const PART: &str = "view";
/// How long the broker may take to say which cluster it is of.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before the first new beginning; each further one doubles it.
const PAUSE: Duration = Duration::from_millis(500);
/// How often it is doubled: half a minute.
const DOUBLINGS_MAX: u32 = 6;
/// How long the thread may take to hear of a shutdown.
const NAP: Duration = Duration::from_millis(50);

/// What the thread has.
pub(super) struct Writer {
    pub(super) settings: Settings,
    pub(super) claim: Claim,
    pub(super) pool: Pool,
    pub(super) report: Report,
    pub(super) health: std::sync::Arc<Health>,
    pub(super) shutdown: CancellationToken,
}

impl Writer {
    /// Lives, again and again, until the shutdown.
    pub(super) fn run(self) {
        self.health.ready_but(PART, "it is being opened; lists may be old or missing");
        let mut failures = 0;
        while !self.shutdown.is_cancelled() {
            let mut caught_up = false;
            let Err(error) = self.live(&mut caught_up) else { return };
            failures = if caught_up { 0 } else { failures + 1 };
            self.health.ready_but(PART, error.to_string());
            tracing::error!(%error, "the view begins anew");
            if is_of_the_file(&error) {
                self.pool.closed(&error.to_string());
                metrics::counter!(telemetry::VIEW_REBUILDS).increment(1);
                if let Err(error) = self.claim.wipe() {
                    tracing::error!(%error, "the view's file cannot be removed");
                }
            }
            self.rest(PAUSE * 2_u32.pow(failures.min(DOUBLINGS_MAX)));
        }
    }

    fn rest(&self, pause: Duration) {
        let mut naps = pause.as_millis() / NAP.as_millis();
        while naps > 0 && !self.shutdown.is_cancelled() {
            std::thread::park_timeout(NAP);
            naps -= 1;
        }
    }

    fn live(&self, caught_up: &mut bool) -> Result<(), ViewError> {
        let identity = self.identity()?;
        let db = self.open(&identity)?;
        self.report.begin();
        self.pool.opened();
        let mut follow = Follow::new(&self.settings, &db, &self.report, &self.health)?;
        let lived = follow.run(&self.shutdown, &self.pool);
        *caught_up = follow.has_caught_up();
        lived
    }

    /// The file, if it may be gone on with, else a new one.
    fn open(&self, identity: &str) -> Result<Connection, ViewError> {
        match schema::open(&self.claim.file, identity) {
            Ok((db, new)) => {
                let file = self.claim.file.display();
                tracing::info!(%file, new, "the view is open");
                return Ok(db);
            }
            Err(error) if is_of_the_file(&error) => {
                tracing::warn!(%error, "the view is made anew");
                metrics::counter!(telemetry::VIEW_REBUILDS).increment(1);
            }
            Err(error) => return Err(error),
        }
        self.pool.closed("its file was thrown away");
        self.claim.wipe()?;
        Ok(schema::open(&self.claim.file, identity)?.0)
    }

    /// What must be the same for a file to be of use.
    fn identity(&self) -> Result<String, ViewError> {
        let probe = Probe::open(&self.settings, TIMEOUT)?;
        let topics = &self.settings.topics;
        let triggers = Names::new(&topics.prefix).triggers();
        let Some(partitions) = probe.partitions(&triggers)? else {
            return Err(ViewError::Away(format!("there is no topic {triggers}")));
        };
        let cluster = probe.cluster_id().unwrap_or_default();
        Ok(format!("{cluster}/{}/{partitions}", topics.prefix))
    }
}

/// Whether another file would do better.
fn is_of_the_file(error: &ViewError) -> bool {
    match error {
        ViewError::Foreign(_) | ViewError::Damaged(_) => true,
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
    use crate::view::answer::TriggerView;
    use crate::view::filter::Scope;
    use crate::view::progress;

    /// A writer in a folder of its own, which never asks for the cluster.
    fn writer() -> (Writer, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let (_progress, report) = progress::pair(1);
        let claim = Claim::take(folder.path()).unwrap();
        let writer = Writer {
            settings: Settings::load(&Layers::default()).unwrap(),
            pool: Pool::new(claim.file.clone()),
            claim,
            report,
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
    fn write(writer: &Writer, identity: &str) {
        let db = writer.open(identity).unwrap();
        db.execute("INSERT INTO name (text) VALUES ('tea')", []).unwrap();
        assert!(!is_empty(&writer.open(identity).unwrap()), "it is gone on with");
    }

    #[test]
    fn a_file_that_cannot_be_gone_on_with_is_made_anew() {
        type Harm = fn(&Writer);
        let harms: [(&str, Harm); 5] = [
            ("no database", |writer| fs::write(&writer.claim.file, [7; 8_192]).unwrap()),
            ("cut", |writer| {
                let file = fs::File::options().write(true).open(&writer.claim.file).unwrap();
                file.set_len(5_000).unwrap();
            }),
            ("of a newer version", |writer| {
                let db = Connection::open(&writer.claim.file).unwrap();
                db.execute_batch("PRAGMA user_version = 99").unwrap();
            }),
            ("of another cluster", |writer| {
                let db = Connection::open(&writer.claim.file).unwrap();
                db.execute_batch("UPDATE meta SET value = 'other'").unwrap();
            }),
            ("without its tables", |writer| {
                let db = Connection::open(&writer.claim.file).unwrap();
                db.execute_batch("DROP TABLE meta").unwrap();
            }),
        ];
        for (name, harm) in harms {
            let (writer, _folder) = writer();
            write(&writer, "cluster/orloj/1");
            harm(&writer);
            assert!(is_empty(&writer.open("cluster/orloj/1").unwrap()), "{name}");
            assert!(is_empty(&writer.open("cluster/orloj/1").unwrap()), "{name}: it is of use");
        }
    }

    #[test]
    fn what_sqlite_has_beside_the_file_goes_with_it() {
        let (writer, folder) = writer();
        for name in ["view.sqlite", "view.sqlite-wal", "view.sqlite-shm", "notes.txt"] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        writer.claim.wipe().unwrap();
        writer.claim.wipe().unwrap();
        let left = fs::read_dir(folder.path()).unwrap();
        let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["lock", "notes.txt"]);
    }

    #[test]
    fn a_folder_is_of_one_process() {
        let (_writer, folder) = writer();
        assert!(matches!(Claim::take(folder.path()), Err(ViewError::Taken(_))));
    }

    #[test]
    fn only_what_another_file_would_mend_costs_the_file() {
        let sqlite = |code| {
            ViewError::Database(rusqlite::Error::SqliteFailure(
                rusqlite::ffi::Error::new(code),
                None,
            ))
        };
        for (error, is_mended) in [
            (ViewError::Foreign(String::new()), true),
            (ViewError::Damaged(String::new()), true),
            (sqlite(rusqlite::ffi::SQLITE_CORRUPT), true),
            (sqlite(rusqlite::ffi::SQLITE_NOTADB), true),
            (sqlite(rusqlite::ffi::SQLITE_BUSY), false),
            (sqlite(rusqlite::ffi::SQLITE_LOCKED), false),
            (sqlite(rusqlite::ffi::SQLITE_FULL), false),
            (sqlite(rusqlite::ffi::SQLITE_NOMEM), false),
            (sqlite(rusqlite::ffi::SQLITE_CANTOPEN), false),
            (sqlite(rusqlite::ffi::SQLITE_READONLY), false),
            (sqlite(rusqlite::ffi::SQLITE_PERM), false),
            (ViewError::Away(String::new()), false),
            (ViewError::Newer(String::new()), false),
        ] {
            assert_eq!(is_of_the_file(&error), is_mended, "{error}");
        }
    }

    async fn look(writer: &Writer) -> Result<Option<TriggerView>, ViewError> {
        let question = |ask: crate::view::ask::Ask<'_>| {
            Ok(ask.trigger(&Scope::All, "tea")?.map(|found| found.view))
        };
        writer.pool.ask(question).await
    }

    #[tokio::test]
    async fn damage_that_a_question_meets_is_told_to_who_makes_the_file_anew() {
        let (writer, _folder) = writer();
        let db = writer.open("cluster").unwrap();
        writer.pool.opened();
        assert!(matches!(look(&writer).await, Ok(None)));
        assert!(writer.pool.check().is_ok());
        db.execute_batch("DROP TABLE subject").unwrap();
        assert!(look(&writer).await.is_err());
        assert!(writer.pool.check().is_ok(), "it may be a fault of the question");
        drop(db);

        writer.claim.wipe().unwrap();
        fs::write(&writer.claim.file, [7; 8_192]).unwrap();
        writer.pool.closed("x");
        writer.pool.opened();
        assert!(look(&writer).await.is_err());
        let error = writer.pool.check().unwrap_err();
        assert!(is_of_the_file(&error), "{error}");
        assert!(look(&writer).await.is_err());
        writer.pool.closed("x");
        writer.pool.opened();
        assert!(writer.pool.check().is_ok(), "that was another file");
    }
}
