//! A signal: what a worker tells the owner of a trigger, keyed by trigger id.

use super::Timestamp;
use super::definition::Definition;
use super::entry::FireId;

/// A message from a worker to an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Fire this again later.
    Retry(RetryRequest),
}

/// An attempt that the owner's timeline shall hold until it is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryRequest {
    /// The attempt to make: its `attempt` is one more than the failed one's, or, where the fire
    /// was only deferred, the same with one more deferral.
    pub id: FireId,
    /// When, in ms since the epoch. A time at or below the owner's cursor fires at once.
    pub due: Timestamp,
    /// When the occurrence was first due.
    pub scheduled: Timestamp,
    /// Why the last attempt failed, for people.
    pub reason: String,
    /// What to do.
    pub definition: Definition,
}
