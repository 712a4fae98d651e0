//! A world for the engine without I/O: a log, a store of maps, a clock that tests move.
//!
//! Law: it interprets steps and asks as the shell does, and decides nothing itself.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::codec::row::{self, RowBytes};
use crate::engine::catalog::{Catalog, TopicState};
use crate::engine::local::Local;
use crate::engine::partition::{Fetched, Input, Partition, Rules};
use crate::engine::rows::{Rows, Stored};
use crate::engine::step::{Emit, InputTopics, RowOp, Step};
use crate::engine::takeover::{Ask, Committed, Takeover};
use crate::engine::wheel::Wheel;
use crate::model::definition::{Definition, HttpTarget, Target, TopicTarget};
use crate::model::input::{
    Count, OnConflict, PRIORITY_DEFAULT, Registration, Request, SignalRecord, TriggerRecord,
};
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::outcome::Verdict;
use crate::model::partitioner::Partitioner;
use crate::model::timeline::TimelineKey;
use crate::model::{Millis, Offset, Timestamp};

/// `ledger.after` of these tests, in ms.
pub(crate) const AFTER: u64 = 50;

/// What Kafka holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) triggers: Vec<TriggerRecord>,
    pub(crate) signals: Vec<SignalRecord>,
    pub(crate) ledger: Vec<LedgerRecord>,
    pub(crate) committed: Option<(Offset, String)>,
    /// Every emit that is not for the ledger, with the N of the step before it.
    pub(crate) out: Vec<(Emit, Offset, Timestamp)>,
    pub(crate) triggers_low: Offset,
}

/// What one disk holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    pub(crate) timeline: BTreeMap<TimelineKey, RowBytes>,
    pub(crate) index: Fetched,
    pub(crate) skips: BTreeSet<Offset>,
    pub(crate) local: Option<Local>,
}

/// An owner of the one partition.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) partition: Partition,
    pub(crate) disk: Disk,
    /// What the shell would find out about target topics.
    pub(crate) catalog: Catalog,
    pub(crate) skew: i64,
    /// How far ahead of its clock it decides, in ms.
    pub(crate) ahead: Millis,
    ledger_position: Offset,
}

impl Log {
    pub(crate) fn register(&mut self, id: &str, at: Timestamp, now: Timestamp) -> Offset {
        self.register_with(id, at, now, OnConflict::Replace, false)
    }

    pub(crate) fn register_with(
        &mut self,
        id: &str,
        at: Timestamp,
        now: Timestamp,
        on_conflict: OnConflict,
        http: bool,
    ) -> Offset {
        self.append(
            now,
            Request::Register(Registration {
                on_conflict,
                ..registration(id, at, definition(http))
            }),
        )
    }

    pub(crate) fn cancel(&mut self, id: &str, now: Timestamp) -> Offset {
        self.append(now, Request::Cancel { id: id.into(), caller: None })
    }

    pub(crate) fn append(&mut self, timestamp: Timestamp, request: Request) -> Offset {
        let offset = self.triggers.len() as Offset;
        self.triggers.push(TriggerRecord { offset, timestamp, ack: true, request });
        offset
    }

    fn ends(&self) -> Committed {
        Committed {
            offset: self.committed.clone(),
            triggers_low: self.triggers_low,
            triggers_end: self.triggers.len() as Offset,
            signals_low: 0,
            signals_end: self.signals.len() as Offset,
            ledger_low: 0,
            ledger_end: self.ledger.len() as Offset,
        }
    }
}

/// A registration with nothing special about it.
pub(crate) fn registration(id: &str, fire_at: Timestamp, does: Definition) -> Registration {
    Registration {
        id: id.into(),
        fire_at,
        schedule: None,
        expire_after: None,
        after: None,
        retain: None,
        count: Count::Reset,
        priority: PRIORITY_DEFAULT,
        on_conflict: OnConflict::Replace,
        definition: does,
    }
}

pub(crate) fn definition(http: bool) -> Definition {
    let target = if http {
        Target::from(HttpTarget::post("http://x/"))
    } else {
        Target::Topic(TopicTarget { topic: "out".into(), key: None })
    };
    let payload = Some(Bytes::from_static(b"p"));
    Definition { target, payload, headers: Vec::new(), retry: None, caller: None }
}

