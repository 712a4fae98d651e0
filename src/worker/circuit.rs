//! Circuit breakers, one for each caller and host: who fails is left alone for a while.
//!
//! Law: pure; the time comes in. An attempt counts only for the state in which it began, so that
//! what was under way when a circuit opened says nothing about its probes. Memory is bounded: a
//! host that nobody calls is forgotten, and beyond the bound hosts have no circuit.
//!
//! ```text
//!            more than half of ≥ 20 attempts failed
//!   closed ──────────────────────────────────────────► open ◄─────┐
//!      ▲                                                │ 60 s    │ one failed
//!      └────────── all probes succeeded ──── half-open ◄┘ ────────┘
//! ```

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::queue::Caller;
use super::verdict::Reply;
use crate::config::WorkerSettings;
use crate::model::outcome::CircuitState;
use crate::model::text::Text;

/// Parts into which the window is divided: the oldest is forgotten as a whole.
const SLOTS: u32 = 10;

/// Who calls whom.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The caller: one caller's secrets or paths may fail where another's do not.
    pub caller: Caller,
    /// The host, with its port if that is not the scheme's.
    pub host: Text,
}

/// When circuits open and close.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    window: Duration,
    attempts_min: u32,
    failures_percent: u32,
    open: Duration,
    probes: u32,
    circuits_max: usize,
}

/// Proof that an attempt may be made, and which state of its circuit it speaks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// Of a host that has no circuit.
const NO_CIRCUIT: Ticket = Ticket(0);

/// What an attempt says of a host's health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It answers.
    Well,
    /// It does not, or cannot bear more; for people.
    Ill(String),
    /// It was not asked.
    Nothing,
}

impl Sign {
    /// 5xx and 429 say that the host cannot serve, silence that there is none. Any other status,
    /// 404 or a redirect, comes from a host in good health that does not like this one request:
    /// other triggers of the same caller should not suffer from it.
    #[must_use]
    pub fn of(reply: &Reply) -> Self {
        match reply {
            Reply::Answered { status: status @ (429 | 500..=599), .. } => {
                Self::Ill(format!("answered {status}"))
            }
            Reply::Answered { .. } => Self::Well,
            Reply::Silent(reason) => Self::Ill(reason.clone()),
            Reply::Impossible(_) => Self::Nothing,
        }
    }
}

/// A circuit has changed its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whose.
    pub route: Route,
    /// To what.
    pub state: CircuitState,
    /// Why, for people.
    pub reason: String,
    /// How long until the host is asked again, if it is left alone.
    pub probe_in: Option<Duration>,
}

/// All circuits of a worker.
#[derive(Debug)]
pub struct Circuits {
    rules: Rules,
    /// Slots of windows are numbered from here.
    origin: Instant,
    circuits: HashMap<Route, Circuit>,
    /// States that were entered so far.
    entered: u64,
    changes: Vec<Change>,
    swept: Instant,
}

#[derive(Debug)]
struct Circuit {
    /// The state's number: what [`Ticket`]s carry.
    number: u64,
    /// Attempts that began in this state and have not ended.
    under_way: u32,
    used: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    Closed(Window),
    Open { until: Instant },
    HalfOpen { succeeded: u32 },
}

/// The attempts of the last while.
#[derive(Debug, Default)]
struct Window {
    slots: [Slot; SLOTS as usize],
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    number: u64,
    attempts: u32,
    failures: u32,
}

impl Rules {
    /// As the settings say.
    #[must_use]
    pub fn new(settings: &WorkerSettings) -> Self {
        Self {
            window: settings.circuit_window,
            attempts_min: settings.circuit_attempts_min.get(),
            failures_percent: settings.circuit_failures_percent.into(),
            open: settings.circuit_open,
            probes: settings.circuit_probes.get(),
            circuits_max: settings.circuits_max.get(),
        }
    }

    /// Why the circuit opens, if it does.
    fn verdict(&self, attempts: u32, failures: u32, last: &str) -> Option<String> {
        let too_many =
            u64::from(failures) * 100 > u64::from(attempts) * u64::from(self.failures_percent);
        (attempts >= self.attempts_min && too_many).then(|| {
            let window = self.window;
            format!("{failures} of {attempts} attempts in {window:?} failed, the last: {last}")
        })
    }
}

impl Circuits {
    /// No circuits yet.
    #[must_use]
    pub fn new(rules: Rules, now: Instant) -> Self {
        let (circuits, changes) = (HashMap::new(), Vec::new());
        Self { rules, origin: now, circuits, entered: 0, changes, swept: now }
    }

    /// How long until the host is asked again, if it is to be left alone now.
    #[must_use]
    pub fn refusal(&self, route: &Route, now: Instant) -> Option<Duration> {
        let circuit = self.circuits.get(route)?;
        match circuit.state {
            State::Closed(_) => None,
            State::Open { until } => (now < until).then(|| until - now),
            State::HalfOpen { succeeded } => {
                (circuit.under_way + succeeded >= self.rules.probes).then_some(Duration::ZERO)
            }
        }
    }

