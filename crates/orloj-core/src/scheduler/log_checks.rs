//! Checks of a log that need its bounds: whether all of it is read, and what there is where a
//! reader is out of range.
//!
//! Invariant: the bounds are requested beside the loop, so that a partition without a leader delays
//! no other one. An answer counts only if nothing has been read or started since the request.

use std::time::Duration;

use super::partition_task::{EndCheck, InputLog, PartitionState, PartitionTask};
use super::read_pause::ReadPause;
use super::{LoopError, Scheduler};
use crate::engine::partition::Input;
use crate::engine::takeover::{TakeoverError, TakeoverRequest};
use crate::environment::call_error::CallResult;
use crate::environment::job::{Job, JobQueue as _, JobStep};
use crate::environment::log::LogReading as _;
use crate::environment::{Clock as _, ClusterQueries, Environment, Reporter as _};
use crate::model::{Offset, PartitionId};

/// Why bounds are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogCheck {
    /// The reader is at the end of `triggers`, below the known end offset.
    TriggersEnd,
    /// The reader is at the end of the ledger, while it searches a mirror of the cursor.
    LedgerEnd,
    /// The offset at which the reader is does not exist.
    OutOfRange,
}

/// The bounds of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogBounds {
    /// The first offset.
    low: Offset,
    /// Where a reader stops.
    stable: Offset,
    /// The end offset (exclusive), requested after `stable`.
    end: Offset,
}

/// Asks for the bounds of one partition.
#[derive(Debug)]
pub(super) struct LogBoundsJob<C> {
    cluster: C,
    check: LogCheck,
    topic: String,
    partition: PartitionId,
    number: u64,
}

/// The answer, and the request that it belongs to.
#[derive(Debug)]
pub(super) struct LogBoundsReply {
    check: LogCheck,
    topic: String,
    partition: PartitionId,
    number: u64,
    /// `None`: the request failed.
    bounds: Option<LogBounds>,
}

impl<C: ClusterQueries> Job for LogBoundsJob<C> {
    type Output = LogBoundsReply;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<LogBoundsReply> {
        let Self { check, partition, number, .. } = *self;
        let topic = std::mem::take(&mut self.topic);
        let stable = self.cluster.last_stable_offset(&topic, partition);
        let bounds = stable.and_then(|stable| {
            let (low, end) = self.cluster.bounds(&topic, partition)?;
            Ok(LogBounds { low, stable, end })
        });
        if let Err(error) = &bounds {
            tracing::debug!(topic, partition, %error, "the bounds of a log cannot be read");
        }
        JobStep::Done(LogBoundsReply { check, topic, partition, number, bounds: bounds.ok() })
    }
}

impl<E: Environment> Scheduler<E> {
    /// Requests the bounds of a log. Returns the number of the request.
    fn request_bounds(&mut self, check: LogCheck, topic: String, partition: PartitionId) -> u64 {
        self.bounds_requests += 1;
        let (cluster, number) = (self.cluster.clone(), self.bounds_requests);
        self.log_bounds.submit(LogBoundsJob { cluster, check, topic, partition, number });
        number
    }

    /// Handles the answers since the last call.
    pub(super) fn poll_log_bounds(&mut self) -> Result<(), LoopError> {
        while let Some(reply) = self.log_bounds.poll(Duration::ZERO) {
            match reply.check {
                LogCheck::TriggersEnd => self.on_triggers_bounds(&reply)?,
                LogCheck::LedgerEnd => self.on_ledger_bounds(&reply)?,
                LogCheck::OutOfRange => self.on_range(&reply)?,
            }
        }
        Ok(())
    }

    /// Input seems to be unread, but the reader is at the end of the partition. Either only
    /// transaction markers and aborted records follow, or another process's transaction is still
    /// open. If none is open now, read again from the current position: reaching the end again
    /// proves that all is read.
    pub(super) fn confirm_end(&mut self, id: PartitionId) {
        let topic = self.config.names.triggers();
        let number = self.request_bounds(LogCheck::TriggersEnd, topic, id);
        if let Some(task) = self.tasks.get_mut(&id) {
            task.end_check = EndCheck::Requested(number);
        }
    }

