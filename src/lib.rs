//! Orloj: a Kafka-native scheduler that makes things happen later.
//!
//! A producer publishes a *trigger* to a topic; at its time Orloj publishes a *fire*, once, to a
//! topic of the user's, or has a worker make an HTTP request of it. The log is the durable state,
//! the consumer group is the cluster membership, transactions are the guarantee.
//!
//! ```text
//!    users ──► triggers ─┐                        ┌─► user topics
//!                        ▼                        │
//!   workers ─► signals ─► scheduler (owner) ──────┼─► fires ──► worker ──► HTTP callbacks
//!                        ▲        │               │               │
//!                        └─ ledger ◄              └─► outcomes ◄──┴──► dead-letters
//!                                                       │                  │
//!                              gateway: the owner's answers   notifier: mail and webhooks
//! ```
//!
//! # Layout
//!
//! In dependency order. A module uses only those above it; the roles never import each other, they
//! meet in topics.
//!
//! * [`model`]: what exists: values, without behaviour towards the world.
//! * [`codec`]: their bytes.
//! * [`engine`]: what to do: pure decisions about one partition. Time is an argument, rows are
//!   handed in, decisions come back as data.
//! * [`rate_limit`]: a limit in units per second.
//! * [`read_recovery`]: whether what a process reads can be read after an error of the brokers.
//! * [`environment`]: what the loops of scheduler and worker use of the world, as traits. These
//!   six, and the loops themselves, are the crate `orloj-core`.
//! * [`allocator`]: the memory of the process.
//! * [`fault`]: faults on purpose, in test builds only.
//! * [`clock`], [`config`], [`telemetry`], [`health`]: the time, the settings, and what a process
//!   says of itself.
//! * [`callers`]: which clients register triggers, from a file that is reloaded, and the signatures
//!   of their callbacks.
//! * [`store`]: RocksDB: a timeline that can be rebuilt from the log at any moment.
//! * [`kafka`]: the log: group, fence, transaction, readers, topics.
//! * [`dead_letters`]: reading what was given up, and dealing with it.
//! * [`client`]: writing records of `triggers` and awaiting their outcomes.
//! * [`guard`]: where a callback may go.
//! * [`scheduler`]: the role that owns partitions: the clients and threads for the loop of
//!   `orloj_core::scheduler`.
//! * [`worker`]: the role that makes the callbacks which are due: the clients and requests for the
//!   loop of `orloj_core::worker`.
//! * [`view`]: the topics folded into SQLite, for those who list and search.
//! * [`gateway`]: the role that serves the HTTP API.
//! * [`notifier`]: the role that tells callers of failures.
//! * [`dev`]: all roles in one process, to try them.
//! * [`cli`]: the command line.
//!
//! `ARCHITECTURE.md` tells how they work together, and names the test that holds each invariant.

pub use orloj_core::{codec, engine, environment, model, rate_limit, read_recovery};

pub mod allocator;
pub mod callers;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod dead_letters;
pub mod dev;
pub mod fault;
pub mod gateway;
pub mod guard;
pub mod health;
pub mod kafka;
pub mod notifier;
mod role_reporter;
pub mod scheduler;
pub mod store;
pub mod telemetry;
mod thread_queue;
pub mod view;
pub mod worker;
