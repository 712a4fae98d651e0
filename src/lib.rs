//! Orloj: a Kafka-native scheduler that makes things happen later.

pub mod cli;
pub mod clock;
pub mod config;
pub mod dev;
pub mod engine;
pub mod gateway;
pub mod health;
pub mod kafka;
pub mod model;
pub mod scheduler;
pub mod store;
pub mod telemetry;
pub mod worker;
