//! Circuits under histories with a moved clock, as tables and at random.

use proptest::prelude::*;

use super::*;
use crate::clock;

const RULES: Rules = Rules {
    window: Duration::from_secs(30),
    attempts_min: 20,
    failures_percent: 50,
    open: Duration::from_secs(60),
    probes: 3,
    circuits_max: 4,
};

fn route(host: &str) -> Route {
    Route { caller: Some("billing".into()), host: host.into() }
}

fn ill() -> Sign {
    Sign::Ill("answered 503".to_owned())
}

/// A circuit and a clock that stands still until it is moved.
struct Scene {
    circuits: Circuits,
    now: Instant,
}

impl Scene {
    fn new() -> Self {
        let now = clock::monotonic();
        Self { circuits: Circuits::new(RULES, now), now }
    }

    /// So many attempts that begin and end now.
    fn attempts(&mut self, count: u32, sign: &Sign) {
        for _ in 0..count {
            let ticket = self.begin();
            self.end(ticket, sign);
        }
    }

    fn begin(&mut self) -> Ticket {
        self.circuits.admit(&route("h"), self.now).unwrap()
    }

    fn end(&mut self, ticket: Ticket, sign: &Sign) {
        self.circuits.record(&route("h"), ticket, sign, self.now);
    }

    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.circuits.sweep(self.now);
    }

    /// The states entered since this was asked last.
    fn entered(&mut self) -> Vec<CircuitState> {
        self.circuits.take_changes().into_iter().map(|change| change.state).collect()
    }

    fn open(&mut self) {
        self.attempts(20, &ill());
        assert_eq!(self.entered(), [CircuitState::Open]);
    }
}

/// So many seconds after the last run, so many attempts, and whether they fail.
type Run = (u64, u32, bool);

/// The circuit must open with the very last attempt, or not at all.
#[test]
fn it_opens_when_more_than_half_of_enough_attempts_fail_within_the_window() {
    let table: [(&str, &[Run], bool); 8] = [
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
        let mut scene = Scene::new();
        let all: u32 = runs.iter().map(|(_, count, _)| count).sum();
        let mut made = 0;
        for &(wait, count, fails) in runs {
            scene.now += Duration::from_secs(wait);
            for _ in 0..count {
                made += 1;
                scene.attempts(1, &if fails { ill() } else { Sign::Well });
                let opened = scene.entered() == [CircuitState::Open];
                assert_eq!(opened, opens && made == all, "{name}, attempt {made}");
            }
        }
    }
}

#[test]
fn an_open_circuit_says_when_it_probes_and_why_it_opened() {
    let mut scene = Scene::new();
    scene.attempts(20, &ill());
    let changes = scene.circuits.take_changes();
    let reason = "20 of 20 attempts in 30s failed, the last: answered 503".to_owned();
    let (state, probe_in) = (CircuitState::Open, Some(RULES.open));
    assert_eq!(changes, [Change { route: route("h"), state, reason, probe_in }]);
    scene.wait(20);
    assert_eq!(scene.circuits.admit(&route("h"), scene.now), Err(Duration::from_secs(40)));
    assert_eq!(scene.circuits.refusal(&route("h"), scene.now), Some(Duration::from_secs(40)));
    let other = Route { caller: None, ..route("h") };
    assert_eq!(scene.circuits.refusal(&other, scene.now), None, "another caller's is another");
}

#[test]
fn probes_close_it_when_all_succeed() {
    let mut scene = Scene::new();
    scene.open();
    scene.wait(60);
    let probes = [scene.begin(), scene.begin(), scene.begin()];
    assert_eq!(scene.entered(), [CircuitState::HalfOpen]);
    assert_eq!(scene.circuits.admit(&route("h"), scene.now), Err(Duration::ZERO), "a 4th probe");
    scene.end(probes[0], &Sign::Well);
    scene.end(probes[1], &Sign::Nothing);
    scene.end(probes[2], &Sign::Well);
    assert!(scene.entered().is_empty(), "one of them has asked nobody");
    scene.attempts(1, &Sign::Well);
    assert_eq!(scene.entered(), [CircuitState::Closed]);
    scene.attempts(19, &ill());
    assert!(scene.entered().is_empty(), "it begins with an empty window");
}

#[test]
fn one_probe_that_fails_opens_it_again() {
    let mut scene = Scene::new();
    scene.open();
    scene.wait(61);
    let (first, second) = (scene.begin(), scene.begin());
    scene.end(first, &ill());
    scene.end(second, &Sign::Well);
    assert_eq!(scene.entered(), [CircuitState::HalfOpen, CircuitState::Open]);
    assert_eq!(scene.circuits.refusal(&route("h"), scene.now), Some(RULES.open));
}

