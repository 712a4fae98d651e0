//! What becomes of a record of `triggers` that was read: it is ingested, replayed, or parked.
//!
//! Invariant: each record is passed on once, in the order of the log, except those that are parked.

use std::time::Duration;

use super::input_decoder::{InputDecoder, record_form};
use super::parking::{ParkingLimits, RecordForm};
use super::partition_task::{EndCheck, PartitionState, PartitionTask};
use super::{LoopError, Scheduler};
use crate::codec::registration::ReadError;
use crate::engine::partition::{Input, ParkedRecord};
use crate::engine::takeover::TakeoverRequest;
use crate::environment::log::LogRecord;
use crate::environment::store::RowStore;
use crate::environment::{Clock as _, Environment, SchemaSource};
use crate::model::{Offset, PartitionId};

/// Why a record of `triggers` is not taken now: reading pauses before it.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotTaken {
    /// It was ingested by an earlier program, and its schema is needed again.
    #[error(transparent)]
    NotReadable(#[from] ReadError),
    /// It must be parked, and too much is.
    #[error("more records wait for their schemas than triggers.parked_records_max allows")]
    NoRoom,
}

/// How a record of `triggers` is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intake {
    /// It is below N.
    Replayed { registry_from: Offset },
    /// It is new.
    Live,
}

/// Takes a record. Returns what is to be ingested now.
pub(super) fn take_trigger<S: RowStore, W: SchemaSource>(
    task: &mut PartitionTask<S>,
    decoder: &InputDecoder<W>,
    record: &impl LogRecord,
    (limits, now): (ParkingLimits, Duration),
) -> Result<Option<Input>, NotTaken> {
    let offset = record.offset();
    let Some(intake) = intake(task, offset) else { return Ok(None) };
    if task.parking.is_empty() && task.skip_covered(offset, record.timestamp()) {
        return Ok(None);
    }
    let names_schema = record.value().is_some_and(|value| value.first() == Some(&0));
    let form = if names_schema || !task.parking.is_empty() {
        record_form(record)
    } else {
        None // nearly always
    };
    let waiting = form.as_ref().filter(|form| {
        task.parking.must_wait(offset, form) && !passes_on(task, decoder, record, (form, intake))
    });
    // What the ledger has of a parked record is from before an operator moved the offset back.
    if waiting.is_none() && task.skip_covered(offset, record.timestamp()) {
        return Ok(None);
    }
    let input = match waiting {
        Some(form) => {
            // Below N nothing is added to what the cursor says of the schemas.
            let is_readable =
                || intake != Intake::Live || decode(decoder, record, now, intake).is_ok();
            Some(park(task, form.clone(), (record, is_readable), (intake, limits, now))?)
        }
        None => match (decode(decoder, record, now, intake), intake, form) {
            (Ok(trigger), ..) => Some(Input::Trigger(trigger)),
            (Err(ReadError::RegistryUnavailable { id }), Intake::Live, Some(form)) => {
                if !task.parking.has_room(limits) || !task.parking.add_schema(id, offset) {
                    return Err(no_room(task));
                }
                Some(park(task, form, (record, || false), (intake, limits, now))?)
            }
            (Err(error), ..) => return Err(error.into()),
        },
    };
    task.next_trigger = offset + 1;
    task.end_check = EndCheck::Idle;
    Ok(input.and_then(|input| route(task, input, intake)))
}

/// How the record at `offset` is taken; `None` if it is not.
fn intake<S: RowStore>(task: &PartitionTask<S>, offset: Offset) -> Option<Intake> {
    match &task.state {
        PartitionState::Active(_) => Some(Intake::Live),
        PartitionState::Restoring(restoring) => match restoring.requested {
            Some(TakeoverRequest::Triggers { until, .. }) if offset < until => {
                Some(Intake::Replayed { registry_from: restoring.registry_from })
            }
            // Once this takeover has read all that is below N, and not before.
            Some(TakeoverRequest::Triggers { .. } | TakeoverRequest::Nothing) => Some(Intake::Live),
            _ => None,
        },
        PartitionState::WaitingForClock(_)
        | PartitionState::StoreFailed
        | PartitionState::Refused(_)
        | PartitionState::Transitioning => None,
    }
}

