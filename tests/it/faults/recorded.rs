//! The topics of a case, kept as a file: from it `view::tests::second_opinion` finds out whether a
//! view says what they say.
//!
//! Invariant: nothing is written to the topics any more.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;

use rdkafka::message::{Headers as _, Message as _, OwnedMessage};
use serde_json::{Value, json};

use super::offsets;
use crate::records;
use crate::test_cluster::TestCluster;

/// Where the files of a run are.
fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/faults/topics")
}

/// Removes the files of an earlier run.
pub(super) fn remove_all() {
    let _none = fs::remove_dir_all(folder());
}

/// The file of a case.
fn file_of(cluster: &TestCluster) -> PathBuf {
    let triggers = cluster.names.triggers();
    let (case, _number) = triggers.rsplit_once('-').expect("a prefix with a number");
    folder().join(format!("{case}.jsonl"))
}

/// Adds a line for a schema of the registry, which records name by these ids.
pub(super) fn keep_schema(cluster: &TestCluster, ids: &[u32], schema: &str) {
    let mut file = File::options().append(true).open(file_of(cluster)).unwrap();
    writeln!(file, "{}", json!({"schema": schema, "ids": ids})).unwrap();
}

/// Writes a line for each record and for each committed cursor.
pub(super) fn keep(cluster: &TestCluster) {
    fs::create_dir_all(folder()).unwrap();
    let mut file = BufWriter::new(File::create(file_of(cluster)).unwrap());
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
    // A partition of which nothing is committed has an offset below 0.
    let cursors = offsets::committed(cluster).into_iter().filter(|(_, offset, _)| *offset >= 0);
    for (partition, offset, metadata) in cursors {
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
