//! The database: its tables, its identity, and whether it can be used.
//!
//! Invariant: everything in it can be rebuilt from the topics. A file of another version, of
//! another cluster or installation, a damaged one, or one that may have missed a tombstone, is
//! deleted and rebuilt; nothing is migrated.
//!
//! ```text
//!  subject 1 ── n generation       facts: what the records say
//!  execution, letter, circuit      facts, as they are queried
//!  listed, words, tally            derived from the facts, for lists and counts
//!  position, cursor                what was read, in the same transaction as the facts
//! ```

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension as _};

use super::ViewError;
use crate::model::Timestamp;
use crate::model::time::format_time;

/// Increased whenever tables, or what is written into them, change.
const VERSION: i64 = 11;
/// How long a statement waits for another connection's lock, in ms. Readers never wait; the writer
/// may, for a checkpoint.
const BUSY_MS: u64 = 5_000;
/// Page cache of the writer: 64 MiB. Random ids go into a b-tree of their own.
const WRITER_CACHE_KIB: i64 = 65_536;
/// Page cache of a reader: 16 MiB.
const READER_CACHE_KIB: i64 = 16_384;

/// The bits of the offset in a position as one number; the partition is in the bits above.
pub(super) const OFFSET_BITS: u32 = 44;

const TABLES: &str = "
-- `identity` names cluster and installation. `as_of`, in ms since the epoch, is when everything was
-- read for the last time; before the first time, when reading started.
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE position (
  source INTEGER NOT NULL, partition INTEGER NOT NULL, next INTEGER NOT NULL,
  PRIMARY KEY (source, partition)
) WITHOUT ROWID;
CREATE TABLE cursor (
  partition INTEGER PRIMARY KEY, offset INTEGER NOT NULL, metadata TEXT NOT NULL
);
CREATE TABLE name (nid INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);

-- A trigger id. `row` is its ledger entry, and `next` a newer one, which is applied once
-- everything is read that its owner wrote with it; `fresh` is the offset after the newer one.
CREATE TABLE subject (
  sid INTEGER PRIMARY KEY, id TEXT NOT NULL, partition INTEGER NOT NULL,
  row TEXT, next TEXT, fresh INTEGER NOT NULL DEFAULT 0,
  UNIQUE (id, partition)
);
CREATE INDEX subject_fresh ON subject (partition, fresh) WHERE fresh > 0;

