//! `/v1/dead-letters`: reading dead letters, replaying and archiving them.
//!
//! Invariant: a bulk action names the number of matching dead letters, and is refused if another
//! number matches: it never handles more than its caller has seen.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{OpenApi, ToSchema};

use super::api::{Api, view_error, view_response};
use super::auth::{Registrant, Viewer, scope_of};
use super::body;
use super::error_code::ErrorCode;
use super::field_types::{self, TimestampField};
use super::parameters::{PathId, Query, QueryFields};
use super::problem::{FieldError, Problem};
use super::resource::DeadLetterResource;
use super::triggers::{page_items, read_page};
use crate::callers::Caller;
use crate::dead_letters::{
    DeadLetterReader, LetterAction, LetterActionResult, LetterError, LetterId,
};
use crate::model::dead_letter::Mark;
use crate::model::time::format_time;
use crate::view::{self, DeadLetterFilter, DeadLetterView, LetterState, Page};

/// Dead letters that one request handles: they are read again, and written in one transaction.
const DEAD_LETTERS_MAX: u32 = 1_000;
/// Bytes of a body: a filter and a note.
const BODY_MAX: u64 = 16_384;
/// Bytes of a note.
const NOTE_BYTES_MAX: usize = 1_024;

/// A page of dead letters, the newest first.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeadLetterList {
    items: Vec<DeadLetterResource>,
    /// The token of the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_page_token: Option<String>,
    /// The list is complete up to then.
    #[schema(format = DateTime)]
    as_of: String,
}

/// Conditions that must all hold.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DeadLetterQuery {
    /// In one of these states; can be repeated. OPEN if not given.
    state: Option<Vec<LetterState>>,
    /// Of this caller.
    caller: Option<String>,
    /// To this host.
    host: Option<String>,
    /// Of this trigger.
    trigger: Option<String>,
    /// Whose reason contains this text, ignoring case.
    reason: Option<String>,
    /// Created then or later.
    #[param(value_type = Option<TimestampField>)]
    since: Option<TimestampField>,
    /// Created before then.
    #[param(value_type = Option<TimestampField>)]
    until: Option<TimestampField>,
    /// How many at most; 50 if not given.
    #[param(minimum = 1, maximum = 1000)]
    page_size: Option<u32>,
    /// The nextPageToken of the page before.
    page_token: Option<String>,
}

impl QueryFields for DeadLetterQuery {
    const LISTS: &'static [&'static str] = &["state"];
    const NUMBERS: &'static [&'static str] = &["page_size", "since", "until"];
}

/// Options of an action on one dead letter.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "a JSON object")]
#[schema(examples(json!({"note": "the receiver is repaired"})))]
#[schema(as = LetterOrder)]
pub(super) struct DeadLetterActionBody {
    /// Why; it is stored with the mark.
    #[schema(max_length = 1024)]
    note: Option<String>,
    /// Even if it was replayed or archived before.
    again: Option<bool>,
}

/// Which dead letters, and how many.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "a JSON object")]
#[schema(examples(json!({"host": "api.example.com", "dryRun": true})))]
#[schema(as = LettersOrder)]
pub(super) struct DeadLetterBulkActionBody {
    /// Of this caller.
    caller: Option<String>,
    /// To this host.
    host: Option<String>,
    /// Of this trigger.
    trigger: Option<String>,
    /// Whose reason contains this text, ignoring case.
    reason: Option<String>,
    /// Created then or later.
    since: Option<TimestampField>,
    /// Created before then.
    until: Option<TimestampField>,
    /// How many must match, as dryRun returns it; at most 1,000.
    #[schema(minimum = 0, maximum = 1000)]
    #[serde(default, deserialize_with = "field_types::whole_number")]
    count: Option<u32>,
    /// Only return how many match.
    dry_run: Option<bool>,
    /// Why; it is stored with the marks.
    #[schema(max_length = 1024)]
    note: Option<String>,
}

/// What was done.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Dealt)]
pub(super) struct DeadLetterActionResponse {
    /// How many match.
    matching: u64,
    /// How many were replayed or archived.
    #[serde(rename = "dealt")]
    handled: usize,
    /// Those that cannot be replayed.
    kept: Vec<UnreplayableDeadLetter>,
}

