//! Where fires wait for a place: a bulkhead, a pace and a queue for each caller.
//!
//! Invariant: pure, time is an argument. A caller has at most so many callbacks under way, begins
//! at most so many a second, and has at most so many fires waiting; callers that may begin one take
//! turns; and no caller, nor all of them, can take the room that a newcomer needs. Priority orders
//! the fires of one caller and moves nobody else's.
//!
//! ```text
//!   offer ─►  caller a  ▢▢▢▢▢▢▢▢  2 of 100 under way   ┐
//!             caller b  ▢         0 of 100 under way   ├─ in turn ─►  begin … end
//!             caller c  ▢▢▢▢    100 of 100: crowded    │
//!             caller d  ▢▢▢       9 a second: early    ┘
//! ```
//!
//! A turn is one callback. Callbacks differ in how long they last, not in what beginning one
//! costs, and how many long ones a caller may have is the bulkhead's affair: so plain turns are
//! fair, and deficits, which fair queues keep for packets of different sizes, would all be zero.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::num::NonZeroU32;
use std::time::Instant;

use super::caller_queue::CallerQueue;
use super::rate_limiter::CallerRateLimiter;
use crate::model::text::Text;

/// Who registered a trigger; all those without a name are one caller.
pub type CallerName = Option<Text>;

/// What a caller may have in a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Callbacks under way at once, a count from 1.
    pub concurrent: usize,
    /// Fires that wait for one of them to end, a count.
    pub waiting: usize,
    /// Callbacks begun in a second; `None` for as many as there are.
    pub rate: Option<NonZeroU32>,
}

/// Fires that wait, by caller, and how many callbacks of each are under way.
#[derive(Debug)]
pub struct Queue<T> {
    callers: HashMap<CallerName, CallerBulkhead<T>>,
    /// Those that are [`CallerState::Ready`], each once.
    ready: VecDeque<CallerName>,
    /// Those that are [`CallerState::RateLimited`] or [`CallerState::CoolingDown`], by until when.
    timers: BTreeSet<(Instant, CallerName)>,
    /// How many are [`CallerState::AtCapacity`].
    at_capacity: usize,
    waiting_max: usize,
    waiting: usize,
    under_way: usize,
}

#[derive(Debug)]
struct CallerBulkhead<T> {
    limits: QueueLimits,
    queue: CallerQueue<T>,
    under_way: usize,
    rate_limiter: CallerRateLimiter,
    state: CallerState,
}

/// What a caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallerState {
    /// For nothing: no fire of it waits.
    Idle,
    /// For its turn: it has a fire and a place.
    Ready,
    /// For one of its callbacks to end.
    AtCapacity,
    /// For its pace, until then: it has a fire and a place.
    RateLimited(Instant),
    /// For nothing, but what it has begun counts until then.
    CoolingDown(Instant),
}

impl<T> Queue<T> {
    /// An empty queue in which at most `waiting_max` wait.
    #[must_use]
    pub fn new(waiting_max: usize) -> Self {
        let (callers, ready, timers) = (HashMap::new(), VecDeque::new(), BTreeSet::new());
        Self { callers, ready, timers, at_capacity: 0, waiting_max, waiting: 0, under_way: 0 }
    }

    /// Fires that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Callbacks under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Whether somebody's fire may begin as soon as a callback ends.
    #[must_use]
    pub fn waits_for_completion(&self) -> bool {
        self.at_capacity > 0 || !self.ready.is_empty()
    }

    /// When to [`start_callbacks`](Self::start_callbacks) again if nothing else happens: somebody's
    /// pace is to be looked at then.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Takes a fire in, or gives one of its caller's back if the caller has no room: the one that
    /// would begin last. A caller may have as many waiting as there is room left for others: so
    /// those who want all share alike, and a newcomer always finds as much room as each of them
    /// has. `limits` are a newcomer's; a known caller's change by [`set_limits`](Self::set_limits).
    pub fn offer(
        &mut self,
        caller: &CallerName,
        limits: QueueLimits,
        priority: u8,
        fire: T,
    ) -> Result<(), T> {
        let room = limits.waiting.min(self.waiting_max - self.waiting);
        let known = self.callers.get_mut(caller);
        if known.as_ref().map_or(0, |compartment| compartment.queue.len()) >= room {
            let Some(compartment) = known else { return Err(fire) };
            return Err(compartment.queue.displace(priority, fire));
        }
        let compartment =
            self.callers.entry(caller.clone()).or_insert_with(|| CallerBulkhead::new(limits));
        compartment.queue.push(priority, fire);
        self.waiting += 1;
        self.update_state(caller);
        Ok(())
    }

    /// The fire whose turn it is at `now`. It counts as under way until its caller's
    /// [`end`](Self::end).
    pub fn begin(&mut self, now: Instant) -> Option<T> {
        self.expire_timers(now);
        while let Some(caller) = self.ready.pop_front() {
            let compartment = self.callers.get_mut(&caller).expect("whose turn it is has a fire");
            compartment.state = CallerState::Idle;
            if let Err(at) = compartment.admit(now) {
                self.set_state(&caller, CallerState::RateLimited(at));
                continue;
            }
            let fire = compartment.queue.pop().expect("whose turn it is has a fire");
            compartment.under_way += 1;
            self.waiting -= 1;
            self.under_way += 1;
            self.update_state(&caller);
            return Some(fire);
        }
        None
    }

