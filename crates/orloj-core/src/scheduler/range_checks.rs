//! What there is where a reader is out of range.
//!
//! Invariant: the reader does not say which partition it means, and may mean several. So the
//! bounds of every partition that it reads are requested, beside the loop. One that has not been
//! read since is started again, inside of its bounds, so that none waits for ever; one that is
//! being read is left alone. One that seems to be shorter than it was read is not read before it is
//! known that no record was written to it again below that offset.

use std::collections::BTreeMap;
use std::time::Duration;

use super::log_checks::{LogBoundsReply, LogCheck};
use super::partition_task::{EndCheck, InputLog, PartitionState};
use super::{LoopError, Scheduler};
use crate::engine::partition::Input;
use crate::environment::log::LogReading as _;
use crate::environment::{Clock as _, Environment};
use crate::model::{Offset, PartitionId};

/// One of the readers of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogReaderRole {
    Triggers,
    SignalsAndLedger,
}

/// The logs that are checked.
#[derive(Debug, Default)]
pub(super) struct RangeChecks(BTreeMap<(PartitionId, InputLog), RangeCheck>);

/// The check of a log.
#[derive(Clone, Copy, Debug)]
struct RangeCheck {
    /// Where it was read when the reader was out of range last.
    position: Offset,
    state: RangeCheckState,
    /// Its bounds were requested before, and the log seemed to be shorter.
    was_short: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RangeCheckState {
    /// The bounds were requested, with this number.
    Requested(u64),
    /// They are not known, or it seemed to be shorter: request them again at this time on the
    /// monotonic clock.
    RetryAt(Duration),
}

impl RangeChecks {
    /// Nothing of this partition is read any more.
    pub(super) fn forget(&mut self, id: PartitionId) {
        self.0.retain(|(of, _), _| *of != id);
    }

    pub(super) fn is_open(&self, id: PartitionId, log: InputLog) -> bool {
        self.0.contains_key(&(id, log))
    }
}

impl LogReaderRole {
    fn logs(self) -> &'static [InputLog] {
        match self {
            Self::Triggers => &[InputLog::Triggers],
            Self::SignalsAndLedger => &[InputLog::Signals, InputLog::Ledger],
        }
    }
}

impl<E: Environment> Scheduler<E> {
    /// A reader is at an offset that a broker has refused, in some partition.
    pub(super) fn on_out_of_range(&mut self, reader: LogReaderRole) {
        let read: Vec<_> = self
            .tasks
            .values()
            .flat_map(|task| reader.logs().iter().map(move |log| (task, *log)))
            .filter_map(|(task, log)| Some((task.id, log, task.position(log)?)))
            .collect();
        for (id, log, position) in read {
            self.check_range(id, log, position);
        }
    }

    /// Requests the bounds of a log that is read at `position`, unless they are requested for that
    /// position already.
    pub(super) fn check_range(&mut self, id: PartitionId, log: InputLog, position: Offset) {
        let before = self.range_checks.0.get(&(id, log)).copied();
        let state = match before {
            // An answer to an earlier request may be older than what was read since.
            Some(check) if check.position == position => check.state,
            _ => RangeCheckState::Requested(self.request_bounds(LogCheck::OutOfRange, log, id)),
        };
        let was_short = before.is_some_and(|check| check.was_short);
        let check = RangeCheck { position, state, was_short };
        let _before = self.range_checks.0.insert((id, log), check);
    }

    /// Requests them again after a time.
    fn check_range_later(
        &mut self,
        (id, log): (PartitionId, InputLog),
        (position, was_short): (Offset, bool),
        after: Duration,
    ) {
        let state = RangeCheckState::RetryAt(self.clock.monotonic() + after);
        let check = RangeCheck { position, state, was_short };
        let _before = self.range_checks.0.insert((id, log), check);
    }

    /// Requests bounds again that could not be read, if it is time.
    pub(super) fn retry_range_checks(&mut self, now: Duration) {
        let is_due =
            |check: &RangeCheck| matches!(check.state, RangeCheckState::RetryAt(at) if now >= at);
        let due: Vec<_> = self
            .range_checks
            .0
            .iter()
            .filter_map(|(key, check)| is_due(check).then_some(*key))
            .collect();
        for (id, log) in due {
            let number = self.request_bounds(LogCheck::OutOfRange, log, id);
            if let Some(check) = self.range_checks.0.get_mut(&(id, log)) {
                check.state = RangeCheckState::Requested(number);
            }
        }
    }

