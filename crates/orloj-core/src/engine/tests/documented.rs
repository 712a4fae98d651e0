//! The scenarios of docs/guides/schedules.md and docs/guides/dependencies.md, run as they are
//! written there.
//!
//! Invariant: a block of JSON followed by a block of events is one: what is registered at 08:00, a
//! schedule or a batch, and what then happens, minute by minute. Settings are the defaults.

use super::fixture::EngineFixture;
use super::harness::definition;
use crate::codec::registration::{
    FORWARDED, NoWriterSchemas, RawRecord, ReadContext, read_trigger,
};
use crate::codec::row;
use crate::codec::schemas::Schemas;
use crate::engine::catalog::TopicState;
use crate::engine::step::Emit;
use crate::model::definition::Target;
use crate::model::fire::Fire;
use crate::model::input::{CountPolicy, Registration, Request, SignalRecord};
use crate::model::lifecycle::{Command, OnFailure};
use crate::model::outcome::{Outcome, OutcomeKind};
use crate::model::partitioner::Partitioner;
use crate::model::schedule::Schedule;
use crate::model::signal::{CallbackEnded, Signal};
use crate::model::{Offset, Timestamp};

const SCHEDULES: &str = include_str!("../../../../../docs/guides/schedules.md");
const DEPENDENCIES: &str = include_str!("../../../../../docs/guides/dependencies.md");

/// Midnight of the day of all scenarios, 2026-01-01 UTC.
const MIDNIGHT: Timestamp = 1_767_225_600_000;
const MINUTE: u64 = 60_000;

#[test]
fn every_documented_scenario_runs_as_documented() {
    let mut scenarios = 0;
    for page in [SCHEDULES, DEPENDENCIES] {
        let fenced: Vec<_> = page.split("```").skip(1).step_by(2).collect();
        for pair in fenced.windows(2) {
            let (Some(json), Some(text)) =
                (pair[0].strip_prefix("json\n"), pair[1].strip_prefix("story\n"))
            else {
                continue;
            };
            scenarios += 1;
            DocumentedScenario::new(json, text).run(text);
        }
    }
    assert!(scenarios > 10, "only {scenarios} scenarios were found");
}

/// A trigger, or several, and their events.
struct DocumentedScenario<'a> {
    fixture: EngineFixture,
    json: &'a str,
    /// Whether events name the trigger.
    named: bool,
    http: bool,
    events: Vec<String>,
    last_fire: Option<Fire>,
}

impl<'a> DocumentedScenario<'a> {
    fn new(json: &'a str, text: &str) -> Self {
        let mut fixture = EngineFixture::new();
        fixture.now = MIDNIGHT + 8 * 60 * MINUTE;
        let rules = fixture.owner.partition.config_mut();
        (rules.misfire_grace, rules.catch_up_rate) = (MINUTE, 1_000);
        (rules.callback_result_timeout, rules.ledger_after) = (7 * 24 * 60 * MINUTE, 10 * MINUTE);
        fixture.run_until_idle();
        let (named, http) = (json.starts_with('['), text.contains("callback"));
        let mut scenario = Self { fixture, json, named, http, events: Vec::new(), last_fire: None };
        if named {
            for new in batch(json, scenario.fixture.now) {
                let Target::Topic(target) = &new.definition.target else { panic!("a callback") };
                let usable = TopicState::usable(1, 1 << 20);
                scenario.fixture.owner.catalog.insert(target.topic.as_str().to_owned(), usable);
                scenario.fixture.log.append(scenario.fixture.now, Request::Register(new));
            }
        } else {
            scenario.register(CountPolicy::Reset);
        }
        scenario
    }

    fn run(mut self, text: &str) {
        for line in text.lines() {
            let (at, event) = line.split_once(' ').unwrap();
            let at = time(at);
            self.run_until(at);
            if self.apply_event(event) {
                self.events.push(line.to_owned());
            } else {
                // Occurrences that are caught up fire some ms later.
                self.run_until(at + 999);
            }
        }
        let until = self.fixture.now;
        self.run_until(until);
        assert_eq!(self.events, text.lines().collect::<Vec<_>>(), "{}", self.json);
    }

    /// Does what users and workers do in the scenario; returns whether `event` is such a line.
    fn apply_event(&mut self, event: &str) -> bool {
        let command = |command| Request::Command { id: "job".into(), command, caller: None };
        match event {
            "it is paused" => self.append(command(Command::Pause)),
            "it is resumed" => self.append(command(Command::Resume)),
            "it is called" => self.append(command(Command::FireNow)),
            "it is registered again with count keep" => self.register(CountPolicy::Keep),
            "it is registered again" => self.register(CountPolicy::Reset),
            "its callback succeeds" => self.report_callback_end(true),
            "its callback fails for good" => self.report_callback_end(false),
            _ => match event.strip_prefix("all schedulers are down until ") {
                Some(until) => self.fixture.now = time(until),
                None => return false,
            },
        }
        true
    }

