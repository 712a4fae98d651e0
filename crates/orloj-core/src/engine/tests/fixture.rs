//! A fixture for single decisions: one owner of one partition, a clock that the test moves, and
//! short names for the expected emits and rows.
//!
//! Invariant: a decision is asserted completely, emits and rows, and the next step has none.

use super::harness::{
    LEDGER_AFTER, TestLog, TestOwner, TestStore, all_ledger_records, commit, definition,
    partition_config,
};
use crate::codec::row::{self, RowBytes};
use crate::engine::catalog::TopicState;
use crate::engine::index_row::{IdHash, IndexEntry, IndexEntryKind, IndexRow, TriggerCaller};
use crate::engine::step::{Emit, PartitionStep, RowOp, TopicFire};
use crate::model::definition::{Definition, Target, TopicTarget};
use crate::model::entry::{Entry, FireId, FireRow, Row};
use crate::model::fire::{Fire, Withdrawal};
use crate::model::input::{OnConflict, Registration, Request, SignalRecord};
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::outcome::{Outcome, OutcomeKind};
use crate::model::partitioner::murmur2_partition;
use crate::model::signal::{RetryRequest, Signal};
use crate::model::timeline::{RANK_DEFAULT, Source, TimelineKey, rank};
use crate::model::{Offset, Timestamp};

/// When a test begins, in ms since the epoch. W is just before it.
pub(crate) const NOW: Timestamp = 1_000;

/// One owner, its log and its clock.
#[derive(Debug)]
pub(crate) struct EngineFixture {
    pub(crate) log: TestLog,
    pub(crate) owner: TestOwner,
    pub(crate) now: Timestamp,
    /// Records of each input that a step ingests at most.
    pub(crate) records: usize,
    /// What a step fires at most: see `Partition::take_due`.
    pub(crate) budget: usize,
    takeovers: u64,
}

impl EngineFixture {
    /// An owner of an empty partition, without anything to do.
    pub(crate) fn new() -> Self {
        let mut log = TestLog::default();
        let owner = TestOwner::take_over(
            &mut log,
            TestStore::default(),
            NOW,
            1,
            partition_config(LEDGER_AFTER),
            all_ledger_records,
        );
        let mut fixture = Self { log, owner, now: NOW, records: 100, budget: 100, takeovers: 1 };
        fixture.disable_mirror();
        fixture.assert_decides(&[], &[]);
        fixture
    }

    /// A fixture in which a callback `a` of generation 0, due at 1,020, has just been fired.
    pub(crate) fn with_callback_in_flight() -> Self {
        let mut fixture = Self::new();
        fixture.callback("a", 1_020);
        fixture.run_until_idle();
        fixture.now = 1_020;
        let fired = callback_trigger("a", 0, 1_020);
        fixture.assert_decides(&[fixture.fire_emit(&fired)], &[]);
        fixture
    }

    /// Another owner takes over at this time with this disk.
    pub(crate) fn take_over(&mut self, disk: TestStore, now: Timestamp) {
        self.takeovers += 1;
        self.now = now;
        self.owner = TestOwner::take_over(
            &mut self.log,
            disk,
            now,
            self.takeovers,
            partition_config(LEDGER_AFTER),
            all_ledger_records,
        );
        self.disable_mirror();
    }

    pub(crate) fn register(&mut self, id: &str, due: Timestamp) -> Offset {
        self.log.register(id, due, self.now)
    }

    pub(crate) fn callback(&mut self, id: &str, due: Timestamp) -> Offset {
        self.log.register_with(id, due, self.now, OnConflict::Replace, true)
    }

    pub(crate) fn register_keep(&mut self, id: &str, due: Timestamp) -> Offset {
        self.log.register_with(id, due, self.now, OnConflict::Keep, false)
    }

    /// Registers a trigger that fires into another topic than `out`.
    pub(crate) fn register_to(&mut self, topic: &str, id: &str, due: Timestamp) -> Offset {
        self.register_as(definition_to(topic), id, due)
    }

    /// Registers a trigger with another definition.
    pub(crate) fn register_as(
        &mut self,
        definition: Definition,
        id: &str,
        due: Timestamp,
    ) -> Offset {
        let registration = Registration::one_time(id, due, definition);
        self.log.append(self.now, Request::Register(registration))
    }

    pub(crate) fn cancel(&mut self, id: &str) -> Offset {
        self.log.cancel(id, self.now)
    }

