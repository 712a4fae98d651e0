//! How long a turn of the loop takes, and which part of it takes the longest.
//!
//! Invariant: a turn is measured from one begin to its end, with what it waits for: while it lasts,
//! no transaction is started and the group is not polled.

use std::time::Duration;

use crate::environment::Reporter;

/// Longer than this a turn delays what is due.
const LONG_TURN: Duration = Duration::from_millis(100);
/// Longer than this an operator should know it: brokers wait for this process.
const VERY_LONG_TURN: Duration = Duration::from_secs(1);

/// Measures one turn. Times are on the monotonic clock.
#[derive(Debug)]
pub(super) struct TurnTimer {
    began: Duration,
    part_began: Duration,
    longest_part: &'static str,
    longest: Duration,
}

impl TurnTimer {
    /// A turn begins.
    pub(super) fn begin(now: Duration) -> Self {
        Self { began: now, part_began: now, longest_part: "none", longest: Duration::ZERO }
    }

    pub(super) fn began(&self) -> Duration {
        self.began
    }

    /// A part of the turn has ended, and the next one begins.
    pub(super) fn part_ended(&mut self, part: &'static str, now: Duration) {
        let took = now.saturating_sub(self.part_began);
        if took > self.longest {
            (self.longest_part, self.longest) = (part, took);
        }
        self.part_began = now;
    }

    /// The turn has ended.
    pub(super) fn end(self, now: Duration, reporter: &impl Reporter) {
        let took = now.saturating_sub(self.began);
        reporter.turn_ended(took);
        let (took_ms, part) = (took.as_millis(), self.longest_part);
        let part_ms = self.longest.as_millis();
        if took >= VERY_LONG_TURN {
            tracing::warn!(took_ms, part, part_ms, "a long turn of the loop");
        } else if took >= LONG_TURN {
            tracing::debug!(took_ms, part, part_ms, "a long turn of the loop");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_environment::reporter::TestReporter;

    #[test]
    fn the_longest_part_of_a_turn_is_known() {
        let at = Duration::from_millis;
        let mut turn = TurnTimer::begin(at(100));
        turn.part_ended("transaction", at(103));
        turn.part_ended("reading", at(113));
        turn.part_ended("firing", at(114));
        assert_eq!((turn.longest_part, turn.longest), ("reading", at(10)));
    }

    #[test]
    fn a_turn_is_measured_from_its_begin_to_its_end() {
        let at = Duration::from_millis;
        let reporter = TestReporter::default();
        let mut turn = TurnTimer::begin(at(100));
        turn.part_ended("transaction", at(103));
        assert_eq!(turn.began(), at(100));
        turn.end(at(120), &reporter);
        assert_eq!(reporter.reported().turns, [at(20)]);
    }
}
