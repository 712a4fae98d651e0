//! From stored facts to the list: the row by which a trigger is found, computed again whenever a
//! fact of it changes.
//!
//! Invariant: a row follows from facts alone (`status::status_of`). The cursor is a fact too.

use rusqlite::{OptionalExtension as _, Row as SqlRow, params};

use super::ViewError;
use super::projector::{Projector, decode_position, encode_position};
use super::results::Status;
use super::search::{SearchAttributes, search_tokens, target_of};
use super::status::{
    LedgerFacts, OutcomeFacts, StatusDecision, StatusFacts, is_fired_through, status_of,
};
use crate::codec::row;
use crate::model::definition::Definition;
use crate::model::entry::{FireRow, Row};
use crate::model::timeline::{Source, TimelineKey, rank};
use crate::model::{PartitionId, Timestamp};

/// Bits of a place in the lists that tell apart what was registered within one millisecond.
const TIE_BITS: u32 = 20;
/// Bits of those for the partition.
const PARTITION_BITS: u32 = 6;

/// A generation as the database has it.
#[derive(Debug)]
pub(super) struct GenerationRow {
    pub(super) gid: i64,
    /// Its registration is read, or the ledger has its definition.
    known: bool,
    /// What defines the trigger that it replaces, if that is pending; else it is ignored.
    pub(super) wanted: Option<i64>,
    /// The position of the newest change in its definition, or 0.
    revision: i64,
    /// The position of the newest change of it that is known, or 0.
    announced: i64,
    /// A change is not in its definition that is known.
    stale: bool,
    pub(super) created_at: Timestamp,
    pub(super) fire_at: Timestamp,
    priority: u8,
    pub(super) retain: Option<u64>,
    pub(super) recurs: bool,
    awaits: bool,
    pub(super) outcomes: OutcomeFacts,
}

/// What is listed of a trigger already.
#[derive(Debug, PartialEq, Eq)]
struct ListRow {
    place: i64,
    gid: i64,
    caller: i64,
    status: i64,
    fire_at: i64,
    wake: Option<i64>,
    settled_at: Option<i64>,
    executions: u32,
    reason: Option<String>,
}

/// The ledger entry of a trigger, and whether a newer one waits for its outcomes.
#[derive(Debug)]
struct LedgerState {
    partition: PartitionId,
    entry: Option<LedgerFacts>,
    unconfirmed: bool,
}

impl LedgerState {
    /// The registration that the ledger holds.
    fn held(&self) -> Option<i64> {
        self.entry.as_ref().map(|entry| encode_position(self.partition, entry.generation))
    }
}

