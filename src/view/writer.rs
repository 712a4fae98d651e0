//! The thread that writes the database: opens it or makes it, follows the topics, and begins anew
//! where that comes to nothing.
//!
//! Law: whatever befalls the file, the gateway goes on: the view says what it lacks, throws the
//! file away and makes it again. What befalls Kafka leaves the file as it is.

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
        let lived = follow.run(&self.shutdown);
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
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
        ),
        _ => false,
    }
}
