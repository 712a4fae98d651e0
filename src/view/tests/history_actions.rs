//! What users, workers and the owner do in a small history of one partition.
//!
//! Invariant: an action says nothing of its effect; that follows from the history before it.

use proptest::prelude::*;

use crate::model::lifecycle::OnFailure;

/// What a user does.
#[derive(Clone, Copy, Debug)]
pub(super) enum HistoryAction {
    Register {
        id: u8,
        kind: HistoryTriggerKind,
        conflict: HistoryConflict,
        ack: bool,
        delay: u64,
    },
    /// Changes what is pending.
    Change {
        id: u8,
        change: HistoryChange,
        ack: bool,
    },
    Cancel {
        id: u8,
    },
    Pause {
        id: u8,
        paused: bool,
    },
    /// Fires what is pending, once, at once.
    Call {
        id: u8,
    },
    /// One of the two triggers of other partitions that triggers here wait for has settled.
    Settle {
        other: bool,
        ok: bool,
    },
    /// A worker reports the result of one callback.
    CallbackResult {
        which: u8,
        ok: bool,
        again: bool,
    },
    /// A person handles one of the dead letters.
    HandleLetter {
        which: u8,
        replayed: bool,
    },
    /// Time passes.
    Wait {
        ms: u64,
    },
    /// The owner commits.
    Commit,
}

/// What is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HistoryTriggerKind {
    Topic,
    Http,
    /// Held by the ledger until it fires.
    Long,
    Retained,
    Recurring,
    RecurringHttp,
    /// Waits for others.
    Waiting,
}

/// What a registration does to a pending one of its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HistoryConflict {
    Replace,
    Keep,
    /// Replaces what was defined by the record that is so many before the newest one of its id, and
    /// nothing else.
    Match(u8),
}

/// What a change makes of a trigger. Its name is another one in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HistoryChange {
    pub(super) time: HistoryTime,
    pub(super) after: HistoryAfter,
    /// It changes only what was defined by the record that is so many before the newest one of its
    /// id.
    pub(super) wanted: Option<u8>,
    /// It fires into a callback, and else into a topic.
    pub(super) http: bool,
    /// Payload and key are the new ones, and else those from before.
    pub(super) payload: bool,
    pub(super) key: bool,
    pub(super) retain: bool,
    pub(super) expires: bool,
    pub(super) is_urgent: bool,
    /// The executions of a schedule are counted on.
    pub(super) keeps_count: bool,
}

/// When a changed trigger is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HistoryTime {
    /// As before.
    Same,
    /// Once, so many ms later.
    Once(u64),
    /// By a schedule.
    Again,
}

/// What a changed trigger waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HistoryAfter {
    /// As before.
    Same,
    Nothing,
    Others(OnFailure),
}

pub(super) fn actions() -> impl Strategy<Value = Vec<HistoryAction>> {
    let id = || 0..4_u8;
    let act = prop_oneof![
        8 => registration(),
        6 => (id(), change(), any::<bool>())
            .prop_map(|(id, change, ack)| HistoryAction::Change { id, change, ack }),
        4 => id().prop_map(|id| HistoryAction::Cancel { id }),
        2 => (id(), any::<bool>()).prop_map(|(id, paused)| HistoryAction::Pause { id, paused }),
        1 => id().prop_map(|id| HistoryAction::Call { id }),
        2 => (any::<bool>(), any::<bool>())
            .prop_map(|(other, ok)| HistoryAction::Settle { other, ok }),
        6 => (any::<u8>(), any::<bool>(), any::<bool>())
            .prop_map(|(which, ok, again)| HistoryAction::CallbackResult { which, ok, again }),
        1 => (any::<u8>(), any::<bool>())
            .prop_map(|(which, replayed)| HistoryAction::HandleLetter { which, replayed }),
        6 => prop_oneof![0..50_u64, 900..1_100_u64].prop_map(|ms| HistoryAction::Wait { ms }),
        8 => Just(HistoryAction::Commit),
    ];
    prop::collection::vec(act, 1..60)
}

fn registration() -> impl Strategy<Value = HistoryAction> {
    let kind = prop_oneof![
        3 => Just(HistoryTriggerKind::Topic),
        3 => Just(HistoryTriggerKind::Http),
        1 => Just(HistoryTriggerKind::Long),
        2 => Just(HistoryTriggerKind::Retained),
        1 => Just(HistoryTriggerKind::Recurring),
        1 => Just(HistoryTriggerKind::RecurringHttp),
        1 => Just(HistoryTriggerKind::Waiting),
    ];
    let conflict = prop_oneof![
        2 => Just(HistoryConflict::Replace),
        2 => Just(HistoryConflict::Keep),
        1 => (0..3_u8).prop_map(HistoryConflict::Match),
    ];
    (0..4_u8, kind, conflict, any::<bool>(), 0..60_u64).prop_map(
        |(id, kind, conflict, ack, delay)| HistoryAction::Register {
            id,
            kind,
            conflict,
            ack,
            delay,
        },
    )
}

fn change() -> impl Strategy<Value = HistoryChange> {
    let time = prop_oneof![
        3 => Just(HistoryTime::Same),
        2 => prop_oneof![0..60_u64, 400..700_u64].prop_map(HistoryTime::Once),
        1 => Just(HistoryTime::Again),
    ];
    let on_failure =
        prop_oneof![Just(OnFailure::Fire), Just(OnFailure::Skip), Just(OnFailure::Fail)];
    let after = prop_oneof![
        4 => Just(HistoryAfter::Same),
        1 => Just(HistoryAfter::Nothing),
        1 => on_failure.prop_map(HistoryAfter::Others),
    ];
    let wanted = prop_oneof![2 => Just(None), 1 => (0..3_u8).prop_map(Some)];
    (time, after, wanted, any::<[bool; 7]>()).prop_map(|(time, after, wanted, is)| {
        let [http, payload, key, retain, expires, is_urgent, keeps_count] = is;
        HistoryChange {
            time,
            after,
            wanted,
            http,
            payload,
            key,
            retain,
            expires,
            is_urgent,
            keeps_count,
        }
    })
}
