//! The Kafka requests of a standby: committed cursors, end offsets, and the members of the group.
//!
//! Invariant: this client is not a member of the group and commits nothing. Every request is short,
//! because a takeover waits for the thread that sends it.

use std::time::Duration;

use rdkafka::consumer::BaseConsumer;

use super::admin_client::KafkaAdminClient;
use super::error::ClientResult;
use super::{consumer_config, group_members, member};
use crate::config::Settings;
use crate::environment::call_error::{CallError, CallResult};
use crate::environment::group::{GroupMember, GroupQueries};
use crate::model::{Offset, PartitionId};

/// The clients of a standby.
pub struct StandbyClient {
    consumer: BaseConsumer,
    admin: KafkaAdminClient,
    group: String,
    topic: String,
    timeout: Duration,
}

impl std::fmt::Debug for StandbyClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StandbyClient").field("group", &self.group).finish_non_exhaustive()
    }
}

impl StandbyClient {
    /// Opens a client for the partitions of `topic` that `group` owns. Each request takes at most
    /// `timeout`.
    pub fn open(
        settings: &Settings,
        group: &str,
        topic: &str,
        timeout: Duration,
    ) -> ClientResult<Self> {
        Ok(Self {
            consumer: consumer_config(settings, group).create()?,
            admin: KafkaAdminClient::open(settings, timeout)?,
            group: group.to_owned(),
            topic: topic.to_owned(),
            timeout,
        })
    }

    /// The stable committed offset and its metadata. An error means that it is not known yet.
    pub fn committed(&self, partition: PartitionId) -> ClientResult<Option<(Offset, String)>> {
        member::committed(&self.consumer, &self.topic, partition, self.timeout)
    }

    /// The first available offset of a partition and its end offset, read_uncommitted.
    pub fn bounds(&self, topic: &str, partition: PartitionId) -> ClientResult<(Offset, Offset)> {
        self.admin.bounds(topic, partition)
    }
}

impl GroupQueries for StandbyClient {
    fn committed(&self, partition: PartitionId) -> CallResult<Option<(Offset, String)>> {
        self.committed(partition).map_err(CallError::new)
    }

    fn members(&self) -> CallResult<Vec<GroupMember>> {
        group_members::list_members(&self.consumer, &self.group, &self.topic, self.timeout)
            .map_err(CallError::new)
    }
}
