//! From records to rows: what each record of the topics adds to the database.
//!
//! Invariant: a row can be replaced only by a later record of the same log. So the database depends
//! on what was read, and not on which topic was read first.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::ViewError;
use super::merged_outcomes::merge_outcome;
use super::schema::OFFSET_BITS;
use super::status::{LedgerFacts, OutcomeFacts};
use crate::codec::row;
use crate::engine::cursor::Cursor;
use crate::model::entry::{FireRow, Row};
use crate::model::input::{OnConflict, Registration, Request, TriggerRecord};
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::lifecycle::{Dependencies, Lifecycle, OnFailure};
use crate::model::outcome::{Outcome, OutcomeKind};
use crate::model::text::Text;
use crate::model::timeline::rank;
use crate::model::{Offset, PartitionId, Timestamp};

/// The position of a record as one number, which grows with the offset within a partition.
pub(super) fn encode_position(partition: PartitionId, offset: Offset) -> i64 {
    let offset = offset.min((1 << OFFSET_BITS) - 1).cast_signed();
    i64::from(partition) << OFFSET_BITS | offset
}

/// The partition and offset of such a number.
pub(super) fn decode_position(number: i64) -> (PartitionId, Offset) {
    let partition = PartitionId::try_from(number >> OFFSET_BITS).unwrap_or_default();
    (partition, (number & ((1 << OFFSET_BITS) - 1)).cast_unsigned())
}

/// What the owner decided about a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerDecision {
    Undecided = 0,
    Accepted = 1,
    Ignored = 2,
}

/// Of a registration that is ignored if something is pending or retained.
const KEEPS: i64 = 1;
/// Of one that is ignored if it repeats another one, by its key.
const KEEPS_REPEATED: i64 = 2;

/// The position of a record of the ledger, and when it was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordPosition {
    pub(super) partition: PartitionId,
    pub(super) offset: Offset,
    /// In ms since the epoch.
    pub(super) timestamp: Timestamp,
}

/// Writes rows in a transaction that the consumer has started.
#[derive(Debug)]
pub(super) struct Projector<'a> {
    pub(super) db: &'a Connection,
    pub(super) cache: &'a mut ProjectorCache,
}

/// What is cached from one transaction to the next. All of it is in the database too.
#[derive(Debug)]
pub(super) struct ProjectorCache {
    /// Bytes of a payload that are kept.
    pub(super) payload_max: usize,
    /// With more versions of a registration than this that no cursor has merged, not all of them
    /// are read for each record.
    pub(super) unmerged_max: u32,
    /// The cursor of each partition.
    pub(super) cursors: HashMap<PartitionId, Cursor>,
    /// The cursors that owners wrote to the ledger, used if the group has none.
    pub(super) ledger_cursors: HashMap<PartitionId, Cursor>,
    /// Numbers of callers and targets.
    pub(super) name_ids: HashMap<String, i64>,
    /// Where rows are encoded.
    pub(super) row_buffer: Vec<u8>,
}

/// Names in the cache; beyond this the cache is cleared.
const NAMES_MAX: usize = 10_000;
/// A trigger is changed more often between two cursors only by a program.
const UNMERGED_MAX: u32 = 32;

impl ProjectorCache {
    /// Loads the cache from a database.
    pub(super) fn load(db: &Connection, payload_max: usize) -> Result<Self, ViewError> {
        let mut cursors = HashMap::new();
        let mut rows = db.prepare("SELECT partition, offset, metadata FROM cursor")?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            let (offset, metadata): (i64, String) = (row.get(1)?, row.get(2)?);
            if let Ok((cursor, _)) = Cursor::from_metadata(offset.cast_unsigned(), &metadata) {
                let _none = cursors.insert(row.get(0)?, cursor);
            }
        }
        let (ledger_cursors, name_ids, row_buffer) = (HashMap::new(), HashMap::new(), Vec::new());
        let unmerged_max = UNMERGED_MAX;
        Ok(Self { payload_max, unmerged_max, cursors, ledger_cursors, name_ids, row_buffer })
    }
}

