//! A stage for single decisions: one owner of one partition, a clock that the test moves, and
//! short names for what a decision is expected to say.
//!
//! Law: a decision is asserted whole, emits and rows, and asking again decides nothing more.

use super::world::{AFTER, Disk, Log, Owner, commit, definition, registration, rules, whole};
use crate::codec::row::{self, RowBytes};
use crate::engine::known::{Claim, IdHash, Known, Slot, SlotKind};
use crate::engine::step::{Emit, RowOp, Step, ToTopic};
use crate::model::definition::{Definition, Target, TopicTarget};
use crate::model::entry::{Entry, FireId, FireRow, Row};
use crate::model::fire::{Fire, Withdrawal};
use crate::model::input::{OnConflict, Request, SignalRecord};
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::outcome::{Outcome, Verdict};
use crate::model::signal::{RetryRequest, Signal};
use crate::model::timeline::{RANK_DEFAULT, Source, TimelineKey, rank};
use crate::model::{Offset, Timestamp};

/// When a scene opens, in ms since the epoch. W then stands just before it.
pub(crate) const NOW: Timestamp = 1_000;

/// One owner, its log and its clock.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) log: Log,
    pub(crate) owner: Owner,
    pub(crate) now: Timestamp,
    /// Records of each input that a step takes in at most.
    pub(crate) records: usize,
    takeovers: u64,
}

impl Scene {
    /// An owner of an empty partition, without anything to do.
    pub(crate) fn new() -> Self {
        let mut log = Log::default();
        let owner = Owner::take_over(&mut log, Disk::default(), NOW, 1, rules(AFTER), whole);
        let mut scene = Self { log, owner, now: NOW, records: 100, takeovers: 1 };
        scene.silence_mirror();
        scene.decides(&[], &[]);
        scene
    }

    /// A scene in which a callback `a` of generation 0, due at 1,020, has just been fired.
    pub(crate) fn with_callback_in_flight() -> Self {
        let mut scene = Self::new();
        scene.callback("a", 1_020);
        scene.run();
        scene.now = 1_020;
        let fired = callback("a", 0, 1_020);
        scene.decides(&[scene.fires(&fired)], &[]);
        scene
    }

    /// Another owner takes over at this time with this disk.
    pub(crate) fn take_over(&mut self, disk: Disk, now: Timestamp) {
        self.takeovers += 1;
        self.now = now;
        self.owner =
            Owner::take_over(&mut self.log, disk, now, self.takeovers, rules(AFTER), whole);
        self.silence_mirror();
    }

    pub(crate) fn register(&mut self, id: &str, due: Timestamp) -> Offset {
        self.log.register(id, due, self.now)
    }

    pub(crate) fn callback(&mut self, id: &str, due: Timestamp) -> Offset {
        self.log.register_with(id, due, self.now, OnConflict::Replace, true)
    }

    pub(crate) fn keep(&mut self, id: &str, due: Timestamp) -> Offset {
        self.log.register_with(id, due, self.now, OnConflict::Keep, false)
    }

    /// Registers what fires into another topic than `out`.
    pub(crate) fn register_to(&mut self, topic: &str, id: &str, due: Timestamp) -> Offset {
        self.register_as(definition_to(topic), id, due)
    }

    /// Registers what is done by another definition than usual.
    pub(crate) fn register_as(
        &mut self,
        definition: Definition,
        id: &str,
        due: Timestamp,
    ) -> Offset {
        let registration = registration(id, due, definition);
        self.log.append(self.now, Request::Register(registration))
    }

    pub(crate) fn cancel(&mut self, id: &str) -> Offset {
        self.log.cancel(id, self.now)
    }

    /// The last record of `triggers` does not ask for an answer.
    pub(crate) fn unasked(&mut self) {
        self.log.triggers.last_mut().unwrap().ack = false;
    }

    /// A worker reports that this entry shall fire.
    pub(crate) fn signal(&mut self, entry: &Entry) {
        let row = fire_row(entry).clone();
        let (settles, priority) = (row.settles(), rank(entry.key.priority));
        let FireRow { id, scheduled, definition, history, .. } = row;
        let (due, reason) = (entry.key.due, "500".to_owned());
        let request =
            RetryRequest { id, due, scheduled, reason, definition, history, settles, priority };
        let offset = self.log.signals.len() as Offset;
        assert_eq!((entry.key.source, entry.key.offset), (Source::Signals, offset));
        self.log.signals.push(SignalRecord { offset, signal: Ok(Signal::Retry(request)) });
    }

