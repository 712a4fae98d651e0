//! `POST /v1/dead-letters/{id}:replay`, `:archive`, and both for all that match a filter.
//!
//! Invariant: a bulk action names the number of matching dead letters, and is refused if another
//! number matches: it never handles more than its caller has seen.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{OpenApi, ToSchema};

use super::read::unknown_dead_letter;
use crate::callers::{Caller, CallerLimits};
use crate::config::Settings;
use crate::dead_letters::{
    DeadLetterReader, LetterAction, LetterActionResult, LetterError, LetterId,
};
use crate::gateway::api::{Api, view_response};
use crate::gateway::auth::{Registrant, scope_of};
use crate::gateway::http::field_types::{self, TimestampField};
use crate::gateway::http::{ErrorCode, FieldError, PathId, Problem};
use crate::gateway::json_body::{JsonBody, RequestBody};
use crate::model::dead_letter::{DeadLetter, Mark};
use crate::view::{self, DeadLetterFilter, LetterState, Page};

/// Dead letters that one request handles: they are read again, and written in one transaction.
const DEAD_LETTERS_MAX: u32 = 1_000;
/// Bytes of a body: a filter and a note.
const BODY_MAX: u64 = 16_384;
/// Bytes of a note.
const NOTE_BYTES_MAX: usize = 1_024;

/// Options of an action on one dead letter.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "a JSON object")]
#[schema(examples(json!({"note": "the receiver is repaired"})))]
#[schema(as = LetterOrder)]
pub(crate) struct DeadLetterActionBody {
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
pub(crate) struct DeadLetterBulkActionBody {
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

impl RequestBody for DeadLetterActionBody {
    fn bytes_max(_limits: &CallerLimits) -> u64 {
        BODY_MAX
    }
}

impl RequestBody for DeadLetterBulkActionBody {
    fn bytes_max(_limits: &CallerLimits) -> u64 {
        BODY_MAX
    }
}

/// What was done.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Dealt)]
pub(crate) struct DeadLetterActionResponse {
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
pub(crate) struct DeadLetterActionPaths;

/// Replay a dead letter: one more attempt under the same id, with its retry policy restarted.
///
/// A repetition does nothing, unless it has "again": true: then it is one more replay.
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
///
/// A repetition does nothing.
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
///
/// A repetition does nothing: those that were replayed do not match any more.
#[utoipa::path(
    post, path = "/v1/dead-letters:replay", tag = "dead letters",
    operation_id = "replayDeadLetters",
    request_body = DeadLetterBulkActionBody,
    responses((status = 200, description = "How many match, and what was done",
        body = DeadLetterActionResponse))
)]
pub(crate) async fn replay_all(
    State(api): State<Arc<Api>>,
    Registrant(caller): Registrant,
    body: JsonBody<DeadLetterBulkActionBody>,
) -> HandlerResult {
    apply_to_all(api, caller, body.parse()?, Mark::Replayed).await
}

/// Archive all matching dead letters: first request their number with dryRun.
///
/// A repetition does nothing: those that were archived do not match any more.
#[utoipa::path(
    post, path = "/v1/dead-letters:archive", tag = "dead letters",
    operation_id = "archiveDeadLetters",
    request_body = DeadLetterBulkActionBody,
    responses((status = 200, description = "How many match, and what was done",
        body = DeadLetterActionResponse))
)]
pub(crate) async fn archive_all(
    State(api): State<Arc<Api>>,
    Registrant(caller): Registrant,
    body: JsonBody<DeadLetterBulkActionBody>,
) -> HandlerResult {
    apply_to_all(api, caller, body.parse()?, Mark::Archived).await
}

type HandlerResult = Result<Response, Problem>;

/// `POST /v1/dead-letters/{id}:replay` and the like.
pub(crate) async fn run_action(
    State(api): State<Arc<Api>>,
    Registrant(caller): Registrant,
    PathId(path): PathId,
    body: JsonBody<DeadLetterActionBody>,
) -> HandlerResult {
    let (id, verb) = path.rsplit_once(':').unwrap_or((&path, ""));
    let body = body.parse_or_default()?;
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
    let _freshness = api.fresh_view().await?;
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
    body: DeadLetterBulkActionBody,
    mark: Mark,
) -> HandlerResult {
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
    let freshness = api.fresh_view().await?;
    let matching = api.view.count_dead_letters(&scope, &filter).await?;
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
        let listing = api.view.dead_letters(&scope, &filter, &page).await?;
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

impl Api {
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
        let letters = letters.map_err(|error| Problem::unavailable(error.to_string()))?;
        let done = self.dead_letter_actions.apply(letters, Arc::new(chosen), action).await;
        let done = done.map_err(|error| Problem::unacknowledged(error.to_string()))?;
        self.write_positions.observe_dead_letter_action(&done, self.view.now());
        Ok(done)
    }
}

/// The selected dead letters that retention has not deleted.
fn read_again(
    settings: &Settings,
    mut chosen: BTreeSet<LetterId>,
) -> Result<Vec<(LetterId, DeadLetter)>, LetterError> {
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
