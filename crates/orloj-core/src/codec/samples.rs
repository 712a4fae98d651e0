//! Values for the codec's tests: fixed ones for the golden files, arbitrary ones for properties.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::model::attempt::{Attempt, History};
use crate::model::dead_letter::{Content, DeadLetter, Mark, Origin};
use crate::model::definition::{Definition, Header, HttpTarget, Target, TopicTarget};
use crate::model::entry::{Entry, FireId, FireRow, Row};
use crate::model::fire::{Fire, Withdrawal};
use crate::model::input::PRIORITY_DEFAULT;
use crate::model::ledger::LedgerValue;
use crate::model::lifecycle::{
    ExecutedRequest, Lifecycle, LifecyclePhase, OnFailure, PendingDependencies, Recurrence,
    RunningCallback, Watcher,
};
use crate::model::outcome::{Circuit, CircuitState, Outcome, OutcomeKind};
use crate::model::retry::RetryPolicy;
use crate::model::schedule::Schedule;
use crate::model::signal::{CallbackEnded, DependencySettled, RetryRequest, Signal, Watch};
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
        target: Target::from(HttpTarget::post("https://example.com/hook?a=1")),
        payload: None,
        headers: Vec::new(),
        retry: Some(Box::new(RetryPolicy { delays: vec![1_000, 5_000], ..RetryPolicy::default() })),
        caller: Some("billing".into()),
    }
}

/// A definition with every field set.
pub(super) fn slow_definition() -> Definition {
    Definition {
        target: Target::Http(Box::new(HttpTarget {
            pool: Some("slow".into()),
            timeout: Some(90_000),
            ..HttpTarget::post("https://example.com/hook?a=1")
        })),
        retry: Some(Box::new(RetryPolicy {
            delays: vec![1_000],
            attempts: Some(9),
            jitter: Some(20),
            final_statuses: vec![404, 422],
        })),
        ..http_definition()
    }
}

pub(super) fn history() -> Option<Box<History>> {
    let attempt = Attempt {
        number: 1,
        at: 1_700_000_000_125,
        worker: "host/1a2b3c4d".into(),
        status: Some(503),
        error: None,
        duration_ms: 40,
        excerpt: Some("try later".into()),
    };
    let error = Some("timed out".into());
    let silent = Attempt {
        number: 2,
        status: None,
        error,
        excerpt: None,
        duration_ms: 15_000,
        ..attempt.clone()
    };
    Some(Box::new(History {
        attempts_before_replay: 1,
        older_attempts: 0,
        attempts: vec![attempt, silent],
    }))
}

pub(super) fn topic_row() -> Row {
    Row::Fire(FireRow {
        id: fire_id(),
        scheduled: 1_700_000_000_123,
        in_ledger: true,
        definition: topic_definition(),
        history: None,
        lifecycle: None,
    })
}

pub(super) fn retry_row() -> Row {
    Row::Fire(FireRow {
        id: FireId { attempt: 3, ..fire_id() },
        scheduled: 1_700_000_000_123,
        in_ledger: true,
        definition: slow_definition(),
        history: history(),
        lifecycle: None,
    })
}

pub(super) fn http_row() -> Row {
    Row::Fire(FireRow {
        id: fire_id(),
        scheduled: 1_700_000_000_123,
        in_ledger: false,
        definition: http_definition(),
        history: None,
        lifecycle: None,
    })
}

pub(super) fn recurring_row() -> Row {
    let schedule = r#"{"cron":"0 9 * * *","zone":"Europe/Prague","overlap":"queue"}"#;
    let recurrence = Recurrence {
        schedule: Schedule::from_json(schedule).unwrap(),
        due_before_jitter: 1_700_000_000_000,
        catch_up_until: 0,
        open: Some(RunningCallback { occurrence: 6, until: 1_700_100_000_000 }),
        failures: 2,
        counted_from: 0,
    };
    let lifecycle = Lifecycle { recurrence: Some(Box::new(recurrence)), ..Lifecycle::default() };
    let Row::Fire(row) = retry_row() else { unreachable!() };
    Row::Fire(FireRow { lifecycle: lifecycle.boxed_unless_default(), ..row })
}

pub(super) fn veto_row() -> Row {
    Row::Veto { trigger: "order-7".into(), cancel: 42 }
}

pub(super) fn watch_row() -> Row {
    Row::Watch { trigger: "order-7".into(), watchers: vec![watcher()] }
}

pub(super) fn watcher() -> Watcher {
    Watcher { trigger: "order-8".into(), generation: 43 }
}

