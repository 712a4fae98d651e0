//! What the queue guarantees of bytes: shares of what waits and of what is in progress, and states
//! that follow from them.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const NOW: Duration = Duration::from_secs(1_000);
const DEFAULT_PRIORITY: u8 = 127;
const LIMITS: QueueLimits = QueueLimits { concurrent: 2, waiting: 3, rate: None };

fn caller(name: &str) -> CallerName {
    Some(name.into())
}

/// A queue of fires of so many bytes each.
fn queue_of_bytes(bytes: usize, in_progress_bytes: usize) -> Queue<usize> {
    Queue::new(QueueBounds { fires: 1_000, bytes, in_progress_bytes }, |bytes| *bytes)
}

#[test]
fn bytes_that_wait_are_bounded_and_shared_as_fires_are() {
    let mut queue = queue_of_bytes(100, 1_000_000);
    let limits = QueueLimits { concurrent: 1, waiting: 1_000, rate: None };
    let offer = |queue: &mut Queue<usize>, name: &str, priority, bytes| {
        queue.offer(&caller(name), limits, priority, bytes)
    };
    let mut fill = |name: &str| {
        (0..100).filter(|_| offer(&mut queue, name, DEFAULT_PRIORITY, 10).is_ok()).count()
    };
    assert_eq!([fill("a"), fill("b"), fill("c")], [5, 3, 1]);
    assert_eq!((queue.waiting(), queue.waiting_bytes()), (9, 90));
    assert_eq!(offer(&mut queue, "a", 255, 10), Err(10), "a has no room for the bytes");
    assert_eq!(queue.start(NOW), Some(10));
    assert_eq!(queue.waiting_bytes(), 80);
    assert_eq!(queue.withdraw(|_| true).len(), 8);
    assert_eq!((queue.waiting(), queue.waiting_bytes()), (0, 0));
    assert_eq!(offer(&mut queue, "a", 0, 1_000), Ok(()), "one fire can always wait");
    assert_eq!(offer(&mut queue, "b", 0, 1), Err(1));
}

#[test]
fn a_displaced_fire_takes_its_bytes_with_it() {
    let mut queue = queue_of_bytes(100, 1_000_000);
    let limits = QueueLimits { waiting: 2, ..LIMITS };
    for bytes in [20, 10] {
        assert_eq!(queue.offer(&None, limits, 1, bytes), Ok(()));
    }
    assert_eq!(queue.offer(&None, limits, 2, 15), Err(10));
    assert_eq!((queue.waiting(), queue.waiting_bytes()), (2, 35));
}

#[test]
fn bytes_in_progress_are_shared_and_what_ends_makes_room_for_all() {
    let mut queue = queue_of_bytes(1_000_000, 100);
    let limits = QueueLimits { concurrent: 1_000, waiting: 1_000, rate: None };
    let start = |queue: &mut Queue<usize>, name: &str, fires: usize| {
        for _ in 0..fires {
            queue.offer(&caller(name), limits, DEFAULT_PRIORITY, 10).unwrap();
        }
        std::iter::from_fn(|| queue.start(NOW)).count()
    };
    let started = ["a", "b", "c"].map(|name| start(&mut queue, name, 20));
    assert_eq!((started, queue.in_progress_bytes()), ([4, 2, 1], 70));
    assert!(queue.waits_for_completion());
    (0..4).for_each(|_| queue.end(&caller("a"), 10));
    assert_eq!(start(&mut queue, "d", 0), 4, "all three start again");
    assert_eq!(start(&mut queue, "e", 1), 1, "a new caller has room");
}

/// However large it is, and however much others have in progress.
#[test]
fn one_callback_of_each_caller_can_start() {
    let mut queue = queue_of_bytes(1_000_000, 100);
    for (name, bytes) in [("a", 1_000), ("a", 1), ("b", 1_000), ("b", 1)] {
        queue.offer(&caller(name), LIMITS, DEFAULT_PRIORITY, bytes).unwrap();
    }
    assert_eq!(std::iter::from_fn(|| queue.start(NOW)).collect::<Vec<_>>(), [1_000, 1_000]);
    queue.end(&caller("a"), 1_000);
    assert_eq!(queue.start(NOW), Some(1), "a has none in progress");
    assert_eq!(queue.start(NOW), None, "b has more than there is");
}

/// The first one that waits is too large, and then another one is first.
#[test]
fn a_small_fire_of_a_higher_priority_starts_at_once_although_there_is_no_room_to_wait() {
    let mut queue = queue_of_bytes(1_000_000, 100);
    let limits = QueueLimits { concurrent: 10, waiting: 2, rate: None };
    queue.offer(&None, limits, DEFAULT_PRIORITY, 40).unwrap();
    assert_eq!(queue.start(NOW), Some(40));
    (0..2).for_each(|_| queue.offer(&None, limits, DEFAULT_PRIORITY, 60).unwrap());
    assert_eq!(queue.start(NOW), None, "there are 88 in all");
    assert_eq!(queue.offer(&None, limits, 255, 1), Err(60));
    assert_eq!(queue.start(NOW), Some(1));
}

