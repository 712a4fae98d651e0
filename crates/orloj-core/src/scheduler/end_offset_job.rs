//! Questions where the input logs end, and who leads their partitions, beside the loop.
//!
//! Invariant: a job is one question about one log.

use std::collections::BTreeMap;
use std::time::Duration;

use super::partition_task::InputLog;
use crate::environment::job::{Job, JobStep};
use crate::environment::{Clock as _, ClusterQueries as _, Environment};
use crate::model::{BrokerId, Offset, PartitionId};

/// Asks where partitions of a log end that have, as far as is known, the same leader.
pub(super) struct EndOffsetJob<E: Environment> {
    pub(super) cluster: E::Cluster,
    pub(super) clock: E::Clock,
    pub(super) topic: String,
    /// Of the request.
    pub(super) number: u64,
    pub(super) partitions: Vec<PartitionId>,
    pub(super) timeout: Duration,
}

/// The answer to a request.
#[derive(Debug)]
pub(super) struct EndOffsetAnswer {
    /// Of the request.
    pub(super) number: u64,
    /// The end offsets (exclusive); a partition is absent if its end is not known.
    pub(super) ends: BTreeMap<PartitionId, Offset>,
    /// How long the leader took to answer; `None`: it has not answered.
    pub(super) took: Option<Duration>,
}

impl<E: Environment> Job for EndOffsetJob<E> {
    type Output = EndOffsetAnswer;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<EndOffsetAnswer> {
        let (topic, ids) = (&self.topic, &self.partitions);
        let sent_at = self.clock.monotonic();
        let found = self.cluster.end_offsets(topic, ids, self.timeout);
        if let Err(error) = &found {
            tracing::debug!(topic, ?ids, %error, "the end offsets cannot be read");
        }
        let took = found.is_ok().then(|| self.clock.monotonic().saturating_sub(sent_at));
        let ends = found.unwrap_or_default();
        JobStep::Done(EndOffsetAnswer { number: self.number, ends, took })
    }
}

/// Asks who leads the partitions of a log.
pub(super) struct LeadersJob<E: Environment> {
    pub(super) cluster: E::Cluster,
    pub(super) log: InputLog,
    pub(super) topic: String,
}

/// Who leads the partitions of a log; `None`: no broker has answered.
pub(super) type LeadersAnswer = (InputLog, Option<BTreeMap<PartitionId, BrokerId>>);

impl<E: Environment> Job for LeadersJob<E> {
    type Output = LeadersAnswer;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<LeadersAnswer> {
        let leaders = self.cluster.leaders(&self.topic);
        if let Err(error) = &leaders {
            tracing::debug!(topic = self.topic, %error, "the leaders of a topic are not known");
        }
        JobStep::Done((self.log, leaders.ok()))
    }
}
