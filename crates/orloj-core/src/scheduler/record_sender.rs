//! Converts a step's emits to records: topic, partition, key, headers and bytes.
//!
//! Invariant: output of partition p goes to partition p of Orloj's topics, so that a transaction
//! uses few partitions and the records of a trigger stay in order.

use std::borrow::Cow;
use std::io::Write;
use std::sync::Arc;

use crate::codec::ledger_key::STEP_HEADER;
use crate::codec::row::{self, TargetView};
use crate::codec::schemas::Schemas;
use crate::engine::step::{Emit, TopicFire};
use crate::environment::transaction::{ProducerRecord, TransactionError, TransactionalSending};
use crate::model::PartitionId;
use crate::model::dead_letter::{Content, DeadLetter};
use crate::model::definition::{Header, Target};
use crate::model::fire::Fire;
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::names::Names;
use crate::model::text::Text;

/// The names of the output topics, computed once.
#[derive(Debug)]
pub(super) struct RecordSender {
    names: Names,
    triggers: String,
    signals: String,
    ledger: String,
    fires: String,
    outcomes: String,
    dead_letters: String,
    schemas: Arc<Schemas>,
}

const INTO_MEMORY: &str = "writing to memory cannot fail";

/// Names and values of headers.
type RecordHeaders<'a> = Vec<(&'a str, Option<&'a [u8]>)>;

impl RecordSender {
    pub(super) fn new(names: &Names, schemas: Arc<Schemas>) -> Self {
        Self {
            names: names.clone(),
            triggers: names.triggers(),
            signals: names.signals(),
            ledger: names.ledger(),
            fires: names.fires(),
            outcomes: names.outcomes(),
            dead_letters: names.dead_letters(),
            schemas,
        }
    }

    /// Sends the emits of partition `p`, decided in step `step`.
    pub(super) fn send_step(
        &self,
        producer: &impl TransactionalSending,
        p: PartitionId,
        step: u64,
        emits: &[Emit],
    ) -> Result<(), TransactionError> {
        for emit in emits {
            match emit {
                Emit::ToTopic(fire) => send_topic_fire(producer, fire)?,
                Emit::ToWorker(fire) => {
                    let key = Some(fire.id.trigger.bytes().as_ref());
                    let value = self.schemas.encode_fire(fire);
                    let topic = self.pool_topic(pool_of(fire));
                    Self::send_record(producer, &topic, p, key, Some(&value), &[])?;
                }
                Emit::Withdraw { pool, withdrawal } => {
                    let key = Some(withdrawal.trigger.bytes().as_ref());
                    let value = self.schemas.encode_withdrawal(withdrawal);
                    let topic = self.pool_topic(pool.as_ref());
                    Self::send_record(producer, &topic, p, key, Some(&value), &[])?;
                }
                Emit::Ledger { key, value } => {
                    self.send_ledger(producer, p, step, key, value.as_deref())?;
                }
                Emit::Signal { partition, signal } => {
                    let key = Some(signal.trigger().bytes().as_ref());
                    let value = self.schemas.encode_signal(signal);
                    Self::send_record(producer, &self.signals, *partition, key, Some(&value), &[])?;
                }
                Emit::Outcome(outcome) => {
                    let key = Some(outcome.trigger.bytes().as_ref());
                    let value = self.schemas.encode_outcome(outcome);
                    Self::send_record(producer, &self.outcomes, p, key, Some(&value), &[])?;
                }
                Emit::DeadLetter(letter) => {
                    let value = self.schemas.encode_dead_letter(letter);
                    let key = key_of(letter);
                    Self::send_record(producer, &self.dead_letters, p, key, Some(&value), &[])?;
                }
                Emit::Forward(forward) => {
                    let headers = headers_of(&forward.headers);
                    let (key, value) = (Some(forward.key.as_ref()), forward.value.as_deref());
                    let to = forward.partition;
                    Self::send_record(producer, &self.triggers, to, key, value, &headers)?;
                }
            }
        }
        Ok(())
    }

    /// The topic that the workers of a pool read.
    fn pool_topic(&self, pool: Option<&Text>) -> Cow<'_, str> {
        match pool {
            Some(pool) => self.names.fires_of(pool.as_str()).into(),
            None => self.fires.as_str().into(),
        }
    }

    /// Sends a ledger record. The step number is a header, so that tombstones have it too.
    pub(super) fn send_ledger(
        &self,
        producer: &impl TransactionalSending,
        p: PartitionId,
        step: u64,
        key: &LedgerKey,
        value: Option<&LedgerValue>,
    ) -> Result<(), TransactionError> {
        let key = key.to_bytes();
        let value = value.map(|value| self.schemas.encode_ledger(value));
        let step = step.to_string();
        let headers = [(STEP_HEADER, Some(step.as_bytes()))];
        Self::send_record(producer, &self.ledger, p, Some(&key), value.as_deref(), &headers)
    }

    fn send_record(
        producer: &impl TransactionalSending,
        topic: &str,
        partition: PartitionId,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
    ) -> Result<(), TransactionError> {
        producer.send(ProducerRecord { topic, partition: Some(partition), key, value, headers })
    }
}

fn pool_of(fire: &Fire) -> Option<&Text> {
    match &fire.definition.target {
        Target::Http(target) => target.pool.as_ref(),
        Target::Topic(_) => None,
    }
}

/// Sends a payload unchanged with two headers of ours: the id of the fire, and its due time (ms
/// since the epoch).
fn send_topic_fire(
    producer: &impl TransactionalSending,
    fire: &TopicFire,
) -> Result<(), TransactionError> {
    let partition = Some(fire.partition);
    let fire = row::view(&fire.row).ok().flatten().expect("the row was decoded when it became due");
    let TargetView::Topic { topic, .. } = fire.target else {
        unreachable!("a fire with an HTTP target is sent to the workers")
    };
    let mut header_bytes = Vec::with_capacity(96);
    let (generation, occurrence, scheduled) = (fire.generation, fire.occurrence, fire.scheduled);
    header_bytes.extend_from_slice(fire.trigger);
    write!(header_bytes, ":{generation}:{occurrence}").expect(INTO_MEMORY);
    let split = header_bytes.len();
    write!(header_bytes, "{scheduled}").expect(INTO_MEMORY);
    let (fire_id, due) = header_bytes.split_at(split);
    let mut headers = Vec::with_capacity(fire.header_count() + 2);
    headers.extend(fire.headers());
    headers.push(("orloj-fire-id", Some(fire_id)));
    headers.push(("orloj-due", Some(due)));
    let (key, value) = (Some(fire.record_key()), fire.payload);
    producer.send(ProducerRecord { topic, partition, key, value, headers: &headers })
}

fn headers_of(headers: &[Header]) -> RecordHeaders<'_> {
    let mut list = Vec::with_capacity(headers.len() + 2);
    list.extend(headers.iter().map(|h| (h.name.as_str(), h.value.as_deref())));
    list
}

fn key_of(letter: &DeadLetter) -> Option<&[u8]> {
    match &letter.content {
        Content::Record { key, .. } => key.as_deref(),
        Content::Fire { fire, .. } => Some(fire.id.trigger.bytes()),
        Content::Mark(_) => None,
    }
}
