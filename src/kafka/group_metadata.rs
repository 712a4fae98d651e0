//! The fence: proof of group membership that a transaction carries.
//!
//! Invariant: metadata is taken on the thread that polls the group, right before it is used, and
//! never without a member id and a generation: a broker accepts a commit that has neither from
//! anyone.
#![allow(unsafe_code, reason = "the crate keeps group metadata opaque; see each SAFETY comment")]

use std::ffi::CStr;
use std::ptr::NonNull;

use rdkafka::bindings as c;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};

/// Why there is no fence: do not commit; wait for the group, or take over again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupMetadataError {
    /// The process is not (or no longer) a member of its group.
    #[error("not a member of the consumer group")]
    NotMember,
    /// The group has taken the partitions away.
    #[error("the consumer group has given the partitions away")]
    AssignmentLost,
}

/// Validated group metadata.
#[derive(Debug)]
pub struct GroupMetadata {
    metadata: NonNull<c::rd_kafka_consumer_group_metadata_t>,
    /// The generation of the group that this proves membership of.
    pub generation: i32,
}

// SAFETY: librdkafka's group metadata is a plain heap value that no thread shares; it is only
// read, and destroyed once, by the owner of this value.
unsafe impl Send for GroupMetadata {}

impl GroupMetadata {
    /// Takes the group's metadata and checks that it names a member and a generation.
    pub fn from_consumer<C: ConsumerContext>(
        consumer: &BaseConsumer<C>,
    ) -> Result<Self, GroupMetadataError> {
        if consumer.assignment_lost() {
            return Err(GroupMetadataError::AssignmentLost);
        }
        // SAFETY: the handle lives as long as `consumer`; the call returns null or a value that
        // we own and destroy in `drop`.
        let metadata =
            unsafe { c::rd_kafka_consumer_group_metadata(consumer.client().native_ptr()) };
        let metadata = NonNull::new(metadata).ok_or(GroupMetadataError::NotMember)?;
        // SAFETY: `metadata` is valid and not yet shared.
        let generation =
            unsafe { c::rd_kafka_consumer_group_metadata_generation_id(metadata.as_ptr()) };
        let group_metadata = Self { metadata, generation };
        // SAFETY: the member id belongs to `metadata`, is NUL-terminated, and is copied from here
        // on by no other thread: it is only looked at while `fence` lives.
        let member = unsafe {
            let member = c::rd_kafka_consumer_group_metadata_member_id(metadata.as_ptr());
            if member.is_null() { c"" } else { CStr::from_ptr(member) }
        };
        if generation < 0 || member.is_empty() {
            Err(GroupMetadataError::NotMember)
        } else {
            Ok(group_metadata)
        }
    }

    pub(super) fn as_ptr(&self) -> *const c::rd_kafka_consumer_group_metadata_t {
        self.metadata.as_ptr()
    }
}

impl Drop for GroupMetadata {
    fn drop(&mut self) {
        // SAFETY: owned by us alone, destroyed once.
        unsafe { c::rd_kafka_consumer_group_metadata_destroy(self.metadata.as_ptr()) }
    }
}
