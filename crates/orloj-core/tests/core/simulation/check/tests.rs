//! Tests of the checker: each of its rules complains about a run that breaks it.
//!
//! Invariant: the run is one of the production scheduler, without a finding, before a record of it
//! is changed; the expected finding appears after that.

use std::collections::BTreeMap;
use std::sync::Arc;

use orloj_core::codec::schemas::Schemas;
use orloj_core::model::Offset;
use orloj_core::model::definition::Header;
use orloj_core::model::fire_id::FireId;
use orloj_core::model::outcome::{Outcome, OutcomeKind};
use orloj_core::model::signal::Signal;

use super::{check_run, has_lifecycle, is_forwarded, text};
use crate::audit::{CommandKind, Violation};
use crate::simulation::broker::{SimulatedEffect, SimulatedSend, SimulatedTopicFire};
use crate::simulation::clients::Intent;
use crate::simulation::cluster::{PARTITIONS, partition_of};
use crate::simulation::log::Tampering::{self, Changed, Removed, Repeated};
use crate::simulation::run::SimulationRun;

/// In one of so many seeds a rule complains.
const SEEDS: u64 = 200;

/// Changes something in one run after another, until the checker says so: the violation, and a part
/// of the reason. It does not for each record: what follows may excuse one.
pub(super) fn expect(violation: Violation, why: &str, tamper: impl Fn(&mut SimulationRun) -> bool) {
    let schemas = Arc::new(Schemas::new());
    let mut last = None;
    for seed in 1..=SEEDS {
        let mut run = SimulationRun::new(seed, Arc::clone(&schemas), |_| None);
        run.run_with_faults();
        let at_rest = run.calm();
        // Repetitions are excused there.
        if run.replayed.iter().any(Option::is_some) || !tamper(&mut run) {
            continue;
        }
        let report = check_run(&mut run, Some(at_rest));
        let found = |finding: &crate::audit::report::Finding| {
            finding.violation == violation && finding.why.contains(why)
        };
        if report.findings.iter().any(found) {
            return;
        }
        last = Some((seed, report.to_string()));
    }
    panic!("not found: {violation} {why}; the last run that was changed: {last:?}");
}

/// Changes the first record of a users' topic, of `outcomes` or of `dead-letters`.
pub(super) fn other(
    run: &mut SimulationRun,
    change: impl Fn(&mut SimulatedSend) -> Option<Tampering>,
) -> bool {
    let broker = &mut run.cluster.broker;
    (0..PARTITIONS).any(|p| broker.others[p].tamper(&broker.transaction_states, &change))
}

/// Changes the first record for the workers.
fn callback(
    run: &mut SimulationRun,
    change: impl Fn(&mut SimulatedSend) -> Option<Tampering>,
) -> bool {
    let broker = &mut run.cluster.broker;
    (0..PARTITIONS).any(|p| broker.fires[p].tamper(&broker.transaction_states, &change))
}

pub(super) fn signal(
    run: &mut SimulationRun,
    change: impl Fn(&mut Signal) -> Option<Tampering>,
) -> bool {
    let broker = &mut run.cluster.broker;
    (0..PARTITIONS).any(|p| broker.signals[p].tamper(&broker.transaction_states, &change))
}

/// Changes the first fire into a topic of a trigger whose id begins with `kind`.
pub(super) fn topic_fire(
    run: &mut SimulationRun,
    kind: char,
    change: impl Fn(&mut SimulatedTopicFire) -> Tampering,
) -> bool {
    other(run, |sent| match &mut sent.effect {
        SimulatedEffect::TopicFire(fire) if fire.id.trigger.as_str().starts_with(kind) => {
            Some(change(fire))
        }
        _ => None,
    })
}

/// Changes the first outcome of a trigger whose id begins with `kind`, if `change` wants to.
pub(super) fn outcome(
    run: &mut SimulationRun,
    kind: char,
    change: impl Fn(&mut Outcome) -> Option<Tampering>,
) -> bool {
    other(run, |sent| match &mut sent.effect {
        SimulatedEffect::Outcome(outcome) if outcome.trigger.as_str().starts_with(kind) => {
            change(outcome)
        }
        _ => None,
    })
}

fn is_first(id: &FireId) -> bool {
    id.attempt == 1 && id.deferral == 0
}

