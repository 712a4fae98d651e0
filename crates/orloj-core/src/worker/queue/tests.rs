//! What the queue guarantees: order within a caller, turns between callers, bounds, and no lost
//! fire.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const NOW: Duration = Duration::from_secs(1_000);

const LIMITS: QueueLimits = QueueLimits { concurrent: 2, waiting: 3, rate: None };
const DEFAULT_PRIORITY: u8 = 127;

/// A queue of so many fires that have no bytes.
fn queue<T>(fires: usize) -> Queue<T> {
    Queue::new(QueueBounds { fires, bytes: 0, in_progress_bytes: 0 }, |_| 0)
}

fn caller(name: &str) -> CallerName {
    Some(name.into())
}

fn rate_limited(concurrent: usize, waiting: usize, rate: u32) -> QueueLimits {
    QueueLimits { concurrent, waiting, rate: NonZeroU32::new(rate) }
}

/// A fire that names its caller.
type QueuedFire = (CallerName, u32);

fn offer(queue: &mut Queue<QueuedFire>, name: &str, number: u32) -> bool {
    offer_as(queue, name, LIMITS, (DEFAULT_PRIORITY, number)).is_ok()
}

fn offer_as(
    queue: &mut Queue<QueuedFire>,
    name: &str,
    limits: QueueLimits,
    (priority, number): (u8, u32),
) -> Result<(), u32> {
    let caller = caller(name);
    let offered = queue.offer(&caller, limits, priority, (caller.clone(), number));
    offered.map_err(|(_, back)| back)
}

fn started(queue: &mut Queue<QueuedFire>) -> Vec<String> {
    started_at(queue, NOW)
}

fn started_at(queue: &mut Queue<QueuedFire>, now: Duration) -> Vec<String> {
    let fires = std::iter::from_fn(|| queue.start(now));
    fires.map(|(caller, number)| format!("{}{number}", caller.unwrap())).collect()
}

/// The same, and each ends at once.
fn done_at(queue: &mut Queue<QueuedFire>, now: Duration) -> Vec<String> {
    let fires = std::iter::from_fn(|| {
        let (caller, number) = queue.start(now)?;
        queue.end(&caller, 0);
        Some(format!("{}{number}", caller.unwrap()))
    });
    fires.collect()
}

#[test]
fn callers_take_turns_and_a_bulkhead_limits_each() {
    let mut queue = queue(100);
    for number in 0..3 {
        assert!(offer(&mut queue, "a", number));
    }
    assert!(!offer(&mut queue, "a", 3), "its queue is full");
    assert!(offer(&mut queue, "b", 0) && offer(&mut queue, "b", 1));
    assert_eq!(started(&mut queue), ["a0", "b0", "a1", "b1"]);
    assert_eq!((queue.in_progress(), queue.waiting()), (4, 1));
    assert!(queue.waits_for_completion());
    queue.end(&caller("b"), 0);
    assert!(started(&mut queue).is_empty(), "a has no capacity");
    queue.end(&caller("a"), 0);
    assert_eq!(started(&mut queue), ["a2"]);
    assert!(!queue.waits_for_completion() && queue.next_due().is_none());
}

#[test]
fn triggers_without_a_caller_share_one_queue() {
    let mut queue = queue(100);
    let mut offer = || queue.offer(&None, LIMITS, DEFAULT_PRIORITY, 0).is_ok();
    assert_eq!([offer(), offer(), offer(), offer()], [true, true, true, false]);
}

#[test]
fn a_caller_that_fills_its_queue_leaves_room_for_a_new_caller() {
    let mut queue = queue(12);
    let limits = QueueLimits { concurrent: 1, waiting: 1_000, rate: None };
    let mut fill = |name| {
        let caller = caller(name);
        (0..100).filter(|_| queue.offer(&caller, limits, DEFAULT_PRIORITY, ()).is_ok()).count()
    };
    assert_eq!([fill("a"), fill("b"), fill("c")], [6, 3, 2]);
}

#[test]
fn priority_orders_the_fires_of_one_caller_and_gives_it_no_extra_turn() {
    let mut queue = queue(100);
    for fire in [(0, 0), (DEFAULT_PRIORITY, 1), (255, 2)] {
        offer_as(&mut queue, "a", LIMITS, fire).unwrap();
    }
    for fire in [(1, 3), (1, 4)] {
        offer_as(&mut queue, "b", LIMITS, fire).unwrap();
    }
    assert_eq!(started(&mut queue), ["a2", "b3", "a1", "b4"]);
}

