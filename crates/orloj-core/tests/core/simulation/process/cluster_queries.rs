//! Questions about topics.

use std::collections::BTreeMap;
use std::time::Duration;

use orloj_core::engine::catalog::TopicState;
use orloj_core::environment::ClusterQueries;
use orloj_core::environment::call_error::{CallError, CallResult};
use orloj_core::model::text::Text;
use orloj_core::model::{BrokerId, Millis, Offset, PartitionId, Timestamp};

use super::{ProcessState, SimulatedProcess, ask, index, suffix, wait_for_leader};
use crate::simulation::cluster::{BROKERS, PARTITIONS, Refusal, SimulatedCluster};
use crate::simulation::fault_kinds::FaultKind;

/// A timeout of so many ms is one of one ms in the simulation, whose intervals are shorter, too.
const CLOCK_SCALE: Millis = 20;

/// Asks the brokers.
#[derive(Clone)]
pub(in crate::simulation) struct SimulatedQueries(pub(in crate::simulation) SimulatedProcess);

impl ClusterQueries for SimulatedQueries {
    fn bounds(&self, topic: &str, partition: PartitionId) -> CallResult<(Offset, Offset)> {
        self.0.call(|cluster, state| {
            ask(cluster, state)?;
            let p = index(partition);
            wait_for_leader(cluster, state, p)?;
            check_end_is_known(cluster, topic, p)?;
            Ok(bounds_of(cluster, topic, p))
        })
    }

    /// A broker may not know the newest ones.
    fn leaders(&self, _topic: &str) -> CallResult<BTreeMap<PartitionId, BrokerId>> {
        self.0.call(|cluster, state| {
            ask(cluster, state)?;
            let mut leaders: BTreeMap<_, _> = (0..).zip(cluster.leaders).collect();
            leaders.retain(|p, _| cluster.leaderless_partition != Some(index(*p)));
            if !cluster.calm && cluster.rng.one_in(4) {
                cluster.counts.add(FaultKind::LeadersOld);
                let p = i32::try_from(cluster.rng.place(PARTITIONS)).unwrap();
                let _leader = leaders.remove(&p);
                if cluster.rng.one_in(2) {
                    let _none = leaders.insert(p, cluster.rng.pick(&BROKERS));
                }
            }
            Ok(leaders)
        })
    }

    /// The answer to a request to several leaders waits for each of them.
    fn end_offsets(
        &self,
        topic: &str,
        partitions: &[PartitionId],
        timeout: Duration,
    ) -> CallResult<BTreeMap<PartitionId, Offset>> {
        self.0.call(|cluster, state| {
            ask(cluster, state)?;
            for partition in partitions {
                wait_for_silent_leader(cluster, state, index(*partition), timeout)?;
                wait_for_leader(cluster, state, index(*partition))?;
            }
            let mut ends = BTreeMap::new();
            for partition in partitions {
                let p = index(*partition);
                let is_answered = cluster.fail_sometimes().is_ok();
                if is_answered && check_end_is_known(cluster, topic, p).is_ok() {
                    let (_low, end) = bounds_of(cluster, topic, p);
                    let _none = ends.insert(*partition, end);
                }
            }
            Ok(ends)
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

    /// It has no answer now and then, or for a time.
    fn topic_state(&self, topic: &str) -> CallResult<TopicState> {
        self.0.call(|cluster, state| {
            ask(cluster, state)?;
            if let Some(max) = cluster.signal_bytes_max {
                return Ok(TopicState::usable(partitions(), max));
            }
            if cluster.broker.now < cluster.lookups_unanswered_until {
                cluster.counts.add(FaultKind::LookUpUnanswered);
                return Err(CallError::new("no broker answers"));
            }
            Ok(if cluster.unavailable.contains(&topic.into()) {
                cluster.counts.add(FaultKind::Postponed);
                TopicState::Unavailable("away".to_owned())
            } else if cluster.refusing.get(&Text::from(topic)) == Some(&Refusal::Rights) {
                TopicState::Unusable("no right to write".to_owned())
            } else {
                cluster.state_by_partition(topic)
            })
        })
    }
}

/// A request to a leader that answers later than it should, or not before its time is over.
fn wait_for_silent_leader(
    cluster: &mut SimulatedCluster,
    state: &mut ProcessState,
    p: usize,
    timeout: Duration,
) -> CallResult<()> {
    let of_p = cluster.silent_leader.filter(|(leader, _)| *leader == cluster.leaders[p]);
    let Some((_, until)) = of_p.filter(|(_, until)| cluster.broker.now < *until) else {
        return Ok(());
    };
    cluster.counts.add(FaultKind::LeaderSilent);
    let timeout = Millis::try_from(timeout.as_millis()).unwrap() / CLOCK_SCALE;
    let took = state.job_takes.as_mut().expect("a job asks for ends");
    let silent_for = until.saturating_sub(cluster.broker.now + *took);
    *took += silent_for.min(timeout);
    if silent_for < timeout { Ok(()) } else { Err(CallError::new("the leader does not answer")) }
}

/// The bounds of a log as a broker answers them, which may not be its leader any more.
fn bounds_of(cluster: &mut SimulatedCluster, topic: &str, p: usize) -> (Offset, Offset) {
    let (low, end) = cluster.broker.bounds(suffix(topic), p);
    let SimulatedCluster { broker, rng, counts, old_ends, .. } = cluster;
    let old_end = old_ends.iter_mut().find(|(of, _)| **of == (suffix(topic), p));
    if let Some((_, (old, _))) = old_end.filter(|(_, (_, until))| broker.now < *until) {
        counts.add(FaultKind::EndOld);
        let before = *old;
        *old = (before + rng.pick(&[0, 0, 1])).min(end);
        return (low.min(before), before);
    }
    (low, end)
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
