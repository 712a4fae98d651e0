//! What the records of several versions and kinds have in common: ids and places on the timeline.
//!
//! Invariant: each `…Wire` mirrors a model type field by field and a schema record name by name.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::avro_long;
use crate::model::entry::FireId;
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey};
use crate::model::{Offset, Timestamp};

/// A model type as it is sent.
pub(super) struct Wire<T>(pub(super) T);

/// `Wire` for a model type is what its mirror derives.
macro_rules! wire {
    ($($noun:ty => $mirror:ty),* $(,)?) => {$(
        impl Serialize for Wire<&$noun> {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                <$mirror>::serialize(self.0, to)
            }
        }

        impl<'de> Deserialize<'de> for Wire<$noun> {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                <$mirror>::deserialize(from).map(Wire)
            }
        }
    )*};
}

pub(super) use wire;

wire! {
    FireId => FireIdWire,
    TimelineKey => TimelineKeyWire,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "FireId", rename = "FireId")]
pub(super) struct FireIdWire {
    trigger: Text,
    #[serde(with = "avro_long")]
    generation: Offset,
    occurrence: u32,
    attempt: u32,
    deferral: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "TimelineKey", rename = "TimelineKey")]
pub(super) struct TimelineKeyWire {
    #[serde(with = "avro_long")]
    due: Timestamp,
    priority: u8,
    #[serde(with = "SourceWire")]
    source: Source,
    #[serde(with = "avro_long")]
    offset: Offset,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Source", rename = "Source", rename_all = "camelCase")]
pub(super) enum SourceWire {
    Triggers,
    Signals,
}
