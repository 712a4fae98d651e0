//! A scheduler process: its membership, its producer, its partitions, and the one transaction it
//! may have open. It does what `scheduler::{mod, launch, committer}` do, one small action a turn.
//!
//! Law: the group is polled only while no transaction is open; every partition with an effect in a
//! transaction has its offset in it; rows are applied after the commit, in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use orloj::engine::partition::Rules;
use orloj::engine::step::{Emit, InputTopics, Step};
use orloj::engine::takeover::{Ask, Refusal};
use orloj::fault::{Bug, planted};
use orloj::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use orloj::model::{Millis, Offset, Timestamp};

use super::broker::{Outgoing, Producer, Progress, Raw, Refused, Sent};
use super::calamity::Calamity;
use super::disk::Disk;
use super::group::{Membership, News, NodeId};
use super::lane::{Lane, Stage};
use super::log::Fate;
use super::site::{GRACE, PARTITIONS, SKEW, Site};

/// How often a transaction whose generation was refused is sent again.
const ATTEMPTS_MAX: u32 = 4;

/// A running process.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: NodeId,
    rules: Arc<Rules>,
    /// By how many ms its clock is ahead of true time.
    skew: i64,
    membership: Membership,
    /// It has heard that it is no member.
    lost: bool,
    producer: Producer,
    pub(super) lanes: BTreeMap<usize, Lane>,
    pub(super) disks: Vec<Disk>,
    flight: Option<Flight>,
    /// Partitions on their way to someone else, and when to let go of them.
    parting: Option<(Vec<usize>, Timestamp)>,
    leaving: bool,
}

/// A transaction under way.
#[derive(Debug, Default)]
struct Flight {
    steps: Vec<(usize, Step, Offset)>,
    barriers: Vec<(usize, Barrier)>,
    leg: Leg,
    attempts: u32,
    /// Partitions to let go of once it has ended.
    release: Vec<usize>,
}

#[derive(Debug)]
struct Barrier {
    offset: Offset,
    metadata: String,
    value: LedgerValue,
    step: u64,
}

/// How far a transaction is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Leg {
    #[default]
    Sealed,
    Sent,
    Offered,
}

impl Node {
    /// A process starts with the disks that an earlier one left.
    pub(super) fn start(id: NodeId, disks: Vec<Disk>, site: &mut Site) -> Self {
        let ledger_after = site.dice.pick(&[50, 50, 90]);
        if ledger_after != 50 {
            site.counts.add(Calamity::SettingsChanged);
        }
        let skew = i64::try_from(SKEW).unwrap();
        Self {
            id,
            rules: Arc::new(rules(id, ledger_after, site)),
            skew: site.dice.between(-skew, skew),
            membership: site.broker.group.join(id, &mut site.dice),
            lost: false,
            producer: site.broker.init(id),
            lanes: BTreeMap::new(),
            disks,
            flight: None,
            parting: None,
            leaving: false,
        }
    }

    pub(super) fn move_clock(&mut self, site: &mut Site) {
        let skew = i64::try_from(SKEW).unwrap();
        self.skew = site.dice.between(-skew, skew);
    }

    /// Begins to hand everything over.
    pub(super) fn leave(&mut self, site: &Site) {
        self.leaving = true;
        self.parting = Some((self.lanes.keys().copied().collect(), site.broker.now));
    }

    pub(super) fn has_left(&self) -> bool {
        self.leaving && self.lanes.is_empty() && self.flight.is_none()
    }

