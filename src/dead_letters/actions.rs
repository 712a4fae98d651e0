//! Replays and archives letters: one transaction for several letters.
//!
//! Invariant: the request for another attempt and the mark of the letter are committed together, or
//! neither is. After any error the producer is dropped, so that the broker ends the transaction
//! that it left open.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use tokio::sync::Mutex;
use uuid::Uuid;

use super::LetterError;
use super::scan::LetterId;
use crate::clock;
use crate::codec::schemas::Schemas;
use crate::config::Settings;
use crate::kafka::{Names, producer_config};
use crate::model::dead_letter::{Content, DeadLetter, Mark, Origin, ReplayRequest};
use crate::model::signal::Signal;
use crate::model::{Offset, PartitionId, Timestamp};

/// How long the cluster may take to acknowledge a record, or to end a transaction.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long an abort may take.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);
/// The header that names the dead letter which a record replays.
const REPLAYS_HEADER: &str = "orloj-replays";

/// What to do with letters.
#[derive(Clone, Debug)]
pub struct LetterAction {
    /// The kind of the mark.
    pub mark: Mark,
    /// Why, for people; it is kept with the mark.
    pub note: String,
}

/// The result for a batch of letters.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LetterActionResult {
    /// How many were replayed or archived.
    pub handled: usize,
    /// Those that cannot be tried again, and why.
    pub skipped: Vec<(LetterId, &'static str)>,
    /// By partition of the dead letters, the offset of the last mark that was written.
    pub mark_offsets: BTreeMap<PartitionId, Offset>,
}

/// Replays and archives letters; clones share one producer.
#[derive(Clone)]
pub struct DeadLetterActions {
    inner: Arc<ActionsInner>,
}

struct ActionsInner {
    settings: Settings,
    names: Names,
    schemas: Schemas,
    /// None until it is needed, and after an error.
    producer: Mutex<Option<BaseProducer<MarkDeliveries>>>,
}

/// Records the offsets at which marks are written.
struct MarkDeliveries {
    topic: String,
    last_offsets: std::sync::Mutex<BTreeMap<PartitionId, Offset>>,
}

impl ClientContext for MarkDeliveries {}

impl ProducerContext for MarkDeliveries {
    type DeliveryOpaque = ();

    /// A record that was refused makes the commit fail.
    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let Ok(record) = result else { return };
        let Ok(offset) = Offset::try_from(record.offset()) else { return };
        if record.topic() == self.topic {
            let mut last = self.last_offsets.lock().unwrap_or_else(PoisonError::into_inner);
            let _earlier = last.insert(record.partition(), offset);
        }
    }
}

impl std::fmt::Debug for DeadLetterActions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeadLetterActions").finish_non_exhaustive()
    }
}

impl DeadLetterActions {
    /// Contacts the cluster only when there is something to do.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let names = Names::new(&settings.topics.prefix);
        let (settings, producer) = (settings.clone(), Mutex::new(None));
        Self {
            inner: Arc::new(ActionsInner { settings, names, schemas: Schemas::new(), producer }),
        }
    }

    /// Replays or archives letters, all of them in one transaction. `replays` has how often a
    /// letter was replayed before; one that it does not contain, never.
    pub async fn apply(
        &self,
        letters: Vec<(LetterId, DeadLetter)>,
        replays: Arc<BTreeMap<LetterId, u32>>,
        action: LetterAction,
    ) -> Result<LetterActionResult, LetterError> {
        let inner = Arc::clone(&self.inner);
        let applying = tokio::task::spawn_blocking(move || inner.apply(letters, &replays, &action));
        applying.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }
}

impl ActionsInner {
    fn apply(
        &self,
        letters: Vec<(LetterId, DeadLetter)>,
        replays: &BTreeMap<LetterId, u32>,
        action: &LetterAction,
    ) -> Result<LetterActionResult, LetterError> {
        let mut done = LetterActionResult::default();
        let (now, triggers) = (clock::now_ms(), self.names.triggers());
        let mut accepted = Vec::new();
        for (id, letter) in letters {
            let trigger = letter.trigger().map(str::to_owned);
            let again = match action.mark {
                Mark::Archived => None,
                Mark::Replayed => {
                    let replays = replays.get(&id).copied().unwrap_or(0);
                    match letter.replay(&triggers, replays, now) {
                        Ok(again) => Some(again),
                        Err(why) => {
                            done.skipped.push((id, why));
                            continue;
                        }
                    }
                }
            };
            accepted.push((id, trigger, again));
        }
        if accepted.is_empty() {
            return Ok(done);
        }
        let mut slot = self.producer.blocking_lock();
        let producer = match slot.take() {
            Some(producer) => producer,
            None => self.open_producer()?,
        };
        if let Err(error) = self.commit(&producer, &accepted, action, now) {
            // If it was committed after all, that is final; if not, the abort stops it from
            // blocking readers.
            let _ended = producer.abort_transaction(ABORT_TIMEOUT);
            return Err(error.into());
        }
        let mut last =
            producer.context().last_offsets.lock().unwrap_or_else(PoisonError::into_inner);
        done.mark_offsets = std::mem::take(&mut last);
        drop(last);
        *slot = Some(producer);
        done.handled = accepted.len();
        Ok(done)
    }

