//! Runs takeovers: executes what `engine::takeover` requests, and activates the partition when
//! there is no further request.
//!
//! Invariant: the loop waits neither for a committed offset nor while records are applied; other
//! threads do. An answer is used only by the takeover that requested it; its nonce identifies it.

use std::sync::Arc;
use std::time::Duration;

use super::assigned_stores::StoreContent;
use super::committed_offset::{self, CommittedOffsetJob, CommittedOffsetReply};
use super::config::Mode;
use super::local_store::valid_state;
use super::partition_task::{EndCheck, InputLog, PartitionState, PartitionTask};
use super::restore_pool::{LogBatch, RestoreError, RestoreRequest, RestoreResult, RestoreWork};
use super::{LoopError, PartitionTaskError, Scheduler};
use crate::engine::cursor::Cursor;
use crate::engine::index_row::IdHash;
use crate::engine::partition::{IndexRows, Partition, PartitionConfig, PartitionStart};
use crate::engine::takeover::{CutSignals, OffsetGap, Takeover, TakeoverError, TakeoverRequest};
use crate::engine::wheel::Wheel;
use crate::environment::group::GroupMembership as _;
use crate::environment::job::JobQueue as _;
use crate::environment::log::LogReading as _;
use crate::environment::store::StoreError;
use crate::environment::{Clock as _, Environment, Reporter as _};
use crate::model::PartitionId;

impl<E: Environment> Scheduler<E> {
    /// Starts the takeover of a partition that is newly assigned, or again after a failed
    /// transaction. It begins with the content of the store, which is committed.
    pub(super) fn take_over(&mut self, id: PartitionId) -> Result<(), LoopError> {
        let now = self.clock.monotonic();
        if !self.tasks.contains_key(&id) {
            let Some(store) = self.take_store(id) else {
                self.report_readiness();
                return Ok(());
            };
            return self.resume_with(id, store, now);
        }
        self.await_stores()?;
        self.stop_reading(id)?;
        match self.tasks.remove(&id) {
            Some(PartitionTask { state: PartitionState::StoreFailed, store, .. }) => {
                self.open_store(id, Some(store), now);
                self.report_readiness();
                Ok(())
            }
            Some(PartitionTask { store, .. }) => self.resume_with(id, store, now),
            None => Ok(()),
        }
    }

    /// Starts a takeover with a store that is open, if its content is valid, else with a new one.
    pub(super) fn resume_with(
        &mut self,
        id: PartitionId,
        store: Arc<E::Store>,
        started_at: Duration,
    ) -> Result<(), LoopError> {
        let (cluster, now) = (&self.config.cluster_id, self.clock.now_ms());
        match valid_state(&*store, cluster, self.config.state_age_max, now) {
            Ok(Some(content)) => return self.start_takeover(id, store, Some(content), started_at),
            Ok(None) => {}
            Err(newer @ StoreError::Newer { .. }) => return Err(newer.into()),
            Err(error) => {
                tracing::warn!(partition = id, %error, "the local store is rebuilt from Kafka");
            }
        }
        self.open_store(id, Some(store), started_at);
        self.report_readiness();
        Ok(())
    }

    pub(super) fn start_takeover(
        &mut self,
        id: PartitionId,
        store: Arc<E::Store>,
        content: StoreContent,
        started_at: Duration,
    ) -> Result<(), LoopError> {
        if self.config.mode == Mode::Trial {
            return self.start_trial(id, store);
        }
        let has_new_store = content.is_none();
        let takeover = self.takeover(id, content);
        let limits = self.config.read_ahead();
        let mut task = PartitionTask::new(id, store, takeover, limits, started_at);
        if let PartitionState::Restoring(restoring) = &mut task.state {
            restoring.has_new_store = has_new_store;
        }
        let _none = self.tasks.insert(id, task);
        self.report_readiness();
        Ok(())
    }

