//! An environment for the engine without I/O: a log, a store of maps, a clock that tests move.
//!
//! Invariant: it executes steps and requests as the shell does, and decides nothing itself.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::codec::row::{self, RowBytes};
use crate::engine::catalog::{TopicCatalog, TopicState};
use crate::engine::local_checkpoint::LocalCheckpoint;
use crate::engine::partition::{IndexRows, Input, Partition, PartitionConfig};
use crate::engine::prefetch::{Prefetched, TimelineRows};
use crate::engine::step::{Emit, InputTopics, PartitionStep, RowOp};
use crate::engine::takeover::{PartitionOffsets, Takeover, TakeoverRequest};
use crate::engine::wheel::Wheel;
use crate::model::definition::{Definition, HttpTarget, Target, TopicTarget};
use crate::model::input::{OnConflict, Registration, Request, SignalRecord, TriggerRecord};
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::names::Names;
use crate::model::outcome::OutcomeKind;
use crate::model::partitioner::Partitioner;
use crate::model::timeline::TimelineKey;
use crate::model::{Millis, Offset, Timestamp};

/// `ledger.after` of these tests, in ms.
pub(crate) const LEDGER_AFTER: u64 = 50;

/// The topics in Kafka.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestLog {
    pub(crate) triggers: Vec<TriggerRecord>,
    pub(crate) signals: Vec<SignalRecord>,
    pub(crate) ledger: Vec<LedgerRecord>,
    pub(crate) committed: Option<(Offset, String)>,
    /// Every emit that is not for the ledger, with the N of the step before it.
    pub(crate) emitted: Vec<(Emit, Offset, Timestamp)>,
    pub(crate) triggers_low: Offset,
}

/// The content of one disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestStore {
    pub(crate) timeline: BTreeMap<TimelineKey, RowBytes>,
    pub(crate) index: IndexRows,
    pub(crate) skips: BTreeSet<Offset>,
    pub(crate) checkpoint: Option<LocalCheckpoint>,
}

/// An owner of the one partition.
#[derive(Debug)]
pub(crate) struct TestOwner {
    pub(crate) partition: Partition,
    pub(crate) store: TestStore,
    /// The state of target topics.
    pub(crate) catalog: TopicCatalog,
    pub(crate) clock_skew: i64,
    /// How far ahead of its clock it decides, in ms.
    pub(crate) commit_lead: Millis,
    ledger_position: Offset,
}

impl TestLog {
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
                ..Registration::one_time(id, at, definition(http))
            }),
        )
    }

    pub(crate) fn cancel(&mut self, id: &str, now: Timestamp) -> Offset {
        self.append(now, Request::Cancel { id: id.into(), caller: None })
    }

    pub(crate) fn append(&mut self, timestamp: Timestamp, request: Request) -> Offset {
        let offset = self.triggers.len() as Offset;
        self.triggers.push(TriggerRecord { offset, timestamp, ack: true.into(), request });
        offset
    }

    fn partition_offsets(&self) -> PartitionOffsets {
        PartitionOffsets {
            committed: self.committed.clone(),
            triggers_low: self.triggers_low,
            triggers_end: self.triggers.len() as Offset,
            signals_low: 0,
            signals_end: self.signals.len() as Offset,
            ledger_low: 0,
            ledger_end: self.ledger.len() as Offset,
            new_records: Vec::new(),
        }
    }
}