    /// The last record of `triggers` does not ask for a response.
    pub(crate) fn clear_ack_of_last_record(&mut self) {
        self.log.triggers.last_mut().unwrap().ack = false.into();
    }

    /// A worker requests that this entry is fired.
    pub(crate) fn signal(&mut self, entry: &Entry) {
        let row = fire_row(entry).clone();
        let (settles, priority) = (row.reports_end(), rank(entry.key.priority));
        let FireRow { id, scheduled, definition, history, .. } = row;
        let (due, reason) = (entry.key.due, "500".to_owned());
        let request = RetryRequest {
            id,
            due,
            scheduled,
            reason,
            definition,
            history,
            report_end: settles,
            priority,
        };
        let offset = self.log.signals.len() as Offset;
        assert_eq!((entry.key.source, entry.key.offset), (Source::Signals, offset));
        self.log.signals.push(SignalRecord { offset, signal: Ok(Signal::Retry(request)) });
    }

    /// The owner's next step, committed and applied. `None`: nothing to commit.
    pub(crate) fn step(&mut self) -> Option<PartitionStep> {
        let step = self.draft_and_commit()?;
        self.apply(&step);
        Some(step)
    }

    /// The owner's next step, committed; `None`: nothing to commit.
    pub(crate) fn draft_and_commit(&mut self) -> Option<PartitionStep> {
        let step = self.owner.draft(&self.log, self.now, self.records, self.budget)?;
        commit(&mut self.log, &step, self.now);
        Some(step)
    }

    /// A committed step reaches the disk.
    pub(crate) fn apply(&mut self, step: &PartitionStep) {
        self.owner.on_committed(step);
    }

    /// Steps whose decisions another test asserts.
    pub(crate) fn run_until_idle(&mut self) {
        while self.step().is_some() {}
    }

    /// The next step ingests everything and has exactly these emits and rows, the one after none.
    #[track_caller]
    pub(crate) fn assert_decides(&mut self, emits: &[Emit], rows: &[RowOp]) {
        let decided = self.step().map_or_else(Default::default, emits_and_rows);
        assert_eq!(decided, (emits.to_vec(), sorted_rows(rows)));
        let cursor = *self.owner.partition.cursor();
        assert_eq!(cursor.next_offset, self.log.triggers.len() as Offset);
        assert_eq!(cursor.next_signal_offset, self.log.signals.len() as Offset);
        if let Some(again) = self.step() {
            assert_eq!(emits_and_rows(again), (vec![], vec![]), "decided twice");
        }
    }

    /// The owner waits, although there is input.
    #[track_caller]
    pub(crate) fn assert_waits(&mut self) {
        assert!(self.step().is_none());
    }

    /// The outcome that answers the record at `offset`.
    pub(crate) fn response(&self, offset: Offset, id: &str, kind: OutcomeKind) -> Emit {
        let (trigger, answers) = (id.into(), Some(offset));
        Emit::Outcome(Box::new(Outcome { trigger, answers, request: None, at: self.now, kind }))
    }

    /// An outcome that is not a response.
    pub(crate) fn unrequested_outcome(&self, id: &str, kind: OutcomeKind) -> Emit {
        let (trigger, answers) = (id.into(), None);
        Emit::Outcome(Box::new(Outcome { trigger, answers, request: None, at: self.now, kind }))
    }

    /// The response to the registration that made this entry.
    pub(crate) fn accepted(&self, entry: &Entry, replaced: Option<Offset>) -> Emit {
        let (generation, fire_at) = (entry.key.offset, entry.key.due);
        let kind = OutcomeKind::Accepted { generation, fire_at, replaced };
        self.response(generation, trigger(entry), kind)
    }

    /// The answer to the record of `triggers` at `offset`, in any step that is committed.
    pub(crate) fn answer_to(&self, offset: Offset) -> Option<&OutcomeKind> {
        self.log.emitted.iter().find_map(|(emit, ..)| match emit {
            Emit::Outcome(outcome) if outcome.answers == Some(offset) => Some(&outcome.kind),
            _ => None,
        })
    }

    /// The entries of the trigger in the store's index.
    pub(crate) fn index_entries(&self, id: &str) -> Vec<IndexEntry> {
        let row = self.owner.store.index.get(&IdHash::of(id));
        row.map_or_else(Vec::new, |row| row.entries.to_vec())
    }

