//! The log: all of librdkafka's types end here.

pub mod topics;
