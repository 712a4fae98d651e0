//! The view says what the second opinion says of random histories, whatever is left of their
//! records, and in whatever order they are read.
//!
//! Invariant: a view and its second opinion have the same records. One view reads all of them; two
//! others read what compaction and retention have left, in orders of their own.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{ExecutionOpinion, RecordsRead, TriggerOpinion};
use crate::view::filter::{DeadLetterFilter, Page, Scope, TriggerFilter};
use crate::view::results::{ExecutionView, Status, TriggerView};
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

impl From<TriggerView> for TriggerOpinion {
    fn from(view: TriggerView) -> Self {
        assert!(!view.is_behind, "everything is read: {view:?}");
        Self {
            id: view.id,
            generation: view.generation,
            revision: view.revision,
            created_at: view.created_at,
            status: view.status,
            reason: view.reason,
            fire_at: view.fire_at.unwrap(),
            settled_at: view.settled_at,
            executions: view.executions,
            last_execution: view.last_execution.map(ExecutionOpinion::from),
            definition: view.definition,
            schedule: view.schedule,
            after: view.after,
            expire_after: view.expire_after,
            retain: view.retain,
            priority: view.priority,
        }
    }
}

impl From<ExecutionView> for ExecutionOpinion {
    fn from(view: ExecutionView) -> Self {
        let ExecutionView { occurrence, attempt, status, at, .. } = view;
        Self { occurrence, attempt, status, at }
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

/// Single answers, the list, the counts and the dead letters are those of the second opinion.
fn assert_agreement(reading: &ViewReplay<'_>) {
    let (records, queries) = (RecordsRead::of(reading), reading.fixture.queries());
    let opinions = records.triggers();
    for opinion in &opinions {
        let found = queries.trigger(&Scope::All, &opinion.id).unwrap();
        let found = found.map(|found| TriggerOpinion::from(found.view));
        assert_eq!(found.as_ref(), Some(opinion));
    }
    let page = Page { size: 1_000, token: None };
    let listed = queries.triggers(&Scope::All, &TriggerFilter::default(), &page).unwrap();
    let listed: Vec<_> = listed.items.into_iter().map(TriggerOpinion::from).collect();
    assert_eq!(listed, opinions);
    let is_pending = |opinion: &&TriggerOpinion| {
        let is_settled = opinion.settled_at.is_some();
        assert_eq!(is_settled, !is_unsettled(opinion.status), "{opinion:?}");
        !is_settled && opinion.definition.caller.is_some()
    };
    let pending = opinions.iter().filter(is_pending).count() as u64;
    assert_eq!(queries.pending_count("billing").unwrap(), pending);
    let letters = queries.dead_letters(&Scope::All, &DeadLetterFilter::default(), &page).unwrap();
    let letters = letters.items.into_iter();
    let letters = letters.map(|letter| (letter.offset, (letter.state, letter.replays)));
    assert_eq!(letters.collect::<BTreeMap<_, _>>(), records.dead_letters());
}

fn is_unsettled(status: Status) -> bool {
    use Status::{InFlight, Paused, Pending, Scheduled, Waiting};
    [Pending, Scheduled, Waiting, InFlight, Paused].contains(&status)
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
