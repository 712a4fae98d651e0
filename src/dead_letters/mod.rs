//! Dead letters: read from their topic, replayed, archived. Used by the command line and the
//! gateway.
//!
//! Invariant: a letter is handled in one transaction: the request for another attempt, and the mark
//! that records it. An attempt requested twice is made once, because it has the same id, so a
//! caller that does not know whether a transaction was committed repeats it.
//!
//! ```text
//!  dead-letters ──scan──► selection ──► actions ─┬─► signals (or triggers)
//!                                                └─► dead-letters: a mark
//! ```

mod actions;
mod scan;

use thiserror::Error;

use crate::kafka::error::ClientError;
pub use actions::{DeadLetterActions, LetterAction, LetterActionResult};
pub use scan::{DeadLetterReader, HandledLetter, HandledLetters, LetterId, state_of};

/// Why letters could not be read, replayed or archived.
#[derive(Debug, Error)]
pub enum LetterError {
    /// The cluster is unavailable or refuses the request, which may have been executed or not:
    /// repeat it.
    #[error("Kafka: {0}")]
    Kafka(#[from] ClientError),
    /// The topic does not exist, or differs from its definition: correct it, and repeat.
    #[error("{0}")]
    TopicUnreadable(String),
}
