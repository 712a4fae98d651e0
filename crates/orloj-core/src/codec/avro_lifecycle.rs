//! A lifecycle in the ledger's Avro records: its JSON, as in a row.

use serde::{Deserialize, Deserializer, Serializer, de, ser};

use crate::model::lifecycle::Lifecycle;

pub(super) fn serialize<S: Serializer>(
    lifecycle: &Option<Box<Lifecycle>>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match lifecycle {
        None => to.serialize_none(),
        Some(lifecycle) => {
            let json = serde_json::to_string(lifecycle).map_err(ser::Error::custom)?;
            to.serialize_some(&json)
        }
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Box<Lifecycle>>, D::Error> {
    let json = Option::<String>::deserialize(from)?;
    json.map(|json| serde_json::from_str(&json).map_err(de::Error::custom)).transpose()
}
