//! The headers form: instructions in headers, the payload verbatim as the value.
//!
//! Law: whatever is not an instruction is carried to the target. The same headers may accompany
//! an envelope, whose own fields go before them, the caller excepted: the gateway vouches for it.
//!
//! `scheduler-*` are the headers of kafka-message-scheduler, for which Orloj is a drop-in.

use bytes::Bytes;

use super::draft::{Destination, Draft, Due};
use super::field::{self, Reason};
use super::registration::{ACK, CALLER, FORWARDED, IF_GENERATION, RawHeader};
use super::{course_field, json_form};
use crate::model::definition::Header;
use crate::model::schedule::Schedule;
use crate::model::text::Text;

/// Reads all headers of a record.
pub(super) fn read(headers: &[RawHeader<'_>]) -> Result<Draft, Reason> {
    let mut draft = Draft::new();
    for (name, value) in headers {
        apply(&mut draft, name, *value)?;
    }
    Ok(draft)
}

fn apply(draft: &mut Draft, name: &str, value: Option<&[u8]>) -> Result<(), Reason> {
    match name {
        "orloj-fire-at" => {
            let field = "orloj-fire-at";
            draft.set_due(field, Due::At(field::time(field, text(field, value)?)?))
        }
        "scheduler-epoch" => {
            let field = "scheduler-epoch";
            draft.set_due(field, Due::At(field::time_seconds(field, text(field, value)?)?))
        }
        "orloj-delay" => {
            let field = "orloj-delay";
            draft.set_due(field, Due::After(field::delay(field, text(field, value)?)?))
        }
        "orloj-schedule" => {
            let schedule = Schedule::from_json(text("orloj-schedule", value)?)?;
            draft.set_due("orloj-schedule", Due::On(Box::new(schedule)))
        }
        "orloj-cron" => {
            let field = "orloj-cron";
            draft.set_due(field, Due::Cron(text(field, value)?.to_owned()))
        }
        "orloj-target-topic" => set_topic(draft, "orloj-target-topic", value),
        "scheduler-target-topic" => set_topic(draft, "scheduler-target-topic", value),
        "orloj-callback-url" => {
            let field = "orloj-callback-url";
            let url = field::url(field, text(field, value)?)?;
            draft.set_destination(field, Destination::Url(url))
        }
        _ => apply_detail(draft, name, value),
    }
}

fn apply_detail(draft: &mut Draft, name: &str, value: Option<&[u8]>) -> Result<(), Reason> {
    match name {
        "orloj-target-key" | "scheduler-target-key" => {
            draft.key = value.map(Bytes::copy_from_slice);
        }
        "orloj-callback-method" => {
            draft.method = Some(field::method(name, text(name, value)?)?);
        }
        "orloj-zone" => draft.zone = Some(text(name, value)?.to_owned()),
        "orloj-priority" => draft.priority = field::priority(name, text(name, value)?)?,
        "orloj-on-conflict" => draft.on_conflict = field::on_conflict(name, text(name, value)?)?,
        IF_GENERATION => draft.if_generation = Some(field::offset(name, text(name, value)?)?),
        CALLER => draft.caller = Some(field::caller(name, text(name, value)?)?),
        ACK | FORWARDED => {}
        _ => return apply_course(draft, name, value),
    }
    Ok(())
}

/// What goes beyond one time and one attempt.
fn apply_course(draft: &mut Draft, name: &str, value: Option<&[u8]>) -> Result<(), Reason> {
    let asked = &mut draft.asked;
    match name {
        "orloj-expire-after" => {
            let span = field::delay(name, text(name, value)?)?;
            asked.expire_after = Some(course_field::span(name, span)?);
        }
        "orloj-count" => asked.count = Some(course_field::count(name, text(name, value)?)?),
        "orloj-after" => {
            let text = text(name, value)?;
            // An id may hold a comma; then it is a list as in an envelope.
            asked.after = Some(match text.starts_with('[') {
                true => json_form::read_ids(name, text)?,
                false => course_field::ids(name, field::list(text))?,
            });
        }
        "orloj-on-failure" => {
            asked.on_failure = Some(course_field::on_failure(name, text(name, value)?)?);
        }
        "orloj-after-timeout" => {
            let span = field::delay(name, text(name, value)?)?;
            asked.after_timeout = Some(course_field::span(name, span)?);
        }
        "orloj-retain" => {
            let span = field::delay(name, text(name, value)?)?;
            asked.retain = Some(course_field::retain(name, span)?);
        }
        _ => return apply_delivery(draft, name, value),
    }
    Ok(())
}

/// How a callback is delivered; all else is the target's.
fn apply_delivery(draft: &mut Draft, name: &str, value: Option<&[u8]>) -> Result<(), Reason> {
    match name {
        "orloj-pool" => draft.pool = Some(field::pool(name, text(name, value)?)?),
        "orloj-timeout" => {
            let timeout = field::delay(name, text(name, value)?)?;
            draft.timeout = Some(field::timeout(name, timeout)?);
        }
        "orloj-retry-delays" => {
            let delays = field::list(text(name, value)?).map(|text| field::delay(name, text));
            draft.retry_delays = Some(field::delays(name, delays)?);
        }
        "orloj-retry-attempts" => {
            draft.retry.attempts = Some(field::attempts(name, text(name, value)?)?);
        }
        "orloj-retry-jitter" => {
            draft.retry.jitter = Some(field::jitter(name, text(name, value)?)?);
        }
        "orloj-retry-final-statuses" => {
            let statuses = field::list(text(name, value)?);
            draft.retry.final_statuses = field::final_statuses(name, statuses)?;
        }
        _ => {
            let value = value.map(Bytes::copy_from_slice);
            draft.headers.push(Header { name: Text::from(name), value });
        }
    }
    Ok(())
}

fn set_topic(draft: &mut Draft, field: &'static str, value: Option<&[u8]>) -> Result<(), Reason> {
    let topic = field::topic(field, text(field, value)?)?;
    draft.set_destination(field, Destination::Topic(topic))
}

fn text<'a>(field: &str, value: Option<&'a [u8]>) -> Result<&'a str, Reason> {
    let Some(value) = value else {
        return Err(format!("{field} has no value: give one, or leave the header out"));
    };
    field::utf8(field, value)
}
