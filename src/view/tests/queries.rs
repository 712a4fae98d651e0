//! Queries return what they select, each row once, in order, and nothing of another caller.

use super::ViewFixture;
use super::fixture_events::definition_of;
use super::history_actions::HistoryTriggerKind;
use crate::engine::cursor::Cursor;
use crate::model::dead_letter::Mark;
use crate::model::definition::{Definition, Header, HttpTarget};
use crate::model::outcome::{CircuitState, OutcomeKind};
use crate::model::{Offset, Timestamp};
use crate::view::ViewError;
use crate::view::filter::{DeadLetterFilter, Listing, Page, PageToken, Scope, TriggerFilter};
use crate::view::results::{ExecutionStatus, LetterState, Status};

fn caller(name: &str) -> Scope {
    Scope::Caller(name.to_owned())
}

fn page(size: u32, token: Option<PageToken>) -> Page {
    Page { size, token }
}

/// All items of a list, page by page.
fn all<T>(size: u32, list: impl Fn(&Page) -> Result<Listing<T>, ViewError>) -> Vec<T> {
    let (mut all, mut token) = (Vec::new(), None);
    for _ in 0..100 {
        let listing = list(&page(size, token)).unwrap();
        assert!(listing.items.len() <= size as usize);
        all.extend(listing.items);
        token = listing.next;
        if token.is_none() {
            return all;
        }
    }
    panic!("the list has no end");
}

fn overdue(fixture: &ViewFixture, before: Timestamp, size: u32) -> Vec<(String, Timestamp)> {
    let found = all(size, |page| fixture.queries().overdue(before, page));
    found.into_iter().map(|one| (one.trigger.id, one.since)).collect()
}

#[test]
fn overdue_callbacks_are_those_whose_next_attempt_is_past() {
    let mut fixture = ViewFixture::new();
    let due = [("a", 1_500), ("b", 2_000), ("c", 2_000), ("latest", 3_999), ("too-late", 4_000)];
    for (offset, (id, fire_at)) in (0..).zip(due) {
        fixture.callback(id, offset, fire_at);
    }
    fixture.callback("ended", 10, 2_000);
    fixture.callback("tried-again", 11, 2_000);
    fixture.callback("to-be-tried-again", 12, 2_000);
    fixture.register("topic", 13, 2_000, definition_of("billing", HistoryTriggerKind::Topic));
    fixture.callback("pending", 14, 60_000);
    fixture.fire_through(5_000);
    fixture.delivered("ended", 10, 2_100);
    fixture.retried("tried-again", 11, 2_100, 3_000);
    fixture.retried("to-be-tried-again", 12, 2_100, 4_000);
    let since = |one: (&str, Timestamp)| (one.0.to_owned(), one.1);
    let found = [("latest", 3_999), ("tried-again", 3_000), ("c", 2_000), ("b", 2_000)];
    let found = [&found[..], &[("a", 1_500)]].concat().into_iter().map(since);
    let found: Vec<_> = found.collect();
    for size in [1, 2, 100] {
        assert_eq!(overdue(&fixture, 4_000, size), found, "{size} a page");
    }
    assert_eq!(overdue(&fixture, 1_500, 100), []);
    let listing = fixture.queries().overdue(4_000, &page(1, None)).unwrap();
    let elsewhere = fixture.queries().overdue(4_001, &page(1, listing.next));
    assert!(matches!(elsewhere, Err(ViewError::InvalidToken(_))), "the token of another query");
}

#[test]
fn a_record_that_is_parked_has_not_fired() {
    let mut fixture = ViewFixture::new();
    fixture.callback("before", 3, 1_500);
    fixture.names_schema("parked", 5, 7);
    fixture.callback("parked", 5, 1_500);
    fixture.fire_through_except(5_000, &[(7, 5)]);
    assert_eq!(overdue(&fixture, 4_000, 10), [("before".to_owned(), 1_500)]);
    fixture.fire_through(5_000);
    let both = ["parked", "before"].map(|id| (id.to_owned(), 1_500));
    assert_eq!(overdue(&fixture, 4_000, 10), both);
}

