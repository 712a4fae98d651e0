//! From facts to what is listed: the row by which a trigger is found, made anew whenever a fact of
//! it changes, and what a cursor changes for a whole partition.
//!
//! Law: a row follows from facts alone (`status::judge`). The cursor is a fact too: it is applied
//! only when everything that stood in the logs after it was committed is read.

use rusqlite::{OptionalExtension as _, Row as SqlRow, params};

use super::ViewError;
use super::answer::Status;
use super::fold::{Decided, Fold, place_from, place_of};
use super::status::{Facts, Held, Told, Verdict, has_passed, judge};
use super::words::{Sign, target_of, tokens};
use crate::codec::row;
use crate::engine::cursor::Cursor;
use crate::model::definition::Definition;
use crate::model::entry::Row;
use crate::model::timeline::{Source, TimelineKey, rank};
use crate::model::{Offset, PartitionId, Timestamp};

/// Bits of a place in the lists that tell apart what was registered within one millisecond.
const TIE_BITS: u32 = 20;
/// Bits of those for the partition.
const PARTITION_BITS: u32 = 6;

/// A generation as the database has it.
#[derive(Debug)]
struct Generation {
    gid: i64,
    /// Its registration is read, or the ledger tells what it is.
    known: bool,
    decided: i64,
    keeps: bool,
    created_at: Timestamp,
    fire_at: Timestamp,
    priority: u8,
    retain: Option<u64>,
    recurs: bool,
    awaits: bool,
    told: Told,
}

/// What is listed of a trigger already.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
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

/// What the ledger says of a trigger, and whether the newest word waits for others.
#[derive(Debug)]
struct Standing {
    held: Option<Held>,
    fresh: bool,
}

