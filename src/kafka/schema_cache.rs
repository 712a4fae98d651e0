//! The writer schemas of producers: from a folder first, then from a schema registry over HTTP.
//!
//! Invariant: a look-up never waits. A schema that is not cached is fetched on another thread;
//! until the answer arrives the look-up returns [`SchemaLookup::Unreachable`]: the record is
//! parked, and all else continues. Only a registry that answers "no such id" makes an id unknown,
//! and only for a limited time, and an id that no registry can give. Answers are bounded in size,
//! in time and in number at once, and no redirect is followed.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use apache_avro::Schema;
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode};
use serde::Deserialize;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;

use crate::clock;
use crate::codec::registration::{SchemaLookup, WriterSchemas};
use crate::codec::writer_schema::{self, SCHEMA_BYTES_MAX};
use crate::config::TriggerSettings;

/// How long the answer "no such id", or another refusal, is cached. A producer may register its
/// schema later.
const UNKNOWN: Duration = Duration::from_secs(30);
/// How long no request is sent for a schema after the first failure; twice as long after each
/// further one.
const UNAVAILABLE: Duration = Duration::from_millis(500);
/// The longest such pause: a record waits so much longer than the outage.
const UNAVAILABLE_MAX: Duration = Duration::from_secs(4);
/// For how long after its pause a failure is remembered. Records that wait ask much sooner;
/// if none does, what was answered then says nothing of the registry now.
const FAILURE_MEMORY: Duration = Duration::from_secs(60);
/// Requests that are sent at once, so that a registry that has just started is not flooded by what
/// waits for it. The others wait, in order.
const REQUESTS_MAX: usize = 16;
/// The longest time that an answer may take in all: meanwhile it keeps others from being sent.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// The largest id that a registry can give: it counts in 32 bits with a sign.
const ID_MAX: u32 = i32::MAX.cast_unsigned();
/// Schemas that are remembered. A producer has a few; the ids come from records, so any producer
/// can name many.
const SCHEMAS_MAX: usize = 10_000;
/// An answer is a schema within a JSON string, in which each character may take six bytes.
const ANSWER_BYTES_MAX: usize = 6 * SCHEMA_BYTES_MAX + 4_096;

/// The error code of a registry that has no schema of an id.
const NO_SUCH_SCHEMA: u32 = 40_403;

/// A schema registry with the Confluent HTTP API.
#[derive(Clone, Debug)]
pub struct SchemaRegistry {
    /// Its base URL.
    pub url: String,
    /// Sends the requests; its timeout limits each of them. It follows no redirects.
    pub client: Client,
    /// Runs the requests.
    pub runtime: Handle,
    /// For how long records wait for a registry that denies access.
    pub denied_patience: Duration,
}

/// All writer schemas that were requested so far.
#[derive(Debug)]
pub struct SchemaCache {
    folder: Option<PathBuf>,
    registry: Option<SchemaRegistry>,
    answers: Arc<Mutex<Answers>>,
    /// A permit for each request that may be sent.
    requests: Arc<Semaphore>,
    /// Measures how long a request takes.
    clock: fn() -> Instant,
}

/// What the registry has answered.
#[derive(Debug, Default)]
struct Answers {
    schemas: HashMap<u32, SchemaState>,
    /// The last schema to which access was denied, and until when that counts (monotonic clock).
    denied: Option<(u32, StatusCode, Duration)>,
}

/// The registry denies access to a schema.
#[derive(Clone, Copy, Debug)]
struct Denial {
    /// What it answered first.
    status: StatusCode,
    /// Since when, on the monotonic clock.
    since: Duration,
}

#[derive(Clone, Debug)]
enum SchemaState {
    Known(Arc<Schema>),
    /// The registry has no such schema. It is not asked again before `until`, on the monotonic
    /// clock.
    Unknown {
        until: Duration,
    },
    /// The schema cannot be used. It is not asked for again before `until` on the monotonic clock.
    Refused {
        why: Arc<str>,
        until: Duration,
    },
    /// The request is sent and not answered yet.
    Requested(Failures),
    /// The request failed. It is not repeated before `until` on the monotonic clock.
    Unavailable {
        until: Duration,
        failures: Failures,
    },
}

