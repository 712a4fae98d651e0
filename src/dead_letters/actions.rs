//! Replays and archives letters: one transaction for several letters.
//!
//! Invariant: the request for another attempt and the mark of the letter are committed together, or
//! neither is. After any error the producer is dropped, so that the broker ends the transaction
//! that it left open.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use uuid::Uuid;

use super::LetterError;
use super::scan::LetterId;
use crate::clock;
use crate::codec::schemas::Schemas;
use crate::config::Settings;
use crate::kafka::Names;
use crate::kafka::batch_producer::{BatchProducer, LastOffsets};
use crate::kafka::error::ClientResult;
use crate::kafka::record::RecordHeader;
use crate::kafka::transaction::ProducerRecord;
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
    producer: Mutex<Option<BatchProducer>>,
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
        let offsets = match self.commit(&producer, &accepted, action, now) {
            Ok(offsets) => offsets,
            Err(error) => {
                // If it was committed after all, that is final; if not, the abort stops it from
                // blocking readers.
                let _ended = producer.abort(ABORT_TIMEOUT);
                return Err(error.into());
            }
        };
        let marks = self.names.dead_letters();
        let marks = offsets.into_iter().filter(|((topic, _), _)| *topic == marks);
        done.mark_offsets = marks.map(|((_, partition), offset)| (partition, offset)).collect();
        *slot = Some(producer);
        done.handled = accepted.len();
        Ok(done)
    }

    fn commit(
        &self,
        producer: &BatchProducer,
        accepted: &[(LetterId, Option<String>, Option<ReplayRequest>)],
        action: &LetterAction,
        now: Timestamp,
    ) -> ClientResult<LastOffsets> {
        producer.begin()?;
        for (id, trigger, again) in accepted {
            if let Some(again) = again {
                self.send_retry(producer, *id, again)?;
            }
            self.send_mark(producer, *id, trigger.as_deref(), action, now)?;
        }
        producer.commit()
    }

    /// A producer with a transactional id of its own: no other process continues its transaction,
    /// which ends by its timeout.
    fn open_producer(&self) -> ClientResult<BatchProducer> {
        let id = format!("{}.dead-letters.{}", self.settings.topics.prefix, Uuid::now_v7());
        BatchProducer::open(&self.settings, &id, TIMEOUT)
    }

    /// Requests another attempt of a letter.
    fn send_retry(
        &self,
        producer: &BatchProducer,
        id: LetterId,
        again: &ReplayRequest,
    ) -> ClientResult<()> {
        let replays = id.to_string();
        let replays = (REPLAYS_HEADER, Some(replays.as_bytes()));
        match again {
            ReplayRequest::Signal(request) => {
                let key = request.id.trigger.bytes();
                let value = self.schemas.encode_signal(&Signal::Retry(request.clone()));
                let topic = self.names.signals();
                send(producer, &topic, id, Some(key.as_ref()), Some(&value), &[replays])
            }
            ReplayRequest::Record { key, value, headers } => {
                let headers = headers.iter();
                let headers: Vec<RecordHeader<'_>> =
                    headers.map(|h| (h.name.as_str(), h.value.as_deref())).collect();
                let topic = self.names.triggers();
                send(producer, &topic, id, key.as_deref(), value.as_deref(), &headers)
            }
        }
    }

    fn send_mark(
        &self,
        producer: &BatchProducer,
        id: LetterId,
        trigger: Option<&str>,
        action: &LetterAction,
        now: Timestamp,
    ) -> ClientResult<()> {
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
        send(producer, &topic, id, key, Some(&value), &[])
    }
}

/// What concerns a letter of partition p is written to partition p.
fn send(
    producer: &BatchProducer,
    topic: &str,
    id: LetterId,
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: &[RecordHeader<'_>],
) -> ClientResult<()> {
    producer.send(ProducerRecord { topic, partition: Some(id.partition), key, value, headers })
}
