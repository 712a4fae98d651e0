//! A schema that a producer has registered, checked before a value is read with it.
//!
//! Invariant: reading a value takes memory in proportion to its bytes, and time in proportion to
//! how often they are read, whatever the schema is: it is small, nothing in it contains itself, and
//! the items of lists have few parts for each read.

use std::collections::HashMap;

use apache_avro::Schema;
use apache_avro::schema::{DecimalSchema, InnerDecimalSchema, Name, UuidSchema};

/// The text of a schema, in bytes. Orloj's own has 4,000.
pub const SCHEMA_BYTES_MAX: usize = 256 * 1024;
/// How deep the parts of a schema may contain each other. A reader goes as deep.
const DEPTH_MAX: usize = 32;
/// Parts of a schema, each counted as often as it is contained: a reader makes a value of each. It
/// is enough for 600 fields that may be null.
const PARTS_MAX: u64 = 2_000;
/// A reader copies names and symbols, and reserves memory for a `fixed`. So many bytes of one are
/// another part: about as much memory.
const PART_BYTES: usize = 64;
/// The most parts of a list's item, for each time that bytes are read: a reader counts those.
/// Records of one field in each other have a few.
const PARTS_PER_READ_MAX: i64 = 8;

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
    #[error("it has more than {PARTS_MAX} parts or long names, or is deeper than {DEPTH_MAX}")]
    TooLarge,
    /// A type contains itself.
    #[error("{0} contains itself")]
    Recursive(String),
    /// A few bytes could stand for any number of parts.
    #[error(
        "a list or map in it has items of more than {PARTS_PER_READ_MAX} parts for each that has \
         bytes"
    )]
    LargeItems,
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
    /// How many parts a value may have above [`PARTS_PER_READ_MAX`] for each read of its bytes.
    excess: i64,
}

impl Measure {
    /// A part that contains these; so long are its names, and it is read so often besides, at
    /// least.
    fn of(parts: &[Self], names: usize, reads: i64) -> Self {
        let own = u64::try_from(1 + names / PART_BYTES).unwrap_or(u64::MAX);
        let of_reads = reads * PARTS_PER_READ_MAX;
        let own_excess = i64::try_from(own).unwrap_or(i64::MAX).saturating_sub(of_reads);
        Self {
            parts: parts.iter().fold(own, |sum, part| sum.saturating_add(part.parts)),
            depth: 1 + parts.iter().map(|part| part.depth).max().unwrap_or(0),
            excess: parts.iter().fold(own_excess, |sum, part| sum.saturating_add(part.excess)),
        }
    }
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
                let fields = self.measure_all(fields, level)?;
                let names = record.fields.iter().map(|field| field.name.len()).sum();
                self.name(&record.name, Measure::of(&fields, names, 0))
            }
            Schema::Union(union) => {
                let variants = self.measure_all(union.variants().iter(), level)?;
                let largest = variants.iter().copied().max_by_key(|variant| variant.excess);
                let Measure { excess, .. } = Measure::of(largest.as_slice(), 0, 1);
                Measure { excess, ..Measure::of(&variants, 0, 1) }
            }
            Schema::Array(array) => self.list(&array.items, 0, level)?,
            Schema::Map(map) => self.list(&map.types, 1, level)?,
            Schema::Ref { name } => match self.named.get(name) {
                Some(Some(measure)) => *measure,
                _ => return Err(WriterSchemaError::Recursive(name.to_string())),
            },
            Schema::Enum(one) => {
                let longest = one.symbols.iter().map(String::len).max().unwrap_or(0);
                self.name(&one.name, Measure::of(&[], longest, 1))
            }
            Schema::Fixed(fixed)
            | Schema::Duration(fixed)
            | Schema::Uuid(UuidSchema::Fixed(fixed))
            | Schema::Decimal(DecimalSchema { inner: InnerDecimalSchema::Fixed(fixed), .. }) => {
                // All of its bytes are read at once, and it takes as much memory as they do.
                let Measure { excess, .. } = Measure::of(&[], 0, i64::from(fixed.size > 0));
                self.name(&fixed.name, Measure { excess, ..Measure::of(&[], fixed.size, 0) })
            }
            Schema::Null => Measure::of(&[], 0, 0),
            _ => Measure::of(&[], 0, 1),
        };
        if measure.parts > PARTS_MAX || measure.depth > DEPTH_MAX {
            return Err(WriterSchemaError::TooLarge);
        }
        Ok(measure)
    }

    /// A list of items, each with so many reads besides.
    fn list(
        &mut self,
        items: &Schema,
        reads: i64,
        level: usize,
    ) -> Result<Measure, WriterSchemaError> {
        let items = self.measure_all(std::iter::once(items), level)?;
        let item = Measure::of(&items, 0, reads);
        if item.excess > 0 {
            return Err(WriterSchemaError::LargeItems);
        }
        Ok(Measure { excess: Measure::of(&[], 0, 1).excess, ..item })
    }

    fn name(&mut self, name: &Name, measure: Measure) -> Measure {
        let _open = self.named.insert(name.clone(), Some(measure));
        measure
    }

    fn measure_all<'s>(
        &mut self,
        parts: impl Iterator<Item = &'s Schema>,
        level: usize,
    ) -> Result<Vec<Measure>, WriterSchemaError> {
        parts.map(|part| self.measure(part, level + 1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        match parse(text) {
            Ok(_) => panic!("it is taken: {}", &text[..text.len().min(100)]),
            Err(error) => error.to_string(),
        }
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
            assert!(refusal(text).contains("items of more than 8 parts for each"), "{text}");
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
        assert!(refusal(&with_nulls(7_000)).contains("parts"), "each value is read on the loop");
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

    #[test]
    fn long_names_and_sizes_count_too() {
        let long = "n".repeat(200_000);
        let symbols = format!(r#"{{"type": "enum", "name": "E", "symbols": ["{long}"]}}"#);
        let names = format!(
            r#"{{"type": "record", "name": "A", "fields": [{{"name": "{long}", "type": "int"}}]}}"#
        );
        let fixed = r#"{"type": "fixed", "name": "F", "size": 1000000000000}"#;
        for text in [symbols.as_str(), &names, fixed] {
            assert!(refusal(text).contains("long names"), "{}", &text[..40]);
        }
    }
}
