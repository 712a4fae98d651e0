//! The first offset of a partition, and its end.
//!
//! Invariant: what a client remembers of a leader that has failed does not last: librdkafka sends
//! a request to the leader in its cached metadata, or sends none if it has forgotten that broker.
//! Only a new metadata request replaces it.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::metadata::{Metadata, MetadataTopic};

use super::error::ClientResult;
use crate::clock;
use crate::model::{Offset, PartitionId};

/// How long the leader of a partition may take to answer before the metadata is fetched again.
const LEADER_TIMEOUT: Duration = Duration::from_secs(1);

/// The same for the metadata, and for the leader that it names: a leader that does not answer is
/// replaced at some moment, and who asks it for long learns of that late.
const REPEATED_TIMEOUT: Duration = Duration::from_millis(500);

/// The pause after an error that was answered sooner.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);

/// The first available offset of a partition, and its end offset (exclusive) at the isolation level
/// of the consumer. It takes as long as `timeout` and two seconds at most, and not that long if the
/// partition has no leader.
pub(super) fn watermarks<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    partition: PartitionId,
    timeout: Duration,
) -> ClientResult<(Offset, Offset)> {
    let fetch = |timeout| consumer.fetch_watermarks(topic, partition, timeout);
    let mut found = fetch(timeout.min(LEADER_TIMEOUT));
    let (limit, until) = (timeout.min(REPEATED_TIMEOUT), clock::monotonic() + timeout);
    while found.is_err() {
        let asked_at = clock::monotonic();
        if asked_at >= until {
            break;
        }
        match consumer.fetch_metadata(Some(topic), limit) {
            Ok(metadata) if !has_leader(&metadata, topic, partition) => break,
            Ok(_) => found = fetch(limit),
            Err(error) => found = Err(error),
        }
        if found.is_err() && clock::monotonic() < asked_at + limit {
            std::thread::sleep(REFUSED_PAUSE);
        }
    }
    let (low, end) = found?;
    Ok((Offset::try_from(low).unwrap_or(0), Offset::try_from(end).unwrap_or(0)))
}

fn has_leader(metadata: &Metadata, topic: &str, partition: PartitionId) -> bool {
    let topics = metadata.topics().iter();
    let known = topics.filter(|found| found.name() == topic && found.error().is_none());
    let mut partitions = known.flat_map(MetadataTopic::partitions);
    partitions.any(|found| found.id() == partition && found.leader() >= 0)
}