    fn on_triggers_bounds(&mut self, reply: &LogBoundsReply) -> Result<(), LoopError> {
        let now = self.clock.monotonic();
        let Some(task) = self.tasks.get_mut(&reply.partition) else { return Ok(()) };
        if task.end_check != EndCheck::Requested(reply.number) {
            return Ok(());
        }
        match reply.bounds {
            Some(LogBounds { stable, end, .. }) if stable >= end => {
                let until = now + self.config.timing.silence_max;
                task.end_check = EndCheck::Confirming { end, until };
                self.triggers.start(&reply.topic, reply.partition, task.next_trigger)?;
            }
            _ => task.end_check = EndCheck::RetryAt(now + self.config.timing.end_retry),
        }
        Ok(())
    }

    /// Handles the end of `signals` or of the ledger. It matters only while the mirror of a cursor
    /// is being read; then only the ledger is assigned. A read_committed reader stops at the first
    /// open transaction, and the newest mirror may be after it. The end is therefore accepted only
    /// if it is reached after no transaction was open below it.
    pub(super) fn on_ledger_end_reached(&mut self, id: PartitionId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let PartitionState::Restoring(restoring) = &mut task.state else { return };
        let Some(TakeoverRequest::Mirror { until, .. }) = restoring.requested else { return };
        if restoring.ledger_is_stable {
            restoring.ledger_position = restoring.ledger_position.max(until);
        } else if restoring.ledger_check.is_none() {
            let ledger = self.config.names.ledger();
            let number = self.request_bounds(LogCheck::LedgerEnd, ledger, id);
            self.set_ledger_check(id, Some(number));
        }
    }

    fn set_ledger_check(&mut self, id: PartitionId, check: Option<u64>) {
        if let Some(PartitionState::Restoring(restoring)) =
            self.tasks.get_mut(&id).map(|task| &mut task.state)
        {
            restoring.ledger_check = check;
        }
    }

    fn on_ledger_bounds(&mut self, reply: &LogBoundsReply) -> Result<(), LoopError> {
        let id = reply.partition;
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        let PartitionState::Restoring(restoring) = &mut task.state else { return Ok(()) };
        let Some(TakeoverRequest::Mirror { from, until }) = restoring.requested else {
            return Ok(());
        };
        if restoring.ledger_check != Some(reply.number) {
            return Ok(());
        }
        restoring.ledger_check = None;
        match reply.bounds {
            Some(LogBounds { stable, .. }) if stable >= until => restoring.ledger_is_stable = true,
            Some(LogBounds { stable, .. }) => {
                tracing::info!(
                    partition = id,
                    stable,
                    until,
                    "a transaction is open below the end of the ledger"
                );
            }
            None => {}
        }
        let position = restoring.ledger_position.max(from);
        Ok(self.signals_and_ledger.start(&reply.topic, id, position)?)
    }

    /// A reader is at an offset that does not exist. A takeover starts again: it reads the bounds
    /// of all logs. An active partition asks for those of this one.
    pub(super) fn on_out_of_range(&mut self, topic: String, id: PartitionId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        match &mut task.state {
            PartitionState::Restoring(_) => {
                tracing::warn!(partition = id, topic, "out of range; the takeover starts again");
                task.must_start_again = true;
            }
            PartitionState::Active(_) => {
                let number = self.request_bounds(LogCheck::OutOfRange, topic.clone(), id);
                if let Some(task) = self.tasks.get_mut(&id) {
                    *task.out_of_range(InputLog::of(&topic, &self.config.names)) = Some(number);
                }
            }
            _ => {}
        }
    }

    /// What is below the first offset is lost: says so, and goes on at that offset. If the log ends
    /// below the position, records that were read are lost, and new ones would be passed over: the
    /// partition stops.
    fn on_range(&mut self, reply: &LogBoundsReply) -> Result<(), LoopError> {
        let LogBoundsReply { topic, partition: id, .. } = reply;
        let input = InputLog::of(topic, &self.config.names);
        let Some(task) = self.tasks.get_mut(id) else { return Ok(()) };
        if !matches!(task.state, PartitionState::Active(_))
            || *task.out_of_range(input) != Some(reply.number)
        {
            return Ok(());
        }
        *task.out_of_range(input) = None;
        let position = task.position(input);
        let Some(LogBounds { low, end, .. }) = reply.bounds else {
            self.on_out_of_range(topic.clone(), *id);
            return Ok(());
        };
        if end < position {
            self.stop_reading(*id)?;
            let (topic, offset) = (topic.clone(), position);
            self.refuse(*id, TakeoverError::TopicTruncated { partition: *id, topic, end, offset });
            return Ok(());
        }
        if low > position {
            self.report_lost(*id, topic, position, low);
            self.skip_deleted(*id, input, low)?;
        }
        self.start_input(*id, input)
    }

