//! What a run has written, in short: to see that two runs are the same, and that one is idle.
//!
//! Invariant: everything that the cluster keeps is part of the hash.

use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hasher as _};

use orloj_core::model::Offset;

use super::broker::SimulatedBroker;

/// Hashes text while it is written.
struct TextHasher(DefaultHasher);

impl fmt::Write for TextHasher {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl SimulatedBroker {
    /// A hash of all that was ever written, of who wrote it and when, and of all offsets.
    pub(super) fn trace_hash(&self) -> u64 {
        let mut hasher = TextHasher(DefaultHasher::new());
        write!(hasher, "{self:?}").expect("hashing cannot fail");
        hasher.0.finish()
    }

    /// What changes with everything that others see: the ends of their logs. An idle owner goes on
    /// to write its cursor to the ledger.
    pub(super) fn written(&self) -> (u64, Vec<[Offset; 3]>) {
        let ends =
            |p: usize| [self.triggers[p].high(), self.signals[p].high(), self.fires[p].high()];
        (self.sent, (0..self.triggers.len()).map(ends).collect())
    }
}
