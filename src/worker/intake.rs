//! From the log to callbacks in progress: a partition's committed progress, its records, and the
//! results of callbacks.
//!
//! Invariant: no more callbacks are in progress than the setting allows. At that limit nothing is
//! read, and librdkafka stops fetching when its own buffer is full. One caller alone cannot reach
//! the limit: see `dispatch`.

use std::time::Duration;

use bytes::Bytes;

use super::circuit::Route;
use super::completion::{CompletedFire, Completion};
use super::dispatch::{Permit, WaitingFire};
use super::partition::{RecordAdmission, RunningPartition, WorkerPartition};
use super::report::UnreadableRecord;
use super::{Worker, WorkerError};
use crate::clock;
use crate::codec::schemas::CodecError;
use crate::fault;
use crate::kafka::error::{ClientError, ClientResult};
use crate::kafka::reader::ReadEvent;
use crate::kafka::record::ConsumerRecord;
use crate::model::definition::Header;
use crate::model::fire::WorkerRecord;
use crate::model::text::Text;
use crate::model::{Millis, Offset, PartitionId};
use crate::telemetry;

/// Records read in one iteration of the loop: the group and the results must be served too.
const READ_MAX: usize = 1_000;
/// Pause before the committed progress is requested again after a failure.
const POSITION_RETRY_PAUSE: Duration = Duration::from_millis(200);

/// What other threads send to the loop.
#[derive(Debug)]
pub(super) enum WorkerEvent {
    /// The committed progress of a partition, or why it is not known yet.
    Position { partition: PartitionId, epoch: u64, position: ClientResult<CommittedPosition> },
    /// How the brokers have answered after an error.
    Answer(ClientResult<()>),
    /// A callback ended.
    CallbackEnded(CompletedFire, Permit),
}

/// The committed progress of a partition, and the bounds of its log.
#[derive(Debug)]
pub(super) struct CommittedPosition {
    committed: Option<(Offset, String)>,
    /// The first offset that is still in the log.
    low: Offset,
    /// The end of the log: the offset of the next record.
    end: Offset,
}

impl Worker {
    /// Starts a new epoch of a partition: requests its committed progress from the broker. That may
    /// take until a dead worker's transaction is undone, so another thread waits for the answer.
    pub(super) fn start_epoch(&mut self, partition: PartitionId) {
        self.epochs_started += 1;
        self.discard_waiting(partition);
        self.partitions.insert(partition, WorkerPartition::new(self.epochs_started));
        self.request_position(partition, self.epochs_started, Duration::ZERO);
    }

    fn request_position(&self, partition: PartitionId, epoch: u64, pause: Duration) {
        self.ask_for_position(partition, pause, move |position| WorkerEvent::Position {
            partition,
            epoch,
            position,
        });
    }

    /// Asks the brokers for a position on another thread, after a pause, and sends the event.
    fn ask_for_position(
        &self,
        partition: PartitionId,
        pause: Duration,
        event: impl FnOnce(ClientResult<CommittedPosition>) -> WorkerEvent + Send + 'static,
    ) {
        let (offsets, probe) = (self.member.committed_offsets(), self.probe.clone());
        let (topic, events) = (self.topic.clone(), self.events.0.clone());
        self.runtime.spawn(async move {
            tokio::time::sleep(pause).await;
            let offsets = tokio::task::spawn_blocking(move || {
                let (low, end) = probe.bounds(&topic, partition)?;
                let committed = offsets.committed(partition, super::CALL_TIMEOUT)?;
                Ok(CommittedPosition { committed, low, end })
            });
            let position = offsets.await.unwrap_or_else(|_| Err(ClientError::cancelled()));
            // The loop has ended if the channel is closed.
            let _ = events.send(event(position));
        });
    }

    /// Handles the events of other threads.
    pub(super) fn process_events(&mut self) -> Result<(), WorkerError> {
        while let Ok(event) = self.events.1.try_recv() {
            self.on_event(event)?;
        }
        Ok(())
    }

