//! A registration while it is being read: what the three forms have in common.
//!
//! Invariant: whatever the form, the same rules are applied in the same place,
//! [`RegistrationDraft::into_registration`].

use bytes::Bytes;

use super::lifecycle_fields::LifecycleFields;
use super::text_field::{Reason, refused};
use crate::model::definition::{Definition, Header, HttpTarget, Target, TopicTarget};
use crate::model::input::{ChangedParts, OnConflict, PRIORITY_DEFAULT, Registration};
use crate::model::limits::{FUTURE_MAX_MS, HEADER_BYTES_MAX, HEADERS_MAX, PAYLOAD_BYTES_MAX};
use crate::model::retry::RetryPolicy;
use crate::model::schedule::Schedule;
use crate::model::text::Text;
use crate::model::{Millis, Offset, Timestamp};

/// What was read so far.
#[derive(Debug)]
pub(super) struct RegistrationDraft {
    /// What is delivered.
    pub(super) payload: Option<Bytes>,
    /// What is carried to the target.
    pub(super) headers: Vec<Header>,
    /// The order within a millisecond.
    pub(super) priority: u8,
    /// The record's key, which an envelope may repeat.
    pub(super) id: Option<Text>,
    /// What it has beyond one time and one attempt.
    pub(super) lifecycle: LifecycleFields,
    /// What to do about a pending one.
    pub(super) on_conflict: OnConflict,
    /// The only generation that it replaces, or what defines the one that it changes.
    pub(super) if_generation: Option<Offset>,
    /// It changes a pending trigger: which parts of it.
    pub(super) change: Option<ChangedParts>,
    /// The trigger's own retry policy, but for its pauses.
    pub(super) retry: RetryPolicy,
    /// The pauses; none at all mean that a failed attempt is the last.
    pub(super) retry_delays: Option<Vec<Millis>>,
    /// Who registers.
    pub(super) caller: Option<Text>,
    /// The key of a topic target.
    pub(super) key: Option<Bytes>,
    /// The method of a callback.
    pub(super) method: Option<Text>,
    /// The pool of a callback.
    pub(super) pool: Option<Text>,
    /// How long an attempt of a callback may take.
    pub(super) timeout: Option<Millis>,
    /// The time zone of a cron expression from a header.
    pub(super) zone: Option<String>,
    /// When, and the field that defines it.
    due: Option<(&'static str, DueSpec)>,
    /// Where to, and the field that defines it.
    destination: Option<(&'static str, Destination)>,
}

/// When a trigger is due.
#[derive(Debug)]
pub(super) enum DueSpec {
    /// At a time, in ms since the epoch.
    At(Timestamp),
    /// After a delay, in ms from the record's broker timestamp.
    After(Millis),
    /// Again and again.
    Recurring(Box<Schedule>),
    /// By a cron expression in [`RegistrationDraft::zone`].
    Cron(String),
}

/// Where a trigger fires.
#[derive(Debug)]
pub(super) enum Destination {
    /// Into a topic.
    Topic(Text),
    /// At a URL.
    Url(Text),
}

impl RegistrationDraft {
    /// Nothing read yet.
    pub(super) fn new() -> Self {
        Self {
            payload: None,
            headers: Vec::new(),
            priority: PRIORITY_DEFAULT,
            id: None,
            lifecycle: LifecycleFields::default(),
            on_conflict: OnConflict::default(),
            if_generation: None,
            change: None,
            retry: RetryPolicy::default(),
            retry_delays: None,
            caller: None,
            key: None,
            method: None,
            pool: None,
            timeout: None,
            zone: None,
            due: None,
            destination: None,
        }
    }

    /// Whether a header defines when or where to: if so, it is the headers form.
    pub(super) fn has_instructions(&self) -> bool {
        self.due.is_some() || self.destination.is_some()
    }

    /// `field` defines when.
    pub(super) fn set_due(&mut self, field: &'static str, due: DueSpec) -> Result<(), Reason> {
        match self.due.replace((field, due)) {
            None => Ok(()),
            Some((other, _)) => Err(format!("{other} and {field} both say when: give one time")),
        }
    }

    /// `field` defines where to.
    pub(super) fn set_destination(
        &mut self,
        field: &'static str,
        destination: Destination,
    ) -> Result<(), Reason> {
        match self.destination.replace((field, destination)) {
            None => Ok(()),
            Some((other, _)) => Err(format!("{other} and {field} both say where to: give one")),
        }
    }

    /// The retry policy, if there is one. No pauses make one attempt.
    pub(super) fn retry_policy(&self) -> Result<Option<Box<RetryPolicy>>, Reason> {
        let mut policy = self.retry.clone();
        match (&self.retry_delays, policy.attempts) {
            (Some(none), Some(attempts)) if none.is_empty() && attempts > 1 => {
                return Err(refused(
                    "the number of attempts",
                    attempts,
                    "there is no pause between them: give a delay, or leave the empty list out",
                ));
            }
            (Some(none), _) if none.is_empty() => policy.attempts = Some(1),
            (delays, _) => policy.delays = delays.clone().unwrap_or_default(),
        }
        Ok((!policy.is_empty()).then(|| Box::new(policy)))
    }

    /// The registration, if it holds to every rule and limit. `timestamp` is the record's.
    pub(super) fn into_registration(
        mut self,
        id: Text,
        timestamp: Timestamp,
    ) -> Result<Registration, Reason> {
        let mut due = self.due.take();
        if self.lifecycle.after.is_some() {
            // A trigger that waits for others needs no time.
            due.get_or_insert(("after", DueSpec::At(timestamp)));
        }
        let (fire_at, schedule) = first_due(due, self.zone.take(), &id, timestamp)?;
        let after = self.lifecycle.validate(&id, schedule.is_some())?;
        let retry = self.retry_policy()?;
        let callback =
            CallbackFields { method: self.method, pool: self.pool, timeout: self.timeout };
        let target = target(self.destination, self.key, callback)?;
        if let Some(bytes) = self.payload.as_ref().map(Bytes::len)
            && bytes > PAYLOAD_BYTES_MAX
        {
            return Err(format!(
                "the payload has {bytes} bytes: at most {PAYLOAD_BYTES_MAX} are allowed; \
                 store it elsewhere and send a reference"
            ));
        }
        check_headers(&self.headers)?;
        let on_conflict = match (self.on_conflict, self.if_generation) {
            (OnConflict::Keep, None) if self.change.is_some() => {
                let way_out = "what is changed is not kept: leave one of the two out";
                return Err(refused("orloj-on-conflict", "keep", way_out));
            }
            (on_conflict, None) => on_conflict,
            (OnConflict::Keep, Some(generation)) => {
                let way_out = "it is to be kept too: leave one of the two out";
                return Err(refused("orloj-if-generation", generation, way_out));
            }
            (_, Some(generation)) => OnConflict::Match(generation),
        };
        let Self { payload, headers, caller, priority, lifecycle, .. } = self;
        let definition = Definition { target, payload, headers, retry, caller };
        let LifecycleFields { expire_after, retain, count, .. } = lifecycle;
        let count = count.unwrap_or_default();
        Ok(Registration {
            id,
            fire_at,
            schedule,
            expire_after,
            after,
            retain,
            count,
            priority,
            on_conflict,
            definition,
            in_ledger: false,
        })
    }
}

/// When it is due first, and by which schedule again.
fn first_due(
    due: Option<(&'static str, DueSpec)>,
    zone: Option<String>,
    id: &Text,
    timestamp: Timestamp,
) -> Result<(Timestamp, Option<Box<Schedule>>), Reason> {
    let Some((field, due)) = due else {
        return Err("nothing says when: give a time, a delay or a schedule (orloj-fire-at, \
                    orloj-delay, orloj-cron or orloj-schedule as headers; fireAt, delay, delayMs, \
                    delaySeconds or schedule in an envelope)"
            .to_owned());
    };
    if let (Some(zone), false) = (&zone, matches!(due, DueSpec::Cron(_))) {
        return Err(refused("orloj-zone", zone, "it is the zone of orloj-cron, which is missing"));
    }
    let (given, fire_at) = match due {
        DueSpec::At(time) => (time, time),
        DueSpec::After(delay) => (delay, timestamp.saturating_add(delay)),
        DueSpec::Recurring(schedule) => return first_occurrence(field, *schedule, id, timestamp),
        DueSpec::Cron(cron) => {
            return first_occurrence(
                field,
                Schedule::from_cron(&cron, zone.as_deref())?,
                id,
                timestamp,
            );
        }
    };
    if fire_at > timestamp.saturating_add(FUTURE_MAX_MS) {
        let way_out = "it lies more than ten years ahead; are these milliseconds?";
        return Err(refused(field, given, way_out));
    }
    Ok((fire_at, None))
}

/// The first time of a recurring trigger, by the record's own timestamp: a replay finds the same.
fn first_occurrence(
    field: &str,
    schedule: Schedule,
    id: &Text,
    timestamp: Timestamp,
) -> Result<(Timestamp, Option<Box<Schedule>>), Reason> {
    let schedule = schedule.anchored(timestamp);
    let Some(first) = schedule.first(timestamp) else {
        return Err(refused(field, schedule.to_json(), "it ends before it comes even once"));
    };
    if first > timestamp.saturating_add(FUTURE_MAX_MS) {
        let way_out = "it comes for the first time more than ten years ahead";
        return Err(refused(field, schedule.to_json(), way_out));
    }
    Ok((schedule.jittered(id.as_str(), first), Some(Box::new(schedule))))
}

fn target(
    destination: Option<(&'static str, Destination)>,
    key: Option<Bytes>,
    callback: CallbackFields,
) -> Result<Target, Reason> {
    match destination {
        None => Err("nothing says where to: give a topic or a URL (orloj-target-topic or \
                     orloj-callback-url as headers; topic or callbackUrl in an envelope)"
            .to_owned()),
        Some((field, Destination::Topic(topic))) => match callback.given_field() {
            None => Ok(Target::Topic(TopicTarget { topic, key })),
            Some(what) => Err(format!("{field} says a topic, which takes no {what}: leave it out")),
        },
        Some((field, Destination::Url(url))) => match key {
            None => {
                let CallbackFields { method, pool, timeout } = callback;
                let method = method.unwrap_or_else(|| Text::from("POST"));
                Ok(Target::Http(Box::new(HttpTarget { url, method, pool, timeout })))
            }
            Some(_) => Err(format!("{field} says a callback, which takes no key: leave it out")),
        },
    }
}

/// What only a callback has.
struct CallbackFields {
    method: Option<Text>,
    pool: Option<Text>,
    timeout: Option<Millis>,
}

impl CallbackFields {
    /// One of them that was set, by its name.
    fn given_field(&self) -> Option<&'static str> {
        let method = self.method.as_ref().map(|_| "method");
        let pool = self.pool.as_ref().map(|_| "pool");
        let timeout = self.timeout.map(|_| "timeout");
        method.or(pool).or(timeout)
    }
}

fn check_headers(headers: &[Header]) -> Result<(), Reason> {
    if headers.len() > HEADERS_MAX {
        let count = headers.len();
        return Err(format!("there are {count} headers to carry: at most {HEADERS_MAX} may be"));
    }
    let size =
        |header: &Header| header.name.bytes().len() + header.value.as_ref().map_or(0, Bytes::len);
    let bytes: usize = headers.iter().map(size).sum();
    if bytes > HEADER_BYTES_MAX {
        return Err(format!(
            "the headers to carry have {bytes} bytes: at most {HEADER_BYTES_MAX} are allowed"
        ));
    }
    Ok(())
}
