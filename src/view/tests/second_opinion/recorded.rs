//! The view says what the second opinion says of the topics that the fault cases have left
//! (`tests/it/faults/recorded.rs`).
//!
//! Invariant: both have all records of the topics and the cursors that were committed last. The
//! second opinion about a trigger has those records that are about it.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs};

use apache_avro::Schema;
use serde_json::Value;

use super::{RecordsRead, TriggerOpinion};
use crate::codec::ledger_key::STEP_HEADER;
use crate::codec::registration::{
    RawRecord, ReadContext, SchemaLookup, WriterSchemas, read_trigger,
};
use crate::codec::schemas::{CodecError, Schemas};
use crate::engine::cursor::Cursor;
use crate::model::input::{Request, TriggerRecord};
use crate::model::ledger::{LedgerKey, LedgerRecord};
use crate::model::partitioner::Partitioner;
use crate::model::{Offset, PartitionId, Timestamp};
use crate::view::filter::Scope;
use crate::view::projector::RecordPosition;
use crate::view::tests::ViewFixture;

/// The partitions of each topic.
const PARTITIONS: PartitionId = 4;
/// Larger than any payload.
const PAYLOAD_MAX: usize = 2_097_152;

/// A record of a topic, or a committed cursor.
struct RecordedLine(Value);

impl RecordedLine {
    fn number(&self, field: &str) -> u64 {
        self.0[field].as_u64().unwrap_or_else(|| panic!("{field} of {}", self.0))
    }

    fn partition(&self) -> PartitionId {
        PartitionId::try_from(self.number("partition")).unwrap()
    }

    fn bytes(&self, field: &str) -> Option<Vec<u8>> {
        self.0[field].as_str().map(from_hexadecimal)
    }

    fn headers(&self) -> Vec<(&str, Option<Vec<u8>>)> {
        let headers = self.0["headers"].as_array().into_iter().flatten();
        headers
            .map(|header| (header[0].as_str().unwrap(), header[1].as_str().map(from_hexadecimal)))
            .collect()
    }
}

