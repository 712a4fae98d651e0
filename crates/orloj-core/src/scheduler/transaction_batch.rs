//! The content of one transaction: the steps of several partitions, and the barriers of takeovers.
//!
//! Invariant: the transaction contains the offset of every partition that it affects. The content
//! does not change: if the transaction is not committed, the same content is sent again, perhaps
//! while an abandoned thread still reads it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::record_sender::RecordSender;
use crate::codec::row::{self, TargetView};
use crate::commit::committer::{ReportedRecords, TransactionRecords};
use crate::engine::interrupted_transaction::TransactionContent;
use crate::engine::step::{Emit, PartitionStep};
use crate::environment::transaction::{OffsetCommit, TransactionError, TransactionalSending};
use crate::environment::{CommittedRecords, Reporter};
use crate::model::dead_letter::Content;
use crate::model::definition::Target;
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::names::Names;
use crate::model::{Offset, PartitionId, Timestamp};

/// The content of a transaction.
#[derive(Debug, Default)]
pub(super) struct TransactionBatch {
    /// Shared with the same transaction without its barriers.
    pub(super) steps: Arc<Vec<(PartitionId, PartitionStep)>>,
    pub(super) barriers: Vec<(PartitionId, TakeoverBarrier)>,
    /// Offset and metadata of partitions that are released before they were active.
    pub(super) final_offsets: Vec<(PartitionId, Offset, String)>,
    /// Its records were counted. Shared like the steps: a call that was abandoned may still return
    /// that the transaction is committed.
    is_reported: Arc<AtomicBool>,
}

/// The barrier record of a takeover.
#[derive(Debug)]
pub(super) struct TakeoverBarrier {
    pub(super) offset: Offset,
    pub(super) metadata: String,
    pub(super) nonce: u64,
    pub(super) step: u64,
}

impl TransactionBatch {
    /// Adds a step, before it is submitted.
    pub(super) fn add_step(&mut self, partition: PartitionId, step: PartitionStep) {
        let steps = Arc::get_mut(&mut self.steps).expect("what was submitted does not change");
        steps.push((partition, step));
    }

    /// The same steps, and nothing else: the takeovers whose barriers it contains begin again.
    pub(super) fn without_barriers(&self) -> Self {
        let (steps, is_reported) = (Arc::clone(&self.steps), Arc::clone(&self.is_reported));
        Self { steps, is_reported, ..Self::default() }
    }