    /// The store of a partition failed. The partition stops; when no transaction is open, it is
    /// taken over again if it is still ours: see [`Self::start_takeovers_again`].
    pub(super) fn on_store_failed(
        &mut self,
        id: PartitionId,
        error: &PartitionTaskError,
    ) -> Result<(), LoopError> {
        tracing::error!(partition = id, %error, "the local store failed; rebuilding it from Kafka");
        self.stop_reading(id)?;
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        let before = std::mem::replace(&mut task.state, PartitionState::StoreFailed);
        // Signals and the ledger of all partitions wait for them.
        task.waiting_inputs = Vec::new().into_iter();
        if matches!(before, PartitionState::StoreFailed) {
            return Ok(()); // another write of it has failed, too
        }
        let (now, pause) = (self.clock.monotonic(), self.config.timing.store_retry);
        self.awaited_stores.on_failed(id, now, pause);
        self.report_readiness();
        Ok(())
    }

    /// Takes over again the partitions whose stores have failed, or whose takeover must start
    /// again. No transaction is open, so none contains a step of theirs.
    pub(super) fn start_takeovers_again(&mut self) -> Result<(), LoopError> {
        let now = self.clock.monotonic();
        let is_due = |task: &&PartitionTask<E::Store>| match task.state {
            PartitionState::StoreFailed => self.awaited_stores.may_rebuild(task.id, now),
            PartitionState::Refused(_) => self.truncated_logs.is_retry_due(task.id, now),
            _ => task.must_start_again,
        };
        let ids: Vec<_> = self.tasks.values().filter(is_due).map(|task| task.id).collect();
        ids.into_iter().try_for_each(|id| self.take_over(id))
    }

    fn takeover(&self, id: PartitionId, content: StoreContent) -> Takeover {
        // The nonce must differ from that of every other takeover.
        let nonce = self.environment.nonce() ^ u64::from(id.unsigned_abs()).rotate_left(48);
        Takeover::new(id, &self.config.names, &self.config.partition.owner, nonce, content)
    }

    /// Advances all takeovers as far as possible without waiting.
    pub(super) fn advance_takeovers(&mut self) -> Result<(), LoopError> {
        while let Some(reply) = self.committed_offsets.poll(Duration::ZERO) {
            self.on_committed_offset(reply);
        }
        let restored = self.restore_pool.poll_results();
        self.on_restored(restored)?;
        self.take_awaited_stores()?;
        let restoring =
            |task: &&PartitionTask<E::Store>| matches!(task.state, PartitionState::Restoring(_));
        let ids: Vec<_> = self.tasks.values().filter(restoring).map(|task| task.id).collect();
        for id in ids {
            match self.advance_takeover(id) {
                Ok(()) => {}
                Err(LoopError::Store(error)) => self.on_store_failed(id, &error.into())?,
                Err(other) => return Err(other),
            }
        }
        self.resume_waiting()
    }

    fn advance_takeover(&mut self, id: PartitionId) -> Result<(), LoopError> {
        loop {
            let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
            let PartitionState::Restoring(restoring) = &mut task.state else { return Ok(()) };
            let Some(takeover) = &restoring.takeover else { return Ok(()) };
            let request = takeover.next_request();
            if restoring.requested.as_ref() != Some(&request) {
                restoring.requested = Some(request.clone());
                self.start_request(id, &request)?;
                continue;
            }
            let before = request.clone();
            match request {
                TakeoverRequest::Offsets | TakeoverRequest::Barrier { .. } => {}
                TakeoverRequest::Mirror { .. } | TakeoverRequest::Ledger { .. } => {
                    self.feed_ledger(id)?
                }
                TakeoverRequest::Triggers { .. } => self.feed_triggers(id),
                TakeoverRequest::Nothing => return self.activate(id),
            }
            let Some(task) = self.tasks.get(&id) else { return Ok(()) };
            let PartitionState::Restoring(restoring) = &task.state else { return Ok(()) };
            if restoring.takeover.as_ref().is_none_or(|takeover| takeover.next_request() == before)
            {
                return Ok(());
            }
        }
    }

