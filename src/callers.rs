//! The callers as they are now: one handle for a role, read anew while the process runs.
//!
//! Law: who looks sees one whole reading. A file that cannot be read keeps the callers as they
//! were, and the log, a metric and `/readyz?verbose` say so until it is mended.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::callers::{Caller, CallerTable};
use crate::config::{ConfigError, Settings};
use crate::health::Health;
use crate::telemetry;

/// The part of a role's health that this is.
const PART: &str = "callers";

/// How long what has changed must stay as it is: a file that is being written is empty or half for
/// a moment, and that may be a table too.
const SETTLE: Duration = Duration::from_millis(100);

/// The callers, or why they are refused.
type Reading = Result<CallerTable, String>;

/// Where the callers are looked up; a clone looks at the same.
#[derive(Clone, Debug)]
pub struct Callers {
    current: Arc<RwLock<Arc<CallerTable>>>,
}

impl Callers {
    /// Reads the callers, and follows their file until `shutdown`. Call it inside of a runtime.
    pub fn follow(
        settings: &Settings,
        health: Arc<Health>,
        shutdown: CancellationToken,
    ) -> Result<Self, ConfigError> {
        let table = CallerTable::read(settings)?;
        let is_open = table.is_open();
        let callers = Self::of(table);
        if !is_open {
            let hangup = signal(SignalKind::hangup());
            let hangup = hangup.inspect_err(|error| tracing::warn!(%error, "SIGHUP is not heard"));
            let follower = Follower { callers: callers.clone(), health, refused: None };
            follower.accept();
            let _detached = tokio::spawn(follower.run(settings.clone(), hangup.ok(), shutdown));
        }
        Ok(callers)
    }

    /// These callers, for good.
    #[must_use]
    pub fn of(callers: CallerTable) -> Self {
        Self { current: Arc::new(RwLock::new(Arc::new(callers))) }
    }

    /// The last reading.
    #[must_use]
    pub fn now(&self) -> Arc<CallerTable> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whose record it is, by what it says.
    #[must_use]
    pub fn of_record(&self, id: Option<&str>) -> Arc<Caller> {
        Arc::clone(self.now().by_id(id))
    }
}

/// Who reads the file anew.
struct Follower {
    callers: Callers,
    health: Arc<Health>,
    /// Why the file is refused, if it is.
    refused: Option<String>,
}

impl Follower {
    async fn run(
        mut self,
        settings: Settings,
        mut hangup: Option<Signal>,
        shutdown: CancellationToken,
    ) {
        let mut look = tokio::time::interval(settings.callers.reload_interval);
        loop {
            let asked = async {
                match &mut hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = look.tick() => {}
                _ = asked => {}
            }
            let mut reading = read(&settings).await;
            while self.is_news(&reading) {
                tokio::time::sleep(SETTLE).await;
                let again = read(&settings).await;
                if are_alike(&reading, &again) {
                    match again {
                        Ok(callers) => self.take(callers),
                        Err(reason) => self.refuse(reason),
                    }
                    break;
                }
                reading = again;
            }
        }
    }

    fn is_news(&self, reading: &Reading) -> bool {
        match reading {
            Ok(callers) => self.refused.is_some() || !self.callers.now().is_same(callers),
            Err(reason) => self.refused.as_ref() != Some(reason),
        }
    }

    fn take(&mut self, callers: CallerTable) {
        self.refused = None;
        *self.callers.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(callers);
        self.accept();
    }

    fn accept(&self) {
        tracing::info!(callers = self.callers.now().count(), "read the callers");
        metrics::gauge!(telemetry::CALLERS_REFUSED).set(0.0);
        self.health.ready(PART);
    }

    fn refuse(&mut self, reason: String) {
        tracing::error!(%reason, "the callers stay as they were");
        metrics::gauge!(telemetry::CALLERS_REFUSED).set(1.0);
        self.health.ready_but(PART, format!("the callers stay as they were: {reason}"));
        self.refused = Some(reason);
    }
}

/// Reads the callers beside the loop: a file may lie on a slow disk.
async fn read(settings: &Settings) -> Reading {
    let settings = settings.clone();
    let reading = tokio::task::spawn_blocking(move || CallerTable::read(&settings)).await;
    reading.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

fn are_alike(one: &Reading, other: &Reading) -> bool {
    match (one, other) {
        (Ok(one), Ok(other)) => one.is_same(other),
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
        let callers = Callers::follow(&settings, Arc::clone(&health), shutdown.clone()).unwrap();
        let knows = |id: &str| callers.of_record(Some(id)).id == id;
        assert!(knows("tea") && !knows("milk"));

        std::fs::write(&file, "[callers.milk]\n[callers.tea]").unwrap();
        until(|| knows("milk")).await;
        std::fs::write(&file, "[callers.milk]\nkey = []").unwrap();
        until(|| health.describe().contains("did you mean `callers.milk.keys`?")).await;
        assert!(knows("milk") && knows("tea") && health.is_ready());

        std::fs::write(&file, "[callers.milk]").unwrap();
        until(|| health.describe() == "worker callers: ready\n").await;
        // A file that is written is empty for a moment, and may be read then.
        until(|| knows("milk") && !knows("tea")).await;
        shutdown.cancel();
    }

    #[tokio::test]
    async fn a_process_does_not_begin_with_a_wrong_file() {
        let overrides = vec!["callers.file=/nowhere/callers.toml".to_owned()];
        let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
        let (health, shutdown) = (Health::new("worker"), CancellationToken::new());
        assert!(Callers::follow(&settings, health, shutdown).is_err());
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