    /// Where a crash would hit it now.
    pub(super) fn crash_site(&self) -> Calamity {
        match self.flight.as_ref().map(|flight| flight.leg) {
            Some(Leg::Sealed) => Calamity::CrashBeforeSend,
            Some(Leg::Sent | Leg::Offered) => Calamity::CrashBeforeCommit,
            None if self.lanes.values().any(Lane::is_unapplied) => Calamity::CrashBeforeApply,
            None if self.lanes.values().any(|l| matches!(l.stage, Stage::Restoring(_))) => {
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
        let lost = |lane: &Lane| match &lane.stage {
            Stage::Refused(Refusal::CursorLost { offset, .. }) => Some((lane.id, *offset)),
            Stage::Refused(other) => panic!("{other}"),
            _ => None,
        };
        self.lanes.values().filter_map(lost).collect()
    }

    /// Does one thing of what can be done now.
    pub(super) fn turn(&mut self, site: &mut Site) {
        match (site.dice.roll(4), self.flight.is_some()) {
            (0, false) => self.follow_group(site),
            (1, false) => self.launch(site),
            (0 | 1, true) => self.fly(site),
            (2, _) => self.apply_some(site),
            _ => self.work(site),
        }
    }

    fn clock(&self, site: &Site) -> Timestamp {
        site.broker.now.saturating_add_signed(self.skew)
    }

    fn work(&mut self, site: &mut Site) {
        let clock = self.clock(site);
        let ids: Vec<usize> = self.lanes.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = site.dice.pick(&ids);
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.work(&self.rules, &mut self.disks[id], clock, site);
        }
    }

    fn apply_some(&mut self, site: &mut Site) {
        for (id, lane) in &mut self.lanes {
            let _applied = lane.apply_next(&mut self.disks[*id], site);
        }
    }

    fn follow_group(&mut self, site: &mut Site) {
        let held: Vec<usize> = self.lanes.keys().copied().collect();
        match site.broker.group.poll(&mut self.membership, &held) {
            News::Expelled => {
                self.lanes.clear();
                (self.parting, self.lost) = (None, false);
                if !self.leaving {
                    self.membership = site.broker.group.join(self.id, &mut site.dice);
                }
            }
            News::Owns { assigned, revoked } => {
                self.lost = false;
                if !self.leaving {
                    assigned.into_iter().for_each(|id| self.assign(id, site));
                }
                if self.parting.is_none() && !revoked.is_empty() {
                    let wait: Millis = site.dice.pick(&[0, 3, 10]);
                    self.parting = Some((revoked, site.broker.now + wait));
                }
            }
        }
        let now = site.broker.now;
        if let Some((partitions, _)) = self.parting.take_if(|(_, at)| *at <= now) {
            self.say_last_words(partitions, site);
        }
    }

    fn assign(&mut self, id: usize, site: &mut Site) {
        let (owner, clock) = (self.rules.owner.clone(), self.clock(site));
        let lane = Lane::assigned(id, &owner, &self.disks[id], clock, site);
        let _previous = self.lanes.insert(id, lane);
    }

    fn say_last_words(&mut self, partitions: Vec<usize>, site: &mut Site) {
        let mut flight = Flight { release: partitions, ..Flight::default() };
        for id in &flight.release {
            let Some(lane) = self.lanes.get_mut(id) else { continue };
            if let Stage::Active(partition) = &mut lane.stage {
                let step = partition.seal_clean();
                let decided = std::mem::replace(&mut lane.sealed, step.cursor.triggers);
                flight.steps.push((*id, step, decided));
                lane.stage = Stage::Parting;
                site.counts.add(Calamity::Handover);
            }
        }
        if flight.steps.is_empty() || self.lost {
            self.give_up(&flight.release, site);
        } else {
            self.flight = Some(flight);
        }
    }

    fn give_up(&mut self, partitions: &[usize], site: &mut Site) {
        for id in partitions {
            if let Some(mut lane) = self.lanes.remove(id) {
                while lane.apply_next(&mut self.disks[*id], site) {}
                self.disks[*id].flush();
            }
            site.broker.group.release(&self.membership, *id);
        }
    }

    /// Seals the steps and barriers of a few partitions.
    fn launch(&mut self, site: &mut Site) {
        if self.lost {
            return;
        }
        let (limit, first) = (1 + site.dice.place(PARTITIONS), site.dice.place(PARTITIONS));
        let mut flight = Flight::default();
        for id in (0..PARTITIONS).map(|nth| (first + nth) % PARTITIONS) {
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            if flight.steps.len() + flight.barriers.len() == limit {
                break;
            }
            match &mut lane.stage {
                Stage::Active(partition) => {
                    if let Some(step) = partition.seal() {
                        let decided = std::mem::replace(&mut lane.sealed, step.cursor.triggers);
                        flight.steps.push((id, step, decided));
                    }
                }
                Stage::Restoring(restoring) => {
                    if let Ask::Barrier { offset, metadata, nonce } = restoring.takeover.ask() {
                        let step = restoring.takeover.cursor().step;
                        let value = LedgerValue::Barrier { nonce };
                        flight.barriers.push((id, Barrier { offset, metadata, value, step }));
                    }
                }
                Stage::Waiting(_) | Stage::Refused(_) | Stage::Parting => {}
            }
        }
        if !flight.steps.is_empty() || !flight.barriers.is_empty() {
            self.flight = Some(flight);
        }
    }

    /// Moves the transaction on by one leg.
    fn fly(&mut self, site: &mut Site) {
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
            Err(Refused::Fenced) => {
                site.counts.add(Calamity::ProducerFenced);
                self.fail(site);
            }
            Err(Refused::Generation) => {
                site.counts.add(Calamity::GenerationRefused);
                self.try_again(site);
            }
        }
    }

    fn send(&mut self, site: &mut Site) -> Result<(), Refused> {
        let Some(flight) = &self.flight else { return Ok(()) };
        let clock = self.clock(site);
        for (id, step, decided) in &flight.steps {
            let Some(lane) = self.lanes.get(id) else { continue };
            if planted(Bug::RowsBeforeCommit) {
                lane.apply_early(step, &mut self.disks[*id], clock);
            }
            for emit in &step.emits {
                let record = outgoing(lane, *decided, step.number, emit);
                site.broker.send(self.producer, record)?;
            }
        }
        for (id, Barrier { value, step, .. }) in &flight.barriers {
            let (key, value) = (LedgerKey::Barrier, Some(value.clone()));
            let record = LedgerRecord { key, value, step: *step };
            site.broker.send(self.producer, Outgoing::Ledger(*id, record))?;
        }
        Ok(())
    }

