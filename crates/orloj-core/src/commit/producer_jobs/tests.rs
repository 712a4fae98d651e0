//! Tests of which producers are opened, and which are used.
//!
//! Invariant: time moves only while a poll waits.

use super::*;
use crate::environment::Clock as _;
use crate::test_environment::TestEnvironment;
use crate::test_environment::producer::TestProducer;

/// How long an opening may take here before others are opened, too.
const LATE: Duration = Duration::from_millis(500);

type Jobs = ProducerJobs<TestEnvironment>;

/// The producers 0 are used, and all others were opened and closed.
fn started(world: &TestEnvironment) -> Jobs {
    let mut jobs = ProducerJobs::start(world, (&world.producer, &world.reporter), 0, LATE);
    assert!(poll(&mut jobs, world).is_none());
    assert_eq!(std::mem::take(&mut world.producer.sending().opened), [1, 2, 3]);
    assert!(!jobs.is_opening.iter().any(Option::is_some));
    jobs
}

fn poll(jobs: &mut Jobs, world: &TestEnvironment) -> Option<ProducerResult<TestEnvironment>> {
    jobs.poll(LATE, world.clock.monotonic())
}

/// The transaction of these producers has failed.
fn open(jobs: &mut Jobs, world: &TestEnvironment, failed: &Arc<TestProducer>) {
    let (producers, reporter) = (world.producer.clone(), world.reporter.clone());
    jobs.open(producers, reporter, Some(Arc::clone(failed)), world.clock.monotonic());
}

/// Polls until producers are open that are used, at most so often.
fn await_opened(jobs: &mut Jobs, world: &TestEnvironment, polls: usize) -> bool {
    (0..polls).any(|_| matches!(poll(jobs, world), Some(ProducerResult::Opened(_))))
}

#[test]
fn the_same_producers_are_opened_again_if_the_broker_can_end_their_transaction() {
    let world = TestEnvironment::default();
    let mut jobs = started(&world);
    let failed = Arc::new(world.producer.clone());
    open(&mut jobs, &world, &failed);
    assert!(await_opened(&mut jobs, &world, 1));
    assert_eq!((jobs.current, &*world.producer.sending().used), (0, &[0][..]));
}

#[test]
fn others_are_opened_while_the_broker_cannot_end_a_transaction() {
    let world = TestEnvironment::default();
    let mut jobs = started(&world);
    world.producer.sending().unopened = vec![0, 1];
    jobs.on_undelivered("out", 3);
    let began = world.clock.monotonic();
    open(&mut jobs, &world, &Arc::new(world.producer.clone()));
    assert!(await_opened(&mut jobs, &world, 5));
    assert_eq!(jobs.current, 2);
    assert!(world.clock.monotonic() - began <= 3 * LATE);
    assert_eq!(jobs.not_ended().collect::<Vec<_>>(), [("out", 3)]);
    // Producers that are opened later are closed, and say nothing of the broker.
    world.reporter.ready("broker");
    assert!(poll(&mut jobs, &world).is_none());
    assert_eq!(world.reporter.readiness("broker").unwrap(), "ready");
    world.producer.sending().unopened.clear();
    assert!(poll(&mut jobs, &world).is_none());
    assert_eq!(world.producer.sending().opened, [2, 0, 1]);
    assert_eq!((world.producer.sending().used.clone(), jobs.not_ended().count()), (vec![2], 0));
}

/// Its transaction may still be committed until the broker has ended it.
#[test]
fn no_others_are_opened_while_a_call_of_the_failed_ones_has_not_returned() {
    let world = TestEnvironment::default();
    let mut jobs = started(&world);
    world.producer.sending().unopened = vec![0];
    let failed = Arc::new(world.producer.clone());
    open(&mut jobs, &world, &failed);
    assert!(!await_opened(&mut jobs, &world, 10));
    assert_eq!(world.producer.sending().opened, [0; 0]);
    drop(failed);
    assert!(await_opened(&mut jobs, &world, 3));
    assert_eq!(jobs.current, 1);
}

#[test]
fn all_are_waited_for_if_the_broker_can_end_no_transaction() {
    let world = TestEnvironment::default();
    let mut jobs = started(&world);
    world.producer.sending().unopened = (0..PRODUCERS_MAX).collect();
    open(&mut jobs, &world, &Arc::new(world.producer.clone()));
    assert!(!await_opened(&mut jobs, &world, 2 * PRODUCERS_MAX));
    assert!(jobs.is_opening.iter().all(Option::is_some));
    world.producer.sending().unopened = vec![0, 1, 2];
    assert!(await_opened(&mut jobs, &world, 1));
    assert_eq!(jobs.current, 3);
}
