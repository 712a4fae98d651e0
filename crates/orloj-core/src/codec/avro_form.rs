//! The Avro envelope: `schemas/trigger.avsc`, written with that schema or one that resolves to it.
//!
//! Invariant: the writer's schema is found by what the record names, a registry's id (0x00 and four
//! bytes) or our own fingerprint (0xC3 0x01 and eight), and never guessed.

use std::io::{self, Read};

use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use bytes::Bytes;
use serde::Deserialize;

use super::draft::{Destination, DueSpec, RegistrationDraft};
use super::lifecycle_fields;
use super::raw_record::{ReadContext, ReadError, RegistrationError, SchemaLookup};
use super::schemas::MARKER;
use super::text_field::{self, Reason};
use crate::model::definition::Header;
use crate::model::input::{CountPolicy, OnConflict};
use crate::model::lifecycle::OnFailure;
use crate::model::schedule::Schedule;
use crate::model::text::Text;

/// The most reads of a part, or of its length, in a value: the list that a trigger has use for is
/// the headers. A part takes about 100 bytes, and there are a few for each read.
const READS_MAX: usize = 50_000;

/// The most bytes of a value: no topic of Orloj takes a longer record. A reader copies all of them.
const VALUE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The default priority of a schema by which lower ones fire first: ours until version 2. A user's
/// own schema is made from one of ours.
const DEFAULT_OF_LOWER_FIRST: i64 = 128;

/// Reads the envelope `value` into `draft`, which already holds what the headers say.
pub(super) fn read(
    value: &[u8],
    draft: &mut RegistrationDraft,
    context: &ReadContext<'_>,
) -> Result<(), RegistrationError> {
    let ours = context.schemas.trigger();
    let envelope = match value {
        [0x00, i0, i1, i2, i3, datum @ ..] => {
            let id = u32::from_be_bytes([*i0, *i1, *i2, *i3]);
            match context.writers.by_id(id) {
                SchemaLookup::Known(writer) => resolve(datum, &writer, ours)?,
                SchemaLookup::Unknown => {
                    return Err(RegistrationError::MayBecomeReadable(format!(
                        "the Avro schema id {id} is unknown: register the schema, check that \
                         Orloj reads the same registry, and send the record again"
                    )));
                }
                SchemaLookup::Refused(why) => {
                    return Err(RegistrationError::MayBecomeReadable(format!(
                        "the Avro schema id {id} cannot be used: {why}"
                    )));
                }
                SchemaLookup::Unreachable => {
                    return Err(RegistrationError::NotReadableNow(
                        ReadError::RegistryUnavailable { id },
                    ));
                }
            }
        }
        [m0, m1, rest @ ..] if [*m0, *m1] == MARKER => {
            let Some((fingerprint, datum)) = rest.split_first_chunk::<8>() else {
                return Err(truncated().into());
            };
            let Some(writer) = context.schemas.trigger_by_fingerprint(*fingerprint) else {
                return Err(RegistrationError::Permanent(format!(
                    "the Avro fingerprint {} is not that of our schema: use schemas/trigger.avsc, \
                     or a registry's framing (0x00 and the schema id)",
                    hex(fingerprint)
                )));
            };
            resolve(datum, writer, ours)?
        }
        _ => return Err(truncated().into()),
    };
    Ok(fill(draft, envelope)?)
}

