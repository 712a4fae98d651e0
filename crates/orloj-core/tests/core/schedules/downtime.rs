//! A day of downtime: what each misfire rule does, and at what rate.

use std::collections::HashMap;

use orloj_core::codec::row;
use orloj_core::engine::step::Emit;
use orloj_core::model::Timestamp;
use orloj_core::model::definition::{Definition, Target, TopicTarget};
use orloj_core::model::input::{
    CountPolicy, OnConflict, PRIORITY_DEFAULT, Registration, Request, TriggerRecord,
};
use orloj_core::model::outcome::OutcomeKind;
use orloj_core::model::schedule::Schedule;

use super::test_partition::{TestPartition, rules};

const MINUTE: u64 = 60_000;
const DAY: u64 = 24 * 60 * MINUTE;
/// Any midnight.
const BEGIN: Timestamp = 1_760_000_400_000 / DAY * DAY;
/// Schedules in all, a third of them by each rule.
const SCHEDULES: u32 = 10_002;
/// Missed occurrences that are caught up per second.
const RATE: u32 = 500;
/// How many missed occurrences `all` catches up.
const MOST: u32 = 10;

#[test]
fn after_a_day_of_downtime_each_misfire_rule_holds_at_the_configured_rate() {
    let mut simulation = DowntimeSimulation::new();
    for n in 0..SCHEDULES {
        simulation.register(&format!("{}-{n}", rule_of(n)), schedule(n));
    }
    simulation.run_until(BEGIN + 60 * MINUTE);
    let before = std::mem::take(&mut simulation.fires);
    assert_eq!(before.len() as u32, SCHEDULES * 12, "an hour is twelve times five minutes");
    assert!(simulation.skipped.is_empty());

    let back = BEGIN + 60 * MINUTE + DAY + 30_000;
    simulation.partition.remove_owner(true);
    simulation.now = back;
    for n in 0..200 {
        simulation.one_time(&format!("new-{n}"), back + n * 500);
    }
    simulation.run_until(back + 2 * MINUTE);
    simulation.assert_misfire_rules_hold(back);
    simulation.assert_catch_up_rate_holds(back);
    simulation.assert_new_triggers_were_not_delayed();
}

fn rule_of(n: u32) -> &'static str {
    ["skip", "latest", "all"][n as usize % 3]
}

