//! Dispatch: a fire becomes a record for a topic or a worker, or a dead letter.
//!
//! Invariant: a fire that cannot be sent fails only its own trigger; none into a topic is larger
//! than the topic takes.

use super::catalog::{BATCH_BYTES_MAX, CachingCatalog, TopicState, UnavailablePartitions};
use super::config::PartitionContext;
use super::draft::{RECORD_BYTES, StepDraft, make_fire};
use super::step::{Emit, TopicFire};
use crate::codec::row::{self, FireView, RowBytes, RowError, TargetView};
use crate::model::definition::Target;
use crate::model::entry::FireRow;
use crate::model::fire::Withdrawal;
use crate::model::partitioner::murmur2_partition;
use crate::model::text::Text;
use crate::model::timeline::TimelineKey;
use crate::model::{Millis, PartitionId, Timestamp};

/// Bytes that our own headers and the record's frame add to a fire at most; kept free so that a
/// record that fits by this count is never refused by the broker.
const RECORD_HEADROOM_BYTES: usize = 1_024;

/// How long a fire waits, in ms, whose topic or pool was looked up for the first time: a broker
/// that is available has answered by then. However late it is: a partition that was just taken over
/// has late fires, and knows no topic.
const LOOKUP_WAIT: Millis = 100;

/// Sends fires and withdrawals.
pub(super) struct DispatchHandler<'p, 'c> {
    pub(super) context: &'p PartitionContext,
    pub(super) output: &'p mut StepDraft,
    pub(super) topics: &'p mut CachingCatalog<'c>,
}

/// The result of sending a fire.
pub(super) enum DispatchResult {
    /// It is in the draft.
    Sent,
    /// Its topic or its partition cannot be reached now.
    Postponed(Box<FireRow>),
    /// Its topic takes no more in this step, or is not known yet; it waits for so many ms.
    Delayed { fire: Box<FireRow>, wait: Millis },
    /// It can never be sent.
    DeadLettered,
}

/// A topic that can be written: see [`TopicState::Usable`].
struct UsableTopic<'a> {
    partitions: i32,
    record_bytes_max: usize,
    unavailable: &'a UnavailablePartitions,
}

/// Whether a fire of this partition can be written to a pool's topic.
enum PoolAvailability {
    Writable,
    /// Not now.
    Unavailable,
    /// It is not known yet.
    Unknown,
    /// Not until a person changes something: the reason.
    Unusable(String),
}

impl DispatchHandler<'_, '_> {
    /// Sends a fire if it can be sent now; one that can never be sent is a dead letter.
    pub(super) fn send(
        &mut self,
        key: TimelineKey,
        fire: FireRow,
        row: RowBytes,
    ) -> DispatchResult {
        match &fire.definition.target {
            Target::Http(target) => match self.pool_availability(target.pool.as_ref()) {
                PoolAvailability::Writable => {
                    let fire = make_fire(self.context, key, fire);
                    self.output.emit_large(Emit::ToWorker(Box::new(fire)), row.len());
                    DispatchResult::Sent
                }
                PoolAvailability::Unavailable => DispatchResult::Postponed(Box::new(fire)),
                PoolAvailability::Unknown => delayed_by_lookup(fire),
                PoolAvailability::Unusable(reason) => self.emit_dead_letter(key, fire, reason),
            },
            Target::Topic(target) => match self.topics.state(target.topic.as_str()) {
                Some(TopicState::Usable { partitions, record_bytes_max, unavailable }) => {
                    let topic = UsableTopic {
                        partitions: *partitions,
                        record_bytes_max: *record_bytes_max,
                        unavailable,
                    };
                    self.send_to_topic(key, fire, row, &topic)
                }
                Some(TopicState::Unusable(reason)) => {
                    self.emit_dead_letter(key, fire, reason.clone())
                }
                Some(TopicState::Unknown) => delayed_by_lookup(fire),
                // One that was not looked up counts as unavailable, so that its fire is not lost.
                Some(TopicState::Unavailable(_)) | None => {
                    DispatchResult::Postponed(Box::new(fire))
                }
            },
        }
    }

