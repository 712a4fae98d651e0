//! Lists with filters: triggers, dead letters, circuits.
//!
//! Invariant: the index is chosen here, by what selects the fewest rows: words and labels, then the
//! time of the fire, then the target, then the status. Conditions that the index does not cover are
//! checked on each row.

use std::collections::BTreeSet;

use rusqlite::Row as SqlRow;
use rusqlite::types::Value;

use super::ViewError;
use super::event_rows::circuit_state;
use super::filter::{DeadLetterFilter, Listing, Page, Scope, TriggerFilter, query_hash};
use super::projector::{decode_position, encode_position, find_name_id};
use super::queries::{CANDIDATES_MAX, IndexScans, ListPosition, Queries, page_start, sql_count};
use super::results::{CircuitView, DeadLetterView, LetterState, Status, TriggerView};
use super::search::{SearchAttributes, SearchTerm, all_words, split_words, target_of};

/// Circuits that are shown at most: 100 workers with a hundred each.
const CIRCUITS_MAX: i64 = 10_000;
/// Words and labels of a search among which the rarest is chosen for the index; the others are only
/// compared.
const SEARCH_TERMS_MAX: usize = 8;
/// Nothing has a later time than this, in ms since the epoch.
const TIME_MAX: i64 = i64::MAX;

/// The conditions of a filter that must be checked on each row.
struct ResidualFilter<'a> {
    filter: &'a TriggerFilter,
    words: BTreeSet<String>,
}

impl ResidualFilter<'_> {
    fn matches(&self, view: &TriggerView) -> bool {
        let filter = self.filter;
        let due = view.fire_at.unwrap_or(0);
        let label =
            |(key, value): &(String, String)| view.labels.get(key).is_some_and(|v| v == value);
        (filter.statuses.is_empty() || filter.statuses.contains(&view.status))
            && filter.from.is_none_or(|from| due >= from)
            && filter.until.is_none_or(|until| due < until)
            && filter.target.as_ref().is_none_or(|target| *target == target_of(&view.definition))
            && filter.labels.iter().all(label)
            && self.matches_words(view)
    }

    fn matches_words(&self, view: &TriggerView) -> bool {
        if self.words.is_empty() {
            return true;
        }
        let (name, labels) = (view.name.clone(), view.labels.clone());
        let attributes = SearchAttributes { name, labels, fingerprint: None };
        self.words.is_subset(&all_words(&view.id, &attributes, &view.definition))
    }
}

