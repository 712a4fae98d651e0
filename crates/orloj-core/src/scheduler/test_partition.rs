//! Partition tasks for tests: one that is active, and one that is being taken over.
//!
//! Invariant: nothing is registered in them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::config::ReadAheadLimits;
use super::partition_task::{PartitionRestore, PartitionState, PartitionTask};
use crate::engine::config::{InputTopics, PartitionConfig};
use crate::engine::cursor::Cursor;
use crate::engine::partition::{Input, Partition, PartitionStart};
use crate::engine::takeover::{Takeover, TakeoverRequest};
use crate::engine::tests::harness::registration_record;
use crate::engine::wheel::Wheel;
use crate::model::input::{Registration, Request};
use crate::model::names::Names;
use crate::model::partitioner::Partitioner;
use crate::model::timeline::TimelineKey;
use crate::model::{Offset, PartitionId, Timestamp};
use crate::test_environment::store::TestStore;

/// An active partition.
pub(super) fn active() -> PartitionTask<TestStore> {
    active_at(0)
}

/// The active partition with this number.
pub(super) fn active_at(id: PartitionId) -> PartitionTask<TestStore> {
    active_with(id, partition_config())
}

/// The same with other rules.
pub(super) fn active_with(id: PartitionId, config: PartitionConfig) -> PartitionTask<TestStore> {
    let cursor = Cursor::initial(0, 0);
    let start = PartitionStart {
        cursor,
        last_timestamp: 0,
        index_complete_from: 0,
        skips: BTreeSet::new(),
    };
    let wheel = Wheel::new(1, 1_000, usize::MAX, TimelineKey::MIN);
    let state = PartitionState::Active(Box::new(Partition::new(id, config, start, wheel)));
    PartitionTask::in_state(id, Arc::default(), state, Duration::ZERO)
}

/// The rules of a partition.
pub(super) fn partition_config() -> PartitionConfig {
    PartitionConfig {
        ledger_after: 1_000,
        veto_ttl: 1_000,
        sample_interval: 1_000,
        idle_commit: 1_000,
        cursor_copy_interval: 1_000,
        records_per_step_max: 1_000,
        bytes_per_step_max: usize::MAX,
        spill_bytes: usize::MAX,
        spill_interval: 1_000,
        cancel_grace: 0,
        target_retry_interval: 1_000,
        callback_result_timeout: 1_000,
        misfire_grace: 1_000,
        catch_up_rate: 1_000,
        partitioner: Partitioner::Murmur2,
        partitions: 1,
        pools: Vec::new(),
        owner: "me".to_owned(),
        topics: InputTopics { triggers: "o.triggers".into(), signals: "o.signals".into() },
    }
}

/// An active partition has read the record at `offset`, and no other: it registers a trigger that
/// is due at `due`.
pub(super) fn register(task: &mut PartitionTask<TestStore>, offset: Offset, due: Timestamp) {
    let record = registration_record(&format!("t{offset}"), offset, due);
    task.next_trigger = offset + 1;
    task.ingest(vec![Input::Trigger(record)]).unwrap();
}

/// The same; the payload has so many bytes.
pub(super) fn register_large(
    task: &mut PartitionTask<TestStore>,
    at: (Offset, Timestamp),
    payload_bytes: usize,
) {
    register_with(task, at, |registration| {
        registration.definition.payload = Some(vec![7; payload_bytes].into());
    });
}

/// The same, changed.
pub(super) fn register_with(
    task: &mut PartitionTask<TestStore>,
    (offset, due): (Offset, Timestamp),
    change: impl FnOnce(&mut Registration),
) {
    let mut record = registration_record(&format!("t{offset}"), offset, due);
    let Request::Register(registration) = &mut record.request else { panic!("{record:?}") };
    change(registration);
    task.next_trigger = offset + 1;
    task.ingest(vec![Input::Trigger(record)]).unwrap();
}

/// An active partition has read all that was written before `now`.
pub(super) fn all_read(task: &mut PartitionTask<TestStore>, now: Timestamp) {
    let end = task.next_trigger;
    task.active().unwrap().on_end_offset(end, now);
}

/// An active partition with a trigger that is due now.
pub(super) fn due_at(id: PartitionId, now: Timestamp) -> PartitionTask<TestStore> {
    let mut task = active_at(id);
    let _behind = task.active().unwrap().observe_clock(now);
    register(&mut task, 0, now);
    all_read(&mut task, now);
    task
}

/// A partition whose takeover has requested this.
pub(super) fn restoring(requested: TakeoverRequest) -> PartitionTask<TestStore> {
    let takeover = Takeover::new(0, &Names::new("o"), "me", 1, None);
    let mut task =
        PartitionTask::new(0, Arc::default(), takeover, ReadAheadLimits::NONE, Duration::ZERO);
    restore_of(&mut task).requested = Some(requested);
    task
}

/// What a takeover has read.
pub(super) fn restore_of(task: &mut PartitionTask<TestStore>) -> &mut PartitionRestore {
    let PartitionState::Restoring(restoring) = &mut task.state else { panic!("it restores") };
    restoring
}
