//! What the index knows of a trigger id: where its entries stand on the timeline.
//!
//! Law: firing writes nothing here. Whether a slot is pending is read off the cursor: a slot at
//! or below W has fired.

use crate::model::Offset;
use crate::model::timeline::TimelineKey;

/// The index's key for a trigger id: `xxh3_128` of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdHash(pub u128);

impl IdHash {
    /// The hash of a trigger id.
    #[must_use]
    pub fn of(id: &str) -> Self {
        Self(xxhash_rust::xxh3::xxh3_128(id.as_bytes()))
    }
}

/// All entries of one trigger id, pending or lately fired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// In the order they were made; a handful at most.
    pub slots: Vec<Slot>,
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
}
