//! Where fires wait for a place: a bulkhead, a pace and a queue for each caller.
//!
//! Law: pure, time is an argument. A caller has at most so many callbacks under way, begins at most
//! so many a second, and has at most so many fires waiting; callers that may begin one take turns;
//! and no caller, nor all of them, can take the room that a newcomer needs. Priority orders the
//! fires of one caller and moves nobody else's.
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

use super::line::Line;
use super::pace::Pace;
use crate::model::text::Text;

/// Who registered a trigger; all those without a name are one caller.
pub type Caller = Option<Text>;

/// What a caller may have in a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
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
    callers: HashMap<Caller, Compartment<T>>,
    /// Those that are [`Stand::InTurn`], each once.
    turns: VecDeque<Caller>,
    /// Those that are [`Stand::Early`] or [`Stand::Resting`], by until when.
    timed: BTreeSet<(Instant, Caller)>,
    /// How many are [`Stand::Crowded`].
    crowded: usize,
    waiting_max: usize,
    waiting: usize,
    under_way: usize,
}

#[derive(Debug)]
struct Compartment<T> {
    limits: Limits,
    line: Line<T>,
    under_way: usize,
    pace: Pace,
    stand: Stand,
}

/// What a caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// For nothing: no fire of it waits.
    Idle,
    /// For its turn: it has a fire and a place.
    InTurn,
    /// For one of its callbacks to end.
    Crowded,
    /// For its pace, until then: it has a fire and a place.
    Early(Instant),
    /// For nothing, but what it has begun counts until then.
    Resting(Instant),
}

impl<T> Queue<T> {
    /// An empty queue in which at most `waiting_max` wait.
    #[must_use]
    pub fn new(waiting_max: usize) -> Self {
        let (callers, turns, timed) = (HashMap::new(), VecDeque::new(), BTreeSet::new());
        Self { callers, turns, timed, crowded: 0, waiting_max, waiting: 0, under_way: 0 }
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
    pub fn awaits_an_end(&self) -> bool {
        self.crowded > 0 || !self.turns.is_empty()
    }

    /// When to [`begin`](Self::begin) again if nothing else happens: somebody's pace is to be
    /// looked at then.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.timed.first().map(|(at, _)| *at)
    }

    /// Takes a fire in, or gives one of its caller's back if the caller has no room: the one that
    /// would begin last. A caller may have as many waiting as there is room left for others: so
    /// those who want all share alike, and a newcomer always finds as much room as each of them
    /// has. `limits` are a newcomer's; a known caller's change by [`limit`](Self::limit).
    pub fn offer(
        &mut self,
        caller: &Caller,
        limits: Limits,
        priority: u8,
        fire: T,
    ) -> Result<(), T> {
        let room = limits.waiting.min(self.waiting_max - self.waiting);
        let known = self.callers.get_mut(caller);
        if known.as_ref().map_or(0, |compartment| compartment.line.len()) >= room {
            let Some(compartment) = known else { return Err(fire) };
            return Err(compartment.line.displace(priority, fire));
        }
        let compartment =
            self.callers.entry(caller.clone()).or_insert_with(|| Compartment::new(limits));
        compartment.line.push(priority, fire);
        self.waiting += 1;
        self.review(caller);
        Ok(())
    }

    /// The fire whose turn it is at `now`. It counts as under way until its caller's
    /// [`end`](Self::end).
    pub fn begin(&mut self, now: Instant) -> Option<T> {
        self.wake(now);
        while let Some(caller) = self.turns.pop_front() {
            let compartment = self.callers.get_mut(&caller).expect("whose turn it is has a fire");
            compartment.stand = Stand::Idle;
            if let Err(at) = compartment.admit(now) {
                self.put(&caller, Stand::Early(at));
                continue;
            }
            let fire = compartment.line.pop().expect("whose turn it is has a fire");
            compartment.under_way += 1;
            self.waiting -= 1;
            self.under_way += 1;
            self.review(&caller);
            return Some(fire);
        }
        None
    }

    /// A callback that had begun is under way no longer.
    pub fn end(&mut self, caller: &Caller) {
        let compartment = self.callers.get_mut(caller).expect("what ends has begun");
        compartment.under_way -= 1;
        self.under_way -= 1;
        self.review(caller);
    }

    /// The fire that began last is not called after all: it has cost its caller nothing.
    pub fn forgo(&mut self, caller: &Caller) {
        let compartment = self.callers.get_mut(caller).expect("what ends has begun");
        if let Some(rate) = compartment.limits.rate {
            compartment.pace.refund(rate);
        }
        self.end(caller);
    }

