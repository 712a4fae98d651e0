//! Records of ours as people read them: JSON, whatever their kind and version.
//!
//! Law: for eyes alone. Nothing reads it back, so bytes that are text are shown as text.

use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::schema::{NamesRef, ResolvedSchema};
use apache_avro::types::Value;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value as Json, json};

use super::schemas::{Schemas, framed};

impl Schemas {
    /// What a value in Avro's single-object encoding says, if we know the schema it names. Times
    /// are in ms since the epoch.
    #[must_use]
    pub fn tell(&self, bytes: &[u8]) -> Option<Json> {
        let (fingerprint, mut datum) = framed(bytes)?;
        let schema = self.by_fingerprint(fingerprint)?;
        let reader = GenericDatumReader::builder(schema).build().ok()?;
        let value = reader.read_value(&mut datum).ok().filter(|_| datum.is_empty())?;
        let resolved = ResolvedSchema::new(schema).ok()?;
        Some(told(value, schema, resolved.get_names()))
    }
}

fn told(value: Value, schema: &Schema, names: &NamesRef<'_>) -> Json {
    let schema = match schema {
        Schema::Ref { name } => names.get(name).copied().unwrap_or(schema),
        other => other,
    };
    match (value, schema) {
        (Value::Record(fields), Schema::Record(record)) => {
            let fields = fields.into_iter().zip(&record.fields);
            fields.map(|((name, value), field)| (name, told(value, &field.schema, names))).collect()
        }
        (Value::Union(at, value), Schema::Union(union)) => {
            let named = union.variants().iter().filter(|variant| variant.name().is_some()).count();
            let Some(variant) = union.variants().get(at as usize) else { return Json::Null };
            let value = told(*value, variant, names);
            match variant.name() {
                // One of several: its name says which, as in Avro's own JSON.
                Some(name) if named > 1 => json!({ name.name(): value }),
                _ => value,
            }
        }
        (Value::Array(items), Schema::Array(array)) => {
            items.into_iter().map(|item| told(item, &array.items, names)).collect()
        }
        (Value::Map(entries), Schema::Map(map)) => {
            entries.into_iter().map(|(name, it)| (name, told(it, &map.types, names))).collect()
        }
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
    fn a_record_of_any_kind_is_told_with_what_it_is() {
        let schemas = Schemas::new();
        let settled = schemas.tell(&schemas.encode_signal(&samples::settled())).unwrap();
        let id = json!({
            "trigger": "order-7", "generation": 41, "occurrence": 0, "attempt": 2, "deferral": 1
        });
        assert_eq!(settled, json!({ "request": { "Settled": { "id": id, "ok": true } } }));
        let every = [
            schemas.encode_fire(&samples::fire()),
            schemas.encode_withdrawal(&samples::withdrawal()),
            schemas.encode_outcome(&samples::outcome()),
            schemas.encode_dead_letter(&samples::letter()),
            schemas.encode_ledger(&samples::ledger_entry()),
        ];
        for bytes in every {
            let told = schemas.tell(&bytes).unwrap().to_string();
            assert!(told.contains("order-7"), "{told}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_told_in_base64() {
        let schemas = Schemas::new();
        let told = schemas.tell(&schemas.encode_ledger(&samples::ledger_entry())).unwrap();
        assert!(told.to_string().contains(r#"{"base64":"AHBhef8="}"#), "{told}");
    }

    #[test]
    fn what_is_not_ours_is_not_told() {
        let schemas = Schemas::new();
        let mut bytes = schemas.encode_signal(&samples::settled());
        bytes.push(0);
        assert_eq!(schemas.tell(&bytes), None, "longer than its schema");
        bytes[2] ^= 1;
        assert_eq!(schemas.tell(&bytes), None, "another schema");
        assert_eq!(schemas.tell(b"tea is ready"), None);
    }
}
