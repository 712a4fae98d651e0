//! What the queries about triggers return otherwise than the second opinion says.
//!
//! Invariant: the view has read what the second opinion has, and every list is read page by page.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::slice;

use super::{ExecutionOpinion, RecordsRead, TriggerOpinion};
use crate::engine::cursor::Cursor;
use crate::model::input::TriggerRecord;
use crate::model::ledger::LedgerRecord;
use crate::model::outcome::Outcome;
use crate::model::text::Text;
use crate::view::View;
use crate::view::filter::{DeadLetterFilter, Listing, Page, Scope, TriggerFilter};
use crate::view::queries::Queries;
use crate::view::results::{ExecutionStatus, ExecutionView, Status, TriggerView};
use crate::view::tests::ViewFixture;

/// Items of a page: few, so that most lists have several.
const ITEMS_OF_PAGE: u32 = 3;
/// A caller who is asked about even if none of the triggers is of that name.
const CALLER: &str = "billing";

impl View {
    /// What its queries return otherwise than all records of its only partition say: each
    /// difference by the trigger's id, or by the list. It has read all of them.
    pub(crate) async fn compare_with_records(
        &self,
        triggers: Vec<TriggerRecord>,
        ledger: Vec<LedgerRecord>,
        outcomes: Vec<Outcome>,
        cursors: Vec<Cursor>,
    ) -> Vec<(String, String)> {
        let (outcomes, letters) = ((0..).zip(outcomes).collect(), Vec::new());
        let records = RecordsRead { triggers, ledger, outcomes, letters, cursors };
        let compared = self.pool.query(move |queries| Ok(records.differences(queries))).await;
        // The second opinion may have failed, too.
        compared.unwrap_or_else(|error| vec![("the comparison".to_owned(), error.to_string())])
    }
}

impl RecordsRead {
    /// What the queries of a view that has read these records return otherwise: each difference by
    /// the trigger's id, or by the list.
    pub(super) fn differences(&self, queries: Queries<'_>) -> Vec<(String, String)> {
        let opinions = self.triggers();
        let mut found = ViewDifferences::default();
        for opinion in &opinions {
            let shown = queries.trigger(&Scope::All, &opinion.id).unwrap();
            let shown = shown.map(|shown| TriggerOpinion::from(shown.view));
            found.compare(&opinion.id, shown.as_slice(), slice::from_ref(opinion));
            if shown.is_some() {
                found.compare_executions(queries, &opinion.id, &self.executions(opinion));
            }
        }
        found.compare_lists(queries, &opinions);
        found.compare_times(queries, &opinions);
        found.compare_callers(queries, &opinions);
        let (all, filter) = (Scope::All, DeadLetterFilter::default());
        let letters = all_pages(|page| queries.dead_letters(&all, &filter, page).unwrap());
        let letters = letters.into_iter();
        let letters = letters.map(|letter| (letter.offset, (letter.state, letter.replays)));
        let mut letters: Vec<_> = letters.collect();
        letters.sort_unstable();
        let expected: Vec<_> = self.dead_letters().into_iter().collect();
        found.compare("the dead letters", &letters, &expected);
        found.0
    }
}

/// Each difference, by what it is about.
#[derive(Debug, Default)]
struct ViewDifferences(Vec<(String, String)>);

impl ViewDifferences {
    /// Compares what a query returns with what it must return. Of these the first one that differs
    /// is a difference.
    fn compare<T: Debug + PartialEq>(&mut self, about: &str, shown: &[T], expected: &[T]) {
        let length = shown.len().max(expected.len());
        let first = (0..length).find(|at| shown.get(*at) != expected.get(*at));
        self.0.extend(first.map(|at| {
            let (shown, expected) = (shown.get(at), expected.get(at));
            let why = format!("item {at} of the view: {shown:#?}\nby the records: {expected:#?}");
            (about.to_owned(), why)
        }));
    }

    /// All executions of a trigger, and those with the status of the newest.
    fn compare_executions(
        &mut self,
        queries: Queries<'_>,
        id: &str,
        expected: &[ExecutionOpinion],
    ) {
        let list = |status: Option<ExecutionStatus>| -> Vec<ExecutionOpinion> {
            let all = all_pages(|page| {
                let listing = queries.executions(&Scope::All, id, status, page).unwrap();
                listing.unwrap()
            });
            all.into_iter().map(ExecutionOpinion::from).collect()
        };
        let about = format!("the executions of {id}");
        self.compare(&about, &list(None), expected);
        let Some(status) = expected.first().map(|newest| newest.status) else { return };
        let of_status = expected.iter().filter(|one| one.status == status);
        let of_status: Vec<_> = of_status.cloned().collect();
        self.compare(&format!("{about}, {status:?}"), &list(Some(status)), &of_status);
    }

