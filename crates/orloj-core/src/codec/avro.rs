//! The records that only Orloj writes, in Avro: fires, signals, outcomes, the ledger, dead letters.
//!
//! Invariant: each `…Wire` mirrors a model type field by field and a schema record name by name;
//! serde checks the first when it compiles, the tests the second. A field added later has a default
//! in both.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::avro_lifecycle;
use super::avro_outcome::OutcomeWire;
use super::avro_wire::{FireIdWire, TimelineKeyWire, Wire, wire};
use super::ledger_key::parse_step;
use super::ledger_v0::LedgerV0;
use super::schemas::{CodecError, Schemas};
use crate::model::attempt::History;
use crate::model::avro_long;
use crate::model::dead_letter::{Content, DeadLetter, Mark, Origin};
use crate::model::definition::{Definition, Header};
use crate::model::entry::{Entry, FireId, FireRow, Row};
use crate::model::fire::{Fire, Withdrawal, WorkerRecord};
use crate::model::input::PRIORITY_DEFAULT;
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::lifecycle::{Lifecycle, Watcher};
use crate::model::outcome::{Outcome, OutcomeKind};
use crate::model::signal::{CallbackEnded, DependencySettled, RetryRequest, Signal, Watch};
use crate::model::text::Text;
use crate::model::timeline::TimelineKey;
use crate::model::{Offset, PartitionId, Timestamp};

impl Schemas {
    /// The value of a record on `fires`.
    #[must_use]
    pub fn encode_fire(&self, fire: &Fire) -> Vec<u8> {
        self.fire.encode(&Wire(fire))
    }

    /// The value of the other kind of record on `fires`.
    #[must_use]
    pub fn encode_withdrawal(&self, withdrawal: &Withdrawal) -> Vec<u8> {
        self.withdrawal.encode(&Wire(withdrawal))
    }

    /// Reads the value of a record on `fires`: its fingerprint says which kind it is.
    pub fn decode_worker_record(&self, bytes: &[u8]) -> Result<WorkerRecord, CodecError> {
        match self.fire.decode(bytes) {
            Ok(Wire(fire)) => Ok(WorkerRecord::Callback(Box::new(fire))),
            Err(newer @ CodecError::Newer { .. }) => match self.withdrawal.decode(bytes) {
                Ok(Wire(withdrawal)) => Ok(WorkerRecord::Withdrawal(withdrawal)),
                Err(CodecError::Newer { .. }) => Err(newer),
                Err(corrupt) => Err(corrupt),
            },
            Err(corrupt) => Err(corrupt),
        }
    }

    /// The value of a record on `signals`.
    #[must_use]
    pub fn encode_signal(&self, signal: &Signal) -> Vec<u8> {
        self.signal.encode(&SignalBody { request: Wire(signal) })
    }

    /// Reads the value of a record on `signals`.
    pub fn decode_signal(&self, bytes: &[u8]) -> Result<Signal, CodecError> {
        self.signal.decode(bytes).map(|SignalBody { request: Wire(signal) }| signal)
    }

    /// The value of a record on `outcomes`: by the schema before the newest, if that has a place
    /// for it, so that processes of the version before read it.
    #[must_use]
    pub fn encode_outcome(&self, outcome: &Outcome) -> Vec<u8> {
        match outcome.kind {
            OutcomeKind::Changed { .. } => self.outcome.encode(&Wire(outcome)),
            _ => self.outcome.encode_by_previous(&Wire(outcome)),
        }
    }

    /// Reads the value of a record on `outcomes`.
    pub fn decode_outcome(&self, bytes: &[u8]) -> Result<Outcome, CodecError> {
        self.outcome.decode(bytes).map(|Wire(outcome)| outcome)
    }

    /// Whether the value of a record on `outcomes` was written by an owner that repeats the request
    /// of the record which it answers.
    #[must_use]
    pub fn has_request_field(&self, bytes: &[u8]) -> bool {
        self.outcome.has_field(bytes, "request")
    }

    /// The value of a record on `dead-letters`.
    #[must_use]
    pub fn encode_dead_letter(&self, letter: &DeadLetter) -> Vec<u8> {
        self.dead_letter.encode(&Wire(letter))
    }

