//! Reads the committed offset of a partition for its takeover.
//!
//! Invariant: the request may block while a transaction of an earlier owner is open, so it runs on
//! a thread of its own. A timeout means that the offset is not known yet, not that there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::CALL_TIMEOUT;
use crate::engine::takeover::PartitionOffsets;
use crate::kafka::Names;
use crate::kafka::admin_client::KafkaAdminClient;
use crate::kafka::error::ClientResult;
use crate::kafka::member::CommittedOffsets;
use crate::kafka::orphaned_transactions::OrphanedTransactions;
use crate::model::PartitionId;

/// Timeout of a request after the first one.
const COMMITTED_OFFSET_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of the first request. Without an open transaction the answer takes less.
const FIRST_COMMITTED_OFFSET_TIMEOUT: Duration = Duration::from_millis(150);

/// Reads the committed offset of one partition for one takeover.
pub(super) struct CommittedOffsetRequest {
    pub(super) partition: PartitionId,
    pub(super) nonce: u64,
    pub(super) offsets: CommittedOffsets,
    pub(super) orphaned_transactions: Arc<OrphanedTransactions>,
    pub(super) admin: KafkaAdminClient,
    pub(super) names: Names,
}

impl CommittedOffsetRequest {
    /// Repeats the request on a new thread until it succeeds or `cancelled` is set.
    pub(super) fn spawn(
        self,
        cancelled: Arc<AtomicBool>,
        replies: Sender<(PartitionId, u64, PartitionOffsets)>,
    ) {
        super::spawn("offsets", move || {
            let mut timeout = FIRST_COMMITTED_OFFSET_TIMEOUT;
            while !cancelled.load(Ordering::SeqCst) {
                match self.fetch(timeout) {
                    Ok(committed) => {
                        let _receiver_closed =
                            replies.send((self.partition, self.nonce, committed));
                        return;
                    }
                    Err(error) => {
                        let partition = self.partition;
                        tracing::debug!(partition, %error, "committed offsets are not stable yet");
                        self.fence_previous_owner();
                        timeout = COMMITTED_OFFSET_TIMEOUT;
                        std::thread::park_timeout(Duration::from_millis(50));
                    }
                }
            }
        });
    }

    /// The offset is not stable: an earlier owner's transaction is open, or the broker is
    /// unavailable.
    fn fence_previous_owner(&self) {
        match self.orphaned_transactions.committed_metadata(self.partition, CALL_TIMEOUT) {
            Ok(metadata) => self.orphaned_transactions.fence_owner(&metadata, CALL_TIMEOUT),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "the earlier owner cannot be fenced; waiting for its transaction timeout"
                )
            }
        }
    }

    /// Reads the stable offset first and the end offsets after it, so that these are not older.
    fn fetch(&self, timeout: Duration) -> ClientResult<PartitionOffsets> {
        let p = self.partition;
        let offset = self.offsets.committed(p, timeout)?;
        // The earlier owner may have failed after it sent fires and before it added this offset to
        // the transaction.
        if let Some((_, metadata)) = &offset {
            self.orphaned_transactions.fence_owner(metadata, CALL_TIMEOUT);
        }
        let (triggers_low, triggers_end) = self.admin.bounds(&self.names.triggers(), p)?;
        let (signals_low, signals_end) = self.admin.bounds(&self.names.signals(), p)?;
        let (ledger_low, ledger_end) = self.admin.bounds(&self.names.ledger(), p)?;
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