impl Projector<'_> {
    /// A record of `triggers`.
    pub(super) fn apply_trigger(
        &mut self,
        partition: PartitionId,
        record: TriggerRecord,
    ) -> Result<(), ViewError> {
        let TriggerRecord { offset, timestamp, request, ack } = record;
        let new = match request {
            Request::Register(new) => new,
            Request::Change(change) => return self.apply_change(partition, offset, *change),
            // The effects of cancels and commands are in the outcomes and the ledger. An unreadable
            // record becomes a dead letter, and a forwarded one is read again in its partition.
            _ => return Ok(()),
        };
        let sid = self.subject_id(partition, &new.id)?;
        let gid = encode_position(partition, offset);
        let may_repeat = ack.idempotency_key.is_some();
        self.insert_registration((sid, gid), timestamp, new, may_repeat)?;
        self.refresh_row(sid)
    }

    fn insert_registration(
        &mut self,
        (sid, gid): (i64, i64),
        created_at: Timestamp,
        new: Registration,
        may_repeat: bool,
    ) -> Result<(), ViewError> {
        let (partition, offset) = decode_position(gid);
        let (keeps, wanted) = match new.on_conflict {
            OnConflict::Replace if may_repeat => (KEEPS_REPEATED, None),
            OnConflict::Replace => (0, None),
            OnConflict::Keep => (KEEPS, None),
            OnConflict::Match(wanted) => (KEEPS, Some(encode_position(partition, wanted))),
        };
        let waits = keeps > 0 || new.needs_ledger();
        let marked = self.is_skipped(gid)?;
        let schedule = new.schedule.as_ref().map(|schedule| schedule.to_json());
        let after = new.after.as_deref().map(encode_after);
        let mut first = FireRow::first(new.id, offset, new.fire_at, new.definition);
        let whole = self.truncate_payload(&mut first);
        let bytes = row::to_bytes(&Row::Fire(first), &mut self.cache.row_buffer);
        // It may be known that another one has replaced it.
        let sql = "INSERT INTO generation (gid, sid, known, decided, waits, created_at, fire_at, \
                   keeps, priority, expire_after, retain, schedule, after, whole, row, wanted, \
                   past) \
                   VALUES (?1, ?2, 2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, \
                   iif(?3 = 2, ?5, (SELECT ?5 FROM listed WHERE sid = ?2 AND gid > ?1))) \
                   ON CONFLICT (gid) DO UPDATE SET sid = ?2, known = 2, \
                   decided = max(decided, ?3), \
                   waits = CASE WHEN decided = 2 THEN 0 WHEN announced THEN 1 ELSE ?4 END, \
                   created_at = ?5, fire_at = ?6, keeps = ?7, priority = ?8, expire_after = ?9, \
                   retain = ?10, schedule = ?11, after = ?12, whole = ?13, row = ?14, \
                   wanted = ?15, revision = 0, past = iif(decided = 2, past, excluded.past)";
        let decided = if marked { OwnerDecision::Ignored } else { OwnerDecision::Undecided };
        let _changed = self.db.prepare_cached(sql)?.execute(params![
            gid,
            sid,
            decided as i64,
            waits && !marked,
            created_at.cast_signed(),
            new.fire_at.cast_signed(),
            keeps,
            new.priority,
            new.expire_after.map(u64::cast_signed),
            new.retain.map(u64::cast_signed),
            schedule,
            after,
            whole,
            &*bytes,
            wanted,
        ])?;
        self.repeat_changes(gid)
    }

    /// A record of the ledger.
    pub(super) fn apply_ledger(
        &mut self,
        at: RecordPosition,
        record: LedgerRecord,
    ) -> Result<(), ViewError> {
        match (record.key, record.value) {
            (LedgerKey::Main(id), Some(LedgerValue::Entry(entry))) => match entry.row {
                Row::Fire(row) => self.apply_entry(at, rank(entry.key.priority), row),
                Row::Watch { .. } | Row::Veto { .. } => self.apply_removal(at, &id),
            },
            (LedgerKey::Main(id), _) => self.apply_removal(at, &id),
            // A mark that no replay needs any more is deleted, and was valid all the same.
            (LedgerKey::Skip(offset), _) => self.apply_skip(encode_position(at.partition, offset)),
            (LedgerKey::Cursor, Some(LedgerValue::Cursor { metadata, offset, .. })) => {
                if let Ok((cursor, _)) = Cursor::from_metadata(offset, &metadata) {
                    let _older = self.cache.ledger_cursors.insert(at.partition, cursor);
                }
                Ok(())
            }
            // What matters here about retries and vetoes is in the outcomes.
            _ => Ok(()),
        }
    }

    /// The ledger holds a trigger. An entry that is still waiting is applied at once; one that may
    /// be its end waits for its outcomes.
    fn apply_entry(
        &mut self,
        at: RecordPosition,
        priority: u8,
        row: FireRow,
    ) -> Result<(), ViewError> {
        let sid = self.subject_id(at.partition, &row.id.trigger)?;
        let facts = LedgerFacts::of(&row);
        let text = serde_json::to_string(&facts).expect("numbers and text can be written as JSON");
        let (sql, fresh) = if facts.state.is_waiting() {
            ("UPDATE subject SET row = ?2, next = NULL, fresh = ?3 WHERE sid = ?1", 0)
        } else {
            ("UPDATE subject SET next = ?2, fresh = ?3 WHERE sid = ?1", at.offset + 1)
        };
        let values = params![sid, text, fresh.cast_signed()];
        let _changed = self.db.prepare_cached(sql)?.execute(values)?;
        let gid = encode_position(at.partition, row.id.generation);
        self.upsert_generation(sid, gid, at.timestamp, priority, row)?;
        self.refresh_row(sid)
    }

    /// Stores the definition from the ledger, in case the registration is not read or was deleted,
    /// or a change has made another one of it; and that the registration was accepted.
    fn upsert_generation(
        &mut self,
        sid: i64,
        gid: i64,
        timestamp: Timestamp,
        priority: u8,
        mut row: FireRow,
    ) -> Result<(), ViewError> {
        let lifecycle = row.lifecycle.take().unwrap_or_default();
        if lifecycle.revision.is_some() {
            return self.hold_version((sid, gid), timestamp, priority, row, &lifecycle);
        }
        let sql = "UPDATE generation SET decided = 1, waits = iif(announced, waits, 0) \
                   WHERE gid = ?1 AND known = 2";
        if self.db.prepare_cached(sql)?.execute([gid])? > 0 {
            return Ok(());
        }
        let schedule = lifecycle.recurrence.as_ref().map(|series| series.schedule.to_json());
        let after = encode_remaining(&lifecycle, timestamp);
        let fire_at = row.scheduled.cast_signed();
        let whole = self.truncate_payload(&mut row);
        let first = FireRow { history: None, ..row };
        let bytes = row::to_bytes(&Row::Fire(first), &mut self.cache.row_buffer);
        let sql = "INSERT INTO generation (gid, sid, known, decided, created_at, fire_at, keeps, \
                   priority, expire_after, retain, schedule, after, whole, row) \
                   VALUES (?1, ?2, 1, 1, ?3, ?4, 0, ?5, ?6, ?7, ?8, ?9, ?10, ?11) \
                   ON CONFLICT (gid) DO UPDATE SET sid = ?2, known = 1, decided = 1, \
                   waits = iif(announced, waits, 0), created_at = coalesce(created_at, ?3), \
                   fire_at = ?4, keeps = 0, priority = ?5, expire_after = ?6, retain = ?7, \
                   schedule = coalesce(?8, schedule), after = coalesce(?9, after), whole = ?10, \
                   row = ?11, revision = 0";
        let _changed = self.db.prepare_cached(sql)?.execute(params![
            gid,
            sid,
            timestamp.cast_signed(),
            fire_at,
            priority,
            lifecycle.expire_after.map(u64::cast_signed),
            lifecycle.retain.map(u64::cast_signed),
            schedule,
            after,
            whole,
            &*bytes,
        ])?;
        self.repeat_changes(gid)
    }

    /// The ledger does not hold the trigger any more.
    fn apply_removal(&mut self, at: RecordPosition, id: &Text) -> Result<(), ViewError> {
        let sql = "UPDATE subject SET next = NULL, fresh = ?3 WHERE id = ?1 AND partition = ?2 \
                   AND (row IS NOT NULL OR next IS NOT NULL)";
        let values = params![id.as_str(), at.partition, (at.offset + 1).cast_signed()];
        let _changed = self.db.prepare_cached(sql)?.execute(values)?;
        Ok(())
    }

    /// A record of `triggers` was ignored.
    fn apply_skip(&mut self, gid: i64) -> Result<(), ViewError> {
        let sql = "INSERT OR IGNORE INTO skip VALUES (?1)";
        let _new = self.db.prepare_cached(sql)?.execute([gid])?;
        let sql = "UPDATE generation SET decided = 2, waits = 0, past = coalesce(created_at, past) \
                   WHERE gid = ?1 AND decided = 0 RETURNING sid";
        let mut decide = self.db.prepare_cached(sql)?;
        let sid = decide.query_row([gid], |row| row.get(0)).optional()?;
        drop(decide);
        sid.map_or(Ok(()), |sid| self.refresh_row(sid))
    }

    fn is_skipped(&self, gid: i64) -> Result<bool, ViewError> {
        Ok(self.db.prepare_cached("SELECT 1 FROM skip WHERE gid = ?1")?.exists([gid])?)
    }

    /// A record of `outcomes`.
    pub(super) fn apply_outcome(
        &mut self,
        partition: PartitionId,
        offset: Offset,
        outcome: &Outcome,
    ) -> Result<(), ViewError> {
        let Some((generation, decided)) = generation_and_decision(outcome) else {
            return match &outcome.kind {
                OutcomeKind::Circuit(circuit) => self.apply_circuit(outcome.at, circuit),
                _ => Ok(()),
            };
        };
        let sid = self.subject_id(partition, &outcome.trigger)?;
        let gid = encode_position(partition, generation);
        let sql = "SELECT outcomes, decided FROM generation WHERE gid = ?1";
        let mut select = self.db.prepare_cached(sql)?;
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let found: Option<(Option<String>, i64)> = select.query_row([gid], read).optional()?;
        drop(select);
        let (stored, before) = found.unwrap_or_default();
        let mut outcomes =
            stored.map_or_else(|| Ok(OutcomeFacts::default()), |t| serde_json::from_str(&t));
        let outcomes = outcomes.as_mut().map_err(|error| ViewError::Corrupt(error.to_string()))?;
        merge_outcome(outcomes, offset, outcome);
        let text =
            serde_json::to_string(outcomes).expect("numbers and text can be written as JSON");
        let decided = if decided == OwnerDecision::Undecided { before } else { decided as i64 };
        let change = match outcome.kind {
            OutcomeKind::Changed { revision, fire_at, .. } => {
                Some((encode_position(partition, revision), fire_at))
            }
            _ => None,
        };
        let announced = change.map_or(0, |(revision, _)| revision);
        // A changed one is in the ledger while it is pending: its owner's cursor decides about it.
        let sql = "INSERT INTO generation (gid, sid, decided, outcomes, past, announced, waits) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6 > 0) \
                   ON CONFLICT (gid) DO UPDATE SET decided = ?3, outcomes = ?4, \
                   announced = max(announced, ?6), \
                   waits = CASE WHEN ?3 = 2 THEN 0 WHEN ?6 > 0 THEN 1 ELSE waits END, \
                   past = CASE WHEN ?3 = 2 OR known = 0 THEN ?5 ELSE past END";
        let values = params![gid, sid, decided, text, outcome.at.cast_signed(), announced];
        let _changed = self.db.prepare_cached(sql)?.execute(values)?;
        if let Some((revision, fire_at)) = change {
            self.accept_change(gid, revision, fire_at)?;
        }
        self.insert_execution(sid, gid, encode_position(partition, offset), outcome)?;
        self.refresh_row(sid)
    }

    /// The number of a trigger id.
    pub(super) fn subject_id(
        &mut self,
        partition: PartitionId,
        id: &Text,
    ) -> Result<i64, ViewError> {
        let sql = "SELECT sid FROM subject WHERE id = ?1 AND partition = ?2";
        let mut select = self.db.prepare_cached(sql)?;
        let key = params![id.as_str(), partition];
        if let Some(sid) = select.query_row(key, |row| row.get(0)).optional()? {
            return Ok(sid);
        }
        let sql = "INSERT INTO subject (id, partition) VALUES (?1, ?2)";
        let _new = self.db.prepare_cached(sql)?.execute(key)?;
        Ok(self.db.last_insert_rowid())
    }

    /// The number of a caller's or target's name; 0 for none.
    pub(super) fn name_id(&mut self, text: Option<&str>) -> Result<i64, ViewError> {
        let Some(text) = text else { return Ok(0) };
        if let Some(nid) = self.cache.name_ids.get(text) {
            return Ok(*nid);
        }
        let found = find_name_id(self.db, text)?;
        let nid = if let Some(nid) = found {
            nid
        } else {
            let sql = "INSERT INTO name (text) VALUES (?1)";
            let _new = self.db.prepare_cached(sql)?.execute([text])?;
            self.db.last_insert_rowid()
        };
        if self.cache.name_ids.len() >= NAMES_MAX {
            self.cache.name_ids.clear();
        }
        let _none = self.cache.name_ids.insert(text.to_owned(), nid);
        Ok(nid)
    }

    /// Truncates a payload that is too large for the view; returns whether it is complete.
    pub(super) fn truncate_payload(&self, row: &mut FireRow) -> bool {
        let most = self.cache.payload_max;
        match &mut row.definition.payload {
            Some(payload) if payload.len() > most => {
                payload.truncate(most);
                false
            }
            _ => true,
        }
    }
}

