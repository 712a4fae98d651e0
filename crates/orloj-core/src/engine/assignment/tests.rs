//! Tests of the assignment: which partitions are ours, and what the end of a transaction means.
//!
//! Invariant: what is expected are all actions of the shell, in their order.

use super::*;

const UNKNOWN: TransactionOutcome =
    TransactionOutcome::Failed(TransactionFailure { is_uncommitted: false, blames_target: false });
const TARGET_FAILED: TransactionOutcome =
    TransactionOutcome::Failed(TransactionFailure { is_uncommitted: false, blames_target: true });

fn assignment_of(partitions: &[PartitionId]) -> GroupAssignment {
    let mut assignment = GroupAssignment::new(100);
    let actions =
        assignment.on_assignment_change(AssignmentChange::Assigned(partitions.to_vec()), 0);
    let taken: Vec<_> = partitions.iter().copied().map(AssignmentAction::TakeOver).collect();
    assert_eq!(actions, taken);
    assignment
}

fn ids(ids: &[PartitionId]) -> BTreeSet<PartitionId> {
    ids.iter().copied().collect()
}

/// A transaction with a step of each of these.
fn steps(steps: &[PartitionId]) -> TransactionContent {
    TransactionContent { steps: ids(steps), ..TransactionContent::default() }
}

/// They are ours, and a transaction of these is interrupted; its outcome is this.
fn interrupted(
    owned: &[PartitionId],
    content: TransactionContent,
    outcome: TransactionOutcome,
) -> GroupAssignment {
    let mut assignment = assignment_of(owned);
    assignment.on_transaction_begin(content);
    assert_eq!(assignment.on_transaction_end(outcome), [AssignmentAction::RecreateProducer]);
    assert!(!assignment.is_idle(), "no transaction begins meanwhile");
    assignment
}

/// The same, and it is read what partition 1 has committed.
fn read_of(owned: &[PartitionId], content: &[PartitionId]) -> GroupAssignment {
    let mut assignment = interrupted(owned, steps(content), UNKNOWN);
    assert_eq!(assignment.on_producer_recreated(), [AssignmentAction::ReadCommitted(1)]);
    assignment
}

fn taken_again(ids: &[PartitionId]) -> Vec<AssignmentAction> {
    ids.iter().copied().map(AssignmentAction::TakeOverAgain).collect()
}

fn change(
    assignment: &mut GroupAssignment,
    change: fn(Vec<PartitionId>) -> AssignmentChange,
    partitions: &[PartitionId],
) -> Vec<AssignmentAction> {
    assignment.on_assignment_change(change(partitions.to_vec()), 1)
}

#[test]
fn a_revoked_partition_fires_during_the_grace_and_leaves_with_a_final_commit() {
    let mut assignment = assignment_of(&[1, 2]);
    assert_eq!(assignment.on_assignment_change(AssignmentChange::Revoked(vec![1]), 1_000), []);
    assert_eq!(assignment.on_tick(1_099), []);
    assignment.on_transaction_begin(steps(&[1]));
    assert_eq!(assignment.on_tick(1_100), [], "not in the middle of a transaction");
    assert_eq!(
        assignment.on_transaction_end(TransactionOutcome::Committed),
        [AssignmentAction::ApplyCommitted]
    );
    assert_eq!(assignment.on_tick(1_100), [AssignmentAction::FinalCommit(vec![1])]);
    assert!(!assignment.is_idle());
    let ended = assignment.on_transaction_end(TransactionOutcome::Committed);
    assert_eq!(ended, [AssignmentAction::ApplyCommitted, AssignmentAction::Release(vec![1])]);
    assert_eq!(assignment.owned(), &BTreeSet::from([2]));
}

#[test]
fn without_a_grace_a_revoked_partition_is_released_at_once() {
    let mut assignment = assignment_of(&[1]);
    assignment.disable_grace();
    assert_eq!(assignment.on_assignment_change(AssignmentChange::Revoked(vec![1]), 1_000), []);
    assert_eq!(assignment.on_tick(1_000), [AssignmentAction::FinalCommit(vec![1])]);
}

