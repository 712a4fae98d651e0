//! How late fires are while another target, or another partition of their target, takes no record.
//!
//! Invariant: only triggers that fire once count where lateness is measured; what is registered
//! late is due when it is written.

use orloj_core::model::fire_id::FireId;
use orloj_core::model::{Millis, Timestamp};

use super::has_lifecycle;
use crate::simulation::broker::{SimulatedEffect, SimulatedTopicFire};
use crate::simulation::cluster::PARTITIONS;
use crate::simulation::fault_kinds::FaultKind;
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

/// Every fire that was delivered into a topic of users, and when it was written, in ms since the
/// epoch.
pub(in crate::simulation) fn fires_into_topics(
    run: &SimulationRun,
) -> impl Iterator<Item = (Timestamp, &SimulatedTopicFire)> {
    let broker = &run.cluster.broker;
    let committed = |p: usize| broker.others[p].committed(&broker.transaction_states);
    (0..PARTITIONS).flat_map(committed).filter_map(|(_, at, sent)| match &sent.effect {
        SimulatedEffect::TopicFire(fire) => Some((at, &**fire)),
        _ => None,
    })
}

/// Counts the fires into other partitions of a topic while one was out, and those into this one
/// that were due meanwhile and have waited for its return.
pub(super) fn count_fires_beside_outages(run: &mut SimulationRun) {
    let (mut beside, mut after) = (0, 0);
    for (at, fire) in fires_into_topics(run) {
        let outages = run.cluster.partition_outages.iter();
        for outage in outages.filter(|outage| outage.topic == *fire.topic) {
            let meanwhile = outage.from..outage.until;
            let is_into_it = outage.partition == fire.partition;
            beside += u64::from(!is_into_it && meanwhile.contains(&at));
            let waited = meanwhile.contains(&fire.scheduled) && at >= outage.until;
            after += u64::from(is_into_it && waited);
        }
    }
    run.cluster.counts.add_many(FaultKind::FiredBesideOutage, beside);
    run.cluster.counts.add_many(FaultKind::FiredAfterOutage, after);
}
