//! The id of a fire: which occurrence of which trigger, and which attempt of it.
//!
//! Invariant: a fire and its retries share [`FireId::occurrence_id`]; no two attempts share an id.

use super::Offset;
use super::text::Text;

/// Which occurrence of which trigger, and which attempt of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FireId {
    /// The trigger.
    pub trigger: Text,
    /// The offset of the registration that defines it.
    pub generation: Offset,
    /// 0 for a one-time trigger; counts up for a recurring one.
    pub occurrence: u32,
    /// From 1; a retry counts up.
    pub attempt: u32,
    /// How often this attempt was sent back without being spent (open circuit, full queue).
    pub deferral: u32,
}

impl FireId {
    /// The id that stays the same over all attempts: `<triggerId>:<generation>:<occurrence>`.
    #[must_use]
    pub fn occurrence_id(&self) -> String {
        format!("{}:{}:{}", self.trigger, self.generation, self.occurrence)
    }
}
