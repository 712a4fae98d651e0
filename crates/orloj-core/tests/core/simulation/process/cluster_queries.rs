//! Questions about topics.

use orloj_core::engine::catalog::TopicState;
use orloj_core::environment::ClusterQueries;
use orloj_core::environment::call_error::{CallError, CallResult};
use orloj_core::fault::{Mutation, is_active};
use orloj_core::model::{Offset, PartitionId, Timestamp};

use super::{SimulatedProcess, index, suffix, wait_for_leader};
use crate::simulation::cluster::{SimulatedCluster, partitions_of_target};
use crate::simulation::fault_kinds::FaultKind;

/// Asks the brokers.
#[derive(Clone)]
pub(in crate::simulation) struct SimulatedQueries(pub(in crate::simulation) SimulatedProcess);

impl ClusterQueries for SimulatedQueries {
    fn bounds(&self, topic: &str, partition: PartitionId) -> CallResult<(Offset, Offset)> {
        self.0.call(|cluster, state| {
            cluster.fail_sometimes()?;
            wait_for_leader(cluster, state, index(partition))?;
            let p = index(partition);
            check_end_is_known(cluster, topic, p)?;
            let (low, end) = cluster.broker.bounds(suffix(topic), p);
            // What a read_committed handle calls the end hides what is not decided yet.
            if is_active(Mutation::ReadCommittedEndOffset) && suffix(topic) == "triggers" {
                return Ok((low, cluster.broker.stable("triggers", p)));
            }
            if let (Some(old), until) = cluster.old_ends[p]
                && suffix(topic) == "signals"
                && cluster.broker.now < until
            {
                cluster.counts.add(FaultKind::EndOld);
                let grown = old + cluster.rng.pick(&[0, 0, 1]);
                cluster.old_ends[p].0 = Some(grown.min(end));
                return Ok((low.min(old), old));
            }
            Ok((low, end))
        })
    }

    fn last_stable_offset(&self, topic: &str, partition: PartitionId) -> CallResult<Offset> {
        self.0.call(|cluster, state| {
            cluster.fail_sometimes()?;
            wait_for_leader(cluster, state, index(partition))?;
            check_end_is_known(cluster, topic, index(partition))?;
            Ok(cluster.broker.stable(suffix(topic), index(partition)))
        })
    }

    fn offset_for_time(
        &self,
        topic: &str,
        partition: PartitionId,
        time: Timestamp,
    ) -> CallResult<Offset> {
        self.0.call(|cluster, state| {
            cluster.fail_sometimes()?;
            wait_for_leader(cluster, state, index(partition))?;
            check_end_is_known(cluster, topic, index(partition))?;
            Ok(cluster.broker.offset_for_time(suffix(topic), index(partition), time))
        })
    }

    fn topic_state(&self, topic: &str) -> TopicState {
        self.0.call(|cluster, _| {
            if cluster.unavailable.contains(&topic.into()) {
                cluster.counts.add(FaultKind::Postponed);
                TopicState::Unavailable("away".to_owned())
            } else {
                let partitions = partitions_of_target(topic);
                TopicState::Usable { partitions, record_bytes_max: 1 << 20 }
            }
        })
    }
}

/// A new leader that does not know yet how much of its log is committed answers with an error.
fn check_end_is_known(cluster: &SimulatedCluster, topic: &str, p: usize) -> CallResult<()> {
    match cluster.lagging_end(suffix(topic), p) {
        None => Ok(()),
        Some(_) => Err(CallError::new("the offset is not available")),
    }
}
