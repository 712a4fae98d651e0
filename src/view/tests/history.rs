//! A small history of one partition as an owner and a worker would write it: the input, what each
//! step commits, and how every registration really ended.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::history_actions::{HistoryAction, HistoryConflict, HistoryTriggerKind};
use crate::engine::cursor::Cursor;
use crate::model::definition::{Definition, HttpTarget, Target, TopicTarget};
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::input::{OnConflict, Registration, Request, TriggerRecord};
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::lifecycle::{Lifecycle, LifecyclePhase, Recurrence};
use crate::model::outcome::{Outcome, OutcomeKind};
use crate::model::schedule::Schedule;
use crate::model::timeline::{RANK_DEFAULT, Source, TimelineKey};
use crate::model::{Offset, Timestamp};
use crate::view::results::Status;

/// How long a settled trigger is retained, in ms.
const RETAIN: u64 = 40;
/// Between two occurrences, in ms.
const EVERY: u64 = 1_000;
/// The number of occurrences of a recurring trigger.
const OCCURRENCES: u32 = 3;

/// How far the logs were when a cursor was committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommitPoint {
    pub(super) cursor: Cursor,
    pub(super) triggers: usize,
    pub(super) ledger: usize,
    pub(super) outcomes: usize,
}

/// A trigger that its owner knows.
#[derive(Clone, Debug)]
struct LiveTrigger {
    row: FireRow,
    kind: HistoryTriggerKind,
    due: Timestamp,
    paused: bool,
    /// It has fired, and is retained.
    fired: bool,
}

/// A callback in progress.
#[derive(Clone, Debug)]
struct OpenCallback {
    id: String,
    generation: Offset,
    occurrence: u32,
    attempt: u32,
    kind: HistoryTriggerKind,
}