impl Fold<'_> {
    /// Brings the listed row of a trigger to where its facts are.
    pub(super) fn show(&mut self, sid: i64) -> Result<(), ViewError> {
        let standing = self.standing(sid)?;
        let Some(current) = self.current(sid, standing.held.as_ref())? else {
            // It may have been taken for granted, and was refused by its owner.
            return self.listed(sid)?.map_or(Ok(()), |old| self.unlist(&old));
        };
        let (partition, offset) = place_from(current.gid);
        let held = standing.held.as_ref().filter(|held| held.generation == offset);
        let definition = self.definition(current.gid)?;
        let kept = current.recurs || current.awaits || current.retain.is_some();
        let place = TimelineKey {
            due: current.fire_at,
            priority: rank(current.priority),
            source: Source::Triggers,
            offset,
        };
        let cursor = self.memo.cursors.get(&partition).filter(|_| !standing.fresh);
        let decided = cursor.is_some_and(|cursor| cursor.triggers > offset);
        let facts = Facts {
            http: definition.target.is_http(),
            recurs: current.recurs,
            awaits: current.awaits,
            kept,
            created_at: current.created_at,
            fire_at: current.fire_at,
            decided,
            passed: decided && cursor.is_some_and(|cursor| has_passed(&cursor.w, &place)),
            held,
            told: &current.told,
        };
        let verdict = judge(&facts);
        let wakes = held.is_none() && !kept && verdict.status == Status::Pending;
        let wake = wakes.then_some(current.fire_at.cast_signed());
        self.list(sid, &current, &definition, verdict, wake)
    }

    fn standing(&self, sid: i64) -> Result<Standing, ViewError> {
        let sql = "SELECT row, fresh > 0 FROM subject WHERE sid = ?1";
        let mut select = self.db.prepare_cached(sql)?;
        let (held, fresh): (Option<String>, bool) =
            select.query_row([sid], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let held = held.map(|text| serde_json::from_str(&text)).transpose();
        Ok(Standing { held: held.map_err(|error| ViewError::Damaged(error.to_string()))?, fresh })
    }

    /// The generation that defines a trigger now: the newest that is not ignored, nor may be.
    fn current(&self, sid: i64, held: Option<&Held>) -> Result<Option<Generation>, ViewError> {
        let sql = "SELECT gid, known > 0, decided, keeps, created_at, fire_at, priority, retain, \
                   schedule IS NOT NULL, after IS NOT NULL, told FROM generation \
                   WHERE sid = ?1 ORDER BY gid DESC";
        let mut select = self.db.prepare_cached(sql)?;
        let mut rows = select.query([sid])?;
        while let Some(row) = rows.next()? {
            let generation = Generation::read(row)?;
            let (_, offset) = place_from(generation.gid);
            let held = held.is_some_and(|held| held.generation == offset);
            let taken = generation.decided == Decided::Accepted as i64;
            let ignored = generation.decided == Decided::Ignored as i64;
            if generation.known && (held || taken || !(ignored || generation.keeps)) {
                return Ok(Some(generation));
            }
        }
        Ok(None)
    }

    fn definition(&self, gid: i64) -> Result<Definition, ViewError> {
        let mut select = self.db.prepare_cached("SELECT row FROM generation WHERE gid = ?1")?;
        let bytes: Vec<u8> = select.query_row([gid], |row| row.get(0))?;
        read_definition(&bytes)
    }

    fn list(
        &mut self,
        sid: i64,
        current: &Generation,
        definition: &Definition,
        verdict: Verdict,
        wake: Option<i64>,
    ) -> Result<(), ViewError> {
        let caller = self.name(definition.caller.as_ref().map(|caller| caller.as_str()))?;
        let listed = self.listed(sid)?;
        let place = match &listed {
            Some(old) if old.gid == current.gid && stands(old.place, current.created_at) => {
                old.place
            }
            _ => {
                self.supersede(sid, current)?;
                self.free_place(current)?
            }
        };
        let new = Listed {
            place,
            gid: current.gid,
            caller,
            status: verdict.status.number(),
            fire_at: verdict.fire_at.cast_signed(),
            wake,
            settled_at: verdict.settled_at.map(u64::cast_signed),
            executions: verdict.executions,
            reason: verdict.reason,
        };
        match listed {
            Some(old) if old == new => return Ok(()),
            Some(old) if old.place == place => self.update(old.status, &new)?,
            Some(old) => {
                self.unlist(&old)?;
                self.insert(sid, &new, definition)?;
            }
            None => self.insert(sid, &new, definition)?,
        }
        Ok(())
    }

    /// Generations before this one are of no account any more.
    fn supersede(&self, sid: i64, by: &Generation) -> Result<(), ViewError> {
        let sql = "UPDATE generation SET past = ?3 WHERE sid = ?1 AND gid < ?2 AND past IS NULL";
        let values = params![sid, by.gid, by.created_at.cast_signed()];
        let _changed = self.db.prepare_cached(sql)?.execute(values)?;
        Ok(())
    }

    fn listed(&self, sid: i64) -> Result<Option<Listed>, ViewError> {
        let sql = "SELECT place, gid, caller, status, fire_at, wake, settled_at, executions, \
                   reason FROM listed WHERE sid = ?1";
        let read = |row: &SqlRow<'_>| {
            Ok(Listed {
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

    /// A place in the lists that nobody has: by the time of registration, then by its offset.
    fn free_place(&self, current: &Generation) -> Result<i64, ViewError> {
        let (partition, offset) = place_from(current.gid);
        let tie = (offset << PARTITION_BITS) + u64::from(partition.unsigned_abs());
        let time = current.created_at << TIE_BITS;
        let mut place = (time | tie & ((1 << TIE_BITS) - 1)).cast_signed();
        let mut taken = self.db.prepare_cached("SELECT 1 FROM listed WHERE place = ?1")?;
        while taken.exists([place])? {
            place += 1;
        }
        Ok(place)
    }

    fn insert(&mut self, sid: i64, new: &Listed, definition: &Definition) -> Result<(), ViewError> {
        let target = self.name(Some(&target_of(definition)))?;
        let (partition, _) = place_from(new.gid);
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
        let words = tokens(&id, new.caller, &Sign::of(definition), definition);
        let sql = "INSERT INTO words (rowid, tokens) VALUES (?1, ?2)";
        let _new = self.db.prepare_cached(sql)?.execute(params![new.place, words])?;
        self.count(new.caller, new.status, 1)
    }

    fn update(&mut self, before: i64, new: &Listed) -> Result<(), ViewError> {
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
            self.count(new.caller, before, -1)?;
            self.count(new.caller, new.status, 1)?;
        }
        Ok(())
    }

    fn unlist(&mut self, old: &Listed) -> Result<(), ViewError> {
        self.forget_listed(old.place, old.caller, old.status)
    }

    /// Takes a row out of the lists.
    pub(super) fn forget_listed(
        &mut self,
        place: i64,
        caller: i64,
        status: i64,
    ) -> Result<(), ViewError> {
        let _gone =
            self.db.prepare_cached("DELETE FROM listed WHERE place = ?1")?.execute([place])?;
        let _gone =
            self.db.prepare_cached("DELETE FROM words WHERE rowid = ?1")?.execute([place])?;
        self.count(caller, status, -1)
    }

    fn count(&mut self, caller: i64, status: i64, by: i64) -> Result<(), ViewError> {
        let sql = "INSERT INTO tally VALUES (?1, ?2, ?3) \
                   ON CONFLICT (caller, status) DO UPDATE SET count = count + ?3";
        let _changed = self.db.prepare_cached(sql)?.execute([caller, status, by])?;
        Ok(())
    }

    /// The committed cursor of a partition, when everything is read that stood in its logs after
    /// it was committed: what is not there by now has gone. `ledger_end` is where the ledger ended
    /// before it was looked where outcomes end.
    pub(super) fn settle(
        &mut self,
        partition: PartitionId,
        cursor: &Cursor,
        ledger_end: Offset,
    ) -> Result<(), ViewError> {
        let sql = "INSERT OR REPLACE INTO cursor VALUES (?1, ?2, ?3)";
        let offset = cursor.triggers.cast_signed();
        let _changed = self.db.prepare_cached(sql)?.execute(params![
            partition,
            offset,
            cursor.to_metadata("")
        ])?;
        let _earlier = self.memo.cursors.insert(partition, *cursor);
        for sid in self.confirmed(partition, ledger_end)? {
            self.show(sid)?;
        }
        for sid in self.decide(partition, cursor)? {
            self.show(sid)?;
        }
        for sid in self.woken(partition, cursor)? {
            self.show(sid)?;
        }
        let sql = "DELETE FROM skip WHERE gid BETWEEN ?1 AND ?2";
        let passed = cursor.triggers.min(cursor.low_water).saturating_sub(1);
        let bounds = [place_of(partition, 0), place_of(partition, passed)];
        let _gone = self.db.prepare_cached(sql)?.execute(bounds)?;
        Ok(())
    }

    /// What the ledger said last of triggers that may have ended counts now.
    fn confirmed(&self, partition: PartitionId, end: Offset) -> Result<Vec<i64>, ViewError> {
        let sql = "SELECT sid FROM subject \
                   WHERE partition = ?1 AND fresh > 0 AND fresh <= ?2";
        let sids = self.sids(sql, &[i64::from(partition), end.cast_signed()])?;
        let sql = "UPDATE subject SET row = next, next = NULL, fresh = 0 WHERE sid = ?1";
        let mut confirm = self.db.prepare_cached(sql)?;
        for sid in &sids {
            let _changed = confirm.execute([sid])?;
        }
        Ok(sids)
    }

    /// Registrations that N has passed were taken, unless they were to keep what was there and
    /// bear a mark. Where the mark is taken away already, because nothing replays from there, what
    /// was there by its time decides.
    fn decide(&self, partition: PartitionId, cursor: &Cursor) -> Result<Vec<i64>, ViewError> {
        let sql = "SELECT gid, sid, keeps, decided FROM generation \
                   WHERE waits = 1 AND gid BETWEEN ?1 AND ?2";
        let mut select = self.db.prepare_cached(sql)?;
        let last = place_of(partition, cursor.triggers.max(1) - 1);
        let bounds = [place_of(partition, 0), last];
        let read = |row: &SqlRow<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        let waiting = select.query_map(bounds, read)?;
        let waiting: Vec<(i64, i64, bool, i64)> = waiting.collect::<Result<_, _>>()?;
        let sql = "UPDATE generation SET decided = ?2, waits = 0, \
                   past = CASE ?2 WHEN 2 THEN created_at END WHERE gid = ?1";
        let mut update = self.db.prepare_cached(sql)?;
        let mut sids = Vec::with_capacity(waiting.len());
        for (gid, sid, keeps, before) in waiting {
            let (_, offset) = place_from(gid);
            let certain = before != Decided::NotYet as i64 || !keeps;
            let taken = certain || offset >= cursor.low_water || !self.was_there(sid, gid)?;
            let decided = if taken { Decided::Accepted } else { Decided::Ignored };
            let decided = if before == 0 { decided as i64 } else { before };
            let _changed = update.execute([gid, decided])?;
            sids.push(sid);
        }
        Ok(sids)
    }

    /// Whether an earlier generation was pending, or remembered, when this one was registered, as
    /// far as their times say.
    fn was_there(&self, sid: i64, gid: i64) -> Result<bool, ViewError> {
        let sql = "SELECT gid, known > 0, decided, keeps, created_at, fire_at, priority, retain, \
                   schedule IS NOT NULL, after IS NOT NULL, told FROM generation \
                   WHERE sid = ?1 AND gid <= ?2 ORDER BY gid DESC";
        let mut select = self.db.prepare_cached(sql)?;
        let mut rows = select.query([sid, gid])?;
        let Some(this) = rows.next()? else { return Ok(false) };
        let created_at = Generation::read(this)?.created_at;
        while let Some(row) = rows.next()? {
            let earlier = Generation::read(row)?;
            if !earlier.known || earlier.decided == Decided::Ignored as i64 {
                continue;
            }
            let off = earlier.told.off.as_ref().map(|off| off.at);
            let ended = earlier.told.ended.map(|(_, at)| at);
            let until = match off.or(ended) {
                Some(at) => at,
                None if earlier.recurs => Timestamp::MAX,
                None => earlier.fire_at,
            };
            return Ok(until.saturating_add(earlier.retain.unwrap_or(0)) > created_at);
        }
        Ok(false)
    }

    /// Plain triggers whose time W has passed.
    fn woken(&self, partition: PartitionId, cursor: &Cursor) -> Result<Vec<i64>, ViewError> {
        let sql = "SELECT sid FROM listed WHERE partition = ?1 AND wake <= ?2";
        self.sids(sql, &[i64::from(partition), cursor.w.due.cast_signed()])
    }

    fn sids(&self, sql: &str, values: &[i64]) -> Result<Vec<i64>, ViewError> {
        let mut select = self.db.prepare_cached(sql)?;
        let sids = select.query_map(rusqlite::params_from_iter(values), |row| row.get(0))?;
        Ok(sids.collect::<Result<_, _>>()?)
    }
}

impl Generation {
    fn read(row: &SqlRow<'_>) -> Result<Self, ViewError> {
        let number = |at| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(at)?.unwrap_or(0));
        let told: Option<String> = row.get(10)?;
        let told = told.map_or_else(|| Ok(Told::default()), |told| serde_json::from_str(&told));
        Ok(Self {
            gid: row.get(0)?,
            known: row.get(1)?,
            decided: row.get(2)?,
            keeps: number(3)? != 0,
            created_at: number(4)?.cast_unsigned(),
            fire_at: number(5)?.cast_unsigned(),
            priority: u8::try_from(number(6)?).unwrap_or_default(),
            retain: row.get::<_, Option<i64>>(7)?.map(i64::cast_unsigned),
            recurs: row.get(8)?,
            awaits: row.get(9)?,
            told: told.map_err(|error| ViewError::Damaged(error.to_string()))?,
        })
    }
}

/// Whether a place in the lists is that of something registered at `created_at`.
fn stands(place: i64, created_at: Timestamp) -> bool {
    place >> TIE_BITS == created_at.cast_signed()
}

/// The definition in the bytes of a generation.
pub(super) fn read_definition(bytes: &[u8]) -> Result<Definition, ViewError> {
    match row::decode(bytes) {
        Ok(Row::Fire(row)) => Ok(row.definition),
        Ok(_) => Err(ViewError::Damaged("a generation is no fire".to_owned())),
        Err(error) => Err(ViewError::Damaged(error.to_string())),
    }
}
