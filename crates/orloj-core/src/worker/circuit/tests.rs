//! Circuits under histories with a simulated clock, as tables and at random.

use proptest::prelude::*;

use super::*;

const NOW: Duration = Duration::from_secs(1_000);

const RULES: CircuitBreakerSettings = CircuitBreakerSettings {
    window: Duration::from_secs(30),
    attempts_min: 20,
    failures_percent: 50,
    open_duration: Duration::from_secs(60),
    probes_required: 3,
    circuits_max: 4,
};

fn route(host: &str) -> Route {
    Route { caller: Some("billing".into()), host: host.into() }
}

fn unhealthy() -> HostHealth {
    HostHealth::Unhealthy("answered 503".to_owned())
}

/// A circuit and a simulated clock.
struct CircuitFixture {
    circuits: CircuitBreakers,
    now: Duration,
}

impl CircuitFixture {
    fn new() -> Self {
        let now = NOW;
        Self { circuits: CircuitBreakers::new(RULES, now), now }
    }

    /// This many attempts that start and end now.
    fn attempts(&mut self, count: u32, sign: &HostHealth) {
        for _ in 0..count {
            let ticket = self.start();
            self.end(ticket, sign);
        }
    }

    fn start(&mut self) -> Ticket {
        self.circuits.admit(&route("h"), self.now).unwrap()
    }

    fn end(&mut self, ticket: Ticket, sign: &HostHealth) {
        self.circuits.record(&route("h"), ticket, sign, self.now);
    }

    fn advance_seconds(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.circuits.sweep(self.now);
    }

    /// The states entered since the last call.
    fn states_entered(&mut self) -> Vec<CircuitState> {
        self.circuits.take_transitions().into_iter().map(|change| change.state).collect()
    }

    fn make_it_open(&mut self) {
        self.attempts(20, &unhealthy());
        assert_eq!(self.states_entered(), [CircuitState::Open]);
    }
}

/// This many seconds after the last run, this many attempts, and whether they fail.
type AttemptRun = (u64, u32, bool);

/// The circuit must open with the very last attempt, or not at all.
#[test]
fn it_opens_when_more_than_half_of_enough_attempts_fail_within_the_window() {
    let table: [(&str, &[AttemptRun], bool); 8] = [
        ("all fail", &[(0, 20, true)], true),
        ("too few", &[(0, 19, true)], false),
        ("half of them", &[(0, 10, false), (0, 10, true)], false),
        ("one more than half", &[(0, 10, false), (0, 11, true)], true),
        ("a success is no occasion to open", &[(0, 19, true), (0, 1, false)], false),
        ("spread over the window", &[(0, 10, true), (26, 10, true)], true),
        ("too far apart", &[(0, 10, true), (31, 10, true)], false),
        ("old successes do not excuse", &[(0, 1_000, false), (31, 20, true)], true),
    ];
    for (name, runs, opens) in table {
        let mut fixture = CircuitFixture::new();
        let all: u32 = runs.iter().map(|(_, count, _)| count).sum();
        let mut made = 0;
        for &(wait, count, fails) in runs {
            fixture.now += Duration::from_secs(wait);
            for _ in 0..count {
                made += 1;
                fixture.attempts(1, &if fails { unhealthy() } else { HostHealth::Healthy });
                let opened = fixture.states_entered() == [CircuitState::Open];
                assert_eq!(opened, opens && made == all, "{name}, attempt {made}");
            }
        }
    }
}

#[test]
fn an_open_circuit_says_when_it_probes_and_why_it_opened() {
    let mut fixture = CircuitFixture::new();
    fixture.attempts(20, &unhealthy());
    let changes = fixture.circuits.take_transitions();
    let reason = "20 of 20 attempts in 30s failed, the last: answered 503".to_owned();
    let (state, probe_in) = (CircuitState::Open, Some(RULES.open_duration));
    assert_eq!(changes, [CircuitTransition { route: route("h"), state, reason, probe_in }]);
    fixture.advance_seconds(20);
    assert_eq!(fixture.circuits.admit(&route("h"), fixture.now), Err(Duration::from_secs(40)));
    assert_eq!(
        fixture.circuits.blocked_for(&route("h"), fixture.now),
        Some(Duration::from_secs(40))
    );
    let other = Route { caller: None, ..route("h") };
    assert_eq!(
        fixture.circuits.blocked_for(&other, fixture.now),
        None,
        "another caller's is another"
    );
}

