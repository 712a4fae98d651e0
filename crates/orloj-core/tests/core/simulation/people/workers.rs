//! Workers: they make callbacks, report what failed, and say how it ended if the owner wants to
//! know.
//!
//! Invariant: what one of them says of a fire stands in the transaction of its progress; a part of
//! it arrives late, and a part of it twice.

use std::collections::{BTreeMap, BTreeSet};

use orloj_core::engine::step::Emit;
use orloj_core::fault::{Mutation, is_active};
use orloj_core::model::entry::FireId;
use orloj_core::model::fire::Fire;
use orloj_core::model::outcome::{Outcome, OutcomeKind};
use orloj_core::model::signal::{CallbackEnded, RetryRequest, Signal};
use orloj_core::model::{Offset, Timestamp};

use crate::simulation::broker::{SimulatedOutput, SimulatedSend};
use crate::simulation::calamity::Calamity;
use crate::simulation::log::SimulatedTransactionState;
use crate::simulation::site::{PARTITIONS, SimulatedCluster};

/// The producer of workers.
const WORKERS: usize = 91;

/// Everyone who makes callbacks.
#[derive(Default)]
pub(in crate::simulation) struct Workers {
    /// Where the fires of each partition are read.
    next: [Offset; PARTITIONS],
    /// What was read there and not begun.
    waiting: [Vec<(Offset, Fire)>; PARTITIONS],
    /// What lies below may have been begun by one who died.
    doubtful: [Offset; PARTITIONS],
    /// Every fire that was ever begun, and every one that was withdrawn, by partition and offset.
    pub(in crate::simulation) requested: BTreeSet<(usize, Offset)>,
    pub(in crate::simulation) withdrawn: BTreeMap<(usize, Offset), FireId>,
    /// Reports that are on their way, and when they arrive.
    late: Vec<(Timestamp, usize, Signal)>,
}

impl Workers {
    /// Makes some callbacks of one partition; many fail, and some are withdrawn.
    pub(in crate::simulation) fn work(&mut self, p: usize, site: &mut SimulatedCluster) {
        let max = site.batch();
        let batch = site.broker.fires[p].read(&site.broker.fates, self.next[p], max);
        let producer = site.broker.init(WORKERS);
        let (mut waiting, mut withdrawn) = (self.waiting[p].clone(), Vec::new());
        for (offset, _, sent) in batch.records {
            match sent.emit {
                Emit::ToWorker(fire) => waiting.push((offset, *fire)),
                Emit::Withdraw { withdrawal, .. } => {
                    let known = if is_active(Mutation::StartedCallbackWithdrawn) {
                        0
                    } else {
                        self.doubtful[p]
                    };
                    let meant = |(offset, fire): &mut (Offset, Fire)| {
                        *offset >= known && withdrawal.matches(&fire.id)
                    };
                    withdrawn.extend(waiting.extract_if(.., meant));
                }
                _ => {}
            }
        }
        for (_, fire) in &withdrawn {
            let _open = site.broker.send(producer, told(p, &fire.id, site.broker.now));
            if let Some(signal) = ended(fire, false) {
                let _open = site.broker.send(producer, SimulatedOutput::Signal(p, signal));
            }
        }
        let begun = if site.calm { waiting.len() } else { site.dice.place(waiting.len() + 1) };
        let mut late = Vec::new();
        for (offset, fire) in waiting.drain(..begun) {
            self.requested.insert((p, offset));
            let Some(signal) = report(&fire, site) else { continue };
            let delay = site.dice.pick(&[0, 0, 0, 8, 30, 200]);
            if delay == 0 {
                let _open = site.broker.send(producer, SimulatedOutput::Signal(p, signal.clone()));
            } else {
                site.counts.add(Calamity::SignalLate);
                late.push((site.broker.now + delay, p, signal.clone()));
            }
            if !site.calm && site.dice.one_in(10) {
                site.counts.add(Calamity::SignalDoubled);
                late.push((site.broker.now + site.dice.pick(&[1, 10, 60]), p, signal));
            }
        }
        if !site.calm && site.dice.one_in(10) {
            // It died before it had committed: another one makes the same callbacks.
            site.counts.add(Calamity::WorkerAborted);
            let _ended = site.broker.end(producer, SimulatedTransactionState::Aborted);
            self.doubtful[p] = self.doubtful[p].max(batch.next);
        } else {
            let _ended = site.broker.end(producer, SimulatedTransactionState::Committed);
            site.counts.add_many(Calamity::Withdrawn, withdrawn.len() as u64);
            let withdrawn = withdrawn.into_iter().map(|(offset, fire)| ((p, offset), fire.id));
            self.withdrawn.extend(withdrawn);
            self.waiting[p] = waiting;
            self.next[p] = batch.next;
            self.late.append(&mut late);
        }
        let now = site.broker.now;
        for (_, p, signal) in self.late.extract_if(.., |(at, ..)| *at <= now) {
            let _offset = site.broker.write(SimulatedOutput::Signal(p, signal));
        }
    }

    /// Whether all fires are worked off and all reports written.
    pub(in crate::simulation) fn are_done(&self, site: &SimulatedCluster) -> bool {
        let done =
            |p: usize| site.broker.fires[p].high() == self.next[p] && self.waiting[p].is_empty();
        self.late.is_empty() && (0..PARTITIONS).all(done)
    }
}

/// What a worker says of a fire that it will not make.
fn told(p: usize, id: &FireId, now: Timestamp) -> SimulatedOutput {
    let FireId { trigger, generation, occurrence, attempt, .. } = id.clone();
    let verdict = OutcomeKind::Withdrawn { generation, occurrence, attempt };
    let emit = Emit::Outcome(Box::new(Outcome { trigger, answers: None, at: now, kind: verdict }));
    SimulatedOutput::Other(p, SimulatedSend::plain(emit, now))
}

/// What a worker says of a callback that nobody will try again, if it is asked to.
fn ended(fire: &Fire, ok: bool) -> Option<Signal> {
    fire.report_end.then(|| Signal::CallbackEnded(CallbackEnded { id: fire.id.clone(), ok }))
}

/// What a worker says after a callback: it has failed and is to be tried again, or it has ended.
fn report(fire: &Fire, site: &mut SimulatedCluster) -> Option<Signal> {
    let FireId { attempt, deferral, .. } = fire.id;
    let id = match site.dice.roll(10) {
        0..4 if attempt < 4 => FireId { attempt: attempt + 1, deferral: 0, ..fire.id.clone() },
        4 if deferral < 2 => FireId { deferral: deferral + 1, ..fire.id.clone() },
        last => return ended(fire, attempt < 4 && last < 8),
    };
    Some(Signal::Retry(RetryRequest {
        id,
        due: site.broker.now + site.dice.pick(&[0, 1, 5, 60, 120]),
        scheduled: fire.scheduled,
        reason: "500".to_owned(),
        definition: fire.definition.clone(),
        history: fire.history.clone(),
        report_end: fire.report_end,
        priority: fire.priority,
    }))
}