/// A step of a property test: a caller is one of six.
#[derive(Clone, Debug)]
enum ByteStep {
    /// Caller, priority and bytes.
    Offer(u8, u8, usize),
    Start,
    CancelStarted,
    End(prop::sample::Index),
    Withdraw(u8),
}

fn byte_step() -> impl Strategy<Value = ByteStep> {
    prop_oneof![
        5 => (0..6_u8, 0..3_u8, 0..60_usize)
            .prop_map(|(who, priority, bytes)| ByteStep::Offer(who, priority, bytes)),
        4 => Just(ByteStep::Start),
        1 => Just(ByteStep::CancelStarted),
        3 => any::<prop::sample::Index>().prop_map(ByteStep::End),
        1 => (0..6_u8).prop_map(ByteStep::Withdraw),
    ]
}

/// A fire that names its caller, with its bytes.
type SizedFire = (u8, usize);

/// Panics if a state does not follow from what its caller has.
fn check_states(queue: &Queue<SizedFire>, in_progress: &[SizedFire]) {
    let ready: BTreeSet<_> = queue.ready.iter().collect();
    assert_eq!(ready.len(), queue.ready.len(), "a caller has two turns: {queue:?}");
    let mut at_capacity = 0;
    for (name, bulkhead) in &queue.callers {
        let own = in_progress.iter().filter(|(who, _)| caller(&who.to_string()) == *name);
        let own: Vec<usize> = own.map(|(_, bytes)| *bytes).collect();
        let counted = (bulkhead.in_progress, bulkhead.in_progress_bytes);
        assert_eq!(counted, (own.len(), own.iter().sum()), "{name:?}");
        assert!(own.len() <= bulkhead.limits.concurrent, "{name:?} in {queue:?}");
        assert_eq!(ready.contains(name), bulkhead.state == CallerState::Ready, "{name:?}");
        let awaits = bulkhead.state == CallerState::AwaitsBytes;
        assert_eq!(queue.awaiting_bytes.contains(name), awaits, "{name:?}");
        assert!(!awaits || !own.is_empty(), "{name:?} would wait for ever");
        at_capacity += usize::from(bulkhead.state == CallerState::AtCapacity);
    }
    assert_eq!(queue.at_capacity, at_capacity);
    let bytes: usize = in_progress.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!((queue.in_progress(), queue.in_progress_bytes()), (in_progress.len(), bytes));
}

/// Panics if a callback may start.
fn check_none_may_start(queue: &Queue<SizedFire>) {
    let free = queue.free_bytes();
    for (name, bulkhead) in &queue.callers {
        let is_at_capacity = bulkhead.in_progress >= bulkhead.limits.concurrent;
        let may_start = !bulkhead.queue.is_empty()
            && !is_at_capacity
            && bulkhead.has_room(free, queue.bytes_of);
        assert!(!may_start, "{name:?} has room: {queue:?}");
    }
}

proptest! {
    /// Whatever is offered, started, ended and withdrawn in which order, also where no callback
    /// starts for a time.
    #[test]
    fn states_follow_from_what_callers_have(
        steps in prop::collection::vec(byte_step(), 1..200),
    ) {
        let bounds = QueueBounds { fires: 1_000, bytes: 10_000, in_progress_bytes: 100 };
        let mut queue = Queue::new(bounds, |(_, bytes): &SizedFire| *bytes);
        let limits = QueueLimits { concurrent: 3, waiting: 4, rate: None };
        let mut in_progress = Vec::new();
        for step in steps {
            match step {
                ByteStep::Offer(who, priority, bytes) => {
                    let name = caller(&who.to_string());
                    let _full = queue.offer(&name, limits, priority, (who, bytes));
                }
                ByteStep::Start => match queue.start(NOW) {
                    Some(fire) => in_progress.push(fire),
                    None => check_none_may_start(&queue),
                },
                ByteStep::CancelStarted => {
                    if let Some((who, bytes)) = queue.start(NOW) {
                        queue.cancel_started(&caller(&who.to_string()), bytes);
                    }
                }
                ByteStep::End(index) if !in_progress.is_empty() => {
                    let (who, bytes) = in_progress.swap_remove(index.index(in_progress.len()));
                    queue.end(&caller(&who.to_string()), bytes);
                }
                ByteStep::End(_) => {}
                ByteStep::Withdraw(who) => {
                    let _withdrawn = queue.withdraw(|(other, _)| *other == who);
                }
            }
            check_states(&queue, &in_progress);
        }
        in_progress.extend(std::iter::from_fn(|| queue.start(NOW)));
        while let Some((who, bytes)) = in_progress.pop() {
            queue.end(&caller(&who.to_string()), bytes);
            in_progress.extend(queue.start(NOW));
            check_states(&queue, &in_progress);
        }
        prop_assert_eq!(queue.waiting(), 0, "what waits starts when others end: {:?}", queue);
    }
}
