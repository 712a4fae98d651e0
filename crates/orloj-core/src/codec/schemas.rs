//! Our Avro schemas, `schemas/*.avsc`: parsed once, then shared by all readers and writers.
//!
//! Invariant: what is sent names its schema by fingerprint (Avro's single-object encoding: 0xC3
//! 0x01, eight bytes of CRC-64-AVRO, the datum). We write the newest schema of a kind (the ledger's
//! first one, if it has a place for the value) and read every one that is embedded here; a
//! fingerprint that is not is a newer Orloj's.

use apache_avro::Schema;
use apache_avro::rabin::Rabin;
use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::writer::datum::GenericDatumWriter;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What a single-object encoding begins with.
pub(super) const MARKER: [u8; 2] = [0xC3, 0x01];

/// The largest allocation for one length in an Avro datum. No record is larger, and a corrupt
/// length must not use up the machine's memory.
const ALLOCATION_BYTES_MAX: usize = 64 << 20;

/// Why bytes cannot be read as a record of their kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// A newer Orloj wrote it: refuse to start (or to go on), so that nothing is misread.
    #[error("a {kind} has a schema that this process does not know; upgrade it")]
    Newer {
        /// What it should be.
        kind: &'static str,
    },
    /// It was never one of ours, or is damaged: set it aside and go on.
    #[error("a {kind} cannot be read: {reason}")]
    Corrupt {
        /// What it should be.
        kind: &'static str,
        /// Why not.
        reason: String,
    },
}

/// All schemas that this program reads and writes.
#[derive(Debug)]
pub struct Schemas {
    /// Every version of it, the newest first.
    triggers: Vec<([u8; 8], &'static Schema)>,
    pub(super) fire: RecordCodec,
    pub(super) withdrawal: RecordCodec,
    pub(super) signal: RecordCodec,
    pub(super) ledger: RecordCodec,
    pub(super) outcome: RecordCodec,
    pub(super) dead_letter: RecordCodec,
}

impl Default for Schemas {
    fn default() -> Self {
        Self::new()
    }
}

impl Schemas {
    /// Parses the embedded schemas. Once a process is enough: they are never freed.
    #[must_use]
    pub fn new() -> Self {
        apache_avro::util::max_allocation_bytes(ALLOCATION_BYTES_MAX);
        let triggers = [
            include_str!("../../../../schemas/trigger.avsc"),
            include_str!("../../../../schemas/before/trigger-2.avsc"),
            include_str!("../../../../schemas/before/trigger-1.avsc"),
            include_str!("../../../../schemas/before/trigger-0.avsc"),
        ];
        let triggers = triggers.map(|json| {
            let schema = parse(json);
            [(fingerprint(schema), schema), (specified_fingerprint(json), schema)]
        });
        Self {
            triggers: triggers.concat(),
            fire: RecordCodec::new("fire", include_str!("../../../../schemas/fire.avsc"))
                .with_older(include_str!("../../../../schemas/before/fire-1.avsc"))
                .with_older(include_str!("../../../../schemas/before/fire-0.avsc")),
            withdrawal: RecordCodec::new(
                "withdrawal",
                include_str!("../../../../schemas/withdrawal.avsc"),
            ),
            signal: RecordCodec::new("signal", include_str!("../../../../schemas/signal.avsc"))
                .with_older(include_str!("../../../../schemas/before/signal-1.avsc"))
                .with_older(include_str!("../../../../schemas/before/signal-0.avsc")),
            ledger: RecordCodec::new(
                "ledger value",
                include_str!("../../../../schemas/ledger.avsc"),
            )
            .with_older(include_str!("../../../../schemas/before/ledger-2.avsc"))
            .with_older(include_str!("../../../../schemas/before/ledger-1.avsc"))
            .with_older(include_str!("../../../../schemas/before/ledger-0.avsc")),
            outcome: RecordCodec::new("outcome", include_str!("../../../../schemas/outcome.avsc"))
                .with_older(include_str!("../../../../schemas/before/outcome-6.avsc"))
                .with_older(include_str!("../../../../schemas/before/outcome-5.avsc"))
                .with_older(include_str!("../../../../schemas/before/outcome-4.avsc"))
                .with_older(include_str!("../../../../schemas/before/outcome-3.avsc"))
                .with_older(include_str!("../../../../schemas/before/outcome-2.avsc"))
                .with_older(include_str!("../../../../schemas/before/outcome-1.avsc")),
            dead_letter: RecordCodec::new(
                "dead letter",
                include_str!("../../../../schemas/dead-letter.avsc"),
            )
            .with_older(include_str!("../../../../schemas/before/dead-letter-1.avsc"))
            .with_older(include_str!("../../../../schemas/before/dead-letter-0.avsc")),
        }
    }

    /// The schema of any kind and version that has this fingerprint.
    pub(super) fn by_fingerprint(&self, fingerprint: [u8; 8]) -> Option<&'static Schema> {
        let Self { triggers, fire, withdrawal, signal, ledger, outcome, dead_letter } = self;
        let messages = [fire, withdrawal, signal, ledger, outcome, dead_letter];
        let messages = messages.iter().flat_map(|message| &message.versions);
        let messages = messages.map(|version| (version.fingerprint, version.schema));
        let mut all = triggers.iter().copied().chain(messages);
        all.find(|(known, _)| *known == fingerprint).map(|(_, schema)| schema)
    }

