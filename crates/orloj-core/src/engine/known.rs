//! What the index knows of a trigger id: where its entries stand on the timeline.
//!
//! Law: firing writes nothing here. Whether a slot is pending is read off the cursor: a slot at
//! or below W has fired.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use smallvec::SmallVec;

use crate::model::Offset;
use crate::model::course::Standing;
use crate::model::entry::{FireId, FireRow};
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey};

/// Retries that have fired and are remembered of one trigger: of a recurring one that keeps
/// failing there would be ever more.
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
pub type IdMap<V> = HashMap<IdHash, V, BuildHasherDefault<Hashed>>;

/// The hasher of what is a good hash already: it takes 64 of the 128 bits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hashed(u64);

impl Hasher for Hashed {
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

/// All entries of one trigger id, pending or lately fired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// In the order they were made; a handful at most, nearly always one.
    pub slots: SmallVec<[Slot; 1]>,
}

/// Whose a trigger is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Nobody's: it is not a trigger.
    Free,
    /// A trigger that names no caller.
    Anonymous,
    /// A caller's, by the hash of the name.
    Caller(u64),
}

impl Claim {
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
pub struct Slot {
    /// Its place on the timeline.
    pub key: TimelineKey,
    /// What stands there.
    pub kind: SlotKind,
    /// Its generation; for a veto, the offset of the cancel.
    pub generation: Offset,
    /// Whether the ledger holds it.
    pub in_ledger: bool,
    /// Whether it is delivered over HTTP, so that a retry may be reported after it has fired.
    pub http: bool,
    /// Whether its row has a course, so that whoever touches the trigger must read it.
    pub course: bool,
    /// Whose it is.
    pub claim: Claim,
}

impl Slot {
    /// The slot of an occurrence's row, or of a retry's, at its place.
    #[must_use]
    pub fn of(key: TimelineKey, row: &FireRow) -> Self {
        let FireId { generation, occurrence, attempt, deferral, .. } = row.id;
        let standing = row.course.as_ref().map_or(Standing::Pending, |course| course.standing);
        let kind = match key.source {
            Source::Signals => SlotKind::Retry { occurrence, attempt, deferral },
            Source::Triggers if standing.is_ahead() => SlotKind::Main,
            Source::Triggers => SlotKind::Past,
        };
        let http = row.definition.target.is_http();
        let (in_ledger, course) = (row.in_ledger, row.course.is_some());
        let claim = Claim::of(row.definition.caller.as_ref());
        Self { key, kind, generation, in_ledger, http, course, claim }
    }

    /// The slot of a veto by the cancel at that offset.
    #[must_use]
    pub fn of_veto(key: TimelineKey, cancel: Offset) -> Self {
        let (in_ledger, http, course, claim) = (true, false, false, Claim::Free);
        Self { key, kind: SlotKind::Veto, generation: cancel, in_ledger, http, course, claim }
    }

    /// The slot of those who wait for a trigger that nobody has registered.
    #[must_use]
    pub fn of_watch(key: TimelineKey) -> Self {
        let (in_ledger, http, course, claim) = (true, false, true, Claim::Free);
        Self { key, kind: SlotKind::Past, generation: key.offset, in_ledger, http, course, claim }
    }

    /// Whether a retry of this occurrence of this generation stands here.
    #[must_use]
    pub fn retries(&self, generation: Offset, occurrence: u32) -> bool {
        let SlotKind::Retry { occurrence: of, .. } = self.kind else { return false };
        (self.generation, of) == (generation, occurrence)
    }
}

/// What stands at a slot's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotKind {
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
    /// A cancel that may yet have to stop a retry.
    Veto,
    /// The trigger has fired, or nobody has registered it yet, and there is more to remember than
    /// that: its row tells.
    Past,
}

impl Known {
    /// The trigger's occurrence that still waits, if any: the one main slot above `w`.
    #[must_use]
    pub fn pending_main(&self, w: TimelineKey) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.kind == SlotKind::Main && slot.key > w)
    }

    /// The generation that fired last, where that is still remembered.
    #[must_use]
    pub fn fired_main(&self, w: TimelineKey) -> Option<&Slot> {
        self.slots.iter().rev().find(|slot| slot.kind == SlotKind::Main && slot.key <= w)
    }

    /// What is remembered of the trigger after it has fired, or before it is registered.
    #[must_use]
    pub fn past(&self, w: TimelineKey) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.kind == SlotKind::Past && slot.key > w)
    }

    /// Whether the ledger holds the trigger's pending occurrence, or what is remembered of it.
    /// Settling moves W past the slot in the same transaction, so a slot at or below `w` is not
    /// held any more.
    #[must_use]
    pub fn held_main(&self, w: TimelineKey) -> bool {
        self.pending_main(w).or_else(|| self.past(w)).is_some_and(|slot| slot.in_ledger)
    }

    /// Whether a cancel later than `generation` may still have to stop its retries.
    #[must_use]
    pub fn vetoes(&self, generation: Offset, w: TimelineKey) -> bool {
        self.slots
            .iter()
            .any(|s| s.kind == SlotKind::Veto && s.key > w && s.generation > generation)
    }

    /// Whether this attempt, or a later one, of the occurrence is known already.
    #[must_use]
    pub fn knows_attempt(&self, id: &FireId) -> bool {
        self.slots.iter().any(|slot| match slot.kind {
            SlotKind::Retry { occurrence, attempt, deferral } => {
                slot.generation == id.generation
                    && occurrence == id.occurrence
                    && (attempt, deferral) >= (id.attempt, id.deferral)
            }
            SlotKind::Main | SlotKind::Veto | SlotKind::Past => false,
        })
    }

    /// Whether the trigger belongs to somebody else than the caller in whose name a record comes.
    /// What stands counts, else what fired last. Who names nobody may do everything: the cluster's
    /// access lists trust him.
    #[must_use]
    pub fn is_foreign(&self, standing: Option<&Slot>, caller: Option<&Text>) -> bool {
        let slots = standing.into_iter().chain(self.slots.iter().rev());
        let newest = slots.map(|slot| slot.claim).find(|claim| *claim != Claim::Free);
        caller.is_some() && newest.is_some_and(|claim| claim != Claim::of(caller))
    }

    /// Removes and returns the slots that `condemned` says.
    pub fn take(&mut self, condemned: impl Fn(&Slot) -> bool) -> SmallVec<[Slot; 1]> {
        let (taken, kept) = std::mem::take(&mut self.slots).into_iter().partition(condemned);
        self.slots = kept;
        taken
    }

    /// Forgets what has fired and tells nothing any more: all but the last main slot and the
    /// last attempts of the newest occurrences, by which duplicates are known.
    #[must_use]
    pub fn pruned(mut self, w: TimelineKey) -> Self {
        if self.slots.iter().all(|slot| slot.key > w) {
            return self; // nearly always
        }
        let last_main = self.fired_main(w).map(|slot| slot.key);
        let is_retry = |slot: &&Slot| matches!(slot.kind, SlotKind::Retry { .. }) && slot.key <= w;
        let mut surplus = self.slots.iter().filter(is_retry).count().saturating_sub(RETRIES_KEPT);
        self.slots.retain(|slot| {
            slot.key > w
                || match slot.kind {
                    SlotKind::Main => Some(slot.key) == last_main,
                    SlotKind::Retry { .. } if surplus > 0 => {
                        surplus -= 1;
                        false
                    }
                    SlotKind::Retry { .. } => true,
                    SlotKind::Veto | SlotKind::Past => false,
                }
        });
        self
    }
}
