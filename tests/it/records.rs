//! What stands in topics, read as a consumer of the user's reads it: committed records only.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use orloj::codec::schemas::Schemas;
use orloj::model::dead_letter::DeadLetter;
use orloj::model::outcome::Outcome;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers as _, Message as _, OwnedMessage};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::audit::records::ObservedRecord;
use crate::audit::{ObservedFire, OwnerAnswers, answer};
use crate::background_thread::BackgroundThread;
use crate::transaction_ends::TransactionEnds;
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

/// Every committed record of a topic, up to the first one that is not decided yet.
pub(crate) fn read_all(client: &ClientConfig, topic: &str) -> Vec<OwnedMessage> {
    let (consumer, partitions) = reader(client, topic);
    let mut records = Vec::new();
    let mut ended = BTreeSet::new();
    let what = format!("{topic} to be read to its end");
    until(&what, DEADLINE, || {
        while let Some(polled) = consumer.poll(POLL) {
            match polled {
                Ok(record) => records.push(record.detach()),
                Err(KafkaError::PartitionEOF(partition)) => {
                    ended.insert(partition);
                    if ended.len() == partitions {
                        return Some(());
                    }
                }
                // Of several brokers one may be away.
                Err(KafkaError::MessageConsumption(
                    RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::AllBrokersDown,
                )) => {}
                Err(error) => panic!("{topic}: {error}"),
            }
        }
        None
    });
    records
}

/// Counts the committed records of a topic as they come.
pub(crate) struct RecordCounter {
    count: Arc<AtomicUsize>,
    _thread: BackgroundThread,
}

impl RecordCounter {
    pub(crate) fn start(client: &ClientConfig, topic: &str) -> Self {
        let (consumer, _) = reader(client, topic);
        let count = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&count);
        let thread = BackgroundThread::start(move |stop| {
            while !stop.load(Relaxed) {
                if let Some(Ok(_)) = consumer.poll(POLL) {
                    counted.fetch_add(1, Relaxed);
                }
            }
        });
        Self { count, _thread: thread }
    }

    /// How many there were so far.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }
}

/// The occurrence, generation and trigger of a fire.
fn fire_id(record: &OwnedMessage) -> (u32, u64, String) {
    let id = header(record, "orloj-fire-id").expect("every fire says which it is");
    let mut parts = id.rsplitn(3, ':');
    let mut next = || parts.next().expect("<id>:<generation>:<occurrence>");
    (next().parse().unwrap(), next().parse().unwrap(), next().to_owned())
}

/// When a fire was due, in ms since the epoch.
pub(crate) fn due_of(fire: &OwnedMessage) -> u64 {
    header(fire, "orloj-due").expect("every fire says its due time").parse().unwrap()
}

/// A fire, with the time when it became visible; `None` while the end of its transaction was not
/// read.
pub(crate) fn fired(record: &OwnedMessage, ends: &TransactionEnds) -> Option<ObservedFire> {
    let (occurrence, generation, trigger) = fire_id(record);
    Some(ObservedFire {
        occurrence,
        generation,
        trigger,
        due: due_of(record),
        visible: ends.visible_at(record.partition(), record.offset())?,
        payload: record.payload().unwrap_or_default().to_vec(),
    })
}

/// The same fire, as the record that it is.
pub(crate) fn observed(record: &OwnedMessage) -> ObservedRecord {
    let (occurrence, generation, trigger) = fire_id(record);
    let headers = record.headers().expect("every fire has headers").iter();
    let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into();
    ObservedRecord {
        trigger,
        generation,
        occurrence,
        partition: record.partition(),
        key: record.key().unwrap_or_default().to_vec(),
        headers: headers.map(|header| (header.key.to_owned(), text(header.value))).collect(),
    }
}

