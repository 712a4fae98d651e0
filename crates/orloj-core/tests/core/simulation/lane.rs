//! One partition of a node's: drives the production takeover and the production engine, as
//! `scheduler::{takeover, lane, intake}` do.
//!
//! Law: it asks, reads and applies; whatever is decided, the engine decides.

use std::collections::VecDeque;
use std::sync::Arc;

use orloj_core::engine::catalog::{Catalog, TopicState};
use orloj_core::engine::cursor::Cursor;
use orloj_core::engine::local::Local;
use orloj_core::engine::overlay::Delta;
use orloj_core::engine::partition::{Input, Partition, Rules};
use orloj_core::engine::rows::Stored;
use orloj_core::engine::step::Step;
use orloj_core::engine::takeover::{Ask, Committed, Refusal, Takeover};
use orloj_core::engine::wheel::Wheel;
use orloj_core::fault::{Bug, planted};
use orloj_core::model::input::SignalRecord;
use orloj_core::model::{Millis, Offset, Timestamp};

use super::broker::Decided;
use super::calamity::Calamity;
use super::disk::Disk;
use super::node::node_of;
use super::site::Site;

/// How far a partition is on its way.
#[derive(Debug)]
pub(super) enum Stage {
    Restoring(Box<Restoring>),
    /// The clock is behind what an earlier owner decided by.
    Waiting(Box<Partition>),
    Active(Box<Partition>),
    /// A person must decide something first.
    Refused(Refusal),
    /// Its last words are on their way: it decides nothing more.
    Parting,
}

/// A takeover, and how far it has read what it asked for.
#[derive(Debug)]
pub(super) struct Restoring {
    pub(super) takeover: Takeover,
    asked: Option<Ask>,
    next: Offset,
}

/// A partition assigned to a node.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) id: usize,
    pub(super) stage: Stage,
    pub(super) tenure: u64,
    /// The latest time shown to the engine.
    pub(super) clock: Timestamp,
    /// What is decided with the last step that was sealed.
    pub(super) sealed: Decided,
    next_trigger: Offset,
    next_signal: Offset,
    /// As `scheduler::lane` has them.
    ledger_position: Offset,
    ledger_end: Offset,
    /// An end of the ledger that was looked up and not told yet.
    ledger_seen: Option<Offset>,
    /// Ends of `triggers` that were looked up and not told yet, and when.
    ends: VecDeque<(Offset, Timestamp)>,
    /// Spills of committed steps that have not reached the disk yet.
    unapplied: VecDeque<Spilled>,
}

#[derive(Debug)]
struct Spilled {
    delta: Arc<Delta>,
    local: Local,
    at: Timestamp,
}

impl Lane {
    /// At the beginning of its takeover, with what the disk holds if that is not too old.
    pub(super) fn assigned(
        id: usize,
        owner: &str,
        disk: &Disk,
        clock: Timestamp,
        site: &mut Site,
    ) -> Self {
        let state = disk.rows.state;
        let local = fresh(disk, clock, site).map(|local| (local, disk.rows.skips.clone()));
        if state.is_some_and(|(_, at)| at > 0) && local.is_none() {
            site.counts.add(Calamity::StoreTooOld);
        }
        let (tenure, partition) = (site.next_tenure(), i32::try_from(id).unwrap());
        let takeover = Takeover::new(partition, "o.triggers", owner, tenure, local);
        Self {
            id,
            stage: Stage::Restoring(Box::new(Restoring { takeover, asked: None, next: 0 })),
            tenure,
            clock: 0,
            sealed: Decided::default(),
            next_trigger: 0,
            next_signal: 0,
            ledger_position: 0,
            ledger_end: 0,
            ledger_seen: None,
            ends: VecDeque::new(),
            unapplied: VecDeque::new(),
        }
    }

