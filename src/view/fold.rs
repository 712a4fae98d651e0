//! From records to facts: what each record of the topics adds to the database.
//!
//! Law: a fact is stored where it can be overtaken only by a later record of its own log. So the
//! database depends on what was read, and not on which topic was read first.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::ViewError;
use super::schema::OFFSET_BITS;
use super::status::{Ending, Held, How, Told};
use crate::codec::row;
use crate::engine::cursor::Cursor;
use crate::model::course::{After, OnFailure};
use crate::model::entry::{FireRow, Row};
use crate::model::input::{OnConflict, Registration, Request, TriggerRecord};
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::outcome::{Outcome, Verdict};
use crate::model::text::Text;
use crate::model::timeline::rank;
use crate::model::{Offset, PartitionId, Timestamp};

/// The place of a record as one number, which grows with the offset within a partition.
pub(super) fn place_of(partition: PartitionId, offset: Offset) -> i64 {
    let offset = offset.min((1 << OFFSET_BITS) - 1).cast_signed();
    i64::from(partition) << OFFSET_BITS | offset
}

/// The partition and offset of such a number.
pub(super) fn place_from(number: i64) -> (PartitionId, Offset) {
    let partition = PartitionId::try_from(number >> OFFSET_BITS).unwrap_or_default();
    (partition, (number & ((1 << OFFSET_BITS) - 1)).cast_unsigned())
}

/// What the owner decided about a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decided {
    NotYet = 0,
    Accepted = 1,
    Ignored = 2,
}

/// Where a record of the ledger stands, and when it was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) partition: PartitionId,
    pub(super) offset: Offset,
    /// In ms since the epoch.
    pub(super) timestamp: Timestamp,
}

/// Stores facts in a transaction that its owner began.
#[derive(Debug)]
pub(super) struct Fold<'a> {
    pub(super) db: &'a Connection,
    pub(super) memo: &'a mut Memo,
}

/// What the fold remembers from one transaction to the next. All of it is in the database, too.
#[derive(Debug)]
pub(super) struct Memo {
    /// Bytes of a payload that are kept.
    pub(super) payload_max: usize,
    /// The cursor of each partition.
    pub(super) cursors: HashMap<PartitionId, Cursor>,
    /// The cursors that owners left in the ledger, for where the group has none.
    pub(super) mirrors: HashMap<PartitionId, Cursor>,
    /// Numbers of callers and targets.
    pub(super) names: HashMap<String, i64>,
    /// Where rows are encoded.
    scratch: Vec<u8>,
}

/// Names that are remembered; beyond it all are forgotten and looked up again.
const NAMES_MAX: usize = 10_000;

impl Memo {
    /// What a database has.
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
        let (mirrors, names, scratch) = (HashMap::new(), HashMap::new(), Vec::new());
        Ok(Self { payload_max, cursors, mirrors, names, scratch })
    }
}

