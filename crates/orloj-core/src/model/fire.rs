//! A fire: the record on `orloj.fires` that says a callback is due. It carries everything a
//! worker needs, and everything the owner needs back in a signal: the owner keeps none of it.
//! And a withdrawal: a later record that says the callback must not be made any more.

use super::attempt::History;
use super::definition::Definition;
use super::fire_id::FireId;
use super::text::Text;
use super::{Offset, Timestamp};

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
    /// Whether the owner wants to know how it ends: a
    /// [`CallbackEnded`](super::signal::CallbackEnded) signal.
    pub report_end: bool,
    /// 0 to 255; higher goes first.
    pub priority: u8,
}

/// A cancel after the fire: earlier fires in its partition must not be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withdrawal {
    /// The trigger.
    pub trigger: Text,
    /// The offset of the cancel: it withdraws fires of generations below it.
    pub cancel: Offset,
}

impl Withdrawal {
    /// Whether it withdraws a fire.
    #[must_use]
    pub fn matches(&self, id: &FireId) -> bool {
        id.generation < self.cancel && id.trigger == self.trigger
    }
}

/// A record of `fires`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerRecord {
    /// A callback to make.
    Callback(Box<Fire>),
    /// Callbacks not to make.
    Withdrawal(Withdrawal),
}
