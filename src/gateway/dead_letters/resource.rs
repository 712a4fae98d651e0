//! Dead letters as the API shows them.
//!
//! Invariant: a time is RFC 3339 in UTC.

use serde::Serialize;
use utoipa::ToSchema;

use crate::gateway::http::ListItem;
use crate::model::time::format_time;
use crate::model::{Offset, PartitionId, Timestamp};
use crate::view::{DeadLetterView, LetterState};

/// A fire or an outcome that is not retried automatically.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = DeadLetter)]
pub(crate) struct DeadLetterResource {
    /// Its partition and offset: 3-41.
    id: String,
    #[schema(value_type = i32)]
    partition: PartitionId,
    #[schema(value_type = u64)]
    offset: Offset,
    /// When it became a dead letter.
    #[schema(format = DateTime)]
    at: String,
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    trigger_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<String>,
    /// The host of its callback.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    state: LetterState,
    /// How many times it was replayed.
    replays: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    as_of: Option<String>,
}

impl ListItem for DeadLetterResource {
    const LIST_NAME: &'static str = "DeadLetterList";
}

impl DeadLetterResource {
    /// Adds the time up to which the response is complete.
    pub(crate) fn with_as_of(self, as_of: Timestamp) -> Self {
        Self { as_of: Some(format_time(as_of)), ..self }
    }
}

impl From<DeadLetterView> for DeadLetterResource {
    fn from(view: DeadLetterView) -> Self {
        Self {
            id: view.id,
            partition: view.partition,
            offset: view.offset,
            at: format_time(view.at),
            reason: view.reason,
            trigger_id: view.trigger,
            caller: view.caller,
            host: view.host,
            state: view.state,
            replays: view.replays,
            attempts: view.attempts,
            last_status: view.last_status,
            as_of: None,
        }
    }
}