#[test]
fn probes_close_it_when_all_succeed() {
    let mut fixture = CircuitFixture::new();
    fixture.make_it_open();
    fixture.advance_seconds(60);
    let probes = [fixture.start(), fixture.start(), fixture.start()];
    assert_eq!(fixture.states_entered(), [CircuitState::HalfOpen]);
    assert_eq!(
        fixture.circuits.admit(&route("h"), fixture.now),
        Err(Duration::ZERO),
        "a 4th probe"
    );
    fixture.end(probes[0], &HostHealth::Healthy);
    fixture.end(probes[1], &HostHealth::NotContacted);
    fixture.end(probes[2], &HostHealth::Healthy);
    assert!(fixture.states_entered().is_empty(), "one of them has contacted no host");
    fixture.attempts(1, &HostHealth::Healthy);
    assert_eq!(fixture.states_entered(), [CircuitState::Closed]);
    fixture.attempts(19, &unhealthy());
    assert!(fixture.states_entered().is_empty(), "it starts with an empty window");
}

#[test]
fn one_probe_that_fails_opens_it_again() {
    let mut fixture = CircuitFixture::new();
    fixture.make_it_open();
    fixture.advance_seconds(61);
    let (first, second) = (fixture.start(), fixture.start());
    fixture.end(first, &unhealthy());
    fixture.end(second, &HostHealth::Healthy);
    assert_eq!(fixture.states_entered(), [CircuitState::HalfOpen, CircuitState::Open]);
    assert_eq!(fixture.circuits.blocked_for(&route("h"), fixture.now), Some(RULES.open_duration));
}

#[test]
fn attempts_started_before_it_opened_do_not_count_as_probes() {
    let mut fixture = CircuitFixture::new();
    let late = [fixture.start(), fixture.start()];
    fixture.make_it_open();
    fixture.end(late[0], &unhealthy());
    fixture.advance_seconds(60);
    let _probe = fixture.start();
    assert_eq!(fixture.states_entered(), [CircuitState::HalfOpen]);
    fixture.end(late[1], &unhealthy());
    assert!(fixture.states_entered().is_empty());
}

#[test]
fn unused_circuits_are_removed_and_a_removed_open_one_is_reported_closed() {
    let mut fixture = CircuitFixture::new();
    fixture.attempts(1, &HostHealth::Healthy);
    fixture.advance_seconds(31);
    assert_eq!(fixture.circuits.count_by_state().map(|(_, count)| count), [0, 0, 0]);
    fixture.make_it_open();
    fixture.advance_seconds(119);
    assert_eq!(fixture.circuits.count_by_state().map(|(_, count)| count), [0, 1, 0]);
    fixture.advance_seconds(4);
    assert_eq!(fixture.circuits.count_by_state().map(|(_, count)| count), [0, 0, 0]);
    assert_eq!(fixture.states_entered(), [CircuitState::Closed]);
}

#[test]
fn an_attempt_that_lasts_longer_than_the_window_still_counts() {
    let mut fixture = CircuitFixture::new();
    let hanging: Vec<_> = (0..20).map(|_| fixture.start()).collect();
    fixture.advance_seconds(300);
    hanging.into_iter().for_each(|ticket| fixture.end(ticket, &unhealthy()));
    assert_eq!(fixture.states_entered(), [CircuitState::Open]);
}