fn schedule(n: u32) -> Schedule {
    let misfire = match rule_of(n) {
        "all" => format!(r#"{{"all":{MOST}}}"#),
        rule => format!("{rule:?}"),
    };
    Schedule::from_json(&format!(r#"{{"cron":"*/5 * * * *","misfire":{misfire}}}"#)).unwrap()
}

struct DowntimeSimulation {
    now: Timestamp,
    partition: TestPartition,
    /// The id, when it was due, when it fired.
    fires: Vec<(String, Timestamp, Timestamp)>,
    /// How many occurrences each has skipped.
    skipped: HashMap<String, u32>,
}

impl DowntimeSimulation {
    fn new() -> Self {
        let domain = TestPartition::new(0, rules(1, RATE));
        Self { now: BEGIN, partition: domain, fires: Vec::new(), skipped: HashMap::new() }
    }

    fn register(&mut self, id: &str, schedule: Schedule) {
        let fire_at = schedule.first(self.now).unwrap();
        self.write(id, fire_at, Some(Box::new(schedule)));
    }

    fn one_time(&mut self, id: &str, due: Timestamp) {
        self.write(id, due, None);
    }

    fn write(&mut self, id: &str, fire_at: Timestamp, schedule: Option<Box<Schedule>>) {
        let target = Target::Topic(TopicTarget { topic: "out".into(), key: None });
        let (payload, headers, retry, caller) = (None, Vec::new(), None, None);
        let definition = Definition { target, payload, headers, retry, caller };
        let registration = Registration {
            in_ledger: false,
            id: id.into(),
            fire_at,
            schedule,
            expire_after: None,
            after: None,
            retain: None,
            count: CountPolicy::Reset,
            priority: PRIORITY_DEFAULT,
            on_conflict: OnConflict::Replace,
            definition,
        };
        let (timestamp, request) = (self.now, Request::Register(registration));
        self.partition.write(TriggerRecord { offset: 0, timestamp, ack: false.into(), request });
    }

    fn run_until(&mut self, end: Timestamp) {
        while self.now < end {
            self.run_due();
            let next = self.partition.next_due().unwrap_or(end);
            self.now = next.clamp(self.now + 1, end);
        }
    }

    fn run_due(&mut self) {
        let Self { now, partition: domain, fires, skipped } = self;
        domain.run_due(*now, &mut |emit| match emit {
            Emit::ToTopic(fire) => {
                let fire = row::view(&fire.row).unwrap().unwrap();
                let id = std::str::from_utf8(fire.trigger).unwrap().to_owned();
                fires.push((id, fire.scheduled, *now));
            }
            Emit::Outcome(outcome) => {
                if let OutcomeKind::Skipped { occurrences, .. } = outcome.kind {
                    *skipped.entry(outcome.trigger.as_str().to_owned()).or_default() += occurrences;
                }
            }
            _ => {}
        });
    }

    /// Each schedule has missed 289 occurrences, the last of them half a minute ago.
    fn assert_misfire_rules_hold(&self, back: Timestamp) {
        let last = back - 30_000;
        let mut made_up: HashMap<&str, Vec<Timestamp>> = HashMap::new();
        for (id, due, _) in self.fires.iter().filter(|(_, due, _)| *due <= back) {
            made_up.entry(id).or_default().push(*due);
        }
        for n in 0..SCHEDULES {
            let id = format!("{}-{n}", rule_of(n));
            let due = made_up.remove(id.as_str()).unwrap_or_default();
            let skipped = self.skipped.get(&id).copied().unwrap_or_default();
            let (expected, most) = match rule_of(n) {
                // The last one is within the grace period: it is not missed.
                "skip" | "latest" => (vec![last], 288),
                _ => {
                    let dues = (0..MOST).rev().map(|k| last - u64::from(k) * 5 * MINUTE);
                    (dues.collect(), 289 - MOST)
                }
            };
            assert_eq!((&due, skipped), (&expected, most), "{id}");
        }
    }

    fn assert_catch_up_rate_holds(&self, back: Timestamp) {
        let mut each_second = HashMap::<u64, u32>::new();
        let last = back - 30_000;
        let made_up = |(id, due, _): &&(String, Timestamp, Timestamp)| {
            // `skip` catches up nothing: what it fires is within the grace period.
            *due <= last && !id.starts_with("skip") && !id.starts_with("new")
        };
        for (.., at) in self.fires.iter().filter(made_up) {
            *each_second.entry((at - back) / 1_000).or_default() += 1;
        }
        let most = each_second.values().max().unwrap();
        assert!(*most <= RATE + 1, "{most} in a second");
        let total: u32 = each_second.values().sum();
        assert_eq!(total, SCHEDULES / 3 * (1 + MOST));
        let took = each_second.keys().max().unwrap() + 1;
        assert!(took <= u64::from(total / RATE) + 2, "{took} s for {total}: slower than stated");
        let mut dues: HashMap<&str, Timestamp> = HashMap::new();
        for (id, due, _) in self.fires.iter().filter(made_up) {
            let earlier = dues.insert(id, *due);
            assert!(earlier.is_none_or(|earlier| earlier < *due), "{id}: oldest first");
        }
    }

    fn assert_new_triggers_were_not_delayed(&self) {
        let new = self.fires.iter().filter(|(id, ..)| id.starts_with("new"));
        let late: Vec<_> = new.map(|(_, due, at)| at - due).collect();
        assert_eq!(late.len(), 200);
        assert!(late.iter().all(|late| *late <= 1), "late by {:?} ms", late.iter().max());
    }
}
