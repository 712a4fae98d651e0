//! How long the clients wait for brokers, for all roles.
//!
//! Invariant: what each setting is for, and the reason for its default, is in `orloj.default.toml`;
//! what was measured is in `docs/internals/timeouts.md`.

use std::time::Duration;

use serde::Deserialize;

use super::units;

/// How long the clients wait for brokers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeoutSettings {
    /// For the answer to a request of a producer, or to a question.
    #[serde(deserialize_with = "units::duration")]
    pub request: Duration,
    /// For the answer to a fetch, or to a heartbeat.
    #[serde(deserialize_with = "units::duration")]
    pub fetch: Duration,
    /// Until a record of a transaction is acknowledged.
    #[serde(deserialize_with = "units::duration")]
    pub delivery: Duration,
    /// For a connection.
    #[serde(deserialize_with = "units::duration")]
    pub connect: Duration,
    /// Between two questions who leads the partitions that are read.
    #[serde(deserialize_with = "units::duration")]
    pub metadata_refresh: Duration,
    /// The same for those that are written.
    #[serde(deserialize_with = "units::duration")]
    pub metadata_refresh_producers: Duration,
}