    /// Reads the value of a record on `dead-letters`.
    pub fn decode_dead_letter(&self, bytes: &[u8]) -> Result<DeadLetter, CodecError> {
        self.dead_letter.decode(bytes).map(|Wire(letter)| letter)
    }

    /// The value of a record of the ledger, as the first release wrote it if that has a place for
    /// all of it; its key is [`LedgerKey::to_bytes`], its header
    /// [`STEP_HEADER`](super::ledger_key::STEP_HEADER).
    #[must_use]
    pub fn encode_ledger(&self, value: &LedgerValue) -> Vec<u8> {
        match LedgerV0::of(value) {
            Some(value) => self.ledger.encode_by_first(&LedgerBody { value }),
            None => match lifecycle_of(value) {
                Some(lifecycle) if needs_newest(lifecycle) => {
                    let (value, revision) = (Wire(value), lifecycle.revision);
                    self.ledger.encode(&ChangedLedgerBody { value, revision })
                }
                _ => self.ledger.encode_by_previous(&LedgerBody { value: Wire(value) }),
            },
        }
    }

    /// Reads a record of the ledger from its key, its value and its header `orloj-step`.
    pub fn decode_ledger(
        &self,
        key: &[u8],
        value: Option<&[u8]>,
        step: Option<&[u8]>,
    ) -> Result<LedgerRecord, CodecError> {
        let key = LedgerKey::parse(key).ok_or_else(|| self.ledger.corrupt("its key is no key"))?;
        let step = parse_step(step).ok_or_else(|| self.ledger.corrupt("it has no step"))?;
        let value = match value {
            Some(value) => Some(self.ledger.decode(value)?),
            None => None,
        };
        Ok(LedgerRecord { key, value: value.map(|LedgerBody { value: Wire(value) }| value), step })
    }
}

wire! {
    Fire => FireWire,
    Withdrawal => WithdrawalWire,
    Signal => SignalWire,
    Outcome => OutcomeWire,
    LedgerValue => LedgerWire,
    DeadLetter => DeadLetterWire,
}

/// A record around the union of signals, because registries want records.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Signal")]
struct SignalBody<T> {
    request: T,
}

/// A record around the union of ledger values.
#[derive(Serialize, Deserialize)]
#[serde(rename = "LedgerValue")]
struct LedgerBody<T> {
    value: T,
}

/// The same of a trigger that was changed, or that remembers requests: an Orloj that knows neither
/// must not read it in part.
#[derive(Serialize)]
#[serde(rename = "LedgerValue")]
struct ChangedLedgerBody<T> {
    value: T,
    #[serde(with = "avro_long::option")]
    revision: Option<Offset>,
}

fn lifecycle_of(value: &LedgerValue) -> Option<&Lifecycle> {
    let LedgerValue::Entry(Entry { row: Row::Fire(row), .. }) = value else { return None };
    row.lifecycle.as_deref()
}

