//! The stories of docs/schedules.md and docs/dependencies.md, played as they stand there.
//!
//! Law: a block of JSON followed by a block of a story is one: what is registered at 08:00, a
//! schedule or a batch, and what then happens, minute by minute. Settings are the defaults.

use super::scene::Scene;
use super::world::{definition, registration};
use crate::codec::registration::{
    FORWARDED, Lookup, RawRecord, ReadContext, WriterSchemas, read_trigger,
};
use crate::codec::row;
use crate::codec::schemas::Schemas;
use crate::engine::catalog::TopicState;
use crate::engine::step::Emit;
use crate::model::course::{Command, OnFailure};
use crate::model::definition::Target;
use crate::model::fire::Fire;
use crate::model::input::{Count, Registration, Request, SignalRecord};
use crate::model::outcome::{Outcome, Verdict};
use crate::model::partitioner::Partitioner;
use crate::model::schedule::Schedule;
use crate::model::signal::{Settled, Signal};
use crate::model::{Offset, Timestamp};

const SCHEDULES: &str = include_str!("../../../../../docs/schedules.md");
const DEPENDENCIES: &str = include_str!("../../../../../docs/dependencies.md");

/// Midnight of the day of all stories, 2026-01-01 UTC.
const MIDNIGHT: Timestamp = 1_767_225_600_000;
const MINUTE: u64 = 60_000;

#[test]
fn the_documented_stories_come_true() {
    let mut stories = 0;
    for page in [SCHEDULES, DEPENDENCIES] {
        let fenced: Vec<_> = page.split("```").skip(1).step_by(2).collect();
        for pair in fenced.windows(2) {
            let (Some(json), Some(story)) =
                (pair[0].strip_prefix("json\n"), pair[1].strip_prefix("story\n"))
            else {
                continue;
            };
            stories += 1;
            Story::of(json, story).play(story);
        }
    }
    assert!(stories > 10, "only {stories} stories are seen");
}

/// A trigger, or several, and what was heard of them.
struct Story<'a> {
    scene: Scene,
    json: &'a str,
    /// Whether events name the trigger.
    named: bool,
    http: bool,
    heard: Vec<String>,
    last: Option<Fire>,
}

impl<'a> Story<'a> {
    fn of(json: &'a str, story: &str) -> Self {
        let mut scene = Scene::new();
        scene.now = MIDNIGHT + 8 * 60 * MINUTE;
        let rules = &mut scene.owner.partition.rules;
        (rules.misfire_grace, rules.catch_up_rate) = (MINUTE, 1_000);
        (rules.open_ttl, rules.ledger_after) = (7 * 24 * 60 * MINUTE, 10 * MINUTE);
        scene.run();
        let (named, http) = (json.starts_with('['), story.contains("callback"));
        let mut story = Self { scene, json, named, http, heard: Vec::new(), last: None };
        if named {
            for new in batch(json, story.scene.now) {
                let Target::Topic(target) = &new.definition.target else { panic!("a callback") };
                let usable = TopicState::Usable { partitions: 1, record_bytes_max: 1 << 20 };
                story.scene.owner.catalog.insert(target.topic.as_str().to_owned(), usable);
                story.scene.log.append(story.scene.now, Request::Register(new));
            }
        } else {
            story.register(Count::Reset);
        }
        story
    }

    fn play(mut self, story: &str) {
        for line in story.lines() {
            let (at, event) = line.split_once(' ').unwrap();
            let at = time(at);
            self.pass(at);
            if self.act(event) {
                self.heard.push(line.to_owned());
            } else {
                // What is made up for comes some ms later.
                self.pass(at + 999);
            }
        }
        let until = self.scene.now;
        self.pass(until);
        assert_eq!(self.heard, story.lines().collect::<Vec<_>>(), "{}", self.json);
    }

    /// Does what somebody else does in the story; says whether it is that.
    fn act(&mut self, event: &str) -> bool {
        let command = |command| Request::Command { id: "job".into(), command, caller: None };
        match event {
            "it is paused" => self.append(command(Command::Pause)),
            "it is resumed" => self.append(command(Command::Resume)),
            "it is called" => self.append(command(Command::FireNow)),
            "it is registered again with count keep" => self.register(Count::Keep),
            "it is registered again" => self.register(Count::Reset),
            "its callback succeeds" => self.ended(true),
            "its callback fails for good" => self.ended(false),
            _ => match event.strip_prefix("all schedulers are down until ") {
                Some(until) => self.scene.now = time(until),
                None => return false,
            },
        }
        true
    }