/// `schemas/trigger.avsc` as a struct.
#[derive(Deserialize)]
#[serde(rename = "Trigger", rename_all = "camelCase")]
struct AvroEnvelope {
    fire_at: Option<i64>,
    delay_ms: Option<i64>,
    topic: Option<String>,
    topic_key: Option<Bytes>,
    callback_url: Option<String>,
    callback_method: Option<String>,
    payload: Option<Bytes>,
    headers: Vec<Header>,
    priority: i32,
    on_conflict: AvroOnConflict,
    pool: Option<String>,
    timeout_ms: Option<i64>,
    retry_delays_ms: Option<Vec<i64>>,
    retry_attempts: Option<i64>,
    retry_jitter: Option<i32>,
    retry_final_statuses: Option<Vec<i32>>,
    caller: Option<String>,
    schedule: Option<String>,
    expire_after_ms: Option<i64>,
    count: AvroCount,
    after: Option<Vec<String>>,
    on_failure: AvroOnFailure,
    after_timeout_ms: Option<i64>,
    retain_ms: Option<i64>,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
enum AvroCount {
    Reset,
    Keep,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
enum AvroOnFailure {
    Fire,
    Skip,
    Fail,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum AvroOnConflict {
    Replace,
    Keep,
}

fn resolve(datum: &[u8], writer: &Schema, ours: &Schema) -> Result<AvroEnvelope, Reason> {
    let refused = |error: apache_avro::Error| {
        format!("the Avro value cannot be read as a Trigger: {error}; see schemas/trigger.avsc")
    };
    if datum.len() > VALUE_BYTES_MAX {
        return Err(format!("the Avro value has more than {VALUE_BYTES_MAX} bytes: shorten it"));
    }
    let mut datum = DatumReader { rest: datum, end: None, reads: 0 };
    let reader = GenericDatumReader::builder(writer).reader_schema(ours).build();
    let value = reader.map_err(refused)?.read_value(&mut datum);
    if let Some(end) = datum.end {
        return Err(end);
    }
    let value = value.map_err(refused)?;
    if !datum.rest.is_empty() {
        let left = datum.rest.len();
        return Err(format!("the Avro value has {left} bytes too many: was the schema another?"));
    }
    let mut envelope: AvroEnvelope = apache_avro::from_value(&value).map_err(refused)?;
    if let (true, Ok(priority)) = (lower_fires_first(writer), u8::try_from(envelope.priority)) {
        envelope.priority = (u8::MAX - priority).into();
    }
    Ok(envelope)
}

fn lower_fires_first(writer: &Schema) -> bool {
    let Schema::Record(record) = writer else { return false };
    let mut fields = record.fields.iter();
    let priority = fields.find(|field| field.name == "priority");
    let default = priority.and_then(|field| field.default.as_ref());
    default.is_some_and(|default| default.as_i64() == Some(DEFAULT_OF_LOWER_FIRST))
}

/// The bytes of a datum. The Avro reader takes the end of its input for a null, and would go on:
/// a truncated record would be accepted as a whole one, and a list be as long as it says.
struct DatumReader<'a> {
    rest: &'a [u8],
    /// Why nothing more is read.
    end: Option<Reason>,
    /// At least one for each part of the value that has bytes.
    reads: usize,
}

impl Read for DatumReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.reads += 1;
        if self.reads > READS_MAX {
            self.end = Some("the Avro value has too many parts: shorten its lists".to_owned());
        } else if self.rest.len() < out.len() {
            self.end = Some("the Avro value ends too early: send it whole".to_owned());
        }
        // Not "unexpected end of file", which is taken for a null.
        if self.end.is_some() { Err(io::Error::other("the end")) } else { self.rest.read(out) }
    }
}

fn fill(draft: &mut RegistrationDraft, mut envelope: AvroEnvelope) -> Result<(), Reason> {
    fill_delivery(draft, &mut envelope)?;
    fill_lifecycle(draft, &mut envelope)?;
    if let Some(ms) = envelope.fire_at {
        draft.set_due("fireAt", DueSpec::At(text_field::time_ms("fireAt", ms)?))?;
    }
    if let Some(ms) = envelope.delay_ms {
        draft.set_due("delayMs", DueSpec::After(text_field::delay_ms("delayMs", ms)?))?;
    }
    if let Some(json) = envelope.schedule {
        draft.set_due("schedule", DueSpec::Recurring(Box::new(Schedule::from_json(&json)?)))?;
    }
    if let Some(topic) = envelope.topic {
        let topic = text_field::topic("topic", &topic)?;
        draft.set_destination("topic", Destination::Topic(topic))?;
    }
    if let Some(url) = envelope.callback_url {
        let url = text_field::url("callbackUrl", &url)?;
        draft.set_destination("callbackUrl", Destination::Url(url))?;
    }
    if let Some(key) = envelope.topic_key {
        draft.key = Some(key);
    }
    if let Some(method) = envelope.callback_method {
        draft.method = Some(text_field::method("callbackMethod", &method)?);
    }
    if let Some(caller) = envelope.caller {
        let caller = text_field::caller("caller", &caller)?;
        draft.caller.get_or_insert(caller);
    }
    draft.payload = envelope.payload;
    draft.headers.extend(envelope.headers);
    draft.priority = text_field::priority("priority", &envelope.priority.to_string())?;
    draft.on_conflict = match envelope.on_conflict {
        AvroOnConflict::Replace => OnConflict::Replace,
        AvroOnConflict::Keep => OnConflict::Keep,
    };
    Ok(())
}

