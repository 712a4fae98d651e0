//! What a producer knows of its topics: who leads their partitions.
//!
//! Invariant: a request that is not answered changes nothing.
#![allow(unsafe_code, reason = "rdkafka asks for all topics of the cluster, or for one")]

use std::time::Duration;

use rdkafka::bindings as c;
use rdkafka::producer::{BaseProducer, Producer as _, ProducerContext};

use super::timeout_ms;
use super::transaction_error::classify_kafka_error;
use crate::environment::transaction::TransactionError;

/// Fetches the metadata of a topic; waits at most `timeout`, also for a connection.
pub(super) fn fetch<C: ProducerContext>(
    producer: &BaseProducer<C>,
    topic: &str,
    timeout: Duration,
) -> Result<(), TransactionError> {
    let client = producer.client();
    client.fetch_metadata(Some(topic), timeout).map(drop).map_err(classify_kafka_error)
}

/// Fetches that of all topics that the producer has used.
pub(super) fn refresh<C: ProducerContext>(
    producer: &BaseProducer<C>,
    timeout: Duration,
) -> Result<(), TransactionError> {
    let native = producer.client().native_ptr();
    let (known, no_topic) = (0, std::ptr::null_mut());
    let mut answer = std::ptr::null();
    // SAFETY: the handle lives through the call. The answer is ours, and is destroyed here.
    let code = unsafe {
        let timeout = timeout_ms(timeout);
        let code = c::rd_kafka_metadata(native, known, no_topic, &raw mut answer, timeout);
        if !answer.is_null() {
            c::rd_kafka_metadata_destroy(answer);
        }
        code
    };
    match code {
        c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
        code => Err(TransactionError::Unknown(format!("metadata: {code:?}"))),
    }
}
