//! A hundred thousand minute-crons of one partition after a week of downtime: how much one turn of
//! the owner's loop decides, and that twice as many are twice the work.

use std::collections::{BTreeMap, BTreeSet};

use super::harness::{definition, partition_config};
use crate::codec::row::RowBytes;
use crate::engine::catalog::{TopicCatalog, TopicState};
use crate::engine::cursor::Cursor;
use crate::engine::partition::{
    IndexRows, Input, LIFECYCLE_COST, Partition, PartitionConfig, PartitionStart,
};
use crate::engine::prefetch::{Prefetched, TimelineRows};
use crate::engine::step::{Emit, PartitionStep, RowOp};
use crate::engine::wheel::{ENTRY_BYTES, Wheel};
use crate::model::input::{Registration, Request, TriggerRecord};
use crate::model::outcome::OutcomeKind;
use crate::model::schedule::Schedule;
use crate::model::timeline::TimelineKey;
use crate::model::work::tests::counted;
use crate::model::{Millis, Offset, Timestamp};

/// Any midnight.
const BEGIN: Timestamp = 1_759_968_000_000;
const WEEK: u64 = 7 * 86_400_000;
/// What a turn may decide, in plain fires: as many as a step has in production.
const BUDGET: usize = 20_000;
/// Units of work of a turn: a hundred for each entry that has a schedule.
const WORK_MAX: usize = BUDGET / LIFECYCLE_COST * 100;
/// Missed occurrences that fire per second.
const RATE: u32 = 1_000;

/// A partition and its store.
struct Owner {
    partition: Partition,
    timeline: BTreeMap<TimelineKey, RowBytes>,
    index: IndexRows,
    catalog: TopicCatalog,
    now: Timestamp,
    registered: Offset,
    /// So long before now is everything read, in ms, beside the grace of cancels.
    behind: Millis,
}

/// What one turn of the loop did.
struct Turn {
    /// Entries that were decided.
    decided: usize,
    emits: Vec<Emit>,
    /// Occurrences computed, and entries that the wheel sorted and moved.
    work: usize,
}

impl Owner {
    /// The owner after a week in which none was there.
    fn after_downtime(schedules: Offset) -> Self {
        let cursor =
            Cursor { fired_through: TimelineKey::last_at(BEGIN - 1), ..Cursor::initial(0, 0) };
        let mut catalog = TopicCatalog::default();
        let usable = TopicState::usable(1, 1 << 20);
        catalog.insert("out".to_owned(), usable);
        let mut owner = Self {
            partition: partition(cursor),
            timeline: BTreeMap::new(),
            index: IndexRows::default(),
            catalog,
            now: BEGIN,
            registered: 0,
            behind: 0,
        };
        while owner.registered < schedules {
            owner.register(schedules.min(owner.registered + 10_000));
        }
        let last = owner.partition.seal_final();
        owner.apply(&last);
        owner.partition = partition(last.cursor);
        owner.now += WEEK;
        owner
    }

    fn register(&mut self, until: Offset) {
        let _behind = self.partition.observe_clock(self.now);
        let schedule = Schedule::from_cron("* * * * *", None).unwrap();
        let input = |offset| {
            let id = format!("schedule-{offset}");
            let new = Registration::one_time(&id, BEGIN + 60_000, definition(false));
            let schedule = Some(Box::new(schedule.clone()));
            let request = Request::Register(Registration { schedule, ..new });
            Input::Trigger(TriggerRecord {
                offset,
                timestamp: BEGIN + 1,
                ack: false.into(),
                request,
            })
        };
        let inputs = (self.registered..until).map(input).collect();
        self.registered = until;
        let nothing = (IndexRows::default(), TimelineRows::default());
        let stored = Prefetched { index: &nothing.0, rows: &nothing.1 };
        self.partition.ingest(inputs, stored).unwrap();
        let _turn = self.turn();
    }