/// Whether a record that must wait is in a wrong partition, and is forwarded or was: its schema is
/// not needed here. If another partitioner was set when it was read, it is parked, and has no mark.
fn passes_on<S: RowStore, W: SchemaSource>(
    task: &PartitionTask<S>,
    decoder: &InputDecoder<W>,
    record: &impl LogRecord,
    (form, intake): (&RecordForm, Intake),
) -> bool {
    let is_decided = match (intake, &task.state) {
        (Intake::Live, _) => !task.parking.has_trigger(&form.id),
        (_, PartitionState::Restoring(restoring)) => restoring.marked.contains(&record.offset()),
        _ => false,
    };
    is_decided && decoder.is_misplaced(record, &form.id)
}

fn decode<W: SchemaSource>(
    decoder: &InputDecoder<W>,
    record: &impl LogRecord,
    now: Duration,
    intake: Intake,
) -> Result<crate::model::input::TriggerRecord, ReadError> {
    match intake {
        Intake::Replayed { registry_from } => decoder.decode_replayed(record, now, registry_from),
        Intake::Live => decoder.decode_trigger(record, now),
    }
}

/// Parks a record. What an earlier owner has parked is taken whatever the limits are.
fn park<S: RowStore>(
    task: &mut PartitionTask<S>,
    form: RecordForm,
    (record, is_readable): (&impl LogRecord, impl FnOnce() -> bool),
    (intake, limits, now): (Intake, ParkingLimits, Duration),
) -> Result<Input, NotTaken> {
    if intake == Intake::Live && !task.parking.has_room(limits) {
        return Err(no_room(task));
    }
    let id = form.id.clone();
    task.parking.park(form, record, now, is_readable);
    let (offset, timestamp) = (record.offset(), record.timestamp());
    Ok(Input::Parked(ParkedRecord { offset, timestamp, id, schemas: task.parking.schemas() }))
}

/// Reading pauses before a new record: all below N is read.
fn no_room<S: RowStore>(task: &mut PartitionTask<S>) -> NotTaken {
    task.end_check = EndCheck::Idle;
    if let PartitionState::Restoring(restoring) = &mut task.state {
        restoring.triggers_complete = true;
    }
    NotTaken::NoRoom
}

/// Passes an input to the takeover in progress; without one, returns it.
fn route<S: RowStore>(task: &mut PartitionTask<S>, input: Input, intake: Intake) -> Option<Input> {
    let PartitionState::Restoring(restoring) = &mut task.state else { return Some(input) };
    match (intake, input) {
        (Intake::Live, input) => restoring.add_live(input),
        (Intake::Replayed { .. }, Input::Trigger(record)) => restoring.add_trigger(record),
        (Intake::Replayed { .. }, _) => restoring.records_read += 1,
    }
    None
}

impl<E: Environment> Scheduler<E> {
    /// Ingests parked records whose schemas are known now, of the partition that waits for longest
    /// first: this takes its time of a turn of the loop.
    pub(super) fn release_parked(&mut self, turn_began: Duration) -> Result<(), LoopError> {
        let started = self.clock.monotonic();
        let is_due = |task: &&PartitionTask<E::Store>| {
            // What was read before must be ingested first.
            let has_room = matches!(&task.state, PartitionState::Active(_)) && !task.is_full();
            !task.parking.is_empty() && started >= task.release_at && has_room
        };
        let due = self.tasks.values().filter(is_due).map(|task| (task.release_at, task.id));
        let mut due: Vec<_> = due.collect();
        due.sort_unstable();
        let until = self.firing_deadline(turn_began);
        for (_, id) in due {
            self.release_parked_of(id, until)?;
            if self.clock.monotonic() >= until {
                break;
            }
        }
        Ok(())
    }

    /// Those of one partition, until `until` on the monotonic clock.
    fn release_parked_of(&mut self, id: PartitionId, until: Duration) -> Result<(), LoopError> {
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        let now = self.clock.monotonic();
        let count_max = self.config.records_per_step_max;
        let read = |record: &_| self.decoder.decode_trigger(record, now);
        let is_late = || self.clock.monotonic() >= until;
        let released = task.parking.release(count_max, is_late, read);
        task.release_at = self.clock.monotonic() + self.config.timing.parked_retry;
        let Some(released) = released else { return Ok(()) };
        let records = released.records.len();
        tracing::info!(partition = id, records, "the schemas of parked records are known");
        let mut inputs: Vec<_> = released.records.into_iter().map(Input::Trigger).collect();
        inputs.push(Input::Unparked { ids: released.ids, schemas: released.schemas });
        match task.ingest(inputs) {
            Ok(()) => Ok(()),
            Err(error) => self.on_store_failed(id, &error),
        }
    }
}

#[cfg(test)]
#[path = "trigger_intake/tests.rs"]
mod tests;
