//! The offsets that this gateway has written and was answered, so that it reads its own writes.
//!
//! Invariant: three offsets and one time per partition, and they only increase. Only a clock that
//! steps back takes the times with it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::client::{OutcomeRecord, RecordMetadata, SubmitResult};
use crate::dead_letters::LetterActionResult;
use crate::model::{Offset, PartitionId, Timestamp};
use crate::view::{ViewTopic, WritePosition};

/// The highest offset in each partition of each topic that a read must contain, and when it was
/// known, in ms since the epoch.
#[derive(Debug, Default)]
pub(super) struct WritePositions {
    highest: Mutex<BTreeMap<(ViewTopic, PartitionId), (Offset, Timestamp)>>,
    /// When a fire-now of each partition was answered, in ms since the epoch. That the trigger has
    /// fired is known of the progress of its owner only, which has no offset.
    called_at: Mutex<BTreeMap<PartitionId, Timestamp>>,
}

impl WritePositions {
    /// A record was written, and perhaps answered, by `now`.
    pub(super) fn observe_write(&self, result: &SubmitResult, now: Timestamp) {
        self.observe_record(&result.record, now);
        if let Some(outcome) = &result.outcome {
            self.observe_outcome(outcome, now);
        }
    }

    /// A record was written.
    pub(super) fn observe_record(&self, record: &RecordMetadata, now: Timestamp) {
        self.advance((ViewTopic::Triggers, record.partition), record.offset, now);
    }

    /// An owner has answered: the record that it answers is in the partition of its outcome.
    pub(super) fn observe_outcome(&self, record: &OutcomeRecord, now: Timestamp) {
        self.advance((ViewTopic::Outcomes, record.partition), record.offset, now);
        if let Some(answers) = record.outcome.answers {
            self.advance((ViewTopic::Triggers, record.partition), answers, now);
        }
    }

    /// A fire-now of this partition was answered at this time, in ms since the epoch.
    pub(super) fn observe_call(&self, partition: PartitionId, at: Timestamp) {
        let mut calls = self.lock_calls();
        let called_at = calls.entry(partition).or_insert(at);
        *called_at = at.max(*called_at);
    }

    /// The times up to which a read must contain everything of these partitions; 0: it must have
    /// caught up once.
    pub(super) fn times(
        &self,
        partitions: Range<PartitionId>,
        now: Timestamp,
    ) -> Vec<(PartitionId, Timestamp)> {
        let mut calls = self.lock_calls();
        // After a step back, the view would not be that far for as long as the step.
        calls.values_mut().for_each(|at| *at = now.min(*at));
        partitions.map(|id| (id, calls.get(&id).copied().unwrap_or(0))).collect()
    }

    fn lock_calls(&self) -> MutexGuard<'_, BTreeMap<PartitionId, Timestamp>> {
        self.called_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Dead letters were replayed or archived.
    pub(super) fn observe_dead_letter_action(&self, done: &LetterActionResult, now: Timestamp) {
        for (partition, offset) in &done.mark_offsets {
            self.advance((ViewTopic::DeadLetters, *partition), *offset, now);
        }
    }

    /// Everything that a read of these partitions must contain now.
    pub(super) fn list(&self, partitions: &Range<PartitionId>) -> Vec<WritePosition> {
        let highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        let position = |(&(topic, partition), &(offset, known_at))| WritePosition {
            topic,
            partition,
            offset,
            known_at,
        };
        let all = highest.iter().map(position);
        all.filter(|position| partitions.contains(&position.partition)).collect()
    }

    fn advance(&self, log: (ViewTopic, PartitionId), offset: Offset, now: Timestamp) {
        let mut highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = highest.entry(log).or_insert((offset, now));
        *entry = (*entry).max((offset, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::outcome::{Outcome, OutcomeKind};

    #[test]
    fn the_highest_of_each_partition_is_kept() {
        let positions = WritePositions::default();
        let place = |partition, offset| RecordMetadata { topic: "t".to_owned(), partition, offset };
        positions.observe_write(&SubmitResult { record: place(1, 7), outcome: None }, 100);
        let kind = OutcomeKind::Cancelled { generation: 3 };
        let outcome =
            Outcome { trigger: "tea".into(), answers: Some(5), request: None, at: 0, kind };
        let answered = Some(OutcomeRecord { outcome, partition: 1, offset: 40 });
        positions.observe_write(&SubmitResult { record: place(1, 5), outcome: answered }, 200);
        let handled = |partition, offset| LetterActionResult {
            mark_offsets: [(partition, offset)].into(),
            ..LetterActionResult::default()
        };
        positions.observe_dead_letter_action(&handled(0, 9), 300);
        positions.observe_dead_letter_action(&handled(0, 8), 400);
        let list = positions.list(&(0..2));
        let known: Vec<_> =
            list.iter().map(|m| (m.topic, m.partition, m.offset, m.known_at)).collect();
        let expected = [
            (ViewTopic::Triggers, 1, 7, 100),
            (ViewTopic::Outcomes, 1, 40, 200),
            (ViewTopic::DeadLetters, 0, 9, 300),
        ];
        assert_eq!(known, expected);
        positions.observe_write(&SubmitResult { record: place(1, 9), outcome: None }, 500);
        assert_eq!(positions.list(&(1..2))[0].offset, 9);
        assert_eq!(positions.list(&(0..1)).len(), 1, "of the other partition");
    }

    #[test]
    fn a_read_waits_for_the_partitions_that_were_called() {
        let positions = WritePositions::default();
        assert_eq!(positions.times(0..3, 9_000), [(0, 0), (1, 0), (2, 0)]);
        positions.observe_call(2, 7_000);
        positions.observe_call(2, 8_000);
        positions.observe_call(0, 9_000);
        assert_eq!(positions.times(0..3, 9_000), [(0, 9_000), (1, 0), (2, 8_000)]);
        assert_eq!(positions.times(2..3, 9_000), [(2, 8_000)]);
        let stepped_back = [(0, 8_500), (1, 0), (2, 8_000)];
        assert_eq!(positions.times(0..3, 8_500), stepped_back, "the clock stepped back");
    }

    #[test]
    fn an_outcome_advances_the_position_of_the_record_it_answers() {
        let positions = WritePositions::default();
        let kind = OutcomeKind::Cancelled { generation: 3 };
        let outcome =
            Outcome { trigger: "tea".into(), answers: Some(9), request: None, at: 0, kind };
        positions.observe_outcome(&OutcomeRecord { outcome, partition: 2, offset: 41 }, 600);
        let at = |topic, offset| WritePosition { topic, partition: 2, offset, known_at: 600 };
        assert_eq!(
            positions.list(&(0..3)),
            [at(ViewTopic::Triggers, 9), at(ViewTopic::Outcomes, 41)]
        );
    }
}
