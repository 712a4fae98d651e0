//! `GET /v1/dead-letters`, and one of them.
//!
//! Invariant: a caller sees its own dead letters only, and every response says up to when it is
//! complete.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;

use super::resource::DeadLetterResource;
use crate::callers::Caller;
use crate::gateway::api::{Api, view_response};
use crate::gateway::auth::{Viewer, scope_of};
use crate::gateway::http::field_types::TimestampField;
use crate::gateway::http::{
    ErrorCode, ListResponse, PathId, Problem, Query, QueryFields, read_page,
};
use crate::view::{DeadLetterFilter, DeadLetterView, LetterState};

// An alias, because the OpenAPI macros do not take generic types.
type DeadLetterList = ListResponse<DeadLetterResource>;

/// Conditions that must all hold.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeadLetterQuery {
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

/// List dead letters, the newest first.
#[utoipa::path(
    get, path = "/v1/dead-letters", tag = "dead letters", operation_id = "listDeadLetters",
    params(DeadLetterQuery),
    responses((status = 200, description = "A page", body = DeadLetterList,
        headers(("Orloj-View-As-Of" = String, description = "Up to when it is complete"))))
)]
pub(crate) async fn list(
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
    let freshness = api.fresh_view().await?;
    let listing = api.view.dead_letters(&scope_of(&caller), &filter, &page).await;
    Ok(view_response(&freshness, DeadLetterList::page(listing?, &freshness)))
}

/// Look at a dead letter.
#[utoipa::path(
    get, path = "/v1/dead-letters/{id}", tag = "dead letters", operation_id = "getDeadLetter",
    params(("id" = String, Path, description = "Partition and offset, such as 3-41")),
    responses((status = 200, description = "The dead letter", body = DeadLetterResource,
        headers(("Orloj-View-As-Of" = String, description = "Up to when it is complete"))))
)]
pub(crate) async fn get(
    State(api): State<Arc<Api>>,
    Viewer(caller): Viewer,
    PathId(id): PathId,
) -> Result<Response, Problem> {
    let freshness = api.fresh_view().await?;
    let letter = api.find_dead_letter(&caller, &id).await?;
    Ok(view_response(&freshness, DeadLetterResource::from(letter).with_as_of(freshness.as_of)))
}

pub(super) fn unknown_dead_letter(id: &str) -> Problem {
    Problem::of(ErrorCode::UnknownDeadLetter, format!("there is no dead letter {id} among yours"))
}

impl Api {
    /// The letter, if it is in the caller's scope.
    pub(super) async fn find_dead_letter(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<DeadLetterView, Problem> {
        let letter = self.view.dead_letter(&scope_of(caller), id).await?;
        letter.ok_or_else(|| unknown_dead_letter(id))
    }
}