/// How requests for a schema have failed, one after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Failures {
    count: u32,
    /// All of the last ones denied access.
    denial: Option<Denial>,
}

/// Why a registry gives no schema.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    /// It has none under this id.
    #[error("it has no such schema")]
    Unknown,
    /// The schema cannot be used.
    #[error("{0}")]
    Refused(String),
    /// It denies access, or is no registry: a person must act.
    #[error("it answers {0}")]
    Denied(StatusCode),
    /// It is away, or busy.
    #[error("{0}")]
    Unavailable(String),
}

impl SchemaCache {
    /// The configured cache, and the runtime that sends the requests to its registry, if there is
    /// one. The error says why they could not be created.
    pub fn open(settings: &TriggerSettings) -> Result<(Self, Option<Runtime>), String> {
        let folder = Some(settings.schemas_dir.clone()).filter(|dir| !dir.as_os_str().is_empty());
        if settings.registry_url.is_empty() {
            return Ok((Self::new(folder, None), None));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let client = Client::builder()
            .timeout(settings.registry_timeout.min(ANSWER_TIME_MAX))
            .redirect(Policy::none())
            .build()
            .map_err(|error| error.to_string())?;
        let registry = SchemaRegistry {
            url: settings.registry_url.clone(),
            client,
            runtime: runtime.handle().clone(),
            denied_patience: settings.registry_denied_patience,
        };
        Ok((Self::new(folder, Some(registry)), Some(runtime)))
    }

    /// A cache that reads a folder of `<id>.avsc` files first, then a registry.
    #[must_use]
    pub fn new(folder: Option<PathBuf>, registry: Option<SchemaRegistry>) -> Self {
        let requests = Arc::new(Semaphore::new(REQUESTS_MAX));
        Self { folder, registry, answers: Arc::default(), requests, clock: clock::monotonic }
    }

    /// The cache for look-ups at the time `now`, on the monotonic clock.
    #[must_use]
    pub fn at(&self, now: Duration) -> impl WriterSchemas + '_ {
        SchemasAt { cache: self, now }
    }

    /// Why the registry refuses to answer at `now` on the monotonic clock, if it does: a person
    /// must act.
    #[must_use]
    pub fn refusal(&self, now: Duration) -> Option<String> {
        let (id, status, _) = lock(&self.answers).denied.filter(|(_, _, until)| now < *until)?;
        let what = format!("the schema registry answers {status} for schema {id}");
        Some(format!("{what}; check triggers.registry_url"))
    }

    /// Whether the registry denies access to a schema, as far as is known at `now` on the monotonic
    /// clock.
    #[must_use]
    pub fn denies(&self, id: u32, now: Duration) -> bool {
        let failures = match lock(&self.answers).schemas.get(&id) {
            Some(SchemaState::Requested(failures)) => *failures,
            Some(SchemaState::Unavailable { until, failures })
                if now < until.saturating_add(FAILURE_MEMORY) =>
            {
                *failures
            }
            _ => return false,
        };
        failures.denial.is_some()
    }

