//! The transactional producers of a process: two that take turns.
//!
//! Invariant: what is sent is what the production code has encoded; it is decoded here.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use orloj_core::engine::cursor::Cursor;
use orloj_core::environment::transaction::{
    OffsetCommit, ProducerFactory, ProducerRecord, TransactionError, TransactionalSending,
};
use orloj_core::model::{Millis, Timestamp};

use super::sent_record::{output_of, partition, shown};
use super::{SimulatedProcess, hang_sometimes, index, suffix, wait_for_response};
use crate::simulation::broker::{ClientRecord, SimulatedOffsetCommit};
use crate::simulation::cluster::{Refusal, SimulatedCluster};
use crate::simulation::fault_kinds::FaultKind;
use crate::simulation::group::{Membership, producer_ids};
use crate::simulation::late_requests::LateCall;
use crate::simulation::log::SimulatedTransactionState;
use crate::simulation::partition_outages::TopicPartition;
use crate::simulation::transaction::{Producer, SimulatedProducerError};

/// For how long a record is tried to be delivered, in ms.
pub(in crate::simulation) const MESSAGE_TIMEOUT: Millis = 40;
/// Brokers refuse longer metadata of an offset, in bytes.
const OFFSET_METADATA_MAX: usize = 4_096;

/// Opens the producers of a process.
#[derive(Clone)]
pub(in crate::simulation) struct SimulatedProducers(pub(in crate::simulation) SimulatedProcess);

impl ProducerFactory for SimulatedProducers {
    type Producer = SimulatedProducer;

    fn open(&self, number: usize) -> Result<SimulatedProducer, TransactionError> {
        let producers = self.0.call(|cluster, state| {
            let ids = producer_ids(state.id, number);
            if cluster.fails(12) {
                match cluster.rng.below(3) {
                    0 => cluster.counts.add(FaultKind::OpenFailed),
                    1 => cluster.send_late(LateCall::Init(ids[cluster.broker.now as usize % 2])),
                    _ => {
                        cluster.counts.add(FaultKind::OpenAnswerLost);
                        let _opened = ids.map(|id| cluster.broker.init(id));
                    }
                }
                return Err(unknown("the coordinator does not answer"));
            }
            let opened = ids.map(|id| cluster.broker.init(id));
            let [Ok(first), Ok(second)] = opened else {
                cluster.counts.add(FaultKind::OpenFailed);
                return Err(unknown("an earlier transaction has not ended yet"));
            };
            Ok([first, second])
        })?;
        let (process, current) = (self.0.clone(), AtomicUsize::new(0));
        Ok(SimulatedProducer { process, producers, current, client: Mutex::default() })
    }

    /// The step of the producer before it has failed.
    fn prepare(&self, number: usize) {
        self.0.call(|cluster, state| {
            cluster.counts.add(FaultKind::StepDropped);
            if std::mem::replace(&mut state.producers, number) != number {
                cluster.counts.add(FaultKind::OtherProducers);
            }
        });
    }
}

/// Two transactional producers.
pub(in crate::simulation) struct SimulatedProducer {
    process: SimulatedProcess,
    producers: [Producer; 2],
    current: AtomicUsize,
    client: Mutex<ClientTransaction>,
}

/// What the client library knows of a transaction.
#[derive(Default)]
struct ClientTransaction {
    is_open: bool,
    /// When it began, in ms since the epoch.
    began: Timestamp,
    /// The partitions without a leader that were added to it.
    leaderless: BTreeSet<TopicPartition>,
    /// Records that were not sent to the broker yet, with their topics and partitions.
    queued: VecDeque<(TopicPartition, ClientRecord)>,
    /// The first record that was not delivered.
    error: Option<TransactionError>,
}

impl SimulatedProducer {
    fn current(&self) -> Producer {
        self.producers[self.current.load(Ordering::Relaxed)]
    }

    fn client(&self) -> MutexGuard<'_, ClientTransaction> {
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(client.is_open, "a call outside of a transaction, which the client refuses");
        client
    }
}

fn unknown(why: &str) -> TransactionError {
    TransactionError::Unknown(why.to_owned())
}

fn refused(error: SimulatedProducerError, cluster: &mut SimulatedCluster) -> TransactionError {
    match error {
        SimulatedProducerError::Fenced | SimulatedProducerError::NotOpen => {
            cluster.counts.add(FaultKind::ProducerFenced);
            TransactionError::Fenced("by a newer producer".to_owned())
        }
        SimulatedProducerError::Generation => {
            cluster.counts.add(FaultKind::GenerationRefused);
            TransactionError::StaleGeneration("a newer generation".to_owned())
        }
        SimulatedProducerError::Unavailable => {
            cluster.counts.add(FaultKind::CallWithoutLeader);
            unknown("a partition has no leader")
        }
    }
}

