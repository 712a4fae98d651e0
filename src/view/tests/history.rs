//! A history of one partition as an owner and a worker would write it, in small: what comes in,
//! what each step commits, and how every registration really ended.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use crate::engine::cursor::Cursor;
use crate::engine::tests::world::registration;
use crate::model::course::{Course, Series, Standing};
use crate::model::definition::{Definition, HttpTarget, Target, TopicTarget};
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::input::{OnConflict, Registration, Request, TriggerRecord};
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::outcome::{Outcome, Verdict};
use crate::model::schedule::Schedule;
use crate::model::timeline::{RANK_DEFAULT, Source, TimelineKey};
use crate::model::{Offset, Timestamp};
use crate::view::answer::Status;

/// What is remembered of a settled trigger, in ms.
const RETAIN: u64 = 40;
/// Between two occurrences, in ms.
const EVERY: u64 = 1_000;
/// How often a recurring trigger comes.
const OCCURRENCES: u32 = 3;

/// What a user does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Register {
        id: u8,
        kind: Kind,
        keep: bool,
        ack: bool,
        delay: u64,
    },
    Cancel {
        id: u8,
    },
    Pause {
        id: u8,
        paused: bool,
    },
    /// A worker tells of one callback.
    Work {
        which: u8,
        ok: bool,
        again: bool,
    },
    /// Time passes.
    Wait {
        ms: u64,
    },
    /// The owner commits.
    Commit,
}

/// What is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Topic,
    Http,
    /// Held by the ledger until it fires.
    Long,
    Retained,
    Recurring,
    RecurringHttp,
}

pub(super) fn acts() -> impl Strategy<Value = Vec<Act>> {
    let kind = prop_oneof![
        3 => Just(Kind::Topic),
        3 => Just(Kind::Http),
        1 => Just(Kind::Long),
        2 => Just(Kind::Retained),
        1 => Just(Kind::Recurring),
        1 => Just(Kind::RecurringHttp),
    ];
    let register = (0..4_u8, kind, any::<bool>(), any::<bool>(), 0..60_u64)
        .prop_map(|(id, kind, keep, ack, delay)| Act::Register { id, kind, keep, ack, delay });
    let act = prop_oneof![
        4 => register,
        2 => (0..4_u8).prop_map(|id| Act::Cancel { id }),
        1 => (0..4_u8, any::<bool>()).prop_map(|(id, paused)| Act::Pause { id, paused }),
        3 => (any::<u8>(), any::<bool>(), any::<bool>())
            .prop_map(|(which, ok, again)| Act::Work { which, ok, again }),
        3 => prop_oneof![0..50_u64, 900..1_100_u64].prop_map(|ms| Act::Wait { ms }),
        4 => Just(Act::Commit),
    ];
    prop::collection::vec(act, 1..60)
}

/// How far the logs were when a cursor was committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) cursor: Cursor,
    pub(super) triggers: usize,
    pub(super) ledger: usize,
    pub(super) outcomes: usize,
}

/// A trigger that its owner knows.
#[derive(Clone, Debug)]
struct Standing1 {
    row: FireRow,
    kind: Kind,
    due: Timestamp,
    paused: bool,
    /// It has fired, and is remembered.
    past: bool,
}

/// A callback under way.
#[derive(Clone, Debug)]
struct Open {
    id: String,
    generation: Offset,
    occurrence: u32,
    attempt: u32,
    kind: Kind,
}

/// The logs, and the truth about them.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) triggers: Vec<TriggerRecord>,
    pub(super) ledger: Vec<LedgerRecord>,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) cuts: Vec<Cut>,
    /// How each registration that was taken stands, by id and generation.
    pub(super) truth: BTreeMap<(String, Offset), Status>,
    standing: BTreeMap<String, Standing1>,
    open: Vec<Open>,
    settled: Vec<(Open, bool)>,
    now: Timestamp,
    ingested: usize,
    step: u64,
}

impl History {
    pub(super) fn of(acts: &[Act]) -> Self {
        let mut history = Self { now: 1_000, ..Self::default() };
        for act in acts {
            history.act(*act);
        }
        history.commit();
        history
    }

