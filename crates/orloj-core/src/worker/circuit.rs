//! Circuit breakers, one for each caller and host: a host that fails is not called for a while.
//!
//! Invariant: pure, time is an argument: that of a monotonic clock. An attempt counts only for the
//! state in which it started, so that attempts in progress when a circuit opened do not count as
//! its probes. Memory is bounded: the circuit of a host that is not called any more is removed, and
//! beyond the bound hosts have no circuit.
//!
//! ```text
//!            more than half of ≥ 20 attempts failed
//!   closed ──────────────────────────────────────────► open ◄─────┐
//!      ▲                                                │ 60 s    │ one failed
//!      └────────── all probes succeeded ──── half-open ◄┘ ────────┘
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use super::disposition::CallbackResponse;
use super::queue::CallerName;
use crate::model::outcome::CircuitState;
use crate::model::text::Text;

/// Parts into which the window is divided: the oldest is dropped as a whole.
const WINDOW_SLOTS: u32 = 10;

/// A caller and the host that is called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// The caller: one caller's secrets or paths may fail where another's do not.
    pub caller: CallerName,
    /// The host, with its port if that is not the scheme's.
    pub host: Text,
}

/// When circuits open and close.
#[derive(Clone, Copy, Debug)]
pub struct CircuitBreakerSettings {
    /// Length of the window in which attempts count.
    pub window: Duration,
    /// Attempts in the window before a circuit may open.
    pub attempts_min: u32,
    /// Percent of them that may fail.
    pub failures_percent: u32,
    /// How long a circuit stays open.
    pub open_duration: Duration,
    /// Attempts that close a half-open circuit.
    pub probes_required: u32,
    /// Circuits that are kept.
    pub circuits_max: usize,
}

/// Proof that an attempt may be made, and for which state of its circuit it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// The ticket of a host that has no circuit.
const NO_CIRCUIT: Ticket = Ticket(0);

/// What an attempt shows about a host's health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostHealth {
    /// The host answers.
    Healthy,
    /// It does not answer, or is overloaded. The reason is for people.
    Unhealthy(String),
    /// It was not contacted.
    NotContacted,
}

impl HostHealth {
    /// 5xx, 429 and a missing response are failures of the host. Any other status, such as 404 or a
    /// redirect, comes from a healthy host that refuses this one request: other triggers of the
    /// same caller must not be affected by it.
    #[must_use]
    pub fn of_response(response: &CallbackResponse) -> Self {
        match response {
            CallbackResponse::Answered { status: status @ (429 | 500..=599), .. } => {
                Self::Unhealthy(format!("answered {status}"))
            }
            CallbackResponse::Answered { .. } => Self::Healthy,
            CallbackResponse::NoResponse(reason) => Self::Unhealthy(reason.clone()),
            CallbackResponse::NotContacted(_) | CallbackResponse::Unsendable(_) => {
                Self::NotContacted
            }
        }
    }
}

/// A circuit has changed its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitTransition {
    /// Whose.
    pub route: Route,
    /// To what.
    pub state: CircuitState,
    /// Why, for people.
    pub reason: String,
    /// How long until the next probe, if the circuit is open.
    pub probe_in: Option<Duration>,
}

/// All circuits of a worker.
#[derive(Debug)]
pub struct CircuitBreakers {
    rules: CircuitBreakerSettings,
    /// Slots of windows are numbered from here.
    origin: Duration,
    breakers: BTreeMap<Route, CircuitBreaker>,
    /// States that were entered so far.
    states_entered: u64,
    transitions: Vec<CircuitTransition>,
    swept_at: Duration,
}

#[derive(Debug)]
struct CircuitBreaker {
    /// The state's number: what [`Ticket`]s carry.
    state_number: u64,
    /// Attempts that started in this state and have not ended.
    in_progress: u32,
    last_used: Duration,
    state: CircuitBreakerState,
}

#[derive(Debug)]
enum CircuitBreakerState {
    Closed(Window),
    Open { until: Duration },
    HalfOpen { succeeded: u32 },
}