    /// Takes out the waiting fires that are `condemned`. Costs a look at each that waits.
    pub fn withdraw(&mut self, condemned: impl Fn(&T) -> bool) -> Vec<T> {
        let (mut withdrawn, mut losers) = (Vec::new(), Vec::new());
        for (caller, compartment) in &mut self.callers {
            let before = withdrawn.len();
            withdrawn.extend(compartment.line.withdraw(&condemned));
            if withdrawn.len() > before {
                losers.push(caller.clone());
            }
        }
        self.waiting -= withdrawn.len();
        self.review_all(&losers);
        withdrawn
    }

    /// Everyone's limits are others now.
    pub fn limit(&mut self, limits: impl Fn(&Caller) -> Limits) {
        let callers: Vec<_> = self.callers.keys().cloned().collect();
        for caller in &callers {
            let Some(compartment) = self.callers.get_mut(caller) else { continue };
            compartment.limits = limits(caller);
            if let Stand::Early(_) = compartment.stand {
                // Too early by the old rate: its turn shows what it is by the new one.
                self.put(caller, Stand::InTurn);
            }
        }
        self.review_all(&callers);
    }

    /// Those whose time has come at `now` may have a turn, or are forgotten.
    fn wake(&mut self, now: Instant) {
        while self.timed.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, caller)) = self.timed.pop_first() else { return };
            let compartment = self.callers.get_mut(&caller).expect("who waits for a time is here");
            compartment.stand = Stand::Idle;
            compartment.pace.rest(now);
            self.review(&caller);
        }
    }

    /// The same as [`review`](Self::review) for many, some of whom may lose their turn.
    fn review_all(&mut self, callers: &[Caller]) {
        if callers.is_empty() {
            return;
        }
        callers.iter().for_each(|caller| self.review(caller));
        let known = &self.callers;
        self.turns.retain(|caller| known.get(caller).is_some_and(|c| c.stand == Stand::InTurn));
    }

    /// Puts a caller where it belongs after it has changed; one about whom there is nothing left to
    /// know is forgotten.
    fn review(&mut self, caller: &Caller) {
        let Some(compartment) = self.callers.get(caller) else { return };
        let stand = compartment.due_stand();
        let is_gone = stand == Stand::Idle && compartment.under_way == 0;
        if stand != compartment.stand {
            self.put(caller, stand);
        }
        if is_gone {
            self.callers.remove(caller);
        }
    }

    /// Whoever was in turn must be out of `turns` already, or leave it by `review_all`.
    fn put(&mut self, caller: &Caller, stand: Stand) {
        let Some(compartment) = self.callers.get_mut(caller) else { return };
        match std::mem::replace(&mut compartment.stand, stand) {
            Stand::Early(at) | Stand::Resting(at) => {
                let _was_there = self.timed.remove(&(at, caller.clone()));
            }
            Stand::Crowded => self.crowded -= 1,
            Stand::Idle | Stand::InTurn => {}
        }
        match stand {
            Stand::Early(at) | Stand::Resting(at) => {
                let _is_new = self.timed.insert((at, caller.clone()));
            }
            Stand::Crowded => self.crowded += 1,
            Stand::InTurn => self.turns.push_back(caller.clone()),
            Stand::Idle => {}
        }
    }
}

impl<T> Compartment<T> {
    fn new(limits: Limits) -> Self {
        let (line, pace, stand) = (Line::default(), Pace::default(), Stand::Idle);
        Self { limits, line, under_way: 0, pace, stand }
    }

    /// Counts a callback that begins at `now`, or says when it may.
    fn admit(&mut self, now: Instant) -> Result<(), Instant> {
        match self.limits.rate {
            Some(rate) => self.pace.admit(rate, now),
            None => {
                self.pace = Pace::default();
                Ok(())
            }
        }
    }

    /// What it waits for by what it has.
    fn due_stand(&self) -> Stand {
        match (self.line.is_empty(), self.pace.counts_until()) {
            (true, Some(at)) => Stand::Resting(at),
            (true, None) => Stand::Idle,
            _ if self.under_way >= self.limits.concurrent => Stand::Crowded,
            _ if matches!(self.stand, Stand::Early(_)) => self.stand,
            _ => Stand::InTurn,
        }
    }
}

#[cfg(test)]
#[path = "queue/tests.rs"]
mod tests;
