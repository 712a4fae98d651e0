//! Every role and every kind of trigger at once while each of three brokers is killed in turn, or
//! each scheduler, worker and gateway is restarted: fires into topics, callbacks, recurring
//! triggers, dependencies, commands and requests over HTTP.
//!
//! Invariant: what each trigger must do follows from its id; nothing is lost, and no record of
//! Kafka is there twice.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use orloj::clock;
use orloj::model::Timestamp;
use rdkafka::ClientConfig;
use rdkafka::admin::{NewTopic, TopicReplication};
use serde_json::json;

use super::background::beside;
use super::gateway_load::{GatewayAddresses, GatewayAnswers, GatewayLoad};
use super::lateness::{FireTimes, fire_times};
use super::processes::{end, wait_for_ms, wait_until_owned};
use super::receiver::CountingReceiver;
use super::report::{FaultFigures, FaultResult};
use super::steady_load::SteadyLoad;
use super::{COMPLETION_DEADLINE, FaultFixture, Scale, print_progress};
use crate::audit::ObservedFire;
use crate::brokers::ThreeBrokers;
use crate::kafka_server::{create_topics, unique_prefix};
use crate::plain_clients::PlainClients;
use crate::process::OrlojProcess;
use crate::records::RecordCounter;
use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster};
use crate::test_producer::{CALLBACK_URL_HEADER, TestProducer};
use crate::wait::{until, within};

/// What Orloj may add to the time for which a plain producer waits, in ms.
const ADDED_MAX: u64 = 2_000;
/// Recurring triggers, each of which fires every second.
const SCHEDULES: usize = 20;
const EVERY_MS: u64 = 1_000;
/// Callbacks a second.
const CALLBACKS: u64 = 20;
/// Pause between two pairs of dependent triggers, and two commands.
const PAUSE: Duration = Duration::from_millis(250);
/// From a registration until it is due, in ms.
const DELAY: u64 = 1_000;
/// What is fired by a command is due after the end of the test, in ms.
const FAR: u64 = 3_600_000;
/// From the end until the view shows each trigger as fired.
const VIEW_DEADLINE: Duration = Duration::from_secs(20);
/// Fires by which it is known that all partitions go on.
const FIRES: usize = 300;
/// The schedulers, and how many partitions each has.
const SCHEDULERS: [&str; 2] = ["first", "second"];
const SHARE: usize = PARTITIONS as usize / SCHEDULERS.len();
const GATEWAYS: [&str; 2] = ["gateway", "other-gateway"];
/// How late a fire into a topic may be when processes are restarted one by one, in ms.
const RESTARTED_LATE_MAX: u64 = 1_500;

/// Where triggers of each kind fire.
struct Targets {
    recurring: String,
    dependent: String,
    http: String,
}

impl Targets {
    fn create(client: &ClientConfig, replicas: i32) -> Self {
        let [recurring, dependent, http] = ["recurring", "dependent", "http"].map(|kind| {
            let name = unique_prefix(kind);
            let topic = NewTopic::new(&name, PARTITIONS, TopicReplication::Fixed(replicas))
                .set("message.timestamp.type", "LogAppendTime");
            create_topics(client, &[topic]);
            name
        });
        Self { recurring, dependent, http }
    }
}

/// The processes: none ends by itself.
struct Processes {
    schedulers: [OrlojProcess; 2],
    worker: OrlojProcess,
    gateways: [OrlojProcess; 2],
    addresses: GatewayAddresses,
}

impl Processes {
    fn start(fixture: &FaultFixture) -> Self {
        let schedulers = SCHEDULERS.map(|name| fixture.cluster.named_scheduler(name));
        schedulers.iter().for_each(|scheduler| wait_until_owned(scheduler, SHARE));
        let worker = start(fixture, "worker", "worker");
        let gateways = GATEWAYS.map(|name| start(fixture, "gateway", name));
        let addresses = GatewayAddresses::default();
        gateways.iter().for_each(|gateway| addresses.add(gateway.address()));
        Self { schedulers, worker, gateways, addresses }
    }