/// A registration of `id`, due at `due`, as the record at `offset` of `triggers`.
pub(crate) fn registration_record(id: &str, offset: Offset, due: Timestamp) -> TriggerRecord {
    let request = Request::Register(Registration::one_time(id, due, definition(false)));
    TriggerRecord { offset, timestamp: 0, ack: false.into(), request }
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

impl TestStore {
    fn fetch_all(&self) -> IndexRows {
        self.index.clone()
    }

    fn apply(&mut self, rows: &[RowOp]) {
        for row in rows {
            match row {
                RowOp::Put { key, row } => drop(self.timeline.insert(*key, row.clone())),
                RowOp::Delete { key } => drop(self.timeline.remove(key)),
                RowOp::Index { hash, row: Some(known) } => {
                    drop(self.index.insert(*hash, known.clone()));
                }
                RowOp::Index { hash, row: None } => drop(self.index.remove(hash)),
                RowOp::Skip { offset, marked: true } => drop(self.skips.insert(*offset)),
                RowOp::Skip { offset, marked: false } => {
                    let _was = self.skips.remove(offset);
                }
            }
        }
    }
}

impl TestOwner {
    /// Takes the partition over with the content of `disk`; `seen` selects the ledger records
    /// that compaction has left.
    pub(crate) fn take_over(
        log: &mut TestLog,
        store: TestStore,
        now: Timestamp,
        nonce: u64,
        config: PartitionConfig,
        visible_records: impl Fn(&TestLog, Offset) -> Vec<(Offset, LedgerRecord)>,
    ) -> Self {
        let mut store = store;
        let local = store.checkpoint.map(|local| (local, store.skips.clone()));
        let mut takeover = Takeover::new(0, &Names::new("o"), "owner", nonce, local);
        loop {
            match takeover.next_request() {
                TakeoverRequest::Offsets => takeover.on_offsets(log.partition_offsets()).unwrap(),
                TakeoverRequest::Barrier { offset, metadata, nonce } => {
                    if takeover.must_wipe() {
                        store = TestStore::default();
                    }
                    let step = takeover.cursor().step;
                    let value = Some(LedgerValue::Barrier { nonce });
                    log.ledger.push(LedgerRecord { key: LedgerKey::Barrier, value, step });
                    log.committed = Some((offset, metadata));
                    takeover.on_barrier();
                }
                TakeoverRequest::Mirror { from, until } => {
                    let records = visible_records(log, from).into_iter().map(|(_, r)| r).collect();
                    let rows = takeover.on_ledger(records, until, &IndexRows::default()).unwrap();
                    assert!(rows.is_empty());
                }
                TakeoverRequest::Ledger { from } => {
                    for (offset, record) in visible_records(log, from) {
                        let fetched = store.fetch_all();
                        let rows = takeover.on_ledger(vec![record], offset + 1, &fetched).unwrap();
                        store.apply(&rows);
                    }
                }
                TakeoverRequest::Triggers { from, until } => {
                    assert!(from >= log.triggers_low || from == until, "the tail was deleted");
                    for offset in from..until {
                        let record = log.triggers[usize::try_from(offset).unwrap()].clone();
                        if takeover.is_covered(offset) {
                            takeover.on_covered(record.timestamp);
                            continue;
                        }
                        let fetched = store.fetch_all();
                        let rows = takeover.on_triggers(vec![record], &fetched);
                        store.apply(&rows);
                    }
                    takeover.on_triggers_end();
                }
                TakeoverRequest::Nothing => break,
            }
        }
        let next_offset = takeover.cursor().next_offset;
        let local = takeover.checkpoint(next_offset);
        store.checkpoint = Some(local);
        let start = takeover.finish();
        let wheel = Wheel::new(10, 1_000, 1 << 16, start.cursor.fired_through);
        let mut partition = Partition::new(0, config, start, wheel);
        let _behind = partition.observe_clock(now);
        let mut catalog = TopicCatalog::default();
        let usable = TopicState::usable(1, 1 << 20);
        catalog.insert("out".into(), usable);
        Self {
            partition,
            store,
            catalog,
            clock_skew: 0,
            commit_lead: 0,
            ledger_position: local.ledger_position,
        }
    }

    /// Drafts a step: ingests at most so many records of each input, fires at most so many.
    /// `None` when there is nothing to commit, or the clock is behind.
    pub(crate) fn draft(
        &mut self,
        log: &TestLog,
        now: Timestamp,
        records: usize,
        fires: usize,
    ) -> Option<PartitionStep> {
        let at = now.saturating_add_signed(self.clock_skew);
        if self.partition.observe_clock(at + self.commit_lead) > 0 {
            return None;
        }
        let next_offset = usize::try_from(self.partition.cursor().next_offset).unwrap();
        let next_signal_offset =
            usize::try_from(self.partition.cursor().next_signal_offset).unwrap();
        self.partition.on_end_offset(log.triggers.len() as Offset, at);
        let taken =
            log.triggers.iter().skip(next_offset).take(records).cloned().map(Input::Trigger);
        let signals =
            log.signals.iter().skip(next_signal_offset).take(records).cloned().map(Input::Signal);
        let inputs: Vec<_> = taken.chain(signals).collect();
        let index = self.store.fetch_all();
        let wanted = self.partition.rows_to_prefetch(&inputs, &index);
        let row = |key| Some((key, self.store.timeline.get(&key)?.clone()));
        let rows: TimelineRows = wanted.into_iter().filter_map(row).collect();
        self.partition.ingest(inputs, Prefetched { index: &index, rows: &rows }).unwrap();
        while let Some(load) = self.partition.load_request() {
            let entries: Vec<_> = self
                .store
                .timeline
                .range(load.from..load.until)
                .map(|(key, row)| (*key, row.clone()))
                .collect();
            self.partition.load(entries, load.until);
        }
        let due = self.partition.take_due(fires);
        self.partition.fire(due, &self.catalog, &self.store.fetch_all()).unwrap();
        self.partition.seal()
    }

    /// The owner is informed that its step is committed.
    pub(crate) fn on_committed(&mut self, step: &PartitionStep) {
        let PartitionStep { cursor, number, spill: Some(delta), .. } = step else { return };
        self.store.apply(&delta.rows());
        self.store.checkpoint = Some(LocalCheckpoint {
            applied_until: cursor.next_offset,
            step: *number,
            ledger_position: self.ledger_position,
            fired_through: cursor.fired_through,
        });
        self.partition.on_applied(*number);
    }
}

/// The transaction of a step commits.
pub(crate) fn commit(log: &mut TestLog, step: &PartitionStep, now: Timestamp) {
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
        let early = scheduled > step.commit_not_before && !is_fired_by_command(log, step, &trigger);
        assert!(!early, "{emit:?} is early if it is committed at {}", step.commit_not_before);
        if let Emit::Ledger { key, value } = emit {
            let value = value.as_deref().cloned();
            log.ledger.push(LedgerRecord { key: key.clone(), value, step: step.number });
        } else {
            log.emitted.push((emit.clone(), before, now));
        }
    }
    log.committed = Some((step.cursor.next_offset, step.cursor.to_metadata("owner")));
}

