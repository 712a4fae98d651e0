//! What this gateway has written and been answered, so that it reads its own writes.
//!
//! Invariant: memory is three numbers a partition, and they only grow.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::SubmitResult;
use super::outcome_awaiter::OutcomeRecord;
use crate::dead_letters::LetterActionResult;
use crate::model::{Offset, PartitionId};
use crate::view::{ViewTopic, WritePosition};

/// The highest offset in each partition of each log that a read must contain.
#[derive(Debug, Default)]
pub(super) struct WritePositions {
    highest: Mutex<BTreeMap<(ViewTopic, PartitionId), Offset>>,
}

impl WritePositions {
    /// A record was written, and perhaps answered.
    pub(super) fn observe_write(&self, receipt: &SubmitResult) {
        self.advance(ViewTopic::Triggers, receipt.record.partition, receipt.record.offset);
        if let Some(told) = &receipt.outcome {
            self.observe_outcome(told);
        }
    }

    /// An owner has answered: the record that it answers stands in the partition of its answer.
    pub(super) fn observe_outcome(&self, told: &OutcomeRecord) {
        self.advance(ViewTopic::Outcomes, told.partition, told.offset);
        if let Some(answers) = told.outcome.answers {
            self.advance(ViewTopic::Triggers, told.partition, answers);
        }
    }

    /// Dead letters were dealt with.
    pub(super) fn observe_dead_letter_action(&self, done: &LetterActionResult) {
        for (partition, offset) in &done.mark_offsets {
            self.advance(ViewTopic::DeadLetters, *partition, *offset);
        }
    }

    /// Everything that a read must contain now.
    pub(super) fn list(&self) -> Vec<WritePosition> {
        let highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        let mark = |(&(log, partition), &offset)| WritePosition { topic: log, partition, offset };
        highest.iter().map(mark).collect()
    }

    fn advance(&self, log: ViewTopic, partition: PartitionId, offset: Offset) {
        let mut highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = highest.entry((log, partition)).or_insert(offset);
        *entry = (*entry).max(offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::producer::RecordMetadata;
    use crate::model::outcome::{Outcome, OutcomeKind};

    #[test]
    fn the_highest_of_each_partition_is_kept() {
        let marks = WritePositions::default();
        let place = |partition, offset| RecordMetadata { topic: "t".to_owned(), partition, offset };
        marks.observe_write(&SubmitResult { record: place(1, 7), outcome: None });
        let verdict = OutcomeKind::Cancelled { generation: 3 };
        let outcome = Outcome { trigger: "tea".into(), answers: Some(5), at: 0, kind: verdict };
        let told = Some(OutcomeRecord { outcome, partition: 1, offset: 40 });
        marks.observe_write(&SubmitResult { record: place(1, 5), outcome: told });
        let dealt = |partition, offset| LetterActionResult {
            mark_offsets: [(partition, offset)].into(),
            ..LetterActionResult::default()
        };
        marks.observe_dead_letter_action(&dealt(0, 9));
        marks.observe_dead_letter_action(&dealt(0, 8));
        let list = marks.list();
        let triples: Vec<_> = list.iter().map(|m| (m.topic, m.partition, m.offset)).collect();
        let expected = [
            (ViewTopic::Triggers, 1, 7),
            (ViewTopic::Outcomes, 1, 40),
            (ViewTopic::DeadLetters, 0, 9),
        ];
        assert_eq!(triples, expected);
        marks.observe_write(&SubmitResult { record: place(1, 9), outcome: None });
        assert_eq!(marks.list()[0].offset, 9);
    }

    #[test]
    fn an_outcome_advances_the_position_of_the_record_it_answers() {
        let marks = WritePositions::default();
        let verdict = OutcomeKind::Cancelled { generation: 3 };
        let outcome = Outcome { trigger: "tea".into(), answers: Some(9), at: 0, kind: verdict };
        marks.observe_outcome(&OutcomeRecord { outcome, partition: 2, offset: 41 });
        let mark = |log, offset| WritePosition { topic: log, partition: 2, offset };
        assert_eq!(marks.list(), [mark(ViewTopic::Triggers, 9), mark(ViewTopic::Outcomes, 41)]);
    }
}