impl Queries<'_> {
    /// Triggers, the newest registration first; of those due within a time, the latest due first.
    pub(super) fn triggers(
        &self,
        scope: &Scope,
        filter: &TriggerFilter,
        page: &Page,
    ) -> Result<Listing<TriggerView>, ViewError> {
        let query = query_hash(&("triggers", scope, filter));
        let after = page_start(page, query)?;
        let Ok(caller) = self.visible_caller(scope, filter.caller.as_ref())? else {
            return Ok(Listing { items: Vec::new(), next: None });
        };
        let words: BTreeSet<String> =
            filter.text.as_deref().map(split_words).into_iter().flatten().collect();
        let labels = filter.labels.iter().map(|(key, value)| SearchTerm::Label(key, value));
        let sought = words.iter().map(|word| SearchTerm::Text(word)).chain(labels);
        let limit = CANDIDATES_MAX;
        let scans = match self.scans_by_rarest_term(caller, sought, after)? {
            Some(ways) => ways,
            None if filter.from.or(filter.until).is_some() => {
                scans_by_due_time(caller, filter, after)
            }
            None => match self.scans_by_status(caller, filter, after)? {
                Some(ways) => ways,
                None => return Ok(Listing { items: Vec::new(), next: None }),
            },
        };
        let rest = ResidualFilter { filter, words };
        self.read_page(page, query, scans, limit, |queries, (major, minor)| {
            let place = if minor == 0 { major } else { minor };
            let found = queries.trigger_row(place)?.filter(|found| rest.matches(&found.view));
            let Some(mut found) = found else { return Ok(None) };
            queries.load_last_execution(&mut found)?;
            Ok(Some(found.view))
        })
    }

    /// Reads the places of the word with the fewest places, down from the newest; `None` if no word
    /// is searched.
    fn scans_by_rarest_term<'w>(
        &self,
        caller: Option<i64>,
        words: impl Iterator<Item = SearchTerm<'w>>,
        after: ListPosition,
    ) -> Result<Option<IndexScans>, ViewError> {
        let mut best = None;
        for word in words.take(SEARCH_TERMS_MAX) {
            let scans = scans_by_term(caller, word, after);
            let places = self.scan_positions(scans.clone(), CANDIDATES_MAX)?.len();
            if best.as_ref().is_none_or(|(fewest, _)| places < *fewest) {
                best = Some((places, scans));
            }
        }
        Ok(best.map(|(_, ways)| ways))
    }

    /// Reads the index of statuses, of one target or of all; `None` if that target is unknown.
    fn scans_by_status(
        &self,
        caller: Option<i64>,
        filter: &TriggerFilter,
        after: ListPosition,
    ) -> Result<Option<IndexScans>, ViewError> {
        let target = match &filter.target {
            None => None,
            Some(target) => match find_name_id(self.0, target)? {
                None => return Ok(None),
                target => target,
            },
        };
        let sql = match (caller, target) {
            (None, None) => {
                "SELECT place, 0 FROM listed INDEXED BY listed_status \
                 WHERE status = ?1 AND place < ?2 ORDER BY place DESC LIMIT ?3"
            }
            (Some(_), None) => {
                "SELECT place, 0 FROM listed INDEXED BY listed_caller \
                 WHERE caller = ?1 AND status = ?2 AND place < ?3 ORDER BY place DESC LIMIT ?4"
            }
            (None, Some(_)) => {
                "SELECT place, 0 FROM listed INDEXED BY listed_target \
                 WHERE target = ?1 AND status = ?2 AND place < ?3 ORDER BY place DESC LIMIT ?4"
            }
            (Some(_), Some(_)) => {
                "SELECT place, 0 FROM listed INDEXED BY listed_caller_target \
                 WHERE caller = ?1 AND target = ?2 AND status = ?3 AND place < ?4 \
                 ORDER BY place DESC LIMIT ?5"
            }
        };
        let statuses: BTreeSet<Status> = match filter.statuses.is_empty() {
            true => Status::ALL.into(),
            false => filter.statuses.iter().copied().collect(),
        };
        let scan = |status: Status| {
            let first = caller.into_iter().chain(target);
            let rest = [status.number(), after.0, sql_count(CANDIDATES_MAX)];
            (sql, first.chain(rest).map(Value::from).collect())
        };
        Ok(Some(statuses.into_iter().map(scan).collect()))
    }

    /// Dead letters, the latest given up first.
    pub(super) fn dead_letters(
        &self,
        scope: &Scope,
        filter: &DeadLetterFilter,
        page: &Page,
    ) -> Result<Listing<DeadLetterView>, ViewError> {
        let query = query_hash(&("dead letters", scope, filter));
        let after = page_start(page, query)?;
        let Ok(caller) = self.visible_caller(scope, filter.caller.as_ref())? else {
            return Ok(Listing { items: Vec::new(), next: None });
        };
        let scans = dead_letter_scans(caller, filter, after, sql_count(CANDIDATES_MAX));
        self.read_page(page, query, scans, CANDIDATES_MAX, |queries, (_, lid)| {
            Ok(queries
                .find_dead_letter(lid)?
                .filter(|(_, letter)| takes(filter, letter))
                .map(|(_, l)| l))
        })
    }

    /// How many dead letters there are.
    pub(super) fn count_dead_letters(
        &self,
        scope: &Scope,
        filter: &DeadLetterFilter,
    ) -> Result<u64, ViewError> {
        let Ok(caller) = self.visible_caller(scope, filter.caller.as_ref())? else { return Ok(0) };
        let scans = dead_letter_scans(caller, filter, super::queries::LIST_START, i64::MAX);
        let keys = self.scan_positions(scans, usize::MAX)?;
        if filter.host.is_none() && filter.trigger.is_none() && filter.reason.is_none() {
            return Ok(keys.len() as u64);
        }
        let mut count = 0;
        for (_, lid) in keys {
            let letter = self.find_dead_letter(lid)?;
            count += u64::from(letter.is_some_and(|(_, letter)| takes(filter, &letter)));
        }
        Ok(count)
    }

    /// The dead letter with this id.
    pub(super) fn dead_letter(
        &self,
        scope: &Scope,
        id: &str,
    ) -> Result<Option<DeadLetterView>, ViewError> {
        let place = id.split_once('-').and_then(|(partition, offset)| {
            Some(encode_position(partition.parse::<u16>().ok()?.into(), offset.parse().ok()?))
        });
        let (Some(place), Ok(caller)) = (place, self.visible_caller(scope, None)?) else {
            return Ok(None);
        };
        let letter = self.find_dead_letter(place)?.filter(|(owner, letter)| {
            letter.id == id && caller.is_none_or(|caller| caller == *owner)
        });
        Ok(letter.map(|(_, letter)| letter))
    }

    fn find_dead_letter(&self, lid: i64) -> Result<Option<(i64, DeadLetterView)>, ViewError> {
        let sql = "SELECT l.lid, l.at, l.reason, l.trigger, l.caller, n.text, l.host, l.state, \
                   l.replays, l.attempts, l.last_status \
                   FROM letter AS l LEFT JOIN name AS n ON n.nid = l.caller WHERE l.lid = ?1";
        let mut select = self.0.prepare_cached(sql)?;
        let mut rows = select.query([lid])?;
        Ok(rows.next()?.map(dead_letter_from).transpose()?)
    }

    /// Circuits, the newest change first.
    pub(super) fn circuits(&self, scope: &Scope) -> Result<Vec<CircuitView>, ViewError> {
        let Ok(caller) = self.visible_caller(scope, None)? else { return Ok(Vec::new()) };
        let sql = match caller {
            None => {
                "SELECT c.worker, n.text, c.host, c.state, c.reason, c.since, c.probe_at \
                 FROM circuit AS c INDEXED BY circuit_since \
                 LEFT JOIN name AS n ON n.nid = c.caller \
                 WHERE c.since >= ?1 ORDER BY c.since DESC LIMIT ?2"
            }
            Some(_) => {
                "SELECT c.worker, n.text, c.host, c.state, c.reason, c.since, c.probe_at \
                 FROM circuit AS c INDEXED BY circuit_caller \
                 LEFT JOIN name AS n ON n.nid = c.caller WHERE c.caller = ?1 LIMIT ?2"
            }
        };
        let mut select = self.0.prepare_cached(sql)?;
        let rows = select.query_map([caller.unwrap_or(0), CIRCUITS_MAX], |row| {
            Ok(CircuitView {
                worker: row.get(0)?,
                caller: row.get(1)?,
                host: row.get(2)?,
                state: circuit_state(row.get(3)?),
                reason: row.get(4)?,
                since: row.get::<_, i64>(5)?.cast_unsigned(),
                probe_at: row.get::<_, Option<i64>>(6)?.map(i64::cast_unsigned),
            })
        })?;
        let mut circuits: Vec<CircuitView> = rows.collect::<Result<_, _>>()?;
        circuits.sort_by_key(|circuit| std::cmp::Reverse(circuit.since));
        Ok(circuits)
    }
}

