//! The fires that wait for capacity: a bulkhead, a rate limit and a queue for each caller.
//!
//! Invariant: pure, time is an argument. A caller has a maximum of callbacks in progress, of
//! callbacks started per second, and of fires that wait; callers that may start a callback take
//! turns; and the present callers, one or all, cannot use the space that a new caller needs.
//! Priority orders the fires of one caller and has no effect on other callers.
//!
//! ```text
//!   offer ─►  caller a  ▢▢▢▢▢▢▢▢  2 of 100 in progress ┐
//!             caller b  ▢         0 of 100 in progress ├─ in turn ─►  start … end
//!             caller c  ▢▢▢▢    100 of 100: at capacity  │
//!             caller d  ▢▢▢       9 a second: rate limited ┘
//! ```
//!
//! A turn is one callback. Callbacks differ in how long they last, not in what it costs to start
//! one, and the bulkhead limits how many long ones a caller may have: so round robin is fair, and
//! the deficits that fair queues keep for packets of different sizes would all be zero.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

use super::caller_queue::CallerQueue;
use crate::model::text::Text;
use crate::rate_limit::RateLimiter;

/// One in so many of the bytes in progress is for callers that have no callback in progress:
/// callbacks that hang are not stopped when another caller comes.
const RESERVED_PART: usize = 8;

/// The caller that registered a trigger; all triggers without one share `None`.
pub type CallerName = Option<Text>;

/// The limits of a caller in a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Callbacks in progress at once, a count from 1.
    pub concurrent: usize,
    /// Fires that wait, a count.
    pub waiting: usize,
    /// Callbacks started in a second; `None` for no limit.
    pub rate: Option<NonZeroU32>,
}

/// Fires that wait, by caller, and how many callbacks of each are in progress.
#[derive(Debug)]
pub struct Queue<T> {
    callers: BTreeMap<CallerName, CallerBulkhead<T>>,
    /// The callers that are [`CallerState::Ready`], each once.
    ready: VecDeque<CallerName>,
    /// The callers that are [`CallerState::RateLimited`] or [`CallerState::CoolingDown`], by the
    /// end of that state.
    timers: BTreeSet<(Duration, CallerName)>,
    /// How many callers are [`CallerState::AtCapacity`].
    at_capacity: usize,
    /// The callers that are [`CallerState::AwaitsBytes`].
    awaiting_bytes: BTreeSet<CallerName>,
    /// A callback has ended since they were looked at.
    has_freed_bytes: bool,
    bounds: QueueBounds,
    bytes_of: fn(&T) -> usize,
    waiting: usize,
    waiting_bytes: usize,
    in_progress: usize,
    in_progress_bytes: usize,
}

/// What may wait and be in progress in all, of all callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBounds {
    /// Fires, a count.
    pub fires: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Bytes of the fires whose callbacks are in progress.
    pub in_progress_bytes: usize,
}

#[derive(Debug)]
struct CallerBulkhead<T> {
    limits: QueueLimits,
    queue: CallerQueue<T>,
    /// Of the fires in it.
    bytes: usize,
    in_progress: usize,
    in_progress_bytes: usize,
    rate_limiter: RateLimiter,
    state: CallerState,
}

/// The state of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallerState {
    /// It has no fire that waits.
    Idle,
    /// It waits for its turn: it has a fire and capacity.
    Ready,
    /// It waits for one of its callbacks to end.
    AtCapacity,
    /// It waits for a callback of any caller to end: it has as many bytes in progress as are left
    /// for others.
    AwaitsBytes,
    /// It waits until then because of its rate: it has a fire and capacity.
    RateLimited(Duration),
    /// It has no fire that waits, but the callbacks it has started count against its rate until
    /// then.
    CoolingDown(Duration),
}

