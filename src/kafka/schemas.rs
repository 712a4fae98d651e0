//! The schemas that producers registered: from a folder, then from a registry's HTTP API.
//!
//! Law: a look-up never waits. What is not known yet is fetched beside the loop, and is
//! [`Lookup::Unreachable`] until the answer is there: ingest pauses, fires go on. Only a registry
//! that says "no such id" makes an id unknown, and only for a while.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apache_avro::Schema;
use reqwest::{Client, StatusCode};
use serde::Deserialize;
use tokio::runtime::{Handle, Runtime};

use crate::codec::registration::{Lookup, WriterSchemas};
use crate::config::TriggerSettings;
use crate::model::{Millis, Timestamp};

/// How long "no such id" stands before it is asked again: a producer may register late.
const UNKNOWN_MS: Millis = 30_000;
/// How long a registry that failed is left alone.
const AWAY_MS: Millis = 1_000;

/// A registry with the Confluent HTTP API.
#[derive(Clone, Debug)]
pub struct Registry {
    /// Its base URL.
    pub url: String,
    /// Sends the requests; how long one may take is its setting.
    pub client: Client,
    /// Where they run.
    pub runtime: Handle,
}

/// All writer schemas asked for so far.
#[derive(Debug)]
pub struct SchemaCache {
    folder: Option<PathBuf>,
    registry: Option<Registry>,
    known: Arc<Mutex<HashMap<u32, State>>>,
}

#[derive(Clone, Debug)]
enum State {
    Known(Arc<Schema>),
    /// Nobody knows it; not asked again before then, in ms since the epoch.
    Unknown {
        until: Timestamp,
    },
    /// Asked, and no answer yet.
    Asked,
    /// No answer was to be had; not asked again before then, in ms since the epoch.
    Away {
        until: Timestamp,
    },
}

impl SchemaCache {
    /// The cache that the settings ask for, and the thread that asks its registry, if there is one;
    /// or why that could not be made.
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
        let registry = Registry { url, client, runtime: runtime.handle().clone() };
        Ok((Self::new(folder, Some(registry)), Some(runtime)))
    }

    /// A cache over a folder of `<id>.avsc` files and a registry, in that order.
    #[must_use]
    pub fn new(folder: Option<PathBuf>, registry: Option<Registry>) -> Self {
        Self { folder, registry, known: Arc::default() }
    }

    /// The cache as it is to be asked at `now`, in ms since the epoch.
    #[must_use]
    pub fn at(&self, now: Timestamp) -> impl WriterSchemas + '_ {
        SchemasAt { cache: self, now }
    }

    fn look_up(&self, id: u32, now: Timestamp) -> Lookup {
        let state = lock(&self.known).get(&id).cloned();
        match state {
            Some(State::Known(schema)) => return Lookup::Known(schema),
            Some(State::Unknown { until }) if now < until => return Lookup::Unknown,
            Some(State::Away { until }) if now < until => return Lookup::Unreachable,
            Some(State::Asked) => return Lookup::Unreachable,
            _ => {}
        }
        let state = self.read_file(id, now).unwrap_or_else(|| self.ask(id, now));
        let lookup = match &state {
            State::Known(schema) => Lookup::Known(Arc::clone(schema)),
            State::Unknown { .. } => Lookup::Unknown,
            State::Asked | State::Away { .. } => Lookup::Unreachable,
        };
        if !matches!(state, State::Asked) {
            lock(&self.known).insert(id, state);
        }
        lookup
    }

    /// What the folder says; `None` if it has no such file.
    fn read_file(&self, id: u32, now: Timestamp) -> Option<State> {
        let path = self.folder.as_ref()?.join(format!("{id}.avsc"));
        match std::fs::read_to_string(&path) {
            Ok(text) => Some(parsed(id, &text, now)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a writer schema cannot be read");
                Some(State::Away { until: now + AWAY_MS })
            }
        }
    }

    fn ask(&self, id: u32, now: Timestamp) -> State {
        let Some(registry) = self.registry.clone() else {
            return State::Unknown { until: now + UNKNOWN_MS };
        };
        lock(&self.known).insert(id, State::Asked);
        let known = Arc::clone(&self.known);
        let runtime = registry.runtime.clone();
        let _detached = runtime.spawn(async move {
            let state = match registry.fetch(id).await {
                Ok(Some(text)) => parsed(id, &text, now),
                Ok(None) => State::Unknown { until: now + UNKNOWN_MS },
                Err(error) => {
                    tracing::warn!(id, %error, "the schema registry does not answer");
                    State::Away { until: now + AWAY_MS }
                }
            };
            lock(&known).insert(id, state);
        });
        State::Asked
    }
}

impl Registry {
    /// The schema registered under `id`, as JSON; `None` if there is none.
    async fn fetch(&self, id: u32) -> Result<Option<String>, reqwest::Error> {
        #[derive(Deserialize)]
        struct Answer {
            schema: String,
        }

        let url = format!("{}/schemas/ids/{id}", self.url.trim_end_matches('/'));
        let answer = self.client.get(url).send().await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let answer: Answer = answer.error_for_status()?.json().await?;
        Ok(Some(answer.schema))
    }
}

