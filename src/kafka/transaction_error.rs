//! What an error of the client library means for a transaction.
//!
//! Invariant: an error that is not known says that the outcome is unknown.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

pub(super) use crate::environment::transaction::TransactionError;

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
        Some(RDKafkaErrorCode::TopicAuthorizationFailed) => TransactionError::Unauthorized(text),
        _ if fatal => TransactionError::Unknown(format!("fatal: {text}")),
        _ => TransactionError::Unknown(text),
    }
}
