//! A small history of one partition as an owner and a worker would write it: the input, what each
//! step commits, and how every registration really ended.
//!
//! Invariant: what is written follows from the actions alone, by the rules of the engine.

mod changes;
mod firing;
mod ingest;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::history_actions::{HistoryAction, HistoryConflict, HistoryTriggerKind};
use crate::engine::cursor::Cursor;
use crate::model::dead_letter::{Content, DeadLetter, Mark, Origin};
use crate::model::definition::{Definition, HttpTarget, Target, TopicTarget};
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::input::{OnConflict, Registration, Request, TriggerRecord};
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::lifecycle::{
    Command, Dependencies, Lifecycle, OnFailure, PendingDependencies, Recurrence,
};
use crate::model::outcome::{Outcome, OutcomeKind};
use crate::model::schedule::Schedule;
use crate::model::text::Text;
use crate::model::timeline::{PAUSED, Source, TimelineKey, rank};
use crate::model::{Millis, Offset, Timestamp};
use crate::view::results::Status;

pub(super) use changes::changed_name;

/// How long a settled trigger is retained, in ms.
const RETAIN: Millis = 40;
/// The number of occurrences of a recurring trigger.
const OCCURRENCES: u32 = 3;
/// How long a trigger waits for others, in ms.
const AFTER_TIMEOUT: Millis = 5_000;
/// How long the owner waits for the result of a callback, in ms.
const RESULT_TIMEOUT: Millis = 10_000;
/// What is due later than this after its registration, in ms, is in the ledger.
const LEDGER_AFTER: Millis = 400;

/// How far the logs were when a cursor was committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommitPoint {
    pub(super) cursor: Cursor,
    pub(super) triggers: usize,
    pub(super) ledger: usize,
    pub(super) outcomes: usize,
    pub(super) letters: usize,
}

/// What a registration, and the changes of it, have made of a trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HistoryDefinition {
    pub(super) revision: Offset,
    pub(super) definition: Definition,
    pub(super) schedule: Option<String>,
    /// As it was named; what has settled is in it.
    pub(super) after: Option<Dependencies>,
    pub(super) expire_after: Option<Millis>,
    pub(super) retain: Option<Millis>,
    pub(super) priority: u8,
    /// When it is due, or was last, where that is certain.
    pub(super) fire_at: Option<Timestamp>,
}

/// A trigger that its owner knows.
#[derive(Clone, Debug)]
struct LiveTrigger {
    row: FireRow,
    priority: u8,
    /// When its owner decides about it again.
    due: Timestamp,
}

/// A callback in progress.
#[derive(Clone, Debug)]
struct OpenCallback {
    id: String,
    generation: Offset,
    occurrence: u32,
    attempt: u32,
    definition: Definition,
}

/// The id and the generation of a registration.
type HistoryKey = (String, Offset);

/// The logs, and the truth about them.
#[derive(Debug, Default)]
pub(super) struct PartitionHistory {
    pub(super) triggers: Vec<TriggerRecord>,
    pub(super) ledger: Vec<LedgerRecord>,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) letters: Vec<DeadLetter>,
    pub(super) commits: Vec<CommitPoint>,
    /// The status of each accepted registration.
    pub(super) expected: BTreeMap<HistoryKey, Status>,
    /// What each of them is.
    pub(super) defined: BTreeMap<HistoryKey, HistoryDefinition>,
    /// The registrations that were ignored.
    pub(super) ignored: BTreeSet<Offset>,
    /// Those of them whose skip mark is in the ledger.
    marks: BTreeSet<Offset>,
    live: BTreeMap<String, LiveTrigger>,
    open_callbacks: Vec<OpenCallback>,
    /// The number of the last occurrence of what does not fire any more.
    last_occurrences: BTreeMap<HistoryKey, u32>,
    /// Callbacks that have ended, and dependencies that have settled, since the last step.
    ended: Vec<(OpenCallback, bool)>,
    settled: Vec<(Text, bool)>,
    now: Timestamp,
    ingested: usize,
    step: u64,
}

impl PartitionHistory {
    pub(super) fn of(acts: &[HistoryAction]) -> Self {
        let mut history = Self { now: 1_000, ..Self::default() };
        for act in acts {
            history.apply(*act);
        }
        history.commit();
        history
    }

