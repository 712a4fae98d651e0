//! What Orloj knows and decides, without the world: no clock, no randomness, no I/O, no native
//! code.
//!
//! Invariant: nothing here differs between two runs with the same arguments. Time is an argument,
//! rows are handed in, decisions come back as data; so a simulation runs years of crashes in
//! seconds.
//!
//! ```text
//!   model ◄── codec ◄── engine ◄── environment ◄── commit ◄── scheduler, worker
//! ```
//!
//! Each uses those to its left, and a process neither uses nor knows another one. `engine` decides;
//! `scheduler` carries the decisions out, `worker` makes callbacks, over what `environment` names
//! of the world.

pub mod codec;
mod commit;
pub mod engine;
pub mod environment;
pub mod model;
pub mod rate_limit;
pub mod read_recovery;
pub mod scheduler;
#[cfg(test)]
mod test_environment;
pub mod worker;
