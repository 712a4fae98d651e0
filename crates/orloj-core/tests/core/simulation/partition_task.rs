//! One partition of a node's: drives the production takeover and the production engine, as
//! `scheduler::{takeover, task, intake}` do.
//!
//! Invariant: it requests, reads and applies; every decision is the engine's.

use std::collections::VecDeque;
use std::sync::Arc;

use orloj_core::engine::catalog::{TopicCatalog, TopicState};
use orloj_core::engine::cursor::Cursor;
use orloj_core::engine::local_checkpoint::LocalCheckpoint;
use orloj_core::engine::partition::{Input, Partition, PartitionConfig};
use orloj_core::engine::prefetch::Prefetched;
use orloj_core::engine::step::PartitionStep;
use orloj_core::engine::takeover::{PartitionOffsets, Takeover, TakeoverError, TakeoverRequest};
use orloj_core::engine::wheel::Wheel;
use orloj_core::engine::write_buffer::Delta;
use orloj_core::fault::{Mutation, is_active};
use orloj_core::model::input::SignalRecord;
use orloj_core::model::{Millis, Offset, Timestamp};

use super::broker::SimulatedDecidedOffsets;
use super::cluster::SimulatedCluster;
use super::disk::SimulatedDisk;
use super::fault_kinds::FaultKind;
use super::group::node_of;

/// The state of a partition on a node.
#[derive(Debug)]
pub(super) enum SimulatedTaskState {
    Restoring(Box<SimulatedRestore>),
    /// The clock is behind what an earlier owner decided by.
    Waiting(Box<Partition>),
    Active(Box<Partition>),
    /// An operator must decide something first.
    Refused(TakeoverError),
    /// Its final commit is in progress: it decides nothing more.
    Stopping,
}

/// A takeover, and how far it has read what it requested for.
#[derive(Debug)]
pub(super) struct SimulatedRestore {
    pub(super) takeover: Takeover,
    requested: Option<TakeoverRequest>,
    next: Offset,
}

impl SimulatedRestore {
    /// Replays one batch of `triggers`, at most `max` records, up to the offset `until`.
    fn replay_triggers(
        &mut self,
        id: usize,
        until: Offset,
        max: usize,
        disk: &mut SimulatedDisk,
        clock: Timestamp,
        cluster: &mut SimulatedCluster,
    ) {
        let Self { takeover, next, .. } = self;
        let states = &cluster.broker.transaction_states;
        let mut batch = cluster.broker.triggers[id].read(states, *next, max);
        let passed = batch.next >= until;
        batch.records.retain(|(offset, ..)| *offset < until);
        let applied = if passed { until } else { batch.next };
        *next = batch.next;
        let read = |(offset, at, raw)| cluster.reader.read(id, offset, at, &raw);
        let mut records: Vec<_> = batch.records.into_iter().map(read).collect();
        let covered = records.extract_if(.., |record| takeover.is_covered(record.offset));
        for record in covered.collect::<Vec<_>>() {
            takeover.on_covered(record.timestamp);
        }
        let wanted = takeover.ids_in_triggers(&records);
        let rows = takeover.on_triggers(records, &disk.fetch(&wanted));
        disk.apply(&rows, takeover.checkpoint(applied), clock);
        if passed {
            takeover.on_triggers_end();
        }
    }
}

/// A partition assigned to a node.
#[derive(Debug)]
pub(super) struct SimulatedPartitionTask {
    pub(super) id: usize,
    pub(super) state: SimulatedTaskState,
    pub(super) takeover_number: u64,
    /// The latest time shown to the engine.
    pub(super) clock: Timestamp,
    /// What is decided with the last step that was sealed.
    pub(super) sealed: SimulatedDecidedOffsets,
    next_trigger: Offset,
    next_signal: Offset,
    /// As `scheduler::task` has them.
    ledger_position: Offset,
    ledger_end: Offset,
    /// An end of the ledger that was looked up and not passed to the engine yet.
    ledger_seen: Option<Offset>,
    /// Ends of `triggers` that were looked up and not passed to the engine yet, and when.
    ends: VecDeque<(Offset, Timestamp)>,
    /// Spills of committed steps that have not reached the disk yet.
    unapplied: VecDeque<Spilled>,
}

#[derive(Debug)]
struct Spilled {
    delta: Arc<Delta>,
    local: LocalCheckpoint,
    at: Timestamp,
}