-- A registration, and its outcomes. `gid` is its position in `triggers`. One that `keeps` may be
-- ignored: it is accepted if nothing is pending, or if `wanted` is, the `gid` that it replaces; by
-- 2, if it repeats no other one.
-- `past` is roughly when it was replaced or ignored. `revision` is the position of the newest
-- change in its definition, or 0, and `announced` that of the newest one by the outcomes. It is
-- `stale` if another change is to be applied, too.
CREATE TABLE generation (
  gid INTEGER PRIMARY KEY, sid INTEGER NOT NULL,
  known INTEGER NOT NULL DEFAULT 0, decided INTEGER NOT NULL DEFAULT 0,
  waits INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER, fire_at INTEGER, keeps INTEGER, wanted INTEGER, priority INTEGER,
  expire_after INTEGER, retain INTEGER, schedule TEXT, after TEXT,
  whole INTEGER, row BLOB, outcomes TEXT, past INTEGER,
  revision INTEGER NOT NULL DEFAULT 0, announced INTEGER NOT NULL DEFAULT 0,
  stale INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX generation_subject ON generation (sid, gid);
-- One of an id at most, however often it was replaced, and those that may still be ignored.
CREATE INDEX generation_current ON generation (sid, gid) WHERE past IS NULL;
-- Without those of which outcomes alone are read, and those that are ignored or may be.
CREATE INDEX generation_accepted ON generation (sid, gid)
  WHERE known > 0 AND (decided = 1 OR decided = 0 AND keeps = 0);
CREATE INDEX generation_waits ON generation (gid) WHERE waits = 1;
CREATE INDEX generation_undecided ON generation (sid, gid) WHERE waits = 1;
CREATE INDEX generation_past ON generation (past) WHERE past IS NOT NULL;
CREATE TABLE skip (gid INTEGER PRIMARY KEY);

-- What a record says of a generation that was changed. `vid` is the position of its registration or
-- of a change, whether it is that record itself or what the ledger has held since. `gid` is null
-- while the owner is not known to have made the change, and `row` while its record is not read.
-- `merged` is 1 if it is what all decided versions up to it have made.
CREATE TABLE version (
  vid INTEGER NOT NULL, held INTEGER NOT NULL, gid INTEGER,
  parts INTEGER NOT NULL DEFAULT 0, fire_at INTEGER, priority INTEGER, expire_after INTEGER,
  retain INTEGER, schedule TEXT, after TEXT, whole INTEGER, row BLOB,
  merged INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (vid, held)
) WITHOUT ROWID;
CREATE INDEX version_generation ON version (gid, vid, held);
CREATE INDEX version_after ON version (gid, vid) WHERE held = 0 AND parts & 2;
CREATE INDEX version_refused ON version (vid) WHERE gid IS NULL;

-- A record at `gid` about the trigger `id` names a schema of a registry, and may be parked.
CREATE TABLE schema_use (
  gid INTEGER PRIMARY KEY, id TEXT NOT NULL, schema INTEGER NOT NULL
);
CREATE INDEX schema_use_id ON schema_use (id, schema, gid);

-- `xid` is the position of its outcome.
CREATE TABLE execution (
  xid INTEGER PRIMARY KEY, sid INTEGER NOT NULL, gid INTEGER NOT NULL,
  occurrence INTEGER NOT NULL, attempt INTEGER NOT NULL, status INTEGER NOT NULL,
  due INTEGER, at INTEGER NOT NULL, http_status INTEGER, reason TEXT, retry_at INTEGER
);
CREATE INDEX execution_subject ON execution (sid, status);
CREATE INDEX execution_generation ON execution (gid);
CREATE INDEX execution_at ON execution (at);

CREATE TABLE letter (
  lid INTEGER PRIMARY KEY, at INTEGER NOT NULL, reason TEXT NOT NULL, trigger TEXT,
  caller INTEGER NOT NULL, host TEXT, state INTEGER NOT NULL, replays INTEGER NOT NULL,
  attempts INTEGER, last_status INTEGER, handled_at INTEGER
);
CREATE INDEX letter_state ON letter (state, at);
CREATE INDEX letter_caller ON letter (caller, state, at);
CREATE INDEX letter_handled ON letter (handled_at) WHERE handled_at IS NOT NULL;

CREATE TABLE circuit (
  key TEXT PRIMARY KEY, worker TEXT NOT NULL, caller INTEGER NOT NULL, host TEXT NOT NULL,
  state INTEGER NOT NULL, reason TEXT NOT NULL, since INTEGER NOT NULL, probe_at INTEGER
) WITHOUT ROWID;
CREATE INDEX circuit_caller ON circuit (caller);
CREATE INDEX circuit_since ON circuit (since);

-- A trigger as lists show it. `place` grows with the time of its registration.
CREATE TABLE listed (
  place INTEGER PRIMARY KEY, sid INTEGER NOT NULL UNIQUE, gid INTEGER NOT NULL,
  partition INTEGER NOT NULL, caller INTEGER NOT NULL, target INTEGER NOT NULL,
  status INTEGER NOT NULL, fire_at INTEGER NOT NULL, wake INTEGER, settled_at INTEGER,
  executions INTEGER NOT NULL, reason TEXT
);
CREATE INDEX listed_status ON listed (status);
CREATE INDEX listed_caller ON listed (caller, status);
CREATE INDEX listed_target ON listed (target, status);
CREATE INDEX listed_caller_target ON listed (caller, target, status);
CREATE INDEX listed_due ON listed (fire_at);
CREATE INDEX listed_caller_due ON listed (caller, fire_at);
CREATE INDEX listed_wake ON listed (partition, wake) WHERE wake IS NOT NULL;
CREATE INDEX listed_in_flight ON listed (fire_at) WHERE status = 3;
CREATE INDEX listed_settled ON listed (settled_at) WHERE settled_at IS NOT NULL;
CREATE TABLE tally (
  caller INTEGER NOT NULL, status INTEGER NOT NULL, count INTEGER NOT NULL,
  PRIMARY KEY (caller, status)
) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5(
  tokens, content='', contentless_delete=1, detail=none, tokenize='ascii'
);
";

/// Opens the database that the view writes, or creates it; `identity` names cluster and
/// installation. One that was read for the last time `age_max` before `now` (ms since the epoch)
/// is refused. Returns whether it is new.
pub(super) fn open(
    path: &Path,
    identity: &str,
    now: Timestamp,
    age_max: Duration,
) -> Result<(Connection, bool), ViewError> {
    let connection = Connection::open(path)?;
    configure(&connection, WRITER_CACHE_KIB)?;
    let _mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    connection.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 4000;")?;
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version == 0 {
        create_tables(&connection, identity, now)?;
        return Ok((connection, true));
    }
    if version != VERSION {
        return Err(ViewError::Incompatible(format!("its version is {version}, not {VERSION}")));
    }
    let sql = "SELECT value FROM meta WHERE key = 'identity'";
    let found: String = connection.query_row(sql, [], |row| row.get(0))?;
    if found != identity {
        return Err(ViewError::Incompatible(format!("it is of {found}, not of {identity}")));
    }
    check_age(&connection, now, age_max)?;
    Ok((connection, false))
}

/// Refuses a file that was not read for so long that the ledger may have deleted tombstones that it
/// has not read: it would show what they removed for ever.
fn check_age(connection: &Connection, now: Timestamp, age_max: Duration) -> Result<(), ViewError> {
    let sql = "SELECT value FROM meta WHERE key = 'as_of'";
    let as_of: Option<String> = connection.query_row(sql, [], |row| row.get(0)).optional()?;
    let Some(as_of) = as_of.and_then(|text| text.parse::<Timestamp>().ok()) else {
        return Err(ViewError::Outdated("it does not say when it was read".to_owned()));
    };
    check_gap(as_of, now, age_max)
}

/// The same if nothing was read from `as_of` until `now`, both in ms since the epoch: it may be
/// that brokers could not be reached.
pub(super) fn check_gap(
    as_of: Timestamp,
    now: Timestamp,
    age_max: Duration,
) -> Result<(), ViewError> {
    if u128::from(now.saturating_sub(as_of)) < age_max.as_millis() {
        return Ok(());
    }
    let what = "everything was read for the last time";
    let (at, age) = (format_time(as_of), "longer ago than store.state_age_max");
    Err(ViewError::Outdated(format!("{what} at {at}, {age}")))
}

/// Creates the tables in an empty database; `now` is in ms since the epoch.
pub(super) fn create_tables(
    connection: &Connection,
    identity: &str,
    now: Timestamp,
) -> Result<(), ViewError> {
    connection.execute_batch(&format!("BEGIN; {TABLES} PRAGMA user_version = {VERSION};"))?;
    for (key, value) in [("identity", identity), ("as_of", now.to_string().as_str())] {
        let _new = connection.execute("INSERT INTO meta VALUES (?1, ?2)", [key, value])?;
    }
    connection.execute_batch("COMMIT")?;
    Ok(())
}

/// Stores that everything was read at `as_of`, in ms since the epoch.
pub(super) fn save_as_of(connection: &Connection, as_of: Timestamp) -> Result<(), ViewError> {
    let sql = "UPDATE meta SET value = ?1 WHERE key = 'as_of'";
    let _changed = connection.prepare_cached(sql)?.execute([as_of.to_string()])?;
    Ok(())
}

/// Opens the database for queries.
pub(super) fn open_reader(path: &Path) -> Result<Connection, ViewError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    configure(&connection, READER_CACHE_KIB)?;
    Ok(connection)
}

fn configure(connection: &Connection, cache_kib: i64) -> Result<(), ViewError> {
    connection.busy_timeout(Duration::from_millis(BUSY_MS))?;
    connection.set_prepared_statement_cache_capacity(128);
    connection.execute_batch(&format!(
        "PRAGMA cache_size = -{cache_kib}; PRAGMA temp_store = MEMORY; PRAGMA foreign_keys = OFF;"
    ))?;
    Ok(())
}