/// What goes beyond one time and one attempt. An enum's default means: not set.
fn fill_lifecycle(
    draft: &mut RegistrationDraft,
    envelope: &mut AvroEnvelope,
) -> Result<(), Reason> {
    let lifecycle = &mut draft.lifecycle;
    let span = |field, ms| lifecycle_fields::span(field, text_field::delay_ms(field, ms)?);
    lifecycle.expire_after =
        envelope.expire_after_ms.map(|ms| span("expireAfterMs", ms)).transpose()?;
    lifecycle.count = (envelope.count == AvroCount::Keep).then_some(CountPolicy::Keep);
    if let Some(ids) = envelope.after.take() {
        lifecycle.after = Some(lifecycle_fields::ids("after", ids.iter().map(String::as_str))?);
    }
    lifecycle.on_failure = match envelope.on_failure {
        AvroOnFailure::Fire => Some(OnFailure::Fire),
        AvroOnFailure::Skip => Some(OnFailure::Skip),
        AvroOnFailure::Fail => None,
    };
    lifecycle.after_timeout =
        envelope.after_timeout_ms.map(|ms| span("afterTimeoutMs", ms)).transpose()?;
    if let Some(ms) = envelope.retain_ms {
        let retain = text_field::delay_ms("retainMs", ms)?;
        lifecycle.retain = Some(lifecycle_fields::retain("retainMs", retain)?);
    }
    Ok(())
}

/// How a callback is delivered.
fn fill_delivery(draft: &mut RegistrationDraft, envelope: &mut AvroEnvelope) -> Result<(), Reason> {
    if let Some(pool) = envelope.pool.take() {
        draft.pool = Some(text_field::pool("pool", &pool)?);
    }
    if let Some(ms) = envelope.timeout_ms {
        let timeout = text_field::delay_ms("timeoutMs", ms)?;
        draft.timeout = Some(text_field::timeout("timeoutMs", timeout)?);
    }
    if let Some(delays) = envelope.retry_delays_ms.take() {
        let delays = delays.into_iter().map(|ms| text_field::delay_ms("retryDelaysMs", ms));
        draft.retry_delays = Some(text_field::delays("retryDelaysMs", delays)?);
    }
    if let Some(attempts) = envelope.retry_attempts {
        draft.retry.attempts = Some(text_field::attempts("retryAttempts", &attempts.to_string())?);
    }
    if let Some(jitter) = envelope.retry_jitter {
        draft.retry.jitter = Some(text_field::jitter("retryJitter", &jitter.to_string())?);
    }
    if let Some(statuses) = envelope.retry_final_statuses.take() {
        let statuses: Vec<_> = statuses.iter().map(i32::to_string).collect();
        let statuses = statuses.iter().map(String::as_str);
        draft.retry.final_statuses = text_field::final_statuses("retryFinalStatuses", statuses)?;
    }
    Ok(())
}

fn truncated() -> Reason {
    "the Avro value ends within its first bytes: send it whole".to_owned()
}

fn hex(bytes: &[u8]) -> Text {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Text::from(digits)
}

#[cfg(test)]
pub(super) mod tests {
    use apache_avro::types::{Record, Value};
    use apache_avro::writer::datum::GenericDatumWriter;

    use super::*;
    use crate::codec::golden;
    use crate::codec::registration::{read_replayed, writer_schema};
    use crate::codec::registration_tests::{FakeRegistry, NOW, plain, record, registration};
    use crate::codec::registration_tests::{try_read, unreadable};
    use crate::codec::schemas::Schemas;
    use crate::model::definition::{Target, TopicTarget};
    use crate::model::input::Request;
    use crate::model::lifecycle::Dependencies;
    use crate::model::partitioner::Partitioner;
    use crate::model::retry::RetryPolicy;

