//! When transactions ended: what a reader of committed records waits for, and no client tells him.
//!
//! Invariant: a record was visible no sooner than the marker that ends its transaction was appended
//! to its partition. The record itself may have been there before, by as much as fires are sent
//! ahead.
//!
//! Clients drop markers, so this asks the partition's leader itself: Fetch, version 4, of Kafka's
//! protocol, of which the headers of record batches are read and nothing else
//! (<https://kafka.apache.org/protocol>, <https://kafka.apache.org/documentation/#recordbatch>).

use std::collections::HashMap;
use std::io::{Error, Read as _, Result, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// What one answer may bring, in bytes; a larger batch comes alone.
const FETCH_MAX: i32 = 8 << 20;

/// `Fetch`, and the version of it.
const FETCH: [i16; 2] = [1, 4];
/// Up to the high watermark: the marker of a visible record may be behind the last stable offset.
const READ_UNCOMMITTED: u8 = 0;

/// The bytes of a batch before its records, and those before its length counts.
const BATCH_HEADER: usize = 61;
const BATCH_PREFIX: usize = 12;
const TRANSACTIONAL: u16 = 0x10;
const CONTROL: u16 = 0x20;

/// When the transactions of a topic's records ended.
pub(crate) struct TransactionEnds {
    /// By partition: batches in the order of their offsets.
    batches: Vec<Vec<TransactionBatchHeader>>,
}

#[derive(Clone, Copy, Debug)]
struct TransactionBatchHeader {
    first: i64,
    last: i64,
    attributes: u16,
    producer: i64,
    /// Of its newest record, in ms since the epoch; of a marker, when the leader wrote it.
    time: i64,
    /// When its transaction ended, in ms since the epoch; `None` while it has not.
    ended: Option<i64>,
}

impl TransactionEnds {
    /// Reads all that is replicated now. The leaders must listen without encryption.
    pub(crate) fn read(client: &ClientConfig, topic: &str) -> Self {
        let consumer: BaseConsumer = client.create().unwrap();
        let partitions = consumer.fetch_metadata(Some(topic), DEADLINE).unwrap();
        let partitions = 0..partitions.topics()[0].partitions().len();
        let batches = partitions.map(|partition| {
            let partition = i32::try_from(partition).unwrap();
            until(&format!("the batches of {topic}[{partition}]"), DEADLINE, || {
                read_partition(&consumer, topic, partition).ok()
            })
        });
        Self { batches: batches.collect() }
    }

    /// When the record at this offset could be seen first, in ms since the epoch; `None` while
    /// the end of its transaction was not read.
    pub(crate) fn visible_at(&self, partition: i32, offset: i64) -> Option<u64> {
        let batches = &self.batches[usize::try_from(partition).unwrap()];
        let place = batches.partition_point(|batch| batch.last < offset);
        let batch = batches.get(place).filter(|batch| batch.first <= offset)?;
        Some(u64::try_from(batch.ended?).unwrap())
    }

    /// How long a record waited at most until it could be seen, in ms, of those that could from
    /// this time on.
    pub(crate) fn longest_wait_since(&self, since: u64) -> u64 {
        let records = self.batches.iter().flatten().filter(|batch| batch.attributes & CONTROL == 0);
        let waits = records.filter_map(|batch| {
            let ended = batch.ended?.cast_unsigned();
            (ended >= since).then(|| ended.saturating_sub(batch.time.cast_unsigned()))
        });
        waits.max().unwrap_or(0)
    }
}

/// All batches of a partition up to its high watermark.
fn read_partition(
    consumer: &BaseConsumer,
    topic: &str,
    partition: i32,
) -> Result<Vec<TransactionBatchHeader>> {
    let (mut next, _) =
        consumer.fetch_watermarks(topic, partition, RESPONSE_TIMEOUT).map_err(Error::other)?;
    let mut leader = connect(consumer, topic, partition)?;
    let mut batches = Vec::new();
    loop {
        leader.write_all(&request(topic, partition, next))?;
        let mut length = [0; 4];
        leader.read_exact(&mut length)?;
        let mut answer = vec![0; usize::try_from(i32::from_be_bytes(length)).unwrap()];
        leader.read_exact(&mut answer)?;
        let (end, fetched) = parse(&answer)?;
        // An answer begins with the batch that holds the offset asked for.
        batches.extend(fetched.iter().filter(|batch| batch.last >= next));
        next = fetched.last().map_or(next, |batch| next.max(batch.last + 1));
        if next >= end {
            assign_end_times(&mut batches);
            return Ok(batches);
        }
    }
}

fn connect(consumer: &BaseConsumer, topic: &str, partition: i32) -> Result<TcpStream> {
    let metadata = consumer.fetch_metadata(Some(topic), RESPONSE_TIMEOUT).map_err(Error::other)?;
    let leader = metadata.topics()[0].partitions().iter().find(|p| p.id() == partition);
    let broker = metadata.brokers().iter().find(|b| Some(b.id()) == leader.map(|p| p.leader()));
    let broker = broker.ok_or_else(|| Error::other("no leader"))?;
    let port = u16::try_from(broker.port()).unwrap();
    let stream = TcpStream::connect((broker.host(), port))?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    Ok(stream)
}

/// Gives every batch of a transaction the time of the next marker of its producer.
fn assign_end_times(batches: &mut [TransactionBatchHeader]) {
    let mut ends = HashMap::new();
    for batch in batches.iter_mut().rev() {
        if batch.attributes & CONTROL != 0 {
            ends.insert(batch.producer, batch.time);
        } else if batch.attributes & TRANSACTIONAL != 0 {
            batch.ended = ends.get(&batch.producer).copied();
        } else {
            batch.ended = Some(batch.time);
        }
    }
}

fn request(topic: &str, partition: i32, offset: i64) -> Vec<u8> {
    let (correlation, client, replica, wait, least) = (0_i32, -1_i16, -1_i32, 0_i32, 0_i32);
    let body = [
        &FETCH[0].to_be_bytes()[..],
        &FETCH[1].to_be_bytes(),
        &correlation.to_be_bytes(),
        &client.to_be_bytes(),
        &replica.to_be_bytes(),
        &wait.to_be_bytes(),
        &least.to_be_bytes(),
        &FETCH_MAX.to_be_bytes(),
        &[READ_UNCOMMITTED],
        // One topic, and one partition of it.
        &1_i32.to_be_bytes(),
        &i16::try_from(topic.len()).unwrap().to_be_bytes(),
        topic.as_bytes(),
        &1_i32.to_be_bytes(),
        &partition.to_be_bytes(),
        &offset.to_be_bytes(),
        &FETCH_MAX.to_be_bytes(),
    ]
    .concat();
    let length = i32::try_from(body.len()).unwrap();
    [&length.to_be_bytes()[..], &body].concat()
}

/// The high watermark, and the complete batches.
fn parse(answer: &[u8]) -> Result<(i64, Vec<TransactionBatchHeader>)> {
    let mut fields = ResponseFields(answer);
    let [_correlation, _throttled, _topics] = std::array::from_fn(|_| fields.i32());
    let topic = fields.i16();
    fields.skip(topic.into());
    let [_partitions, _partition] = std::array::from_fn(|_| fields.i32());
    match fields.i16() {
        0 => {}
        code => return Err(Error::other(format!("Kafka's error {code}"))),
    }
    let [high_watermark, _stable] = std::array::from_fn(|_| fields.i64());
    for _aborted in 0..fields.i32().max(0) {
        fields.skip(16);
    }
    let _length = fields.i32();
    Ok((high_watermark, batches(fields.0)))
}

fn batches(mut records: &[u8]) -> Vec<TransactionBatchHeader> {
    let mut batches = Vec::new();
    while records.len() >= BATCH_HEADER {
        let mut fields = ResponseFields(records);
        let first = fields.i64();
        let length = BATCH_PREFIX + usize::try_from(fields.i32()).unwrap();
        if records.len() < length {
            break;
        }
        // Leader's epoch, magic, checksum.
        fields.skip(9);
        let attributes = fields.i16().cast_unsigned();
        let last = first + i64::from(fields.i32());
        let [_first_time, time, producer] = std::array::from_fn(|_| fields.i64());
        batches.push(TransactionBatchHeader {
            first,
            last,
            attributes,
            producer,
            time,
            ended: None,
        });
        records = &records[length..];
    }
    batches
}

/// Big-endian numbers, one after the other.
pub(crate) struct ResponseFields<'a>(pub(crate) &'a [u8]);

impl ResponseFields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_first_chunk().expect("Kafka's answer is whole");
        self.0 = rest;
        *taken
    }

    pub(crate) fn skip(&mut self, bytes: i32) {
        self.0 = &self.0[usize::try_from(bytes).unwrap()..];
    }

    pub(crate) fn i16(&mut self) -> i16 {
        i16::from_be_bytes(self.take())
    }

    pub(crate) fn i32(&mut self) -> i32 {
        i32::from_be_bytes(self.take())
    }

    fn i64(&mut self) -> i64 {
        i64::from_be_bytes(self.take())
    }

    /// The length of an array or text in the compact form, which is one less than what is written;
    /// 0 if there is none.
    pub(crate) fn compact_length(&mut self) -> i32 {
        let mut number = 0;
        for shift in (0..35).step_by(7) {
            let [byte] = self.take();
            number |= i32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        (number - 1).max(0)
    }

    pub(crate) fn skip_compact_text(&mut self) {
        let length = self.compact_length();
        self.skip(length);
    }

    /// Passes over tagged fields, of which brokers send none in the versions that are used here.
    pub(crate) fn skip_tags(&mut self) {
        let [tags] = self.take();
        assert_eq!(tags, 0, "no tagged field is expected");
    }
}
