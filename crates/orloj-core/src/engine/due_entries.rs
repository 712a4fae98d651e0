//! Entries that are due, and what must be looked up before they fire.
//!
//! Invariant: late entries fire first; W after the fire is decided when they are taken.

use super::catalog::{TopicCatalog, TopicState};
use super::draft::RECORD_BYTES;
use super::index_row::IdHash;
use super::wheel::FiringCost;
use crate::codec::row::{self, RowBytes};
use crate::model::entry::Row;
use crate::model::fire::Withdrawal;
use crate::model::text::Text;
use crate::model::timeline::TimelineKey;

/// What it costs to decide an entry with a lifecycle, in plain fires: its row is read, changed and
/// written again, and a misfire rule may be applied.
pub const LIFECYCLE_COST: usize = 16;

/// Entries that are due.
#[derive(Clone, Debug)]
pub struct DueEntries {
    /// Registered at or below W: they fire first, in offset order, and do not move W.
    pub late: Vec<(TimelineKey, RowBytes)>,
    /// Off the timeline, in key order.
    pub entries: Vec<(TimelineKey, RowBytes)>,
    /// The triggers of these entries of which a record is parked.
    pub(super) held: Vec<IdHash>,
    /// Withdrawals of earlier fires: they are sent first, to every pool.
    pub(super) withdrawals: Vec<Withdrawal>,
    /// The pools to send them to, if there are withdrawals.
    pub(super) pools: Vec<Text>,
    /// W once these have fired.
    pub(super) fired_through: TimelineKey,
}

impl DueEntries {
    /// Whether there is nothing to fire.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.late.is_empty() && self.entries.is_empty() && self.withdrawals.is_empty()
    }

    /// How many fire.
    #[must_use]
    pub fn len(&self) -> usize {
        self.late.len() + self.entries.len()
    }

    /// The target topics that must be looked up before these fire, with repetitions.
    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.rows().filter_map(|row| row::target_topic(row))
    }

    /// The pools whose topics must be looked up before these fire, with repetitions.
    pub fn pools(&self) -> impl Iterator<Item = &str> {
        let named = self.rows().filter_map(|row| row::target_pool(row));
        named.chain(self.pools.iter().map(Text::as_str))
    }

    /// The ids whose index rows must be fetched: of entries with a lifecycle, which may be
    /// scheduled again, and of those which may wait, because of their topic or because a record of
    /// their trigger is parked.
    #[must_use]
    pub fn ids_to_prefetch(&self, catalog: &TopicCatalog) -> Vec<IdHash> {
        let any_may_wait = catalog.any_may_wait();
        let needs_index_row = |row: &&RowBytes| {
            if !any_may_wait || row::has_lifecycle(row) {
                return row::has_lifecycle(row);
            }
            let topic = row::target_topic(row).and_then(|topic| catalog.state(topic));
            let pool = || row::target_pool(row).and_then(|pool| catalog.pool(pool));
            match topic {
                Some(topic) => topic.may_wait() && may_wait_in(topic, row),
                None => pool().is_some_and(TopicState::may_wait_for_pool),
            }
        };
        let mut ids: Vec<_> =
            self.rows().filter(needs_index_row).filter_map(trigger_hash).collect();
        ids.extend(&self.held);
        ids
    }

    fn rows(&self) -> impl Iterator<Item = &RowBytes> {
        self.late.iter().chain(&self.entries).map(|(_, row)| row)
    }
}

/// Whether the fire of this row may have to wait for its partition of the topic.
fn may_wait_in(topic: &TopicState, row: &RowBytes) -> bool {
    let fire = row::view(row).ok().flatten();
    fire.is_none_or(|fire| topic.may_wait_with_key(fire.record_key()))
}

/// What it costs to fire an entry. One with a lifecycle may also be written to the ledger again.
pub(super) fn cost_of(row: &RowBytes) -> FiringCost {
    let bytes = RECORD_BYTES + row.len();
    if row::has_lifecycle(row) {
        FiringCost { fires: LIFECYCLE_COST, bytes: 2 * bytes }
    } else {
        FiringCost { fires: 1, bytes }
    }
}

