//! Faults of topics: compaction, retention, and targets that cannot be reached or refuse records.
//!
//! Invariant: what a takeover needs is not removed.

use orloj_core::engine::catalog::TopicState;
use orloj_core::model::ledger::LedgerRecord;
use orloj_core::model::text::Text;
use orloj_core::model::{PartitionId, Timestamp};

use super::cluster::{REFUSING, Refusal, SimulatedCluster, partitions_of_target};
use super::fault_kinds::FaultKind;
use super::partition_outages::PartitionOutage;
use super::run::SimulationRun;

impl SimulationRun {
    pub(super) fn compact(&mut self) {
        let life = self.cluster.tombstone_life();
        let SimulatedCluster { broker, rng, counts, compaction_lag, .. } = &mut *self.cluster;
        let old = broker.now.saturating_sub(*compaction_lag);
        // A takeover cannot outlast a jump of time: tombstones do not age during one.
        let awake = broker.now - broker.jumped;
        let key = |record: &LedgerRecord| (record.key.clone(), record.value.is_none());
        for ledger in &mut broker.ledger {
            let end = ledger.written_until(old);
            let cut = if rng.one_in(2) { end } else { rng.below(end + 1) };
            let (superseded, expired) =
                ledger.compact(&broker.transaction_states, cut, awake, life, key);
            counts.add_many(FaultKind::LedgerCompacted, u64::from(superseded > 0));
            counts.add_many(FaultKind::TombstonesExpired, expired);
            // Retention deletes a beginning of which compaction has left nothing.
            let first = ledger.first_record().min(end);
            if first > ledger.low && rng.one_in(4) {
                ledger.low = first;
                counts.add(FaultKind::LedgerDeleted);
            }
        }
    }

    pub(super) fn lose_topic(&mut self) {
        let topic = format!("topic-{}", 2 + self.cluster.rng.below(3)).as_str().into();
        if !self.cluster.unavailable.remove(&topic) {
            self.cluster.counts.add(FaultKind::TopicUnavailable);
            self.cluster.unavailable.insert(topic);
        }
    }

    /// A target starts to refuse records, or stops it.
    pub(super) fn refuse_records(&mut self) {
        let SimulatedCluster { refusing, rng, .. } = &mut *self.cluster;
        if refusing.remove(&Text::from(REFUSING)).is_none() {
            let refusal = if rng.one_in(2) { Refusal::Records } else { Refusal::Rights };
            let _none = refusing.insert(REFUSING.into(), refusal);
        }
    }
}

impl SimulatedCluster {
    /// A partition of a target has no leader from now on until a time, in ms since the epoch.
    pub(super) fn lose_partition_of_target(&mut self, until: Timestamp) {
        let now = self.broker.now;
        let partitions = 2 + self.rng.below(3);
        let topic = format!("topic-{partitions}").as_str().into();
        let partition = self.rng.below(partitions) as PartitionId;
        let shown_from = now + self.rng.pick(&[0, 0, 5, 30, 1_000]);
        let shown_until = until + self.rng.pick(&[0, 5, 30]);
        self.counts.add(FaultKind::PartitionLost);
        let from = now;
        self.partition_outages.add(PartitionOutage {
            topic,
            partition,
            from,
            until,
            shown_from,
            shown_until,
        });
    }

    /// What the metadata of a target topic show that can be written.
    pub(super) fn state_by_partition(&mut self, topic: &str) -> TopicState {
        let partitions = partitions_of_target(topic);
        let unavailable = self.partition_outages.shown(topic, self.broker.now);
        if unavailable.iter().count() as i32 == partitions {
            return TopicState::Unavailable("no partition has a leader".to_owned());
        }
        if !unavailable.is_empty() {
            self.counts.add(FaultKind::PartitionShownOut);
        }
        TopicState::Usable { partitions, record_bytes_max: 1 << 20, unavailable }
    }
}
