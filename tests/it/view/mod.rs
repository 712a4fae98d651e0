//! The view beside a real Kafka, a real scheduler and a real worker: killed again and again while
//! it folds, it becomes what a view is that reads everything from the beginning, and tells the
//! truth.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use orloj::clock;
use orloj::config::{Layers, Settings};
use orloj::health::Health;
use orloj::view::{
    DeadLetterFilter, ExecutionStatus, LetterState, Page, Scope, Status, TriggerFilter,
    TriggerView, View, dump,
};
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::endpoint::Endpoint;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);
/// Where the child finds its settings.
const CONFIG: &str = "ORLOJ_TEST_VIEW";
const FILE: &str = "view.sqlite";
/// Triggers beside those that are looked at one by one.
const TRIGGERS_PER_ROUND: u64 = 400;

#[test]
fn a_view_that_was_killed_repeatedly_equals_a_rebuilt_view() {
    let cluster = TestCluster::new("view")
        .set("worker.allow_addresses", "any")
        .set("worker.retry_delays", vec!["1s"])
        .set("worker.retry_jitter", 0);
    let (lived, rebuilt) = (cluster.data_of("lived"), cluster.data_of("rebuilt"));
    let endpoint = Endpoint::start();
    let mut scheduler = cluster.scheduler("scheduler");
    let mut worker = cluster.start("worker", "worker");
    scheduler.wait_until_ready(READY_DEADLINE);
    worker.wait_until_ready(READY_DEADLINE);

    let mut child = start(&cluster, &lived);
    write_all(&cluster, &endpoint);
    let mut seen = 0;
    for kill in 1..=4 {
        // Each batch is larger: so it is killed while it projects.
        let some_more = || Some(lines(&lived)).filter(|lines| *lines >= seen + 50);
        seen = until("the view to fold some more", DEADLINE, some_more);
        end(child);
        write_triggers(&cluster, kill);
        if kill == 2 {
            scheduler.kill();
            scheduler = cluster.scheduler("scheduler");
        }
        child = start(&cluster, &lived);
    }
    end(child);
    let runtime = Runtime::new().unwrap();
    let view = TestView::new(&runtime, &cluster, &lived);
    assert_statuses_are_correct(&view);
    let lived = view.close();
    let view = TestView::new(&runtime, &cluster, &rebuilt);
    assert_statuses_are_correct(&view);
    assert_same(&lived, &view.close());
    assert!(!scheduler.panicked() && !worker.panicked());
    worker.terminate();
    scheduler.terminate();
}

/// The process that is killed: this program, started with this test alone.
#[test]
#[ignore = "another test runs it as a process of its own"]
fn a_view_lives_until_it_is_killed() {
    let Ok(config) = std::env::var(CONFIG) else { return };
    let runtime = Runtime::new().unwrap();
    let _inside = runtime.enter();
    let settings = load(Path::new(&config));
    let _view = View::open(&settings, Health::new("view"), CancellationToken::new()).unwrap();
    // The process that started it has died when this ends.
    let mut line = String::new();
    let _end = std::io::stdin().read_line(&mut line);
}

fn start(cluster: &TestCluster, dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["view::a_view_lives_until_it_is_killed", "--exact", "--ignored"])
        .env(CONFIG, config(cluster, dir))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn end(mut child: Child) {
    child.kill().unwrap();
    let _killed = child.wait().unwrap();
}

fn config(cluster: &TestCluster, dir: &Path) -> std::path::PathBuf {
    cluster.settings.clone().set("gateway.view_dir", dir.to_str().unwrap()).write("view")
}

fn load(config: &Path) -> Settings {
    let file = Some(config.to_owned());
    Settings::load(&Layers { file, ..Layers::default() }).unwrap()
}

/// The number of rows in a view, independent of its writer.
fn lines(dir: &Path) -> usize {
    dump(&dir.join(FILE)).map_or(0, |lines| lines.len())
}

