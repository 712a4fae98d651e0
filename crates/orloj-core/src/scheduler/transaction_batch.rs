//! The content of one transaction: the steps of several partitions, and the barriers of takeovers.
//!
//! Invariant: the transaction contains the offset of every partition that it affects. The content
//! does not change: if the broker refuses the transaction, the same content is sent again.

use std::time::Duration;

use super::record_sender::RecordSender;
use crate::codec::row::{self, TargetView};
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
    pub(super) steps: Vec<(PartitionId, PartitionStep)>,
    pub(super) barriers: Vec<(PartitionId, TakeoverBarrier)>,
    /// Offset and metadata of partitions that are released before they were active.
    pub(super) final_offsets: Vec<(PartitionId, Offset, String)>,
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
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of partitions in it.
    pub(super) fn len(&self) -> usize {
        self.steps.len() + self.barriers.len() + self.final_offsets.len()
    }

    /// The transaction must not be committed before this time, in ms since the epoch.
    pub(super) fn commit_not_before(&self) -> Timestamp {
        self.steps.iter().map(|(_, step)| step.commit_not_before).max().unwrap_or(0)
    }

    /// Begins a transaction that is committed at `commit_not_before` or later, and queues all
    /// records.
    pub(super) fn send(
        &self,
        producer: &impl TransactionalSending,
        sender: &RecordSender,
        commit_not_before: Timestamp,
    ) -> Result<(), TransactionError> {
        producer.begin_at(commit_not_before)?;
        for (id, step) in &self.steps {
            sender.send_step(producer, *id, step.number, &step.emits)?;
        }
        for (id, barrier) in &self.barriers {
            let value = LedgerValue::Barrier { nonce: barrier.nonce };
            let (step, key) = (barrier.step, LedgerKey::Barrier);
            sender.send_ledger(producer, *id, step, &key, Some(&value))?;
        }
        Ok(())
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

    /// Calls `act` with the topic of every fire; of workers' fires only with that of a pool.
    pub(super) fn for_each_target(&self, names: &Names, mut act: impl FnMut(&str)) {
        for emit in self.steps.iter().flat_map(|(_, step)| &step.emits) {
            match emit {
                Emit::ToTopic(fire) => {
                    if let Some(TargetView::Topic { topic, .. }) =
                        row::view(&fire.row).ok().flatten().map(|fire| fire.target)
                    {
                        act(topic);
                    }
                }
                Emit::ToWorker(fire) => {
                    if let Target::Http(target) = &fire.definition.target
                        && let Some(pool) = &target.pool
                    {
                        act(&names.fires_of(pool.as_str()));
                    }
                }
                _ => {}
            }
        }
    }

    /// Reports the committed records. `now` is the time of the commit.
    pub(super) fn report(&self, reporter: &impl Reporter, now: Timestamp) {
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