    /// The newest accepted registration of each id, and its status.
    pub(super) fn current(&self) -> BTreeMap<&str, (Offset, Status)> {
        let all = self.expected.iter();
        all.map(|((id, generation), status)| (id.as_str(), (*generation, *status))).collect()
    }

    fn apply(&mut self, act: HistoryAction) {
        let (request, ack) = match act {
            HistoryAction::Register { id, kind, conflict, ack, delay } => {
                let on_conflict = match conflict {
                    HistoryConflict::Replace => OnConflict::Replace,
                    HistoryConflict::Keep => OnConflict::Keep,
                    HistoryConflict::Match(back) => OnConflict::Match(self.written(id, back)),
                };
                let new = Registration { on_conflict, ..self.registration(id, kind, delay) };
                (Request::Register(new), ack)
            }
            HistoryAction::Change { id, change, ack } => {
                (Request::Change(Box::new(self.new_change(id, change))), ack)
            }
            HistoryAction::Cancel { id } => {
                (Request::Cancel { id: name(id).into(), caller: None }, false)
            }
            HistoryAction::Pause { id, paused } => {
                let command = if paused { Command::Pause } else { Command::Resume };
                (Request::Command { id: name(id).into(), command, caller: None }, false)
            }
            HistoryAction::Call { id } => {
                let command = Command::FireNow;
                (Request::Command { id: name(id).into(), command, caller: None }, false)
            }
            HistoryAction::Settle { other, ok } => {
                self.settled.push((others()[usize::from(other)].clone(), ok));
                return;
            }
            HistoryAction::CallbackResult { which, ok, again } => {
                return self.callback_result(which, ok, again);
            }
            HistoryAction::HandleLetter { which, replayed } => {
                return self.handle_letter(which, replayed);
            }
            HistoryAction::Wait { ms } => {
                self.now += ms;
                return;
            }
            HistoryAction::Commit => return self.commit(),
        };
        let offset = self.triggers.len() as u64;
        self.triggers.push(TriggerRecord { offset, timestamp: self.now, ack: ack.into(), request });
    }

    /// The offset of a registration or a change that is so many before the newest one of its id; if
    /// there is none, one at which none is.
    fn written(&self, id: u8, back: u8) -> Offset {
        let is_of_id = |record: &&TriggerRecord| match &record.request {
            Request::Register(new) => new.id.as_str() == name(id),
            Request::Change(change) => change.new.id.as_str() == name(id),
            _ => false,
        };
        let mut newest_first = self.triggers.iter().rev().filter(is_of_id);
        let found = newest_first.nth(back.into());
        found.map_or(self.triggers.len() as u64, |record| record.offset)
    }

    fn registration(&self, id: u8, kind: HistoryTriggerKind, delay: u64) -> Registration {
        let recurs =
            matches!(kind, HistoryTriggerKind::Recurring | HistoryTriggerKind::RecurringHttp);
        let schedule = recurs.then(|| Box::new(self.schedule()));
        let fire_at = match &schedule {
            Some(schedule) => schedule.first(self.now).unwrap(),
            None if kind == HistoryTriggerKind::Long => self.now + 500 + delay,
            None => self.now + delay,
        };
        let waits = kind == HistoryTriggerKind::Waiting;
        Registration {
            schedule,
            retain: (kind == HistoryTriggerKind::Retained).then_some(RETAIN),
            after: waits.then(|| Box::new(dependencies(OnFailure::Fail))),
            ..Registration::one_time(&name(id), fire_at, definition(kind))
        }
    }