    fn look_up(&self, id: u32, now: Duration) -> SchemaLookup {
        let mut answers = lock(&self.answers);
        let failures = match answers.schemas.get(&id) {
            Some(SchemaState::Known(schema)) => return SchemaLookup::Known(Arc::clone(schema)),
            Some(SchemaState::Unknown { until }) if now < *until => {
                return SchemaLookup::Unknown;
            }
            Some(SchemaState::Refused { why, until }) if now < *until => {
                return SchemaLookup::Refused(Arc::clone(why));
            }
            Some(SchemaState::Unavailable { until, failures }) if now < *until => {
                return self.while_unavailable(*failures, now);
            }
            Some(SchemaState::Requested(failures)) => {
                return self.while_unavailable(*failures, now);
            }
            Some(SchemaState::Unavailable { until, failures })
                if now < until.saturating_add(FAILURE_MEMORY) =>
            {
                *failures
            }
            _ => Failures::default(),
        };
        answers.make_room();
        drop(answers);
        let state = self.read_file(id, now).unwrap_or_else(|| self.request(id, now, failures));
        let lookup = match &state {
            SchemaState::Known(schema) => SchemaLookup::Known(Arc::clone(schema)),
            SchemaState::Unknown { .. } => SchemaLookup::Unknown,
            SchemaState::Refused { why, .. } => SchemaLookup::Refused(Arc::clone(why)),
            SchemaState::Requested(_) | SchemaState::Unavailable { .. } => {
                self.while_unavailable(failures, now)
            }
        };
        if !matches!(state, SchemaState::Requested(_)) {
            let _before = lock(&self.answers).schemas.insert(id, state);
        }
        lookup
    }

    /// The result for a schema that cannot be fetched now. A registry that has denied access for
    /// long will not give it.
    fn while_unavailable(&self, failures: Failures, now: Duration) -> SchemaLookup {
        let patience = self.registry.as_ref().map(|registry| registry.denied_patience);
        let patience = patience.unwrap_or_default();
        match failures.denial {
            Some(Denial { status, since }) if now >= since.saturating_add(patience) => {
                SchemaLookup::Refused(format!("the registry answers {status}").into())
            }
            _ => SchemaLookup::Unreachable,
        }
    }

    /// Reads the schema from the folder; `None` if the folder has no such file.
    fn read_file(&self, id: u32, now: Duration) -> Option<SchemaState> {
        let path = self.folder.as_ref()?.join(format!("{id}.avsc"));
        match std::fs::read_to_string(&path) {
            Ok(text) => Some(state_of(id, writer_schema(&text), now, Failures::default())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                let away = FetchError::Unavailable(error.to_string());
                Some(state_of(id, Err(away), now, Failures::default()))
            }
        }
    }

    fn request(&self, id: u32, now: Duration, failures: Failures) -> SchemaState {
        let Some(registry) = self.registry.clone().filter(|_| id <= ID_MAX) else {
            return SchemaState::Unknown { until: now + UNKNOWN };
        };
        let state = SchemaState::Requested(failures);
        let _before = lock(&self.answers).schemas.insert(id, state.clone());
        let (answers, requests) = (Arc::clone(&self.answers), Arc::clone(&self.requests));
        let (runtime, clock) = (registry.runtime.clone(), self.clock);
        let asked_at = clock();
        let _detached = runtime.spawn(async move {
            let permit = requests.acquire().await;
            let answer = registry.fetch(id).await;
            drop(permit);
            // It may have waited for others for a minute.
            let now = now + clock().duration_since(asked_at);
            let mut answers = lock(&answers);
            if let Err(FetchError::Denied(status)) = &answer {
                let until = now + UNAVAILABLE_MAX + FAILURE_MEMORY;
                answers.denied = Some((id, *status, until));
            } else if answers.denied.is_some_and(|(denied, ..)| denied == id) {
                answers.denied = None;
            }
            let state = state_of(id, answer, now, failures);
            let _before = answers.schemas.insert(id, state);
        });
        state
    }
}

impl Answers {
    /// Forgets answers, if there are too many: those without a schema first, as one that is known
    /// may not be given again soon.
    fn make_room(&mut self) {
        if self.schemas.len() < SCHEMAS_MAX {
            return; // nearly always
        }
        let is_known = |state: &SchemaState| matches!(state, SchemaState::Known(_));
        let is_requested = |state: &SchemaState| matches!(state, SchemaState::Requested(_));
        self.schemas.retain(|_, state| is_known(state) || is_requested(state));
        if self.schemas.len() < SCHEMAS_MAX {
            return;
        }
        let known = self.schemas.iter().find(|(_, state)| is_known(state)).map(|(id, _)| *id);
        let _forgotten = known.and_then(|id| self.schemas.remove(&id));
    }
}

