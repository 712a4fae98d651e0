//! The integration tests: one binary, against a real Apache Kafka.
//!
//! Law: tests share one broker and meet nowhere on it, because each has its own topic prefix; none
//! sleeps, all wait for conditions with a deadline.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod api;
#[path = "../../crates/orloj-core/tests/core/audit/mod.rs"]
mod audit;
mod bad_input;
mod callbacks;
mod callers;
mod client;
mod clients;
#[path = "../../crates/orloj-core/tests/core/command.rs"]
mod command;
mod courses;
mod dead_letters;
mod delivery;
mod dependencies;
mod described;
mod endpoint;
mod ends;
mod faults;
mod files;
mod fires;
mod fires_once;
mod gateway;
mod guard;
mod hostile;
mod identity;
mod in_flight;
mod kafka_server;
mod kafka_smoke;
mod load;
mod mail_server;
mod notifications;
mod pacing;
mod process;
mod promises;
mod readme;
mod reconcile;
mod records;
mod restarts;
mod retries;
mod schedules;
mod signatures;
mod stage;
mod tail;
mod tenants;
mod topics;
mod traces;
mod view;
mod wait;
mod worker;
