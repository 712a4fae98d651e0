//! From the log to callbacks in progress: a partition's committed progress, its records, and the
//! results of callbacks.
//!
//! Invariant: no more callbacks are in progress than the setting allows. At that limit nothing is
//! read, and the client stops fetching when its own buffer is full. One caller alone cannot reach
//! the limit: see `dispatch`.

use std::sync::Arc;
use std::time::Duration;

use super::callback::{CallbackMaking as _, FirePlace, WorkerEnvironment};
use super::completion::{CompletedFire, Completion, ReportContext};
use super::dispatch::WaitingFire;
use super::fetched_record::FetchedRecord;
use super::partition::{RecordAdmission, RunningPartition, WorkerPartition};
use super::position::{CommittedPosition, PositionJob, PositionPurpose, PositionReply};
use super::report::UnreadableRecord;
use super::{BUSY_WAIT, Worker, WorkerLoopError};
use crate::codec::schemas::CodecError;
use crate::environment::Clock as _;
use crate::environment::call_error::{CallError, CallResult};
use crate::environment::group::GroupMembership as _;
use crate::environment::job::JobQueue as _;
use crate::environment::log::{LogEvent, LogReading as _};
use crate::model::fire::WorkerRecord;
use crate::model::time::whole_ms;
use crate::model::{Offset, PartitionId, Timestamp};

/// Records read in one turn of the loop: the group and the results must be served too.
const READ_MAX: usize = 1_000;

impl<E: WorkerEnvironment> Worker<E> {
    /// Starts a new epoch of a partition: requests its committed progress from the broker.
    pub(super) fn start_epoch(&mut self, partition: PartitionId) {
        self.epochs_started += 1;
        self.discard_waiting(partition);
        let owned = WorkerPartition::new(self.epochs_started);
        self.request_position(partition, &owned, 0);
        let _before = self.partitions.insert(partition, owned);
    }

    pub(super) fn request_position(
        &mut self,
        partition: PartitionId,
        owned: &WorkerPartition,
        read_end: Offset,
    ) {
        let has_ended = Arc::clone(&owned.has_ended);
        self.ask_for_position(partition, PositionPurpose::Epoch(owned.epoch, has_ended, read_end));
    }

    fn ask_for_position(&mut self, partition: PartitionId, purpose: PositionPurpose) {
        self.positions.submit(PositionJob {
            offsets: self.member.committed_offsets(),
            cluster: self.cluster.clone(),
            topic: self.config.topic.clone(),
            partition,
            purpose,
            timeout: self.config.timing.call_timeout,
            pause: self.config.timing.position_pause,
        });
    }

    /// Handles what was read of committed progress.
    pub(super) fn poll_positions(&mut self) -> Result<(), WorkerLoopError> {
        while let Some(reply) = self.positions.poll(Duration::ZERO) {
            let (partition, epoch, read_end, position) = match reply {
                PositionReply::Position(partition, epoch, read_end, position) => {
                    (partition, epoch, read_end, position)
                }
                PositionReply::Answer(answer) => {
                    let now = self.clock.monotonic();
                    self.readiness.reading.on_answer(answer, now);
                    continue;
                }
                PositionReply::Ended => continue,
            };
            let owned = self.partitions.get(&partition).filter(|owned| owned.epoch == epoch);
            match owned.map(|owned| owned.running.is_some()) {
                None => {}
                Some(false) => self.on_position(partition, position)?,
                Some(true) => self.on_bounds(partition, read_end, &position)?,
            }
        }
        Ok(())
    }

