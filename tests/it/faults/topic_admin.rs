//! What an operator does to topics and consumer groups, as a test needs it.

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use tokio::runtime::Runtime;

use super::COMPLETION_DEADLINE;
use crate::test_cluster::{PARTITIONS, TestCluster};
use crate::wait::until;

/// An administrative client.
pub(crate) struct FaultTopicAdmin {
    client: AdminClient<DefaultClientContext>,
    runtime: Runtime,
}

impl FaultTopicAdmin {
    pub(crate) fn of(cluster: &TestCluster) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Self { client: cluster.kafka().create().unwrap(), runtime }
    }

    /// Deletion takes a moment that the controller does not wait for.
    pub(super) fn create(&self, topic: &str) {
        let topic = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1))
            .set("message.timestamp.type", "LogAppendTime");
        let options = AdminOptions::new();
        until("the topic to be created", COMPLETION_DEADLINE, || {
            let created = self.runtime.block_on(self.client.create_topics([&topic], &options));
            created.unwrap()[0].is_ok().then_some(())
        });
    }

    pub(crate) fn delete(&self, topic: &str) {
        let options = AdminOptions::new();
        let deleted = self.client.delete_topics(&[topic], &options);
        assert_eq!(self.runtime.block_on(deleted).unwrap(), [Ok(topic.to_owned())]);
    }

    /// Deletes a consumer group, once it is empty.
    pub(crate) fn delete_group(&self, group: &str) {
        let options = AdminOptions::new();
        until("the group to be deleted", COMPLETION_DEADLINE, || {
            let deleted = self.runtime.block_on(self.client.delete_groups(&[group], &options));
            deleted.unwrap()[0].is_ok().then_some(())
        });
    }

    /// Gives a topic this setting, and its defaults otherwise.
    pub(super) fn set(&self, topic: &str, name: &str, value: &str) {
        let change = AlterConfig::new(ResourceSpecifier::Topic(topic)).set(name, value);
        let (changes, options) = ([change], AdminOptions::new());
        let changed = self.runtime.block_on(self.client.alter_configs(&changes, &options)).unwrap();
        assert!(changed.iter().all(Result::is_ok), "{changed:?}");
    }

    pub(super) fn widen(&self, topic: &str, partitions: usize) {
        let (more, options) = (NewPartitions::new(topic, partitions), AdminOptions::new());
        let widened = self.client.create_partitions([&more], &options);
        assert_eq!(self.runtime.block_on(widened).unwrap(), [Ok(topic.to_owned())]);
    }
}