    /// The record that fires this entry now.
    pub(crate) fn fire_emit(&self, entry: &Entry) -> Emit {
        let fire = fire_row(entry);
        let Target::Topic(target) = &fire.definition.target else {
            return Emit::ToWorker(Box::new(self.fire(entry)));
        };
        let state = self.owner.catalog.state(target.topic.as_str());
        let Some(TopicState::Usable { partitions, record_bytes_max, .. }) = state else {
            panic!("{state:?}")
        };
        let batch_bytes_max = u32::try_from(*record_bytes_max).unwrap();
        let (row, scheduled) = (encode(&entry.row), fire.scheduled);
        let key = row::view(&row).unwrap().unwrap().record_key();
        let partition = murmur2_partition(key, *partitions);
        Emit::ToTopic(TopicFire { row, partition, batch_bytes_max, scheduled })
    }

    /// The fire of this entry now.
    pub(crate) fn fire(&self, entry: &Entry) -> Fire {
        let row = fire_row(entry).clone();
        let (settles, priority, fired) = (row.reports_end(), rank(entry.key.priority), self.now);
        let FireRow { id, scheduled, definition, history, .. } = row;
        Fire { id, scheduled, fired, definition, history, report_end: settles, priority }
    }

    /// The mirror has a test of its own and is removed in the others.
    fn disable_mirror(&mut self) {
        self.owner.partition.config_mut().cursor_copy_interval = 1 << 60;
    }
}

/// The first occurrence of a trigger whose target is the topic `out`, not in the ledger.
pub(crate) fn topic_trigger(id: &str, generation: Offset, due: Timestamp) -> Entry {
    first_occurrence(id, generation, due, definition(false))
}

/// The first occurrence of a trigger with a callback, not in the ledger.
pub(crate) fn callback_trigger(id: &str, generation: Offset, due: Timestamp) -> Entry {
    first_occurrence(id, generation, due, definition(true))
}

/// The first occurrence of a trigger whose target is another topic than `out`.
pub(crate) fn trigger_to_topic(topic: &str, id: &str, generation: Offset, due: Timestamp) -> Entry {
    first_occurrence(id, generation, due, definition_to(topic))
}

/// Another attempt (or deferral) of a callback, accepted from the signal at `offset`.
pub(crate) fn retry(
    of: &Entry,
    attempt_and_deferral: (u32, u32),
    due: Timestamp,
    offset: Offset,
) -> Entry {
    let mut row = fire_row(of).clone();
    (row.id.attempt, row.id.deferral) = attempt_and_deferral;
    row.in_ledger = true;
    let key = TimelineKey { due, priority: RANK_DEFAULT, source: Source::Signals, offset };
    Entry { key, row: Row::Fire(row) }
}

/// What a cancel leaves behind until `due`.
pub(crate) fn veto(id: &str, cancel: Offset, due: Timestamp) -> Entry {
    let key = TimelineKey { due, priority: u8::MAX, source: Source::Triggers, offset: cancel };
    Entry { key, row: Row::Veto { trigger: id.into(), cancel } }
}

/// The withdrawal of that cancel to the workers of the default pool.
pub(crate) fn withdraw(id: &str, cancel: Offset) -> Emit {
    withdraw_from(None, id, cancel)
}

/// The same, of another pool.
pub(crate) fn withdraw_from(pool: Option<&str>, id: &str, cancel: Offset) -> Emit {
    let withdrawal = Box::new(Withdrawal { trigger: id.into(), cancel });
    Emit::Withdraw { pool: pool.map(Into::into), withdrawal }
}

/// The same entry, (not) in the ledger.
pub(crate) fn in_ledger(entry: &Entry, is_in_ledger: bool) -> Entry {
    let row = Row::Fire(FireRow { in_ledger: is_in_ledger, ..fire_row(entry).clone() });
    Entry { key: entry.key, row }
}

/// The same entry, waiting in the ledger until `due`.
pub(crate) fn postponed(entry: &Entry, due: Timestamp) -> Entry {
    Entry { key: TimelineKey { due, ..entry.key }, ..in_ledger(entry, true) }
}

/// The entry is written to the ledger.
pub(crate) fn ledger_put(entry: &Entry) -> Emit {
    let value = Some(Box::new(LedgerValue::Entry(entry.clone())));
    Emit::Ledger { key: ledger_key(entry), value }
}