    fn register(&mut self, count: CountPolicy) {
        let now = self.fixture.now;
        let schedule = Schedule::from_json(self.json).unwrap().anchored(now);
        let first = schedule.jittered("job", schedule.first(now).unwrap());
        let new = Registration::one_time("job", first, definition(self.http));
        let schedule = Some(Box::new(schedule));
        self.append(Request::Register(Registration { schedule, count, ..new }));
    }

    fn append(&mut self, request: Request) {
        let _offset = self.fixture.log.append(self.fixture.now, request);
    }

    fn report_callback_end(&mut self, ok: bool) {
        let fire = self.last_fire.take().expect("a callback is in progress");
        assert!(fire.report_end, "its end is to be reported");
        self.signal(Signal::CallbackEnded(CallbackEnded { id: fire.id, ok }));
    }

    fn signal(&mut self, signal: Signal) {
        let offset = self.fixture.log.signals.len() as Offset;
        self.fixture.log.signals.push(SignalRecord { offset, signal: Ok(signal) });
    }

    fn run_until(&mut self, until: Timestamp) {
        loop {
            while let Some(step) = self.fixture.step() {
                for emit in step.emits {
                    self.record(emit);
                }
            }
            if self.fixture.now >= until {
                return;
            }
            let next = self.fixture.owner.partition.next_wakeup().unwrap_or(until);
            self.fixture.now = next.clamp(self.fixture.now + 1, until);
        }
    }

    fn record(&mut self, emit: Emit) {
        match emit {
            Emit::ToTopic(fire) => {
                let view = row::view(&fire.row).unwrap().unwrap();
                let id = std::str::from_utf8(view.trigger).unwrap().to_owned();
                self.record_fire(&id, fire.scheduled);
            }
            Emit::ToWorker(fire) => {
                self.record_fire(fire.id.trigger.as_str(), fire.scheduled);
                self.last_fire = Some(*fire);
            }
            Emit::Signal { signal, .. } => self.signal(*signal),
            Emit::Outcome(outcome) if outcome.answers.is_none() => self.record_outcome(&outcome),
            _ => {}
        }
    }

    fn record_fire(&mut self, id: &str, due: Timestamp) {
        let late = due / MINUTE != self.fixture.now / MINUTE;
        let late = if late { format!(", due {}", clock(due)) } else { String::new() };
        self.record_event(id, &format!("fires{late}"));
    }

    fn record_outcome(&mut self, Outcome { trigger, kind, .. }: &Outcome) {
        let event = match kind {
            OutcomeKind::Skipped { occurrences, from, until, reason, .. } => {
                let span = format!("{} to {}", clock(*from), clock(*until));
                let span = if from == until { clock(*from) } else { span };
                format!("leaves out {occurrences}, {span}: {reason}")
            }
            OutcomeKind::Ended { executions, .. } => format!("ends after {executions}"),
            OutcomeKind::Paused { reason, .. } => format!("is paused: {reason}"),
            OutcomeKind::Unmet { then, reason, .. } => {
                let then = match then {
                    OnFailure::Fire => "fire",
                    OnFailure::Skip => "skip",
                    OnFailure::Fail => "fail",
                };
                format!("is unmet, {then}: {reason}")
            }
            other => panic!("no scenario has {other:?}"),
        };
        self.record_event(trigger.as_str(), &event);
    }

    fn record_event(&mut self, id: &str, event: &str) {
        let at = clock(self.fixture.now);
        let name = if self.named { format!("{id} ") } else { String::new() };
        self.events.push(format!("{at} {name}{event}"));
    }
}

/// `08:30` as ms since the epoch.
fn time(text: &str) -> Timestamp {
    let (hours, minutes) = text.split_once(':').unwrap();
    MIDNIGHT + (hours.parse::<u64>().unwrap() * 60 + minutes.parse::<u64>().unwrap()) * MINUTE
}

fn clock(at: Timestamp) -> String {
    let minutes = (at - MIDNIGHT) / MINUTE;
    format!("{:02}:{:02}", minutes / 60, minutes % 60)
}

/// The registrations of a batch, as their owner reads them.
fn batch(json: &str, now: Timestamp) -> Vec<Registration> {
    let Request::Batch(forwards) = read(b"batch", json.as_bytes(), ("orloj-batch", "true"), now)
    else {
        panic!("not a batch: {json}");
    };
    let first = now.to_string();
    let read = |key: &[u8], value: &[u8]| match read(key, value, (FORWARDED, &first), now) {
        Request::Register(registration) => registration,
        other => panic!("not a registration: {other:?}"),
    };
    forwards.iter().map(|forward| read(&forward.key, forward.value.as_ref().unwrap())).collect()
}

fn read(key: &[u8], value: &[u8], header: (&str, &str), now: Timestamp) -> Request {
    let headers = vec![(header.0, Some(header.1.as_bytes()))];
    let (partition, offset, timestamp) = (0, 0, now);
    let (key, value) = (Some(key), Some(value));
    let raw = RawRecord { partition, offset, timestamp, key, value, headers };
    let (schemas, writers) = (&Schemas::new(), &NoWriterSchemas);
    let context = ReadContext { partitioner: Partitioner::Any, partitions: 1, schemas, writers };
    read_trigger(&raw, &context).unwrap().request
}
