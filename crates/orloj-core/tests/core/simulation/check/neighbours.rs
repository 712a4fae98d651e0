//! How late the fires of other targets are while one target refuses every record.
//!
//! Invariant: only triggers that fire once count; what is registered late is due when it is
//! written.

use orloj_core::model::fire_id::FireId;
use orloj_core::model::{Millis, Timestamp};

use super::has_lifecycle;
use crate::simulation::broker::SimulatedEffect;
use crate::simulation::cluster::PARTITIONS;
use crate::simulation::run::SimulationRun;

/// When every fire that was delivered was due, in ms since the epoch, and how late it was, in ms.
pub(in crate::simulation) fn lateness_of_fires(run: &SimulationRun) -> Vec<(Timestamp, Millis)> {
    let broker = &run.cluster.broker;
    let states = &broker.transaction_states;
    let mut lateness = Vec::new();
    for p in 0..PARTITIONS {
        let registered = |id: &FireId| {
            let mut records = broker.triggers[p].committed(states);
            records.find(|(offset, ..)| *offset == id.generation).map(|(_, at, _)| at)
        };
        let outputs = [&broker.fires[p], &broker.others[p]];
        for (_, at, sent) in outputs.into_iter().flat_map(|log| log.committed(states)) {
            let (id, due) = match &sent.effect {
                SimulatedEffect::TopicFire(fire) => (&fire.id, fire.scheduled),
                SimulatedEffect::Callback(fire) => (&fire.id, fire.scheduled),
                _ => continue,
            };
            if id.attempt > 1 || id.deferral > 0 || has_lifecycle(id.trigger.as_str()) {
                continue;
            }
            let due = due.max(registered(id).expect("it was registered"));
            lateness.push((due, at.saturating_sub(due)));
        }
    }
    lateness
}
