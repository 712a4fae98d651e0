//! The current callers: one handle for a role, reloaded while the process runs.
//!
//! Invariant: a reader sees one complete table. When the file cannot be read, the previous table
//! stays in use, and the log, a metric and `/readyz?verbose` report it until the file is repaired.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::caller::Caller;
use super::table::CallerTable;
use crate::config::{ConfigError, Settings};
use crate::health::Health;
use crate::telemetry;

/// The part of a role's health that this is.
const PART: &str = "callers";

/// How long a changed file must stay unchanged before it is used: a file that is being written is
/// empty or incomplete for a moment, and that may be a valid table too.
const STABLE_FOR: Duration = Duration::from_millis(100);

/// The table, or why the file is refused.
type TableResult = Result<CallerTable, String>;

/// Where the callers are looked up; clones share one table.
#[derive(Clone, Debug)]
pub struct Callers {
    current: Arc<RwLock<Arc<CallerTable>>>,
}

impl Callers {
    /// Reads the file, and reloads it until `shutdown`. Must be called inside a tokio runtime.
    pub fn watch(
        settings: &Settings,
        health: Arc<Health>,
        shutdown: CancellationToken,
    ) -> Result<Self, ConfigError> {
        let table = CallerTable::read(settings)?;
        let is_open = table.is_open();
        let callers = Self::fixed(table);
        if !is_open {
            let hangup = signal(SignalKind::hangup());
            let hangup = hangup.inspect_err(|error| {
                tracing::warn!(%error, "cannot handle SIGHUP: only the interval reloads callers");
            });
            let watcher = CallersFileWatcher { callers: callers.clone(), health, refused: None };
            watcher.report_accepted();
            let _detached = tokio::spawn(watcher.run(settings.clone(), hangup.ok(), shutdown));
        }
        Ok(callers)
    }

    /// A table that never changes.
    #[must_use]
    pub fn fixed(callers: CallerTable) -> Self {
        Self { current: Arc::new(RwLock::new(Arc::new(callers))) }
    }

    /// The table that was read last.
    #[must_use]
    pub fn current(&self) -> Arc<CallerTable> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The caller of a record, by the value of its `orloj-caller` header.
    #[must_use]
    pub fn for_record(&self, id: Option<&str>) -> Arc<Caller> {
        Arc::clone(self.current().by_id(id))
    }
}

/// Reloads the file.
struct CallersFileWatcher {
    callers: Callers,
    health: Arc<Health>,
    /// Why the file is refused, if it is.
    refused: Option<String>,
}

impl CallersFileWatcher {
    async fn run(
        mut self,
        settings: Settings,
        mut hangup: Option<Signal>,
        shutdown: CancellationToken,
    ) {
        let mut interval = tokio::time::interval(settings.callers.reload_interval);
        loop {
            let reload_requested = async {
                match &mut hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = interval.tick() => {}
                _ = reload_requested => {}
            }
            let mut reading = read(&settings).await;
            while self.is_change(&reading) {
                tokio::time::sleep(STABLE_FOR).await;
                let again = read(&settings).await;
                if is_same_result(&reading, &again) {
                    match again {
                        Ok(callers) => self.replace(callers),
                        Err(reason) => self.report_refused(reason),
                    }
                    break;
                }
                reading = again;
            }
        }
    }

    fn is_change(&self, reading: &TableResult) -> bool {
        match reading {
            Ok(callers) => {
                self.refused.is_some() || !self.callers.current().has_same_version(callers)
            }
            Err(reason) => self.refused.as_ref() != Some(reason),
        }
    }

    fn replace(&mut self, callers: CallerTable) {
        self.refused = None;
        *self.callers.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(callers);
        self.report_accepted();
    }

    fn report_accepted(&self) {
        tracing::info!(callers = self.callers.current().count(), "callers loaded");
        metrics::gauge!(telemetry::CALLERS_REFUSED).set(0.0);
        self.health.ready(PART);
    }

    fn report_refused(&mut self, reason: String) {
        tracing::error!(%reason, "cannot reload callers.file: the previous callers stay in use");
        metrics::gauge!(telemetry::CALLERS_REFUSED).set(1.0);
        self.health.ready_with_remark(PART, format!("the previous callers stay in use: {reason}"));
        self.refused = Some(reason);
    }
}

/// Reads the file on a blocking thread: the disk may be slow.
async fn read(settings: &Settings) -> TableResult {
    let settings = settings.clone();
    let reading = tokio::task::spawn_blocking(move || CallerTable::read(&settings)).await;
    reading.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

fn is_same_result(one: &TableResult, other: &TableResult) -> bool {
    match (one, other) {
        (Ok(one), Ok(other)) => one.has_same_version(other),
        (Err(one), Err(other)) => one == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layers;

    #[tokio::test]
    async fn a_refused_file_keeps_the_callers_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("callers.toml");
        std::fs::write(&file, "[callers.tea]").unwrap();
        let path = format!("callers.file={}", file.display());
        let overrides = vec![path, "callers.reload_interval=10ms".to_owned()];
        let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
        let (health, shutdown) = (Health::new("worker"), CancellationToken::new());
        let callers = Callers::watch(&settings, Arc::clone(&health), shutdown.clone()).unwrap();
        let knows = |id: &str| callers.for_record(Some(id)).id == id;
        assert!(knows("tea") && !knows("milk"));

        std::fs::write(&file, "[callers.milk]\n[callers.tea]").unwrap();
        until(|| knows("milk")).await;
        std::fs::write(&file, "[callers.milk]\nkey = []").unwrap();
        until(|| health.describe().contains("did you mean `callers.milk.keys`?")).await;
        assert!(knows("milk") && knows("tea") && health.is_ready());

        std::fs::write(&file, "[callers.milk]").unwrap();
        until(|| health.describe() == "worker callers: ready\n").await;
        // A file that is being written is empty for a moment, and may be read then.
        until(|| knows("milk") && !knows("tea")).await;
        shutdown.cancel();
    }

    #[tokio::test]
    async fn a_process_does_not_start_with_an_invalid_file() {
        let overrides = vec!["callers.file=/nowhere/callers.toml".to_owned()];
        let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
        let (health, shutdown) = (Health::new("worker"), CancellationToken::new());
        assert!(Callers::watch(&settings, health, shutdown).is_err());
    }

    async fn until(mut holds: impl FnMut() -> bool) {
        let mut look = tokio::time::interval(Duration::from_millis(5));
        let looking = async {
            while !holds() {
                look.tick().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), looking).await.expect("the change in time");
    }
}