    /// The owner's next step, committed and applied. `None`: nothing to commit.
    pub(crate) fn step(&mut self) -> Option<Step> {
        let step = self.draft()?;
        self.apply(&step);
        Some(step)
    }

    /// The owner's next step, committed; `None`: nothing to commit.
    pub(crate) fn draft(&mut self) -> Option<Step> {
        let step = self.owner.draft(&self.log, self.now, self.records, 100)?;
        commit(&mut self.log, &step, self.now);
        Some(step)
    }

    /// A committed step reaches the disk.
    pub(crate) fn apply(&mut self, step: &Step) {
        self.owner.applied(step);
    }

    /// Steps whose decisions another test asserts.
    pub(crate) fn run(&mut self) {
        while self.step().is_some() {}
    }

    /// The next step takes in all there is and says exactly this; the one after says nothing.
    #[track_caller]
    pub(crate) fn decides(&mut self, emits: &[Emit], rows: &[RowOp]) {
        let said = self.step().map_or_else(Default::default, spoken);
        assert_eq!(said, (emits.to_vec(), in_order(rows)));
        let cursor = *self.owner.partition.cursor();
        assert_eq!(cursor.triggers, self.log.triggers.len() as Offset);
        assert_eq!(cursor.signals, self.log.signals.len() as Offset);
        if let Some(again) = self.step() {
            assert_eq!(spoken(again), (vec![], vec![]), "decided twice");
        }
    }

    /// The owner waits, although there is input.
    #[track_caller]
    pub(crate) fn decides_nothing_yet(&mut self) {
        assert!(self.step().is_none());
    }

    /// The outcome that answers the record at `offset`.
    pub(crate) fn answer(&self, offset: Offset, id: &str, verdict: Verdict) -> Emit {
        let (trigger, answers) = (id.into(), Some(offset));
        Emit::Outcome(Box::new(Outcome { trigger, answers, at: self.now, verdict }))
    }

    /// An outcome nobody asked for.
    pub(crate) fn notes(&self, id: &str, verdict: Verdict) -> Emit {
        let (trigger, answers) = (id.into(), None);
        Emit::Outcome(Box::new(Outcome { trigger, answers, at: self.now, verdict }))
    }

    /// The answer to the registration that made this entry.
    pub(crate) fn accepted(&self, entry: &Entry, replaced: Option<Offset>) -> Emit {
        let (generation, fire_at) = (entry.key.offset, entry.key.due);
        let verdict = Verdict::Accepted { generation, fire_at, replaced };
        self.answer(generation, trigger(entry), verdict)
    }

    /// The record that fires this entry now.
    pub(crate) fn fires(&self, entry: &Entry) -> Emit {
        let fire = fire_row(entry);
        if fire.definition.target.is_http() {
            return Emit::ToWorker(Box::new(self.fire(entry)));
        }
        let (row, scheduled) = (encode(&entry.row), fire.scheduled);
        Emit::ToTopic(ToTopic { row, partition: 0, scheduled })
    }

    /// The fire of this entry now.
    pub(crate) fn fire(&self, entry: &Entry) -> Fire {
        let row = fire_row(entry).clone();
        let (settles, priority, fired) = (row.settles(), rank(entry.key.priority), self.now);
        let FireRow { id, scheduled, definition, history, .. } = row;
        Fire { id, scheduled, fired, definition, history, settles, priority }
    }

    /// The mirror has a test of its own and would only be in the way of the others.
    fn silence_mirror(&mut self) {
        self.owner.partition.rules.mirror_interval = 1 << 60;
    }
}

/// The first occurrence of a trigger whose target is the topic `out`, not in the ledger.
pub(crate) fn topic(id: &str, generation: Offset, due: Timestamp) -> Entry {
    registered(id, generation, due, definition(false))
}

/// The first occurrence of a trigger with a callback, not in the ledger.
pub(crate) fn callback(id: &str, generation: Offset, due: Timestamp) -> Entry {
    registered(id, generation, due, definition(true))
}

/// The first occurrence of a trigger whose target is another topic than `out`.
pub(crate) fn topic_to(topic: &str, id: &str, generation: Offset, due: Timestamp) -> Entry {
    registered(id, generation, due, definition_to(topic))
}

/// Another attempt (or deferral) of a callback, accepted from the signal at `offset`.
pub(crate) fn retry(of: &Entry, tried: (u32, u32), due: Timestamp, offset: Offset) -> Entry {
    let mut row = fire_row(of).clone();
    (row.id.attempt, row.id.deferral) = tried;
    row.in_ledger = true;
    let key = TimelineKey { due, priority: RANK_DEFAULT, source: Source::Signals, offset };
    Entry { key, row: Row::Fire(row) }
}

