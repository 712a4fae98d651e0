//! Checks of a log that need its bounds: whether all of it is read. What there is where a reader is
//! out of range is in [`super::range_checks`].
//!
//! Invariant: the bounds are requested beside the loop, so that a partition without a leader delays
//! no other one. An answer counts only if nothing has been read or started since the request.

use std::time::Duration;

use super::partition_task::{EndCheck, InputLog, PartitionState, PartitionTask, SignalsEnd};
use super::read_pause::ReadPause;
use super::{LoopError, Scheduler};
use crate::engine::takeover::TakeoverRequest;
use crate::environment::call_error::CallResult;
use crate::environment::job::{Job, JobQueue as _, JobStep};
use crate::environment::log::LogReading as _;
use crate::environment::{Clock as _, ClusterQueries, Environment, Reporter as _};
use crate::model::{Offset, PartitionId, Timestamp};

/// Why bounds are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogCheck {
    /// The reader is at the end of an input, below the known end offset.
    End,
    /// The reader is at the end of the ledger, while it searches a mirror of the cursor.
    LedgerEnd,
    /// An offset at which some partition is read was refused.
    OutOfRange,
    /// The reader of triggers has failed.
    Question,
}

/// The bounds of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogBounds {
    /// The first offset.
    pub(super) low: Offset,
    /// Where a reader stops.
    pub(super) stable: Offset,
    /// The end offset (exclusive), requested after `stable`.
    pub(super) end: Offset,
    /// The first record that was written since the log seemed to be shorter, if it did; the end
    /// offset if there is none.
    pub(super) first_new: Option<Offset>,
}

impl LogBounds {
    /// Whether there are records below `position` that were written since the log seemed to be
    /// shorter, when it was read until `read_until`. The position may be lower than that: what was
    /// not committed is read again.
    pub(super) fn is_written_again(&self, position: Offset, read_until: Offset) -> bool {
        let new_below = self.end.min(read_until).min(position);
        self.first_new.is_some_and(|first| first < new_below)
    }

    /// Whether it is not shorter than `position`, and has no such records.
    pub(super) fn is_whole(&self, position: Offset, read_until: Offset) -> bool {
        self.end >= position && !self.is_written_again(position, read_until)
    }
}

/// Asks for the bounds of one partition.
#[derive(Debug)]
pub(super) struct LogBoundsJob<C> {
    cluster: C,
    check: LogCheck,
    log: InputLog,
    topic: String,
    partition: PartitionId,
    number: u64,
    /// What has this timestamp or a later one was written since the log seemed to be shorter, in ms
    /// since the epoch.
    new_from: Option<Timestamp>,
}

/// The answer, and the request that it belongs to.
#[derive(Debug)]
pub(super) struct LogBoundsReply {
    check: LogCheck,
    pub(super) log: InputLog,
    pub(super) partition: PartitionId,
    pub(super) number: u64,
    /// `None`: the request failed.
    pub(super) bounds: Option<LogBounds>,
}

impl<C: ClusterQueries> Job for LogBoundsJob<C> {
    type Output = LogBoundsReply;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<LogBoundsReply> {
        let Self { check, log, partition, number, .. } = *self;
        let topic = &self.topic;
        let stable = self.cluster.last_stable_offset(topic, partition);
        let bounds = stable.and_then(|stable| {
            let (low, end) = self.cluster.bounds(topic, partition)?;
            let first_new = self
                .new_from
                .map(|time| self.cluster.offset_for_time(topic, partition, time))
                .transpose()?;
            Ok(LogBounds { low, stable, end, first_new })
        });
        if let Err(error) = &bounds {
            tracing::debug!(topic, partition, %error, "the bounds of a log cannot be read");
        }
        let bounds = bounds.ok();
        JobStep::Done(LogBoundsReply { check, log, partition, number, bounds })
    }
}

