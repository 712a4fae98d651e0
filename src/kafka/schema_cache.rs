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
mod tests {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::sync::{Semaphore, mpsc};
    use tokio::time::timeout;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);
    const MS: Duration = Duration::from_millis(1);
    const START: Duration = Duration::ZERO;
    const DEADLINE: Duration = Duration::from_secs(10);
    /// What a registry answers that has no such schema.
    const NO_SCHEMA: &str = r#"{"error_code":40403,"message":"Schema 7 not found"}"#;
    const SCHEMA: &str = r#"{"type":"record","name":"A","fields":[]}"#;

    /// Starts a registry that answers the requests with `answers` in order. Returns its URL and the
    /// requested paths.
    async fn start_registry(
        answers: &[(u16, &str)],
    ) -> (SchemaRegistry, mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let answers: Vec<_> = answers.iter().map(|(s, body)| (*s, (*body).to_owned())).collect();
        let (asked, paths) = mpsc::unbounded_channel();
        let _stub = tokio::spawn(async move {
            for (status, body) in answers {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(socket.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                asked.send(head.split(' ').nth(1).unwrap().to_owned()).unwrap();
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
                );
                socket.write_all((answer + &body).as_bytes()).await.unwrap();
            }
        });
        (registry(url), paths)
    }

    fn registry(url: String) -> SchemaRegistry {
        let client = Client::builder().redirect(Policy::none()).build().unwrap();
        SchemaRegistry { url, client, runtime: Handle::current(), denied_patience: PATIENCE }
    }

    /// Answers take no time.
    fn cache_of(registry: SchemaRegistry) -> SchemaCache {
        SchemaCache { clock: still_clock, ..SchemaCache::new(None, Some(registry)) }
    }

    /// A clock that stands still.
    fn still_clock() -> Instant {
        static BEGIN: LazyLock<Instant> = LazyLock::new(clock::monotonic);
        *BEGIN
    }

    /// Looks up `id` at `now` until the answer has arrived.
    async fn look_up_after_response(cache: &SchemaCache, id: u32, now: Duration) -> SchemaLookup {
        assert!(matches!(cache.at(now).by_id(id), SchemaLookup::Unreachable), "a look-up waited");
        answered(cache, id).await;
        cache.at(now).by_id(id)
    }

    /// Waits for the answer to the request for `id`.
    async fn answered(cache: &SchemaCache, id: u32) {
        let answered = async {
            while matches!(lock(&cache.answers).schemas.get(&id), Some(SchemaState::Requested(_))) {
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, answered).await.unwrap();
    }

    #[tokio::test]
    async fn a_known_schema_is_requested_from_the_registry_once() {
        let body = serde_json::json!({ "schema": SCHEMA }).to_string();
        let (registry, mut paths) = start_registry(&[(200, &body)]).await;
        let cache = cache_of(registry);
        assert!(matches!(look_up_after_response(&cache, 7, START).await, SchemaLookup::Known(_)));
        assert!(matches!(cache.at(Duration::MAX).by_id(7), SchemaLookup::Known(_)));
        assert_eq!(paths.recv().await.as_deref(), Some("/schemas/ids/7"));
        assert_eq!(paths.recv().await, None);
    }

    #[tokio::test]
    async fn an_unknown_id_is_requested_again_after_its_interval() {
        let body = serde_json::json!({ "schema": SCHEMA }).to_string();
        let (registry, _paths) = start_registry(&[(404, NO_SCHEMA), (200, &body)]).await;
        let cache = cache_of(registry);
        assert!(matches!(look_up_after_response(&cache, 7, START).await, SchemaLookup::Unknown));
        assert!(matches!(cache.at(UNKNOWN - MS).by_id(7), SchemaLookup::Unknown));
        assert!(matches!(look_up_after_response(&cache, 7, UNKNOWN).await, SchemaLookup::Known(_)));
    }

    #[tokio::test]
    async fn a_failing_registry_is_unavailable_and_no_id_becomes_unknown() {
        let body = serde_json::json!({ "schema": SCHEMA }).to_string();
        let answers = [(500, "no"), (200, "not json"), (200, body.as_str())];
        let (registry, _paths) = start_registry(&answers).await;
        let cache = cache_of(registry);
        assert!(matches!(
            look_up_after_response(&cache, 7, START).await,
            SchemaLookup::Unreachable
        ));
        assert!(matches!(
            look_up_after_response(&cache, 7, UNAVAILABLE).await,
            SchemaLookup::Unreachable
        ));
        assert!(matches!(
            look_up_after_response(&cache, 7, 3 * UNAVAILABLE).await,
            SchemaLookup::Known(_)
        ));
    }

    #[tokio::test]
    async fn a_registry_that_does_not_listen_is_unavailable() {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let url = format!("http://{free}");
        let cache = SchemaCache::new(None, Some(registry(url)));
        assert!(matches!(
            look_up_after_response(&cache, 7, START).await,
            SchemaLookup::Unreachable
        ));
    }

    /// The reason why a schema is refused at `now`.
    async fn refusal(cache: &SchemaCache, id: u32, now: Duration) -> String {
        match look_up_after_response(cache, id, now).await {
            SchemaLookup::Refused(why) => why.to_string(),
            other => panic!("not refused: {other:?}"),
        }
    }

    #[tokio::test]
    async fn a_definite_refusal_is_for_the_schema_alone() {
        let recursive = r#"{"type":"record","name":"A","fields":[{"name":"a","type":"A"}]}"#;
        let recursive = serde_json::json!({ "schema": recursive }).to_string();
        let long = "x".repeat(ANSWER_BYTES_MAX + 1);
        let answers = [(200, recursive.as_str()), (200, long.as_str())];
        let (registry, _paths) = start_registry(&answers).await;
        let cache = cache_of(registry);
        assert!(refusal(&cache, 3, START).await.contains("contains itself"));
        assert!(refusal(&cache, 4, START).await.contains("bytes"));
        assert_eq!(cache.refusal(START), None, "the registry itself answers");
    }

    #[tokio::test]
    async fn a_registry_that_denies_access_is_named_and_after_a_time_its_schemas_are_refused() {
        let body = serde_json::json!({ "schema": SCHEMA }).to_string();
        let answers = [(302, "{}"), (401, "{}"), (200, body.as_str())];
        let (registry, _paths) = start_registry(&answers).await;
        let cache = cache_of(registry);
        assert!(matches!(
            look_up_after_response(&cache, 7, START).await,
            SchemaLookup::Unreachable
        ));
        let refusal = cache.refusal(START).unwrap();
        assert!(refusal.contains("302") && refusal.contains("schema 7"), "no redirect is followed");
        assert!(cache.denies(7, START) && !cache.denies(8, START));
        let late = PATIENCE - MS;
        assert!(matches!(look_up_after_response(&cache, 7, late).await, SchemaLookup::Unreachable));
        let over = cache.at(PATIENCE).by_id(7);
        assert!(matches!(&over, SchemaLookup::Refused(why) if why.contains("302")), "{over:?}");
        let again = PATIENCE + UNAVAILABLE_MAX;
        assert!(matches!(cache.at(again).by_id(7), SchemaLookup::Refused(_)), "it is asked again");
        let answered = async {
            while !matches!(cache.at(again).by_id(7), SchemaLookup::Known(_)) {
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, answered).await.unwrap();
        assert_eq!(cache.refusal(again), None);
        assert!(!cache.denies(7, again));
    }

    #[tokio::test]
    async fn an_answer_that_may_not_be_the_registrys_refuses_nothing_at_once() {
        // A proxy, or a server under a wrong path.
        let path = r#"{"error_code":404,"message":"HTTP 404 Not Found"}"#;
        let answers = [(404, "<html>"), (404, "{}"), (404, path), (400, "{}"), (422, "{}")];
        let (registry, _paths) = start_registry(&answers).await;
        let cache = cache_of(registry);
        for (id, (status, body)) in (1..).zip(answers) {
            let found = look_up_after_response(&cache, id, START).await;
            assert!(matches!(found, SchemaLookup::Unreachable), "{status} {body}: {found:?}");
            assert!(cache.refusal(START).unwrap().contains(&status.to_string()));
        }
    }

    #[tokio::test]
    async fn access_that_was_denied_long_ago_or_to_another_schema_refuses_nothing() {
        let body = serde_json::json!({ "schema": SCHEMA }).to_string();
        let answers = [(401, "{}"), (401, "{}"), (401, "{}"), (200, body.as_str())];
        let (registry, _paths) = start_registry(&answers).await;
        let cache = cache_of(registry);
        assert!(matches!(
            look_up_after_response(&cache, 7, START).await,
            SchemaLookup::Unreachable
        ));
        let near = PATIENCE - MS;
        assert!(matches!(look_up_after_response(&cache, 7, near).await, SchemaLookup::Unreachable));
        assert!(matches!(cache.at(PATIENCE).by_id(7), SchemaLookup::Refused(_)));
        let other = look_up_after_response(&cache, 8, PATIENCE).await;
        assert!(
            matches!(other, SchemaLookup::Unreachable),
            "no record has waited for it: {other:?}"
        );
        let later = 10 * PATIENCE;
        assert!(cache.refusal(PATIENCE).is_some());
        assert_eq!(cache.refusal(later), None, "nothing is known of it now");
        assert!(!cache.denies(7, later));
        let again = look_up_after_response(&cache, 7, later).await;
        assert!(matches!(again, SchemaLookup::Known(_)), "it is asked first: {again:?}");
    }

    #[tokio::test]
    async fn records_wait_for_a_registry_that_is_away_however_long() {
        let (registry, _paths) = start_registry(&[(401, "{}"), (503, "{}")]).await;
        let cache = cache_of(registry);
        assert!(matches!(
            look_up_after_response(&cache, 7, START).await,
            SchemaLookup::Unreachable
        ));
        let late = PATIENCE - MS;
        assert!(matches!(look_up_after_response(&cache, 7, late).await, SchemaLookup::Unreachable));
        assert!(matches!(cache.at(PATIENCE).by_id(7), SchemaLookup::Unreachable));
        assert_eq!(cache.refusal(PATIENCE), None);
        assert!(!cache.denies(7, PATIENCE), "it is away");
    }

    #[tokio::test]
    async fn an_id_that_no_registry_can_give_is_unknown_at_once() {
        let too_large = i32::MAX.cast_unsigned() + 1;
        let (registry, _paths) = start_registry(&[(404, "{}"), (404, "{}")]).await;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(format!("{too_large}.avsc")), SCHEMA).unwrap();
        let cache = SchemaCache::new(Some(folder.path().to_owned()), Some(registry));
        for id in [too_large + 1, u32::MAX] {
            let found = cache.at(START).by_id(id);
            assert!(matches!(found, SchemaLookup::Unknown), "{id}: {found:?}");
        }
        assert!(matches!(cache.at(START).by_id(too_large), SchemaLookup::Known(_)));
        let largest = cache.at(START).by_id(i32::MAX.cast_unsigned());
        assert!(matches!(largest, SchemaLookup::Unreachable), "it is asked for: {largest:?}");
    }

    /// Starts a registry that counts its open requests, and answers one for each permit. Returns it
    /// with the requested paths and the most requests that were open.
    async fn start_counting_registry(
        permits: Arc<Semaphore>,
    ) -> (SchemaRegistry, mpsc::UnboundedReceiver<String>, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let (asked, paths) = mpsc::unbounded_channel();
        let (open, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let count = Arc::clone(&most);
        let _stub = tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let (permits, asked) = (Arc::clone(&permits), asked.clone());
                let (open, most) = (Arc::clone(&open), Arc::clone(&count));
                let _request = tokio::spawn(async move {
                    let _before = most.fetch_max(open.fetch_add(1, Relaxed) + 1, Relaxed);
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(socket.read_u8().await.unwrap());
                    }
                    let head = String::from_utf8(head).unwrap();
                    asked.send(head.split(' ').nth(1).unwrap().to_owned()).unwrap();
                    permits.acquire().await.unwrap().forget();
                    let _before = open.fetch_sub(1, Relaxed);
                    let answer = "HTTP/1.1 404 X\r\nconnection: close\r\ncontent-length: ";
                    let answer = format!("{answer}{}\r\n\r\n{NO_SCHEMA}", NO_SCHEMA.len());
                    socket.write_all(answer.as_bytes()).await.unwrap();
                });
            }
        });
        (registry(url), paths, most)
    }

    #[tokio::test]
    async fn few_requests_are_sent_at_once_and_the_others_wait_in_order() {
        const REQUESTS: usize = 16;
        let permits = Arc::new(Semaphore::new(0));
        let (registry, mut paths, most) = start_counting_registry(Arc::clone(&permits)).await;
        let cache = cache_of(registry);
        for id in 0..50 {
            assert!(matches!(cache.at(START).by_id(id), SchemaLookup::Unreachable));
        }
        let mut path = async || timeout(DEADLINE, paths.recv()).await.unwrap().unwrap();
        let mut first = Vec::new();
        for _ in 0..REQUESTS {
            first.push(path().await);
        }
        first.sort_unstable();
        let mut expected: Vec<_> = (0..REQUESTS).map(|id| format!("/schemas/ids/{id}")).collect();
        expected.sort_unstable();
        assert_eq!(first, expected);
        for id in REQUESTS..50 {
            permits.add_permits(1);
            assert_eq!(path().await, format!("/schemas/ids/{id}"));
        }
        assert_eq!(most.load(Relaxed), REQUESTS);
    }

    /// How much later it is by the clock of the test that follows.
    static LATER_MS: AtomicU64 = AtomicU64::new(0);

    #[tokio::test]
    async fn a_failure_counts_from_the_answer_and_not_from_the_request() {
        let (registry, _paths) = start_registry(&[(403, "no"), (403, "no")]).await;
        let mut cache = cache_of(registry);
        cache.clock = || still_clock() + Duration::from_millis(LATER_MS.load(Relaxed));
        let permits = Arc::clone(&cache.requests).acquire_many_owned(16).await.unwrap();
        assert!(matches!(cache.at(START).by_id(7), SchemaLookup::Unreachable));
        // It has waited for the others so long.
        let late = 2 * FAILURE_MEMORY;
        LATER_MS.store(u64::try_from(late.as_millis()).unwrap(), Relaxed);
        drop(permits);
        answered(&cache, 7).await;
        assert!(cache.denies(7, late) && cache.refusal(late).is_some(), "the answer is forgotten");
        let again = late + PATIENCE - MS;
        assert!(matches!(
            look_up_after_response(&cache, 7, again).await,
            SchemaLookup::Unreachable
        ));
        let at_last = late + PATIENCE + UNAVAILABLE;
        assert!(matches!(cache.at(at_last).by_id(7), SchemaLookup::Refused(_)));
    }

    #[tokio::test]
    async fn a_registry_that_sends_a_byte_at_a_time_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let _stub = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.write_all(b"HTTP/1.1 200 X\r\n\r\n").await.unwrap();
            let mut pause = tokio::time::interval(MS);
            while socket.write_all(b" ").await.is_ok() {
                let _tick = pause.tick().await;
            }
        });
        let client = Client::builder().timeout(100 * MS).build().unwrap();
        let registry = SchemaRegistry { client, ..registry(url) };
        let cache = cache_of(registry);
        let found = look_up_after_response(&cache, 7, START).await;
        assert!(matches!(found, SchemaLookup::Unreachable), "{found:?}");
    }

    #[test]
    fn a_known_schema_is_forgotten_after_all_answers_that_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("7.avsc");
        std::fs::write(&file, SCHEMA).unwrap();
        let cache = SchemaCache::new(Some(folder.path().to_owned()), None);
        assert!(matches!(cache.at(START).by_id(7), SchemaLookup::Known(_)));
        std::fs::remove_file(file).unwrap();
        for id in 0..SCHEMAS_MAX as u32 {
            let _found = cache.at(START).by_id(1_000 + id);
        }
        assert!(lock(&cache.answers).schemas.len() <= SCHEMAS_MAX);
        assert!(matches!(cache.at(START).by_id(7), SchemaLookup::Known(_)));
    }

    #[test]
    fn of_known_schemas_one_is_forgotten_at_a_time() {
        let cache = SchemaCache::new(None, None);
        let schema = Arc::new(Schema::Null);
        let known = (0..SCHEMAS_MAX as u32).map(|id| (id, SchemaState::Known(Arc::clone(&schema))));
        lock(&cache.answers).schemas.extend(known);
        let _found = cache.at(START).by_id(SCHEMAS_MAX as u32);
        let answers = lock(&cache.answers);
        assert_eq!(answers.schemas.len(), SCHEMAS_MAX);
        let is_known = |state: &&SchemaState| matches!(state, SchemaState::Known(_));
        assert_eq!(answers.schemas.values().filter(is_known).count(), SCHEMAS_MAX - 1);
    }

    #[test]
    fn the_folder_is_read_first_and_without_a_registry_it_decides() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("7.avsc"), SCHEMA).unwrap();
        std::fs::write(folder.path().join("8.avsc"), "{").unwrap();
        let cache = SchemaCache::new(Some(folder.path().to_owned()), None);
        assert!(matches!(cache.at(START).by_id(7), SchemaLookup::Known(_)));
        assert!(matches!(cache.at(START).by_id(8), SchemaLookup::Refused(_)));
        assert!(matches!(cache.at(START).by_id(9), SchemaLookup::Unknown));
        std::fs::write(folder.path().join("9.avsc"), SCHEMA).unwrap();
        assert!(matches!(cache.at(UNKNOWN - MS).by_id(9), SchemaLookup::Unknown));
        assert!(matches!(cache.at(UNKNOWN).by_id(9), SchemaLookup::Known(_)));
    }
}