/// Until when a partition has no leader, if it has none now, and what it is if a record for it is
/// not delivered.
fn leaderless_until(
    (topic, partition): &TopicPartition,
    cluster: &SimulatedCluster,
) -> Option<(FaultKind, Timestamp)> {
    let now = cluster.broker.now;
    let whole = cluster.leaderless.get(topic).copied().filter(|until| *until > now);
    let whole = whole.map(|until| (FaultKind::TargetUndelivered, until));
    let one = cluster.partition_outages.until(topic.as_str(), *partition, now);
    whole.or_else(|| one.map(|until| (FaultKind::PartitionUndelivered, until)))
}

impl ClientTransaction {
    /// Sends at most `count` queued records. The first that is not delivered ends that.
    fn deliver(&mut self, by: Producer, count: usize, cluster: &mut SimulatedCluster) {
        for _ in 0..count {
            let Some((place, record)) = self.queued.front() else { return };
            let (topic, partition) = place;
            if self.error.is_some() {
                return;
            }
            let now = cluster.broker.now;
            let leaderless = leaderless_until(place, cluster);
            let refusal = cluster.refusing.get(topic).copied();
            let (topic, partition) = (topic.as_str().to_owned(), *partition);
            if refusal == Some(Refusal::Rights) {
                // Then no record of the transaction is sent.
                cluster.counts.add(FaultKind::TransactionDenied);
                let reason = "no right to write".to_owned();
                self.error = Some(TransactionError::UnusableTopic(reason));
            } else if refusal == Some(Refusal::Records) {
                cluster.counts.add(FaultKind::RecordRefused);
                let reason = "too large".to_owned();
                self.error = Some(TransactionError::Refused { topic, partition, reason });
            } else if let Some((kind, _)) = leaderless {
                if let Err(error) = self.add_leaderless(by, cluster) {
                    self.error = Some(refused(error, cluster));
                } else if now < self.began + MESSAGE_TIMEOUT {
                    return;
                } else {
                    cluster.counts.add(kind);
                    let reason = "not delivered in time".to_owned();
                    self.error = Some(TransactionError::Undelivered { topic, partition, reason });
                }
            } else if let Err(error) = cluster.broker.send_created(by, record.clone()) {
                self.error = Some(refused(error, cluster));
            } else {
                let _sent = self.queued.pop_front();
            }
        }
    }

    /// Adds the partitions without a leader for which there are records.
    fn add_leaderless(
        &mut self,
        by: Producer,
        cluster: &mut SimulatedCluster,
    ) -> Result<(), SimulatedProducerError> {
        for (place, _) in &self.queued {
            if let Some((_, until)) = leaderless_until(place, cluster)
                && self.leaderless.insert(place.clone())
            {
                cluster.broker.add_leaderless(by, until)?;
            }
        }
        Ok(())
    }

    /// The records are lost, or arrive later.
    fn lose(&mut self, by: Producer, cluster: &mut SimulatedCluster) {
        let records: Vec<_> = self.queued.drain(..).map(|(_, record)| record).collect();
        if cluster.rng.one_in(2) {
            cluster.send_late(LateCall::Records(by, records));
        } else {
            cluster.counts.add(FaultKind::RecordsLost);
        }
    }
}

impl TransactionalSending for SimulatedProducer {
    type Metadata = Membership;

    fn begin_at(&self, _time: Timestamp) -> Result<(), TransactionError> {
        let _previous = self.current.fetch_xor(1, Ordering::Relaxed);
        self.process.call(|cluster, state| {
            state.hung_at = None;
            if cluster.fails(500) {
                cluster.counts.add(FaultKind::BeginFailed);
                return Err(unknown("the client has failed"));
            }
            let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
            assert!(!client.is_open, "the previous transaction has not ended");
            let began = cluster.broker.now;
            *client = ClientTransaction { is_open: true, began, ..ClientTransaction::default() };
            Ok(())
        })
    }

    /// Some records are sent before the others are queued.
    fn send(&self, record: ProducerRecord<'_>) -> Result<(), TransactionError> {
        let producer = self.current();
        self.process.call(|cluster, state| {
            let mut client = self.client();
            let output = output_of(&record, cluster, state);
            let created = cluster.broker.now;
            let partition = partition(&record);
            let size = record.value.map_or(0, <[u8]>::len);
            let is_signal = suffix(record.topic) == "signals";
            if is_signal && cluster.signal_bytes_max.is_some_and(|max| size > max) {
                let (topic, reason) = (record.topic.to_owned(), "too large".to_owned());
                client.error.get_or_insert(TransactionError::Refused { topic, partition, reason });
            }
            let place = (record.topic.into(), partition);
            client.queued.push_back((place, ClientRecord { created, output }));
            if !cluster.calm && cluster.rng.one_in(4) {
                let count = cluster.rng.place(4);
                client.deliver(producer, count, cluster);
            }
            Ok(())
        })
    }

    /// No topic of the simulation takes less at once than the client sends.
    fn limit_batch(
        &self,
        _record: &ProducerRecord<'_>,
        _bytes_max: usize,
        _timeout: Duration,
    ) -> Result<(), TransactionError> {
        unreachable!("all topics have the same limit")
    }

