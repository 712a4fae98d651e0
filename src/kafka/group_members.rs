//! The members of a consumer group and their partitions, as the group coordinator describes them.
//!
//! Invariant: the answer may already be out of date. It is used to choose which partitions to
//! follow, never to decide which process owns a partition.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};

use super::error::ClientResult;
use crate::environment::group::GroupMember;
use crate::model::PartitionId;

/// The members of `group` and their partitions of `topic`.
pub(super) fn list_members(
    consumer: &BaseConsumer,
    group: &str,
    topic: &str,
    timeout: Duration,
) -> ClientResult<Vec<GroupMember>> {
    let list = consumer.fetch_group_list(Some(group), timeout)?;
    let members = list.groups().iter().filter(|found| found.name() == group);
    let group_member = |member: &rdkafka::groups::GroupMemberInfo| GroupMember {
        member_id: member.id().to_owned(),
        partitions: member
            .assignment()
            .and_then(|bytes| parse_assignment(bytes, topic))
            .unwrap_or_default(),
    };
    Ok(members.flat_map(|found| found.members().iter().map(group_member)).collect())
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
