//! The error of every Kafka client.
//!
//! Invariant: callers print it or return it, but do not depend on librdkafka's error codes: what a
//! caller must distinguish has a type of its own, such as
//! [`TransactionError`](super::transaction::TransactionError).

use rdkafka::error::KafkaError;

/// A client could not be created, or a request failed. Check the `[kafka]` settings, or try again
/// later. `Display` is librdkafka's text.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub struct ClientError(#[from] KafkaError);

/// The result of a request to Kafka.
pub type ClientResult<T> = Result<T, ClientError>;

impl ClientError {
    /// The request was cancelled, because its client or its task has ended.
    #[must_use]
    pub fn cancelled() -> Self {
        Self(KafkaError::Canceled)
    }
}
