//! What a record of `triggers` is read as: every rule of the three forms, and the bad input.

use std::sync::Arc;

use apache_avro::Schema;
use bytes::Bytes;
use proptest::prelude::*;

use super::avro_form::tests::{FOREIGN, confluent, single_object};
use super::registration::*;
use super::schemas::Schemas;
use crate::model::definition::{Definition, Header, HttpTarget, Target, TopicTarget};
use crate::model::input::{
    Ack, CountPolicy, OnConflict, Registration, Request, TriggerRecord, Unreadable,
};
use crate::model::limits::{FUTURE_MAX_MS, ID_BYTES_MAX, PAYLOAD_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::model::partitioner::Partitioner;
use crate::model::retry::RetryPolicy;

/// The broker's timestamp of every record here.
pub(super) const NOW: u64 = 1_700_000_000_000;

/// Id 1 is ours, id 2 is a user's, id 9 cannot be fetched now, and all others are unknown.
pub(super) struct FakeRegistry;

impl WriterSchemas for FakeRegistry {
    fn by_id(&self, id: u32) -> SchemaLookup {
        match id {
            1 => SchemaLookup::Known(Arc::new(Schemas::new().trigger().clone())),
            2 => SchemaLookup::Known(Arc::new(Schema::parse_str(FOREIGN).unwrap())),
            9 => SchemaLookup::Unreachable,
            _ => SchemaLookup::Unknown,
        }
    }
}

pub(super) fn record<'a>(value: Option<&'a [u8]>, headers: &[(&'a str, &'a str)]) -> RawRecord<'a> {
    let headers = headers.iter().map(|(name, value)| (*name, Some(value.as_bytes()))).collect();
    RawRecord { partition: 0, offset: 41, timestamp: NOW, key: Some(b"order-7"), value, headers }
}

pub(super) fn try_read(
    raw: &RawRecord<'_>,
    partitioner: Partitioner,
) -> Result<TriggerRecord, ReadError> {
    let schemas = Schemas::new();
    let context =
        ReadContext { partitioner, partitions: 7, schemas: &schemas, writers: &FakeRegistry };
    read_trigger(raw, &context)
}

pub(super) fn request(raw: &RawRecord<'_>) -> Request {
    try_read(raw, Partitioner::Any).unwrap().request
}

pub(super) fn registration(raw: &RawRecord<'_>) -> Registration {
    match request(raw) {
        Request::Register(registration) => registration,
        other => panic!("not a registration: {other:?}"),
    }
}

pub(super) fn unreadable(raw: &RawRecord<'_>) -> Unreadable {
    match request(raw) {
        Request::Unreadable(unreadable) => *unreadable,
        other => panic!("not refused: {other:?}"),
    }
}

/// The reason for refusing a JSON envelope.
pub(super) fn json_reason(json: &str) -> String {
    unreadable(&record(Some(json.as_bytes()), &[])).reason
}

/// The reason for refusing a record in headers form.
pub(super) fn headers_reason(headers: &[(&str, &str)]) -> String {
    unreadable(&record(Some(b"x"), headers)).reason
}

fn topic(name: &str) -> Target {
    Target::Topic(TopicTarget { topic: name.into(), key: None })
}

/// A registration for `topic` at `fire_at` with nothing else to it.
pub(super) fn plain(fire_at: u64, name: &str, payload: &'static [u8]) -> Registration {
    Registration {
        id: "order-7".into(),
        fire_at,
        schedule: None,
        expire_after: None,
        after: None,
        retain: None,
        count: CountPolicy::Reset,
        priority: 127,
        on_conflict: OnConflict::Replace,
        in_ledger: false,
        definition: Definition {
            target: topic(name),
            payload: Some(Bytes::from_static(payload)),
            headers: vec![],
            retry: None,
            caller: None,
        },
    }
}

