//! Values for the codec's tests: fixed ones for the golden files, arbitrary ones for properties.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::model::dead_letter::{Content, DeadLetter, Origin};
use crate::model::definition::{Definition, Header, HttpTarget, Target, TopicTarget};
use crate::model::entry::{Entry, FireId, FireRow, Row};
use crate::model::fire::Fire;
use crate::model::ledger::LedgerValue;
use crate::model::outcome::{Circuit, CircuitState, Outcome, Verdict};
use crate::model::retry::RetryLadder;
use crate::model::signal::{RetryRequest, Signal};
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey};

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

pub(super) fn fire() -> Fire {
    Fire {
        id: fire_id(),
        scheduled: 1_700_000_000_123,
        fired: 1_700_000_000_125,
        definition: http_definition(),
    }
}

pub(super) fn signal() -> Signal {
    Signal::Retry(RetryRequest {
        id: fire_id(),
        due: 1_700_000_010_125,
        scheduled: 1_700_000_000_123,
        reason: "the callback answered 500".to_owned(),
        definition: http_definition(),
    })
}

pub(super) fn outcome() -> Outcome {
    Outcome {
        trigger: "order-7".into(),
        answers: Some(41),
        at: 1_700_000_000_130,
        verdict: Verdict::Failed {
            generation: 41,
            occurrence: 0,
            attempt: 2,
            status: Some(500),
            reason: "the callback answered 500".to_owned(),
            retry_at: None,
        },
    }
}

pub(super) fn circuit() -> Outcome {
    let circuit = Circuit {
        worker: "orloj.worker.7".into(),
        caller: Some("billing".into()),
        host: "example.com:8443".into(),
        state: CircuitState::HalfOpen,
        reason: "its time is over".to_owned(),
        probe_at: Some(1_700_000_060_130),
    };
    let (trigger, at) = (circuit.key(), 1_700_000_000_130);
    Outcome { trigger, answers: None, at, verdict: Verdict::Circuit(circuit) }
}

pub(super) fn letter() -> DeadLetter {
    DeadLetter {
        origin: Origin { topic: "orloj.triggers".into(), partition: 3, offset: 41 },
        reason: "nothing says when".to_owned(),
        at: 1_700_000_000_130,
        content: Content::Record {
            key: Some(Bytes::from_static(b"order-7")),
            value: None,
            headers: topic_definition().headers,
        },
    }
}

pub(super) fn ledger_entry() -> LedgerValue {
    let source = Source::Signals;
    let key = TimelineKey { due: 1_700_000_000_123, priority: 128, source, offset: 41 };
    LedgerValue::Entry(Entry { key, row: topic_row() })
}

pub(super) fn any_row() -> impl Strategy<Value = Row> {
    prop_oneof![
        (any_fire_id(), any::<u64>(), any::<bool>(), any_definition()).prop_map(
            |(id, scheduled, in_ledger, definition)| {
                Row::Fire(FireRow { id, scheduled, in_ledger, definition })
            }
        ),
        (any_text(), any::<u64>()).prop_map(|(trigger, cancel)| Row::Veto { trigger, cancel }),
    ]
}

pub(super) fn any_fire_id() -> impl Strategy<Value = FireId> {
    (any_text(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u32>()).prop_map(
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
    let retry = vec(any::<u64>(), 0..4).prop_map(RetryLadder);
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