    fn offer(&mut self, site: &mut Site) -> Result<(), Refused> {
        if planted(Bug::OffsetsApart) {
            return Ok(());
        }
        if self.lost {
            return Err(Refused::Generation);
        }
        site.broker.send_offsets(self.producer, &self.progress(), &self.membership)
    }

    fn progress(&self) -> Vec<Progress> {
        let Some(flight) = &self.flight else { return Vec::new() };
        let steps = flight.steps.iter().map(|(id, step, _)| {
            (*id, step.cursor.triggers, step.cursor.to_metadata(&self.rules.owner))
        });
        let barriers = flight.barriers.iter().map(|(id, b)| (*id, b.offset, b.metadata.clone()));
        steps.chain(barriers).collect()
    }

    /// Asks for the commit. The answer may get lost, and so may the question.
    fn end(&mut self, site: &mut Site) {
        let steps = self.flight.as_ref().map_or(0, |flight| flight.steps.len() as u64);
        if !site.calm && site.dice.one_in(60) {
            if site.dice.one_in(2) {
                let committed = site.broker.end(self.producer, Fate::Committed);
                site.steps += committed.map_or(0, |()| steps);
                site.counts.add(Calamity::OutcomeUnknownCommitted);
            } else {
                site.counts.add(Calamity::OutcomeUnknownAborted);
            }
            return self.fail(site);
        }
        if site.broker.end(self.producer, Fate::Committed).is_err() {
            site.counts.add(Calamity::ProducerFenced);
            return self.fail(site);
        }
        site.steps += steps;
        if planted(Bug::OffsetsApart) {
            site.broker.commit_offsets(&self.progress(), &self.membership);
        }
        let clock = self.clock(site);
        let Some(flight) = self.flight.take() else { return };
        for (id, step, _) in &flight.steps {
            if let Some(lane) = self.lanes.get_mut(id) {
                lane.committed(step, clock);
            }
        }
        for (id, _) in &flight.barriers {
            if let Some(Lane { stage: Stage::Restoring(restoring), .. }) = self.lanes.get_mut(id) {
                restoring.takeover.on_barrier();
            }
        }
        self.give_up(&flight.release, site);
    }

    /// The group moved on: the broker took nothing, and what is sealed is still ours.
    fn try_again(&mut self, site: &mut Site) {
        let Some(flight) = &mut self.flight else { return };
        flight.attempts += 1;
        // Last words are said once.
        let give_in = flight.attempts > ATTEMPTS_MAX || !flight.release.is_empty();
        flight.leg = Leg::Sealed;
        if give_in || site.broker.end(self.producer, Fate::Aborted).is_err() {
            return self.fail(site);
        }
        if site.dice.one_in(2) {
            self.lost = !site.broker.group.hear(&mut self.membership);
        }
    }

    /// The outcome is unknown: a new producer makes the broker decide, and every partition starts
    /// over from what is committed.
    fn fail(&mut self, site: &mut Site) {
        let release = self.flight.take().map_or_else(Vec::new, |flight| flight.release);
        site.counts.add(Calamity::StepDropped);
        self.producer = site.broker.init(self.id);
        for id in self.lanes.keys().copied().collect::<Vec<_>>() {
            // Rows of committed steps may be applied or not: the log has them.
            while site.dice.one_in(2)
                && self.lanes.get_mut(&id).is_some_and(|l| l.apply_next(&mut self.disks[id], site))
            {
            }
            self.assign(id, site);
        }
        self.give_up(&release, site);
    }
}

fn outgoing(lane: &Lane, decided: Offset, step: u64, emit: &Emit) -> Outgoing {
    let sent = || Sent { emit: emit.clone(), tenure: lane.tenure, clock: lane.clock, decided };
    match emit {
        Emit::Ledger { key, value } => {
            let (key, value) = (key.clone(), value.as_deref().cloned());
            Outgoing::Ledger(lane.id, LedgerRecord { key, value, step })
        }
        Emit::Forward(forward) => {
            let (key, value) = (forward.key.clone(), forward.value.clone());
            let raw = Raw { key, value, headers: forward.headers.clone() };
            Outgoing::Trigger(usize::try_from(forward.partition).unwrap(), raw)
        }
        Emit::ToWorker(_) => Outgoing::Fire(lane.id, sent()),
        Emit::ToTopic(_) | Emit::Outcome(_) | Emit::DeadLetter(_) => {
            Outgoing::Other(lane.id, sent())
        }
    }
}

fn rules(id: NodeId, ledger_after: Millis, site: &mut Site) -> Rules {
    Rules {
        ledger_after,
        veto_ttl: 5_000,
        sample_interval: site.dice.pick(&[1, 3, 10]),
        idle_commit: site.dice.pick(&[0, 5, 20]),
        mirror_interval: 40,
        step_rows_max: site.dice.pick(&[10, 100]),
        cancel_grace: GRACE,
        park: 5,
        owner: format!("node-{id}"),
        topics: InputTopics { triggers: "o.triggers".into(), signals: "o.signals".into() },
    }
}
