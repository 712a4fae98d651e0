//! News for tests.

use super::{Digest, NotificationSource, SourcePartition, SourcePosition};
use crate::model::attempt::{Attempt, History};
use crate::model::dead_letter::{Content, DeadLetter, Origin};
use crate::model::definition::{Definition, HttpTarget, Target};
use crate::model::entry::FireId;
use crate::model::fire::Fire;
use crate::model::outcome::{Circuit, CircuitState};
use crate::model::{Offset, Timestamp};

/// The time of the first event, in ms since the epoch.
pub(crate) const FIRST_AT: Timestamp = 1_800_000_000_000;

/// A position among the dead letters.
pub(crate) fn position(offset: Offset) -> SourcePosition {
    SourcePosition {
        source_partition: SourcePartition { source: NotificationSource::DeadLetters, partition: 3 },
        offset,
    }
}

/// A callback to a host that was answered `status` in the end.
pub(crate) fn callback(trigger: &str, host: &str, status: u16, at: Timestamp) -> DeadLetter {
    let body = trigger.trim_start_matches("order-");
    let attempt = Attempt {
        number: 6,
        at,
        worker: "w".into(),
        status: Some(status),
        error: None,
        duration_ms: 1,
        excerpt: None,
    };
    let target = Target::from(HttpTarget::post(&format!("https://{host}/hook")));
    let (headers, caller) = (Vec::new(), Some("billing".into()));
    let fire = Fire {
        id: FireId {
            trigger: trigger.into(),
            generation: 1,
            occurrence: 0,
            attempt: 6,
            deferral: 0,
        },
        scheduled: at,
        fired: at,
        definition: Definition { target, payload: None, headers, retry: None, caller },
        history: History::with_attempt(None, attempt),
        report_end: false,
        priority: 127,
    };
    DeadLetter {
        origin: Origin { topic: "orloj.fires".into(), partition: 3, offset: 9 },
        reason: format!("attempt 6 was the last: answered {status}: boom {body}"),
        at,
        content: Content::Fire { fire, attempts: 6 },
    }
}

/// A record that could not be read.
pub(crate) fn record(key: &str, reason: &str, at: Timestamp) -> DeadLetter {
    let key = Some(key.as_bytes().to_vec().into());
    DeadLetter {
        origin: Origin { topic: "orloj.triggers".into(), partition: 3, offset: 9 },
        reason: reason.to_owned(),
        at,
        content: Content::Record { key, value: None, headers: Vec::new() },
    }
}

/// A circuit.
pub(crate) fn circuit(host: &str, state: CircuitState) -> Circuit {
    Circuit {
        worker: "w".into(),
        caller: Some("billing".into()),
        host: host.into(),
        state,
        reason: "20 of 20 failed".to_owned(),
        probe_at: None,
    }
}

/// Two callbacks, a record and a circuit.
pub(crate) fn outage() -> Digest {
    let mut digest = Digest::default();
    let letters = [
        callback("order-0", "api.example.com", 500, FIRST_AT),
        callback("order-1", "API.example.com", 500, FIRST_AT + 2_000),
        record("order-2", "nothing says when", FIRST_AT + 1_000),
    ];
    for (offset, letter) in (40..).zip(&letters) {
        digest.add_dead_letter(letter, position(offset));
    }
    let log = SourcePartition { source: NotificationSource::Outcomes, partition: 1 };
    let open = circuit("api.example.com", CircuitState::Open);
    digest.add_circuit_change(
        &open,
        FIRST_AT + 3_000,
        SourcePosition { source_partition: log, offset: 7 },
    );
    digest
}
