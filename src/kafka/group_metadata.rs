//! Consumer group metadata: a transaction carries it to prove group membership (fencing).
//!
//! Invariant: the metadata is read on the thread that polls the group, immediately before it is
//! used, and it always has a member id and a generation. A broker does not check a commit that has
//! neither.
#![allow(
    unsafe_code,
    reason = "rdkafka gives no access to group metadata; see each SAFETY comment"
)]

use std::ffi::CStr;
use std::ptr::NonNull;

use rdkafka::bindings as c;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};

pub use crate::environment::group::{GroupMetadataError, MemberMetadata};

/// Group metadata with a member id and a generation.
#[derive(Debug)]
pub struct GroupMetadata {
    metadata: NonNull<c::rd_kafka_consumer_group_metadata_t>,
    /// The group generation in the metadata.
    pub generation: i32,
    member_id: String,
}

// SAFETY: librdkafka's group metadata is a heap value that no other thread uses. Its owner only
// reads it, and destroys it once.
unsafe impl Send for GroupMetadata {}

impl GroupMetadata {
    /// Reads the group metadata of a consumer. Fails if it has no member id or no generation.
    pub fn from_consumer<C: ConsumerContext>(
        consumer: &BaseConsumer<C>,
    ) -> Result<Self, GroupMetadataError> {
        if consumer.assignment_lost() {
            return Err(GroupMetadataError::AssignmentLost);
        }
        // SAFETY: the handle lives as long as `consumer`. The call returns null or a value that we
        // own and destroy in `drop`.
        let metadata =
            unsafe { c::rd_kafka_consumer_group_metadata(consumer.client().native_ptr()) };
        let metadata = NonNull::new(metadata).ok_or(GroupMetadataError::NotMember)?;
        // SAFETY: `metadata` is valid and not shared.
        let generation =
            unsafe { c::rd_kafka_consumer_group_metadata_generation_id(metadata.as_ptr()) };
        let mut group_metadata = Self { metadata, generation, member_id: String::new() };
        // SAFETY: `metadata` owns the member id, which is NUL-terminated. It is only read here,
        // while `group_metadata` lives.
        let member_id = unsafe {
            let member_id = c::rd_kafka_consumer_group_metadata_member_id(metadata.as_ptr());
            if member_id.is_null() { c"" } else { CStr::from_ptr(member_id) }
        };
        group_metadata.member_id = member_id.to_string_lossy().into_owned();
        if generation < 0 || group_metadata.member_id.is_empty() {
            Err(GroupMetadataError::NotMember)
        } else {
            Ok(group_metadata)
        }
    }

    pub(super) fn as_ptr(&self) -> *const c::rd_kafka_consumer_group_metadata_t {
        self.metadata.as_ptr()
    }
}

impl MemberMetadata for GroupMetadata {
    fn member_id(&self) -> String {
        self.member_id.clone()
    }
}

impl Drop for GroupMetadata {
    fn drop(&mut self) {
        // SAFETY: this value is the only owner, and `drop` runs once.
        unsafe { c::rd_kafka_consumer_group_metadata_destroy(self.metadata.as_ptr()) }
    }
}
