//! A producer of batches: all records of a batch are committed in one transaction, or none. Unlike
//! [`TransactionalProducer`](super::transaction::TransactionalProducer) it commits no consumer
//! offsets.
//!
//! Invariant: the producer is dropped after an error. The transaction that it leaves open is ended
//! by its owner, by the next producer with its id, or by the broker when it times out.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext};

use super::error::ClientResult;
use super::transaction::{ProducerRecord, owned_headers};
use super::{ms, producer_config};
use crate::config::Settings;
use crate::model::{Offset, PartitionId};

/// By topic and partition, the offset of the last record of a batch.
pub type LastOffsets = BTreeMap<(String, PartitionId), Offset>;

/// A transactional producer without consumer offsets.
pub struct BatchProducer {
    producer: BaseProducer<DeliveredOffsets>,
    timeout: Duration,
}

impl std::fmt::Debug for BatchProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchProducer").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl BatchProducer {
    /// Opens a producer under `id`. `timeout` limits each transaction, and each wait for the
    /// broker.
    pub fn open(settings: &Settings, id: &str, timeout: Duration) -> ClientResult<Self> {
        let request = settings.timeouts.request.min(timeout);
        let mut config = producer_config(settings);
        config
            .set("transactional.id", id)
            .set("transaction.timeout.ms", ms(timeout))
            .set("message.timeout.ms", ms(timeout))
            .set("socket.timeout.ms", ms(request));
        let producer: BaseProducer<_> = config.create_with_context(DeliveredOffsets::default())?;
        producer.init_transactions(timeout)?;
        Ok(Self { producer, timeout })
    }

    /// Begins a transaction.
    pub fn begin(&self) -> ClientResult<()> {
        Ok(self.producer.begin_transaction()?)
    }

    /// Queues a record. If the broker refuses it, [`commit`](Self::commit) fails.
    pub fn send(&self, record: ProducerRecord<'_>) -> ClientResult<()> {
        let mut outgoing = BaseRecord::<[u8], [u8]>::to(record.topic);
        outgoing.partition = record.partition;
        outgoing.key = record.key;
        outgoing.payload = record.value;
        outgoing.headers = owned_headers(record.headers);
        self.producer.send(outgoing).map_err(|(error, _record)| error.into())
    }

    /// Commits the transaction. After an error it may be committed or not.
    pub fn commit(&self) -> ClientResult<LastOffsets> {
        self.producer.flush(self.timeout)?;
        self.producer.commit_transaction(self.timeout)?;
        let mut offsets = self.producer.context().0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::take(&mut offsets))
    }

    /// Aborts the transaction; waits at most `timeout`.
    pub fn abort(&self, timeout: Duration) -> ClientResult<()> {
        Ok(self.producer.abort_transaction(timeout)?)
    }
}

/// Collects the offsets of acknowledged records.
#[derive(Default)]
struct DeliveredOffsets(Mutex<LastOffsets>);

impl ClientContext for DeliveredOffsets {}

impl ProducerContext for DeliveredOffsets {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let Ok(record) = result else { return };
        let Ok(offset) = Offset::try_from(record.offset()) else { return };
        let mut offsets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _previous = offsets.insert((record.topic().to_owned(), record.partition()), offset);
    }
}
