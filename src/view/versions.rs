//! What defines a trigger that was changed: its registration, its changes, and what the ledger has
//! had of it.
//!
//! Invariant: the definition follows from the versions that are stored, whatever was read first. A
//! change counts when its record is read and its owner is known to have made it. What the ledger
//! has after a change is the whole of it, in place of changes that are not known. A cursor merges
//! the versions that it decides into one: however often a trigger is changed, few are stored.
//!
//! ```text
//!  triggers: registration ─┐
//!            change ───────┼─► version ─► generation (its definition now) ─► listed
//!  outcomes: Changed ──────┤
//!  ledger:   entry ────────┘
//! ```

use rusqlite::{OptionalExtension as _, Row as SqlRow, params};

use super::ViewError;
use super::list_rows::decode_fire;
use super::projector::{
    Projector, decode_position, encode_after, encode_position, encode_remaining,
};
use crate::codec::row;
use crate::engine::cursor::Cursor;
use crate::model::entry::{FireRow, Row};
use crate::model::input::{Change, ChangedParts};
use crate::model::lifecycle::Lifecycle;
use crate::model::{Offset, PartitionId, Timestamp};

/// The parts that a version names, as bits in the database.
const TIME: i64 = 1;
const AFTER: i64 = 2;
const PAYLOAD: i64 = 4;
const KEY: i64 = 8;

/// What one record says of a trigger.
#[derive(Debug)]
struct Version {
    /// The position of the registration or of the change.
    vid: i64,
    /// What the ledger has had since then, and not what the record says.
    held: bool,
    /// What all versions up to this one have made.
    merged: bool,
    /// The parts that it says; of what the ledger has had, those that are not of the entry's state.
    parts: ChangedParts,
    /// When the trigger is due since this version.
    fire_at: Option<i64>,
    priority: u8,
    expire_after: Option<i64>,
    retain: Option<i64>,
    schedule: Option<String>,
    after: Option<String>,
    /// Whether the payload is whole.
    whole: bool,
    row: FireRow,
}

/// What is new among the versions of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NewVersion {
    /// The change at this position.
    Change(i64),
    /// What the ledger has had since the change at this position.
    Held(i64),
    /// The registration.
    Base,
    /// None: all are read, however many there are.
    All,
}

/// The definition of a generation as it is stored.
#[derive(Debug)]
struct StoredDefinition {
    sid: i64,
    /// The position of the newest version that it contains, or 0.
    revision: i64,
    /// A version was not applied.
    stale: bool,
    bytes: Option<Vec<u8>>,
}