impl<E: Environment> Scheduler<E> {
    /// Requests the bounds of a log. Returns the number of the request.
    pub(super) fn request_bounds(
        &mut self,
        check: LogCheck,
        log: InputLog,
        partition: PartitionId,
    ) -> u64 {
        self.bounds_requests += 1;
        let (cluster, number) = (self.cluster.clone(), self.bounds_requests);
        let topic = log.topic(&self.config.names);
        let new_from = self.truncated_logs.get(partition, &topic).map(|short| short.new_from);
        let job = LogBoundsJob { cluster, check, log, topic, partition, number, new_from };
        self.log_bounds.submit(job);
        number
    }

    /// Handles the answers since the last call, and requests what is due.
    pub(super) fn poll_log_bounds(&mut self) -> Result<(), LoopError> {
        while let Some(reply) = self.log_bounds.poll(Duration::ZERO) {
            match reply.check {
                LogCheck::End => self.on_end_bounds(&reply)?,
                LogCheck::LedgerEnd => self.on_ledger_bounds(&reply)?,
                LogCheck::OutOfRange => self.on_range_bounds(&reply)?,
                LogCheck::Question => {
                    let now = self.clock.monotonic();
                    self.triggers_reading.on_answer(reply.bounds.is_some(), now);
                }
            }
        }
        let now = self.clock.monotonic();
        self.retry_range_checks(now);
        let silence = self.config.timing.silence_max;
        let is_due = |task: &&PartitionTask<E::Store>| task.is_signals_check_due(now, silence);
        let due: Vec<_> = self.tasks.values().filter(is_due).map(|task| task.id).collect();
        due.into_iter().for_each(|id| self.confirm_end(id, InputLog::Signals));
        Ok(())
    }

    /// Input seems to be unread, but nothing is read. Either only transaction markers and aborted
    /// records follow, or another process's transaction is still open, or the reader has stopped.
    /// If none is open now, read again from the current position: reaching the end again proves
    /// that all is read. A takeover that has reached the end too early does so too: a new leader
    /// may not know yet that the rest is committed.
    pub(super) fn confirm_end(&mut self, id: PartitionId, log: InputLog) {
        let number = self.request_bounds(LogCheck::End, log, id);
        if let Some(task) = self.tasks.get_mut(&id) {
            *task.end_check(log) = EndCheck::Requested(number);
        }
    }

    fn on_end_bounds(&mut self, reply: &LogBoundsReply) -> Result<(), LoopError> {
        let now = self.clock.monotonic();
        let Some(task) = self.tasks.get_mut(&reply.partition) else { return Ok(()) };
        let replay_until = task.replay_until();
        let check = task.end_check(reply.log);
        if *check != EndCheck::Requested(reply.number) {
            return Ok(());
        }
        match reply.bounds {
            Some(LogBounds { stable, end, .. }) if stable >= replay_until.unwrap_or(end) => {
                let until = now + self.config.timing.silence_max;
                *check = EndCheck::Confirming { end, until };
                self.start_log(reply.partition, reply.log)
            }
            _ => {
                *check = EndCheck::RetryAt(now + self.config.timing.end_retry);
                Ok(())
            }
        }
    }

    /// Reads a log again from the current position, if its partition reads it now. One that seemed
    /// to be shorter is checked first.
    pub(super) fn start_log(&mut self, id: PartitionId, log: InputLog) -> Result<(), LoopError> {
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        let Some(position) = task.position(log) else { return Ok(()) };
        let topic = log.topic(&self.config.names);
        if self.truncated_logs.get(id, &topic).is_some() {
            self.check_range(id, log, position);
            return Ok(());
        }
        Ok(match log {
            InputLog::Triggers => {
                // A check of the end takes no longer than a few fetches: what is known is not old.
                if !matches!(task.end_check, EndCheck::Confirming { .. }) {
                    task.on_triggers_started(self.clock.monotonic());
                }
                self.triggers.start(&topic, id, position)
            }
            InputLog::Signals | InputLog::Ledger => {
                self.signals_and_ledger.start(&topic, id, position)
            }
        }?)
    }

