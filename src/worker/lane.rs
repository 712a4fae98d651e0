//! A partition of fires that is ours: how far it is, and whose results still count.
//!
//! Law: what a callback reports is taken only in the life in which it was begun. A partition that
//! was lost, or whose transaction failed, begins a new one from its committed progress.

use crate::model::Offset;
use crate::worker::progress::{OPEN_MAX, Progress};

/// An owned partition.
#[derive(Debug)]
pub(super) struct Lane {
    /// Unlike that of every other lane of this process, before or now.
    pub(super) life: u64,
    /// `None` until its committed progress is known.
    pub(super) running: Option<Running>,
}

/// An owned partition that is read.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) progress: Progress,
    /// Where reading stopped because the window was full.
    parked: Option<Offset>,
}

/// What to do with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Deliver it.
    Deliver,
    /// It is finished, or reading has stopped before it.
    Ignore,
    /// The window is full: stop reading; [`Running::unpark`] says where to go on.
    Stop,
}

impl Lane {
    pub(super) fn new(life: u64) -> Self {
        Self { life, running: None }
    }

    /// The running lane, if this is still the life in question.
    pub(super) fn in_life(&mut self, life: u64) -> Option<&mut Running> {
        self.running.as_mut().filter(|_| self.life == life)
    }
}

impl Running {
    pub(super) fn new(progress: Progress) -> Self {
        Self { progress, parked: None }
    }

    /// Judges the next record that was read.
    pub(super) fn admit(&mut self, offset: Offset) -> Admission {
        if self.parked.is_some() {
            return Admission::Ignore;
        }
        if !self.progress.has_room(offset) {
            self.parked = Some(offset);
            return Admission::Stop;
        }
        if self.progress.begin(offset) { Admission::Deliver } else { Admission::Ignore }
    }

    /// Where to read on, once there is room for many: starting costs a fetch.
    pub(super) fn unpark(&mut self) -> Option<Offset> {
        let is_worth_it = self.progress.room(self.parked?) >= OPEN_MAX / 2;
        self.parked.take_if(|_| is_worth_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::progress::WINDOW_MAX;

    #[test]
    fn a_full_window_stops_reading_until_there_is_room_for_many() {
        let mut lane = Running::new(Progress::restore(0, "").unwrap());
        assert!((0..WINDOW_MAX).all(|offset| lane.admit(offset) == Admission::Deliver));
        assert_eq!(lane.admit(WINDOW_MAX), Admission::Stop);
        assert_eq!(lane.admit(WINDOW_MAX + 1), Admission::Ignore);
        let many = OPEN_MAX as u64 / 2;
        (0..many - 1).for_each(|offset| lane.progress.finish(offset));
        assert_eq!(lane.unpark(), None);
        lane.progress.finish(many - 1);
        assert_eq!(lane.unpark(), Some(WINDOW_MAX));
        assert_eq!(lane.admit(WINDOW_MAX), Admission::Deliver);
    }
}