    /// One turn: loads, fires, commits.
    fn turn(&mut self) -> Turn {
        let _behind = self.partition.observe_clock(self.now);
        self.partition.on_end_offset(self.registered, self.now - self.behind);
        let ((decided, step), work) = counted(|| {
            self.load();
            let due = self.partition.take_due(BUDGET);
            let decided = due.len();
            let ids = due.ids_to_prefetch(&self.catalog).into_iter();
            let fetched = ids.filter_map(|id| Some((id, self.index.get(&id)?.clone()))).collect();
            self.partition.fire(due, &self.catalog, &fetched).unwrap();
            (decided, self.partition.seal())
        });
        if let Some(step) = &step {
            self.apply(step);
        }
        Turn { decided, emits: step.map_or_else(Vec::new, |step| step.emits), work }
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

fn partition(cursor: Cursor) -> Partition {
    let config = PartitionConfig {
        misfire_grace: 60_000,
        catch_up_rate: RATE,
        spill_bytes: 8 << 20,
        spill_interval: 60_000,
        records_per_step_max: BUDGET,
        cursor_copy_interval: WEEK,
        ..partition_config(600_000)
    };
    let start = PartitionStart {
        cursor,
        last_timestamp: BEGIN,
        index_complete_from: 0,
        skips: BTreeSet::new(),
    };
    Partition::new(0, config, start, Wheel::new(10, 10_000, 16 << 20, cursor.fired_through))
}

/// Decides everything that is due when the owner is back, turn by turn: all the work it is.
fn decide_what_was_missed(owner: &mut Owner) -> usize {
    let schedules = usize::try_from(owner.registered).unwrap();
    let (mut decided, mut skipped, mut work) = (0, 0, 0);
    while decided < schedules {
        let turn = owner.turn();
        assert!(0 < turn.decided, "{decided} of {schedules} are decided");
        assert!(
            turn.decided <= BUDGET / LIFECYCLE_COST,
            "{} schedules decided in a turn",
            turn.decided
        );
        assert!(turn.work <= WORK_MAX, "{} units of work in a turn", turn.work);
        let is_skip = |emit: &&Emit| {
            let Emit::Outcome(outcome) = emit else { return false };
            // 10,000 stands for more.
            matches!(outcome.kind, OutcomeKind::Skipped { occurrences: 10_001, .. })
        };
        decided += turn.decided;
        skipped += turn.emits.iter().filter(is_skip).count();
        work += turn.work;
    }
    assert_eq!((decided, skipped), (schedules, schedules), "each is decided once");
    decided + work
}

/// How many missed occurrences fire in each of the next seconds.
fn caught_up_per_second(owner: &mut Owner, seconds: u64) -> Vec<usize> {
    let back = owner.now;
    let mut per_second = Vec::new();
    for _ in 0..seconds {
        let mut fired = 0;
        for _ in 0..100 {
            owner.now += 10;
            let is_missed =
                |emit: &&Emit| matches!(emit, Emit::ToTopic(fire) if fire.scheduled <= back);
            fired += owner.turn().emits.iter().filter(is_missed).count();
        }
        per_second.push(fired);
    }
    per_second
}

#[test]
fn after_a_week_every_turn_is_bounded_and_the_work_is_linear() {
    let mut once = Owner::after_downtime(100_000);
    let work_once = decide_what_was_missed(&mut once);
    for fired in caught_up_per_second(&mut once, 3) {
        assert!(fired.abs_diff(RATE as usize) <= 20, "{fired} caught up in a second");
    }
    let mut twice = Owner::after_downtime(200_000);
    let work_twice = decide_what_was_missed(&mut twice);
    assert!(
        work_twice as f64 <= 2.2 * work_once as f64,
        "{work_once} units of work, for twice as many {work_twice}"
    );
}

/// A producer's transactions keep the last stable offset behind, or reading is slow.
#[test]
fn what_was_missed_catches_up_although_reading_is_behind_by_seconds() {
    let mut owner = Owner::after_downtime(5_000);
    owner.behind = 4_000;
    let fired: usize = caught_up_per_second(&mut owner, 12).iter().sum();
    assert_eq!(fired, 5_000);
}

/// A turn takes time: the first ones decide about every schedule, and one waits for a broker.
#[test]
fn what_became_due_during_a_long_turn_does_not_catch_up_at_once() {
    let mut owner = Owner::after_downtime(20_000);
    let turns = [250; 20].into_iter().chain([10; 200]).chain([3_000]).chain([10; 2_000]);
    assert_all_catch_up(&mut owner, turns, |owner, took| owner.now += took);
}

/// It reads what was written meanwhile, the last 20 s of it ten times as fast as it was written.
#[test]
fn what_was_missed_catches_up_at_the_rate_while_a_backlog_is_read() {
    let mut owner = Owner::after_downtime(20_000);
    owner.behind = WEEK - 61_000;
    assert_all_catch_up(&mut owner, [50; 8_000], |owner, took| {
        owner.now += took;
        owner.behind = match owner.behind {
            behind if behind > 20_000 => behind.saturating_sub(WEEK / 100).max(20_000),
            behind => behind.saturating_sub(10 * took),
        };
    });
}

/// Transactions of a producer that take 5 s each: what is read moves as much at a time.
#[test]
fn what_was_missed_catches_up_although_input_arrives_in_parts_of_seconds() {
    let mut owner = Owner::after_downtime(5_000);
    let begin = owner.now;
    assert_all_catch_up(&mut owner, [10; 6_000], |owner, took| {
        owner.now += took;
        owner.behind = (owner.now - begin) % 5_000;
    });
}

/// All that was missed fires in turns of these lengths, in ms, and no more than the rate allows.
fn assert_all_catch_up(
    owner: &mut Owner,
    turns: impl IntoIterator<Item = Millis>,
    mut pass: impl FnMut(&mut Owner, Millis),
) {
    let (back, mut fired_at) = (owner.now, Vec::new());
    for took in turns {
        pass(owner, took);
        let is_missed =
            |emit: &&Emit| matches!(emit, Emit::ToTopic(fire) if fire.scheduled <= back);
        let fired = owner.turn().emits.iter().filter(is_missed).count();
        fired_at.extend(std::iter::repeat_n(owner.now, fired));
    }
    assert_eq!(fired_at.len(), usize::try_from(owner.registered).unwrap(), "all have caught up");
    let within_a_second = |from: &Timestamp| {
        let until = fired_at.partition_point(|at| *at < from + 1_000);
        until - fired_at.partition_point(|at| at < from)
    };
    let most = fired_at.iter().map(within_a_second).max().unwrap();
    assert!(most <= 2 * RATE as usize + 20, "{most} caught up in a second");
}
