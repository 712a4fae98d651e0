//! Every role and every kind of trigger at once while each of three brokers is killed in turn, or
//! each scheduler, worker and gateway is restarted: fires into topics, callbacks, recurring
//! triggers, dependencies, commands and requests over HTTP.
//!
//! Invariant: what each trigger must do follows from its id; nothing is lost, and no record of
//! Kafka is there twice.

use std::time::Duration;

use orloj::clock;

use super::background::beside;
use super::gateway_load::{GatewayAddresses, GatewayAnswers, GatewayLoad};
use super::processes::{end, wait_for_ms, wait_until_owned};
use super::receiver::CountingReceiver;
use super::report::{FaultFigures, FaultResult};
use super::steady_load::SteadyLoad;
use super::{COMPLETION_DEADLINE, FaultFixture, Scale, print_progress};
use crate::brokers::ThreeBrokers;
use crate::plain_clients::PlainClients;
use crate::process::OrlojProcess;
use crate::test_cluster::{PARTITIONS, TestCluster};
use crate::test_producer::{CALLBACK_URL_HEADER, TestProducer};

/// What Orloj may add to the time for which a plain producer waits, in ms.
const ADDED_MAX: u64 = 2_000;
/// Callbacks a second.
const CALLBACKS: u64 = 20;
/// From the end until the view shows each trigger as fired.
const VIEW_DEADLINE: Duration = Duration::from_secs(20);
/// The schedulers, and how many partitions each has.
const SCHEDULERS: [&str; 2] = ["first", "second"];
const SHARE: usize = PARTITIONS as usize / SCHEDULERS.len();
const GATEWAYS: [&str; 2] = ["gateway", "other-gateway"];
/// How late a fire into a topic may be when processes are restarted one by one, in ms.
const RESTARTED_LATE_MAX: u64 = 1_000;
/// How long an answer of the gateway may take then, in ms: an owner may have to be waited for.
const RESTARTED_ANSWER_MAX: u64 = 2_000;

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
        let worker = fixture.cluster.start_ready("worker", "worker");
        let gateways = GATEWAYS.map(|name| fixture.cluster.start_ready("gateway", name));
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
        self.worker = fixture.cluster.start_ready("worker", "worker");
    }

    /// No new request is sent to it, and those that are under way are answered.
    fn restart_gateway(&mut self, fixture: &FaultFixture, place: usize) {
        self.addresses.remove(&self.gateways[place].address());
        end(&mut self.gateways[place]);
        self.gateways[place] = fixture.cluster.start_ready("gateway", GATEWAYS[place]);
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

pub(super) fn brokers_killed(scale: Scale) -> FaultResult {
    let mut brokers = ThreeBrokers::start();
    let client = brokers.client();
    let fixture = fixture_of(brokers.installation("all-roles"));
    let mut processes = Processes::start(&fixture);
    let plain = PlainClients::start(&client, &fixture.cluster.names.scheduler_group());
    brokers.wait_until_in_sync();
    let began = clock::now_ms();
    let rounds = if scale == Scale::Long { 10 } else { 1 };
    let fires = fixture.cluster.fire_progress();
    let addresses = processes.addresses.clone();
    let run = WrittenLoad::write(&fixture, &addresses, || {
        for place in (0..3).cycle().take(3 * rounds) {
            wait_for_ms(3_000);
            brokers.kill(place);
            fires.wait_until_caught_up(COMPLETION_DEADLINE, || processes.assert_alive());
            brokers.start_again(place);
        }
    });
    let waited = plain.times_since(began).producer;
    print_progress(&format!("  a plain producer waited {waited} ms"));
    let figures = run.judge(&fixture, processes, waited + ADDED_MAX);
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
    let rounds = if scale == Scale::Long { 10 } else { 1 };
    let addresses = processes.addresses.clone();
    let run = WrittenLoad::write(&fixture, &addresses, || {
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
    run.answers.assert_all_registered_within(RESTARTED_ANSWER_MAX);
    let figures = run.judge(&fixture, processes, RESTARTED_LATE_MAX);
    // A worker finishes what is in progress before it leaves its partitions to another one.
    run.receiver.assert_nothing_repeated();
    FaultResult::Passed(figures.with("processes restarted", 5 * rounds))
}

fn fixture_of(cluster: TestCluster) -> FaultFixture {
    let cluster = cluster
        .set("worker.allow_addresses", "any")
        .set("worker.retry_delays", vec!["1s", "1s", "1s"]);
    FaultFixture::from_cluster(cluster)
}

/// What was written beside the steady load and the triggers of other kinds.
struct WrittenLoad {
    /// Where triggers fire that were registered over HTTP.
    http: String,
    answers: GatewayAnswers,
    /// Who has registered callbacks, and who receives them.
    calling: TestProducer,
    receiver: CountingReceiver,
}

impl WrittenLoad {
    /// Writes all kinds of triggers for as long as `body` runs, and five seconds.
    fn write(fixture: &FaultFixture, addresses: &GatewayAddresses, body: impl FnOnce()) -> Self {
        let (receiver, calling) = (CountingReceiver::start(), fixture.cluster.client());
        let (url, http) = (receiver.url(), fixture.cluster.new_target("http"));
        let calls = SteadyLoad {
            client: &calling,
            per_second: CALLBACKS,
            other: Some((CALLBACK_URL_HEADER, &url)),
            ..fixture.steady_load()
        };
        let requests = GatewayLoad { addresses, topic: &http };
        let body = || {
            body();
            wait_for_ms(5_000);
        };
        let answers =
            fixture.under_load(|| calls.during(|| beside(|ended| requests.send(ended), body).1));
        Self { http, answers, calling, receiver }
    }

    /// Waits until everything has fired, and judges. `late_max`: how late a fire into a topic may
    /// be, in ms.
    fn judge(
        &self,
        fixture: &FaultFixture,
        mut processes: Processes,
        late_max: u64,
    ) -> FaultFigures {
        let Self { http, answers, calling, receiver } = self;
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
        answers.assert_fired(&fixture.cluster.fires_into(http));
        let late = report.lateness_at(1.0);
        print_progress(&format!("  a fire was {late} ms late, of {late_max}"));
        assert!(late <= late_max, "a fire was {late} ms late; {late_max} are allowed");
        fixture
            .figures(&report)
            .and(&called)
            .with("requests to the gateway", counts.values().sum())
            .with("requests refused for now", counts.get(&503).copied().unwrap_or(0))
    }
}
