//! Questions where the input logs end, and who leads their partitions, beside the loop.
//!
//! Invariant: a job is one question about one log. The time of a question about ends, and what is
//! known of the partitions, are of the moment when it was submitted, and its answer has every
//! partition that it was about.

use std::collections::BTreeMap;
use std::time::Duration;

use super::partition_task::InputLog;
use crate::environment::job::{Job, JobStep};
use crate::environment::{Clock as _, ClusterQueries as _, Environment};
use crate::model::{BrokerId, Offset, PartitionId, Timestamp};

/// What the reader knows of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KnownLog {
    /// Everything below this offset was read.
    pub(super) read_until: Offset,
    /// The log was at least so long, as its leader said since reading was last started; `None`: it
    /// has said nothing.
    pub(super) end: Option<Offset>,
}

/// The end offset of a partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogEnd {
    pub(super) log: InputLog,
    pub(super) partition: PartitionId,
    /// The end offset (exclusive); `None` if the request failed.
    pub(super) end: Option<Offset>,
    /// When the request was submitted, in ms since the epoch.
    pub(super) at: Timestamp,
    /// What was known of the log then.
    pub(super) known: KnownLog,
    /// The takeovers of the partition until then.
    pub(super) takeovers: u64,
}

/// A partition, and what was known of it before its end was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct AskedPartition {
    pub(super) partition: PartitionId,
    pub(super) known: KnownLog,
    pub(super) takeovers: u64,
}

/// Asks where partitions of a log end that have, as far as is known, the same leader.
pub(super) struct EndOffsetJob<E: Environment> {
    pub(super) cluster: E::Cluster,
    pub(super) clock: E::Clock,
    pub(super) log: InputLog,
    pub(super) topic: String,
    /// When it was submitted, in ms since the epoch: what is written later proves nothing.
    pub(super) at: Timestamp,
    /// Of the request.
    pub(super) number: u64,
    pub(super) partitions: Vec<AskedPartition>,
    pub(super) timeout: Duration,
}

/// The ends of the partitions of a request.
#[derive(Debug)]
pub(super) struct EndOffsetAnswer {
    /// Of the request.
    pub(super) number: u64,
    pub(super) ends: Vec<LogEnd>,
    /// How long the leader took to answer; `None`: it has not answered.
    pub(super) took: Option<Duration>,
}

impl<E: Environment> Job for EndOffsetJob<E> {
    type Output = EndOffsetAnswer;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<EndOffsetAnswer> {
        let (log, topic, at) = (self.log, &self.topic, self.at);
        let sent_at = self.clock.monotonic();
        let ids: Vec<_> = self.partitions.iter().map(|asked| asked.partition).collect();
        let found = self.cluster.end_offsets(topic, &ids, self.timeout);
        if let Err(error) = &found {
            tracing::debug!(topic, ?ids, %error, "the end offsets cannot be read");
        }
        let took = found.is_ok().then(|| self.clock.monotonic().saturating_sub(sent_at));
        let found = found.unwrap_or_default();
        let end_of = |asked: &AskedPartition| {
            let AskedPartition { partition, known, takeovers } = *asked;
            let end = found.get(&partition).copied();
            LogEnd { log, partition, end, at, known, takeovers }
        };
        let ends = self.partitions.iter().map(end_of).collect();
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
