//! Index rows of steps that are decided but not yet applied. While one step commits the next is
//! prepared against the store plus this.
//!
//! Law: what is here is newer than the store; when its step is applied it is forgotten.

use super::known::{IdHash, IdMap, Known};

/// Index rows in flight.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    rows: IdMap<(u64, Known)>,
}

impl Overlay {
    /// Whether the store's row would be stale.
    #[must_use]
    pub fn contains(&self, hash: IdHash) -> bool {
        self.rows.contains_key(&hash)
    }

    /// The newest row of `hash` that is in flight.
    #[must_use]
    pub fn get(&self, hash: IdHash) -> Option<&Known> {
        self.rows.get(&hash).map(|(_, known)| known)
    }

    /// Step `step` decided that the index knows this. Returns whether the step had not yet
    /// touched the row.
    pub fn put(&mut self, hash: IdHash, step: u64, known: Known) -> bool {
        let previous = self.rows.insert(hash, (step, known));
        previous.is_none_or(|(of, _)| of != step)
    }

    /// Step `step` and all before it are in the store now.
    pub fn applied(&mut self, step: u64) {
        self.rows.retain(|_, (of, _)| *of > step);
    }
}
