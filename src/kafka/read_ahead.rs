//! How many bytes the readers of a process have fetched ahead.
//!
//! Invariant: the gauge is the sum of what each reader that is open has reported last.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use rdkafka::ClientContext;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::KafkaError;
use serde::Deserialize;

use super::log_error;
use crate::telemetry;

/// librdkafka's setting of the bytes that a reader fetches ahead, in KiB.
pub(super) const READ_AHEAD_MAX: &str = "queued.max.messages.kbytes";
/// How often a reader reports, in ms.
pub(super) const REPORT_INTERVAL: &str = "5000";

/// Reports what one reader has fetched ahead.
#[derive(Debug, Default)]
pub(crate) struct ReadAheadContext {
    /// In bytes.
    reported: AtomicU64,
}

/// The part of librdkafka's statistics that is reported.
#[derive(Deserialize)]
struct ReaderStatistics {
    topics: HashMap<String, TopicStatistics>,
}

#[derive(Deserialize)]
struct TopicStatistics {
    partitions: HashMap<String, PartitionStatistics>,
}

#[derive(Deserialize)]
struct PartitionStatistics {
    /// Bytes in the queue of the partition.
    fetchq_size: u64,
}

impl ReadAheadContext {
    fn report(&self, bytes: u64) {
        let before = self.reported.swap(bytes, Ordering::Relaxed);
        // A gauge is a float; no process has 2^52 bytes.
        metrics::gauge!(telemetry::READ_AHEAD).increment(bytes as f64 - before as f64);
    }
}

impl Drop for ReadAheadContext {
    fn drop(&mut self) {
        self.report(0);
    }
}

impl ClientContext for ReadAheadContext {
    /// Called where the reader is polled.
    fn stats_raw(&self, statistics: &[u8]) {
        match serde_json::from_slice::<ReaderStatistics>(statistics) {
            Ok(read) => {
                let partitions = read.topics.values().flat_map(|topic| topic.partitions.values());
                self.report(partitions.map(|partition| partition.fetchq_size).sum());
            }
            Err(error) => tracing::warn!(%error, "the client's statistics have another form"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
    }
}

impl ConsumerContext for ReadAheadContext {}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn the_gauge_is_the_sum_of_all_readers_that_are_open() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let rendered = || recorder.handle().render();
        metrics::with_local_recorder(&recorder, || {
            let (first, second) = (ReadAheadContext::default(), ReadAheadContext::default());
            first.stats_raw(
                br#"{"name": "rdkafka#consumer-1", "topics": {
                    "a": {"topic": "a", "partitions": {
                        "0": {"partition": 0, "fetchq_cnt": 1, "fetchq_size": 100},
                        "-1": {"partition": -1, "fetchq_cnt": 0, "fetchq_size": 0}}},
                    "b": {"partitions": {"3": {"fetchq_size": 20}}}}}"#,
            );
            second.report(3);
            assert!(rendered().contains("orloj_read_ahead_bytes 123"), "{}", rendered());
            first.report(10);
            drop(second);
            assert!(rendered().contains("orloj_read_ahead_bytes 10"), "{}", rendered());
        });
    }
}