    /// Once a second, from now on.
    fn schedule(&self) -> Schedule {
        let json = format!(r#"{{"every": "PT1S", "maxExecutions": {OCCURRENCES}}}"#);
        Schedule::from_json(&json).unwrap().anchored(self.now)
    }

    /// One step of the owner: the input, what is due, and the cursor.
    fn commit(&mut self) {
        let ingested_before = self.ingested;
        for at in ingested_before..self.triggers.len() {
            let record = self.triggers[at].clone();
            self.ingest(record);
        }
        self.ingested = self.triggers.len();
        for (other, ok) in std::mem::take(&mut self.settled) {
            self.apply_settlement(&other, ok);
        }
        for (callback, ok) in std::mem::take(&mut self.ended) {
            self.apply_callback_end(&callback, ok);
        }
        let w = TimelineKey::last_at(self.now);
        while let Some(id) = self.next_due() {
            self.fire(&id);
        }
        let replay_from = self.advance_replay_from(ingested_before as u64);
        self.step += 1;
        let step = self.step;
        let cursor = Cursor {
            fired_through: w,
            step,
            replay_from,
            ..Cursor::initial(self.ingested as u64, 0)
        };
        let (triggers, ledger) = (self.ingested, self.ledger.len());
        let (outcomes, letters) = (self.outcomes.len(), self.letters.len());
        self.commits.push(CommitPoint { cursor, triggers, ledger, outcomes, letters });
    }

    /// A replay starts at what is pending and not in the ledger, and at `ingested_before` at the
    /// latest. The skip marks below are deleted.
    fn advance_replay_from(&mut self, ingested_before: Offset) -> Offset {
        let pending = self.live.values().filter(|live| !live.row.in_ledger);
        let first = pending.map(|live| live.row.id.generation).min();
        let replay_from = first.map_or(ingested_before, |first| first.min(ingested_before));
        let marks = self.marks.split_off(&replay_from);
        for passed in std::mem::replace(&mut self.marks, marks) {
            self.write_ledger(LedgerKey::Skip(passed), None);
        }
        replay_from
    }

    fn next_due(&self) -> Option<String> {
        let due = self.live.iter().filter(|(_, live)| live.due <= self.now);
        due.min_by_key(|(_, live)| live.due).map(|(id, _)| id.clone())
    }

    /// A trigger that has not fired waits for its time, or for whatever else it needs.
    fn schedule_pending(&mut self, mut live: LiveTrigger) {
        live.due = due_of(&live.row);
        let lifecycle = live.row.lifecycle.as_ref();
        let is_kept = lifecycle.is_some_and(|lifecycle| lifecycle.needs_ledger());
        if is_kept || live.row.in_ledger {
            self.write_entry(&mut live);
        }
        let (key, status) = (live.key(), status_ahead(&live.row));
        if let Some(defined) = self.defined.get_mut(&key) {
            defined.fire_at = Some(live.row.scheduled);
        }
        let _before = self.live.insert(key.0.clone(), live);
        let _before = self.expected.insert(key, status);
    }

    /// Removes the trigger, from the ledger too.
    fn remove_live(&mut self, id: &str) -> Option<LiveTrigger> {
        let live = self.live.remove(id)?;
        if live.row.in_ledger {
            self.write_ledger(LedgerKey::Main(id.into()), None);
        }
        Some(live)
    }

    fn write_entry(&mut self, live: &mut LiveTrigger) {
        live.row.in_ledger = true;
        let (source, offset) = (Source::Triggers, live.row.id.generation);
        let (due, priority) = (live.due, rank(live.priority));
        let key = TimelineKey { due, priority, source, offset };
        let id = live.row.id.trigger.clone();
        let entry = Entry { key, row: Row::Fire(live.row.clone()) };
        self.write_ledger(LedgerKey::Main(id), Some(LedgerValue::Entry(entry)));
    }

    fn write_ledger(&mut self, key: LedgerKey, value: Option<LedgerValue>) {
        self.ledger.push(LedgerRecord { key, value, step: self.step + 1 });
    }

    fn write_outcome(&mut self, id: &str, answers: Option<Offset>, kind: OutcomeKind) {
        self.outcomes.push(Outcome {
            trigger: id.into(),
            answers,
            request: None,
            at: self.now,
            kind,
        });
    }

    fn write_letter(&mut self, about: Offset, reason: &str, content: Content) {
        let origin = Origin { topic: "t".into(), partition: 0, offset: about };
        let reason = reason.to_owned();
        self.letters.push(DeadLetter { origin, reason, at: self.now, content });
    }

    /// A person replays or archives one of the letters.
    fn handle_letter(&mut self, which: u8, replayed: bool) {
        let letters = self.letters.iter().enumerate();
        let fires = letters.filter(|(_, letter)| matches!(letter.content, Content::Fire { .. }));
        let fires: Vec<usize> = fires.map(|(offset, _)| offset).collect();
        if fires.is_empty() {
            return;
        }
        let about = fires[usize::from(which) % fires.len()] as u64;
        let mark = if replayed { Mark::Replayed } else { Mark::Archived };
        self.write_letter(about, "", Content::Mark(mark));
    }
}

impl LiveTrigger {
    fn key(&self) -> HistoryKey {
        (self.row.id.trigger.to_string(), self.row.id.generation)
    }