    /// A user's own schema: other fields, another order, a narrower type.
    pub(in crate::codec) const FOREIGN: &str = r#"{
        "type": "record", "name": "Trigger", "fields": [
        {"name": "topic", "type": "string"},
        {"name": "note", "type": "string"},
        {"name": "delayMs", "type": "int"}]}"#;

    /// A trigger in Avro by our own schema, without a frame.
    fn avro_datum() -> Vec<u8> {
        avro_datum_with(|_| {})
    }

    fn avro_datum_with(more: impl FnOnce(&mut Record<'_>)) -> Vec<u8> {
        let schemas = Schemas::new();
        let mut record = Record::new(schemas.trigger()).unwrap();
        let some = |value| Value::Union(1, Box::new(value));
        let none = || Value::Union(0, Box::new(Value::Null));
        record.put("fireAt", none());
        record.put("delayMs", some(Value::Long(1_000)));
        record.put("topic", some(Value::String("t".to_owned())));
        record.put("topicKey", some(Value::Bytes(b"k".to_vec())));
        record.put("callbackUrl", none());
        record.put("callbackMethod", none());
        record.put("payload", some(Value::Bytes(b"\x00p".to_vec())));
        let header = vec![
            ("name".to_owned(), Value::String("a".to_owned())),
            ("value".to_owned(), some(Value::Bytes(b"1".to_vec()))),
        ];
        record.put("headers", Value::Array(vec![Value::Record(header)]));
        record.put("priority", Value::Int(9));
        record.put("onConflict", Value::Enum(1, "keep".to_owned()));
        record.put("pool", none());
        record.put("timeoutMs", none());
        record.put("retryDelaysMs", some(Value::Array(vec![Value::Long(500)])));
        record.put("retryAttempts", some(Value::Long(9)));
        record.put("retryJitter", some(Value::Int(20)));
        record.put("retryFinalStatuses", some(Value::Array(vec![Value::Int(404)])));
        record.put("caller", some(Value::String("billing".to_owned())));
        record.put("schedule", none());
        record.put("expireAfterMs", none());
        record.put("count", Value::Enum(0, "reset".to_owned()));
        record.put("after", none());
        record.put("onFailure", Value::Enum(2, "fail".to_owned()));
        record.put("afterTimeoutMs", none());
        record.put("retainMs", none());
        more(&mut record);
        let writer = GenericDatumWriter::builder(schemas.trigger()).build().unwrap();
        writer.write_value_to_vec(record).unwrap()
    }

    pub(in crate::codec) fn confluent(id: u32, datum: &[u8]) -> Vec<u8> {
        [&[0], id.to_be_bytes().as_slice(), datum].concat()
    }

    pub(in crate::codec) fn single_object(datum: &[u8]) -> Vec<u8> {
        let schemas = Schemas::new();
        let fingerprint = schemas.trigger().fingerprint::<apache_avro::rabin::Rabin>();
        [&[0xC3, 0x01], fingerprint.bytes.as_slice(), datum].concat()
    }

    #[test]
    fn avro_carries_every_field_in_either_framing() {
        let mut expected = plain(NOW + 1_000, "t", b"\x00p");
        expected.priority = 9;
        expected.on_conflict = OnConflict::Keep;
        let key = Some(Bytes::from_static(b"k"));
        expected.definition.target = Target::Topic(TopicTarget { topic: "t".into(), key });
        let value = Some(Bytes::from_static(b"1"));
        expected.definition.headers = vec![Header { name: "a".into(), value }];
        expected.definition.retry = Some(Box::new(RetryPolicy {
            delays: vec![500],
            attempts: Some(9),
            jitter: Some(20),
            final_statuses: vec![404],
        }));
        expected.definition.caller = Some("billing".into());
        assert_eq!(registration(&record(Some(&single_object(&avro_datum())), &[])), expected);
        expected.in_ledger = true; // another owner may not get the schema
        assert_eq!(registration(&record(Some(&confluent(1, &avro_datum())), &[])), expected);
    }

    #[test]
    fn what_was_written_before_there_were_schedules_is_read() {
        let now = single_object(&avro_datum());
        let read = |value: &[u8]| registration(&record(Some(value), &[]));
        // Lower fired first: 9 is as far from the middle as 246 is now.
        let mut expected = read(&now);
        expected.priority = 246;
        for before in ["trigger-1-avro-single-object", "trigger-2-avro-single-object"] {
            let before = golden::read(before);
            assert_ne!(before, now);
            assert_eq!(read(&before), expected);
        }
        // The first release knew no more of a retry policy than its pauses.
        let policy = RetryPolicy { delays: vec![500], ..RetryPolicy::default() };
        expected.definition.retry = Some(Box::new(policy));
        assert_eq!(read(&golden::read("trigger-0-avro-single-object")), expected);
    }

    #[test]
    fn the_fingerprint_that_other_libraries_compute_is_known() {
        // By `SchemaNormalization.parsingFingerprint` of Avro 1.12.0 for Java.
        let fingerprint = [0xb6, 0x7f, 0x3c, 0x04, 0x09, 0x06, 0xe4, 0x08];
        let value = [&[0xC3, 0x01], &fingerprint[..], &avro_datum()].concat();
        let read = |value: &[u8]| registration(&record(Some(value), &[]));
        assert_eq!(read(&value), read(&single_object(&avro_datum())));
    }

    #[test]
    fn a_foreign_schema_is_resolved_against_ours() {
        let value = confluent(2, b"\x02t\x02n\xd0\x0f");
        let mut expected = plain(NOW + 1_000, "t", b"");
        (expected.definition.payload, expected.in_ledger) = (None, true);
        assert_eq!(registration(&record(Some(&value), &[])), expected);
    }

    #[test]
    fn lifecycle_fields_are_read() {
        let some = |value| Value::Union(1, Box::new(value));
        let datum = avro_datum_with(|record| {
            record.put("expireAfterMs", some(Value::Long(60_000)));
            let ids = ["a", "b"].map(|id| Value::String(id.to_owned()));
            record.put("after", some(Value::Array(ids.to_vec())));
            record.put("onFailure", Value::Enum(0, "fire".to_owned()));
            record.put("afterTimeoutMs", some(Value::Long(5_000)));
            record.put("retainMs", some(Value::Long(7_000)));
        });
        let read = registration(&record(Some(&single_object(&datum)), &[]));
        assert_eq!((read.expire_after, read.retain), (Some(60_000), Some(7_000)));
        let ids = vec!["a".into(), "b".into()];
        let after = Dependencies { ids, on_failure: OnFailure::Fire, timeout: 5_000 };
        assert_eq!(read.after, Some(Box::new(after)));
    }

    #[test]
    fn a_schedule_is_its_json() {
        let writer = r#"{"type": "record", "name": "Trigger", "fields": [
            {"name": "topic", "type": "string"}, {"name": "schedule", "type": "string"}]}"#;
        let writer = Schema::parse_str(writer).unwrap();
        let json = r#"{"daily":{"at":["09:00"]}}"#;
        let datum = [b"\x02t", [json.len() as u8 * 2].as_slice(), json.as_bytes()].concat();
        let mut draft = RegistrationDraft::new();
        fill(&mut draft, resolve(&datum, &writer, Schemas::new().trigger()).unwrap()).unwrap();
        let registration = draft.into_registration("order-7".into(), NOW).unwrap();
        assert_eq!(registration.schedule.unwrap().to_json(), json);
    }

    #[test]
    fn an_unknown_schema_may_become_readable_and_an_unreachable_registry_is_waited_for() {
        let unknown = confluent(3, &avro_datum());
        let refused = unreadable(&record(Some(&unknown), &[]));
        assert!(refused.may_become_readable, "{}", refused.reason);
        assert!(refused.reason.contains("schema id 3"), "{}", refused.reason);
        let away = confluent(9, &avro_datum());
        let read = try_read(&record(Some(&away), &[]), Partitioner::Any);
        assert_eq!(read, Err(ReadError::RegistryUnavailable { id: 9 }));
    }

    #[test]
    fn a_replay_looks_up_no_schema_unless_an_earlier_program_has_ingested_the_record() {
        let schemas = Schemas::new();
        let context = ReadContext {
            partitioner: Partitioner::Any,
            partitions: 7,
            schemas: &schemas,
            writers: &FakeRegistry,
        };
        let away = confluent(9, &avro_datum());
        let raw = record(Some(&away), &[]);
        let read = read_replayed(&raw, &context, raw.offset).unwrap().request;
        assert_eq!(read, Request::Cancel { id: "order-7".into(), caller: None });
        let read = read_replayed(&raw, &context, raw.offset + 1);
        assert_eq!(read, Err(ReadError::RegistryUnavailable { id: 9 }));
        let known = confluent(1, &avro_datum());
        match read_replayed(&record(Some(&known), &[]), &context, raw.offset + 1).unwrap().request {
            Request::Register(new) => assert!(!new.in_ledger, "it may have fired since"),
            other => panic!("not a registration: {other:?}"),
        }
        let headers = [("orloj-fire-at", "0"), ("orloj-target-topic", "t")];
        assert_eq!(writer_schema(&record(Some(&away), &headers)), None, "a payload");
        assert_eq!(writer_schema(&raw), Some(9));
    }

    #[test]
    fn broken_avro_is_refused_permanently() {
        let whole = single_object(&avro_datum());
        let mut values: Vec<Vec<u8>> = (1..whole.len()).map(|cut| whole[..cut].to_vec()).collect();
        values.retain(|value| value.len() >= 2); // one byte of 0xC3 is not Avro, nor anything else
        values.push(vec![0]);
        values.push(confluent(1, b""));
        values.push([whole.as_slice(), b"x"].concat());
        values.push(whole);
        values.last_mut().unwrap()[2] ^= 1;
        for value in values {
            let refused = unreadable(&record(Some(&value), &[]));
            let needs_registry = value.len() >= 5 && value[0] == 0;
            assert_eq!(refused.may_become_readable, needs_registry, "{}", refused.reason);
            assert!(refused.reason.contains("Avro"), "{}", refused.reason);
            assert_eq!(refused.value.as_deref(), Some(value.as_slice()));
        }
    }

    #[test]
    fn a_value_of_very_many_parts_is_refused() {
        let writer = r#"{"type": "record", "name": "Trigger", "fields": [
            {"name": "topic", "type": "string"}, {"name": "delayMs", "type": "int"},
            {"name": "flags", "type": {"type": "array", "items": "boolean"}}]}"#;
        let writer = crate::codec::writer_schema::parse(writer).unwrap();
        let value_with = |count: u32| {
            // Three bytes hold a count of up to a million.
            let (low, middle) = ((2 * count) as u8 | 0x80, (count >> 6) as u8 | 0x80);
            let head = [0x02, b't', 0xd0, 0x0f, low, middle, (count >> 13) as u8];
            [head.as_slice(), &vec![1; count as usize], &[0]].concat()
        };
        let read = |count| resolve(&value_with(count), &writer, Schemas::new().trigger());
        assert!(read(10_000).is_ok());
        let refused = read(200_000).err().expect("its parts take 100 times as much memory");
        assert!(refused.contains("parts"), "{refused}");
        let mut ends = DatumReader { rest: &value_with(200_000)[..7], end: None, reads: 0 };
        let reader = GenericDatumReader::builder(&writer).build().unwrap();
        assert!(reader.read_value(&mut ends).is_err() && ends.reads < 10, "nothing is made up");
        assert!(ends.end.unwrap().contains("too early"));
    }

    #[test]
    fn bytes_that_are_read_at_once_stand_for_few_parts() {
        let nulls: String =
            (0..1_400).map(|n| format!(r#",{{"name": "n{n}", "type": "null"}}"#)).collect();
        for item in [
            r#""type": "fixed", "name": "F""#,
            r#""type": "fixed", "name": "D",
            "logicalType": "decimal", "precision": 9, "scale": 0"#,
        ] {
            let writer = format!(
                r#"{{"type": "record", "name": "Trigger", "fields": [
                {{"name": "topic", "type": "string"}}, {{"name": "delayMs", "type": "int"}},
                {{"name": "parts", "type": {{"type": "array", "items":
                    {{"type": "record", "name": "I", "fields": [
                        {{"name": "f", "type": {{{item}, "size": 200}}}}{nulls}]}}}}}}]}}"#
            );
            let parsed = crate::codec::writer_schema::parse(&writer);
            assert!(parsed.is_err(), "7 parts a byte, and 1,400 a read: {item}");
        }
    }

    #[test]
    fn a_value_is_no_longer_than_a_record_may_be() {
        let writer = crate::codec::writer_schema::parse(FOREIGN).unwrap();
        let read = |length: usize| {
            // A length of up to 128 million has four bytes.
            let bytes =
                [1, 6, 13, 20].map(|bits| if bits == 1 { length << 1 } else { length >> bits });
            let mut bytes = bytes.map(|byte| byte as u8 | 0x80);
            bytes[3] &= 0x7f;
            let note = vec![b'n'; length];
            let value = [b"\x02t".as_slice(), &bytes, &note, b"\xd0\x0f"].concat();
            resolve(&value, &writer, Schemas::new().trigger())
        };
        assert!(read(1_000_000).is_ok());
        let refused = read(3_000_000).err().expect("no topic takes such a record");
        assert!(refused.contains("bytes"), "{refused}");
    }

    #[test]
    fn encoded_triggers_match_the_golden_files() {
        golden::check("trigger-avro-registry", &confluent(1, &avro_datum()));
        golden::check("trigger-avro-single-object", &single_object(&avro_datum()));
    }
}