/// Whether only the newest schema has a place for it.
fn needs_newest(lifecycle: &Lifecycle) -> bool {
    lifecycle.revision.is_some() || !lifecycle.executed.is_empty() || lifecycle.ended_unfired
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Fire", rename = "Fire")]
struct FireWire {
    #[serde(with = "FireIdWire")]
    id: FireId,
    #[serde(with = "avro_long")]
    scheduled: Timestamp,
    #[serde(with = "avro_long")]
    fired: Timestamp,
    definition: Definition,
    history: Option<Box<History>>,
    #[serde(default)]
    #[serde(rename = "settles")]
    report_end: bool,
    #[serde(default = "priority_default")]
    priority: u8,
}

fn priority_default() -> u8 {
    PRIORITY_DEFAULT
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Withdrawal", rename = "Withdrawal")]
struct WithdrawalWire {
    trigger: Text,
    #[serde(with = "avro_long")]
    cancel: Offset,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Signal")]
enum SignalWire {
    #[serde(rename = "RetryRequest")]
    Retry(#[serde(with = "RetryRequestWire")] RetryRequest),
    #[serde(rename = "Settled")]
    CallbackEnded(#[serde(with = "CallbackEndedWire")] CallbackEnded),
    Watch(#[serde(with = "WatchWire")] Watch),
    #[serde(rename = "Settlement")]
    DependencySettled(#[serde(with = "DependencySettledWire")] DependencySettled),
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "CallbackEnded", rename = "Settled")]
struct CallbackEndedWire {
    #[serde(with = "FireIdWire")]
    id: FireId,
    ok: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Watch", rename = "Watch")]
struct WatchWire {
    trigger: Text,
    watcher: Watcher,
    #[serde(with = "avro_long")]
    until: Timestamp,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "DependencySettled", rename = "Settlement")]
struct DependencySettledWire {
    watcher: Watcher,
    #[serde(rename = "of")]
    dependency: Text,
    ok: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "RetryRequest", rename = "RetryRequest")]
struct RetryRequestWire {
    #[serde(with = "FireIdWire")]
    id: FireId,
    #[serde(with = "avro_long")]
    due: Timestamp,
    #[serde(with = "avro_long")]
    scheduled: Timestamp,
    reason: String,
    definition: Definition,
    history: Option<Box<History>>,
    #[serde(default)]
    #[serde(rename = "settles")]
    report_end: bool,
    #[serde(default = "priority_default")]
    priority: u8,
}

#[expect(clippy::large_enum_variant, reason = "it mirrors a model type and is never constructed")]
#[derive(Serialize, Deserialize)]
#[serde(remote = "LedgerValue", rename_all_fields = "camelCase")]
enum LedgerWire {
    Entry(#[serde(with = "EntryWire")] Entry),
    Skip,
    Cursor {
        metadata: String,
        #[serde(with = "avro_long")]
        offset: Offset,
        clean: bool,
    },
    Barrier {
        #[serde(with = "avro_long")]
        nonce: u64,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Entry", rename = "Entry")]
struct EntryWire {
    #[serde(with = "TimelineKeyWire")]
    key: TimelineKey,
    #[serde(with = "RowWire")]
    row: Row,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Row")]
enum RowWire {
    Fire(#[serde(with = "FireRowWire")] FireRow),
    Veto {
        trigger: Text,
        #[serde(with = "avro_long")]
        cancel: Offset,
    },
    Watch {
        trigger: Text,
        watchers: Vec<Watcher>,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "FireRow", rename = "FireRow", rename_all = "camelCase")]
struct FireRowWire {
    #[serde(with = "FireIdWire")]
    id: FireId,
    #[serde(with = "avro_long")]
    scheduled: Timestamp,
    in_ledger: bool,
    definition: Definition,
    history: Option<Box<History>>,
    #[serde(default, with = "avro_lifecycle")]
    #[serde(rename = "course")]
    lifecycle: Option<Box<Lifecycle>>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "DeadLetter", rename = "DeadLetter")]
struct DeadLetterWire {
    #[serde(with = "OriginWire")]
    origin: Origin,
    reason: String,
    #[serde(with = "avro_long")]
    at: Timestamp,
    #[serde(with = "ContentWire")]
    content: Content,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Origin", rename = "Origin")]
struct OriginWire {
    topic: Text,
    partition: PartitionId,
    #[serde(with = "avro_long")]
    offset: Offset,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Content")]
enum ContentWire {
    Record {
        key: Option<bytes::Bytes>,
        value: Option<bytes::Bytes>,
        headers: Vec<Header>,
    },
    #[serde(rename = "FailedFire")]
    Fire {
        #[serde(with = "FireWire")]
        fire: Fire,
        attempts: u32,
    },
    Mark(#[serde(with = "MarkBody")] Mark),
}

/// A record around what was done, because registries support unions of named records best.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Mark")]
struct MarkBody {
    #[serde(with = "MarkWire")]
    done: Mark,
}

impl MarkBody {
    fn serialize<S: Serializer>(mark: &Mark, to: S) -> Result<S::Ok, S::Error> {
        Serialize::serialize(&Self { done: *mark }, to)
    }

    fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mark, D::Error> {
        <Self as Deserialize>::deserialize(from).map(|body| body.done)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Mark", rename = "Done", rename_all = "camelCase")]
enum MarkWire {
    Replayed,
    Archived,
}

#[cfg(test)]
mod tests {
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::codec::golden;
    use crate::codec::samples::{
        self, any_definition, any_fire_id, any_history, any_row, any_text,
    };
    use crate::model::lifecycle::OnFailure;
    use crate::model::outcome::{Circuit, CircuitState};
    use crate::model::timeline::Source;

    fn any_source() -> impl Strategy<Value = Source> {
        prop_oneof![Just(Source::Triggers), Just(Source::Signals)]
    }

    fn any_ledger_value() -> impl Strategy<Value = LedgerValue> {
        let key = (any::<u64>(), any::<u8>(), any_source(), any::<u64>()).prop_map(
            |(due, priority, source, offset)| TimelineKey { due, priority, source, offset },
        );
        let cursor = (".{0,20}", any::<u64>(), any::<bool>());
        prop_oneof![
            (key, any_row()).prop_map(|(key, row)| LedgerValue::Entry(Entry { key, row })),
            Just(LedgerValue::Skip),
            cursor.prop_map(|(metadata, offset, clean)| LedgerValue::Cursor {
                metadata,
                offset,
                clean
            }),
            any::<u64>().prop_map(|nonce| LedgerValue::Barrier { nonce }),
        ]
    }

    fn any_fire() -> impl Strategy<Value = Fire> {
        let how = (any::<bool>(), any::<u8>());
        (any_fire_id(), any::<u64>(), any::<u64>(), any_definition(), any_history(), how).prop_map(
            |(id, scheduled, fired, definition, history, (report_end, priority))| Fire {
                id,
                scheduled,
                fired,
                definition,
                history,
                report_end,
                priority,
            },
        )
    }

    fn any_letter() -> impl Strategy<Value = DeadLetter> {
        let record = any_definition().prop_map(|definition| Content::Record {
            key: definition.payload.clone(),
            value: definition.payload,
            headers: definition.headers,
        });
        let fire = (any_fire(), any::<u32>())
            .prop_map(|(fire, attempts)| Content::Fire { fire, attempts });
        let origin = (any_text(), any::<i32>(), any::<u64>())
            .prop_map(|(topic, partition, offset)| Origin { topic, partition, offset });
        let mark = prop_oneof![Just(Mark::Replayed), Just(Mark::Archived)].prop_map(Content::Mark);
        (origin, ".{0,20}", any::<u64>(), prop_oneof![record, fire, mark])
            .prop_map(|(origin, reason, at, content)| DeadLetter { origin, reason, at, content })
    }

    fn any_outcome_kind() -> impl Strategy<Value = OutcomeKind> {
        let long = any::<u64>;
        let some = || option::of(any::<u64>());
        prop_oneof![
            (long(), long(), some()).prop_map(|(generation, fire_at, replaced)| {
                OutcomeKind::Accepted { generation, fire_at, replaced }
            }),
            (long(), long())
                .prop_map(|(generation, fire_at)| OutcomeKind::Kept { generation, fire_at }),
            long().prop_map(|generation| OutcomeKind::Cancelled { generation }),
            long().prop_map(|generation| OutcomeKind::Taken { generation }),
            (long(), long(), long(), any::<u32>()).prop_map(
                |(generation, revision, fire_at, executions)| {
                    OutcomeKind::Changed {
                        generation,
                        revision,
                        fire_at,
                        executions: Some(executions),
                    }
                }
            ),
            (some(), any::<bool>())
                .prop_map(|(fired, withdrawal)| OutcomeKind::NotPending { fired, withdrawal }),
            ".{0,20}".prop_map(|reason| OutcomeKind::Rejected { reason }),
            (long(), any::<u32>(), any::<u32>(), any::<u16>()).prop_map(
                |(generation, occurrence, attempt, status)| OutcomeKind::Delivered {
                    generation,
                    occurrence,
                    attempt,
                    status
                }
            ),
            (long(), any::<u32>(), option::of(any::<u16>()), ".{0,20}", some()).prop_map(
                |(generation, attempt, status, reason, retry_at)| OutcomeKind::Failed {
                    generation,
                    occurrence: 0,
                    attempt,
                    status,
                    reason,
                    retry_at
                }
            ),
            (any_text(), option::of(any_text()), any_state(), ".{0,20}", some()).prop_map(
                |(host, caller, state, reason, probe_at)| OutcomeKind::Circuit(Circuit {
                    worker: "orloj.worker.1".into(),
                    caller,
                    host,
                    state,
                    reason,
                    probe_at
                })
            ),
            (long(), any::<u32>(), any::<u32>()).prop_map(|(generation, occurrence, attempt)| {
                OutcomeKind::Withdrawn { generation, occurrence, attempt }
            }),
            any_lifecycle_outcome_kind(),
        ]
    }

    fn any_lifecycle_outcome_kind() -> impl Strategy<Value = OutcomeKind> {
        let long = any::<u64>;
        let then =
            proptest::sample::select(vec![OnFailure::Fire, OnFailure::Skip, OnFailure::Fail]);
        let skipped = (long(), any::<u32>(), long(), long(), ".{0,20}");
        prop_oneof![
            (long(), ".{0,20}")
                .prop_map(|(generation, reason)| OutcomeKind::Paused { generation, reason }),
            (long(), long())
                .prop_map(|(generation, fire_at)| OutcomeKind::Resumed { generation, fire_at }),
            (long(), any::<u32>()).prop_map(|(generation, occurrence)| OutcomeKind::Called {
                generation,
                occurrence
            }),
            skipped.prop_map(|(generation, occurrences, from, until, reason)| {
                OutcomeKind::Skipped { generation, occurrences, from, until, reason }
            }),
            (long(), any::<u32>())
                .prop_map(|(generation, executions)| OutcomeKind::Ended { generation, executions }),
            (long(), long())
                .prop_map(|(generation, fire_at)| OutcomeKind::Expired { generation, fire_at }),
            (long(), then, ".{0,20}").prop_map(|(generation, then, reason)| OutcomeKind::Unmet {
                generation,
                then,
                reason
            }),
        ]
    }

    fn any_state() -> impl Strategy<Value = CircuitState> {
        let states = [CircuitState::Closed, CircuitState::Open, CircuitState::HalfOpen];
        proptest::sample::select(states.to_vec())
    }

    proptest! {
        // Each case parses the schemas again, which takes longer than the case.
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_encoded_record_is_read_back(
            fire in any_fire(),
            value in any_ledger_value(),
            letter in any_letter(),
            trigger in any_text(),
            answers in option::of(any::<u64>()),
            request in option::of(any_text()),
            kind in any_outcome_kind(),
        ) {
            let schemas = Schemas::new();
            let record = WorkerRecord::Callback(Box::new(fire.clone()));
            let read = schemas.decode_worker_record(&schemas.encode_fire(&fire));
            prop_assert_eq!(read, Ok(record));
            let withdrawal = Withdrawal { trigger: trigger.clone(), cancel: fire.fired };
            let bytes = schemas.encode_withdrawal(&withdrawal);
            let read = schemas.decode_worker_record(&bytes);
            prop_assert_eq!(read, Ok(WorkerRecord::Withdrawal(withdrawal)));
            let Fire { id, scheduled, fired: due, definition, history, report_end, priority } =
                fire;
            let reason = "500".to_owned();
            let ended = CallbackEnded { id: id.clone(), ok: report_end };
            let watcher = Watcher { trigger: trigger.clone(), generation: due };
            let watch =
                Watch { trigger: trigger.clone(), watcher: watcher.clone(), until: scheduled };
            let dependency = trigger.clone();
            let settlement = DependencySettled { watcher, dependency, ok: report_end };
            let signal = RetryRequest {
                id, due, scheduled, reason, definition, history, report_end, priority,
            };
            for signal in [
                Signal::Retry(signal),
                Signal::CallbackEnded(ended),
                Signal::Watch(watch),
                Signal::DependencySettled(settlement),
            ] {
                let bytes = schemas.encode_signal(&signal);
                prop_assert_eq!(schemas.decode_signal(&bytes), Ok(signal));
            }
            let bytes = schemas.encode_dead_letter(&letter);
            prop_assert_eq!(schemas.decode_dead_letter(&bytes), Ok(letter));
            let outcome = Outcome { trigger, answers, request, at: due, kind };
            let read = schemas.decode_outcome(&schemas.encode_outcome(&outcome));
            prop_assert_eq!(read, Ok(outcome));
            let bytes = schemas.encode_ledger(&value);
            let record = LedgerRecord { key: LedgerKey::Cursor, value: Some(value), step: 7 };
            let read = schemas.decode_ledger(b"~cursor", Some(&bytes), Some(b"7"));
            prop_assert_eq!(read, Ok(record));
        }

        #[test]
        fn no_bytes_make_it_panic(datum in proptest::collection::vec(any::<u8>(), 0..100)) {
            let schemas = Schemas::new();
            let framed = |frame: &[u8]| [&frame[..10], datum.as_slice()].concat();
            let fire = schemas.encode_fire(&samples::fire());
            let _ = schemas.decode_worker_record(&datum);
            let _ = schemas.decode_worker_record(&framed(&fire));
            let withdrawal = framed(&schemas.encode_withdrawal(&samples::withdrawal()));
            let _ = schemas.decode_worker_record(&withdrawal);
            let signal = framed(&schemas.encode_signal(&samples::signal()));
            let _ = (schemas.decode_signal(&datum), schemas.decode_signal(&signal));
            let _ = (schemas.decode_outcome(&datum), schemas.decode_dead_letter(&datum));
            let value = framed(&schemas.encode_ledger(&LedgerValue::Skip));
            let _ = schemas.decode_ledger(b"~cursor", Some(&value), Some(b"7"));
        }
    }

    #[test]
    fn encoded_records_match_the_golden_files() {
        let schemas = Schemas::new();
        golden::check("fire", &schemas.encode_fire(&samples::fire()));
        golden::check("withdrawal", &schemas.encode_withdrawal(&samples::withdrawal()));
        golden::check("signal-retry", &schemas.encode_signal(&samples::signal()));
        golden::check("signal-settled", &schemas.encode_signal(&samples::callback_ended()));
        golden::check("signal-watch", &schemas.encode_signal(&samples::watch()));
        golden::check("signal-settlement", &schemas.encode_signal(&samples::dependency_settled()));
        golden::check("outcome-failed-6", &schemas.encode_outcome(&samples::outcome()));
        golden::check("outcome-request-6", &schemas.encode_outcome(&samples::requested()));
        golden::check("outcome-circuit-6", &schemas.encode_outcome(&samples::circuit()));
        golden::check("outcome-withdrawn-6", &schemas.encode_outcome(&samples::withdrawn()));
        golden::check("outcome-changed-7", &schemas.encode_outcome(&samples::changed(Some(3))));
        golden::check("dead-letter-record", &schemas.encode_dead_letter(&samples::letter()));
        golden::check(
            "dead-letter-fire",
            &schemas.encode_dead_letter(&samples::undelivered_fire()),
        );
        golden::check("dead-letter-mark", &schemas.encode_dead_letter(&samples::mark()));
        golden::check("ledger-series", &schemas.encode_ledger(&samples::ledger_recurrence()));
        for (name, value) in basic_ledger_values() {
            golden::check(&format!("{name}-0"), &schemas.encode_ledger(&value));
        }
    }

    #[test]
    fn what_an_older_orloj_wrote_is_read() {
        let schemas = Schemas::new();
        for version in ["", "-2", "-3", "-4", "-5"] {
            let failed = format!("outcome-failed{version}");
            let outcome = schemas.decode_outcome(&golden::read(&failed));
            assert_eq!(outcome, Ok(samples::outcome()));
        }
        for version in ["", "-3", "-4", "-5"] {
            let circuit =
                schemas.decode_outcome(&golden::read(&format!("outcome-circuit{version}")));
            assert_eq!(circuit, Ok(samples::circuit()));
        }
        let changed = schemas.decode_outcome(&golden::read("outcome-changed-6"));
        assert_eq!(changed, Ok(samples::changed(None)));
        for withdrawn in ["outcome-withdrawn", "outcome-withdrawn-5"] {
            let withdrawn = schemas.decode_outcome(&golden::read(withdrawn));
            assert_eq!(withdrawn, Ok(samples::withdrawn()));
        }
        assert!(schemas.has_request_field(&golden::read("outcome-failed-6")));
        assert!(!schemas.has_request_field(&golden::read("outcome-failed-5")));
        let record = schemas.decode_worker_record(&golden::read("fire-1"));
        assert_eq!(record, Ok(WorkerRecord::Callback(Box::new(samples::fire()))));
        let Signal::Retry(retry) = samples::signal() else { unreachable!() };
        let retry = RetryRequest { report_end: false, priority: PRIORITY_DEFAULT, ..retry };
        let signal = schemas.decode_signal(&golden::read("signal-retry-1"));
        assert_eq!(signal, Ok(Signal::Retry(retry.clone())));
        let letter = schemas.decode_dead_letter(&golden::read("dead-letter-fire-1"));
        assert_eq!(letter, Ok(samples::undelivered_fire()));
        let entry = golden::read("ledger-entry-1");
        let entry = schemas.decode_ledger(b"~cursor", Some(&entry), Some(b"7"));
        assert_eq!(entry.unwrap().value, Some(samples::ledger_entry()));
        // The first release knew no history, no pools and no more of a policy than its pauses.
        let record = schemas.decode_worker_record(&golden::read("fire-0"));
        assert_eq!(record, Ok(WorkerRecord::Callback(Box::new(samples::fire()))));
        let content = Content::Fire { fire: samples::fire(), attempts: 2 };
        let letter = schemas.decode_dead_letter(&golden::read("dead-letter-fire-0"));
        assert_eq!(letter, Ok(DeadLetter { content, ..samples::letter() }));
        let retry = RetryRequest { history: None, definition: samples::http_definition(), ..retry };
        let signal = schemas.decode_signal(&golden::read("signal-retry-0"));
        assert_eq!(signal, Ok(Signal::Retry(retry)));
    }

    fn basic_ledger_values() -> [(&'static str, LedgerValue); 4] {
        let metadata = "orloj1 w=17.3.1.9".to_owned();
        [
            ("ledger-entry", samples::ledger_entry()),
            ("ledger-skip", LedgerValue::Skip),
            ("ledger-cursor", LedgerValue::Cursor { metadata, offset: 40, clean: true }),
            ("ledger-barrier", LedgerValue::Barrier { nonce: 1 }),
        ]
    }

    #[test]
    fn what_the_first_release_has_a_place_for_is_read_in_all_versions() {
        let schemas = Schemas::new();
        let read = |name: &str| {
            schemas.decode_ledger(b"~cursor", Some(&golden::read(name)), Some(b"7")).unwrap().value
        };
        for (name, value) in basic_ledger_values() {
            assert_eq!(read(&format!("{name}-0")).as_ref(), Some(&value), "of the first release");
            assert_eq!(read(name), Some(value), "of the last release that always wrote the newest");
        }
    }

    #[test]
    fn the_ledger_is_written_as_the_first_release_did_if_that_has_a_place_for_all_of_it() {
        let schemas = Schemas::new();
        let entry = |row| {
            let LedgerValue::Entry(entry) = samples::ledger_entry() else { unreachable!() };
            LedgerValue::Entry(Entry { row, ..entry })
        };
        let Row::Fire(recurring) = samples::recurring_row() else { unreachable!() };
        let definition = samples::topic_definition();
        let only_recurring = Row::Fire(FireRow { definition, history: None, ..recurring });
        let [first, newest] = ["ledger-skip-0", "ledger-series"].map(golden::read);
        for (row, version) in [
            (samples::topic_row(), &first),
            (samples::http_row(), &first),
            (samples::veto_row(), &first),
            (samples::retry_row(), &newest),
            (only_recurring, &newest),
            (samples::watch_row(), &newest),
        ] {
            let bytes = schemas.encode_ledger(&entry(row.clone()));
            assert_eq!(bytes[..10], version[..10], "{row:?}");
            let read = schemas.decode_ledger(b"~cursor", Some(&bytes), Some(b"7")).unwrap();
            assert_eq!(read.value, Some(entry(row)));
        }
    }

    #[test]
    fn a_newer_schema_is_not_a_corrupt_value() {
        let schemas = Schemas::new();
        let mut bytes = schemas.encode_fire(&samples::fire());
        for cut in 0..bytes.len() {
            let read = schemas.decode_worker_record(&bytes[..cut]);
            assert!(matches!(read, Err(CodecError::Corrupt { .. })), "{cut}: {read:?}");
        }
        assert!(matches!(schemas.decode_worker_record(b"hello"), Err(CodecError::Corrupt { .. })));
        bytes.push(0);
        assert!(matches!(schemas.decode_worker_record(&bytes), Err(CodecError::Corrupt { .. })));
        bytes[4] ^= 1;
        assert_eq!(schemas.decode_worker_record(&bytes), Err(CodecError::Newer { kind: "fire" }));
        let mut withdrawal = schemas.encode_withdrawal(&samples::withdrawal());
        withdrawal.push(0);
        let read = schemas.decode_worker_record(&withdrawal);
        assert!(matches!(read, Err(CodecError::Corrupt { kind: "withdrawal", .. })), "{read:?}");
    }
}
