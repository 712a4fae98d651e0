//! What the logs say about triggers with a lifecycle, by trigger: what was requested, and the
//! owner's outcomes and fires in their order.
//!
//! Invariant: it contains only what a `read_committed` reader could see, except for the order in
//! which one owner's records in different topics were decided.

use std::collections::BTreeMap;

use orloj_core::model::entry::FireId;
use orloj_core::model::outcome::Outcome;
use orloj_core::model::signal::{CallbackEnded, Signal};
use orloj_core::model::{Offset, Timestamp};

use super::{has_lifecycle, is_forwarded, text};
use crate::simulation::broker::{SimulatedDecidedOffsets, SimulatedEffect, SimulatedSend};
use crate::simulation::clients::{Intent, UserRequest, serial};
use crate::simulation::cluster::{PARTITIONS, partition_of};
use crate::simulation::run::SimulationRun;

/// The history of each trigger.
pub(super) type TriggerHistories<'a> = BTreeMap<String, TriggerHistory<'a>>;

/// The history of one trigger.
#[derive(Default)]
pub(super) struct TriggerHistory<'a> {
    /// The requests, by offset.
    pub(super) requests: BTreeMap<Offset, SimulatedRequest<'a>>,
    /// In the order in which it was decided.
    pub(super) events: Vec<SimulatedEvent<'a>>,
    /// Workers' reports of how its callbacks ended, in the order in which they are read.
    pub(super) settled: Vec<CallbackReport<'a>>,
    /// Later events may be repetitions: an operator requested a replay.
    pub(super) repeated: bool,
}

/// A record of `triggers`.
pub(super) struct SimulatedRequest<'a> {
    pub(super) request: &'a UserRequest,
    /// What it counts from, in ms since the epoch: the timestamp of its first appearance.
    pub(super) at: Timestamp,
}

/// Something that an owner decided.
pub(super) struct SimulatedEvent<'a> {
    pub(super) order: u64,
    /// When it was written, by the broker's clock, in ms since the epoch.
    pub(super) appended: Timestamp,
    /// The latest time that the owner's clock had shown.
    pub(super) clock: Timestamp,
    /// What the clock showed when it committed that.
    pub(super) committed: Timestamp,
    /// What was decided before the step.
    pub(super) before: SimulatedDecidedOffsets,
    /// What was decided after it.
    pub(super) after: SimulatedDecidedOffsets,
    pub(super) what: EventKind<'a>,
}

pub(super) enum EventKind<'a> {
    Outcome(&'a Outcome),
    Fired(FirstAttempt),
}

/// The first attempt of an occurrence.
pub(super) struct FirstAttempt {
    pub(super) id: FireId,
    pub(super) scheduled: Timestamp,
    /// When the owner decided it, by its clock; of a callback only.
    pub(super) decided: Timestamp,
    pub(super) payload: Vec<u8>,
    pub(super) http: bool,
    /// Whether a worker reports its end.
    pub(super) settles: bool,
}

/// A worker's report of how a callback ended.
pub(super) struct CallbackReport<'a> {
    pub(super) offset: Offset,
    pub(super) appended: Timestamp,
    pub(super) settled: &'a CallbackEnded,
}

pub(super) fn collect(run: &SimulationRun) -> TriggerHistories<'_> {
    let mut histories = TriggerHistories::new();
    for p in 0..PARTITIONS {
        collect_inputs(run, p, &mut histories);
        collect_outputs(run, p, &mut histories);
    }
    for (trigger, history) in &mut histories {
        history.events.sort_by_key(|event| event.order);
        let Some(asked) = run.replayed[partition_of(trigger.as_bytes())] else { continue };
        if history.requests.keys().any(|offset| asked.repeats(*offset)) {
            history.repeated = true;
            history.events.retain(|event| event.order <= asked.since);
        }
    }
    histories
}

fn collect_inputs<'a>(run: &'a SimulationRun, p: usize, histories: &mut TriggerHistories<'a>) {
    let broker = &run.cluster.broker;
    for (offset, appended, raw) in broker.triggers[p].committed(&broker.transaction_states) {
        let Intent::Lifecycle(request) = &run.users.intents[serial(raw)] else { continue };
        if partition_of(&raw.key) != p && !is_forwarded(raw) {
            continue;
        }
        let at = run.cluster.reader.read(p, offset, appended, raw).timestamp;
        let history = histories.entry(text(&raw.key)).or_default();
        let _first = history.requests.insert(offset, SimulatedRequest { request, at });
    }
    for (offset, appended, signal) in broker.signals[p].committed(&broker.transaction_states) {
        let Signal::CallbackEnded(settled) = signal else { continue };
        let trigger = settled.id.trigger.as_str();
        if has_lifecycle(trigger) {
            let history = histories.entry(trigger.to_owned()).or_default();
            history.settled.push(CallbackReport { offset, appended, settled });
        }
    }
}

fn collect_outputs<'a>(run: &'a SimulationRun, p: usize, histories: &mut TriggerHistories<'a>) {
    let broker = &run.cluster.broker;
    let outputs = [&broker.fires[p], &broker.others[p]];
    for (_, appended, sent) in
        outputs.into_iter().flat_map(|log| log.committed(&broker.transaction_states))
    {
        let Some((trigger, what)) = event_of(sent) else { continue };
        if has_lifecycle(&trigger) {
            let SimulatedSend { order, clock, .. } = *sent;
            let [before, after] = broker.decided(p, sent);
            let committed = broker.committed_at(sent).unwrap_or(Timestamp::MAX);
            let event = SimulatedEvent { order, appended, clock, committed, before, after, what };
            histories.entry(trigger).or_default().events.push(event);
        }
    }
}

/// The event of a record that an owner sent, if it is about the lifecycle of a trigger.
fn event_of(sent: &SimulatedSend) -> Option<(String, EventKind<'_>)> {
    let attempt = match &sent.effect {
        SimulatedEffect::Outcome(outcome) if sent.takeover_number > 0 => {
            return Some((outcome.trigger.as_str().to_owned(), EventKind::Outcome(outcome)));
        }
        SimulatedEffect::Callback(fire) => FirstAttempt {
            id: fire.id.clone(),
            scheduled: fire.scheduled,
            decided: fire.fired,
            payload: fire.definition.payload.as_deref().unwrap_or_default().to_vec(),
            http: true,
            settles: fire.report_end,
        },
        SimulatedEffect::TopicFire(fire) => FirstAttempt {
            id: fire.id.clone(),
            scheduled: fire.scheduled,
            decided: 0,
            payload: fire.payload.clone(),
            http: false,
            settles: false,
        },
        _ => return None,
    };
    let first = attempt.id.attempt == 1 && attempt.id.deferral == 0;
    first.then(|| (attempt.id.trigger.as_str().to_owned(), EventKind::Fired(attempt)))
}