    /// The records may arrive although no response does, and later than this returns.
    fn is_flushed(&self, _timeout: Duration) -> Result<bool, TransactionError> {
        let producer = self.current();
        self.process.call(|cluster, state| {
            let mut client = self.client();
            if hang_sometimes(cluster, state) || cluster.fails(150) {
                client.lose(producer, cluster);
                wait_for_response(cluster, state);
                return Err(unknown("records were neither acknowledged nor refused in time"));
            }
            client.deliver(producer, usize::MAX, cluster);
            if client.error.is_some() && !client.queued.is_empty() && cluster.fails(2) {
                client.lose(producer, cluster);
            }
            if client.error.is_none() && cluster.fails(200) {
                cluster.counts.add(FaultKind::RecordsAnswerLost);
                return Err(unknown("the response was lost"));
            }
            client.error.clone().map_or(Ok(client.queued.is_empty()), Err)
        })
    }

    fn send_offsets(
        &self,
        commits: &[OffsetCommit],
        metadata: &Membership,
        _timeout: Duration,
    ) -> Result<(), TransactionError> {
        let (producer, commits) = (self.current(), offset_commits(commits));
        self.process.call(|cluster, state| {
            let _open = self.client();
            if commits.iter().any(|(_, _, metadata)| metadata.len() > OFFSET_METADATA_MAX) {
                return Err(unknown("the metadata of an offset is too large"));
            }
            if hang_sometimes(cluster, state) {
                cluster.send_late(LateCall::Offsets(producer, commits, *metadata));
                return Err(unknown("no response to the offsets"));
            }
            let is_final = |(_, _, metadata): &&SimulatedOffsetCommit| {
                Cursor::active_owner(metadata).is_none()
            };
            let handed_over = commits.iter().filter(is_final).count() as u64;
            cluster.counts.add_many(FaultKind::Handover, handed_over);
            let is_parked =
                |(_, _, metadata): &&SimulatedOffsetCommit| metadata.contains(" parked=");
            let parked = commits.iter().filter(is_parked).count() as u64;
            cluster.counts.add_many(FaultKind::RecordsParked, parked);
            if cluster.fails(120) {
                match cluster.rng.below(3) {
                    0 => cluster.counts.add(FaultKind::OffsetsLost),
                    1 => {
                        cluster.counts.add(FaultKind::OffsetsAnswerLost);
                        let _sent = cluster.broker.send_offsets(producer, &commits, metadata);
                    }
                    _ => cluster.send_late(LateCall::Offsets(producer, commits, *metadata)),
                }
                wait_for_response(cluster, state);
                return Err(unknown("no response to the offsets"));
            }
            let sent = cluster.broker.send_offsets(producer, &commits, metadata);
            sent.map_err(|error| refused(error, cluster))
        })
    }

    /// The request may be lost or late, and so may the response.
    fn commit(&self, _timeout: Duration) -> Result<(), TransactionError> {
        let producer = self.current();
        self.process.call(|cluster, state| {
            let mut client = self.client();
            let is_late = hang_sometimes(cluster, state);
            let time = shown(cluster, state);
            if is_late {
                cluster.send_late(LateCall::Commit(producer, time));
                return Err(unknown("no response to the commit"));
            }
            if cluster.fails(60) {
                match cluster.rng.below(3) {
                    0 => {
                        cluster.steps += cluster.broker.commit(producer, time).unwrap_or(0);
                        cluster.counts.add(FaultKind::OutcomeUnknownCommitted);
                    }
                    1 => cluster.counts.add(FaultKind::OutcomeUnknownAborted),
                    _ => cluster.send_late(LateCall::Commit(producer, time)),
                }
                wait_for_response(cluster, state);
                return Err(unknown("no response to the commit"));
            }
            let committed = cluster.broker.commit(producer, time);
            cluster.steps += committed.map_err(|error| refused(error, cluster))?;
            client.is_open = false;
            cluster.on_committed();
            // It may stop right after that, and not know of it when others go on.
            state.pauses_now |= !cluster.calm && cluster.rng.one_in(100);
            Ok(())
        })
    }

    /// The request may be lost or late, and so may the response.
    fn abort(&self, _timeout: Duration) -> Result<(), TransactionError> {
        let producer = self.current();
        self.process.call(|cluster, state| {
            let mut client = self.client();
            if cluster.fails(30) {
                match cluster.rng.below(3) {
                    0 => {
                        cluster.counts.add(FaultKind::AbortAnswerLost);
                        let aborted = SimulatedTransactionState::Aborted;
                        let _ended = cluster.broker.end(producer, aborted);
                    }
                    1 => cluster.counts.add(FaultKind::AbortLost),
                    _ => cluster.send_late(LateCall::Abort(producer)),
                }
                wait_for_response(cluster, state);
                return Err(unknown("no response to the abort"));
            }
            let aborted = cluster.broker.end(producer, SimulatedTransactionState::Aborted);
            aborted.map_err(|error| refused(error, cluster))?;
            client.is_open = false;
            Ok(())
        })
    }
}

fn offset_commits(commits: &[OffsetCommit]) -> Vec<SimulatedOffsetCommit> {
    let commit =
        |commit: &OffsetCommit| (index(commit.partition), commit.offset, commit.metadata.clone());
    commits.iter().map(commit).collect()
}
