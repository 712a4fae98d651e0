//! The Avro mirror of an outcome; `avro` has those of the other records.

use serde::{Deserialize, Serialize};

use crate::model::avro_long;
use crate::model::lifecycle::OnFailure;
use crate::model::outcome::{Circuit, Outcome, OutcomeKind};
use crate::model::text::Text;
use crate::model::{Offset, Timestamp};

#[derive(Serialize, Deserialize)]
#[serde(remote = "Outcome", rename = "Outcome")]
pub(super) struct OutcomeWire {
    trigger: Text,
    #[serde(with = "avro_long::option")]
    answers: Option<Offset>,
    #[serde(default)]
    request: Option<Text>,
    #[serde(with = "avro_long")]
    at: Timestamp,
    #[serde(with = "OutcomeKindWire")]
    #[serde(rename = "verdict")]
    kind: OutcomeKind,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "OutcomeKind", rename_all_fields = "camelCase")]
enum OutcomeKindWire {
    Accepted {
        #[serde(with = "avro_long")]
        generation: Offset,
        #[serde(with = "avro_long")]
        fire_at: Timestamp,
        #[serde(with = "avro_long::option")]
        replaced: Option<Offset>,
    },
    Kept {
        #[serde(with = "avro_long")]
        generation: Offset,
        #[serde(with = "avro_long")]
        fire_at: Timestamp,
    },
    Cancelled {
        #[serde(with = "avro_long")]
        generation: Offset,
    },
    NotPending {
        #[serde(with = "avro_long::option")]
        fired: Option<Offset>,
        withdrawal: bool,
    },
    Rejected {
        reason: String,
    },
    Delivered {
        #[serde(with = "avro_long")]
        generation: Offset,
        occurrence: u32,
        attempt: u32,
        status: u16,
    },
    Failed {
        #[serde(with = "avro_long")]
        generation: Offset,
        occurrence: u32,
        attempt: u32,
        status: Option<u16>,
        reason: String,
        #[serde(with = "avro_long::option")]
        retry_at: Option<Timestamp>,
    },
    Circuit(Circuit),
    Withdrawn {
        #[serde(with = "avro_long")]
        generation: Offset,
        occurrence: u32,
        attempt: u32,
    },
    Paused {
        #[serde(with = "avro_long")]
        generation: Offset,
        reason: String,
    },
    Resumed {
        #[serde(with = "avro_long")]
        generation: Offset,
        #[serde(with = "avro_long")]
        fire_at: Timestamp,
    },
    Called {
        #[serde(with = "avro_long")]
        generation: Offset,
        occurrence: u32,
    },
    Skipped {
        #[serde(with = "avro_long")]
        generation: Offset,
        occurrences: u32,
        #[serde(with = "avro_long")]
        from: Timestamp,
        #[serde(with = "avro_long")]
        until: Timestamp,
        reason: String,
    },
    Ended {
        #[serde(with = "avro_long")]
        generation: Offset,
        executions: u32,
    },
    Expired {
        #[serde(with = "avro_long")]
        generation: Offset,
        #[serde(with = "avro_long")]
        fire_at: Timestamp,
    },
    Unmet {
        #[serde(with = "avro_long")]
        generation: Offset,
        then: OnFailure,
        reason: String,
    },
    Taken {
        #[serde(with = "avro_long")]
        generation: Offset,
    },
    Changed {
        #[serde(with = "avro_long")]
        generation: Offset,
        #[serde(with = "avro_long")]
        revision: Offset,
        #[serde(with = "avro_long")]
        fire_at: Timestamp,
        #[serde(default, with = "known_count")]
        executions: Option<u32>,
    },
}

/// A count that earlier schemas did not have.
mod known_count {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        count: &Option<u32>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        count.unwrap_or(0).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<u32>, D::Error> {
        u32::deserialize(deserializer).map(Some)
    }
}