#[test]
fn headers_carry_every_field() {
    let headers = [
        ("traceparent", "00-ab"),
        ("orloj-fire-at", "2023-11-14T22:13:21Z"),
        ("orloj-target-topic", "reminders"),
        ("orloj-target-key", "customer-3"),
        ("orloj-priority", "7"),
        ("orloj-on-conflict", "keep"),
        ("orloj-retry-delays", "1s,5s"),
        ("orloj-retry-attempts", "7"),
        ("orloj-retry-jitter", "25"),
        ("orloj-retry-final-statuses", "404, 422"),
        ("orloj-caller", "billing"),
        ("orloj-ack", "true"),
        ("content-type", "text/plain"),
    ];
    // The payload begins like Confluent's framing: the headers are checked first.
    let raw = record(Some(b"\x00\x00\x00\x00\x09"), &headers);
    let read = try_read(&raw, Partitioner::Any).unwrap();
    let header = |name: &str, value: &'static str| Header {
        name: name.into(),
        value: Some(Bytes::from_static(value.as_bytes())),
    };
    let mut expected = plain(NOW + 1_000, "reminders", b"\x00\x00\x00\x00\x09");
    expected.priority = 7;
    expected.on_conflict = OnConflict::Keep;
    expected.definition.target = Target::Topic(TopicTarget {
        topic: "reminders".into(),
        key: Some(Bytes::from_static(b"customer-3")),
    });
    expected.definition.headers =
        vec![header("traceparent", "00-ab"), header("content-type", "text/plain")];
    expected.definition.retry = Some(Box::new(RetryPolicy {
        delays: vec![1_000, 5_000],
        attempts: Some(7),
        jitter: Some(25),
        final_statuses: vec![404, 422],
    }));
    expected.definition.caller = Some("billing".into());
    let request = Request::Register(expected);
    assert_eq!(read, TriggerRecord { offset: 41, timestamp: NOW, ack: true.into(), request });
}

#[test]
fn the_smallest_headers_form_is_read() {
    let delay = [("orloj-delay", "20m"), ("orloj-target-topic", "t")];
    assert_eq!(registration(&record(Some(b""), &delay)), plain(NOW + 1_200_000, "t", b""));
    let past = [("orloj-fire-at", "5"), ("orloj-target-topic", "t")];
    assert_eq!(registration(&record(Some(b"p"), &past)), plain(5, "t", b"p"));
    let callback = [("orloj-delay", "0"), ("orloj-callback-url", "http://h")];
    let read = registration(&record(Some(b"p"), &callback));
    assert_eq!(read.definition.target, Target::from(HttpTarget::post("http://h")));
}

#[test]
fn kafka_message_scheduler_headers_are_read() {
    let headers = [
        ("scheduler-epoch", "1700000007"),
        ("scheduler-target-topic", "t"),
        ("scheduler-target-key", "k"),
    ];
    let read = registration(&record(Some(b"p"), &headers));
    assert_eq!(read.fire_at, 1_700_000_007_000);
    let key = Some(Bytes::from_static(b"k"));
    assert_eq!(read.definition.target, Target::Topic(TopicTarget { topic: "t".into(), key }));
    assert!(read.definition.headers.is_empty());
}

