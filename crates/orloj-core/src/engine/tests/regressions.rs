//! Bugs that the simulation has found, each as the shortest sequence that shows it.
//!
//! Invariant: each of these tests failed once.

use super::fixture::{EngineFixture, NOW, callback_trigger, retry};
use super::harness::{TestStore, commit, definition};
use crate::engine::index_row::IdHash;
use crate::engine::parked_schemas::ParkedSchemas;
use crate::engine::partition::{IndexRows, Input};
use crate::engine::prefetch::{Prefetched, TimelineRows};
use crate::engine::step::{Emit, PartitionStep};
use crate::model::fire::Fire;
use crate::model::input::{Registration, Request, SignalRecord};
use crate::model::lifecycle::{Command, Watcher};
use crate::model::outcome::OutcomeKind;
use crate::model::schedule::Schedule;
use crate::model::signal::{CallbackEnded, RetryRequest, Signal, Watch};
use crate::model::{Offset, Timestamp};

/// A fixture and the events of its owner.
struct RegressionScenario {
    fixture: EngineFixture,
    events: Vec<String>,
    fires: Vec<Fire>,
}

impl RegressionScenario {
    fn new() -> Self {
        Self { fixture: EngineFixture::new(), events: Vec::new(), fires: Vec::new() }
    }

    /// A recurring trigger.
    fn recurring(&mut self, id: &str, http: bool, json: &str) {
        let now = self.fixture.now;
        let schedule = Schedule::from_json(json).unwrap().anchored(now);
        let first = schedule.jittered(id, schedule.first(now).unwrap());
        let new = Registration::one_time(id, first, definition(http));
        let new = Registration { schedule: Some(Box::new(schedule)), ..new };
        let _offset = self.fixture.log.append(now, Request::Register(new));
    }

    fn command(&mut self, id: &str, command: Command) {
        let request = Request::Command { id: id.into(), command, caller: None };
        let _offset = self.fixture.log.append(self.fixture.now, request);
    }

    fn signal(&mut self, signal: Signal) {
        let offset = self.fixture.log.signals.len() as Offset;
        self.fixture.log.signals.push(SignalRecord { offset, signal: Ok(signal) });
    }

    fn last_fire(&self) -> Fire {
        self.fires.last().expect("a callback was fired").clone()
    }

    /// A worker reports that the last callback was delivered.
    fn report_delivered(&mut self) {
        let id = self.last_fire().id;
        self.signal(Signal::CallbackEnded(CallbackEnded { id, ok: true }));
    }

    /// Everything until `until` is decided, with these events.
    #[track_caller]
    fn run_until(&mut self, until: Timestamp, expected: &[&str]) {
        loop {
            while let Some(step) = self.fixture.step() {
                self.record(&step);
            }
            if self.fixture.now >= until {
                break;
            }
            let next = self.fixture.owner.partition.next_wakeup().unwrap_or(until);
            self.fixture.now = next.clamp(self.fixture.now + 1, until);
        }
        assert_eq!(std::mem::take(&mut self.events), expected);
    }

    fn record(&mut self, step: &PartitionStep) {
        for emit in &step.emits {
            match emit {
                Emit::ToWorker(fire) => {
                    self.events.push(format!("#{} of {}", fire.id.occurrence, fire.scheduled));
                    self.fires.push((**fire).clone());
                }
                Emit::ToTopic(fire) => self.events.push(format!("fires of {}", fire.scheduled)),
                Emit::Outcome(outcome) => self.events.push(match &outcome.kind {
                    OutcomeKind::Skipped { occurrences, from, until, .. } => {
                        format!("skipped {occurrences} of {from} to {until}")
                    }
                    OutcomeKind::Ended { executions, .. } => format!("ended after {executions}"),
                    OutcomeKind::Accepted { .. } => "accepted".to_owned(),
                    OutcomeKind::NotPending { .. } => "not pending".to_owned(),
                    OutcomeKind::Cancelled { .. } => "cancelled".to_owned(),
                    OutcomeKind::Paused { .. } => "paused".to_owned(),
                    OutcomeKind::Resumed { .. } => "resumed".to_owned(),
                    OutcomeKind::Called { occurrence, .. } => format!("called #{occurrence}"),
                    other => format!("{other:?}"),
                }),
                Emit::Signal { signal, .. } => {
                    if let Signal::DependencySettled(settlement) = &**signal {
                        self.events.push(format!("notified {}", settlement.ok));
                    }
                }
                _ => {}
            }
        }
    }
}

