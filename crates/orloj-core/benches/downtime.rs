//! How long one turn of the owner's loop takes when many minute-crons are due after a week of
//! downtime: `cargo bench --profile dev -p orloj-core --bench downtime`.
//!
//! Invariant: a turn is what the loop does without I/O: take what is due within a budget, fire,
//! seal. It fails if one takes longer than a group and a broker wait for.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot continue has failed")]
#![expect(clippy::disallowed_methods, reason = "it measures how long a turn takes")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use orloj_core::codec::row::RowBytes;
use orloj_core::engine::catalog::{TopicCatalog, TopicState};
use orloj_core::engine::cursor::Cursor;
use orloj_core::engine::partition::{IndexRows, Input, Partition, PartitionConfig, PartitionStart};
use orloj_core::engine::prefetch::{Prefetched, TimelineRows};
use orloj_core::engine::step::{InputTopics, PartitionStep, RowOp};
use orloj_core::engine::wheel::{ENTRY_BYTES, Wheel};
use orloj_core::model::definition::{Definition, Target, TopicTarget};
use orloj_core::model::input::{Registration, Request, TriggerRecord};
use orloj_core::model::partitioner::Partitioner;
use orloj_core::model::schedule::Schedule;
use orloj_core::model::timeline::TimelineKey;
use orloj_core::model::{Offset, Timestamp};

/// Any midnight.
const BEGIN: Timestamp = 1_759_968_000_000;
const WEEK: u64 = 7 * 86_400_000;
/// Schedules that are due.
const SCHEDULES: [Offset; 2] = [100_000, 200_000];
/// What a turn may decide, in plain fires.
const BUDGETS: [usize; 3] = [1_000, 4_000, 20_000];
/// The longest turn that is allowed.
const TURN_MAX: Duration = Duration::from_millis(100);

/// A partition and its store.
struct Owner {
    partition: Partition,
    timeline: BTreeMap<TimelineKey, RowBytes>,
    index: IndexRows,
    catalog: TopicCatalog,
}

fn main() {
    for budget in BUDGETS {
        for schedules in SCHEDULES {
            let mut owner = Owner::with_schedules(schedules);
            let (mut decided, mut turns) = (0, Vec::new());
            while decided < schedules {
                let (entries, took) = owner.turn(BEGIN + WEEK, schedules, budget);
                assert!(0 < entries, "{decided} of {schedules} are decided");
                decided += entries as Offset;
                turns.push(took);
            }
            let (all, longest) = (turns.iter().sum::<Duration>(), *turns.iter().max().unwrap());
            println!(
                "{schedules} schedules, budget {budget}: {} turns, {all:.2?} in all, the longest \
                 {longest:.2?}",
                turns.len()
            );
            assert!(longest <= TURN_MAX, "a turn of {longest:?}");
        }
    }
}

impl Owner {
    /// The owner of so many minute-crons, which are registered and in its store.
    fn with_schedules(schedules: Offset) -> Self {
        let before = TimelineKey::last_at(BEGIN - 1);
        let mut catalog = TopicCatalog::default();
        let usable = TopicState::usable(1, 1 << 20);
        catalog.insert("out".to_owned(), usable);
        let (timeline, index) = (BTreeMap::new(), IndexRows::default());
        let cursor = Cursor { fired_through: before, ..Cursor::initial(0, 0) };
        let mut owner = Self { partition: partition(cursor), timeline, index, catalog };
        let schedule = Schedule::from_cron("* * * * *", None).unwrap();
        let inputs = (0..schedules).map(|offset| registration(offset, schedule.clone()));
        let nothing = (IndexRows::default(), TimelineRows::default());
        let _behind = owner.partition.observe_clock(BEGIN);
        let stored = Prefetched { index: &nothing.0, rows: &nothing.1 };
        owner.partition.ingest(inputs.collect(), stored).unwrap();
        let _turn = owner.turn(BEGIN, schedules, 1);
        let last = owner.partition.seal_final();
        owner.apply(&last);
        owner.partition = partition(last.cursor);
        owner
    }