    /// It is remembered, and does not fire any more.
    fn has_fired(&self) -> bool {
        let lifecycle = self.row.lifecycle.as_ref();
        lifecycle.is_some_and(|lifecycle| !lifecycle.phase.is_waiting())
    }

    fn recurs(&self) -> bool {
        self.row.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.recurrence.is_some())
    }

    fn retain(&self) -> Option<Millis> {
        self.row.lifecycle.as_ref().and_then(|lifecycle| lifecycle.retain)
    }
}

/// The first row of a trigger.
fn first_row(generation: Offset, timestamp: Timestamp, new: Registration) -> FireRow {
    let fire_at = new.fire_at;
    let recurrence = new.schedule.map(|schedule| {
        let (catch_up_until, open, failures, counted_from) = (0, None, 0, 0);
        Box::new(Recurrence {
            schedule: *schedule,
            due_before_jitter: fire_at,
            catch_up_until,
            open,
            failures,
            counted_from,
        })
    });
    let dependencies = new.after.map(|after| {
        let Dependencies { ids: remaining, on_failure, timeout } = *after;
        let until = timestamp + timeout;
        Box::new(PendingDependencies { remaining, on_failure, until, failed: None })
    });
    let (expire_after, retain) = (new.expire_after, new.retain);
    let lifecycle =
        Lifecycle { expire_after, retain, recurrence, dependencies, ..Lifecycle::default() };
    let row = FireRow::first(new.id, generation, fire_at, new.definition);
    FireRow { lifecycle: lifecycle.boxed_unless_default(), ..row }
}

/// When the owner decides about a trigger that has not fired.
fn due_of(row: &FireRow) -> Timestamp {
    let Some(lifecycle) = &row.lifecycle else { return row.scheduled };
    match &lifecycle.dependencies {
        _ if lifecycle.fire_now_requested => 0,
        _ if lifecycle.paused => PAUSED,
        Some(dependencies) => dependencies.until,
        None => row.scheduled,
    }
}

/// The status of a trigger that has not fired.
fn status_ahead(row: &FireRow) -> Status {
    match row.lifecycle.as_deref() {
        Some(lifecycle) if lifecycle.paused => Status::Paused,
        Some(Lifecycle { dependencies: Some(_), .. }) => Status::Waiting,
        Some(Lifecycle { recurrence: Some(_), .. }) => Status::Scheduled,
        _ => Status::Pending,
    }
}

/// Triggers of other partitions that those here wait for.
fn others() -> [Text; 2] {
    ["other-a".into(), "other-b".into()]
}

fn dependencies(on_failure: OnFailure) -> Dependencies {
    Dependencies { ids: others().to_vec(), on_failure, timeout: AFTER_TIMEOUT }
}

fn name(id: u8) -> String {
    format!("order-{id}")
}

pub(super) fn definition(kind: HistoryTriggerKind) -> Definition {
    let target = match kind {
        HistoryTriggerKind::Topic
        | HistoryTriggerKind::Long
        | HistoryTriggerKind::Recurring
        | HistoryTriggerKind::Waiting => {
            Target::Topic(TopicTarget { topic: "teas".into(), key: None })
        }
        HistoryTriggerKind::Http
        | HistoryTriggerKind::Retained
        | HistoryTriggerKind::RecurringHttp => {
            HttpTarget::post("https://api.example.com/hook").into()
        }
    };
    let payload = Some(Bytes::from_static(b"{}"));
    let caller = (kind != HistoryTriggerKind::Long).then(|| "billing".into());
    Definition { target, payload, headers: Vec::new(), retry: None, caller }
}