pub(super) fn fire() -> Fire {
    Fire {
        id: fire_id(),
        scheduled: 1_700_000_000_123,
        fired: 1_700_000_000_125,
        definition: http_definition(),
        history: None,
        report_end: false,
        priority: PRIORITY_DEFAULT,
    }
}

pub(super) fn withdrawal() -> Withdrawal {
    Withdrawal { trigger: "order-7".into(), cancel: 42 }
}

pub(super) fn signal() -> Signal {
    Signal::Retry(RetryRequest {
        id: fire_id(),
        due: 1_700_000_010_125,
        scheduled: 1_700_000_000_123,
        reason: "the callback answered 500".to_owned(),
        definition: slow_definition(),
        history: history(),
        report_end: true,
        priority: 200,
    })
}

pub(super) fn callback_ended() -> Signal {
    Signal::CallbackEnded(CallbackEnded { id: fire_id(), ok: true })
}

pub(super) fn watch() -> Signal {
    let (trigger, until) = ("order-7".into(), 1_700_086_400_000);
    Signal::Watch(Watch { trigger, watcher: watcher(), until })
}

pub(super) fn dependency_settled() -> Signal {
    Signal::DependencySettled(DependencySettled {
        watcher: watcher(),
        dependency: "order-7".into(),
        ok: false,
    })
}

pub(super) fn outcome() -> Outcome {
    Outcome {
        trigger: "order-7".into(),
        answers: Some(41),
        request: None,
        at: 1_700_000_000_130,
        kind: OutcomeKind::Failed {
            generation: 41,
            occurrence: 0,
            attempt: 2,
            status: Some(500),
            reason: "the callback answered 500".to_owned(),
            retry_at: None,
        },
    }
}

/// An outcome of a record that says what it is recognised by.
pub(super) fn requested() -> Outcome {
    Outcome { request: Some("019a".into()), ..outcome() }
}

pub(super) fn withdrawn() -> Outcome {
    let kind = OutcomeKind::Withdrawn { generation: 41, occurrence: 0, attempt: 2 };
    Outcome { answers: None, kind, ..outcome() }
}

