//! What was reported, on a log: the offsets and the metadata that a leader commits are also records
//! of the topic of notifications. Brokers delete the offsets of a group that had no member for a
//! time; then the next leader continues with those of the log.
//!
//! Invariant: after a leader has read the log, no earlier one writes to it. The producers of all
//! leaders have one transactional id: the broker refuses a producer as soon as the next one is
//! opened, and a leader opens its own before it reads. One that was replaced and does not know it
//! cannot write with a new producer either: before that the group must accept a commit which it
//! makes after the opening, and the group has expelled it.
//!
//! Should an older record be the last all the same, something is reported again, and nothing is
//! lost: everything below its offset was reported, and its metadata says what was reported then.
//! A transaction has the records of all keys, of one moment.
//!
//! ```text
//!   key     topic | partition, of what is read
//!   value   1 | offset | metadata, as they are committed; 1 is the version
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{CALL_TIMEOUT, POLL_TIMEOUT};
use crate::clock;
use crate::codec::schemas::CodecError;
use crate::config::Settings;
use crate::kafka::Names;
use crate::kafka::admin_client::KafkaAdminClient;
use crate::kafka::batch_producer::BatchProducer;
use crate::kafka::error::{ClientError, ClientResult};
use crate::kafka::reader::{LogReader, ReadEvent};
use crate::kafka::transaction::{OffsetCommit, ProducerRecord};
use crate::model::{Offset, PartitionId};

/// The partition that is used, also if the topic has more.
const LOG_PARTITION: PartitionId = 0;
/// How often everything is written although nothing has changed: the topic may have been deleted.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// The version of the values.
const VERSION: u32 = 1;
/// What a record is, in errors.
const KIND: &str = "record of what was reported";

