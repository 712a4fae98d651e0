//! Rows that are queried as they are stored: executions, dead letters and circuits.
//!
//! Invariant: the key of each is the position of its record, so that applying a record again
//! changes nothing.

use rusqlite::params;

use super::ViewError;
use super::projector::{Projector, encode_position};
use super::results::{ExecutionStatus, LetterState};
use crate::model::dead_letter::{Content, DeadLetter, Mark};
use crate::model::outcome::{Circuit, CircuitState, Outcome, OutcomeKind};
use crate::model::{Offset, PartitionId, Timestamp};

/// An attempt, or a skipped occurrence, from its outcome.
struct ExecutionFields<'a> {
    occurrence: u32,
    attempt: u32,
    status: ExecutionStatus,
    due: Option<Timestamp>,
    http_status: Option<u16>,
    reason: Option<&'a str>,
    retry_at: Option<Timestamp>,
}

fn execution_fields(outcome: &OutcomeKind) -> Option<ExecutionFields<'_>> {
    let plain = |occurrence: &u32, attempt: &u32, status| ExecutionFields {
        occurrence: *occurrence,
        attempt: *attempt,
        status,
        due: None,
        http_status: None,
        reason: None,
        retry_at: None,
    };
    Some(match outcome {
        OutcomeKind::Delivered { occurrence, attempt, status, .. } => ExecutionFields {
            http_status: Some(*status),
            ..plain(occurrence, attempt, ExecutionStatus::Completed)
        },
        OutcomeKind::Failed { occurrence, attempt, status, reason, retry_at, .. } => {
            let then = match retry_at {
                Some(_) => ExecutionStatus::Retrying,
                None => ExecutionStatus::Failed,
            };
            ExecutionFields {
                http_status: *status,
                reason: Some(reason),
                retry_at: *retry_at,
                ..plain(occurrence, attempt, then)
            }
        }
        OutcomeKind::Withdrawn { occurrence, attempt, .. } => {
            plain(occurrence, attempt, ExecutionStatus::Withdrawn)
        }
        OutcomeKind::Skipped { from, reason, .. } => {
            let line = plain(&0, &0, ExecutionStatus::Skipped);
            ExecutionFields { due: Some(*from), reason: Some(reason), ..line }
        }
        _ => return None,
    })
}

impl Projector<'_> {
    /// Stores the execution of an outcome, if it reports one.
    pub(super) fn insert_execution(
        &mut self,
        sid: i64,
        gid: i64,
        xid: i64,
        outcome: &Outcome,
    ) -> Result<(), ViewError> {
        let Some(line) = execution_fields(&outcome.kind) else { return Ok(()) };
        let sql = "INSERT OR REPLACE INTO execution \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
        let _new = self.db.prepare_cached(sql)?.execute(params![
            xid,
            sid,
            gid,
            line.occurrence,
            line.attempt,
            line.status.number(),
            line.due.map(u64::cast_signed),
            outcome.at.cast_signed(),
            line.http_status,
            line.reason,
            line.retry_at.map(u64::cast_signed),
        ])?;
        Ok(())
    }

    /// Stores a change of a circuit.
    pub(super) fn apply_circuit(
        &mut self,
        at: Timestamp,
        circuit: &Circuit,
    ) -> Result<(), ViewError> {
        let caller = self.name_id(circuit.caller.as_ref().map(|caller| caller.as_str()))?;
        let sql = "INSERT OR REPLACE INTO circuit VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let _new = self.db.prepare_cached(sql)?.execute(params![
            circuit.key().as_str(),
            circuit.worker.as_str(),
            caller,
            circuit.host.as_str(),
            circuit_state_number(circuit.state),
            circuit.reason,
            at.cast_signed(),
            circuit.probe_at.map(u64::cast_signed),
        ])?;
        Ok(())
    }

    /// A record of `dead-letters`, or the mark of one.
    pub(super) fn apply_dead_letter(
        &mut self,
        partition: PartitionId,
        offset: Offset,
        letter: &DeadLetter,
    ) -> Result<(), ViewError> {
        if let Content::Mark(mark) = letter.content {
            let (state, replays) = match mark {
                Mark::Replayed => (LetterState::Replayed, 1),
                Mark::Archived => (LetterState::Archived, 0),
            };
            let lid = encode_position(letter.origin.partition, letter.origin.offset);
            let sql = "UPDATE letter SET state = ?2, replays = replays + ?3, handled_at = ?4 \
                       WHERE lid = ?1";
            let values = params![lid, state.number(), replays, letter.at.cast_signed()];
            let _changed = self.db.prepare_cached(sql)?.execute(values)?;
            return Ok(());
        }
        let (attempts, last_status) = match &letter.content {
            Content::Fire { fire, attempts } => {
                let last = fire.history.as_ref().and_then(|history| history.attempts.last());
                (Some(*attempts), last.and_then(|attempt| attempt.status))
            }
            _ => (None, None),
        };
        let caller = self.name_id(letter.caller())?;
        let sql = "INSERT OR REPLACE INTO letter \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, ?8, ?9, NULL)";
        let _new = self.db.prepare_cached(sql)?.execute(params![
            encode_position(partition, offset),
            letter.at.cast_signed(),
            letter.reason,
            letter.trigger(),
            caller,
            letter.host(),
            LetterState::Open.number(),
            attempts,
            last_status,
        ])?;
        Ok(())
    }
}

/// A circuit's state in the database.
pub(super) fn circuit_state_number(state: CircuitState) -> i64 {
    match state {
        CircuitState::Closed => 0,
        CircuitState::Open => 1,
        CircuitState::HalfOpen => 2,
    }
}

pub(super) fn circuit_state(number: i64) -> CircuitState {
    match number {
        1 => CircuitState::Open,
        2 => CircuitState::HalfOpen,
        _ => CircuitState::Closed,
    }
}