    fn commit(
        &self,
        producer: &BaseProducer<MarkDeliveries>,
        accepted: &[(LetterId, Option<String>, Option<ReplayRequest>)],
        action: &LetterAction,
        now: Timestamp,
    ) -> KafkaResult<()> {
        producer.begin_transaction()?;
        for (id, trigger, again) in accepted {
            if let Some(again) = again {
                self.send_retry(producer, *id, again)?;
            }
            self.send_mark(producer, *id, trigger.as_deref(), action, now)?;
        }
        producer.flush(TIMEOUT)?;
        producer.commit_transaction(TIMEOUT)
    }

    /// A producer with a transactional id of its own: no other process continues its transaction,
    /// which ends by its timeout.
    fn open_producer(&self) -> Result<BaseProducer<MarkDeliveries>, KafkaError> {
        let mut config = producer_config(&self.settings);
        let id = format!("{}.dead-letters.{}", self.settings.topics.prefix, Uuid::now_v7());
        config.set("transactional.id", id);
        config.set("transaction.timeout.ms", TIMEOUT.as_millis().to_string());
        config.set("message.timeout.ms", TIMEOUT.as_millis().to_string());
        let marked =
            MarkDeliveries { topic: self.names.dead_letters(), last_offsets: Default::default() };
        let producer: BaseProducer<_> = config.create_with_context(marked)?;
        producer.init_transactions(TIMEOUT)?;
        Ok(producer)
    }

    /// Requests another attempt of a letter.
    fn send_retry(
        &self,
        producer: &BaseProducer<MarkDeliveries>,
        id: LetterId,
        again: &ReplayRequest,
    ) -> KafkaResult<()> {
        let replays = id.to_string();
        let replays = Header { key: REPLAYS_HEADER, value: Some(&replays) };
        match again {
            ReplayRequest::Signal(request) => {
                let key = request.id.trigger.bytes();
                let value = self.schemas.encode_signal(&Signal::Retry(request.clone()));
                let headers = OwnedHeaders::new().insert(replays);
                let topic = self.names.signals();
                send(producer, &topic, id, Some(key.as_ref()), Some(&value), headers)
            }
            ReplayRequest::Record { key, value, headers } => {
                let mut all = OwnedHeaders::new();
                for header in headers {
                    let (key, value) = (header.name.as_str(), header.value.as_deref());
                    all = all.insert(Header { key, value });
                }
                let topic = self.names.triggers();
                send(producer, &topic, id, key.as_deref(), value.as_deref(), all)
            }
        }
    }

    fn send_mark(
        &self,
        producer: &BaseProducer<MarkDeliveries>,
        id: LetterId,
        trigger: Option<&str>,
        action: &LetterAction,
        now: Timestamp,
    ) -> KafkaResult<()> {
        let topic = self.names.dead_letters();
        let LetterId { partition, offset } = id;
        let mark = DeadLetter {
            origin: Origin { topic: topic.as_str().into(), partition, offset },
            reason: action.note.clone(),
            at: now,
            content: Content::Mark(action.mark),
        };
        let value = self.schemas.encode_dead_letter(&mark);
        let key = trigger.map(str::as_bytes);
        send(producer, &topic, id, key, Some(&value), OwnedHeaders::new())
    }
}

/// What concerns a letter of partition p is written to partition p.
fn send(
    producer: &BaseProducer<MarkDeliveries>,
    topic: &str,
    id: LetterId,
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: OwnedHeaders,
) -> KafkaResult<()> {
    let mut record = BaseRecord::<[u8], [u8]>::to(topic);
    (record.key, record.payload) = (key, value);
    (record.partition, record.headers) = (Some(id.partition), Some(headers));
    producer.send(record).map_err(|(error, _record)| error)
}