impl SimulatedPartitionTask {
    /// At the beginning of its takeover, with what the disk holds if that is not too old.
    pub(super) fn assigned(
        id: usize,
        owner: &str,
        disk: &SimulatedDisk,
        clock: Timestamp,
        cluster: &mut SimulatedCluster,
    ) -> Self {
        let state = disk.rows.state;
        let local = fresh(disk, clock, cluster).map(|local| (local, disk.rows.skips.clone()));
        if state.is_some_and(|(_, at)| at > 0) && local.is_none() {
            cluster.counts.add(FaultKind::StoreTooOld);
        }
        let (takeover_number, partition) =
            (cluster.next_takeover_number(), i32::try_from(id).unwrap());
        let takeover = Takeover::new(partition, "o.triggers", owner, takeover_number, local);
        Self {
            id,
            state: SimulatedTaskState::Restoring(Box::new(SimulatedRestore {
                takeover,
                requested: None,
                next: 0,
            })),
            takeover_number,
            clock: 0,
            sealed: SimulatedDecidedOffsets::default(),
            next_trigger: 0,
            next_signal: 0,
            ledger_position: 0,
            ledger_end: 0,
            ledger_seen: None,
            ends: VecDeque::new(),
            unapplied: VecDeque::new(),
        }
    }

    /// Looks up the end of the ledger, or receives the answer.
    pub(super) fn look_at_ledger(&mut self, cluster: &mut SimulatedCluster) {
        self.ledger_end = match self.ledger_seen.take() {
            Some(end) => end,
            None => {
                self.ledger_seen = Some(cluster.broker.ledger[self.id].high());
                return;
            }
        };
        if let SimulatedTaskState::Active(partition) = &mut self.state
            && cluster.rng.one_in(4)
        {
            partition.request_spill();
        }
    }

    /// As `scheduler::task` does.
    pub(super) fn before_seal(&mut self) {
        if matches!(self.state, SimulatedTaskState::Active(_)) {
            self.ledger_position = self.ledger_position.max(self.ledger_end);
        }
    }

    /// Does a part of the work that is possible now. `lead`: how far ahead of its clock it decides,
    /// in ms.
    pub(super) fn work(
        &mut self,
        rules: &PartitionConfig,
        disk: &mut SimulatedDisk,
        (clock, lead): (Timestamp, Millis),
        cluster: &mut SimulatedCluster,
    ) {
        match &self.state {
            SimulatedTaskState::Restoring(_) => self.restore(rules, disk, clock, cluster),
            SimulatedTaskState::Waiting(_) => self.wait(clock),
            SimulatedTaskState::Active(_) => self.decide(disk, clock, lead, cluster),
            SimulatedTaskState::Refused(_) | SimulatedTaskState::Stopping => {}
        }
    }

    fn wait(&mut self, clock: Timestamp) {
        self.clock = self.clock.max(clock);
        let SimulatedTaskState::Waiting(partition) = &mut self.state else { return };
        if partition.observe_clock(clock) == 0
            && let SimulatedTaskState::Waiting(partition) =
                std::mem::replace(&mut self.state, SimulatedTaskState::Stopping)
        {
            self.state = SimulatedTaskState::Active(partition);
        }
    }

    fn restore(
        &mut self,
        rules: &PartitionConfig,
        disk: &mut SimulatedDisk,
        clock: Timestamp,
        cluster: &mut SimulatedCluster,
    ) {
        let (id, max) = (self.id, cluster.batch());
        let SimulatedTaskState::Restoring(restoring) = &mut self.state else { return };
        let SimulatedRestore { takeover, requested, next } = &mut **restoring;
        let request = takeover.next_request();
        if requested.as_ref() != Some(&request) {
            *next = match request {
                TakeoverRequest::Ledger { from } | TakeoverRequest::Triggers { from, .. } => from,
                _ => 0,
            };
            let writes =
                matches!(request, TakeoverRequest::Barrier { .. } | TakeoverRequest::Ledger { .. });
            if writes && takeover.must_wipe() {
                disk.wipe();
            }
            *requested = Some(request.clone());
        }
        match request {
            TakeoverRequest::Offsets => {
                let committed = read_committed(id, rules, cluster);
                if let Some(Err(error)) = committed.map(|found| takeover.on_offsets(found)) {
                    self.state = SimulatedTaskState::Refused(error);
                }
            }
            TakeoverRequest::Barrier { .. } => {} // the node sends it
            TakeoverRequest::Mirror { .. } | TakeoverRequest::Ledger { .. } => {
                let max = if is_active(Mutation::NoBarrier) { usize::MAX } else { max };
                let mut batch =
                    cluster.broker.ledger[id].read(&cluster.broker.transaction_states, *next, max);
                let until = if let TakeoverRequest::Mirror { until, .. } = request {
                    until
                } else {
                    Offset::MAX
                };
                batch.records.retain(|(offset, ..)| *offset < until);
                if batch.next == *next && !is_active(Mutation::NoBarrier) {
                    return;
                }
                *next = batch.next;
                let records = batch.records.into_iter().map(|(_, _, record)| record);
                let records: Vec<_> = records.collect();
                let wanted = takeover.ids_in_ledger(&records);
                match takeover.on_ledger(records, batch.next, &disk.fetch(&wanted)) {
                    Ok(rows) if matches!(request, TakeoverRequest::Ledger { .. }) => {
                        self.ledger_position = batch.next;
                        if takeover.must_wipe() {
                            disk.add(&rows);
                        } else {
                            disk.apply(&rows, takeover.checkpoint(0), 0);
                        }
                    }
                    Ok(_) => {}
                    Err(error) => self.state = SimulatedTaskState::Refused(error),
                }
            }
            TakeoverRequest::Triggers { until, .. } => {
                restoring.replay_triggers(id, until, max, disk, clock, cluster);
            }
            TakeoverRequest::Nothing => self.activate(rules, clock, cluster),
        }
    }

