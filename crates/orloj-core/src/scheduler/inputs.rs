//! Reads and decodes the inputs, and passes each record to its partition.
//!
//! Invariant: a record that cannot be decoded now (its schema registry is unavailable) is parked,
//! and later records of its trigger wait behind it. While reading a partition is paused, reaching
//! its end means nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use super::end_offset_poller::{KnownLog, LogEnd};
pub use super::input_decoder::InputDecoder;
use super::partition_task::{EndCheck, InputLog, PartitionState, PartitionTask};
use super::range_checks::LogReaderRole;
use super::trigger_intake::take_trigger;
use super::{LoopError, Scheduler};
use crate::engine::partition::Input;
use crate::engine::takeover::TakeoverRequest;
use crate::environment::log::{LogEvent, LogReading as _, LogRecord};
use crate::environment::{Clock as _, Environment};
use crate::model::{Offset, PartitionId};

/// How long the loop waits at most while the partitions accept no more records. The committing
/// thread, which makes room, needs the CPU.
const FULL_WAIT: Duration = Duration::from_millis(1);
/// Records read from `signals` and the ledger in one turn.
const SIGNALS_AND_LEDGER_MAX: usize = 10_000;

impl<E: Environment> Scheduler<E> {
    /// Reads the available records, and waits at most `wait` for the first one, in a turn that
    /// began at `turn_began` on the monotonic clock.
    pub(super) fn read_inputs(
        &mut self,
        wait: Duration,
        turn_began: Duration,
    ) -> Result<(), LoopError> {
        self.apply_end_offsets();
        self.poll_log_bounds()?;
        let mut inputs = BTreeMap::new();
        let began = self.clock.monotonic();
        let has_read = self.read_signals_and_ledger(&mut inputs, began)?;
        // While a partition is full, no records are read: librdkafka's queue bounds the memory.
        if self.pause_full_partitions()? {
            self.restore_pool.wait_for_result(wait.min(FULL_WAIT));
        } else {
            let (wait, began) = if has_read { (Duration::ZERO, Some(began)) } else { (wait, None) };
            self.read_triggers(wait, began, &mut inputs)?;
        }
        self.ingest(inputs)?;
        self.release_parked(turn_began)?;
        self.report_registry();
        self.report_brokers();
        self.check_membership();
        self.check_triggers_reading()?;
        self.run_due_checks()
    }

    /// Pauses a partition that has been full for long, so that the others are read, and resumes one
    /// that is not full any more. Returns whether one is full and not paused: most are so for a
    /// short time, and the records that were fetched are fetched again after a pause.
    fn pause_full_partitions(&mut self) -> Result<bool, LoopError> {
        let (now, patience) = (self.clock.monotonic(), self.config.timing.full_max);
        let names = &self.config.names;
        let mut must_wait = false;
        for task in self.tasks.values_mut() {
            if !task.is_full() {
                task.full_since = None;
                if std::mem::take(&mut task.is_paused) {
                    self.triggers.resume(&names.triggers(), task.id)?;
                    self.signals_and_ledger.resume(&names.signals(), task.id)?;
                    self.signals_and_ledger.resume(&names.ledger(), task.id)?;
                    task.read_at = now;
                }
            } else if now < *task.full_since.get_or_insert(now) + patience {
                must_wait |= !task.is_paused;
            } else {
                // Again and again: a reader that is started is not paused.
                (task.is_paused, task.full_since) = (true, Some(now));
                self.triggers.pause(&names.triggers(), task.id)?;
                self.signals_and_ledger.pause(&names.signals(), task.id)?;
                self.signals_and_ledger.pause(&names.ledger(), task.id)?;
            }
        }
        Ok(must_wait)
    }