/// Whether a command has fired this one before its time.
fn is_fired_by_command(log: &TestLog, step: &PartitionStep, trigger: &[u8]) -> bool {
    let emits = log.emitted.iter().map(|(emit, ..)| emit).chain(&step.emits);
    emits.into_iter().any(|emit| match emit {
        Emit::Outcome(outcome) => {
            let called = matches!(outcome.kind, OutcomeKind::Called { .. });
            called && outcome.trigger.bytes()[..] == *trigger
        }
        _ => false,
    })
}

/// All ledger records from an offset on, uncompacted.
pub(crate) fn all_ledger_records(log: &TestLog, from: Offset) -> Vec<(Offset, LedgerRecord)> {
    (0..).zip(log.ledger.iter().cloned()).filter(|(offset, _)| *offset >= from).collect()
}

pub(crate) fn partition_config(after: u64) -> PartitionConfig {
    PartitionConfig {
        ledger_after: after,
        veto_ttl: 5_000,
        sample_interval: 3,
        idle_commit: 0,
        cursor_copy_interval: 20,
        records_per_step_max: 1_000,
        bytes_per_step_max: usize::MAX,
        spill_bytes: usize::MAX,
        spill_interval: 0,
        cancel_grace: 0,
        target_retry_interval: 5,
        callback_result_timeout: 10_000,
        misfire_grace: 60,
        catch_up_rate: 1_000,
        partitioner: Partitioner::Murmur2,
        partitions: 1,
        pools: Vec::new(),
        owner: "owner".to_owned(),
        topics: InputTopics { triggers: "o.triggers".into(), signals: "o.signals".into() },
    }
}
