//! Workers: they make callbacks, report failures, and report the end of a callback if the owner
//! requests it.
//!
//! Invariant: a report about a fire is in the same transaction as the offset of the fire; some
//! reports arrive late, and some twice.

use std::collections::{BTreeMap, BTreeSet};

use orloj_core::model::entry::FireId;
use orloj_core::model::fire::Fire;
use orloj_core::model::outcome::{Outcome, OutcomeKind};
use orloj_core::model::signal::{CallbackEnded, RetryRequest, Signal};
use orloj_core::model::{Offset, Timestamp};

use crate::simulation::broker::{SimulatedEffect, SimulatedOutput, SimulatedSend};
use crate::simulation::cluster::{PARTITIONS, SimulatedCluster};
use crate::simulation::fault_kinds::FaultKind;
use crate::simulation::log::SimulatedTransactionState;

/// The producer of workers.
const WORKERS: usize = 91;

/// All workers.
#[derive(Default)]
pub(in crate::simulation) struct Workers {
    /// Where the fires of each partition are read.
    next: [Offset; PARTITIONS],
    /// Fires that were read and not started.
    waiting: [Vec<(Offset, Fire)>; PARTITIONS],
    /// Fires below this offset may have been started by a worker that died.
    doubtful: [Offset; PARTITIONS],
    /// Every fire that was started, and every one that was withdrawn, by partition and offset.
    pub(in crate::simulation) requested: BTreeSet<(usize, Offset)>,
    pub(in crate::simulation) withdrawn: BTreeMap<(usize, Offset), FireId>,
    /// Reports in transit, and when they arrive.
    late: Vec<(Timestamp, usize, Signal)>,
}

impl Workers {
    /// Makes some callbacks of one partition; many fail, and some are withdrawn.
    pub(in crate::simulation) fn work(&mut self, p: usize, cluster: &mut SimulatedCluster) {
        let Ok(producer) = cluster.broker.init(WORKERS) else { return };
        let max = cluster.batch();
        let batch =
            cluster.broker.fires[p].read(&cluster.broker.transaction_states, self.next[p], max);
        let (mut waiting, mut withdrawn) = (self.waiting[p].clone(), Vec::new());
        for (offset, _, sent) in batch.records {
            match sent.effect {
                SimulatedEffect::Callback(fire) => waiting.push((offset, *fire)),
                SimulatedEffect::Withdrawal(withdrawal) => {
                    let known = self.doubtful[p];
                    let matches = |(offset, fire): &mut (Offset, Fire)| {
                        *offset >= known && withdrawal.matches(&fire.id)
                    };
                    withdrawn.extend(waiting.extract_if(.., matches));
                }
                _ => {}
            }
        }
        for (_, fire) in &withdrawn {
            let _open =
                cluster.broker.send(producer, withdrawn_outcome(p, &fire.id, cluster.broker.now));
            if let Some(signal) = ended(fire, false) {
                let _open = cluster.broker.send(producer, SimulatedOutput::Signal(p, signal));
            }
        }
        let started =
            if cluster.calm { waiting.len() } else { cluster.rng.place(waiting.len() + 1) };
        let mut late = Vec::new();
        for (offset, fire) in waiting.drain(..started) {
            self.requested.insert((p, offset));
            let Some(signal) = report(&fire, cluster) else { continue };
            let delay = cluster.rng.pick(&[0, 0, 0, 8, 30, 200]);
            if delay == 0 {
                let _open =
                    cluster.broker.send(producer, SimulatedOutput::Signal(p, signal.clone()));
            } else {
                cluster.counts.add(FaultKind::SignalLate);
                late.push((cluster.broker.now + delay, p, signal.clone()));
            }
            if !cluster.calm && cluster.rng.one_in(10) {
                cluster.counts.add(FaultKind::SignalDoubled);
                late.push((cluster.broker.now + cluster.rng.pick(&[1, 10, 60]), p, signal));
            }
        }
        if !cluster.calm && cluster.rng.one_in(10) {
            // The worker died before it committed: another one makes the same callbacks.
            cluster.counts.add(FaultKind::WorkerAborted);
            let _ended = cluster.broker.end(producer, SimulatedTransactionState::Aborted);
            self.doubtful[p] = self.doubtful[p].max(batch.next);
        } else {
            let _ended = cluster.broker.end(producer, SimulatedTransactionState::Committed);
            cluster.counts.add_many(FaultKind::Withdrawn, withdrawn.len() as u64);
            let withdrawn = withdrawn.into_iter().map(|(offset, fire)| ((p, offset), fire.id));
            self.withdrawn.extend(withdrawn);
            self.waiting[p] = waiting;
            self.next[p] = batch.next;
            self.late.append(&mut late);
        }
        let now = cluster.broker.now;
        for (_, p, signal) in self.late.extract_if(.., |(at, ..)| *at <= now) {
            let _offset = cluster.broker.write(SimulatedOutput::Signal(p, signal));
        }
    }

    /// Whether all fires are processed and all reports written.
    pub(in crate::simulation) fn are_done(&self, cluster: &SimulatedCluster) -> bool {
        let done =
            |p: usize| cluster.broker.fires[p].high() == self.next[p] && self.waiting[p].is_empty();
        self.late.is_empty() && (0..PARTITIONS).all(done)
    }
}

/// The outcome that a worker writes for a withdrawn fire.
fn withdrawn_outcome(p: usize, id: &FireId, now: Timestamp) -> SimulatedOutput {
    let FireId { trigger, generation, occurrence, attempt, .. } = id.clone();
    let kind = OutcomeKind::Withdrawn { generation, occurrence, attempt };
    let outcome = Outcome { trigger, answers: None, request: None, at: now, kind };
    let effect = SimulatedEffect::Outcome(Box::new(outcome));
    SimulatedOutput::Other(p, SimulatedSend::plain(effect, now))
}

/// The report about a callback that is not tried again, if the owner requested one.
fn ended(fire: &Fire, ok: bool) -> Option<Signal> {
    fire.report_end.then(|| Signal::CallbackEnded(CallbackEnded { id: fire.id.clone(), ok }))
}

/// The report after a callback: a request for a retry, or its end.
fn report(fire: &Fire, cluster: &mut SimulatedCluster) -> Option<Signal> {
    let FireId { attempt, deferral, .. } = fire.id;
    let id = match cluster.rng.below(10) {
        0..4 if attempt < 4 => FireId { attempt: attempt + 1, deferral: 0, ..fire.id.clone() },
        4 if deferral < 2 => FireId { deferral: deferral + 1, ..fire.id.clone() },
        last => return ended(fire, attempt < 4 && last < 8),
    };
    Some(Signal::Retry(RetryRequest {
        id,
        due: cluster.broker.now + cluster.rng.pick(&[0, 1, 5, 60, 120]),
        scheduled: fire.scheduled,
        reason: "500".to_owned(),
        definition: fire.definition.clone(),
        history: fire.history.clone(),
        report_end: fire.report_end,
        priority: fire.priority,
    }))
}