impl Projector<'_> {
    /// Updates the listed row of a trigger from its facts.
    pub(super) fn refresh_row(&mut self, sid: i64) -> Result<(), ViewError> {
        let ledger_state = self.ledger_state(sid)?;
        let Some(current) = self.current_generation(sid, ledger_state.held())? else {
            // It may have been listed before its owner refused it.
            return self.unlist(sid);
        };
        let (partition, offset) = decode_position(current.gid);
        let entry = ledger_state.entry.as_ref().filter(|held| held.generation == offset);
        let definition = self.definition(current.gid)?;
        let is_changed = current.defined_by() > current.gid;
        let kept = current.recurs || current.awaits || current.retain.is_some() || is_changed;
        let place = TimelineKey {
            due: current.fire_at,
            priority: rank(current.priority),
            source: Source::Triggers,
            offset,
        };
        let cursor = self.cache.cursors.get(&partition).filter(|_| !ledger_state.unconfirmed);
        let decided = match cursor {
            Some(cursor) => self.is_decided(cursor, sid, current.defined_by())?,
            None => false,
        };
        let revision = decode_position(current.gid.max(current.revision)).1;
        let has_new_dependencies = match entry {
            Some(held) if current.awaits && !held.has(revision) => {
                self.has_dependencies_since(current.gid, held.revision)?
            }
            _ => false,
        };
        let facts = StatusFacts {
            is_callback: definition.target.is_http(),
            recurs: current.recurs,
            awaits: current.awaits,
            has_new_dependencies,
            always_in_ledger: kept,
            created_at: current.created_at,
            revision,
            fire_at: current.fire_at,
            decided,
            is_behind: current.stale || !decided && current.announced > current.revision,
            is_fired_through: decided
                && cursor.is_some_and(|cursor| is_fired_through(&cursor.fired_through, &place)),
            ledger: entry,
            outcomes: &current.outcomes,
        };
        let decision = status_of(&facts);
        let is_ahead = matches!(decision.status, Status::Pending | Status::Paused);
        let wakes = entry.is_none() && !kept && is_ahead;
        let wake = wakes.then_some(current.fire_at.cast_signed());
        self.upsert_row(sid, &current, &definition, decision, wake)
    }

    /// Takes a trigger out of the lists, if it is there.
    pub(super) fn unlist(&mut self, sid: i64) -> Result<(), ViewError> {
        self.find_row(sid)?.map_or(Ok(()), |old| self.remove_row(&old))
    }

    fn ledger_state(&self, sid: i64) -> Result<LedgerState, ViewError> {
        let sql = "SELECT row, fresh > 0, partition FROM subject WHERE sid = ?1";
        let mut select = self.db.prepare_cached(sql)?;
        let (entry, fresh, partition): (Option<String>, bool, PartitionId) =
            select.query_row([sid], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let entry = entry.map(|text| serde_json::from_str(&text)).transpose();
        Ok(LedgerState {
            entry: entry.map_err(|error| ViewError::Corrupt(error.to_string()))?,
            unconfirmed: fresh,
            partition,
        })
    }

    /// The generation that defines a trigger now: the newest that is not ignored, nor may be.
    fn current_generation(
        &self,
        sid: i64,
        held: Option<i64>,
    ) -> Result<Option<GenerationRow>, ViewError> {
        let newest = self.newest_accepted(sid, i64::MAX)?;
        // What the ledger holds was accepted, whatever is known of it besides.
        let held = held.filter(|held| newest.is_none_or(|newest| newest < *held));
        let held = held.map_or(Ok(None), |held| self.generation(held))?;
        match held.filter(|generation| generation.known) {
            Some(generation) => Ok(Some(generation)),
            None => newest.map_or(Ok(None), |gid| self.generation(gid)),
        }
    }

    /// The newest registration of a trigger before `gid` that is not ignored, nor may be.
    pub(super) fn newest_accepted(&self, sid: i64, gid: i64) -> Result<Option<i64>, ViewError> {
        let sql = "SELECT gid FROM generation INDEXED BY generation_accepted \
                   WHERE sid = ?1 AND gid < ?2 AND known > 0 \
                   AND (decided = 1 OR decided = 0 AND keeps = 0) ORDER BY gid DESC LIMIT 1";
        let mut select = self.db.prepare_cached(sql)?;
        Ok(select.query_row([sid, gid], |row| row.get(0)).optional()?)
    }

    pub(super) fn generation(&self, gid: i64) -> Result<Option<GenerationRow>, ViewError> {
        let sql = "SELECT gid, known > 0, created_at, fire_at, priority, retain, \
                   schedule IS NOT NULL, after IS NOT NULL, outcomes, wanted, revision, announced, \
                   stale FROM generation WHERE gid = ?1";
        let mut select = self.db.prepare_cached(sql)?;
        let mut rows = select.query([gid])?;
        rows.next()?.map(GenerationRow::from_row).transpose()
    }

    fn definition(&self, gid: i64) -> Result<Definition, ViewError> {
        let mut select = self.db.prepare_cached("SELECT row FROM generation WHERE gid = ?1")?;
        let bytes: Vec<u8> = select.query_row([gid], |row| row.get(0))?;
        decode_definition(&bytes)
    }

    fn upsert_row(
        &mut self,
        sid: i64,
        current: &GenerationRow,
        definition: &Definition,
        decision: StatusDecision,
        wake: Option<i64>,
    ) -> Result<(), ViewError> {
        let caller = self.name_id(definition.caller.as_ref().map(|caller| caller.as_str()))?;
        let listed = self.find_row(sid)?;
        let place = match &listed {
            Some(old) if old.gid == current.gid && is_created_at(old.place, current.created_at) => {
                old.place
            }
            _ => {
                self.supersede(sid, current)?;
                self.free_place(current)?
            }
        };
        let new = ListRow {
            place,
            gid: current.gid,
            caller,
            status: decision.status.number(),
            fire_at: decision.fire_at.cast_signed(),
            wake,
            settled_at: decision.settled_at.map(u64::cast_signed),
            executions: decision.executions,
            reason: decision.reason,
        };
        match listed {
            Some(old) if old == new => return Ok(()),
            Some(old) if old.place == place => self.update_row(old.status, &new)?,
            Some(old) => {
                self.remove_row(&old)?;
                self.insert_row(sid, &new, definition)?;
            }
            None => self.insert_row(sid, &new, definition)?,
        }
        Ok(())
    }

    /// Marks the generations before this one as replaced. This one is not, whatever was known of it
    /// or of the next one until now.
    fn supersede(&self, sid: i64, by: &GenerationRow) -> Result<(), ViewError> {
        // An id may have been replaced thousands of times.
        let sql = "UPDATE generation INDEXED BY generation_current SET past = ?3 \
                   WHERE sid = ?1 AND gid < ?2 AND past IS NULL";
        let values = params![sid, by.gid, by.created_at.cast_signed()];
        let _changed = self.db.prepare_cached(sql)?.execute(values)?;
        let sql = "UPDATE generation SET past = NULL WHERE gid = ?1 AND past IS NOT NULL";
        let _changed = self.db.prepare_cached(sql)?.execute([by.gid])?;
        Ok(())
    }

    fn find_row(&self, sid: i64) -> Result<Option<ListRow>, ViewError> {
        let sql = "SELECT place, gid, caller, status, fire_at, wake, settled_at, executions, \
                   reason FROM listed WHERE sid = ?1";
        let read = |row: &SqlRow<'_>| {
            Ok(ListRow {
                place: row.get(0)?,
                gid: row.get(1)?,
                caller: row.get(2)?,
                status: row.get(3)?,
                fire_at: row.get(4)?,
                wake: row.get(5)?,
                settled_at: row.get(6)?,
                executions: row.get(7)?,
                reason: row.get(8)?,
            })
        };
        Ok(self.db.prepare_cached(sql)?.query_row([sid], read).optional()?)
    }

    /// A free place in the lists: by the time of registration, then by offset.
    fn free_place(&self, current: &GenerationRow) -> Result<i64, ViewError> {
        let (partition, offset) = decode_position(current.gid);
        let tie = (offset << PARTITION_BITS) + u64::from(partition.unsigned_abs());
        let time = current.created_at << TIE_BITS;
        let mut place = (time | tie & ((1 << TIE_BITS) - 1)).cast_signed();
        let mut taken = self.db.prepare_cached("SELECT 1 FROM listed WHERE place = ?1")?;
        while taken.exists([place])? {
            place += 1;
        }
        Ok(place)
    }

    fn insert_row(
        &mut self,
        sid: i64,
        new: &ListRow,
        definition: &Definition,
    ) -> Result<(), ViewError> {
        let target = self.name_id(Some(&target_of(definition)))?;
        let (partition, _) = decode_position(new.gid);
        let sql = "INSERT INTO listed VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
        let _new = self.db.prepare_cached(sql)?.execute(params![
            new.place,
            sid,
            new.gid,
            partition,
            new.caller,
            target,
            new.status,
            new.fire_at,
            new.wake,
            new.settled_at,
            new.executions,
            new.reason,
        ])?;
        let sql = "SELECT id FROM subject WHERE sid = ?1";
        let id: String = self.db.prepare_cached(sql)?.query_row([sid], |row| row.get(0))?;
        let words = search_tokens(&id, new.caller, &SearchAttributes::of(definition), definition);
        let sql = "INSERT INTO words (rowid, tokens) VALUES (?1, ?2)";
        let _new = self.db.prepare_cached(sql)?.execute(params![new.place, words])?;
        self.add_to_tally(new.caller, new.status, 1)
    }

    fn update_row(&mut self, before: i64, new: &ListRow) -> Result<(), ViewError> {
        let sql = "UPDATE listed SET status = ?2, fire_at = ?3, wake = ?4, settled_at = ?5, \
                   executions = ?6, reason = ?7 WHERE place = ?1";
        let _changed = self.db.prepare_cached(sql)?.execute(params![
            new.place,
            new.status,
            new.fire_at,
            new.wake,
            new.settled_at,
            new.executions,
            new.reason,
        ])?;
        if before != new.status {
            self.add_to_tally(new.caller, before, -1)?;
            self.add_to_tally(new.caller, new.status, 1)?;
        }
        Ok(())
    }

    fn remove_row(&mut self, old: &ListRow) -> Result<(), ViewError> {
        self.delete_row(old.place, old.caller, old.status)
    }

    /// Takes a row out of the lists.
    pub(super) fn delete_row(
        &mut self,
        place: i64,
        caller: i64,
        status: i64,
    ) -> Result<(), ViewError> {
        let _deleted =
            self.db.prepare_cached("DELETE FROM listed WHERE place = ?1")?.execute([place])?;
        let _deleted =
            self.db.prepare_cached("DELETE FROM words WHERE rowid = ?1")?.execute([place])?;
        self.add_to_tally(caller, status, -1)
    }

    fn add_to_tally(&mut self, caller: i64, status: i64, by: i64) -> Result<(), ViewError> {
        let sql = "INSERT INTO tally VALUES (?1, ?2, ?3) \
                   ON CONFLICT (caller, status) DO UPDATE SET count = count + ?3";
        let _changed = self.db.prepare_cached(sql)?.execute([caller, status, by])?;
        Ok(())
    }
}