#[test]
fn a_partition_that_is_revoked_twice_is_given_up_once() {
    let mut assignment = assignment_of(&[1, 2]);
    assert_eq!(assignment.on_assignment_change(AssignmentChange::Revoked(vec![1]), 1_000), []);
    // The process is shutting down, and gives up all that it owns.
    let all = AssignmentChange::Revoked(vec![1, 2]);
    assert_eq!(assignment.on_assignment_change(all, 1_001), []);
    assert_eq!(assignment.on_tick(1_100), [AssignmentAction::FinalCommit(vec![1, 2])]);
}

#[test]
fn a_lost_partition_is_released_without_a_final_commit() {
    let mut assignment = assignment_of(&[1, 2]);
    assert_eq!(assignment.on_assignment_change(AssignmentChange::Revoked(vec![1]), 1_000), []);
    let lost = assignment.on_assignment_change(AssignmentChange::Lost(vec![1, 2]), 1_001);
    assert_eq!(lost, [AssignmentAction::Release(vec![1, 2])]);
    assert_eq!(assignment.on_tick(9_999), [], "it is released already");
}

#[test]
fn a_process_that_joins_as_another_member_has_lost_what_it_owned() {
    let joined = |id: &str| AssignmentChange::Joined(id.to_owned());
    let mut assignment = GroupAssignment::new(100);
    assert!(!assignment.is_expelled(&joined("a")), "it owns nothing");
    assert_eq!(assignment.on_assignment_change(joined("a"), 0), []);
    assert_eq!(assignment.assigned_member(), "a");
    let _taken = assignment.on_assignment_change(AssignmentChange::Assigned(vec![1]), 0);
    assert!(!assignment.is_expelled(&joined("a")), "a later generation");
    assert!(!assignment.is_expelled(&AssignmentChange::Revoked(vec![1])));
    assert!(assignment.is_expelled(&joined("b")));
    let lost = assignment.on_assignment_change(AssignmentChange::Lost(vec![1]), 0);
    assert_eq!(lost, [AssignmentAction::Release(vec![1])]);
    assert!(!assignment.is_expelled(&joined("b")));
    assert_eq!(assignment.on_assignment_change(joined("b"), 0), []);
    assert_eq!(assignment.assigned_member(), "b");
}

#[test]
fn a_transaction_with_a_stale_generation_is_retried_a_limited_number_of_times() {
    let mut assignment = assignment_of(&[1]);
    assignment.on_transaction_begin(steps(&[1]));
    for _ in 0..TRANSACTION_ATTEMPTS_MAX {
        assert_eq!(
            assignment.on_transaction_end(TransactionOutcome::StaleGeneration),
            [AssignmentAction::RetryTransaction]
        );
    }
    assert_eq!(
        assignment.on_transaction_end(TransactionOutcome::StaleGeneration),
        [AssignmentAction::RecreateProducer]
    );
}

#[test]
fn an_interrupted_transaction_that_is_committed_is_applied_and_nothing_is_taken_over_again() {
    let mut assignment = read_of(&[1, 2, 3], &[1, 2]);
    let applied = assignment.on_finding(1, Finding::Committed);
    assert_eq!(applied, [AssignmentAction::ApplyInterrupted(vec![1, 2])]);
    assert!(assignment.is_idle());
}

#[test]
fn an_interrupted_transaction_that_is_not_committed_is_sent_again() {
    let mut assignment = read_of(&[1, 2, 3], &[1, 2]);
    assert!(!assignment.must_be_sent_again(), "it is not known yet");
    assert_eq!(assignment.on_finding(1, Finding::NotCommitted), []);
    assert!(assignment.must_be_sent_again() && assignment.accepts_changes());
    assignment.on_sent_again();
    assert!(!assignment.must_be_sent_again() && !assignment.accepts_changes());
    let applied = assignment.on_transaction_end(TransactionOutcome::Committed);
    assert_eq!(applied, [AssignmentAction::ApplyCommitted]);
    assert!(assignment.is_idle());
}

#[test]
fn if_it_is_unclear_what_is_committed_everything_is_taken_over_again() {
    let mut assignment = read_of(&[1, 2, 3], &[1, 2]);
    assert_eq!(assignment.on_finding(1, Finding::Unclear), taken_again(&[1, 2, 3]));
    assert!(assignment.is_idle());
}

