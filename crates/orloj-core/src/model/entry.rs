//! An entry of the timeline: one occurrence of a trigger (or a retry of one, or the expiry of a
//! veto) waiting for its time. [`codec::row`](crate::codec::row) gives it its bytes in the store.

use super::attempt::History;
use super::definition::Definition;
pub use super::fire_id::FireId;
use super::lifecycle::{Lifecycle, Watcher};
use super::text::Text;
use super::timeline::TimelineKey;
use super::{Offset, Timestamp};

/// A row of the timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place in due order.
    pub key: TimelineKey,
    /// What happens then.
    pub row: Row,
}

/// What is stored under a timeline key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    /// An occurrence to fire for the first time, or again.
    Fire(FireRow),
    /// Others wait for a trigger that is not registered yet: deleted when due.
    Watch {
        /// The trigger they wait for.
        trigger: Text,
        /// The waiting triggers, in the order of their requests.
        watchers: Vec<Watcher>,
    },
    /// A cancel that may still have to stop a retry: deleted when due.
    Veto {
        /// The trigger whose older generations may not be retried.
        trigger: Text,
        /// The offset of the cancel; generations below it are vetoed.
        cancel: Offset,
    },
}

/// An occurrence waiting to be fired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FireRow {
    /// Which one.
    pub id: FireId,
    /// When the occurrence was first due, in ms since the epoch; a retry keeps it.
    pub scheduled: Timestamp,
    /// Whether the ledger holds this entry, so that firing it must settle it there.
    pub in_ledger: bool,
    /// What to do.
    pub definition: Definition,
    /// The attempts so far; a first one has none, and takes up no room for it.
    pub history: Option<Box<History>>,
    /// What goes beyond one time and one attempt; nearly always none.
    pub lifecycle: Option<Box<Lifecycle>>,
}

impl FireRow {
    /// The first attempt of the first occurrence of a trigger, without a lifecycle.
    #[must_use]
    pub fn first(
        trigger: Text,
        generation: Offset,
        due: Timestamp,
        definition: Definition,
    ) -> Self {
        let id = FireId { trigger, generation, occurrence: 0, attempt: 1, deferral: 0 };
        let (in_ledger, history, lifecycle) = (false, None, None);
        Self { id, scheduled: due, in_ledger, definition, history, lifecycle }
    }

    /// The offset of the record that defines it now: its registration, or the newest change.
    #[must_use]
    pub fn revision(&self) -> Offset {
        let changed = self.lifecycle.as_ref().and_then(|lifecycle| lifecycle.revision);
        changed.unwrap_or(self.id.generation)
    }

    /// Its lifecycle, to be changed; created if there is none.
    pub fn lifecycle_mut(&mut self) -> &mut Lifecycle {
        self.lifecycle.get_or_insert_default()
    }

    /// Whether a worker must report how its callback ends.
    #[must_use]
    pub fn reports_end(&self) -> bool {
        let Some(lifecycle) = &self.lifecycle else { return false };
        // It is remembered until then, and so is its result.
        let is_remembered = lifecycle.recurrence.is_none()
            && lifecycle.first_due.is_some_and(|first_due| self.scheduled <= first_due);
        lifecycle.reports_end() || is_remembered
    }
}
