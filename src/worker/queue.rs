//! Where fires wait for a place: a bulkhead and a queue for each caller.
//!
//! Law: pure. A caller has at most so many callbacks under way and so many fires waiting; callers
//! that have both a fire and a free place take turns; and no caller, nor all of them, can take the
//! room that a newcomer needs.
//!
//! ```text
//!   offer ─►  caller a  ▢▢▢▢▢▢▢▢  2 of 100 under way   ┐
//!             caller b  ▢         0 of 100 under way   ├─ in turn ─►  begin … end
//!             caller c  ▢▢▢▢    100 of 100: no turn    ┘
//! ```
//!
//! A turn is one callback. Callbacks differ in how long they last, not in what beginning one
//! costs, and how many long ones a caller may have is the bulkhead's affair: so plain turns are
//! fair, and deficits, which fair queues keep for packets of different sizes, would all be zero.

use std::collections::{HashMap, VecDeque};

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
}

/// Fires that wait, by caller, and how many callbacks of each are under way.
#[derive(Debug)]
pub struct Queue<T> {
    callers: HashMap<Caller, Compartment<T>>,
    /// Callers that have a fire and a free place, each once.
    turns: VecDeque<Caller>,
    waiting_max: usize,
    waiting: usize,
    under_way: usize,
}

#[derive(Debug)]
struct Compartment<T> {
    concurrent: usize,
    waiting: VecDeque<T>,
    under_way: usize,
    has_turn: bool,
}

