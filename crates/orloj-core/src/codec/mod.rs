//! Bytes to values and back. Every stored or sent format carries a version.
//!
//! ```text
//!  triggers ──► registration ◄── headers_form, avro_form, json_form ──► draft
//!  fires, signals, outcomes, ledger, dead-letters ◄──► avro ──► ledger_v0, avro_wire, schemas
//!  the store ◄──► row ──► row_v2, row_v3 ──► row_bytes
//!  schemas ──► debug_json, for people
//! ```

pub mod ledger_key;
pub mod registration;
pub mod row;
pub mod schemas;

mod avro;
mod avro_form;
mod avro_lifecycle;
mod avro_outcome;
mod avro_wire;
pub mod batch;
mod debug_json;
mod draft;
mod headers_form;
mod json_form;
mod ledger_v0;
mod lifecycle_fields;
mod raw_record;
mod row_bytes;
mod row_v2;
mod row_v3;
mod text_field;
pub mod writer_schema;

#[cfg(test)]
mod recurring_tests;
#[cfg(test)]
mod registration_tests;
#[cfg(test)]
mod samples;

/// Golden files: the bytes of every format as they were when it was agreed. A test never changes
/// them by itself. After an intended change, run the tests once with `ORLOJ_GOLDEN=write` and
/// review the difference: what is stored already must stay readable.
#[cfg(test)]
mod golden {
    use std::fmt::Write as _;
    use std::path::Path;

    /// The bytes of `tests/golden/<name>.hex`.
    pub(super) fn read(name: &str) -> Vec<u8> {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden"))
            .join(format!("{name}.hex"));
        let hex = std::fs::read_to_string(&path).unwrap().replace('\n', "");
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(byte).collect()
    }

    /// Compares `bytes` with `tests/golden/<name>.hex`, 32 bytes a line.
    pub(super) fn check(name: &str, bytes: &[u8]) {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden"))
            .join(format!("{name}.hex"));
        let mut hex = String::new();
        for line in bytes.chunks(32) {
            line.iter().for_each(|byte| write!(hex, "{byte:02x}").unwrap());
            hex.push('\n');
        }
        if std::env::var("ORLOJ_GOLDEN").is_ok_and(|what| what == "write") {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &hex).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(hex, golden, "{name} changed; if it is meant to, ORLOJ_GOLDEN=write renews it");
    }
}
