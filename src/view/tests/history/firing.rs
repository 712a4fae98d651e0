//! What is due fires, waits or ends, and workers report how callbacks have ended.
//!
//! Invariant: a trigger that does not fire any more is forgotten, or remembered in the ledger as
//! long as the engine does.

use super::{HistoryKey, LiveTrigger, OpenCallback, PartitionHistory, RESULT_TIMEOUT};
use crate::model::dead_letter::Content;
use crate::model::entry::FireId;
use crate::model::fire::Fire;
use crate::model::ledger::LedgerKey;
use crate::model::lifecycle::LifecyclePhase;
use crate::model::outcome::OutcomeKind;
use crate::model::timeline::RANK_DEFAULT;
use crate::view::results::Status;

/// How the last occurrence of a trigger has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HistoryResult {
    /// A worker will report it.
    Open,
    Succeeded,
    Failed,
}

impl PartitionHistory {
    /// What is due fires, stops waiting, expires or is forgotten.
    pub(super) fn fire(&mut self, id: &str) {
        let Some(live) = self.live.get(id).cloned() else { return };
        if live.has_fired() {
            let _forgotten = self.remove_live(id);
            return;
        }
        let lifecycle = live.row.lifecycle.clone().unwrap_or_default();
        let (generation, fire_at) = (live.row.id.generation, live.row.scheduled);
        let latest = lifecycle.expire_after.map(|most| fire_at + most);
        if lifecycle.dependencies.is_some() {
            self.finish_waiting(live);
        } else if latest.is_some_and(|latest| latest < self.now) && !lifecycle.fire_now_requested {
            self.write_outcome(id, None, OutcomeKind::Expired { generation, fire_at });
            self.end_unfired(live, HistoryResult::Failed, Status::Expired);
        } else {
            self.fire_occurrence(live);
        }
    }

    fn fire_occurrence(&mut self, mut live: LiveTrigger) {
        let key = live.key();
        let (generation, occurrence) = (live.row.id.generation, live.row.id.occurrence);
        let http = live.row.definition.target.is_http();
        let result = match http && live.row.reports_end() {
            true => HistoryResult::Open,
            false => HistoryResult::Succeeded,
        };
        if http {
            let (id, definition) = (key.0.clone(), live.row.definition.clone());
            let attempt = 1;
            self.open_callbacks.push(OpenCallback {
                id,
                generation,
                occurrence,
                attempt,
                definition,
            });
        }
        let recurs = live.recurs();
        if recurs {
            let executions = occurrence + 1;
            live.row.id.occurrence = executions;
            if live.advance() {
                return self.schedule_pending(live);
            }
            self.write_outcome(&key.0, None, OutcomeKind::Ended { generation, executions });
        }
        let _none = self.last_occurrences.insert(key.clone(), occurrence);
        self.complete(live, result);
        self.show_end(&key, if http { Status::InFlight } else { Status::Fired }, recurs);
    }

    /// A trigger ends without having fired.
    pub(super) fn end_unfired(&mut self, live: LiveTrigger, result: HistoryResult, end: Status) {
        let (key, recurs) = (live.key(), live.recurs());
        self.complete(live, result);
        self.show_end(&key, end, recurs);
    }

    /// The status of a trigger that does not fire any more. When a recurring one was due last is
    /// not in the records.
    pub(super) fn show_end(&mut self, key: &HistoryKey, status: Status, recurred: bool) {
        let _before = self.expected.insert(key.clone(), status);
        if let Some(defined) = self.defined.get_mut(key).filter(|_| recurred) {
            defined.fire_at = None;
        }
    }

    /// A trigger does not fire any more: it is remembered, or forgotten.
    fn complete(&mut self, mut live: LiveTrigger, result: HistoryResult) {
        let (id, _) = live.key();
        let _before = self.live.remove(&id);
        let mut lifecycle = live.row.lifecycle.take().unwrap_or_default();
        (lifecycle.recurrence, lifecycle.dependencies, lifecycle.paused) = (None, None, false);
        let called = if lifecycle.fire_now_requested { live.row.scheduled } else { 0 };
        let early = called.max(lifecycle.first_due.map_or(0, |due| due + 1));
        let retain = lifecycle.retain;
        let until = match result {
            HistoryResult::Open if retain.is_some() || early > self.now => {
                early.max(self.now + RESULT_TIMEOUT)
            }
            HistoryResult::Open => 0,
            HistoryResult::Succeeded | HistoryResult::Failed => {
                early.max(retain.map_or(0, |retain| self.now + retain))
            }
        };
        lifecycle.phase = match result {
            HistoryResult::Open => LifecyclePhase::Open,
            HistoryResult::Succeeded => LifecyclePhase::Done,
            HistoryResult::Failed => LifecyclePhase::Failed,
        };
        if until > self.now {
            (live.row.lifecycle, live.due) = (Some(lifecycle), until);
            self.write_entry(&mut live);
            let _none = self.live.insert(id, live);
        } else if live.row.in_ledger {
            self.write_ledger(LedgerKey::Main(id.into()), None);
        }
    }

