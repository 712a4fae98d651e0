//! What the index stores for a trigger id: the timeline keys of its entries.
//!
//! Invariant: firing writes nothing here. Whether an entry is pending follows from the cursor: one
//! at or below W has fired.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use smallvec::SmallVec;

use crate::model::Offset;
use crate::model::entry::{FireId, FireRow};
use crate::model::lifecycle::LifecyclePhase;
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey};

/// Retries of one trigger that are kept after they have fired: a recurring trigger that keeps
/// failing would otherwise collect more and more.
const RETRIES_KEPT: usize = 8;

/// The index's key for a trigger id: `xxh3_128` of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdHash(pub u128);

impl IdHash {
    /// The hash of a trigger id.
    #[must_use]
    pub fn of(id: &(impl AsRef<[u8]> + ?Sized)) -> Self {
        Self(xxhash_rust::xxh3::xxh3_128(id.as_ref()))
    }
}

/// A map by trigger id.
pub type IdMap<V> = HashMap<IdHash, V, BuildHasherDefault<IdHasher>>;

/// The hasher of keys that are hashes already: it takes 64 of the 128 bits.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u128(&mut self, hash: u128) {
        self.0 = u64::try_from(hash & u128::from(u64::MAX)).unwrap_or(0);
    }

    fn write(&mut self, bytes: &[u8]) {
        panic!("only hashes of ids are keys here, not {bytes:?}");
    }
}

/// All entries of one trigger id, pending or recently fired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexRow {
    /// In the order they were made; few at most, nearly always one.
    pub entries: SmallVec<[IndexEntry; 1]>,
}

/// The caller that a trigger belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriggerCaller {
    /// None: it is not a trigger.
    NotATrigger,
    /// A trigger that names no caller.
    Anonymous,
    /// A caller, by the hash of the name.
    Caller(u64),
}

impl TriggerCaller {
    /// Of a trigger that names that caller.
    #[must_use]
    pub fn of(caller: Option<&Text>) -> Self {
        caller.map_or(Self::Anonymous, |caller| {
            Self::Caller(xxhash_rust::xxh3::xxh3_64(caller.bytes()))
        })
    }
}

/// One entry of a trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Its place on the timeline.
    pub key: TimelineKey,
    /// What it is.
    pub kind: IndexEntryKind,
    /// Its generation; for a veto, the offset of the cancel.
    pub generation: Offset,
    /// Whether the ledger holds it.
    pub in_ledger: bool,
    /// Whether it is delivered over HTTP, so that a retry may be reported after it has fired.
    pub is_http: bool,
    /// Whether its row has a lifecycle, so that a change of the trigger must read it first.
    pub has_lifecycle: bool,
    /// The caller that it belongs to.
    pub caller: TriggerCaller,
}

