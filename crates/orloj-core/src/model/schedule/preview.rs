//! The occurrences of a schedule, for people to look at before or after they register it.
//!
//! Invariant: it shows what an owner would fire, and what a change of the clocks makes it skip.

use serde::Serialize;

use super::{Dst, DstEffect, DstGap, DstOverlap, Occurrence, Schedule};
use crate::model::Timestamp;
use crate::model::time::format_time;

/// An occurrence, or one that is skipped because of a change of the clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    /// When it is due, in ms since the epoch.
    pub at: Timestamp,
    /// What the zone's clocks show then.
    pub local: String,
    /// When the trigger would fire, in ms since the epoch; `None`: it is skipped.
    pub fire_at: Option<Timestamp>,
    /// How a change of the clocks affects it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<DstEffect>,
    /// How many more like it are skipped after it.
    #[serde(skip_serializing_if = "is_zero")]
    pub more: u64,
}

impl Schedule {
    /// The next `count` occurrences from `from` on, and those that are skipped between them. The
    /// jitter is that of the trigger `id`; without one there is none.
    #[must_use]
    pub fn preview(&self, from: Timestamp, count: usize, id: Option<&str>) -> Vec<Preview> {
        let widest_dst = Dst { gap: DstGap::Shift, overlap: DstOverlap::Both };
        let without_skipping = self.clone().with_dst(widest_dst);
        let executions = self.max_executions().map_or(usize::MAX, |max| max as usize);
        let mut upcoming = self.occurrences(from).take(count.min(executions)).peekable();
        let mut shown: Vec<Preview> = Vec::new();
        for Occurrence { at, note } in without_skipping.occurrences(from) {
            let Some(next) = upcoming.peek() else { break };
            if next.at == at {
                let note = upcoming.next().and_then(|occurrence| occurrence.note);
                let fire_at = Some(id.map_or(at, |id| self.jittered(id, at)));
                shown.push(Preview { at, local: local(self, at), fire_at, note, more: 0 });
            } else if let Some(last) = shown.last_mut().filter(|last| last.fire_at.is_none()) {
                last.more += 1;
            } else {
                let local = local(self, at);
                shown.push(Preview { at, local, fire_at: None, note, more: 0 });
            }
        }
        shown
    }
}

fn local(schedule: &Schedule, at: Timestamp) -> String {
    let moment = i64::try_from(at).ok().and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
    let Some(moment) = moment else { return format_time(at) };
    let local = moment.to_zoned(schedule.zone().clone());
    local.strftime("%a %Y-%m-%d %H:%M:%S%.f %:z").to_string()
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