/// A dead letter that cannot be replayed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = KeptLetter)]
struct UnreplayableDeadLetter {
    id: String,
    reason: &'static str,
}

/// The paths of the actions in the OpenAPI document: a router has no suffix after a parameter, so
/// one handler serves them all.
#[derive(Debug, OpenApi)]
#[openapi(paths(replay, archive))]
pub(super) struct DeadLetterActionPaths;

/// List dead letters, the newest first.
#[utoipa::path(
    get, path = "/v1/dead-letters", tag = "dead letters", operation_id = "listDeadLetters",
    params(DeadLetterQuery),
    responses((status = 200, description = "A page", body = DeadLetterList,
        headers(("Orloj-View-As-Of" = String, description = "Up to when it is complete"))))
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Viewer(caller): Viewer,
    Query(query): Query<DeadLetterQuery>,
) -> Result<Response, Problem> {
    let page = read_page(query.page_size, query.page_token.as_deref())?;
    let states = query.state.unwrap_or_else(|| vec![LetterState::Open]);
    let filter = DeadLetterFilter {
        states,
        caller: query.caller,
        host: query.host,
        trigger: query.trigger,
        reason: query.reason,
        since: query.since.map(|TimestampField(at)| at),
        until: query.until.map(|TimestampField(at)| at),
    };
    let freshness = api.wait_for_view().await;
    let listing = api.view.dead_letters(&scope_of(&caller), &filter, &page).await;
    let (items, next_page_token) = page_items(listing.map_err(view_error)?);
    let as_of = format_time(freshness.as_of);
    Ok(view_response(&freshness, DeadLetterList { items, next_page_token, as_of }))
}

/// Look at a dead letter.
#[utoipa::path(
    get, path = "/v1/dead-letters/{id}", tag = "dead letters", operation_id = "getDeadLetter",
    params(("id" = String, Path, description = "Partition and offset, such as 3-41")),
    responses((status = 200, description = "The dead letter", body = DeadLetterResource,
        headers(("Orloj-View-As-Of" = String, description = "Up to when it is complete"))))
)]
pub(super) async fn get(
    State(api): State<Arc<Api>>,
    Viewer(caller): Viewer,
    PathId(id): PathId,
) -> Result<Response, Problem> {
    let freshness = api.wait_for_view().await;
    let letter = api.find_dead_letter(&caller, &id).await?;
    Ok(view_response(&freshness, DeadLetterResource::from(letter).with_as_of(freshness.as_of)))
}

/// Replay a dead letter: one more attempt under the same id, with its retry policy restarted.
#[utoipa::path(
    post, path = "/v1/dead-letters/{id}:replay", tag = "dead letters",
    operation_id = "replayDeadLetter",
    params(("id" = String, Path, description = "Partition and offset, such as 3-41")),
    request_body = Option<DeadLetterActionBody>,
    responses((status = 200, description = "It will be tried again",
        body = DeadLetterActionResponse))
)]
async fn replay(
    api: Arc<Api>,
    caller: Arc<Caller>,
    id: String,
    body: DeadLetterActionBody,
) -> HandlerResult {
    apply_to_one(api, caller, id, body, Mark::Replayed).await
}

/// Archive a dead letter, so that it is not listed any more.
#[utoipa::path(
    post, path = "/v1/dead-letters/{id}:archive", tag = "dead letters",
    operation_id = "archiveDeadLetter",
    params(("id" = String, Path, description = "Partition and offset, such as 3-41")),
    request_body = Option<DeadLetterActionBody>,
    responses((status = 200, description = "It is archived", body = DeadLetterActionResponse))
)]
async fn archive(
    api: Arc<Api>,
    caller: Arc<Caller>,
    id: String,
    body: DeadLetterActionBody,
) -> HandlerResult {
    apply_to_one(api, caller, id, body, Mark::Archived).await
}

/// Replay all matching dead letters: first request their number with dryRun.
#[utoipa::path(
    post, path = "/v1/dead-letters:replay", tag = "dead letters",
    operation_id = "replayDeadLetters",
    request_body = DeadLetterBulkActionBody,
    responses((status = 200, description = "How many match, and what was done",
        body = DeadLetterActionResponse))
)]
pub(super) async fn replay_all(
    State(api): State<Arc<Api>>,
    Registrant(caller): Registrant,
    request: Request,
) -> HandlerResult {
    apply_to_all(api, caller, request, Mark::Replayed).await
}

