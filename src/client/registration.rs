//! Registrations, one or a batch: refused before they are written if the owner would refuse them.
//!
//! Invariant: a refusal names the field of the HTTP API, whichever header the owner would name.

use std::collections::BTreeSet;

use super::checks::{
    ValidationError, check_headers, check_id, check_pool, check_target, check_time, refuse,
};
use super::new_trigger::{LIFECYCLE_HEADERS, NewTrigger, header, instruction_headers};
use super::submission::Submission;
use super::validator::RegistrationValidator;
use crate::codec::batch::BATCH;
use crate::kafka::Names;
use crate::model::{Timestamp, limits};

/// Other fields that the owner may refuse.
const OTHER_HEADERS: [(&str, &str); 4] = [
    ("orloj-fire-at", "fireAt"),
    ("orloj-delay", "delaySeconds"),
    ("orloj-callback-method", "method"),
    ("onFailure", "onFailure"),
];

/// Several registrations in one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSubmission {
    /// The record.
    pub submission: Submission,
    /// The triggers, in order, each once.
    pub ids: Vec<String>,
}

/// What the checks of a submission need.
#[derive(Clone, Copy, Debug)]
pub struct SubmissionRules<'a> {
    /// Our topics, into which no trigger may fire.
    pub names: &'a Names,
    /// `topics.pools`.
    pub pools: &'a [String],
    /// Reads it as its owner will.
    pub validator: &'a RegistrationValidator,
    /// The wall clock, in ms since the epoch.
    pub now: Timestamp,
}

impl Submission {
    /// A registration, refused if the owner would refuse it.
    pub fn register(
        trigger: NewTrigger,
        rules: SubmissionRules<'_>,
    ) -> Result<Self, ValidationError> {
        let SubmissionRules { names, pools, validator, now } = rules;
        check_pool(&trigger.target, pools)?;
        check_id(&trigger.id)?;
        if let Some(when) = trigger.when {
            check_time(when, now)?;
        }
        check_target(&trigger.target, names)?;
        check_headers(&trigger.headers, &trigger.target)?;
        let bytes = trigger.payload.len();
        if bytes > limits::PAYLOAD_BYTES_MAX {
            let max = limits::PAYLOAD_BYTES_MAX;
            return refuse("payload", format!("it has {bytes} bytes, at most {max} are taken"));
        }
        let headers = instruction_headers(&trigger).into_iter().chain(trigger.metadata_headers);
        let headers = headers.chain(trigger.headers).collect();
        let submission = Self { id: trigger.id, value: Some(trigger.payload), headers };
        validator.validate(&submission, now).map_err(to_validation_error)?;
        Ok(submission)
    }
}

impl BatchSubmission {
    /// Reads a batch: a JSON array of envelopes with an id each.
    pub fn read(json: Vec<u8>, rules: SubmissionRules<'_>) -> Result<Self, ValidationError> {
        let (bytes, max) = (json.len(), limits::PAYLOAD_BYTES_MAX);
        if bytes > max {
            let reason = format!("it has {bytes} bytes, at most {max} go into one: split it");
            return refuse("batch", reason);
        }
        let headers = vec![header(BATCH, "true")];
        let submission = Submission { id: String::new(), value: Some(json), headers };
        let read = rules.validator.validate(&submission, rules.now);
        let registrations = read.map_err(|reason| ValidationError { field: "batch", reason })?;
        let mut ids = Vec::new();
        let mut ids_so_far = BTreeSet::new();
        for registration in registrations {
            let id = registration.id.as_str();
            let target = &registration.definition.target;
            check_target(target, rules.names)
                .and_then(|()| check_pool(target, rules.pools))
                .map_err(|ValidationError { field, reason }| ValidationError {
                    field: "batch",
                    reason: format!("{id}: {field}: {reason}"),
                })?;
            if !ids_so_far.insert(id.to_owned()) {
                return refuse("batch", format!("{id} is in it twice: give each id once"));
            }
            ids.push(id.to_owned());
        }
        // The key has no meaning for a batch; the first id makes the record easy to find.
        let id = ids.first().cloned().unwrap_or_default();
        Ok(Self { submission: Submission { id, ..submission }, ids })
    }
}

/// The field of the HTTP API for the header that the validator refuses.
fn to_validation_error(mut reason: String) -> ValidationError {
    let names = || LIFECYCLE_HEADERS.iter().chain(&OTHER_HEADERS);
    for (header, field) in names() {
        reason = reason.replace(&format!("{header} "), &format!("{field} "));
    }
    let named = names().find(|(_, field)| {
        let root = field.split('.').next().unwrap_or(field);
        reason.strip_prefix(root).is_some_and(|rest| rest.starts_with([' ', '.']))
    });
    let field = named.map_or("body", |(_, field)| *field);
    ValidationError { field: field.split_once('.').map_or(field, |(root, _)| root), reason }
}