impl<T> Queue<T> {
    /// An empty queue in which at most `waiting_max` wait.
    #[must_use]
    pub fn new(waiting_max: usize) -> Self {
        let (callers, turns) = (HashMap::new(), VecDeque::new());
        Self { callers, turns, waiting_max, waiting: 0, under_way: 0 }
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

    /// Takes a fire in, or gives it back if the caller has no room. A caller may have as many
    /// waiting as there is room left for others: so those who want all share alike, and a newcomer
    /// always finds as much room as each of them has.
    pub fn offer(&mut self, caller: &Caller, limits: Limits, fire: T) -> Result<(), T> {
        let room = limits.waiting.min(self.waiting_max - self.waiting);
        let waiting = self.callers.get(caller).map_or(0, |compartment| compartment.waiting.len());
        if waiting >= room {
            return Err(fire);
        }
        let compartment = self.callers.entry(caller.clone()).or_default();
        compartment.concurrent = limits.concurrent;
        compartment.waiting.push_back(fire);
        self.waiting += 1;
        self.give_turn(caller);
        Ok(())
    }

    /// The fire whose turn it is. It counts as under way until its caller's [`end`](Self::end).
    pub fn begin(&mut self) -> Option<T> {
        let caller = self.turns.pop_front()?;
        let compartment = self.callers.get_mut(&caller).expect("whose turn it is has a fire");
        compartment.has_turn = false;
        let fire = compartment.waiting.pop_front().expect("whose turn it is has a fire");
        compartment.under_way += 1;
        self.waiting -= 1;
        self.under_way += 1;
        self.give_turn(&caller);
        Some(fire)
    }

    /// A callback that had begun is under way no longer.
    pub fn end(&mut self, caller: &Caller) {
        let compartment = self.callers.get_mut(caller).expect("what ends has begun");
        compartment.under_way -= 1;
        self.under_way -= 1;
        if compartment.is_empty() {
            self.callers.remove(caller);
        } else {
            self.give_turn(caller);
        }
    }

    /// Takes out the waiting fires that are `condemned`. Costs a look at each that waits; only of a
    /// caller that loses some do the others move up.
    pub fn withdraw(&mut self, condemned: impl Fn(&T) -> bool) -> Vec<T> {
        let mut withdrawn = Vec::new();
        for compartment in self.callers.values_mut() {
            if !compartment.waiting.iter().any(&condemned) {
                continue;
            }
            let waiting = std::mem::take(&mut compartment.waiting).into_iter();
            let (gone, kept): (VecDeque<_>, VecDeque<_>) = waiting.partition(&condemned);
            withdrawn.extend(gone);
            compartment.waiting = kept;
            compartment.has_turn &= !compartment.waiting.is_empty();
        }
        if withdrawn.is_empty() {
            return withdrawn;
        }
        self.waiting -= withdrawn.len();
        self.callers.retain(|_, compartment| !compartment.is_empty());
        let callers = &self.callers;
        self.turns.retain(|caller| callers.get(caller).is_some_and(|c| c.has_turn));
        withdrawn
    }

    fn give_turn(&mut self, caller: &Caller) {
        let Some(compartment) = self.callers.get_mut(caller) else { return };
        let has_place = compartment.under_way < compartment.concurrent;
        if has_place && !compartment.has_turn && !compartment.waiting.is_empty() {
            compartment.has_turn = true;
            self.turns.push_back(caller.clone());
        }
    }
}

impl<T> Compartment<T> {
    fn is_empty(&self) -> bool {
        self.under_way == 0 && self.waiting.is_empty()
    }
}

impl<T> Default for Compartment<T> {
    fn default() -> Self {
        Self { concurrent: 0, waiting: VecDeque::new(), under_way: 0, has_turn: false }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits { concurrent: 2, waiting: 3 };

    fn caller(name: &str) -> Caller {
        Some(name.into())
    }

    /// A fire that says whose it is.
    type Fire = (Caller, u32);

    fn offer(queue: &mut Queue<Fire>, name: &str, number: u32) -> bool {
        let caller = caller(name);
        queue.offer(&caller, LIMITS, (caller.clone(), number)).is_ok()
    }

    fn begun(queue: &mut Queue<Fire>) -> Vec<String> {
        let fires = std::iter::from_fn(|| queue.begin());
        fires.map(|(caller, number)| format!("{}{number}", caller.unwrap())).collect()
    }

    #[test]
    fn callers_take_turns_and_a_bulkhead_holds() {
        let mut queue = Queue::new(100);
        for number in 0..3 {
            assert!(offer(&mut queue, "a", number));
        }
        assert!(!offer(&mut queue, "a", 3), "its queue is full");
        assert!(offer(&mut queue, "b", 0) && offer(&mut queue, "b", 1));
        assert_eq!(begun(&mut queue), ["a0", "b0", "a1", "b1"]);
        assert_eq!((queue.under_way(), queue.waiting()), (4, 1));
        queue.end(&caller("b"));
        assert!(begun(&mut queue).is_empty(), "a has no place");
        queue.end(&caller("a"));
        assert_eq!(begun(&mut queue), ["a2"]);
    }

    #[test]
    fn those_without_a_name_are_one_caller() {
        let mut queue = Queue::new(100);
        let mut offer = || queue.offer(&None, LIMITS, 0).is_ok();
        assert_eq!([offer(), offer(), offer(), offer()], [true, true, true, false]);
    }

    #[test]
    fn whoever_wants_all_leaves_room_for_a_newcomer() {
        let mut queue = Queue::new(12);
        let greedy = Limits { concurrent: 1, waiting: 1_000 };
        let mut fill = |name| {
            let caller = caller(name);
            (0..100).filter(|_| queue.offer(&caller, greedy, ()).is_ok()).count()
        };
        assert_eq!([fill("a"), fill("b"), fill("c")], [6, 3, 2]);
    }

    #[test]
    fn what_is_withdrawn_leaves_no_turn_behind() {
        let mut queue = Queue::new(100);
        for (name, number) in [("a", 0), ("b", 0), ("a", 1), ("c", 2)] {
            assert!(offer(&mut queue, name, number));
        }
        assert_eq!(queue.withdraw(|(_, number)| *number == 0).len(), 2);
        assert_eq!(queue.waiting(), 2);
        assert!(offer(&mut queue, "b", 5));
        assert_eq!(begun(&mut queue), ["a1", "c2", "b5"]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Offer(u8),
        Begin,
        End(prop::sample::Index),
        Withdraw(u32),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_u8..5).prop_map(Step::Offer),
            3 => Just(Step::Begin),
            2 => any::<prop::sample::Index>().prop_map(Step::End),
            1 => (2_u32..9).prop_map(Step::Withdraw),
        ]
    }

