//! A scheduler process: its membership, its producer, its partitions, and the one transaction it
//! may have open. It does what `scheduler::{mod, launch, committer}` do, one small action a turn.
//!
//! Invariant: the group is polled only while no transaction is open; every partition with an effect
//! in a transaction has its offset in it; rows are applied after the commit, in order.

use std::collections::{BTreeMap, BTreeSet};

use orloj_core::engine::assignment::{
    AssignmentAction, AssignmentChange, GroupAssignment, TransactionOutcome,
};
use orloj_core::engine::cursor::Cursor;
use orloj_core::engine::partition::PartitionConfig;
use orloj_core::engine::takeover::{TakeoverError, TakeoverRequest};
use orloj_core::fault::{Mutation, is_active};
use orloj_core::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use orloj_core::model::{Millis, Offset, PartitionId, Timestamp};

use super::broker::{Producer, SimulatedOffsetCommit, SimulatedOutput, SimulatedRefusal};
use super::calamity::Calamity;
use super::disk::SimulatedDisk;
use super::flight::{Leg, SimulatedBarrier, SimulatedTransaction, outgoing};
use super::group::{Membership, News, NodeId};
use super::lane::{SimulatedPartitionTask, SimulatedTaskState};
use super::log::SimulatedTransactionState;
use super::site::{PARTITIONS, SimulatedCluster};
use super::standby::{PassEnd, SimulatedStandbyRead, pass};

/// What transactional ids begin with.
const NAME: &str = "node-";

/// A running process.
#[derive(Debug)]
pub(super) struct SimulatedNode {
    pub(super) id: NodeId,
    rules: PartitionConfig,
    /// By how many ms its clock is ahead of true time.
    skew: i64,
    /// How far ahead of their time fires are decided, in ms.
    ahead: Millis,
    /// The latest time its clock has shown, or would have if nobody had set it back, and the true
    /// time then.
    shown: (Timestamp, Timestamp),
    membership: Membership,
    /// It has heard that it is no member.
    lost: bool,
    producer: Producer,
    tenure: GroupAssignment,
    pub(super) lanes: BTreeMap<usize, SimulatedPartitionTask>,
    pub(super) disks: Vec<SimulatedDisk>,
    flight: Option<SimulatedTransaction>,
    /// A partition that it follows, the cursor it has read of it, and when.
    followed: Option<(usize, Cursor, Timestamp)>,
    /// What it was told to let go of.
    revoked: BTreeSet<usize>,
    leaving: bool,
}

impl SimulatedNode {
    /// A process starts with the disks that an earlier one left.
    pub(super) fn start(
        id: NodeId,
        disks: Vec<SimulatedDisk>,
        site: &mut SimulatedCluster,
    ) -> Self {
        let ledger_after = site.dice.pick(&[50, 50, 90]);
        if ledger_after != 50 {
            site.counts.add(Calamity::SettingsChanged);
        }
        let skew = site.any_skew();
        Self {
            id,
            rules: site.rules(format!("{NAME}{id}"), ledger_after),
            skew,
            ahead: site.dice.pick(&[0, 0, 3, 20]),
            shown: (0, site.broker.now),
            membership: site.broker.group.join(id, &mut site.dice),
            lost: false,
            producer: site.broker.init(id),
            tenure: GroupAssignment::new(site.dice.pick(&[0, 3, 10])),
            lanes: BTreeMap::new(),
            disks,
            flight: None,
            followed: None,
            revoked: BTreeSet::new(),
            leaving: false,
        }
    }

    pub(super) fn move_clock(&mut self, site: &mut SimulatedCluster) {
        self.skew = site.any_skew();
    }

    /// Begins to hand everything over.
    pub(super) fn leave(&mut self) {
        self.leaving = true;
        self.tenure.disable_grace();
    }

    pub(super) fn has_left(&self) -> bool {
        self.leaving && self.tenure.owned().is_empty() && self.tenure.is_idle()
    }

