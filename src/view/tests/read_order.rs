//! In whatever order the topics are read, the view becomes the same, and correct; and before that
//! it never shows what did not happen.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use proptest::prelude::*;

use super::history::{HistoryDefinition, PartitionHistory, changed_name};
use super::history_actions::{HistoryAction, HistoryConflict, HistoryTriggerKind, actions};
use super::view_replay::{CURSOR, Compaction, ViewReplay};
use crate::model::input::Request;
use crate::view::filter::{Page, Scope, TriggerFilter};
use crate::view::projector::encode_position;
use crate::view::results::{Status, TriggerView};

/// The logs, one after the other: triggers, ledger, outcomes.
const READ_ORDERS: [[u8; 3]; 6] =
    [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

impl ViewReplay<'_> {
    /// The newest accepted registration of each id is shown, in lists and alone, with its status,
    /// and as its changes have made it.
    fn assert_correct(&self) {
        let current = self.history.current();
        let listed = current.values().map(|(generation, s)| (encode_position(0, *generation), *s));
        assert_eq!(self.shown(), listed.collect::<BTreeMap<_, _>>());
        let mut counts = BTreeMap::new();
        for (id, expected) in current {
            let found = self.fixture.queries().trigger(&Scope::All, id).unwrap().unwrap().view;
            assert_eq!((found.generation, found.status), expected, "{id}");
            let defined = &self.history.defined[&(id.to_owned(), found.generation)];
            assert_eq!(&definition_of(&found, defined), defined, "{id}");
            assert!(!found.is_behind, "{id}");
            let counted = (found.caller.unwrap_or_default(), found.status.number());
            *counts.entry(counted).or_insert(0) += 1;
        }
        assert_eq!(self.tally(), counts);
        for record in &self.history.triggers {
            if matches!(record.request, Request::Change(_)) {
                self.assert_found_by(&changed_name(record.offset));
            }
        }
    }

    /// How many triggers are shown, by caller and status.
    fn tally(&self) -> BTreeMap<(String, i64), i64> {
        let sql = "SELECT coalesce(c.text, ''), t.status, t.count FROM tally AS t \
                   LEFT JOIN name AS c ON c.nid = t.caller WHERE t.count <> 0";
        let mut select = self.fixture.db.prepare(sql).unwrap();
        let read = |row: &rusqlite::Row<'_>| Ok(((row.get(0)?, row.get(1)?), row.get(2)?));
        let rows = select.query_map([], read).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    }

    /// A name finds the triggers that have it now.
    fn assert_found_by(&self, name: &str) {
        let filter = TriggerFilter { text: Some(name.to_owned()), ..TriggerFilter::default() };
        let page = Page { size: 100, token: None };
        let found = self.fixture.queries().triggers(&Scope::All, &filter, &page).unwrap();
        let found: BTreeSet<String> = found.items.into_iter().map(|view| view.id).collect();
        let has_name = |(id, (generation, _)): (&str, (u64, Status))| {
            let defined = &self.history.defined[&(id.to_owned(), generation)];
            let mut values = defined.definition.headers.iter().map(|header| &header.value);
            values.any(|value| value.as_deref() == Some(name.as_bytes())).then(|| id.to_owned())
        };
        let named: BTreeSet<String> =
            self.history.current().into_iter().filter_map(has_name).collect();
        assert_eq!(found, named, "{name}");
    }
}

/// What is shown of a trigger, as far as it is known for certain.
fn definition_of(view: &TriggerView, expected: &HistoryDefinition) -> HistoryDefinition {
    HistoryDefinition {
        revision: view.revision,
        definition: view.definition.clone(),
        schedule: view.schedule.clone(),
        after: view.after.clone(),
        expire_after: view.expire_after,
        retain: view.retain,
        priority: view.priority,
        fire_at: expected.fire_at.and(view.fire_at),
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

    /// With many versions only the newest one is applied, or none.
    #[test]
    fn a_definition_is_the_same_with_many_versions_or_is_behind(
        acts in actions(),
        picks in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let history = PartitionHistory::of(&acts);
        let mut reading = ViewReplay::new(&history, Compaction::None);
        let mut whole = ViewReplay::new(&history, Compaction::None);
        whole.fixture.cache.unmerged_max = u32::MAX;
        for pick in picks {
            reading.step(pick);
            whole.step(pick);
            let page = Page { size: 1_000, token: None };
            let all = TriggerFilter::default();
            let shown = reading.fixture.queries().triggers(&Scope::All, &all, &page).unwrap();
            for view in shown.items.into_iter().filter(|view| !view.is_behind) {
                let other = whole.fixture.queries().trigger(&Scope::All, &view.id).unwrap();
                prop_assert_eq!(Some(view), other.map(|found| found.view));
            }
        }
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
    let cases: [(_, &[HistoryAction], _); 9] = [
        ("pending", &[first, Commit, newest], 0),
        ("pending, in the same step", &[first, newest], 0),
        ("late", &[first, Commit, Wait { ms: 30 }, newest], 0),
        ("fired", &[first, Commit, Wait { ms: 30 }, Commit, newest], 1),
        ("cancelled", &[first, Commit, Cancel { id: 0 }, Commit, newest], 1),
        ("cancelled, in the same step", &[first, Commit, Cancel { id: 0 }, newest], 1),
        ("replaced", &[first, first, Commit, older], 1),
        ("never registered", &[newest], 1),
        // The mark of offset 0 is read before a cursor that has passed nothing.
        ("never registered, after a cursor", &[Commit, newest], 1),
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
