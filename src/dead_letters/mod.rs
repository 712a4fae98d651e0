//! Dead letters: read from their topic, tried again, put aside. The command line and the gateway
//! deal with them alike.
//!
//! Invariant: a letter is dealt with in one transaction: what asks for another attempt, and the
//! mark that says so. An attempt asked for twice is made once, because it has the same id, so
//! whoever does not know whether a transaction was committed repeats it.
//!
//! ```text
//!  dead-letters ──scan──► who chooses ──► desk ─┬─► signals (or triggers)
//!                                               └─► dead-letters: a mark
//! ```

mod actions;
mod scan;

use rdkafka::error::KafkaError;
use thiserror::Error;

pub use actions::{DeadLetterActions, LetterAction, LetterActionResult};
pub use scan::{DeadLetterReader, HandledLetter, HandledLetters, LetterId, state_of};

/// Why letters could not be read or dealt with.
#[derive(Debug, Error)]
pub enum LetterError {
    /// The cluster is away or refuses us. What was asked for may be done or not: repeat it.
    #[error("Kafka: {0}")]
    Kafka(#[from] KafkaError),
    /// The topic is not there, or not as it must be: mend it, and repeat.
    #[error("{0}")]
    TopicUnreadable(String),
}
