//! What a record means that a simulated process sends.
//!
//! Invariant: it is what the production code has encoded, decoded.

use std::sync::Arc;

use bytes::Bytes;
use orloj_core::codec::ledger_key::STEP_HEADER;
use orloj_core::environment::log::RecordHeader;
use orloj_core::environment::transaction::ProducerRecord;
use orloj_core::model::definition::Header;
use orloj_core::model::fire::WorkerRecord;
use orloj_core::model::fire_id::FireId;
use orloj_core::model::ledger::LedgerValue;
use orloj_core::model::{PartitionId, Timestamp};

use super::{ProcessState, index, suffix};
use crate::simulation::broker::{
    SimulatedEffect, SimulatedOutput, SimulatedRawRecord, SimulatedSend, SimulatedTopicFire,
};
use crate::simulation::cluster::{SimulatedCluster, partition_of};

/// By a clock that is never set back.
pub(super) fn shown(cluster: &SimulatedCluster, state: &mut ProcessState) -> Timestamp {
    let now = cluster.broker.now;
    let (shown, at) = state.shown;
    let time = now.saturating_add_signed(state.skew).max(shown + now.saturating_sub(at));
    state.shown = (time, now);
    time
}

/// The record as the broker keeps it.
pub(super) fn output_of(
    record: &ProducerRecord<'_>,
    cluster: &mut SimulatedCluster,
    state: &mut ProcessState,
) -> SimulatedOutput {
    let schemas = Arc::clone(&cluster.reader.schemas);
    let p = index(partition(record));
    let (key, value) = (record.key.unwrap_or_default(), record.value.unwrap_or_default());
    let header = |name: &str| {
        let found = record.headers.iter().find(|(key, _)| *key == name);
        found.and_then(|(_, value)| *value)
    };
    match suffix(record.topic) {
        "triggers" => {
            let raw = SimulatedRawRecord {
                key: Bytes::copy_from_slice(key),
                value: record.value.map(Bytes::copy_from_slice),
                headers: record.headers.iter().map(header_of).collect(),
            };
            SimulatedOutput::Trigger(p, raw)
        }
        "signals" => SimulatedOutput::Signal(p, schemas.decode_signal(value).unwrap()),
        "ledger" => {
            let entry = schemas.decode_ledger(key, record.value, header(STEP_HEADER)).unwrap();
            if let Some(LedgerValue::Barrier { nonce }) = entry.value {
                state.takeovers[p] = nonce ^ (p as u64).rotate_left(48);
            }
            SimulatedOutput::Ledger(p, entry)
        }
        "fires" => {
            let effect = match schemas.decode_worker_record(value).unwrap() {
                WorkerRecord::Callback(fire) => SimulatedEffect::Callback(fire),
                WorkerRecord::Withdrawal(withdrawal) => SimulatedEffect::Withdrawal(withdrawal),
            };
            SimulatedOutput::Fire(p, sent(effect, p, cluster, state))
        }
        "outcomes" => {
            let outcome = schemas.decode_outcome(value).unwrap();
            SimulatedOutput::Other(
                p,
                sent(SimulatedEffect::Outcome(Box::new(outcome)), p, cluster, state),
            )
        }
        "dead-letters" => {
            let letter = schemas.decode_dead_letter(value).unwrap();
            SimulatedOutput::Other(
                p,
                sent(SimulatedEffect::DeadLetter(Box::new(letter)), p, cluster, state),
            )
        }
        _ => {
            let text = |name| std::str::from_utf8(header(name).unwrap()).unwrap().to_owned();
            let id = fire_id(&text("orloj-fire-id"));
            let scheduled = text("orloj-due").parse().unwrap();
            // The fire belongs to the partition of its trigger.
            let p = partition_of(id.trigger.as_str().as_bytes());
            let fire = SimulatedTopicFire {
                id,
                scheduled,
                payload: value.to_vec(),
                topic: record.topic.to_owned(),
                partition: record.partition.expect("the scheduler chooses the partition"),
                key: key.to_vec(),
                headers: record.headers.iter().map(header_of).collect(),
            };
            let effect = SimulatedEffect::TopicFire(Box::new(fire));
            SimulatedOutput::Other(p, sent(effect, p, cluster, state))
        }
    }
}

/// As it is sent, or as the partitioner chooses.
pub(super) fn partition(record: &ProducerRecord<'_>) -> PartitionId {
    let by_key = || PartitionId::try_from(partition_of(record.key.unwrap_or_default())).unwrap();
    record.partition.unwrap_or_else(by_key)
}

fn header_of((name, value): &RecordHeader<'_>) -> Header {
    Header { name: (*name).into(), value: value.map(Bytes::copy_from_slice) }
}

/// Reads `<trigger>:<generation>:<occurrence>`.
fn fire_id(text: &str) -> FireId {
    let mut parts = text.rsplitn(3, ':');
    let mut next = || parts.next().unwrap();
    let (occurrence, generation) = (next().parse().unwrap(), next().parse().unwrap());
    FireId { trigger: next().into(), generation, occurrence, attempt: 1, deferral: 0 }
}

fn sent(
    effect: SimulatedEffect,
    p: usize,
    cluster: &SimulatedCluster,
    state: &mut ProcessState,
) -> SimulatedSend {
    let clock = shown(cluster, state) + state.lead_max;
    let takeover_number = state.takeovers[p];
    SimulatedSend { effect, takeover_number, clock, order: 0, txn: None }
}
