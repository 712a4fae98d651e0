//! How late single fires were: for cases that bound it differently in different times.
//!
//! Invariant: a fire counts from its due time, or from its registration if that was later.

use super::assignments::partition_of;
use crate::audit::{AcknowledgedCommands, ObservedFire};

/// When a fire could become visible, and when it did, in ms since the epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct FireTimes<'a> {
    pub(super) trigger: &'a str,
    pub(super) from: u64,
    pub(super) due: u64,
    /// When its registration was.
    pub(super) appended: u64,
    pub(super) visible: u64,
}

impl FireTimes<'_> {
    /// The partition of its trigger.
    pub(super) fn partition(&self) -> u64 {
        partition_of(self.trigger).unsigned_abs().into()
    }

    /// By how much it was late, in ms.
    pub(super) fn late(&self) -> u64 {
        self.late_after(0)
    }

    /// The same, if it counts from this time at the earliest.
    pub(super) fn late_after(&self, time: u64) -> u64 {
        self.visible.saturating_sub(self.from.max(time))
    }
}

/// The times of fires whose registrations are among `commands`.
pub(super) fn fire_times<'a>(
    commands: &AcknowledgedCommands,
    fires: &'a [ObservedFire],
) -> Vec<FireTimes<'a>> {
    let times = fires.iter().filter_map(|fire| {
        let registered = commands.get(&fire.trigger)?;
        let registration = registered.iter().find(|it| it.offset == fire.generation)?;
        let (due, appended) = (fire.due, registration.appended);
        let (from, visible) = (due.max(appended), fire.visible);
        Some(FireTimes { trigger: &fire.trigger, from, due, appended, visible })
    });
    times.collect()
}

/// By how much a fire that became visible at this time or later was late at most, and how long
/// after it that was, in ms.
pub(super) fn latest_since(fires: &[&FireTimes<'_>], time: u64) -> (u64, u64) {
    let after = fires.iter().filter(|fire| fire.visible >= time);
    after.map(|fire| (fire.late(), fire.visible - time)).max().unwrap_or((0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::{AcknowledgedCommand, CommandKind};

    fn command(offset: u64, appended: u64, due: u64) -> AcknowledgedCommand {
        let kind = CommandKind::Register { due, payload: Vec::new() };
        AcknowledgedCommand { offset, appended, acknowledged: appended, ack: false, kind }
    }

    fn fire(trigger: &str, generation: u64, due: u64, visible: u64) -> ObservedFire {
        let (trigger, payload) = (trigger.to_owned(), Vec::new());
        ObservedFire { trigger, generation, occurrence: 0, due, visible, payload }
    }

    #[test]
    fn a_fire_counts_from_its_due_time_or_from_its_registration() {
        let commands = vec![command(7, 100, 300), command(8, 500, 300)];
        let commands = AcknowledgedCommands::from([("tea".to_owned(), commands)]);
        let fires = [
            fire("tea", 7, 300, 310),
            fire("tea", 8, 300, 900),
            fire("tea", 9, 1, 900),
            fire("coffee", 7, 1, 900),
        ];
        let times = fire_times(&commands, &fires);
        assert_eq!(times.iter().map(FireTimes::late).collect::<Vec<_>>(), [10, 400]);
        assert_eq!(times.iter().map(|it| it.late_after(600)).collect::<Vec<_>>(), [0, 300]);
    }
}