#[test]
fn a_fire_into_a_topic_that_is_missing_is_found() {
    expect(Violation::Lost, "neither fired nor stopped", |run| topic_fire(run, 't', |_| Removed));
    expect(Violation::Lost, "ms ago", |run| {
        let last = last_commands(run);
        other(run, |sent| match &sent.effect {
            SimulatedEffect::TopicFire(fire) => {
                (last.get(fire.id.trigger.as_str()) == Some(&fire.id.generation)).then_some(Removed)
            }
            _ => None,
        })
    });
}

/// The offset of the last command of each trigger that fires once and has no lifecycle.
fn last_commands(run: &SimulationRun) -> BTreeMap<String, Offset> {
    let broker = &run.cluster.broker;
    let mut last = BTreeMap::new();
    for p in 0..PARTITIONS {
        for (offset, _, raw) in broker.triggers[p].committed(&broker.transaction_states) {
            let trigger = text(&raw.key);
            if partition_of(&raw.key) == p && !has_lifecycle(&trigger) {
                last.insert(trigger, offset);
            }
        }
    }
    last
}

#[test]
fn a_fire_for_the_workers_that_is_missing_is_found() {
    expect(Violation::Lost, "neither fired nor stopped", |run| {
        callback(run, |sent| match &sent.effect {
            SimulatedEffect::Callback(fire) => {
                let counts = is_first(&fire.id) && fire.id.trigger.as_str().starts_with('t');
                counts.then_some(Removed)
            }
            _ => None,
        })
    });
}

#[test]
fn a_fire_that_is_repeated_is_found() {
    expect(Violation::Duplicate, "2 fires", |run| topic_fire(run, 't', |_| Repeated));
}

#[test]
fn a_fire_that_was_not_registered_is_found() {
    expect(Violation::Unexpected, "occurrence 0", |run| {
        topic_fire(run, 't', |fire| {
            fire.id.generation += 100_000;
            Changed
        })
    });
}

#[test]
fn a_fire_before_its_time_is_found() {
    expect(Violation::Early, "ms early", |run| {
        other(run, |sent| match &sent.effect {
            SimulatedEffect::TopicFire(fire) if fire.id.trigger.as_str().starts_with('t') => {
                sent.clock = fire.scheduled - 1;
                Some(Changed)
            }
            _ => None,
        })
    });
}

#[test]
fn another_payload_or_due_time_is_found() {
    expect(Violation::WrongContent, "registered due", |run| {
        topic_fire(run, 't', |fire| {
            fire.payload.push(b'!');
            Changed
        })
    });
    expect(Violation::WrongContent, "registered due", |run| {
        topic_fire(run, 't', |fire| {
            fire.scheduled -= 1;
            Changed
        })
    });
    expect(Violation::WrongContent, "another payload", |run| {
        topic_fire(run, 'r', |fire| {
            fire.payload.push(b'!');
            Changed
        })
    });
}

#[test]
fn another_topic_key_partition_or_header_is_found() {
    expect(Violation::WrongContent, "fired into topic-9", |run| {
        topic_fire(run, 't', |fire| {
            fire.topic = "topic-9".to_owned();
            Changed
        })
    });
    expect(Violation::WrongContent, "fired with the key", |run| {
        topic_fire(run, 't', |fire| {
            fire.key = b"another".to_vec();
            Changed
        })
    });
    expect(Violation::WrongContent, "fired into topic-", |run| {
        topic_fire(run, 't', |fire| {
            fire.partition += 1;
            Changed
        })
    });
    expect(Violation::WrongContent, "fired with the headers", |run| {
        topic_fire(run, 't', |fire| {
            fire.headers.push(Header { name: "another".into(), value: None });
            Changed
        })
    });
    expect(Violation::WrongContent, "of the workers' topic", |run| {
        callback(run, |sent| match &mut sent.effect {
            SimulatedEffect::Callback(fire) => {
                let p = partition_of(fire.id.trigger.bytes());
                let ids = (0..99).map(|n| format!("t{n}"));
                let other = ids.into_iter().find(|id| partition_of(id.as_bytes()) != p);
                fire.id.trigger = other.unwrap().as_str().into();
                Some(Changed)
            }
            _ => None,
        })
    });
}

#[test]
fn an_answer_that_is_missing_or_repeated_is_found() {
    for kind in ['t', 'c'] {
        expect(Violation::Unanswered, "", |run| {
            outcome(run, kind, |outcome| outcome.answers.map(|_| Removed))
        });
        expect(Violation::Duplicate, "", |run| {
            outcome(run, kind, |outcome| outcome.answers.map(|_| Repeated))
        });
    }
}

