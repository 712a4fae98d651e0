//! Fires whose topic or pool cannot be written now: they wait, and can be cancelled meanwhile.
//!
//! Invariant: a fire that waits is in the ledger under its new time.

use super::firing::dead_lettered;
use super::fixture::{
    EngineFixture, callback_trigger, delete, first_occurrence, index, ledger_delete, ledger_put,
    postponed, put, topic_trigger,
};
use super::harness::definition;
use crate::engine::catalog::TopicState;
use crate::model::PartitionId;
use crate::model::definition::{Definition, HttpTarget, Target};
use crate::model::outcome::OutcomeKind;
use crate::model::partitioner::murmur2_partition;

#[test]
fn a_fire_whose_topic_is_unavailable_waits_in_the_ledger_and_fires_later() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_020);
    fixture.callback("b", 1_020);
    fixture.run_until_idle();
    fixture.now = 1_020;
    fixture.owner.catalog.insert("out".into(), TopicState::Unavailable("no leader".to_owned()));
    let (a, b) = (postponed(&topic_trigger("a", 0, 1_020), 1_025), callback_trigger("b", 1, 1_020));
    fixture.assert_decides(&[ledger_put(&a), fixture.fire_emit(&b)], &[put(&a), index("a", &[&a])]);
    fixture.now = 1_025;
    let again = postponed(&a, 1_030);
    fixture.assert_decides(&[ledger_put(&again)], &[put(&again), index("a", &[&again])]);
    fixture.now = 1_030;
    let back = TopicState::usable(1, 1 << 20);
    fixture.owner.catalog.insert("out".into(), back);
    fixture.assert_decides(&[fixture.fire_emit(&again), ledger_delete(&again)], &[]);
}

#[test]
fn a_fire_whose_topic_is_unavailable_for_a_short_time_is_late_by_a_short_time() {
    let mut fixture = EngineFixture::new();
    fixture.owner.partition.config_mut().target_retry_interval = 1_000;
    fixture.register("a", 1_020);
    fixture.run_until_idle();
    fixture.owner.catalog.insert("out".into(), TopicState::Unavailable("no leader".to_owned()));
    let a = topic_trigger("a", 0, 1_020);
    for (now, until) in [(1_020, 1_120), (1_120, 1_220), (1_220, 1_420), (3_000, 4_000)] {
        fixture.now = now;
        let waits = postponed(&a, until);
        fixture.assert_decides(&[ledger_put(&waits)], &[put(&waits), index("a", &[&waits])]);
    }
}

#[test]
fn a_late_fire_whose_topic_or_pool_is_not_known_yet_waits_only_for_the_answer() {
    let mut fixture = EngineFixture::new();
    fixture.owner.partition.config_mut().target_retry_interval = 5_000;
    fixture.register("a", 1_020);
    fixture.register_as(pooled("slow"), "b", 1_020);
    fixture.run_until_idle();
    fixture.owner.catalog.insert("out".into(), TopicState::Unknown);
    fixture.owner.catalog.insert_pool("slow".into(), TopicState::Unknown);
    let late = [topic_trigger("a", 0, 1_020), first_occurrence("b", 1, 1_020, pooled("slow"))];
    for now in [3_000, 3_100] {
        fixture.now = now;
        let [a, b] = late.each_ref().map(|entry| postponed(entry, now + 100));
        let rows = [put(&a), index("a", &[&a]), put(&b), index("b", &[&b])];
        fixture.assert_decides(&[ledger_put(&a), ledger_put(&b)], &rows);
    }
}

#[test]
fn a_fire_waits_for_an_unavailable_pool_and_fails_for_an_unusable_one() {
    let mut fixture = EngineFixture::new();
    let usable = |partitions| TopicState::usable(partitions, 1 << 20);
    let states = [
        ("slow", TopicState::Unavailable("no leader".to_owned())),
        ("deleted", TopicState::Unusable("no such topic".to_owned())),
        ("narrow", usable(0)),
    ];
    for (pool, state) in states {
        fixture.register_as(pooled(pool), pool, 1_020);
        fixture.owner.catalog.insert_pool(pool.to_owned(), state);
    }
    fixture.run_until_idle();
    fixture.now = 1_020;
    let slow = postponed(&first_occurrence("slow", 0, 1_020, pooled("slow")), 1_025);
    let deleted = first_occurrence("deleted", 1, 1_020, pooled("deleted"));
    let narrow = first_occurrence("narrow", 2, 1_020, pooled("narrow"));
    let [no_topic, first] = dead_lettered(&fixture, &deleted, "no such topic");
    let reason = "the topic of pool narrow has 0 partitions and lacks 0: it needs as many as the \
                  other topics; `orloj topics verify` compares them";
    let [no_partition, second] = dead_lettered(&fixture, &narrow, reason);
    let rows = [put(&slow), index("slow", &[&slow])];
    fixture.assert_decides(&[ledger_put(&slow), no_topic, first, no_partition, second], &rows);
    fixture.owner.catalog.insert_pool("slow".to_owned(), usable(1));
    fixture.now = 1_025;
    fixture.assert_decides(&[fixture.fire_emit(&slow), ledger_delete(&slow)], &[]);
}

