//! What a process that follows partitions asks the cluster: committed cursors, ends of logs, and
//! who is in the group.
//!
//! Invariant: it is no member of the group and commits nothing. Every call is short, because
//! a takeover waits for the thread that makes it.

use std::time::Duration;

use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaResult;

use super::admin_client::KafkaAdminClient;
use super::group_members::{self, GroupMember};
use super::{consumer_config, member};
use crate::config::Settings;
use crate::model::{Offset, PartitionId};

/// Handles for following.
pub struct StandbyClient {
    consumer: BaseConsumer,
    admin: KafkaAdminClient,
    group: String,
    topic: String,
    timeout: Duration,
}

impl std::fmt::Debug for StandbyClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower").field("group", &self.group).finish_non_exhaustive()
    }
}

impl StandbyClient {
    /// Of the partitions of `topic` that `group` owns; each call takes at most `timeout`.
    pub fn open(
        settings: &Settings,
        group: &str,
        topic: &str,
        timeout: Duration,
    ) -> KafkaResult<Self> {
        Ok(Self {
            consumer: consumer_config(settings, group).create()?,
            admin: KafkaAdminClient::open(settings, timeout)?,
            group: group.to_owned(),
            topic: topic.to_owned(),
            timeout,
        })
    }

    /// The stable committed offset and metadata; an error means "not known yet".
    pub fn committed(&self, partition: PartitionId) -> KafkaResult<Option<(Offset, String)>> {
        member::committed(&self.consumer, &self.topic, partition, self.timeout)
    }

    /// Where a log begins and ends, read uncommitted.
    pub fn bounds(&self, topic: &str, partition: PartitionId) -> KafkaResult<(Offset, Offset)> {
        self.admin.bounds(topic, partition)
    }

    /// Who is in the group, and what they have.
    pub fn group_members(&self) -> KafkaResult<Vec<GroupMember>> {
        group_members::list_members(&self.consumer, &self.group, &self.topic, self.timeout)
    }
}