#[test]
fn a_full_queue_returns_the_fire_of_the_lowest_priority() {
    let mut queue = queue(100);
    for fire in [(5, 0), (3, 1), (3, 2)] {
        offer_as(&mut queue, "a", LIMITS, fire).unwrap();
    }
    assert_eq!(offer_as(&mut queue, "a", LIMITS, (3, 3)), Err(3));
    assert_eq!(offer_as(&mut queue, "a", LIMITS, (4, 4)), Err(2));
    assert_eq!(queue.waiting(), 3);
    let wide = QueueLimits { concurrent: 9, ..LIMITS };
    queue.set_limits(|_| wide);
    assert_eq!(started(&mut queue), ["a0", "a4", "a1"]);
}

#[test]
fn a_caller_over_its_rate_waits_and_no_other_does() {
    let (mut queue, now) = (queue(100), NOW);
    for number in 0..4 {
        offer_as(&mut queue, "a", rate_limited(9, 9, 2), (DEFAULT_PRIORITY, number)).unwrap();
        offer_as(
            &mut queue,
            "b",
            QueueLimits { concurrent: 9, waiting: 9, rate: None },
            (0, number),
        )
        .unwrap();
    }
    assert_eq!(started_at(&mut queue, now), ["a0", "b0", "a1", "b1", "b2", "b3"]);
    let half = Duration::from_millis(500);
    assert!(!queue.waits_for_completion(), "no callback's end would start one");
    assert_eq!(queue.next_due(), Some(now + half));
    assert!(started_at(&mut queue, now + half - Duration::from_nanos(1)).is_empty());
    assert_eq!(started_at(&mut queue, now + half), ["a2"]);
    assert_eq!(started_at(&mut queue, now + 10 * half), ["a3"]);
}

/// Callbacks that end at once leave no state in the queue but the rate of the last second.
#[test]
fn the_rate_state_of_a_caller_is_kept_until_it_expires() {
    let (mut queue, now) = (queue(100), NOW);
    let two = rate_limited(9, 9, 2);
    for number in 0..2 {
        offer_as(&mut queue, "a", two, (DEFAULT_PRIORITY, number)).unwrap();
        assert_eq!(done_at(&mut queue, now).len(), 1);
    }
    offer_as(&mut queue, "a", two, (DEFAULT_PRIORITY, 2)).unwrap();
    assert!(
        done_at(&mut queue, now).is_empty(),
        "nothing is in progress, and both of this second are used"
    );
    assert_eq!(queue.withdraw(|_| true).len(), 1);
    let expiry = now + Duration::from_secs(1);
    assert_eq!((queue.callers.len(), queue.next_due()), (1, Some(expiry)));
    assert!(queue.start(expiry).is_none());
    assert!(queue.callers.is_empty() && queue.timers.is_empty());
}

#[test]
fn a_started_fire_that_is_cancelled_costs_no_rate() {
    let (mut queue, now) = (queue(100), NOW);
    for number in 0..5 {
        offer_as(&mut queue, "a", rate_limited(1, 9, 1), (DEFAULT_PRIORITY, number)).unwrap();
    }
    for _ in 0..3 {
        let (caller, _) = queue.start(now).unwrap();
        queue.cancel_started(&caller, 0);
    }
    assert_eq!(done_at(&mut queue, now), ["a3"], "the one of this second");
}

#[test]
fn changed_limits_apply_at_once() {
    let (mut queue, now) = (queue(100), NOW);
    for number in 0..9 {
        offer_as(&mut queue, "a", rate_limited(9, 9, 1), (DEFAULT_PRIORITY, number)).unwrap();
    }
    assert_eq!(started_at(&mut queue, now), ["a0"]);
    queue.set_limits(|_| rate_limited(9, 9, 4));
    assert!(started_at(&mut queue, now).is_empty(), "the rate of this second is used up");
    assert_eq!(queue.next_due(), Some(now + Duration::from_millis(250)));
    queue.set_limits(|_| rate_limited(3, 9, 0));
    assert_eq!(started_at(&mut queue, now), ["a1", "a2"], "without a rate, by its capacity");
    queue.set_limits(|_| rate_limited(1, 9, 0));
    queue.end(&caller("a"), 0);
    queue.end(&caller("a"), 0);
    assert!(started_at(&mut queue, now).is_empty() && queue.waits_for_completion());
    queue.end(&caller("a"), 0);
    assert_eq!(started_at(&mut queue, now), ["a3"]);
}

#[test]
fn a_withdrawn_fire_leaves_no_turn() {
    let mut queue = queue(100);
    for (name, number) in [("a", 0), ("b", 0), ("a", 1), ("c", 2)] {
        assert!(offer(&mut queue, name, number));
    }
    assert_eq!(queue.withdraw(|(_, number)| *number == 0).len(), 2);
    assert_eq!(queue.waiting(), 2);
    assert!(offer(&mut queue, "b", 5));
    assert_eq!(started(&mut queue), ["a1", "c2", "b5"]);
}

