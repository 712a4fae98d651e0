//! Records of ours as people read them: JSON, whatever their kind and version.
//!
//! Invariant: for people only. Nothing reads it back, so bytes that are text are shown as text.

use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::schema::{NamesRef, ResolvedSchema};
use apache_avro::types::Value;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value as Json, json};

use super::schemas::{Schemas, split_frame};

impl Schemas {
    /// What a value in Avro's single-object encoding says, if we know the schema it names. Times
    /// are in ms since the epoch.
    #[must_use]
    pub fn to_debug_json(&self, bytes: &[u8]) -> Option<Json> {
        let (fingerprint, mut datum) = split_frame(bytes)?;
        let schema = self.by_fingerprint(fingerprint)?;
        let reader = GenericDatumReader::builder(schema).build().ok()?;
        let value = reader.read_value(&mut datum).ok().filter(|_| datum.is_empty())?;
        let resolved = ResolvedSchema::new(schema).ok()?;
        Some(debug_json(value, schema, resolved.get_names()))
    }
}

fn debug_json(value: Value, schema: &Schema, names: &NamesRef<'_>) -> Json {
    let schema = match schema {
        Schema::Ref { name } => names.get(name).copied().unwrap_or(schema),
        other => other,
    };
    match (value, schema) {
        (Value::Record(fields), Schema::Record(record)) => {
            let fields = fields.into_iter().zip(&record.fields);
            fields
                .map(|((name, value), field)| (name, debug_json(value, &field.schema, names)))
                .collect()
        }
        (Value::Union(at, value), Schema::Union(union)) => {
            let named = union.variants().iter().filter(|variant| variant.name().is_some()).count();
            let Some(variant) = union.variants().get(at as usize) else { return Json::Null };
            let value = debug_json(*value, variant, names);
            match variant.name() {
                // One of several: its name says which, as in Avro's own JSON.
                Some(name) if named > 1 => json!({ name.name(): value }),
                _ => value,
            }
        }
        (Value::Array(items), Schema::Array(array)) => {
            items.into_iter().map(|item| debug_json(item, &array.items, names)).collect()
        }
        (Value::Map(entries), Schema::Map(map)) => entries
            .into_iter()
            .map(|(name, it)| (name, debug_json(it, &map.types, names)))
            .collect(),
        (Value::Bytes(bytes), _) => match String::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(error) => json!({ "base64": BASE64.encode(error.as_bytes()) }),
        },
        (plain, _) => plain.try_into().unwrap_or(Json::Null),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::samples;

    #[test]
    fn a_record_of_any_kind_is_shown_with_its_kind() {
        let schemas = Schemas::new();
        let ended =
            schemas.to_debug_json(&schemas.encode_signal(&samples::callback_ended())).unwrap();
        let id = json!({
            "trigger": "order-7", "generation": 41, "occurrence": 0, "attempt": 2, "deferral": 1
        });
        assert_eq!(ended, json!({ "request": { "Settled": { "id": id, "ok": true } } }));
        let every = [
            schemas.encode_fire(&samples::fire()),
            schemas.encode_withdrawal(&samples::withdrawal()),
            schemas.encode_outcome(&samples::outcome()),
            schemas.encode_dead_letter(&samples::letter()),
            schemas.encode_ledger(&samples::ledger_entry()),
        ];
        for bytes in every {
            let shown = schemas.to_debug_json(&bytes).unwrap().to_string();
            assert!(shown.contains("order-7"), "{shown}");
        }
    }

    #[test]
    fn bytes_that_are_not_text_are_shown_in_base64() {
        let schemas = Schemas::new();
        let shown =
            schemas.to_debug_json(&schemas.encode_ledger(&samples::ledger_entry())).unwrap();
        assert!(shown.to_string().contains(r#"{"base64":"AHBhef8="}"#), "{shown}");
    }

    #[test]
    fn bytes_without_a_known_schema_are_not_shown() {
        let schemas = Schemas::new();
        let mut bytes = schemas.encode_signal(&samples::callback_ended());
        bytes.push(0);
        assert_eq!(schemas.to_debug_json(&bytes), None, "longer than its schema");
        bytes[2] ^= 1;
        assert_eq!(schemas.to_debug_json(&bytes), None, "another schema");
        assert_eq!(schemas.to_debug_json(b"tea is ready"), None);
    }
}