fn write_all(cluster: &TestCluster, endpoint: &Endpoint) {
    let client = cluster.client();
    let topic = cluster.target().1;
    let (now, far) = (clock::now_ms(), clock::now_ms() + 86_400_000);
    let post = |id: &str, envelope: Value| client.post(id, &envelope.to_string(), None);
    for id in ["fired", "kept", "replaced"] {
        post(id, json!({"fireAt": now, "topic": topic, "retain": "1h"}));
    }
    for id in ["pending", "cancelled", "paused", "resumed", "called"] {
        post(id, json!({"fireAt": far, "topic": topic, "payload": {"n": 1}}));
    }
    client.post("paused", "", Some("pause"));
    client.post("resumed", "", Some("pause"));
    client.post("resumed", "", Some("resume"));
    client.post("called", "", Some("fire-now"));
    client.cancel("cancelled");
    // It is remembered, so that this one is ignored.
    post("kept", json!({"fireAt": far, "topic": topic, "onConflict": "keep"}));
    post("replaced", json!({"fireAt": far, "topic": topic}));
    post("series", json!({"schedule": {"every": "PT1S", "maxExecutions": 3}, "topic": topic}));
    post("yearly", json!({"schedule": {"every": "P365D", "start": far}, "topic": topic}));
    post("waits", json!({"after": ["unknown"], "topic": topic}));
    post("unreadable", json!({"fireAt": "soon", "topic": topic}));
    endpoint.register(cluster, "completed", "fine", json!({}), json!({}));
    endpoint.register(cluster, "delivered", "fine", json!({"retain": "1h"}), json!({}));
    endpoint.register(cluster, "flaky", "flaky", json!({}), json!({}));
    endpoint.register(cluster, "failed", "broken", json!({"retry": {"attempts": 1}}), json!({}));
    let once = json!({"retry": {"attempts": 1}});
    endpoint.register(cluster, "in-flight", "hang", once, json!({"timeout": "3s"}));
    write_triggers(cluster, 0);
    let _all = client.acknowledged();
}

/// Many, some of which are cancelled.
fn write_triggers(cluster: &TestCluster, round: u64) {
    let client = cluster.client();
    for n in 0..TRIGGERS_PER_ROUND {
        let (id, due) = (format!("many-{round}-{n}"), clock::now_ms() + n * 3);
        client.register(&id, due, cluster.target(), "{}", n % 3 == 0);
        if n % 5 == 0 {
            client.cancel(&id);
        }
    }
    let _all = client.acknowledged();
}

/// A view that has caught up.
struct TestView<'a> {
    runtime: &'a Runtime,
    view: View,
    shutdown: CancellationToken,
    file: std::path::PathBuf,
}

impl<'a> TestView<'a> {
    fn new(runtime: &'a Runtime, cluster: &TestCluster, dir: &Path) -> Self {
        let _inside = runtime.enter();
        let settings = load(&config(cluster, dir));
        let (health, shutdown) = (Health::new("view"), CancellationToken::new());
        let view = View::open(&settings, health, shutdown.clone()).unwrap();
        Self { runtime, view, shutdown, file: dir.join(FILE) }
    }

    fn trigger(&self, id: &str) -> Option<TriggerView> {
        let found = self.runtime.block_on(self.view.trigger(&Scope::All, id));
        found.ok().flatten()
    }

    fn count(&self, status: Status) -> usize {
        let filter = TriggerFilter { statuses: vec![status], ..TriggerFilter::default() };
        let (mut page, mut count) = (Page { size: 1_000, token: None }, 0);
        loop {
            let listed = self.view.triggers(&Scope::All, &filter, &page);
            let listing = self.runtime.block_on(listed).unwrap();
            count += listing.items.len();
            match listing.next {
                Some(token) => page.token = Some(token),
                None => return count,
            }
        }
    }

    /// Waits until it stands still, and ends it.
    fn close(self) -> Vec<String> {
        let started = clock::now_ms();
        until("the view to be fresh", DEADLINE, || {
            (self.view.freshness().as_of > started).then_some(())
        });
        until("the file to say so", DEADLINE, || {
            (stored_as_of(&self.file) > started).then_some(())
        });
        let lines = dump(&self.file).unwrap();
        self.shutdown.cancel();
        lines
    }
}

