//! What few rows have: a pool, a timeout of their own, more of a retry policy than its pauses, and
//! the attempts so far. It precedes the bytes of version 1, and most rows have none.
//!
//! Invariant: a row is written with it only if a field is set.
//!
//! ```text
//!  pool?, timeout u64 (0: none), attempts u32 (0), jitter u8 (255), final statuses u16 …,
//!  history? before u32, folded u32, attempt …: number u32, at u64, worker, status u16 (0),
//!                                             error?, duration u64, excerpt?
//! ```

use bytes::Bytes;

use super::row_bytes::{NONE, RowError, RowReader, put_bytes, put_len, put_optional, text};
use crate::model::attempt::{Attempt, History};
use crate::model::definition::Target;
use crate::model::entry::FireRow;
use crate::model::retry::RetryPolicy;
use crate::model::text::Text;

const NO_JITTER: u8 = u8::MAX;

/// Whether version 1 has no place for a field of it.
pub(super) fn is_needed(fire: &FireRow) -> bool {
    let policy = |p: &RetryPolicy| p.attempts.is_some() || p.jitter.is_some();
    let more = |p: &RetryPolicy| policy(p) || !p.final_statuses.is_empty();
    let of_target = match &fire.definition.target {
        Target::Http(target) => target.pool.is_some() || target.timeout.is_some(),
        Target::Topic(_) => false,
    };
    of_target || fire.history.is_some() || fire.definition.retry.as_deref().is_some_and(more)
}

/// Appends the fields of `fire` that version 1 has no place for.
pub(super) fn encode(fire: &FireRow, out: &mut Vec<u8>) {
    let (pool, timeout) = match &fire.definition.target {
        Target::Http(target) => (target.pool.as_ref(), target.timeout),
        Target::Topic(_) => (None, None),
    };
    put_optional(out, pool.map(Text::bytes));
    out.extend_from_slice(&timeout.unwrap_or(0).to_be_bytes());
    let policy = fire.definition.retry.as_deref();
    out.extend_from_slice(&policy.and_then(|p| p.attempts).unwrap_or(0).to_be_bytes());
    out.push(policy.and_then(|p| p.jitter).unwrap_or(NO_JITTER));
    let statuses = policy.map_or(&[][..], |p| &p.final_statuses);
    put_len(out, statuses.len());
    statuses.iter().for_each(|status| out.extend_from_slice(&status.to_be_bytes()));
    match &fire.history {
        None => out.extend_from_slice(&NONE.to_be_bytes()),
        Some(history) => encode_history(history, out),
    }
}

fn encode_history(history: &History, out: &mut Vec<u8>) {
    put_len(out, history.attempts.len());
    out.extend_from_slice(&history.attempts_before_replay.to_be_bytes());
    out.extend_from_slice(&history.older_attempts.to_be_bytes());
    for attempt in &history.attempts {
        out.extend_from_slice(&attempt.number.to_be_bytes());
        out.extend_from_slice(&attempt.at.to_be_bytes());
        put_bytes(out, attempt.worker.bytes());
        out.extend_from_slice(&attempt.status.unwrap_or(0).to_be_bytes());
        put_optional(out, attempt.error.as_ref().map(Text::bytes));
        out.extend_from_slice(&attempt.duration_ms.to_be_bytes());
        put_optional(out, attempt.excerpt.as_ref().map(Text::bytes));
    }
}

/// The pool in the fields of version 2, if one is named.
pub(super) fn pool(v2_fields: &[u8]) -> Option<&str> {
    std::str::from_utf8(RowReader(v2_fields).optional().ok()??).ok()
}

/// Adds the fields of version 2, `more`, to `fire`; texts share `row`.
pub(super) fn apply(fire: &mut FireRow, v2_fields: &[u8], row: &Bytes) -> Result<(), RowError> {
    let mut rest = RowReader(v2_fields);
    let pool = rest.optional()?.map(|pool| text(row, pool)).transpose()?;
    let timeout = Some(rest.u64()?).filter(|timeout| *timeout > 0);
    match &mut fire.definition.target {
        Target::Http(target) => (target.pool, target.timeout) = (pool, timeout),
        Target::Topic(_) if pool.is_none() && timeout.is_none() => {}
        Target::Topic(_) => return Err(RowError::Corrupt),
    }
    let mut policy = fire.definition.retry.take().unwrap_or_default();
    policy.attempts = Some(rest.u32()?).filter(|attempts| *attempts > 0);
    policy.jitter = Some(rest.u8()?).filter(|jitter| *jitter != NO_JITTER);
    for _ in 0..rest.u32()? {
        policy.final_statuses.push(rest.u16()?);
    }
    fire.definition.retry = (!policy.is_empty()).then_some(policy);
    fire.history = match rest.u32()? {
        NONE => None,
        count => Some(Box::new(history(&mut rest, count, row)?)),
    };
    rest.expect_end()
}

fn history(rest: &mut RowReader<'_>, count: u32, row: &Bytes) -> Result<History, RowError> {
    let mut history = History {
        attempts_before_replay: rest.u32()?,
        older_attempts: rest.u32()?,
        attempts: Vec::new(),
    };
    let shared = |bytes: Option<&[u8]>| bytes.map(|bytes| text(row, bytes)).transpose();
    for _ in 0..count {
        history.attempts.push(Attempt {
            number: rest.u32()?,
            at: rest.u64()?,
            worker: text(row, rest.bytes()?)?,
            status: Some(rest.u16()?).filter(|status| *status > 0),
            error: shared(rest.optional()?)?,
            duration_ms: rest.u64()?,
            excerpt: shared(rest.optional()?)?,
        });
    }
    Ok(history)
}