/// Why a term cannot start now. It is tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum TermStartError {
    /// Try again later, or check the rights of the notifier.
    #[error(transparent)]
    Kafka(#[from] ClientError),
    /// The same.
    #[error("{topic} cannot be read to its end: {reason}")]
    Unreadable {
        /// The topic.
        topic: String,
        /// Why not.
        reason: String,
    },
    /// A record has a newer format: upgrade this process.
    #[error(transparent)]
    Newer(#[from] CodecError),
}

/// The log, and the producer with which a leader writes to it.
pub(super) struct ReportedLog {
    settings: Settings,
    topic: String,
    transactional_id: String,
    /// Its access list covers the reader, too.
    group: String,
    producer: Option<BatchProducer>,
    /// What the producer has written last, and when.
    written: Option<(Vec<OffsetCommit>, Instant)>,
}

impl ReportedLog {
    /// A log that is not opened.
    pub(super) fn new(settings: &Settings) -> Self {
        let names = Names::new(&settings.topics.prefix);
        Self {
            settings: settings.clone(),
            topic: names.notifications(),
            transactional_id: names.transactional_id("notifier", "leader"),
            group: names.notifier_group(),
            producer: None,
            written: None,
        }
    }

    /// The name of the topic.
    pub(super) fn topic(&self) -> &str {
        &self.topic
    }

    /// Whether there is a producer.
    pub(super) fn is_open(&self) -> bool {
        self.producer.is_some()
    }

    /// Opens a producer, if there is none: no earlier leader writes any more. The caller commits
    /// after that, and [writes](Self::write) only if the group has accepted it.
    pub(super) fn open(&mut self) -> ClientResult<()> {
        if self.producer.is_none() {
            let id = &self.transactional_id;
            self.producer = Some(BatchProducer::open(&self.settings, id, CALL_TIMEOUT)?);
        }
        Ok(())
    }

    /// Drops the producer. What it left open is ended by the next one.
    pub(super) fn close(&mut self) {
        self.producer = None;
        self.written = None;
    }

    /// Opens a producer, and reads the log to its end.
    pub(super) fn read(
        &mut self,
        probe: &KafkaAdminClient,
    ) -> Result<RecordedOffsets, TermStartError> {
        self.open()?;
        let (low, end) = probe.bounds(&self.topic, LOG_PARTITION)?;
        if low == end {
            return Ok(RecordedOffsets::default());
        }
        let reader = LogReader::open(&self.settings, &self.group)?;
        reader.start(&self.topic, LOG_PARTITION, low)?;
        match read_until(&reader, &self.topic, end) {
            Ok(records) => Ok(records.decode()?),
            Err(reason) => Err(TermStartError::Unreadable { topic: self.topic.clone(), reason }),
        }
    }

    /// Writes a record for each of `offsets`, in one transaction, if one has changed or the last
    /// time is [`REPEAT_INTERVAL`] ago. After an error the log is closed.
    pub(super) fn write(&mut self, offsets: &[OffsetCommit], now: Instant) -> ClientResult<()> {
        let is_due = is_due(self.written.as_ref(), offsets, now);
        let Some(producer) = self.producer.as_ref().filter(|_| is_due) else { return Ok(()) };
        let sent = send(producer, &self.topic, offsets);
        match &sent {
            Ok(()) => self.written = Some((offsets.to_vec(), now)),
            Err(_) => self.close(),
        }
        sent
    }
}

/// Whether the offsets have changed since they were `written`, or that was long ago.
fn is_due(
    written: Option<&(Vec<OffsetCommit>, Instant)>,
    offsets: &[OffsetCommit],
    now: Instant,
) -> bool {
    written.is_none_or(|(written, at)| {
        written != offsets || now.duration_since(*at) >= REPEAT_INTERVAL
    })
}

/// Reads to `end`, or says why that is not possible now.
fn read_until(reader: &LogReader, topic: &str, end: Offset) -> Result<LastRecords, String> {
    let mut records = LastRecords::default();
    let mut reason = "no answer".to_owned();
    let mut deadline = clock::monotonic() + CALL_TIMEOUT;
    while clock::monotonic() < deadline {
        match reader.poll(POLL_TIMEOUT) {
            Ok(Some(ReadEvent::Record(record))) => {
                records.add(record.key(), record.value());
                deadline = clock::monotonic() + CALL_TIMEOUT;
            }
            Ok(Some(ReadEvent::PartitionEof(_))) => {
                let position = reader.position(topic, LOG_PARTITION);
                let position = position.map_err(|error| error.to_string())?.unwrap_or_default();
                if position >= end {
                    return Ok(records);
                }
                return Err(format!("a transaction is open at {position}, before its end {end}"));
            }
            Ok(Some(ReadEvent::OutOfRange(out_of_range))) => return Err(out_of_range),
            // One broker of several may be away: the client goes on.
            Err(error) => reason = error.to_string(),
            Ok(None) => {}
        }
    }
    Err(reason)
}

fn send(producer: &BatchProducer, topic: &str, offsets: &[OffsetCommit]) -> ClientResult<()> {
    producer.begin()?;
    for (key, value) in offsets.iter().map(encode) {
        producer.send(ProducerRecord {
            topic,
            partition: Some(LOG_PARTITION),
            key: Some(key.as_bytes()),
            value: Some(value.as_bytes()),
            headers: &[],
        })?;
    }
    producer.commit().map(drop)
}

/// The record of a committed offset: its key and its value.
fn encode(commit: &OffsetCommit) -> (String, String) {
    let OffsetCommit { topic, partition, offset, metadata } = commit;
    (key_of(topic, *partition), format!("{VERSION}|{offset}|{metadata}"))
}

fn key_of(topic: &str, partition: PartitionId) -> String {
    format!("{topic}|{partition}")
}

/// By key, the value of its last record.
#[derive(Debug, Default)]
struct LastRecords(BTreeMap<String, String>);

impl LastRecords {
    /// Adds the next record of the log.
    fn add(&mut self, key: Option<&[u8]>, value: Option<&[u8]>) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let Some(key) = key.map(text) else { return };
        match value.map(text) {
            Some(value) => self.0.insert(key, value),
            None => self.0.remove(&key),
        };
    }

    /// What the records say. One that a notifier did not write is skipped.
    fn decode(self) -> Result<RecordedOffsets, CodecError> {
        let mut offsets = BTreeMap::new();
        for (key, value) in self.0 {
            match decode_value(&value) {
                Ok(recorded) => {
                    offsets.insert(key, recorded);
                }
                Err(error @ CodecError::Newer { .. }) => return Err(error),
                Err(error @ CodecError::Corrupt { .. }) => {
                    tracing::warn!(key, %error, "unreadable record skipped");
                }
            }
        }
        Ok(RecordedOffsets(offsets))
    }
}

/// The offsets of the log, each with its metadata.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RecordedOffsets(BTreeMap<String, (Offset, String)>);

impl RecordedOffsets {
    /// Those of a partition that is read.
    pub(super) fn of(&self, topic: &str, partition: PartitionId) -> Option<(Offset, String)> {
        self.0.get(&key_of(topic, partition)).cloned()
    }
}