    /// What every registration in Avro is resolved against.
    pub(super) fn trigger(&self) -> &Schema {
        self.triggers[0].1
    }

    /// The version of `schemas/trigger.avsc` that has this fingerprint.
    pub(super) fn trigger_by_fingerprint(&self, fingerprint: [u8; 8]) -> Option<&Schema> {
        let version = self.triggers.iter().find(|(known, _)| *known == fingerprint);
        version.map(|(_, schema)| *schema)
    }
}

/// One kind of record that only Orloj writes.
pub(super) struct RecordCodec {
    kind: &'static str,
    /// Every schema this kind ever had, the newest first.
    versions: Vec<SchemaVersion>,
}

/// One schema of a kind, and its writer and reader.
struct SchemaVersion {
    fingerprint: [u8; 8],
    schema: &'static Schema,
    writer: GenericDatumWriter<'static>,
    reader: GenericDatumReader<'static>,
}

impl SchemaVersion {
    fn new(kind: &str, json: &str) -> Self {
        let schema = parse(json);
        let writer = GenericDatumWriter::builder(schema).human_readable(false).build();
        let reader = GenericDatumReader::builder(schema).human_readable(false).build();
        let (Ok(writer), Ok(reader)) = (writer, reader) else {
            panic!("an embedded schema of a {kind} does not resolve");
        };
        Self { fingerprint: fingerprint(schema), schema, writer, reader }
    }
}

impl RecordCodec {
    fn new(kind: &'static str, newest: &str) -> Self {
        Self { kind, versions: vec![SchemaVersion::new(kind, newest)] }
    }

    /// Reads also what was written by an older schema of the kind.
    fn with_older(mut self, older: &str) -> Self {
        self.versions.push(SchemaVersion::new(self.kind, older));
        self
    }

    /// The single-object encoding of `body` by the newest schema.
    pub(super) fn encode(&self, body: &impl Serialize) -> Vec<u8> {
        self.encode_by(&self.versions[0], body)
    }

    /// The same by the schema before the newest.
    pub(super) fn encode_by_previous(&self, body: &impl Serialize) -> Vec<u8> {
        self.encode_by(&self.versions[1], body)
    }

    /// The same by the first schema that the kind had.
    pub(super) fn encode_by_first(&self, body: &impl Serialize) -> Vec<u8> {
        self.encode_by(&self.versions[self.versions.len() - 1], body)
    }

    fn encode_by(&self, version: &SchemaVersion, body: &impl Serialize) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(&MARKER);
        out.extend_from_slice(&version.fingerprint);
        if let Err(error) = version.writer.write_ser(&mut out, body) {
            panic!("a {} does not fit our own schema: {error}", self.kind);
        }
        out
    }

    /// Reads a single-object encoding by the schema it was written with.
    pub(super) fn decode<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, CodecError> {
        let Some((fingerprint, mut datum)) = split_frame(bytes) else {
            return Err(self.corrupt("it does not begin with a schema's fingerprint"));
        };
        let known = self.versions.iter().find(|version| version.fingerprint == fingerprint);
        let Some(version) = known else {
            return Err(CodecError::Newer { kind: self.kind });
        };
        let body = version.reader.read_deser(&mut datum).map_err(|error| self.corrupt(error))?;
        if datum.is_empty() { Ok(body) } else { Err(self.corrupt("it is longer than its schema")) }
    }

    /// Whether the schema of a single-object encoding is a record with this field.
    pub(super) fn has_field(&self, bytes: &[u8], field: &str) -> bool {
        let Some((fingerprint, _)) = split_frame(bytes) else { return false };
        let version = self.versions.iter().find(|version| version.fingerprint == fingerprint);
        let schema = version.map(|version| version.schema);
        matches!(schema, Some(Schema::Record(record)) if record.lookup.contains_key(field))
    }

    /// The error for bytes that are no `kind`.
    pub(super) fn corrupt(&self, reason: impl ToString) -> CodecError {
        CodecError::Corrupt { kind: self.kind, reason: reason.to_string() }
    }
}

impl std::fmt::Debug for RecordCodec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// The fingerprint and the datum of a single-object encoding.
pub(super) fn split_frame(bytes: &[u8]) -> Option<([u8; 8], &[u8])> {
    let (fingerprint, datum) = bytes.strip_prefix(&MARKER)?.split_first_chunk::<8>()?;
    Some((*fingerprint, datum))
}

/// Writers and readers borrow the schema that they have resolved: so that they can be
/// kept too, the few embedded schemas live as long as the process.
fn parse(json: &str) -> &'static Schema {
    match Schema::parse_str(json) {
        Ok(schema) => Box::leak(Box::new(schema)),
        Err(error) => panic!("an embedded schema is broken: {error}"),
    }
}

/// The fingerprint of a schema as Avro's specification says and other libraries compute it: without
/// logical types. apache-avro leaves a trace of them in it (AVRO-4004).
fn specified_fingerprint(json: &str) -> [u8; 8] {
    fn strip(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Object(fields) => {
                fields.remove("logicalType");
                fields.values_mut().for_each(strip);
            }
            serde_json::Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut value = serde_json::from_str(json).expect("an embedded schema is JSON");
    strip(&mut value);
    fingerprint(&Schema::parse(&value).expect("it was parsed with logical types"))
}

fn fingerprint(schema: &Schema) -> [u8; 8] {
    let fingerprint = schema.fingerprint::<Rabin>();
    fingerprint.bytes.try_into().expect("CRC-64 has eight bytes")
}