    /// Looks up where the ledger ends, or hears it.
    pub(super) fn look_at_ledger(&mut self, site: &mut Site) {
        self.ledger_end = match self.ledger_seen.take() {
            Some(end) => end,
            None => {
                self.ledger_seen = Some(site.broker.ledger[self.id].high());
                return;
            }
        };
        if let Stage::Active(partition) = &mut self.stage
            && site.dice.one_in(4)
        {
            partition.ledger_grew();
        }
    }

    /// As `scheduler::lane` does.
    pub(super) fn before_seal(&mut self) {
        if matches!(self.stage, Stage::Active(_)) {
            self.ledger_position = self.ledger_position.max(self.ledger_end);
        }
    }

    /// Does a little of what can be done now. `ahead`: how far ahead of its clock it decides.
    pub(super) fn work(
        &mut self,
        rules: &Rules,
        disk: &mut Disk,
        (clock, ahead): (Timestamp, Millis),
        site: &mut Site,
    ) {
        match &self.stage {
            Stage::Restoring(_) => self.restore(rules, disk, clock, site),
            Stage::Waiting(_) => self.wait(clock),
            Stage::Active(_) => self.decide(disk, clock, ahead, site),
            Stage::Refused(_) | Stage::Parting => {}
        }
    }

    fn wait(&mut self, clock: Timestamp) {
        self.clock = self.clock.max(clock);
        let Stage::Waiting(partition) = &mut self.stage else { return };
        if partition.observe(clock) == 0
            && let Stage::Waiting(partition) = std::mem::replace(&mut self.stage, Stage::Parting)
        {
            self.stage = Stage::Active(partition);
        }
    }

    fn restore(&mut self, rules: &Rules, disk: &mut Disk, clock: Timestamp, site: &mut Site) {
        let (id, max) = (self.id, site.batch());
        let Stage::Restoring(restoring) = &mut self.stage else { return };
        let Restoring { takeover, asked, next } = &mut **restoring;
        let ask = takeover.ask();
        if asked.as_ref() != Some(&ask) {
            *next = match ask {
                Ask::Ledger { from } | Ask::Triggers { from, .. } => from,
                _ => 0,
            };
            let writes = matches!(ask, Ask::Barrier { .. } | Ask::Ledger { .. });
            if writes && takeover.must_wipe() {
                disk.wipe();
            }
            *asked = Some(ask.clone());
        }
        match ask {
            Ask::Committed => {
                let committed = read_committed(id, rules, site);
                if let Some(Err(refusal)) = committed.map(|found| takeover.on_committed(found)) {
                    self.stage = Stage::Refused(refusal);
                }
            }
            Ask::Barrier { .. } => {} // the node sends it
            Ask::Mirror { .. } | Ask::Ledger { .. } => {
                let max = if planted(Bug::NoBarrier) { usize::MAX } else { max };
                let mut batch = site.broker.ledger[id].read(&site.broker.fates, *next, max);
                let until = if let Ask::Mirror { until, .. } = ask { until } else { Offset::MAX };
                batch.records.retain(|(offset, ..)| *offset < until);
                if batch.next == *next && !planted(Bug::NoBarrier) {
                    return;
                }
                *next = batch.next;
                let records = batch.records.into_iter().map(|(_, _, record)| record);
                let records: Vec<_> = records.collect();
                let wanted = takeover.ids_in_ledger(&records);
                match takeover.on_ledger(records, batch.next, &disk.fetch(&wanted)) {
                    Ok(rows) if matches!(ask, Ask::Ledger { .. }) => {
                        self.ledger_position = batch.next;
                        if takeover.must_wipe() {
                            disk.add(&rows);
                        } else {
                            disk.apply(&rows, takeover.local(0), 0);
                        }
                    }
                    Ok(_) => {}
                    Err(refusal) => self.stage = Stage::Refused(refusal),
                }
            }
            Ask::Triggers { until, .. } => {
                let mut batch = site.broker.triggers[id].read(&site.broker.fates, *next, max);
                let passed = batch.next >= until;
                batch.records.retain(|(offset, ..)| *offset < until);
                let applied = if passed { until } else { batch.next };
                *next = batch.next;
                let read = |(offset, at, raw)| site.reader.read(id, offset, at, &raw);
                let mut records: Vec<_> = batch.records.into_iter().map(read).collect();
                let held = records.extract_if(.., |record| takeover.holds(record.offset));
                for record in held.collect::<Vec<_>>() {
                    takeover.on_held(record.timestamp);
                }
                let wanted = takeover.ids_in_triggers(&records);
                let rows = takeover.on_triggers(records, &disk.fetch(&wanted));
                disk.apply(&rows, takeover.local(applied), clock);
                if passed {
                    takeover.on_triggers_end();
                }
            }
            Ask::Nothing => self.activate(rules, clock, site),
        }
    }

