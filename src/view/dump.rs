//! The content of a view as text in one order, to compare two views.
//!
//! Invariant: numbers that depend on which topic was read first (of ids, of names, of places in
//! lists) are not in it, nor are offsets; the values that they stand for are. Nor is whether the
//! ledger has had a registration that is accepted in any case.

use std::path::Path;

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use super::{ViewError, schema};

/// What is compared: one statement for each kind of row.
const KINDS: [(&str, &str); 6] = [
    (
        "trigger",
        "SELECT s.id, s.partition, l.gid, c.text, t.text, l.status, l.fire_at, l.settled_at, \
         l.executions, l.reason, l.wake FROM listed AS l JOIN subject AS s ON s.sid = l.sid \
         LEFT JOIN name AS c ON c.nid = l.caller LEFT JOIN name AS t ON t.nid = l.target",
    ),
    ("ledger", "SELECT id, partition, row, next FROM subject WHERE row IS NOT NULL OR fresh > 0"),
    (
        "generation",
        "SELECT s.id, g.gid, g.known, iif(g.keeps, g.decided, g.decided = 2), g.created_at, \
         g.fire_at, g.keeps, g.priority, g.expire_after, g.retain, g.schedule, g.after, g.whole, \
         g.row, g.outcomes, g.revision FROM generation AS g JOIN subject AS s ON s.sid = g.sid",
    ),
    (
        "execution",
        "SELECT s.id, e.xid, e.gid, e.occurrence, e.attempt, e.status, e.due, e.at, \
         e.http_status, e.reason, e.retry_at FROM execution AS e \
         JOIN subject AS s ON s.sid = e.sid",
    ),
    (
        "letter",
        "SELECT l.lid, l.at, l.reason, l.trigger, c.text, l.host, l.state, l.replays, l.attempts, \
         l.last_status, l.handled_at FROM letter AS l LEFT JOIN name AS c ON c.nid = l.caller",
    ),
    (
        "circuit",
        "SELECT r.key, c.text, r.state, r.reason, r.since, r.probe_at FROM circuit AS r \
         LEFT JOIN name AS c ON c.nid = r.caller",
    ),
];

/// The lines of the view in `file`, sorted. If the view is being written, each kind of row is read
/// at one moment.
pub fn dump(file: &Path) -> Result<Vec<String>, ViewError> {
    lines(&schema::open_reader(file)?)
}

pub(super) fn lines(db: &Connection) -> Result<Vec<String>, ViewError> {
    let mut lines = Vec::new();
    for (kind, sql) in KINDS {
        let mut select = db.prepare(sql)?;
        let columns = select.column_count();
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let mut line = kind.to_owned();
            for at in 0..columns {
                line.push('|');
                line.push_str(&match row.get_ref(at)? {
                    ValueRef::Null => "-".to_owned(),
                    ValueRef::Integer(number) => number.to_string(),
                    ValueRef::Real(number) => number.to_string(),
                    ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                    ValueRef::Blob(bytes) => {
                        format!("{:032x}", xxhash_rust::xxh3::xxh3_128(bytes))
                    }
                });
            }
            lines.push(line);
        }
    }
    let sql = "SELECT coalesce(c.text, '-'), t.status, t.count FROM tally AS t \
               LEFT JOIN name AS c ON c.nid = t.caller WHERE t.count <> 0";
    let mut select = db.prepare(sql)?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let (caller, status, count): (String, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        lines.push(format!("tally|{caller}|{status}|{count}"));
    }
    lines.sort_unstable();
    Ok(lines)
}