#[test]
fn json_carries_every_field() {
    let json = br#" {"fireAt": "2023-11-14T22:13:21Z", "target": {"url": "https://h/x",
        "method": "put", "headers": {"a": "1"}, "pool": "slow", "timeout": "90s"},
        "payload": {"b" : [1, 1.50]},
        "headers": {"c": null}, "priority": 0, "onConflict": "keep",
        "retry": {"delays": ["10s", 500], "attempts": 4, "jitter": 0, "finalStatuses": [422]},
        "caller": "billing"}"#;
    let read = registration(&record(Some(json), &[("traceparent", "00-ab")]));
    let header = |name: &str, value: Option<&'static str>| Header {
        name: name.into(),
        value: value.map(|value| Bytes::from_static(value.as_bytes())),
    };
    let expected = Registration {
        in_ledger: false,
        id: "order-7".into(),
        fire_at: NOW + 1_000,
        schedule: None,
        expire_after: None,
        after: None,
        retain: None,
        count: CountPolicy::Reset,
        priority: 0,
        on_conflict: OnConflict::Keep,
        definition: Definition {
            target: Target::Http(Box::new(HttpTarget {
                method: "PUT".into(),
                pool: Some("slow".into()),
                timeout: Some(90_000),
                ..HttpTarget::post("https://h/x")
            })),
            payload: Some(Bytes::from_static(br#"{"b" : [1, 1.50]}"#)),
            headers: vec![
                header("traceparent", Some("00-ab")),
                header("a", Some("1")),
                header("c", None),
            ],
            retry: Some(Box::new(RetryPolicy {
                delays: vec![10_000, 500],
                attempts: Some(4),
                jitter: Some(0),
                final_statuses: vec![422],
            })),
            caller: Some("billing".into()),
        },
    };
    assert_eq!(read, expected);
}

#[test]
fn the_smallest_json_forms_are_read() {
    let table: [(&str, u64, Option<&str>); 9] = [
        (r#"{"fireAt": 5, "topic": "t"}"#, 5, None),
        (r#"{"delay": "PT1S", "topic": "t", "payload": null}"#, NOW + 1_000, None),
        (r#"{"delay": 30, "topic": "t", "payload": ""}"#, NOW + 30, Some(r#""""#)),
        (r#"{"delayMs": 30, "topic": "t", "payload": "a\u0062"}"#, NOW + 30, Some(r#""a\u0062""#)),
        (r#"{"delaySeconds": 2, "topic": "t", "payload": 1e2}"#, NOW + 2_000, Some("1e2")),
        (r#"{"delaySeconds": 0.5, "topic": "t"}"#, NOW + 500, None),
        (r#"{"delaySeconds": 1.1, "target": {"topic": "t"}}"#, NOW + 1_100, None),
        (r#"{"delay": "1s", "topic": "t", "payloadBase64": "AP8="}"#, NOW + 1_000, Some("\0?")),
        (r#"{"delay": "1s", "topic": "t", "payload": false}"#, NOW + 1_000, Some("false")),
    ];
    for (json, fire_at, payload) in table {
        let read = registration(&record(Some(json.as_bytes()), &[]));
        assert_eq!(read.fire_at, fire_at, "{json}");
        assert_eq!(read.definition.target, topic("t"), "{json}");
        let bytes = read.definition.payload;
        let expected = payload.map(|text| match text {
            "\0?" => Bytes::from_static(b"\x00\xff"),
            text => Bytes::from(text.to_owned()),
        });
        assert_eq!(bytes, expected, "{json}");
    }
}

#[test]
fn the_caller_header_overrides_the_caller_of_the_envelope() {
    let json = br#"{"delay": 0, "topic": "t", "caller": "support"}"#;
    let read = registration(&record(Some(json), &[("orloj-caller", "billing")]));
    assert_eq!(read.definition.caller, Some("billing".into()));
}

#[test]
fn a_null_value_cancels() {
    let cancel = Request::Cancel { id: "order-7".into(), caller: None };
    let read = try_read(&record(None, &[("orloj-ack", "true")]), Partitioner::Any).unwrap();
    assert_eq!(
        read,
        TriggerRecord { offset: 41, timestamp: NOW, ack: true.into(), request: cancel }
    );
}

#[test]
fn what_an_outcome_is_recognised_by_is_read_from_every_record_and_refuses_none() {
    let read = |value: &str| {
        let headers =
            [("orloj-request", value), ("orloj-delay", "1s"), ("orloj-target-topic", "t")];
        try_read(&record(Some(b"p"), &headers), Partitioner::Any).unwrap()
    };
    let short = read("019a");
    assert_eq!(short.ack, Ack { request: Some("019a".into()), ..Ack::default() });
    let Request::Register(registration) = short.request else { panic!() };
    assert_eq!(registration.definition.headers, [], "it is not carried to the target");
    let long = read(&"x".repeat(REQUEST_BYTES_MAX + 1));
    assert_eq!(long.ack, Ack::default());
    assert!(matches!(long.request, Request::Register(_)));

    let headers = [("orloj-batch", "true"), ("orloj-request", "019a")];
    let batch = record(Some(br#"[{"id": "a", "topic": "t", "delay": "1s"}]"#), &headers);
    let Request::Batch(items) = try_read(&batch, Partitioner::Any).unwrap().request else {
        panic!()
    };
    let [item] = &items[..] else { panic!() };
    let carried = (item.headers[0].name.as_str(), item.headers[0].value.as_deref());
    assert_eq!(carried, ("orloj-request", Some(&b"019a"[..])));
}

#[test]
fn records_with_bad_keys_are_refused_and_not_forwarded() {
    let long = vec![b'x'; ID_BYTES_MAX + 1];
    let keys: [Option<&[u8]>; 5] =
        [None, Some(b""), Some(b"a\nb"), Some(b"\xff"), Some(long.as_slice())];
    for key in keys {
        let raw = RawRecord { key, ..record(None, &[]) };
        let read = try_read(&raw, Partitioner::Murmur2).unwrap();
        let Request::Unreadable(refused) = read.request else { panic!("{key:?} was taken") };
        assert!(refused.reason.starts_with("the key (trigger id) is"), "{}", refused.reason);
        assert_eq!((refused.id, refused.key.as_deref()), (None, key));
    }
    let raw = RawRecord { key: Some(&long[1..]), ..record(None, &[]) };
    assert!(matches!(request(&raw), Request::Cancel { .. }));
}

#[test]
fn a_record_in_the_wrong_partition_is_forwarded_once() {
    let murmur = Partitioner::Murmur2.partition(b"order-7", 7).unwrap();
    let wrong = (murmur + 1) % 7;
    let headers = [("orloj-delay", "1s"), ("orloj-target-topic", "t")];
    let raw = RawRecord { partition: wrong, ..record(Some(b"p"), &headers) };
    let Request::Forward(forward) = try_read(&raw, Partitioner::Murmur2).unwrap().request else {
        panic!("not forwarded");
    };
    assert_eq!(forward.partition, murmur);
    assert_eq!((&*forward.key, forward.value.as_deref()), (&b"order-7"[..], Some(&b"p"[..])));

    // Written there a minute later, it counts from its first timestamp, and stays.
    let carried: Vec<RawHeader<'_>> =
        forward.headers.iter().map(|h| (h.name.as_str(), h.value.as_deref())).collect();
    assert_eq!(carried.last(), Some(&("orloj-forwarded", Some(&b"1700000000000"[..]))));
    for partition in [murmur, wrong] {
        let timestamp = NOW + 60_000;
        let headers = carried.clone();
        let raw = RawRecord { partition, timestamp, headers, ..record(Some(b"p"), &[]) };
        let read = try_read(&raw, Partitioner::Murmur2).unwrap();
        assert_eq!(read.timestamp, NOW);
        assert_eq!(read.request, Request::Register(plain(NOW + 1_000, "t", b"p")));
    }

    // What is right for librdkafka is not for Java; and nothing is wrong where any is right.
    let crc = Partitioner::Crc32.partition(b"order-7", 7).unwrap();
    for (partition, partitioner) in [(crc, Partitioner::Crc32), (wrong, Partitioner::Any)] {
        let raw = RawRecord { partition, ..record(Some(b"p"), &headers) };
        let read = try_read(&raw, partitioner).unwrap().request;
        assert!(matches!(read, Request::Register(_)), "{partitioner:?}");
    }
    let forged = record(Some(b"p"), &[("orloj-forwarded", "soon")]);
    assert!(unreadable(&forged).reason.contains("only Orloj writes it"));
}

#[test]
fn bad_headers_are_refused_by_name() {
    let to = ("orloj-target-topic", "t");
    let table: [(&[(&str, &str)], &str); 14] = [
        (&[to], "nothing says when"),
        (&[("orloj-delay", "1s")], "nothing says where to"),
        (&[to, ("orloj-delay", "1s"), ("orloj-fire-at", "5")], "both say when"),
        (&[to, ("orloj-fire-at", "5"), ("scheduler-epoch", "5")], "both say when"),
        (&[("orloj-delay", "1"), to, ("orloj-callback-url", "http://h")], "both say where to"),
        (&[to, ("orloj-delay", "-1")], "orloj-delay is \"-1\": a delay counts forward"),
        (&[to, ("orloj-fire-at", "9999-12-30T00:00:00Z")], "more than ten years ahead"),
        (&[to, ("orloj-fire-at", "1700000000000000")], "are these milliseconds?"),
        (&[to, ("scheduler-epoch", "1700000000000")], "more than ten years ahead"),
        (&[to, ("orloj-delay", "1s"), ("orloj-priority", "256")], "orloj-priority is \"256\""),
        (&[to, ("orloj-delay", "1s"), ("orloj-on-conflict", "x")], "give replace or keep"),
        (&[to, ("orloj-delay", "1s"), ("orloj-callback-method", "PUT")], "takes no method"),
        (&[("orloj-delay", "1s"), ("orloj-target-topic", "a b")], "orloj-target-topic is"),
        (&[to, ("orloj-delay", "1s"), ("orloj-caller", "")], "must not be empty"),
    ];
    for (headers, expected) in table {
        let reason = headers_reason(headers);
        assert!(reason.contains(expected), "{headers:?}: {reason}");
    }
    let key = [("orloj-delay", "1"), ("orloj-callback-url", "http://h"), ("orloj-target-key", "k")];
    assert!(headers_reason(&key).contains("takes no key"));
    let mut null = record(Some(b"p"), &[to]);
    null.headers.push(("orloj-delay", None));
    assert!(unreadable(&null).reason.contains("orloj-delay has no value"));
    null.headers[1].1 = Some(b"\xff");
    assert!(unreadable(&null).reason.contains("give UTF-8"));
}

#[test]
fn bad_json_is_refused_by_name() {
    let table = [
        ("hello", "neither a JSON object nor Avro"),
        ("[1]", "neither a JSON object nor Avro"),
        ("{\"delay\": 1", "neither a JSON object nor Avro"),
        (r#"{"topic": "t"}"#, "nothing says when"),
        (r#"{"delay": 1}"#, "nothing says where to"),
        (r#"{"delay": 1, "fireAt": 5, "topic": "t"}"#, "fireAt and delay both say when"),
        (r#"{"delay": 1, "topic": "t", "callbackUrl": "http://h"}"#, "both say where to"),
        (r#"{"delay": 1, "topic": "t", "target": {"topic": "t"}}"#, "both say where to"),
        (r#"{"delayMs": -1, "topic": "t"}"#, "delayMs is \"-1\""),
        (r#"{"delaySeconds": -0.1, "topic": "t"}"#, "delaySeconds is \"-0.1\""),
        (r#"{"delaySeconds": "5", "topic": "t"}"#, "give a number of seconds"),
        (r#"{"delaySeconds": 1e300, "topic": "t"}"#, "more than ten years ahead"),
        (r#"{"fireAt": "9999-01-01T00:00:00Z", "topic": "t"}"#, "more than ten years ahead"),
        (r#"{"fireAt": 1.5, "topic": "t"}"#, "fireAt is \"1.5\""),
        (r#"{"delay": 1, "topic": 5}"#, "topic is \"5\": give a string"),
        (r#"{"delay": 1, "topic": "t", "payload": 1, "payloadBase64": ""}"#, "give one"),
        (r#"{"delay": 1, "topic": "t", "payloadBase64": "?"}"#, "payloadBase64 is \"?\""),
        (r#"{"delay": 1, "topic": "t", "headers": {"a": 1}}"#, "headers is"),
        (r#"{"delay": 1, "topic": "t", "retry": {"delays": "1s"}}"#, "retry.delays is"),
        (r#"{"delay": 1, "topic": "t", "retry": {"delay": []}}"#, "did you mean retry.delays?"),
        (r#"{"delay": 1, "topic": "t", "retry": {"attempts": 0}}"#, "retry.attempts is \"0\""),
        (r#"{"delay": 1, "topic": "t", "retry": {"jitter": 101}}"#, "give percent"),
        (r#"{"delay": 1, "topic": "t", "retry": {"finalStatuses": [200]}}"#, "2xx is success"),
        (r#"{"delay": 1, "topic": "t", "retry": {"finalStatuses": 404}}"#, "like [404, 422]"),
        (
            r#"{"delay": 1, "topic": "t", "retry": {"delays": [], "attempts": 2}}"#,
            "there is no pause between them",
        ),
        (r#"{"delay": 1, "target": {"topic": "t", "pool": "slow"}}"#, "takes no pool"),
        (r#"{"delay": 1, "target": {"topic": "t", "timeout": 5}}"#, "takes no timeout"),
        (r#"{"delay": 1, "target": {"url": "http://h", "pool": "a.b"}}"#, "target.pool is \"a.b\""),
        (r#"{"delay": 1, "target": {"url": "http://h", "timeout": "2h"}}"#, "target.timeout is"),
        (r#"{"deley": 1, "topic": "t"}"#, "did you mean delay?"),
        (r#"{"delay": 1, "target": {"tpoic": "t"}, "topic": "t"}"#, "did you mean target.topic?"),
    ];
    for (json, expected) in table {
        let reason = json_reason(json);
        // Which of several errors is reported does not matter as long as one is.
        assert!(reason.contains(expected), "{json}: {reason}");
    }
    assert!(unreadable(&record(Some(b""), &[])).reason.contains("the value is empty"));
}

#[test]
fn limits_are_exact_to_the_byte() {
    let to = [("orloj-target-topic", "t"), ("orloj-delay", "1s")];
    let large = vec![b'x'; 2_000_000];
    assert!(is_registration(&record(Some(&large[..PAYLOAD_BYTES_MAX]), &to)));
    let refused = unreadable(&record(Some(&large), &to));
    assert!(refused.reason.contains("the payload has 2000000 bytes"), "{}", refused.reason);
    assert_eq!(refused.value.map(|value| value.len()), Some(PAYLOAD_BYTES_MAX));

    let horizon = (NOW + FUTURE_MAX_MS).to_string();
    let beyond = (NOW + FUTURE_MAX_MS + 1).to_string();
    assert!(is_registration(&record(Some(b""), &[to[0], ("orloj-fire-at", &horizon)])));
    assert!(!is_registration(&record(Some(b""), &[to[0], ("orloj-fire-at", &beyond)])));

    let names: Vec<String> = (0..65).map(|n| format!("h{n}")).collect();
    let mut headers = to.to_vec();
    headers.extend(names[..64].iter().map(|name| (name.as_str(), "")));
    assert!(is_registration(&record(Some(b""), &headers)));
    headers.push((&names[64], ""));
    assert!(headers_reason(&headers).contains("65 headers"));
    let long = "x".repeat(16_384);
    assert!(headers_reason(&[to[0], to[1], ("h", &long)]).contains("16385 bytes"));
}

fn is_registration(raw: &RawRecord<'_>) -> bool {
    matches!(request(raw), Request::Register(_))
}

proptest! {
// Each case parses the schemas again, which takes longer than the case.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_value_makes_it_panic(
        frame in prop_oneof![
            Just(vec![]),
            Just(confluent(1, b"")),
            Just(confluent(2, b"")),
            Just(single_object(b"")),
            Just(b"{\"delay\":".to_vec()),
        ],
        bytes in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let value = [frame, bytes].concat();
        let _ = try_read(&record(Some(&value), &[]), Partitioner::Murmur2);
    }

    #[test]
    fn no_header_makes_it_panic(text in ".{0,30}", epoch in any::<i64>()) {
        let epoch = epoch.to_string();
        let names = ["orloj-fire-at", "orloj-delay", "scheduler-epoch", "orloj-retry-delays"];
        let more = ["orloj-retry-attempts", "orloj-retry-final-statuses", "orloj-pool"];
        let recurring = ["orloj-schedule", "orloj-cron"];
        for name in names.into_iter().chain(more).chain(recurring) {
            for value in [&text, &epoch] {
                let headers = [("orloj-target-topic", "t"), (name, value.as_str())];
                let _ = try_read(&record(Some(b""), &headers), Partitioner::Any);
            }
        }
    }
}