#[test]
fn a_command_does_not_release_an_occurrence_queued_behind_a_callback() {
    let mut scenario = RegressionScenario::new();
    scenario.recurring("a", true, r#"{"every":"PT1M","overlap":"queue"}"#);
    scenario.run_until(NOW + 60_000 - 1, &["accepted", "#0 of 1000"]);
    scenario.fixture.owner.partition.config_mut().callback_result_timeout = 100_000;
    scenario.report_delivered();
    scenario.run_until(61_000, &["#1 of 61000"]);
    scenario.run_until(121_000, &[]);
    scenario.command("a", Command::Pause);
    scenario.command("a", Command::Resume);
    scenario.run_until(121_010, &["paused", "resumed"]);
    scenario.command("a", Command::FireNow);
    scenario.run_until(121_020, &["called #2", "#2 of 121010"]);
    scenario.report_delivered();
    scenario.run_until(121_030, &["#3 of 121000"]);
}

#[test]
fn occurrences_skipped_at_the_end_of_a_schedule_are_skipped_once() {
    let mut scenario = RegressionScenario::new();
    scenario.recurring("a", false, r#"{"every":"PT1S","end":4500,"misfire":"skip"}"#);
    scenario.run_until(NOW, &["accepted", "fires of 1000"]);
    scenario.fixture.take_over(TestStore::default(), 9_000);
    scenario.run_until(9_500, &["skipped 3 of 2000 to 4000", "ended after 1"]);
}

#[test]
fn an_occurrence_late_before_its_time_without_jitter_is_reported_as_skipped() {
    let json = r#"{"every":"PT1S","end":3900,"misfire":"skip","jitter":"PT0.4S"}"#;
    let schedule = Schedule::from_json(json).unwrap().anchored(NOW);
    let early = |id: &&String| schedule.jittered(id, 3_000) < 2_900;
    let id = (0..).map(|n| format!("a{n}")).find(|id| early(&id)).unwrap();
    let mut scenario = RegressionScenario::new();
    scenario.recurring(&id, false, json);
    while schedule.jittered(&id, 2_000) > scenario.fixture.now {
        scenario.fixture.now += 1;
        scenario.fixture.run_until_idle();
    }
    scenario.fixture.take_over(TestStore::default(), 2_990);
    scenario.run_until(3_500, &["skipped 1 of 3000 to 3000", "ended after 2"]);
}

#[test]
fn a_fired_trigger_is_not_pending_when_the_log_is_read_again() {
    let mut scenario = RegressionScenario::new();
    scenario.command("a", Command::Pause);
    scenario.run_until(NOW, &["not pending"]);
    for due in [1_020, 1_040] {
        let _generation = scenario.fixture.register("a", due);
        scenario.run_until(due, &["accepted", &format!("fires of {due}")]);
    }
    let last = scenario.fixture.owner.partition.seal_final();
    commit(&mut scenario.fixture.log, &last, 1_040);
    scenario.fixture.owner.on_committed(&last);
    // An operator resets the offset to the beginning.
    scenario.fixture.log.committed = Some((0, String::new()));
    let disk = scenario.fixture.owner.store.clone();
    scenario.fixture.take_over(disk, 1_200);
    let _generation = scenario.fixture.register("a", 1_060);
    scenario
        .run_until(1_300, &["not pending", "accepted", "accepted", "accepted", "fires of 1060"]);
}

#[test]
fn a_cancel_that_removes_an_older_retry_does_not_complete_a_callback_in_flight() {
    let mut scenario = RegressionScenario::new();
    for due in [1_000, 1_010] {
        let new = Registration::one_time("a", due, definition(true));
        let new = Registration { retain: Some(500), ..new };
        let _generation = scenario.fixture.log.append(scenario.fixture.now, Request::Register(new));
        scenario.run_until(due + 5, &["accepted", &format!("#0 of {due}")]);
        if due == 1_000 {
            let again = RetryRequest::replay(scenario.last_fire(), 0, 9_000);
            scenario.signal(Signal::Retry(again));
        }
    }
    let watcher = Watcher { trigger: "b".into(), generation: 9 };
    scenario.signal(Signal::Watch(Watch { trigger: "a".into(), watcher, until: 5_000 }));
    scenario.run_until(1_020, &[]);
    let _cancel = scenario.fixture.cancel("a");
    scenario.run_until(1_030, &["cancelled"]);
    scenario.report_delivered();
    scenario.run_until(1_040, &["notified true"]);
}

/// A report of the second attempt that is repeated after the owner has changed, and the deferral
/// that followed that attempt, due at these times. The trigger is held when the first is read, and
/// when the second is if it is read in the same step; then the disk is lost. Returns the attempts
/// that are made.
fn made_after_a_repeated_report(due: [Timestamp; 2], together: bool) -> Vec<(u32, u32)> {
    let mut fixture = EngineFixture::with_callback_in_flight();
    fixture.now = 3_000;
    fixture.run_until_idle();
    fixture.owner.partition.hold([IdHash::of("a")]);
    let first = callback_trigger("a", 0, 1_020);
    fixture.signal(&retry(&first, (2, 0), due[0], 0));
    if !together {
        let _held = fixture.step();
        let unparked = Input::Unparked { ids: vec!["a".into()], schemas: ParkedSchemas::NONE };
        let (index, rows) = (&IndexRows::default(), &TimelineRows::default());
        fixture.owner.partition.ingest(vec![unparked], Prefetched { index, rows }).unwrap();
    }
    fixture.signal(&retry(&first, (2, 1), due[1], 1));
    let _decided = fixture.step();
    fixture.take_over(TestStore::default(), 3_001);
    fixture.run_until_idle();
    fixture.now = 9_000;
    fixture.run_until_idle();
    let attempt = |emit: &Emit| match emit {
        Emit::ToWorker(fire) => Some((fire.id.attempt, fire.id.deferral)),
        _ => None,
    };
    fixture.log.emitted.iter().filter_map(|(emit, ..)| attempt(emit)).collect()
}

#[test]
fn a_repeated_report_that_is_late_and_held_does_not_replace_a_later_attempt() {
    assert_eq!(made_after_a_repeated_report([1_030, 4_000], true), [(1, 0), (2, 1)]);
    assert_eq!(made_after_a_repeated_report([1_030, 1_040], true), [(1, 0), (2, 1)]);
}

#[test]
fn an_attempt_that_a_late_one_replaces_leaves_the_ledger() {
    assert_eq!(made_after_a_repeated_report([1_030, 1_040], false), [(1, 0), (2, 1)]);
}
