//! The error of every Kafka client.
//!
//! Invariant: callers print it or return it, but do not depend on librdkafka's error codes: what a
//! caller must distinguish has a type of its own, such as
//! [`TransactionError`](super::transaction::TransactionError).

use rdkafka::error::KafkaError;

/// Why a client could not be created, or a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// Check the `[kafka]` settings, or try again later. `Display` is librdkafka's text.
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    /// A record was sent, and no broker has acknowledged it in the time for which its sender waits:
    /// it may be written now, later, or not at all.
    #[error("no broker has acknowledged the record in time; it may still be written")]
    NotAcknowledged,
    /// No broker has answered this question: try again later.
    #[error("no broker has answered {0}")]
    NotAnswered(&'static str),
    /// The group has expelled this member and let it join again: all its partitions are lost. Join
    /// as a new client.
    #[error("the group has expelled this member and has given it a new member id")]
    Expelled,
}

/// The result of a request to Kafka.
pub type ClientResult<T> = Result<T, ClientError>;

impl ClientError {
    /// The request was cancelled, because its client or its task has ended.
    #[must_use]
    pub fn cancelled() -> Self {
        Self::Kafka(KafkaError::Canceled)
    }
}
