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
        | PartitionState::WaitingForProducer
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
        (Intake::Live, input) => {
            restoring.triggers_complete = true;
            restoring.live_inputs.push(input);
        }
        (Intake::Replayed { .. }, Input::Trigger(record)) => restoring.triggers.push(record),
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
            let has_room =
                matches!(&task.state, PartitionState::Active(active) if !active.is_full());
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
mod release_tests;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::codec::registration::{SchemaLookup, WriterSchemas};
    use crate::codec::schemas::Schemas;
    use crate::engine::cursor::Cursor;
    use crate::engine::parked_schemas::{PARKED_SCHEMAS_MAX, ParkedSchemas};
    use crate::engine::partition_offsets::PartitionOffsets;
    use crate::engine::prefetch::IndexRows;
    use crate::engine::takeover::Takeover;
    use crate::environment::log::RecordHeader;
    use crate::model::Timestamp;
    use crate::model::input::Request;
    use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
    use crate::model::names::Names;
    use crate::model::partitioner::Partitioner;
    use crate::scheduler::test_store::TestStore;

    const LIMITS: ParkingLimits = ParkingLimits { records_max: 100, bytes_max: 10_000 };
    const N: Offset = 40;
    /// Names the schema 7.
    const AVRO: Option<&[u8]> = Some(&[0, 0, 0, 0, 7, 1]);

    /// A registry that is away.
    #[derive(Debug)]
    struct Away;

    impl SchemaSource for Away {
        fn at(&self, _now: Duration) -> impl WriterSchemas + '_ {
            Self
        }

        fn refusal(&self, _now: Duration) -> Option<String> {
            None
        }

        fn denies(&self, _schema: u32, _now: Duration) -> bool {
            false
        }
    }

    impl WriterSchemas for Away {
        fn by_id(&self, _id: u32) -> SchemaLookup {
            SchemaLookup::Unreachable
        }
    }

    struct Record {
        offset: Offset,
        key: &'static [u8],
        value: Option<&'static [u8]>,
    }

    impl LogRecord for Record {
        fn position(&self) -> (&str, PartitionId, Offset) {
            ("o.triggers", 0, self.offset)
        }

        fn timestamp(&self) -> Timestamp {
            0
        }

        fn key(&self) -> Option<&[u8]> {
            Some(self.key)
        }

        fn value(&self) -> Option<&[u8]> {
            self.value
        }

        fn headers(&self) -> impl Iterator<Item = RecordHeader<'_>> {
            std::iter::empty()
        }
    }

    /// Of two partitions; records are in the first one.
    fn decoder(partitioner: Partitioner) -> InputDecoder<Away> {
        InputDecoder::new(&Names::new("o"), partitioner, 2, Arc::new(Schemas::new()), Away)
    }

    /// A key of the first partition, and one of the other.
    fn keys() -> (&'static [u8], &'static [u8]) {
        let keys: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
        let of = |partition| {
            let is = |key: &&&[u8]| Partitioner::Murmur2.partition(key, 2) == Some(partition);
            *keys.iter().find(is).expect("keys of both partitions")
        };
        (of(0), of(1))
    }

    /// A new owner of a partition in which records are parked from 10 on, and one has a mark. It
    /// reads `triggers` from there on.
    fn new_owner(parked: ParkedSchemas, mark: Option<Offset>) -> PartitionTask<TestStore> {
        let cursor = Cursor { next_offset: N, parked, ..Cursor::initial(10, 0) };
        let offsets = |owner| PartitionOffsets {
            committed: Some((N, cursor.to_metadata(owner))),
            triggers_end: N,
            ledger_end: 2,
            ..PartitionOffsets::default()
        };
        let mut takeover = Takeover::new(0, &Names::new("o"), "me", 1, None);
        takeover.on_offsets(offsets("earlier")).unwrap();
        takeover.on_barrier();
        takeover.on_offsets(offsets("me")).unwrap();
        let mark = mark.map(|offset| (LedgerKey::Skip(offset), LedgerValue::Skip));
        let barrier = (LedgerKey::Barrier, LedgerValue::Barrier { nonce: 1 });
        let record = |(key, value)| LedgerRecord { key, value: Some(value), step: 1 };
        let records = mark.into_iter().chain([barrier]).map(record).collect();
        let _rows = takeover.on_ledger(records, 2, &IndexRows::default()).unwrap();
        let request = takeover.next_request();
        assert_eq!(request, TakeoverRequest::Triggers { from: 10, until: N });
        let mut task = PartitionTask::new(0, Arc::default(), takeover, Duration::ZERO);
        let PartitionState::Restoring(restoring) = &mut task.state else { panic!("it restores") };
        restoring.requested = Some(request);
        task.start_replay(10, N);
        task
    }

    /// Takes a record. Returns what is ingested, if it is new, and whether it is parked.
    fn take(
        task: &mut PartitionTask<TestStore>,
        partitioner: Partitioner,
        record: &Record,
    ) -> (Option<Request>, bool) {
        let before = task.parking.len();
        let ingested =
            take_trigger(task, &decoder(partitioner), record, (LIMITS, Duration::ZERO)).unwrap();
        assert_eq!(ingested, None, "the takeover is not complete");
        let PartitionState::Restoring(restoring) = &mut task.state else { panic!("it restores") };
        let live = restoring.live_inputs.pop().map(|input| match input {
            Input::Trigger(record) => Some(record.request),
            _ => None,
        });
        (live.flatten(), task.parking.len() > before)
    }

    fn parked_from_10() -> ParkedSchemas {
        [(7, 10)].into_iter().collect()
    }

    #[test]
    fn a_record_in_a_wrong_partition_does_not_wait_for_a_schema() {
        let (here, other) = keys();
        let mut task = new_owner(parked_from_10(), None);
        let first = Record { offset: 10, key: here, value: AVRO };
        assert_eq!(take(&mut task, Partitioner::Murmur2, &first), (None, true));
        let wrong = Record { offset: N, key: other, value: AVRO };
        let (request, is_parked) = take(&mut task, Partitioner::Murmur2, &wrong);
        assert!(matches!(request, Some(Request::Forward(_))) && !is_parked, "{request:?}");
        let waits = Record { offset: N + 1, key: other, value: AVRO };
        assert_eq!(take(&mut task, Partitioner::Any, &waits), (None, true));
        let behind = Record { offset: N + 2, key: other, value: None };
        let taken = take(&mut task, Partitioner::Murmur2, &behind);
        assert_eq!(taken, (None, true), "the order of a trigger's records is kept");
    }

    #[test]
    fn a_record_that_was_forwarded_is_not_parked_by_a_new_owner() {
        let (_, other) = keys();
        let wrong = Record { offset: 20, key: other, value: AVRO };
        let mut task = new_owner(parked_from_10(), Some(20));
        assert_eq!(take(&mut task, Partitioner::Murmur2, &wrong), (None, false));
        let mut task = new_owner(parked_from_10(), Some(21));
        assert_eq!(take(&mut task, Partitioner::Murmur2, &wrong), (None, true), "another setting");
    }

    #[test]
    fn a_record_that_was_parked_is_forwarded_once_if_another_partitioner_is_set() {
        let (_, other) = keys();
        let record = |offset, value| Record { offset, key: other, value };
        let mut task = new_owner(parked_from_10(), None);
        let head = record(10, AVRO);
        assert_eq!(take(&mut task, Partitioner::Any, &head), (None, true));
        assert_eq!(take(&mut task, Partitioner::Any, &record(11, None)), (None, true));
        // Another one takes over.
        let mut task = new_owner(task.parking.schemas(), None);
        assert_eq!(take(&mut task, Partitioner::Murmur2, &head), (None, true));
        assert_eq!(take(&mut task, Partitioner::Murmur2, &record(11, None)), (None, true));
        let decoder = decoder(Partitioner::Murmur2);
        let read = |record: &_| decoder.decode_trigger(record, Duration::ZERO);
        let released = task.parking.release(100, || false, read).expect("it needs no schema here");
        let forwarded: Vec<_> = released.records.iter().map(|record| record.offset).collect();
        assert_eq!(forwarded, [10, 11]);
        let is_forward = |record: &_| {
            let crate::model::input::TriggerRecord { request, .. } = record;
            matches!(request, Request::Forward(_))
        };
        assert!(released.records.iter().all(is_forward));
        let read = |record: &_| decoder.decode_trigger(record, Duration::ZERO);
        assert!(task.parking.release(100, || false, read).is_none(), "once");
        // And the next owner does not forward it again.
        let mut task = new_owner(released.schemas, Some(10));
        assert_eq!(take(&mut task, Partitioner::Murmur2, &head), (None, false));
    }

    /// The same of the schema 8.
    const AVRO_8: Option<&[u8]> = Some(&[0, 0, 0, 0, 8, 1]);

    fn new_schemas(task: &PartitionTask<TestStore>) -> Vec<(u32, Offset)> {
        task.parking.schemas().iter().collect()
    }

    #[test]
    fn a_schema_that_is_missing_behind_a_parked_record_counts_from_n_on_and_not_below() {
        let (key, _) = keys();
        let record = |offset, value| Record { offset, key, value };
        let mut task = new_owner(parked_from_10(), None);
        for (offset, value) in [(10, AVRO), (11, AVRO_8)] {
            let taken = take(&mut task, Partitioner::Murmur2, &record(offset, value));
            assert_eq!(taken, (None, true));
        }
        assert_eq!(new_schemas(&task), [(7, 10)], "the cursor says what is missing below N");
        let taken = take(&mut task, Partitioner::Murmur2, &record(N, AVRO_8));
        assert_eq!((taken, new_schemas(&task)), ((None, true), vec![(7, 10), (8, N)]));
    }

    #[test]
    fn a_new_record_whose_schema_is_missing_is_parked_if_there_is_room() {
        let (key, _) = keys();
        let record = Record { offset: N, key, value: AVRO };
        let mut task = new_owner(ParkedSchemas::NONE, None);
        let none = ParkingLimits { records_max: 0, ..LIMITS };
        let limits = (none, Duration::ZERO);
        let taken = take_trigger(&mut task, &decoder(Partitioner::Any), &record, limits);
        assert!(matches!(taken, Err(NotTaken::NoRoom)), "{taken:?}");
        assert_eq!(task.next_trigger, 10, "it is read again");
        let PartitionState::Restoring(restoring) = &task.state else { panic!("it restores") };
        assert!(restoring.triggers_complete, "all below N is read");
        assert_eq!(take(&mut task, Partitioner::Any, &record), (None, true));
        assert_eq!((task.next_trigger, new_schemas(&task)), (N + 1, vec![(7, N)]));
        let behind = Record { offset: N + 1, key, value: None };
        let taken = take_trigger(&mut task, &decoder(Partitioner::Any), &behind, limits);
        assert!(matches!(taken, Err(NotTaken::NoRoom)), "{taken:?}");
    }

    #[test]
    fn no_more_schemas_are_missing_at_a_time_than_the_cursor_has_room_for() {
        let (key, other) = keys();
        let missing = (100..).zip(0..PARKED_SCHEMAS_MAX as Offset);
        let mut task = new_owner(missing.map(|(schema, n)| (schema, 10 + n)).collect(), None);
        let record = Record { offset: N, key, value: AVRO };
        let limits = (LIMITS, Duration::ZERO);
        let taken = take_trigger(&mut task, &decoder(Partitioner::Any), &record, limits);
        assert!(matches!(taken, Err(NotTaken::NoRoom)), "{taken:?}");
        let readable = Record { offset: N, key: other, value: None };
        let (request, is_parked) = take(&mut task, Partitioner::Any, &readable);
        assert!(request.is_some() && !is_parked, "{request:?}");
    }
}