/// Reads the places of a word, down from the newest.
fn scans_by_term(caller: Option<i64>, word: SearchTerm<'_>, after: ListPosition) -> IndexScans {
    let sql = "SELECT rowid, 0 FROM words WHERE words MATCH ?1 AND rowid < ?2 \
               ORDER BY rowid DESC LIMIT ?3";
    let token = Value::from(format!("\"{}\"", word.token(caller)));
    vec![(sql, vec![token, after.0.into(), sql_count(CANDIDATES_MAX).into()])]
}

/// Reads the triggers by due time, down from the latest.
fn scans_by_due_time(
    caller: Option<i64>,
    filter: &TriggerFilter,
    after: ListPosition,
) -> IndexScans {
    let (same, earlier) = match caller {
        None => (
            "SELECT fire_at, place FROM listed INDEXED BY listed_due \
             WHERE fire_at = ?1 AND place < ?2 ORDER BY place DESC LIMIT ?3",
            "SELECT fire_at, place FROM listed INDEXED BY listed_due \
             WHERE fire_at >= ?1 AND fire_at < ?2 \
             ORDER BY fire_at DESC, place DESC LIMIT ?3",
        ),
        Some(_) => (
            "SELECT fire_at, place FROM listed INDEXED BY listed_caller_due \
             WHERE caller = ?1 AND fire_at = ?2 AND place < ?3 ORDER BY place DESC LIMIT ?4",
            "SELECT fire_at, place FROM listed INDEXED BY listed_caller_due \
             WHERE caller = ?1 AND fire_at >= ?2 AND fire_at < ?3 \
             ORDER BY fire_at DESC, place DESC LIMIT ?4",
        ),
    };
    let limit = sql_count(CANDIDATES_MAX);
    let from = filter.from.map_or(0, u64::cast_signed);
    let until = filter.until.map_or(TIME_MAX, u64::cast_signed);
    let values = |values: [i64; 3]| caller.into_iter().chain(values).map(Value::from).collect();
    let mut scans = vec![(earlier, values([from, until.min(after.0), limit]))];
    if after.0 < until && after.0 >= from {
        scans.push((same, values([after.0, after.1, limit])));
    }
    scans
}

