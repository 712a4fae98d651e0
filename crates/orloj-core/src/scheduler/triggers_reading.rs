//! Whether `triggers` can be read, and the second attempt after an error of the reader.
//!
//! Invariant: what is known of the end of a partition stays when it is read again because of an
//! error: nothing that was fetched is forgotten, only read once more. A partition whose end is
//! being checked, or that is paused, is left to those that do so.

use std::time::Duration;

use super::log_checks::LogCheck;
use super::partition_task::{EndCheck, InputLog};
use super::{LoopError, Scheduler};
use crate::environment::call_error::CallError;
use crate::environment::log::LogReading as _;
use crate::environment::{Clock as _, Environment, ProcessReporter as _};
use crate::model::PartitionId;
use crate::read_recovery::ReadRecovery;

/// After this part of the time for which records are waited for, a partition is read again that has
/// returned nothing since an error. Most have by then.
const FIRST_PAUSE_SHARE: u32 = 10;

/// What has returned nothing since an error, and what was reported of it.
#[derive(Debug)]
pub(super) struct TriggersReading {
    recovery: ReadRecovery<PartitionId>,
    /// Why it was last reported that not all can be read.
    reported: Option<String>,
}

impl TriggersReading {
    /// There was no error. `silence_max`: how long records are waited for.
    pub(super) fn new(silence_max: Duration) -> Self {
        let recovery = ReadRecovery::new(silence_max / FIRST_PAUSE_SHARE, silence_max);
        Self { recovery: recovery.with_questions(), reported: None }
    }

    /// A partition has returned a record or its end, or is not read any more.
    pub(super) fn on_read(&mut self, id: PartitionId) {
        self.recovery.on_read(id);
    }

    /// Whether a broker has said where a partition ends, at `now` on the monotonic clock.
    pub(super) fn on_answer(&mut self, has_answered: bool, now: Duration) {
        let answer = has_answered.then_some(()).ok_or("no broker says where triggers end");
        self.recovery.on_answer(answer, now);
    }
}

impl<E: Environment> Scheduler<E> {
    /// The reader of triggers has failed.
    pub(super) fn on_triggers_error(&mut self, error: &CallError) {
        tracing::debug!(%error, "triggers cannot be read");
        let now = self.clock.monotonic();
        self.triggers_reading.recovery.on_error(error, self.tasks.keys().copied(), now);
    }

    /// Reads again what has returned nothing since an error, and asks a broker, if it is time.
    /// Reports whether triggers can be read.
    pub(super) fn check_triggers_reading(&mut self) -> Result<(), LoopError> {
        let now = self.clock.monotonic();
        for id in self.triggers_reading.recovery.next_reads(now) {
            self.read_triggers_again(id)?;
        }
        if self.triggers_reading.recovery.next_question(now) {
            let id = self.tasks.keys().next().copied().unwrap_or_default();
            let _number = self.request_bounds(LogCheck::Question, InputLog::Triggers, id);
        }
        self.report_triggers(now);
        Ok(())
    }

    fn read_triggers_again(&mut self, id: PartitionId) -> Result<(), LoopError> {
        let Some(task) = self.tasks.get(&id) else {
            self.triggers_reading.on_read(id);
            return Ok(());
        };
        let topic = &self.decoder.triggers;
        let is_checked = task.end_check != EndCheck::Idle
            || self.range_checks.is_open(id, InputLog::Triggers)
            || self.truncated_logs.get(id, topic).is_some();
        if let Some(position) = task.position(InputLog::Triggers)
            && !task.is_paused
            && !is_checked
        {
            self.triggers.start(topic, id, position)?;
        }
        Ok(())
    }

    fn report_triggers(&mut self, now: Duration) {
        let reason = self.triggers_reading.recovery.reason(now);
        if reason == self.triggers_reading.reported.as_deref() {
            return;
        }
        let reason = reason.map(str::to_owned);
        match &reason {
            Some(error) => {
                let reason = format!("triggers cannot be read: {error}");
                self.reporter.not_ready("triggers", reason);
            }
            None => self.reporter.ready("triggers"),
        }
        self.triggers_reading.reported = reason;
    }
}

#[cfg(test)]
#[path = "triggers_reading/tests.rs"]
mod tests;
