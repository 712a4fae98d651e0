//! When a failed callback is tried again: a ladder of delays, then the dead letters.
//! Pure: the attempt comes in, the delay goes out.

use serde::{Deserialize, Serialize};

use super::Millis;

/// The delays between attempts, in ms. Attempt `n` (from 1) that fails is followed by attempt
/// `n + 1` after the `n`-th delay; when the ladder ends, the fire is a dead letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RetryLadder(#[serde(with = "super::codec::long::list")] pub Vec<Millis>);

impl RetryLadder {
    /// The delay after failed attempt `attempt` (counted from 1), or `None` when it was the last.
    #[must_use]
    pub fn delay_after(&self, attempt: u32) -> Option<Millis> {
        assert!(attempt >= 1, "attempts count from 1");
        self.0.get(attempt as usize - 1).copied()
    }

    /// How many attempts there are in all.
    #[must_use]
    pub fn attempts_max(&self) -> u32 {
        u32::try_from(self.0.len()).map_or(u32::MAX, |delays| delays + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_ladder_makes_six_attempts() {
        let ladder = RetryLadder(vec![10_000, 30_000, 120_000, 600_000, 1_800_000]);
        let delays: Vec<_> = (1..=6).map(|attempt| ladder.delay_after(attempt)).collect();
        let expected = [10_000, 30_000, 120_000, 600_000, 1_800_000];
        assert_eq!(delays[..5], expected.map(Some));
        assert_eq!(delays[5], None);
        assert_eq!(ladder.attempts_max(), 6);
    }
}
