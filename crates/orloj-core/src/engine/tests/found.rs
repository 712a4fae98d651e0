//! What the simulation has found, each as the shortest way there.
//!
//! Law: each of them was wrong once.

use super::scene::{NOW, Scene};
use super::world::{Disk, commit, definition, registration};
use crate::engine::step::{Emit, Step};
use crate::model::course::{Command, Watcher};
use crate::model::fire::Fire;
use crate::model::input::{Registration, Request, SignalRecord};
use crate::model::outcome::Verdict;
use crate::model::schedule::Schedule;
use crate::model::signal::{RetryRequest, Settled, Signal, Watch};
use crate::model::{Offset, Timestamp};

/// A scene, and what was said in it.
struct Tale {
    scene: Scene,
    said: Vec<String>,
    fires: Vec<Fire>,
}

impl Tale {
    fn new() -> Self {
        Self { scene: Scene::new(), said: Vec::new(), fires: Vec::new() }
    }

    /// A recurring trigger.
    fn recurring(&mut self, id: &str, http: bool, json: &str) {
        let now = self.scene.now;
        let schedule = Schedule::from_json(json).unwrap().anchored(now);
        let first = schedule.jittered(id, schedule.first(now).unwrap());
        let new = registration(id, first, definition(http));
        let new = Registration { schedule: Some(Box::new(schedule)), ..new };
        let _offset = self.scene.log.append(now, Request::Register(new));
    }

    fn command(&mut self, id: &str, command: Command) {
        let request = Request::Command { id: id.into(), command, caller: None };
        let _offset = self.scene.log.append(self.scene.now, request);
    }

    fn signal(&mut self, signal: Signal) {
        let offset = self.scene.log.signals.len() as Offset;
        self.scene.log.signals.push(SignalRecord { offset, signal: Ok(signal) });
    }

    fn last_fire(&self) -> Fire {
        self.fires.last().expect("a callback was fired").clone()
    }

    /// A worker says that the last callback was delivered.
    fn delivered(&mut self) {
        let id = self.last_fire().id;
        self.signal(Signal::Settled(Settled { id, ok: true }));
    }

    /// Everything until `until` is decided, and this is said about it.
    #[track_caller]
    fn until(&mut self, until: Timestamp, expected: &[&str]) {
        loop {
            while let Some(step) = self.scene.step() {
                self.hear(&step);
            }
            if self.scene.now >= until {
                break;
            }
            let next = self.scene.owner.partition.next_wakeup().unwrap_or(until);
            self.scene.now = next.clamp(self.scene.now + 1, until);
        }
        assert_eq!(std::mem::take(&mut self.said), expected);
    }

    fn hear(&mut self, step: &Step) {
        for emit in &step.emits {
            match emit {
                Emit::ToWorker(fire) => {
                    self.said.push(format!("#{} of {}", fire.id.occurrence, fire.scheduled));
                    self.fires.push((**fire).clone());
                }
                Emit::ToTopic(fire) => self.said.push(format!("fires of {}", fire.scheduled)),
                Emit::Outcome(outcome) => self.said.push(match &outcome.verdict {
                    Verdict::Skipped { occurrences, from, until, .. } => {
                        format!("skipped {occurrences} of {from} to {until}")
                    }
                    Verdict::Ended { executions, .. } => format!("ended after {executions}"),
                    Verdict::Accepted { .. } => "accepted".to_owned(),
                    Verdict::NotPending { .. } => "not pending".to_owned(),
                    Verdict::Cancelled { .. } => "cancelled".to_owned(),
                    Verdict::Paused { .. } => "paused".to_owned(),
                    Verdict::Resumed { .. } => "resumed".to_owned(),
                    Verdict::Called { occurrence, .. } => format!("called #{occurrence}"),
                    other => format!("{other:?}"),
                }),
                Emit::Signal { signal, .. } => {
                    if let Signal::Settlement(settlement) = &**signal {
                        self.said.push(format!("told {}", settlement.ok));
                    }
                }
                _ => {}
            }
        }
    }
}

