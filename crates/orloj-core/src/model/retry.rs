//! When a failed callback is tried again: pauses that grow, then the dead letters.
//!
//! Invariant: pure, and the same for every process. Attempts are the input, pauses the output; even
//! their jitter follows from the fire's id, so that no two runs differ.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Millis;
use super::avro_long;
use super::fire_id::FireId;
use super::partitioner::murmur2;

/// HTTP 410: the receiver wants no further attempt, whatever the policy says.
const GONE: u16 = 410;

/// How often and when. What it does not set comes from another policy: a trigger's own is laid
/// [`with_defaults`](Self::with_defaults) the worker's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "camelCase")]
pub struct RetryPolicy {
    /// Pauses before the 2nd, 3rd, … attempt, in ms. If there are more attempts, the last pause
    /// is repeated. Empty: not set.
    #[serde(with = "super::avro_long::list")]
    pub delays: Vec<Millis>,
    /// Attempts in all, from 1. `None` makes one more than there are pauses.
    pub attempts: Option<u32>,
    /// By how many percent a pause may be shorter or longer, 0 to 100.
    pub jitter: Option<u8>,
    /// Statuses after which there is no further attempt; 410 always is one.
    pub final_statuses: Vec<u16>,
}

impl Serialize for RetryPolicy {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, to)
    }
}

/// The first release knew the pauses only, and wrote them as a list.
impl<'de> Deserialize<'de> for RetryPolicy {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(RetryPolicyVisitor)
    }
}

/// Reads a policy in both forms.
struct RetryPolicyVisitor;

impl<'de> Visitor<'de> for RetryPolicyVisitor {
    type Value = RetryPolicy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a retry policy, or a list of pauses in ms")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<RetryPolicy, A::Error> {
        RetryPolicy::deserialize(MapAccessDeserializer::new(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, pauses: A) -> Result<RetryPolicy, A::Error> {
        let delays = avro_long::list::deserialize(SeqAccessDeserializer::new(pauses))?;
        Ok(RetryPolicy::from_pauses(delays))
    }
}

impl RetryPolicy {
    /// What the first release meant by a list of pauses: without one there is one attempt.
    #[must_use]
    pub fn from_pauses(delays: Vec<Millis>) -> Self {
        let attempts = delays.is_empty().then_some(1);
        Self { delays, attempts, ..Self::default() }
    }

    /// Whether it sets nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// This policy, and `other` where it sets nothing. Statuses that are final in either are
    /// final. Pauses without a number of attempts imply one.
    #[must_use]
    pub fn with_defaults(&self, defaults: &Self) -> Self {
        let (delays, attempts) = match (self.delays.is_empty(), self.attempts) {
            (true, attempts) => (&defaults.delays, attempts.or(defaults.attempts)),
            (false, attempts) => (&self.delays, attempts),
        };
        Self {
            delays: delays.clone(),
            attempts,
            jitter: self.jitter.or(defaults.jitter),
            final_statuses: [&self.final_statuses[..], &defaults.final_statuses].concat(),
        }
    }

    /// How many attempts there are in all.
    #[must_use]
    pub fn attempts_max(&self) -> u32 {
        match self.attempts {
            _ if self.delays.is_empty() => 1,
            Some(attempts) => attempts,
            None => u32::try_from(self.delays.len()).map_or(u32::MAX, |delays| delays + 1),
        }
    }

    /// Whether a status ends it.
    #[must_use]
    pub fn is_final(&self, status: u16) -> bool {
        status == GONE || self.final_statuses.contains(&status)
    }

    /// The pause after failed attempt `made` (from 1; counted again after a replay) of the fire
    /// `id`, in ms; `None` if it was the last. The receiver asked for `wanted` at least: its pause
    /// is only ever lengthened.
    #[must_use]
    pub fn delay_after(&self, attempt: u32, id: &FireId, retry_after: Millis) -> Option<Millis> {
        assert!(attempt >= 1, "attempts count from 1");
        if attempt >= self.attempts_max() {
            return None;
        }
        let delay = *self.delays.get(attempt as usize - 1).or_else(|| self.delays.last())?;
        let share = self.jitter_share(id);
        let spread = delay.saturating_add_signed(share_of(delay, share));
        Some(spread.max(retry_after.saturating_add_signed(share_of(retry_after, share.abs()))))
    }

