//! The owners of all triggers, as workers see them: they write fires, retries when these are due,
//! and withdrawals.
//!
//! Invariant: a signal that was received before is ignored, and a cancelled trigger is not retried.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use orloj_core::model::definition::{Definition, HttpTarget, Target};
use orloj_core::model::fire::{Fire, Withdrawal};
use orloj_core::model::fire_id::FireId;
use orloj_core::model::retry::RetryPolicy;
use orloj_core::model::signal::{RetryRequest, Signal};
use orloj_core::model::text::Text;
use orloj_core::model::{Offset, Timestamp};

use crate::simulation::broker::{SimulatedEffect, SimulatedOutput, SimulatedSend};
use crate::simulation::cluster::{PARTITIONS, SimulatedCluster, partition_of};

/// Attempts of a trigger in all.
pub(super) const ATTEMPTS_MAX: u32 = 4;
/// A payload with which no signal is taken, in bytes.
const LARGE: usize = 3_000;

/// All owners.
#[derive(Default)]
pub(super) struct Owner {
    triggers: u64,
    /// Where the signals of each partition are read.
    next: [Offset; PARTITIONS],
    /// Which attempts were requested: trigger, attempt and deferral.
    received: BTreeSet<(Text, u32, u32)>,
    /// Retries that wait, by the time they are due.
    due: BTreeMap<(Timestamp, u64), RetryRequest>,
    retries: u64,
    cancelled: BTreeSet<Text>,
    /// Those that may be cancelled, and their generations.
    live: Vec<(Text, Offset)>,
}

impl Owner {
    /// A new trigger fires, or one is cancelled.
    pub(super) fn act(&mut self, cluster: &mut SimulatedCluster) {
        if !self.live.is_empty() && cluster.rng.one_in(6) {
            let place = cluster.rng.place(self.live.len());
            let (trigger, generation) = self.live.swap_remove(place);
            let p = partition_of(trigger.bytes());
            let withdrawal = Withdrawal { trigger: trigger.clone(), cancel: generation + 1 };
            let _new = self.cancelled.insert(trigger);
            write(cluster, p, SimulatedEffect::Withdrawal(withdrawal));
            return;
        }
        self.triggers += 1;
        let trigger: Text = format!("t-{}", self.triggers).as_str().into();
        let generation = self.triggers;
        self.live.push((trigger.clone(), generation));
        let host = cluster.rng.pick(&["http://a/", "http://b/", "http://c/"]);
        let caller = cluster.rng.pick(&[None, Some("slow"), Some("other")]);
        let size = if cluster.rng.one_in(25) { LARGE } else { 10 };
        let retry = RetryPolicy {
            delays: vec![5, 10, 20],
            attempts: Some(ATTEMPTS_MAX),
            ..RetryPolicy::default()
        };
        let now = cluster.broker.now;
        let fire = Fire {
            id: FireId { trigger, generation, occurrence: 0, attempt: 1, deferral: 0 },
            scheduled: now,
            fired: now,
            definition: Definition {
                target: Target::from(HttpTarget::post(host)),
                payload: Some(Bytes::from(vec![b'1'; size])),
                headers: Vec::new(),
                retry: Some(Box::new(retry)),
                caller: caller.map(Text::from),
            },
            history: None,
            report_end: cluster.rng.one_in(3),
            priority: cluster.rng.pick(&[0, 127, 127, 255]),
        };
        let p = partition_of(fire.id.trigger.bytes());
        write(cluster, p, SimulatedEffect::Callback(Box::new(fire)));
    }

    /// Receives signals, and fires what is due.
    pub(super) fn serve(&mut self, cluster: &mut SimulatedCluster) {
        for p in 0..PARTITIONS {
            let states = &cluster.broker.transaction_states;
            let fetch = cluster.broker.signals[p].read(states, self.next[p], 50);
            self.next[p] = fetch.next;
            for (_, _, signal) in fetch.records {
                self.receive(signal);
            }
        }
        while let Some(first) = self.due.first_entry() {
            if first.key().0 > cluster.broker.now {
                return;
            }
            let request = first.remove();
            if self.cancelled.contains(&request.id.trigger) {
                continue;
            }
            let fire = Fire {
                id: request.id,
                scheduled: request.scheduled,
                fired: cluster.broker.now,
                definition: request.definition,
                history: request.history,
                report_end: request.report_end,
                priority: request.priority,
            };
            let p = partition_of(fire.id.trigger.bytes());
            write(cluster, p, SimulatedEffect::Callback(Box::new(fire)));
        }
    }

    fn receive(&mut self, signal: Signal) {
        let Signal::Retry(request) = signal else { return };
        let FireId { trigger, attempt, deferral, .. } = &request.id;
        if self.received.insert((trigger.clone(), *attempt, *deferral)) {
            self.retries += 1;
            let _new = self.due.insert((request.due, self.retries), request);
        }
    }

    /// Whether a trigger was cancelled.
    pub(super) fn has_cancelled(&self, trigger: &Text) -> bool {
        self.cancelled.contains(trigger)
    }

    /// Whether nothing is left to receive or to fire.
    pub(super) fn is_done(&self, cluster: &SimulatedCluster) -> bool {
        let broker = &cluster.broker;
        let has_received = |p: usize| {
            let fetch = broker.signals[p].read(&broker.transaction_states, self.next[p], 1);
            fetch.records.is_empty() && fetch.ended
        };
        self.due.is_empty() && (0..PARTITIONS).all(has_received)
    }
}

fn write(cluster: &mut SimulatedCluster, p: usize, effect: SimulatedEffect) {
    let sent = SimulatedSend::plain(effect, cluster.broker.now);
    let _offset = cluster.broker.write(SimulatedOutput::Fire(p, sent));
}