    pub(super) fn on_event(&mut self, event: WorkerEvent) -> Result<(), WorkerError> {
        match event {
            WorkerEvent::Position { partition, epoch, position } => {
                self.on_position(partition, epoch, position)?;
            }
            WorkerEvent::Answer(answer) => self.readiness.on_answer(answer),
            WorkerEvent::CallbackEnded(ended, permit) => self.on_callback_ended(ended, &permit),
        }
        Ok(())
    }

    fn on_position(
        &mut self,
        partition: PartitionId,
        epoch: u64,
        position: ClientResult<CommittedPosition>,
    ) -> Result<(), WorkerError> {
        let Some(owned) = self.partitions.get_mut(&partition).filter(|owned| owned.epoch == epoch)
        else {
            return Ok(());
        };
        let CommittedPosition { committed, low, end } = match position {
            Ok(position) => position,
            Err(error) => {
                tracing::warn!(partition, %error, "no committed progress; retrying");
                self.request_position(partition, epoch, POSITION_RETRY_PAUSE);
                return Ok(());
            }
        };
        let (offset, metadata) = committed.unwrap_or((low, String::new()));
        let mut running = RunningPartition::restore(offset, &metadata, end)?;
        let known = running.progress.drop_below(low);
        if offset < low {
            tracing::error!(
                partition,
                committed = offset,
                first = low,
                known,
                "fires were deleted before they were delivered: the retention of {} is shorter \
                 than the time that no worker ran",
                self.topic
            );
        }
        self.reader.start(&self.topic, partition, running.progress.commit_offset())?;
        owned.running = Some(running);
        self.report_readiness();
        Ok(())
    }

    /// Reads fires and starts their callbacks; waits at most `wait` for the first.
    pub(super) fn read(&mut self, wait: Duration) -> Result<(), WorkerError> {
        let mut wait = wait;
        if !self.is_full() {
            self.read_again()?;
        }
        for _ in 0..READ_MAX {
            if self.is_full() {
                // Only the end of a callback frees capacity, so wait for one.
                if let Ok(event) = self.events.1.recv_timeout(wait) {
                    self.on_event(event)?;
                }
                return Ok(());
            }
            let fetched = match self.reader.poll(wait) {
                Ok(None) => return Ok(()),
                Ok(Some(ReadEvent::PartitionEof(partition))) => {
                    self.readiness.on_read(partition);
                    continue;
                }
                Ok(Some(ReadEvent::Record(record))) => FetchedRecord::of(&record),
                Ok(Some(ReadEvent::OutOfRange(reason))) => {
                    tracing::error!(%reason, "the offset to read is out of range");
                    return self.restart_partitions();
                }
                Err(error) => {
                    tracing::warn!(%error, "fires cannot be read");
                    return self.on_read_error(&error);
                }
            };
            wait = Duration::ZERO;
            self.readiness.on_read(fetched.partition);
            self.process_record(fetched)?;
        }
        Ok(())
    }

    /// Everything is read again: a partition at its end would return nothing.
    fn on_read_error(&mut self, error: &ClientError) -> Result<(), WorkerError> {
        let read = self.partitions.iter().filter_map(|(partition, owned)| {
            owned.running.as_ref()?.position().map(|_| *partition)
        });
        self.readiness.on_error(error, read, clock::monotonic());
        self.read_again()
    }

    /// Reads partitions again that have returned nothing since an error, and asks the brokers, if
    /// it is time.
    fn read_again(&mut self) -> Result<(), WorkerError> {
        for partition in self.readiness.next_reads(clock::monotonic()) {
            let running = self.partitions.get(&partition).and_then(|owned| owned.running.as_ref());
            match running.and_then(RunningPartition::position) {
                Some(offset) => self.reader.start(&self.topic, partition, offset)?,
                None => self.readiness.on_read(partition),
            }
        }
        if let Some(pause) = self.readiness.next_question() {
            let partition = self.partitions.keys().next().copied().unwrap_or_default();
            let event = |answer: ClientResult<_>| WorkerEvent::Answer(answer.map(drop));
            self.ask_for_position(partition, pause, event);
        }
        Ok(())
    }