    /// Sends a fire to a topic, if its partition can take a record now and the topic takes this
    /// one.
    fn send_to_topic(
        &mut self,
        key: TimelineKey,
        fire: FireRow,
        row: RowBytes,
        topic: &UsableTopic<'_>,
    ) -> DispatchResult {
        let view = row::view(&row).ok().flatten().expect("the row was just decoded");
        let Target::Topic(target) = &fire.definition.target else {
            unreachable!("a callback has no topic")
        };
        let bytes = match check_size(&view, target.topic.as_str(), topic.record_bytes_max) {
            Ok(bytes) => bytes,
            Err(reason) => return self.emit_dead_letter(key, fire, reason),
        };
        let partition = murmur2_partition(view.record_key(), topic.partitions);
        if topic.unavailable.contains(partition) {
            return DispatchResult::Postponed(Box::new(fire));
        }
        if let Err(wait) = self.take_room(target.topic.as_str(), bytes, topic.record_bytes_max) {
            return DispatchResult::Delayed { fire: Box::new(fire), wait };
        }
        let (bytes, scheduled) = (row.len(), fire.scheduled);
        let batch_bytes_max = batch_bytes_max(topic.record_bytes_max);
        let fire = TopicFire { row, partition, batch_bytes_max, scheduled };
        self.output.emit_large(Emit::ToTopic(fire), bytes);
        DispatchResult::Sent
    }

    /// Takes room for a record of at most so many bytes, if its topic takes little at once. An
    /// error: how long it waits.
    fn take_room(&mut self, topic: &str, bytes: usize, bytes_max: usize) -> Result<(), Millis> {
        if bytes_max >= BATCH_BYTES_MAX {
            return Ok(());
        }
        let bytes = bytes - RECORD_HEADROOM_BYTES + RECORD_BYTES;
        self.output.batch_room().take(topic, bytes, bytes_max)
    }

    /// Sends a withdrawal to every pool, because the pool of a fire is not stored. Pools whose
    /// topics cannot be written get none: their callbacks are made.
    pub(super) fn send_withdrawal(&mut self, withdrawal: Withdrawal, pools: &[Text]) {
        let withdrawal = Box::new(withdrawal);
        self.output.emit(Emit::Withdraw { pool: None, withdrawal: withdrawal.clone() });
        for pool in pools {
            if matches!(self.pool_availability(Some(pool)), PoolAvailability::Writable) {
                let (pool, withdrawal) = (Some(pool.clone()), withdrawal.clone());
                self.output.emit(Emit::Withdraw { pool, withdrawal });
            }
        }
    }

    /// Whether a fire of this partition can be written to the pool's topic. The default pool's
    /// topic exists like all of ours.
    fn pool_availability(&self, pool: Option<&Text>) -> PoolAvailability {
        let Some(pool) = pool else { return PoolAvailability::Writable };
        let id = self.context.id;
        match self.topics.pool(pool.as_str()) {
            Some(TopicState::Usable { partitions, .. }) if *partitions <= id => {
                PoolAvailability::Unusable(format!(
                    "the topic of pool {pool} has {partitions} partitions and lacks {id}: it needs \
                     as many as the other topics; `orloj topics verify` compares them"
                ))
            }
            Some(TopicState::Usable { unavailable, .. }) if unavailable.contains(id) => {
                PoolAvailability::Unavailable
            }
            Some(TopicState::Usable { .. }) => PoolAvailability::Writable,
            Some(TopicState::Unusable(reason)) => PoolAvailability::Unusable(reason.clone()),
            Some(TopicState::Unknown) => PoolAvailability::Unknown,
            Some(TopicState::Unavailable(_)) | None => PoolAvailability::Unavailable,
        }
    }

    /// A fire that can never be sent: only its own trigger ends.
    fn emit_dead_letter(
        &mut self,
        key: TimelineKey,
        row: FireRow,
        reason: String,
    ) -> DispatchResult {
        self.output.emit_dead_letter(self.context, key, row, reason);
        DispatchResult::DeadLettered
    }
}

fn delayed_by_lookup(fire: FireRow) -> DispatchResult {
    DispatchResult::Delayed { fire: Box::new(fire), wait: LOOKUP_WAIT }
}