    /// Where a crash would hit it now.
    pub(super) fn crash_site(&self) -> Calamity {
        match self.flight.as_ref().map(|flight| flight.leg) {
            Some(Leg::Sealed) => Calamity::CrashBeforeSend,
            Some(Leg::Sent | Leg::Offered) => Calamity::CrashBeforeCommit,
            None if self.lanes.values().any(SimulatedPartitionTask::is_unapplied) => {
                Calamity::CrashBeforeApply
            }
            None if self
                .lanes
                .values()
                .any(|l| matches!(l.stage, SimulatedTaskState::Restoring(_))) =>
            {
                Calamity::CrashInTakeover
            }
            None => Calamity::CrashAfterApply,
        }
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.flight.is_some()
    }

    /// The partitions whose cursor is lost, and the offset that the refusal names.
    pub(super) fn lost_cursors(&self) -> Vec<(usize, Offset)> {
        let lost = |lane: &SimulatedPartitionTask| match &lane.stage {
            SimulatedTaskState::Refused(TakeoverError::CursorLost { offset, .. }) => {
                Some((lane.id, *offset))
            }
            SimulatedTaskState::Refused(TakeoverError::TakenOverByOther { .. }) => None,
            SimulatedTaskState::Refused(other) => panic!("{other}"),
            _ => None,
        };
        self.lanes.values().filter_map(lost).collect()
    }

    /// Does one thing of what can be done now.
    pub(super) fn turn(&mut self, site: &mut SimulatedCluster) {
        match (site.dice.roll(9) / 2, self.tenure.is_idle()) {
            (0, true) => self.follow_group(site),
            (1, true) => self.launch(site),
            (0 | 1, false) => self.fly(site),
            (2, _) => self.apply_some(site),
            (4, _) if site.dice.one_in(8) => self.follow(site),
            _ => self.work(site),
        }
    }

    fn clock(&self, site: &SimulatedCluster) -> Timestamp {
        site.broker.now.saturating_add_signed(self.skew)
    }

    /// By a clock that nobody sets back.
    fn time(&mut self, site: &SimulatedCluster) -> Timestamp {
        let (shown, at) = self.shown;
        let passed = site.broker.now.saturating_sub(at);
        self.shown = (self.clock(site).max(shown + passed), site.broker.now);
        self.shown.0
    }

    fn work(&mut self, site: &mut SimulatedCluster) {
        let clock = self.clock(site);
        let ids: Vec<usize> = self.lanes.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = site.dice.pick(&ids);
        if let Some(lane) = self.lanes.get_mut(&id) {
            if site.dice.one_in(4) {
                lane.look_at_ledger(site);
            }
            lane.work(&self.rules, &mut self.disks[id], (clock, self.ahead), site);
        }
    }

    fn apply_some(&mut self, site: &mut SimulatedCluster) {
        for (id, lane) in &mut self.lanes {
            let _applied = lane.apply_next(&mut self.disks[*id], site);
        }
    }

    /// Keeps the store of a partition that someone else owns nearly as far as its owner is: reads
    /// the cursor; later, while the ledger's newest records are still there, makes a pass.
    fn follow(&mut self, site: &mut SimulatedCluster) {
        let now = site.broker.now;
        let Some((id, cursor, at)) = self.followed.take() else {
            let id = site.dice.place(PARTITIONS);
            let said = site.broker.stable_offset(id).and_then(|committed| committed.committed);
            let cursor = said.and_then(|(n, said)| Cursor::from_metadata(n, &said).ok());
            self.followed = cursor.map(|(cursor, _owner)| (id, cursor, now));
            return;
        };
        if self.lanes.contains_key(&id) || now >= at + site.compaction_lag {
            return;
        }
        let breaks = match site.dice.roll(8) {
            0 => Some(SimulatedStandbyRead::Ledger),
            1 => Some(SimulatedStandbyRead::Triggers),
            _ => None,
        };
        let clock = at.saturating_add_signed(self.skew);
        match pass(id, cursor, &mut self.disks[id], clock, site, breaks) {
            PassEnd::Missing => {}
            PassEnd::Broken => site.counts.add(Calamity::PassBroken),
            PassEnd::Whole => site.counts.add(Calamity::Followed),
        }
    }

