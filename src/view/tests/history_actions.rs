//! What users, workers and the owner do in a small history of one partition.
//!
//! Invariant: an action says nothing of its effect; that follows from the history before it.

use proptest::prelude::*;

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
    Cancel {
        id: u8,
    },
    Pause {
        id: u8,
        paused: bool,
    },
    /// A worker reports the result of one callback.
    CallbackResult {
        which: u8,
        ok: bool,
        again: bool,
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
}

/// What a registration does to a pending one of its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HistoryConflict {
    Replace,
    Keep,
    /// Replaces the registration that is so many before the newest one of its id, and no other.
    Match(u8),
}

pub(super) fn actions() -> impl Strategy<Value = Vec<HistoryAction>> {
    let kind = prop_oneof![
        3 => Just(HistoryTriggerKind::Topic),
        3 => Just(HistoryTriggerKind::Http),
        1 => Just(HistoryTriggerKind::Long),
        2 => Just(HistoryTriggerKind::Retained),
        1 => Just(HistoryTriggerKind::Recurring),
        1 => Just(HistoryTriggerKind::RecurringHttp),
    ];
    let conflict = prop_oneof![
        2 => Just(HistoryConflict::Replace),
        2 => Just(HistoryConflict::Keep),
        1 => (0..3_u8).prop_map(HistoryConflict::Match),
    ];
    let register = (0..4_u8, kind, conflict, any::<bool>(), 0..60_u64).prop_map(
        |(id, kind, conflict, ack, delay)| HistoryAction::Register {
            id,
            kind,
            conflict,
            ack,
            delay,
        },
    );
    let act = prop_oneof![
        4 => register,
        2 => (0..4_u8).prop_map(|id| HistoryAction::Cancel { id }),
        1 => (0..4_u8, any::<bool>()).prop_map(|(id, paused)| HistoryAction::Pause { id, paused }),
        3 => (any::<u8>(), any::<bool>(), any::<bool>())
            .prop_map(|(which, ok, again)| HistoryAction::CallbackResult { which, ok, again }),
        3 => prop_oneof![0..50_u64, 900..1_100_u64].prop_map(|ms| HistoryAction::Wait { ms }),
        4 => Just(HistoryAction::Commit),
    ];
    prop::collection::vec(act, 1..60)
}