#[test]
fn a_transaction_that_a_target_has_refused_is_not_sent_again() {
    let outcome = TARGET_FAILED;
    let mut assignment = interrupted(&[1, 2, 3], steps(&[1, 2]), outcome);
    let _read = assignment.on_producer_recreated();
    assert_eq!(assignment.on_finding(1, Finding::NotCommitted), taken_again(&[1, 2]));
    assert!(assignment.is_idle());
    let mut assignment = interrupted(&[1, 2, 3], steps(&[1, 2]), outcome);
    let _read = assignment.on_producer_recreated();
    let applied = assignment.on_finding(1, Finding::Committed);
    assert_eq!(applied, [AssignmentAction::ApplyInterrupted(vec![1, 2])]);
}

#[test]
fn a_transaction_whose_commit_was_not_requested_is_sent_again_and_nothing_is_read() {
    let uncommitted = |blames_target| {
        TransactionOutcome::Failed(TransactionFailure { is_uncommitted: true, blames_target })
    };
    let mut assignment = interrupted(&[1, 2, 3], steps(&[1, 2]), uncommitted(false));
    assert_eq!(assignment.on_producer_recreated(), []);
    assert!(assignment.must_be_sent_again());
    // It fails again: the group may have expelled this process.
    assignment.on_sent_again();
    let _recreate = assignment.on_transaction_end(uncommitted(false));
    assert_eq!(assignment.on_producer_recreated(), [AssignmentAction::ReadCommitted(1)]);
    // A partition of it is lost.
    let mut assignment = interrupted(&[1, 2, 3], steps(&[1, 2]), uncommitted(false));
    let _lost = assignment.on_assignment_change(AssignmentChange::Lost(vec![1]), 0);
    assert_eq!(assignment.on_producer_recreated(), taken_again(&[2]));
    assert!(assignment.is_idle());
    let mut assignment = interrupted(&[1, 2, 3], steps(&[1, 2]), uncommitted(true));
    assert_eq!(assignment.on_producer_recreated(), taken_again(&[1, 2]));
    assert!(assignment.is_idle());
}

#[test]
fn a_transaction_that_fails_again_and_again_is_not_sent_a_fourth_time() {
    let mut assignment = read_of(&[1, 2], &[1]);
    for failures in 1..=2 {
        assert_eq!(assignment.on_finding(1, Finding::NotCommitted), [], "{failures}");
        assignment.on_sent_again();
        let ended = assignment.on_transaction_end(UNKNOWN);
        assert_eq!(ended, [AssignmentAction::RecreateProducer]);
        assert_eq!(assignment.on_producer_recreated(), [AssignmentAction::ReadCommitted(1)]);
    }
    assert_eq!(assignment.on_finding(1, Finding::NotCommitted), taken_again(&[1]));
    // The next one has not failed yet.
    assignment.on_transaction_begin(steps(&[2]));
    let _recreate = assignment.on_transaction_end(UNKNOWN);
    let _read = assignment.on_producer_recreated();
    assert_eq!(assignment.on_finding(2, Finding::NotCommitted), []);
    assert!(assignment.must_be_sent_again());
}

#[test]
fn a_takeover_whose_barrier_was_interrupted_begins_again_and_is_not_sent_again() {
    let content = TransactionContent { barriers: ids(&[2, 3]), ..steps(&[1]) };
    let mut assignment = interrupted(&[1, 2, 3, 4], content, UNKNOWN);
    let released = vec![AssignmentAction::Release(vec![3])];
    assert_eq!(change(&mut assignment, AssignmentChange::Lost, &[3]), released);
    assert_eq!(
        assignment.on_producer_recreated(),
        [AssignmentAction::TakeOver(2), AssignmentAction::ReadCommitted(1)]
    );
    assert_eq!(assignment.on_finding(1, Finding::NotCommitted), []);
    assignment.on_sent_again();
    let _recreate = assignment.on_transaction_end(UNKNOWN);
    assert_eq!(assignment.on_producer_recreated(), [AssignmentAction::ReadCommitted(1)]);
}

#[test]
fn a_transaction_of_barriers_alone_needs_no_finding() {
    let content = TransactionContent { barriers: ids(&[2]), ..steps(&[]) };
    let mut assignment = interrupted(&[1, 2], content, UNKNOWN);
    assert_eq!(assignment.on_producer_recreated(), [AssignmentAction::TakeOver(2)]);
    assert!(assignment.is_idle());
}

