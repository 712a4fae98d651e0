//! Reads the committed offset of a partition for its takeover.
//!
//! Invariant: the request may block while a transaction of an earlier owner is open, so it runs
//! beside the loop. A timeout means that the offset is not known yet, not that there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::engine::takeover::PartitionOffsets;
use crate::environment::call_error::CallResult;
use crate::environment::group::{CommittedOffsets as _, GroupMembership};
use crate::environment::job::{Job, JobStep};
use crate::environment::{ClusterQueries as _, Environment};
use crate::model::PartitionId;
use crate::model::names::Names;

/// Timeout of a request after the first one.
const COMMITTED_OFFSET_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of the first request. Without an open transaction the answer takes less.
const FIRST_COMMITTED_OFFSET_TIMEOUT: Duration = Duration::from_millis(150);
/// Pause between two requests.
const REQUEST_PAUSE: Duration = Duration::from_millis(50);

/// Reads the committed offset of one partition for one takeover. Repeats the request until it
/// succeeds or is cancelled.
pub(super) struct CommittedOffsetJob<E: Environment> {
    pub(super) partition: PartitionId,
    /// Of the takeover.
    pub(super) nonce: u64,
    pub(super) offsets: <E::Member as GroupMembership>::Offsets,
    pub(super) cluster: E::Cluster,
    pub(super) names: Names,
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) timeout: Duration,
}

/// A committed offset, and the takeover that asked for it.
#[derive(Debug)]
pub(super) struct CommittedOffsetReply {
    pub(super) partition: PartitionId,
    pub(super) nonce: u64,
    /// `None`: the request was cancelled.
    pub(super) offsets: Option<PartitionOffsets>,
}

impl<E: Environment> Job for CommittedOffsetJob<E> {
    type Output = CommittedOffsetReply;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<CommittedOffsetReply> {
        let Self { partition, nonce, .. } = *self;
        if self.cancelled.load(Ordering::SeqCst) {
            return JobStep::Done(CommittedOffsetReply { partition, nonce, offsets: None });
        }
        match self.fetch() {
            Ok(offsets) => {
                let offsets = Some(offsets);
                JobStep::Done(CommittedOffsetReply { partition, nonce, offsets })
            }
            Err(error) => {
                tracing::debug!(partition, %error, "committed offsets are not stable yet");
                self.fence_previous_owner();
                self.timeout = COMMITTED_OFFSET_TIMEOUT;
                JobStep::Pause(REQUEST_PAUSE)
            }
        }
    }
}

impl<E: Environment> CommittedOffsetJob<E> {
    pub(super) const FIRST_TIMEOUT: Duration = FIRST_COMMITTED_OFFSET_TIMEOUT;

    /// The offset is not stable: an earlier owner's transaction is open, or the broker is
    /// unavailable.
    fn fence_previous_owner(&self) {
        match self.offsets.latest_metadata(self.partition) {
            Ok(metadata) => self.offsets.fence_owner(&metadata),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "the earlier owner cannot be fenced; waiting for its transaction timeout"
                )
            }
        }
    }

    /// Reads the stable offset first and the end offsets after it, so that these are not older.
    fn fetch(&self) -> CallResult<PartitionOffsets> {
        let p = self.partition;
        let offset = self.offsets.stable(p, self.timeout)?;
        // The earlier owner may have failed after it sent fires and before it added this offset to
        // the transaction.
        if let Some((_, metadata)) = &offset {
            self.offsets.fence_owner(metadata);
        }
        let (triggers_low, triggers_end) = self.cluster.bounds(&self.names.triggers(), p)?;
        let (signals_low, signals_end) = self.cluster.bounds(&self.names.signals(), p)?;
        let (ledger_low, ledger_end) = self.cluster.bounds(&self.names.ledger(), p)?;
        Ok(PartitionOffsets {
            committed: offset,
            triggers_low,
            triggers_end,
            signals_low,
            signals_end,
            ledger_low,
            ledger_end,
        })
    }
}