/// Archive all matching dead letters: first request their number with dryRun.
#[utoipa::path(
    post, path = "/v1/dead-letters:archive", tag = "dead letters",
    operation_id = "archiveDeadLetters",
    request_body = DeadLetterBulkActionBody,
    responses((status = 200, description = "How many match, and what was done",
        body = DeadLetterActionResponse))
)]
pub(super) async fn archive_all(
    State(api): State<Arc<Api>>,
    Registrant(caller): Registrant,
    request: Request,
) -> HandlerResult {
    apply_to_all(api, caller, request, Mark::Archived).await
}

type HandlerResult = Result<Response, Problem>;

/// `POST /v1/dead-letters/{id}:replay` and the like.
pub(super) async fn run_action(
    State(api): State<Arc<Api>>,
    Registrant(caller): Registrant,
    PathId(path): PathId,
    request: Request,
) -> HandlerResult {
    let (id, verb) = path.rsplit_once(':').unwrap_or((&path, ""));
    let json = body::read_bytes(request, BODY_MAX).await?;
    let body = if json.is_empty() || *json == *b"null" {
        DeadLetterActionBody::default()
    } else {
        body::parse_json(&json)?
    };
    match verb {
        "replay" => replay(api, caller, id.to_owned(), body).await,
        "archive" => archive(api, caller, id.to_owned(), body).await,
        _ => {
            let detail =
                "POST /v1/dead-letters/{id} takes a verb: write {id}:replay or {id}:archive";
            Err(Problem::of(ErrorCode::NoSuchRoute, detail))
        }
    }
}

async fn apply_to_one(
    api: Arc<Api>,
    caller: Arc<Caller>,
    id: String,
    body: DeadLetterActionBody,
    mark: Mark,
) -> HandlerResult {
    let action = action_of(mark, body.note)?;
    let _freshness = api.wait_for_view().await;
    let letter = api.find_dead_letter(&caller, &id).await?;
    if letter.state != LetterState::Open && body.again != Some(true) {
        let state = letter.state;
        let detail = format!("{id} was replayed or archived before");
        let problem = Problem::of(ErrorCode::Conflict, detail).with("state", json!(state));
        return Err(problem.hint("send \"again\": true to repeat the action"));
    }
    let letter_id = LetterId { partition: letter.partition, offset: letter.offset };
    let done = api.apply_action(BTreeMap::from([(letter_id, letter.replays)]), action).await?;
    if let [(_, why)] = done.skipped[..] {
        return Err(Problem::of(ErrorCode::NotReplayable, format!("{id}: {why}")));
    }
    if done.handled == 0 {
        return Err(unknown_dead_letter(&id));
    }
    Ok(Json(DeadLetterActionResponse::of(1, done)).into_response())
}

async fn apply_to_all(
    api: Arc<Api>,
    caller: Arc<Caller>,
    request: Request,
    mark: Mark,
) -> HandlerResult {
    let body: DeadLetterBulkActionBody =
        body::parse_json(&body::read_bytes(request, BODY_MAX).await?)?;
    let DeadLetterBulkActionBody { caller: of, host, trigger, reason, since, until, .. } = body;
    let filter = DeadLetterFilter {
        states: vec![LetterState::Open],
        caller: of,
        host,
        trigger,
        reason,
        since: since.map(|TimestampField(at)| at),
        until: until.map(|TimestampField(at)| at),
    };
    let action = action_of(mark, body.note)?;
    let scope = scope_of(&caller);
    let freshness = api.wait_for_view().await;
    let matching = api.view.count_dead_letters(&scope, &filter).await.map_err(view_error)?;
    if body.count.is_some_and(|count| count > DEAD_LETTERS_MAX) {
        let reason = format!("at most {DEAD_LETTERS_MAX} go at once: narrow the filter");
        return Err(FieldError::of("count", reason).into());
    }
    if body.dry_run == Some(true) {
        return Ok(view_response(
            &freshness,
            DeadLetterActionResponse::of(matching, LetterActionResult::default()),
        ));
    }
    let Some(count) = body.count else {
        let reason = "say how many match; dryRun returns it without doing anything";
        return Err(FieldError::of("count", reason).into());
    };
    if u64::from(count) != matching {
        let detail = format!("{matching} match, not {count}");
        return Err(Problem::of(ErrorCode::CountDiffers, detail).with("matching", json!(matching)));
    }
    let mut chosen = BTreeMap::new();
    let mut page = Page { size: view::PAGE_MAX, token: None };
    loop {
        let listing = api.view.dead_letters(&scope, &filter, &page).await.map_err(view_error)?;
        for letter in listing.items {
            let id = LetterId { partition: letter.partition, offset: letter.offset };
            let _replays = chosen.insert(id, letter.replays);
        }
        match listing.next {
            Some(token) if chosen.len() <= DEAD_LETTERS_MAX as usize => page.token = Some(token),
            _ => break,
        }
    }
    if chosen.len() as u64 != matching {
        let detail = format!("{} match now, not {count}", chosen.len());
        return Err(
            Problem::of(ErrorCode::CountDiffers, detail).with("matching", json!(chosen.len()))
        );
    }
    let done = api.apply_action(chosen, action).await?;
    Ok(Json(DeadLetterActionResponse::of(matching, done)).into_response())
}

