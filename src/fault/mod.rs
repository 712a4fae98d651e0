//! Faults on purpose, for tests only: places where a process can be made to die, a clock that can
//! be set back. Rules of the engine that can be broken are those of `orloj_core::fault`.
//!
//! Invariant: without the feature `faults` every function here is an empty inline one, so that
//! nothing of this is in a released program. With it, nothing happens until a test asks for it.

mod point;

pub use point::{reached, set_back};
