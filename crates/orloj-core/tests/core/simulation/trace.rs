//! What a run has written, in short: to see that two runs are the same, and that one is idle.
//!
//! Invariant: everything that the cluster keeps is part of the hash.

use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hasher as _};

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

    /// What changes with everything that is written: the ends of all logs and the offsets. What
    /// workers do without a result is not counted.
    pub(super) fn written(&self) -> String {
        let ends = |p: usize| {
            let ledger = self.ledger[p].high();
            [self.triggers[p].high(), self.signals[p].high(), ledger, self.fires[p].high()]
        };
        let ends: Vec<_> = (0..self.triggers.len()).map(ends).collect();
        format!("{} {ends:?} {:?}", self.sent, self.group.committed)
    }
}