struct SchemasAt<'a> {
    cache: &'a SchemaCache,
    now: Timestamp,
}

impl WriterSchemas for SchemasAt<'_> {
    fn by_id(&self, id: u32) -> Lookup {
        self.cache.look_up(id, self.now)
    }
}

/// A schema that we cannot parse is as good as unknown: it is not the registry that is away.
fn parsed(id: u32, text: &str, now: Timestamp) -> State {
    match Schema::parse_str(text) {
        Ok(schema) => State::Known(Arc::new(schema)),
        Err(error) => {
            tracing::warn!(id, %error, "a registered schema is not one that Orloj can parse");
            State::Unknown { until: now + UNKNOWN_MS }
        }
    }
}

/// No code panics while it holds the lock, and every state stands for itself.
fn lock(known: &Mutex<HashMap<u32, State>>) -> MutexGuard<'_, HashMap<u32, State>> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// A registry that gives each request the next of `answers`, and tells which paths were asked.
    async fn registry(answers: &[(u16, &str)]) -> (Registry, mpsc::UnboundedReceiver<String>) {
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
        (Registry { url, client: Client::new(), runtime: Handle::current() }, paths)
    }

    /// Looks `id` up at `now` until the answer is there.
    async fn settled(cache: &SchemaCache, id: u32, now: Timestamp) -> Lookup {
        assert!(matches!(cache.at(now).by_id(id), Lookup::Unreachable), "a look-up waited");
        let answered = async {
            while matches!(lock(&cache.known).get(&id), Some(State::Asked)) {
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, answered).await.unwrap();
        cache.at(now).by_id(id)
    }

    #[tokio::test]
    async fn a_registry_is_asked_once_for_what_it_knows() {
        let body = serde_json::json!({ "schema": SCHEMA }).to_string();
        let (registry, mut paths) = registry(&[(200, &body)]).await;
        let cache = SchemaCache::new(None, Some(registry));
        assert!(matches!(settled(&cache, 7, 0).await, Lookup::Known(_)));
        assert!(matches!(cache.at(u64::MAX).by_id(7), Lookup::Known(_)));
        assert_eq!(paths.recv().await.as_deref(), Some("/schemas/ids/7"));
        assert_eq!(paths.recv().await, None);
    }

    #[tokio::test]
    async fn an_unknown_id_is_asked_again_after_a_while() {
        let body = serde_json::json!({ "schema": SCHEMA }).to_string();
        let (registry, _paths) = registry(&[(404, "{}"), (200, &body)]).await;
        let cache = SchemaCache::new(None, Some(registry));
        assert!(matches!(settled(&cache, 7, 0).await, Lookup::Unknown));
        assert!(matches!(cache.at(UNKNOWN_MS - 1).by_id(7), Lookup::Unknown));
        assert!(matches!(settled(&cache, 7, UNKNOWN_MS).await, Lookup::Known(_)));
    }

    #[tokio::test]
    async fn a_registry_that_fails_is_away_and_no_id_unknown() {
        let body = serde_json::json!({ "schema": SCHEMA }).to_string();
        let answers = [(500, "no"), (200, "not json"), (200, body.as_str())];
        let (registry, _paths) = registry(&answers).await;
        let cache = SchemaCache::new(None, Some(registry));
        assert!(matches!(settled(&cache, 7, 0).await, Lookup::Unreachable));
        assert!(matches!(settled(&cache, 7, AWAY_MS).await, Lookup::Unreachable));
        assert!(matches!(settled(&cache, 7, 2 * AWAY_MS).await, Lookup::Known(_)));
    }

    #[tokio::test]
    async fn nobody_listening_is_away() {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let url = format!("http://{free}");
        let registry = Registry { url, client: Client::new(), runtime: Handle::current() };
        let cache = SchemaCache::new(None, Some(registry));
        assert!(matches!(settled(&cache, 7, 0).await, Lookup::Unreachable));
    }

    #[test]
    fn a_folder_goes_first_and_alone_it_is_final() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("7.avsc"), SCHEMA).unwrap();
        std::fs::write(folder.path().join("8.avsc"), "{").unwrap();
        let cache = SchemaCache::new(Some(folder.path().to_owned()), None);
        assert!(matches!(cache.at(0).by_id(7), Lookup::Known(_)));
        assert!(matches!(cache.at(0).by_id(8), Lookup::Unknown));
        assert!(matches!(cache.at(0).by_id(9), Lookup::Unknown));
        std::fs::write(folder.path().join("9.avsc"), SCHEMA).unwrap();
        assert!(matches!(cache.at(UNKNOWN_MS - 1).by_id(9), Lookup::Unknown));
        assert!(matches!(cache.at(UNKNOWN_MS).by_id(9), Lookup::Known(_)));
    }
}
