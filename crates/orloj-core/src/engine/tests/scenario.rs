//! A scenario: an owner, users, workers and time, and all events as short texts.
//!
//! Invariant: every assertion also holds for an owner that loses its disk at any moment.

use std::collections::BTreeMap;

use super::fixture::EngineFixture;
use super::harness::{TestStore, definition};
use crate::codec::row;
use crate::engine::step::{Emit, PartitionStep};
use crate::model::fire::Fire;
use crate::model::input::{Registration, Request, SignalRecord};
use crate::model::ledger::LedgerKey;
use crate::model::lifecycle::{Command, Dependencies, OnFailure};
use crate::model::outcome::OutcomeKind;
use crate::model::schedule::Schedule;
use crate::model::signal::{CallbackEnded, Signal};
use crate::model::{Offset, Timestamp};

/// A fixture in which signals of owners arrive, and its events.
pub(crate) struct EngineScenario {
    pub(crate) fixture: EngineFixture,
    /// Owners lose their disks between any two steps.
    pub(crate) loses_store: bool,
    events: Vec<String>,
    pub(crate) fires: Vec<Fire>,
}

impl EngineScenario {
    pub(crate) fn new() -> Self {
        Self {
            fixture: EngineFixture::new(),
            loses_store: false,
            events: Vec::new(),
            fires: Vec::new(),
        }
    }

    /// Runs with owners that keep their disks and with owners that lose them at every step.
    pub(crate) fn with_and_without_restarts(scenario: impl Fn(Self)) {
        scenario(Self::new());
        scenario(Self { loses_store: true, ..Self::new() });
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.fixture.now
    }

    pub(crate) fn register(&mut self, new: Registration) -> Offset {
        self.fixture.log.append(self.fixture.now, Request::Register(new))
    }

    pub(crate) fn recurring(&mut self, id: &str, http: bool, json: &str) -> Offset {
        let new = recurring(id, http, self.now(), json);
        self.register(new)
    }

    pub(crate) fn after(&mut self, id: &str, others: &[&str], on_failure: OnFailure) -> Offset {
        let ids = others.iter().map(|id| (*id).into()).collect();
        let after = Dependencies { ids, on_failure, timeout: 5_000 };
        let new = Registration::one_time(id, self.now(), definition(false));
        self.register(Registration { after: Some(Box::new(after)), ..new })
    }

    pub(crate) fn command(&mut self, id: &str, command: Command) -> Offset {
        self.fixture
            .log
            .append(self.fixture.now, Request::Command { id: id.into(), command, caller: None })
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        let offset = self.fixture.log.signals.len() as Offset;
        self.fixture.log.signals.push(SignalRecord { offset, signal: Ok(signal) });
    }

    /// A worker reports how the last callback ended.
    pub(crate) fn report_callback_end(&mut self, ok: bool) {
        let fire = self.fires.last().expect("a callback was fired");
        assert!(fire.report_end, "its end is to be reported");
        let settled = CallbackEnded { id: fire.id.clone(), ok };
        self.signal(Signal::CallbackEnded(settled));
    }

    /// Time passes until `until`; everything that is due then is decided.
    pub(crate) fn run_until(&mut self, until: Timestamp) -> &mut Self {
        loop {
            self.run_steps();
            if self.fixture.now >= until {
                return self;
            }
            let next = self.fixture.owner.partition.next_wakeup().unwrap_or(until);
            self.fixture.now = next.clamp(self.fixture.now + 1, until);
        }
    }

    pub(crate) fn run_steps(&mut self) {
        while let Some(step) = self.fixture.step() {
            self.record(&step);
            if self.loses_store {
                self.restart();
            }
        }
    }

    /// Another owner, without a disk.
    pub(crate) fn restart(&mut self) {
        let now = self.fixture.now;
        self.fixture.take_over(TestStore::default(), now);
    }

    pub(crate) fn record(&mut self, step: &PartitionStep) {
        for emit in &step.emits {
            match emit {
                Emit::ToTopic(fire) => {
                    let view = row::view(&fire.row).unwrap().unwrap();
                    let id = std::str::from_utf8(view.trigger).unwrap();
                    let (occurrence, due) = (view.occurrence, view.scheduled);
                    self.events.push(format!("{} {id}#{occurrence} of {due}", self.now()));
                }
                Emit::ToWorker(fire) => {
                    let (id, due) = (&fire.id, fire.scheduled);
                    let line = format!("{} {}#{} of {due}", self.now(), id.trigger, id.occurrence);
                    let again = if id.attempt > 1 { " again" } else { "" };
                    self.events.push(format!("{line}{again}"));
                    self.fires.push((**fire).clone());
                }
                Emit::Signal { signal, .. } => self.signal((**signal).clone()),
                Emit::Outcome(outcome) => {
                    self.events.push(format!("{} {}", outcome.trigger, describe(&outcome.kind)));
                }
                _ => {}
            }
        }
    }

    /// The events since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    #[track_caller]
    pub(crate) fn assert_events(&mut self, expected: &[&str]) {
        assert_eq!(self.take_events(), expected);
    }

    /// The keys of the ledger, without those that every partition has.
    pub(crate) fn ledger_keys(&self) -> Vec<LedgerKey> {
        let mut last_by_key = BTreeMap::new();
        for record in &self.fixture.log.ledger {
            let _before = last_by_key.insert(record.key.clone(), record.value.is_some());
        }
        let ours = |key: &LedgerKey| key.trigger().is_some();
        last_by_key
            .into_iter()
            .filter(|(key, held)| *held && ours(key))
            .map(|(key, _)| key)
            .collect()
    }
}

/// A registration with a schedule.
pub(crate) fn recurring(id: &str, http: bool, now: Timestamp, json: &str) -> Registration {
    let schedule = Schedule::from_json(json).unwrap().anchored(now);
    let first = schedule.first(now).unwrap();
    let new = Registration::one_time(id, schedule.jittered(id, first), definition(http));
    Registration { schedule: Some(Box::new(schedule)), ..new }
}

fn describe(kind: &OutcomeKind) -> String {
    match kind {
        OutcomeKind::Accepted { replaced, .. } => match replaced {
            None => "accepted".to_owned(),
            Some(_) => "accepted, replaces".to_owned(),
        },
        OutcomeKind::Kept { fire_at, .. } => format!("kept for {fire_at}"),
        OutcomeKind::Cancelled { .. } => "cancelled".to_owned(),
        OutcomeKind::NotPending { withdrawal, .. } => format!("not pending, {withdrawal}"),
        OutcomeKind::Paused { reason, .. } => format!("paused {reason}"),
        OutcomeKind::Resumed { fire_at, .. } => format!("resumed for {fire_at}"),
        OutcomeKind::Called { occurrence, .. } => format!("called #{occurrence}"),
        OutcomeKind::Changed { fire_at, .. } => format!("changed for {fire_at}"),
        OutcomeKind::Skipped { occurrences, from, until, .. } => {
            format!("skipped {occurrences} of {from} to {until}")
        }
        OutcomeKind::Ended { executions, .. } => format!("ended after {executions}"),
        OutcomeKind::Expired { fire_at, .. } => format!("expired of {fire_at}"),
        OutcomeKind::Unmet { then, reason, .. } => format!("unmet, {then:?}: {reason}"),
        other => format!("{other:?}"),
    }
}