impl IndexEntry {
    /// The entry of an occurrence's row, or of a retry's, at its key.
    #[must_use]
    pub fn for_row(key: TimelineKey, row: &FireRow) -> Self {
        let FireId { generation, occurrence, attempt, deferral, .. } = row.id;
        let standing =
            row.lifecycle.as_ref().map_or(LifecyclePhase::Pending, |lifecycle| lifecycle.phase);
        let kind = match key.source {
            Source::Signals => IndexEntryKind::Retry { occurrence, attempt, deferral },
            Source::Triggers if standing.is_waiting() => IndexEntryKind::Main,
            Source::Triggers => IndexEntryKind::Remembered,
        };
        let was_callback = row.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.was_callback);
        let is_http = row.definition.target.is_http() || was_callback;
        let (in_ledger, has_lifecycle) = (row.in_ledger, row.lifecycle.is_some());
        let caller = TriggerCaller::of(row.definition.caller.as_ref());
        Self { key, kind, generation, in_ledger, is_http, has_lifecycle, caller }
    }

    /// The entry of a veto by the cancel at that offset.
    #[must_use]
    pub fn for_veto(key: TimelineKey, cancel: Offset) -> Self {
        let (in_ledger, is_http, has_lifecycle, caller) =
            (true, false, false, TriggerCaller::NotATrigger);
        Self {
            key,
            kind: IndexEntryKind::Veto,
            generation: cancel,
            in_ledger,
            is_http,
            has_lifecycle,
            caller,
        }
    }

    /// The entry of a watch for a trigger that is not registered.
    #[must_use]
    pub fn for_watch(key: TimelineKey) -> Self {
        let (in_ledger, is_http, has_lifecycle, caller) =
            (true, false, true, TriggerCaller::NotATrigger);
        Self {
            key,
            kind: IndexEntryKind::Remembered,
            generation: key.offset,
            in_ledger,
            is_http,
            has_lifecycle,
            caller,
        }
    }

    /// Whether it is a retry of this occurrence of this generation.
    #[must_use]
    pub fn is_retry_of(&self, generation: Offset, occurrence: u32) -> bool {
        let IndexEntryKind::Retry { occurrence: of, .. } = self.kind else { return false };
        (self.generation, of) == (generation, occurrence)
    }
}

/// What an index entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexEntryKind {
    /// The trigger's occurrence, for the first time.
    Main,
    /// A retry of an occurrence.
    Retry {
        /// The occurrence.
        occurrence: u32,
        /// The attempt it will make.
        attempt: u32,
        /// How often that attempt was deferred.
        deferral: u32,
    },
    /// A cancel that may still have to stop a retry.
    Veto,
    /// The trigger has fired, or is not registered yet, and its row has something to remember.
    Remembered,
}