    fn activate(&mut self, rules: &Rules, clock: Timestamp, site: &mut Site) {
        let Stage::Restoring(restoring) = &mut self.stage else { return };
        let start = restoring.takeover.finish();
        let cursor = start.cursor;
        (self.next_trigger, self.next_signal) = (cursor.triggers, cursor.signals);
        (self.sealed, self.clock) = (decided(&cursor, clock), clock);
        let (tick, horizon, budget) = site.wheel();
        let wheel = Wheel::new(tick, horizon, budget, cursor.w);
        let id = i32::try_from(self.id).unwrap();
        let mut partition = Box::new(Partition::new(id, rules.clone(), start, wheel));
        let behind: Millis = partition.observe(clock);
        self.stage = if behind > 0 {
            site.counts.add(Calamity::ClockBehindW);
            Stage::Waiting(partition)
        } else {
            Stage::Active(partition)
        };
    }

    /// Takes in some records and fires some of what is due.
    fn decide(&mut self, disk: &mut Disk, clock: Timestamp, ahead: Millis, site: &mut Site) {
        let inputs = self.read(clock, site);
        let Stage::Active(partition) = &mut self.stage else { return };
        self.clock = self.clock.max(clock + ahead);
        let _behind = partition.observe(clock + ahead);
        while !self.ends.is_empty() && !site.dice.one_in(4) {
            let (end, at) = self.ends.pop_front().unwrap();
            partition.input_known(end, at);
        }
        let index = &disk.rows.index;
        let rows = disk.rows_at(&partition.rows_wanted(&inputs, index));
        partition.ingest(inputs, Stored { index, rows: &rows }).unwrap();
        while let Some(load) = partition.wants() {
            let (entries, reached) = disk.scan(load);
            partition.load(entries, reached);
        }
        let due = partition.take_due(site.batch());
        let mut catalog = Catalog::default();
        for topic in due.topics() {
            let state = if site.away.contains(&topic.into()) {
                site.counts.add(Calamity::Parked);
                TopicState::Away("away".to_owned())
            } else {
                TopicState::Usable { partitions: 1, record_bytes_max: 1 << 20 }
            };
            catalog.insert(topic.to_owned(), state);
        }
        partition.fire(due, &catalog, &disk.rows.index).unwrap();
    }

    fn read(&mut self, clock: Timestamp, site: &mut Site) -> Vec<Input> {
        let Stage::Active(partition) = &mut self.stage else { return Vec::new() };
        let (id, (some, more)) = (self.id, (site.batch(), site.batch()));
        let Site { broker, dice, reader, .. } = site;
        if dice.one_in(3) {
            let triggers = &broker.triggers[id];
            // What a read_committed handle calls the end hides what is not decided yet.
            let seen = if planted(Bug::CommittedEnd) { triggers.stable() } else { triggers.high() };
            self.ends.push_back((seen, clock));
        }
        let mut inputs = Vec::new();
        if !partition.is_full() {
            let batch = broker.triggers[id].read(&broker.fates, self.next_trigger, some);
            self.next_trigger = batch.next;
            if batch.records.is_empty() && batch.ended && broker.triggers[id].high() == batch.next {
                inputs.push(Input::TriggersEnd(batch.next));
            }
            let read = |(offset, at, raw)| Input::Trigger(reader.read(id, offset, at, &raw));
            inputs.extend(batch.records.into_iter().map(read));
        }
        let batch = broker.signals[id].read(&broker.fates, self.next_signal, more);
        self.next_signal = batch.next;
        let signal =
            |(offset, _, signal)| Input::Signal(SignalRecord { offset, signal: Ok(signal) });
        let signals: Vec<Input> = batch.records.into_iter().map(signal).collect();
        // The two topics are read by two readers: either may be ahead.
        let place = if dice.one_in(2) { 0 } else { inputs.len() };
        drop(inputs.splice(place..place, signals));
        inputs
    }