    /// All triggers, and those of each status.
    fn compare_lists(&mut self, queries: Queries<'_>, opinions: &[TriggerOpinion]) {
        let all = listed(queries, &Scope::All, &TriggerFilter::default());
        self.compare("the list", &all, opinions);
        for status in Status::ALL {
            let filter = TriggerFilter { statuses: vec![status], ..TriggerFilter::default() };
            let shown = listed(queries, &Scope::All, &filter);
            let expected = opinions.iter().filter(|opinion| opinion.status == status);
            let expected: Vec<_> = expected.cloned().collect();
            self.compare(&format!("the list of {status:?}"), &shown, &expected);
        }
    }

    /// The triggers that are due when the newest is or later, and those that are due before.
    fn compare_times(&mut self, queries: Queries<'_>, opinions: &[TriggerOpinion]) {
        let Some(due) = opinions.first().map(|newest| newest.fire_at) else { return };
        let mut latest_first = opinions.to_vec();
        latest_first.sort_by_key(|opinion| Reverse(opinion.fire_at));
        let (later, earlier): (Vec<_>, Vec<_>) =
            latest_first.into_iter().partition(|opinion| opinion.fire_at >= due);
        let from = TriggerFilter { from: Some(due), ..TriggerFilter::default() };
        self.compare("the list from a time on", &listed(queries, &Scope::All, &from), &later);
        let until = TriggerFilter { until: Some(due), ..TriggerFilter::default() };
        self.compare("the list until a time", &listed(queries, &Scope::All, &until), &earlier);
    }

    /// The triggers of each caller, and how many of them are not settled.
    fn compare_callers(&mut self, queries: Queries<'_>, opinions: &[TriggerOpinion]) {
        let pending: Vec<_> = opinions.iter().filter(|opinion| is_pending(opinion)).collect();
        let callers = opinions.iter().filter_map(caller_of).chain([CALLER]);
        for caller in callers.collect::<BTreeSet<_>>() {
            let own = opinions.iter().filter(|opinion| caller_of(opinion) == Some(caller));
            let own: Vec<_> = own.cloned().collect();
            let scope = Scope::Caller(caller.to_owned());
            let shown = listed(queries, &scope, &TriggerFilter::default());
            self.compare(&format!("the list of {caller}"), &shown, &own);
            let own = pending.iter().filter(|opinion| caller_of(opinion) == Some(caller));
            let shown = queries.pending_count(caller).unwrap();
            self.compare(&format!("pending of {caller}"), &[shown], &[own.count() as u64]);
        }
    }
}

/// The triggers that a filter takes.
fn listed(queries: Queries<'_>, scope: &Scope, filter: &TriggerFilter) -> Vec<TriggerOpinion> {
    let all = all_pages(|page| queries.triggers(scope, filter, page).unwrap());
    all.into_iter().map(TriggerOpinion::from).collect()
}

fn all_pages<T>(mut read: impl FnMut(&Page) -> Listing<T>) -> Vec<T> {
    let (mut items, mut token) = (Vec::new(), None);
    loop {
        let listing = read(&Page { size: ITEMS_OF_PAGE, token });
        items.extend(listing.items);
        token = listing.next;
        if token.is_none() {
            return items;
        }
    }
}

fn caller_of(opinion: &TriggerOpinion) -> Option<&str> {
    opinion.definition.caller.as_ref().map(Text::as_str)
}

fn is_pending(opinion: &TriggerOpinion) -> bool {
    use Status::{InFlight, Paused, Pending, Scheduled, Waiting};
    let is_pending = [Pending, Scheduled, Waiting, InFlight, Paused].contains(&opinion.status);
    assert_eq!(is_pending, opinion.settled_at.is_none(), "{opinion:?}");
    is_pending
}

impl From<TriggerView> for TriggerOpinion {
    fn from(view: TriggerView) -> Self {
        assert!(!view.is_behind, "everything is read: {view:?}");
        Self {
            id: view.id,
            generation: view.generation,
            revision: view.revision,
            created_at: view.created_at,
            status: view.status,
            reason: view.reason,
            fire_at: view.fire_at.unwrap(),
            settled_at: view.settled_at,
            executions: view.executions,
            last_execution: view.last_execution.map(ExecutionOpinion::from),
            definition: view.definition,
            schedule: view.schedule,
            after: view.after,
            expire_after: view.expire_after,
            retain: view.retain,
            priority: view.priority,
        }
    }
}

impl From<ExecutionView> for ExecutionOpinion {
    fn from(view: ExecutionView) -> Self {
        let ExecutionView { occurrence, attempt, status, at, .. } = view;
        Self { occurrence, attempt, status, at }
    }
}

#[test]
fn a_trigger_of_which_there_is_no_record_is_a_difference() {
    let mut fixture = ViewFixture::new();
    fixture.callback("tea", 0, 60_000);
    let differences = RecordsRead::default().differences(fixture.queries());
    let about: Vec<_> = differences.into_iter().map(|(about, _)| about).collect();
    let lists = ["the list", "the list of Pending", "the list of billing", "pending of billing"];
    assert_eq!(about, lists);
}