    fn restart_scheduler(&mut self, fixture: &FaultFixture, place: usize) {
        end(&mut self.schedulers[place]);
        self.schedulers[place] = fixture.cluster.named_scheduler(SCHEDULERS[place]);
        self.schedulers.iter().for_each(|scheduler| wait_until_owned(scheduler, SHARE));
    }

    fn restart_worker(&mut self, fixture: &FaultFixture) {
        end(&mut self.worker);
        self.worker = start(fixture, "worker", "worker");
    }

    /// No new request is sent to it, and those that are under way are answered.
    fn restart_gateway(&mut self, fixture: &FaultFixture, place: usize) {
        self.addresses.remove(&self.gateways[place].address());
        end(&mut self.gateways[place]);
        self.gateways[place] = start(fixture, "gateway", GATEWAYS[place]);
        self.addresses.add(self.gateways[place].address());
    }

    fn assert_alive(&mut self) {
        let processes = self.schedulers.iter_mut().chain(&mut self.gateways);
        for process in processes.chain([&mut self.worker]) {
            let ended = process.exit_status();
            assert!(ended.is_none(), "one ended by itself: {ended:?}\n{}", process.log_text());
            assert!(!process.panicked(), "{}", process.log_text());
        }
    }
}

fn start(fixture: &FaultFixture, role: &str, name: &str) -> OrlojProcess {
    let mut process = fixture.cluster.start(role, name);
    process.wait_until_ready(READY_DEADLINE);
    process
}

pub(super) fn brokers_killed(scale: Scale) -> FaultResult {
    let mut brokers = ThreeBrokers::start();
    let client = brokers.client();
    let fixture = fixture_of(brokers.installation("all-roles"));
    let mut processes = Processes::start(&fixture);
    let targets = Targets::create(&client, 3);
    let plain = PlainClients::start(&client);
    brokers.wait_until_in_sync();
    let began = clock::now_ms();
    let rounds = if scale == Scale::Long { 10 } else { 1 };
    let fires = fixture.cluster.count_fires();
    let addresses = processes.addresses.clone();
    let run = WrittenLoad::write(&fixture, &targets, &addresses, || {
        for place in (0..3).cycle().take(3 * rounds) {
            wait_for_ms(3_000);
            brokers.kill(place);
            wait_for_fires(&fires, &mut processes);
            brokers.start_again(place);
        }
    });
    let waited = plain.times_since(began).producer;
    print_progress(&format!("  a plain producer waited {waited} ms"));
    let figures = run.judge(&fixture, &targets, processes, waited + ADDED_MAX);
    FaultResult::Passed(
        figures
            .with("brokers killed", 3 * rounds)
            .with("ms a plain producer waited", usize::try_from(waited).unwrap()),
    )
}

/// Each scheduler, the worker and each gateway end and start again, one by one.
pub(super) fn processes_restarted(scale: Scale) -> FaultResult {
    let fixture = fixture_of(TestCluster::new("rolling-restart"));
    let mut processes = Processes::start(&fixture);
    let targets = Targets::create(fixture.cluster.kafka(), 1);
    let rounds = if scale == Scale::Long { 10 } else { 1 };
    let addresses = processes.addresses.clone();
    let run = WrittenLoad::write(&fixture, &targets, &addresses, || {
        for _ in 0..rounds {
            for place in 0..SCHEDULERS.len() {
                wait_for_ms(3_000);
                processes.restart_scheduler(&fixture, place);
            }
            wait_for_ms(3_000);
            processes.restart_worker(&fixture);
            for place in 0..GATEWAYS.len() {
                wait_for_ms(3_000);
                processes.restart_gateway(&fixture, place);
            }
        }
    });
    let figures = run.judge(&fixture, &targets, processes, RESTARTED_LATE_MAX);
    FaultResult::Passed(figures.with("processes restarted", 5 * rounds))
}

fn fixture_of(cluster: TestCluster) -> FaultFixture {
    let cluster = cluster
        .set("worker.allow_addresses", "any")
        .set("worker.retry_delays", vec!["1s", "1s", "1s"]);
    FaultFixture::from_cluster(cluster)
}

/// What was written beside the steady load.
struct WrittenLoad {
    /// When the schedules begin, and when they are cancelled.
    start: Timestamp,
    stopped: Timestamp,
    dependent: Dependent,
    answers: GatewayAnswers,
    /// Who has registered callbacks, and who receives them.
    calling: TestProducer,
    receiver: CountingReceiver,
}

