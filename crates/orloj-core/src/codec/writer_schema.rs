//! A schema that a producer has registered, checked before a value is read with it.
//!
//! Invariant: reading a value takes time and memory in proportion to its bytes, whatever the schema
//! is: it is small, nothing in it contains itself, and no list has items without bytes.

use std::collections::HashMap;

use apache_avro::Schema;
use apache_avro::schema::{DecimalSchema, FixedSchema, InnerDecimalSchema, Name, UuidSchema};

/// The text of a schema, in bytes. Orloj's own has 4,000.
pub const SCHEMA_BYTES_MAX: usize = 256 * 1024;
/// How deep the parts of a schema may contain each other. A reader goes as deep.
const DEPTH_MAX: usize = 32;
/// Parts of a schema, each counted as often as it is contained: a reader makes a value of each.
const PARTS_MAX: u64 = 10_000;

/// Why a schema cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WriterSchemaError {
    /// It is not a schema.
    #[error("it is no Avro schema: {0}")]
    Invalid(#[from] Box<apache_avro::Error>),
    /// It is longer than [`SCHEMA_BYTES_MAX`].
    #[error("it has {0} bytes, and {SCHEMA_BYTES_MAX} are the most")]
    TooLong(usize),
    /// Its parts contain each other too often.
    #[error("it has more than {PARTS_MAX} parts, or they are deeper than {DEPTH_MAX}")]
    TooLarge,
    /// A type contains itself.
    #[error("{0} contains itself")]
    Recursive(String),
    /// The items of a list may have no bytes, so that a few bytes could stand for any number.
    #[error("a list or map in it has items without bytes")]
    EmptyItems,
}

/// Reads a schema.
pub fn parse(text: &str) -> Result<Schema, WriterSchemaError> {
    if text.len() > SCHEMA_BYTES_MAX {
        return Err(WriterSchemaError::TooLong(text.len()));
    }
    let schema = Schema::parse_str(text).map_err(Box::new)?;
    let mut check = SchemaCheck::default();
    let _measure = check.measure(&schema, 0)?;
    Ok(schema)
}

/// What reading a value of some schema costs.
#[derive(Clone, Copy)]
struct Measure {
    /// Parts, each as often as it is contained.
    parts: u64,
    depth: usize,
    /// Whether a value may have no bytes.
    may_be_empty: bool,
}

#[derive(Default)]
struct SchemaCheck {
    /// Named types; `None` while they are being measured.
    named: HashMap<Name, Option<Measure>>,
}

impl SchemaCheck {
    /// `level` is how deep the schema's text is here.
    fn measure(&mut self, schema: &Schema, level: usize) -> Result<Measure, WriterSchemaError> {
        if level > DEPTH_MAX {
            return Err(WriterSchemaError::TooLarge);
        }
        let measure = match schema {
            Schema::Record(record) => {
                let _outer = self.named.insert(record.name.clone(), None);
                let fields = record.fields.iter().map(|field| &field.schema);
                let measure = self.sum(fields, level)?;
                let _open = self.named.insert(record.name.clone(), Some(measure));
                measure
            }
            Schema::Union(union) => {
                Measure { may_be_empty: false, ..self.sum(union.variants().iter(), level)? }
            }
            Schema::Array(array) => self.list(&array.items, level)?,
            Schema::Map(map) => {
                let measure = self.sum(std::iter::once(&*map.types), level)?;
                Measure { may_be_empty: false, ..measure } // an entry has a key
            }
            Schema::Ref { name } => match self.named.get(name) {
                Some(Some(measure)) => *measure,
                _ => return Err(WriterSchemaError::Recursive(name.to_string())),
            },
            Schema::Enum(one) => self.leaf(&one.name, false),
            Schema::Fixed(FixedSchema { name, size, .. })
            | Schema::Duration(FixedSchema { name, size, .. })
            | Schema::Uuid(UuidSchema::Fixed(FixedSchema { name, size, .. })) => {
                self.leaf(name, *size == 0)
            }
            Schema::Decimal(DecimalSchema { inner: InnerDecimalSchema::Fixed(fixed), .. }) => {
                self.leaf(&fixed.name, fixed.size == 0)
            }
            Schema::Null => Measure { parts: 1, depth: 1, may_be_empty: true },
            _ => Measure { parts: 1, depth: 1, may_be_empty: false },
        };
        if measure.parts > PARTS_MAX || measure.depth > DEPTH_MAX {
            return Err(WriterSchemaError::TooLarge);
        }
        Ok(measure)
    }

    fn list(&mut self, items: &Schema, level: usize) -> Result<Measure, WriterSchemaError> {
        let measure = self.sum(std::iter::once(items), level)?;
        if measure.may_be_empty {
            return Err(WriterSchemaError::EmptyItems);
        }
        Ok(measure)
    }

    fn leaf(&mut self, name: &Name, may_be_empty: bool) -> Measure {
        let measure = Measure { parts: 1, depth: 1, may_be_empty };
        let _new = self.named.insert(name.clone(), Some(measure));
        measure
    }

