//! Reads the committed progress of a partition, and the bounds of its log, beside the loop.
//!
//! Invariant: that may take until a dead worker's transaction is undone. The request is repeated
//! until it is answered, or the epoch of the partition has ended. A question that only shows
//! whether the brokers answer is asked once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::environment::call_error::CallResult;
use crate::environment::group::{CommittedOffsets, GroupMembership};
use crate::environment::job::{Job, JobStep};
use crate::environment::{ClusterQueries, ProcessEnvironment};
use crate::model::{Offset, PartitionId};

/// The committed progress of a partition, and the bounds of its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommittedPosition {
    pub(crate) committed: Option<(Offset, String)>,
    /// The first offset that is still in the log.
    pub(crate) low: Offset,
    /// The end of the log: the offset of the next record.
    pub(crate) end: Offset,
}

/// Reads it.
#[derive(Debug)]
pub(crate) struct PositionJob<O, C> {
    pub(crate) offsets: O,
    pub(crate) cluster: C,
    pub(crate) topic: String,
    pub(crate) partition: PartitionId,
    pub(crate) purpose: PositionPurpose,
    pub(crate) timeout: Duration,
    /// Before the request is repeated.
    pub(crate) pause: Duration,
}

/// What it is read for.
#[derive(Debug)]
pub(crate) enum PositionPurpose {
    /// To begin, or to go on with, this epoch, until that has ended. Nothing from this offset on
    /// was read.
    Epoch(u64, Arc<AtomicBool>, Offset),
    /// To see whether the brokers answer.
    Question,
}

/// The job of a worker.
pub(crate) type PositionJobOf<E> = PositionJob<
    <<E as ProcessEnvironment>::Member as GroupMembership>::Offsets,
    <E as ProcessEnvironment>::Cluster,
>;

/// What was read.
#[derive(Debug)]
pub(crate) enum PositionReply {
    /// Of this epoch of the partition, of which nothing from this offset on was read when it was
    /// requested.
    Position(PartitionId, u64, Offset, CommittedPosition),
    /// The epoch has ended.
    Ended,
    /// How the brokers have answered.
    Answer(CallResult<()>),
}

impl<O: CommittedOffsets, C: ClusterQueries> Job for PositionJob<O, C> {
    type Output = PositionReply;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<PositionReply> {
        let partition = self.partition;
        let (epoch, read_end) = match &self.purpose {
            PositionPurpose::Question => {
                return JobStep::Done(PositionReply::Answer(self.read().map(drop)));
            }
            PositionPurpose::Epoch(_, has_ended, _) if has_ended.load(Ordering::SeqCst) => {
                return JobStep::Done(PositionReply::Ended);
            }
            PositionPurpose::Epoch(epoch, _, read_end) => (*epoch, *read_end),
        };
        match self.read() {
            Ok(position) => {
                JobStep::Done(PositionReply::Position(partition, epoch, read_end, position))
            }
            Err(error) => {
                tracing::warn!(partition, %error, "no committed progress; retrying");
                JobStep::Pause(self.pause)
            }
        }
    }
}

impl<O: CommittedOffsets, C: ClusterQueries> PositionJob<O, C> {
    fn read(&self) -> CallResult<CommittedPosition> {
        let (low, end) = self.cluster.bounds(&self.topic, self.partition)?;
        let committed = self.offsets.stable(self.partition, self.timeout)?;
        Ok(CommittedPosition { committed, low, end })
    }
}