#[test]
fn what_was_registered_after_a_parked_record_of_another_trigger_is_decided() {
    let mut fixture = ViewFixture::new();
    fixture.names_schema("before", 3, 7);
    fixture.callback("before", 3, 1_500);
    fixture.names_schema("parked", 5, 7);
    fixture.callback("parked", 5, 1_500);
    fixture.callback("after", 6, 1_500);
    fixture.names_schema("another schema", 8, 9);
    fixture.callback("another schema", 8, 1_500);
    fixture.fire_through_except(5_000, &[(7, 5)]);
    let fired = ["another schema", "after", "before"].map(|id| (id.to_owned(), 1_500));
    assert_eq!(overdue(&fixture, 4_000, 10), fired);
}

#[test]
fn a_registration_waits_behind_a_parked_one_of_its_trigger_and_not_before_it() {
    let mut fixture = ViewFixture::new();
    fixture.names_schema("behind", 5, 7);
    fixture.callback("behind", 5, 1_500);
    fixture.callback("behind", 6, 1_600);
    fixture.callback("before", 7, 1_500);
    fixture.names_schema("before", 8, 7); // it cannot be read here either
    let statuses = |fixture: &ViewFixture| {
        let status = |id| fixture.queries().trigger(&Scope::All, id).unwrap().unwrap().view.status;
        ["behind", "before"].map(status)
    };
    fixture.fire_through_except(5_000, &[(7, 5)]);
    assert_eq!(statuses(&fixture), [Status::Pending, Status::InFlight]);
    fixture.fire_through_except(5_000, &[(7, 8)]);
    assert_eq!(statuses(&fixture), [Status::InFlight, Status::InFlight]);
}

