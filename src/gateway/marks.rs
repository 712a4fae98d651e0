//! What this gateway has written and been answered, so that it reads its own writes.
//!
//! Law: memory is three numbers a partition, and they only grow.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::Receipt;
use super::receipts::Told;
use crate::dead_letters::Done;
use crate::model::{Offset, PartitionId};
use crate::view::{Log, Mark};

/// The highest offset in each partition of each log that a read must contain.
#[derive(Debug, Default)]
pub(super) struct Marks {
    highest: Mutex<BTreeMap<(Log, PartitionId), Offset>>,
}

impl Marks {
    /// A record was written, and perhaps answered.
    pub(super) fn written(&self, receipt: &Receipt) {
        self.raise(Log::Triggers, receipt.place.partition, receipt.place.offset);
        if let Some(told) = &receipt.told {
            self.told(told);
        }
    }

    /// An owner has answered: the record that it answers stands in the partition of its answer.
    pub(super) fn told(&self, told: &Told) {
        self.raise(Log::Outcomes, told.partition, told.offset);
        if let Some(answers) = told.outcome.answers {
            self.raise(Log::Triggers, told.partition, answers);
        }
    }

    /// Dead letters were dealt with.
    pub(super) fn dealt(&self, done: &Done) {
        for (partition, offset) in &done.marked {
            self.raise(Log::DeadLetters, *partition, *offset);
        }
    }

    /// Everything that a read must contain now.
    pub(super) fn list(&self) -> Vec<Mark> {
        let highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        let mark = |(&(log, partition), &offset)| Mark { log, partition, offset };
        highest.iter().map(mark).collect()
    }

    fn raise(&self, log: Log, partition: PartitionId, offset: Offset) {
        let mut highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = highest.entry((log, partition)).or_insert(offset);
        *entry = (*entry).max(offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::writer::Place;
    use crate::model::outcome::{Outcome, Verdict};

    #[test]
    fn the_highest_of_each_partition_is_kept() {
        let marks = Marks::default();
        let place = |partition, offset| Place { topic: "t".to_owned(), partition, offset };
        marks.written(&Receipt { place: place(1, 7), told: None });
        let verdict = Verdict::Cancelled { generation: 3 };
        let outcome = Outcome { trigger: "tea".into(), answers: Some(5), at: 0, verdict };
        let told = Some(Told { outcome, partition: 1, offset: 40 });
        marks.written(&Receipt { place: place(1, 5), told });
        let dealt =
            |partition, offset| Done { marked: [(partition, offset)].into(), ..Done::default() };
        marks.dealt(&dealt(0, 9));
        marks.dealt(&dealt(0, 8));
        let list = marks.list();
        let triples: Vec<_> = list.iter().map(|m| (m.log, m.partition, m.offset)).collect();
        let expected = [(Log::Triggers, 1, 7), (Log::Outcomes, 1, 40), (Log::DeadLetters, 0, 9)];
        assert_eq!(triples, expected);
        marks.written(&Receipt { place: place(1, 9), told: None });
        assert_eq!(marks.list()[0].offset, 9);
    }

    #[test]
    fn an_answer_says_where_the_record_stands_that_it_answers() {
        let marks = Marks::default();
        let verdict = Verdict::Cancelled { generation: 3 };
        let outcome = Outcome { trigger: "tea".into(), answers: Some(9), at: 0, verdict };
        marks.told(&Told { outcome, partition: 2, offset: 41 });
        let mark = |log, offset| Mark { log, partition: 2, offset };
        assert_eq!(marks.list(), [mark(Log::Triggers, 9), mark(Log::Outcomes, 41)]);
    }
}
