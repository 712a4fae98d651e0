//! The fields by which a trigger is more than one time and one attempt: what it waits for, how long
//! it may be late, how long it is remembered.
//!
//! Invariant: whatever the form, a field is judged here, and what does not go together in
//! [`LifecycleFields::check`].

use super::text_field::{Reason, refused};
use crate::model::Millis;
use crate::model::input::CountPolicy;
use crate::model::lifecycle::{Command, Dependencies, OnFailure};
use crate::model::limits::{AFTER_MAX, FUTURE_MAX_MS, ID_BYTES_MAX, RETAIN_MAX_MS};
use crate::model::text::Text;

/// How long those that are waited for have if nobody says: a day.
const AFTER_TIMEOUT_MS: Millis = 24 * 3_600_000;

/// What was read of them.
#[derive(Debug, Default)]
pub(super) struct LifecycleFields {
    /// Not later than this after its time.
    pub(super) expire_after: Option<Millis>,
    /// Where the count of executions begins.
    pub(super) count: Option<CountPolicy>,
    /// What must settle before.
    pub(super) after: Option<Vec<Text>>,
    /// What if one of them fails.
    pub(super) on_failure: Option<OnFailure>,
    /// How long they have.
    pub(super) after_timeout: Option<Millis>,
    /// How long it is remembered.
    pub(super) retain: Option<Millis>,
}

impl LifecycleFields {
    /// What is waited for, if everything goes together. `recurs`: there is a schedule.
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

/// What becomes of it if one of them fails.
pub(super) fn on_failure(field: &str, text: &str) -> Result<OnFailure, Reason> {
    match text {
        "fire" => Ok(OnFailure::Fire),
        "skip" => Ok(OnFailure::Skip),
        "fail" => Ok(OnFailure::Fail),
        _ => Err(refused(field, text, "give fire, skip or fail")),
    }
}

/// How long those that are waited for have, or how late a trigger may be.
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

/// What is asked of a trigger that is there.
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
