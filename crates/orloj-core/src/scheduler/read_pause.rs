//! The pause of reading a partition whose next record can neither be read nor parked now.
//!
//! Invariant: it ends by itself, and the record is tried again.

use super::config::SchedulerTiming;
use crate::environment::Clock;
use crate::model::Timestamp;

/// Whether reading a partition is paused.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadPause {
    /// Until when, in ms since the epoch.
    until: Option<Timestamp>,
}

impl ReadPause {
    pub(super) fn is_on(self) -> bool {
        self.until.is_some()
    }

    /// The next record was not taken: the pause begins.
    pub(super) fn begin(&mut self, clock: &impl Clock, timing: &SchedulerTiming) {
        self.until = Some(clock.now_ms() + timing.registry_retry);
    }

    /// The pause is over, if it is time. Returns whether it is.
    pub(super) fn end(&mut self, clock: &impl Clock) -> bool {
        self.until.take_if(|until| clock.now_ms() >= *until).is_some()
    }

    /// A record was taken.
    pub(super) fn on_taken(&mut self) {}
}