    /// One turn: how many entries it decides, and how long it takes.
    fn turn(&mut self, now: Timestamp, read_until: Offset, budget: usize) -> (usize, Duration) {
        let begin = Instant::now();
        let _behind = self.partition.observe_clock(now);
        self.partition.on_end_offset(read_until, now);
        self.load();
        let due = self.partition.take_due(budget);
        let decided = due.len();
        let ids = due.ids_to_prefetch(&self.catalog).into_iter();
        let fetched = ids.filter_map(|id| Some((id, self.index.get(&id)?.clone()))).collect();
        self.partition.fire(due, &self.catalog, &fetched).unwrap();
        let step = self.partition.seal();
        let took = begin.elapsed();
        if let Some(step) = &step {
            self.apply(step);
        }
        (decided, took)
    }

    fn load(&mut self) {
        while let Some(load) = self.partition.load_request() {
            let (mut entries, mut bytes, mut reached) = (Vec::new(), 0, load.until);
            for (key, row) in self.timeline.range(load.from..load.until) {
                entries.push((*key, row.clone()));
                bytes += ENTRY_BYTES + row.len();
                if bytes >= load.bytes_max {
                    reached = key.successor();
                    break;
                }
            }
            self.partition.load(entries, reached);
        }
    }

    fn apply(&mut self, step: &PartitionStep) {
        let Some(delta) = &step.spill else { return };
        for row in delta.rows() {
            match row {
                RowOp::Put { key, row } => drop(self.timeline.insert(key, row)),
                RowOp::Delete { key } => drop(self.timeline.remove(&key)),
                RowOp::Index { hash, row: Some(row) } => drop(self.index.insert(hash, row)),
                RowOp::Index { hash, row: None } => drop(self.index.remove(&hash)),
                RowOp::Skip { .. } => {}
            }
        }
        self.timeline = self.timeline.split_off(&step.cursor.fired_through.successor());
        self.partition.on_applied(step.number);
    }
}

fn registration(offset: Offset, schedule: Schedule) -> Input {
    let target = Target::Topic(TopicTarget { topic: "out".into(), key: None });
    let (payload, headers, retry, caller) = (None, Vec::new(), None, None);
    let definition = Definition { target, payload, headers, retry, caller };
    let new = Registration::one_time(&format!("schedule-{offset}"), BEGIN + 60_000, definition);
    let request = Request::Register(Registration { schedule: Some(Box::new(schedule)), ..new });
    Input::Trigger(TriggerRecord { offset, timestamp: BEGIN + 1, ack: false.into(), request })
}

/// A partition with the settings of production.
fn partition(cursor: Cursor) -> Partition {
    let rules = PartitionConfig {
        ledger_after: 600_000,
        veto_ttl: 86_400_000,
        sample_interval: 5_000,
        idle_commit: 5_000,
        cursor_copy_interval: 10_000,
        records_per_step_max: 20_000,
        bytes_per_step_max: 8 << 20,
        spill_bytes: 8 << 20,
        spill_interval: 60_000,
        cancel_grace: 1_000,
        target_retry_interval: 5_000,
        callback_result_timeout: 86_400_000,
        misfire_grace: 60_000,
        catch_up_rate: 1_000,
        partitioner: Partitioner::Murmur2,
        partitions: 1,
        pools: Vec::new(),
        owner: "bench".to_owned(),
        topics: InputTopics { triggers: "triggers".into(), signals: "signals".into() },
    };
    let start = PartitionStart {
        cursor,
        last_timestamp: BEGIN,
        index_complete_from: 0,
        skips: BTreeSet::new(),
    };
    Partition::new(0, rules, start, Wheel::new(10, 10_000, 16 << 20, cursor.fired_through))
}