    /// Records below `low` are deleted: goes on there.
    fn skip_deleted(
        &mut self,
        id: PartitionId,
        input: InputLog,
        low: Offset,
    ) -> Result<(), LoopError> {
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        let deleted = match input {
            InputLog::Triggers => {
                (task.next_trigger, task.end_check) = (low, EndCheck::Idle);
                Input::TriggersDeleted(low)
            }
            InputLog::Signals => {
                task.next_signal = low;
                Input::SignalsDeleted(low)
            }
        };
        match task.ingest(vec![deleted]) {
            Ok(()) => Ok(()),
            Err(error) => self.on_store_failed(id, &error),
        }
    }

    /// Nothing reads a partition until it is taken over again, and no check starts its reader.
    pub(super) fn stop_reading(&mut self, partition: PartitionId) -> CallResult<()> {
        if let Some(task) = self.tasks.get_mut(&partition) {
            (task.end_check, task.pause) = (EndCheck::Idle, ReadPause::default());
        }
        self.triggers.stop(&self.config.names.triggers(), partition)?;
        self.signals_and_ledger.stop(&self.config.names.signals(), partition)?;
        self.signals_and_ledger.stop(&self.config.names.ledger(), partition)
    }

    /// A takeover has read nothing for long: reads again from its position. A reader may have
    /// missed an end.
    pub(super) fn restart_reader(
        &mut self,
        id: PartitionId,
        now: Duration,
    ) -> Result<(), LoopError> {
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        task.read_at = now;
        let PartitionState::Restoring(restoring) = &task.state else { return Ok(()) };
        let names = &self.config.names;
        match restoring.requested {
            Some(TakeoverRequest::Triggers { .. }) => {
                self.triggers.start(&names.triggers(), id, task.next_trigger)?;
            }
            Some(TakeoverRequest::Mirror { from, .. } | TakeoverRequest::Ledger { from }) => {
                let position = restoring.ledger_position.max(from);
                self.signals_and_ledger.start(&names.ledger(), id, position)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn start_input(&self, id: PartitionId, input: InputLog) -> Result<(), LoopError> {
        let Some(task) = self.tasks.get(&id) else { return Ok(()) };
        let names = &self.config.names;
        Ok(match input {
            InputLog::Triggers => self.triggers.start(&names.triggers(), id, task.next_trigger),
            InputLog::Signals => {
                self.signals_and_ledger.start(&names.signals(), id, task.next_signal)
            }
        }?)
    }

    /// Part of a log was deleted before it was read.
    pub(super) fn report_lost(&self, id: PartitionId, topic: &str, from: Offset, until: Offset) {
        tracing::error!(
            partition = id,
            topic,
            from,
            until,
            "the records from `from` to below `until` were deleted before they were read, by hand \
             or by a retention that is shorter than the outage, or may have waited for one that \
             was; what they asked for is lost and must be registered again; the partition goes on \
             at `until`"
        );
        self.reporter.offsets_lost(until - from);
    }
}

impl<S> PartitionTask<S> {
    /// Whether its takeover waits for records or the end of a log.
    pub(super) fn is_waiting_for_reader(&self) -> bool {
        let PartitionState::Restoring(restoring) = &self.state else { return false };
        !self.is_paused
            && match restoring.requested {
                Some(TakeoverRequest::Triggers { .. }) => !restoring.triggers_complete,
                Some(TakeoverRequest::Mirror { .. }) => restoring.ledger_check.is_none(),
                Some(TakeoverRequest::Ledger { .. }) => !restoring.barrier_read,
                _ => false,
            }
    }

    fn out_of_range(&mut self, input: InputLog) -> &mut Option<u64> {
        match input {
            InputLog::Triggers => &mut self.triggers_out_of_range,
            InputLog::Signals => &mut self.signals_out_of_range,
        }
    }

    fn position(&self, input: InputLog) -> Offset {
        match input {
            InputLog::Triggers => self.next_trigger,
            InputLog::Signals => self.next_signal,
        }
    }
}