/// The entry is deleted from the ledger.
pub(crate) fn ledger_delete(entry: &Entry) -> Emit {
    Emit::Ledger { key: ledger_key(entry), value: None }
}

/// The skip mark of the record at `offset` is written to the ledger, or deleted.
pub(crate) fn ledger_skip(offset: Offset, marked: bool) -> Emit {
    let value = marked.then(|| Box::new(LedgerValue::Skip));
    Emit::Ledger { key: LedgerKey::Skip(offset), value }
}

/// The emits of a step, and the rows it spills, timeline and index each in order.
pub(crate) fn emits_and_rows(step: PartitionStep) -> (Vec<Emit>, Vec<RowOp>) {
    (step.emits, step.spill.map_or_else(Vec::new, |delta| delta.rows()))
}

/// The bytes of a row.
pub(crate) fn encode(row: &Row) -> RowBytes {
    row::to_bytes(row, &mut Vec::new())
}

fn sorted_rows(rows: &[RowOp]) -> Vec<RowOp> {
    let mut rows = rows.to_vec();
    rows.sort_by_key(RowOp::sort_key);
    rows
}

/// The entry's row is added.
pub(crate) fn put(entry: &Entry) -> RowOp {
    RowOp::Put { key: entry.key, row: encode(&entry.row) }
}

/// The entry's row is deleted.
pub(crate) fn delete(entry: &Entry) -> RowOp {
    RowOp::Delete { key: entry.key }
}

/// The index row of the trigger has these entries, and no others.
pub(crate) fn index(id: &str, entries: &[&Entry]) -> RowOp {
    let slots: Vec<_> = entries.iter().map(|entry| index_entry(entry)).collect();
    let row = (!slots.is_empty()).then(|| IndexRow { entries: slots.into() });
    RowOp::Index { hash: IdHash::of(id), row }
}

/// The first occurrence of a trigger with this definition.
pub(crate) fn first_occurrence(
    id: &str,
    offset: Offset,
    due: Timestamp,
    definition: Definition,
) -> Entry {
    let key = TimelineKey { due, priority: RANK_DEFAULT, source: Source::Triggers, offset };
    Entry { key, row: Row::Fire(FireRow::first(id.into(), offset, due, definition)) }
}

fn definition_to(topic: &str) -> Definition {
    let target = Target::Topic(TopicTarget { topic: topic.into(), key: None });
    Definition { target, ..definition(false) }
}

fn fire_row(entry: &Entry) -> &FireRow {
    let Row::Fire(row) = &entry.row else { panic!("not a fire") };
    row
}

fn trigger(entry: &Entry) -> &str {
    match &entry.row {
        Row::Fire(row) => row.id.trigger.as_str(),
        Row::Veto { trigger, .. } | Row::Watch { trigger, .. } => trigger.as_str(),
    }
}

fn ledger_key(entry: &Entry) -> LedgerKey {
    match (&entry.row, entry.key.source) {
        (Row::Veto { trigger, .. }, _) => LedgerKey::Veto(trigger.clone()),
        (Row::Watch { trigger, .. }, _) => LedgerKey::Main(trigger.clone()),
        (Row::Fire(row), Source::Triggers) => LedgerKey::Main(row.id.trigger.clone()),
        (Row::Fire(row), Source::Signals) => {
            let FireId { trigger, generation, occurrence, .. } = row.id.clone();
            LedgerKey::Retry { trigger, generation, occurrence }
        }
    }
}

fn index_entry(entry: &Entry) -> IndexEntry {
    let key = entry.key;
    let row = match &entry.row {
        Row::Fire(row) => row,
        Row::Veto { cancel, .. } => return IndexEntry::for_veto(key, *cancel),
        Row::Watch { .. } => return IndexEntry::for_watch(key),
    };
    let FireId { generation, occurrence, attempt, deferral, .. } = row.id;
    let kind = match key.source {
        Source::Triggers => IndexEntryKind::Main,
        Source::Signals => IndexEntryKind::Retry { occurrence, attempt, deferral },
    };
    let is_http = row.definition.target.is_http();
    let (in_ledger, has_lifecycle) = (row.in_ledger, row.lifecycle.is_some());
    let caller = TriggerCaller::of(row.definition.caller.as_ref());
    IndexEntry { key, kind, generation, in_ledger, is_http, has_lifecycle, caller }
}