impl Projector<'_> {
    /// A record of `triggers` that is to change a trigger.
    pub(super) fn apply_change(
        &mut self,
        partition: PartitionId,
        offset: Offset,
        change: Change,
    ) -> Result<(), ViewError> {
        let Change { new, parts } = change;
        let mut row = FireRow::first(new.id, offset, new.fire_at, new.definition);
        let version = Version {
            vid: encode_position(partition, offset),
            held: false,
            merged: false,
            parts,
            fire_at: None, // its owner decides that
            priority: new.priority,
            expire_after: new.expire_after.map(u64::cast_signed),
            retain: new.retain.map(u64::cast_signed),
            schedule: new.schedule.as_ref().map(|schedule| schedule.to_json()),
            after: new.after.as_deref().map(encode_after),
            whole: self.truncate_payload(&mut row),
            row,
        };
        let vid = version.vid;
        let Some(gid) = self.insert_version(version, None)? else { return Ok(()) };
        let sid = self.redefine(gid, NewVersion::Change(vid))?;
        sid.map_or(Ok(()), |sid| self.refresh_row(sid))
    }

    /// The owner has changed a generation by the record at `revision`: it is due at `fire_at` then.
    pub(super) fn accept_change(
        &mut self,
        gid: i64,
        revision: i64,
        fire_at: Timestamp,
    ) -> Result<(), ViewError> {
        self.store_base(gid)?;
        let sql = "INSERT INTO version (vid, held, gid, fire_at) VALUES (?1, 0, ?2, ?3) \
                   ON CONFLICT (vid, held) DO UPDATE SET gid = ?2, fire_at = ?3 \
                   RETURNING row IS NOT NULL";
        let values = params![revision, gid, fire_at.cast_signed()];
        let mut accept = self.db.prepare_cached(sql)?;
        let is_read: bool = accept.query_row(values, |row| row.get(0))?;
        drop(accept);
        if is_read {
            let _sid = self.redefine(gid, NewVersion::Change(revision))?;
        }
        Ok(())
    }

    /// The ledger holds a generation that was changed: its registration was accepted.
    pub(super) fn hold_version(
        &mut self,
        (sid, gid): (i64, i64),
        timestamp: Timestamp,
        priority: u8,
        mut row: FireRow,
        lifecycle: &Lifecycle,
    ) -> Result<(), ViewError> {
        self.store_base(gid)?;
        let sql = "INSERT INTO generation (gid, sid, known, decided, created_at, keeps) \
                   VALUES (?1, ?2, 1, 1, ?3, 0) \
                   ON CONFLICT (gid) DO UPDATE SET sid = ?2, known = max(known, 1), decided = 1, \
                   waits = iif(announced, waits, 0), created_at = coalesce(created_at, ?3), \
                   keeps = coalesce(keeps, 0)";
        let values = params![gid, sid, timestamp.cast_signed()];
        let _new = self.db.prepare_cached(sql)?.execute(values)?;
        let (partition, _) = decode_position(gid);
        let recurrence = lifecycle.recurrence.as_ref();
        // An entry that has fired has no schedule and no dependencies any more.
        let time = lifecycle.phase.is_waiting();
        let after = time && lifecycle.dependencies_changed;
        let version = Version {
            vid: encode_position(partition, lifecycle.revision.unwrap_or(0)),
            held: true,
            merged: false,
            parts: ChangedParts { time, after, ..ChangedParts::default() },
            fire_at: Some(row.scheduled.cast_signed()),
            priority,
            expire_after: lifecycle.expire_after.map(u64::cast_signed),
            retain: lifecycle.retain.map(u64::cast_signed),
            schedule: recurrence.map(|recurrence| recurrence.schedule.to_json()),
            after: encode_remaining(lifecycle, timestamp),
            whole: self.truncate_payload(&mut row),
            row,
        };
        let vid = version.vid;
        let _gid = self.insert_version(version, Some(gid))?;
        let _sid = self.redefine(gid, NewVersion::Held(vid))?;
        Ok(())
    }

    /// The registration of a generation was stored, or what the ledger has of it: if it was
    /// changed, the changes are made again.
    pub(super) fn repeat_changes(&mut self, gid: i64) -> Result<(), ViewError> {
        let sql = "SELECT 1 FROM version WHERE gid = ?1";
        if !self.db.prepare_cached(sql)?.exists([gid])? {
            return Ok(()); // nearly always
        }
        self.store_base(gid)?;
        let _sid = self.redefine(gid, NewVersion::Base)?;
        Ok(())
    }

    /// Whether a change of a generation after this revision says what it waits for.
    pub(super) fn has_dependencies_since(
        &self,
        gid: i64,
        revision: Offset,
    ) -> Result<bool, ViewError> {
        let (partition, _) = decode_position(gid);
        let sql = "SELECT EXISTS (SELECT 1 FROM version INDEXED BY version_after \
                   WHERE gid = ?1 AND vid > ?2 AND held = 0 AND parts & 2)";
        let key = [gid, encode_position(partition, revision)];
        Ok(self.db.prepare_cached(sql)?.query_row(key, |row| row.get(0))?)
    }

    /// Forgets the changes that the owner has not made: everything is read that it has written
    /// about them.
    pub(super) fn forget_refused_changes(
        &self,
        partition: PartitionId,
        cursor: &Cursor,
    ) -> Result<(), ViewError> {
        let sql = "DELETE FROM version WHERE gid IS NULL AND vid >= ?1 AND vid < ?2";
        let until = encode_position(partition, cursor.decided_until());
        let bounds = [encode_position(partition, 0), until];
        let _deleted = self.db.prepare_cached(sql)?.execute(bounds)?;
        Ok(())
    }

    /// A cursor has decided the changes of a generation before the position `until`: merges their
    /// versions.
    pub(super) fn merge_versions(&mut self, gid: i64, until: i64) -> Result<(), ViewError> {
        if let Some(merged) = self.newest_version(gid, None, until)? {
            let (vid, held) = (merged.vid, merged.held);
            let sql = "DELETE FROM version WHERE gid = ?1 AND vid < ?2";
            let _deleted = self.db.prepare_cached(sql)?.execute([gid, vid])?;
            let sql = "DELETE FROM version WHERE vid = ?1 AND held = ?2";
            let _deleted = self.db.prepare_cached(sql)?.execute(params![vid, held])?;
            let _gid = self.insert_version(Version { merged: true, ..merged }, Some(gid))?;
        }
        let _sid = self.redefine(gid, NewVersion::All)?;
        Ok(())
    }

    /// Stores a version; returns the generation that it is of, if that is known.
    fn insert_version(
        &mut self,
        version: Version,
        gid: Option<i64>,
    ) -> Result<Option<i64>, ViewError> {
        let parts = encode_parts(version.parts);
        let bytes = row::to_bytes(&Row::Fire(version.row), &mut self.cache.row_buffer);
        let sql = "INSERT INTO version (vid, held, gid, parts, fire_at, priority, expire_after, \
                   retain, schedule, after, whole, row, merged) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) \
                   ON CONFLICT (vid, held) DO UPDATE SET gid = coalesce(?3, gid), \
                   parts = parts | ?4, fire_at = coalesce(?5, fire_at), priority = ?6, \
                   expire_after = ?7, retain = ?8, schedule = iif(?4 & 1, ?9, schedule), \
                   after = CASE WHEN ?4 & 2 THEN ?10 WHEN merged THEN after \
                   ELSE coalesce(?10, after) END, whole = ?11, row = ?12 \
                   RETURNING gid";
        let mut insert = self.db.prepare_cached(sql)?;
        let values = params![
            version.vid,
            version.held,
            gid,
            parts,
            version.fire_at,
            version.priority,
            version.expire_after,
            version.retain,
            version.schedule,
            version.after,
            version.whole,
            &*bytes,
            version.merged,
        ];
        Ok(insert.query_row(values, |row| row.get(0))?)
    }

    /// Stores the registration of a generation as its first version, or what the ledger has of it,
    /// if that is what it has now.
    fn store_base(&self, gid: i64) -> Result<(), ViewError> {
        let sql = "INSERT OR REPLACE INTO version (vid, held, gid, fire_at, priority, \
                   expire_after, retain, schedule, after, whole, row) \
                   SELECT gid, known = 1, gid, fire_at, priority, expire_after, retain, schedule, \
                   after, whole, row FROM generation \
                   WHERE gid = ?1 AND known > 0 AND revision = 0";
        let _new = self.db.prepare_cached(sql)?.execute([gid])?;
        Ok(())
    }

    /// Computes the definition of a generation from its versions, if it was changed; returns its
    /// trigger. With many versions the new one is applied to what is stored; if another one is
    /// newer, the next cursor does it.
    fn redefine(&mut self, gid: i64, new: NewVersion) -> Result<Option<i64>, ViewError> {
        let Some(stored) = self.stored_definition(gid)? else { return Ok(None) };
        let StoredDefinition { sid, revision, stale, bytes: before } = stored;
        // Without a registration it is not known what is changed.
        if matches!(new, NewVersion::Change(_)) && before.is_none() {
            return Ok(None);
        }
        // What the ledger has had may be read before the change: then this one is not the newest.
        let vid = match new {
            NewVersion::Change(vid) if vid > revision => Some(vid),
            NewVersion::Held(vid) if vid >= revision => Some(vid),
            _ => None,
        };
        let vid = vid.filter(|_| revision > 0 && !stale);
        let many = new != NewVersion::All && before.is_some() && self.has_many_versions(gid)?;
        if many {
            let sql = "UPDATE generation SET waits = 1, stale = ?2 WHERE gid = ?1";
            let _changed = self.db.prepare_cached(sql)?.execute(params![gid, vid.is_none()])?;
        }
        let (from, until) = match (many, vid) {
            (true, None) => return Ok(None),
            (true, Some(vid)) => (self.stored_version(gid)?, vid + 1),
            (false, _) => (None, i64::MAX),
        };
        let Some(version) = self.newest_version(gid, from, until)? else {
            let sql = "UPDATE generation SET stale = 0 WHERE gid = ?1 AND stale = 1";
            let _changed = self.db.prepare_cached(sql)?.execute([gid])?;
            return Ok(None);
        };
        let bytes = row::to_bytes(&Row::Fire(version.row), &mut self.cache.row_buffer);
        if before.as_deref() != Some(&*bytes) {
            // It is found by other words, or by another target.
            self.unlist(sid)?;
        }
        let sql = "UPDATE generation SET fire_at = ?2, priority = ?3, expire_after = ?4, \
                   retain = ?5, schedule = ?6, after = ?7, whole = ?8, row = ?9, revision = ?10, \
                   stale = 0 WHERE gid = ?1";
        let _changed = self.db.prepare_cached(sql)?.execute(params![
            gid,
            version.fire_at,
            version.priority,
            version.expire_after,
            version.retain,
            version.schedule,
            version.after,
            version.whole,
            &*bytes,
            version.vid,
        ])?;
        Ok(Some(sid))
    }

    fn has_many_versions(&self, gid: i64) -> Result<bool, ViewError> {
        let sql = "SELECT 1 FROM version WHERE gid = ?1 LIMIT 1 OFFSET ?2";
        Ok(self.db.prepare_cached(sql)?.exists([gid, i64::from(self.cache.unmerged_max)])?)
    }

    fn stored_definition(&self, gid: i64) -> Result<Option<StoredDefinition>, ViewError> {
        let sql = "SELECT sid, revision, stale, row FROM generation WHERE gid = ?1";
        let read = |row: &SqlRow<'_>| {
            let (sid, revision, stale) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(StoredDefinition { sid, revision, stale, bytes: row.get(3)? })
        };
        Ok(self.db.prepare_cached(sql)?.query_row([gid], read).optional()?)
    }

    /// What is stored of a generation that was changed, as its newest version.
    fn stored_version(&self, gid: i64) -> Result<Option<Version>, ViewError> {
        let sql = "SELECT revision, NOT EXISTS (SELECT 1 FROM version AS v \
                   WHERE v.vid = g.revision AND v.held = 0 AND v.gid = ?1 AND v.row IS NOT NULL), \
                   0, fire_at, priority, expire_after, retain, schedule, after, whole, row, 1 \
                   FROM generation AS g WHERE gid = ?1";
        let mut select = self.db.prepare_cached(sql)?;
        let mut rows = select.query([gid])?;
        rows.next()?.map(Version::from_row).transpose()
    }

    /// What a generation is after its versions from `from` on and before the position `until`;
    /// `None` if that is its registration alone, or not known.
    fn newest_version(
        &self,
        gid: i64,
        from: Option<Version>,
        until: i64,
    ) -> Result<Option<Version>, ViewError> {
        let sql = "SELECT vid, held, parts, fire_at, priority, expire_after, retain, schedule, \
                   after, whole, row, merged FROM version \
                   WHERE gid = ?1 AND vid >= ?2 AND vid < ?3 AND row IS NOT NULL \
                   ORDER BY vid, held";
        let mut select = self.db.prepare_cached(sql)?;
        let first = from.as_ref().map_or(gid, |from| from.vid);
        let mut rows = select.query([gid, first, until])?;
        let mut newest = from;
        while let Some(row) = rows.next()? {
            let version = Version::from_row(row)?;
            newest = match newest {
                // Without a registration it is not known what is changed.
                None => Some(version)
                    .filter(|version| version.held || version.merged || version.vid == gid),
                Some(before) => Some(before.followed_by(version, gid)),
            };
        }
        let (_, generation) = decode_position(gid);
        Ok(newest.filter(|version| version.vid != gid).map(|version| {
            // Of a row only the definition counts: its entries of the ledger differ.
            let FireRow { id, definition, .. } = version.row;
            let row = FireRow::first(id.trigger, generation, 0, definition);
            Version { row, ..version }
        }))
    }
}

