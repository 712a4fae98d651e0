//! A course as `avro` has it in the ledger: its JSON, as in a row.

use serde::{Deserialize, Deserializer, Serializer, de, ser};

use crate::model::course::Course;

pub(super) fn serialize<S: Serializer>(
    course: &Option<Box<Course>>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match course {
        None => to.serialize_none(),
        Some(course) => {
            let json = serde_json::to_string(course).map_err(ser::Error::custom)?;
            to.serialize_some(&json)
        }
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Box<Course>>, D::Error> {
    let json = Option::<String>::deserialize(from)?;
    json.map(|json| serde_json::from_str(&json).map_err(de::Error::custom)).transpose()
}