/// The attempts of the last `window`.
#[derive(Debug, Default)]
struct Window {
    slots: [WindowSlot; WINDOW_SLOTS as usize],
}

#[derive(Clone, Copy, Debug, Default)]
struct WindowSlot {
    slot_number: u64,
    attempts: u32,
    failures: u32,
}

impl CircuitBreakerSettings {
    /// Why the circuit opens, if it does.
    fn open_reason(&self, attempts: u32, failures: u32, last: &str) -> Option<String> {
        let too_many =
            u64::from(failures) * 100 > u64::from(attempts) * u64::from(self.failures_percent);
        (attempts >= self.attempts_min && too_many).then(|| {
            let window = self.window;
            format!("{failures} of {attempts} attempts in {window:?} failed, the last: {last}")
        })
    }
}

impl CircuitBreakers {
    /// No circuits yet.
    #[must_use]
    pub fn new(rules: CircuitBreakerSettings, now: Duration) -> Self {
        let (breakers, transitions) = (BTreeMap::new(), Vec::new());
        Self { rules, origin: now, breakers, states_entered: 0, transitions, swept_at: now }
    }

    /// How long until the next probe, if the host must not be called now.
    #[must_use]
    pub fn blocked_for(&self, route: &Route, now: Duration) -> Option<Duration> {
        let circuit = self.breakers.get(route)?;
        match circuit.state {
            CircuitBreakerState::Closed(_) => None,
            CircuitBreakerState::Open { until } => (now < until).then(|| until - now),
            CircuitBreakerState::HalfOpen { succeeded } => (circuit.in_progress + succeeded
                >= self.rules.probes_required)
                .then_some(Duration::ZERO),
        }
    }

    /// Admits an attempt that starts now, or returns how long until the next probe.
    pub fn admit(&mut self, route: &Route, now: Duration) -> Result<Ticket, Duration> {
        if let Some(wait) = self.blocked_for(route, now) {
            return Err(wait);
        }
        if !self.breakers.contains_key(route) {
            if self.breakers.len() >= self.rules.circuits_max {
                return Ok(NO_CIRCUIT);
            }
            let circuit = self.new_breaker(CircuitBreakerState::Closed(Window::default()), now);
            self.breakers.insert(route.clone(), circuit);
        }
        if let Some(CircuitBreakerState::Open { .. }) =
            self.breakers.get(route).map(|circuit| &circuit.state)
        {
            let reason = "the open period has ended: probing the host".to_owned();
            self.enter_state(route, CircuitBreakerState::HalfOpen { succeeded: 0 }, reason, now);
        }
        let circuit = self.breakers.get_mut(route).expect("it exists: looked up or inserted above");
        circuit.last_used = now;
        circuit.in_progress += 1;
        Ok(Ticket(circuit.state_number))
    }

    /// Records what an attempt that was admitted has shown.
    pub fn record(&mut self, route: &Route, ticket: Ticket, health: &HostHealth, now: Duration) {
        let CircuitBreakerSettings { window, open_duration: open, probes_required: probes, .. } =
            self.rules;
        let slot = slot_number_at(now - self.origin, window);
        let circuit =
            self.breakers.get_mut(route).filter(|circuit| circuit.state_number == ticket.0);
        let Some(circuit) = circuit else { return };
        circuit.last_used = now;
        circuit.in_progress -= 1;
        let opened = CircuitBreakerState::Open { until: now + open };
        let next = match (&mut circuit.state, health) {
            (CircuitBreakerState::Closed(window), HostHealth::Healthy) => {
                window.count_attempt(slot, 0);
                None
            }
            (CircuitBreakerState::Closed(window), HostHealth::Unhealthy(last)) => {
                let (attempts, failures) = window.count_attempt(slot, 1);
                let open_reason = self.rules.open_reason(attempts, failures, last);
                open_reason.map(|reason| (opened, reason))
            }
            (CircuitBreakerState::HalfOpen { succeeded }, health) => {
                *succeeded += u32::from(*health == HostHealth::Healthy);
                match health {
                    HostHealth::Unhealthy(last) => {
                        Some((opened, format!("a probe failed: {last}")))
                    }
                    _ if *succeeded == probes => {
                        let reason = format!("{probes} probes in a row succeeded");
                        Some((CircuitBreakerState::Closed(Window::default()), reason))
                    }
                    _ => None,
                }
            }
            (CircuitBreakerState::Closed(_), HostHealth::NotContacted)
            | (CircuitBreakerState::Open { .. }, _) => None,
        };
        if let Some((state, reason)) = next {
            self.enter_state(route, state, reason, now);
        }
    }

