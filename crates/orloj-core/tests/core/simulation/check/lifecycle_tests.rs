//! Tests of the checker: its rules about lifecycles, schedules and dependencies complain.
//!
//! Invariant: as in `tests`.

use std::collections::BTreeSet;

use orloj_core::model::fire_id::FireId;
use orloj_core::model::outcome::OutcomeKind;
use orloj_core::model::signal::Signal;

use super::tests::{expect, other, outcome, signal, topic_fire};
use crate::audit::Violation;
use crate::simulation::broker::{SimulatedEffect, SimulatedTopicFire};
use crate::simulation::clients::{Intent, UserRequest, serial};
use crate::simulation::cluster::PARTITIONS;
use crate::simulation::log::Tampering::{Changed, Removed, Repeated};

#[test]
fn an_occurrence_that_is_missing_or_repeated_is_found() {
    expect(Violation::Unexpected, "this is not the next one", |run| {
        let first = |fire: &SimulatedTopicFire| fire.id.occurrence == 0;
        other(run, |sent| match &sent.effect {
            SimulatedEffect::TopicFire(fire) => {
                (first(fire) && fire.id.trigger.as_str().starts_with('r')).then_some(Removed)
            }
            _ => None,
        })
    });
    expect(Violation::Duplicate, "occurrence", |run| topic_fire(run, 'r', |_| Repeated));
}

#[test]
fn a_wrong_number_of_skipped_occurrences_is_found() {
    expect(Violation::Unexpected, "Skipped", |run| {
        outcome(run, 'r', |outcome| match &mut outcome.kind {
            OutcomeKind::Skipped { occurrences, .. } => {
                *occurrences += 1;
                Some(Changed)
            }
            _ => None,
        })
    });
}

#[test]
fn a_wrong_number_of_executions_is_found() {
    expect(Violation::Unexpected, "Ended", |run| {
        outcome(run, 'r', |outcome| match &mut outcome.kind {
            OutcomeKind::Ended { executions, .. } => {
                *executions += 1;
                Some(Changed)
            }
            _ => None,
        })
    });
}

#[test]
fn a_wrong_next_due_time_is_found() {
    expect(Violation::WrongContent, "answered that it is due", |run| {
        outcome(run, 'c', |outcome| match &mut outcome.kind {
            OutcomeKind::Accepted { fire_at, .. } => {
                *fire_at += 1;
                Some(Changed)
            }
            _ => None,
        })
    });
}

#[test]
fn an_expiry_before_its_time_is_found() {
    expect(Violation::Unexpected, "Expired", |run| {
        outcome(run, 'c', |outcome| match &mut outcome.kind {
            OutcomeKind::Expired { fire_at, .. } => {
                *fire_at += 1_000_000;
                Some(Changed)
            }
            _ => None,
        })
    });
}

#[test]
fn a_stop_that_did_not_stop_is_found() {
    expect(Violation::NotStopped, "was stopped before", |run| {
        // The first fire of a trigger becomes one of the generation that was cancelled before.
        let mut stopped = None;
        let found = outcome(run, 'c', |outcome| match outcome.kind {
            OutcomeKind::Cancelled { .. } if outcome.answers.is_some() => Some(Changed),
            _ => None,
        });
        if !found {
            return false;
        }
        for p in 0..PARTITIONS {
            let broker = &run.cluster.broker;
            for (_, _, sent) in broker.others[p].committed(&broker.transaction_states) {
                match &sent.effect {
                    SimulatedEffect::Outcome(outcome) if outcome.answers.is_some() => {
                        let trigger = outcome.trigger.as_str();
                        if let OutcomeKind::Cancelled { generation } = outcome.kind
                            && trigger.starts_with('c')
                        {
                            stopped = Some((p, trigger.to_owned(), generation));
                        }
                    }
                    _ => {}
                }
            }
        }
        let Some((p, trigger, generation)) = stopped else { return false };
        let broker = &mut run.cluster.broker;
        let mut last = None;
        for (_, at, sent) in broker.others[p].committed(&broker.transaction_states) {
            if matches!(&sent.effect, SimulatedEffect::TopicFire(_)) {
                last = Some((at, sent.clone()));
            }
        }
        let Some((at, mut sent)) = last else { return false };
        if let SimulatedEffect::TopicFire(fire) = &mut sent.effect {
            let trigger = trigger.as_str().into();
            fire.id = FireId { trigger, generation, occurrence: 0, attempt: 1, deferral: 0 };
        }
        sent.order = u64::MAX;
        let _offset = broker.others[p].append(at, None, sent);
        true
    });
}

#[test]
fn a_message_about_a_dependency_that_is_missing_or_not_true_is_found() {
    expect(Violation::Lost, "received no signal", |run| {
        signal(run, |signal| matches!(signal, Signal::DependencySettled(_)).then_some(Removed))
    });
    expect(Violation::Unexpected, "which is not true", |run| {
        signal(run, |signal| match signal {
            Signal::DependencySettled(settled) => {
                settled.ok = !settled.ok;
                Some(Changed)
            }
            _ => None,
        })
    });
}

#[test]
fn a_fire_before_its_dependencies_is_found() {
    expect(Violation::NotStopped, "fired before all of", |run| {
        // Of a trigger that has fired by itself, one that does not exist is awaited.
        let broker = &run.cluster.broker;
        let states = &broker.transaction_states;
        let (mut fired, mut freed) = (Vec::new(), BTreeSet::new());
        for p in 0..PARTITIONS {
            for (_, _, sent) in broker.others[p].committed(states) {
                match &sent.effect {
                    SimulatedEffect::TopicFire(fire)
                        if fire.id.trigger.as_str().starts_with('d') =>
                    {
                        fired.push((p, fire.id.clone()));
                    }
                    SimulatedEffect::Outcome(outcome) => {
                        if let OutcomeKind::Called { generation, .. }
                        | OutcomeKind::Unmet { generation, .. } = &outcome.kind
                        {
                            freed.insert((outcome.trigger.clone(), *generation));
                        }
                    }
                    _ => {}
                }
            }
        }
        fired.retain(|(_, id)| !freed.contains(&(id.trigger.clone(), id.generation)));
        let found = fired.iter().find_map(|(p, id)| {
            let mut all = broker.triggers[*p].committed(states);
            let registered = all.find(|(offset, ..)| *offset == id.generation);
            registered.map(|(_, _, raw)| serial(raw))
        });
        let Some(serial) = found else { return false };
        let Intent::Lifecycle(request) = &mut run.users.intents[serial] else { return false };
        let UserRequest::Register(wanted) = &mut **request else { return false };
        wanted.after = vec!["unknown".to_owned()];
        true
    });
}