#[test]
fn an_answer_that_is_not_true_is_found() {
    for kind in ['t', 'c'] {
        expect(Violation::NotStopped, "answered", |run| {
            outcome(run, kind, |outcome| match &mut outcome.kind {
                OutcomeKind::Accepted { replaced: replaced @ Some(_), .. } => {
                    *replaced = Some(99_999);
                    Some(Changed)
                }
                _ => None,
            })
        });
    }
}

#[test]
fn a_dead_letter_that_is_missing_repeated_or_wrong_is_found() {
    let letter = |run: &mut SimulationRun, tampering| {
        other(run, |sent| {
            matches!(sent.effect, SimulatedEffect::DeadLetter(_)).then_some(tampering)
        })
    };
    expect(Violation::Lost, "0 dead letters", |run| letter(run, Removed));
    expect(Violation::Duplicate, "2 dead letters", |run| letter(run, Repeated));
    expect(Violation::Unexpected, "1 dead letters", |run| {
        let is_unreadable =
            |intent: &Intent| matches!(intent, Intent::Plain(CommandKind::Malformed));
        let Some(serial) = run.users.intents.iter().position(is_unreadable) else { return false };
        run.users.intents[serial] = Intent::Plain(CommandKind::Cancel);
        true
    });
}

#[test]
fn a_copy_in_the_right_partition_that_is_missing_or_repeated_is_found() {
    let copy = |run: &mut SimulationRun, tampering| {
        let broker = &mut run.cluster.broker;
        (0..PARTITIONS).any(|p| {
            broker.triggers[p]
                .tamper(&broker.transaction_states, |raw| is_forwarded(raw).then_some(tampering))
        })
    };
    expect(Violation::Lost, "forwarded 0 times", |run| copy(run, Removed));
    expect(Violation::Duplicate, "forwarded 2 times", |run| copy(run, Repeated));
}

#[test]
fn a_retry_that_is_missing_or_repeated_is_found() {
    let retry = |run: &mut SimulationRun, tampering| {
        callback(run, |sent| match &sent.effect {
            SimulatedEffect::Callback(fire) => (!is_first(&fire.id)).then_some(tampering),
            _ => None,
        })
    };
    // A later attempt excuses an earlier one, and a cancel all of them.
    expect(Violation::Lost, "AttemptKey", |run| {
        let last = last_commands(run);
        let newest = newest_attempts(run);
        callback(run, |sent| match &sent.effect {
            SimulatedEffect::Callback(fire) => {
                let is_last = last.get(fire.id.trigger.as_str()) == Some(&fire.id.generation);
                (is_last && !is_first(&fire.id) && newest.contains(&fire.id)).then_some(Removed)
            }
            _ => None,
        })
    });
    expect(Violation::Duplicate, "2 times", |run| retry(run, Repeated));
    expect(Violation::Unexpected, "was not requested", |run| {
        callback(run, |sent| match &mut sent.effect {
            SimulatedEffect::Callback(fire) if !is_first(&fire.id) => {
                fire.id.attempt += 10;
                Some(Changed)
            }
            _ => None,
        })
    });
}

/// The last attempt of each generation.
fn newest_attempts(run: &SimulationRun) -> Vec<FireId> {
    let broker = &run.cluster.broker;
    let mut newest = BTreeMap::new();
    for p in 0..PARTITIONS {
        for (_, _, sent) in broker.fires[p].committed(&broker.transaction_states) {
            if let SimulatedEffect::Callback(fire) = &sent.effect {
                let key = (fire.id.trigger.as_str().to_owned(), fire.id.generation);
                newest.insert(key, fire.id.clone());
            }
        }
    }
    newest.into_values().collect()
}

#[test]
fn a_callback_that_was_made_and_withdrawn_is_found() {
    expect(Violation::NotStopped, "withdrawn, and requested", |run| {
        let Some(place) = run.workers.withdrawn.keys().next().copied() else { return false };
        run.workers.requested.insert(place);
        true
    });
    expect(Violation::Lost, "withdrawn, and never cancelled", |run| {
        let Some(id) = run.workers.withdrawn.values_mut().next() else { return false };
        id.generation += 100_000;
        true
    });
}

#[test]
fn a_partition_that_is_refused_is_found() {
    expect(Violation::Stuck, "a partition is refused: of a future version", |run| {
        run.unexpected_refusal = Some("of a future version".to_owned());
        true
    });
}

#[test]
fn a_system_that_does_not_become_idle_is_found() {
    let mut run = SimulationRun::new(1, Arc::new(Schemas::new()), |_| None);
    let report = check_run(&mut run, Some(false));
    assert_eq!(report.findings[0].violation, Violation::Stuck, "{report}");
}