impl Disk {
    fn fetch_all(&self) -> Fetched {
        self.index.clone()
    }

    fn apply(&mut self, rows: &[RowOp]) {
        for row in rows {
            match row {
                RowOp::Put { key, row } => drop(self.timeline.insert(*key, row.clone())),
                RowOp::Delete { key } => drop(self.timeline.remove(key)),
                RowOp::Index { hash, known: Some(known) } => {
                    drop(self.index.insert(*hash, known.clone()));
                }
                RowOp::Index { hash, known: None } => drop(self.index.remove(hash)),
                RowOp::Skip { offset, marked: true } => drop(self.skips.insert(*offset)),
                RowOp::Skip { offset, marked: false } => {
                    let _was = self.skips.remove(offset);
                }
            }
        }
    }
}

impl Owner {
    /// Takes the partition over with whatever `disk` holds; `seen` says which ledger records
    /// compaction has left.
    pub(crate) fn take_over(
        log: &mut Log,
        disk: Disk,
        now: Timestamp,
        nonce: u64,
        rules: Rules,
        seen: impl Fn(&Log, Offset) -> Vec<(Offset, LedgerRecord)>,
    ) -> Self {
        let mut disk = disk;
        let local = disk.local.map(|local| (local, disk.skips.clone()));
        let mut takeover = Takeover::new(0, "o.triggers", "owner", nonce, local);
        loop {
            match takeover.ask() {
                Ask::Committed => takeover.on_committed(log.ends()).unwrap(),
                Ask::Barrier { offset, metadata, nonce } => {
                    if takeover.must_wipe() {
                        disk = Disk::default();
                    }
                    let step = takeover.cursor().step;
                    let value = Some(LedgerValue::Barrier { nonce });
                    log.ledger.push(LedgerRecord { key: LedgerKey::Barrier, value, step });
                    log.committed = Some((offset, metadata));
                    takeover.on_barrier();
                }
                Ask::Mirror { from, until } => {
                    let records = seen(log, from).into_iter().map(|(_, r)| r).collect();
                    let rows = takeover.on_ledger(records, until, &Fetched::default()).unwrap();
                    assert!(rows.is_empty());
                }
                Ask::Ledger { from } => {
                    for (offset, record) in seen(log, from) {
                        let fetched = disk.fetch_all();
                        let rows = takeover.on_ledger(vec![record], offset + 1, &fetched).unwrap();
                        disk.apply(&rows);
                    }
                }
                Ask::Triggers { from, until } => {
                    assert!(from >= log.triggers_low || from == until, "the tail was deleted");
                    for offset in from..until {
                        let record = log.triggers[usize::try_from(offset).unwrap()].clone();
                        if takeover.holds(offset) {
                            takeover.on_held(record.timestamp);
                            continue;
                        }
                        let fetched = disk.fetch_all();
                        let rows = takeover.on_triggers(vec![record], &fetched);
                        disk.apply(&rows);
                    }
                    takeover.on_triggers_end();
                }
                Ask::Nothing => break,
            }
        }
        let n = takeover.cursor().triggers;
        let local = takeover.local(n);
        disk.local = Some(local);
        let start = takeover.finish();
        let wheel = Wheel::new(10, 1_000, 1 << 16, start.cursor.w);
        let mut partition = Partition::new(0, rules, start, wheel);
        let _behind = partition.observe(now);
        let mut catalog = Catalog::default();
        let usable = TopicState::Usable { partitions: 1, record_bytes_max: 1 << 20 };
        catalog.insert("out".into(), usable);
        Self { partition, disk, catalog, skew: 0, ahead: 0, ledger_position: local.ledger_position }
    }