#[test]
fn above_the_maximum_hosts_have_no_circuit() {
    let mut fixture = CircuitFixture::new();
    for host in 0..100 {
        let route = route(&host.to_string());
        for _ in 0..30 {
            if let Ok(ticket) = fixture.circuits.admit(&route, fixture.now) {
                fixture.circuits.record(&route, ticket, &unhealthy(), fixture.now);
            }
        }
    }
    assert_eq!(
        fixture.circuits.count_by_state().map(|(_, count)| count),
        [0, RULES.circuits_max, 0]
    );
}

#[test]
fn only_failures_of_the_host_count() {
    let answered =
        |status| CallbackResponse::Answered { status, retry_after: None, body: String::new() };
    for status in [200, 204, 301, 400, 401, 404, 408, 410, 422] {
        assert_eq!(HostHealth::of_response(&answered(status)), HostHealth::Healthy, "{status}");
    }
    for status in [429, 500, 502, 503, 504, 599] {
        assert_eq!(
            HostHealth::of_response(&answered(status)),
            HostHealth::Unhealthy(format!("answered {status}"))
        );
    }
    let silent = "timed out".to_owned();
    assert_eq!(
        HostHealth::of_response(&CallbackResponse::NoResponse(silent.clone())),
        HostHealth::Unhealthy(silent)
    );
    for response in [CallbackResponse::Unsendable, CallbackResponse::NotContacted] {
        assert_eq!(HostHealth::of_response(&response(String::new())), HostHealth::NotContacted);
    }
}

#[derive(Clone, Debug)]
enum CircuitStep {
    Start,
    End(prop::sample::Index, bool),
    Wait(u64),
}

fn any_step() -> impl Strategy<Value = CircuitStep> {
    prop_oneof![
        5 => Just(CircuitStep::Start),
        5 => (any::<prop::sample::Index>(), prop::bool::weighted(0.3))
            .prop_map(|(which, well)| CircuitStep::End(which, well)),
        1 => (1_u64..80).prop_map(CircuitStep::Wait),
    ]
}

proptest! {
    /// Whatever happens: nothing is admitted while it is open, half-open admits no more than its
    /// probes at once, and states follow each other as in the diagram.
    #[test]
    fn every_sequence_of_events_follows_the_state_diagram(
        steps in prop::collection::vec(any_step(), 0..600),
    ) {
        let mut fixture = CircuitFixture::new();
        let (mut state, mut open_until) = (CircuitState::Closed, fixture.now);
        let mut in_progress: Vec<Ticket> = Vec::new();
        for step in steps {
            match step {
                CircuitStep::Start => match fixture.circuits.admit(&route("h"), fixture.now) {
                    Ok(ticket) => in_progress.push(ticket),
                    Err(wait) => {
                        prop_assert!(wait <= RULES.open_duration);
                        prop_assert!(state != CircuitState::Closed);
                    }
                },
                CircuitStep::End(which, well) if !in_progress.is_empty() => {
                    let ticket = in_progress.swap_remove(which.index(in_progress.len()));
                    fixture.end(ticket, &if well { HostHealth::Healthy } else { unhealthy() });
                }
                CircuitStep::End(..) => {}
                CircuitStep::Wait(seconds) => fixture.advance_seconds(seconds),
            }
            for change in fixture.circuits.take_transitions() {
                let follows = match (state, change.state) {
                    (CircuitState::Open, CircuitState::HalfOpen) => fixture.now >= open_until,
                    (CircuitState::Closed | CircuitState::HalfOpen, CircuitState::Open)
                    | (CircuitState::HalfOpen | CircuitState::Open, CircuitState::Closed) => true,
                    _ => false,
                };
                prop_assert!(follows, "{:?} after {:?}", change, state);
                state = change.state;
                open_until = fixture.now + change.probe_in.unwrap_or_default();
            }
            let newest = fixture.circuits.breakers.get(&route("h"));
            let newest = newest.map(|circuit| circuit.state_number);
            let probes = in_progress.iter().filter(|ticket| Some(ticket.0) == newest).count();
            let probes_max = RULES.probes_required as usize;
            prop_assert!(state != CircuitState::HalfOpen || probes <= probes_max);
            prop_assert!(state != CircuitState::Open || probes == 0);
        }
    }
}
