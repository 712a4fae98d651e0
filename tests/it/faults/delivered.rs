//! What became of callbacks, by the topics and by who received them.

use std::collections::HashMap;
use std::time::Duration;

use orloj::model::outcome::OutcomeKind;
use rdkafka::message::Message as _;

use super::report::FaultFigures;
use crate::audit::{AcknowledgedCommand, AcknowledgedCommands};
use crate::records;
use crate::test_cluster::TestCluster;
use crate::wait::until;

/// How long before its receiver notes it a request was sent at most, in ms: its worker may be dead
/// by then, and known to be.
pub(super) const REQUEST_DELAY_MAX: u64 = 500;

/// A trigger and which attempt of it.
pub(super) type TriggerAttempt = (String, u32);

/// When each trigger was called, in ms since the epoch.
pub(super) type CallTimes = HashMap<String, Vec<u64>>;

/// What an outcome says of an attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttemptOutcome {
    delivered: bool,
    /// The broker's time of its record, in ms since the epoch.
    pub(super) at: u64,
}

/// Waits until each of these callbacks is delivered: by one outcome, and no attempt has another
/// number of outcomes than one.
pub(super) fn delivered_once(
    cluster: &TestCluster,
    commands: &AcknowledgedCommands,
    deadline: Duration,
) -> HashMap<TriggerAttempt, AttemptOutcome> {
    let (outcomes, delivered) = until("every callback to be delivered", deadline, || {
        let outcomes = outcomes(cluster);
        let mut delivered = HashMap::<_, usize>::new();
        for ((trigger, _), outcome) in &outcomes {
            *delivered.entry(trigger.clone()).or_default() += usize::from(outcome.delivered);
        }
        let all = commands.keys().all(|id| delivered.get(id).is_some_and(|times| *times > 0));
        all.then_some((outcomes, delivered))
    });
    let other = commands.keys().find(|id| delivered[*id] != 1);
    assert_eq!(other, None, "it is delivered by another number of outcomes than one");
    outcomes
}

fn outcomes(cluster: &TestCluster) -> HashMap<TriggerAttempt, AttemptOutcome> {
    let mut all = HashMap::new();
    for record in records::read_all(cluster.kafka(), &cluster.names.outcomes()) {
        let outcome = cluster.schemas.decode_outcome(record.payload().unwrap()).unwrap();
        let (attempt, delivered) = match outcome.kind {
            OutcomeKind::Delivered { attempt, .. } => (attempt, true),
            OutcomeKind::Failed { attempt, .. } => (attempt, false),
            _ => continue,
        };
        let ended = AttemptOutcome { delivered, at: records::appended(&record) };
        let attempt = (outcome.trigger.as_str().to_owned(), attempt);
        let other = all.insert(attempt.clone(), ended);
        assert!(other.is_none(), "{attempt:?} has two outcomes: {other:?} and {ended:?}");
    }
    all
}

/// When a trigger was called at first.
pub(super) struct CallLateness {
    pub(super) trigger: String,
    /// How late, in ms.
    pub(super) late: u64,
}

/// How late each trigger was called at first; `first` says when that was, in ms since the epoch.
pub(super) fn lateness(
    commands: &AcknowledgedCommands,
    first: impl Fn(&str) -> u64,
) -> Vec<CallLateness> {
    let late = |(id, commands): (&String, &Vec<AcknowledgedCommand>)| {
        let command = &commands[0];
        let due = command.appended.max(command.registered_due().expect("it was registered"));
        CallLateness { trigger: id.clone(), late: first(id).saturating_sub(due) }
    };
    commands.iter().map(late).collect()
}

pub(super) fn figures(late: &[CallLateness]) -> FaultFigures {
    let mut figures = FaultFigures::default();
    figures.count(late.len(), late.len());
    figures.late(late.iter().map(|call| call.late).collect())
}