    fn register(&mut self, count: Count) {
        let now = self.scene.now;
        let schedule = Schedule::from_json(self.json).unwrap().anchored(now);
        let first = schedule.jittered("job", schedule.first(now).unwrap());
        let new = registration("job", first, definition(self.http));
        let schedule = Some(Box::new(schedule));
        self.append(Request::Register(Registration { schedule, count, ..new }));
    }

    fn append(&mut self, request: Request) {
        let _offset = self.scene.log.append(self.scene.now, request);
    }

    fn ended(&mut self, ok: bool) {
        let fire = self.last.take().expect("a callback is under way");
        assert!(fire.settles, "nobody wants to know");
        self.signal(Signal::Settled(Settled { id: fire.id, ok }));
    }

    fn signal(&mut self, signal: Signal) {
        let offset = self.scene.log.signals.len() as Offset;
        self.scene.log.signals.push(SignalRecord { offset, signal: Ok(signal) });
    }

    fn pass(&mut self, until: Timestamp) {
        loop {
            while let Some(step) = self.scene.step() {
                for emit in step.emits {
                    self.hear(emit);
                }
            }
            if self.scene.now >= until {
                return;
            }
            let next = self.scene.owner.partition.next_wakeup().unwrap_or(until);
            self.scene.now = next.clamp(self.scene.now + 1, until);
        }
    }

    fn hear(&mut self, emit: Emit) {
        match emit {
            Emit::ToTopic(fire) => {
                let view = row::view(&fire.row).unwrap().unwrap();
                let id = std::str::from_utf8(view.trigger).unwrap().to_owned();
                self.fires(&id, fire.scheduled);
            }
            Emit::ToWorker(fire) => {
                self.fires(fire.id.trigger.as_str(), fire.scheduled);
                self.last = Some(*fire);
            }
            Emit::Signal { signal, .. } => self.signal(*signal),
            Emit::Outcome(outcome) if outcome.answers.is_none() => self.note(&outcome),
            _ => {}
        }
    }

    fn fires(&mut self, id: &str, due: Timestamp) {
        let late = due / MINUTE != self.scene.now / MINUTE;
        let late = if late { format!(", due {}", clock(due)) } else { String::new() };
        self.say(id, &format!("fires{late}"));
    }

    fn note(&mut self, Outcome { trigger, verdict, .. }: &Outcome) {
        let event = match verdict {
            Verdict::Skipped { occurrences, from, until, reason, .. } => {
                let span = format!("{} to {}", clock(*from), clock(*until));
                let span = if from == until { clock(*from) } else { span };
                format!("leaves out {occurrences}, {span}: {reason}")
            }
            Verdict::Ended { executions, .. } => format!("ends after {executions}"),
            Verdict::Paused { reason, .. } => format!("is paused: {reason}"),
            Verdict::Unmet { then, reason, .. } => {
                let then = match then {
                    OnFailure::Fire => "fire",
                    OnFailure::Skip => "skip",
                    OnFailure::Fail => "fail",
                };
                format!("is unmet, {then}: {reason}")
            }
            other => panic!("no story tells of {other:?}"),
        };
        self.say(trigger.as_str(), &event);
    }

    fn say(&mut self, id: &str, event: &str) {
        let at = clock(self.scene.now);
        let name = if self.named { format!("{id} ") } else { String::new() };
        self.heard.push(format!("{at} {name}{event}"));
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
    struct NoSchemas;
    impl WriterSchemas for NoSchemas {
        fn by_id(&self, _id: u32) -> Lookup {
            Lookup::Unknown
        }
    }
    let headers = vec![(header.0, Some(header.1.as_bytes()))];
    let (partition, offset, timestamp) = (0, 0, now);
    let (key, value) = (Some(key), Some(value));
    let raw = RawRecord { partition, offset, timestamp, key, value, headers };
    let (schemas, writers) = (&Schemas::new(), &NoSchemas);
    let context = ReadContext { partitioner: Partitioner::Any, partitions: 1, schemas, writers };
    read_trigger(&raw, &context).unwrap().request
}
