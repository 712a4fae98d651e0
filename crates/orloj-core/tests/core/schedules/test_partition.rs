//! Owners of a few partitions, without Kafka: the production engine under a clock that jumps from
//! one due time to the next, so that years pass in seconds; and owners that are replaced.
//!
//! Invariant: every decision is the engine's; a successor knows the ledger, the log, the committed
//! offset, and a disk or none.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use orloj_core::codec::row::RowBytes;
use orloj_core::engine::catalog::{TopicCatalog, TopicState};
use orloj_core::engine::index_row::{IdHash, IndexRow};
use orloj_core::engine::local_checkpoint::LocalCheckpoint;
use orloj_core::engine::partition::{IndexRows, Input, LIFECYCLE_COST, Partition, PartitionConfig};
use orloj_core::engine::prefetch::{Prefetched, TimelineRows, trigger_of};
use orloj_core::engine::step::{Emit, InputTopics, PartitionStep, RowOp};
use orloj_core::engine::takeover::{PartitionOffsets, Takeover, TakeoverRequest};
use orloj_core::engine::wheel::{ENTRY_BYTES, LoadRequest, Wheel};
use orloj_core::model::input::{SignalRecord, TriggerRecord};
use orloj_core::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use orloj_core::model::names::Names;
use orloj_core::model::partitioner::Partitioner;
use orloj_core::model::signal::Signal;
use orloj_core::model::timeline::TimelineKey;
use orloj_core::model::{Millis, Offset, PartitionId, Timestamp};

const OWNER: &str = "owner";
/// What one step fires at most, in plain fires.
const FIRE_BUDGET: usize = 2_000 * LIFECYCLE_COST;
/// Records that one step ingests at most.
const INGEST_MAX: usize = 5_000;

/// The wheel seldom reads from its store: mostly nothing happens for hours here.
const TICK: Millis = 60_000;
const HORIZON: Millis = 7 * 24 * 3_600_000;

/// A partition: what Kafka holds of it, what a disk holds, and its owner.
pub(super) struct TestPartition {
    id: PartitionId,
    rules: PartitionConfig,
    triggers: Vec<TriggerRecord>,
    signals: Vec<SignalRecord>,
    /// The compacted ledger: for each key the last record and its offset.
    ledger: BTreeMap<LedgerKey, (Offset, LedgerRecord)>,
    ledger_end: Offset,
    committed: Option<(Offset, String)>,
    store: InMemoryStore,
    nonce: u64,
    owner: Option<Box<Partition>>,
    ledger_position: Offset,
}

#[derive(Default)]
struct InMemoryStore {
    timeline: BTreeMap<TimelineKey, RowBytes>,
    index: HashMap<IdHash, IndexRow>,
    skips: BTreeSet<Offset>,
    local: Option<LocalCheckpoint>,
}

/// The settings of these simulations; misfire as in production.
pub(super) fn rules(partitions: i32, catch_up_rate: u32) -> PartitionConfig {
    PartitionConfig {
        ledger_after: 600_000,
        veto_ttl: 3_600_000,
        sample_interval: 5_000,
        idle_commit: 5_000,
        cursor_copy_interval: 10_000,
        records_per_step_max: INGEST_MAX,
        bytes_per_step_max: usize::MAX,
        spill_bytes: 8 << 20,
        spill_interval: 60_000,
        cancel_grace: 0,
        target_retry_interval: 5_000,
        callback_result_timeout: 7 * 24 * 3_600_000,
        misfire_grace: 60_000,
        catch_up_rate,
        partitioner: Partitioner::Murmur2,
        partitions,
        pools: Vec::new(),
        owner: OWNER.to_owned(),
        topics: InputTopics { triggers: "o.triggers".into(), signals: "o.signals".into() },
    }
}

impl TestPartition {
    pub(super) fn new(id: PartitionId, rules: PartitionConfig) -> Self {
        Self {
            id,
            rules,
            triggers: Vec::new(),
            signals: Vec::new(),
            ledger: BTreeMap::new(),
            ledger_end: 0,
            committed: None,
            store: InMemoryStore::default(),
            nonce: 0,
            owner: None,
            ledger_position: 0,
        }
    }

