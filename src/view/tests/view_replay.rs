//! A view that reads a history: record by record, in any order of the logs, with the cursors that
//! are reached, and from what compaction and retention have left.
//!
//! Invariant: a cursor is applied only when everything is read that was in the logs when it was
//! committed.

use std::collections::BTreeMap;

use super::ViewFixture;
use super::history::{CommitPoint, PartitionHistory};
use crate::engine::cursor::Cursor;
use crate::model::ledger::{LedgerKey, LedgerRecord};
use crate::view::dump;
use crate::view::projector::RecordPosition;
use crate::view::results::Status;

/// The number of logs: triggers, ledger, outcomes, dead letters.
const LOGS: u8 = 4;
/// A pick of a cursor.
pub(super) const CURSOR: u8 = LOGS;

/// What compaction has left of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compaction {
    /// Everything.
    None,
    /// The newest record of each key.
    Newest,
    /// That, without tombstones.
    WithoutTombstones,
}

/// How far each log is read.
#[derive(Clone, Copy, Debug, Default)]
struct LogPositions {
    triggers: usize,
    ledger: usize,
    outcomes: usize,
    letters: usize,
}

/// A view that reads a history: picks choose which log is read next, and when a cursor is applied.
pub(super) struct ViewReplay<'a> {
    pub(super) fixture: ViewFixture,
    pub(super) history: &'a PartitionHistory,
    /// What is left of the ledger, with its offsets.
    pub(super) ledger: Vec<(usize, LedgerRecord)>,
    /// The first outcome that is left.
    pub(super) first_outcome: usize,
    /// The cursors that were applied.
    pub(super) cursors: Vec<Cursor>,
    positions: LogPositions,
}

impl<'a> ViewReplay<'a> {
    pub(super) fn new(history: &'a PartitionHistory, compaction: Compaction) -> Self {
        let all = history.ledger.iter().cloned().enumerate();
        let newest: BTreeMap<LedgerKey, usize> =
            all.clone().map(|(at, record)| (record.key, at)).collect();
        let stays = |(at, record): &(usize, LedgerRecord)| match compaction {
            Compaction::None => true,
            Compaction::Newest => newest[&record.key] == *at,
            Compaction::WithoutTombstones => newest[&record.key] == *at && record.value.is_some(),
        };
        let ledger = all.filter(stays).collect();
        let (first_outcome, cursors) = (0, Vec::new());
        let positions = LogPositions::default();
        let mut fixture = ViewFixture::new();
        // It is reached in some histories, and not in others.
        fixture.cache.unmerged_max = 3;
        Self { fixture, history, ledger, first_outcome, cursors, positions }
    }

    /// The same, but the outcomes before `first_outcome` have expired.
    pub(super) fn with_outcomes_from(mut self, first_outcome: usize) -> Self {
        self.first_outcome = first_outcome;
        self.positions.outcomes = first_outcome;
        self
    }

    fn is_done(&self) -> bool {
        let LogPositions { triggers, ledger, outcomes, letters } = self.positions;
        triggers == self.history.triggers.len()
            && ledger == self.ledger.len()
            && outcomes == self.history.outcomes.len()
            && letters == self.history.letters.len()
    }

    /// Reads a record of the log that is picked, if there is a further one, or applies a cursor.
    pub(super) fn step(&mut self, pick: u8) {
        let read = &mut self.positions;
        match pick % (LOGS + 1) {
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
            3 => {
                let Some(letter) = self.history.letters.get(read.letters) else { return };
                let offset = read.letters as u64;
                read.letters += 1;
                self.fixture.projector().apply_dead_letter(0, offset, letter).unwrap();
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
                && cut.letters <= self.positions.letters
        };
        let Some(cut) = self.history.commits.iter().rev().find(reached).copied() else { return };
        self.fixture.projector().apply_cursor(0, &cut.cursor, cut.ledger as u64).unwrap();
        self.cursors.push(cut.cursor);
    }

    /// Reads everything that is left, and applies the last cursor.
    pub(super) fn finish(&mut self) {
        for pick in [1, 0, 2, 3].into_iter().cycle() {
            if self.is_done() {
                break;
            }
            self.step(pick);
        }
        self.apply_newest_cursor();
    }

    /// The registrations that are shown: by place, with status.
    pub(super) fn shown(&self) -> BTreeMap<i64, Status> {
        let mut select = self.fixture.db.prepare_cached("SELECT gid, status FROM listed").unwrap();
        let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.map(|row| row.map(|(gid, s)| (gid, Status::of_number(s).unwrap())).unwrap()).collect()
    }

    pub(super) fn dump(&self) -> Vec<String> {
        dump::lines(&self.fixture.db).unwrap()
    }
}
