//! The first offset of a partition, and its end.
//!
//! Invariant: what a client remembers of a leader that has failed does not last: librdkafka sends
//! a request to the leader in its cached metadata, or sends none if it has forgotten that broker.
//! Only a new metadata request replaces it.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};

use super::error::ClientResult;
use crate::model::{Offset, PartitionId};

/// How long the leader of a partition may take to answer before the metadata is fetched again.
const LEADER_TIMEOUT: Duration = Duration::from_secs(1);

/// The first available offset of a partition, and its end offset (exclusive) at the isolation level
/// of the consumer. Each request takes at most `timeout`.
pub(super) fn watermarks<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    partition: PartitionId,
    timeout: Duration,
) -> ClientResult<(Offset, Offset)> {
    let fetch = |timeout| consumer.fetch_watermarks(topic, partition, timeout);
    let (low, end) = fetch(timeout.min(LEADER_TIMEOUT)).or_else(|_| {
        consumer.fetch_metadata(Some(topic), timeout)?;
        fetch(timeout)
    })?;
    Ok((Offset::try_from(low).unwrap_or(0), Offset::try_from(end).unwrap_or(0)))
}
