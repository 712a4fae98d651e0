//! Schedules over years, through owners that come and go: what fired is what another implementation
//! says, none missing, none twice.
//!
//! Law: what is expected comes from `tests/schedules/oracle.py`; what fired, from the production
//! engine, which reads each schedule from the ledger or its disk again and again.

use std::collections::HashMap;
use std::io::Write as _;

use orloj_core::codec::registration::{
    Lookup, RawRecord, ReadContext, WriterSchemas, read_trigger,
};
use orloj_core::codec::row;
use orloj_core::codec::schemas::Schemas;
use orloj_core::engine::step::Emit;
use orloj_core::model::Timestamp;
use orloj_core::model::partitioner::Partitioner;
use serde_json::{Value, json};

use super::oracle::{self, Question};
use super::world::{Domain, rules};
use crate::simulation::Dice;

/// Partitions of the world.
const PARTITIONS: i32 = 4;
/// The rules for changes of clocks, in the order of the table.
const RULES: [(&str, &str); 6] = [
    ("shift", "first"),
    ("shift", "last"),
    ("shift", "both"),
    ("skip", "first"),
    ("skip", "last"),
    ("skip", "both"),
];

/// A schedule to live through, and what another implementation says of it.
struct Expected {
    id: String,
    schedule: Value,
    sum: String,
}

/// What fired of one trigger.
#[derive(Default)]
struct Fired {
    count: u32,
    checksum: crc32fast::Hasher,
}

#[test]
fn ten_years_in_one_zone_fire_once_each_through_takeovers() {
    let question = Question::daily_or_rarer(&["Europe/Prague"], (2016, 2026));
    live("ten years in one zone", &question, oracle::recorded(&question), 1, 40);
}

#[test]
#[ignore = "make test-schedules"]
fn two_thousand_schedules_fire_once_each_in_ten_years() {
    let zones = [
        "Africa/Casablanca",
        "America/Havana",
        "America/New_York",
        "America/Santiago",
        "America/Sao_Paulo",
        "Antarctica/Troll",
        "Asia/Kolkata",
        "Asia/Tehran",
        "Australia/Lord_Howe",
        "Europe/Prague",
        "Africa/Cairo",
        "America/Los_Angeles",
        "America/St_Johns",
        "Asia/Amman",
        "Asia/Gaza",
        "Atlantic/Azores",
        "Europe/Dublin",
        "Europe/London",
        "Pacific/Auckland",
        "Pacific/Chatham",
    ];
    let question = Question::daily_or_rarer(&zones, (2016, 2026));
    live("ten years in twenty zones", &question, oracle::ask(&question), 1, 100);
}

#[test]
#[ignore = "make test-schedules"]
fn a_hundred_by_the_minute_fire_once_each_around_both_changes_of_clocks() {
    let question = Question::by_the_minute();
    live("by the minute, thirty days", &question, oracle::ask(&question), 1, 60);
}

#[test]
#[ignore = "make test-schedules"]
fn a_hundred_thousand_mixed_fire_once_each_in_two_days() {
    let question = Question::mixed();
    live("a hundred thousand, two days", &question, oracle::ask(&question), 100_000, 12);
}

/// Registers `copies` triggers in all at least, each schedule equally often, lives to the end of
/// the question's window with so many takeovers, and compares.
fn live(name: &str, question: &Question, table: String, triggers: usize, takeovers: u32) {
    let all = expected(question, &table);
    let copies = triggers.div_ceil(all.len());
    let mut world = World::new(question.start());
    for expected in &all {
        for copy in 0..copies {
            world.register(&format!("{}/{copy}", expected.id), &expected.schedule);
        }
    }
    world.live_until(question.end(), takeovers);
    let mut total = 0;
    for expected in &all {
        for copy in 0..copies {
            let id = format!("{}/{copy}", expected.id);
            let fired = world.fired.remove(&id).unwrap_or_default();
            total += u64::from(fired.count);
            let sum = format!("{}:{:08x}", fired.count, fired.checksum.finalize());
            assert_eq!(sum, expected.sum, "{id} {}", expected.schedule);
        }
    }
    assert!(world.fired.is_empty(), "what nobody registered has fired");
    assert_eq!(world.domains.iter().map(Domain::held).sum::<usize>(), 0, "all have ended");
    let mut terminal = std::io::stderr().lock();
    let schedules = all.len() * copies;
    writeln!(terminal, "{name}: {schedules} schedules, {total} fires, {takeovers} takeovers")
        .unwrap();
}