#[derive(Clone, Debug)]
enum QueueStep {
    Offer(u8, u8),
    Start,
    End(prop::sample::Index),
    CancelStarted,
    Withdraw(u32),
    Limit(u8, u8),
    AdvanceClock(u16),
}

fn any_step() -> impl Strategy<Value = QueueStep> {
    prop_oneof![
        8 => (0_u8..5, 0_u8..3).prop_map(|(who, priority)| QueueStep::Offer(who, priority)),
        6 => Just(QueueStep::Start),
        4 => any::<prop::sample::Index>().prop_map(QueueStep::End),
        1 => Just(QueueStep::CancelStarted),
        2 => (2_u32..9).prop_map(QueueStep::Withdraw),
        1 => (1_u8..4, 0_u8..4).prop_map(|(places, rate)| QueueStep::Limit(places, rate)),
        3 => (0_u16..600).prop_map(QueueStep::AdvanceClock),
    ]
}

/// The expected state of a caller, in the simplest form.
#[derive(Default)]
struct CallerModel {
    /// Priority and number of what waits.
    fires: Vec<(u8, u32)>,
    in_progress: usize,
    /// How much of the rate of a second is used up, in ms.
    rate_used: u64,
}

impl CallerModel {
    fn may_start(&self, limits: QueueLimits) -> bool {
        let costs = limits.rate.map_or(0, |rate| 1_000 / u64::from(rate.get()));
        let has_rate = costs == 0 || self.rate_used + costs <= 1_000;
        !self.fires.is_empty() && self.in_progress < limits.concurrent && has_rate
    }

    /// The index of the fire that starts first.
    fn first(&self) -> Option<usize> {
        let keys = self.fires.iter().map(|(priority, number)| (u8::MAX - priority, *number));
        keys.enumerate().min_by_key(|(_, key)| *key).map(|(at, _)| at)
    }

    /// The index of the fire that starts last.
    fn last(&self) -> Option<usize> {
        let keys = self.fires.iter().map(|(priority, number)| (u8::MAX - priority, *number));
        keys.enumerate().max_by_key(|(_, key)| *key).map(|(at, _)| at)
    }
}

/// The queue and its model, side by side.
struct QueueAndModel {
    queue: Queue<QueuedFire>,
    model: BTreeMap<CallerName, CallerModel>,
    /// The same for every caller.
    limits: QueueLimits,
    in_progress: Vec<CallerName>,
    now: Duration,
}

const WAITING_MAX: usize = 12;

impl QueueAndModel {
    fn step(&mut self, number: u32, step: &QueueStep) -> Result<(), TestCaseError> {
        match step {
            QueueStep::Offer(who, priority) => self.offer(&who.to_string(), *priority, number)?,
            QueueStep::Start => {
                let _started = self.start()?;
            }
            QueueStep::CancelStarted => {
                if let Some((who, used)) = self.start()? {
                    self.queue.cancel_started(&who, 0);
                    self.in_progress.pop();
                    let caller = self.model.get_mut(&who).unwrap();
                    (caller.in_progress, caller.rate_used) = (caller.in_progress - 1, used);
                }
            }
            QueueStep::End(index) if !self.in_progress.is_empty() => {
                let who = self.in_progress.swap_remove(index.index(self.in_progress.len()));
                self.queue.end(&who, 0);
                self.model.get_mut(&who).unwrap().in_progress -= 1;
            }
            QueueStep::End(_) => {}
            QueueStep::Withdraw(divisor) => {
                let withdrawn = self.queue.withdraw(|(_, number)| number % divisor == 0);
                let before = self.waiting();
                let callers = self.model.values_mut();
                callers.for_each(|caller| caller.fires.retain(|(_, n)| n % divisor != 0));
                prop_assert_eq!(withdrawn.len(), before - self.waiting());
            }
            QueueStep::Limit(places, rate) => {
                // 1, 2 or 4 a second: whole ms each.
                let rate = [0, 1, 2, 4][usize::from(*rate)];
                self.limits = rate_limited(usize::from(*places), LIMITS.waiting, rate);
                self.queue.set_limits(|_| self.limits);
            }
            QueueStep::AdvanceClock(ms) => {
                self.now += Duration::from_millis((*ms).into());
                let callers = self.model.values_mut();
                callers.for_each(|caller| {
                    caller.rate_used = caller.rate_used.saturating_sub((*ms).into())
                });
            }
        }
        let counted = (self.queue.waiting(), self.queue.in_progress());
        prop_assert_eq!(counted, (self.waiting(), self.in_progress.len()));
        Ok(())
    }

