//! The next occurrences of a schedule: of one in a request, or of a trigger's.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::api::{Api, view_response};
use super::auth::Viewer;
use super::json_body::{JsonBody, RequestBody};
use crate::callers::CallerLimits;
use crate::client::ValidationError;
use crate::clock;
use crate::gateway::http::field_types::{self, ScheduleSchema, TimestampField};
use crate::gateway::http::{FieldError, Problem};
use crate::gateway::http::{PathId, Query, QueryFields, invalid_parameter};
use crate::model::limits::SCHEDULE_BYTES_MAX;
use crate::model::schedule::{DstEffect, Preview, Schedule};
use crate::model::time::format_time;

/// Occurrences that are shown by default.
const COUNT_DEFAULT: u32 = 10;
/// Occurrences that can be requested.
const COUNT_MAX: u32 = 1_000;
/// Bytes of a body: a schedule, and three short fields.
const BODY_MAX: u64 = 2 * SCHEDULE_BYTES_MAX as u64;

/// A schedule to be previewed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "a JSON object")]
#[schema(examples(json!({"schedule": {"daily": "09:00", "zone": "Europe/Prague"}, "count": 3})))]
#[schema(as = ScheduleQuestion)]
pub(super) struct PreviewScheduleBody {
    #[schema(value_type = ScheduleSchema)]
    schedule: Box<RawValue>,
    /// The time of registration to assume; now if not given.
    from: Option<TimestampField>,
    /// How many occurrences.
    #[schema(minimum = 1, maximum = 1000, default = 10)]
    #[serde(default, deserialize_with = "field_types::whole_number")]
    count: Option<u32>,
    /// The trigger id whose jitter is used.
    trigger_id: Option<String>,
}

impl RequestBody for PreviewScheduleBody {
    fn bytes_max(_limits: &CallerLimits) -> u64 {
        BODY_MAX
    }
}

/// How many occurrences of a trigger.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct NextQuery {
    /// How many; 10 if not given.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, deserialize_with = "field_types::whole_number")]
    count: Option<u32>,
}

impl QueryFields for NextQuery {
    const NUMBERS: &'static [&'static str] = &["count"];
}

/// The next occurrences of a schedule.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Occurrences {
    /// The schedule in its normal form.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ScheduleSchema>)]
    schedule: Option<Box<RawValue>>,
    items: Vec<NextOccurrence>,
    /// Up to when the trigger's state is complete; absent for a preview.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    as_of: Option<String>,
}

/// One occurrence, or one that a DST change skips.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct NextOccurrence {
    /// When it is due.
    #[schema(format = DateTime)]
    at: String,
    /// The local time in the schedule's zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    local: Option<String>,
    /// When the trigger fires, its jitter included; absent if it is skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    fire_at: Option<String>,
    /// The effect of a DST change: shifted, first or second of two.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    note: Option<DstEffect>,
    /// How many more occurrences like it follow and are not listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    more: Option<u64>,
}

impl From<Preview> for NextOccurrence {
    fn from(preview: Preview) -> Self {
        let Preview { at, local, fire_at, note, more } = preview;
        Self {
            at: format_time(at),
            local: Some(local),
            fire_at: fire_at.map(format_time),
            note,
            more: (more > 0).then_some(more),
        }
    }
}

/// Show when a schedule would fire, without registering anything.
#[utoipa::path(
    post, path = "/v1/schedules:next", tag = "schedules", operation_id = "previewSchedule",
    request_body = PreviewScheduleBody,
    responses((status = 200, description = "The next occurrences", body = Occurrences))
)]
pub(super) async fn preview(
    Viewer(_caller): Viewer,
    body: JsonBody<PreviewScheduleBody>,
) -> Result<Response, Problem> {
    let body = body.parse()?;
    let count = body.count.unwrap_or(COUNT_DEFAULT);
    if !(1..=COUNT_MAX).contains(&count) {
        return Err(FieldError::of("count", format!("write 1 to {COUNT_MAX}, not {count}")).into());
    }
    let from = body.from.map_or_else(clock::now_ms, |TimestampField(at)| at);
    let schedule = Schedule::from_json(body.schedule.get());
    let schedule =
        schedule.map_err(|reason| ValidationError { field: "schedule", reason })?.anchored(from);
    let items = schedule.preview(from, count as usize, body.trigger_id.as_deref());
    let items = items.into_iter().map(NextOccurrence::from).collect();
    let schedule = RawValue::from_string(schedule.to_json()).ok();
    Ok(Json(Occurrences { schedule, items, as_of: None }).into_response())
}

/// Show when a trigger fires next.
#[utoipa::path(
    get, path = "/v1/triggers/{id}/next", tag = "triggers", operation_id = "listNextOccurrences",
    params(("id" = String, Path, description = "The trigger's id"), NextQuery),
    responses((status = 200, description = "The next occurrences", body = Occurrences,
        headers(("Orloj-View-As-Of" = String, description = "Up to when it is complete"))))
)]
pub(super) async fn next(
    State(api): State<Arc<Api>>,
    Viewer(caller): Viewer,
    PathId(id): PathId,
    Query(query): Query<NextQuery>,
) -> Result<Response, Problem> {
    let count = query.count.unwrap_or(COUNT_DEFAULT);
    if !(1..=COUNT_MAX).contains(&count) {
        return Err(invalid_parameter(&format!("count: write 1 to {COUNT_MAX}, not {count}")));
    }
    let (trigger, freshness) = api.find_trigger(&caller, &id).await?;
    let as_of = Some(format_time(freshness.as_of));
    let json = trigger.schedule.as_deref();
    let schedule = json.and_then(|json| Schedule::from_json(json).ok());
    let items = match &schedule {
        _ if trigger.status.is_settled() => Vec::new(),
        Some(schedule) => {
            let max = schedule.max_executions().unwrap_or(u32::MAX);
            let counted = trigger.executions.saturating_sub(trigger.counted_from);
            let left = count.min(max.saturating_sub(counted));
            let items = schedule.preview(clock::now_ms(), left as usize, Some(&id));
            items.into_iter().map(NextOccurrence::from).collect()
        }
        None => {
            let once = |at| NextOccurrence {
                at: format_time(at),
                local: None,
                fire_at: Some(format_time(at)),
                note: None,
                more: None,
            };
            trigger.fire_at.map(once).into_iter().collect()
        }
    };
    let schedule = trigger.schedule.and_then(|json| RawValue::from_string(json).ok());
    Ok(view_response(&freshness, Occurrences { schedule, items, as_of }))
}
