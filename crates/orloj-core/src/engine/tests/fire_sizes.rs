//! The size of a fire: one that does not fit its topic is a dead letter.

use super::firing::dead_lettered;
use super::fixture::{EngineFixture, first_occurrence, trigger_to_topic};
use super::harness::definition;
use crate::engine::catalog::TopicState;
use crate::engine::step::Emit;
use crate::model::definition::{Definition, Header};

#[test]
fn a_fire_that_does_not_fit_its_topic_fails_only_its_own_trigger() {
    let mut fixture = EngineFixture::new();
    let fits = |bytes| TopicState::usable(1, bytes);
    // One byte of payload, one of key, 1,024 reserved.
    fixture.owner.catalog.insert("small".into(), fits(1_025));
    fixture.owner.catalog.insert("large".into(), fits(1_026));
    fixture.register_to("small", "a", 1_020);
    fixture.register_to("large", "b", 1_020);
    fixture.run_until_idle();
    let (a, b) =
        (trigger_to_topic("small", "a", 0, 1_020), trigger_to_topic("large", "b", 1, 1_020));
    fixture.now = 1_020;
    let reason = "a fire of 1026 bytes does not fit topic small, which takes 1025: \
                  raise its max.message.bytes or send less";
    let [failed, letter] = dead_lettered(&fixture, &a, reason);
    fixture.assert_decides(&[failed, letter, fixture.fire_emit(&b)], &[]);
}

#[test]
fn fires_wait_for_their_turn_if_their_topic_takes_little_at_once() {
    let mut fixture = EngineFixture::new();
    fixture.budget = 300;
    let small = TopicState::usable(1, 2_000);
    fixture.owner.catalog.insert("small".into(), small);
    for n in 0..200 {
        fixture.register_to("small", &format!("{n:03}"), 1_020);
    }
    fixture.register_to("out", "other", 1_019);
    fixture.run_until_idle();
    // Each fire counts as 132 bytes, and a step has 16,000.
    for (now, count) in [(1_020, 121 + 1), (1_119, 0), (1_120, 79)] {
        fixture.now = now;
        let emits = fixture.step().map(|step| step.emits).unwrap_or_default();
        let fired = emits.iter().filter(|emit| matches!(emit, Emit::ToTopic(_))).count();
        assert_eq!(fired, count, "at {now}");
    }
}

#[test]
fn headers_count_for_the_size_of_a_fire() {
    let mut fixture = EngineFixture::new();
    let fits = TopicState::usable(1, 1_046);
    fixture.owner.catalog.insert("out".into(), fits);
    let header =
        |name: &str, value: &'static [u8]| Header { name: name.into(), value: Some(value.into()) };
    // One byte of payload, one of key, 1,024 reserved, 8 for each header.
    let with_headers = |second: &'static [u8]| Definition {
        headers: vec![header("h", b""), header("i", second)],
        ..definition(false)
    };
    fixture.register_as(with_headers(b"xy"), "a", 1_020);
    fixture.register_as(with_headers(b"xyz"), "b", 1_020);
    fixture.run_until_idle();
    let a = first_occurrence("a", 0, 1_020, with_headers(b"xy"));
    let b = first_occurrence("b", 1, 1_020, with_headers(b"xyz"));
    fixture.now = 1_020;
    let reason = "a fire of 1047 bytes does not fit topic out, which takes 1046: \
                  raise its max.message.bytes or send less";
    let [failed, letter] = dead_lettered(&fixture, &b, reason);
    fixture.assert_decides(&[fixture.fire_emit(&a), failed, letter], &[]);
}