fn decode_value(value: &str) -> Result<(Offset, String), CodecError> {
    let corrupt =
        |reason: &str| CodecError::Corrupt { kind: KIND, reason: format!("{reason}: {value:?}") };
    let mut fields = value.splitn(3, '|');
    let mut next = || fields.next().ok_or_else(|| corrupt("it has three fields"));
    match next()?.parse::<u32>() {
        Ok(VERSION) => {}
        Ok(_) => return Err(CodecError::Newer { kind: KIND }),
        Err(_) => return Err(corrupt("it begins with its version")),
    }
    let offset = next()?.parse().map_err(|_| corrupt("its second field is an offset"))?;
    Ok((offset, next()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(partition: PartitionId, offset: Offset, metadata: &str) -> OffsetCommit {
        let (topic, metadata) = ("x.outcomes".to_owned(), metadata.to_owned());
        OffsetCommit { topic, partition, offset, metadata }
    }

    /// What a reader of a log with these records finds.
    fn decoded<'a>(
        records: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    ) -> Result<RecordedOffsets, CodecError> {
        let mut last = LastRecords::default();
        for (key, value) in records {
            last.add(Some(key.as_bytes()), value.map(str::as_bytes));
        }
        last.decode()
    }

    #[test]
    fn what_is_written_is_read_and_its_bytes_stay_as_they_are() {
        let records = [commit(0, 7, ""), commit(11, 8, "1:AA|B")].map(|commit| encode(&commit));
        let expected = [("x.outcomes|0", "1|7|"), ("x.outcomes|11", "1|8|1:AA|B")];
        assert_eq!(records, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        let found = decoded(expected.map(|(key, value)| (key, Some(value)))).unwrap();
        assert_eq!(found.of("x.outcomes", 0), Some((7, String::new())));
        assert_eq!(found.of("x.outcomes", 11), Some((8, "1:AA|B".to_owned())));
        assert_eq!((found.of("x.outcomes", 1), found.of("x", 0)), (None, None));
    }

    #[test]
    fn everything_is_written_when_something_has_changed_and_from_time_to_time() {
        let (first, now) = ([commit(0, 7, "1:"), commit(1, 7, "")], clock::monotonic());
        assert!(is_due(None, &first, now));
        let written = (first.to_vec(), now);
        let almost = now + REPEAT_INTERVAL - Duration::from_millis(1);
        assert!(!is_due(Some(&written), &first, almost));
        assert!(is_due(Some(&written), &first, now + REPEAT_INTERVAL), "it may be deleted");
        for next in [commit(1, 8, ""), commit(1, 7, "1:AA")] {
            assert!(is_due(Some(&written), &[commit(0, 7, "1:"), next], now));
        }
    }

    #[test]
    fn the_last_record_of_a_key_counts_also_if_its_offset_is_lower() {
        let found = decoded([
            ("a|0", Some("1|9|older")),
            ("a|1", Some("1|5|other")),
            ("a|0", Some("1|7|newer")),
            ("a|2", Some("1|5|deleted")),
            ("a|2", None),
        ]);
        let found = found.unwrap();
        assert_eq!(found.of("a", 0), Some((7, "newer".to_owned())));
        assert_eq!(found.of("a", 1), Some((5, "other".to_owned())));
        assert_eq!(found.of("a", 2), None);
        assert_eq!(decoded([]).unwrap(), RecordedOffsets::default());
    }

    #[test]
    fn a_record_of_another_program_is_skipped_and_one_of_a_newer_version_is_refused() {
        for other in ["", "text", "x|7|", "1|", "1|7", "1||", "1|-7|", "1|seven|", "|7|"] {
            let found = decoded([("a|0", Some("1|7|")), ("a|1", Some(other))]).unwrap();
            assert_eq!((found.of("a", 0), found.of("a", 1)), (Some((7, String::new())), None));
        }
        for newer in ["2|7|", "2", "12|anything"] {
            let found = decoded([("a|0", Some("1|7|")), ("a|1", Some(newer))]);
            assert_eq!(found, Err(CodecError::Newer { kind: KIND }), "{newer}");
        }
        let mut records = LastRecords::default();
        records.add(None, Some(b"1|7|"));
        records.add(Some(b"\xff"), Some(b"\xff"));
        assert_eq!(records.decode(), Ok(RecordedOffsets::default()));
    }
}