/// Reads the letters by the time at which they were given up, of each requested state.
fn dead_letter_scans(
    caller: Option<i64>,
    filter: &DeadLetterFilter,
    after: ListPosition,
    limit: i64,
) -> IndexScans {
    let (same, earlier) = match caller {
        None => (
            "SELECT at, lid FROM letter INDEXED BY letter_state \
             WHERE state = ?1 AND at = ?2 AND lid < ?3 ORDER BY lid DESC LIMIT ?4",
            "SELECT at, lid FROM letter INDEXED BY letter_state \
             WHERE state = ?1 AND at >= ?2 AND at < ?3 ORDER BY at DESC, lid DESC LIMIT ?4",
        ),
        Some(_) => (
            "SELECT at, lid FROM letter INDEXED BY letter_caller \
             WHERE caller = ?1 AND state = ?2 AND at = ?3 AND lid < ?4 \
             ORDER BY lid DESC LIMIT ?5",
            "SELECT at, lid FROM letter INDEXED BY letter_caller \
             WHERE caller = ?1 AND state = ?2 AND at >= ?3 AND at < ?4 \
             ORDER BY at DESC, lid DESC LIMIT ?5",
        ),
    };
    let states: BTreeSet<LetterState> = match filter.states.is_empty() {
        true => LetterState::ALL.into(),
        false => filter.states.iter().copied().collect(),
    };
    let since = filter.since.map_or(0, u64::cast_signed);
    let until = filter.until.map_or(TIME_MAX, u64::cast_signed);
    let mut scans: IndexScans = Vec::new();
    for state in states {
        let values = |values: [i64; 3]| {
            let first = caller.into_iter().chain([state.number()]);
            first.chain(values).map(Value::from).collect()
        };
        scans.push((earlier, values([since, until.min(after.0), limit])));
        if after.0 < until && after.0 >= since {
            scans.push((same, values([after.0, after.1, limit])));
        }
    }
    scans
}

/// The conditions on a letter that the index does not cover.
fn takes(filter: &DeadLetterFilter, letter: &DeadLetterView) -> bool {
    let is = |wanted: &Option<String>, found: &Option<String>| {
        wanted.is_none() || wanted.as_ref() == found.as_ref()
    };
    let has = |text: &String| letter.reason.to_lowercase().contains(&text.to_lowercase());
    is(&filter.host, &letter.host)
        && is(&filter.trigger, &letter.trigger)
        && filter.reason.as_ref().is_none_or(has)
}

fn dead_letter_from(row: &SqlRow<'_>) -> rusqlite::Result<(i64, DeadLetterView)> {
    let (partition, offset) = decode_position(row.get(0)?);
    let letter = DeadLetterView {
        id: format!("{partition}-{offset}"),
        partition,
        offset,
        at: row.get::<_, i64>(1)?.cast_unsigned(),
        reason: row.get(2)?,
        trigger: row.get(3)?,
        caller: row.get(5)?,
        host: row.get(6)?,
        state: LetterState::of_number(row.get(7)?).unwrap_or(LetterState::Open),
        replays: row.get(8)?,
        attempts: row.get(9)?,
        last_status: row.get(10)?,
    };
    Ok((row.get(4)?, letter))
}