#[test]
fn a_fire_that_waits_for_its_topic_can_still_be_cancelled() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 900);
    fixture.owner.catalog.insert("out".into(), TopicState::Unavailable("no leader".to_owned()));
    let late = topic_trigger("a", 0, 900);
    let a = postponed(&late, 1_005);
    let emits = [fixture.accepted(&late, None), ledger_put(&a)];
    fixture.assert_decides(&emits, &[put(&a), index("a", &[&a])]);
    fixture.cancel("a");
    let cancelled = fixture.response(1, "a", OutcomeKind::Cancelled { generation: 0 });
    fixture.assert_decides(&[ledger_delete(&a), cancelled], &[delete(&a), index("a", &[])]);
    fixture.now = 1_005;
    fixture.assert_decides(&[], &[]);
}

#[test]
fn only_the_fires_into_a_partition_that_cannot_be_written_wait_and_each_fires_once_when_it_can() {
    let mut fixture = EngineFixture::new();
    let [first, second] = [0, 1].map(|partition| id_of(partition, 2));
    for id in [&first, &second] {
        fixture.register(id, 1_020);
    }
    fixture.run_until_idle();
    fixture.now = 1_020;
    fixture.owner.catalog.insert("out".into(), without(&[1]));
    let a = topic_trigger(&first, 0, 1_020);
    let b = postponed(&topic_trigger(&second, 1, 1_020), 1_025);
    let rows = [put(&b), index(&second, &[&b])];
    fixture.assert_decides(&[fixture.fire_emit(&a), ledger_put(&b)], &rows);
    fixture.now = 1_025;
    let again = postponed(&b, 1_030);
    fixture.assert_decides(&[ledger_put(&again)], &[put(&again), index(&second, &[&again])]);
    fixture.now = 1_030;
    fixture.owner.catalog.insert("out".into(), TopicState::usable(2, 1 << 20));
    fixture.assert_decides(&[fixture.fire_emit(&again), ledger_delete(&again)], &[]);
    fixture.now = 2_000;
    fixture.assert_decides(&[], &[]);
}

#[test]
fn a_fire_that_is_too_large_for_its_topic_does_not_wait_for_its_partition() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_020);
    fixture.run_until_idle();
    fixture.now = 1_020;
    let unavailable = [0].into_iter().collect();
    let small = TopicState::Usable { partitions: 1, record_bytes_max: 1_000, unavailable };
    fixture.owner.catalog.insert("out".into(), small);
    let reason = "a fire of 1026 bytes does not fit topic out, which takes 1000: raise its \
                  max.message.bytes or send less";
    let letter = dead_lettered(&fixture, &topic_trigger("a", 0, 1_020), reason);
    fixture.assert_decides(&letter, &[]);
}

#[test]
fn callbacks_wait_if_the_partition_of_their_step_cannot_be_written_in_the_topic_of_their_pool() {
    let mut fixture = EngineFixture::new();
    // All are callbacks of partition 0.
    for (pool, partition) in [("out", 0), ("other", 1)] {
        fixture.register_as(pooled(pool), pool, 1_020);
        fixture.owner.catalog.insert_pool(pool.to_owned(), without(&[partition]));
    }
    fixture.run_until_idle();
    fixture.now = 1_020;
    let out = postponed(&first_occurrence("out", 0, 1_020, pooled("out")), 1_025);
    let other = first_occurrence("other", 1, 1_020, pooled("other"));
    let rows = [put(&out), index("out", &[&out])];
    fixture.assert_decides(&[ledger_put(&out), fixture.fire_emit(&other)], &rows);
    fixture.now = 1_025;
    fixture.owner.catalog.insert_pool("out".to_owned(), without(&[]));
    fixture.assert_decides(&[fixture.fire_emit(&out), ledger_delete(&out)], &[]);
}

/// A topic of two partitions, of which these cannot be written.
fn without(unavailable: &[PartitionId]) -> TopicState {
    let unavailable = unavailable.iter().copied().collect();
    TopicState::Usable { partitions: 2, record_bytes_max: 1 << 20, unavailable }
}

/// A trigger whose fires belong to this partition of so many.
fn id_of(partition: PartitionId, partitions: i32) -> String {
    let mut ids = (0..).map(|n: u32| format!("trigger-{n}"));
    let is_in_it = |id: &String| murmur2_partition(id.as_bytes(), partitions) == partition;
    ids.find(is_in_it).expect("there is one in each")
}

/// A callback for this pool.
fn pooled(name: &str) -> Definition {
    Definition {
        target: Target::Http(Box::new(HttpTarget {
            pool: Some(name.into()),
            ..HttpTarget::post("http://x/")
        })),
        ..definition(true)
    }
}
