//! Which partitions the group has assigned to workers, and when, by their logs.

use orloj::model::partitioner::murmur2_partition;

use super::COMPLETION_DEADLINE;
use super::delivered::{CallTimes, REQUEST_DELAY_MAX};
use crate::process::OrlojProcess;
use crate::test_cluster::PARTITIONS;
use crate::wait::until;

/// Of the topics that are partitioned by trigger.
pub(super) fn partition_of(trigger: &str) -> i32 {
    murmur2_partition(trigger.as_bytes(), PARTITIONS)
}

/// The group has assigned a partition to a worker, or taken it from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartitionMove {
    /// In ms since the epoch.
    pub(super) at: u64,
    pub(super) partition: i32,
    pub(super) is_assigned: bool,
}

/// What the log of a worker says of its assignments.
pub(super) fn moves(worker: &OrlojProcess) -> Vec<PartitionMove> {
    let log = worker.log_text();
    let changes = log.lines().filter(|line| line.contains("group assignment changed"));
    let mut moves = Vec::new();
    for line in changes {
        let at: jiff::Timestamp = line.split(' ').next().unwrap().parse().unwrap();
        let at = u64::try_from(at.as_millisecond()).unwrap();
        let Some((change, partitions)) =
            line.split_once("change=").and_then(|(_, change)| change.split_once("(["))
        else {
            continue;
        };
        let is_assigned = change == "Assigned";
        let partitions = partitions.trim_end_matches("])").split(", ");
        let partitions = partitions.filter(|partition| !partition.is_empty());
        moves.extend(partitions.map(|partition| {
            let partition = partition.parse().unwrap();
            PartitionMove { at, partition, is_assigned }
        }));
    }
    moves
}

/// The partitions that a worker has now.
pub(super) fn owned(worker: &OrlojProcess) -> Vec<i32> {
    let mut owned = Vec::new();
    for PartitionMove { partition, is_assigned, .. } in moves(worker) {
        owned.retain(|other| *other != partition);
        if is_assigned {
            owned.push(partition);
        }
    }
    owned
}

/// Waits until each of them has partitions, and together they have all.
pub(super) fn wait_until_shared<'a>(workers: impl IntoIterator<Item = &'a OrlojProcess> + Clone) {
    until("the workers to share all partitions", COMPLETION_DEADLINE, || {
        let owned: Vec<_> = workers.clone().into_iter().map(owned).collect();
        let owners = |it| owned.iter().filter(|owned| owned.contains(&it)).count();
        let all = (0..PARTITIONS).all(|partition| owners(partition) == 1);
        (all && owned.iter().all(|owned| !owned.is_empty())).then_some(())
    });
}

/// A call is repeated only if its partition has moved since. Says how many were repeated.
pub(super) fn assert_only_moved_are_repeated(
    calls: &CallTimes,
    changes: &[PartitionMove],
) -> usize {
    for (trigger, times) in calls {
        let partition = partition_of(trigger);
        for pair in times.windows(2) {
            let between = pair[0].saturating_sub(REQUEST_DELAY_MAX)..=pair[1];
            let is_moved =
                |it: &PartitionMove| it.partition == partition && between.contains(&it.at);
            assert!(
                changes.iter().any(is_moved),
                "{trigger} was called at {pair:?}, and partition {partition} has not moved between"
            );
        }
    }
    calls.values().map(|times| times.len() - 1).sum()
}