    /// Starts what the takeover requests.
    fn start_request(
        &mut self,
        id: PartitionId,
        request: &TakeoverRequest,
    ) -> Result<(), LoopError> {
        tracing::debug!(partition = id, ?request, "takeover");
        let (triggers, ledger) = (self.config.names.triggers(), self.config.names.ledger());
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        task.read_at = self.clock.monotonic();
        let PartitionState::Restoring(restoring) = &mut task.state else { return Ok(()) };
        match request {
            TakeoverRequest::Offsets => self.request_offsets(id),
            TakeoverRequest::Barrier { .. } => {
                E::reached("takeover.before_barrier");
                let must_wipe = restoring.takeover.as_ref().is_some_and(|it| it.must_wipe());
                if must_wipe && !restoring.has_new_store {
                    self.replace_store(id);
                }
            }
            TakeoverRequest::Mirror { from, .. } => {
                restoring.restart_ledger(*from);
                self.signals_and_ledger.start(&ledger, id, *from)?;
            }
            TakeoverRequest::Ledger { from } => {
                E::reached("takeover.before_ledger");
                restoring.restart_ledger(*from);
                self.signals_and_ledger.start(&ledger, id, *from)?;
            }
            TakeoverRequest::Triggers { from, until } => {
                E::reached("takeover.before_replay");
                self.signals_and_ledger.stop(&ledger, id)?;
                task.start_replay(*from, *until);
                task.on_triggers_started(self.clock.monotonic());
                self.triggers.start(&triggers, id, *from)?;
            }
            TakeoverRequest::Nothing => {}
        }
        Ok(())
    }

    /// Asks for the committed offset, beside the loop.
    fn request_offsets(&mut self, id: PartitionId) {
        E::reached("takeover.before_offsets");
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let PartitionState::Restoring(restoring) = &mut task.state else { return };
        self.committed_offsets.submit(CommittedOffsetJob {
            partition: id,
            nonce: restoring.nonce,
            offsets: self.member.committed_offsets(),
            cluster: self.cluster.clone(),
            names: self.config.names.clone(),
            short_logs: self.truncated_logs.of(id),
            clock: self.clock.clone(),
            cancelled: Arc::clone(&restoring.cancelled),
            timeout: committed_offset::FIRST_TIMEOUT,
            report_at: self.clock.monotonic() + committed_offset::LONG_WAIT,
            turn_max: self.config.timing.turn_max,
            session_timeout: self.config.session_timeout,
            looked_at: self.clock.monotonic(),
            fences_from: Duration::ZERO,
        });
    }

    fn on_committed_offset(&mut self, reply: CommittedOffsetReply) {
        let CommittedOffsetReply { partition: id, nonce, offsets } = reply;
        let Some(committed) = offsets else { return };
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let PartitionState::Restoring(restoring) = &mut task.state else { return };
        if restoring.nonce != nonce {
            return; // the answer to an earlier takeover
        }
        let Some(takeover) = &mut restoring.takeover else { return };
        if let Err(refusal) = takeover.on_offsets(committed) {
            self.refuse(id, refusal);
            return;
        }
        let gaps = std::mem::take(&mut takeover.gaps);
        if let Some(CutSignals { end, offset }) = takeover.cut_signals.take() {
            let topic = self.config.names.signals();
            tracing::warn!(
                partition = id,
                topic,
                end,
                offset,
                "the log was cut at `end`, below the committed offset, or created again, and has \
                 new records since: it is read from `end` on; reports of callbacks that were \
                 written before the cut and not read are lost, and their triggers continue after \
                 scheduler.callback_result_timeout"
            );
        }
        for OffsetGap { topic, from, until } in gaps {
            self.report_lost(id, topic, from, until);
        }
    }

    pub(super) fn refuse(&mut self, id: PartitionId, refusal: TakeoverError) {
        tracing::error!(partition = id, %refusal, "the partition is not taken over");
        let now = (self.clock.now_ms(), self.clock.monotonic());
        self.truncated_logs.on_refused(id, &refusal, now);
        if let Some(task) = self.tasks.get_mut(&id) {
            task.state = PartitionState::Refused(refusal);
        }
        self.report_readiness();
    }

