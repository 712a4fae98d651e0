//! A producer of single records, without transactions, for asynchronous callers.
//!
//! Invariant: a record counts as written only after the broker has acknowledged it. After an error
//! it may be written or not.

use std::time::Duration;

use rdkafka::producer::future_producer::DeliveryFuture;
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::error::{ClientError, ClientResult};
use super::transaction::{ProducerRecord, owned_headers};
use super::{ms, producer_config};
use crate::config::Settings;
use crate::model::{Offset, PartitionId};

/// A producer of single records.
pub struct RecordProducer(FutureProducer);

/// A record that is sent and not yet acknowledged.
pub struct PendingDelivery(DeliveryFuture);

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
    /// Opens a producer. A record that is not acknowledged within `timeout` fails; without one,
    /// within `timeouts.delivery`.
    pub fn open(settings: &Settings, timeout: Option<Duration>) -> ClientResult<Self> {
        let mut config = producer_config(settings);
        if let Some(timeout) = timeout {
            let _set = config.set("message.timeout.ms", ms(timeout));
        }
        Ok(Self(config.create()?))
    }

    /// Queues a record without waiting. An error says that it is not queued.
    pub fn send(&self, record: ProducerRecord<'_>) -> ClientResult<PendingDelivery> {
        let mut outgoing = FutureRecord::<[u8], [u8]>::to(record.topic);
        outgoing.partition = record.partition;
        outgoing.key = record.key;
        outgoing.payload = record.value;
        outgoing.headers = owned_headers(record.headers);
        match self.0.send_result(outgoing) {
            Ok(delivery) => Ok(PendingDelivery(delivery)),
            Err((error, _record)) => Err(error.into()),
        }
    }
}

impl PendingDelivery {
    /// Waits for the broker's acknowledgement. Returns the partition and offset of the record.
    pub async fn acknowledged(self) -> ClientResult<(PartitionId, Offset)> {
        match self.0.await {
            Ok(Ok(delivery)) => {
                Ok((delivery.partition, Offset::try_from(delivery.offset).unwrap_or_default()))
            }
            Ok(Err((error, _record))) => Err(error.into()),
            Err(_producer_dropped) => Err(ClientError::cancelled()),
        }
    }
}