#[test]
fn what_began_before_it_opened_says_nothing_about_its_probes() {
    let mut scene = Scene::new();
    let late = [scene.begin(), scene.begin()];
    scene.open();
    scene.end(late[0], &ill());
    scene.wait(60);
    let _probe = scene.begin();
    assert_eq!(scene.entered(), [CircuitState::HalfOpen]);
    scene.end(late[1], &ill());
    assert!(scene.entered().is_empty());
}

#[test]
fn what_nobody_uses_is_forgotten_and_whoever_saw_it_open_is_told() {
    let mut scene = Scene::new();
    scene.attempts(1, &Sign::Well);
    scene.wait(31);
    assert_eq!(scene.circuits.census().map(|(_, count)| count), [0, 0, 0]);
    scene.open();
    scene.wait(119);
    assert_eq!(scene.circuits.census().map(|(_, count)| count), [0, 1, 0]);
    scene.wait(4);
    assert_eq!(scene.circuits.census().map(|(_, count)| count), [0, 0, 0]);
    assert_eq!(scene.entered(), [CircuitState::Closed]);
}

#[test]
fn what_hangs_for_longer_than_the_window_still_counts() {
    let mut scene = Scene::new();
    let hanging: Vec<_> = (0..20).map(|_| scene.begin()).collect();
    scene.wait(300);
    hanging.into_iter().for_each(|ticket| scene.end(ticket, &ill()));
    assert_eq!(scene.entered(), [CircuitState::Open]);
}

#[test]
fn beyond_the_bound_hosts_have_no_circuit() {
    let mut scene = Scene::new();
    for host in 0..100 {
        let route = route(&host.to_string());
        for _ in 0..30 {
            if let Ok(ticket) = scene.circuits.admit(&route, scene.now) {
                scene.circuits.record(&route, ticket, &ill(), scene.now);
            }
        }
    }
    assert_eq!(scene.circuits.census().map(|(_, count)| count), [0, RULES.circuits_max, 0]);
}

#[test]
fn only_what_a_host_is_to_blame_for_counts() {
    let answered = |status| Reply::Answered { status, retry_after: None, body: String::new() };
    for status in [200, 204, 301, 400, 401, 404, 408, 410, 422] {
        assert_eq!(Sign::of(&answered(status)), Sign::Well, "{status}");
    }
    for status in [429, 500, 502, 503, 504, 599] {
        assert_eq!(Sign::of(&answered(status)), Sign::Ill(format!("answered {status}")));
    }
    let silent = "timed out".to_owned();
    assert_eq!(Sign::of(&Reply::Silent(silent.clone())), Sign::Ill(silent));
    assert_eq!(Sign::of(&Reply::Impossible(String::new())), Sign::Nothing);
}

#[derive(Clone, Debug)]
enum Step {
    Begin,
    End(prop::sample::Index, bool),
    Wait(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => Just(Step::Begin),
        5 => (any::<prop::sample::Index>(), prop::bool::weighted(0.3))
            .prop_map(|(which, well)| Step::End(which, well)),
        1 => (1_u64..80).prop_map(Step::Wait),
    ]
}

proptest! {
    /// Whatever happens: nothing is admitted while it is open, half-open admits no more than its
    /// probes at once, and states follow each other as the picture says.
    #[test]
    fn no_history_leaves_the_picture(steps in prop::collection::vec(any_step(), 0..600)) {
        let mut scene = Scene::new();
        let (mut state, mut left_alone_until) = (CircuitState::Closed, scene.now);
        let mut under_way: Vec<Ticket> = Vec::new();
        for step in steps {
            match step {
                Step::Begin => match scene.circuits.admit(&route("h"), scene.now) {
                    Ok(ticket) => under_way.push(ticket),
                    Err(wait) => prop_assert!(wait <= RULES.open && state != CircuitState::Closed),
                },
                Step::End(which, well) if !under_way.is_empty() => {
                    let ticket = under_way.swap_remove(which.index(under_way.len()));
                    scene.end(ticket, &if well { Sign::Well } else { ill() });
                }
                Step::End(..) => {}
                Step::Wait(seconds) => scene.wait(seconds),
            }
            for change in scene.circuits.take_changes() {
                let follows = match (state, change.state) {
                    (CircuitState::Open, CircuitState::HalfOpen) => scene.now >= left_alone_until,
                    (CircuitState::Closed | CircuitState::HalfOpen, CircuitState::Open)
                    | (CircuitState::HalfOpen | CircuitState::Open, CircuitState::Closed) => true,
                    _ => false,
                };
                prop_assert!(follows, "{:?} after {:?}", change, state);
                state = change.state;
                left_alone_until = scene.now + change.probe_in.unwrap_or_default();
            }
            let newest = scene.circuits.circuits.get(&route("h")).map(|circuit| circuit.number);
            let probes = under_way.iter().filter(|ticket| Some(ticket.0) == newest).count();
            prop_assert!(state != CircuitState::HalfOpen || probes <= RULES.probes as usize);
            prop_assert!(state != CircuitState::Open || probes == 0);
        }
    }
}
