//! Changes of pending triggers: their records, and what the owner makes of them.
//!
//! Invariant: what a change does not name stays, and so do the callbacks that are in progress.

use bytes::Bytes;

use super::{HistoryKey, LiveTrigger, PartitionHistory, RETAIN, dependencies, first_row, name};
use crate::model::definition::{Definition, Header, HttpTarget, Target, TopicTarget};
use crate::model::input::{
    Change, ChangedParts, CountPolicy, OnConflict, PRIORITY_DEFAULT, Registration,
};
use crate::model::lifecycle::{LifecyclePhase, Recurrence};
use crate::model::outcome::OutcomeKind;
use crate::model::{Millis, Offset, Timestamp};
use crate::view::NAME_HEADER;
use crate::view::tests::history_actions::{HistoryAfter, HistoryChange, HistoryTime};

/// How late a trigger may fire that a change lets expire, in ms.
const EXPIRE_AFTER: Millis = 600;

impl PartitionHistory {
    /// The record of a change. It says all of the trigger; the owner has the other parts.
    pub(super) fn new_change(&self, id: u8, change: HistoryChange) -> Change {
        let HistoryChange { time, after, wanted, http, payload, key, .. } = change;
        let offset = self.triggers.len() as u64;
        let schedule = (time == HistoryTime::Again).then(|| Box::new(self.schedule()));
        let fire_at = match (&schedule, time) {
            (Some(schedule), _) => schedule.first(self.now).unwrap(),
            (None, HistoryTime::Once(delay)) => self.now + delay,
            (None, _) => self.now + 7, // a record says when
        };
        // A schedule does not wait for others.
        let after = if schedule.is_some() { HistoryAfter::Nothing } else { after };
        let parts = ChangedParts {
            time: time != HistoryTime::Same,
            after: after != HistoryAfter::Same,
            payload,
            key,
        };
        let on_failure = match after {
            HistoryAfter::Same | HistoryAfter::Nothing => None,
            HistoryAfter::Others(on_failure) => Some(on_failure),
        };
        let on_conflict =
            wanted.map_or(OnConflict::Replace, |back| OnConflict::Match(self.written(id, back)));
        let one_time = Registration::one_time(&name(id), fire_at, changed_definition(offset, http));
        let new = Registration {
            schedule,
            after: on_failure.map(|on_failure| Box::new(dependencies(on_failure))),
            retain: change.retain.then_some(RETAIN),
            expire_after: change.expires.then_some(EXPIRE_AFTER),
            priority: if change.is_urgent { 255 } else { PRIORITY_DEFAULT },
            count: if change.keeps_count { CountPolicy::Keep } else { CountPolicy::Reset },
            on_conflict,
            ..one_time
        };
        Change { new, parts }
    }

    /// The owner makes the change, or refuses it.
    pub(super) fn change(
        &mut self,
        offset: Offset,
        timestamp: Timestamp,
        ack: bool,
        change: Change,
    ) {
        let Change { new, parts } = change;
        let id = new.id.to_string();
        let Some(mut live) = self.pending(&id) else {
            if ack {
                let kind = OutcomeKind::NotPending { fired: None, withdrawal: false };
                self.write_outcome(&id, Some(offset), kind);
            }
            return;
        };
        let (generation, revision) = (live.row.id.generation, live.row.revision());
        if matches!(new.on_conflict, OnConflict::Match(wanted) if wanted != revision) {
            if ack {
                let kind = OutcomeKind::Kept { generation: revision, fire_at: live.row.scheduled };
                self.write_outcome(&id, Some(offset), kind);
            }
            return;
        }
        let after = parts.after.then(|| new.after.as_deref().cloned());
        live.apply_change((offset, timestamp), new, parts);
        let key = live.key();
        self.define(&key, &live);
        if let (Some(after), Some(defined)) = (after, self.defined.get_mut(&key)) {
            defined.after = after;
        }
        let fire_at = live.row.scheduled;
        let executions = Some(live.row.id.occurrence);
        let kind = OutcomeKind::Changed { generation, revision: offset, fire_at, executions };
        self.write_outcome(&id, Some(offset), kind);
        self.schedule_pending(live);
    }

    /// What a trigger is now, but for what it waits for.
    fn define(&mut self, key: &HistoryKey, live: &LiveTrigger) {
        let lifecycle = live.row.lifecycle.clone().unwrap_or_default();
        let Some(defined) = self.defined.get_mut(key) else { return };
        defined.revision = live.row.revision();
        defined.definition.clone_from(&live.row.definition);
        defined.schedule = lifecycle.recurrence.map(|recurrence| recurrence.schedule.to_json());
        (defined.expire_after, defined.retain) = (lifecycle.expire_after, lifecycle.retain);
        defined.priority = live.priority;
    }
}

impl LiveTrigger {
    fn apply_change(
        &mut self,
        (revision, timestamp): (Offset, Timestamp),
        new: Registration,
        parts: ChangedParts,
    ) {
        let count = new.count;
        self.priority = new.priority;
        let new = first_row(self.row.id.generation, timestamp, new);
        parts.apply_to(&mut self.row.definition, new.definition);
        let (due_before, executions) = (self.row.scheduled, self.row.id.occurrence);
        let changed = new.lifecycle.map(|lifecycle| *lifecycle).unwrap_or_default();
        let lifecycle = self.row.lifecycle_mut();
        (lifecycle.expire_after, lifecycle.retain) = (changed.expire_after, changed.retain);
        (lifecycle.changed_by_command, lifecycle.revision) = (true, Some(revision));
        if parts.after && !lifecycle.fire_now_requested {
            lifecycle.dependencies = changed.dependencies;
            lifecycle.dependencies_changed = true;
        }
        if lifecycle.recurrence.is_none() {
            let _first = lifecycle.first_due.get_or_insert(due_before);
        }
        if parts.time {
            let before = lifecycle.recurrence.take();
            lifecycle.recurrence = change_count(before, changed.recurrence, count, executions);
            lifecycle.phase = LifecyclePhase::Pending;
        }
        if lifecycle.recurrence.is_some() {
            lifecycle.expire_after = None;
        }
        if parts.time {
            self.row.scheduled = new.scheduled;
        }
    }
}

fn change_count(
    before: Option<Box<Recurrence>>,
    new: Option<Box<Recurrence>>,
    count: CountPolicy,
    executions: u32,
) -> Option<Box<Recurrence>> {
    let mut new = new?;
    match (count, before) {
        (CountPolicy::Reset, _) => new.counted_from = executions,
        (CountPolicy::Keep, Some(before)) => new.counted_from = before.counted_from,
        (CountPolicy::Keep, None) => {}
    }
    Some(new)
}

fn changed_definition(offset: Offset, http: bool) -> Definition {
    let target = if http {
        HttpTarget::post("https://api.example.org/changed").into()
    } else {
        Target::Topic(TopicTarget { topic: "milk".into(), key: Some(Bytes::from_static(b"k")) })
    };
    let name = Bytes::from(changed_name(offset));
    let headers = vec![Header { name: NAME_HEADER.into(), value: Some(name) }];
    let payload = Some(Bytes::from(format!("[{offset}]")));
    Definition { target, payload, headers, retry: None, caller: None }
}

/// The name that the change at `offset` gives, which is one word.
pub(in crate::view::tests) fn changed_name(offset: Offset) -> String {
    format!("name{offset}")
}