impl WrittenLoad {
    /// Writes all kinds of triggers for as long as `body` runs, and five seconds.
    fn write(
        fixture: &FaultFixture,
        targets: &Targets,
        addresses: &GatewayAddresses,
        body: impl FnOnce(),
    ) -> Self {
        let (receiver, calling, other) =
            (CountingReceiver::start(), fixture.cluster.client(), fixture.cluster.client());
        let url = receiver.url();
        let calls = SteadyLoad {
            client: &calling,
            per_second: CALLBACKS,
            other: Some((CALLBACK_URL_HEADER, &url)),
            ..fixture.steady_load()
        };
        let http = GatewayLoad { addresses, topic: &targets.http };
        let start = register_schedules(&other, &targets.recurring);
        let body = || {
            body();
            wait_for_ms(5_000);
        };
        let dependent = |ended: &AtomicBool| write_dependent(&other, &targets.dependent, ended);
        let in_all = || beside(|ended| http.send(ended), || beside(dependent, body).1);
        let (dependent, answers) = fixture.steady_load().during(|| calls.during(in_all));
        let stopped = stop_schedules(&other);
        Self { start, stopped, dependent, answers, calling, receiver }
    }

    /// Waits until everything has fired, and judges. `late_max`: how late a fire into a topic may
    /// be, in ms.
    fn judge(
        &self,
        fixture: &FaultFixture,
        targets: &Targets,
        mut processes: Processes,
        late_max: u64,
    ) -> FaultFigures {
        let Self { start, stopped, dependent, answers, calling, receiver } = self;
        let counts = answers.counts();
        print_progress(&format!(
            "  the gateway answered {counts:?}, within {} ms",
            answers.took_max()
        ));
        answers.assert_correct();
        let calls = calling.acknowledged();
        let called = receiver.check_at_least_once(&fixture.cluster, &calls, COMPLETION_DEADLINE);
        for gateway in &processes.gateways {
            answers.wait_for_view(&gateway.address(), VIEW_DEADLINE);
        }
        processes.assert_alive();
        let Processes { schedulers: [mut first, mut second], worker, gateways, .. } = processes;
        worker.terminate();
        gateways.into_iter().for_each(OrlojProcess::terminate);
        let report = fixture.settled(&mut [&mut first, &mut second]);
        let [recurring, dependents, http] = [&targets.recurring, &targets.dependent, &targets.http]
            .map(|topic| fixture.cluster.fires_into(topic));
        answers.assert_fired(&http);
        dependent.assert_fired(&dependents);
        let late = assert_occurrences(&recurring, *start, *stopped);
        assert_in_time(fixture, late, late_max);
        FaultFigures::of(&report)
            .and(&called)
            .with("requests to the gateway", counts.values().sum())
            .with("requests refused for now", counts.get(&503).copied().unwrap_or(0))
            .with("dependent triggers and commands", dependent.0.len())
            .with("occurrences", recurring.len())
    }
}

/// Waits until all partitions fire again.
fn wait_for_fires(fires: &RecordCounter, processes: &mut Processes) {
    let before = fires.count();
    until("fires to go on with two brokers", COMPLETION_DEADLINE, || {
        processes.assert_alive();
        (fires.count() > before + FIRES).then_some(())
    });
}

/// Returns when they begin, in ms since the epoch.
fn register_schedules(client: &TestProducer, topic: &str) -> Timestamp {
    let start = clock::now_ms() / EVERY_MS * EVERY_MS + 3_000;
    for n in 0..SCHEDULES {
        let schedule = json!({"every": "PT1S", "start": start, "misfire": {"all": 1_000}});
        let trigger = json!({"topic": topic, "schedule": schedule});
        client.post(&format!("recurring-{n}"), &trigger.to_string(), None);
    }
    let _all = client.acknowledged();
    start
}

/// Cancels them; returns when, in ms since the epoch.
fn stop_schedules(client: &TestProducer) -> Timestamp {
    let stopped = clock::now_ms();
    (0..SCHEDULES).for_each(|n| client.cancel(&format!("recurring-{n}")));
    let _all = client.acknowledged();
    stopped
}