    fn on_position(
        &mut self,
        partition: PartitionId,
        position: CommittedPosition,
    ) -> Result<(), WorkerLoopError> {
        let CommittedPosition { committed, low, end } = position;
        let end = self.end_after_cut(partition, end);
        let (offset, metadata) = committed.clone().unwrap_or((low, String::new()));
        let mut running = RunningPartition::restore(offset, &metadata, end)?;
        let read = running.read_end();
        if running.cut(end) {
            self.report_cut(partition, read, end);
        }
        let deleted = (offset < low).then(|| running.skip_deleted(0, (low, end)));
        if let Some(deleted) = deleted.filter(|deleted| deleted.may_be_fires()) {
            tracing::error!(
                partition,
                committed = offset,
                first = low,
                known = deleted.known,
                unread = deleted.unread,
                "fires were deleted before they were delivered: the retention of {} is shorter \
                 than the time that no worker ran",
                self.config.topic
            );
        }
        if committed.is_none() && low < end {
            let retention = whole_ms(self.config.offsets_retention);
            let time = self.clock.now_ms().saturating_sub(retention);
            tracing::warn!(
                partition,
                "no progress is committed: fires that are older than the brokers keep the offsets \
                 of a group without members become dead letters, all others are delivered"
            );
            running.set_unknown(time, end);
        }
        running.set_committed(committed);
        self.reader.start(&self.config.topic, partition, running.progress.commit_offset())?;
        if let Some(owned) = self.partitions.get_mut(&partition) {
            (owned.running, owned.cut_end) = (Some(running), None);
        }
        self.report_readiness();
        Ok(())
    }

    /// Handles the callbacks that have ended.
    pub(super) fn process_ended(&mut self) {
        while let Some(end) = self.callbacks.poll(Duration::ZERO) {
            self.on_callback_ended(end);
        }
    }

    /// Reads fires and starts their callbacks; waits at most `wait` for the first.
    pub(super) fn read(&mut self, wait: Duration) -> Result<(), WorkerLoopError> {
        let mut wait = wait;
        if !self.is_full() {
            self.read_again()?;
        }
        for _ in 0..READ_MAX {
            if self.is_full() {
                // Only the end of a callback or of a transaction frees capacity.
                let is_idle = self.transaction.is_idle();
                let wait = if is_idle { wait } else { wait.min(BUSY_WAIT) };
                if let Some(end) = self.callbacks.poll(wait) {
                    self.on_callback_ended(end);
                }
                return Ok(());
            }
            match self.fetch(wait) {
                Ok(None) => return Ok(()),
                Ok(Some(LogEvent::End(partition))) => self.readiness.reading.on_read(partition),
                Ok(Some(LogEvent::Record(record))) => {
                    wait = Duration::ZERO;
                    self.readiness.reading.on_read(record.partition);
                    self.process_record(record)?;
                }
                Ok(Some(LogEvent::OutOfRange)) => {
                    self.bounds_check.request();
                    return Ok(());
                }
                Err(error) => {
                    tracing::warn!(%error, "fires cannot be read");
                    return self.on_read_error(&error);
                }
            }
        }
        Ok(())
    }

    /// The next event of the log, copied.
    fn fetch(&self, wait: Duration) -> CallResult<Option<LogEvent<FetchedRecord>>> {
        Ok(self.reader.poll(wait)?.map(|event| match event {
            LogEvent::Record(record) => LogEvent::Record(FetchedRecord::of(&record)),
            LogEvent::End(partition) => LogEvent::End(partition),
            LogEvent::OutOfRange => LogEvent::OutOfRange,
        }))
    }

    /// Everything is read again: a partition at its end would return nothing.
    fn on_read_error(&mut self, error: &CallError) -> Result<(), WorkerLoopError> {
        let read = self.partitions.iter().filter_map(|(partition, owned)| {
            owned.running.as_ref()?.position().map(|_| *partition)
        });
        self.readiness.reading.on_error(error, read, self.clock.monotonic());
        self.read_again()
    }

    /// Reads partitions again that have returned nothing since an error, and asks the brokers, if
    /// it is time.
    fn read_again(&mut self) -> Result<(), WorkerLoopError> {
        let now = self.clock.monotonic();
        for partition in self.readiness.reading.next_reads(now) {
            let owned = self.partitions.get_mut(&partition);
            let position = owned.and_then(|owned| {
                owned.unreserved.clear();
                owned.running.as_ref()?.position()
            });
            match position {
                Some(offset) => self.reader.start(&self.config.topic, partition, offset)?,
                None => self.readiness.reading.on_read(partition),
            }
        }
        if self.readiness.reading.next_question(now) {
            let partition = self.partitions.keys().next().copied().unwrap_or_default();
            self.ask_for_position(partition, PositionPurpose::Question);
        }
        Ok(())
    }