    /// The newest registration of each id that was taken, and how it stands.
    pub(super) fn current(&self) -> BTreeMap<&str, (Offset, Status)> {
        let all = self.truth.iter();
        all.map(|((id, generation), status)| (id.as_str(), (*generation, *status))).collect()
    }

    fn act(&mut self, act: Act) {
        let offset = self.triggers.len() as u64;
        let request = match act {
            Act::Register { id, kind, keep, ack, delay } => {
                let new = self.registration(id, kind, keep, delay);
                let request = Request::Register(new);
                self.triggers.push(TriggerRecord { offset, timestamp: self.now, ack, request });
                return;
            }
            Act::Cancel { id } => Request::Cancel { id: name(id).into(), caller: None },
            Act::Pause { id, paused } => {
                use crate::model::course::Command::{Pause, Resume};
                let command = if paused { Pause } else { Resume };
                Request::Command { id: name(id).into(), command, caller: None }
            }
            Act::Work { which, ok, again } => return self.work(which, ok, again),
            Act::Wait { ms } => {
                self.now += ms;
                return;
            }
            Act::Commit => return self.commit(),
        };
        self.triggers.push(TriggerRecord { offset, timestamp: self.now, ack: false, request });
    }

    fn registration(&self, id: u8, kind: Kind, keep: bool, delay: u64) -> Registration {
        let recurs = matches!(kind, Kind::Recurring | Kind::RecurringHttp);
        let schedule = recurs.then(|| Box::new(self.schedule()));
        let fire_at = match &schedule {
            Some(schedule) => schedule.first(self.now).unwrap(),
            None if kind == Kind::Long => self.now + 500 + delay,
            None => self.now + delay,
        };
        Registration {
            schedule,
            retain: (kind == Kind::Retained).then_some(RETAIN),
            on_conflict: if keep { OnConflict::Keep } else { OnConflict::Replace },
            ..registration(&name(id), fire_at, definition(kind))
        }
    }