    fn process_record(&mut self, record: FetchedRecord) -> Result<(), WorkerError> {
        let FetchedRecord { partition, offset, .. } = record;
        self.reserve_offset(partition, offset)?;
        let Some(owned) = self.partitions.get_mut(&partition) else { return Ok(()) };
        let epoch = owned.epoch;
        let Some(running) = &mut owned.running else { return Ok(()) };
        match running.admit(offset) {
            RecordAdmission::Ignore => return Ok(()),
            RecordAdmission::WindowFull => {
                self.defer_waiting(partition);
                return Ok(self.reader.stop(&self.topic, partition)?);
            }
            RecordAdmission::NotReserved => return Ok(self.reader.stop(&self.topic, partition)?),
            RecordAdmission::Deliver => {}
        }
        match self.schemas.decode_worker_record(record.value.as_deref().unwrap_or_default()) {
            Ok(WorkerRecord::Callback(fire)) => {
                let route = Route::of(&fire);
                self.offer(WaitingFire { partition, epoch, offset, route, fire });
            }
            Ok(WorkerRecord::Withdrawal(withdrawal)) => {
                self.withdraw((partition, epoch, offset), &withdrawal);
            }
            Err(error @ CodecError::Newer { .. }) => return Err(error.into()),
            Err(error @ CodecError::Corrupt { .. }) => {
                let FetchedRecord { key, value, headers, .. } = record;
                let unreadable =
                    UnreadableRecord { key, value, headers, reason: error.to_string() };
                let completion = Completion::Unreadable(unreadable);
                self.record_completion(CompletedFire {
                    partition,
                    epoch,
                    offset,
                    at: clock::now_ms(),
                    completion,
                });
            }
        }
        Ok(())
    }

    /// Before the callback at `offset` may start, a commit must have reserved the offset.
    fn reserve_offset(
        &mut self,
        partition: PartitionId,
        offset: Offset,
    ) -> Result<(), WorkerError> {
        let running = self.partitions.get_mut(&partition).and_then(|owned| owned.running.as_mut());
        if running.is_none_or(|running| running.on_record(offset)) { Ok(()) } else { self.commit() }
    }

    /// Starts a callback.
    pub(super) fn start_callback(&mut self, waiting: WaitingFire, permit: Permit) {
        let WaitingFire { partition, epoch, offset, fire, .. } = waiting;
        let (caller, events) = (self.caller.clone(), self.events.0.clone());
        self.runtime.spawn(async move {
            fault::reached("worker.before_request");
            let started = clock::monotonic();
            let response = caller.call(&fire, clock::now_ms()).await;
            let took = clock::monotonic() - started;
            fault::reached("worker.after_request");
            metrics::histogram!(telemetry::CALLBACK_DURATION).record(took.as_secs_f64());
            let took = Millis::try_from(took.as_millis()).unwrap_or(Millis::MAX);
            let completion = Completion::Attempt(fire, response, took);
            let ended = CompletedFire { partition, epoch, offset, at: clock::now_ms(), completion };
            // The loop has ended if the channel is closed.
            let _ = events.send(WorkerEvent::CallbackEnded(ended, permit));
        });
    }

    pub(super) fn record_completion(&mut self, ended: CompletedFire) {
        self.oldest_result_at.get_or_insert_with(clock::monotonic);
        self.completed.push(ended);
    }
}

/// A record of `fires`, copied out of librdkafka's buffer.
struct FetchedRecord {
    partition: PartitionId,
    offset: Offset,
    key: Option<Bytes>,
    value: Option<Bytes>,
    headers: Vec<Header>,
}

impl FetchedRecord {
    fn of(record: &ConsumerRecord<'_>) -> Self {
        let (_topic, partition, offset) = record.position();
        let headers = record.headers().map(|(name, value)| Header {
            name: Text::from(name),
            value: value.map(Bytes::copy_from_slice),
        });
        Self {
            partition,
            offset,
            key: record.key().map(Bytes::copy_from_slice),
            value: record.value().map(Bytes::copy_from_slice),
            headers: headers.collect(),
        }
    }
}
