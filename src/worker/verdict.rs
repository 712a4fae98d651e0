//! What follows from an answer, or from none: delivered, tried again later, or given up.
//!
//! Law: pure. The answer, the attempt, the policy and the time come in; the verdict goes out.

use crate::model::entry::FireId;
use crate::model::retry::RetryPolicy;
use crate::model::{Millis, Timestamp};

/// The longest pause that a receiver may ask for: a day, in ms. Beyond it, it should answer 410.
const RETRY_AFTER_MAX: Millis = 24 * 3_600_000;

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The receiver answered.
    Answered {
        /// The HTTP status.
        status: u16,
        /// The pause that its `Retry-After` asks for, in ms.
        retry_after: Option<Millis>,
        /// The beginning of its body, for people.
        body: String,
    },
    /// Nothing came back: refused, timed out, broken off. For people.
    Silent(String),
    /// The request must not or cannot be made, now or later. For people.
    Impossible(String),
}

impl Reply {
    /// The HTTP status, if there was an answer.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Answered { status, .. } => Some(*status),
            Self::Silent(_) | Self::Impossible(_) => None,
        }
    }

    fn reason(&self) -> String {
        match self {
            Self::Answered { status, body, .. } if body.is_empty() => format!("answered {status}"),
            Self::Answered { status, body, .. } => format!("answered {status}: {body}"),
            Self::Silent(reason) | Self::Impossible(reason) => reason.clone(),
        }
    }
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
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

/// Judges attempt `id` that ended at `now`; it was number `made` by the count of the policy.
#[must_use]
pub fn judge(
    reply: &Reply,
    id: &FireId,
    made: u32,
    policy: &RetryPolicy,
    now: Timestamp,
) -> Verdict {
    let wanted = match reply {
        Reply::Answered { status: status @ 200..=299, .. } => {
            return Verdict::Delivered { status: *status };
        }
        Reply::Impossible(_) => return Verdict::GiveUp { reason: reply.reason() },
        Reply::Answered { status, .. } if policy.is_final(*status) => {
            return Verdict::GiveUp { reason: format!("final: {}", reply.reason()) };
        }
        Reply::Answered { retry_after, .. } => retry_after.unwrap_or(0).min(RETRY_AFTER_MAX),
        Reply::Silent(_) => 0,
    };
    match policy.pause_after(made, id, wanted) {
        Some(pause) => Verdict::Retry { due: now.saturating_add(pause), reason: reply.reason() },
        None => {
            let reason = format!("attempt {} was the last: {}", id.attempt, reply.reason());
            Verdict::GiveUp { reason }
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

    fn verdict(reply: &Reply, attempt: u32) -> Verdict {
        judge(reply, &id(attempt), attempt, &policy(), NOW)
    }

    fn answer(status: u16, retry_after: Option<Millis>) -> Reply {
        Reply::Answered { status, retry_after, body: String::new() }
    }

    fn due(reply: &Reply, attempt: u32) -> Option<Millis> {
        match verdict(reply, attempt) {
            Verdict::Retry { due, .. } => Some(due - NOW),
            _ => None,
        }
    }

    #[test]
    fn success_is_200_to_299() {
        for status in [200, 202, 204, 299] {
            let verdict = verdict(&answer(status, None), 1);
            assert_eq!(verdict, Verdict::Delivered { status });
        }
        for status in [199, 300, 302, 400, 401, 429, 500, 503] {
            assert_eq!(due(&answer(status, None), 1), Some(10_000), "{status}");
        }
    }

    #[test]
    fn the_default_policy_gives_six_attempts() {
        let silent = Reply::Silent("connection refused".to_owned());
        let delays: Vec<_> = (1..=6).map(|attempt| due(&silent, attempt)).collect();
        let expected = [10_000, 30_000, 120_000, 600_000, 1_800_000].map(Some);
        assert_eq!((&delays[..5], delays[5]), (&expected[..], None));
        let reason = "attempt 6 was the last: connection refused".to_owned();
        assert_eq!(verdict(&silent, 6), Verdict::GiveUp { reason });
        // After a replay they count anew, and the number of the attempt goes on.
        let replayed = judge(&silent, &id(7), 1, &policy(), NOW);
        assert!(matches!(replayed, Verdict::Retry { due, .. } if due == NOW + 10_000));
    }

    #[test]
    fn gone_and_impossible_are_final_at_once() {
        let gone = Reply::Answered { status: 410, retry_after: Some(5), body: "moved".to_owned() };
        let reason = "final: answered 410: moved".to_owned();
        assert_eq!(verdict(&gone, 1), Verdict::GiveUp { reason });
        let reason = "final: answered 404".to_owned();
        assert_eq!(verdict(&answer(404, None), 1), Verdict::GiveUp { reason });
        let impossible = Reply::Impossible("no".to_owned());
        let reason = "no".to_owned();
        assert_eq!(verdict(&impossible, 1), Verdict::GiveUp { reason });
    }

    #[test]
    fn retry_after_only_lengthens_and_at_most_to_a_day() {
        assert_eq!(due(&answer(503, Some(1_000)), 1), Some(10_000));
        assert_eq!(due(&answer(503, Some(45_000)), 1), Some(45_000));
        assert_eq!(due(&answer(503, Some(u64::MAX)), 1), Some(RETRY_AFTER_MAX));
        assert_eq!(due(&answer(503, Some(45_000)), 6), None);
    }
}