impl<T> Queue<T> {
    /// An empty queue; `bytes_of` says how many bytes a fire has.
    #[must_use]
    pub fn new(bounds: QueueBounds, bytes_of: fn(&T) -> usize) -> Self {
        Self {
            callers: BTreeMap::new(),
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
            at_capacity: 0,
            awaiting_bytes: BTreeSet::new(),
            has_freed_bytes: false,
            bounds,
            bytes_of,
            waiting: 0,
            waiting_bytes: 0,
            in_progress: 0,
            in_progress_bytes: 0,
        }
    }

    /// Fires that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Their bytes.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Callbacks in progress.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.in_progress
    }

    /// Bytes of the fires whose callbacks are in progress.
    #[must_use]
    pub fn in_progress_bytes(&self) -> usize {
        self.in_progress_bytes
    }

    /// Whether a waiting fire may start as soon as a callback ends.
    #[must_use]
    pub fn waits_for_completion(&self) -> bool {
        self.at_capacity > 0 || !self.awaiting_bytes.is_empty() || !self.ready.is_empty()
    }

    /// When to call [`start`](Self::start) again if nothing else happens: the rate of a caller may
    /// allow a start then.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Queues a fire; if its caller has no room, returns the fire of that caller that would start
    /// last. A caller may have as many fires and bytes waiting as there is room left for others: so
    /// callers that use all they can get share equally, and a new caller always finds as much room
    /// as each of them has. `limits` apply to a new caller; those of a known caller change by
    /// [`set_limits`](Self::set_limits).
    pub fn offer(
        &mut self,
        caller: &CallerName,
        limits: QueueLimits,
        priority: u8,
        fire: T,
    ) -> Result<(), T> {
        let room = limits.waiting.min(self.bounds.fires - self.waiting);
        let bytes = (self.bytes_of)(&fire);
        let known = self.callers.get_mut(caller);
        let (fires, own) = known.as_ref().map_or((0, 0), |it| (it.queue.len(), it.bytes));
        // However large it is, one fire can wait.
        if own + bytes > self.bounds.bytes.saturating_sub(self.waiting_bytes) && self.waiting > 0 {
            return Err(fire);
        }
        if fires >= room {
            let Some(bulkhead) = known else { return Err(fire) };
            let displaced = bulkhead.queue.displace(priority, fire);
            let less = (self.bytes_of)(&displaced);
            bulkhead.bytes = bulkhead.bytes + bytes - less;
            self.waiting_bytes = self.waiting_bytes + bytes - less;
            self.update_state(caller); // another one may start first
            return Err(displaced);
        }
        let bulkhead =
            self.callers.entry(caller.clone()).or_insert_with(|| CallerBulkhead::new(limits));
        bulkhead.queue.push(priority, fire);
        bulkhead.bytes += bytes;
        self.waiting += 1;
        self.waiting_bytes += bytes;
        self.update_state(caller);
        Ok(())
    }

    /// The fire whose turn it is at `now`. It counts as in progress until its caller's
    /// [`end`](Self::end).
    pub fn start(&mut self, now: Duration) -> Option<T> {
        self.expire_timers(now);
        self.share_freed_bytes();
        while let Some(caller) = self.ready.pop_front() {
            let free = self.free_bytes();
            let bulkhead = self.callers.get_mut(&caller).expect("a ready caller has a fire");
            bulkhead.state = CallerState::Idle;
            if !bulkhead.has_room(free, self.bytes_of) {
                self.set_state(&caller, CallerState::AwaitsBytes);
                continue;
            }
            if let Err(at) = bulkhead.admit(now) {
                self.set_state(&caller, CallerState::RateLimited(at));
                continue;
            }
            let fire = bulkhead.queue.pop().expect("a ready caller has a fire");
            let bytes = (self.bytes_of)(&fire);
            bulkhead.bytes -= bytes;
            self.waiting_bytes -= bytes;
            bulkhead.in_progress += 1;
            bulkhead.in_progress_bytes += bytes;
            self.waiting -= 1;
            self.in_progress += 1;
            self.in_progress_bytes += bytes;
            self.update_state(&caller);
            return Some(fire);
        }
        None
    }

    /// A callback that was started has ended; its fire has so many bytes.
    pub fn end(&mut self, caller: &CallerName, bytes: usize) {
        self.has_freed_bytes = true;
        self.release(caller, bytes);
    }

    fn release(&mut self, caller: &CallerName, bytes: usize) {
        let bulkhead = self.callers.get_mut(caller).expect("a callback that ends was started");
        bulkhead.in_progress -= 1;
        bulkhead.in_progress_bytes -= bytes;
        self.in_progress -= 1;
        self.in_progress_bytes -= bytes;
        self.update_state(caller);
    }

    /// The callback that was started last is not made: it does not count against its caller's rate.
    pub fn cancel_started(&mut self, caller: &CallerName, bytes: usize) {
        let bulkhead = self.callers.get_mut(caller).expect("a callback that ends was started");
        if let Some(rate) = bulkhead.limits.rate {
            bulkhead.rate_limiter.refund(rate);
        }
        self.release(caller, bytes);
    }

    /// Removes the waiting fires for which `matches` holds. Looks at every fire that waits.
    pub fn withdraw(&mut self, matches: impl Fn(&T) -> bool) -> Vec<T> {
        let (mut withdrawn, mut changed) = (Vec::new(), Vec::new());
        for (caller, bulkhead) in &mut self.callers {
            let before = withdrawn.len();
            withdrawn.extend(bulkhead.queue.withdraw(&matches));
            let bytes: usize = withdrawn[before..].iter().map(self.bytes_of).sum();
            bulkhead.bytes -= bytes;
            self.waiting_bytes -= bytes;
            if withdrawn.len() > before {
                changed.push(caller.clone());
            }
        }
        self.waiting -= withdrawn.len();
        self.update_states(&changed);
        withdrawn
    }

    /// The limits of all callers have changed.
    pub fn set_limits(&mut self, limits: impl Fn(&CallerName) -> QueueLimits) {
        let callers: Vec<_> = self.callers.keys().cloned().collect();
        for caller in &callers {
            let Some(bulkhead) = self.callers.get_mut(caller) else { continue };
            bulkhead.limits = limits(caller);
            if let CallerState::RateLimited(_) = bulkhead.state {
                // It was too early by the old rate: its turn decides by the new one.
                self.set_state(caller, CallerState::Ready);
            }
        }
        self.update_states(&callers);
    }

    /// Callers whose timer ends by `now` get a turn, or are removed.
    fn expire_timers(&mut self, now: Duration) {
        while self.timers.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, caller)) = self.timers.pop_first() else { return };
            let bulkhead = self.callers.get_mut(&caller).expect("a caller with a timer is known");
            bulkhead.state = CallerState::Idle;
            bulkhead.rate_limiter.expire(now);
            self.update_state(&caller);
        }
    }

    /// The bytes that are left for callers which have callbacks in progress.
    fn free_bytes(&self) -> usize {
        let max = self.bounds.in_progress_bytes;
        (max - max / RESERVED_PART).saturating_sub(self.in_progress_bytes)
    }

    /// Callers that waited for bytes get a turn, if there are enough now.
    fn share_freed_bytes(&mut self) {
        if std::mem::take(&mut self.has_freed_bytes) && !self.awaiting_bytes.is_empty() {
            let callers: Vec<_> = self.awaiting_bytes.iter().cloned().collect();
            callers.iter().for_each(|caller| self.update_state(caller));
        }
    }

    /// The same as [`update_state`](Self::update_state) for many callers, some of which may lose
    /// their turn.
    fn update_states(&mut self, callers: &[CallerName]) {
        if callers.is_empty() {
            return;
        }
        callers.iter().for_each(|caller| self.update_state(caller));
        let known = &self.callers;
        self.ready
            .retain(|caller| known.get(caller).is_some_and(|c| c.state == CallerState::Ready));
    }

    /// Sets the state of a caller after it has changed, and removes a caller that has nothing left.
    fn update_state(&mut self, caller: &CallerName) {
        let (free, bytes_of) = (self.free_bytes(), self.bytes_of);
        let Some(bulkhead) = self.callers.get(caller) else { return };
        let state = bulkhead.next_state(free, bytes_of);
        let is_unused = state == CallerState::Idle && bulkhead.in_progress == 0;
        if state != bulkhead.state {
            self.set_state(caller, state);
        }
        if is_unused {
            self.callers.remove(caller);
        }
    }

    /// A caller that was ready must be out of `ready` already, or be removed from it by
    /// `update_states`.
    fn set_state(&mut self, caller: &CallerName, state: CallerState) {
        let Some(bulkhead) = self.callers.get_mut(caller) else { return };
        match std::mem::replace(&mut bulkhead.state, state) {
            CallerState::RateLimited(at) | CallerState::CoolingDown(at) => {
                let _was_there = self.timers.remove(&(at, caller.clone()));
            }
            CallerState::AtCapacity => self.at_capacity -= 1,
            CallerState::AwaitsBytes => {
                let _was_there = self.awaiting_bytes.remove(caller);
            }
            CallerState::Idle | CallerState::Ready => {}
        }
        match state {
            CallerState::RateLimited(at) | CallerState::CoolingDown(at) => {
                let _is_new = self.timers.insert((at, caller.clone()));
            }
            CallerState::AtCapacity => self.at_capacity += 1,
            CallerState::AwaitsBytes => {
                let _is_new = self.awaiting_bytes.insert(caller.clone());
            }
            CallerState::Ready => self.ready.push_back(caller.clone()),
            CallerState::Idle => {}
        }
    }
}

