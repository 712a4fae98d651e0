//! Bytes to values and back. Every stored or sent format carries a version.
//!
//! ```text
//!  triggers ──► registration ◄── headers_form, avro_form, json_form ──► draft, field (the rules)
//!  fires, signals, outcomes, ledger, dead-letters ◄──► avro ◄── schemas
//!  the store ◄──► row
//! ```

pub mod ledger_key;
pub mod registration;
pub mod row;
pub mod schemas;

mod avro;
mod avro_form;
mod draft;
mod field;
mod headers_form;
mod json_form;
pub(in crate::model) mod long;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod registration_tests;
#[cfg(test)]
mod samples;
