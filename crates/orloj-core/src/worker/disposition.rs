//! What follows from a response, or from none: delivered, retried later, or given up.
//!
//! Invariant: pure. Response, attempt, policy and time are arguments; the disposition is returned.

use crate::model::entry::FireId;
use crate::model::retry::RetryPolicy;
use crate::model::{Millis, Timestamp};

/// The longest pause that a receiver may request: a day, in ms. For longer it should answer 410.
const RETRY_AFTER_MAX: Millis = 24 * 3_600_000;

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallbackResponse {
    /// The receiver answered.
    Answered {
        /// The HTTP status.
        status: u16,
        /// The pause that its `Retry-After` asks for, in ms.
        retry_after: Option<Millis>,
        /// The start of its body, for people.
        body: String,
    },
    /// No response: refused, timed out, disconnected. The reason is for people.
    NoResponse(String),
    /// The receiver was not contacted: this process could not do so in time. The reason is for
    /// people.
    NotContacted(String),
    /// The request must not or cannot be made, now or later. The reason is for people.
    Unsendable(String),
}

impl CallbackResponse {
    /// The HTTP status, if there was an answer.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Answered { status, .. } => Some(*status),
            Self::NoResponse(_) | Self::NotContacted(_) | Self::Unsendable(_) => None,
        }
    }

    fn reason(&self) -> String {
        match self {
            Self::Answered { status, body, .. } if body.is_empty() => format!("answered {status}"),
            Self::Answered { status, body, .. } => format!("answered {status}: {body}"),
            Self::NoResponse(reason) | Self::NotContacted(reason) | Self::Unsendable(reason) => {
                reason.clone()
            }
        }
    }
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Nothing more: the receiver has it.
    Delivered {
        /// The HTTP status.
        status: u16,
    },
    /// Ask the owner for the next attempt.
    Retry {
        /// When, in ms since the epoch.
        due: Timestamp,
        /// Why, for people.
        reason: String,
    },
    /// Write a dead letter.
    GiveUp {
        /// Why, for people.
        reason: String,
    },
}

/// Decides what follows attempt `id`, which ended at `now` and was number `attempts` by the count
/// of the policy.
#[must_use]
pub fn disposition_of(
    response: &CallbackResponse,
    id: &FireId,
    attempts: u32,
    policy: &RetryPolicy,
    now: Timestamp,
) -> Disposition {
    let retry_after = match response {
        CallbackResponse::Answered { status: status @ 200..=299, .. } => {
            return Disposition::Delivered { status: *status };
        }
        CallbackResponse::Unsendable(_) => {
            return Disposition::GiveUp { reason: response.reason() };
        }
        CallbackResponse::Answered { status, .. } if policy.is_final(*status) => {
            return Disposition::GiveUp { reason: format!("final: {}", response.reason()) };
        }
        CallbackResponse::Answered { retry_after, .. } => {
            retry_after.unwrap_or(0).min(RETRY_AFTER_MAX)
        }
        CallbackResponse::NoResponse(_) | CallbackResponse::NotContacted(_) => 0,
    };
    match policy.delay_after(attempts, id, retry_after) {
        Some(pause) => {
            Disposition::Retry { due: now.saturating_add(pause), reason: response.reason() }
        }
        None => {
            let reason = format!("attempt {} was the last: {}", id.attempt, response.reason());
            Disposition::GiveUp { reason }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = 1_000_000;

    fn policy() -> RetryPolicy {
        RetryPolicy {
            delays: vec![10_000, 30_000, 120_000, 600_000, 1_800_000],
            final_statuses: vec![404],
            ..RetryPolicy::default()
        }
    }

    fn id(attempt: u32) -> FireId {
        FireId { trigger: "a".into(), generation: 7, occurrence: 0, attempt, deferral: 0 }
    }

    fn disposition(response: &CallbackResponse, attempt: u32) -> Disposition {
        disposition_of(response, &id(attempt), attempt, &policy(), NOW)
    }

    fn answer(status: u16, retry_after: Option<Millis>) -> CallbackResponse {
        CallbackResponse::Answered { status, retry_after, body: String::new() }
    }

    fn due(response: &CallbackResponse, attempt: u32) -> Option<Millis> {
        match disposition(response, attempt) {
            Disposition::Retry { due, .. } => Some(due - NOW),
            _ => None,
        }
    }

    #[test]
    fn success_is_200_to_299() {
        for status in [200, 202, 204, 299] {
            let found = disposition(&answer(status, None), 1);
            assert_eq!(found, Disposition::Delivered { status });
        }
        for status in [199, 300, 302, 400, 401, 429, 500, 503] {
            assert_eq!(due(&answer(status, None), 1), Some(10_000), "{status}");
        }
    }

    #[test]
    fn the_default_policy_gives_six_attempts() {
        let silent = CallbackResponse::NoResponse("connection refused".to_owned());
        let delays: Vec<_> = (1..=6).map(|attempt| due(&silent, attempt)).collect();
        let expected = [10_000, 30_000, 120_000, 600_000, 1_800_000].map(Some);
        assert_eq!((&delays[..5], delays[5]), (&expected[..], None));
        let reason = "attempt 6 was the last: connection refused".to_owned();
        assert_eq!(disposition(&silent, 6), Disposition::GiveUp { reason });
        // After a replay the policy counts from one, and the attempt number continues.
        let replayed = disposition_of(&silent, &id(7), 1, &policy(), NOW);
        assert!(matches!(replayed, Disposition::Retry { due, .. } if due == NOW + 10_000));
    }

    #[test]
    fn status_410_and_unsendable_are_final_at_once() {
        let removed = CallbackResponse::Answered {
            status: 410,
            retry_after: Some(5),
            body: "moved".to_owned(),
        };
        let reason = "final: answered 410: moved".to_owned();
        assert_eq!(disposition(&removed, 1), Disposition::GiveUp { reason });
        let reason = "final: answered 404".to_owned();
        assert_eq!(disposition(&answer(404, None), 1), Disposition::GiveUp { reason });
        let impossible = CallbackResponse::Unsendable("no".to_owned());
        let reason = "no".to_owned();
        assert_eq!(disposition(&impossible, 1), Disposition::GiveUp { reason });
    }

    #[test]
    fn retry_after_only_lengthens_the_pause_and_at_most_to_a_day() {
        assert_eq!(due(&answer(503, Some(1_000)), 1), Some(10_000));
        assert_eq!(due(&answer(503, Some(45_000)), 1), Some(45_000));
        assert_eq!(due(&answer(503, Some(u64::MAX)), 1), Some(RETRY_AFTER_MAX));
        assert_eq!(due(&answer(503, Some(45_000)), 6), None);
    }
}