impl<T> CallerBulkhead<T> {
    fn new(limits: QueueLimits) -> Self {
        let (queue, rate_limiter, state) =
            (CallerQueue::default(), RateLimiter::default(), CallerState::Idle);
        let (bytes, in_progress, in_progress_bytes) = (0, 0, 0);
        Self { limits, queue, bytes, in_progress, in_progress_bytes, rate_limiter, state }
    }

    /// Counts a callback that starts at `now`, or returns when it may.
    fn admit(&mut self, now: Duration) -> Result<(), Duration> {
        match self.limits.rate {
            Some(rate) => self.rate_limiter.admit(rate, now),
            None => {
                self.rate_limiter = RateLimiter::default();
                Ok(())
            }
        }
    }

    /// Whether its next callback may start: it may have as many bytes in progress as it leaves for
    /// others, and one callback however large its fire is.
    fn has_room(&self, free: usize, bytes_of: fn(&T) -> usize) -> bool {
        let next = self.queue.peek().map_or(0, bytes_of);
        self.in_progress == 0 || self.in_progress_bytes + next <= free
    }

    /// The state that follows from its fires, its limits, its rate and the bytes that are left for
    /// all.
    fn next_state(&self, free: usize, bytes_of: fn(&T) -> usize) -> CallerState {
        match (self.queue.is_empty(), self.rate_limiter.expires_at()) {
            (true, Some(at)) => CallerState::CoolingDown(at),
            (true, None) => CallerState::Idle,
            _ if self.in_progress >= self.limits.concurrent => CallerState::AtCapacity,
            // Its turn comes: whether it has room is decided then.
            _ if self.state == CallerState::Ready => CallerState::Ready,
            _ if !self.has_room(free, bytes_of) => CallerState::AwaitsBytes,
            _ if matches!(self.state, CallerState::RateLimited(_)) => self.state,
            _ => CallerState::Ready,
        }
    }
}

#[cfg(test)]
#[path = "queue/byte_tests.rs"]
mod byte_tests;
#[cfg(test)]
#[path = "queue/tests.rs"]
mod tests;