/// What a cancel leaves behind until `due`.
pub(crate) fn veto(id: &str, cancel: Offset, due: Timestamp) -> Entry {
    let key = TimelineKey { due, priority: u8::MAX, source: Source::Triggers, offset: cancel };
    Entry { key, row: Row::Veto { trigger: id.into(), cancel } }
}

/// What the workers of the default pool are told of that cancel.
pub(crate) fn withdraw(id: &str, cancel: Offset) -> Emit {
    withdraw_from(None, id, cancel)
}

/// The same, of another pool.
pub(crate) fn withdraw_from(pool: Option<&str>, id: &str, cancel: Offset) -> Emit {
    let withdrawal = Box::new(Withdrawal { trigger: id.into(), cancel });
    Emit::Withdraw { pool: pool.map(Into::into), withdrawal }
}

/// The same entry, (not) in the ledger.
pub(crate) fn in_ledger(entry: &Entry, held: bool) -> Entry {
    let row = Row::Fire(FireRow { in_ledger: held, ..fire_row(entry).clone() });
    Entry { key: entry.key, row }
}

/// The same entry, waiting in the ledger until `due`.
pub(crate) fn parked(entry: &Entry, due: Timestamp) -> Entry {
    Entry { key: TimelineKey { due, ..entry.key }, ..in_ledger(entry, true) }
}

/// The ledger takes the entry in.
pub(crate) fn hold(entry: &Entry) -> Emit {
    let value = Some(Box::new(LedgerValue::Entry(entry.clone())));
    Emit::Ledger { key: ledger_key(entry), value }
}

/// The ledger lets the entry go.
pub(crate) fn settle(entry: &Entry) -> Emit {
    Emit::Ledger { key: ledger_key(entry), value: None }
}

/// The ledger remembers, or forgets, that the record at `offset` was ignored.
pub(crate) fn skip(offset: Offset, marked: bool) -> Emit {
    let value = marked.then(|| Box::new(LedgerValue::Skip));
    Emit::Ledger { key: LedgerKey::Skip(offset), value }
}

/// What a step says: its emits, and the rows it spills, timeline and index each in order.
pub(crate) fn spoken(step: Step) -> (Vec<Emit>, Vec<RowOp>) {
    (step.emits, step.spill.map_or_else(Vec::new, |delta| delta.rows()))
}

/// The bytes in which a row waits.
pub(crate) fn encode(row: &Row) -> RowBytes {
    row::to_bytes(row, &mut Vec::new())
}

fn in_order(rows: &[RowOp]) -> Vec<RowOp> {
    let mut rows = rows.to_vec();
    rows.sort_by_key(RowOp::place);
    rows
}

/// The entry's row comes.
pub(crate) fn put(entry: &Entry) -> RowOp {
    RowOp::Put { key: entry.key, row: encode(&entry.row) }
}

/// The entry's row goes.
pub(crate) fn delete(entry: &Entry) -> RowOp {
    RowOp::Delete { key: entry.key }
}

/// From now on the index knows these entries of the trigger, and no others.
pub(crate) fn index(id: &str, entries: &[&Entry]) -> RowOp {
    let slots: Vec<_> = entries.iter().map(|entry| slot(entry)).collect();
    let known = (!slots.is_empty()).then(|| Known { slots: slots.into() });
    RowOp::Index { hash: IdHash::of(id), known }
}

/// The first occurrence of a trigger with this definition.
pub(crate) fn registered(
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
    let Row::Fire(row) = &entry.row else { panic!("nothing that fires") };
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

fn slot(entry: &Entry) -> Slot {
    let key = entry.key;
    let row = match &entry.row {
        Row::Fire(row) => row,
        Row::Veto { cancel, .. } => return Slot::of_veto(key, *cancel),
        Row::Watch { .. } => return Slot::of_watch(key),
    };
    let FireId { generation, occurrence, attempt, deferral, .. } = row.id;
    let kind = match key.source {
        Source::Triggers => SlotKind::Main,
        Source::Signals => SlotKind::Retry { occurrence, attempt, deferral },
    };
    let http = row.definition.target.is_http();
    let (in_ledger, course) = (row.in_ledger, row.course.is_some());
    let claim = Claim::of(row.definition.caller.as_ref());
    Slot { key, kind, generation, in_ledger, http, course, claim }
}
