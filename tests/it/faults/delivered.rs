//! What became of callbacks: each is delivered by one outcome, and none is lost.

use std::collections::HashMap;
use std::time::Duration;

use orloj::model::partitioner::murmur2_partition;

use super::held_receiver::CallTimes;
use super::receiver::outcomes;
use super::report::FaultFigures;
use crate::audit::{AcknowledgedCommand, AcknowledgedCommands};
use crate::process::OrlojProcess;
use crate::test_cluster::{PARTITIONS, TestCluster};
use crate::wait::until;

/// Waits until each of these callbacks is delivered: by one outcome.
pub(super) fn assert_delivered_once(
    cluster: &TestCluster,
    commands: &AcknowledgedCommands,
    deadline: Duration,
) {
    let delivered = until("every callback to be delivered", deadline, || {
        let mut delivered = HashMap::<_, usize>::new();
        for ((trigger, attempt), ended) in outcomes(cluster) {
            assert_eq!(ended.len(), 1, "{trigger}, attempt {attempt}: {ended:?}");
            *delivered.entry(trigger).or_default() += usize::from(ended[0].delivered);
        }
        commands.keys().all(|id| delivered.contains_key(id)).then_some(delivered)
    });
    let other = commands.keys().find(|id| delivered[*id] != 1);
    assert_eq!(other, None, "it is delivered by another number of outcomes than one");
}

/// How long before it is noted by the receiver a request was sent at most, in ms.
const REQUEST_DELAY_MAX: u64 = 500;

/// When a trigger was called at first.
pub(super) struct CallLateness {
    pub(super) trigger: String,
    /// How late, in ms.
    pub(super) late: u64,
}

pub(super) fn lateness(commands: &AcknowledgedCommands, calls: &CallTimes) -> Vec<CallLateness> {
    let late = |(id, commands): (&String, &Vec<AcknowledgedCommand>)| {
        let command = &commands[0];
        let due = command.appended.max(command.registered_due().expect("it was registered"));
        CallLateness { trigger: id.clone(), late: calls[id][0].saturating_sub(due) }
    };
    commands.iter().map(late).collect()
}

pub(super) fn figures(late: &[CallLateness]) -> FaultFigures {
    let mut figures = FaultFigures::default();
    figures.count(late.len(), late.len());
    figures.late(late.iter().map(|call| call.late).collect())
}

/// Of the topics that are partitioned by trigger.
pub(super) fn partition_of(trigger: &str) -> i32 {
    murmur2_partition(trigger.as_bytes(), PARTITIONS)
}

/// The group has assigned a partition to this worker, or taken it from it.
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
