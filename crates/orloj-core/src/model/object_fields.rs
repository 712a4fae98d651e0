//! The fields of a JSON object, taken one by one.
//!
//! Invariant: no field is silently ignored; an unknown one is refused with the nearest known name.
//! A null means the same as a missing field.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::Millis;
use super::field::{self, Reason, refused};

/// The fields of an object that are not taken yet, as their JSON, under their full names.
pub(crate) struct ObjectFields<'a>(BTreeMap<String, &'a str>);

impl<'a> ObjectFields<'a> {
    /// The fields of `json`, each under `prefix` and its own name.
    pub(crate) fn parse(prefix: &str, json: &'a str) -> Result<Self, serde_json::Error> {
        let object: BTreeMap<String, &'a RawValue> = serde_json::from_str(json)?;
        let fields = object.into_iter().filter(|(_, json)| json.get() != "null");
        Ok(Self(fields.map(|(name, json)| (format!("{prefix}{name}"), json.get())).collect()))
    }

    /// The same of what must be an object, and is the field `field` itself.
    pub(crate) fn object(prefix: &str, field: &str, json: &'a str) -> Result<Self, Reason> {
        Self::parse(prefix, json).map_err(|_| refused(field, json, "give a JSON object"))
    }

    /// The field as JSON.
    pub(crate) fn take(&mut self, name: &str) -> Option<&'a str> {
        self.0.remove(name)
    }

    /// The field, which must be a string.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, Reason> {
        self.take(name).map(|json| string(name, json)).transpose()
    }

    /// Refuses fields that were not taken; `known` are the names that could have been taken.
    pub(crate) fn finish(self, known: &[&str]) -> Result<(), Reason> {
        let Some((name, json)) = self.0.into_iter().next() else { return Ok(()) };
        let way_out = match nearest(&name, known.iter().copied()) {
            Some(nearest) => format!("there is no such field; did you mean {nearest}?"),
            None => "there is no such field".to_owned(),
        };
        Err(refused(&name, json, way_out))
    }
}

/// Which of the `known` names is most like `name`.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |known: &&str| strsim::jaro_winkler(known, name);
    known.max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
}

/// A JSON string.
pub(crate) fn string(field: &str, json: &str) -> Result<String, Reason> {
    serde_json::from_str(json).map_err(|_| refused(field, json, "give a string in double quotes"))
}

/// Milliseconds as a number, or a duration as a string.
pub(crate) fn delay(field: &str, json: &str) -> Result<Millis, Reason> {
    match json.parse() {
        Ok(ms) => field::delay_ms(field, ms),
        Err(_) => field::delay(field, &string(field, json)?),
    }
}
