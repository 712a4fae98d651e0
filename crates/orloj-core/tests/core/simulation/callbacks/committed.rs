//! What is committed about all fires of a run.
//!
//! Invariant: everything is counted, so that what is committed twice differs from what is committed
//! once.

use std::collections::{BTreeMap, BTreeSet};

use orloj_core::model::Timestamp;
use orloj_core::model::dead_letter::Content;
use orloj_core::model::fire_id::FireId;
use orloj_core::model::outcome::{Outcome, OutcomeKind};
use orloj_core::model::signal::Signal;
use orloj_core::model::text::Text;

use super::run::CallbackRun;
use crate::simulation::broker::{SimulatedBroker, SimulatedEffect, SimulatedSend};
use crate::simulation::cluster::PARTITIONS;

/// Begins the reason of a dead letter and of an outcome if it is not known whether a callback was
/// made.
const UNKNOWN: &str = "it is not known";

/// An attempt: its trigger and its number. Each of its deferrals is a fire of its own.
pub(super) type AttemptKey = (Text, u32);

/// How the fires of an attempt have ended.
#[derive(Debug, Default)]
pub(super) struct AttemptEnds {
    /// How many there are.
    pub(super) fires: u64,
    /// How many of them the log has deleted, delivered or not.
    pub(super) deleted: u64,
    /// Their owner requests to be notified.
    pub(super) reports_end: bool,
    /// When each result of a request was committed, if that is known.
    pub(super) answered: Vec<Option<Timestamp>>,
    pub(super) delivered: u64,
    /// Failed, with another attempt.
    pub(super) retried: u64,
    /// Failed for good, those of unknown delivery included.
    pub(super) given_up: u64,
    pub(super) unknown: u64,
    pub(super) withdrawn: u64,
    pub(super) deferred: u64,
    /// Dead letters: of all that are given up, and of deferrals that `signals` has refused.
    pub(super) letters: u64,
    /// How often the owner was notified of a success, and of a failure.
    pub(super) notified: (u64, u64),
}

impl AttemptEnds {
    /// How many fires have ended.
    pub(super) fn count(&self) -> u64 {
        self.delivered + self.retried + self.withdrawn + self.deferred + self.letters
    }
}

/// What is committed about all fires.
#[derive(Default)]
pub(super) struct Committed {
    pub(super) ends: BTreeMap<AttemptKey, AttemptEnds>,
    /// Trigger, attempt and deferral of each fire.
    pub(super) fired: BTreeSet<(Text, u32, u32)>,
    /// How often each retry and deferral was asked for: trigger, attempt and deferral.
    pub(super) signals: BTreeMap<(Text, u32, u32), u64>,
    pub(super) refused: u64,
    pub(super) unknown: u64,
}

/// Reads it from the logs.
pub(super) fn committed(run: &CallbackRun) -> Committed {
    let (broker, mut all) = (&run.cluster.broker, Committed::default());
    let states = &broker.transaction_states;
    for p in 0..PARTITIONS {
        for (offset, _, sent) in broker.fires[p].committed(states) {
            if let SimulatedEffect::Callback(fire) = &sent.effect {
                let FireId { trigger, attempt, deferral, .. } = fire.id.clone();
                let ends = all.ends_of(&trigger, attempt);
                (ends.fires, ends.reports_end) = (ends.fires + 1, fire.report_end);
                ends.deleted += u64::from(offset < broker.fires[p].low);
                let _new = all.fired.insert((trigger, attempt, deferral));
            }
        }
        for (_, _, signal) in broker.signals[p].committed(states) {
            all.add_signal(signal);
        }
        for (_, _, sent) in broker.others[p].committed(states) {
            all.add_other(broker, sent);
        }
    }
    all
}

impl Committed {
    fn ends_of(&mut self, trigger: &Text, attempt: u32) -> &mut AttemptEnds {
        self.ends.entry((trigger.clone(), attempt)).or_default()
    }

    fn add_signal(&mut self, signal: &Signal) {
        match signal {
            Signal::Retry(request) => {
                let FireId { trigger, attempt, deferral, .. } = request.id.clone();
                self.ends_of(&trigger, attempt).deferred += u64::from(deferral > 0);
                *self.signals.entry((trigger, attempt, deferral)).or_default() += 1;
            }
            Signal::CallbackEnded(ended) => {
                let notified = &mut self.ends_of(&ended.id.trigger, ended.id.attempt).notified;
                let counted = if ended.ok { &mut notified.0 } else { &mut notified.1 };
                *counted += 1;
            }
            _ => {}
        }
    }

    fn add_other(&mut self, broker: &SimulatedBroker, sent: &SimulatedSend) {
        match &sent.effect {
            SimulatedEffect::Outcome(outcome) => {
                self.add_outcome(outcome, broker.committed_at(sent));
            }
            SimulatedEffect::DeadLetter(letter) => {
                let Content::Fire { fire, .. } = &letter.content else { return };
                self.unknown += u64::from(letter.reason.starts_with(UNKNOWN));
                self.refused += u64::from(letter.reason.contains("no topic takes"));
                self.ends_of(&fire.id.trigger, fire.id.attempt).letters += 1;
            }
            _ => {}
        }
    }

    fn add_outcome(&mut self, outcome: &Outcome, at: Option<Timestamp>) {
        let trigger = &outcome.trigger;
        match &outcome.kind {
            OutcomeKind::Delivered { attempt, .. } => {
                let ends = self.ends_of(trigger, *attempt);
                ends.answered.push(at);
                ends.delivered += 1;
            }
            OutcomeKind::Failed { attempt, retry_at, reason, .. } => {
                let ends = self.ends_of(trigger, *attempt);
                if reason.starts_with(UNKNOWN) {
                    ends.unknown += 1;
                } else {
                    ends.answered.push(at);
                }
                let counted =
                    if retry_at.is_some() { &mut ends.retried } else { &mut ends.given_up };
                *counted += 1;
            }
            OutcomeKind::Withdrawn { attempt, .. } => {
                self.ends_of(trigger, *attempt).withdrawn += 1;
            }
            _ => {}
        }
    }
}