fn from_hexadecimal(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

/// The schemas of the registry that a case has used, by their ids.
struct RecordedSchemas(HashMap<u32, Arc<Schema>>);

impl RecordedSchemas {
    fn of(lines: &[RecordedLine]) -> Self {
        let by_id = lines.iter().flat_map(|line| {
            let schema = Arc::new(Schema::parse_str(line.0["schema"].as_str().unwrap()).unwrap());
            let ids = line.0["ids"].as_array().unwrap().iter();
            ids.map(move |id| (id.as_u64().unwrap().try_into().unwrap(), Arc::clone(&schema)))
        });
        Self(by_id.collect())
    }
}

impl WriterSchemas for RecordedSchemas {
    fn by_id(&self, id: u32) -> SchemaLookup {
        self.0.get(&id).cloned().map_or(SchemaLookup::Unknown, SchemaLookup::Known)
    }
}

/// The records of a partition, by the triggers that they are about.
struct RecordedPartition {
    partition: PartitionId,
    fixture: ViewFixture,
    by_trigger: BTreeMap<String, RecordsRead>,
    /// Whose registration is at an offset.
    ids: HashMap<Offset, String>,
    cursor: Option<Cursor>,
    ledger_end: Offset,
}

impl RecordedPartition {
    fn new(partition: PartitionId) -> Self {
        let fixture = ViewFixture::with_payload_max(PAYLOAD_MAX);
        fixture.db.execute_batch("BEGIN").unwrap();
        let (by_trigger, ids) = (BTreeMap::new(), HashMap::new());
        Self { partition, fixture, by_trigger, ids, cursor: None, ledger_end: 0 }
    }

    fn about(&mut self, id: &str) -> &mut RecordsRead {
        self.by_trigger.entry(id.to_owned()).or_default()
    }

    fn read(&mut self, line: &RecordedLine, schemas: &Schemas, writers: &RecordedSchemas) {
        if let Some(metadata) = line.0["cursor"].as_str() {
            let cursor = Cursor::from_metadata(line.number("offset"), metadata);
            self.cursor = Some(cursor.unwrap().0);
            return;
        }
        let (offset, value) = (line.number("offset"), line.bytes("value"));
        let value = value.as_deref();
        match line.0["topic"].as_str().unwrap() {
            "triggers" => self.read_trigger(trigger(line, schemas, writers)),
            "ledger" => {
                let headers = line.headers();
                let step = headers.iter().find(|(name, _)| *name == STEP_HEADER);
                let step = step.and_then(|(_, value)| value.as_deref());
                let key = line.bytes("key").unwrap_or_default();
                if let Some(record) = readable(schemas.decode_ledger(&key, value, step)) {
                    self.read_ledger(offset, line.number("timestamp"), record);
                }
            }
            "outcomes" => {
                let outcome = schemas.decode_outcome(value.unwrap_or_default());
                let Some(outcome) = readable(outcome) else { return };
                let mut projector = self.fixture.projector();
                projector.apply_outcome(self.partition, offset, &outcome).unwrap();
                self.about(outcome.trigger.as_str()).outcomes.push((offset, outcome));
            }
            _ => {
                let letter = schemas.decode_dead_letter(value.unwrap_or_default());
                let Some(letter) = readable(letter) else { return };
                let mut projector = self.fixture.projector();
                projector.apply_dead_letter(self.partition, offset, &letter).unwrap();
            }
        }
    }

    fn read_trigger(&mut self, record: TriggerRecord) {
        let id = match &record.request {
            Request::Register(new) => new.id.to_string(),
            Request::Change(change) => change.new.id.to_string(),
            _ => return,
        };
        let _new = self.ids.insert(record.offset, id.clone());
        self.fixture.projector().apply_trigger(self.partition, record.clone()).unwrap();
        self.about(&id).triggers.push(record);
    }

    /// Records of triggers are read before.
    fn read_ledger(&mut self, offset: Offset, timestamp: Timestamp, record: LedgerRecord) {
        let position = RecordPosition { partition: self.partition, offset, timestamp };
        self.fixture.projector().apply_ledger(position, record.clone()).unwrap();
        self.ledger_end = offset + 1;
        let id = match &record.key {
            LedgerKey::Main(id) | LedgerKey::Veto(id) => Some(id.to_string()),
            LedgerKey::Retry { trigger, .. } => Some(trigger.to_string()),
            LedgerKey::Skip(offset) => self.ids.get(offset).cloned(),
            LedgerKey::Cursor | LedgerKey::Barrier => None,
        };
        if let Some(id) = id {
            self.about(&id).ledger.push(record);
        }
    }

    /// Compares every trigger. Says how many there are.
    fn assert_agreement(mut self) -> usize {
        let Some(cursor) = self.cursor else {
            assert!(self.ids.is_empty(), "partition {} has no cursor", self.partition);
            return 0;
        };
        let (partition, ledger_end) = (self.partition, self.ledger_end);
        self.fixture.projector().apply_cursor(partition, &cursor, ledger_end).unwrap();
        self.fixture.db.execute_batch("COMMIT").unwrap();
        let queries = self.fixture.queries();
        let mut shown = 0;
        for (id, records) in &mut self.by_trigger {
            records.cursors.push(cursor);
            let opinion = records.triggers().pop();
            let found = queries.trigger(&Scope::All, id).unwrap();
            let found = found.map(|found| TriggerOpinion::from(found.view));
            assert_eq!(found, opinion, "{records:#?}");
            shown += usize::from(opinion.is_some());
        }
        let listed = "SELECT count(*) FROM listed";
        let listed: usize = self.fixture.db.query_row(listed, [], |row| row.get(0)).unwrap();
        assert_eq!(listed, shown);
        shown
    }
}

/// A case writes records that Orloj has not written: the view skips them.
fn readable<T>(read: Result<T, CodecError>) -> Option<T> {
    match read {
        Ok(read) => Some(read),
        Err(CodecError::Corrupt { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

fn trigger(line: &RecordedLine, schemas: &Schemas, writers: &RecordedSchemas) -> TriggerRecord {
    let (key, value, headers) = (line.bytes("key"), line.bytes("value"), line.headers());
    let raw = RawRecord {
        partition: line.partition(),
        offset: line.number("offset"),
        timestamp: line.number("timestamp"),
        key: key.as_deref(),
        value: value.as_deref(),
        headers: headers.iter().map(|(name, value)| (*name, value.as_deref())).collect(),
    };
    let context =
        ReadContext { partitioner: Partitioner::Murmur2, partitions: PARTITIONS, schemas, writers };
    read_trigger(&raw, &context).unwrap()
}

/// Compares the triggers of all partitions. Says how many there are.
fn compare(file: &Path) -> usize {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().map(|line| RecordedLine(serde_json::from_str(line).unwrap()));
    let (of_registry, lines): (Vec<_>, Vec<_>) =
        lines.partition(|line| line.0.get("schema").is_some());
    let writers = RecordedSchemas::of(&of_registry);
    let (schemas, mut shown) = (Schemas::new(), 0);
    for partition in 0..PARTITIONS {
        let mut recorded = RecordedPartition::new(partition);
        let own = lines.iter().filter(|line| line.partition() == partition);
        own.for_each(|line| recorded.read(line, &schemas, &writers));
        shown += recorded.assert_agreement();
    }
    shown
}

/// `ORLOJ_TOPICS` is another folder than the one of `make faults`.
#[test]
#[ignore = "it reads what `make faults` has left, and is run after it"]
fn a_view_of_recorded_topics_and_a_second_opinion_agree() {
    let folder = env::var("ORLOJ_TOPICS").unwrap_or_else(|_| "target/faults/topics".to_owned());
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{folder} is empty");
    for file in files {
        let shown = compare(&file);
        eprintln!("{}: {shown} triggers", file.file_name().unwrap().display());
        assert!(shown > 0, "{} has no trigger", file.display());
    }
}
