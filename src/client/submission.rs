//! A record for `triggers`, in headers form.
//!
//! Invariant: a value is null only in a cancel, because a null value is a cancel.

use super::checks::{ValidationError, check_id};
use super::new_trigger::header;
use crate::codec::registration::{
    ACK, CALLER, CHANGE, CHANGE_COMMAND, COMMAND, IDEMPOTENCY_KEY, IF_GENERATION, REQUEST,
};
use crate::model::Offset;
use crate::model::input::ChangedParts;
use crate::model::lifecycle::Command;

/// A record for `triggers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The trigger, and the record's key.
    pub id: String,
    /// The record's value; `None` cancels.
    pub value: Option<Vec<u8>>,
    /// The record's headers, in order.
    pub headers: Vec<(String, Vec<u8>)>,
}

impl Submission {
    /// A command for the trigger that is pending under `id`.
    pub fn command(id: &str, command: Command) -> Result<Self, ValidationError> {
        check_id(id)?;
        let word = match command {
            Command::Pause => "pause",
            Command::Resume => "resume",
            Command::FireNow => "fire-now",
        };
        let headers = vec![header(COMMAND, word)];
        Ok(Self { id: id.to_owned(), value: Some(Vec::new()), headers })
    }

    /// A cancel of the trigger that is pending under `id`.
    pub fn cancel(id: &str) -> Result<Self, ValidationError> {
        check_id(id)?;
        Ok(Self { id: id.to_owned(), value: None, headers: Vec::new() })
    }

    /// Adds the caller.
    #[must_use]
    pub fn with_caller(mut self, caller: &str) -> Self {
        self.headers.push(header(CALLER, caller));
        self
    }

    /// Adds a condition: it applies only if the record at `revision` still defines the trigger.
    #[must_use]
    pub fn if_generation(mut self, revision: Offset) -> Self {
        self.headers.push(header(IF_GENERATION, revision.to_string()));
        self
    }

    /// Makes a change of a registration: the pending trigger stays the same one. Without `payload`
    /// among the parts the value is not written.
    #[must_use]
    pub fn as_change(mut self, parts: ChangedParts) -> Self {
        let ChangedParts { time, after, payload, key } = parts;
        let named = [("time", time), ("after", after), ("payload", payload), ("key", key)];
        let named = named.into_iter().filter(|(_, changes)| *changes).map(|(name, _)| name);
        self.headers.push(header(COMMAND, CHANGE_COMMAND));
        self.headers.push(header(CHANGE, named.collect::<Vec<_>>().join(",")));
        if !payload {
            self.value = Some(Vec::new());
        }
        self
    }

    /// Adds the request for an outcome.
    #[must_use]
    pub fn with_ack(mut self) -> Self {
        self.headers.push(header(ACK, "true"));
        self
    }

    /// Adds a key with which a registration or a `fire-now` is executed once.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: &str) -> Self {
        self.headers.push(header(IDEMPOTENCY_KEY, key));
        self
    }

    /// Adds what the outcome is recognised by.
    #[must_use]
    pub fn with_request(mut self, request: &str) -> Self {
        self.headers.push(header(REQUEST, request));
        self
    }
}
