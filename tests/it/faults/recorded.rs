//! The topics of a case, kept as a file: from it `view::tests::second_opinion` finds out whether a
//! view says what they say.
//!
//! Invariant: nothing is written to the topics any more.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _, OwnedMessage};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{Value, json};

use crate::records;
use crate::test_cluster::{PARTITIONS, TestCluster};

const DEADLINE: Duration = Duration::from_secs(60);

/// Where the files of a run are.
fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/faults/topics")
}

/// Removes the files of an earlier run.
pub(super) fn remove_all() {
    let _none = fs::remove_dir_all(folder());
}

/// Writes a line for each record and for each committed cursor.
pub(super) fn keep(cluster: &TestCluster) {
    fs::create_dir_all(folder()).unwrap();
    let triggers = cluster.names.triggers();
    let (case, _number) = triggers.rsplit_once('-').expect("a prefix with a number");
    let file = folder().join(format!("{case}.jsonl"));
    let mut file = BufWriter::new(File::create(file).unwrap());
    let names = &cluster.names;
    let topics = [
        ("triggers", names.triggers()),
        ("ledger", names.ledger()),
        ("outcomes", names.outcomes()),
        ("dead-letters", names.dead_letters()),
    ];
    for (source, topic) in topics {
        for record in records::read_all(cluster.kafka(), &topic) {
            writeln!(file, "{}", line(source, &record)).unwrap();
        }
    }
    for (partition, offset, metadata) in cursors(cluster) {
        let line = json!({"cursor": metadata, "partition": partition, "offset": offset});
        writeln!(file, "{line}").unwrap();
    }
    file.flush().unwrap();
}

fn line(source: &str, record: &OwnedMessage) -> Value {
    let headers = record.headers().into_iter().flat_map(|headers| headers.iter());
    let headers: Vec<_> =
        headers.map(|header| json!([header.key, header.value.map(hexadecimal)])).collect();
    json!({
        "topic": source,
        "partition": record.partition(),
        "offset": record.offset(),
        "timestamp": record.timestamp().to_millis(),
        "key": record.key().map(hexadecimal),
        "value": record.payload().map(hexadecimal),
        "headers": headers,
    })
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// What the schedulers have committed, of each partition: its offset and metadata.
fn cursors(cluster: &TestCluster) -> Vec<(i32, i64, String)> {
    let mut config = cluster.kafka().clone();
    config.set("group.id", cluster.names.scheduler_group());
    let consumer: BaseConsumer = config.create().unwrap();
    let mut list = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        let _element = list.add_partition(&cluster.names.triggers(), partition);
    }
    let committed = consumer.committed_offsets(list, DEADLINE).unwrap();
    let of = committed.elements().into_iter().filter_map(|element| match element.offset() {
        Offset::Offset(offset) => {
            Some((element.partition(), offset, element.metadata().to_owned()))
        }
        _ => None,
    });
    of.collect()
}