/// The answers among the records of `outcomes`.
pub(crate) fn answers(schemas: &Schemas, records: &[OwnedMessage]) -> OwnerAnswers {
    let mut answers = OwnerAnswers::new();
    for outcome in outcomes(schemas, records) {
        let Some((offset, answer)) = answer(&outcome) else { continue };
        answers.entry((outcome.trigger.as_str().to_owned(), offset)).or_default().push(answer);
    }
    answers
}

/// The records of `outcomes`.
pub(crate) fn outcomes(schemas: &Schemas, records: &[OwnedMessage]) -> Vec<Outcome> {
    let decode = |record: &OwnedMessage| schemas.decode_outcome(record.payload().unwrap()).unwrap();
    records.iter().map(decode).collect()
}

/// The records of `dead-letters`.
pub(crate) fn dead_letters(schemas: &Schemas, records: &[OwnedMessage]) -> Vec<DeadLetter> {
    let decode =
        |record: &OwnedMessage| schemas.decode_dead_letter(record.payload().unwrap()).unwrap();
    records.iter().map(decode).collect()
}

/// The broker's timestamp, in ms since the epoch.
pub(crate) fn appended(record: &OwnedMessage) -> u64 {
    let millis = record.timestamp().to_millis().expect("brokers stamp every record");
    u64::try_from(millis).unwrap()
}

/// A header's text.
pub(crate) fn header<'a>(record: &'a OwnedMessage, name: &str) -> Option<&'a str> {
    let header = record.headers()?.iter().find(|header| header.key == name)?;
    Some(std::str::from_utf8(header.value?).unwrap())
}

/// A consumer at the beginning of every partition, and how many there are.
pub(crate) fn reader(client: &ClientConfig, topic: &str) -> (BaseConsumer, usize) {
    let mut config = client.clone();
    config
        .set("group.id", "proof")
        .set("isolation.level", "read_committed")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("fetch.wait.max.ms", "50");
    let consumer: BaseConsumer = config.create().unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), DEADLINE).unwrap();
    let partitions = metadata.topics()[0].partitions();
    let mut assignment = TopicPartitionList::new();
    for partition in partitions {
        assignment.add_partition_offset(topic, partition.id(), Offset::Beginning).unwrap();
    }
    consumer.assign(&assignment).unwrap();
    (consumer, partitions.len())
}

#[cfg(test)]
mod tests {
    use rdkafka::admin::{NewTopic, TopicReplication};
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

    use super::*;
    use crate::kafka_server::{self, unique_prefix};

    /// Begins a transaction with a record in partition 0.
    fn begin(client: &ClientConfig, topic: &str, name: &str) -> BaseProducer {
        let mut config = client.clone();
        config.set("transactional.id", format!("{topic}-{name}"));
        let producer: BaseProducer = config.create().unwrap();
        producer.init_transactions(DEADLINE).unwrap();
        producer.begin_transaction().unwrap();
        let record = BaseRecord::<str, str>::to(topic).partition(0).payload(name);
        producer.send(record).map_err(|(error, _)| error).unwrap();
        producer.flush(DEADLINE).unwrap();
        producer
    }

    /// The marker of a visible record is behind the first record of an open transaction.
    #[test]
    fn a_marker_behind_an_open_transaction_is_read() {
        let client = kafka_server::shared().client();
        let topic = unique_prefix("transaction-ends");
        kafka_server::create_topics(
            &client,
            &[NewTopic::new(&topic, 1, TopicReplication::Fixed(1))],
        );
        let ended = begin(&client, &topic, "ended");
        let open = begin(&client, &topic, "open");
        ended.commit_transaction(DEADLINE).unwrap();
        let visible =
            until("the first record to be visible", DEADLINE, || read_all(&client, &topic).pop());
        assert_eq!(visible.payload(), Some(&b"ended"[..]));
        let ends = TransactionEnds::read(&client, &topic);
        assert!(ends.visible_at(visible.partition(), visible.offset()).is_some());
        open.abort_transaction(DEADLINE).unwrap();
    }
}