    /// A record that no commit has reserved waits for one.
    fn process_record(&mut self, record: FetchedRecord) -> Result<(), WorkerLoopError> {
        let partition = record.partition;
        let Some(owned) = self.partitions.get_mut(&partition) else { return Ok(()) };
        let Some(running) = &mut owned.running else { return Ok(()) };
        let is_reserved = running.on_record(record.offset);
        if is_reserved && owned.unreserved.is_empty() {
            return self.admit(record);
        }
        if owned.await_reservation(record) {
            self.reader.stop(&self.config.topic, partition)?;
        }
        Ok(())
    }

    /// Admits the records that a commit has reserved, and resumes reading where it had stopped.
    pub(super) fn admit_reserved(&mut self, partition: PartitionId) -> Result<(), WorkerLoopError> {
        while let Some(record) =
            self.partitions.get_mut(&partition).and_then(WorkerPartition::next_reserved)
        {
            self.admit(record)?;
        }
        let owned = self.partitions.get_mut(&partition);
        let running = owned.and_then(|owned| owned.running.as_mut());
        if let Some(offset) = running.and_then(RunningPartition::take_resume_offset) {
            self.reader.start(&self.config.topic, partition, offset)?;
        }
        Ok(())
    }

    fn admit(&mut self, record: FetchedRecord) -> Result<(), WorkerLoopError> {
        let FetchedRecord { partition, offset, timestamp, .. } = record;
        let Some(owned) = self.partitions.get_mut(&partition) else { return Ok(()) };
        let place = FirePlace { partition, epoch: owned.epoch, offset };
        let Some(running) = &mut owned.running else { return Ok(()) };
        match running.admit(offset) {
            RecordAdmission::Ignore => return Ok(()),
            RecordAdmission::WindowFull => {
                self.defer_waiting(partition, offset);
                return Ok(self.reader.stop(&self.config.topic, partition)?);
            }
            RecordAdmission::NotReserved => {
                return Ok(self.reader.stop(&self.config.topic, partition)?);
            }
            RecordAdmission::Deliver => {}
        }
        let is_unknown = running.is_unknown(offset, timestamp);
        let bytes = record.bytes();
        match self.schemas.decode_worker_record(record.value.as_deref().unwrap_or_default()) {
            Ok(WorkerRecord::Callback(fire)) if is_unknown => {
                self.record_completion(place, Completion::Unknown(fire));
            }
            Ok(WorkerRecord::Callback(fire)) => {
                let route = self.callbacks.route(&fire);
                self.offer(WaitingFire { place, route, fire, bytes });
            }
            Ok(WorkerRecord::Withdrawal(withdrawal)) => self.withdraw(place, &withdrawal),
            Err(error @ CodecError::Newer { .. }) => return Err(error.into()),
            Err(error @ CodecError::Corrupt { .. }) => {
                let FetchedRecord { key, value, headers, .. } = record;
                let reason = error.to_string();
                let unreadable = UnreadableRecord { key, value, headers, reason };
                self.record_completion(place, Completion::Unreadable(unreadable));
            }
        }
        Ok(())
    }

    /// A fire is finished, now.
    pub(super) fn record_completion(&mut self, place: FirePlace, completion: Completion) {
        let at = self.clock.now_ms();
        self.record_completion_at(place, at, completion);
    }

    pub(super) fn record_completion_at(
        &mut self,
        place: FirePlace,
        at: Timestamp,
        completion: Completion,
    ) {
        let owned = self.partitions.get(&place.partition);
        if owned.is_none_or(|owned| owned.epoch != place.epoch) {
            return; // another owner makes the callback
        }
        let result = CompletedFire::new(place, at, completion, &self.report_context());
        self.results.add(result, self.clock.monotonic());
    }

    pub(super) fn report_context(&self) -> ReportContext<'_> {
        ReportContext {
            topic: &self.config.topic,
            worker: &self.config.name,
            default_retry_policy: &self.config.default_retry_policy,
        }
    }
}