fn action_of(mark: Mark, note: Option<String>) -> Result<LetterAction, Problem> {
    let default_note = match mark {
        Mark::Replayed => "replayed over HTTP",
        Mark::Archived => "archived over HTTP",
    };
    let note = note.unwrap_or_else(|| default_note.to_owned());
    if note.len() > NOTE_BYTES_MAX {
        let reason = format!("it has {} bytes, at most {NOTE_BYTES_MAX} are kept", note.len());
        return Err(FieldError::of("note", reason).into());
    }
    Ok(LetterAction { mark, note })
}

fn unknown_dead_letter(id: &str) -> Problem {
    Problem::of(ErrorCode::UnknownDeadLetter, format!("there is no dead letter {id} among yours"))
}

impl Api {
    /// The letter, if it is in the caller's scope.
    async fn find_dead_letter(&self, caller: &Caller, id: &str) -> Result<DeadLetterView, Problem> {
        let letter = self.view.dead_letter(&scope_of(caller), id).await.map_err(view_error)?;
        letter.ok_or_else(|| unknown_dead_letter(id))
    }

    /// Reads the selected dead letters again and applies the action; the values of `chosen` say how
    /// often each was replayed before.
    async fn apply_action(
        &self,
        chosen: BTreeMap<LetterId, u32>,
        action: LetterAction,
    ) -> Result<LetterActionResult, Problem> {
        if chosen.is_empty() {
            return Ok(LetterActionResult::default());
        }
        self.check_health()?;
        let (settings, ids) = (self.settings.clone(), chosen.keys().copied().collect());
        let reading = tokio::task::spawn_blocking(move || read_again(&settings, ids));
        let letters = reading.await;
        let letters = letters.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        let unavailable =
            |error: LetterError| Problem::unavailable(format!("{error}; repeat the request"));
        let letters = letters.map_err(unavailable)?;
        let done = self
            .dead_letter_actions
            .apply(letters, Arc::new(chosen), action)
            .await
            .map_err(unavailable)?;
        self.write_positions.observe_dead_letter_action(&done);
        Ok(done)
    }
}

/// The selected dead letters that retention has not deleted.
fn read_again(
    settings: &crate::config::Settings,
    mut chosen: BTreeSet<LetterId>,
) -> Result<Vec<(LetterId, crate::model::dead_letter::DeadLetter)>, LetterError> {
    let letters = DeadLetterReader::open(settings)?.restricted_to(&chosen);
    let mut found = Vec::new();
    let _marks = letters.scan(
        || (),
        |id, letter| {
            if chosen.remove(&id) {
                found.push((id, letter));
            }
            if chosen.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        },
    )?;
    Ok(found)
}

impl DeadLetterActionResponse {
    fn of(matching: u64, done: LetterActionResult) -> Self {
        let kept = done.skipped.into_iter().map(|(id, reason)| {
            let LetterId { partition, offset } = id;
            UnreplayableDeadLetter { id: format!("{partition}-{offset}"), reason }
        });
        Self { matching, handled: done.handled, kept: kept.collect() }
    }
}
