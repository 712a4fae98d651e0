//! Tests of transactions that take long.
//!
//! Invariant: a transaction goes on when a test lets its queue go.

use super::*;
use crate::engine::catalog::TopicState;
use crate::scheduler::test_clock::SECOND;
use crate::scheduler::test_cluster::topic_without;
use crate::scheduler::test_environment::{NOW, TestEnvironment};
use crate::scheduler::test_partition::due_at;

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
