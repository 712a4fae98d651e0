//! In whatever order the topics are read, the view becomes the same, and correct; and before that
//! it never shows what did not happen.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::ViewFixture;
use super::history::{CommitPoint, HistoryAction, PartitionHistory, actions};
use crate::model::ledger::{LedgerKey, LedgerRecord};
use crate::view::dump;
use crate::view::projector::{RecordPosition, encode_position};
use crate::view::results::Status;

/// How far each log is read.
#[derive(Clone, Copy, Debug, Default)]
struct LogPositions {
    triggers: usize,
    ledger: usize,
    outcomes: usize,
}

/// A view that reads a history: `picks` choose which log is read next, and when its state is
/// compared.
struct ViewReplay<'a> {
    fixture: ViewFixture,
    history: &'a PartitionHistory,
    ledger: Vec<(usize, LedgerRecord)>,
    positions: LogPositions,
}

impl<'a> ViewReplay<'a> {
    fn new(history: &'a PartitionHistory, compacted: bool) -> Self {
        let all = history.ledger.iter().cloned().enumerate();
        let newest: BTreeMap<LedgerKey, usize> =
            all.clone().map(|(at, record)| (record.key, at)).collect();
        let stays = |(at, record): &(usize, LedgerRecord)| {
            !compacted || newest[&record.key] == *at && record.value.is_some()
        };
        let ledger = all.filter(stays).collect();
        Self { fixture: ViewFixture::new(), history, ledger, positions: LogPositions::default() }
    }

    fn is_done(&self) -> bool {
        let LogPositions { triggers, ledger, outcomes } = self.positions;
        triggers == self.history.triggers.len()
            && ledger == self.ledger.len()
            && outcomes == self.history.outcomes.len()
    }

    fn step(&mut self, pick: u8) {
        let read = &mut self.positions;
        match pick % 4 {
            0 => {
                let Some(record) = self.history.triggers.get(read.triggers) else { return };
                read.triggers += 1;
                self.fixture.projector().apply_trigger(0, record.clone()).unwrap();
            }
            1 => {
                let Some((offset, record)) = self.ledger.get(read.ledger).cloned() else { return };
                read.ledger += 1;
                let (partition, offset, timestamp) = (0, offset as u64, 0);
                let at = RecordPosition { partition, offset, timestamp };
                self.fixture.projector().apply_ledger(at, record).unwrap();
            }
            2 => {
                let Some(outcome) = self.history.outcomes.get(read.outcomes) else { return };
                let offset = read.outcomes as u64;
                read.outcomes += 1;
                self.fixture.projector().apply_outcome(0, offset, outcome).unwrap();
            }
            _ => self.apply_newest_cursor(),
        }
    }

    /// The newest cursor up to which everything is read.
    fn apply_newest_cursor(&mut self) {
        let ledger =
            self.ledger.get(self.positions.ledger).map_or(usize::MAX, |(offset, _)| *offset);
        let reached = |cut: &&CommitPoint| {
            cut.triggers <= self.positions.triggers
                && cut.ledger <= ledger
                && cut.outcomes <= self.positions.outcomes
        };
        let Some(cut) = self.history.commits.iter().rev().find(reached).copied() else { return };
        self.fixture.projector().apply_cursor(0, &cut.cursor, cut.ledger as u64).unwrap();
    }

    fn finish(&mut self) {
        for pick in [1, 0, 2].into_iter().cycle() {
            if self.is_done() {
                break;
            }
            self.step(pick);
        }
        self.apply_newest_cursor();
    }

    /// The registrations that are shown: by place, with status.
    fn shown(&self) -> BTreeMap<i64, Status> {
        let mut select = self.fixture.db.prepare_cached("SELECT gid, status FROM listed").unwrap();
        let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.map(|row| row.map(|(gid, s)| (gid, Status::of_number(s).unwrap())).unwrap()).collect()
    }

    fn dump(&self) -> Vec<String> {
        dump::lines(&self.fixture.db).unwrap()
    }
}

/// Registrations that were cancelled before they fired.
fn never_fired(history: &PartitionHistory) -> HashSet<i64> {
    let cancelled = history.expected.iter().filter(|(_, status)| **status == Status::Cancelled);
    cancelled.map(|((_, generation), _)| encode_position(0, *generation)).collect()
}

fn replay<'a>(history: &'a PartitionHistory, picks: &[u8]) -> ViewReplay<'a> {
    let mut reading = ViewReplay::new(history, false);
    let cancelled = never_fired(history);
    for pick in picks {
        reading.step(*pick);
        for (gid, status) in reading.shown() {
            let fired = matches!(status, Status::Fired | Status::InFlight | Status::Completed);
            assert!(!(fired && cancelled.contains(&gid)), "{gid} is shown as {status:?}");
        }
    }
    reading.finish();
    reading
}

/// Kept registrations without a request for an outcome are recognized by skip marks, which a
/// compacted ledger has lost.
fn with_acks(acts: &[HistoryAction]) -> Vec<HistoryAction> {
    let with_ack = |act: &HistoryAction| match *act {
        HistoryAction::Register { id, kind, keep, delay, .. } => {
            HistoryAction::Register { id, kind, keep, ack: true, delay }
        }
        other => other,
    };
    acts.iter().map(with_ack).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_view_is_the_same_and_correct_in_every_read_order(
        acts in actions(),
        picks in prop::collection::vec(any::<u8>(), 0..300),
        others in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let history = PartitionHistory::of(&acts);
        let reading = replay(&history, &picks);
        let dump = reading.dump();
        prop_assert_eq!(&dump, &replay(&history, &others).dump());
        // One topic after the other.
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let picks: Vec<u8> = order.into_iter().flat_map(|one| [one; 100]).collect();
            prop_assert_eq!(&dump, &replay(&history, &picks).dump());
        }
        let shown = reading.shown();
        for (id, (generation, status)) in history.current() {
            let shown = shown.get(&encode_position(0, generation));
            prop_assert_eq!(shown, Some(&status), "{} {}", id, generation);
        }
        prop_assert_eq!(shown.len(), history.current().len());
    }

    #[test]
    fn a_view_read_from_a_compacted_ledger_is_the_same(
        acts in actions(),
        picks in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let history = PartitionHistory::of(&with_acks(&acts));
        let dump = replay(&history, &picks).dump();
        let mut rebuilt = ViewReplay::new(&history, true);
        rebuilt.finish();
        prop_assert_eq!(dump, rebuilt.dump());
    }
}
