//! What this gateway has written and been answered, so that it reads its own writes.
//!
//! Law: memory is two numbers a partition, and they only grow.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::Receipt;
use super::receipts::Told;
use crate::model::{Offset, PartitionId};
use crate::view::{Log, Mark};

/// The highest position in each log that a read must contain.
#[derive(Debug, Default)]
pub(super) struct Marks {
    highest: Mutex<Highest>,
}

#[derive(Debug, Default)]
struct Highest {
    triggers: BTreeMap<PartitionId, Offset>,
    outcomes: BTreeMap<PartitionId, Offset>,
}

impl Marks {
    /// A record was written, and perhaps answered.
    pub(super) fn written(&self, receipt: &Receipt) {
        self.raise(|highest| {
            raise(&mut highest.triggers, receipt.place.partition, receipt.place.offset)
        });
        if let Some(told) = &receipt.told {
            self.told(told);
        }
    }

    /// An owner has answered: the record that it answers stands in the partition of its answer.
    pub(super) fn told(&self, told: &Told) {
        self.raise(|highest| {
            raise(&mut highest.outcomes, told.partition, told.offset);
            if let Some(answers) = told.outcome.answers {
                raise(&mut highest.triggers, told.partition, answers);
            }
        });
    }

    /// Everything that a read must contain now.
    pub(super) fn list(&self) -> Vec<Mark> {
        let highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        let triggers = highest.triggers.iter().map(|(p, o)| (Log::Triggers, *p, *o));
        let outcomes = highest.outcomes.iter().map(|(p, o)| (Log::Outcomes, *p, *o));
        let mark = |(log, partition, offset)| Mark { log, partition, offset };
        triggers.chain(outcomes).map(mark).collect()
    }

    fn raise(&self, change: impl FnOnce(&mut Highest)) {
        change(&mut self.highest.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn raise(highest: &mut BTreeMap<PartitionId, Offset>, partition: PartitionId, offset: Offset) {
    let entry = highest.entry(partition).or_insert(offset);
    *entry = (*entry).max(offset);
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
        let list = marks.list();
        let triples: Vec<_> =
            list.iter().map(|m| (matches!(m.log, Log::Triggers), m.partition, m.offset)).collect();
        assert_eq!(triples, [(true, 1, 7), (false, 1, 40)]);
    }
}