impl Fold<'_> {
    /// A record of `triggers`.
    pub(super) fn trigger(
        &mut self,
        partition: PartitionId,
        record: TriggerRecord,
    ) -> Result<(), ViewError> {
        // What cancels and commands do, outcomes and the ledger say. What is unreadable is a dead
        // letter, and what is forwarded comes again.
        let Request::Register(new) = record.request else { return Ok(()) };
        let sid = self.subject(partition, &new.id)?;
        let gid = place_of(partition, record.offset);
        self.register(sid, gid, record.timestamp, new)?;
        self.show(sid)
    }

    fn register(
        &mut self,
        sid: i64,
        gid: i64,
        created_at: Timestamp,
        new: Registration,
    ) -> Result<(), ViewError> {
        let keeps = new.on_conflict != OnConflict::Replace;
        let waits = keeps || new.is_kept();
        let marked = self.is_marked(gid)?;
        let schedule = new.schedule.as_ref().map(|schedule| schedule.to_json());
        let after = new.after.as_deref().map(write_after);
        let (_, offset) = place_from(gid);
        let mut first = FireRow::first(new.id, offset, new.fire_at, new.definition);
        let whole = self.cut(&mut first);
        let bytes = row::to_bytes(&Row::Fire(first), &mut self.memo.scratch);
        let sql = "INSERT INTO generation (gid, sid, known, decided, waits, created_at, fire_at, \
                   keeps, priority, expire_after, retain, schedule, after, whole, row) \
                   VALUES (?1, ?2, 2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) \
                   ON CONFLICT (gid) DO UPDATE SET sid = ?2, known = 2, \
                   decided = max(decided, ?3), waits = CASE decided WHEN 2 THEN 0 ELSE ?4 END, \
                   created_at = ?5, fire_at = ?6, keeps = ?7, priority = ?8, expire_after = ?9, \
                   retain = ?10, schedule = ?11, after = ?12, whole = ?13, row = ?14, \
                   past = CASE decided WHEN 2 THEN past END";
        let decided = if marked { Decided::Ignored } else { Decided::NotYet };
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
        ])?;
        Ok(())
    }

    /// A record of the ledger.
    pub(super) fn ledger(&mut self, at: Written, record: LedgerRecord) -> Result<(), ViewError> {
        match (record.key, record.value) {
            (LedgerKey::Main(id), Some(LedgerValue::Entry(entry))) => match entry.row {
                Row::Fire(row) => self.held(at, rank(entry.key.priority), row),
                Row::Watch { .. } | Row::Veto { .. } => self.gone(at, &id),
            },
            (LedgerKey::Main(id), _) => self.gone(at, &id),
            (LedgerKey::Skip(offset), Some(_)) => self.marked(place_of(at.partition, offset)),
            (LedgerKey::Cursor, Some(LedgerValue::Cursor { metadata, offset, .. })) => {
                if let Ok((mirror, _)) = Cursor::from_metadata(offset, &metadata) {
                    let _older = self.memo.mirrors.insert(at.partition, mirror);
                }
                Ok(())
            }
            // A mark that is taken away was true all the same. Of retries and vetoes the outcomes
            // tell what matters here.
            _ => Ok(()),
        }
    }

    /// The ledger holds a trigger. What is still ahead of it is true at once; what may be its end
    /// waits for the words of its outcomes.
    fn held(&mut self, at: Written, priority: u8, row: FireRow) -> Result<(), ViewError> {
        let sid = self.subject(at.partition, &row.id.trigger)?;
        let held = Held::of(&row);
        let text = serde_json::to_string(&held).expect("numbers and words make JSON");
        let (sql, fresh) = if held.standing.is_ahead() {
            ("UPDATE subject SET row = ?2, next = NULL, fresh = ?3 WHERE sid = ?1", 0)
        } else {
            ("UPDATE subject SET next = ?2, fresh = ?3 WHERE sid = ?1", at.offset + 1)
        };
        let values = params![sid, text, fresh.cast_signed()];
        let _changed = self.db.prepare_cached(sql)?.execute(values)?;
        let gid = place_of(at.partition, row.id.generation);
        self.define(sid, gid, at.timestamp, priority, row)?;
        self.show(sid)
    }

    /// The ledger tells what a trigger is, in case its registration is not read, or is there no
    /// longer; and that the registration was taken.
    fn define(
        &mut self,
        sid: i64,
        gid: i64,
        timestamp: Timestamp,
        priority: u8,
        mut row: FireRow,
    ) -> Result<(), ViewError> {
        let sql = "UPDATE generation SET decided = 1, waits = 0 WHERE gid = ?1 AND known = 2";
        if self.db.prepare_cached(sql)?.execute([gid])? > 0 {
            return Ok(());
        }
        let course = row.course.take().unwrap_or_default();
        let schedule = course.series.as_ref().map(|series| series.schedule.to_json());
        let after = course.awaits.as_ref().map(|awaits| {
            write_after(&After {
                ids: awaits.remaining.clone(),
                on_failure: awaits.on_failure,
                timeout: awaits.until.saturating_sub(timestamp),
            })
        });
        let fire_at = row.scheduled.cast_signed();
        let whole = self.cut(&mut row);
        let first = FireRow { history: None, ..row };
        let bytes = row::to_bytes(&Row::Fire(first), &mut self.memo.scratch);
        let sql = "INSERT INTO generation (gid, sid, known, decided, created_at, fire_at, keeps, \
                   priority, expire_after, retain, schedule, after, whole, row) \
                   VALUES (?1, ?2, 1, 1, ?3, ?4, 0, ?5, ?6, ?7, ?8, ?9, ?10, ?11) \
                   ON CONFLICT (gid) DO UPDATE SET sid = ?2, known = 1, decided = 1, \
                   created_at = coalesce(created_at, ?3), fire_at = ?4, keeps = 0, priority = ?5, \
                   expire_after = ?6, retain = ?7, schedule = coalesce(?8, schedule), \
                   after = coalesce(?9, after), whole = ?10, row = ?11";
        let _changed = self.db.prepare_cached(sql)?.execute(params![
            gid,
            sid,
            timestamp.cast_signed(),
            fire_at,
            priority,
            course.expire_after.map(u64::cast_signed),
            course.retain.map(u64::cast_signed),
            schedule,
            after,
            whole,
            &*bytes,
        ])?;
        Ok(())
    }

    /// The ledger does not hold a trigger any more.
    fn gone(&mut self, at: Written, id: &Text) -> Result<(), ViewError> {
        let sql = "UPDATE subject SET next = NULL, fresh = ?3 WHERE id = ?1 AND partition = ?2 \
                   AND (row IS NOT NULL OR next IS NOT NULL)";
        let values = params![id.as_str(), at.partition, (at.offset + 1).cast_signed()];
        let _changed = self.db.prepare_cached(sql)?.execute(values)?;
        Ok(())
    }

    /// A record of `triggers` was ignored.
    fn marked(&mut self, gid: i64) -> Result<(), ViewError> {
        let sql = "INSERT OR IGNORE INTO skip VALUES (?1)";
        let _new = self.db.prepare_cached(sql)?.execute([gid])?;
        let sql = "UPDATE generation SET decided = 2, waits = 0 WHERE gid = ?1 AND decided = 0 \
                   RETURNING sid";
        let mut decide = self.db.prepare_cached(sql)?;
        let sid = decide.query_row([gid], |row| row.get(0)).optional()?;
        drop(decide);
        sid.map_or(Ok(()), |sid| self.show(sid))
    }

    fn is_marked(&self, gid: i64) -> Result<bool, ViewError> {
        Ok(self.db.prepare_cached("SELECT 1 FROM skip WHERE gid = ?1")?.exists([gid])?)
    }

    /// A record of `outcomes`.
    pub(super) fn outcome(
        &mut self,
        partition: PartitionId,
        offset: Offset,
        outcome: &Outcome,
    ) -> Result<(), ViewError> {
        let Some((generation, decided)) = spoken_of(outcome) else {
            return match &outcome.verdict {
                Verdict::Circuit(circuit) => self.circuit(outcome.at, circuit),
                _ => Ok(()),
            };
        };
        let sid = self.subject(partition, &outcome.trigger)?;
        let gid = place_of(partition, generation);
        let sql = "SELECT told, decided FROM generation WHERE gid = ?1";
        let mut select = self.db.prepare_cached(sql)?;
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let found: Option<(Option<String>, i64)> = select.query_row([gid], read).optional()?;
        drop(select);
        let (told, before) = found.unwrap_or_default();
        let mut told = told.map_or_else(|| Ok(Told::default()), |t| serde_json::from_str(&t));
        let told = told.as_mut().map_err(|error| ViewError::Damaged(error.to_string()))?;
        hear(told, offset, outcome);
        let text = serde_json::to_string(told).expect("numbers and words make JSON");
        let decided = if decided == Decided::NotYet { before } else { decided as i64 };
        let sql = "INSERT INTO generation (gid, sid, decided, told, past) \
                   VALUES (?1, ?2, ?3, ?4, ?5) \
                   ON CONFLICT (gid) DO UPDATE SET decided = ?3, told = ?4, \
                   waits = CASE ?3 WHEN 2 THEN 0 ELSE waits END, \
                   past = CASE WHEN ?3 = 2 OR known = 0 THEN ?5 ELSE past END";
        let values = params![gid, sid, decided, text, outcome.at.cast_signed()];
        let _changed = self.db.prepare_cached(sql)?.execute(values)?;
        self.executed(sid, gid, place_of(partition, offset), outcome)?;
        self.show(sid)
    }

    /// The number of a trigger id.
    pub(super) fn subject(&mut self, partition: PartitionId, id: &Text) -> Result<i64, ViewError> {
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
    pub(super) fn name(&mut self, text: Option<&str>) -> Result<i64, ViewError> {
        let Some(text) = text else { return Ok(0) };
        if let Some(nid) = self.memo.names.get(text) {
            return Ok(*nid);
        }
        let found = name_number(self.db, text)?;
        let nid = if let Some(nid) = found {
            nid
        } else {
            let sql = "INSERT INTO name (text) VALUES (?1)";
            let _new = self.db.prepare_cached(sql)?.execute([text])?;
            self.db.last_insert_rowid()
        };
        if self.memo.names.len() >= NAMES_MAX {
            self.memo.names.clear();
        }
        let _none = self.memo.names.insert(text.to_owned(), nid);
        Ok(nid)
    }

    /// Cuts a payload that is too large for the view; says whether it stayed whole.
    fn cut(&self, row: &mut FireRow) -> bool {
        let most = self.memo.payload_max;
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
pub(super) fn name_number(db: &Connection, text: &str) -> Result<Option<i64>, ViewError> {
    let mut select = db.prepare_cached("SELECT nid FROM name WHERE text = ?1")?;
    Ok(select.query_row([text], |row| row.get(0)).optional()?)
}

/// `after` as the database has it.
fn write_after(after: &After) -> String {
    let ids: Vec<&str> = after.ids.iter().map(Text::as_str).collect();
    serde_json::json!([ids, after.on_failure, after.timeout]).to_string()
}

/// The way back.
pub(super) fn read_after(text: &str) -> Option<After> {
    let (ids, on_failure, timeout): (Vec<Text>, OnFailure, u64) =
        serde_json::from_str(text).ok()?;
    Some(After { ids, on_failure, timeout })
}

/// The generation that an outcome is about, and what it says of its registration.
fn spoken_of(outcome: &Outcome) -> Option<(Offset, Decided)> {
    match &outcome.verdict {
        Verdict::Accepted { generation, .. } => Some((*generation, Decided::Accepted)),
        Verdict::Kept { .. } | Verdict::Taken { .. } | Verdict::Rejected { .. } => {
            outcome.answers.map(|ignored| (ignored, Decided::Ignored))
        }
        Verdict::Cancelled { generation }
        | Verdict::Delivered { generation, .. }
        | Verdict::Failed { generation, .. }
        | Verdict::Withdrawn { generation, .. }
        | Verdict::Paused { generation, .. }
        | Verdict::Resumed { generation, .. }
        | Verdict::Called { generation, .. }
        | Verdict::Skipped { generation, .. }
        | Verdict::Ended { generation, .. }
        | Verdict::Expired { generation, .. }
        | Verdict::Unmet { generation, .. } => Some((*generation, Decided::Accepted)),
        Verdict::NotPending { .. } | Verdict::Circuit(_) => None,
    }
}

/// Adds what an outcome says to what was said before.
fn hear(told: &mut Told, said: Offset, outcome: &Outcome) {
    let at = outcome.at;
    told.at = told.at.max(at);
    let ending = |how, occurrence, reason| Some(Ending { how, said, at, occurrence, reason });
    // Callbacks of a recurring trigger may end in any order: the last occurrence counts.
    let newest = told.attempt.as_ref().map_or(0, |attempt| attempt.occurrence);
    match &outcome.verdict {
        Verdict::Delivered { occurrence, .. } if *occurrence >= newest => {
            told.attempt = ending(How::Delivered, *occurrence, None);
        }
        Verdict::Failed { occurrence, reason, retry_at, .. } if *occurrence >= newest => {
            let how = if retry_at.is_some() { How::Retried } else { How::Failed };
            told.attempt = ending(how, *occurrence, Some(reason.clone()));
        }
        Verdict::Withdrawn { occurrence, .. } if *occurrence >= newest => {
            told.attempt = ending(How::Withdrawn, *occurrence, None);
        }
        Verdict::Cancelled { .. } => told.off = ending(How::Cancelled, 0, None),
        Verdict::Expired { .. } => told.off = ending(How::Expired, 0, None),
        Verdict::Unmet { then, reason, .. } if *then != OnFailure::Fire => {
            told.off = ending(How::Unmet(*then), 0, Some(reason.clone()));
        }
        Verdict::Ended { executions, .. } => told.ended = Some((*executions, at)),
        Verdict::Called { .. } => told.called = Some(at),
        Verdict::Resumed { .. } => (told.resumed, told.paused) = (Some(at), None),
        Verdict::Paused { reason, .. } => told.paused = Some(reason.clone()),
        _ => {}
    }
}
