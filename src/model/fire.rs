//! A fire: the record on `orloj.fires` that says a callback is due. It carries everything a
//! worker needs, and everything the owner needs back in a signal: by then the owner keeps nothing.

use super::Timestamp;
use super::attempt::History;
use super::definition::Definition;
use super::entry::FireId;

/// A callback that is due now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fire {
    /// Which occurrence and attempt.
    pub id: FireId,
    /// When the occurrence was first due, in ms since the epoch.
    pub scheduled: Timestamp,
    /// When the owner decided that it fires, in ms since the epoch by the owner's clock.
    pub fired: Timestamp,
    /// What to do.
    pub definition: Definition,
    /// The attempts before this one.
    pub history: Option<Box<History>>,
}
