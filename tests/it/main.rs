//! The integration tests: one binary, against a real Apache Kafka.
//!
//! Invariant: tests share one broker and meet nowhere on it, because each has its own topic prefix;
//! none sleeps, all wait for conditions with a deadline.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod api;
#[expect(dead_code, reason = "the simulation uses more of it than tests on a real broker")]
#[path = "../../crates/orloj-core/tests/core/audit/mod.rs"]
mod audit;
mod background_thread;
mod bad_input;
mod bounds;
mod broker_connection;
mod broker_jvm;
mod brokers;
mod callbacks;
mod callers;
mod checkouts;
#[path = "../../crates/orloj-core/tests/core/command.rs"]
mod command;
mod coordinators;
mod dead_letters;
mod delivery;
mod dependencies;
mod documented;
mod endpoint;
mod faults;
mod fd_limit;
mod fencing;
mod fire_producer;
mod fire_progress;
mod fires_once;
mod first_steps;
mod foreign_clients;
mod gateway;
mod guard;
mod hostile;
mod identity;
mod in_flight;
mod kafka_clients;
mod kafka_server;
mod kafka_smoke;
mod lifecycles;
mod load;
mod mail_server;
mod notifications;
mod openapi_clients;
mod pacing;
mod plain_clients;
mod plain_commits;
mod plain_transactions;
mod process;
mod promises;
mod readiness;
mod readiness_members;
mod readiness_table;
mod readiness_unreadable;
mod reconcile;
mod records;
mod repeated_calls;
mod requests;
mod restarts;
mod retries;
mod schedules;
mod signatures;
mod skip;
mod tail;
mod targets;
mod tenants;
mod test_cluster;
mod test_producer;
mod topics;
mod traces;
mod transaction_ends;
mod view;
mod wait;
mod worker;
mod worker_readiness;