    proptest! {
        /// Whatever happens in whatever order: every fire is given back, withdrawn, begun or still
        /// there; each caller's begin in the order in which they came; bounds hold; and as long as
        /// someone has both a fire and a place, something begins.
        #[test]
        fn nothing_is_lost_and_no_bound_is_passed(
            steps in prop::collection::vec(any_step(), 0..300),
        ) {
            let mut queue = Queue::new(12);
            let mut model = BTreeMap::<Caller, (VecDeque<u32>, usize)>::new();
            let mut under_way = Vec::new();
            for (number, step) in (0..).zip(steps) {
                match step {
                    Step::Offer(who) => {
                        let who = caller(&who.to_string());
                        let room = 12 - model.values().map(|(fires, _)| fires.len()).sum::<usize>();
                        let (fires, _) = model.entry(who.clone()).or_default();
                        let taken = queue.offer(&who, LIMITS, (who.clone(), number)).is_ok();
                        prop_assert_eq!(taken, fires.len() < LIMITS.waiting.min(room));
                        if taken {
                            fires.push_back(number);
                        }
                    }
                    Step::Begin => {
                        let able = |(fires, busy): &(VecDeque<u32>, usize)| {
                            !fires.is_empty() && *busy < LIMITS.concurrent
                        };
                        let expected = model.values().any(able);
                        let begun = queue.begin();
                        prop_assert_eq!(begun.is_some(), expected);
                        let Some((who, number)) = begun else { continue };
                        let (fires, busy) = model.get_mut(&who).unwrap();
                        prop_assert_eq!(fires.pop_front(), Some(number));
                        *busy += 1;
                        prop_assert!(*busy <= LIMITS.concurrent);
                        under_way.push(who);
                    }
                    Step::End(index) if !under_way.is_empty() => {
                        let who = under_way.swap_remove(index.index(under_way.len()));
                        queue.end(&who);
                        model.get_mut(&who).unwrap().1 -= 1;
                    }
                    Step::End(_) => {}
                    Step::Withdraw(divisor) => {
                        let gone = queue.withdraw(|(_, number)| number % divisor == 0);
                        let before = queue.waiting() + gone.len();
                        model.values_mut().for_each(|(f, _)| f.retain(|n| n % divisor != 0));
                        prop_assert_eq!(before - queue.waiting(), gone.len());
                    }
                }
                let waiting: usize = model.values().map(|(fires, _)| fires.len()).sum();
                prop_assert_eq!((queue.waiting(), queue.under_way()), (waiting, under_way.len()));
            }
        }

        /// While nobody's fires run out and places are given back at once, no caller gets two
        /// turns more than another.
        #[test]
        fn turns_differ_by_one(
            callers in 2_usize..8,
            concurrent in 1_usize..4,
            turns in 1_usize..200,
        ) {
            let mut queue = Queue::new(100_000);
            let limits = Limits { concurrent, waiting: 1_000 };
            for (number, who) in (0..200).flat_map(|n| (0..callers).map(move |who| (n, who))) {
                prop_assert!(queue.offer(&caller(&who.to_string()), limits, (who, number)).is_ok());
            }
            let mut had = vec![0_usize; callers];
            for _ in 0..turns {
                let (who, _) = queue.begin().unwrap();
                had[who] += 1;
                queue.end(&caller(&who.to_string()));
            }
            let (most, least) = (had.iter().max().unwrap(), had.iter().min().unwrap());
            prop_assert!(most - least <= 1, "{:?}", had);
        }
    }
}