impl SchemaRegistry {
    /// The schema registered under `id`.
    async fn fetch(&self, id: u32) -> Result<Schema, FetchError> {
        #[derive(Deserialize)]
        struct SchemaResponse {
            schema: String,
        }

        let away = |error: reqwest::Error| FetchError::Unavailable(error.to_string());
        let url = format!("{}/schemas/ids/{id}", self.url.trim_end_matches('/'));
        let mut answer = self.client.get(url).send().await.map_err(away)?;
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(away)? {
            body.extend_from_slice(&chunk);
            if body.len() > ANSWER_BYTES_MAX {
                break;
            }
        }
        check_status(answer.status(), &body)?;
        if body.len() > ANSWER_BYTES_MAX {
            let why = format!("the registry's answer has more than {ANSWER_BYTES_MAX} bytes");
            return Err(FetchError::Refused(why));
        }
        let answer: SchemaResponse = serde_json::from_slice(&body)
            .map_err(|error| FetchError::Unavailable(error.to_string()))?;
        writer_schema(&answer.schema)
    }
}

/// What an answer with this status and body means. Only a registry's own error code says that it
/// has no such schema: a 404 can be that of a proxy, or of a wrong path.
fn check_status(status: StatusCode, body: &[u8]) -> Result<(), FetchError> {
    #[derive(Deserialize)]
    struct ErrorResponse {
        error_code: u32,
    }

    let unknown = || {
        let answer: Option<ErrorResponse> = serde_json::from_slice(body).ok();
        answer.is_some_and(|answer| answer.error_code == NO_SUCH_SCHEMA)
    };
    match status {
        StatusCode::NOT_FOUND if unknown() => Err(FetchError::Unknown),
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
            Err(FetchError::Unavailable(status.to_string()))
        }
        // A redirect is not followed: it could lead anywhere.
        _ if status.is_client_error() || status.is_redirection() => Err(FetchError::Denied(status)),
        _ if status.is_success() => Ok(()),
        _ => Err(FetchError::Unavailable(status.to_string())),
    }
}

struct SchemasAt<'a> {
    cache: &'a SchemaCache,
    now: Duration,
}

impl WriterSchemas for SchemasAt<'_> {
    fn by_id(&self, id: u32) -> SchemaLookup {
        self.cache.look_up(id, self.now)
    }
}

/// A text that cannot be used as a schema is refused: the registry itself is available.
fn writer_schema(text: &str) -> Result<Schema, FetchError> {
    writer_schema::parse(text).map_err(|error| FetchError::Refused(error.to_string()))
}

/// What is remembered of an answer that has arrived at `now`.
fn state_of(
    id: u32,
    answer: Result<Schema, FetchError>,
    now: Duration,
    failures: Failures,
) -> SchemaState {
    let until = now + UNKNOWN;
    match answer {
        Ok(schema) => SchemaState::Known(Arc::new(schema)),
        Err(FetchError::Unknown) => SchemaState::Unknown { until },
        Err(FetchError::Refused(why)) => {
            tracing::warn!(id, why, "a registered schema cannot be used");
            SchemaState::Refused { why: why.into(), until }
        }
        Err(error @ (FetchError::Denied(_) | FetchError::Unavailable(_))) => {
            tracing::warn!(id, %error, "the schema registry gives no schema now");
            let Failures { count, denial } = failures;
            let pause = (UNAVAILABLE * (1 << count.min(16))).min(UNAVAILABLE_MAX);
            let denial = match error {
                FetchError::Denied(status) => denial.or(Some(Denial { status, since: now })),
                // Records wait for a registry that is away, however long.
                _ => None,
            };
            let failures = Failures { count: count.saturating_add(1), denial };
            SchemaState::Unavailable { until: now + pause, failures }
        }
    }
}

/// No code panics while it holds the lock, and each entry is consistent without the others.
fn lock(answers: &Mutex<Answers>) -> MutexGuard<'_, Answers> {
    answers.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "schema_cache/tests.rs"]
mod tests;
