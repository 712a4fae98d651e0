//! Driving takeovers: does what `engine::takeover` asks for, and starts the partition when it
//! asks for nothing more.
//!
//! Law: reading a committed offset may block for as long as an earlier owner's transaction is
//! undecided; it happens on a thread of its own, and a timeout means "not yet", never "none".

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rdkafka::error::KafkaResult;

use super::lane::{EndCheck, Lane, Stage, valid_state};
use super::restorer::{Job, Logged, Restored, Unrestored, Work};
use super::{CALL_TIMEOUT, LaneError, Mode, Scheduler, SchedulerError, ms};
use crate::clock;
use crate::config::ByteSize;
use crate::engine::cursor::Cursor;
use crate::engine::local::Local;
use crate::engine::partition::{Fetched, Partition, Rules, Start};
use crate::engine::takeover::{Ask, Committed, Gap, Refusal, Takeover};
use crate::engine::wheel::Wheel;
use crate::fault;
use crate::kafka::Names;
use crate::kafka::member::Offsets;
use crate::kafka::predecessor::Predecessors;
use crate::kafka::probe::Probe;
use crate::model::{PartitionId, Timestamp};
use crate::store::{LocalState, PartitionStore, StoreError};
use crate::telemetry;

/// How long one look at a committed offset may take before the next is tried.
const COMMITTED_TIMEOUT: Duration = Duration::from_secs(2);
/// How soon an offset is stable that no open transaction holds up.
const STABLE_SOON: Duration = Duration::from_millis(150);
/// Records of `triggers` that are applied in one batch. The larger a sorted batch is next to the
/// memtable that takes it, the nearer each place is to the last one.
pub(super) const TRIGGERS_BATCH: usize = 16_384;
/// Records of the ledger that are applied in one batch, which is a file of the store. Fewer make
/// more files that are merged later, more take memory: some 15 MiB a partition.
pub(super) const LEDGER_BATCH: usize = 32_768;

impl Scheduler {
    /// A partition is ours now, or still: begin with what its store holds, which is only what was
    /// committed.
    pub(super) fn take_over(&mut self, id: PartitionId) -> Result<(), SchedulerError> {
        self.await_stores()?;
        let store = match self.lanes.remove(&id) {
            Some(Lane { store, .. }) => {
                self.stop_reading(id)?;
                store
            }
            None => self.open_store(id)?,
        };
        if self.mode == Mode::Trial {
            return self.start_trial(id, store);
        }
        let (store, takeover) = match self.takeover(id, &store) {
            Ok(takeover) => (store, takeover),
            Err(newer @ StoreError::Newer { .. }) => return Err(newer.into()),
            Err(error) => {
                tracing::warn!(partition = id, %error, "the local store is rebuilt from Kafka");
                drop(store);
                self.stores.wipe(id)?;
                let store = Arc::new(self.stores.open(id)?);
                let takeover = self.takeover(id, &store)?;
                (store, takeover)
            }
        };
        let lane = Lane::new(id, store, takeover, clock::monotonic());
        let _none = self.lanes.insert(id, lane);
        self.report_readiness();
        Ok(())
    }

    fn open_store(&mut self, id: PartitionId) -> Result<Arc<PartitionStore>, SchedulerError> {
        if let Some(store) = self.standby.as_ref().and_then(|standby| standby.release(id)) {
            return Ok(store);
        }
        let opened = self.stores.open(id);
        if let Err(error) = &opened {
            tracing::warn!(partition = id, %error, "the local store is rebuilt from Kafka");
            self.stores.wipe(id)?;
            return Ok(Arc::new(self.stores.open(id)?));
        }
        Ok(Arc::new(opened?))
    }

    /// The store of a partition failed: close it, wipe it, and rebuild it from Kafka.
    pub(super) fn rebuild_store(
        &mut self,
        id: PartitionId,
        error: &LaneError,
    ) -> Result<(), SchedulerError> {
        tracing::error!(partition = id, %error, "the local store failed; rebuilding it from Kafka");
        self.stop_reading(id)?;
        // What is under way still belongs to the old one.
        while !self.tenure.is_free() {
            self.land(Duration::from_millis(10))?;
        }
        drop(self.lanes.remove(&id));
        self.await_stores()?;
        self.stores.wipe(id)?;
        self.take_over(id)
    }

