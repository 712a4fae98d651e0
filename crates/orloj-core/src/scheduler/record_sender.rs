//! Converts a step's emits to records: topic, partition, key, headers and bytes.
//!
//! Invariant: output of partition p goes to partition p of Orloj's topics, so that a transaction
//! uses few partitions and the records of a trigger stay in order.

use std::borrow::Cow;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::codec::ledger_key::STEP_HEADER;
use crate::codec::row::{self, TargetView};
use crate::codec::schemas::Schemas;
use crate::engine::catalog::BATCH_BYTES_MAX;
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

    /// Sends the emits of partition `p`, decided in step `step`. `time_left`: how long topics that
    /// take little at once may be waited for.
    pub(super) fn send_step(
        &self,
        producer: &impl TransactionalSending,
        (p, step): (PartitionId, u64),
        emits: &[Emit],
        time_left: impl Fn() -> Duration,
    ) -> Result<(), TransactionError> {
        for emit in emits {
            match emit {
                Emit::ToTopic(fire) => send_topic_fire(producer, fire, &time_left)?,
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
    time_left: impl Fn() -> Duration,
) -> Result<(), TransactionError> {
    let partition = Some(fire.partition);
    let batch_bytes_max = usize::try_from(fire.batch_bytes_max).unwrap_or(usize::MAX);
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
    let record = ProducerRecord { topic, partition, key, value, headers: &headers };
    if batch_bytes_max < BATCH_BYTES_MAX {
        producer.limit_batch(&record, batch_bytes_max, time_left())?;
    }
    producer.send(record)
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::model::dead_letter::{Mark, Origin};
    use crate::model::definition::{Definition, HttpTarget, TopicTarget};
    use crate::model::entry::{FireRow, Row};
    use crate::model::fire::Withdrawal;
    use crate::model::fire_id::FireId;
    use crate::model::input::Forward;
    use crate::model::outcome::{Outcome, OutcomeKind};
    use crate::model::signal::{CallbackEnded, Signal};
    use crate::test_environment::producer::{SentRecord, TestProducer};

    /// The partition whose step is sent, and the number of the step.
    const P: PartitionId = 3;
    const STEP: u64 = 17;

    fn sent(emit: Emit) -> SentRecord {
        let producer = TestProducer::default();
        let sender = RecordSender::new(&Names::new("o"), Arc::new(Schemas::new()));
        sender.send_step(&producer, (P, STEP), &[emit], || Duration::ZERO).unwrap();
        let [record] = producer.sent().try_into().expect("one record");
        record
    }

    fn definition(target: Target, headers: Vec<Header>) -> Definition {
        let payload = Some(Bytes::from_static(b"payload"));
        Definition { target, payload, headers, retry: None, caller: None }
    }

    fn fire_id() -> FireId {
        FireId { trigger: "a".into(), generation: 5, occurrence: 2, attempt: 1, deferral: 0 }
    }

    fn fire(pool: Option<&str>) -> Fire {
        let target = HttpTarget { pool: pool.map(Text::from), ..HttpTarget::post("http://x/") };
        Fire {
            id: fire_id(),
            scheduled: 70,
            fired: 71,
            definition: definition(target.into(), Vec::new()),
            history: None,
            report_end: false,
            priority: 127,
        }
    }

    fn letter(content: Content) -> Emit {
        let origin = Origin { topic: "o.triggers".into(), partition: P, offset: 1 };
        Emit::DeadLetter(Box::new(DeadLetter { origin, reason: "why".into(), at: 1, content }))
    }

    fn header(name: &str, value: &'static str) -> Header {
        Header { name: name.into(), value: Some(Bytes::from_static(value.as_bytes())) }
    }

    fn withdrawal(pool: Option<&str>) -> Emit {
        let withdrawal = Box::new(Withdrawal { trigger: "a".into(), cancel: 9 });
        Emit::Withdraw { pool: pool.map(Text::from), withdrawal }
    }

    #[test]
    fn a_record_has_the_key_of_its_trigger_and_the_partition_of_its_step() {
        let ended = Signal::CallbackEnded(CallbackEnded { id: fire_id(), ok: true });
        let signal = Emit::Signal { partition: 8, signal: Box::new(ended) };
        let kind = OutcomeKind::Accepted { generation: 5, fire_at: 70, replaced: None };
        let outcome = Outcome { trigger: "a".into(), answers: None, request: None, at: 1, kind };
        let record = Content::Record { key: bytes_of("k"), value: None, headers: Vec::new() };
        let no_key = Content::Record { key: None, value: None, headers: Vec::new() };
        let cases = [
            (Emit::ToWorker(Box::new(fire(None))), "o.fires", P, Some("a")),
            (Emit::ToWorker(Box::new(fire(Some("slow")))), "o.fires.slow", P, Some("a")),
            (withdrawal(None), "o.fires", P, Some("a")),
            (withdrawal(Some("slow")), "o.fires.slow", P, Some("a")),
            (signal, "o.signals", 8, Some("a")),
            (Emit::Outcome(Box::new(outcome)), "o.outcomes", P, Some("a")),
            (letter(record), "o.dead-letters", P, Some("k")),
            (letter(no_key), "o.dead-letters", P, None),
            (
                letter(Content::Fire { fire: fire(None), attempts: 3 }),
                "o.dead-letters",
                P,
                Some("a"),
            ),
            (letter(Content::Mark(Mark::Archived)), "o.dead-letters", P, None),
        ];
        for (emit, topic, partition, key) in cases {
            let record = sent(emit);
            let actual = (record.topic.as_str(), record.partition, record.key.as_deref());
            assert_eq!(actual, (topic, Some(partition), key.map(str::as_bytes)));
            assert!(
                record.value.is_some_and(|value| !value.is_empty()) && record.headers.is_empty()
            );
        }
    }

    #[test]
    fn a_ledger_record_has_its_step_as_a_header_and_so_has_a_tombstone() {
        let barrier = LedgerValue::Barrier { nonce: 4 };
        for value in [None, Some(Box::new(barrier))] {
            let has_value = value.is_some();
            let record = sent(Emit::Ledger { key: LedgerKey::Barrier, value });
            assert_eq!((record.topic.as_str(), record.partition), ("o.ledger", Some(P)));
            assert_eq!(record.key.as_deref(), Some(LedgerKey::BARRIER));
            assert_eq!(record.value.is_some(), has_value);
            assert_eq!(record.headers, [(STEP_HEADER.to_owned(), Some(b"17".to_vec()))]);
        }
    }

    #[test]
    fn a_payload_is_sent_unchanged_with_its_headers_and_two_of_ours() {
        let target = TopicTarget { topic: "orders".into(), key: bytes_of("key") };
        let definition = definition(Target::Topic(target), vec![header("trace", "1")]);
        let mut fire_row = FireRow::first("a".into(), 5, 70, definition);
        fire_row.id.occurrence = 2;
        let row = row::to_bytes(&Row::Fire(fire_row), &mut Vec::new());
        let fire = TopicFire { row, partition: 6, batch_bytes_max: 1 << 20, scheduled: 70 };
        let record = sent(Emit::ToTopic(fire));
        let owned = |name: &str, value: &str| (name.to_owned(), Some(value.as_bytes().to_vec()));
        let expected = SentRecord {
            topic: "orders".to_owned(),
            partition: Some(6),
            key: Some(b"key".to_vec()),
            value: Some(b"payload".to_vec()),
            headers: vec![
                owned("trace", "1"),
                owned("orloj-fire-id", "a:5:2"),
                owned("orloj-due", "70"),
            ],
        };
        assert_eq!(record, expected);
    }

    #[test]
    fn the_batches_of_a_topic_that_takes_little_at_once_are_limited() {
        let target = TopicTarget { topic: "orders".into(), key: None };
        let row = FireRow::first("a".into(), 5, 70, definition(Target::Topic(target), Vec::new()));
        let row = row::to_bytes(&Row::Fire(row), &mut Vec::new());
        let below = BATCH_BYTES_MAX - 1;
        for (bytes_max, limits) in
            [(below, vec![("orders".to_owned(), below)]), (below + 1, vec![])]
        {
            let (producer, schemas) = (TestProducer::default(), Arc::new(Schemas::new()));
            let batch_bytes_max = u32::try_from(bytes_max).unwrap();
            let fire = TopicFire { row: row.clone(), partition: 6, batch_bytes_max, scheduled: 70 };
            let sender = RecordSender::new(&Names::new("o"), schemas);
            let emits = [Emit::ToTopic(fire)];
            sender.send_step(&producer, (P, STEP), &emits, || Duration::from_secs(5)).unwrap();
            assert_eq!(producer.sending().limits, limits);
            let timeouts = vec![Duration::from_secs(5); limits.len()];
            assert_eq!(producer.sending().timeouts, timeouts);
            assert_eq!(producer.sent().len(), 1);
        }
    }

    #[test]
    fn a_record_of_another_partition_is_forwarded_as_it_is() {
        let headers = vec![header("orloj-forwarded", "3")];
        let (key, value) = (Bytes::from_static(b"b"), bytes_of("value"));
        let record = sent(Emit::Forward(Box::new(Forward { partition: 1, key, value, headers })));
        let expected = SentRecord {
            topic: "o.triggers".to_owned(),
            partition: Some(1),
            key: Some(b"b".to_vec()),
            value: Some(b"value".to_vec()),
            headers: vec![("orloj-forwarded".to_owned(), Some(b"3".to_vec()))],
        };
        assert_eq!(record, expected);
    }

    fn bytes_of(text: &'static str) -> Option<Bytes> {
        Some(Bytes::from_static(text.as_bytes()))
    }
}
