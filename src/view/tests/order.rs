//! In whatever order the topics are read, the view becomes the same, and the truth; and on the way
//! there it never shows what did not happen.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::Scene;
use super::history::{Act, Cut, History, acts};
use crate::model::ledger::{LedgerKey, LedgerRecord};
use crate::view::answer::Status;
use crate::view::dump;
use crate::view::fold::{Written, place_of};

/// How far each log is read.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    triggers: usize,
    ledger: usize,
    outcomes: usize,
}

/// A view that reads a history: `picks` say from which log comes next, and when it is settled.
struct Reading<'a> {
    scene: Scene,
    history: &'a History,
    ledger: Vec<(usize, LedgerRecord)>,
    read: Read,
}

impl<'a> Reading<'a> {
    fn new(history: &'a History, compacted: bool) -> Self {
        let all = history.ledger.iter().cloned().enumerate();
        let newest: BTreeMap<LedgerKey, usize> =
            all.clone().map(|(at, record)| (record.key, at)).collect();
        let stays = |(at, record): &(usize, LedgerRecord)| {
            !compacted || newest[&record.key] == *at && record.value.is_some()
        };
        let ledger = all.filter(stays).collect();
        Self { scene: Scene::new(), history, ledger, read: Read::default() }
    }

    fn is_done(&self) -> bool {
        let Read { triggers, ledger, outcomes } = self.read;
        triggers == self.history.triggers.len()
            && ledger == self.ledger.len()
            && outcomes == self.history.outcomes.len()
    }

    fn step(&mut self, pick: u8) {
        let read = &mut self.read;
        match pick % 4 {
            0 => {
                let Some(record) = self.history.triggers.get(read.triggers) else { return };
                read.triggers += 1;
                self.scene.fold().trigger(0, record.clone()).unwrap();
            }
            1 => {
                let Some((offset, record)) = self.ledger.get(read.ledger).cloned() else { return };
                read.ledger += 1;
                let (partition, offset, timestamp) = (0, offset as u64, 0);
                let at = Written { partition, offset, timestamp };
                self.scene.fold().ledger(at, record).unwrap();
            }
            2 => {
                let Some(outcome) = self.history.outcomes.get(read.outcomes) else { return };
                let offset = read.outcomes as u64;
                read.outcomes += 1;
                self.scene.fold().outcome(0, offset, outcome).unwrap();
            }
            _ => self.settle(),
        }
    }

    /// The newest cursor that everything is read for.
    fn settle(&mut self) {
        let ledger = self.ledger.get(self.read.ledger).map_or(usize::MAX, |(offset, _)| *offset);
        let reached = |cut: &&Cut| {
            cut.triggers <= self.read.triggers
                && cut.ledger <= ledger
                && cut.outcomes <= self.read.outcomes
        };
        let Some(cut) = self.history.cuts.iter().rev().find(reached).copied() else { return };
        self.scene.fold().settle(0, &cut.cursor, cut.ledger as u64).unwrap();
    }

    fn finish(&mut self) {
        for pick in [1, 0, 2].into_iter().cycle() {
            if self.is_done() {
                break;
            }
            self.step(pick);
        }
        self.settle();
    }

    /// What is shown of registrations: by place, with status.
    fn shown(&self) -> BTreeMap<i64, Status> {
        let mut select = self.scene.db.prepare_cached("SELECT gid, status FROM listed").unwrap();
        let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.map(|row| row.map(|(gid, s)| (gid, Status::of_number(s).unwrap())).unwrap()).collect()
    }

    fn dump(&self) -> Vec<String> {
        dump::lines(&self.scene.db).unwrap()
    }
}

/// Registrations that were cancelled before they fired.
fn never_fired(history: &History) -> HashSet<i64> {
    let cancelled = history.truth.iter().filter(|(_, status)| **status == Status::Cancelled);
    cancelled.map(|((_, generation), _)| place_of(0, *generation)).collect()
}

fn lived<'a>(history: &'a History, picks: &[u8]) -> Reading<'a> {
    let mut reading = Reading::new(history, false);
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

/// Keeps that nobody asks about are told apart by marks, which a compacted ledger has lost.
fn asks(acts: &[Act]) -> Vec<Act> {
    let ask = |act: &Act| match *act {
        Act::Register { id, kind, keep, delay, .. } => {
            Act::Register { id, kind, keep, ack: true, delay }
        }
        other => other,
    };
    acts.iter().map(ask).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_topic_is_read_first_the_view_is_the_same_and_true(
        acts in acts(),
        picks in prop::collection::vec(any::<u8>(), 0..300),
        others in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let history = History::of(&acts);
        let reading = lived(&history, &picks);
        let dump = reading.dump();
        prop_assert_eq!(&dump, &lived(&history, &others).dump());
        // One topic after the other.
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let picks: Vec<u8> = order.into_iter().flat_map(|one| [one; 100]).collect();
            prop_assert_eq!(&dump, &lived(&history, &picks).dump());
        }
        let shown = reading.shown();
        for (id, (generation, status)) in history.current() {
            let shown = shown.get(&place_of(0, generation));
            prop_assert_eq!(shown, Some(&status), "{} {}", id, generation);
        }
        prop_assert_eq!(shown.len(), history.current().len());
    }

    #[test]
    fn what_is_read_off_a_compacted_ledger_is_the_same(
        acts in acts(),
        picks in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let history = History::of(&asks(&acts));
        let dump = lived(&history, &picks).dump();
        let mut rebuilt = Reading::new(&history, true);
        rebuilt.finish();
        prop_assert_eq!(dump, rebuilt.dump());
    }
}