/// The logs, and the truth about them.
#[derive(Debug, Default)]
pub(super) struct PartitionHistory {
    pub(super) triggers: Vec<TriggerRecord>,
    pub(super) ledger: Vec<LedgerRecord>,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) commits: Vec<CommitPoint>,
    /// The status of each accepted registration, by id and generation.
    pub(super) expected: BTreeMap<(String, Offset), Status>,
    /// The registrations that were ignored.
    pub(super) ignored: BTreeSet<Offset>,
    /// Those of them whose skip mark is in the ledger.
    marks: BTreeSet<Offset>,
    live: BTreeMap<String, LiveTrigger>,
    open_callbacks: Vec<OpenCallback>,
    settled: Vec<(OpenCallback, bool)>,
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
        let offset = self.triggers.len() as u64;
        let request = match act {
            HistoryAction::Register { id, kind, conflict, ack, delay } => {
                let on_conflict = match conflict {
                    HistoryConflict::Replace => OnConflict::Replace,
                    HistoryConflict::Keep => OnConflict::Keep,
                    HistoryConflict::Match(back) => OnConflict::Match(self.registered(id, back)),
                };
                let new = Registration { on_conflict, ..self.registration(id, kind, delay) };
                let request = Request::Register(new);
                self.triggers.push(TriggerRecord { offset, timestamp: self.now, ack, request });
                return;
            }
            HistoryAction::Cancel { id } => Request::Cancel { id: name(id).into(), caller: None },
            HistoryAction::Pause { id, paused } => {
                use crate::model::lifecycle::Command::{Pause, Resume};
                let command = if paused { Pause } else { Resume };
                Request::Command { id: name(id).into(), command, caller: None }
            }
            HistoryAction::CallbackResult { which, ok, again } => {
                return self.callback_result(which, ok, again);
            }
            HistoryAction::Wait { ms } => {
                self.now += ms;
                return;
            }
            HistoryAction::Commit => return self.commit(),
        };
        self.triggers.push(TriggerRecord { offset, timestamp: self.now, ack: false, request });
    }

    /// The offset of a registration that is so many before the newest one of its id; if there is
    /// none, one at which none is.
    fn registered(&self, id: u8, back: u8) -> Offset {
        let is_of_id = |record: &&TriggerRecord| match &record.request {
            Request::Register(new) => new.id.as_str() == name(id),
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
        Registration {
            schedule,
            retain: (kind == HistoryTriggerKind::Retained).then_some(RETAIN),
            ..Registration::one_time(&name(id), fire_at, definition(kind))
        }
    }

    fn schedule(&self) -> Schedule {
        let json = format!(r#"{{"every": "PT1S", "maxExecutions": {OCCURRENCES}}}"#);
        Schedule::from_json(&json).unwrap().anchored(self.now)
    }

    /// A worker reports the result of one of the open callbacks.
    fn callback_result(&mut self, which: u8, ok: bool, again: bool) {
        if self.open_callbacks.is_empty() {
            return;
        }
        let at = usize::from(which) % self.open_callbacks.len();
        let OpenCallback { id, generation, occurrence, attempt, kind } =
            self.open_callbacks[at].clone();
        let retry_at = (!ok && again).then_some(self.now + 5);
        let outcome = if ok {
            OutcomeKind::Delivered { generation, occurrence, attempt, status: 200 }
        } else {
            let reason = "answered 500".to_owned();
            OutcomeKind::Failed {
                generation,
                occurrence,
                attempt,
                status: Some(500),
                reason,
                retry_at,
            }
        };
        self.write_outcome(&id, None, outcome);
        if retry_at.is_some() {
            self.open_callbacks[at].attempt += 1;
            return;
        }
        let open = self.open_callbacks.remove(at);
        let last = kind != HistoryTriggerKind::RecurringHttp || occurrence + 1 == OCCURRENCES;
        if last {
            let status = if ok { Status::Completed } else { Status::Failed };
            self.expected.insert((id, generation), status);
        }
        self.settled.push((open, ok));
    }

    /// One step of the owner: the input, what is due, and the cursor.
    fn commit(&mut self) {
        let ingested_before = self.ingested;
        for at in ingested_before..self.triggers.len() {
            let record = self.triggers[at].clone();
            self.ingest(record);
        }
        self.ingested = self.triggers.len();
        for (open, ok) in std::mem::take(&mut self.settled) {
            self.apply_callback_end(&open, ok);
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
        let (triggers, outcomes) = (self.ingested, self.outcomes.len());
        self.commits.push(CommitPoint { cursor, triggers, ledger: self.ledger.len(), outcomes });
    }

    /// A replay starts at what is pending and not in the ledger, and at `ingested_before` at the
    /// latest. The skip marks below are deleted.
    fn advance_replay_from(&mut self, ingested_before: Offset) -> Offset {
        let pending = self.live.values().filter(|standing| !standing.row.in_ledger);
        let first = pending.map(|standing| standing.row.id.generation).min();
        let replay_from = first.map_or(ingested_before, |first| first.min(ingested_before));
        let marks = self.marks.split_off(&replay_from);
        for passed in std::mem::replace(&mut self.marks, marks) {
            self.write_ledger(LedgerKey::Skip(passed), None);
        }
        replay_from
    }

    fn next_due(&self) -> Option<String> {
        let due = |standing: &&LiveTrigger| standing.due <= self.now && !standing.paused;
        let standing = self.live.iter().filter(|(_, standing)| due(standing));
        standing.min_by_key(|(_, standing)| standing.due).map(|(id, _)| id.clone())
    }

    fn ingest(&mut self, record: TriggerRecord) {
        let TriggerRecord { offset, ack, request, .. } = record;
        match request {
            Request::Register(new) => self.register(offset, ack, new),
            Request::Cancel { id, .. } => {
                let Some(old) = self.remove_live(id.as_str(), |standing| !standing.fired) else {
                    return;
                };
                let generation = old.row.id.generation;
                self.write_outcome(
                    id.as_str(),
                    Some(offset),
                    OutcomeKind::Cancelled { generation },
                );
                self.expected.insert((id.to_string(), generation), Status::Cancelled);
            }
            Request::Command { id, command, .. } => {
                let paused = command == crate::model::lifecycle::Command::Pause;
                let Some(standing) = self.live.get_mut(id.as_str()) else { return };
                if standing.fired || standing.paused == paused {
                    return;
                }
                standing.paused = paused;
                let mut lifecycle = standing.row.lifecycle.take().unwrap_or_default();
                (lifecycle.paused, lifecycle.changed_by_command) = (paused, true);
                standing.row.lifecycle = Some(lifecycle);
                standing.due = standing.row.scheduled;
                let standing = standing.clone();
                self.write_entry(&standing);
                let generation = standing.row.id.generation;
                let fire_at = standing.row.scheduled;
                let kind = match paused {
                    true => OutcomeKind::Paused { generation, reason: "by a command".to_owned() },
                    false => OutcomeKind::Resumed { generation, fire_at },
                };
                self.write_outcome(id.as_str(), Some(offset), kind);
                let recurs = standing.kind == HistoryTriggerKind::Recurring
                    || standing.kind == HistoryTriggerKind::RecurringHttp;
                let ahead = if recurs { Status::Scheduled } else { Status::Pending };
                let status = if paused { Status::Paused } else { ahead };
                self.expected.insert((id.to_string(), generation), status);
            }
            _ => {}
        }
    }

    fn register(&mut self, offset: Offset, ack: bool, new: Registration) {
        let id = new.id.to_string();
        if let Some(why) = self.reason_to_ignore(&id, new.on_conflict) {
            self.ignored.insert(offset);
            self.marks.insert(offset);
            self.write_ledger(LedgerKey::Skip(offset), Some(LedgerValue::Skip));
            if ack {
                self.write_outcome(&id, Some(offset), why);
            }
            return;
        }
        let old = self.remove_live(&id, |_| true);
        let fire_at = new.fire_at;
        if ack {
            let replaced = old.filter(|old| !old.fired).map(|old| old.row.id.generation);
            let kind = OutcomeKind::Accepted { generation: offset, fire_at, replaced };
            self.write_outcome(&id, Some(offset), kind);
        }
        let kind = kind_of(&new);
        let mut lifecycle = Lifecycle { retain: new.retain, ..Lifecycle::default() };
        lifecycle.recurrence = new.schedule.map(|schedule| {
            let (granted, open, failures) = (0, None, 0);
            Box::new(Recurrence {
                due_before_jitter: fire_at,
                schedule: *schedule,
                catch_up_until: granted,
                open,
                failures,
                counted_from: 0,
            })
        });
        let recurs = lifecycle.recurrence.is_some();
        let mut row = FireRow::first(new.id, offset, fire_at, new.definition);
        row.lifecycle = lifecycle.boxed_unless_default();
        // By the time it was written: what is far off goes into the ledger.
        let long = fire_at > self.triggers[offset as usize].timestamp + 400;
        row.in_ledger = row.lifecycle.is_some() || long && fire_at > self.now;
        let standing = LiveTrigger { row, kind, due: fire_at, paused: false, fired: false };
        if standing.row.in_ledger {
            self.write_entry(&standing);
        }
        self.live.insert(id.clone(), standing);
        let status = if recurs { Status::Scheduled } else { Status::Pending };
        self.expected.insert((id, offset), status);
    }

    fn reason_to_ignore(&self, id: &str, on_conflict: OnConflict) -> Option<OutcomeKind> {
        let live = self.live.get(id);
        let kept = |live: &LiveTrigger| {
            let (generation, fire_at) = (live.row.id.generation, live.row.scheduled);
            OutcomeKind::Kept { generation, fire_at }
        };
        match on_conflict {
            OnConflict::Replace => None,
            OnConflict::Keep => live.map(kept),
            OnConflict::Match(wanted) => match live.filter(|live| !live.fired) {
                Some(live) if live.row.id.generation == wanted => None,
                Some(live) => Some(kept(live)),
                None => Some(OutcomeKind::NotPending { fired: None, withdrawal: false }),
            },
        }
    }

    /// What is due fires, or is removed.
    fn fire(&mut self, id: &str) {
        let Some(mut standing) = self.remove_live(id, |_| true) else { return };
        if standing.fired {
            return;
        }
        let kind = standing.kind;
        let (generation, occurrence) = (standing.row.id.generation, standing.row.id.occurrence);
        let key = (id.to_owned(), generation);
        let http = standing.row.definition.target.is_http();
        if http {
            let id = id.to_owned();
            self.open_callbacks.push(OpenCallback { id, generation, occurrence, attempt: 1, kind });
        }
        if matches!(kind, HistoryTriggerKind::Recurring | HistoryTriggerKind::RecurringHttp) {
            let executions = occurrence + 1;
            if executions == OCCURRENCES {
                self.write_outcome(id, None, OutcomeKind::Ended { generation, executions });
                let status = if http { Status::InFlight } else { Status::Fired };
                self.expected.insert(key, status);
                return;
            }
            standing.row.id.occurrence = executions;
            standing.row.scheduled += EVERY;
            standing.due = standing.row.scheduled;
            self.write_entry(&standing);
            self.live.insert(id.to_owned(), standing);
            return;
        }
        self.expected.insert(key, if http { Status::InFlight } else { Status::Fired });
        if kind == HistoryTriggerKind::Retained {
            self.keep_settled(standing, LifecyclePhase::Open, 10_000);
        }
    }

    /// The owner is notified how a callback ended.
    fn apply_callback_end(&mut self, open: &OpenCallback, ok: bool) {
        let this = |standing: &LiveTrigger| {
            standing.fired && standing.row.id.generation == open.generation
        };
        if let Some(standing) = self.remove_live(&open.id, this) {
            let end = if ok { LifecyclePhase::Done } else { LifecyclePhase::Failed };
            self.keep_settled(standing, end, RETAIN);
        }
    }

    fn keep_settled(&mut self, mut standing: LiveTrigger, as_what: LifecyclePhase, ms: u64) {
        let mut lifecycle = standing.row.lifecycle.take().unwrap_or_default();
        lifecycle.phase = as_what;
        standing.row.lifecycle = Some(lifecycle);
        standing.row.in_ledger = true;
        (standing.fired, standing.due) = (true, self.now + ms);
        self.write_entry(&standing);
        self.live.insert(standing.row.id.trigger.to_string(), standing);
    }

    /// Removes the trigger, from the ledger too.
    fn remove_live(
        &mut self,
        id: &str,
        is_meant: impl Fn(&LiveTrigger) -> bool,
    ) -> Option<LiveTrigger> {
        let standing = self.live.get(id).filter(|standing| is_meant(standing))?.clone();
        self.live.remove(id);
        if standing.row.in_ledger {
            self.write_ledger(LedgerKey::Main(id.into()), None);
        }
        Some(standing)
    }

    fn write_entry(&mut self, standing: &LiveTrigger) {
        let mut row = standing.row.clone();
        row.in_ledger = true;
        let id = row.id.trigger.clone();
        if let Some(known) = self.live.get_mut(id.as_str()) {
            known.row.in_ledger = true;
        }
        let (source, offset) = (Source::Triggers, row.id.generation);
        let key = TimelineKey { due: standing.due, priority: RANK_DEFAULT, source, offset };
        let entry = Entry { key, row: Row::Fire(row) };
        self.write_ledger(LedgerKey::Main(id), Some(LedgerValue::Entry(entry)));
    }

    fn write_ledger(&mut self, key: LedgerKey, value: Option<LedgerValue>) {
        self.ledger.push(LedgerRecord { key, value, step: self.step + 1 });
    }

    fn write_outcome(&mut self, id: &str, answers: Option<Offset>, kind: OutcomeKind) {
        self.outcomes.push(Outcome { trigger: id.into(), answers, at: self.now, kind });
    }
}

fn name(id: u8) -> String {
    format!("order-{id}")
}

fn kind_of(new: &Registration) -> HistoryTriggerKind {
    let http = new.definition.target.is_http();
    match (new.schedule.is_some(), new.retain.is_some(), http) {
        (true, _, true) => HistoryTriggerKind::RecurringHttp,
        (true, _, false) => HistoryTriggerKind::Recurring,
        (false, true, _) => HistoryTriggerKind::Retained,
        (false, false, true) => HistoryTriggerKind::Http,
        (false, false, false) => HistoryTriggerKind::Topic,
    }
}

pub(super) fn definition(kind: HistoryTriggerKind) -> Definition {
    let target = match kind {
        HistoryTriggerKind::Topic | HistoryTriggerKind::Long | HistoryTriggerKind::Recurring => {
            Target::Topic(TopicTarget { topic: "teas".into(), key: None })
        }
        _ => HttpTarget::post("https://api.example.com/hook").into(),
    };
    let payload = Some(Bytes::from_static(b"{}"));
    let caller = (kind != HistoryTriggerKind::Long).then(|| "billing".into());
    Definition { target, payload, headers: Vec::new(), retry: None, caller }
}
