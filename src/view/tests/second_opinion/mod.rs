//! A second opinion about what the records of a partition say: all of them are kept, and everything
//! is decided at the end, slowly.
//!
//! Invariant: it follows the documents (`docs/reference/api.md`, `docs/reference/formats.md`,
//! `docs/internals/protocol.md`), uses nothing of how the view computes, and depends on no order of
//! reading: only the cursors that were reached are facts beside the records.

mod accepted;
mod agreement;
mod comparison;
mod definition;
mod lifecycle;
mod recorded;

use std::collections::BTreeMap;

use crate::engine::cursor::Cursor;
use crate::model::dead_letter::{Content, DeadLetter, Mark};
use crate::model::definition::Definition;
use crate::model::entry::{FireRow, Row};
use crate::model::input::{Registration, Request, TriggerRecord};
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::lifecycle::Dependencies;
use crate::model::outcome::Outcome;
use crate::model::timeline::rank;
use crate::model::{Millis, Offset, Timestamp};
use crate::view::results::{ExecutionStatus, LetterState, Status};

/// All that was read.
#[derive(Debug, Default)]
struct RecordsRead {
    triggers: Vec<TriggerRecord>,
    ledger: Vec<LedgerRecord>,
    outcomes: Vec<(Offset, Outcome)>,
    letters: Vec<DeadLetter>,
    /// The cursors that were reached, in this order.
    cursors: Vec<Cursor>,
}

/// A registration.
#[derive(Clone, Copy, Debug)]
struct Registered<'a> {
    generation: Offset,
    created_at: Timestamp,
    new: &'a Registration,
}

/// What a query must return of a trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TriggerOpinion {
    id: String,
    generation: Offset,
    revision: Offset,
    created_at: Timestamp,
    status: Status,
    reason: Option<String>,
    fire_at: Timestamp,
    settled_at: Option<Timestamp>,
    executions: u32,
    last_execution: Option<ExecutionOpinion>,
    definition: Definition,
    schedule: Option<String>,
    after: Option<Dependencies>,
    expire_after: Option<Millis>,
    retain: Option<Millis>,
    priority: u8,
}

/// What a query must return of an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ExecutionOpinion {
    occurrence: u32,
    attempt: u32,
    status: ExecutionStatus,
    at: Timestamp,
}

impl RecordsRead {
    /// Every trigger, the newest registration first.
    fn triggers(&self) -> Vec<TriggerOpinion> {
        let mut by_id: BTreeMap<&str, Vec<Registered<'_>>> = BTreeMap::new();
        for record in &self.triggers {
            if let Request::Register(new) = &record.request {
                let (generation, created_at) = (record.offset, record.timestamp);
                let registered = Registered { generation, created_at, new };
                by_id.entry(new.id.as_str()).or_default().push(registered);
            }
        }
        let accepted = by_id.values().filter_map(|all| self.accepted(all).pop());
        let mut opinions: Vec<_> = accepted.map(|newest| self.opinion(newest)).collect();
        opinions.sort_by_key(|opinion| (opinion.created_at, opinion.generation));
        opinions.reverse();
        opinions
    }

    /// The dead letters by their offsets: what was done about each, and how often it was replayed.
    fn dead_letters(&self) -> BTreeMap<Offset, (LetterState, u32)> {
        let mut letters = BTreeMap::new();
        for (offset, letter) in (0..).zip(&self.letters) {
            let Content::Mark(mark) = letter.content else {
                let _none = letters.insert(offset, (LetterState::Open, 0));
                continue;
            };
            // A mark follows its letter.
            let about = letters.get_mut(&letter.origin.offset).unwrap();
            *about = match mark {
                Mark::Replayed => (LetterState::Replayed, about.1 + 1),
                Mark::Archived => (LetterState::Archived, about.1),
            };
        }
        letters
    }

    /// The entries that the ledger has had of a generation, each with its priority.
    fn entries(&self, generation: Offset) -> impl Iterator<Item = (&FireRow, u8)> {
        self.ledger.iter().filter_map(move |record| match &record.value {
            Some(LedgerValue::Entry(entry)) => match &entry.row {
                Row::Fire(row) if row.id.generation == generation => {
                    Some((row, rank(entry.key.priority)))
                }
                _ => None,
            },
            _ => None,
        })
    }

    /// What the ledger holds of a generation.
    fn entry(&self, of: &Registered<'_>) -> Option<&FireRow> {
        let key = LedgerKey::Main(of.new.id.clone());
        let newest = self.ledger.iter().rev().find(|record| record.key == key)?;
        match newest.value.as_ref()? {
            LedgerValue::Entry(entry) => match &entry.row {
                Row::Fire(row) => Some(row).filter(|row| row.id.generation == of.generation),
                _ => None,
            },
            _ => None,
        }
    }
}