    /// Admits an attempt that begins now, or says how long until the host is asked again.
    pub fn admit(&mut self, route: &Route, now: Instant) -> Result<Ticket, Duration> {
        if let Some(wait) = self.refusal(route, now) {
            return Err(wait);
        }
        if !self.circuits.contains_key(route) {
            if self.circuits.len() >= self.rules.circuits_max {
                return Ok(NO_CIRCUIT);
            }
            let circuit = self.circuit(State::Closed(Window::default()), now);
            self.circuits.insert(route.clone(), circuit);
        }
        if let Some(State::Open { .. }) = self.circuits.get(route).map(|circuit| &circuit.state) {
            let reason = "its time is over: asking whether the host is well".to_owned();
            self.enter(route, State::HalfOpen { succeeded: 0 }, reason, now);
        }
        let circuit = self.circuits.get_mut(route).expect("it was there a line ago");
        circuit.used = now;
        circuit.under_way += 1;
        Ok(Ticket(circuit.number))
    }

    /// Takes in what an attempt that was admitted has shown.
    pub fn record(&mut self, route: &Route, ticket: Ticket, sign: &Sign, now: Instant) {
        let Rules { window, open, probes, .. } = self.rules;
        let slot = slot(now - self.origin, window);
        let circuit = self.circuits.get_mut(route).filter(|circuit| circuit.number == ticket.0);
        let Some(circuit) = circuit else { return };
        circuit.used = now;
        circuit.under_way -= 1;
        let opened = State::Open { until: now + open };
        let next = match (&mut circuit.state, sign) {
            (State::Closed(window), Sign::Well) => {
                window.count(slot, 0);
                None
            }
            (State::Closed(window), Sign::Ill(last)) => {
                let (attempts, failures) = window.count(slot, 1);
                let verdict = self.rules.verdict(attempts, failures, last);
                verdict.map(|reason| (opened, reason))
            }
            (State::HalfOpen { succeeded }, sign) => {
                *succeeded += u32::from(*sign == Sign::Well);
                match sign {
                    Sign::Ill(last) => Some((opened, format!("a probe failed: {last}"))),
                    _ if *succeeded == probes => {
                        let reason = format!("{probes} probes in a row succeeded");
                        Some((State::Closed(Window::default()), reason))
                    }
                    _ => None,
                }
            }
            (State::Closed(_), Sign::Nothing) | (State::Open { .. }, _) => None,
        };
        if let Some((state, reason)) = next {
            self.enter(route, state, reason, now);
        }
    }

    /// Forgets circuits that nobody uses; says whether it was time to look.
    pub fn sweep(&mut self, now: Instant) -> bool {
        let Rules { window, open, .. } = self.rules;
        if now - self.swept < window / SLOTS {
            return false;
        }
        self.swept = now;
        self.forget("nobody has called it since", |circuit| match circuit.state {
            State::Open { until } => now > until + open,
            _ if circuit.under_way > 0 => false,
            State::Closed(_) => now - circuit.used > window,
            State::HalfOpen { .. } => now - circuit.used > open,
        });
        true
    }

    /// Forgets all of them.
    pub fn forget_all(&mut self, reason: &str) {
        self.forget(reason, |_| true);
    }

    /// What has changed since this was asked last.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// How many circuits are closed, open and half-open.
    #[must_use]
    pub fn census(&self) -> [(CircuitState, usize); 3] {
        let states = [CircuitState::Closed, CircuitState::Open, CircuitState::HalfOpen];
        let count = |state| self.circuits.values().filter(|c| c.state.kind() == state).count();
        states.map(|state| (state, count(state)))
    }

    fn enter(&mut self, route: &Route, state: State, reason: String, now: Instant) {
        let probe_in = match state {
            State::Open { until } => Some(until - now),
            State::Closed(_) | State::HalfOpen { .. } => None,
        };
        let (route, kind) = (route.clone(), state.kind());
        let circuit = self.circuit(state, now);
        self.circuits.insert(route.clone(), circuit);
        self.changes.push(Change { route, state: kind, reason, probe_in });
    }

    /// A circuit that enters a state now.
    fn circuit(&mut self, state: State, now: Instant) -> Circuit {
        self.entered += 1;
        Circuit { number: self.entered, under_way: 0, used: now, state }
    }

    fn forget(&mut self, reason: &str, idle: impl Fn(&Circuit) -> bool) {
        let gone = self.circuits.extract_if(|_, circuit| idle(circuit));
        let told = gone.filter(|(_, circuit)| circuit.state.kind() != CircuitState::Closed);
        self.changes.extend(told.map(|(route, _)| Change {
            route,
            state: CircuitState::Closed,
            reason: reason.to_owned(),
            probe_in: None,
        }));
    }
}

impl State {
    fn kind(&self) -> CircuitState {
        match self {
            Self::Closed(_) => CircuitState::Closed,
            Self::Open { .. } => CircuitState::Open,
            Self::HalfOpen { .. } => CircuitState::HalfOpen,
        }
    }
}

impl Window {
    /// Counts an attempt; returns how many there were in the window, and how many failed.
    fn count(&mut self, number: u64, failures: u32) -> (u32, u32) {
        let place = &mut self.slots[(number % u64::from(SLOTS)) as usize];
        if place.number != number {
            *place = Slot { number, ..Slot::default() };
        }
        place.attempts += 1;
        place.failures += failures;
        let live = self.slots.iter().filter(|slot| slot.number + u64::from(SLOTS) > number);
        live.fold((0, 0), |(a, f), slot| (a + slot.attempts, f + slot.failures))
    }
}

/// The number of the slot that holds a moment.
fn slot(since_origin: Duration, window: Duration) -> u64 {
    let width = (window / SLOTS).as_nanos().max(1);
    u64::try_from(since_origin.as_nanos() / width).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "circuit/tests.rs"]
mod tests;
