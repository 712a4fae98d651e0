//! A dead letter: a record or a fire that nobody will try again by itself, kept whole and with
//! the reason, so that a person can mend the cause and replay it.

use bytes::Bytes;

use super::definition::Header;
use super::fire::Fire;
use super::text::Text;
use super::{Offset, PartitionId, Timestamp};

/// Something that could not be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The record it came from.
    pub origin: Origin,
    /// Why, for people; names the thing and the way out.
    pub reason: String,
    /// When it was given up, in ms since the epoch.
    pub at: Timestamp,
    /// What is kept of it.
    pub content: Content,
}

/// Where the record stands that led here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The topic.
    pub topic: Text,
    /// The partition.
    pub partition: PartitionId,
    /// The offset.
    pub offset: Offset,
}

/// What is kept of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A record that could not be read or taken, verbatim.
    Record {
        /// Its key.
        key: Option<Bytes>,
        /// Its value, cut at the payload limit.
        value: Option<Bytes>,
        /// Its headers.
        headers: Vec<Header>,
    },
    /// A fire that could not be delivered, with every attempt that was made.
    Fire {
        /// The fire of the last attempt.
        fire: Fire,
        /// How many attempts were made.
        attempts: u32,
    },
}
