//! The transactional producers of a process: two that take turns.
//!
//! Invariant: what is sent is what the production code has encoded; it is decoded here.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use orloj_core::codec::ledger_key::STEP_HEADER;
use orloj_core::engine::cursor::Cursor;
use orloj_core::environment::log::RecordHeader;
use orloj_core::environment::transaction::{
    OffsetCommit, ProducerFactory, ProducerRecord, TransactionError, TransactionalSending,
};
use orloj_core::fault::{Mutation, is_active};
use orloj_core::model::Timestamp;
use orloj_core::model::definition::Header;
use orloj_core::model::fire::WorkerRecord;
use orloj_core::model::fire_id::FireId;
use orloj_core::model::ledger::LedgerValue;

use super::{ProcessState, SimulatedProcess, index, suffix};
use crate::simulation::broker::{
    Producer, SimulatedEffect, SimulatedOffsetCommit, SimulatedOutput, SimulatedProducerError,
    SimulatedRawRecord, SimulatedSend, SimulatedTopicFire,
};
use crate::simulation::cluster::{SimulatedCluster, partition_of};
use crate::simulation::fault_kinds::FaultKind;
use crate::simulation::group::{Membership, producer_ids};
use crate::simulation::log::SimulatedTransactionState;

/// Opens the producers of a process.
#[derive(Clone)]
pub(in crate::simulation) struct SimulatedProducers(pub(in crate::simulation) SimulatedProcess);

impl ProducerFactory for SimulatedProducers {
    type Producer = SimulatedProducer;

    fn open(&self) -> Result<SimulatedProducer, TransactionError> {
        let producers = self.0.call(|cluster, state| {
            cluster
                .fail_sometimes()
                .map_err(|error| TransactionError::Unknown(error.to_string()))?;
            if std::mem::replace(&mut state.has_producers, true) {
                cluster.counts.add(FaultKind::StepDropped);
            }
            Ok(producer_ids(state.id).map(|id| cluster.broker.init(id)))
        })?;
        let (process, current) = (self.0.clone(), AtomicUsize::new(0));
        Ok(SimulatedProducer { process, producers, current, outside: Mutex::default() })
    }
}

/// Two transactional producers.
pub(in crate::simulation) struct SimulatedProducer {
    process: SimulatedProcess,
    producers: [Producer; 2],
    current: AtomicUsize,
    /// Offsets to commit after the transaction: see [`Mutation::OffsetsOutsideTransaction`].
    outside: Mutex<Option<(Vec<SimulatedOffsetCommit>, Membership)>>,
}

impl SimulatedProducer {
    fn current(&self) -> Producer {
        self.producers[self.current.load(Ordering::Relaxed)]
    }
}

fn refused(error: SimulatedProducerError, cluster: &mut SimulatedCluster) -> TransactionError {
    match error {
        SimulatedProducerError::Fenced => {
            cluster.counts.add(FaultKind::ProducerFenced);
            TransactionError::Fenced("by a newer producer".to_owned())
        }
        SimulatedProducerError::Generation => {
            cluster.counts.add(FaultKind::GenerationRefused);
            TransactionError::StaleGeneration("a newer generation".to_owned())
        }
    }
}

impl TransactionalSending for SimulatedProducer {
    type Metadata = Membership;

    fn begin_at(&self, _time: Timestamp) -> Result<(), TransactionError> {
        let _previous = self.current.fetch_xor(1, Ordering::Relaxed);
        Ok(())
    }

    fn send(&self, record: ProducerRecord<'_>) -> Result<(), TransactionError> {
        let producer = self.current();
        self.process.call(|cluster, state| {
            let output = output_of(&record, cluster, state);
            cluster.broker.send(producer, output).map_err(|error| refused(error, cluster))
        })
    }

    fn flush(&self, _timeout: Duration) -> Result<(), TransactionError> {
        Ok(())
    }

    fn send_offsets(
        &self,
        commits: &[OffsetCommit],
        metadata: &Membership,
        _timeout: Duration,
    ) -> Result<(), TransactionError> {
        let (producer, commits) = (self.current(), offset_commits(commits));
        if is_active(Mutation::OffsetsOutsideTransaction) {
            *self.outside.lock().unwrap() = Some((commits, *metadata));
            return Ok(());
        }
        self.process.call(|cluster, _| {
            let is_final = |(_, _, metadata): &&SimulatedOffsetCommit| {
                Cursor::active_owner(metadata).is_none()
            };
            let handed_over = commits.iter().filter(is_final).count() as u64;
            cluster.counts.add_many(FaultKind::Handover, handed_over);
            let sent = cluster.broker.send_offsets(producer, &commits, metadata);
            sent.map_err(|error| refused(error, cluster))
        })
    }

    /// The request may be lost, and so may the response.
    fn commit(&self, _timeout: Duration) -> Result<(), TransactionError> {
        let producer = self.current();
        self.process.call(|cluster, state| {
            let time = shown(cluster, state);
            if !cluster.calm && cluster.rng.one_in(60) {
                let why = if cluster.rng.one_in(2) {
                    cluster.steps += cluster.broker.commit(producer, time).unwrap_or(0);
                    cluster.counts.add(FaultKind::OutcomeUnknownCommitted);
                    "the response was lost"
                } else {
                    cluster.counts.add(FaultKind::OutcomeUnknownAborted);
                    "the request was lost"
                };
                return Err(TransactionError::Unknown(why.to_owned()));
            }
            let committed = cluster.broker.commit(producer, time);
            cluster.steps += committed.map_err(|error| refused(error, cluster))?;
            // It may stop right after that, and not know of it when others go on.
            state.pauses_now |= !cluster.calm && cluster.rng.one_in(100);
            if let Some((commits, membership)) = self.outside.lock().unwrap().take() {
                cluster.broker.commit_offsets(&commits, &membership);
            }
            Ok(())
        })
    }

    fn abort(&self, _timeout: Duration) -> Result<(), TransactionError> {
        let producer = self.current();
        self.process.call(|cluster, _| {
            let aborted = cluster.broker.end(producer, SimulatedTransactionState::Aborted);
            aborted.map_err(|error| refused(error, cluster))
        })
    }
}

fn offset_commits(commits: &[OffsetCommit]) -> Vec<SimulatedOffsetCommit> {
    let commit =
        |commit: &OffsetCommit| (index(commit.partition), commit.offset, commit.metadata.clone());
    commits.iter().map(commit).collect()
}

/// By a clock that is never set back.
fn shown(cluster: &SimulatedCluster, state: &mut ProcessState) -> Timestamp {
    let now = cluster.broker.now;
    let (shown, at) = state.shown;
    let time = now.saturating_add_signed(state.skew).max(shown + now.saturating_sub(at));
    state.shown = (time, now);
    time
}

/// The record as the broker keeps it.
fn output_of(
    record: &ProducerRecord<'_>,
    cluster: &mut SimulatedCluster,
    state: &mut ProcessState,
) -> SimulatedOutput {
    let schemas = Arc::clone(&cluster.reader.schemas);
    let p = index(record.partition.expect("the scheduler chooses the partition"));
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
