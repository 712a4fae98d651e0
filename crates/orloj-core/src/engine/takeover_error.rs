//! Why a takeover stops, and what a person can do about it.
//!
//! Invariant: nothing fires while the cursor is uncertain; the message says what to do.

use super::cursor::MetadataError;
use crate::model::{Offset, PartitionId};

/// Why a partition cannot be taken over until a person has decided something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeoverError {
    /// Upgrade this process.
    #[error(transparent)]
    NewerMetadata(MetadataError),
    /// The ledger holds what a newer Orloj wrote: upgrade this process.
    #[error("the ledger's record at offset {offset} was written by a newer Orloj; upgrade")]
    NewerLedger {
        /// Where it stands.
        offset: Offset,
    },
    /// The group's offset is lost, and the mirror may be older than the last commit.
    #[error(
        "partition {partition}: the group's committed offset is lost (expired or deleted), and \
         the ledger's mirror was not written at a shutdown: everything due since {mirror_due} ms \
         may fire again if you accept it. Accept with `kafka-consumer-groups --group GROUP \
         --reset-offsets --to-offset {offset} --topic {topic}:{partition} --execute` and restart"
    )]
    CursorLost {
        /// The partition.
        partition: PartitionId,
        /// The topic whose offset is lost.
        topic: String,
        /// The mirror's offset.
        offset: Offset,
        /// The mirror's W, in ms since the epoch.
        mirror_due: u64,
    },
    /// The broker dropped the metadata of our own commit.
    #[error(
        "the broker does not keep the metadata of committed offsets, on which Orloj's cursor \
         depends; use Apache Kafka or a broker that does"
    )]
    MetadataDropped,
    /// Another member has committed since our barrier: the group has reassigned the partition, and
    /// will report it.
    #[error("partition {partition}: another member has taken it over meanwhile")]
    TakenOverByOther {
        /// The partition.
        partition: PartitionId,
    },
    /// The topic ends below the committed offset: it was created again, or truncated.
    #[error(
        "partition {partition}: {topic} ends at {end}, below the committed offset {offset}: was \
         the topic created again? Reset the group's offset to start over"
    )]
    TopicTruncated {
        /// The partition.
        partition: PartitionId,
        /// The topic.
        topic: String,
        /// Where it ends.
        end: Offset,
        /// What is committed.
        offset: Offset,
    },
    /// The topic was created again, or truncated, and has new records below the committed offset.
    #[error(
        "partition {partition}: {topic} ended at {end}, below the committed offset {offset}, and \
         has new records below that offset since: they would be passed over. Was the topic created \
         again? Reset the group's offset to start over"
    )]
    WrittenAgain {
        /// The partition.
        partition: PartitionId,
        /// The topic.
        topic: String,
        /// Where it ended.
        end: Offset,
        /// What is committed.
        offset: Offset,
    },
}