    fn takeover(&self, id: PartitionId, store: &PartitionStore) -> Result<Takeover, StoreError> {
        let topic = self.names.triggers();
        let local = valid_state(store, &self.cluster, self.settings.store.state_age_max)?;
        // Any fresh number will do; it only has to differ from every other takeover's.
        let (nonce, _) = uuid::Uuid::now_v7().as_u64_pair();
        let nonce = nonce ^ u64::from(id.unsigned_abs()).rotate_left(48);
        Ok(Takeover::new(id, &topic, &self.rules.owner, nonce, local))
    }

    /// Moves every takeover on as far as it goes without waiting.
    pub(super) fn advance_takeovers(&mut self) -> Result<(), SchedulerError> {
        while let Ok((id, nonce, committed)) = self.answers.1.try_recv() {
            self.take_answer(id, nonce, committed);
        }
        let restored = self.restorers.restored();
        self.put_back(restored)?;
        let restoring = |lane: &&Lane| matches!(lane.stage, Stage::Restoring(_));
        let ids: Vec<_> = self.lanes.values().filter(restoring).map(|lane| lane.id).collect();
        for id in ids {
            match self.advance(id) {
                Ok(()) => {}
                Err(SchedulerError::Store(error)) => self.rebuild_store(id, &error.into())?,
                Err(other) => return Err(other),
            }
        }
        self.wake_waiting()
    }

    fn advance(&mut self, id: PartitionId) -> Result<(), SchedulerError> {
        loop {
            let Some(lane) = self.lanes.get_mut(&id) else { return Ok(()) };
            let Stage::Restoring(restoring) = &mut lane.stage else { return Ok(()) };
            let Some(takeover) = &restoring.takeover else { return Ok(()) };
            let ask = takeover.ask();
            if restoring.asked.as_ref() != Some(&ask) {
                restoring.asked = Some(ask.clone());
                self.issue(id, &ask)?;
                continue;
            }
            let before = ask.clone();
            match ask {
                Ask::Committed | Ask::Barrier { .. } => {}
                Ask::Mirror { .. } | Ask::Ledger { .. } => self.feed_ledger(id)?,
                Ask::Triggers { .. } => self.feed_triggers(id),
                Ask::Nothing => return self.activate(id),
            }
            let Some(lane) = self.lanes.get(&id) else { return Ok(()) };
            let Stage::Restoring(restoring) = &lane.stage else { return Ok(()) };
            if restoring.takeover.as_ref().is_none_or(|takeover| takeover.ask() == before) {
                return Ok(());
            }
        }
    }