    fn activate(
        &mut self,
        rules: &PartitionConfig,
        clock: Timestamp,
        cluster: &mut SimulatedCluster,
    ) {
        let SimulatedTaskState::Restoring(restoring) = &mut self.state else { return };
        let start = restoring.takeover.finish();
        let cursor = start.cursor;
        (self.next_trigger, self.next_signal) = (cursor.next_offset, cursor.next_signal_offset);
        (self.sealed, self.clock) = (decided(&cursor, clock), clock);
        let (tick, horizon, budget) = cluster.wheel();
        let wheel = Wheel::new(tick, horizon, budget, cursor.fired_through);
        let id = i32::try_from(self.id).unwrap();
        let mut partition = Box::new(Partition::new(id, rules.clone(), start, wheel));
        let behind: Millis = partition.observe_clock(clock);
        self.state = if behind > 0 {
            cluster.counts.add(FaultKind::ClockBehindWatermark);
            SimulatedTaskState::Waiting(partition)
        } else {
            SimulatedTaskState::Active(partition)
        };
    }

    /// Takes in some records and fires some of what is due.
    fn decide(
        &mut self,
        disk: &mut SimulatedDisk,
        clock: Timestamp,
        lead: Millis,
        cluster: &mut SimulatedCluster,
    ) {
        let inputs = self.read(clock, cluster);
        let SimulatedTaskState::Active(partition) = &mut self.state else { return };
        self.clock = self.clock.max(clock + lead);
        let _behind = partition.observe_clock(clock + lead);
        while !self.ends.is_empty() && !cluster.rng.one_in(4) {
            let (end, at) = self.ends.pop_front().unwrap();
            partition.on_end_offset(end, at);
        }
        let index = &disk.rows.index;
        let rows = disk.rows_at(&partition.rows_to_prefetch(&inputs, index));
        partition.ingest(inputs, Prefetched { index, rows: &rows }).unwrap();
        while let Some(load) = partition.load_request() {
            let (entries, reached) = disk.scan(load);
            partition.load(entries, reached);
        }
        let due = partition.take_due(cluster.batch());
        let mut catalog = TopicCatalog::default();
        for topic in due.topics() {
            let state = if cluster.unavailable.contains(&topic.into()) {
                cluster.counts.add(FaultKind::Parked);
                TopicState::Unavailable("away".to_owned())
            } else {
                TopicState::Usable { partitions: 1, record_bytes_max: 1 << 20 }
            };
            catalog.insert(topic.to_owned(), state);
        }
        partition.fire(due, &catalog, &disk.rows.index).unwrap();
    }

    fn read(&mut self, clock: Timestamp, cluster: &mut SimulatedCluster) -> Vec<Input> {
        let SimulatedTaskState::Active(partition) = &mut self.state else { return Vec::new() };
        let (id, (some, more)) = (self.id, (cluster.batch(), cluster.batch()));
        let SimulatedCluster { broker, rng, reader, .. } = cluster;
        if rng.one_in(3) {
            let triggers = &broker.triggers[id];
            // What a read_committed handle calls the end hides what is not decided yet.
            let seen = if is_active(Mutation::ReadCommittedEndOffset) {
                triggers.stable()
            } else {
                triggers.high()
            };
            self.ends.push_back((seen, clock));
        }
        let mut inputs = Vec::new();
        if !partition.is_full() {
            let batch =
                broker.triggers[id].read(&broker.transaction_states, self.next_trigger, some);
            self.next_trigger = batch.next;
            if batch.records.is_empty() && batch.ended && broker.triggers[id].high() == batch.next {
                inputs.push(Input::TriggersEnd(batch.next));
            }
            let read = |(offset, at, raw)| Input::Trigger(reader.read(id, offset, at, &raw));
            inputs.extend(batch.records.into_iter().map(read));
        }
        let batch = broker.signals[id].read(&broker.transaction_states, self.next_signal, more);
        self.next_signal = batch.next;
        let signal =
            |(offset, _, signal)| Input::Signal(SignalRecord { offset, signal: Ok(signal) });
        let signals: Vec<Input> = batch.records.into_iter().map(signal).collect();
        // The two topics are read by two readers: either may be lead.
        let place = if rng.one_in(2) { 0 } else { inputs.len() };
        drop(inputs.splice(place..place, signals));
        inputs
    }

