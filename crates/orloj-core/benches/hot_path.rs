//! `make bench-guard`: how many instructions a trigger costs the engine, which does not depend on
//! the machine's speed: valgrind counts them.
//!
//! Invariant: what is counted is what the scheduler's loop does for each short trigger, without
//! I/O: read a registration's headers, ingest, put it on the wheel, fire, seal. Two runs of
//! different length are subtracted, so that the start is not counted. More than the recorded number
//! and its tolerance fails; a change that makes it cheaper records the new number.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot continue has failed")]

use std::collections::BTreeSet;
use std::process::{Command, ExitCode};

use orloj_core::codec::registration::{NoWriterSchemas, RawRecord, ReadContext, read_trigger};
use orloj_core::codec::schemas::Schemas;
use orloj_core::engine::catalog::{TopicCatalog, TopicState};
use orloj_core::engine::cursor::Cursor;
use orloj_core::engine::partition::{IndexRows, Input, Partition, PartitionConfig, PartitionStart};
use orloj_core::engine::prefetch::{Prefetched, TimelineRows};
use orloj_core::engine::step::{Emit, InputTopics};
use orloj_core::engine::wheel::Wheel;
use orloj_core::model::partitioner::Partitioner;
use orloj_core::model::timeline::TimelineKey;
use orloj_core::model::{Offset, Timestamp};
use serde::Deserialize;

/// What a trigger may cost, and the tolerance.
const RECORDED: &str = include_str!("hot_path.toml");
/// Where that stands.
const RECORD: &str = "crates/orloj-core/benches/hot_path.toml";
/// Triggers of the two runs.
const COUNTS: [u64; 2] = [20_000, 60_000];

/// The time at which a run begins, in ms since the epoch.
const START: Timestamp = 1_800_000_000_000;
/// Time of one turn of the loop, in ms.
const STEP_MS: u64 = 10;
/// Registrations that a turn ingests: 10,000 a second.
const TRIGGERS_PER_STEP: u64 = 100;
/// Triggers are due within this time, in ms: near enough for the wheel, so that no store is needed.
const DELAY_MAX_MS: u64 = 5_000;
const PAYLOAD_BYTES: usize = 300;

#[derive(Deserialize)]
struct RecordedCost {
    instructions_per_trigger: u64,
    tolerance: f64,
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    match &arguments[..] {
        [count] => {
            run(count.parse().unwrap());
            ExitCode::SUCCESS
        }
        _ => compare_with_recorded(),
    }
}

/// Counts, and compares with what is recorded.
fn compare_with_recorded() -> ExitCode {
    let [Some(few), Some(many)] = COUNTS.map(instructions) else {
        let must_run = std::env::var("CI").is_ok_and(|ci| ci == "true");
        println!("{}: valgrind is not installed", if must_run { "FAILED" } else { "skipped" });
        return if must_run { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    };
    let recorded: RecordedCost = toml::from_str(RECORDED).unwrap();
    let counted = (many - few) / (COUNTS[1] - COUNTS[0]);
    let ratio = counted as f64 / recorded.instructions_per_trigger as f64;
    println!(
        "{counted} instructions a trigger; recorded {}, {:+.1} %",
        recorded.instructions_per_trigger,
        (ratio - 1.0) * 100.0
    );
    if ratio > 1.0 + recorded.tolerance {
        println!("FAILED: if the cost is justified, record it in {RECORD}");
        return ExitCode::FAILURE;
    }
    if ratio < 1.0 - recorded.tolerance {
        println!("cheaper: record the new number in {RECORD}");
    }
    ExitCode::SUCCESS
}

/// Instructions of a whole run, or `None` without valgrind.
fn instructions(count: u64) -> Option<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().unwrap())
        .arg(count.to_string())
        .output()
        .ok()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let collected = stderr.lines().find_map(|line| line.split_once("Collected : "));
    Some(collected.unwrap().1.trim().parse().unwrap())
}

/// One partition from the first registration to the last fire.
fn run(count: u64) {
    let mut partition = partition();
    let mut catalog = TopicCatalog::default();
    let usable = TopicState::usable(4, 1 << 20);
    catalog.insert("target".into(), usable);
    let (schemas, empty) = (Schemas::new(), IndexRows::default());
    let payload = [b'x'; PAYLOAD_BYTES];
    let (mut now, mut registered, mut fired) = (START, 0, 0);
    while fired < count {
        now += STEP_MS;
        let _behind = partition.observe_clock(now);
        let until = count.min(registered + TRIGGERS_PER_STEP);
        let inputs = (registered..until).map(|n| registration(&schemas, n, now, &payload));
        let inputs: Vec<_> = inputs.collect();
        registered = until;
        let stored = Prefetched { index: &empty, rows: &TimelineRows::default() };
        partition.ingest(inputs, stored).unwrap();
        partition.on_end_offset(registered, now);
        while let Some(load) = partition.load_request() {
            partition.load(Vec::new(), load.until);
        }
        let due = partition.take_due(usize::MAX);
        partition.fire(due, &catalog, &empty).unwrap();
        if let Some(step) = partition.seal() {
            let is_fire = |emit: &&Emit| matches!(emit, Emit::ToTopic(_));
            fired += step.emits.iter().filter(is_fire).count() as u64;
        }
        assert!(now < START + 3_600_000, "each has fired within an hour");
    }
}

/// The record of trigger `n` as it is read.
fn registration(schemas: &Schemas, n: Offset, now: Timestamp, payload: &[u8]) -> Input {
    // A prime step mixes the times, as those of unrelated callers are.
    let due = (now + 1 + n * 7_919 % DELAY_MAX_MS).to_string();
    let key = format!("trigger-{n:08}");
    let raw = RawRecord {
        partition: 0,
        offset: n,
        timestamp: now,
        key: Some(key.as_bytes()),
        value: Some(payload),
        headers: vec![
            ("orloj-fire-at", Some(due.as_bytes())),
            ("orloj-target-topic", Some(b"target")),
        ],
    };
    let context = ReadContext {
        partitioner: Partitioner::Murmur2,
        partitions: 1,
        schemas,
        writers: &NoWriterSchemas,
    };
    Input::Trigger(read_trigger(&raw, &context).unwrap())
}

fn partition() -> Partition {
    const DAY_MS: u64 = 24 * 3_600 * 1_000;
    let rules = PartitionConfig {
        ledger_after: 600_000,
        veto_ttl: DAY_MS,
        sample_interval: 5_000,
        idle_commit: 5_000,
        cursor_copy_interval: DAY_MS,
        records_per_step_max: 20_000,
        bytes_per_step_max: 8 << 20,
        // There is no store to spill into.
        spill_bytes: usize::MAX / 2,
        spill_interval: DAY_MS * 365 * 100,
        pools: Vec::new(),
        cancel_grace: 1_000,
        target_retry_interval: 5_000,
        callback_result_timeout: DAY_MS,
        misfire_grace: 60_000,
        catch_up_rate: 1_000,
        partitioner: Partitioner::Murmur2,
        partitions: 1,
        owner: "guard".to_owned(),
        topics: InputTopics { triggers: "triggers".into(), signals: "signals".into() },
    };
    let w = TimelineKey::last_at(START);
    let cursor = Cursor { fired_through: w, ..Cursor::initial(0, 0) };
    let start = PartitionStart {
        cursor,
        last_timestamp: START,
        index_complete_from: 0,
        skips: BTreeSet::new(),
    };
    Partition::new(0, rules, start, Wheel::new(10, 10_000, 64 << 20, w))
}