#[test]
fn a_transaction_of_which_a_partition_was_released_is_not_sent_again() {
    for before_read in [true, false] {
        for (lost, read) in [(1, 2), (2, 1)] {
            let mut assignment = interrupted(&[1, 2, 3], steps(&[1, 2]), UNKNOWN);
            let release = AssignmentAction::Release(vec![lost]);
            if before_read {
                let released = change(&mut assignment, AssignmentChange::Revoked, &[lost]);
                assert_eq!(released, [release]);
                let reads = assignment.on_producer_recreated();
                assert_eq!(reads, [AssignmentAction::ReadCommitted(read)]);
            } else {
                let _reads_1 = assignment.on_producer_recreated();
                let released = change(&mut assignment, AssignmentChange::Lost, &[lost]);
                let reads = [release, AssignmentAction::ReadCommitted(read)];
                assert_eq!(released, reads[..if lost == 1 { 2 } else { 1 }]);
            }
            assert_eq!(assignment.on_finding(lost, Finding::Committed), [], "not ours any more");
            let again = assignment.on_finding(read, Finding::NotCommitted);
            assert_eq!(again, taken_again(&[read]), "the others keep what is decided");
            assert!(assignment.is_idle());
        }
    }
}

#[test]
fn the_committed_steps_of_partitions_that_were_released_are_not_applied() {
    let mut assignment = read_of(&[1, 2, 3], &[1, 2]);
    let _released = change(&mut assignment, AssignmentChange::Lost, &[2]);
    let applied = assignment.on_finding(1, Finding::Committed);
    assert_eq!(applied, [AssignmentAction::ApplyInterrupted(vec![1])]);
}

#[test]
fn a_partition_that_is_released_and_assigned_again_has_nothing_of_the_transaction() {
    let mut assignment = read_of(&[1, 2], &[1, 2]);
    let _released = change(&mut assignment, AssignmentChange::Revoked, &[2]);
    let assigned = change(&mut assignment, AssignmentChange::Assigned, &[2]);
    assert_eq!(assigned, [AssignmentAction::TakeOver(2)]);
    let applied = assignment.on_finding(1, Finding::Committed);
    assert_eq!(applied, [AssignmentAction::ApplyInterrupted(vec![1])]);

    let mut assignment = read_of(&[1, 2], &[1, 2]);
    let assigned = change(&mut assignment, AssignmentChange::Assigned, &[1]);
    let reads = [AssignmentAction::ReadCommitted(2), AssignmentAction::TakeOver(1)];
    assert_eq!(assigned, reads, "its takeover begins, too");
    assert_eq!(assignment.on_finding(2, Finding::NotCommitted), taken_again(&[2]));
}

#[test]
fn a_transaction_of_which_nothing_is_left_ends() {
    let mut assignment = read_of(&[1, 2], &[1]);
    let released = change(&mut assignment, AssignmentChange::Lost, &[1, 2]);
    assert_eq!(released, [AssignmentAction::Release(vec![1, 2])]);
    assert!(assignment.is_idle());
    assert_eq!(assignment.on_finding(1, Finding::Committed), []);
    let mut assignment = interrupted(&[1, 2], steps(&[1]), UNKNOWN);
    let _released = change(&mut assignment, AssignmentChange::Lost, &[1]);
    assert_eq!(assignment.on_producer_recreated(), [], "partition 2 goes on");
    assert!(assignment.is_idle());
}

#[test]
fn a_transaction_that_waits_to_be_sent_again_ends_when_a_partition_of_it_is_lost() {
    let mut assignment = read_of(&[1, 2, 3], &[1, 2]);
    let _sends = assignment.on_finding(1, Finding::NotCommitted);
    let released = change(&mut assignment, AssignmentChange::Revoked, &[3]);
    assert_eq!(released, [AssignmentAction::Release(vec![3])]);
    assert!(assignment.must_be_sent_again(), "it has nothing of that one");
    let released = change(&mut assignment, AssignmentChange::Lost, &[2]);
    let ends = [AssignmentAction::Release(vec![2]), AssignmentAction::TakeOverAgain(1)];
    assert_eq!(released, ends);
    assert!(assignment.is_idle());
}