impl IndexRow {
    /// What its entries take up in memory besides the row itself, in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        if self.entries.spilled() { self.entries.capacity() * size_of::<IndexEntry>() } else { 0 }
    }

    /// How many retries are pending, besides those of this occurrence.
    #[must_use]
    pub fn other_pending_retries(&self, id: &FireId, fired_through: TimelineKey) -> usize {
        let is_other = |entry: &&IndexEntry| {
            matches!(entry.kind, IndexEntryKind::Retry { .. })
                && entry.key > fired_through
                && !entry.is_retry_of(id.generation, id.occurrence)
        };
        self.entries.iter().filter(is_other).count()
    }

    /// The trigger's occurrence that still waits, if any: the one main entry above W.
    #[must_use]
    pub fn pending_main(&self, fired_through: TimelineKey) -> Option<&IndexEntry> {
        self.entries
            .iter()
            .find(|entry| entry.kind == IndexEntryKind::Main && entry.key > fired_through)
    }

    /// The generation that fired last, where that is still remembered.
    #[must_use]
    pub fn fired_main(&self, fired_through: TimelineKey) -> Option<&IndexEntry> {
        self.entries
            .iter()
            .rev()
            .find(|entry| entry.kind == IndexEntryKind::Main && entry.key <= fired_through)
    }

    /// What is remembered of the trigger after it has fired, or before it is registered.
    #[must_use]
    pub fn remembered(&self, fired_through: TimelineKey) -> Option<&IndexEntry> {
        self.entries
            .iter()
            .find(|entry| entry.kind == IndexEntryKind::Remembered && entry.key > fired_through)
    }

    /// Whether the ledger holds the trigger's pending occurrence, or what is remembered of it.
    /// Settling moves W past the entry in the same transaction, so the ledger no longer has one at
    /// or below W.
    #[must_use]
    pub fn is_main_in_ledger(&self, fired_through: TimelineKey) -> bool {
        self.pending_main(fired_through)
            .or_else(|| self.remembered(fired_through))
            .is_some_and(|entry| entry.in_ledger)
    }

    /// Whether a cancel later than `generation` may still have to stop its retries.
    #[must_use]
    pub fn is_vetoed(&self, generation: Offset, fired_through: TimelineKey) -> bool {
        self.entries.iter().any(|s| {
            s.kind == IndexEntryKind::Veto && s.key > fired_through && s.generation > generation
        })
    }

    /// Whether this attempt, or a later one, of the occurrence is known already.
    #[must_use]
    pub fn has_attempt(&self, id: &FireId) -> bool {
        self.entries.iter().any(|entry| match entry.kind {
            IndexEntryKind::Retry { occurrence, attempt, deferral } => {
                entry.generation == id.generation
                    && occurrence == id.occurrence
                    && (attempt, deferral) >= (id.attempt, id.deferral)
            }
            IndexEntryKind::Main | IndexEntryKind::Veto | IndexEntryKind::Remembered => false,
        })
    }

    /// Whether the trigger belongs to another caller than the one that a record names. The live
    /// entry counts, else the one that fired last. A record without a caller may change every
    /// trigger: the cluster's access lists trust its producer.
    #[must_use]
    pub fn belongs_to_other_caller(
        &self,
        live: Option<&IndexEntry>,
        caller: Option<&Text>,
    ) -> bool {
        let entries = live.into_iter().chain(self.entries.iter().rev());
        let newest =
            entries.map(|entry| entry.caller).find(|claim| *claim != TriggerCaller::NotATrigger);
        caller.is_some() && newest.is_some_and(|claim| claim != TriggerCaller::of(caller))
    }

    /// Removes and returns the entries that match `predicate`.
    pub fn extract_if(
        &mut self,
        predicate: impl Fn(&IndexEntry) -> bool,
    ) -> SmallVec<[IndexEntry; 1]> {
        let (taken, kept) = std::mem::take(&mut self.entries).into_iter().partition(predicate);
        self.entries = kept;
        taken
    }

    /// Removes fired entries that are not needed any more: all but the last main entry and the
    /// last attempts of the newest occurrences, by which duplicates are recognised.
    #[must_use]
    pub fn pruned(mut self, fired_through: TimelineKey) -> Self {
        if self.entries.iter().all(|entry| entry.key > fired_through) {
            return self; // nearly always
        }
        let last_main = self.fired_main(fired_through).map(|entry| entry.key);
        let is_retry = |entry: &&IndexEntry| {
            matches!(entry.kind, IndexEntryKind::Retry { .. }) && entry.key <= fired_through
        };
        let mut surplus = self.entries.iter().filter(is_retry).count().saturating_sub(RETRIES_KEPT);
        self.entries.retain(|entry| {
            entry.key > fired_through
                || match entry.kind {
                    IndexEntryKind::Main => Some(entry.key) == last_main,
                    IndexEntryKind::Retry { .. } if surplus > 0 => {
                        surplus -= 1;
                        false
                    }
                    IndexEntryKind::Retry { .. } => true,
                    IndexEntryKind::Veto | IndexEntryKind::Remembered => false,
                }
        });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W in these tests, by its due time.
    const W: TimelineKey = TimelineKey { due: 100, ..TimelineKey::MIN };
    /// Due before W, at W and after it.
    const DUE: [(u64, bool); 3] = [(99, false), (100, false), (101, true)];

    fn entry(kind: IndexEntryKind, due: u64) -> IndexEntry {
        let key = TimelineKey { due, ..TimelineKey::MIN };
        IndexEntry { kind, generation: 7, ..IndexEntry::for_veto(key, 0) }
    }

    fn retry(attempt: u32, due: u64) -> IndexEntry {
        entry(IndexEntryKind::Retry { occurrence: 1, attempt, deferral: 0 }, due)
    }

    /// An attempt of occurrence 1 of generation 7.
    fn fire(attempt: u32) -> FireId {
        FireId { trigger: "a".into(), generation: 7, occurrence: 1, attempt, deferral: 0 }
    }

    fn row(entries: impl IntoIterator<Item = IndexEntry>) -> IndexRow {
        IndexRow { entries: entries.into_iter().collect() }
    }

    #[test]
    fn an_entry_is_pending_above_w_and_of_its_kind() {
        use IndexEntryKind::{Main, Remembered, Veto};
        for (due, is_above) in DUE {
            for kind in [Main, Remembered, Veto] {
                let row = row([entry(kind, due)]);
                assert_eq!(row.pending_main(W).is_some(), kind == Main && is_above, "{due}");
                assert_eq!(row.fired_main(W).is_some(), kind == Main && !is_above, "{due}");
                assert_eq!(row.remembered(W).is_some(), kind == Remembered && is_above, "{due}");
                let in_ledger = kind != Veto && is_above;
                assert_eq!(row.is_main_in_ledger(W), in_ledger, "{kind:?} {due}");
            }
        }
    }

    #[test]
    fn a_veto_stops_retries_of_earlier_generations_until_w_has_passed_it() {
        for (due, is_above) in DUE {
            let row = row([entry(IndexEntryKind::Veto, due)]);
            let is_vetoed = [6, 7, 8].map(|generation| row.is_vetoed(generation, W));
            assert_eq!(is_vetoed, [is_above, false, false], "due at {due}");
        }
        assert!(!row([entry(IndexEntryKind::Main, 101)]).is_vetoed(6, W));
    }

    #[test]
    fn an_attempt_is_known_if_it_or_a_later_one_of_its_occurrence_is() {
        let known = row([entry(IndexEntryKind::Main, 101), retry(3, 101)]);
        let has_attempt = [2, 3, 4].map(|attempt| known.has_attempt(&fire(attempt)));
        assert_eq!(has_attempt, [true, true, false]);
        assert!(!known.has_attempt(&FireId { generation: 8, ..fire(3) }));
        assert!(!known.has_attempt(&FireId { occurrence: 2, ..fire(3) }));
        assert!(!known.has_attempt(&FireId { deferral: 1, ..fire(3) }), "deferred once more");
    }

    #[test]
    fn pending_retries_of_other_occurrences_are_counted() {
        let other = |occurrence, due| {
            entry(IndexEntryKind::Retry { occurrence, attempt: 1, deferral: 0 }, due)
        };
        let row = row([other(1, 101), other(2, 101), other(3, 100), other(4, 101)]);
        assert_eq!(row.other_pending_retries(&fire(1), W), 2);
    }

    /// Of main entries that have fired the last one is kept, of retries the last eight.
    #[test]
    fn pruning_keeps_what_is_pending_and_the_last_that_fired() {
        use IndexEntryKind::{Main, Remembered, Veto};
        let pending = [entry(Main, 101), entry(Veto, 101), entry(Remembered, 101), retry(99, 101)];
        let kept = row(pending.clone());
        assert_eq!(kept.clone().pruned(W), kept);
        let mut entries = vec![entry(Main, 98), entry(Main, 100)];
        entries.extend([entry(Veto, 100), entry(Remembered, 100)]);
        entries.extend((0..RETRIES_KEPT as u32 + 2).map(|attempt| retry(attempt, 100)));
        entries.extend(pending.clone());
        let mut expected = vec![entry(Main, 100)];
        expected.extend((2..RETRIES_KEPT as u32 + 2).map(|attempt| retry(attempt, 100)));
        expected.extend(pending);
        assert_eq!(row(entries).pruned(W), row(expected));
    }

    #[test]
    fn a_veto_and_what_is_remembered_are_pruned_at_w_also_if_there_is_nothing_else() {
        for kind in [IndexEntryKind::Veto, IndexEntryKind::Remembered] {
            for (due, is_above) in DUE {
                let pruned = row([entry(kind, due)]).pruned(W);
                assert_eq!(!pruned.entries.is_empty(), is_above, "{kind:?} {due}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "only hashes of ids are keys here")]
    fn what_is_not_the_hash_of_an_id_is_no_key() {
        IdHasher::default().write(b"an id");
    }
}
