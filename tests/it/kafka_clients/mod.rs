//! The Kafka clients of the program by themselves, on a real broker: what each request returns, and
//! what is written.
//!
//! Invariant: each test has topics and a group of its own. What the scheduler makes of the answers
//! is not tested here.

mod admin_client;
mod consumer_protocol;
mod dead_brokers;
mod fenced_broker;
mod held_markers;
mod lost_coordinator;
mod member;
mod old_brokers;
mod reader;
mod setup;
mod silent_leaders;
mod spare_producers;
mod transaction;
mod unanswered_requests;
