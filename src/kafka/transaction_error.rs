//! What an error of the client library means for a transaction.
//!
//! Invariant: an error that is not known says that the outcome is unknown.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::environment::transaction::TransactionError;
use crate::model::PartitionId;

pub(super) fn classify_kafka_error(error: KafkaError) -> TransactionError {
    let fatal = matches!(&error, KafkaError::Transaction(inner) if inner.is_fatal());
    classify(error.rdkafka_error_code(), fatal, error.to_string())
}

pub(super) fn classify(
    code: Option<RDKafkaErrorCode>,
    fatal: bool,
    text: String,
) -> TransactionError {
    match code {
        Some(
            RDKafkaErrorCode::IllegalGeneration
            | RDKafkaErrorCode::UnknownMemberId
            | RDKafkaErrorCode::FencedInstanceId
            | RDKafkaErrorCode::RebalanceInProgress,
        ) => TransactionError::StaleGeneration(text),
        Some(
            RDKafkaErrorCode::Fenced
            | RDKafkaErrorCode::ProducerFenced
            | RDKafkaErrorCode::InvalidProducerEpoch,
        ) => TransactionError::Fenced(text),
        Some(
            RDKafkaErrorCode::TopicAuthorizationFailed | RDKafkaErrorCode::UnknownTopicOrPartition,
        ) => TransactionError::UnusableTopic(text),
        _ if fatal => TransactionError::Unknown(format!("fatal: {text}")),
        _ => TransactionError::Unknown(text),
    }
}

/// What the error of one record means; `None` if it says nothing about that record: it was purged
/// because the transaction is aborted, or another record of its batch was refused.
pub(super) fn delivery_error(
    code: Option<RDKafkaErrorCode>,
    (topic, partition): (&str, PartitionId),
    reason: String,
) -> Option<TransactionError> {
    let topic = topic.to_owned();
    Some(match code? {
        RDKafkaErrorCode::PurgeQueue
        | RDKafkaErrorCode::PurgeInflight
        | RDKafkaErrorCode::InvalidDifferentRecord => return None,
        RDKafkaErrorCode::MessageSizeTooLarge
        | RDKafkaErrorCode::InvalidMessage
        | RDKafkaErrorCode::InvalidMessageSize
        | RDKafkaErrorCode::InvalidRecord
        | RDKafkaErrorCode::InvalidTopic
        | RDKafkaErrorCode::PolicyViolation
        | RDKafkaErrorCode::TopicAuthorizationFailed
        | RDKafkaErrorCode::UnknownPartition
        | RDKafkaErrorCode::UnknownTopic
        | RDKafkaErrorCode::UnknownTopicOrPartition => {
            TransactionError::Refused { topic, partition, reason }
        }
        RDKafkaErrorCode::InvalidTimestamp => {
            let reason = format!(
                "{reason}: this machine's clock differs from the broker's by more than the topic's \
                 message.timestamp.after.max.ms or message.timestamp.before.max.ms allows"
            );
            TransactionError::RefusedTime { topic, partition, reason }
        }
        RDKafkaErrorCode::MessageTimedOut
        | RDKafkaErrorCode::LeaderNotAvailable
        | RDKafkaErrorCode::NotEnoughReplicas
        | RDKafkaErrorCode::NotEnoughReplicasAfterAppend
        | RDKafkaErrorCode::NotLeaderForPartition => {
            TransactionError::Undelivered { topic, partition, reason }
        }
        other => classify(Some(other), false, reason),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(code: RDKafkaErrorCode) -> Option<TransactionError> {
        delivery_error(Some(code), ("orders", 3), "text".to_owned())
    }

    #[test]
    fn only_a_record_that_was_refused_itself_is_blamed() {
        assert_eq!(kind_of(RDKafkaErrorCode::PurgeQueue), None);
        assert_eq!(kind_of(RDKafkaErrorCode::PurgeInflight), None);
        assert_eq!(kind_of(RDKafkaErrorCode::InvalidDifferentRecord), None);
        let (topic, reason) = ("orders".to_owned(), "text".to_owned());
        assert_eq!(
            kind_of(RDKafkaErrorCode::TopicAuthorizationFailed),
            Some(TransactionError::Refused { topic, partition: 3, reason })
        );
        let unknown = Some(TransactionError::Unknown("text".to_owned()));
        assert_eq!(kind_of(RDKafkaErrorCode::State), unknown, "the transaction has failed");
        let fenced = Some(TransactionError::Fenced("text".to_owned()));
        assert_eq!(kind_of(RDKafkaErrorCode::ProducerFenced), fenced);
        assert_eq!(kind_of(RDKafkaErrorCode::InvalidProducerEpoch), fenced);
    }

    #[test]
    fn a_refused_timestamp_names_the_settings_of_the_topic() {
        let refused = kind_of(RDKafkaErrorCode::InvalidTimestamp);
        let Some(TransactionError::RefusedTime { reason, .. }) = refused else {
            panic!("{refused:?}")
        };
        assert!(reason.starts_with("text: this machine's clock"), "{reason}");
        assert!(reason.contains("message.timestamp.after.max.ms"), "{reason}");
    }

    #[test]
    fn a_record_that_was_not_acknowledged_in_time_is_not_refused() {
        let (topic, reason) = ("orders".to_owned(), "text".to_owned());
        let undelivered = Some(TransactionError::Undelivered { topic, partition: 3, reason });
        assert_eq!(kind_of(RDKafkaErrorCode::MessageTimedOut), undelivered);
        assert_eq!(kind_of(RDKafkaErrorCode::NotEnoughReplicas), undelivered);
    }

    #[test]
    fn the_error_of_a_transaction_tells_what_to_do() {
        let of = |code| classify(Some(code), true, String::new());
        for code in [
            RDKafkaErrorCode::IllegalGeneration,
            RDKafkaErrorCode::UnknownMemberId,
            RDKafkaErrorCode::FencedInstanceId,
            RDKafkaErrorCode::RebalanceInProgress,
        ] {
            assert!(matches!(of(code), TransactionError::StaleGeneration(_)), "{code:?}");
        }
        for code in [RDKafkaErrorCode::Fenced, RDKafkaErrorCode::ProducerFenced] {
            assert!(matches!(of(code), TransactionError::Fenced(_)), "{code:?}");
        }
        for code in
            [RDKafkaErrorCode::TopicAuthorizationFailed, RDKafkaErrorCode::UnknownTopicOrPartition]
        {
            assert!(matches!(of(code), TransactionError::UnusableTopic(_)), "{code:?}");
        }
        assert!(matches!(of(RDKafkaErrorCode::State), TransactionError::Unknown(_)));
    }
}
