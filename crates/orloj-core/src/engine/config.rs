//! The settings of a partition, and what a decision is made with besides its state.
//!
//! Invariant: a decision reads these and never changes them.

use crate::model::partitioner::{Partitioner, murmur2_partition};
use crate::model::text::Text;
use crate::model::{Millis, PartitionId, Timestamp};

/// The settings that decisions depend on.
#[derive(Clone, Debug)]
pub struct PartitionConfig {
    /// An entry still pending this long after its ingest is moved to the ledger.
    pub ledger_after: Millis,
    /// How long a cancel is remembered that may still have to stop a retry.
    pub veto_ttl: Millis,
    /// How often the low-water mark is sampled.
    pub sample_interval: Millis,
    /// How long a step without emits stays open at most.
    pub idle_commit: Millis,
    /// How long the mirror of the cursor in the ledger may be behind it.
    pub cursor_copy_interval: Millis,
    /// Records ingested by a step at most; an open draft is sealed when it has as many.
    pub records_per_step_max: usize,
    /// Bytes of the records that a step writes at most, but for the effects of the last one. What
    /// is ingested fills half of it.
    pub bytes_per_step_max: usize,
    /// Changes go to the store when they take up as much memory as this, in bytes.
    pub spill_bytes: usize,
    /// Changes go to the store at least this often.
    pub spill_interval: Millis,
    /// A cancel written at least this long before its trigger is due is never too late.
    pub cancel_grace: Millis,
    /// How long a fire waits at most whose target topic cannot be reached now, before it is tried
    /// again.
    pub target_retry_interval: Millis,
    /// How long the owner waits for a worker's report of how a callback ended.
    pub callback_result_timeout: Millis,
    /// An occurrence of a recurring trigger later than this is missed: its misfire rule applies.
    pub misfire_grace: Millis,
    /// Missed occurrences that are fired late, per second at most.
    pub catch_up_rate: u32,
    /// The hash that selects the partition of a trigger.
    pub partitioner: Partitioner,
    /// How many partitions our topics have.
    pub partitions: i32,
    /// The pools, besides the default one, that a callback may have been sent to.
    pub pools: Vec<Text>,
    /// The owner's transactional id, for the commit metadata.
    pub owner: String,
    /// The names of the input topics, for the origins of dead letters.
    pub topics: InputTopics,
}

/// The names of the input topics, for the origins of dead letters.
#[derive(Clone, Debug)]
pub struct InputTopics {
    /// The full name of `triggers`.
    pub triggers: Text,
    /// The full name of `signals`.
    pub signals: Text,
}

/// What every decision of a partition reads.
#[derive(Debug)]
pub(super) struct PartitionContext {
    pub(super) id: PartitionId,
    pub(super) config: PartitionConfig,
    /// `max(previous, wall)`: never moves back. In ms since the epoch.
    pub(super) clock: Timestamp,
}

impl PartitionContext {
    /// The partition of a trigger. If the partitioner allows any, the one of Java's default.
    pub(super) fn partition_of(&self, trigger: &Text) -> PartitionId {
        let (key, partitions) = (trigger.bytes(), self.config.partitions);
        let right = self.config.partitioner.partition(key, partitions);
        right.unwrap_or_else(|| murmur2_partition(key, partitions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::harness::partition_config;

    #[test]
    fn a_trigger_has_the_partition_that_the_hash_of_its_id_selects() {
        let config = PartitionConfig { partitions: 50, ..partition_config(0) };
        let context = PartitionContext { id: 0, config, clock: 0 };
        for id in ["a", "b", "c", "order-1", "order-2"] {
            let expected = murmur2_partition(id.as_bytes(), 50);
            assert_eq!(context.partition_of(&id.into()), expected, "{id}");
        }
    }
}
