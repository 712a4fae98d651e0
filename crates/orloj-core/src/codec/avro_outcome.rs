//! The mirror of an outcome, as `avro` has it of the other records.

use serde::{Deserialize, Serialize};

use crate::model::course::OnFailure;
use crate::model::long;
use crate::model::outcome::{Circuit, Outcome, Verdict};
use crate::model::text::Text;
use crate::model::{Offset, Timestamp};

#[derive(Serialize, Deserialize)]
#[serde(remote = "Outcome", rename = "Outcome")]
pub(super) struct OutcomeWire {
    trigger: Text,
    #[serde(with = "long::option")]
    answers: Option<Offset>,
    #[serde(with = "long")]
    at: Timestamp,
    #[serde(with = "VerdictWire")]
    verdict: Verdict,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Verdict", rename_all_fields = "camelCase")]
enum VerdictWire {
    Accepted {
        #[serde(with = "long")]
        generation: Offset,
        #[serde(with = "long")]
        fire_at: Timestamp,
        #[serde(with = "long::option")]
        replaced: Option<Offset>,
    },
    Kept {
        #[serde(with = "long")]
        generation: Offset,
        #[serde(with = "long")]
        fire_at: Timestamp,
    },
    Cancelled {
        #[serde(with = "long")]
        generation: Offset,
    },
    NotPending {
        #[serde(with = "long::option")]
        fired: Option<Offset>,
        withdrawal: bool,
    },
    Rejected {
        reason: String,
    },
    Delivered {
        #[serde(with = "long")]
        generation: Offset,
        occurrence: u32,
        attempt: u32,
        status: u16,
    },
    Failed {
        #[serde(with = "long")]
        generation: Offset,
        occurrence: u32,
        attempt: u32,
        status: Option<u16>,
        reason: String,
        #[serde(with = "long::option")]
        retry_at: Option<Timestamp>,
    },
    Circuit(Circuit),
    Withdrawn {
        #[serde(with = "long")]
        generation: Offset,
        occurrence: u32,
        attempt: u32,
    },
    Paused {
        #[serde(with = "long")]
        generation: Offset,
        reason: String,
    },
    Resumed {
        #[serde(with = "long")]
        generation: Offset,
        #[serde(with = "long")]
        fire_at: Timestamp,
    },
    Called {
        #[serde(with = "long")]
        generation: Offset,
        occurrence: u32,
    },
    Skipped {
        #[serde(with = "long")]
        generation: Offset,
        occurrences: u32,
        #[serde(with = "long")]
        from: Timestamp,
        #[serde(with = "long")]
        until: Timestamp,
        reason: String,
    },
    Ended {
        #[serde(with = "long")]
        generation: Offset,
        executions: u32,
    },
    Expired {
        #[serde(with = "long")]
        generation: Offset,
        #[serde(with = "long")]
        fire_at: Timestamp,
    },
    Unmet {
        #[serde(with = "long")]
        generation: Offset,
        then: OnFailure,
        reason: String,
    },
    Taken {
        #[serde(with = "long")]
        generation: Offset,
    },
}