    /// A step is sealed; returns what was decided before it.
    pub(super) fn on_sealed(&mut self, step: &PartitionStep) -> SimulatedDecidedOffsets {
        std::mem::replace(&mut self.sealed, decided(&step.cursor, self.clock))
    }

    /// A step of this task is committed; what it spills waits to be written.
    pub(super) fn committed(&mut self, step: &PartitionStep, at: Timestamp) {
        if let Some(delta) = &step.spill {
            let (delta, local) = (Arc::clone(delta), self.local_after(step));
            self.unapplied.push_back(Spilled { delta, local, at });
        }
    }

    /// Applies the next spill to the disk; returns whether there was one.
    pub(super) fn apply_next(
        &mut self,
        disk: &mut SimulatedDisk,
        cluster: &mut SimulatedCluster,
    ) -> bool {
        let Some(Spilled { delta, mut local, at }) = self.unapplied.pop_front() else {
            return false;
        };
        if is_active(Mutation::LedgerEndReadTooLate) {
            local.ledger_position = cluster.broker.ledger[self.id].high();
        }
        disk.apply(&delta.rows(), local, at);
        if let SimulatedTaskState::Active(partition) = &mut self.state {
            partition.on_applied(local.step);
        }
        match cluster.rng.below(4) {
            0 | 1 => disk.flush(),
            2 => disk.forget_decided(),
            _ => {}
        }
        true
    }

    fn local_after(&self, step: &PartitionStep) -> LocalCheckpoint {
        let (applied, w) = (step.cursor.next_offset, step.cursor.fired_through);
        LocalCheckpoint {
            applied_until: applied,
            step: step.number,
            ledger_position: self.ledger_position,
            fired_through: w,
        }
    }

    pub(super) fn is_unapplied(&self) -> bool {
        !self.unapplied.is_empty()
    }

    /// What [`Mutation::RowsBeforeCommit`] does: a step's rows before its transaction.
    pub(super) fn apply_early(
        &self,
        step: &PartitionStep,
        disk: &mut SimulatedDisk,
        at: Timestamp,
    ) {
        if let Some(delta) = &step.spill {
            disk.apply(&delta.rows(), self.local_after(step), at);
        }
    }
}

/// How far a cursor has decided the inputs.
fn decided(cursor: &Cursor, clock: Timestamp) -> SimulatedDecidedOffsets {
    SimulatedDecidedOffsets {
        triggers: cursor.next_offset,
        signals: cursor.next_signal_offset,
        clock,
    }
}

/// The committed offset, once it is stable. The owner that wrote it may have died with an open
/// transaction: initializing its transactional id ends that, and fences it if it still runs. If
/// the broker does not do so, the transaction's timeout ends it.
fn read_committed(
    id: usize,
    rules: &PartitionConfig,
    cluster: &mut SimulatedCluster,
) -> Option<PartitionOffsets> {
    let broker = &cluster.broker;
    if is_active(Mutation::UnstableOffset) {
        return Some(broker.offset(id));
    }
    let committed = broker.stable_offset(id);
    let metadata = broker.offset(id).committed.map(|(_, metadata)| metadata);
    let earlier = metadata.as_deref().and_then(Cursor::active_owner);
    let earlier = earlier.filter(|earlier| *earlier != rules.owner).and_then(node_of);
    if let Some(earlier) = earlier
        && cluster.rng.one_in(3)
    {
        cluster.counts.add(FaultKind::PredecessorEnded);
        let _fenced = cluster.broker.init(earlier);
    }
    committed
}

/// How far a store is that is not too old to be resumed.
pub(super) fn fresh(
    disk: &SimulatedDisk,
    clock: Timestamp,
    cluster: &SimulatedCluster,
) -> Option<LocalCheckpoint> {
    let (local, at) = disk.rows.state?;
    let young = clock.saturating_sub(at) < cluster.state_age_max();
    (young || is_active(Mutation::StaleStoreResumed)).then_some(local)
}
