//! Tests of transactions that take long.
//!
//! Invariant: a transaction goes on when a test lets its queue go.

use super::*;
use crate::engine::catalog::TopicState;
use crate::scheduler::test_partition::due_at;
use crate::test_environment::clock::{MS, SECOND};
use crate::test_environment::cluster::topic_without;
use crate::test_environment::{NOW, TestEnvironment};

#[test]
fn a_process_is_not_ready_while_a_transaction_waits_for_a_broker() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([due_at(0, NOW)]);
    world.hold("committer");
    scheduler.fire_all_due(Duration::ZERO).unwrap();
    scheduler.commit_if_ready().unwrap();
    for _ in 0..2 {
        assert_eq!(world.reporter.readiness("transaction"), None, "it may take so long");
        world.clock.advance(SLOW_TRANSACTION / 2);
        scheduler.poll_transaction(Duration::ZERO).unwrap();
    }
    assert_eq!(world.reporter.readiness("transaction").unwrap(), format!("not ready: {SLOW}"));
    world.let_go("committer");
    scheduler.poll_transaction(Duration::ZERO).unwrap();
    assert_eq!(world.reporter.readiness("transaction").unwrap(), "ready");
}

#[test]
fn a_partition_that_the_brokers_show_as_unavailable_is_not_waited_for() {
    for (state, is_given_up) in [
        (topic_without(&[]), false),
        (topic_without(&[0]), true),
        (TopicState::Unusable("it was deleted".to_owned()), true),
        (TopicState::Unavailable("no answer".to_owned()), false),
    ] {
        let world = TestEnvironment::default();
        let mut scheduler = world.scheduler_owning([due_at(0, NOW)]);
        scheduler.config.timing.slow_lookup_interval = SECOND;
        world.producer.sending().unflushed = true;
        scheduler.fire_all_due(Duration::ZERO).unwrap();
        scheduler.commit_if_ready().unwrap();
        world.hold("committer");
        let _before = world.cluster.looked_up();
        world.cluster.set_topic_state(state.clone());
        for (second, asked) in [(0, 0), (1, 1), (2, 1)] {
            scheduler.poll_transaction(Duration::ZERO).unwrap();
            scheduler.targets.refresh_expired();
            assert_eq!(world.cluster.looked_up().len(), asked, "{state:?} after {second} s");
            world.clock.advance(SECOND);
        }
        world.let_go("committer");
        assert!(scheduler.producer.is_some());
        (0..3).for_each(|_| scheduler.poll_transaction(Duration::ZERO).unwrap());
        assert_eq!(scheduler.producer.is_none(), is_given_up, "{state:?}");
        assert_eq!(scheduler.targets.has_failures(), is_given_up, "{state:?}");
    }
}

/// Brokers may wait for the one that was replaced. A second one is not given up: what is to blame
/// is found by the timeout of its records.
#[test]
fn a_transaction_that_takes_longer_than_the_replacement_of_a_broker_is_sent_again_once() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([due_at(0, NOW)]);
    scheduler.config.transaction_timeout = 4 * STALLED_TRANSACTION;
    world.producer.sending().unflushed = true;
    scheduler.fire_all_due(Duration::ZERO).unwrap();
    scheduler.commit_if_ready().unwrap();
    for is_given_up in [true, false] {
        for (time, is_over) in [(STALLED_TRANSACTION - MS, false), (MS, is_given_up)] {
            world.clock.advance(time);
            (0..3).for_each(|_| scheduler.poll_transaction(Duration::ZERO).unwrap());
            let running_for = scheduler.committer.running_for(world.clock.monotonic());
            assert_eq!(running_for.is_zero(), is_over, "{time:?}");
        }
        scheduler.poll_producer_jobs(Duration::ZERO).unwrap();
        scheduler.poll_interrupted(Duration::ZERO).unwrap();
    }
    assert!(!scheduler.targets.has_failures());
    world.producer.sending().unflushed = false;
    (0..5).for_each(|_| scheduler.poll_transaction(Duration::ZERO).unwrap());
    assert!(scheduler.assignment.is_idle() && scheduler.batch.is_none());
}

#[test]
fn a_transaction_may_be_given_up_again_after_one_was_committed() {
    let mut slow = SlowTransaction { was_given_up: true, ..SlowTransaction::default() };
    let failed = |reason: &str| {
        let error = TransactionError::Unknown(reason.to_owned());
        Err(CommitFailure { error, is_uncommitted: true })
    };
    let given_up = [failed("no answer"), Ok(()), failed("no answer"), failed(STALLED)].map(|end| {
        let _is_reported = slow.on_end(&end);
        slow.was_given_up
    });
    assert_eq!(given_up, [true, false, false, true]);
}
