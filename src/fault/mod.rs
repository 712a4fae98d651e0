//! Faults on purpose, for tests only: places where a process can be made to die, a clock that can
//! be set back, and bugs that can be planted.
//!
//! Law: without the feature `faults` every function here is an empty inline one, so that nothing of
//! this is in a released program. With it, nothing happens until a test asks for it.

mod bug;
mod point;

pub use bug::{Bug, planted};
pub use point::{reached, set_back};

#[cfg(feature = "faults")]
pub use bug::with;
