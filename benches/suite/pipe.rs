//! The pipe: the backlog's records go to another topic in transactions, with no timer and no store.
//!
//! Invariant: it is what the scheduler could reach at most, so it has all of the scheduler's Kafka
//! and nothing else. While one transaction is ended, the records of the next are read.

use std::time::Duration;

use orloj::clock;
use orloj::config::Settings;
use orloj::kafka::Names;
use orloj::kafka::reader::{LogReader, ReadEvent};
use orloj::kafka::record::ConsumerRecord;
use orloj::kafka::transaction::ProducerRecord;

use crate::bench_cluster::{self, PARTITIONS};
use crate::transaction_writer::{PRODUCER_PAIR, TransactionWriter};

/// Records read ahead at most, so that memory stays bounded.
const AHEAD_MAX: usize = 40_000;
/// Records read in one go before the rest is looked after.
const READ_MAX: usize = 1_000;
const PAUSE: Duration = Duration::from_millis(1);

/// Moves `count` records, from the beginning on; a transaction takes records for `batch`.
pub(crate) fn run(settings: &Settings, count: usize, batch: Duration) {
    let names = Names::new(&settings.topics.prefix);
    let output = bench_cluster::output(settings, "pipe");
    let mut writer = TransactionWriter::join(settings, "pipe", PRODUCER_PAIR);
    let reader = LogReader::open(settings, &names.worker_group("pipe")).unwrap();
    for partition in PARTITIONS {
        reader.start(&names.triggers(), partition, 0).unwrap();
    }
    println!("ready");

    let mut ahead = Vec::new();
    let mut next = [0; PARTITIONS.len()];
    let mut left = count;
    let mut open_since = None;
    while left > 0 {
        read(&reader, &mut ahead);
        if open_since.is_none() && !ahead.is_empty() && writer.is_free(Duration::ZERO) {
            writer.begin();
            open_since = Some(clock::monotonic());
        }
        let Some(since) = open_since else { continue };
        left -= ahead.len();
        for record in ahead.drain(..) {
            next[usize::try_from(record.partition()).unwrap()] = record.offset() + 1;
            forward(&writer, &output, &record);
        }
        if left == 0 || clock::monotonic() - since >= batch {
            writer.submit(next);
            open_since = None;
        }
    }
    while !writer.is_free(batch) {}
}

fn read<'a>(reader: &'a LogReader, ahead: &mut Vec<ConsumerRecord<'a>>) {
    let until = AHEAD_MAX.min(ahead.len() + READ_MAX);
    while ahead.len() < until {
        match reader.poll(PAUSE).unwrap() {
            Some(ReadEvent::Record(record)) => ahead.push(record),
            Some(ReadEvent::PartitionEof(_)) => {}
            Some(ReadEvent::OutOfRange(what)) => panic!("{what}"),
            None => break,
        }
    }
}

fn forward(writer: &TransactionWriter, output: &str, record: &ConsumerRecord<'_>) {
    let headers: Vec<_> = record.headers().collect();
    writer.send(ProducerRecord {
        topic: output,
        partition: Some(record.partition()),
        key: record.key(),
        value: record.value(),
        headers: &headers,
    });
}
