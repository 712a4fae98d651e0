//! The view says what the second opinion says of random histories, whatever is left of their
//! records, and in whatever order they are read.
//!
//! Invariant: a view and its second opinion have the same records. One view reads all of them; two
//! others read what compaction and retention have left, in orders of their own.

use proptest::prelude::*;

use super::RecordsRead;
use crate::view::tests::history::PartitionHistory;
use crate::view::tests::history_actions::{HistoryAction, actions};
use crate::view::tests::view_replay::{CURSOR, Compaction, ViewReplay};

/// Histories of a run, unless `ORLOJ_VIEW_LOGS` says how many.
const LOGS: u32 = 2_000;
/// Longer than marks and tombstones can be read, in ms.
const LATER: HistoryAction = HistoryAction::Wait { ms: 10 * 86_400_000 };

fn logs() -> u32 {
    std::env::var("ORLOJ_VIEW_LOGS").map_or(LOGS, |count| count.parse().unwrap())
}

impl RecordsRead {
    fn of(reading: &ViewReplay<'_>) -> Self {
        let history = reading.history;
        let outcomes = (0..).zip(history.outcomes.iter().cloned()).skip(reading.first_outcome);
        Self {
            triggers: history.triggers.clone(),
            ledger: reading.ledger.iter().map(|(_, record)| record.clone()).collect(),
            outcomes: outcomes.collect(),
            letters: history.letters.clone(),
            cursors: reading.cursors.clone(),
        }
    }
}

/// A view that has read what is left of a history.
fn read<'a>(
    history: &'a PartitionHistory,
    compaction: Compaction,
    first_outcome: usize,
    picks: &[u8],
) -> ViewReplay<'a> {
    let mut reading = ViewReplay::new(history, compaction).with_outcomes_from(first_outcome);
    for pick in picks {
        // What is newer than a cursor that is read is not compacted.
        reading.step(if compaction == Compaction::None { *pick } else { pick % CURSOR });
    }
    reading.finish();
    reading
}

/// Every query about triggers, executions and dead letters says what the second opinion says.
fn assert_agreement(reading: &ViewReplay<'_>) {
    let differences = RecordsRead::of(reading).differences(reading.fixture.queries());
    let differences: Vec<_> =
        differences.into_iter().map(|(about, why)| format!("{about}: {why}")).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: logs(), ..ProptestConfig::default() })]

    #[test]
    fn the_view_and_a_second_opinion_agree(
        acts in actions(),
        picks in prop::array::uniform3(prop::collection::vec(any::<u8>(), 0..300)),
        lost_quarters in 0..=4_usize,
        left in prop_oneof![
            Just(Compaction::None),
            Just(Compaction::Newest),
            Just(Compaction::WithoutTombstones),
        ],
    ) {
        let [all, some, others] = picks;
        let history = PartitionHistory::of(&acts);
        assert_agreement(&read(&history, Compaction::None, 0, &all));
        // Tombstones are deleted days later.
        let later = (left == Compaction::WithoutTombstones).then_some(LATER);
        let history = PartitionHistory::of(&acts.into_iter().chain(later).collect::<Vec<_>>());
        let first_outcome = history.outcomes.len() * lost_quarters / 4;
        let one = read(&history, left, first_outcome, &some);
        assert_agreement(&one);
        let other = read(&history, left, first_outcome, &others);
        assert_agreement(&other);
        prop_assert_eq!(one.dump(), other.dump());
    }
}
