//! A schedule: when a recurring trigger is due, again and again.
//!
//! Invariant: the next occurrence follows from the schedule and the last one alone, and is later
//! than the last; it depends on no clock and no randomness, and zone data is built in, so that
//! every owner computes the same.
//!
//! ```text
//!  JSON ─► read ─► Form ─┬─► Step (every) ─────────────────┐
//!                        └─► Calendar (cron, daily, …) ◄─► wall (zone, changes of clocks) ─► next
//! ```

mod calendar;
mod cron;
mod days;
mod form;
mod interval;
mod json;
mod local_time;
mod missed;
mod preview;

#[cfg(test)]
mod documented;
#[cfg(test)]
mod tests;

use std::fmt;

use jiff::tz::TimeZone;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use local_time::{Dst, DstEffect, DstGap, DstOverlap, Occurrence};
pub use preview::Preview;

use form::{Form, RecurrenceRule};
use interval::Interval;
use local_time::moment;

use super::field::Reason;
use super::{Millis, Timestamp, work};

/// When a trigger recurs, and what to do about occurrences that are late, overlap or fail.
///
/// As text it is canonical JSON; `docs/guides/schedules.md` describes its fields.
#[derive(Clone, PartialEq, Eq)]
pub struct Schedule {
    form: Form,
    rule: RecurrenceRule,
    zone: TimeZone,
    /// Not before, in ms since the epoch. What is counted in steps counts from here.
    start: Option<Timestamp>,
    /// Before, in ms since the epoch.
    end: Option<Timestamp>,
    dst: Dst,
    /// By how many ms an occurrence may be earlier or later.
    jitter: Millis,
    max_executions: Option<u32>,
    misfire: Misfire,
    overlap: Overlap,
    pause_after: Option<u32>,
}

/// What happens to occurrences whose time passed while no owner could fire them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Misfire {
    /// They are skipped.
    Skip,
    /// The latest one fires late.
    #[default]
    Latest,
    /// The latest ones fire late, the oldest of them first.
    All {
        /// How many at most.
        max: u32,
    },
}

/// What happens to an occurrence that is due while the callback of an earlier one is in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Overlap {
    /// It fires.
    #[default]
    Allow,
    /// It is skipped.
    Skip,
    /// It waits for the earlier one.
    Queue,
}

impl Schedule {
    /// Reads a schedule. A refusal names the field and its value, and says how to fix it.
    pub fn from_json(text: &str) -> Result<Self, Reason> {
        json::read(text)
    }

    /// A cron expression in a zone, UTC if there is none, and defaults for everything else.
    pub fn from_cron(expression: &str, zone: Option<&str>) -> Result<Self, Reason> {
        Self::from_json(&serde_json::json!({ "cron": expression, "zone": zone }).to_string())
    }

    /// The schedule as canonical JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        json::write(self)
    }

    /// The same, counting from `registered` if it counts from somewhere and does not say where.
    #[must_use]
    pub fn anchored(mut self, registered: Timestamp) -> Self {
        if matches!(self.rule, RecurrenceRule::Interval(_)) {
            self.start.get_or_insert(registered);
        }
        self
    }

    /// The first occurrence at or after both its start and `registered`; none if there is none
    /// before its end.
    #[must_use]
    pub fn first(&self, registered: Timestamp) -> Option<Timestamp> {
        Some(self.first_occurrence(registered)?.at)
    }

    /// The next occurrence after `last`; none if there is none before its end.
    #[must_use]
    pub fn next(&self, last: Timestamp) -> Option<Timestamp> {
        Some(self.next_occurrence(last)?.at)
    }

    /// All occurrences from both its start and `registered` on.
    pub fn occurrences(&self, registered: Timestamp) -> impl Iterator<Item = Occurrence> {
        std::iter::successors(self.first_occurrence(registered), move |last| {
            self.next_occurrence(last.at)
        })
    }

    /// `nominal` moved by the jitter that this trigger has at this occurrence, always the same;
    /// still between start and end.
    #[must_use]
    pub fn jittered(&self, trigger: &str, due: Timestamp) -> Timestamp {
        if self.jitter == 0 {
            return due;
        }
        let choice = xxh3_64_with_seed(trigger.as_bytes(), due) % (2 * self.jitter + 1);
        let moved = due.saturating_add(choice).saturating_sub(self.jitter);
        let earliest = self.start.unwrap_or_default().min(due);
        let latest = self.end.map_or(Timestamp::MAX, |end| end.saturating_sub(1).max(due));
        moved.clamp(earliest, latest)
    }

    /// After how many executions it ends.
    #[must_use]
    pub fn max_executions(&self) -> Option<u32> {
        self.max_executions
    }

    /// What happens to occurrences whose time has passed.
    #[must_use]
    pub fn misfire(&self) -> Misfire {
        self.misfire
    }

    /// What happens to callbacks that would overlap.
    #[must_use]
    pub fn overlap(&self) -> Overlap {
        self.overlap
    }

    /// After how many failures in a row it is paused.
    #[must_use]
    pub fn pause_after(&self) -> Option<u32> {
        self.pause_after
    }

    /// The zone whose wall clock it goes by.
    #[must_use]
    pub fn zone(&self) -> &TimeZone {
        &self.zone
    }

    /// What it does when clocks change.
    #[must_use]
    pub fn dst(&self) -> Dst {
        self.dst
    }

    /// The same with another rule for changes of clocks.
    #[must_use]
    pub fn with_dst(self, dst: Dst) -> Self {
        Self { dst, ..self }
    }

    fn first_occurrence(&self, registered: Timestamp) -> Option<Occurrence> {
        let from = registered.max(self.start.unwrap_or_default());
        self.following(from.saturating_sub(1), self.start.unwrap_or(registered))
    }

    fn next_occurrence(&self, last: Timestamp) -> Option<Occurrence> {
        let before_start = self.start.unwrap_or_default().saturating_sub(1);
        self.following(last.max(before_start), self.start.unwrap_or(last))
    }

    /// The first occurrence strictly after `after`, counted from `anchor` if it is counted.
    fn following(&self, after: Timestamp, anchor: Timestamp) -> Option<Occurrence> {
        work::count(1);
        let exact = |at| Occurrence { at, note: None };
        let found = match &self.rule {
            RecurrenceRule::Interval(_) if after < anchor => exact(anchor),
            RecurrenceRule::Interval(Interval::Millis(step)) => {
                exact(anchor.checked_add(((after - anchor) / step + 1).checked_mul(*step)?)?)
            }
            RecurrenceRule::Interval(step) => {
                let anchor = self.zone.to_datetime(moment(anchor)?);
                let at_or_after = |from| step.at_or_after(anchor, from);
                local_time::next(&self.zone, self.dst, after, at_or_after)?
            }
            RecurrenceRule::Calendar(calendar) => {
                local_time::next(&self.zone, self.dst, after, |from| calendar.at_or_after(from))?
            }
        };
        self.end.is_none_or(|end| found.at < end).then_some(found)
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schedule({})", self.to_json())
    }
}

/// As text.
impl Serialize for Schedule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_json())
    }
}

/// From text.
impl<'de> Deserialize<'de> for Schedule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_json(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}
