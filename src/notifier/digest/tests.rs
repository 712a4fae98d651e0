//! What a digest promises: counts that are right, and bounds that hold.

use super::samples::{FIRST_AT, callback, circuit, outage, position, record};
use super::*;

#[test]
fn dead_letters_of_one_cause_are_counted_together() {
    let digest = outage();
    let causes: Vec<_> =
        digest.causes.iter().map(|cause| (cause.host.as_deref(), cause.count)).collect();
    assert_eq!(causes, [(Some("api.example.com"), 2), (None, 1)]);
    assert_eq!(digest.causes[0].reason.as_str(), "answered 500");
    assert_eq!((digest.first, digest.last), (Some(FIRST_AT), Some(FIRST_AT + 2_000)));
    let beginnings: Vec<_> =
        digest.first_offsets().map(|(log, offset)| (log.source, offset)).collect();
    assert_eq!(
        beginnings,
        [(NotificationSource::DeadLetters, 40), (NotificationSource::Outcomes, 7)]
    );
}

#[test]
fn a_letter_whose_attempt_was_never_made_has_its_own_reason() {
    let mut letter = callback("a", "h", 500, FIRST_AT);
    letter.reason = "topic orloj.fires.slow does not exist".to_owned();
    let Content::Fire { attempts, .. } = &mut letter.content else { unreachable!() };
    *attempts = 7;
    assert_eq!(reason_of(&letter).as_str(), letter.reason);
}

#[test]
fn a_digest_of_many_failures_stays_small() {
    let mut digest = Digest::default();
    for n in 0..10_000 {
        let host = format!("host-{n}.example.com");
        digest.add_dead_letter(
            &callback(&format!("order-{n}"), &host, 503, FIRST_AT + n),
            position(n),
        );
        digest.add_circuit_change(&circuit(&host, CircuitState::Open), FIRST_AT, position(n));
    }
    assert_eq!(digest.dead_letters, 10_000);
    assert_eq!((digest.causes.len(), digest.other_causes), (CAUSES_MAX, 10_000 - 10));
    assert_eq!((digest.circuits.len(), digest.other_circuits), (CIRCUITS_MAX, 10_000 - 10));
    assert_eq!(digest.examples.len(), EXAMPLES_MAX);
    assert_eq!(digest.first_offsets().count(), 1);
    let json = serde_json::to_vec(&digest).unwrap();
    assert!(json.len() < 8_192, "{} bytes", json.len());
}

#[test]
fn external_text_is_one_line_of_a_bounded_length() {
    let mut digest = Digest::default();
    let hostile = "x\r\nBcc: everyone@example.com\r\n.\r\n".repeat(1_000);
    digest.add_dead_letter(&record(&hostile, &hostile, FIRST_AT), position(0));
    let mut open = circuit(&hostile, CircuitState::Open);
    open.reason.clone_from(&hostile);
    digest.add_circuit_change(&open, FIRST_AT, position(1));
    let texts = [
        digest.causes[0].reason.as_str(),
        digest.examples[0].reason.as_str(),
        digest.examples[0].trigger.as_ref().unwrap().as_str(),
        digest.circuits[0].host.as_str(),
        digest.circuits[0].reason.as_str(),
    ];
    for text in texts {
        assert!(!text.contains(['\r', '\n']) && text.chars().count() <= 300, "{text}");
    }
}

#[test]
fn a_circuit_is_reported_by_its_last_state() {
    let mut digest = Digest::default();
    let host = |digest: &Digest| (digest.circuits[0].opened, digest.circuits[0].closed);
    digest.add_circuit_change(&circuit("h", CircuitState::Closed), 1, position(1));
    assert_eq!(host(&digest), (None, Some(1)));
    digest.add_circuit_change(&circuit("h", CircuitState::Open), 2, position(2));
    assert_eq!(host(&digest), (Some(2), None));
    digest.add_circuit_change(&circuit("h", CircuitState::Closed), 3, position(3));
    assert_eq!(host(&digest), (Some(2), Some(3)));
    assert!(!digest.is_empty() && Digest::default().is_empty());
}