impl GenerationRow {
    /// The position of the record that defines it: its registration, or the newest change.
    pub(super) fn defined_by(&self) -> i64 {
        self.gid.max(self.revision).max(self.announced)
    }

    fn from_row(row: &SqlRow<'_>) -> Result<Self, ViewError> {
        let number = |at| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(at)?.unwrap_or(0));
        let outcomes: Option<String> = row.get(8)?;
        let outcomes = outcomes
            .map_or_else(|| Ok(OutcomeFacts::default()), |text| serde_json::from_str(&text));
        Ok(Self {
            gid: row.get(0)?,
            known: row.get(1)?,
            created_at: number(2)?.cast_unsigned(),
            fire_at: number(3)?.cast_unsigned(),
            priority: u8::try_from(number(4)?).unwrap_or_default(),
            retain: row.get::<_, Option<i64>>(5)?.map(i64::cast_unsigned),
            recurs: row.get(6)?,
            awaits: row.get(7)?,
            wanted: row.get(9)?,
            revision: row.get(10)?,
            announced: row.get(11)?,
            stale: row.get(12)?,
            outcomes: outcomes.map_err(|error| ViewError::Corrupt(error.to_string()))?,
        })
    }
}

/// Whether a place in the lists is that of something registered at `created_at`.
fn is_created_at(place: i64, created_at: Timestamp) -> bool {
    place >> TIE_BITS == created_at.cast_signed()
}

/// The definition in the bytes of a generation.
pub(super) fn decode_definition(bytes: &[u8]) -> Result<Definition, ViewError> {
    decode_fire(bytes).map(|row| row.definition)
}

/// The row in the bytes of a generation.
pub(super) fn decode_fire(bytes: &[u8]) -> Result<FireRow, ViewError> {
    match row::decode(bytes) {
        Ok(Row::Fire(row)) => Ok(row),
        Ok(_) => Err(ViewError::Corrupt("a generation is no fire".to_owned())),
        Err(error) => Err(ViewError::Corrupt(error.to_string())),
    }
}
