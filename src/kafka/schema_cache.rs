//! The writer schemas of producers: from a folder first, then from a schema registry over HTTP.
//!
//! Invariant: a look-up never waits. A schema that is not cached is fetched on another thread;
//! until the answer arrives the look-up returns [`SchemaLookup::Unreachable`], ingest pauses, and
//! fires continue. Only a registry that answers "no such id" makes an id unknown, and only for a
//! limited time.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apache_avro::Schema;
use reqwest::{Client, StatusCode};
use serde::Deserialize;
use tokio::runtime::{Handle, Runtime};

use crate::codec::registration::{SchemaLookup, WriterSchemas};
use crate::config::TriggerSettings;
use crate::model::{Millis, Timestamp};

/// How long the answer "no such id" is cached. A producer may register its schema later.
const UNKNOWN_MS: Millis = 30_000;
/// How long no request is sent to a registry after a failure.
const UNAVAILABLE_MS: Millis = 1_000;

/// A schema registry with the Confluent HTTP API.
#[derive(Clone, Debug)]
pub struct SchemaRegistry {
    /// Its base URL.
    pub url: String,
    /// Sends the requests; its timeout limits each of them.
    pub client: Client,
    /// Runs the requests.
    pub runtime: Handle,
}

/// All writer schemas that were requested so far.
#[derive(Debug)]
pub struct SchemaCache {
    folder: Option<PathBuf>,
    registry: Option<SchemaRegistry>,
    states: Arc<Mutex<HashMap<u32, SchemaState>>>,
}

#[derive(Clone, Debug)]
enum SchemaState {
    Known(Arc<Schema>),
    /// The registry has no such schema. It is not asked again before `until` (ms since the epoch).
    Unknown {
        until: Timestamp,
    },
    /// The request is sent and not answered yet.
    Requested,
    /// The request failed. It is not repeated before `until` (ms since the epoch).
    Unavailable {
        until: Timestamp,
    },
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
            .timeout(settings.registry_timeout)
            .build()
            .map_err(|error| error.to_string())?;
        let url = settings.registry_url.clone();
        let registry = SchemaRegistry { url, client, runtime: runtime.handle().clone() };
        Ok((Self::new(folder, Some(registry)), Some(runtime)))
    }

    /// A cache that reads a folder of `<id>.avsc` files first, then a registry.
    #[must_use]
    pub fn new(folder: Option<PathBuf>, registry: Option<SchemaRegistry>) -> Self {
        Self { folder, registry, states: Arc::default() }
    }

    /// The cache for look-ups at the time `now`, in ms since the epoch.
    #[must_use]
    pub fn at(&self, now: Timestamp) -> impl WriterSchemas + '_ {
        SchemasAt { cache: self, now }
    }

    fn look_up(&self, id: u32, now: Timestamp) -> SchemaLookup {
        let state = lock(&self.states).get(&id).cloned();
        match state {
            Some(SchemaState::Known(schema)) => return SchemaLookup::Known(schema),
            Some(SchemaState::Unknown { until }) if now < until => return SchemaLookup::Unknown,
            Some(SchemaState::Unavailable { until }) if now < until => {
                return SchemaLookup::Unreachable;
            }
            Some(SchemaState::Requested) => return SchemaLookup::Unreachable,
            _ => {}
        }
        let state = self.read_file(id, now).unwrap_or_else(|| self.request(id, now));
        let lookup = match &state {
            SchemaState::Known(schema) => SchemaLookup::Known(Arc::clone(schema)),
            SchemaState::Unknown { .. } => SchemaLookup::Unknown,
            SchemaState::Requested | SchemaState::Unavailable { .. } => SchemaLookup::Unreachable,
        };
        if !matches!(state, SchemaState::Requested) {
            lock(&self.states).insert(id, state);
        }
        lookup
    }

    /// Reads the schema from the folder; `None` if the folder has no such file.
    fn read_file(&self, id: u32, now: Timestamp) -> Option<SchemaState> {
        let path = self.folder.as_ref()?.join(format!("{id}.avsc"));
        match std::fs::read_to_string(&path) {
            Ok(text) => Some(parse(id, &text, now)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a writer schema cannot be read");
                Some(SchemaState::Unavailable { until: now + UNAVAILABLE_MS })
            }
        }
    }

    fn request(&self, id: u32, now: Timestamp) -> SchemaState {
        let Some(registry) = self.registry.clone() else {
            return SchemaState::Unknown { until: now + UNKNOWN_MS };
        };
        lock(&self.states).insert(id, SchemaState::Requested);
        let states = Arc::clone(&self.states);
        let runtime = registry.runtime.clone();
        let _detached = runtime.spawn(async move {
            let state = match registry.fetch(id).await {
                Ok(Some(text)) => parse(id, &text, now),
                Ok(None) => SchemaState::Unknown { until: now + UNKNOWN_MS },
                Err(error) => {
                    tracing::warn!(id, %error, "the schema registry does not answer");
                    SchemaState::Unavailable { until: now + UNAVAILABLE_MS }
                }
            };
            lock(&states).insert(id, state);
        });
        SchemaState::Requested
    }
}