    fn sum<'s>(
        &mut self,
        parts: impl Iterator<Item = &'s Schema>,
        level: usize,
    ) -> Result<Measure, WriterSchemaError> {
        let mut sum = Measure { parts: 1, depth: 1, may_be_empty: true };
        for part in parts {
            let measure = self.measure(part, level + 1)?;
            sum.parts = sum.parts.saturating_add(measure.parts);
            sum.depth = sum.depth.max(measure.depth + 1);
            sum.may_be_empty &= measure.may_be_empty;
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        parse(text).err().expect("a schema that is refused").to_string()
    }

    #[test]
    fn our_own_schema_and_shared_types_are_taken() {
        let shared = r#"{"type": "record", "name": "A", "fields": [
            {"name": "a", "type": {"type": "fixed", "name": "F", "size": 2}},
            {"name": "b", "type": {"type": "array", "items": "F"}},
            {"name": "c", "type": ["null", {"type": "map", "values": "null"}]}]}"#;
        for text in [include_str!("../../../../schemas/trigger.avsc"), shared, "\"null\""] {
            assert!(parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_recursive_schema_is_refused() {
        let direct = r#"{"type": "record", "name": "A", "fields": [{"name": "a", "type": "A"}]}"#;
        assert_eq!(refusal(direct), "A contains itself");
        let indirect = r#"{"type": "record", "name": "A", "fields": [{"name": "b", "type":
            {"type": "record", "name": "B", "fields": [{"name": "a", "type": ["null", "A"]}]}}]}"#;
        assert_eq!(refusal(indirect), "A contains itself");
    }

    #[test]
    fn a_schema_that_grows_when_it_is_read_is_refused() {
        let mut fields =
            r#"{"name": "f0", "type": {"type": "record", "name": "R0", "fields": []}}"#.to_owned();
        for n in 1..30 {
            let of = n - 1;
            fields += &format!(
                r#",{{"name": "f{n}", "type": {{"type": "record", "name": "R{n}", "fields": [
                    {{"name": "a", "type": "R{of}"}}, {{"name": "b", "type": "R{of}"}}]}}}}"#
            );
        }
        let text = format!(r#"{{"type": "record", "name": "A", "fields": [{fields}]}}"#);
        assert!(refusal(&text).contains("parts"));
    }

    #[test]
    fn a_deep_a_long_and_a_broken_schema_are_refused() {
        let level = r#"{"type": "array", "items": "#;
        let deep = |levels| format!("{}\"int\"{}", level.repeat(levels), "}".repeat(levels));
        assert!(parse(&deep(DEPTH_MAX - 1)).is_ok());
        assert!(refusal(&deep(DEPTH_MAX)).contains("deeper"));
        assert!(parse(&deep(10_000)).is_err(), "it must not end the process");
        assert!(refusal(&" ".repeat(SCHEMA_BYTES_MAX + 1)).contains("bytes"));
        assert!(refusal("{").contains("no Avro schema"));
    }

    #[test]
    fn lists_of_nothing_are_refused() {
        let of_null = r#"{"type": "array", "items": "null"}"#;
        let of_empty = r#"{"type": "array", "items":
            {"type": "record", "name": "A", "fields": [{"name": "n", "type": "null"}]}}"#;
        for text in [of_null, of_empty] {
            assert!(refusal(text).contains("without bytes"), "{text}");
        }
    }

    #[test]
    fn a_schema_whose_values_are_much_larger_than_their_bytes_is_refused() {
        let nulls = |count: u32| -> String {
            (0..count).map(|n| format!(r#",{{"name": "n{n}", "type": "null"}}"#)).collect()
        };
        let with_nulls = |count| {
            let fields = format!(r#"{{"name": "b", "type": "boolean"}}{}"#, nulls(count));
            format!(r#"{{"type": "record", "name": "B", "fields": [{fields}]}}"#)
        };
        let list = |of: &str| format!(r#"{{"type": "array", "items": {of}}}"#);
        let map = |of: &str| format!(r#"{{"type": "map", "values": {of}}}"#);
        assert!(refusal(&list(&with_nulls(1_000))).contains("parts"), "of one byte each");
        assert!(refusal(&map(&with_nulls(1_000))).contains("parts"));
        assert!(refusal(&with_nulls(9_900)).contains("parts"), "each value is read on the loop");
        let optional = |of: &str| format!(r#"["null", {of}]"#);
        let money = r#"{"type": "record", "name": "Money", "fields": [
            {"name": "amount", "type": "long"}, {"name": "currency", "type": "string"}]}"#;
        let fields: String = (0..100)
            .map(|n| format!(r#",{{"name": "f{n}", "type": {}}}"#, optional("\"string\"")))
            .collect();
        let line = format!(
            r#"{{"type": "record", "name": "Line", "fields": [
                {{"name": "price", "type": {}}} {fields}]}}"#,
            optional(money)
        );
        for usual in [list(&line), map(&line), list(&optional(&line)), list(&list(&line))] {
            assert!(parse(&usual).is_ok(), "{usual}");
        }
    }
}
