//! The allocator of every program that links this crate.
//!
//! Law: librdkafka and RocksDB keep the system's. What a trigger costs in Rust, a dozen small
//! blocks that live for seconds, is what this one is good at.

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;