/// The trigger that a row is about.
pub(super) fn trigger_hash(row: &RowBytes) -> Option<IdHash> {
    match row::view(row).ok()? {
        Some(fire) => Some(IdHash::of(fire.trigger)),
        None => match row::decode(row).ok()? {
            Row::Watch { trigger, .. } => Some(IdHash::of(&trigger)),
            Row::Fire(_) | Row::Veto { .. } => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::fixture::{encode, topic_trigger, trigger_to_topic, veto};
    use crate::model::entry::Entry;
    use crate::model::lifecycle::Lifecycle;

    fn due(late: &[Entry], entries: &[Entry], withdrawals: usize) -> DueEntries {
        let rows = |entries: &[Entry]| -> Vec<_> {
            entries.iter().map(|entry| (entry.key, encode(&entry.row))).collect()
        };
        DueEntries {
            late: rows(late),
            entries: rows(entries),
            held: Vec::new(),
            withdrawals: vec![Withdrawal { trigger: "a".into(), cancel: 1 }; withdrawals],
            pools: Vec::new(),
            fired_through: TimelineKey::MIN,
        }
    }

    fn with_lifecycle(mut entry: Entry) -> Entry {
        let Row::Fire(row) = &mut entry.row else { panic!("not a fire") };
        row.lifecycle = Some(Box::new(Lifecycle { retain: Some(1), ..Lifecycle::default() }));
        entry
    }

    #[test]
    fn late_entries_and_withdrawals_are_due_too_and_entries_fire() {
        let entries = [1, 2, 3].map(|offset| topic_trigger("a", offset, 1_000));
        for (late, on_time, withdrawals) in
            [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2, 3, 0), (3, 3, 2)]
        {
            let due = due(&entries[..late], &entries[..on_time], withdrawals);
            assert_eq!(due.len(), late + on_time);
            assert_eq!(due.is_empty(), late + on_time + withdrawals == 0);
        }
    }

    #[test]
    fn index_rows_are_fetched_of_lifecycles_of_what_cannot_be_sent_and_of_what_is_held() {
        let deleted = trigger_to_topic("deleted", "to-deleted", 1, 1_000);
        let out = topic_trigger("to-out", 2, 1_000);
        let lifecycle = with_lifecycle(topic_trigger("with-lifecycle", 3, 1_000));
        let mut due = due(&[deleted], &[out, lifecycle, veto("vetoed", 4, 1_000)], 0);
        due.held = vec![IdHash::of("held")];
        let mut catalog = TopicCatalog::default();
        let usable = TopicState::usable(1, 1 << 20);
        catalog.insert("out".to_owned(), usable.clone());
        catalog.insert("deleted".to_owned(), usable);
        let ids = |ids: &[&str]| ids.iter().map(IdHash::of).collect::<Vec<_>>();
        assert_eq!(due.ids_to_prefetch(&catalog), ids(&["with-lifecycle", "held"]));
        let small = TopicState::usable(1, 1_000);
        for state in [TopicState::Unavailable("no leader".to_owned()), small] {
            catalog.insert("deleted".to_owned(), state);
            let expected = ids(&["to-deleted", "with-lifecycle", "held"]);
            assert_eq!(due.ids_to_prefetch(&catalog), expected);
        }
        for (partition, expected) in
            [(0, &["to-deleted", "with-lifecycle", "held"][..]), (1, &["with-lifecycle", "held"])]
        {
            let unavailable = [partition].into_iter().collect();
            let state =
                TopicState::Usable { partitions: 1, record_bytes_max: 1 << 20, unavailable };
            catalog.insert("deleted".to_owned(), state);
            assert_eq!(due.ids_to_prefetch(&catalog), ids(expected), "{partition}");
        }
    }

    #[test]
    fn an_entry_with_a_lifecycle_costs_more_than_a_plain_one() {
        let plain = topic_trigger("a", 1, 1_000);
        let row = encode(&plain.row);
        let bytes = RECORD_BYTES + row.len();
        assert_eq!(cost_of(&row), FiringCost { fires: 1, bytes });
        let row = encode(&with_lifecycle(plain).row);
        let bytes = 2 * (RECORD_BYTES + row.len());
        assert_eq!(cost_of(&row), FiringCost { fires: LIFECYCLE_COST, bytes });
    }
}