    /// Sets going what the takeover asks for.
    fn issue(&mut self, id: PartitionId, ask: &Ask) -> Result<(), SchedulerError> {
        tracing::debug!(partition = id, ?ask, "takeover");
        let (triggers, ledger) = (self.names.triggers(), self.names.ledger());
        let Some(lane) = self.lanes.get_mut(&id) else { return Ok(()) };
        let Stage::Restoring(restoring) = &mut lane.stage else { return Ok(()) };
        match ask {
            Ask::Committed => {
                fault::reached("takeover.before_offsets");
                let question = Question {
                    partition: id,
                    nonce: restoring.nonce,
                    offsets: self.member.offsets(),
                    predecessors: Arc::clone(&self.predecessors),
                    probe: self.probe.clone(),
                    names: self.names.clone(),
                };
                let cancelled = Arc::clone(&restoring.cancelled);
                let answers = self.answers.0.clone();
                super::spawn("offsets", move || {
                    let mut patience = STABLE_SOON;
                    while !cancelled.load(Ordering::SeqCst) {
                        match question.ask(patience) {
                            Ok(committed) => {
                                let answer = (question.partition, question.nonce, committed);
                                let _unheard = answers.send(answer);
                                return;
                            }
                            Err(error) => {
                                tracing::debug!(partition = id, %error, "offsets: not yet");
                                question.end_predecessor();
                                patience = COMMITTED_TIMEOUT;
                                std::thread::park_timeout(Duration::from_millis(50));
                            }
                        }
                    }
                });
            }
            Ask::Barrier { .. } => {
                fault::reached("takeover.before_barrier");
                if restoring.takeover.as_ref().is_some_and(|takeover| takeover.must_wipe()) {
                    self.wipe(id)?;
                }
            }
            Ask::Mirror { from, .. } => {
                restoring.forget_ledger(*from);
                self.others.start(&ledger, id, *from)?;
            }
            Ask::Ledger { from } => {
                fault::reached("takeover.before_ledger");
                restoring.forget_ledger(*from);
                self.others.start(&ledger, id, *from)?;
            }
            Ask::Triggers { from, until } => {
                fault::reached("takeover.before_replay");
                self.others.stop(&ledger, id)?;
                lane.next_trigger = *from;
                restoring.triggers_passed = from >= until;
                if let Some(takeover) = &mut restoring.takeover {
                    restoring.held = takeover.take_held();
                }
                self.triggers.start(&triggers, id, *from)?;
            }
            Ask::Nothing => {}
        }
        Ok(())
    }

    /// The local store is of no use: start from an empty one.
    fn wipe(&mut self, id: PartitionId) -> Result<(), SchedulerError> {
        let Some(lane) = self.lanes.remove(&id) else { return Ok(()) };
        let Lane { stage, store, since, .. } = lane;
        drop(store);
        self.stores.wipe(id)?;
        let store = Arc::new(self.stores.open(id)?);
        let Stage::Restoring(restoring) = stage else { return Ok(()) };
        let lane = Lane::at(id, store, Stage::Restoring(restoring), since);
        let _none = self.lanes.insert(id, lane);
        Ok(())
    }