    /// Drafts a step: takes in at most so many records of each input, fires at most so many.
    /// `None` when there is nothing to commit, or the clock is behind.
    pub(crate) fn draft(
        &mut self,
        log: &Log,
        now: Timestamp,
        records: usize,
        fires: usize,
    ) -> Option<Step> {
        let at = now.saturating_add_signed(self.skew);
        if self.partition.observe(at + self.ahead) > 0 {
            return None;
        }
        let n = usize::try_from(self.partition.cursor().triggers).unwrap();
        let s = usize::try_from(self.partition.cursor().signals).unwrap();
        self.partition.input_known(log.triggers.len() as Offset, at);
        let taken = log.triggers.iter().skip(n).take(records).cloned().map(Input::Trigger);
        let signals = log.signals.iter().skip(s).take(records).cloned().map(Input::Signal);
        let inputs: Vec<_> = taken.chain(signals).collect();
        let index = self.disk.fetch_all();
        let wanted = self.partition.rows_wanted(&inputs, &index);
        let row = |key| Some((key, self.disk.timeline.get(&key)?.clone()));
        let rows: Rows = wanted.into_iter().filter_map(row).collect();
        self.partition.ingest(inputs, Stored { index: &index, rows: &rows }).unwrap();
        while let Some(load) = self.partition.wants() {
            let entries: Vec<_> = self
                .disk
                .timeline
                .range(load.from..load.until)
                .map(|(key, row)| (*key, row.clone()))
                .collect();
            self.partition.load(entries, load.until);
        }
        let due = self.partition.take_due(fires);
        self.partition.fire(due, &self.catalog, &self.disk.fetch_all()).unwrap();
        self.partition.seal()
    }

    /// The owner learns that its step is committed.
    pub(crate) fn applied(&mut self, step: &Step) {
        let Step { cursor, number, spill: Some(delta), .. } = step else { return };
        self.disk.apply(&delta.rows());
        self.disk.local = Some(Local {
            applied: cursor.triggers,
            step: *number,
            ledger_position: self.ledger_position,
            w: cursor.w,
        });
        self.partition.applied(*number);
    }
}

/// The transaction of a step commits.
pub(crate) fn commit(log: &mut Log, step: &Step, now: Timestamp) {
    let before = log.committed.as_ref().map_or(0, |(offset, _)| *offset);
    for emit in &step.emits {
        let (trigger, scheduled) = match emit {
            Emit::ToTopic(fire) => {
                let view = row::view(&fire.row).unwrap().unwrap();
                (view.trigger.to_vec(), fire.scheduled)
            }
            Emit::ToWorker(fire) => (fire.id.trigger.bytes().to_vec(), fire.scheduled),
            _ => Default::default(),
        };
        let early = scheduled > step.time && !is_called(log, step, &trigger);
        assert!(!early, "{emit:?} is early if it is committed at {}", step.time);
        if let Emit::Ledger { key, value } = emit {
            let value = value.as_deref().cloned();
            log.ledger.push(LedgerRecord { key: key.clone(), value, step: step.number });
        } else {
            log.out.push((emit.clone(), before, now));
        }
    }
    log.committed = Some((step.cursor.triggers, step.cursor.to_metadata("owner")));
}

/// Whether a command has fired this one before its time.
fn is_called(log: &Log, step: &Step, trigger: &[u8]) -> bool {
    let said = log.out.iter().map(|(emit, ..)| emit).chain(&step.emits);
    said.into_iter().any(|emit| match emit {
        Emit::Outcome(outcome) => {
            let called = matches!(outcome.verdict, Verdict::Called { .. });
            called && outcome.trigger.bytes()[..] == *trigger
        }
        _ => false,
    })
}

/// All ledger records from an offset on, uncompacted.
pub(crate) fn whole(log: &Log, from: Offset) -> Vec<(Offset, LedgerRecord)> {
    (0..).zip(log.ledger.iter().cloned()).filter(|(offset, _)| *offset >= from).collect()
}

pub(crate) fn rules(after: u64) -> Rules {
    Rules {
        ledger_after: after,
        veto_ttl: 5_000,
        sample_interval: 3,
        idle_commit: 0,
        mirror_interval: 20,
        ingest_max: 1_000,
        spill_bytes: usize::MAX,
        spill_interval: 0,
        cancel_grace: 0,
        park: 5,
        open_ttl: 10_000,
        misfire_grace: 60,
        catch_up_rate: 1_000,
        partitioner: Partitioner::Murmur2,
        partitions: 1,
        pools: Vec::new(),
        owner: "owner".to_owned(),
        topics: InputTopics { triggers: "o.triggers".into(), signals: "o.signals".into() },
    }
}