    /// A step is sealed; returns what was decided before it.
    pub(super) fn on_sealed(&mut self, step: &Step) -> Decided {
        std::mem::replace(&mut self.sealed, decided(&step.cursor, self.clock))
    }

    /// A step of this lane is committed; what it spills waits to be written.
    pub(super) fn committed(&mut self, step: &Step, at: Timestamp) {
        if let Some(delta) = &step.spill {
            let (delta, local) = (Arc::clone(delta), self.local_after(step));
            self.unapplied.push_back(Spilled { delta, local, at });
        }
    }

    /// The next spill reaches the disk; says whether there was any.
    pub(super) fn apply_next(&mut self, disk: &mut Disk, site: &mut Site) -> bool {
        let Some(Spilled { delta, mut local, at }) = self.unapplied.pop_front() else {
            return false;
        };
        if planted(Bug::LedgerHeardLate) {
            local.ledger_position = site.broker.ledger[self.id].high();
        }
        disk.apply(&delta.rows(), local, at);
        if let Stage::Active(partition) = &mut self.stage {
            partition.applied(local.step);
        }
        match site.dice.roll(4) {
            0 | 1 => disk.flush(),
            2 => disk.forget_decided(),
            _ => {}
        }
        true
    }

    fn local_after(&self, step: &Step) -> Local {
        let (applied, w) = (step.cursor.triggers, step.cursor.w);
        Local { applied, step: step.number, ledger_position: self.ledger_position, w }
    }

    pub(super) fn is_unapplied(&self) -> bool {
        !self.unapplied.is_empty()
    }

    /// What [`Bug::RowsBeforeCommit`] does: a step's rows before its transaction.
    pub(super) fn apply_early(&self, step: &Step, disk: &mut Disk, at: Timestamp) {
        if let Some(delta) = &step.spill {
            disk.apply(&delta.rows(), self.local_after(step), at);
        }
    }
}

/// How far a cursor has decided the inputs.
fn decided(cursor: &Cursor, clock: Timestamp) -> Decided {
    Decided { triggers: cursor.triggers, signals: cursor.signals, clock }
}

/// The committed offset, once it is stable. Whoever wrote it may have died with a transaction open,
/// and is then ended by its name; if it lives, it is fenced. The broker may be too slow for that:
/// then its own timeout ends it.
fn read_committed(id: usize, rules: &Rules, site: &mut Site) -> Option<Committed> {
    let broker = &site.broker;
    if planted(Bug::UnstableOffset) {
        return Some(broker.offset(id));
    }
    let committed = broker.stable_offset(id);
    let said = broker.offset(id).offset.map(|(_, metadata)| metadata);
    let earlier = said.as_deref().and_then(Cursor::owner_still_there);
    let earlier = earlier.filter(|earlier| *earlier != rules.owner).and_then(node_of);
    if let Some(earlier) = earlier
        && site.dice.one_in(3)
    {
        site.counts.add(Calamity::PredecessorEnded);
        let _fenced = site.broker.init(earlier);
    }
    committed
}

/// How far a store is that is not too old to be resumed.
pub(super) fn fresh(disk: &Disk, clock: Timestamp, site: &Site) -> Option<Local> {
    let (local, at) = disk.rows.state?;
    let young = clock.saturating_sub(at) < site.state_age_max();
    (young || planted(Bug::StaleStore)).then_some(local)
}