    /// The partitions of which it contains something that outlives its failure.
    pub(super) fn content(&self) -> TransactionContent {
        TransactionContent {
            steps: self.steps.iter().map(|(id, _)| *id).collect(),
            barriers: self.barriers.iter().map(|(id, _)| *id).collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of partitions in it.
    pub(super) fn len(&self) -> usize {
        self.steps.len() + self.barriers.len() + self.final_offsets.len()
    }

    /// About how many bytes its steps have.
    pub(super) fn bytes(&self) -> usize {
        self.steps.iter().map(|(_, step)| step.bytes).sum()
    }

    /// The transaction must not be committed before this time, in ms since the epoch.
    pub(super) fn commit_not_before(&self) -> Timestamp {
        self.steps.iter().map(|(_, step)| step.commit_not_before).max().unwrap_or(0)
    }

    /// Whether something in it would not have fired at `now`, in ms since the epoch.
    pub(super) fn is_late(&self, now: Timestamp) -> bool {
        let until = self.steps.iter().filter_map(|(_, step)| step.in_time_until).min();
        until.is_some_and(|until| until < now)
    }

    /// The offsets to commit. `topic` is `triggers`; `owner` is the transactional id.
    pub(super) fn offset_commits(&self, topic: &str, owner: &str) -> Vec<OffsetCommit> {
        let steps = self.steps.iter().map(|(partition, step)| OffsetCommit {
            topic: topic.to_owned(),
            partition: *partition,
            offset: step.cursor.next_offset,
            metadata: if step.is_final {
                step.cursor.to_final_metadata(owner)
            } else {
                step.cursor.to_metadata(owner)
            },
        });
        let barriers = self.barriers.iter().map(|(partition, barrier)| OffsetCommit {
            topic: topic.to_owned(),
            partition: *partition,
            offset: barrier.offset,
            metadata: barrier.metadata.clone(),
        });
        let final_offsets =
            self.final_offsets.iter().map(|(partition, offset, metadata)| OffsetCommit {
                topic: topic.to_owned(),
                partition: *partition,
                offset: *offset,
                metadata: metadata.clone(),
            });
        steps.chain(barriers).chain(final_offsets).collect()
    }

    /// Calls `act` with topic and partition of every fire; of what is for workers only with those
    /// of a pool.
    pub(super) fn for_each_target(&self, names: &Names, mut act: impl FnMut(&str, PartitionId)) {
        for (id, step) in self.steps.iter() {
            for_each_target((*id, &step.emits), names, &mut act);
        }
    }
}

impl TransactionRecords for TransactionBatch {
    type Encoder = RecordSender;

    fn send(
        &self,
        producer: &impl TransactionalSending,
        sender: &RecordSender,
        commit_not_before: Timestamp,
        time_left: impl Fn() -> Duration,
    ) -> Result<(), TransactionError> {
        producer.begin_at(commit_not_before)?;
        for (id, step) in self.steps.iter() {
            sender.send_step(producer, (*id, step.number), &step.emits, &time_left)?;
        }
        for (id, barrier) in &self.barriers {
            let value = LedgerValue::Barrier { nonce: barrier.nonce };
            let (step, key) = (barrier.step, LedgerKey::Barrier);
            sender.send_ledger(producer, *id, step, &key, Some(&value))?;
        }
        Ok(())
    }
}

impl<R: Reporter> ReportedRecords<R> for TransactionBatch {
    fn report(&self, reporter: &R, now: Timestamp) {
        if self.is_reported.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut lateness = reporter.lateness();
        let mut counts = CommittedRecords::default();
        let mut late = |scheduled: Timestamp| {
            lateness(Duration::from_millis(now.saturating_sub(scheduled)));
            1
        };
        for emit in self.steps.iter().flat_map(|(_, step)| &step.emits) {
            match emit {
                Emit::ToTopic(fire) => counts.topic_fires += late(fire.scheduled),
                Emit::ToWorker(fire) => counts.callbacks += late(fire.scheduled),
                Emit::DeadLetter(letter) => {
                    counts.dead_letters += 1;
                    counts.rejected += u64::from(matches!(letter.content, Content::Record { .. }));
                }
                Emit::Forward(_) => counts.forwarded += 1,
                Emit::Withdraw { .. }
                | Emit::Ledger { .. }
                | Emit::Signal { .. }
                | Emit::Outcome(_) => {}
            }
        }
        let ingested: usize = self.steps.iter().map(|(_, step)| step.ingested).sum();
        counts.ingested = ingested as u64;
        reporter.committed(counts);
    }
}

/// Calls `act` with topic and partition of every fire among these records, which are those of a
/// step of partition `id`; of what is for workers only with those of a pool.
pub(super) fn for_each_target(
    (id, emits): (PartitionId, &[Emit]),
    names: &Names,
    mut act: impl FnMut(&str, PartitionId),
) {
    for emit in emits {
        match emit {
            Emit::ToTopic(fire) => {
                if let Some(TargetView::Topic { topic, .. }) =
                    row::view(&fire.row).ok().flatten().map(|fire| fire.target)
                {
                    act(topic, fire.partition);
                }
            }
            Emit::ToWorker(fire) => {
                if let Target::Http(target) = &fire.definition.target
                    && let Some(pool) = &target.pool
                {
                    act(&names.fires_of(pool.as_str()), id);
                }
            }
            Emit::Withdraw { pool: Some(pool), .. } => act(&names.fires_of(pool.as_str()), id),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::schemas::Schemas;
    use crate::engine::cursor::Cursor;
    use crate::engine::step::TopicFire;
    use crate::model::dead_letter::{DeadLetter, Origin};
    use crate::model::definition::{Definition, HttpTarget, TopicTarget};
    use crate::model::entry::{FireRow, Row};
    use crate::model::fire::Fire;
    use crate::model::fire_id::FireId;
    use crate::model::input::Forward;
    use crate::test_environment::producer::TestProducer;
    use crate::test_environment::reporter::TestReporter;

    /// When everything is due, in ms since the epoch.
    const DUE: Timestamp = 70;

    fn definition(target: Target) -> Definition {
        Definition { target, payload: None, headers: Vec::new(), retry: None, caller: None }
    }

    fn topic_fire(topic: &str) -> Emit {
        let target = Target::Topic(TopicTarget { topic: topic.into(), key: None });
        let fire = FireRow::first("a".into(), 5, DUE, definition(target));
        let row = row::to_bytes(&Row::Fire(fire), &mut Vec::new());
        Emit::ToTopic(TopicFire { row, partition: 2, batch_bytes_max: 1 << 20, scheduled: DUE })
    }

    fn callback(pool: Option<&str>) -> Emit {
        let pool = pool.map(Into::into);
        let target = HttpTarget { pool, ..HttpTarget::post("http://x/") };
        let (generation, occurrence) = (5, 0);
        Emit::ToWorker(Box::new(Fire {
            id: FireId { trigger: "a".into(), generation, occurrence, attempt: 1, deferral: 0 },
            scheduled: DUE,
            fired: DUE,
            definition: definition(target.into()),
            history: None,
            report_end: false,
            priority: 127,
        }))
    }

    fn dead_letter(content: Content) -> Emit {
        let origin = Origin { topic: "o.triggers".into(), partition: 0, offset: 1 };
        Emit::DeadLetter(Box::new(DeadLetter { origin, reason: "why".into(), at: 1, content }))
    }

    fn step(commit_not_before: Timestamp, emits: Vec<Emit>) -> PartitionStep {
        PartitionStep {
            number: 1,
            emits,
            bytes: 0,
            commit_not_before,
            in_time_until: None,
            spill: None,
            cursor: Cursor::initial(40, 0),
            is_final: false,
            ingested: 6,
        }
    }

    fn barrier() -> TakeoverBarrier {
        TakeoverBarrier { offset: 50, metadata: "barrier".to_owned(), nonce: 7, step: 9 }
    }

    /// Two steps, a barrier and the last offset of a partition.
    fn batch() -> TransactionBatch {
        let last = PartitionStep { is_final: true, ..step(30, Vec::new()) };
        TransactionBatch {
            steps: vec![(0, step(20, vec![topic_fire("orders")])), (1, last)].into(),
            barriers: vec![(2, barrier())],
            final_offsets: vec![(3, 60, "final".to_owned())],
            ..Default::default()
        }
    }

    #[test]
    fn a_transaction_has_the_offset_of_every_partition_that_it_affects() {
        let batch = batch();
        let commit = |partition, offset, metadata: &str| OffsetCommit {
            topic: "o.triggers".to_owned(),
            partition,
            offset,
            metadata: metadata.to_owned(),
        };
        let cursor = Cursor::initial(40, 0);
        let expected = [
            commit(0, 40, &cursor.to_metadata("me")),
            commit(1, 40, &cursor.to_final_metadata("me")),
            commit(2, 50, "barrier"),
            commit(3, 60, "final"),
        ];
        assert_eq!(batch.offset_commits("o.triggers", "me"), expected);
        assert!(batch.len() == expected.len() && !batch.is_empty());
        let nothing = TransactionBatch::default();
        assert!(nothing.is_empty());
        assert_eq!(nothing.commit_not_before(), 0);
    }

    #[test]
    fn a_transaction_must_be_sent_again_with_the_same_steps_and_without_its_barriers() {
        let batch = TransactionBatch { final_offsets: Vec::new(), ..batch() };
        let again = batch.without_barriers();
        let commits = batch.offset_commits("o.triggers", "me");
        assert_eq!(again.offset_commits("o.triggers", "me"), commits[..2]);
        assert!(Arc::ptr_eq(&again.steps, &batch.steps), "however large they are");
        let ids = |ids: &[PartitionId]| ids.iter().copied().collect();
        let content = TransactionContent { steps: ids(&[0, 1]), barriers: ids(&[2]) };
        assert_eq!(batch.content(), content);
        let content = TransactionContent { barriers: ids(&[]), ..content };
        assert_eq!(again.content(), content);
    }

    #[test]
    fn a_transaction_is_committed_no_earlier_than_each_of_its_steps() {
        assert_eq!(batch().commit_not_before(), 30);
    }

    #[test]
    fn a_transaction_is_late_when_something_in_any_of_its_steps_is() {
        let until = |until| PartitionStep { in_time_until: until, ..step(0, Vec::new()) };
        let steps = vec![(0, until(None)), (1, until(Some(70))), (2, until(Some(90)))].into();
        let batch = TransactionBatch { steps, ..Default::default() };
        assert!(!batch.is_late(70) && batch.is_late(71));
        let steps = vec![(0, until(None))].into();
        assert!(!TransactionBatch { steps, ..Default::default() }.is_late(Timestamp::MAX));
    }

    #[test]
    fn a_transaction_begins_before_its_records_and_contains_steps_and_barriers() {
        let producer = TestProducer::default();
        let sender = RecordSender::new(&Names::new("o"), Arc::new(Schemas::new()));
        batch().send(&producer, &sender, 30, || Duration::ZERO).unwrap();
        assert_eq!(producer.began_at(), Some(30));
        let sent = producer.sent();
        let sent: Vec<_> = sent.iter().map(|it| (it.topic.as_str(), it.partition)).collect();
        assert_eq!(sent, [("orders", Some(2)), ("o.ledger", Some(2))]);
    }

    #[test]
    fn the_targets_of_a_transaction_are_the_topics_of_users_and_of_pools() {
        let emits = vec![topic_fire("orders"), callback(None), callback(Some("slow"))];
        let steps = vec![(7, step(0, emits))].into();
        let batch = TransactionBatch { steps, ..Default::default() };
        let mut targets = Vec::new();
        batch.for_each_target(&Names::new("o"), |topic, partition| {
            targets.push((topic.to_owned(), partition));
        });
        // A pool's topic has the partitions of ours.
        assert_eq!(targets, [("orders".to_owned(), 2), ("o.fires.slow".to_owned(), 7)]);
    }

    #[test]
    fn what_is_committed_is_counted_and_so_is_how_late_it_is() {
        let forward = || {
            let (partition, key) = (1, bytes::Bytes::from_static(b"b"));
            Emit::Forward(Box::new(Forward { partition, key, value: None, headers: Vec::new() }))
        };
        let record = || Content::Record { key: None, value: None, headers: Vec::new() };
        let mark = Content::Mark(crate::model::dead_letter::Mark::Archived);
        let mut emits = vec![topic_fire("x"), topic_fire("x"), callback(None)];
        emits.extend([dead_letter(record()), dead_letter(record()), dead_letter(mark)]);
        emits.extend([callback(None), callback(None), forward(), forward()]);
        let steps = vec![(0, step(0, emits)), (1, step(0, vec![]))].into();
        let batch = TransactionBatch { steps, ..Default::default() };
        let reporter = TestReporter::default();
        batch.report(&reporter, DUE + 12);
        // A call that was abandoned returns.
        batch.report(&reporter, DUE + 13);
        batch.without_barriers().report(&reporter, DUE + 14);
        let expected = CommittedRecords {
            ingested: 12,
            topic_fires: 2,
            callbacks: 3,
            dead_letters: 3,
            rejected: 2,
            forwarded: 2,
        };
        assert_eq!(reporter.reported().committed, [expected]);
        assert_eq!(reporter.reported().lateness, [Duration::from_millis(12); 5]);
    }
}