    /// Sends the ledger records that were read to the restore pool, once there are enough. If only
    /// the mirror is requested, applies them here, because they are few.
    fn feed_ledger(&mut self, id: PartitionId) -> Result<(), LoopError> {
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        let PartitionState::Restoring(restoring) = &mut task.state else { return Ok(()) };
        let position = restoring.ledger_position;
        if matches!(restoring.requested, Some(TakeoverRequest::Mirror { .. })) {
            let found = std::mem::take(&mut restoring.ledger).decode(id, self.decoder.schemas());
            let Some(takeover) = &mut restoring.takeover else { return Ok(()) };
            let result = found.and_then(|records| {
                takeover.on_ledger(records, position, &IndexRows::default()).map(drop)
            });
            if let Err(refusal) = result {
                self.refuse(id, refusal);
            }
        } else if restoring.is_ledger_batch_full() || restoring.barrier_read {
            let spare = std::mem::take(&mut restoring.spare_buffer);
            let raw = std::mem::replace(&mut restoring.ledger, spare);
            restoring.records_read += raw.len();
            self.submit_restore(id, RestoreWork::Ledger(raw, position));
        }
        Ok(())
    }

    fn feed_triggers(&mut self, id: PartitionId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let PartitionState::Restoring(restoring) = &mut task.state else { return };
        if !restoring.is_triggers_batch_full() && !restoring.triggers_complete {
            return;
        }
        let records = restoring.take_triggers();
        let last = restoring.triggers.is_empty() && restoring.triggers_complete;
        let covered_at = restoring.covered_at;
        self.submit_restore(id, RestoreWork::Triggers(LogBatch { records, covered_at, last }));
    }