impl SchemaRegistry {
    /// The schema registered under `id`, as JSON; `None` if there is none.
    async fn fetch(&self, id: u32) -> Result<Option<String>, reqwest::Error> {
        #[derive(Deserialize)]
        struct SchemaResponse {
            schema: String,
        }

        let url = format!("{}/schemas/ids/{id}", self.url.trim_end_matches('/'));
        let answer = self.client.get(url).send().await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let answer: SchemaResponse = answer.error_for_status()?.json().await?;
        Ok(Some(answer.schema))
    }
}

struct SchemasAt<'a> {
    cache: &'a SchemaCache,
    now: Timestamp,
}

impl WriterSchemas for SchemasAt<'_> {
    fn by_id(&self, id: u32) -> SchemaLookup {
        self.cache.look_up(id, self.now)
    }
}

/// A schema that cannot be parsed counts as unknown: the registry itself is available.
fn parse(id: u32, text: &str, now: Timestamp) -> SchemaState {
    match Schema::parse_str(text) {
        Ok(schema) => SchemaState::Known(Arc::new(schema)),
        Err(error) => {
            tracing::warn!(id, %error, "a registered schema is not one that Orloj can parse");
            SchemaState::Unknown { until: now + UNKNOWN_MS }
        }
    }
}

/// No code panics while it holds the lock, and each entry is consistent without the others.
fn lock(states: &Mutex<HashMap<u32, SchemaState>>) -> MutexGuard<'_, HashMap<u32, SchemaState>> {
    states.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(10);
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
        (SchemaRegistry { url, client: Client::new(), runtime: Handle::current() }, paths)
    }

    /// Looks up `id` at `now` until the answer has arrived.
    async fn look_up_after_response(cache: &SchemaCache, id: u32, now: Timestamp) -> SchemaLookup {
        assert!(matches!(cache.at(now).by_id(id), SchemaLookup::Unreachable), "a look-up waited");
        let answered = async {
            while matches!(lock(&cache.states).get(&id), Some(SchemaState::Requested)) {
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, answered).await.unwrap();
        cache.at(now).by_id(id)
    }

    #[tokio::test]
    async fn a_known_schema_is_requested_from_the_registry_once() {
        let body = serde_json::json!({ "schema": SCHEMA }).to_string();
        let (registry, mut paths) = start_registry(&[(200, &body)]).await;
        let cache = SchemaCache::new(None, Some(registry));
        assert!(matches!(look_up_after_response(&cache, 7, 0).await, SchemaLookup::Known(_)));
        assert!(matches!(cache.at(u64::MAX).by_id(7), SchemaLookup::Known(_)));
        assert_eq!(paths.recv().await.as_deref(), Some("/schemas/ids/7"));
        assert_eq!(paths.recv().await, None);
    }

    #[tokio::test]
    async fn an_unknown_id_is_requested_again_after_its_interval() {
        let body = serde_json::json!({ "schema": SCHEMA }).to_string();
        let (registry, _paths) = start_registry(&[(404, "{}"), (200, &body)]).await;
        let cache = SchemaCache::new(None, Some(registry));
        assert!(matches!(look_up_after_response(&cache, 7, 0).await, SchemaLookup::Unknown));
        assert!(matches!(cache.at(UNKNOWN_MS - 1).by_id(7), SchemaLookup::Unknown));
        assert!(matches!(
            look_up_after_response(&cache, 7, UNKNOWN_MS).await,
            SchemaLookup::Known(_)
        ));
    }

    #[tokio::test]
    async fn a_failing_registry_is_unavailable_and_no_id_becomes_unknown() {
        let body = serde_json::json!({ "schema": SCHEMA }).to_string();
        let answers = [(500, "no"), (200, "not json"), (200, body.as_str())];
        let (registry, _paths) = start_registry(&answers).await;
        let cache = SchemaCache::new(None, Some(registry));
        assert!(matches!(look_up_after_response(&cache, 7, 0).await, SchemaLookup::Unreachable));
        assert!(matches!(
            look_up_after_response(&cache, 7, UNAVAILABLE_MS).await,
            SchemaLookup::Unreachable
        ));
        assert!(matches!(
            look_up_after_response(&cache, 7, 2 * UNAVAILABLE_MS).await,
            SchemaLookup::Known(_)
        ));
    }

    #[tokio::test]
    async fn a_registry_that_does_not_listen_is_unavailable() {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let url = format!("http://{free}");
        let registry = SchemaRegistry { url, client: Client::new(), runtime: Handle::current() };
        let cache = SchemaCache::new(None, Some(registry));
        assert!(matches!(look_up_after_response(&cache, 7, 0).await, SchemaLookup::Unreachable));
    }

    #[test]
    fn the_folder_is_read_first_and_without_a_registry_it_decides() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("7.avsc"), SCHEMA).unwrap();
        std::fs::write(folder.path().join("8.avsc"), "{").unwrap();
        let cache = SchemaCache::new(Some(folder.path().to_owned()), None);
        assert!(matches!(cache.at(0).by_id(7), SchemaLookup::Known(_)));
        assert!(matches!(cache.at(0).by_id(8), SchemaLookup::Unknown));
        assert!(matches!(cache.at(0).by_id(9), SchemaLookup::Unknown));
        std::fs::write(folder.path().join("9.avsc"), SCHEMA).unwrap();
        assert!(matches!(cache.at(UNKNOWN_MS - 1).by_id(9), SchemaLookup::Unknown));
        assert!(matches!(cache.at(UNKNOWN_MS).by_id(9), SchemaLookup::Known(_)));
    }
}