    fn offer(&mut self, name: &str, priority: u8, number: u32) -> Result<(), TestCaseError> {
        let room = LIMITS.waiting.min(WAITING_MAX - self.waiting());
        let caller = self.model.entry(caller(name)).or_default();
        let is_full = caller.fires.len() >= room;
        let offered = offer_as(&mut self.queue, name, self.limits, (priority, number));
        // A fire of a new caller that finds no room is returned itself.
        let back = (is_full && caller.fires.is_empty()).then_some(number);
        caller.fires.push((priority, number));
        let back = back.or_else(|| caller.last().filter(|_| is_full).map(|at| caller.fires[at].1));
        caller.fires.retain(|(_, number)| Some(*number) != back);
        prop_assert_eq!(offered.err(), back);
        Ok(())
    }

    /// The caller whose fire was started, and the rate it had used before.
    fn start(&mut self) -> Result<Option<(CallerName, u64)>, TestCaseError> {
        let may = self.model.values().any(|caller| caller.may_start(self.limits));
        let started = self.queue.start(self.now);
        prop_assert_eq!(started.is_some(), may);
        let Some((who, number)) = started else {
            let waits_for_its_rate = self.model.values().any(|caller| {
                !caller.fires.is_empty() && caller.in_progress < self.limits.concurrent
            });
            let due = self.queue.next_due();
            prop_assert!(!waits_for_its_rate || due.is_some_and(|at| at > self.now));
            let at_capacity =
                |m: &CallerModel| !m.fires.is_empty() && m.in_progress >= self.limits.concurrent;
            prop_assert_eq!(
                self.queue.waits_for_completion(),
                self.model.values().any(at_capacity)
            );
            return Ok(None);
        };
        let caller = self.model.get_mut(&who).unwrap();
        prop_assert!(caller.may_start(self.limits));
        let (_, first) = caller.fires.remove(caller.first().unwrap());
        prop_assert_eq!(first, number);
        caller.in_progress += 1;
        // Without a rate, what had started before counts no longer.
        let (others, costs) = match self.limits.rate {
            Some(rate) => (caller.rate_used, 1_000 / u64::from(rate.get())),
            None => (0, 0),
        };
        caller.rate_used = others + costs;
        self.in_progress.push(who.clone());
        Ok(Some((who, others)))
    }

    fn waiting(&self) -> usize {
        self.model.values().map(|caller| caller.fires.len()).sum()
    }
}

proptest! {
    /// Whatever happens in whatever order: every fire is returned, withdrawn, started or still
    /// there; those of each caller start by priority and then in the order of arrival; bounds and
    /// rates hold; and as long as any caller has a fire, capacity and rate, a callback starts. In
    /// the end no state is left.
    #[test]
    fn no_fire_is_lost_and_no_limit_is_exceeded(
        steps in prop::collection::vec(any_step(), 0..300),
    ) {
        let mut pair = QueueAndModel {
            queue: queue(WAITING_MAX),
            model: BTreeMap::new(),
            limits: LIMITS,
            in_progress: Vec::new(),
            now: NOW,
        };
        for (number, step) in (0..).zip(&steps) {
            pair.step(number, step)?;
        }
        let QueueAndModel { mut queue, in_progress, now, .. } = pair;
        let _withdrawn = queue.withdraw(|_| true);
        in_progress.iter().for_each(|who| queue.end(who, 0));
        prop_assert!(queue.start(now + Duration::from_secs(1)).is_none());
        prop_assert!(queue.callers.is_empty() && queue.timers.is_empty(), "{:?}", queue);
        prop_assert!(queue.ready.is_empty() && queue.at_capacity == 0, "{:?}", queue);
    }

    /// While every caller has fires and every callback ends at once, no caller gets two turns more
    /// than another, whatever its priorities.
    #[test]
    fn turns_differ_by_one(
        callers in 2_usize..8,
        concurrent in 1_usize..4,
        turns in 1_usize..200,
    ) {
        let (mut queue, now) = (queue(100_000), NOW);
        let limits = QueueLimits { concurrent, waiting: 1_000, rate: None };
        for (number, who) in (0..200).flat_map(|n| (0..callers).map(move |who| (n, who))) {
            let priority = u8::try_from(who).unwrap();
            let offered = queue.offer(&caller(&who.to_string()), limits, priority, (who, number));
            prop_assert!(offered.is_ok());
        }
        let mut turns_taken = vec![0_usize; callers];
        for _ in 0..turns {
            let (who, _) = queue.start(now).unwrap();
            turns_taken[who] += 1;
            queue.end(&caller(&who.to_string()), 0);
        }
        let (most, least) = (turns_taken.iter().max().unwrap(), turns_taken.iter().min().unwrap());
        prop_assert!(most - least <= 1, "{:?}", turns_taken);
    }
}
