//! The error of a call to the cluster.
//!
//! Invariant: callers print it or return it. What a caller must distinguish has a type of its own.

/// A call failed: try again later, or check the settings. `Display` is the client's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CallError(String);

/// The result of a call to the cluster.
pub type CallResult<T> = Result<T, CallError>;

impl CallError {
    /// With the client's text.
    #[must_use]
    pub fn new(text: impl ToString) -> Self {
        Self(text.to_string())
    }
}