/// Up to when the view in this file has read, as the file has it; 0 if it does not say.
fn stored_as_of(file: &Path) -> u64 {
    let db = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let sql = "SELECT value FROM meta WHERE key = 'as_of'";
    let as_of = db.query_row(sql, [], |row| row.get::<_, String>(0));
    as_of.map_or(0, |text| text.parse().unwrap())
}

/// Each trigger stands where it stands.
fn assert_statuses_are_correct(view: &TestView<'_>) {
    for (id, expected) in [
        ("fired", Status::Fired),
        ("kept", Status::Fired),
        ("replaced", Status::Pending),
        ("pending", Status::Pending),
        ("cancelled", Status::Cancelled),
        ("paused", Status::Paused),
        ("resumed", Status::Pending),
        ("called", Status::Fired),
        ("series", Status::Fired),
        ("yearly", Status::Scheduled),
        ("waits", Status::Waiting),
        ("delivered", Status::Completed),
        ("flaky", Status::Completed),
        ("failed", Status::Failed),
        ("in-flight", Status::Failed),
    ] {
        let is = || view.trigger(id).map(|trigger| trigger.status);
        until(&format!("{id} to be {expected:?}, not {:?}", is()), DEADLINE, || {
            (is() == Some(expected)).then_some(())
        });
    }
    // A fifth of them was cancelled, unless it had fired before.
    let all = TRIGGERS_PER_ROUND as usize * 5;
    until("all of them to settle", DEADLINE, || {
        let cancelled = view.count(Status::Cancelled) - 1;
        let fired = view.count(Status::Fired) - 4;
        (cancelled + fired == all).then_some(())
    });
    assert_eq!(view.trigger("series").unwrap().executions, 3);
    assert_executions(view);
    assert_dead_letters(view);
}

fn assert_executions(view: &TestView<'_>) {
    let executions = |id: &str| {
        let page = Page::default();
        let all = view.view.executions(&Scope::All, id, None, &page);
        let items = view.runtime.block_on(all).unwrap().unwrap().items;
        items.iter().map(|one| (one.attempt, one.status)).collect::<Vec<_>>()
    };
    assert_eq!(executions("fired"), [(1, ExecutionStatus::Fired)]);
    let flaky = [(2, ExecutionStatus::Completed), (1, ExecutionStatus::Retrying)];
    assert_eq!(executions("flaky"), flaky);
    assert_eq!(executions("failed"), [(1, ExecutionStatus::Failed)]);
    assert_eq!(executions("pending"), []);
}

fn assert_dead_letters(view: &TestView<'_>) {
    let (all, page) = (DeadLetterFilter::default(), Page::default());
    let all = view.view.dead_letters(&Scope::All, &all, &page);
    let letters = view.runtime.block_on(all).unwrap().items;
    let of =
        |id: &str| letters.iter().find(|letter| letter.trigger.as_deref() == Some(id)).unwrap();
    assert_eq!((of("failed").state, of("failed").last_status), (LetterState::Open, Some(500)));
    assert_eq!(of("unreadable").attempts, None);
    let one = view.runtime.block_on(view.view.dead_letter(&Scope::All, &of("failed").id)).unwrap();
    assert_eq!(one.as_ref(), Some(of("failed")));
    let other = Scope::Caller("other".to_owned());
    let none = view.runtime.block_on(view.view.dead_letter(&other, &of("failed").id)).unwrap();
    assert_eq!(none, None, "another caller does not see it");
}

fn assert_same(lived: &[String], rebuilt: &[String]) {
    let only = |these: &[String], others: &[String]| {
        let missing = these.iter().filter(|line| others.binary_search(line).is_err());
        missing.take(10).cloned().collect::<Vec<_>>()
    };
    let (missing, new) = (only(lived, rebuilt), only(rebuilt, lived));
    assert!(lived == rebuilt, "only the first one has {missing:#?}; only the other has {new:#?}");
    assert!(lived.len() > TRIGGERS_PER_ROUND as usize * 5, "{} lines", lived.len());
}
