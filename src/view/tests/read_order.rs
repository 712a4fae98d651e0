//! In whatever order the topics are read, the view becomes the same, and correct; and before that
//! it never shows what did not happen.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::ViewFixture;
use super::history::{CommitPoint, PartitionHistory};
use super::history_actions::{HistoryAction, HistoryConflict, HistoryTriggerKind, actions};
use crate::model::ledger::{LedgerKey, LedgerRecord};
use crate::view::dump;
use crate::view::filter::Scope;
use crate::view::projector::{RecordPosition, encode_position};
use crate::view::results::Status;

/// The logs, one after the other: triggers, ledger, outcomes.
const READ_ORDERS: [[u8; 3]; 6] =
    [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
/// A pick of a cursor.
const CURSOR: u8 = 3;

/// What compaction has left of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compaction {
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
    fn new(history: &'a PartitionHistory, compaction: Compaction) -> Self {
        let all = history.ledger.iter().cloned().enumerate();
        let newest: BTreeMap<LedgerKey, usize> =
            all.clone().map(|(at, record)| (record.key, at)).collect();
        let stays = |(at, record): &(usize, LedgerRecord)| match compaction {
            Compaction::None => true,
            Compaction::Newest => newest[&record.key] == *at,
            Compaction::WithoutTombstones => newest[&record.key] == *at && record.value.is_some(),
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

    /// The newest accepted registration of each id is shown, in lists and alone, with its status.
    fn assert_correct(&self) {
        let current = self.history.current();
        let listed = current.values().map(|(generation, s)| (encode_position(0, *generation), *s));
        assert_eq!(self.shown(), listed.collect::<BTreeMap<_, _>>());
        for (id, expected) in current {
            let found = self.fixture.queries().trigger(&Scope::All, id).unwrap().unwrap().view;
            assert_eq!((found.generation, found.status), expected, "{id}");
        }
    }
}

/// Registrations that were cancelled before they fired.
fn never_fired(history: &PartitionHistory) -> HashSet<i64> {
    let cancelled = history.expected.iter().filter(|(_, status)| **status == Status::Cancelled);
    cancelled.map(|((_, generation), _)| encode_position(0, *generation)).collect()
}

fn replay<'a>(
    history: &'a PartitionHistory,
    compaction: Compaction,
    picks: &[u8],
) -> ViewReplay<'a> {
    let mut reading = ViewReplay::new(history, compaction);
    let cancelled = never_fired(history);
    let ignored: HashSet<_> =
        history.ignored.iter().map(|offset| encode_position(0, *offset)).collect();
    for pick in picks {
        reading.step(*pick);
        for (gid, status) in reading.shown() {
            assert!(!ignored.contains(&gid), "{gid} is shown, and was ignored");
            let fired = matches!(status, Status::Fired | Status::InFlight | Status::Completed);
            assert!(!(fired && cancelled.contains(&gid)), "{gid} is shown as {status:?}");
        }
    }
    reading.finish();
    reading
}

/// One log after the other, without a cursor between them or with one after each record.
fn picks_of(order: [u8; 3], with_cursors: bool) -> Vec<u8> {
    let one_by_one = order.into_iter().flat_map(|log| [log; 100]);
    one_by_one.flat_map(|log| [Some(log), with_cursors.then_some(CURSOR)]).flatten().collect()
}

/// Ignored registrations without a request for an outcome are recognized by their skip marks or the
/// tombstones of those, until the ledger has lost both.
fn with_acks(acts: &[HistoryAction]) -> Vec<HistoryAction> {
    let with_ack = |act: &HistoryAction| match *act {
        HistoryAction::Register { id, kind, conflict, delay, .. } => {
            HistoryAction::Register { id, kind, conflict, ack: true, delay }
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
        let reading = replay(&history, Compaction::None, &picks);
        let dump = reading.dump();
        prop_assert_eq!(&dump, &replay(&history, Compaction::None, &others).dump());
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let picks = picks_of(order, false);
            prop_assert_eq!(&dump, &replay(&history, Compaction::None, &picks).dump());
        }
        reading.assert_correct();
    }

    #[test]
    fn a_view_read_from_a_compacted_ledger_is_the_same(
        acts in actions(),
        picks in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        for (acts, compaction) in [
            (acts.clone(), Compaction::Newest),
            (with_acks(&acts), Compaction::WithoutTombstones),
        ] {
            let history = PartitionHistory::of(&acts);
            let dump = replay(&history, Compaction::None, &picks).dump();
            let mut rebuilt = ViewReplay::new(&history, compaction);
            rebuilt.finish();
            prop_assert_eq!(dump, rebuilt.dump());
        }
    }
}

/// Histories in which a registration is to replace a certain one: how many are ignored.
fn replacements() -> Vec<(&'static str, Vec<HistoryAction>, usize)> {
    use HistoryAction::{Cancel, Commit, Wait};
    use HistoryConflict::{Match, Replace};
    let register = |conflict| {
        let (id, kind, ack, delay) = (0, HistoryTriggerKind::Http, false, 20);
        HistoryAction::Register { id, kind, conflict, ack, delay }
    };
    let (first, newest, older) = (register(Replace), register(Match(0)), register(Match(1)));
    let cases: [(_, &[HistoryAction], _); 8] = [
        ("pending", &[first, Commit, newest], 0),
        ("pending, in the same step", &[first, newest], 0),
        ("late", &[first, Commit, Wait { ms: 30 }, newest], 0),
        ("fired", &[first, Commit, Wait { ms: 30 }, Commit, newest], 1),
        ("cancelled", &[first, Commit, Cancel { id: 0 }, Commit, newest], 1),
        ("cancelled, in the same step", &[first, Commit, Cancel { id: 0 }, newest], 1),
        ("replaced", &[first, first, Commit, older], 1),
        ("never registered", &[newest], 1),
    ];
    // It fires, and its mark is deleted.
    let end = [Commit, Wait { ms: 50 }, Commit, Commit];
    cases.into_iter().map(|(name, acts, ignored)| (name, [acts, &end].concat(), ignored)).collect()
}

#[test]
fn a_replacement_is_shown_in_every_read_order_if_its_owner_accepted_it() {
    for (name, acts, ignored) in replacements() {
        let plain = PartitionHistory::of(&acts);
        let with_acks = PartitionHistory::of(&with_acks(&acts));
        for (history, compaction) in [
            (&plain, Compaction::None),
            (&plain, Compaction::Newest),
            (&with_acks, Compaction::None),
            (&with_acks, Compaction::WithoutTombstones),
        ] {
            assert_eq!(history.ignored.len(), ignored, "{name}");
            // What is newer than a cursor that is read is not compacted.
            let is_whole = compaction == Compaction::None;
            for order in READ_ORDERS {
                for with_cursors in [false, is_whole] {
                    println!("{name}, {compaction:?}, {order:?}, with cursors: {with_cursors}");
                    replay(history, compaction, &picks_of(order, with_cursors)).assert_correct();
                }
            }
        }
    }
}

#[test]
fn without_marks_and_outcomes_the_times_of_registrations_decide() {
    let later = [HistoryAction::Wait { ms: 10 * 86_400_000 }];
    // That one was pending beyond its time is known to nothing that is left.
    for (name, acts, _) in replacements().into_iter().filter(|(name, ..)| *name != "late") {
        let history = PartitionHistory::of(&[&acts[..], &later].concat());
        for order in READ_ORDERS {
            println!("{name}, {order:?}");
            let picks = picks_of(order, false);
            replay(&history, Compaction::WithoutTombstones, &picks).assert_correct();
        }
    }
}
