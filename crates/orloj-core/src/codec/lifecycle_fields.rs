//! The fields that go beyond one time and one attempt: what a trigger waits for, how long
//! it may be late, how long it is remembered.
//!
//! Invariant: whatever the form, a field is checked here, and combinations of fields in
//! [`LifecycleFields::validate`].

use super::text_field::{Reason, refused};
use crate::model::Millis;
use crate::model::input::CountPolicy;
use crate::model::lifecycle::{Command, Dependencies, OnFailure};
use crate::model::limits::{AFTER_MAX, FUTURE_MAX_MS, ID_BYTES_MAX, RETAIN_MAX_MS};
use crate::model::text::Text;

/// How long a trigger waits for others by default: a day.
const AFTER_TIMEOUT_MS: Millis = 24 * 3_600_000;

/// The fields that were read.
#[derive(Debug, Default)]
pub(super) struct LifecycleFields {
    /// How much later than its time it may fire.
    pub(super) expire_after: Option<Millis>,
    /// Where the count of executions begins.
    pub(super) count: Option<CountPolicy>,
    /// The triggers that must settle before it fires.
    pub(super) after: Option<Vec<Text>>,
    /// What happens if one of them fails.
    pub(super) on_failure: Option<OnFailure>,
    /// How long it waits for them.
    pub(super) after_timeout: Option<Millis>,
    /// How long it is remembered.
    pub(super) retain: Option<Millis>,
}

impl LifecycleFields {
    /// What it waits for, if the fields can be combined. `recurs`: there is a schedule.
    pub(super) fn validate(
        &self,
        id: &Text,
        recurs: bool,
    ) -> Result<Option<Box<Dependencies>>, Reason> {
        if let (Some(expire_after), true) = (self.expire_after, recurs) {
            let way_out = "a schedule says with its misfire what becomes of what is late";
            return Err(refused("expireAfter", expire_after, way_out));
        }
        if self.count.is_some() && !recurs {
            return Err("count is of a schedule, and there is none: leave it out".to_owned());
        }
        let Some(ids) = &self.after else {
            return match (self.on_failure, self.after_timeout) {
                (None, None) => Ok(None),
                _ => Err("onFailure and the timeout are of after, and there is none".to_owned()),
            };
        };
        if recurs {
            let way_out = "a schedule does not wait for others: give a time, a delay or neither";
            return Err(refused("after", join_ids(ids), way_out));
        }
        if ids.contains(id) {
            return Err(refused("after", id, "a trigger cannot wait for itself"));
        }
        let on_failure = self.on_failure.unwrap_or_default();
        let timeout = self.after_timeout.unwrap_or(AFTER_TIMEOUT_MS);
        Ok(Some(Box::new(Dependencies { ids: ids.clone(), on_failure, timeout })))
    }
}

/// The triggers that must settle before, each once.
pub(super) fn ids<'a>(
    field: &str,
    texts: impl Iterator<Item = &'a str>,
) -> Result<Vec<Text>, Reason> {
    let mut ids: Vec<Text> = Vec::new();
    for text in texts {
        if text.is_empty() || text.len() > ID_BYTES_MAX {
            let way_out = format!("give ids of triggers, of 1 to {ID_BYTES_MAX} bytes");
            return Err(refused(field, text, way_out));
        }
        if ids.len() == AFTER_MAX {
            return Err(format!(
                "{field} names more than {AFTER_MAX} triggers: let one of no effect wait for some \
                 of them, and wait for that one"
            ));
        }
        if !ids.iter().any(|id| *id == *text) {
            ids.push(Text::from(text));
        }
    }
    if ids.is_empty() {
        return Err(format!("{field} names no trigger: give ids, or leave it out"));
    }
    Ok(ids)
}

/// What happens to it if one of them fails.
pub(super) fn on_failure(field: &str, text: &str) -> Result<OnFailure, Reason> {
    match text {
        "fire" => Ok(OnFailure::Fire),
        "skip" => Ok(OnFailure::Skip),
        "fail" => Ok(OnFailure::Fail),
        _ => Err(refused(field, text, "give fire, skip or fail")),
    }
}

/// How long a trigger waits for others, or how late it may be.
pub(super) fn span(field: &str, span: Millis) -> Result<Millis, Reason> {
    if (1..=FUTURE_MAX_MS).contains(&span) {
        return Ok(span);
    }
    Err(refused(field, span, format!("give 1 to {FUTURE_MAX_MS} ms (ten years)")))
}

/// How long it is remembered.
pub(super) fn retain(field: &str, span: Millis) -> Result<Millis, Reason> {
    if (1..=RETAIN_MAX_MS).contains(&span) {
        return Ok(span);
    }
    Err(refused(field, span, format!("give 1 to {RETAIN_MAX_MS} ms (a year)")))
}

/// Where the count of executions begins.
pub(super) fn count(field: &str, text: &str) -> Result<CountPolicy, Reason> {
    match text {
        "reset" => Ok(CountPolicy::Reset),
        "keep" => Ok(CountPolicy::Keep),
        _ => Err(refused(field, text, "give reset or keep")),
    }
}

/// A command to a pending trigger.
pub(super) fn command(field: &str, text: &str) -> Result<Command, Reason> {
    match text {
        "pause" => Ok(Command::Pause),
        "resume" => Ok(Command::Resume),
        "fire-now" => Ok(Command::FireNow),
        _ => {
            let way_out = "give pause, resume or fire-now; a null value cancels";
            Err(refused(field, text, way_out))
        }
    }
}

fn join_ids(ids: &[Text]) -> String {
    ids.iter().map(Text::as_str).collect::<Vec<_>>().join(", ")
}
