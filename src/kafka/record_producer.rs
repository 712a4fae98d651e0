//! A producer of single records, without transactions, for asynchronous callers.
//!
//! Invariant: a record counts as written only after the broker has acknowledged it. After an error
//! it may be written or not, once. So the client tries for longer than its callers wait, and for
//! longer than a partition has no leader after the death of a broker: once one record is given up,
//! the library gives new sequence numbers to those after it, also to those that are written already
//! and not acknowledged, and the broker writes them again.

use std::time::Duration;

use rdkafka::producer::future_producer::DeliveryFuture;
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::error::{ClientError, ClientResult};
use super::producer_config;
use super::transaction::{ProducerRecord, owned_headers};
use crate::config::Settings;
use crate::model::{Offset, PartitionId};

/// A producer of single records.
pub struct RecordProducer {
    producer: FutureProducer,
    wait: Option<Duration>,
}

/// A record that is sent and not yet acknowledged.
pub struct PendingDelivery {
    delivery: DeliveryFuture,
    wait: Option<Duration>,
}

impl std::fmt::Debug for RecordProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordProducer").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for PendingDelivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingDelivery").finish_non_exhaustive()
    }
}

impl RecordProducer {
    /// Opens a producer. A record is given up after `timeouts.delivery`. Its sender waits for that,
    /// or only for `wait`.
    pub fn open(settings: &Settings, wait: Option<Duration>) -> ClientResult<Self> {
        Ok(Self { producer: producer_config(settings).create()?, wait })
    }

    /// Queues a record without waiting. An error says that it is not queued.
    pub fn send(&self, record: ProducerRecord<'_>) -> ClientResult<PendingDelivery> {
        let mut outgoing = FutureRecord::<[u8], [u8]>::to(record.topic);
        outgoing.partition = record.partition;
        outgoing.key = record.key;
        outgoing.payload = record.value;
        outgoing.headers = owned_headers(record.headers);
        match self.producer.send_result(outgoing) {
            Ok(delivery) => Ok(PendingDelivery { delivery, wait: self.wait }),
            Err((error, _record)) => Err(error.into()),
        }
    }
}

impl PendingDelivery {
    /// Waits for the broker's acknowledgement. Returns the partition and offset of the record.
    pub async fn acknowledged(self) -> ClientResult<(PartitionId, Offset)> {
        let Self { delivery, wait } = self;
        let delivered = match wait {
            Some(wait) => tokio::time::timeout(wait, delivery).await,
            None => Ok(delivery.await),
        };
        let Ok(delivered) = delivered else { return Err(ClientError::NotAcknowledged) };
        match delivered {
            Ok(Ok(delivery)) => {
                Ok((delivery.partition, Offset::try_from(delivery.offset).unwrap_or_default()))
            }
            Ok(Err((error, _record))) => Err(error.into()),
            Err(_producer_dropped) => Err(ClientError::cancelled()),
        }
    }
}