/// The common case: a fire to a partition that can take it, of a topic that has room for it, with
/// nothing to settle. Its row is sent unchanged.
#[inline]
pub(super) fn plain_topic_fire(
    row: &RowBytes,
    topics: &mut CachingCatalog<'_>,
) -> Result<Option<PlainFire>, RowError> {
    if row::has_lifecycle(row) {
        return Ok(None);
    }
    let Some(fire) = row::view(row)?.filter(|fire| !fire.in_ledger) else { return Ok(None) };
    let TargetView::Topic { topic, .. } = fire.target else { return Ok(None) };
    let Some(state) = topics.state(topic) else { return Ok(None) };
    let &TopicState::Usable { partitions, record_bytes_max, ref unavailable } = state else {
        return Ok(None);
    };
    if record_bytes_max < BATCH_BYTES_MAX || record_bytes(&fire) > record_bytes_max {
        return Ok(None);
    }
    let partition = murmur2_partition(fire.record_key(), partitions);
    Ok((!unavailable.contains(partition)).then(|| PlainFire {
        partition,
        batch_bytes_max: batch_bytes_max(record_bytes_max),
        scheduled: fire.scheduled,
    }))
}

/// What a fire needs beside its row: see [`TopicFire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlainFire {
    pub(super) partition: PartitionId,
    pub(super) batch_bytes_max: u32,
    pub(super) scheduled: Timestamp,
}

fn batch_bytes_max(record_bytes_max: usize) -> u32 {
    u32::try_from(record_bytes_max).unwrap_or(u32::MAX)
}

/// How many bytes its record has, or why they are too many.
fn check_size(fire: &FireView<'_>, topic: &str, record_bytes_max: usize) -> Result<usize, String> {
    let bytes = record_bytes(fire);
    if bytes <= record_bytes_max {
        return Ok(bytes);
    }
    Err(format!(
        "a fire of {bytes} bytes does not fit topic {topic}, which takes {record_bytes_max}: raise \
         its max.message.bytes or send less"
    ))
}

fn record_bytes(fire: &FireView<'_>) -> usize {
    let header =
        |(name, value): (&str, Option<&[u8]>)| name.len() + value.map_or(0, <[u8]>::len) + 8;
    let headers: usize = fire.headers().map(header).sum();
    let payload = fire.payload.map_or(0, <[u8]>::len);
    payload + fire.record_key().len() + headers + RECORD_HEADROOM_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::catalog::TopicCatalog;
    use crate::engine::tests::fixture::{
        callback_trigger, encode, in_ledger, topic_trigger, trigger_to_topic, veto,
    };

    #[test]
    fn a_fire_into_a_usable_topic_with_nothing_to_settle_is_sent_as_it_is_stored() {
        let plain = topic_trigger("a", 3, 1_000);
        let row = encode(&plain.row);
        let mut catalog = TopicCatalog::default();
        let limits = [("out", BATCH_BYTES_MAX), ("small", BATCH_BYTES_MAX - 1)];
        for (topic, record_bytes_max) in limits {
            catalog.insert(topic.to_owned(), TopicState::usable(1, record_bytes_max));
        }
        let unavailable = |partition| TopicState::Usable {
            partitions: 1,
            record_bytes_max: BATCH_BYTES_MAX,
            unavailable: [partition].into_iter().collect(),
        };
        catalog.insert("no-leader".to_owned(), unavailable(0));
        catalog.insert("out-but-one".to_owned(), unavailable(1));
        catalog.insert("away".to_owned(), TopicState::Unavailable("no leader".to_owned()));
        let mut topics = CachingCatalog::new(&catalog);
        let batch_bytes_max = 1_000_000;
        let fire = PlainFire { partition: 0, batch_bytes_max, scheduled: 1_000 };
        assert_eq!(plain_topic_fire(&row, &mut topics), Ok(Some(fire)));
        let to = |topic| trigger_to_topic(topic, "a", 3, 1_000);
        let other_partition_away = encode(&to("out-but-one").row);
        assert_eq!(plain_topic_fire(&other_partition_away, &mut topics), Ok(Some(fire)));
        let others = [
            in_ledger(&plain, true),
            to("small"),
            to("away"),
            to("no-leader"),
            to("unknown"),
            callback_trigger("a", 3, 1_000),
            veto("a", 3, 1_000),
        ];
        for other in others {
            let row = encode(&other.row);
            assert_eq!(plain_topic_fire(&row, &mut topics), Ok(None), "{other:?}");
        }
    }
}
