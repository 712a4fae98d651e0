//! Queries of the database: single rows, and lists page by page.
//!
//! Invariant: every query uses an index. A list reads one index, or several of the same order at
//! once, from where the last page ended; it reads at most [`CANDIDATES_MAX`] rows and returns a
//! short page if that was not enough. The caller whose triggers may be seen is the first part of
//! the index, never a filter after it.

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension as _, Row as SqlRow, params, params_from_iter};

use super::ViewError;
use super::filter::{Listing, Page, PageToken, Scope, query_hash};
use super::list_rows::decode_definition;
use super::projector::{decode_after, decode_position, encode_position, find_name_id};
use super::results::{
    ExecutionStatus, ExecutionView, Overdue, RegistrationView, Status, TriggerView,
};
use super::search::SearchAttributes;
use super::status::LedgerFacts;
use crate::model::{Offset, PartitionId, Timestamp};

/// Rows that are read for one page. Each takes a few microseconds.
pub(super) const CANDIDATES_MAX: usize = 2_000;

/// The key of an item in its list: its sort key, and a tie-breaker.
pub(super) type ListPosition = (i64, i64);

/// Before the first page.
pub(super) const LIST_START: ListPosition = (i64::MAX, i64::MAX);

/// Ways down an index: each statement with its values, all of them in the same order.
pub(super) type IndexScans = Vec<(&'static str, Vec<Value>)>;

/// One connection for queries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queries<'a>(pub(super) &'a Connection);

/// A trigger from the database, and its key.
#[derive(Debug)]
pub(super) struct TriggerRow {
    pub(super) sid: i64,
    pub(super) gid: i64,
    pub(super) view: TriggerView,
}

impl Queries<'_> {
    /// The number of the caller whose rows may be seen: `None` for everyone's; `Err` if that caller
    /// is unknown, so that nothing can be seen.
    pub(super) fn visible_caller(
        &self,
        scope: &Scope,
        wanted: Option<&String>,
    ) -> Result<Result<Option<i64>, ()>, ViewError> {
        let name = match (scope, wanted) {
            (Scope::All, None) => return Ok(Ok(None)),
            (Scope::Caller(own), Some(other)) if own != other => return Ok(Err(())),
            (Scope::Caller(name), _) | (Scope::All, Some(name)) => name,
        };
        Ok(find_name_id(self.0, name)?.map(Some).ok_or(()))
    }

    /// The trigger with this id.
    pub(super) fn trigger(&self, scope: &Scope, id: &str) -> Result<Option<TriggerRow>, ViewError> {
        let Ok(caller) = self.visible_caller(scope, None)? else { return Ok(None) };
        let sql = "SELECT l.place, l.caller FROM subject AS s JOIN listed AS l ON l.sid = s.sid \
                   WHERE s.id = ?1";
        let mut select = self.0.prepare_cached(sql)?;
        let rows = select.query_map([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let rows: Vec<(i64, i64)> = rows.collect::<Result<_, _>>()?;
        // There may be several, one a partition: the newest is returned.
        let newest = rows.into_iter().max();
        let Some((place, owner)) = newest else { return Ok(None) };
        if caller.is_some_and(|caller| caller != owner) {
            return Ok(None);
        }
        let Some(mut found) = self.trigger_row(place)? else { return Ok(None) };
        self.load_last_execution(&mut found)?;
        Ok(Some(found))
    }

    /// Whether a registration of this id is read of which it is not known yet if its owner ignores
    /// it: until then what is listed may be older.
    pub(super) fn has_undecided(&self, id: &str) -> Result<bool, ViewError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM subject AS s \
                   JOIN generation AS g INDEXED BY generation_undecided ON g.sid = s.sid \
                   LEFT JOIN listed AS l ON l.sid = s.sid \
                   WHERE s.id = ?1 AND g.waits = 1 AND g.keeps > 0 AND g.decided = 0 \
                   AND g.gid > coalesce(l.gid, -1))";
        Ok(self.0.prepare_cached(sql)?.query_row([id], |row| row.get(0))?)
    }

    /// The trigger at this place of the lists, without its last execution.
    pub(super) fn trigger_row(&self, place: i64) -> Result<Option<TriggerRow>, ViewError> {
        let sql = "SELECT l.sid, l.gid, s.id, l.status, l.fire_at, l.settled_at, l.executions, \
                   l.reason, g.created_at, g.priority, g.expire_after, g.retain, g.schedule, \
                   g.after, g.whole, g.row, g.revision, g.announced, c.offset, \
                   iif(g.schedule IS NULL, NULL, s.row), g.stale \
                   FROM listed AS l JOIN generation AS g ON g.gid = l.gid \
                   JOIN subject AS s ON s.sid = l.sid \
                   LEFT JOIN cursor AS c ON c.partition = l.partition WHERE l.place = ?1";
        let mut select = self.0.prepare_cached(sql)?;
        let mut rows = select.query([place])?;
        rows.next()?.map(trigger_row_from).transpose()
    }

    /// Adds the last execution.
    pub(super) fn load_last_execution(&self, found: &mut TriggerRow) -> Result<(), ViewError> {
        found.view.last_execution = match self.implied_execution(found)? {
            Some(implied) => Some(implied),
            None => self.newest_execution(found.gid, None)?,
        };
        Ok(())
    }

    /// The execution of a trigger that has fired and has no outcome yet.
    fn implied_execution(&self, found: &TriggerRow) -> Result<Option<ExecutionView>, ViewError> {
        let implied = match found.view.status {
            Status::Fired => ExecutionStatus::Fired,
            Status::InFlight => ExecutionStatus::InFlight,
            _ => return Ok(None),
        };
        if found.view.schedule.is_some() || self.awaited_execution(found)?.is_some() {
            return Ok(None);
        }
        Ok(unknown_execution(&found.view, implied))
    }

    /// What is known of the last occurrence, the newest attempt.
    fn awaited_execution(&self, found: &TriggerRow) -> Result<Option<ExecutionView>, ViewError> {
        self.newest_execution(found.gid, Some(last_occurrence(&found.view)))
    }

    /// The newest execution of a generation, or of one of its occurrences.
    fn newest_execution(
        &self,
        gid: i64,
        occurrence: Option<u32>,
    ) -> Result<Option<ExecutionView>, ViewError> {
        let sql = "SELECT gid, occurrence, attempt, status, due, at, http_status, reason, retry_at \
                   FROM execution INDEXED BY execution_generation \
                   WHERE gid = ?1 AND occurrence = coalesce(?2, occurrence) \
                   ORDER BY xid DESC LIMIT 1";
        let mut select = self.0.prepare_cached(sql)?;
        Ok(select.query_row(params![gid, occurrence], execution_from).optional()?)
    }

    /// The executions of a trigger, the newest first; `None` if there is no such trigger.
    pub(super) fn executions(
        &self,
        scope: &Scope,
        id: &str,
        status: Option<ExecutionStatus>,
        page: &Page,
    ) -> Result<Option<Listing<ExecutionView>>, ViewError> {
        let query = query_hash(&("executions", scope, id, status));
        let after = page_start(page, query)?;
        let Some(found) = self.trigger(scope, id)? else { return Ok(None) };
        let sql = "SELECT xid, 0 FROM execution INDEXED BY execution_subject \
                   WHERE sid = ?1 AND status = ?2 AND xid < ?3 ORDER BY xid DESC LIMIT ?4";
        let statuses = status.map_or_else(|| ExecutionStatus::ALL.to_vec(), |one| vec![one]);
        let limit = page.len() + 1;
        let scans = statuses.into_iter().map(|status| {
            let values = [found.sid, status.number(), after.0, sql_count(limit)];
            (sql, values.map(Value::from).to_vec())
        });
        let mut keys = self.scan_positions(scans.collect(), limit)?;
        let more = keys.len() == limit;
        keys.truncate(page.len());
        let next = keys.last().filter(|_| more).map(|last| PageToken::new(query, *last));
        // An execution without an outcome is the newest one.
        let implied = self.implied_execution(&found)?;
        let is_listed = |one: &ExecutionView| {
            page.token.is_none() && status.is_none_or(|status| status == one.status)
        };
        let mut items = Vec::with_capacity(keys.len() + 1);
        items.extend(implied.filter(is_listed));
        for (xid, _) in keys {
            items.extend(self.execution(xid)?);
        }
        Ok(Some(Listing { items, next }))
    }

    fn execution(&self, xid: i64) -> Result<Option<ExecutionView>, ViewError> {
        let sql = "SELECT gid, occurrence, attempt, status, due, at, http_status, reason, retry_at \
                   FROM execution WHERE xid = ?1";
        Ok(self.0.prepare_cached(sql)?.query_row([xid], execution_from).optional()?)
    }

    /// The registration of a trigger with this generation.
    pub(super) fn registration(
        &self,
        id: &str,
        generation: Offset,
    ) -> Result<Option<RegistrationView>, ViewError> {
        let mut select =
            self.0.prepare_cached("SELECT sid, partition FROM subject WHERE id = ?1")?;
        let rows = select.query_map([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let subjects: Vec<(i64, PartitionId)> = rows.collect::<Result<_, _>>()?;
        let sql = "SELECT fire_at, row FROM generation WHERE gid = ?1 AND sid = ?2 AND known > 0";
        let mut select = self.0.prepare_cached(sql)?;
        for (sid, partition) in subjects {
            let key = params![encode_position(partition, generation), sid];
            let read = |row: &SqlRow<'_>| Ok((row.get(0)?, row.get(1)?));
            let found: Option<(i64, Vec<u8>)> = select.query_row(key, read).optional()?;
            if let Some((fire_at, bytes)) = found {
                let definition = decode_definition(&bytes)?;
                return Ok(Some(RegistrationView {
                    fire_at: fire_at.cast_unsigned(),
                    fingerprint: SearchAttributes::of(&definition).fingerprint,
                    caller: definition.caller.map(|caller| caller.to_string()),
                }));
            }
        }
        Ok(None)
    }

    /// How many triggers of a caller are not settled.
    pub(super) fn pending_count(&self, caller: &str) -> Result<u64, ViewError> {
        let Some(caller) = find_name_id(self.0, caller)? else { return Ok(0) };
        let sql = "SELECT status, count FROM tally WHERE caller = ?1";
        let mut select = self.0.prepare_cached(sql)?;
        let rows = select.query_map([caller], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut pending = 0;
        for row in rows {
            let (status, count): (i64, i64) = row?;
            if Status::of_number(status).is_some_and(|status| !status.is_settled()) {
                pending += u64::try_from(count).unwrap_or(0);
            }
        }
        Ok(pending)
    }

    /// Callbacks that have not ended and whose next attempt is past, the latest first.
    pub(super) fn overdue(
        &self,
        before: Timestamp,
        page: &Page,
    ) -> Result<Listing<Overdue>, ViewError> {
        let query = query_hash(&("overdue", before));
        let after = page_start(page, query)?;
        let same = "SELECT fire_at, place FROM listed INDEXED BY listed_in_flight \
                    WHERE status = 3 AND fire_at = ?1 AND place < ?2 \
                    ORDER BY place DESC LIMIT ?3";
        let earlier = "SELECT fire_at, place FROM listed INDEXED BY listed_in_flight \
                       WHERE status = 3 AND fire_at < ?1 \
                       ORDER BY fire_at DESC, place DESC LIMIT ?2";
        let limit = sql_count(CANDIDATES_MAX);
        let from = after.0.min(before.cast_signed());
        let mut scans: IndexScans = vec![(earlier, vec![from.into(), limit.into()])];
        if from == after.0 {
            scans.push((same, vec![after.0.into(), after.1.into(), limit.into()]));
        }
        self.read_page(page, query, scans, CANDIDATES_MAX, |queries, (_, place)| {
            let Some(mut found) = queries.trigger_row(place)? else { return Ok(None) };
            found.view.last_execution = match queries.awaited_execution(&found)? {
                Some(last) => Some(last),
                None => unknown_execution(&found.view, ExecutionStatus::InFlight),
            };
            let retry = found.view.last_execution.as_ref().and_then(|last| last.retry_at);
            let since = found.view.fire_at.unwrap_or(0).max(retry.unwrap_or(0));
            Ok((since < before).then_some(Overdue { trigger: found.view, since }))
        })
    }

    /// A page of what the keys of `ways` lead to, as far as `read` takes it.
    pub(super) fn read_page<T>(
        &self,
        page: &Page,
        query: u64,
        scans: IndexScans,
        limit: usize,
        mut read: impl FnMut(&Self, ListPosition) -> Result<Option<T>, ViewError>,
    ) -> Result<Listing<T>, ViewError> {
        let keys = self.scan_positions(scans, limit)?;
        let (mut items, mut last, mut examined) = (Vec::new(), None, 0);
        for key in &keys {
            if items.len() == page.len() {
                break;
            }
            items.extend(read(self, *key)?);
            (last, examined) = (Some(*key), examined + 1);
        }
        let more = examined < keys.len() || keys.len() == limit;
        let next = last.filter(|_| more).map(|last| PageToken::new(query, last));
        Ok(Listing { items, next })
    }

    /// The first keys of all ways, in falling order, at most `limit`.
    pub(super) fn scan_positions(
        &self,
        scans: IndexScans,
        limit: usize,
    ) -> Result<Vec<ListPosition>, ViewError> {
        let mut keys = Vec::new();
        for (sql, values) in scans {
            let mut select = self.0.prepare_cached(sql)?;
            let mut rows = select.query(params_from_iter(values))?;
            while let Some(row) = rows.next()? {
                keys.push((row.get(0)?, row.get(1)?));
            }
        }
        keys.sort_unstable_by(|a: &ListPosition, b| b.cmp(a));
        keys.truncate(limit);
        Ok(keys)
    }
}

/// A count as the database takes it.
pub(super) fn sql_count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Where a page starts.
pub(super) fn page_start(page: &Page, query: u64) -> Result<ListPosition, ViewError> {
    Ok(page.token.map_or(Ok(LIST_START), |token| token.position(query))?)
}

/// The number of the last occurrence that has fired.
fn last_occurrence(trigger: &TriggerView) -> u32 {
    trigger.executions.saturating_sub(1)
}

/// The last execution of a trigger, if nothing is known of it.
fn unknown_execution(trigger: &TriggerView, status: ExecutionStatus) -> Option<ExecutionView> {
    let due = trigger.fire_at?;
    Some(ExecutionView {
        generation: trigger.generation,
        occurrence: last_occurrence(trigger),
        attempt: 1,
        status,
        due: Some(due),
        at: trigger.settled_at.unwrap_or(due),
        http_status: None,
        reason: None,
        retry_at: None,
    })
}

fn trigger_row_from(row: &SqlRow<'_>) -> Result<TriggerRow, ViewError> {
    let gid: i64 = row.get(1)?;
    let time =
        |at| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(at)?.map(i64::cast_unsigned));
    let definition = decode_definition(row.get_ref(15)?.as_blob().unwrap_or_default())?;
    let attributes = SearchAttributes::of(&definition);
    let after: Option<String> = row.get(13)?;
    let status = Status::of_number(row.get(3)?);
    let status = status.ok_or_else(|| ViewError::Corrupt("a status has no name".to_owned()))?;
    let (partition, generation) = decode_position(gid);
    let held: Option<String> = row.get(19)?;
    let held = held.map(|text| serde_json::from_str::<LedgerFacts>(&text)).transpose();
    let held = held.map_err(|error| ViewError::Corrupt(error.to_string()))?;
    let held = held.filter(|held| held.generation == generation);
    let (revision, announced, stale): (i64, i64, bool) = (row.get(16)?, row.get(17)?, row.get(20)?);
    let (_, announced_offset) = decode_position(announced);
    // Everything below is read.
    let read_until = time(18)?.unwrap_or(0);
    let view = TriggerView {
        id: row.get(2)?,
        generation,
        revision: decode_position(gid.max(revision)).1,
        is_behind: stale || announced > revision && announced_offset >= read_until,
        partition,
        caller: definition.caller.as_ref().map(ToString::to_string),
        status,
        name: attributes.name,
        labels: attributes.labels,
        definition,
        payload_is_complete: row.get(14)?,
        schedule: row.get(12)?,
        after: after.as_deref().and_then(decode_after),
        expire_after: time(10)?,
        retain: time(11)?,
        priority: row.get(9)?,
        fire_at: time(4)?,
        created_at: time(8)?.unwrap_or(0),
        settled_at: time(5)?,
        executions: row.get(6)?,
        counted_from: held.map_or(0, |held| held.counted_from),
        last_execution: None,
        reason: row.get(7)?,
    };
    Ok(TriggerRow { sid: row.get(0)?, gid, view })
}

fn execution_from(row: &SqlRow<'_>) -> rusqlite::Result<ExecutionView> {
    let time =
        |at| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(at)?.map(i64::cast_unsigned));
    let (_, generation) = decode_position(row.get(0)?);
    Ok(ExecutionView {
        generation,
        occurrence: row.get(1)?,
        attempt: row.get(2)?,
        status: ExecutionStatus::of_number(row.get(3)?).unwrap_or(ExecutionStatus::Failed),
        due: time(4)?,
        at: row.get::<_, i64>(5)?.cast_unsigned(),
        http_status: row.get(6)?,
        reason: row.get(7)?,
        retry_at: time(8)?,
    })
}