    /// Hears what the group says. No transaction is open here.
    fn follow_group(&mut self, site: &mut SimulatedCluster) {
        let held: Vec<usize> = self.tenure.owned().iter().copied().map(number).collect();
        let now = site.broker.now;
        match site.broker.group.poll(&mut self.membership, &held) {
            News::Expelled => {
                self.change(AssignmentChange::Lost(numbers(held)), site);
                if !self.leaving {
                    self.membership = site.broker.group.join(self.id, &mut site.dice);
                }
                self.lost = false;
            }
            News::Owns { assigned, revoked } => {
                let revoked = if self.leaving { held } else { revoked };
                let news: Vec<_> =
                    revoked.into_iter().filter(|id| self.revoked.insert(*id)).collect();
                if !news.is_empty() {
                    self.change(AssignmentChange::Revoked(numbers(news)), site);
                }
                if !self.leaving && !assigned.is_empty() {
                    self.change(AssignmentChange::Assigned(numbers(assigned)), site);
                }
            }
        }
        let orders = self.tenure.on_tick(now);
        self.obey(orders, site);
    }

    fn change(&mut self, change: AssignmentChange, site: &mut SimulatedCluster) {
        let orders = self.tenure.on_assignment_change(change, site.broker.now);
        self.obey(orders, site);
    }

    /// Does what the rules of tenure order, in their order.
    fn obey(&mut self, orders: Vec<AssignmentAction>, site: &mut SimulatedCluster) {
        for order in orders {
            match order {
                AssignmentAction::TakeOver(partition) => self.take_over(number(partition), site),
                AssignmentAction::FinalCommit(partitions) => self.say_last_words(partitions, site),
                AssignmentAction::Release(partitions) => self.let_go(partitions, site),
                AssignmentAction::ApplyCommitted => self.settle(site),
                AssignmentAction::RetryTransaction => self.send_again(site),
                AssignmentAction::RecreateProducer => {
                    self.flight = None;
                    site.counts.add(Calamity::StepDropped);
                    self.producer = site.broker.init(self.id);
                    let orders = self.tenure.on_producer_recreated();
                    self.obey(orders, site);
                }
            }
        }
    }

    fn ended(&mut self, ending: TransactionOutcome, site: &mut SimulatedCluster) {
        let orders = self.tenure.on_transaction_end(ending);
        self.obey(orders, site);
    }

    fn take_over(&mut self, id: usize, site: &mut SimulatedCluster) {
        self.drain(id, site);
        let (owner, clock) = (self.rules.owner.clone(), self.clock(site));
        let lane = SimulatedPartitionTask::assigned(id, &owner, &self.disks[id], clock, site);
        let _previous = self.lanes.insert(id, lane);
    }

