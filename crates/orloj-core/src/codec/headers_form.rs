//! The headers form: instructions in headers, the payload verbatim as the value.
//!
//! Invariant: whatever is not an instruction is carried to the target. The same headers may
//! accompany an envelope, whose own fields override them, except the caller: the gateway vouches
//! for it.
//!
//! `scheduler-*` are the headers of kafka-message-scheduler, whose producers need no change.

use bytes::Bytes;

use super::draft::{Destination, DueSpec, RegistrationDraft};
use super::raw_record::{
    ACK, CALLER, CHANGE, COMMAND, FORWARDED, IDEMPOTENCY_KEY, IF_GENERATION, REQUEST, RawHeader,
};
use super::text_field::{self, Reason};
use super::{json_form, lifecycle_fields};
use crate::model::definition::Header;
use crate::model::schedule::Schedule;
use crate::model::text::Text;

/// Reads all headers of a record.
pub(super) fn read(headers: &[RawHeader<'_>]) -> Result<RegistrationDraft, Reason> {
    let mut draft = RegistrationDraft::new();
    for (name, value) in headers {
        apply(&mut draft, name, *value)?;
    }
    Ok(draft)
}

fn apply(draft: &mut RegistrationDraft, name: &str, value: Option<&[u8]>) -> Result<(), Reason> {
    match name {
        "orloj-fire-at" => {
            let field = "orloj-fire-at";
            draft.set_due(field, DueSpec::At(text_field::time(field, text(field, value)?)?))
        }
        "scheduler-epoch" => {
            let field = "scheduler-epoch";
            draft.set_due(field, DueSpec::At(text_field::time_seconds(field, text(field, value)?)?))
        }
        "orloj-delay" => {
            let field = "orloj-delay";
            draft.set_due(field, DueSpec::After(text_field::delay(field, text(field, value)?)?))
        }
        "orloj-schedule" => {
            let schedule = Schedule::from_json(text("orloj-schedule", value)?)?;
            draft.set_due("orloj-schedule", DueSpec::Recurring(Box::new(schedule)))
        }
        "orloj-cron" => {
            let field = "orloj-cron";
            draft.set_due(field, DueSpec::Cron(text(field, value)?.to_owned()))
        }
        "orloj-target-topic" => set_topic(draft, "orloj-target-topic", value),
        "scheduler-target-topic" => set_topic(draft, "scheduler-target-topic", value),
        "orloj-callback-url" => {
            let field = "orloj-callback-url";
            let url = text_field::url(field, text(field, value)?)?;
            draft.set_destination(field, Destination::Url(url))
        }
        _ => apply_detail(draft, name, value),
    }
}

fn apply_detail(
    draft: &mut RegistrationDraft,
    name: &str,
    value: Option<&[u8]>,
) -> Result<(), Reason> {
    match name {
        "orloj-target-key" | "scheduler-target-key" => {
            draft.key = value.map(Bytes::copy_from_slice);
        }
        "orloj-callback-method" => {
            draft.method = Some(text_field::method(name, text(name, value)?)?);
        }
        "orloj-zone" => draft.zone = Some(text(name, value)?.to_owned()),
        "orloj-priority" => draft.priority = text_field::priority(name, text(name, value)?)?,
        "orloj-on-conflict" => {
            draft.on_conflict = text_field::on_conflict(name, text(name, value)?)?
        }
        IF_GENERATION => draft.if_generation = Some(text_field::offset(name, text(name, value)?)?),
        CHANGE => draft.change = Some(text_field::changed_parts(name, text(name, value)?)?),
        CALLER => draft.caller = Some(text_field::caller(name, text(name, value)?)?),
        ACK | COMMAND | FORWARDED | IDEMPOTENCY_KEY | REQUEST => {}
        _ => return apply_lifecycle(draft, name, value),
    }
    Ok(())
}

/// What goes beyond one time and one attempt.
fn apply_lifecycle(
    draft: &mut RegistrationDraft,
    name: &str,
    value: Option<&[u8]>,
) -> Result<(), Reason> {
    let lifecycle = &mut draft.lifecycle;
    match name {
        "orloj-expire-after" => {
            let span = text_field::delay(name, text(name, value)?)?;
            lifecycle.expire_after = Some(lifecycle_fields::span(name, span)?);
        }
        "orloj-count" => lifecycle.count = Some(lifecycle_fields::count(name, text(name, value)?)?),
        "orloj-after" => {
            let text = text(name, value)?;
            // An id may contain a comma; then the header is a list as in an envelope.
            lifecycle.after = Some(match text.starts_with('[') {
                true => json_form::read_ids(name, text)?,
                false => lifecycle_fields::ids(name, text_field::split_list(text))?,
            });
        }
        "orloj-on-failure" => {
            lifecycle.on_failure = Some(lifecycle_fields::on_failure(name, text(name, value)?)?);
        }
        "orloj-after-timeout" => {
            let span = text_field::delay(name, text(name, value)?)?;
            lifecycle.after_timeout = Some(lifecycle_fields::span(name, span)?);
        }
        "orloj-retain" => {
            let span = text_field::delay(name, text(name, value)?)?;
            lifecycle.retain = Some(lifecycle_fields::retain(name, span)?);
        }
        _ => return apply_delivery(draft, name, value),
    }
    Ok(())
}

/// How a callback is delivered; every other header is carried to the target.
fn apply_delivery(
    draft: &mut RegistrationDraft,
    name: &str,
    value: Option<&[u8]>,
) -> Result<(), Reason> {
    match name {
        "orloj-pool" => draft.pool = Some(text_field::pool(name, text(name, value)?)?),
        "orloj-timeout" => {
            let timeout = text_field::delay(name, text(name, value)?)?;
            draft.timeout = Some(text_field::timeout(name, timeout)?);
        }
        "orloj-retry-delays" => {
            let delays = text_field::split_list(text(name, value)?)
                .map(|text| text_field::delay(name, text));
            draft.retry_delays = Some(text_field::delays(name, delays)?);
        }
        "orloj-retry-attempts" => {
            draft.retry.attempts = Some(text_field::attempts(name, text(name, value)?)?);
        }
        "orloj-retry-jitter" => {
            draft.retry.jitter = Some(text_field::jitter(name, text(name, value)?)?);
        }
        "orloj-retry-final-statuses" => {
            let statuses = text_field::split_list(text(name, value)?);
            draft.retry.final_statuses = text_field::final_statuses(name, statuses)?;
        }
        _ => {
            let value = value.map(Bytes::copy_from_slice);
            draft.headers.push(Header { name: Text::from(name), value });
        }
    }
    Ok(())
}

fn set_topic(
    draft: &mut RegistrationDraft,
    field: &'static str,
    value: Option<&[u8]>,
) -> Result<(), Reason> {
    let topic = text_field::topic(field, text(field, value)?)?;
    draft.set_destination(field, Destination::Topic(topic))
}

fn text<'a>(field: &str, value: Option<&'a [u8]>) -> Result<&'a str, Reason> {
    let Some(value) = value else {
        return Err(format!("{field} has no value: give one, or leave the header out"));
    };
    text_field::utf8(field, value)
}
