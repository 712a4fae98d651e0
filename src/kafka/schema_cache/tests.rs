//! Tests of the cache of schemas, with a registry over HTTP.
//!
//! Invariant: the time is an argument, or a clock that stands still.

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
    assert!(matches!(look_up_after_response(&cache, 7, START).await, SchemaLookup::Unreachable));
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
    assert!(matches!(look_up_after_response(&cache, 7, START).await, SchemaLookup::Unreachable));
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
    assert!(matches!(look_up_after_response(&cache, 7, START).await, SchemaLookup::Unreachable));
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
    assert!(matches!(look_up_after_response(&cache, 7, START).await, SchemaLookup::Unreachable));
    let near = PATIENCE - MS;
    assert!(matches!(look_up_after_response(&cache, 7, near).await, SchemaLookup::Unreachable));
    assert!(matches!(cache.at(PATIENCE).by_id(7), SchemaLookup::Refused(_)));
    let other = look_up_after_response(&cache, 8, PATIENCE).await;
    assert!(matches!(other, SchemaLookup::Unreachable), "no record has waited for it: {other:?}");
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
    assert!(matches!(look_up_after_response(&cache, 7, START).await, SchemaLookup::Unreachable));
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
    assert!(matches!(look_up_after_response(&cache, 7, again).await, SchemaLookup::Unreachable));
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

#[test]
fn the_status_of_an_answer_says_what_becomes_of_the_records_that_wait() {
    let away = [408, 429, 500, 502, 503, 504, 100];
    let denied = [301, 302, 307, 400, 401, 403, 404, 405, 410, 422];
    let kind = |status: u16| match check_status(StatusCode::from_u16(status).unwrap(), b"{}") {
        Ok(()) => "given",
        Err(FetchError::Denied(_)) => "denied",
        Err(FetchError::Unavailable(_)) => "away",
        Err(error) => panic!("{status}: {error}"),
    };
    assert!(away.iter().all(|status| kind(*status) == "away"));
    assert!(denied.iter().all(|status| kind(*status) == "denied"));
    assert_eq!((kind(200), kind(204)), ("given", "given"));
}

#[test]
fn a_registry_that_is_away_is_asked_less_and_less_often() {
    let mut failures = Failures::default();
    for pause_ms in [500, 1_000, 2_000, 4_000, 4_000] {
        let away = Err(FetchError::Unavailable("no".to_owned()));
        let SchemaState::Unavailable { until, failures: next } = state_of(7, away, MS, failures)
        else {
            panic!("it is away")
        };
        assert_eq!(until, MS + pause_ms * MS);
        failures = next;
    }
}

/// What is remembered of denials lasts this long after the next request would be sent.
#[tokio::test]
async fn a_denial_is_remembered_for_its_time_and_while_it_is_asked_again() {
    let (registry, _paths) = start_registry(&[(401, "{}")]).await;
    let cache = cache_of(registry);
    let _found = look_up_after_response(&cache, 7, START).await;
    let until = UNAVAILABLE + FAILURE_MEMORY;
    assert!(cache.denies(7, until - MS) && !cache.denies(7, until));
    let until = UNAVAILABLE_MAX + FAILURE_MEMORY;
    assert!(cache.refusal(until - MS).is_some() && cache.refusal(until).is_none());
    // Nothing answers the second request.
    assert!(matches!(cache.at(UNAVAILABLE).by_id(7), SchemaLookup::Unreachable));
    assert!(cache.denies(7, UNAVAILABLE), "it is asked again");
}

#[tokio::test]
async fn a_refused_schema_is_asked_for_again_after_its_interval() {
    let refused = serde_json::json!({ "schema": "{" }).to_string();
    let given = serde_json::json!({ "schema": SCHEMA }).to_string();
    let (registry, _paths) = start_registry(&[(200, &refused), (200, &given)]).await;
    let cache = cache_of(registry);
    let _why = refusal(&cache, 7, START).await;
    assert!(matches!(cache.at(UNKNOWN - MS).by_id(7), SchemaLookup::Refused(_)));
    assert!(matches!(look_up_after_response(&cache, 7, UNKNOWN).await, SchemaLookup::Known(_)));
}

#[tokio::test]
async fn an_answer_may_have_so_many_bytes_and_no_more() {
    let whole = |length: usize| {
        let body = serde_json::json!({ "schema": SCHEMA }).to_string();
        format!("{body}{}", " ".repeat(length - body.len()))
    };
    let bodies = [whole(ANSWER_BYTES_MAX), whole(ANSWER_BYTES_MAX + 1)];
    let (registry, _paths) = start_registry(&[(200, &bodies[0]), (200, &bodies[1])]).await;
    let cache = cache_of(registry);
    assert!(matches!(look_up_after_response(&cache, 7, START).await, SchemaLookup::Known(_)));
    assert!(refusal(&cache, 8, START).await.contains("bytes"));
}

#[test]
fn a_file_that_cannot_be_read_is_tried_again_and_does_not_leave_it_to_the_registry() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("7.avsc")).unwrap();
    let cache = SchemaCache::new(Some(folder.path().to_owned()), None);
    let found = cache.at(START).by_id(7);
    assert!(matches!(found, SchemaLookup::Unreachable), "{found:?}");
    assert!(matches!(cache.at(START).by_id(8), SchemaLookup::Unknown), "there is no file");
}

#[test]
fn an_empty_setting_is_no_folder() {
    let settings = |dir: &str| TriggerSettings {
        schemas_dir: dir.into(),
        registry_url: String::new(),
        ..crate::config::Settings::load(&crate::config::Layers::default()).unwrap().triggers
    };
    let (cache, runtime) = SchemaCache::open(&settings("")).unwrap();
    assert!(cache.folder.is_none() && runtime.is_none());
    let (cache, _) = SchemaCache::open(&settings("/schemas")).unwrap();
    assert_eq!(cache.folder, Some("/schemas".into()));
}

#[test]
fn answers_are_forgotten_only_if_there_is_no_room() {
    let cache = SchemaCache::new(None, None);
    for id in 0..SCHEMAS_MAX as u32 {
        let _found = cache.at(START).by_id(id);
    }
    assert_eq!(lock(&cache.answers).schemas.len(), SCHEMAS_MAX);
    let _found = cache.at(START).by_id(SCHEMAS_MAX as u32);
    assert_eq!(lock(&cache.answers).schemas.len(), 1);
}