    /// Whoever reads the state of a store waits first for what is committed.
    fn drain(&mut self, id: usize, site: &mut SimulatedCluster) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            while lane.apply_next(&mut self.disks[id], site) {}
        }
    }

    fn say_last_words(&mut self, partitions: Vec<PartitionId>, site: &mut SimulatedCluster) {
        let mut flight = SimulatedTransaction::default();
        for id in partitions.into_iter().map(number) {
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            lane.before_seal();
            match &mut lane.stage {
                SimulatedTaskState::Active(partition) => {
                    let step = partition.seal_final();
                    let before = lane.on_sealed(&step);
                    flight.steps.push((id, step, before));
                    lane.stage = SimulatedTaskState::Parting;
                    site.counts.add(Calamity::Handover);
                }
                SimulatedTaskState::Restoring(restoring) => {
                    let farewell = restoring.takeover.final_commit();
                    flight.farewells.extend(farewell.map(|(offset, said)| (id, offset, said)));
                }
                SimulatedTaskState::Waiting(partition) => {
                    let cursor = partition.cursor();
                    let said = cursor.to_final_metadata(&self.rules.owner);
                    flight.farewells.push((id, cursor.next_offset, said));
                }
                SimulatedTaskState::Refused(_) | SimulatedTaskState::Parting => {}
            }
        }
        if flight.carries_nothing() || self.lost {
            return self.ended(TransactionOutcome::Committed, site);
        }
        self.flight = Some(flight);
    }

    fn let_go(&mut self, partitions: Vec<PartitionId>, site: &mut SimulatedCluster) {
        for id in partitions.into_iter().map(number) {
            site.broker.group.release(&self.membership, id);
            self.drain(id, site);
            if self.lanes.remove(&id).is_some() {
                self.disks[id].flush();
            }
            self.revoked.remove(&id);
        }
    }

    /// Seals the steps and barriers of a few partitions.
    fn launch(&mut self, site: &mut SimulatedCluster) {
        if self.lost {
            return;
        }
        let (limit, first) = (1 + site.dice.place(PARTITIONS), site.dice.place(PARTITIONS));
        let mut flight = SimulatedTransaction::default();
        for id in (0..PARTITIONS).map(|nth| (first + nth) % PARTITIONS) {
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            if flight.steps.len() + flight.barriers.len() == limit {
                break;
            }
            lane.before_seal();
            match &mut lane.stage {
                SimulatedTaskState::Active(partition) => {
                    if let Some(step) = partition.seal() {
                        let before = lane.on_sealed(&step);
                        flight.steps.push((id, step, before));
                    }
                }
                SimulatedTaskState::Restoring(restoring) => {
                    if let TakeoverRequest::Barrier { offset, metadata, nonce } =
                        restoring.takeover.next_request()
                    {
                        let step = restoring.takeover.cursor().step;
                        let value = LedgerValue::Barrier { nonce };
                        flight
                            .barriers
                            .push((id, SimulatedBarrier { offset, metadata, value, step }));
                    }
                }
                SimulatedTaskState::Waiting(_)
                | SimulatedTaskState::Refused(_)
                | SimulatedTaskState::Parting => {}
            }
        }
        if !flight.carries_nothing() {
            self.tenure.on_transaction_begin();
            self.flight = Some(flight);
        }
    }

    /// Moves the transaction on by one leg.
    fn fly(&mut self, site: &mut SimulatedCluster) {
        let Some(flight) = &mut self.flight else { return };
        let result = match flight.leg {
            Leg::Sealed => {
                flight.leg = Leg::Sent;
                self.send(site)
            }
            Leg::Sent => {
                flight.leg = Leg::Offered;
                self.offer(site)
            }
            Leg::Offered => return self.end(site),
        };
        match result {
            Ok(()) => {}
            Err(SimulatedRefusal::Fenced) => {
                site.counts.add(Calamity::ProducerFenced);
                self.ended(TransactionOutcome::Unknown, site);
            }
            Err(SimulatedRefusal::Generation) => {
                site.counts.add(Calamity::GenerationRefused);
                self.ended(TransactionOutcome::StaleGeneration, site);
            }
        }
    }

    fn send(&mut self, site: &mut SimulatedCluster) -> Result<(), SimulatedRefusal> {
        let Some(flight) = &self.flight else { return Ok(()) };
        let clock = self.clock(site);
        for (id, step, before) in &flight.steps {
            let Some(lane) = self.lanes.get(id) else { continue };
            if is_active(Mutation::RowsBeforeCommit) {
                lane.apply_early(step, &mut self.disks[*id], clock);
            }
            for emit in &step.emits {
                let record = outgoing(lane, *before, step.number, emit);
                site.broker.send(self.producer, record)?;
            }
        }
        for (id, SimulatedBarrier { value, step, .. }) in &flight.barriers {
            let (key, value) = (LedgerKey::Barrier, Some(value.clone()));
            let record = LedgerRecord { key, value, step: *step };
            site.broker.send(self.producer, SimulatedOutput::Ledger(*id, record))?;
        }
        Ok(())
    }

    fn offer(&mut self, site: &mut SimulatedCluster) -> Result<(), SimulatedRefusal> {
        if is_active(Mutation::OffsetsOutsideTransaction) {
            return Ok(());
        }
        if self.lost {
            return Err(SimulatedRefusal::Generation);
        }
        site.broker.send_offsets(self.producer, &self.progress(), &self.membership)
    }

    fn progress(&self) -> Vec<SimulatedOffsetCommit> {
        let owner = &self.rules.owner;
        self.flight.as_ref().map_or_else(Vec::new, |flight| flight.progress(owner))
    }

    /// Asks for the commit, no sooner than at the time of what it fires. The answer may get lost,
    /// and so may the question.
    fn end(&mut self, site: &mut SimulatedCluster) {
        let time = self.time(site);
        let waits = self.flight.as_ref().is_some_and(|flight| flight.time() > time);
        if waits && !is_active(Mutation::CommitTooEarly) {
            return;
        }
        let steps = self.flight.as_ref().map_or(0, |flight| flight.steps.len() as u64);
        if !site.calm && site.dice.one_in(60) {
            if site.dice.one_in(2) {
                let committed = site.broker.commit(self.producer, time);
                site.steps += committed.map_or(0, |()| steps);
                site.counts.add(Calamity::OutcomeUnknownCommitted);
            } else {
                site.counts.add(Calamity::OutcomeUnknownAborted);
            }
            return self.ended(TransactionOutcome::Unknown, site);
        }
        if site.broker.commit(self.producer, time).is_err() {
            site.counts.add(Calamity::ProducerFenced);
            return self.ended(TransactionOutcome::Unknown, site);
        }
        site.steps += steps;
        if is_active(Mutation::OffsetsOutsideTransaction) {
            site.broker.commit_offsets(&self.progress(), &self.membership);
        }
        self.ended(TransactionOutcome::Committed, site);
    }

    /// The transaction is committed: what its steps spill may go into the stores.
    fn settle(&mut self, site: &mut SimulatedCluster) {
        let clock = self.clock(site);
        let Some(flight) = self.flight.take() else { return };
        for (id, step, _) in &flight.steps {
            if let Some(lane) = self.lanes.get_mut(id) {
                lane.committed(step, clock);
            }
        }
        for (id, _) in &flight.barriers {
            if let Some(SimulatedPartitionTask {
                stage: SimulatedTaskState::Restoring(restoring),
                ..
            }) = self.lanes.get_mut(id)
            {
                restoring.takeover.on_barrier();
            }
        }
    }

    /// The group moved on: the broker took nothing, and what is sealed is still ours.
    fn send_again(&mut self, site: &mut SimulatedCluster) {
        if let Some(flight) = &mut self.flight {
            flight.leg = Leg::Sealed;
        }
        if site.broker.end(self.producer, SimulatedTransactionState::Aborted).is_err() {
            return self.ended(TransactionOutcome::Unknown, site);
        }
        if site.dice.one_in(2) {
            self.lost = !site.broker.group.hear(&mut self.membership);
        }
    }
}

/// The node that uses a transactional id.
pub(super) fn node_of(owner: &str) -> Option<NodeId> {
    owner.strip_prefix(NAME)?.parse().ok()
}

/// A partition's place in the tables of a run.
fn number(partition: PartitionId) -> usize {
    usize::try_from(partition).unwrap()
}

fn numbers(partitions: Vec<usize>) -> Vec<PartitionId> {
    partitions.into_iter().map(|id| PartitionId::try_from(id).unwrap()).collect()
}