#[test]
fn a_command_does_not_let_pass_what_waits_for_a_callback() {
    let mut tale = Tale::new();
    tale.recurring("a", true, r#"{"every":"PT1M","overlap":"queue"}"#);
    tale.until(NOW + 60_000 - 1, &["accepted", "#0 of 1000"]);
    tale.scene.owner.partition.rules.open_ttl = 100_000;
    tale.delivered();
    tale.until(61_000, &["#1 of 61000"]);
    tale.until(121_000, &[]);
    tale.command("a", Command::Pause);
    tale.command("a", Command::Resume);
    tale.until(121_010, &["paused", "resumed"]);
    tale.command("a", Command::FireNow);
    tale.until(121_020, &["called #2", "#2 of 121010"]);
    tale.delivered();
    tale.until(121_030, &["#3 of 121000"]);
}

#[test]
fn what_is_left_out_at_the_end_of_a_schedule_is_left_out_once() {
    let mut tale = Tale::new();
    tale.recurring("a", false, r#"{"every":"PT1S","end":4500,"misfire":"skip"}"#);
    tale.until(NOW, &["accepted", "fires of 1000"]);
    tale.scene.take_over(Disk::default(), 9_000);
    tale.until(9_500, &["skipped 3 of 2000 to 4000", "ended after 1"]);
}

#[test]
fn what_is_late_before_its_unmoved_time_is_left_out_by_name() {
    let json = r#"{"every":"PT1S","end":3900,"misfire":"skip","jitter":"PT0.4S"}"#;
    let schedule = Schedule::from_json(json).unwrap().anchored(NOW);
    let early = |id: &&String| schedule.jittered(id, 3_000) < 2_900;
    let id = (0..).map(|n| format!("a{n}")).find(|id| early(&id)).unwrap();
    let mut tale = Tale::new();
    tale.recurring(&id, false, json);
    while schedule.jittered(&id, 2_000) > tale.scene.now {
        tale.scene.now += 1;
        tale.scene.run();
    }
    tale.scene.take_over(Disk::default(), 2_990);
    tale.until(3_500, &["skipped 1 of 3000 to 3000", "ended after 2"]);
}

#[test]
fn what_has_fired_is_not_pending_when_the_log_is_read_again() {
    let mut tale = Tale::new();
    tale.command("a", Command::Pause);
    tale.until(NOW, &["not pending"]);
    for due in [1_020, 1_040] {
        let _generation = tale.scene.register("a", due);
        tale.until(due, &["accepted", &format!("fires of {due}")]);
    }
    let last = tale.scene.owner.partition.seal_clean();
    commit(&mut tale.scene.log, &last, 1_040);
    tale.scene.owner.applied(&last);
    // An operator has everything read again.
    tale.scene.log.committed = Some((0, String::new()));
    let disk = tale.scene.owner.disk.clone();
    tale.scene.take_over(disk, 1_200);
    let _generation = tale.scene.register("a", 1_060);
    tale.until(1_300, &["not pending", "accepted", "accepted", "accepted", "fires of 1060"]);
}

#[test]
fn a_cancel_that_takes_away_an_older_retry_says_nothing_of_a_callback_under_way() {
    let mut tale = Tale::new();
    for due in [1_000, 1_010] {
        let new = registration("a", due, definition(true));
        let new = Registration { retain: Some(500), ..new };
        let _generation = tale.scene.log.append(tale.scene.now, Request::Register(new));
        tale.until(due + 5, &["accepted", &format!("#0 of {due}")]);
        if due == 1_000 {
            let again = RetryRequest::replay(tale.last_fire(), 0, 9_000);
            tale.signal(Signal::Retry(again));
        }
    }
    let watcher = Watcher { trigger: "b".into(), generation: 9 };
    tale.signal(Signal::Watch(Watch { trigger: "a".into(), watcher, until: 5_000 }));
    tale.until(1_020, &[]);
    let _cancel = tale.scene.cancel("a");
    tale.until(1_030, &["cancelled"]);
    tale.delivered();
    tale.until(1_040, &["told true"]);
}
