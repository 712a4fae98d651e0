//! The pause of reading a partition whose next record can neither be read nor parked now.
//!
//! Invariant: it ends by itself, and the record is tried again: soon, because a registry answers in
//! some ms, and more and more seldom.

use std::time::Duration;

use super::config::SchedulerTiming;
use crate::environment::Clock;

/// The shortest pause.
const SHORTEST: Duration = Duration::from_millis(1);

/// Whether reading a partition is paused.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadPause {
    /// Until when, on the monotonic clock.
    until: Option<Duration>,
    /// The length of the last pause; zero if a record was taken since.
    length: Duration,
}

impl ReadPause {
    pub(super) fn is_on(self) -> bool {
        self.until.is_some()
    }

    /// Whether the record was tried so often that the longest pauses are made.
    pub(super) fn is_long(self, timing: &SchedulerTiming) -> bool {
        !self.length.is_zero() && self.length >= timing.registry_retry
    }

    /// The next record was not taken: the pause begins.
    pub(super) fn begin(&mut self, clock: &impl Clock, timing: &SchedulerTiming) {
        let first = timing.parked_retry.max(SHORTEST);
        let length = (2 * self.length).max(first).min(timing.registry_retry);
        *self = Self { until: Some(clock.monotonic() + length), length };
    }

    /// The pause is over, if it is time. Returns whether it is.
    pub(super) fn end(&mut self, clock: &impl Clock) -> bool {
        self.until.take_if(|until| clock.monotonic() >= *until).is_some()
    }

    /// A record was taken.
    pub(super) fn on_taken(&mut self) {
        self.length = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_environment::clock::TestClock;

    /// How long a pause takes that begins now.
    fn length(pause: &mut ReadPause, clock: &TestClock) -> Duration {
        let began = clock.monotonic();
        pause.begin(clock, &SchedulerTiming::default());
        assert!(pause.is_on());
        while !pause.end(clock) {
            clock.advance(Duration::from_millis(1));
        }
        assert!(!pause.is_on());
        clock.monotonic() - began
    }

    #[test]
    fn a_pause_is_short_unless_the_record_was_tried_often() {
        let (mut pause, clock) = (ReadPause::default(), TestClock::default());
        clock.set(1_000_000);
        let lengths: Vec<_> = (0..7).map(|_| length(&mut pause, &clock).as_millis()).collect();
        assert_eq!(lengths, [20, 40, 80, 160, 320, 640, 1_000]);
        pause.on_taken();
        assert_eq!(length(&mut pause, &clock), Duration::from_millis(20));
    }

    #[test]
    fn a_pause_is_long_once_the_longest_ones_are_made_and_until_a_record_is_taken() {
        let (mut pause, clock) = (ReadPause::default(), TestClock::default());
        let timing = SchedulerTiming::default();
        let is_long = (0..8).map(|_| {
            let before = pause.is_long(&timing);
            let _length = length(&mut pause, &clock);
            before
        });
        let is_long: Vec<_> = is_long.collect();
        assert_eq!(is_long, [false, false, false, false, false, false, false, true]);
        pause.on_taken();
        assert!(!pause.is_long(&timing));
        let no_pauses = SchedulerTiming { registry_retry: Duration::ZERO, ..timing };
        assert!(!pause.is_long(&no_pauses), "the record was not tried");
    }

    #[test]
    fn a_pause_ends_although_the_clock_is_set_back() {
        let (mut pause, clock) = (ReadPause::default(), TestClock::default());
        clock.set(1_000_000);
        pause.begin(&clock, &SchedulerTiming::default());
        clock.set(0);
        clock.advance(Duration::from_secs(1));
        assert!(pause.end(&clock));
    }
}
