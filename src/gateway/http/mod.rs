//! Requests and responses in general: bodies, parameters, lists, errors and request ids.
//!
//! Invariant: nothing here knows a resource of the API.

mod error_code;
mod list_response;
mod parameters;
mod problem;

pub(super) mod field_types;
pub(super) mod json;
pub(super) mod request_id;

pub(super) use error_code::ErrorCode;
pub(super) use list_response::{ListItem, ListResponse, read_page};
pub(super) use parameters::{IfMatch, PathId, Query, QueryFields, invalid_parameter};
pub(super) use problem::{FieldError, ParseError, Problem};