/// The number of a name that is known.
pub(super) fn find_name_id(db: &Connection, text: &str) -> Result<Option<i64>, ViewError> {
    let mut select = db.prepare_cached("SELECT nid FROM name WHERE text = ?1")?;
    Ok(select.query_row([text], |row| row.get(0)).optional()?)
}

/// `after` as the database has it.
pub(super) fn encode_after(after: &Dependencies) -> String {
    let ids: Vec<&str> = after.ids.iter().map(Text::as_str).collect();
    serde_json::json!([ids, after.on_failure, after.timeout]).to_string()
}

/// The same of what a trigger still waits for, since `timestamp` in ms since the epoch.
pub(super) fn encode_remaining(lifecycle: &Lifecycle, timestamp: Timestamp) -> Option<String> {
    let awaits = lifecycle.dependencies.as_ref()?;
    Some(encode_after(&Dependencies {
        ids: awaits.remaining.clone(),
        on_failure: awaits.on_failure,
        timeout: awaits.until.saturating_sub(timestamp),
    }))
}

/// The reverse of [`encode_after`].
pub(super) fn decode_after(text: &str) -> Option<Dependencies> {
    let (ids, on_failure, timeout): (Vec<Text>, OnFailure, u64) =
        serde_json::from_str(text).ok()?;
    Some(Dependencies { ids, on_failure, timeout })
}