pub(super) fn changed(executions: Option<u32>) -> Outcome {
    let (generation, revision, fire_at) = (41, 57, 1_700_000_060_000);
    let kind = OutcomeKind::Changed { generation, revision, fire_at, executions };
    Outcome { answers: Some(revision), kind, ..outcome() }
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
    Outcome { trigger, answers: None, request: None, at, kind: OutcomeKind::Circuit(circuit) }
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

/// A letter about a fire, with all attempts.
pub(super) fn undelivered_fire() -> DeadLetter {
    let fire = Fire { definition: slow_definition(), history: history(), ..fire() };
    DeadLetter { content: Content::Fire { fire, attempts: 2 }, ..letter() }
}

/// What a person did about a letter.
pub(super) fn mark() -> DeadLetter {
    let origin = Origin { topic: "orloj.dead-letters".into(), partition: 3, offset: 7 };
    let reason = "replayed".to_owned();
    DeadLetter { origin, reason, content: Content::Mark(Mark::Replayed), ..letter() }
}

pub(super) fn ledger_entry() -> LedgerValue {
    let source = Source::Signals;
    let key = TimelineKey { due: 1_700_000_000_123, priority: 128, source, offset: 41 };
    LedgerValue::Entry(Entry { key, row: topic_row() })
}

pub(super) fn ledger_recurrence() -> LedgerValue {
    let source = Source::Triggers;
    let key = TimelineKey { due: 1_700_000_000_123, priority: 128, source, offset: 41 };
    LedgerValue::Entry(Entry { key, row: recurring_row() })
}

pub(super) fn any_row() -> impl Strategy<Value = Row> {
    let times = (any::<u64>(), any::<bool>());
    prop_oneof![
        (any_fire_id(), times, any_definition(), any_history(), any_lifecycle()).prop_map(
            |(id, (scheduled, in_ledger), definition, history, lifecycle)| {
                Row::Fire(FireRow { id, scheduled, in_ledger, definition, history, lifecycle })
            }
        ),
        (any_text(), vec(any_watcher(), 0..3))
            .prop_map(|(trigger, watchers)| Row::Watch { trigger, watchers }),
        (any_text(), any::<u64>()).prop_map(|(trigger, cancel)| Row::Veto { trigger, cancel }),
    ]
}

pub(super) fn any_watcher() -> impl Strategy<Value = Watcher> {
    (any_text(), any::<u64>()).prop_map(|(trigger, generation)| Watcher { trigger, generation })
}

fn any_recurrence() -> impl Strategy<Value = Box<Recurrence>> {
    let schedules = [r#"{"every":"PT5M","start":5}"#, r#"{"daily":{"at":["09:00"]}}"#];
    let schedule = proptest::sample::select(schedules.to_vec());
    let open = option::of(
        (any::<u32>(), any::<u64>())
            .prop_map(|(occurrence, until)| RunningCallback { occurrence, until }),
    );
    let times = (any::<u64>(), any::<u64>());
    (schedule, times, open, any::<u32>()).prop_map(
        |(schedule, (due_before_jitter, catch_up_until), open, failures)| {
            let schedule = Schedule::from_json(schedule).unwrap();
            let counted_from = failures / 2;
            Box::new(Recurrence {
                schedule,
                due_before_jitter,
                catch_up_until,
                open,
                failures,
                counted_from,
            })
        },
    )
}

/// None, most of the time.
pub(super) fn any_lifecycle() -> impl Strategy<Value = Option<Box<Lifecycle>>> {
    let recurrence = any_recurrence();
    let dependencies = (vec(any_text(), 1..3), any::<u64>(), option::of(any_text())).prop_map(
        |(remaining, until, failed)| {
            Box::new(PendingDependencies { remaining, on_failure: OnFailure::Skip, until, failed })
        },
    );
    let phase = proptest::sample::select(vec![
        LifecyclePhase::Pending,
        LifecyclePhase::Queued,
        LifecyclePhase::Open,
        LifecyclePhase::Done,
        LifecyclePhase::Failed,
    ]);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let spans = (option::of(any::<u64>()), option::of(any::<u64>()));
    let changes = (option::of(any::<u64>()), option::of(any::<u64>()));
    let executed = (any_text(), any::<u64>(), any::<u32>())
        .prop_map(|(key, generation, occurrence)| ExecutedRequest { key, generation, occurrence });
    let parts = (
        option::of(recurrence),
        option::of(dependencies),
        vec(any_watcher(), 0..3),
        vec(executed, 0..3),
    );
    let lifecycle = (phase, flags, spans, changes, parts).prop_map(
        |(
            phase,
            (report_end, paused, fire_now_requested, changed_by_command),
            (expire_after, retain),
            (revision, first_due),
            parts,
        )| {
            let (recurrence, dependencies, watchers, executed) = parts;
            let lifecycle = Lifecycle {
                phase,
                report_end,
                expire_after,
                recurrence,
                dependencies,
                retain,
                watchers,
                paused,
                fire_now_requested,
                changed_by_command,
                revision,
                first_due,
                executed,
                dependencies_changed: revision.is_some(),
                was_callback: first_due.is_some(),
                ended_unfired: paused,
            };
            lifecycle.boxed_unless_default()
        },
    );
    prop_oneof![2 => Just(None), 1 => lifecycle]
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
        (any_text(), any_text(), option::of(any_text()), option::of(1..u64::MAX)).prop_map(
            |(url, method, pool, timeout)| {
                Target::Http(Box::new(HttpTarget { url, method, pool, timeout }))
            }
        ),
    ];
    let header =
        (any_text(), option::of(any_bytes())).prop_map(|(name, value)| Header { name, value });
    let policy = (
        vec(any::<u64>(), 0..4),
        option::of(1..u32::MAX),
        option::of(0..=100_u8),
        vec(300..600_u16, 0..3),
    );
    let retry = policy.prop_map(|(delays, attempts, jitter, final_statuses)| {
        let policy = RetryPolicy { delays, attempts, jitter, final_statuses };
        (!policy.is_empty()).then(|| Box::new(policy))
    });
    let payload = option::of(any_bytes());
    (target, payload, vec(header, 0..4), retry, option::of(any_text())).prop_map(
        |(target, payload, headers, retry, caller)| Definition {
            target,
            payload,
            headers,
            retry,
            caller,
        },
    )
}

pub(super) fn any_history() -> impl Strategy<Value = Option<Box<History>>> {
    let text = || option::of(any_text());
    let numbers = (any::<u32>(), any::<u64>(), any::<u64>(), option::of(1..u16::MAX));
    let attempt = (numbers, any_text(), text(), text()).prop_map(
        |((number, at, duration_ms, status), worker, error, excerpt)| Attempt {
            number,
            at,
            worker,
            status,
            error,
            duration_ms,
            excerpt,
        },
    );
    let history =
        (any::<u32>(), any::<u32>(), vec(attempt, 0..4)).prop_map(|(before, folded, attempts)| {
            Box::new(History { attempts_before_replay: before, older_attempts: folded, attempts })
        });
    option::of(history)
}

pub(super) fn any_text() -> impl Strategy<Value = Text> {
    ".{0,20}".prop_map(Text::from)
}

fn any_bytes() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}
