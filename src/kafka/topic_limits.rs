//! What the settings of a topic allow, as its brokers have described them.
//!
//! Invariant: a limit is used only if a broker has answered. An answer that denies the description
//! means Kafka's defaults; no answer means what the last one said.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use rdkafka::admin::ConfigResourceResult;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaErrorCode;

/// Kafka's default `max.message.bytes`, used if the broker does not return the setting.
const RECORD_BYTES_DEFAULT: usize = 1_048_588;

/// How many topics are remembered. Beyond that all are forgotten and asked for again.
const TOPICS_MAX: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TopicLimits {
    /// Bytes of a record batch.
    pub(super) record_bytes_max: usize,
    /// In-sync replicas that must have a record before it is acknowledged; `None` if the broker did
    /// not say so.
    in_sync_min: Option<usize>,
}

impl Default for TopicLimits {
    fn default() -> Self {
        Self { record_bytes_max: RECORD_BYTES_DEFAULT, in_sync_min: None }
    }
}

impl TopicLimits {
    /// What the answer to a request for the settings of one topic says; `None` if no broker has
    /// answered.
    pub(super) fn from_answer(answer: KafkaResult<Vec<ConfigResourceResult>>) -> Option<Self> {
        let described = match answer {
            Ok(described) => described,
            Err(KafkaError::AdminOp(code)) if is_no_answer(code) => return None,
            Err(_) => return Some(Self::default()),
        };
        let mut limits = Self::default();
        for resource in described {
            let entries = match resource {
                Ok(resource) => resource.entries,
                Err(code) if is_no_answer(code) => return None,
                Err(_) => continue,
            };
            for entry in entries {
                let number = entry.value.and_then(|value| value.parse::<usize>().ok());
                match entry.name.as_str() {
                    "max.message.bytes" => {
                        limits.record_bytes_max = number.unwrap_or(RECORD_BYTES_DEFAULT);
                    }
                    "min.insync.replicas" => limits.in_sync_min = number,
                    _ => {}
                }
            }
        }
        Some(limits)
    }

    /// Whether a partition with so many replicas in sync acknowledges records. A topic with fewer
    /// replicas than its `min.insync.replicas` needs all of them. Where it is not known how many it
    /// needs, it counts as writable.
    pub(super) fn are_enough(self, replicas: usize, in_sync: usize) -> bool {
        self.in_sync_min.is_none_or(|min| in_sync >= min.min(replicas))
    }
}

fn is_no_answer(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode::{
        AllBrokersDown, BrokerTransportFailure, OperationTimedOut, RequestTimedOut,
    };
    matches!(code, OperationTimedOut | RequestTimedOut | BrokerTransportFailure | AllBrokersDown)
}

/// The last limits of each topic.
#[derive(Debug, Default)]
pub(super) struct KnownLimits(Mutex<HashMap<String, TopicLimits>>);

impl KnownLimits {
    /// What is known of `topic` after this answer about it; `None` if there never was one.
    pub(super) fn after(&self, topic: &str, answer: Option<TopicLimits>) -> Option<TopicLimits> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(limits) = answer else { return known.get(topic).copied() };
        if known.len() >= TOPICS_MAX {
            known.clear();
        }
        known.insert(topic.to_owned(), limits);
        Some(limits)
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::admin::{ConfigEntry, ConfigResource, ConfigSource, OwnedResourceSpecifier};

    use super::*;

    fn described(name: &str, value: &str) -> KafkaResult<Vec<ConfigResourceResult>> {
        let entry = ConfigEntry {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            source: ConfigSource::DynamicTopic,
            is_read_only: false,
            is_default: false,
            is_sensitive: false,
        };
        let specifier = OwnedResourceSpecifier::Topic("out".to_owned());
        Ok(vec![Ok(ConfigResource { specifier, entries: vec![entry] })])
    }

    #[test]
    fn a_partition_can_be_written_if_as_many_replicas_are_in_sync_as_its_topic_needs() {
        for (replicas, in_sync, in_sync_min, can_write) in [
            (3, 3, Some(2), true),
            (3, 2, Some(2), true),
            (3, 1, Some(2), false),
            (3, 1, Some(1), true),
            (3, 2, Some(3), false),
            // A topic with fewer replicas than it asks for needs all of them.
            (1, 1, Some(2), true),
            (2, 1, Some(3), false),
            // Brokers that do not describe configurations, and those that show no replicas.
            (3, 1, None, true),
            (0, 0, Some(2), true),
        ] {
            assert_eq!(
                TopicLimits { in_sync_min, ..TopicLimits::default() }.are_enough(replicas, in_sync),
                can_write,
                "{in_sync} of {replicas} in sync, {in_sync_min:?} needed"
            );
        }
    }

    #[test]
    fn without_an_answer_the_last_limits_hold_and_defaults_never_do() {
        let known = KnownLimits::default();
        let no_answer =
            || TopicLimits::from_answer(Ok(vec![Err(RDKafkaErrorCode::BrokerTransportFailure)]));
        assert_eq!(known.after("out", no_answer()), None);
        let large = TopicLimits::from_answer(described("max.message.bytes", "9000000"));
        assert_eq!(large.unwrap().record_bytes_max, 9_000_000);
        assert_eq!(known.after("out", large), large);
        let timed_out = Err(KafkaError::AdminOp(RDKafkaErrorCode::OperationTimedOut));
        assert_eq!(known.after("out", TopicLimits::from_answer(timed_out)), large);
        assert_eq!(known.after("other", no_answer()), None);
        // A broker that does not describe them has answered.
        let denied = RDKafkaErrorCode::TopicAuthorizationFailed;
        let default = Some(TopicLimits::default());
        assert_eq!(known.after("out", TopicLimits::from_answer(Ok(vec![Err(denied)]))), default);
        let in_sync = TopicLimits::from_answer(described("min.insync.replicas", "2")).unwrap();
        assert!(in_sync.are_enough(3, 2) && !in_sync.are_enough(3, 1));
    }
}
