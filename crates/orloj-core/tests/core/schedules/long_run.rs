//! Schedules over years, with changing owners: what fired is what another implementation computed,
//! none missing, none twice.
//!
//! Invariant: what is expected comes from `tests/schedules/oracle.py`; what fired, from the
//! production engine, which reads each schedule from the ledger or its disk again and again.

use std::collections::HashMap;
use std::io::Write as _;

use orloj_core::codec::registration::{NoWriterSchemas, RawRecord, ReadContext, read_trigger};
use orloj_core::codec::row;
use orloj_core::codec::schemas::Schemas;
use orloj_core::engine::step::Emit;
use orloj_core::model::Timestamp;
use orloj_core::model::partitioner::Partitioner;
use serde_json::{Value, json};

use super::oracle::{self, OracleQuery};
use super::test_partition::{TestPartition, rules};
use crate::simulation::SimulationRng;

/// Partitions of the simulation.
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

/// A schedule to test, and what another implementation computed for it.
struct ExpectedSchedule {
    id: String,
    schedule: Value,
    sum: String,
}

/// What fired of one trigger.
#[derive(Default)]
struct FireChecksum {
    count: u32,
    checksum: crc32fast::Hasher,
}

#[test]
fn ten_years_in_one_zone_fire_once_each_through_takeovers() {
    let query = OracleQuery::daily_or_rarer(&["Europe/Prague"], (2016, 2026));
    run_and_compare("ten years in one zone", &query, oracle::recorded(&query), 1, 40);
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
    let query = OracleQuery::daily_or_rarer(&zones, (2016, 2026));
    run_and_compare("ten years in twenty zones", &query, oracle::run_oracle(&query), 1, 100);
}

#[test]
#[ignore = "make test-schedules"]
fn a_hundred_by_the_minute_fire_once_each_around_both_changes_of_clocks() {
    let query = OracleQuery::by_the_minute();
    run_and_compare("by the minute, thirty days", &query, oracle::run_oracle(&query), 1, 60);
}

#[test]
#[ignore = "make test-schedules"]
fn a_hundred_thousand_mixed_fire_once_each_in_two_days() {
    let query = OracleQuery::mixed();
    run_and_compare(
        "a hundred thousand, two days",
        &query,
        oracle::run_oracle(&query),
        100_000,
        12,
    );
}

/// Registers at least `copies` triggers in all, each schedule equally often, runs to the end of the
/// query's window with so many takeovers, and compares.
fn run_and_compare(
    name: &str,
    query: &OracleQuery,
    table: String,
    triggers: usize,
    takeovers: u32,
) {
    let all = expected(query, &table);
    let copies = triggers.div_ceil(all.len());
    let mut simulation = ScheduleSimulation::new(query.start());
    for expected in &all {
        for copy in 0..copies {
            simulation.register(&format!("{}/{copy}", expected.id), &expected.schedule);
        }
    }
    simulation.run_until(query.end(), takeovers);
    let mut total = 0;
    for expected in &all {
        for copy in 0..copies {
            let id = format!("{}/{copy}", expected.id);
            let fired = simulation.fired.remove(&id).unwrap_or_default();
            total += u64::from(fired.count);
            let sum = format!("{}:{:08x}", fired.count, fired.checksum.finalize());
            assert_eq!(sum, expected.sum, "{id} {}", expected.schedule);
        }
    }
    assert!(simulation.fired.is_empty(), "a trigger that was not registered has fired");
    assert_eq!(
        simulation.partitions.iter().map(TestPartition::ledger_entries).sum::<usize>(),
        0,
        "all have ended"
    );
    let mut terminal = std::io::stderr().lock();
    let schedules = all.len() * copies;
    writeln!(terminal, "{name}: {schedules} schedules, {total} fires, {takeovers} takeovers")
        .unwrap();
}

/// The schedules of a query with their sums, from the lines of its table.
fn expected(query: &OracleQuery, table: &str) -> Vec<ExpectedSchedule> {
    let mut all = Vec::new();
    for line in table.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let (zone, case, sums) = (words[0], words[1], &words[2..]);
        let Some(schedule) = query.schedule(case) else { continue };
        if !query.has_zone(zone) {
            continue;
        }
        for ((gap, overlap), sum) in RULES.iter().zip(sums) {
            let mut schedule = schedule.clone();
            schedule["zone"] = json!(zone);
            schedule["dst"] = json!({ "gap": gap, "overlap": overlap });
            let (from, until) = query.window(case);
            if schedule.get("start").is_none() {
                schedule["start"] = json!(from);
            }
            schedule["end"] = json!(until);
            let id = format!("{zone} {case} {gap} {overlap}");
            all.push(ExpectedSchedule { id, schedule, sum: (*sum).to_owned() });
        }
    }
    all
}

struct ScheduleSimulation {
    now: Timestamp,
    rng: SimulationRng,
    partitions: Vec<TestPartition>,
    fired: HashMap<String, FireChecksum>,
    schemas: Schemas,
}

impl ScheduleSimulation {
    fn new(now: Timestamp) -> Self {
        let domain = |id| TestPartition::new(id, rules(PARTITIONS, 1_000));
        let partitions = (0..PARTITIONS).map(domain).collect();
        let (rng, fired, schemas) = (SimulationRng::new(now), HashMap::new(), Schemas::new());
        Self { now, rng, partitions, fired, schemas }
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
            writers: &NoWriterSchemas,
        };
        let record = read_trigger(&raw, &context).unwrap();
        self.partitions[usize::try_from(partition).unwrap()].write(record);
    }

    /// Time passes until `end`, from one due time to the next; owners are replaced that often.
    fn run_until(&mut self, end: Timestamp, takeovers: u32) {
        let pause = (end - self.now) / u64::from(takeovers + 1);
        let mut next_takeover = self.now + pause;
        while self.now < end {
            self.run_due();
            if self.now >= next_takeover {
                next_takeover += pause;
                let place = self.rng.place(self.partitions.len());
                let wipe = self.rng.one_in(2);
                self.partitions[place].remove_owner(wipe);
                self.run_due();
            }
            let next =
                self.partitions.iter().filter_map(TestPartition::next_due).min().unwrap_or(end);
            self.now = next.clamp(self.now + 1, end);
        }
        self.run_due();
    }

    fn run_due(&mut self) {
        let Self { now, partitions, fired, .. } = self;
        for domain in partitions {
            if domain.next_due().is_some_and(|next| next <= *now) {
                domain.run_due(*now, &mut |emit| record_fire(emit, *now, fired));
            }
        }
    }
}

fn record_fire(emit: &Emit, now: Timestamp, fired: &mut HashMap<String, FireChecksum>) {
    let Emit::ToTopic(fire) = emit else { return };
    let fire = row::view(&fire.row).unwrap().unwrap();
    let id = std::str::from_utf8(fire.trigger).unwrap();
    let entry = match fired.get_mut(id) {
        Some(entry) => entry,
        None => fired.entry(id.to_owned()).or_default(),
    };
    assert_eq!(fire.occurrence, entry.count, "{id}: an occurrence is missing, or fired twice");
    assert!(fire.scheduled <= now && now < fire.scheduled + 60_000, "{id}: early or late");
    entry.count += 1;
    entry.checksum.update(format!("{}\n", fire.scheduled).as_bytes());
}
