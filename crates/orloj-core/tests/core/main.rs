//! The tests of the core at length: the simulation of the protocol, and schedules over years.
//!
//! Invariant: no native code, no broker, no clock: the same seed gives the same run everywhere.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod audit;
mod command;
mod schedules;
mod simulation;