    fn schedule(&self) -> Schedule {
        let json = format!(r#"{{"every": "PT1S", "maxExecutions": {OCCURRENCES}}}"#);
        Schedule::from_json(&json).unwrap().anchored(self.now)
    }

    /// A worker tells how one of the open callbacks went.
    fn work(&mut self, which: u8, ok: bool, again: bool) {
        if self.open.is_empty() {
            return;
        }
        let at = usize::from(which) % self.open.len();
        let Open { id, generation, occurrence, attempt, kind } = self.open[at].clone();
        let retry_at = (!ok && again).then_some(self.now + 5);
        let verdict = if ok {
            Verdict::Delivered { generation, occurrence, attempt, status: 200 }
        } else {
            let reason = "answered 500".to_owned();
            Verdict::Failed { generation, occurrence, attempt, status: Some(500), reason, retry_at }
        };
        self.tell(&id, None, verdict);
        if retry_at.is_some() {
            self.open[at].attempt += 1;
            return;
        }
        let open = self.open.remove(at);
        let last = kind != Kind::RecurringHttp || occurrence + 1 == OCCURRENCES;
        if last {
            let status = if ok { Status::Completed } else { Status::Failed };
            self.truth.insert((id, generation), status);
        }
        self.settled.push((open, ok));
    }

    /// One step of the owner: what came in, what is due, and the cursor.
    fn commit(&mut self) {
        for at in self.ingested..self.triggers.len() {
            let record = self.triggers[at].clone();
            self.ingest(record);
        }
        self.ingested = self.triggers.len();
        for (open, ok) in std::mem::take(&mut self.settled) {
            self.hear(&open, ok);
        }
        let w = TimelineKey::last_of(self.now);
        while let Some(id) = self.next_due() {
            self.fire(&id);
        }
        self.step += 1;
        let step = self.step;
        let cursor = Cursor { w, step, low_water: 0, ..Cursor::fresh(self.ingested as u64, 0) };
        let (triggers, outcomes) = (self.ingested, self.outcomes.len());
        self.cuts.push(Cut { cursor, triggers, ledger: self.ledger.len(), outcomes });
    }

    fn next_due(&self) -> Option<String> {
        let due = |standing: &&Standing1| standing.due <= self.now && !standing.paused;
        let standing = self.standing.iter().filter(|(_, standing)| due(standing));
        standing.min_by_key(|(_, standing)| standing.due).map(|(id, _)| id.clone())
    }

    fn ingest(&mut self, record: TriggerRecord) {
        let TriggerRecord { offset, ack, request, .. } = record;
        match request {
            Request::Register(new) => self.register(offset, ack, new),
            Request::Cancel { id, .. } => {
                let Some(old) = self.take(id.as_str(), |standing| !standing.past) else { return };
                let generation = old.row.id.generation;
                self.tell(id.as_str(), Some(offset), Verdict::Cancelled { generation });
                self.truth.insert((id.to_string(), generation), Status::Cancelled);
            }
            Request::Command { id, command, .. } => {
                let paused = command == crate::model::course::Command::Pause;
                let Some(standing) = self.standing.get_mut(id.as_str()) else { return };
                if standing.past || standing.paused == paused {
                    return;
                }
                standing.paused = paused;
                let mut course = standing.row.course.take().unwrap_or_default();
                (course.paused, course.touched) = (paused, true);
                standing.row.course = Some(course);
                standing.due = standing.row.scheduled;
                let standing = standing.clone();
                self.hold(&standing);
                let generation = standing.row.id.generation;
                let fire_at = standing.row.scheduled;
                let verdict = match paused {
                    true => Verdict::Paused { generation, reason: "by a command".to_owned() },
                    false => Verdict::Resumed { generation, fire_at },
                };
                self.tell(id.as_str(), Some(offset), verdict);
                let recurs =
                    standing.kind == Kind::Recurring || standing.kind == Kind::RecurringHttp;
                let ahead = if recurs { Status::Scheduled } else { Status::Pending };
                let status = if paused { Status::Paused } else { ahead };
                self.truth.insert((id.to_string(), generation), status);
            }
            _ => {}
        }
    }

    fn register(&mut self, offset: Offset, ack: bool, new: Registration) {
        let id = new.id.to_string();
        if let Some(old) = self.standing.get(&id)
            && new.on_conflict == OnConflict::Keep
        {
            let (generation, fire_at) = (old.row.id.generation, old.row.scheduled);
            self.write(LedgerKey::Skip(offset), Some(LedgerValue::Skip));
            if ack {
                self.tell(&id, Some(offset), Verdict::Kept { generation, fire_at });
            }
            return;
        }
        let old = self.take(&id, |_| true);
        let fire_at = new.fire_at;
        if ack {
            let replaced = old.filter(|old| !old.past).map(|old| old.row.id.generation);
            let verdict = Verdict::Accepted { generation: offset, fire_at, replaced };
            self.tell(&id, Some(offset), verdict);
        }
        let kind = kind_of(&new);
        let mut course = Course { retain: new.retain, ..Course::default() };
        course.series = new.schedule.map(|schedule| {
            let (granted, open, failures) = (0, None, 0);
            Box::new(Series { nominal: fire_at, schedule: *schedule, granted, open, failures })
        });
        let recurs = course.series.is_some();
        let mut row = FireRow::first(new.id, offset, fire_at, new.definition);
        row.course = course.some();
        // By the time it was written: what is far off goes into the ledger.
        let long = fire_at > self.triggers[offset as usize].timestamp + 400;
        row.in_ledger = row.course.is_some() || long && fire_at > self.now;
        let standing = Standing1 { row, kind, due: fire_at, paused: false, past: false };
        if standing.row.in_ledger {
            self.hold(&standing);
        }
        self.standing.insert(id.clone(), standing);
        let status = if recurs { Status::Scheduled } else { Status::Pending };
        self.truth.insert((id, offset), status);
    }

    /// What is due fires, or is forgotten.
    fn fire(&mut self, id: &str) {
        let Some(mut standing) = self.take(id, |_| true) else { return };
        if standing.past {
            return;
        }
        let kind = standing.kind;
        let (generation, occurrence) = (standing.row.id.generation, standing.row.id.occurrence);
        let key = (id.to_owned(), generation);
        let http = standing.row.definition.target.is_http();
        if http {
            let id = id.to_owned();
            self.open.push(Open { id, generation, occurrence, attempt: 1, kind });
        }
        if matches!(kind, Kind::Recurring | Kind::RecurringHttp) {
            let executions = occurrence + 1;
            if executions == OCCURRENCES {
                self.tell(id, None, Verdict::Ended { generation, executions });
                let status = if http { Status::InFlight } else { Status::Fired };
                self.truth.insert(key, status);
                return;
            }
            standing.row.id.occurrence = executions;
            standing.row.scheduled += EVERY;
            standing.due = standing.row.scheduled;
            self.hold(&standing);
            self.standing.insert(id.to_owned(), standing);
            return;
        }
        self.truth.insert(key, if http { Status::InFlight } else { Status::Fired });
        if kind == Kind::Retained {
            self.remember(standing, Standing::Open, 10_000);
        }
    }

    /// The owner is told how a callback ended.
    fn hear(&mut self, open: &Open, ok: bool) {
        let this =
            |standing: &Standing1| standing.past && standing.row.id.generation == open.generation;
        if let Some(standing) = self.take(&open.id, this) {
            let end = if ok { Standing::Done } else { Standing::Failed };
            self.remember(standing, end, RETAIN);
        }
    }

    fn remember(&mut self, mut standing: Standing1, as_what: Standing, ms: u64) {
        let mut course = standing.row.course.take().unwrap_or_default();
        course.standing = as_what;
        standing.row.course = Some(course);
        standing.row.in_ledger = true;
        (standing.past, standing.due) = (true, self.now + ms);
        self.hold(&standing);
        self.standing.insert(standing.row.id.trigger.to_string(), standing);
    }

    /// Takes what stands there, out of the ledger too.
    fn take(&mut self, id: &str, is_meant: impl Fn(&Standing1) -> bool) -> Option<Standing1> {
        let standing = self.standing.get(id).filter(|standing| is_meant(standing))?.clone();
        self.standing.remove(id);
        if standing.row.in_ledger {
            self.write(LedgerKey::Main(id.into()), None);
        }
        Some(standing)
    }

    fn hold(&mut self, standing: &Standing1) {
        let mut row = standing.row.clone();
        row.in_ledger = true;
        let id = row.id.trigger.clone();
        if let Some(known) = self.standing.get_mut(id.as_str()) {
            known.row.in_ledger = true;
        }
        let (source, offset) = (Source::Triggers, row.id.generation);
        let key = TimelineKey { due: standing.due, priority: RANK_DEFAULT, source, offset };
        let entry = Entry { key, row: Row::Fire(row) };
        self.write(LedgerKey::Main(id), Some(LedgerValue::Entry(entry)));
    }

    fn write(&mut self, key: LedgerKey, value: Option<LedgerValue>) {
        self.ledger.push(LedgerRecord { key, value, step: self.step + 1 });
    }

    fn tell(&mut self, id: &str, answers: Option<Offset>, verdict: Verdict) {
        self.outcomes.push(Outcome { trigger: id.into(), answers, at: self.now, verdict });
    }
}

fn name(id: u8) -> String {
    format!("order-{id}")
}

fn kind_of(new: &Registration) -> Kind {
    let http = new.definition.target.is_http();
    match (new.schedule.is_some(), new.retain.is_some(), http) {
        (true, _, true) => Kind::RecurringHttp,
        (true, _, false) => Kind::Recurring,
        (false, true, _) => Kind::Retained,
        (false, false, true) => Kind::Http,
        (false, false, false) => Kind::Topic,
    }
}

pub(super) fn definition(kind: Kind) -> Definition {
    let target = match kind {
        Kind::Topic | Kind::Long | Kind::Recurring => {
            Target::Topic(TopicTarget { topic: "teas".into(), key: None })
        }
        _ => HttpTarget::post("https://api.example.com/hook").into(),
    };
    let payload = Some(Bytes::from_static(b"{}"));
    let caller = (kind != Kind::Long).then(|| "billing".into());
    Definition { target, payload, headers: Vec::new(), retry: None, caller }
}