    /// Handles the bounds of a log that is perhaps out of range.
    pub(super) fn on_range_bounds(&mut self, reply: &LogBoundsReply) -> Result<(), LoopError> {
        let LogBoundsReply { log, partition: id, .. } = *reply;
        let Some(check) = self.range_checks.0.get(&(id, log)).copied() else { return Ok(()) };
        if check.state != RangeCheckState::Requested(reply.number) {
            return Ok(());
        }
        let _check = self.range_checks.0.remove(&(id, log));
        let position = check.position;
        let topic = log.topic(&self.config.names);
        let read_at = self.tasks.get(&id).and_then(|task| task.position(log));
        if read_at != Some(position) {
            // Records of it were read since, or it is not read any more.
            if let (Some(now), Some(short)) = (read_at, self.truncated_logs.get(id, &topic)) {
                match reply.bounds {
                    Some(bounds) if bounds.is_whole(position, short.offset) => {
                        self.truncated_logs.on_not_shorter(id, &topic);
                    }
                    _ => self.check_range(id, log, now),
                }
            }
            return Ok(());
        }
        let Some(bounds) = reply.bounds else {
            let (at, after) = ((position, check.was_short), self.config.timing.end_retry);
            self.check_range_later((id, log), at, after);
            return Ok(());
        };
        if bounds.low > position {
            return self.on_deleted(id, log, position, bounds.low);
        }
        let short = self.truncated_logs.get(id, &topic);
        let is_short = bounds.end < position;
        let read_until = short.map_or(position, |short| short.offset);
        let is_written_again = bounds.is_written_again(position, read_until);
        if is_written_again || is_short && check.was_short && log != InputLog::Signals {
            self.take_over_again(id, &topic, position, bounds.end);
            return Ok(());
        }
        if is_short {
            return self.on_seen_short((id, log), (position, check.was_short), bounds.end);
        }
        self.truncated_logs.on_not_shorter(id, &topic);
        if let (InputLog::Triggers, Some(task)) = (log, self.tasks.get_mut(&id))
            && let Some(partition) = task.active()
        {
            partition.read_triggers_again_from(position);
        }
        self.start_log(id, log)
    }

    /// A log seems to end below the offset at which it is read. The broker that said so may not be
    /// the leader any more, or the log may be cut: it is not read before the next look at it, so
    /// that records that are written to it again are not passed over. That the end of `signals`
    /// changes is not enough: what was handled must not be handled again.
    fn on_seen_short(
        &mut self,
        (id, log): (PartitionId, InputLog),
        (position, was_short): (Offset, bool),
        end: Offset,
    ) -> Result<(), LoopError> {
        let (topic, timing) = (log.topic(&self.config.names), &self.config.timing);
        let after = if was_short {
            timing.truncated_retry
        } else {
            tracing::warn!(
                partition = id,
                topic,
                end,
                position,
                "the log seems to end below the offset at which it is read; reading waits"
            );
            timing.clock_skew + timing.end_retry
        };
        let now = self.clock.now_ms();
        self.truncated_logs.on_seen(id, &topic, (end, position), now);
        match log {
            InputLog::Triggers => self.triggers.stop(&topic, id)?,
            InputLog::Signals | InputLog::Ledger => self.signals_and_ledger.stop(&topic, id)?,
        }
        self.check_range_later((id, log), (position, true), after);
        Ok(())
    }

    /// That compares the bounds of all logs with what is committed.
    fn take_over_again(&mut self, id: PartitionId, topic: &str, position: Offset, end: Offset) {
        tracing::warn!(partition = id, topic, position, end, "out of range; taking over again");
        if let Some(task) = self.tasks.get_mut(&id) {
            task.must_start_again = true;
        }
    }

    /// What is below the first offset is lost to an active partition: says so, and goes on at that
    /// offset. During a takeover it is taken over again.
    fn on_deleted(
        &mut self,
        id: PartitionId,
        log: InputLog,
        position: Offset,
        low: Offset,
    ) -> Result<(), LoopError> {
        let Some(task) = self.tasks.get(&id) else { return Ok(()) };
        let topic = log.topic(&self.config.names);
        if matches!(task.state, PartitionState::Restoring(_)) {
            self.take_over_again(id, &topic, position, low);
            return Ok(());
        }
        self.report_lost(id, &topic, position, low);
        self.skip_deleted(id, log, low)?;
        self.start_log(id, log)
    }

    /// Records below `low` are deleted: goes on there.
    fn skip_deleted(
        &mut self,
        id: PartitionId,
        log: InputLog,
        low: Offset,
    ) -> Result<(), LoopError> {
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        let deleted = match log {
            InputLog::Triggers => {
                (task.next_trigger, task.end_check) = (low, EndCheck::Idle);
                Input::TriggersDeleted(low)
            }
            InputLog::Signals => {
                task.next_signal = low;
                Input::SignalsDeleted(low)
            }
            InputLog::Ledger => return Ok(()), // an active partition does not read it
        };
        match task.ingest(vec![deleted]) {
            Ok(()) => Ok(()),
            Err(error) => self.on_store_failed(id, &error),
        }
    }
}

#[cfg(test)]
#[path = "range_checks/tests.rs"]
mod tests;
