//! What there is where a reader is out of range.
//!
//! Invariant: the reader does not say which partition it means, and may mean several. So the
//! bounds of every partition that it reads are requested, beside the loop. One that has not been
//! read since is started again, inside of its bounds, so that none waits for ever; one that is
//! being read is left alone.

use std::collections::BTreeMap;
use std::time::Duration;

use super::log_checks::{LogBounds, LogBoundsReply, LogCheck};
use super::partition_task::{EndCheck, InputLog, PartitionState};
use super::{LoopError, Scheduler};
use crate::engine::partition::Input;
use crate::environment::{Clock as _, Environment};
use crate::model::{Offset, PartitionId};

/// One of the readers of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogReaderRole {
    Triggers,
    SignalsAndLedger,
}

/// The logs that are checked, or were found to be shorter than they are read.
#[derive(Debug, Default)]
pub(super) struct RangeChecks(BTreeMap<(PartitionId, InputLog), RangeCheck>);

/// The check of a log.
#[derive(Clone, Copy, Debug)]
struct RangeCheck {
    /// Where it was read when the reader was out of range last.
    position: Offset,
    state: RangeCheckState,
    /// It seemed to end below that offset, and was started again there. The broker that said so may
    /// not be the leader any more; one that refuses the offset then is.
    seemed_short: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RangeCheckState {
    /// It is started again. The check is kept for the case that the offset is refused again.
    Started,
    /// The bounds were requested, with this number.
    Requested(u64),
    /// They are not known: request them again at this time on the monotonic clock.
    RetryAt(Duration),
}

impl RangeChecks {
    /// Nothing of this partition is read any more.
    pub(super) fn forget(&mut self, id: PartitionId) {
        self.0.retain(|(of, _), _| *of != id);
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

    fn check_range(&mut self, id: PartitionId, log: InputLog, position: Offset) {
        let before = self.range_checks.0.get(&(id, log)).copied();
        // A log whose bounds are being requested is started again after that.
        let state = match before.map(|check| check.state) {
            None | Some(RangeCheckState::Started) => {
                RangeCheckState::Requested(self.request_bounds(LogCheck::OutOfRange, log, id))
            }
            Some(in_progress) => in_progress,
        };
        let seemed_short =
            before.is_some_and(|check| check.seemed_short && check.position == position);
        let check = RangeCheck { position, state, seemed_short };
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
        let position = check.position;
        if self.tasks.get(&id).and_then(|task| task.position(log)) != Some(position) {
            // Records of it were read since, or it is not read any more.
            let _check = self.range_checks.0.remove(&(id, log));
            return Ok(());
        }
        let Some(bounds) = reply.bounds else {
            let state =
                RangeCheckState::RetryAt(self.clock.monotonic() + self.config.timing.end_retry);
            let _before = self.range_checks.0.insert((id, log), RangeCheck { state, ..check });
            return Ok(());
        };
        let is_short = bounds.end < position;
        if bounds.low > position || is_short && check.seemed_short {
            let _check = self.range_checks.0.remove(&(id, log));
            return self.on_position_lost(id, log, position, bounds);
        }
        if is_short {
            let state = RangeCheckState::Started;
            let started = RangeCheck { position, state, seemed_short: true };
            let _before = self.range_checks.0.insert((id, log), started);
        } else {
            let _check = self.range_checks.0.remove(&(id, log));
        }
        self.start_log(id, log)
    }

    /// What is below the first offset is lost to an active partition: says so, and goes on at that
    /// offset. If the log ends below the position, records that were read are lost. Then, and
    /// during a takeover, it is taken over again: that compares the bounds of all logs with what is
    /// committed.
    fn on_position_lost(
        &mut self,
        id: PartitionId,
        log: InputLog,
        position: Offset,
        LogBounds { low, end, .. }: LogBounds,
    ) -> Result<(), LoopError> {
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        let topic = log.topic(&self.config.names);
        if end < position || matches!(task.state, PartitionState::Restoring(_)) {
            tracing::warn!(partition = id, topic, position, end, "out of range; taking over again");
            task.must_start_again = true;
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
