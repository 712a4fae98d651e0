//! Fault injection, for tests only: points at which a process can be killed or stopped, and a clock
//! that can be set back or ahead.
//!
//! Invariant: without the feature `faults` every function here is an empty inline one, so that
//! nothing of this is in a released program. With it, nothing happens until a test arms a fault.

mod point;

pub use point::{reached, set_clock};
