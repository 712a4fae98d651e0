//! Questions about topics.

use orloj_core::engine::catalog::TopicState;
use orloj_core::environment::ClusterQueries;
use orloj_core::environment::call_error::{CallError, CallResult};
use orloj_core::model::text::Text;
use orloj_core::model::{Offset, PartitionId, Timestamp};

use super::{SimulatedProcess, ask, index, suffix, wait_for_leader};
use crate::simulation::cluster::{PARTITIONS, Refusal, SimulatedCluster};
use crate::simulation::fault_kinds::FaultKind;

/// Asks the brokers.
#[derive(Clone)]
pub(in crate::simulation) struct SimulatedQueries(pub(in crate::simulation) SimulatedProcess);

impl ClusterQueries for SimulatedQueries {
    fn bounds(&self, topic: &str, partition: PartitionId) -> CallResult<(Offset, Offset)> {
        self.0.call(|cluster, state| {
            ask(cluster, state)?;
            wait_for_leader(cluster, state, index(partition))?;
            let p = index(partition);
            check_end_is_known(cluster, topic, p)?;
            let (low, end) = cluster.broker.bounds(suffix(topic), p);
            let SimulatedCluster { broker, rng, counts, old_ends, .. } = cluster;
            let old_end = old_ends.iter_mut().find(|(of, _)| **of == (suffix(topic), p));
            if let Some((_, (old, _))) = old_end.filter(|(_, (_, until))| broker.now < *until) {
                counts.add(FaultKind::EndOld);
                let before = *old;
                *old = (before + rng.pick(&[0, 0, 1])).min(end);
                return Ok((low.min(before), before));
            }
            Ok((low, end))
        })
    }

    fn last_stable_offset(&self, topic: &str, partition: PartitionId) -> CallResult<Offset> {
        self.0.call(|cluster, state| {
            ask(cluster, state)?;
            wait_for_leader(cluster, state, index(partition))?;
            check_end_is_known(cluster, topic, index(partition))?;
            let p = index(partition);
            cluster.stable_asked[p] += 1;
            Ok(cluster.broker.stable(suffix(topic), p))
        })
    }

    fn offset_for_time(
        &self,
        topic: &str,
        partition: PartitionId,
        time: Timestamp,
    ) -> CallResult<Offset> {
        self.0.call(|cluster, state| {
            ask(cluster, state)?;
            wait_for_leader(cluster, state, index(partition))?;
            check_end_is_known(cluster, topic, index(partition))?;
            Ok(cluster.broker.offset_for_time(suffix(topic), index(partition), time))
        })
    }

    fn topic_state(&self, topic: &str) -> TopicState {
        self.0.call(|cluster, _| {
            if let Some(max) = cluster.signal_bytes_max {
                return TopicState::usable(partitions(), max);
            }
            if cluster.unavailable.contains(&topic.into()) {
                cluster.counts.add(FaultKind::Postponed);
                TopicState::Unavailable("away".to_owned())
            } else if cluster.refusing.get(&Text::from(topic)) == Some(&Refusal::Rights) {
                TopicState::Unusable("no right to write".to_owned())
            } else {
                cluster.state_by_partition(topic)
            }
        })
    }
}

/// Of every topic of ours.
fn partitions() -> i32 {
    i32::try_from(PARTITIONS).unwrap()
}

/// A new leader that does not know yet how much of its log is committed answers with an error.
fn check_end_is_known(cluster: &SimulatedCluster, topic: &str, p: usize) -> CallResult<()> {
    match cluster.lagging_end(suffix(topic), p) {
        None => Ok(()),
        Some(_) if cluster.another_answers => Ok(()),
        Some(_) => Err(CallError::new("the offset is not available")),
    }
}