    /// Which part of the jitter this attempt gets, in percent × 2^31.
    fn jitter_share(&self, id: &FireId) -> i64 {
        let hash = murmur2(format!("{}:{}", id.occurrence_id(), id.attempt).as_bytes());
        let centred = i64::from(hash) - (1 << 31);
        centred * i64::from(self.jitter.unwrap_or(0).min(100))
    }
}

/// `share` (in percent × 2^31) of `delay`.
fn share_of(delay: Millis, share: i64) -> i64 {
    let part = i128::from(delay) * i128::from(share) / (100 << 31);
    i64::try_from(part).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(attempt: u32) -> FireId {
        FireId { trigger: "a".into(), generation: 7, occurrence: 0, attempt, deferral: 0 }
    }

    fn delays(policy: &RetryPolicy, attempts: u32) -> Vec<Option<Millis>> {
        (1..=attempts).map(|made| policy.delay_after(made, &id(made), 0)).collect()
    }

    #[test]
    fn delays_are_used_in_order_and_the_last_is_repeated() {
        let ladder = RetryPolicy { delays: vec![10, 30], ..RetryPolicy::default() };
        assert_eq!(delays(&ladder, 3), [Some(10), Some(30), None]);
        assert_eq!(ladder.attempts_max(), 3);
        let longer = RetryPolicy { attempts: Some(5), ..ladder.clone() };
        assert_eq!(delays(&longer, 5), [Some(10), Some(30), Some(30), Some(30), None]);
        let shorter = RetryPolicy { attempts: Some(2), ..ladder };
        assert_eq!(delays(&shorter, 2), [Some(10), None]);
        assert_eq!(delays(&RetryPolicy::default(), 1), [None], "no pause, no second attempt");
    }

    #[test]
    fn a_triggers_policy_takes_its_defaults_from_the_worker() {
        let workers = RetryPolicy {
            delays: vec![10, 20],
            attempts: None,
            jitter: Some(10),
            final_statuses: vec![404],
        };
        let own = |delays, attempts, jitter, final_statuses| {
            RetryPolicy { delays, attempts, jitter, final_statuses }.with_defaults(&workers)
        };
        assert_eq!(RetryPolicy::default().with_defaults(&workers), workers);
        let more = own(vec![], Some(9), Some(0), vec![422]);
        assert_eq!((more.delays.len(), more.attempts_max(), more.jitter), (2, 9, Some(0)));
        assert!([404, 410, 422].into_iter().all(|status| more.is_final(status)));
        assert!(!more.is_final(500));
        assert_eq!(own(vec![5], None, None, vec![]).attempts_max(), 2);
        let eager = RetryPolicy { attempts: Some(7), ..workers.clone() };
        let own = RetryPolicy { delays: vec![5], ..RetryPolicy::default() };
        assert_eq!(
            own.with_defaults(&eager).attempts_max(),
            2,
            "its pauses imply the number of attempts"
        );
    }

    #[test]
    fn a_list_without_pauses_means_one_attempt() {
        let workers = RetryPolicy { delays: vec![10, 20], ..RetryPolicy::default() };
        let attempts = |list| {
            let policy: RetryPolicy = serde_json::from_str(list).unwrap();
            policy.with_defaults(&workers).attempts_max()
        };
        assert_eq!((attempts("[]"), attempts("[5]")), (1, 2));
    }

    proptest! {
        #[test]
        fn jitter_stays_within_its_percentage(
            delay in 0..2_592_000_000_u64,
            wanted in 0..86_400_000_u64,
            jitter in 0..=100_u8,
            attempt in 1..9_u32,
        ) {
            let policy = RetryPolicy {
                delays: vec![delay],
                attempts: Some(10),
                jitter: Some(jitter),
                ..RetryPolicy::default()
            };
            let pause = policy.delay_after(attempt, &id(attempt), wanted).unwrap();
            prop_assert_eq!(policy.delay_after(attempt, &id(attempt), wanted), Some(pause));
            let of = |span: Millis| span * u64::from(jitter) / 100;
            prop_assert!(pause >= wanted.max(delay - of(delay)));
            prop_assert!(pause <= (delay + of(delay)).max(wanted + of(wanted)));
        }
    }

    #[test]
    fn jitter_spreads() {
        let policy = RetryPolicy {
            delays: vec![1_000],
            attempts: Some(1_000),
            jitter: Some(50),
            ..RetryPolicy::default()
        };
        let pauses = delays(&policy, 999).into_iter().flatten();
        let (least, most) = pauses.fold((u64::MAX, 0), |(a, b), p| (a.min(p), b.max(p)));
        assert!(least < 520 && most > 1_480, "{least} {most}");
    }
}