    /// Sends a takeover and its records to the restore pool.
    fn submit_restore(&mut self, id: PartitionId, work: RestoreWork) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let PartitionState::Restoring(restoring) = &mut task.state else { return };
        let Some(takeover) = restoring.takeover.take() else { return };
        let (store, cluster) = (Arc::clone(&task.store), self.config.cluster_id.clone());
        let now = self.clock.now_ms();
        let request = RestoreRequest { partition: id, takeover, store, cluster, now, work };
        self.restore_pool.submit(request);
    }

    /// Waits until all submitted records are applied. Called before a store is closed and before
    /// the position of a takeover is used.
    pub(super) fn await_restores(&mut self) -> Result<(), LoopError> {
        let restored = self.restore_pool.drain();
        self.on_restored(restored)
    }

    fn on_restored(&mut self, restored: Vec<RestoreResult>) -> Result<(), LoopError> {
        for RestoreResult { partition, takeover, result, spare_buffer } in restored {
            let Some(task) = self.tasks.get_mut(&partition) else { continue };
            let PartitionState::Restoring(restoring) = &mut task.state else { continue };
            if restoring.nonce != takeover.nonce() {
                continue; // the result of an earlier takeover
            }
            restoring.takeover = Some(takeover);
            restoring.spare_buffer = spare_buffer;
            match result {
                Ok(()) => {}
                Err(RestoreError::Refused(refusal)) => self.refuse(partition, refusal),
                Err(RestoreError::Store(error)) => {
                    self.on_store_failed(partition, &error.into())?
                }
            }
        }
        Ok(())
    }

    /// The takeover is complete: the partition may fire.
    fn activate(&mut self, id: PartitionId) -> Result<(), LoopError> {
        E::reached("takeover.before_activate");
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        let PartitionState::Restoring(mut restoring) = task.take_state() else { return Ok(()) };
        let records = restoring.records_read;
        let live = std::mem::take(&mut restoring.live_inputs);
        let takeover = restoring.takeover.as_mut();
        let start = takeover
            .expect("a takeover without a further request is not in the restore pool")
            .finish();
        let cursor = start.cursor;
        if !self.range_checks.is_open(id, InputLog::Triggers) {
            self.truncated_logs.on_not_shorter(id, &self.config.names.triggers());
        }
        self.truncated_logs.on_taken_over(id);
        self.end_offsets.on_taken_over(id);
        task.next_signal = cursor.next_signal_offset;
        task.end_check = EndCheck::Idle;
        let mut partition = self.partition(id, start);
        let behind = partition.observe_clock(self.clock.now_ms());
        partition.on_taken_over();
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        if behind > 0 {
            task.parking.truncate(cursor.next_offset);
        }
        partition.hold(task.parking.triggers().map(IdHash::of));
        if behind > 0 {
            tracing::error!(
                partition = id,
                behind_ms = behind,
                "the local clock is behind the decisions of an earlier owner; waiting, so that \
                 nothing fires early"
            );
            // Nothing can be decided yet, so nothing is ingested: reading restarts when the
            // partition is activated.
            task.next_trigger = cursor.next_offset;
            task.state = PartitionState::WaitingForClock(Box::new(partition));
            self.triggers.stop(&self.config.names.triggers(), id)?;
            return Ok(());
        }
        task.state = PartitionState::Active(Box::new(partition));
        let took = self.clock.monotonic() - task.takeover_started_at;
        self.reporter.taken_over(took);
        tracing::info!(partition = id, took_ms = took.as_millis(), records, "taken over");
        if let Err(error) = task.ingest(live) {
            return self.on_store_failed(id, &error);
        }
        self.start_log(id, InputLog::Signals)?;
        self.report_readiness();
        E::reached("takeover.after_activate");
        Ok(())
    }

    fn partition(&self, id: PartitionId, start: PartitionStart) -> Partition {
        let wheel = self.config.wheel;
        let tasks = u64::try_from(self.tasks.len().max(1)).unwrap_or(1);
        let share = |bytes: u64| usize::try_from(bytes / tasks).unwrap_or(usize::MAX);
        let spill_bytes = share(self.config.write_buffer);
        let config = PartitionConfig { spill_bytes, ..self.config.partition.clone() };
        let at = start.cursor.fired_through;
        let wheel = Wheel::new(wheel.tick, wheel.horizon, share(wheel.memory_max), at);
        Partition::new(id, config, start, wheel)
    }

    /// On the built-in broker no partition is taken over: starts at the beginning of the topics.
    fn start_trial(&mut self, id: PartitionId, store: Arc<E::Store>) -> Result<(), LoopError> {
        let start = PartitionStart {
            cursor: Cursor::initial(0, 0),
            last_timestamp: 0,
            index_complete_from: 0,
            skips: std::collections::BTreeSet::default(),
        };
        self.triggers.start(&self.config.names.triggers(), id, 0)?;
        self.signals_and_ledger.start(&self.config.names.signals(), id, 0)?;
        let partition = Box::new(self.partition(id, start));
        let now = self.clock.monotonic();
        let mut task = PartitionTask::in_state(id, store, PartitionState::Active(partition), now);
        task.on_triggers_started(now);
        let _none = self.tasks.insert(id, task);
        self.report_readiness();
        Ok(())
    }

    /// Activates the partitions whose clock has caught up.
    fn resume_waiting(&mut self) -> Result<(), LoopError> {
        let now = self.clock.now_ms();
        let mut resumed = Vec::new();
        for task in self.tasks.values_mut() {
            let PartitionState::WaitingForClock(partition) = &mut task.state else { continue };
            if partition.observe_clock(now) > 0 {
                continue;
            }
            if let PartitionState::WaitingForClock(partition) = task.take_state() {
                task.state = PartitionState::Active(partition);
            }
            resumed.push(task.id);
        }
        for id in &resumed {
            self.start_log(*id, InputLog::Triggers)?;
            self.start_log(*id, InputLog::Signals)?;
        }
        if !resumed.is_empty() {
            self.report_readiness();
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "takeover/tests.rs"]
mod tests;