#[test]
fn schemas_are_remembered_for_as_long_as_their_records_can_be_parked() {
    let mut fixture = ViewFixture::new();
    let uses = |fixture: &ViewFixture| {
        let sql = "SELECT count(*) FROM schema_use";
        fixture.db.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    for offset in 0..10 {
        fixture.names_schema("a", offset, 7);
    }
    let cursor = |replay_from, parked: &[(u32, Offset)]| {
        let parked = parked.iter().copied().collect();
        Cursor { replay_from, parked, ..Cursor::initial(10, 0) }
    };
    for (replay_from, parked, left) in
        [(0, &[(7, 0)][..], 10), (2, &[(7, 3)], 8), (9, &[(7, 6)], 4), (8, &[], 2), (10, &[], 0)]
    {
        fixture.projector().apply_cursor(0, &cursor(replay_from, parked), 0).unwrap();
        assert_eq!(uses(&fixture), left, "from {replay_from} on, parked {parked:?}");
    }
}

#[test]
fn a_caller_sees_the_latest_state_of_its_circuits() {
    use CircuitState::{Closed, HalfOpen, Open};
    let mut fixture = ViewFixture::new();
    for (whose, host, at, state) in [
        (Some("billing"), "a.example", 20, Open),
        (Some("shop"), "a.example", 10, HalfOpen),
        (Some("billing"), "b.example", 30, Open),
        (None, "a.example", 15, Closed),
        (Some("billing"), "a.example", 40, HalfOpen),
        (Some("billing"), "c.example", 35, Closed),
    ] {
        fixture.circuit(whose, host, at, state);
    }
    let circuits = |scope: &Scope| {
        let circuits = fixture.queries().circuits(scope).unwrap().into_iter();
        circuits
            .map(|c| (c.caller.unwrap_or_default(), c.host, c.since, c.state, c.probe_at))
            .collect::<Vec<_>>()
    };
    let one = |caller: &str, host: &str, since, state, probe_at| {
        (caller.to_owned(), host.to_owned(), since, state, probe_at)
    };
    let billings = [
        one("billing", "a.example", 40, HalfOpen, None),
        one("billing", "c.example", 35, Closed, None),
        one("billing", "b.example", 30, Open, Some(80)),
    ];
    let others =
        [one("", "a.example", 15, Closed, None), one("shop", "a.example", 10, HalfOpen, None)];
    assert_eq!(circuits(&Scope::All), [&billings[..], &others].concat());
    assert_eq!(circuits(&caller("billing")), billings);
    assert_eq!(circuits(&caller("unknown")), []);
}

#[test]
fn the_pending_count_is_the_number_of_unsettled_triggers() {
    let mut fixture = ViewFixture::new();
    let pending = |fixture: &ViewFixture| fixture.queries().pending_count("billing").unwrap();
    assert_eq!(pending(&fixture), 0, "the caller is unknown");
    fixture.callback("pending", 0, 60_000);
    fixture.callback("in-flight", 1, 2_000);
    fixture.callback("ended", 2, 2_000);
    fixture.register("fired", 3, 2_000, definition_of("billing", HistoryTriggerKind::Topic));
    fixture.register("other", 4, 60_000, definition_of("shop", HistoryTriggerKind::Http));
    assert_eq!(pending(&fixture), 4);
    fixture.fire_through(5_000);
    fixture.delivered("ended", 2, 2_100);
    assert_eq!(pending(&fixture), 2);
    fixture.callback("pending", 5, 70_000);
    assert_eq!(pending(&fixture), 2, "in place of the one before");
    fixture.outcome("pending", 10, 3_100, OutcomeKind::Cancelled { generation: 5 });
    assert_eq!(pending(&fixture), 1);
    assert_eq!(fixture.queries().pending_count("shop").unwrap(), 1);
}

#[test]
fn a_caller_sees_only_its_own_triggers() {
    let mut fixture = ViewFixture::new();
    fixture.callback("tea", 0, 60_000);
    fixture.register("milk", 1, 60_000, definition_of("shop", HistoryTriggerKind::Http));
    let visible_caller = |scope: &Scope, id: &str| {
        fixture.queries().trigger(scope, id).unwrap().map(|found| found.view.caller.unwrap())
    };
    let billing = caller("billing");
    assert_eq!(visible_caller(&billing, "tea").as_deref(), Some("billing"));
    assert_eq!(
        (visible_caller(&billing, "milk"), visible_caller(&caller("unknown"), "tea")),
        (None, None)
    );
    assert_eq!(visible_caller(&Scope::All, "milk").as_deref(), Some("shop"));
    let listed = |scope: &Scope, of: Option<&str>| {
        let filter = TriggerFilter { caller: of.map(str::to_owned), ..TriggerFilter::default() };
        let found = all(1, |page| fixture.queries().triggers(scope, &filter, page)).into_iter();
        found.map(|view| view.id).collect::<Vec<_>>()
    };
    assert_eq!(listed(&Scope::All, None), ["milk", "tea"]);
    assert_eq!(listed(&Scope::All, Some("shop")), ["milk"]);
    assert_eq!(listed(&billing, None), ["tea"]);
    assert_eq!(listed(&billing, Some("shop")), [""; 0]);
}

#[test]
fn a_filter_requires_all_its_conditions() {
    let mut fixture = ViewFixture::new();
    for (offset, (id, host, team, env, name, fire_at)) in (0..).zip([
        ("a", "a.example", "eu", "prod", "Green tea", 2_000),
        ("b", "b.example", "eu", "dev", "green milk", 3_000),
        ("c", "a.example", "us", "prod", "black tea", 3_000),
    ]) {
        let header = |name: &str, value: &str| Header {
            name: name.into(),
            value: Some(value.as_bytes().to_vec().into()),
        };
        let what = Definition {
            target: HttpTarget::post(&format!("https://{host}/x")).into(),
            headers: vec![
                header("orloj-label-team", team),
                header("orloj-label-env", env),
                header("orloj-name", name),
            ],
            ..definition_of("billing", HistoryTriggerKind::Http)
        };
        fixture.register(id, offset, fire_at, what);
    }
    let any = TriggerFilter::default;
    let text = |text: &str| Some(text.to_owned());
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let (eu, prod) = (label("team", "eu"), label("env", "prod"));
    for (filter, found) in [
        (TriggerFilter { labels: vec![eu, prod], ..any() }, &["a"][..]),
        (TriggerFilter { text: text("tea green"), ..any() }, &["a"]),
        (TriggerFilter { target: text("a.example"), from: Some(2_500), ..any() }, &["c"]),
        (TriggerFilter { target: text("a.example"), ..any() }, &["c", "a"]),
        (TriggerFilter { from: Some(2_000), until: Some(2_001), ..any() }, &["a"]),
        (TriggerFilter { from: Some(2_001), until: Some(3_000), ..any() }, &[]),
        (TriggerFilter { from: Some(2_001), ..any() }, &["c", "b"]),
        (TriggerFilter { text: text("tea"), from: Some(2_001), ..any() }, &["c"]),
        (TriggerFilter { text: text("tea"), until: Some(3_000), ..any() }, &["a"]),
    ] {
        for size in [1, 100] {
            let listed = all(size, |page| fixture.queries().triggers(&Scope::All, &filter, page));
            let ids: Vec<_> = listed.into_iter().map(|view| view.id).collect();
            assert_eq!(ids, found, "{filter:?}");
        }
    }
}

#[test]
fn a_short_page_does_not_end_the_list() {
    let mut fixture = ViewFixture::new();
    fixture.register("meant", 0, 2_000, definition_of("billing", HistoryTriggerKind::Topic));
    for offset in 1..=2_000 {
        fixture.callback(&format!("a{offset}"), offset, 3_000);
    }
    let target = Some("teas".to_owned());
    let filter = TriggerFilter { target, from: Some(1), ..TriggerFilter::default() };
    let first = fixture.queries().triggers(&Scope::All, &filter, &page(10, None)).unwrap();
    assert!(first.items.is_empty() && first.next.is_some());
    let found = all(10, |page| fixture.queries().triggers(&Scope::All, &filter, page));
    assert!(found.len() == 1 && found[0].id == "meant", "{found:?}");
}

#[test]
fn the_newest_registration_is_shown_when_an_id_is_in_several_partitions() {
    for newest in [0, 1] {
        let mut fixture = ViewFixture::new();
        for partition in [0, 1] {
            let created = if partition == newest { 9_000 } else { 1_000 };
            fixture.register_in(
                partition,
                created,
                "tea",
                definition_of("billing", HistoryTriggerKind::Http),
            );
        }
        let found = fixture.queries().trigger(&Scope::All, "tea").unwrap().unwrap();
        assert_eq!(found.view.partition, newest);
    }
}

#[test]
fn executions_are_listed_and_the_last_is_shown() {
    let mut fixture = ViewFixture::new();
    fixture.callback("tea", 0, 2_000);
    let executions = |fixture: &ViewFixture, status| {
        let scope = caller("billing");
        let list = |page: &Page| {
            let listing = fixture.queries().executions(&scope, "tea", status, page)?;
            Ok(listing.unwrap())
        };
        all(1, list).into_iter().map(|one| (one.status, one.at)).collect::<Vec<_>>()
    };
    let last = |fixture: &ViewFixture| {
        let found = fixture.queries().trigger(&Scope::All, "tea").unwrap().unwrap();
        found.view.last_execution.map(|last| (last.status, last.at))
    };
    assert_eq!((executions(&fixture, None), last(&fixture)), (vec![], None));
    fixture.fire_through(5_000);
    let in_flight = (ExecutionStatus::InFlight, 2_000);
    assert_eq!((executions(&fixture, None), last(&fixture)), (vec![in_flight], Some(in_flight)));
    fixture.retried("tea", 0, 2_100, 3_000);
    let retried = (ExecutionStatus::Retrying, 2_100);
    assert_eq!((executions(&fixture, None), last(&fixture)), (vec![retried], Some(retried)));
    let (generation, occurrence, attempt, status) = (0, 0, 2, 200);
    let delivered = OutcomeKind::Delivered { generation, occurrence, attempt, status };
    fixture.outcome("tea", 300_000, 3_100, delivered);
    let completed = (ExecutionStatus::Completed, 3_100);
    assert_eq!(executions(&fixture, None), [completed, retried]);
    assert_eq!(executions(&fixture, Some(ExecutionStatus::Retrying)), [retried]);
    assert_eq!(last(&fixture), Some(completed));
    let others =
        fixture.queries().executions(&caller("shop"), "tea", None, &page(1, None)).unwrap();
    assert_eq!(others, None);
}

#[test]
fn dead_letters_are_filtered_counted_and_limited_to_their_caller() {
    let mut fixture = ViewFixture::new();
    fixture.dead_letter("billing", 1, 10, "answered 500");
    fixture.dead_letter("billing", 2, 20, "Timed Out");
    fixture.dead_letter("shop", 3, 20, "answered 404");
    fixture.dead_letter("billing", 4, 30, "timed out");
    fixture.dead_letter_action(2, 5, 40, Mark::Replayed);
    fixture.dead_letter_action(4, 6, 41, Mark::Archived);
    fixture.dead_letter_action(2, 7, 42, Mark::Replayed);
    let any = DeadLetterFilter::default;
    let text = |text: &str| Some(text.to_owned());
    let states = vec![LetterState::Open];
    for (scope, filter, found) in [
        (Scope::All, any(), &["0-4", "0-3", "0-2", "0-1"][..]),
        (caller("billing"), any(), &["0-4", "0-2", "0-1"]),
        (caller("billing"), DeadLetterFilter { caller: text("shop"), ..any() }, &[]),
        (Scope::All, DeadLetterFilter { caller: text("shop"), ..any() }, &["0-3"]),
        (Scope::All, DeadLetterFilter { states, ..any() }, &["0-3", "0-1"]),
        (Scope::All, DeadLetterFilter { trigger: text("order-2"), ..any() }, &["0-2"]),
        (Scope::All, DeadLetterFilter { reason: text("TIMED"), ..any() }, &["0-4", "0-2"]),
        (Scope::All, DeadLetterFilter { since: Some(20), ..any() }, &["0-4", "0-3", "0-2"]),
        (Scope::All, DeadLetterFilter { until: Some(20), ..any() }, &["0-1"]),
        (Scope::All, DeadLetterFilter { host: text("h.example"), ..any() }, &[]),
        (caller("shop"), DeadLetterFilter { host: text("api.example.com"), ..any() }, &["0-3"]),
    ] {
        for size in [1, 100] {
            let letters = all(size, |page| fixture.queries().dead_letters(&scope, &filter, page));
            let ids: Vec<_> = letters.into_iter().map(|letter| letter.id).collect();
            assert_eq!(ids, found, "{scope:?} {filter:?}");
        }
        let count = fixture.queries().count_dead_letters(&scope, &filter).unwrap();
        assert_eq!(count, found.len() as u64, "{scope:?} {filter:?}");
    }
    let letter = |scope: &Scope, id: &str| fixture.queries().dead_letter(scope, id).unwrap();
    let replayed = letter(&caller("billing"), "0-2").unwrap();
    assert_eq!((replayed.state, replayed.replays), (LetterState::Replayed, 2));
    let archived = letter(&Scope::All, "0-4").unwrap();
    assert_eq!((archived.state, archived.replays), (LetterState::Archived, 0));
    assert_eq!((letter(&caller("shop"), "0-2"), letter(&Scope::All, "00-2")), (None, None));
}

#[test]
fn the_page_size_is_limited() {
    assert_eq!((page(0, None).len(), page(7, None).len()), (1, 7));
    assert_eq!(page(u32::MAX, None).len(), 1_000);
    assert!(Status::ALL.iter().enumerate().all(|(at, status)| status.number() == at as i64));
}