impl Version {
    fn from_row(row: &SqlRow<'_>) -> Result<Self, ViewError> {
        let priority: i64 = row.get(4)?;
        Ok(Self {
            vid: row.get(0)?,
            held: row.get(1)?,
            parts: decode_parts(row.get(2)?),
            fire_at: row.get(3)?,
            priority: u8::try_from(priority).unwrap_or_default(),
            expire_after: row.get(5)?,
            retain: row.get(6)?,
            schedule: row.get(7)?,
            after: row.get(8)?,
            whole: row.get(9)?,
            row: decode_fire(row.get_ref(10)?.as_blob().unwrap_or_default())?,
            merged: row.get(11)?,
        })
    }

    /// What the next version of the generation `gid` makes of this one.
    fn followed_by(self, next: Self, gid: i64) -> Self {
        match next.held {
            // The registration says the same as the ledger's first entry.
            true if next.vid == gid => self,
            true if next.vid == self.vid && !self.held => self.confirmed_by(next),
            // Changes up to here are not known.
            true => Self {
                schedule: if next.parts.time { next.schedule } else { self.schedule },
                after: if next.parts.after { next.after } else { self.after },
                ..next
            },
            false if next.merged => next,
            false => self.changed_by(next),
        }
    }

    fn changed_by(mut self, change: Self) -> Self {
        let parts = change.parts;
        parts.apply_to(&mut self.row.definition, change.row.definition);
        if parts.payload {
            self.whole = change.whole;
        }
        if parts.after {
            self.after = change.after;
        }
        if parts.time {
            self.schedule = change.schedule;
        }
        // A schedule says what happens to what is late.
        self.expire_after = change.expire_after.filter(|_| self.schedule.is_none());
        self.fire_at = change.fire_at.or(self.fire_at);
        (self.vid, self.priority, self.retain) = (change.vid, change.priority, change.retain);
        (self.held, self.parts) = (false, parts);
        self
    }

    /// What the ledger has had since the same change: changes before it may not be known.
    fn confirmed_by(mut self, held: Self) -> Self {
        self.row.definition = held.row.definition;
        if held.parts.time {
            self.schedule = held.schedule;
        }
        (self.whole, self.priority) = (held.whole, held.priority);
        (self.expire_after, self.retain) = (held.expire_after, held.retain);
        self
    }
}

fn encode_parts(parts: ChangedParts) -> i64 {
    let ChangedParts { time, after, payload, key } = parts;
    let named = [(time, TIME), (after, AFTER), (payload, PAYLOAD), (key, KEY)];
    named.into_iter().filter(|(is_named, _)| *is_named).map(|(_, bit)| bit).sum()
}

fn decode_parts(bits: i64) -> ChangedParts {
    ChangedParts {
        time: bits & TIME != 0,
        after: bits & AFTER != 0,
        payload: bits & PAYLOAD != 0,
        key: bits & KEY != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_as_they_were_written() {
        for bits in 0..16 {
            assert_eq!(encode_parts(decode_parts(bits)), bits);
        }
        // Statements have these two as numbers.
        assert_eq!((TIME, AFTER), (1, 2));
    }
}