/// The generation of an outcome, and what it says about the registration.
fn generation_and_decision(outcome: &Outcome) -> Option<(Offset, OwnerDecision)> {
    match &outcome.kind {
        OutcomeKind::Accepted { generation, .. } => Some((*generation, OwnerDecision::Accepted)),
        // The last one may answer a cancel or a command too, at whose offset no registration is.
        OutcomeKind::Kept { .. }
        | OutcomeKind::Taken { .. }
        | OutcomeKind::Rejected { .. }
        | OutcomeKind::NotPending { .. } => {
            outcome.answers.map(|ignored| (ignored, OwnerDecision::Ignored))
        }
        OutcomeKind::Cancelled { generation }
        | OutcomeKind::Delivered { generation, .. }
        | OutcomeKind::Failed { generation, .. }
        | OutcomeKind::Withdrawn { generation, .. }
        | OutcomeKind::Paused { generation, .. }
        | OutcomeKind::Resumed { generation, .. }
        | OutcomeKind::Called { generation, .. }
        | OutcomeKind::Skipped { generation, .. }
        | OutcomeKind::Ended { generation, .. }
        | OutcomeKind::Expired { generation, .. }
        | OutcomeKind::Unmet { generation, .. }
        | OutcomeKind::Changed { generation, .. } => Some((*generation, OwnerDecision::Accepted)),
        OutcomeKind::Circuit(_) => None,
    }
}
