//! Single partitions of target topics without a leader: what the brokers refuse, and what their
//! metadata shows of it.
//!
//! Invariant: a record for a partition that is out is not written. The metadata may show that later
//! than it is so, and for longer.

use orloj_core::engine::catalog::UnavailablePartitions;
use orloj_core::model::text::Text;
use orloj_core::model::{PartitionId, Timestamp};

/// A partition of a topic.
pub(super) type TopicPartition = (Text, PartitionId);

/// One partition of a target topic without a leader; all times in ms since the epoch.
#[derive(Clone, Debug)]
pub(super) struct PartitionOutage {
    pub(super) topic: Text,
    pub(super) partition: PartitionId,
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
    /// Between these times the metadata shows it.
    pub(super) shown_from: Timestamp,
    pub(super) shown_until: Timestamp,
}

/// All of a run, also those that are over.
#[derive(Debug, Default)]
pub(super) struct PartitionOutages(Vec<PartitionOutage>);

impl PartitionOutages {
    pub(super) fn add(&mut self, outage: PartitionOutage) {
        self.0.push(outage);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PartitionOutage> {
        self.0.iter()
    }

    /// If this partition is out at `now`: when it is back.
    pub(super) fn until(
        &self,
        topic: &str,
        partition: PartitionId,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let is_out = |outage: &&PartitionOutage| {
            outage.partition == partition && (outage.from..outage.until).contains(&now)
        };
        self.of_topic(topic).filter(is_out).map(|outage| outage.until).max()
    }

    /// What the metadata shows of a topic at `now`.
    pub(super) fn shown(&self, topic: &str, now: Timestamp) -> UnavailablePartitions {
        let is_shown =
            |outage: &&PartitionOutage| (outage.shown_from..outage.shown_until).contains(&now);
        self.of_topic(topic).filter(is_shown).map(|outage| outage.partition).collect()
    }

    /// All are over at `now`, and the metadata shows it.
    pub(super) fn end_all(&mut self, now: Timestamp) {
        for outage in &mut self.0 {
            outage.until = outage.until.min(now);
            outage.shown_until = outage.shown_until.min(now);
        }
    }

    fn of_topic(&self, topic: &str) -> impl Iterator<Item = &PartitionOutage> {
        self.0.iter().filter(move |outage| outage.topic == *topic)
    }
}
