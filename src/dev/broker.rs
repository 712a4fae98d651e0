//! The built-in broker: librdkafka's mock cluster, which speaks Kafka's protocol over real sockets.
//!
//! Invariant: it is for trying, never evidence of a guarantee.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

use crate::config::TopicSettings;
use crate::kafka::topics::TopicDefinitions;

/// A topic to fire into, so that the first try needs no preparation.
pub(super) const DEMO_TOPIC: &str = "playground";

/// A broker in this process; it stops when dropped.
pub(super) struct BuiltInBroker(MockCluster<'static, DefaultProducerContext>);

impl BuiltInBroker {
    /// Starts a broker that has all topics of `settings`, and the playground.
    pub(super) fn start(settings: &TopicSettings) -> Result<Self, KafkaError> {
        let cluster = MockCluster::new(1)?;
        let partitions = settings.partitions.get();
        let topics = TopicDefinitions::from_settings(settings);
        for topic in topics.names().chain([DEMO_TOPIC]) {
            cluster.create_topic(topic, partitions.into(), 1)?;
        }
        let broker = Self(cluster);
        // An empty address would send every client to look for a broker that is not there.
        let is_listening = !broker.address().is_empty();
        is_listening.then_some(broker).ok_or(KafkaError::MockCluster(RDKafkaErrorCode::Fail))
    }

    /// Where it listens, host:port.
    pub(super) fn address(&self) -> String {
        self.0.bootstrap_servers()
    }
}