#[test]
fn while_the_producer_is_recreated_partitions_are_assigned_and_released() {
    let mut assignment = assignment_of(&[1, 2, 3, 4]);
    assert_eq!(assignment.on_assignment_change(AssignmentChange::Revoked(vec![1]), 0), []);
    assignment.on_transaction_begin(steps(&[1]));
    let _recreate = assignment.on_transaction_end(UNKNOWN);
    let released = |id| vec![AssignmentAction::Release(vec![id])];
    assert_eq!(assignment.on_tick(1), released(1), "it has nothing left to fire");
    let revoked = AssignmentChange::Revoked(vec![2]);
    assert_eq!(assignment.on_assignment_change(revoked, 1), released(2));
    let lost = AssignmentChange::Lost(vec![3]);
    assert_eq!(assignment.on_assignment_change(lost, 1), released(3));
    let assigned = AssignmentChange::Assigned(vec![5]);
    let taken = [AssignmentAction::TakeOver(5)];
    assert_eq!(assignment.on_assignment_change(assigned, 1), taken, "it does not wait");
    assert_eq!(assignment.on_producer_recreated(), [], "partition 4 goes on");
    assert_eq!(assignment.on_tick(1_000), []);
}

#[test]
fn an_aborted_transaction_needs_no_new_producer() {
    let mut assignment = assignment_of(&[1, 2]);
    assert_eq!(assignment.on_assignment_change(AssignmentChange::Revoked(vec![2]), 0), []);
    assert_eq!(assignment.on_tick(100), [AssignmentAction::FinalCommit(vec![2])]);
    assert_eq!(
        assignment.on_transaction_end(TransactionOutcome::Aborted),
        [AssignmentAction::Release(vec![2]), AssignmentAction::TakeOverAgain(1)]
    );
    assert!(assignment.is_idle());
}

#[test]
fn a_final_commit_that_fails_is_not_repeated() {
    let mut assignment = assignment_of(&[1, 2]);
    assert_eq!(assignment.on_assignment_change(AssignmentChange::Revoked(vec![2]), 0), []);
    assert_eq!(assignment.on_tick(100), [AssignmentAction::FinalCommit(vec![2])]);
    assert_eq!(
        assignment.on_transaction_end(UNKNOWN),
        [AssignmentAction::Release(vec![2]), AssignmentAction::RecreateProducer]
    );
    assert_eq!(assignment.on_producer_recreated(), [], "partition 1 goes on");
    assert!(assignment.is_idle());
}

#[test]
fn changes_are_accepted_only_between_transactions() {
    let mut assignment = assignment_of(&[1]);
    assert!(assignment.is_idle() && assignment.accepts_changes());
    assignment.on_transaction_begin(steps(&[1]));
    assert!(!assignment.is_idle() && !assignment.accepts_changes());
    let _recreate = assignment.on_transaction_end(UNKNOWN);
    assert!(!assignment.is_idle() && assignment.accepts_changes());
}

#[test]
fn a_process_that_shuts_down_gives_no_grace() {
    let mut assignment = assignment_of(&[1]);
    assignment.disable_grace();
    assert_eq!(assignment.on_assignment_change(AssignmentChange::Revoked(vec![1]), 50), []);
    assert_eq!(assignment.on_tick(50), [AssignmentAction::FinalCommit(vec![1])]);
}

#[test]
fn a_process_is_assigned_until_it_has_lost_what_it_had_even_if_that_was_nothing() {
    let mut assignment = GroupAssignment::new(0);
    let _joined = assignment.on_assignment_change(AssignmentChange::Joined("a".into()), 0);
    assert!(!assignment.is_assigned());
    let _none = assignment.on_assignment_change(AssignmentChange::Assigned(Vec::new()), 0);
    assert!(assignment.is_assigned());
    let _revoked = assignment.on_assignment_change(AssignmentChange::Revoked(Vec::new()), 0);
    assert!(assignment.is_assigned());
    let _lost = assignment.on_assignment_change(AssignmentChange::Lost(Vec::new()), 0);
    assert!(!assignment.is_assigned());
}