    fn take_answer(&mut self, id: PartitionId, nonce: u64, committed: Committed) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        let Stage::Restoring(restoring) = &mut lane.stage else { return };
        if restoring.nonce != nonce {
            return; // an answer to an earlier takeover
        }
        let Some(takeover) = &mut restoring.takeover else { return };
        if let Err(refusal) = takeover.on_committed(committed) {
            self.refuse(id, refusal);
            return;
        }
        for Gap { topic, from, until } in takeover.gaps.drain(..) {
            tracing::error!(
                partition = id,
                topic,
                from,
                until,
                "records in this range were deleted before they were read, by hand or by a \
                 retention that is shorter than the outage was; triggers among them are lost"
            );
        }
    }

    pub(super) fn refuse(&mut self, id: PartitionId, refusal: Refusal) {
        tracing::error!(partition = id, %refusal, "the partition is not taken over");
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.stage = Stage::Refused(refusal);
        }
        self.report_readiness();
    }

    /// Hands what was read of the ledger to a restorer, once it is worth it. The mirror alone is
    /// sought here, as only a few records can be it.
    fn feed_ledger(&mut self, id: PartitionId) -> Result<(), SchedulerError> {
        let Some(lane) = self.lanes.get_mut(&id) else { return Ok(()) };
        let Stage::Restoring(restoring) = &mut lane.stage else { return Ok(()) };
        let (position, batch) = (restoring.ledger_position, restoring.ledger.len());
        if matches!(restoring.asked, Some(Ask::Mirror { .. })) {
            let found = std::mem::take(&mut restoring.ledger).read(id, self.intake.schemas());
            let Some(takeover) = &mut restoring.takeover else { return Ok(()) };
            let sought = found.and_then(|records| {
                takeover.on_ledger(records, position, &Fetched::default()).map(drop)
            });
            if let Err(refusal) = sought {
                self.refuse(id, refusal);
            }
        } else if batch >= LEDGER_BATCH || restoring.barrier_read {
            let spare = std::mem::take(&mut restoring.spare);
            let raw = std::mem::replace(&mut restoring.ledger, spare);
            restoring.read += raw.len();
            self.restore(id, Work::Ledger(raw, position));
        }
        Ok(())
    }

    fn feed_triggers(&mut self, id: PartitionId) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        let Stage::Restoring(restoring) = &mut lane.stage else { return };
        let batch = restoring.triggers.len().min(TRIGGERS_BATCH);
        if batch < TRIGGERS_BATCH && !restoring.triggers_passed {
            return;
        }
        let records: Vec<_> = restoring.triggers.drain(..batch).collect();
        restoring.read += records.len();
        let last = restoring.triggers.is_empty() && restoring.triggers_passed;
        let held_at = restoring.held_at;
        self.restore(id, Work::Triggers(Logged { records, held_at, last }));
    }

    /// Gives a takeover to a restorer.
    fn restore(&mut self, id: PartitionId, work: Work) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        let Stage::Restoring(restoring) = &mut lane.stage else { return };
        let Some(takeover) = restoring.takeover.take() else { return };
        let (store, cluster, now) =
            (Arc::clone(&lane.store), self.cluster.clone(), clock::now_ms());
        self.restorers.submit(Job { partition: id, takeover, store, cluster, now, work });
    }

    /// Waits for all that is being applied: a store is closed next, or a takeover must say where
    /// it stands.
    pub(super) fn await_restorers(&mut self) -> Result<(), SchedulerError> {
        let restored = self.restorers.drain();
        self.put_back(restored)
    }

    fn put_back(&mut self, restored: Vec<Restored>) -> Result<(), SchedulerError> {
        for Restored { partition, takeover, result, emptied } in restored {
            let Some(lane) = self.lanes.get_mut(&partition) else { continue };
            let Stage::Restoring(restoring) = &mut lane.stage else { continue };
            if restoring.nonce != takeover.nonce() {
                continue; // of an earlier takeover
            }
            restoring.takeover = Some(takeover);
            restoring.spare = emptied;
            match result {
                Ok(()) => {}
                Err(Unrestored::Refused(refusal)) => self.refuse(partition, refusal),
                Err(Unrestored::Store(error)) => self.rebuild_store(partition, &error.into())?,
            }
        }
        Ok(())
    }

    /// The takeover is done: the partition may fire.
    fn activate(&mut self, id: PartitionId) -> Result<(), SchedulerError> {
        fault::reached("takeover.before_activate");
        let Some(lane) = self.lanes.get_mut(&id) else { return Ok(()) };
        let Stage::Restoring(mut restoring) = lane.change_stage() else { return Ok(()) };
        let records = restoring.read;
        let live = std::mem::take(&mut restoring.live);
        let takeover = restoring.takeover.as_mut();
        let start = takeover.expect("a takeover that asks for nothing is here").finish();
        let cursor = start.cursor;
        lane.next_signal = cursor.signals;
        lane.end_check = EndCheck::Idle;
        let mut partition = self.partition(id, start);
        let behind = partition.observe(clock::now_ms());
        let Some(lane) = self.lanes.get_mut(&id) else { return Ok(()) };
        if behind > 0 {
            tracing::error!(
                partition = id,
                behind_ms = behind,
                "this clock is behind what an earlier owner decided by; waiting, not firing early"
            );
            // What it would take in now, it could not decide: it reads on when it may fire.
            lane.next_trigger = cursor.triggers;
            lane.stage = Stage::Waiting(Box::new(partition));
            self.triggers.stop(&self.names.triggers(), id)?;
            return Ok(());
        }
        lane.stage = Stage::Active(Box::new(partition));
        self.others.start(&self.names.signals(), id, cursor.signals)?;
        let took = clock::monotonic().duration_since(lane.since);
        metrics::histogram!(telemetry::TAKEOVER).record(took.as_secs_f64());
        tracing::info!(partition = id, took_ms = took.as_millis(), records, "taken over");
        if let Err(error) = lane.ingest(live) {
            return self.rebuild_store(id, &error);
        }
        self.report_readiness();
        fault::reached("takeover.after_activate");
        Ok(())
    }

    fn partition(&self, id: PartitionId, start: Start) -> Partition {
        let wheel = &self.settings.wheel;
        let lanes = u64::try_from(self.lanes.len().max(1)).unwrap_or(1);
        let share = |of: ByteSize| usize::try_from(of.bytes() / lanes).unwrap_or(usize::MAX);
        let spill_bytes = share(self.settings.store.write_buffer);
        let rules = Rules { spill_bytes, ..self.rules.clone() };
        let at = start.cursor.w;
        let wheel = Wheel::new(ms(wheel.tick), ms(wheel.horizon), share(wheel.budget), at);
        Partition::new(id, rules, start, wheel)
    }

    /// On the built-in broker nothing is ever taken over: begin where the log begins.
    fn start_trial(
        &mut self,
        id: PartitionId,
        store: Arc<PartitionStore>,
    ) -> Result<(), SchedulerError> {
        let start = Start {
            cursor: Cursor::fresh(0, 0),
            last_timestamp: 0,
            seen_from: 0,
            skips: std::collections::BTreeSet::default(),
        };
        self.triggers.start(&self.names.triggers(), id, 0)?;
        self.others.start(&self.names.signals(), id, 0)?;
        let partition = Box::new(self.partition(id, start));
        let lane = Lane::at(id, store, Stage::Active(partition), clock::monotonic());
        let _none = self.lanes.insert(id, lane);
        Ok(())
    }

    /// Partitions that waited for the clock go on when it has caught up.
    fn wake_waiting(&mut self) -> Result<(), SchedulerError> {
        let now = clock::now_ms();
        let mut woken = false;
        for lane in self.lanes.values_mut() {
            let Stage::Waiting(partition) = &mut lane.stage else { continue };
            if partition.observe(now) > 0 {
                continue;
            }
            if let Stage::Waiting(partition) = lane.change_stage() {
                lane.stage = Stage::Active(partition);
            }
            self.triggers.start(&self.names.triggers(), lane.id, lane.next_trigger)?;
            self.others.start(&self.names.signals(), lane.id, lane.next_signal)?;
            woken = true;
        }
        if woken {
            self.report_readiness();
        }
        Ok(())
    }
}