    /// A callback that had begun is under way no longer.
    pub fn end(&mut self, caller: &CallerName) {
        let compartment = self.callers.get_mut(caller).expect("what ends has begun");
        compartment.under_way -= 1;
        self.under_way -= 1;
        self.update_state(caller);
    }

    /// The fire that began last is not called after all: it has cost its caller nothing.
    pub fn cancel_begun(&mut self, caller: &CallerName) {
        let compartment = self.callers.get_mut(caller).expect("what ends has begun");
        if let Some(rate) = compartment.limits.rate {
            compartment.rate_limiter.refund(rate);
        }
        self.end(caller);
    }

    /// Takes out the waiting fires that are `condemned`. Costs a look at each that waits.
    pub fn withdraw(&mut self, matches: impl Fn(&T) -> bool) -> Vec<T> {
        let (mut withdrawn, mut changed) = (Vec::new(), Vec::new());
        for (caller, compartment) in &mut self.callers {
            let before = withdrawn.len();
            withdrawn.extend(compartment.queue.withdraw(&matches));
            if withdrawn.len() > before {
                changed.push(caller.clone());
            }
        }
        self.waiting -= withdrawn.len();
        self.update_states(&changed);
        withdrawn
    }

    /// Everyone's limits are others now.
    pub fn set_limits(&mut self, limits: impl Fn(&CallerName) -> QueueLimits) {
        let callers: Vec<_> = self.callers.keys().cloned().collect();
        for caller in &callers {
            let Some(compartment) = self.callers.get_mut(caller) else { continue };
            compartment.limits = limits(caller);
            if let CallerState::RateLimited(_) = compartment.state {
                // Too early by the old rate: its turn shows what it is by the new one.
                self.set_state(caller, CallerState::Ready);
            }
        }
        self.update_states(&callers);
    }

    /// Those whose time has come at `now` may have a turn, or are forgotten.
    fn expire_timers(&mut self, now: Instant) {
        while self.timers.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, caller)) = self.timers.pop_first() else { return };
            let compartment = self.callers.get_mut(&caller).expect("who waits for a time is here");
            compartment.state = CallerState::Idle;
            compartment.rate_limiter.expire(now);
            self.update_state(&caller);
        }
    }

    /// The same as [`update_state`](Self::update_state) for many, some of whom may lose their turn.
    fn update_states(&mut self, callers: &[CallerName]) {
        if callers.is_empty() {
            return;
        }
        callers.iter().for_each(|caller| self.update_state(caller));
        let known = &self.callers;
        self.ready
            .retain(|caller| known.get(caller).is_some_and(|c| c.state == CallerState::Ready));
    }

    /// Puts a caller where it belongs after it has changed; one about whom there is nothing left to
    /// know is forgotten.
    fn update_state(&mut self, caller: &CallerName) {
        let Some(compartment) = self.callers.get(caller) else { return };
        let state = compartment.next_state();
        let is_unused = state == CallerState::Idle && compartment.under_way == 0;
        if state != compartment.state {
            self.set_state(caller, state);
        }
        if is_unused {
            self.callers.remove(caller);
        }
    }

    /// Whoever was in turn must be out of `turns` already, or leave it by `update_states`.
    fn set_state(&mut self, caller: &CallerName, state: CallerState) {
        let Some(compartment) = self.callers.get_mut(caller) else { return };
        match std::mem::replace(&mut compartment.state, state) {
            CallerState::RateLimited(at) | CallerState::CoolingDown(at) => {
                let _was_there = self.timers.remove(&(at, caller.clone()));
            }
            CallerState::AtCapacity => self.at_capacity -= 1,
            CallerState::Idle | CallerState::Ready => {}
        }
        match state {
            CallerState::RateLimited(at) | CallerState::CoolingDown(at) => {
                let _is_new = self.timers.insert((at, caller.clone()));
            }
            CallerState::AtCapacity => self.at_capacity += 1,
            CallerState::Ready => self.ready.push_back(caller.clone()),
            CallerState::Idle => {}
        }
    }
}

impl<T> CallerBulkhead<T> {
    fn new(limits: QueueLimits) -> Self {
        let (queue, rate_limiter, state) =
            (CallerQueue::default(), CallerRateLimiter::default(), CallerState::Idle);
        Self { limits, queue, under_way: 0, rate_limiter, state }
    }

    /// Counts a callback that begins at `now`, or says when it may.
    fn admit(&mut self, now: Instant) -> Result<(), Instant> {
        match self.limits.rate {
            Some(rate) => self.rate_limiter.admit(rate, now),
            None => {
                self.rate_limiter = CallerRateLimiter::default();
                Ok(())
            }
        }
    }

    /// What it waits for by what it has.
    fn next_state(&self) -> CallerState {
        match (self.queue.is_empty(), self.rate_limiter.expires_at()) {
            (true, Some(at)) => CallerState::CoolingDown(at),
            (true, None) => CallerState::Idle,
            _ if self.under_way >= self.limits.concurrent => CallerState::AtCapacity,
            _ if matches!(self.state, CallerState::RateLimited(_)) => self.state,
            _ => CallerState::Ready,
        }
    }
}

#[cfg(test)]
#[path = "queue/tests.rs"]
mod tests;