    /// Removes unused circuits; returns whether a check was due.
    pub fn sweep(&mut self, now: Duration) -> bool {
        let CircuitBreakerSettings { window, open_duration: open, .. } = self.rules;
        if now - self.swept_at < window / WINDOW_SLOTS {
            return false;
        }
        self.swept_at = now;
        self.forget("not called since", |circuit| match circuit.state {
            CircuitBreakerState::Open { until } => now > until + open,
            _ if circuit.in_progress > 0 => false,
            CircuitBreakerState::Closed(_) => now - circuit.last_used > window,
            CircuitBreakerState::HalfOpen { .. } => now - circuit.last_used > open,
        });
        true
    }

    /// Removes all circuits.
    pub fn forget_all(&mut self, reason: &str) {
        self.forget(reason, |_| true);
    }

    /// The changes since the last call.
    pub fn take_transitions(&mut self) -> Vec<CircuitTransition> {
        std::mem::take(&mut self.transitions)
    }

    /// How many circuits are closed, open and half-open.
    #[must_use]
    pub fn count_by_state(&self) -> [(CircuitState, usize); 3] {
        let states = [CircuitState::Closed, CircuitState::Open, CircuitState::HalfOpen];
        let count = |state| self.breakers.values().filter(|c| c.state.kind() == state).count();
        states.map(|state| (state, count(state)))
    }

    fn enter_state(
        &mut self,
        route: &Route,
        state: CircuitBreakerState,
        reason: String,
        now: Duration,
    ) {
        let probe_in = match state {
            CircuitBreakerState::Open { until } => Some(until - now),
            CircuitBreakerState::Closed(_) | CircuitBreakerState::HalfOpen { .. } => None,
        };
        let (route, kind) = (route.clone(), state.kind());
        let circuit = self.new_breaker(state, now);
        self.breakers.insert(route.clone(), circuit);
        self.transitions.push(CircuitTransition { route, state: kind, reason, probe_in });
    }

    /// A circuit that enters a state now.
    fn new_breaker(&mut self, state: CircuitBreakerState, now: Duration) -> CircuitBreaker {
        self.states_entered += 1;
        CircuitBreaker { state_number: self.states_entered, in_progress: 0, last_used: now, state }
    }

    fn forget(&mut self, reason: &str, idle: impl Fn(&CircuitBreaker) -> bool) {
        let removed = self.breakers.extract_if(.., |_, circuit| idle(circuit));
        let not_closed =
            removed.filter(|(_, circuit)| circuit.state.kind() != CircuitState::Closed);
        self.transitions.extend(not_closed.map(|(route, _)| CircuitTransition {
            route,
            state: CircuitState::Closed,
            reason: reason.to_owned(),
            probe_in: None,
        }));
    }
}

impl CircuitBreakerState {
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
    fn count_attempt(&mut self, number: u64, failures: u32) -> (u32, u32) {
        let place = &mut self.slots[(number % u64::from(WINDOW_SLOTS)) as usize];
        if place.slot_number != number {
            *place = WindowSlot { slot_number: number, ..WindowSlot::default() };
        }
        place.attempts += 1;
        place.failures += failures;
        let live =
            self.slots.iter().filter(|slot| slot.slot_number + u64::from(WINDOW_SLOTS) > number);
        live.fold((0, 0), |(a, f), slot| (a + slot.attempts, f + slot.failures))
    }
}

/// The number of the slot that holds a moment.
fn slot_number_at(since_origin: Duration, window: Duration) -> u64 {
    let width = (window / WINDOW_SLOTS).as_nanos().max(1);
    u64::try_from(since_origin.as_nanos() / width).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "circuit/tests.rs"]
mod tests;