/// What a thread of its own asks the broker.
struct Question {
    partition: PartitionId,
    nonce: u64,
    offsets: Offsets,
    predecessors: Arc<Predecessors>,
    probe: Probe,
    names: Names,
}

impl Question {
    /// The offset does not get stable: a dead owner's transaction is open, or the broker is away.
    fn end_predecessor(&self) {
        match self.predecessors.metadata(self.partition, CALL_TIMEOUT) {
            Ok(metadata) => self.predecessors.end(&metadata, CALL_TIMEOUT),
            Err(error) => tracing::warn!(%error, "waiting for the earlier owner's timeout"),
        }
    }

    /// The stable offset first; the ends after it, so that they cannot be older.
    fn ask(&self, patience: Duration) -> KafkaResult<Committed> {
        let p = self.partition;
        let offset = self.offsets.committed(p, patience)?;
        // It may have died with fires sent and this offset not yet among what it would commit.
        if let Some((_, said)) = &offset {
            self.predecessors.end(said, CALL_TIMEOUT);
        }
        let (triggers_low, triggers_end) = self.probe.bounds(&self.names.triggers(), p)?;
        let (signals_low, signals_end) = self.probe.bounds(&self.names.signals(), p)?;
        let (ledger_low, ledger_end) = self.probe.bounds(&self.names.ledger(), p)?;
        Ok(Committed {
            offset,
            triggers_low,
            triggers_end,
            signals_low,
            signals_end,
            ledger_low,
            ledger_end,
        })
    }
}

/// What is stored beside the rows.
pub(super) fn state_of(local: Local, cluster: &str, caught_up_at: Timestamp) -> LocalState {
    LocalState {
        applied: local.applied,
        step: local.step,
        ledger_position: local.ledger_position,
        w: local.w,
        cluster_id: cluster.to_owned(),

        caught_up_at,
    }
}