    /// A worker reports the result of one of the open callbacks.
    pub(super) fn callback_result(&mut self, which: u8, ok: bool, again: bool) {
        if self.open_callbacks.is_empty() {
            return;
        }
        let at = usize::from(which) % self.open_callbacks.len();
        if ok || !again {
            let callback = self.open_callbacks.remove(at);
            return self.end_callback(callback, ok);
        }
        let callback = &mut self.open_callbacks[at];
        let (id, generation, occurrence) =
            (callback.id.clone(), callback.generation, callback.occurrence);
        let attempt = callback.attempt;
        callback.attempt += 1;
        let (status, retry_at) = (Some(500), Some(self.now + 5));
        let reason = "answered 500".to_owned();
        let kind =
            OutcomeKind::Failed { generation, occurrence, attempt, status, reason, retry_at };
        self.write_outcome(&id, None, kind);
    }

    /// There is no further attempt of a callback.
    fn end_callback(&mut self, callback: OpenCallback, ok: bool) {
        let OpenCallback { id, generation, occurrence, attempt, definition } = callback.clone();
        let kind = if ok {
            OutcomeKind::Delivered { generation, occurrence, attempt, status: 200 }
        } else {
            let (status, retry_at, reason) = (Some(500), None, "answered 500".to_owned());
            let id = FireId {
                trigger: id.as_str().into(),
                generation,
                occurrence,
                attempt,
                deferral: 0,
            };
            let fire = Fire {
                id,
                scheduled: self.now,
                fired: self.now,
                definition,
                history: None,
                report_end: false,
                priority: RANK_DEFAULT,
            };
            self.write_letter(0, &reason, Content::Fire { fire, attempts: attempt });
            OutcomeKind::Failed { generation, occurrence, attempt, status, reason, retry_at }
        };
        self.write_outcome(&id, None, kind);
        let key = (id, generation);
        if self.last_occurrences.get(&key) == Some(&occurrence) {
            let status = if ok { Status::Completed } else { Status::Failed };
            let _before = self.expected.insert(key, status);
        }
        self.ended.push((callback, ok));
    }

    /// The owner is notified how a callback has ended.
    pub(super) fn apply_callback_end(&mut self, callback: &OpenCallback, ok: bool) {
        let key = (callback.id.clone(), callback.generation);
        if self.last_occurrences.get(&key) != Some(&callback.occurrence) {
            return;
        }
        let is_open = |live: &&LiveTrigger| {
            let phase = live.row.lifecycle.as_ref().map(|lifecycle| lifecycle.phase);
            live.row.id.generation == callback.generation && phase == Some(LifecyclePhase::Open)
        };
        let Some(live) = self.live.get(&callback.id).filter(is_open).cloned() else { return };
        self.complete(live, if ok { HistoryResult::Succeeded } else { HistoryResult::Failed });
    }
}

impl LiveTrigger {
    /// Moves a recurring trigger to its next occurrence; returns whether there is one. If it was
    /// only called, that is the one that it had.
    fn advance(&mut self) -> bool {
        let executions = self.row.id.occurrence;
        let lifecycle = self.row.lifecycle_mut();
        let was_called = std::mem::take(&mut lifecycle.fire_now_requested);
        let Some(recurrence) = lifecycle.recurrence.as_deref_mut() else { return false };
        let due = recurrence.due_before_jitter;
        let next = if was_called { Some(due) } else { recurrence.schedule.next(due) };
        let Some(next) = next.filter(|_| recurrence.has_executions_left(executions)) else {
            return false;
        };
        recurrence.due_before_jitter = next;
        self.row.scheduled = next;
        true
    }
}
