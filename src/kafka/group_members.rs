//! The members of a consumer group and their partitions, as the group coordinator describes them.
//!
//! Invariant: the answer may already be out of date. It is used to choose which partitions to
//! follow, and whose open transactions to end; never to decide which process owns a partition.
#![allow(
    unsafe_code,
    reason = "rdkafka loses the answers of the other brokers when one does not answer"
)]

use std::ffi::{CStr, CString};
use std::ptr::{self, NonNull};
use std::time::Duration;

use rdkafka::bindings as c;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{IsError as _, KafkaError};
use rdkafka::types::RDKafkaRespErr;

use super::error::ClientResult;
use super::timeout_ms;
use crate::environment::group::GroupMember;
use crate::model::PartitionId;

/// The members of `group` and their partitions of `topic`. librdkafka asks all brokers; those that
/// do not answer within `timeout` do not count. There are no members if the coordinator is one of
/// them.
pub(super) fn list_members(
    consumer: &BaseConsumer,
    group: &str,
    topic: &str,
    timeout: Duration,
) -> ClientResult<Vec<GroupMember>> {
    let list = GroupList::fetch(consumer, group, timeout)?;
    let groups = list.groups().iter().filter(|found| text(found.group) == group);
    let group_member = |member: &c::rd_kafka_group_member_info| GroupMember {
        member_id: text(member.member_id),
        partitions: parse_assignment(assignment(member), topic).unwrap_or_default(),
    };
    Ok(groups.flat_map(|found| members(found).iter().map(group_member)).collect())
}

/// The answer of librdkafka.
struct GroupList(NonNull<c::rd_kafka_group_list>);

impl GroupList {
    fn fetch(consumer: &BaseConsumer, group: &str, timeout: Duration) -> ClientResult<Self> {
        let group = CString::new(group).expect("the name of a group has no NUL");
        let mut list = ptr::null();
        // SAFETY: the client and `group` live until the call returns, and `list` is written by it.
        let error = unsafe {
            let client = consumer.client().native_ptr();
            c::rd_kafka_list_groups(client, group.as_ptr(), &raw mut list, timeout_ms(timeout))
        };
        let is_partial = error == RDKafkaRespErr::RD_KAFKA_RESP_ERR__PARTIAL;
        match NonNull::new(list.cast_mut()) {
            Some(list) if is_partial || !error.is_error() => Ok(Self(list)),
            _ => Err(KafkaError::GroupListFetch(error.into()).into()),
        }
    }

    fn groups(&self) -> &[c::rd_kafka_group_info] {
        // SAFETY: the list is ours until it is dropped, and has so many groups.
        unsafe {
            let list = self.0.as_ref();
            slice(list.groups, list.group_cnt)
        }
    }
}

impl Drop for GroupList {
    fn drop(&mut self) {
        // SAFETY: this value is the only owner, and `drop` runs once.
        unsafe { c::rd_kafka_group_list_destroy(self.0.as_ptr()) }
    }
}

fn members(group: &c::rd_kafka_group_info) -> &[c::rd_kafka_group_member_info] {
    // SAFETY: the group is part of a list that lives, and has so many members.
    unsafe { slice(group.members, group.member_cnt) }
}

fn assignment(member: &c::rd_kafka_group_member_info) -> &[u8] {
    // SAFETY: the member is part of a list that lives, and its assignment has so many bytes.
    unsafe { slice(member.member_assignment.cast::<u8>(), member.member_assignment_size) }
}

/// # Safety
///
/// `first` is null, or there are `count` values at it that live as long as the slice.
unsafe fn slice<'a, T>(first: *const T, count: i32) -> &'a [T] {
    match usize::try_from(count) {
        // SAFETY: as the caller says.
        Ok(count) if count > 0 && !first.is_null() => unsafe {
            std::slice::from_raw_parts(first, count)
        },
        _ => &[],
    }
}

/// A text of the list; empty if there is none.
fn text(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: librdkafka's texts end with NUL, and the list that has it lives.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Parses Kafka's ConsumerProtocolAssignment: `version i16 | count i32 | (topic string | count i32
/// | partition i32 …) …`, big-endian. `None` if the bytes are truncated.
fn parse_assignment(bytes: &[u8], topic: &str) -> Option<Vec<PartitionId>> {
    let mut rest = bytes.get(2..)?;
    let mut partitions = Vec::new();
    for _ in 0..i32::from_be_bytes(take(&mut rest)?) {
        let len = usize::try_from(i16::from_be_bytes(take(&mut rest)?)).ok()?;
        let name = rest.get(..len)?;
        rest = &rest[len..];
        for _ in 0..i32::from_be_bytes(take(&mut rest)?) {
            let partition = i32::from_be_bytes(take(&mut rest)?);
            if name == topic.as_bytes() {
                partitions.push(partition);
            }
        }
    }
    Some(partitions)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_an_assignment_or_none(bytes: Vec<u8>) {
            let _read = parse_assignment(&bytes, "triggers");
        }
    }

    #[test]
    fn an_assignment_is_parsed_and_a_truncated_one_is_refused() {
        let bytes = [
            &[0, 1, 0, 0, 0, 2][..],
            &[0, 1, b'x', 0, 0, 0, 1, 0, 0, 0, 9],
            &[0, 2, b't', b'r', 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 5],
            &[0xff, 0xff, 0xff, 0xff],
        ]
        .concat();
        assert_eq!(parse_assignment(&bytes, "tr"), Some(vec![3, 5]));
        assert_eq!(parse_assignment(&bytes, "other"), Some(vec![]));
        for cut in 0..bytes.len() - 4 {
            assert_eq!(parse_assignment(&bytes[..cut], "tr"), None);
        }
    }
}