    /// Ingests what has waited and what was read.
    fn ingest(&mut self, mut inputs: BTreeMap<PartitionId, Vec<Input>>) -> Result<(), LoopError> {
        let now = self.clock.now_ms();
        for task in self.tasks.values().filter(|task| task.has_waiting_inputs()) {
            let _inputs = inputs.entry(task.id).or_default();
        }
        for (id, inputs) in inputs {
            let Some(task) = self.tasks.get_mut(&id) else { continue };
            if let Some(partition) = task.active() {
                let _behind = partition.observe_clock(now);
            }
            if let Err(error) = task.ingest(inputs) {
                self.on_store_failed(id, &error)?;
            }
        }
        Ok(())
    }

    /// Reading began at `began` on the monotonic clock, or begins with the first record.
    fn read_triggers(
        &mut self,
        wait: Duration,
        began: Option<Duration>,
        inputs: &mut BTreeMap<PartitionId, Vec<Input>>,
    ) -> Result<(), LoopError> {
        let now = self.clock.monotonic();
        let mut paused = Vec::new();
        let (mut ended, mut is_out_of_range, mut failed) = (Vec::new(), false, None);
        let (mut records_read, mut wait) = (0, wait);
        let mut bytes_left = self.config.partition.bytes_per_step_max;
        // The wait for the first record does not count.
        let mut until = began.map(|began| began + self.config.timing.reading_max);
        let is_late =
            |until: Option<Duration>| until.is_some_and(|until| self.clock.monotonic() >= until);
        while records_read < self.config.records_per_step_max && 0 < bytes_left && !is_late(until) {
            let event = match self.triggers.poll(wait) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            };
            wait = Duration::ZERO;
            until = until.or_else(|| Some(self.clock.monotonic() + self.config.timing.reading_max));
            match event {
                LogEvent::Record(record) => {
                    records_read += 1;
                    bytes_left = bytes_left.saturating_sub(bytes_of(&record));
                    let (_, id, offset) = record.position();
                    self.triggers_reading.on_read(id);
                    let Some(task) = self.tasks.get_mut(&id) else { continue };
                    task.has_fetched = true;
                    if offset < task.next_trigger || task.pause.is_on() {
                        continue;
                    }
                    let limits = (self.config.parking, now);
                    match take_trigger(task, &self.decoder, &record, limits) {
                        Ok(input) => {
                            task.read_at = now;
                            task.pause.on_taken();
                            inputs.entry(id).or_default().extend(input);
                        }
                        Err(reason) => {
                            task.pause.begin(&self.clock, &self.config.timing);
                            if task.pause.is_long(&self.config.timing) {
                                tracing::warn!(
                                    partition = id,
                                    offset,
                                    %reason,
                                    "reading is paused"
                                );
                            }
                            task.end_check = EndCheck::Idle;
                            paused.push(id);
                        }
                    }
                }
                LogEvent::End(id) => ended.push(id),
                LogEvent::OutOfRange => is_out_of_range = true,
            }
        }
        if is_out_of_range {
            self.on_out_of_range(LogReaderRole::Triggers);
        }
        for id in paused {
            self.triggers.stop(&self.decoder.triggers, id)?;
        }
        for id in ended {
            self.on_triggers_end_reached(id)?;
        }
        failed.iter().for_each(|error| self.on_triggers_error(error));
        Ok(())
    }

    /// Applies the end offsets that the poller has read. Those of a log that seems to have been cut
    /// prove nothing: what is written to it now is not read yet. It is looked at.
    fn apply_end_offsets(&mut self) {
        let (mut cut, mut unknown) = (Vec::new(), Vec::new());
        let tasks = &self.tasks;
        let (reader, topic) = (&self.triggers, &self.decoder.triggers);
        let ends = self.end_offsets.poll_ends(|log, id| match (log, tasks.get(&id)) {
            (InputLog::Triggers, Some(task)) if matches!(task.state, PartitionState::Active(_)) => {
                let end = task.has_fetched.then(|| reader.fetched_end(topic, id)).flatten();
                KnownLog { read_until: task.triggers_read_until(), end }
            }
            _ => KnownLog::default(),
        });
        for LogEnd { log, partition: id, end, at, known } in ends {
            let Some(task) = self.tasks.get_mut(&id) else { continue };
            let Some(end) = end else { continue };
            match log {
                InputLog::Triggers => {
                    let next = task.next_trigger;
                    let Some(partition) = task.active() else { continue };
                    let is_short = self.truncated_logs.get(id, &self.decoder.triggers).is_some();
                    let is_cut = end < known.read_until || partition.were_triggers_longer(end);
                    if !is_cut && !is_short {
                        // An older end is of a broker that is not the leader any more. Whether
                        // it is old is not known before the reader has fetched.
                        match known.end.filter(|known_end| known.read_until <= *known_end) {
                            None => unknown.push(id),
                            Some(known_end) if known_end <= end => {
                                partition.on_end_offset(end, at);
                            }
                            Some(_) => {}
                        }
                    } else if !self.range_checks.is_open(id, log) {
                        cut.push((id, (end < known.read_until.min(next)).then_some(end), next));
                    }
                }
                InputLog::Signals => task.signals_end.end = end,
                InputLog::Ledger => task.on_ledger_end(end),
            }
        }
        unknown.into_iter().for_each(|id| self.end_offsets.ask_again(id));
        for (id, end, next) in cut {
            if let Some(end) = end {
                let now = self.clock.now_ms();
                self.truncated_logs.on_seen(id, &self.decoder.triggers, (end, next), now);
            }
            self.check_range(id, InputLog::Triggers, next);
        }
    }

    /// In half of the time for reading, which began at `began` on the monotonic clock: the rest is
    /// for triggers. Returns whether there was a record.
    fn read_signals_and_ledger(
        &mut self,
        inputs: &mut BTreeMap<PartitionId, Vec<Input>>,
        began: Duration,
    ) -> Result<bool, LoopError> {
        let mut has_read = false;
        let (mut ended, mut is_out_of_range) = (Vec::new(), false);
        let must_wait = |task: &PartitionTask<E::Store>| {
            (task.is_over_buffered() || task.has_waiting_inputs()) && !task.is_paused
        };
        if self.tasks.values().any(must_wait) {
            return Ok(false);
        }
        let until = began + self.config.timing.reading_max / 2;
        let mut read_at = began;
        let mut bytes_left = self.config.partition.bytes_per_step_max;
        for _ in 0..SIGNALS_AND_LEDGER_MAX {
            if read_at > until || bytes_left == 0 {
                break;
            }
            let event = match self.signals_and_ledger.poll(Duration::ZERO) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "signals and the ledger cannot be read");
                    break;
                }
            };
            match event {
                LogEvent::Record(record) => {
                    (has_read, read_at) = (true, self.clock.monotonic());
                    bytes_left = bytes_left.saturating_sub(bytes_of(&record));
                    let (topic, id, offset) = record.position();
                    let Some(task) = self.tasks.get_mut(&id) else { continue };
                    if topic == self.decoder.signals {
                        if offset >= task.next_signal && task.active().is_some() {
                            task.next_signal = offset + 1;
                            task.signals_end.on_record(read_at);
                            let input = Input::Signal(self.decoder.decode_signal(&record));
                            inputs.entry(id).or_default().push(input);
                        }
                    } else if let PartitionState::Restoring(restoring) = &mut task.state {
                        let is_our_barrier = self.decoder.is_barrier(&record, restoring.nonce);
                        restoring.add_ledger_record(&record, is_our_barrier);
                        (task.ledger_position, task.read_at) = (offset + 1, read_at);
                    }
                }
                LogEvent::End(id) => ended.push(id),
                LogEvent::OutOfRange => is_out_of_range = true,
            }
        }
        if is_out_of_range {
            self.on_out_of_range(LogReaderRole::SignalsAndLedger);
        }
        ended.into_iter().for_each(|id| self.on_signals_or_ledger_end_reached(id));
        Ok(has_read)
    }

    /// Handles the end of `triggers[p]`.
    fn on_triggers_end_reached(&mut self, id: PartitionId) -> Result<(), LoopError> {
        self.triggers_reading.on_read(id);
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        task.has_fetched = true;
        if task.pause.is_on() {
            return Ok(()); // records before the end are not read yet
        }
        // Only markers and aborted records may follow the last record that was read. A broker that
        // has become the leader just now, or is not any more, ends before.
        let position = || self.triggers.position(&self.decoder.triggers, id).ok().flatten();
        let read_until = |next: Offset| next.max(position().unwrap_or(0));
        let next = task.next_trigger;
        let retry_at = self.clock.monotonic() + self.config.timing.end_retry;
        match &mut task.state {
            PartitionState::Restoring(restoring) => {
                let Some(TakeoverRequest::Triggers { until, .. }) = restoring.requested else {
                    return Ok(());
                };
                if read_until(next) >= until {
                    (restoring.triggers_complete, task.end_check) = (true, EndCheck::Idle);
                } else if task.end_check == EndCheck::Idle {
                    self.confirm_end(id, InputLog::Triggers);
                } else if matches!(task.end_check, EndCheck::Confirming { .. }) {
                    task.end_check = EndCheck::RetryAt(retry_at);
                }
                Ok(())
            }
            PartitionState::Active(_) => {
                if let EndCheck::Confirming { end, .. } = task.end_check {
                    if read_until(next) < end {
                        task.end_check = EndCheck::RetryAt(retry_at);
                        return Ok(());
                    }
                    task.end_check = EndCheck::Idle;
                    if let Err(error) = task.ingest(vec![Input::TriggersEnd(end)]) {
                        return self.on_store_failed(id, &error);
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Checks end offsets again, starts silent readers again, and resumes paused partitions, if it
    /// is time.
    fn run_due_checks(&mut self) -> Result<(), LoopError> {
        let now = self.clock.monotonic();
        let (stall, silence) = (self.config.timing.stall, self.config.timing.silence_max);
        // If the last records are transaction markers, reading never reaches the end offset. If the
        // event of the end is missed, it is not known whether there is anything to read; but what
        // was fetched may wait behind records of other partitions, and is discarded by a check.
        let is_stalled = |task: &PartitionTask<E::Store>| match &task.state {
            PartitionState::Active(partition) => {
                partition.has_unread_input() && now >= task.read_at + stall
                    || !task.has_fetched && now >= task.read_at + silence
            }
            _ => false,
        };
        let is_check_due = |task: &PartitionTask<E::Store>| match task.end_check {
            _ if task.is_paused || task.pause.is_on() => false,
            EndCheck::Idle => is_stalled(task),
            EndCheck::Requested(_) => false,
            EndCheck::Confirming { until, .. } => now >= until,
            EndCheck::RetryAt(at) => now >= at,
        };
        let is_silent = |task: &PartitionTask<E::Store>| {
            task.is_waiting_for_reader() && now >= task.read_at + silence
        };
        let due: Vec<_> =
            self.tasks.values().filter(|task| is_check_due(task)).map(|task| task.id).collect();
        let silent: Vec<_> =
            self.tasks.values().filter(|task| is_silent(task)).map(|task| task.id).collect();
        due.into_iter().for_each(|id| self.confirm_end(id, InputLog::Triggers));
        for id in silent {
            self.restart_reader(id, now)?;
        }
        self.resume_paused()
    }

    fn resume_paused(&mut self) -> Result<(), LoopError> {
        let clock = &self.clock;
        let tasks = self.tasks.values_mut();
        let resumed: Vec<_> =
            tasks.filter_map(|task| task.pause.end(clock).then_some(task.id)).collect();
        resumed.into_iter().try_for_each(|id| self.start_log(id, InputLog::Triggers))
    }
}

/// The bytes of its key and value. Headers are small, and reading them takes time.
pub(super) fn bytes_of(record: &impl LogRecord) -> usize {
    record.key().map_or(0, <[u8]>::len) + record.value().map_or(0, <[u8]>::len)
}

#[cfg(test)]
#[path = "inputs/tests.rs"]
mod tests;
