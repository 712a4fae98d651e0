//! Values for the codec's tests: fixed ones for the golden files, arbitrary ones for properties.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::model::definition::{Definition, Header, HttpTarget, Target, TopicTarget};
use crate::model::entry::{FireId, FireRow, Row};
use crate::model::retry::RetryLadder;
use crate::model::text::Text;

pub(super) fn fire_id() -> FireId {
    FireId { trigger: "order-7".into(), generation: 41, occurrence: 0, attempt: 2, deferral: 1 }
}

pub(super) fn topic_definition() -> Definition {
    Definition {
        target: Target::Topic(TopicTarget {
            topic: "reminders".into(),
            key: Some(Bytes::from_static(b"customer-3")),
        }),
        payload: Some(Bytes::from_static(b"\x00pay\xff")),
        headers: vec![
            Header { name: "traceparent".into(), value: Some(Bytes::from_static(b"00-ab-cd-01")) },
            Header { name: "empty".into(), value: Some(Bytes::new()) },
            Header { name: "null".into(), value: None },
        ],
        retry: None,
        caller: None,
    }
}

pub(super) fn http_definition() -> Definition {
    Definition {
        target: Target::Http(HttpTarget {
            url: "https://example.com/hook?a=1".into(),
            method: "POST".into(),
        }),
        payload: None,
        headers: Vec::new(),
        retry: Some(RetryLadder(vec![1_000, 5_000])),
        caller: Some("billing".into()),
    }
}

pub(super) fn topic_row() -> Row {
    Row::Fire(FireRow {
        id: fire_id(),
        scheduled: 1_700_000_000_123,
        in_ledger: true,
        definition: topic_definition(),
    })
}

pub(super) fn http_row() -> Row {
    Row::Fire(FireRow {
        id: fire_id(),
        scheduled: 1_700_000_000_123,
        in_ledger: false,
        definition: http_definition(),
    })
}

pub(super) fn any_fire_id() -> impl Strategy<Value = FireId> {
    (any_text(), 0..=i64::MAX.cast_unsigned(), any::<u32>(), any::<u32>(), any::<u32>()).prop_map(
        |(trigger, generation, occurrence, attempt, deferral)| FireId {
            trigger,
            generation,
            occurrence,
            attempt,
            deferral,
        },
    )
}

pub(super) fn any_definition() -> impl Strategy<Value = Definition> {
    let target = prop_oneof![
        (any_text(), option::of(any_bytes()))
            .prop_map(|(topic, key)| Target::Topic(TopicTarget { topic, key })),
        (any_text(), any_text()).prop_map(|(url, method)| Target::Http(HttpTarget { url, method })),
    ];
    let header =
        (any_text(), option::of(any_bytes())).prop_map(|(name, value)| Header { name, value });
    let retry = vec(0..=i64::MAX.cast_unsigned(), 0..4).prop_map(RetryLadder);
    let payload = option::of(any_bytes());
    (target, payload, vec(header, 0..4), option::of(retry), option::of(any_text())).prop_map(
        |(target, payload, headers, retry, caller)| Definition {
            target,
            payload,
            headers,
            retry,
            caller,
        },
    )
}

pub(super) fn any_text() -> impl Strategy<Value = Text> {
    ".{0,20}".prop_map(Text::from)
}

fn any_bytes() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}