    pub(super) fn write(&mut self, record: TriggerRecord) {
        self.triggers.push(TriggerRecord { offset: self.triggers.len() as Offset, ..record });
    }

    pub(super) fn write_signal(&mut self, signal: Signal) {
        let offset = self.signals.len() as Offset;
        self.signals.push(SignalRecord { offset, signal: Ok(signal) });
    }

    /// Removes the owner; its disk may be lost with it.
    pub(super) fn remove_owner(&mut self, wipe: bool) {
        self.owner = None;
        if wipe {
            self.store = InMemoryStore::default();
        }
    }

    /// When something may be due, in ms since the epoch; at once if there is no owner.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.owner.as_ref().map_or(Some(0), |owner| owner.next_wakeup())
    }

    /// What the ledger holds of triggers.
    pub(super) fn ledger_entries(&self) -> usize {
        let held = |(key, (_, record)): (&LedgerKey, &(Offset, LedgerRecord))| {
            key.trigger().is_some() && record.value.is_some()
        };
        self.ledger.iter().filter(|entry| held(*entry)).count()
    }

    /// The offset and the metadata that were committed last.
    pub(super) fn committed(&self) -> Option<(Offset, &str)> {
        self.committed.as_ref().map(|(offset, metadata)| (*offset, metadata.as_str()))
    }

    /// Decides everything that can be decided at `now`; passes its records to `on_emit`.
    pub(super) fn run_due(&mut self, now: Timestamp, on_emit: &mut impl FnMut(&Emit)) {
        if self.owner.is_none() {
            self.take_over(now);
        }
        while let Some(step) = self.step(now) {
            for emit in &step.emits {
                on_emit(emit);
                if let Emit::Ledger { key, value } = emit {
                    let (key, value) = (key.clone(), value.as_deref().cloned());
                    self.append_to_ledger(LedgerRecord { key, value, step: step.number });
                }
            }
            self.commit(&step);
        }
    }

    fn append_to_ledger(&mut self, record: LedgerRecord) {
        let _before = self.ledger.insert(record.key.clone(), (self.ledger_end, record));
        self.ledger_end += 1;
    }

    fn commit(&mut self, step: &PartitionStep) {
        self.committed = Some((step.cursor.next_offset, step.cursor.to_metadata(OWNER)));
        let Some(delta) = &step.spill else { return };
        self.store.apply(&delta.rows());
        let w = step.cursor.fired_through;
        self.store.timeline = self.store.timeline.split_off(&w);
        let (applied, ledger_position) = (step.cursor.next_offset, self.ledger_position);
        self.store.local = Some(LocalCheckpoint {
            applied_until: applied,
            step: step.number,
            ledger_position,
            fired_through: w,
        });
        if let Some(owner) = &mut self.owner {
            owner.on_applied(step.number);
        }
    }

    fn step(&mut self, now: Timestamp) -> Option<PartitionStep> {
        let Self { owner: Some(owner), store: disk, triggers, signals, .. } = self else {
            return None;
        };
        assert_eq!(owner.observe_clock(now), 0, "this clock never goes back");
        owner.on_end_offset(triggers.len() as Offset, now);
        let cursor = *owner.cursor();
        let rest = |n: Offset| usize::try_from(n).unwrap();
        let records = triggers[rest(cursor.next_offset)..].iter().take(INGEST_MAX);
        let inputs = records.cloned().map(Input::Trigger);
        let taken = signals[rest(cursor.next_signal_offset)..].iter().take(INGEST_MAX);
        let inputs: Vec<_> = inputs.chain(taken.cloned().map(Input::Signal)).collect();
        let ids = inputs.iter().filter_map(trigger_of).map(IdHash::of);
        let index = disk.fetch(ids.filter(|hash| owner.needs_index_row(*hash)));
        let rows = disk.rows(&owner.rows_to_prefetch(&inputs, &index));
        owner.ingest(inputs, Prefetched { index: &index, rows: &rows }).unwrap();
        while let Some(load) = owner.load_request() {
            let (entries, reached) = disk.scan(load);
            owner.load(entries, reached);
        }
        let due = owner.take_due(FIRE_BUDGET);
        let mut catalog = TopicCatalog::default();
        let usable = TopicState::usable(1, 1 << 20);
        catalog.insert("out".to_owned(), usable);
        let index = disk.fetch(due.ids_to_prefetch(&catalog).into_iter());
        owner.fire(due, &catalog, &index).unwrap();
        owner.seal()
    }

    fn take_over(&mut self, now: Timestamp) {
        self.nonce += 1;
        let local = self.store.local.map(|local| (local, self.store.skips.clone()));
        let mut takeover = Takeover::new(self.id, &Names::new("o"), OWNER, self.nonce, local);
        loop {
            match takeover.next_request() {
                TakeoverRequest::Offsets => takeover.on_offsets(self.committed_offsets()).unwrap(),
                TakeoverRequest::Barrier { offset, metadata, nonce } => {
                    if takeover.must_wipe() {
                        self.store = InMemoryStore::default();
                    }
                    let value = Some(LedgerValue::Barrier { nonce });
                    let step = takeover.cursor().step;
                    self.append_to_ledger(LedgerRecord { key: LedgerKey::Barrier, value, step });
                    self.committed = Some((offset, metadata));
                    takeover.on_barrier();
                }
                TakeoverRequest::Ledger { from } => {
                    let records = self.ledger_from(from);
                    let index = self.store.fetch(takeover.ids_in_ledger(&records).into_iter());
                    let rows = takeover.on_ledger(records, self.ledger_end, &index).unwrap();
                    self.store.apply(&rows);
                }
                TakeoverRequest::Triggers { from, until } => {
                    let bounds = usize::try_from(from).unwrap()..usize::try_from(until).unwrap();
                    let mut records = self.triggers[bounds].to_vec();
                    records.retain(|record| !takeover.is_covered(record.offset));
                    let index = self.store.fetch(takeover.ids_in_triggers(&records).into_iter());
                    let rows = takeover.on_triggers(records, &index);
                    self.store.apply(&rows);
                    takeover.on_triggers_end();
                }
                TakeoverRequest::Mirror { .. } => {
                    unreachable!("the committed offset is never lost here")
                }
                TakeoverRequest::Nothing => break,
            }
        }
        let local = takeover.checkpoint(takeover.cursor().next_offset);
        self.store.local = Some(local);
        self.ledger_position = local.ledger_position;
        let start = takeover.finish();
        let wheel = Wheel::new(TICK, HORIZON, 4 << 20, start.cursor.fired_through);
        let mut owner = Partition::new(self.id, self.rules.clone(), start, wheel);
        let _behind: Millis = owner.observe_clock(now);
        self.owner = Some(Box::new(owner));
    }

    fn ledger_from(&self, from: Offset) -> Vec<LedgerRecord> {
        let mut records: Vec<_> = self.ledger.values().filter(|(at, _)| *at >= from).collect();
        records.sort_by_key(|(at, _)| *at);
        records.into_iter().map(|(_, record)| record.clone()).collect()
    }

    fn committed_offsets(&self) -> PartitionOffsets {
        PartitionOffsets {
            committed: self.committed().map(|(offset, metadata)| (offset, metadata.to_owned())),
            triggers_low: 0,
            triggers_end: self.triggers.len() as Offset,
            signals_low: 0,
            signals_end: self.signals.len() as Offset,
            ledger_low: 0,
            ledger_end: self.ledger_end,
            new_records: Vec::new(),
        }
    }
}

impl InMemoryStore {
    fn fetch(&self, ids: impl Iterator<Item = IdHash>) -> IndexRows {
        ids.filter_map(|id| Some((id, self.index.get(&id)?.clone()))).collect()
    }

    fn rows(&self, places: &[TimelineKey]) -> TimelineRows {
        let found = |key: &TimelineKey| Some((*key, self.timeline.get(key)?.clone()));
        places.iter().filter_map(found).collect()
    }

    fn scan(&self, load: LoadRequest) -> (Vec<(TimelineKey, RowBytes)>, TimelineKey) {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for (key, row) in self.timeline.range(load.from..load.until) {
            entries.push((*key, row.clone()));
            bytes += ENTRY_BYTES + row.len();
            if bytes >= load.bytes_max {
                return (entries, key.successor());
            }
        }
        (entries, load.until)
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
