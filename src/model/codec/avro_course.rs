//! The mirrors of a course and of those who wait, as `avro` has them of the records.
//!
//! Law: a course is its JSON, in a row and in the ledger alike.

use serde::{Deserialize, Serialize};

use super::long;
use crate::model::Offset;
use crate::model::course::Watcher;
use crate::model::text::Text;

#[derive(Serialize, Deserialize)]
#[serde(remote = "Watcher", rename = "Watcher")]
pub(super) struct WatcherWire {
    trigger: Text,
    #[serde(with = "long")]
    generation: Offset,
}

/// Those who wait, each as its mirror has it.
pub(super) mod watchers {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::WatcherWire;
    use crate::model::course::Watcher;

    /// One of them.
    struct Wire<T>(T);

    impl Serialize for Wire<&Watcher> {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            WatcherWire::serialize(self.0, to)
        }
    }

    impl<'de> Deserialize<'de> for Wire<Watcher> {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            WatcherWire::deserialize(from).map(Wire)
        }
    }

    #[expect(clippy::ptr_arg, reason = "serde hands over the field itself")]
    pub(in crate::model::codec) fn serialize<S: Serializer>(
        watchers: &Vec<Watcher>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(watchers.iter().map(Wire))
    }

    pub(in crate::model::codec) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<Watcher>, D::Error> {
        let watchers = Vec::<Wire<Watcher>>::deserialize(from)?;
        Ok(watchers.into_iter().map(|Wire(watcher)| watcher).collect())
    }
}

/// A course as its JSON.
pub(super) mod course {
    use serde::{Deserialize, Deserializer, Serializer, de, ser};

    use crate::model::course::Course;

    pub(in crate::model::codec) fn serialize<S: Serializer>(
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

    pub(in crate::model::codec) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Box<Course>>, D::Error> {
        let json = Option::<String>::deserialize(from)?;
        json.map(|json| serde_json::from_str(&json).map_err(de::Error::custom)).transpose()
    }
}