    /// Handles the end of `signals` or of the ledger. That of the ledger matters only while the
    /// mirror of a cursor is being read; then only the ledger is assigned. A read_committed reader
    /// stops at the first open transaction, and the newest mirror may be after it. The end is
    /// therefore accepted only if it is reached after no transaction was open below it.
    pub(super) fn on_signals_or_ledger_end_reached(&mut self, id: PartitionId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.on_signals_end_reached();
        let PartitionState::Restoring(restoring) = &mut task.state else { return };
        let Some(TakeoverRequest::Mirror { until, .. }) = restoring.requested else { return };
        if restoring.ledger_is_stable {
            restoring.ledger_position = restoring.ledger_position.max(until);
        } else if restoring.ledger_check.is_none() {
            let number = self.request_bounds(LogCheck::LedgerEnd, InputLog::Ledger, id);
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
        let Some(TakeoverRequest::Mirror { until, .. }) = restoring.requested else {
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
        self.start_log(id, InputLog::Ledger)
    }

    /// Nothing reads a partition until it is taken over again, and no check starts its reader.
    pub(super) fn stop_reading(&mut self, partition: PartitionId) -> CallResult<()> {
        if let Some(task) = self.tasks.get_mut(&partition) {
            (task.end_check, task.pause) = (EndCheck::Idle, ReadPause::default());
            task.signals_end.check = EndCheck::Idle;
        }
        self.range_checks.forget(partition);
        self.triggers_reading.on_read(partition);
        self.truncated_logs.on_not_shorter(partition, &self.config.names.ledger());
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
        match task.state {
            PartitionState::Restoring(_) => {
                self.start_log(id, InputLog::Triggers)?;
                self.start_log(id, InputLog::Ledger)
            }
            _ => Ok(()),
        }
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

    /// Until where its takeover replays `triggers` now.
    fn replay_until(&self) -> Option<Offset> {
        match &self.state {
            PartitionState::Restoring(restoring) => match restoring.requested {
                Some(TakeoverRequest::Triggers { until, .. }) => Some(until),
                _ => None,
            },
            _ => None,
        }
    }

    /// Where a log is read; `None` if it is not read now.
    pub(super) fn position(&self, log: InputLog) -> Option<Offset> {
        let requested = match &self.state {
            PartitionState::Active(_) => None,
            PartitionState::Restoring(restoring) => Some(restoring.requested.as_ref()?),
            _ => return None,
        };
        match (log, requested) {
            (InputLog::Triggers, None | Some(TakeoverRequest::Triggers { .. })) => {
                (!self.pause.is_on()).then_some(self.next_trigger)
            }
            (InputLog::Signals, None) => Some(self.next_signal),
            (
                InputLog::Ledger,
                Some(TakeoverRequest::Mirror { from, .. } | TakeoverRequest::Ledger { from }),
            ) => match &self.state {
                PartitionState::Restoring(restoring) => Some(restoring.ledger_position.max(*from)),
                _ => None,
            },
            _ => None,
        }
    }

    /// The check of the end of an input.
    fn end_check(&mut self, log: InputLog) -> &mut EndCheck {
        match log {
            InputLog::Signals => &mut self.signals_end.check,
            InputLog::Triggers | InputLog::Ledger => &mut self.end_check,
        }
    }

    /// Whether signals seem to be unread, and none has been read for a time.
    fn is_signals_check_due(&self, now: Duration, silence: Duration) -> bool {
        let SignalsEnd { end, read_until, check, read_at } = self.signals_end;
        match check {
            _ if self.is_paused || !matches!(self.state, PartitionState::Active(_)) => false,
            EndCheck::Idle => end > self.next_signal.max(read_until) && now >= read_at + silence,
            EndCheck::Requested(_) => false,
            EndCheck::Confirming { until, .. } => now >= until,
            EndCheck::RetryAt(at) => now >= at,
        }
    }

    fn on_signals_end_reached(&mut self) {
        if let EndCheck::Confirming { end, .. } = self.signals_end.check {
            (self.signals_end.check, self.signals_end.read_until) = (EndCheck::Idle, end);
        }
    }
}

impl SignalsEnd {
    /// A signal was read.
    pub(super) fn on_record(&mut self, now: Duration) {
        (self.check, self.read_at) = (EndCheck::Idle, now);
    }
}

#[cfg(test)]
#[path = "log_checks/tests.rs"]
mod tests;
