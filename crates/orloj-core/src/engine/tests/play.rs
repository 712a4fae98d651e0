//! A play: an owner, users, workers and time, and what is said of it all, in a few words each.
//!
//! Law: whatever a test asserts holds with an owner that loses its disk at any moment.

use std::collections::BTreeMap;

use super::scene::Scene;
use super::world::{Disk, definition, registration};
use crate::codec::row;
use crate::engine::step::{Emit, Step};
use crate::model::course::{After, Command, OnFailure};
use crate::model::fire::Fire;
use crate::model::input::{Registration, Request, SignalRecord};
use crate::model::ledger::LedgerKey;
use crate::model::outcome::Verdict;
use crate::model::schedule::Schedule;
use crate::model::signal::{Settled, Signal};
use crate::model::{Offset, Timestamp};

/// A scene in which signals of owners arrive, and what it has said.
pub(crate) struct Play {
    pub(crate) scene: Scene,
    /// Owners lose their disks between any two steps.
    pub(crate) forgetful: bool,
    said: Vec<String>,
    pub(crate) fires: Vec<Fire>,
}

impl Play {
    pub(crate) fn new() -> Self {
        Self { scene: Scene::new(), forgetful: false, said: Vec::new(), fires: Vec::new() }
    }

    /// Both with owners that stay and with owners that lose everything at every step.
    pub(crate) fn twice(play: impl Fn(Self)) {
        play(Self::new());
        play(Self { forgetful: true, ..Self::new() });
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.scene.now
    }

    pub(crate) fn register(&mut self, new: Registration) -> Offset {
        self.scene.log.append(self.scene.now, Request::Register(new))
    }

    pub(crate) fn recurring(&mut self, id: &str, http: bool, json: &str) -> Offset {
        let new = recurring(id, http, self.now(), json);
        self.register(new)
    }

    pub(crate) fn after(&mut self, id: &str, others: &[&str], on_failure: OnFailure) -> Offset {
        let ids = others.iter().map(|id| (*id).into()).collect();
        let after = After { ids, on_failure, timeout: 5_000 };
        let new = registration(id, self.now(), definition(false));
        self.register(Registration { after: Some(Box::new(after)), ..new })
    }

    pub(crate) fn command(&mut self, id: &str, command: Command) -> Offset {
        self.scene
            .log
            .append(self.scene.now, Request::Command { id: id.into(), command, caller: None })
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        let offset = self.scene.log.signals.len() as Offset;
        self.scene.log.signals.push(SignalRecord { offset, signal: Ok(signal) });
    }

    /// A worker says how the last callback ended.
    pub(crate) fn ended(&mut self, ok: bool) {
        let fire = self.fires.last().expect("a callback was fired");
        assert!(fire.settles, "nobody wants to know");
        let settled = Settled { id: fire.id.clone(), ok };
        self.signal(Signal::Settled(settled));
    }

    /// Time passes until `until`; whatever is due then has been decided.
    pub(crate) fn pass(&mut self, until: Timestamp) -> &mut Self {
        loop {
            self.decide();
            if self.scene.now >= until {
                return self;
            }
            let next = self.scene.owner.partition.next_wakeup().unwrap_or(until);
            self.scene.now = next.clamp(self.scene.now + 1, until);
        }
    }

    pub(crate) fn decide(&mut self) {
        while let Some(step) = self.scene.step() {
            self.hear(&step);
            if self.forgetful {
                self.restart();
            }
        }
    }

    /// Another owner, without a disk.
    pub(crate) fn restart(&mut self) {
        let now = self.scene.now;
        self.scene.take_over(Disk::default(), now);
    }

    pub(crate) fn hear(&mut self, step: &Step) {
        for emit in &step.emits {
            match emit {
                Emit::ToTopic(fire) => {
                    let view = row::view(&fire.row).unwrap().unwrap();
                    let id = std::str::from_utf8(view.trigger).unwrap();
                    let (occurrence, due) = (view.occurrence, view.scheduled);
                    self.said.push(format!("{} {id}#{occurrence} of {due}", self.now()));
                }
                Emit::ToWorker(fire) => {
                    let (id, due) = (&fire.id, fire.scheduled);
                    let line = format!("{} {}#{} of {due}", self.now(), id.trigger, id.occurrence);
                    let again = if id.attempt > 1 { " again" } else { "" };
                    self.said.push(format!("{line}{again}"));
                    self.fires.push((**fire).clone());
                }
                Emit::Signal { signal, .. } => self.signal((**signal).clone()),
                Emit::Outcome(outcome) => {
                    self.said.push(format!("{} {}", outcome.trigger, told(&outcome.verdict)));
                }
                _ => {}
            }
        }
    }

    /// What was said since the last time.
    pub(crate) fn said(&mut self) -> Vec<String> {
        std::mem::take(&mut self.said)
    }

    #[track_caller]
    pub(crate) fn says(&mut self, expected: &[&str]) {
        assert_eq!(self.said(), expected);
    }

    /// What the ledger holds, but for what every partition has.
    pub(crate) fn held(&self) -> Vec<LedgerKey> {
        let mut held = BTreeMap::new();
        for record in &self.scene.log.ledger {
            let _before = held.insert(record.key.clone(), record.value.is_some());
        }
        let ours = |key: &LedgerKey| key.trigger().is_some();
        held.into_iter().filter(|(key, held)| *held && ours(key)).map(|(key, _)| key).collect()
    }
}

/// A registration with a schedule.
pub(crate) fn recurring(id: &str, http: bool, now: Timestamp, json: &str) -> Registration {
    let schedule = Schedule::from_json(json).unwrap().anchored(now);
    let first = schedule.first(now).unwrap();
    let new = registration(id, schedule.jittered(id, first), definition(http));
    Registration { schedule: Some(Box::new(schedule)), ..new }
}

fn told(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Accepted { replaced, .. } => match replaced {
            None => "accepted".to_owned(),
            Some(_) => "accepted, replaces".to_owned(),
        },
        Verdict::Kept { fire_at, .. } => format!("kept for {fire_at}"),
        Verdict::Cancelled { .. } => "cancelled".to_owned(),
        Verdict::NotPending { withdrawal, .. } => format!("not pending, {withdrawal}"),
        Verdict::Paused { reason, .. } => format!("paused {reason}"),
        Verdict::Resumed { fire_at, .. } => format!("resumed for {fire_at}"),
        Verdict::Called { occurrence, .. } => format!("called #{occurrence}"),
        Verdict::Skipped { occurrences, from, until, .. } => {
            format!("skipped {occurrences} of {from} to {until}")
        }
        Verdict::Ended { executions, .. } => format!("ended after {executions}"),
        Verdict::Expired { fire_at, .. } => format!("expired of {fire_at}"),
        Verdict::Unmet { then, reason, .. } => format!("unmet, {then:?}: {reason}"),
        other => format!("{other:?}"),
    }
}