/// The ids of triggers of which each must fire once.
struct Dependent(Vec<String>);

/// Registers triggers that others wait for, and triggers that commands fire, pause and resume.
fn write_dependent(client: &TestProducer, topic: &str, ended: &AtomicBool) -> Dependent {
    let mut ids = Vec::new();
    let mut resumed: Option<String> = None;
    while within(PAUSE, || ended.load(Relaxed).then_some(())).is_none() {
        let [parent, child, called, paused] =
            ["parent", "child", "called", "paused"].map(|kind| format!("{kind}-{}", ids.len()));
        let post = |id: &str, trigger: serde_json::Value| {
            client.post(id, &trigger.to_string(), None);
        };
        let now = clock::now_ms();
        // The partition of the one that waits may learn of it after the other has fired.
        post(&child, json!({"topic": topic, "after": [&parent]}));
        post(&parent, json!({"topic": topic, "fireAt": now + DELAY, "retain": "1h"}));
        post(&called, json!({"topic": topic, "fireAt": now + FAR}));
        client.post(&called, "", Some("fire-now"));
        post(&paused, json!({"topic": topic, "fireAt": now + DELAY}));
        client.post(&paused, "", Some("pause"));
        if let Some(earlier) = resumed.replace(paused.clone()) {
            client.post(&earlier, "", Some("resume"));
        }
        ids.extend([parent, child, called, paused]);
    }
    if let Some(last) = resumed {
        client.post(&last, "", Some("resume"));
    }
    let _all = client.acknowledged();
    Dependent(ids)
}

impl Dependent {
    fn assert_fired(&self, fires: &[ObservedFire]) {
        let mut visible = BTreeMap::<&str, Vec<u64>>::new();
        for fire in fires {
            visible.entry(&fire.trigger).or_default().push(fire.visible);
        }
        for id in &self.0 {
            let times = visible.get(id.as_str()).map_or(&[][..], Vec::as_slice);
            assert_eq!(times.len(), 1, "{id} has fired at {times:?}");
        }
        assert_eq!(visible.len(), self.0.len(), "others have fired too");
        for id in self.0.iter().filter(|id| id.starts_with("child-")) {
            let number: usize = id.trim_start_matches("child-").parse().unwrap();
            let parent = visible[format!("parent-{number}").as_str()][0];
            assert!(parent < visible[id.as_str()][0], "{id} has fired before its parent");
        }
    }
}

/// Each schedule has fired every second until it was stopped. Returns how late it was at most, in
/// ms.
fn assert_occurrences(fires: &[ObservedFire], start: Timestamp, stopped: Timestamp) -> u64 {
    let mut fired = BTreeMap::<&str, Vec<(u32, Timestamp)>>::new();
    for fire in fires {
        assert!(fire.visible >= fire.due, "early: {fire:?}");
        fired.entry(&fire.trigger).or_default().push((fire.occurrence, fire.due));
    }
    assert_eq!(fired.len(), SCHEDULES);
    for (trigger, mut fired) in fired {
        fired.sort_unstable();
        let due = |occurrence: usize| start + occurrence as u64 * EVERY_MS;
        let expected: Vec<_> = (0..fired.len()).map(|n| (n as u32, due(n))).collect();
        assert_eq!(fired, expected, "{trigger}");
        let missed = stopped.saturating_sub(due(fired.len()));
        assert!(missed <= 2 * EVERY_MS, "{trigger} has not fired for {missed} ms before its end");
    }
    fires.iter().map(|fire| fire.visible.saturating_sub(fire.due)).max().unwrap_or(0)
}

fn assert_in_time(fixture: &FaultFixture, recurring: u64, late_max: u64) {
    let fires = fixture.cluster.fires();
    let times = fire_times(&fixture.client.acknowledged(), &fires);
    let late = times.iter().map(FireTimes::late).max().unwrap_or(0);
    print_progress(&format!(
        "  a fire was {late} ms late, an occurrence {recurring} ms, of {late_max}"
    ));
    assert!(late <= late_max, "a fire was {late} ms late; {late_max} are allowed");
    assert!(recurring <= late_max, "an occurrence was {recurring} ms late of {late_max}");
}