/// The schedules of a question with their sums, by the lines of its table.
fn expected(question: &Question, table: &str) -> Vec<Expected> {
    let mut all = Vec::new();
    for line in table.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let (zone, case, sums) = (words[0], words[1], &words[2..]);
        let Some(schedule) = question.schedule(case) else { continue };
        if !question.has_zone(zone) {
            continue;
        }
        for ((gap, overlap), sum) in RULES.iter().zip(sums) {
            let mut schedule = schedule.clone();
            schedule["zone"] = json!(zone);
            schedule["dst"] = json!({ "gap": gap, "overlap": overlap });
            let (from, until) = question.window(case);
            if schedule.get("start").is_none() {
                schedule["start"] = json!(from);
            }
            schedule["end"] = json!(until);
            let id = format!("{zone} {case} {gap} {overlap}");
            all.push(Expected { id, schedule, sum: (*sum).to_owned() });
        }
    }
    all
}

struct World {
    now: Timestamp,
    dice: Dice,
    domains: Vec<Domain>,
    fired: HashMap<String, Fired>,
    schemas: Schemas,
}

/// Nobody registers schemas here.
struct NoSchemas;

impl WriterSchemas for NoSchemas {
    fn by_id(&self, _id: u32) -> Lookup {
        Lookup::Unknown
    }
}

impl World {
    fn new(now: Timestamp) -> Self {
        let domain = |id| Domain::new(id, rules(PARTITIONS, 1_000));
        let domains = (0..PARTITIONS).map(domain).collect();
        let (dice, fired, schemas) = (Dice::new(now), HashMap::new(), Schemas::new());
        Self { now, dice, domains, fired, schemas }
    }

    fn register(&mut self, id: &str, schedule: &Value) {
        let value = json!({ "topic": "out", "schedule": schedule }).to_string();
        let partition = Partitioner::Murmur2.partition(id.as_bytes(), PARTITIONS).unwrap();
        let raw = RawRecord {
            partition,
            offset: 0,
            timestamp: self.now,
            key: Some(id.as_bytes()),
            value: Some(value.as_bytes()),
            headers: Vec::new(),
        };
        let context = ReadContext {
            partitioner: Partitioner::Murmur2,
            partitions: PARTITIONS,
            schemas: &self.schemas,
            writers: &NoSchemas,
        };
        let record = read_trigger(&raw, &context).unwrap();
        self.domains[usize::try_from(partition).unwrap()].write(record);
    }

    /// Time passes until `end`, from one due time to the next; owners are replaced that often.
    fn live_until(&mut self, end: Timestamp, takeovers: u32) {
        let pause = (end - self.now) / u64::from(takeovers + 1);
        let mut next_takeover = self.now + pause;
        while self.now < end {
            self.decide();
            if self.now >= next_takeover {
                next_takeover += pause;
                let place = self.dice.place(self.domains.len());
                let wipe = self.dice.one_in(2);
                self.domains[place].abandon(wipe);
                self.decide();
            }
            let next = self.domains.iter().filter_map(Domain::next).min().unwrap_or(end);
            self.now = next.clamp(self.now + 1, end);
        }
        self.decide();
    }

    fn decide(&mut self) {
        let Self { now, domains, fired, .. } = self;
        for domain in domains {
            if domain.next().is_some_and(|next| next <= *now) {
                domain.decide(*now, &mut |emit| hear(emit, *now, fired));
            }
        }
    }
}

fn hear(emit: &Emit, now: Timestamp, fired: &mut HashMap<String, Fired>) {
    let Emit::ToTopic(fire) = emit else { return };
    let fire = row::view(&fire.row).unwrap().unwrap();
    let id = std::str::from_utf8(fire.trigger).unwrap();
    let entry = match fired.get_mut(id) {
        Some(entry) => entry,
        None => fired.entry(id.to_owned()).or_default(),
    };
    assert_eq!(fire.occurrence, entry.count, "{id}: an occurrence is missing, or came twice");
    assert!(fire.scheduled <= now && now < fire.scheduled + 60_000, "{id}: early or late");
    entry.count += 1;
    entry.checksum.update(format!("{}\n", fire.scheduled).as_bytes());
}
