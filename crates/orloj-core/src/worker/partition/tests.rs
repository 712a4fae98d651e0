//! Which records a partition admits, and what may be withdrawn, whatever happens to its owners.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::model::entry::FireId;
use crate::model::fire::Withdrawal;
use crate::worker::progress::WINDOW_MAX;

#[test]
fn a_full_window_stops_reading_until_there_is_room_for_many() {
    let mut running = RunningPartition::restore(0, "", 2 * WINDOW_MAX).unwrap();
    assert!((0..WINDOW_MAX).all(|offset| running.admit(offset) == RecordAdmission::Deliver));
    assert_eq!(running.admit(WINDOW_MAX), RecordAdmission::WindowFull);
    assert_eq!(running.admit(WINDOW_MAX + 1), RecordAdmission::Ignore);
    let many = OPEN_MAX as u64 / 2;
    (0..many - 1).for_each(|offset| running.progress.finish(offset));
    assert_eq!(running.take_resume_offset(), None);
    running.progress.finish(many - 1);
    assert_eq!(running.take_resume_offset(), Some(WINDOW_MAX));
    assert_eq!(running.admit(WINDOW_MAX), RecordAdmission::Deliver);
}

#[test]
fn no_callback_begins_at_an_offset_that_no_commit_has_reserved() {
    let mut running = RunningPartition::restore(7, "", 7).unwrap();
    assert!(!running.on_record(7) && running.needs_commit());
    assert_eq!(running.admit(7), RecordAdmission::NotReserved);
    assert_eq!(running.take_resume_offset(), None);
    assert_eq!(running.next_commit(), (7, "1:;508".to_owned()));
    assert!(!running.needs_commit());
    assert_eq!(running.take_resume_offset(), Some(7));
    assert!(running.on_record(7));
    assert_eq!(running.admit(7), RecordAdmission::Deliver);
    assert!(running.on_record(507) && !running.on_record(508));
}

#[test]
fn after_a_crash_reserved_offsets_may_have_started_and_after_a_final_commit_only_started_ones() {
    let mut running = RunningPartition::restore(7, "", 7).unwrap();
    running.on_record(7);
    let (offset, metadata) = running.next_commit();
    assert!((7..10).all(|offset| running.admit(offset) == RecordAdmission::Deliver));
    running.start(8);
    let after_crash = RunningPartition::restore(offset, &metadata, 10).unwrap();
    assert!(!after_crash.was_never_started(507) && after_crash.was_never_started(508));
    running.prepare_final_commit();
    let (offset, metadata) = running.next_commit();
    let after_final_commit = RunningPartition::restore(offset, &metadata, 10).unwrap();
    assert!(!after_final_commit.was_never_started(8) && after_final_commit.was_never_started(9));
}

#[test]
fn a_partition_is_read_again_from_the_first_record_that_was_neither_admitted_nor_ignored() {
    let mut running = RunningPartition::restore(40, "1:aA;99", 99).unwrap();
    assert_eq!(running.position(), Some(40));
    assert_eq!(running.admit(40), RecordAdmission::Deliver);
    assert_eq!(running.admit(41), RecordAdmission::Ignore);
    assert_eq!(running.position(), Some(42));
    running.progress.finish(40);
    assert_eq!(running.position(), Some(43), "all below is finished");
    assert_eq!(running.admit(99), RecordAdmission::NotReserved);
    assert_eq!(running.position(), None);
    let _committed = running.next_commit();
    assert_eq!(running.take_resume_offset(), Some(99));
    assert_eq!(running.position(), Some(43));
}

#[test]
fn without_a_reservation_everything_up_to_the_log_end_may_have_started() {
    for metadata in ["", "1:aA"] {
        let running = RunningPartition::restore(40, metadata, 99).unwrap();
        assert!(!running.was_never_started(98) && running.was_never_started(99));
    }
    let error = RunningPartition::restore(40, "1:aA;soon", 99).unwrap_err();
    assert_eq!(error, ProgressError("1:aA;soon".to_owned()));
}

#[test]
fn what_is_unknown_after_the_offsets_have_expired_is_committed_until_it_is_passed() {
    let mut running = RunningPartition::restore(5, "", 7).unwrap();
    running.set_unknown(1_000, 7);
    assert!((5..7).all(|offset| running.admit(offset) == RecordAdmission::Deliver));
    running.on_record(6);
    let (offset, metadata) = running.next_commit();
    let mut next_owner = RunningPartition::restore(offset, &metadata, 9).unwrap();
    assert!(next_owner.is_unknown(5, 999) && next_owner.is_unknown(6, 999));
    assert!(!next_owner.is_unknown(6, 1_000) && !next_owner.is_unknown(7, 999));
    for offset in 5..7 {
        assert_eq!(next_owner.next_commit().1.split(SEPARATOR).count(), 3);
        assert_eq!(next_owner.admit(offset), RecordAdmission::Deliver);
        next_owner.progress.finish(offset);
    }
    let (offset, metadata) = next_owner.next_commit();
    assert_eq!((offset, metadata.split(SEPARATOR).count()), (7, 2));
    let error = RunningPartition::restore(5, "1:aA;9;soon", 99).unwrap_err();
    assert_eq!(error, ProgressError("1:aA;9;soon".to_owned()));
}

/// What may happen to a partition and to its owners. Of several owners the last one is a member of
/// the group; the others do not know yet that they are not.
#[derive(Clone, Debug)]
enum OwnershipStep {
    /// A fire of a trigger, this many offsets after the last record.
    Fire(u8, Offset),
    /// A cancel of everything that the trigger has fired so far.
    Cancel(u8, Offset),
    Read(usize),
    Start(usize, usize),
    End(usize, usize),
    Commit(usize, SimulatedCommit),
    /// Another owner is assigned the partition; the last one dies, or continues.
    TakeOver {
        dies: bool,
    },
}

/// The result of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SimulatedCommit {
    Committed,
    /// Its owner gets no reply, and starts a new epoch.
    CommittedWithoutReply,
    Failed,
    /// It is the last one, and another owner follows.
    FinalCommit,
}

fn any_step() -> impl Strategy<Value = OwnershipStep> {
    let index = any::<usize>;
    // A reservation reaches over a few records only.
    let gap = 1..RESERVE_AHEAD / 2;
    let commit = prop_oneof![
        6 => Just(SimulatedCommit::Committed),
        1 => Just(SimulatedCommit::CommittedWithoutReply),
        1 => Just(SimulatedCommit::Failed),
        1 => Just(SimulatedCommit::FinalCommit),
    ];
    prop_oneof![
        4 => (0_u8..4, gap.clone()).prop_map(|(trigger, gap)| OwnershipStep::Fire(trigger, gap)),
        2 => (0_u8..4, gap).prop_map(|(trigger, gap)| OwnershipStep::Cancel(trigger, gap)),
        8 => index().prop_map(OwnershipStep::Read),
        3 => (index(), index()).prop_map(|(owner, fire)| OwnershipStep::Start(owner, fire)),
        2 => (index(), index()).prop_map(|(owner, fire)| OwnershipStep::End(owner, fire)),
        4 => (index(), commit).prop_map(|(owner, result)| OwnershipStep::Commit(owner, result)),
        1 => any::<bool>().prop_map(|dies| OwnershipStep::TakeOver { dies }),
    ]
}

#[derive(Clone, Debug)]
enum SimulatedRecord {
    Fire(FireId),
    Withdrawal(Withdrawal),
}

/// What is visible from outside: the log, what is committed, which callbacks were requested.
#[derive(Default)]
struct SimulatedPartition {
    log: Vec<(Offset, SimulatedRecord)>,
    committed: (Offset, String),
    requested: BTreeSet<Offset>,
    delivered: BTreeSet<Offset>,
    withdrawn: BTreeSet<Offset>,
}

/// How a record ended.
#[derive(Clone, Copy, Debug)]
enum SimulatedEnd {
    Delivered,
    Withdrawn,
    /// It was a withdrawal itself.
    WithdrawalProcessed,
}

/// A worker, as `intake`, `dispatch` and `commit` use a [`RunningPartition`].
struct SimulatedOwner {
    running: RunningPartition,
    next: Offset,
    waiting: Vec<(Offset, FireId)>,
    in_progress: Vec<Offset>,
    ended: Vec<(Offset, SimulatedEnd)>,
}

impl SimulatedPartition {
    fn end(&self) -> Offset {
        self.log.last().map_or(0, |(offset, _)| offset + 1)
    }

    fn owner(&self) -> SimulatedOwner {
        let (offset, metadata) = &self.committed;
        let running = RunningPartition::restore(*offset, metadata, self.end()).unwrap();
        let next = running.progress.commit_offset();
        let (waiting, in_progress, ended) = (Vec::new(), Vec::new(), Vec::new());
        SimulatedOwner { running, next, waiting, in_progress, ended }
    }

    fn append(&mut self, gap: Offset, record: SimulatedRecord) {
        self.log.push((self.end() + gap - 1, record));
    }

    fn read(&mut self, owner: &mut SimulatedOwner, is_member: bool) {
        let record = self.log.iter().find(|(offset, _)| *offset >= owner.next).cloned();
        let Some((offset, record)) = record else { return };
        if !owner.running.on_record(offset) && is_member {
            self.commit(owner);
        }
        match owner.running.admit(offset) {
            RecordAdmission::Ignore => {}
            RecordAdmission::WindowFull => panic!("a short log fills no window"),
            RecordAdmission::NotReserved => return,
            RecordAdmission::Deliver => match record {
                SimulatedRecord::Fire(id) => owner.waiting.push((offset, id)),
                SimulatedRecord::Withdrawal(withdrawal) => {
                    let SimulatedOwner { running, waiting, ended, .. } = owner;
                    let matches = |(offset, id): &mut (Offset, FireId)| {
                        running.was_never_started(*offset) && withdrawal.matches(id)
                    };
                    ended.extend(
                        waiting
                            .extract_if(.., matches)
                            .map(|(at, _)| (at, SimulatedEnd::Withdrawn)),
                    );
                    ended.push((offset, SimulatedEnd::WithdrawalProcessed));
                }
            },
        }
        owner.next = offset + 1;
    }

    fn start(&mut self, owner: &mut SimulatedOwner, which: usize) {
        if !owner.waiting.is_empty() {
            let (offset, _) = owner.waiting.remove(which % owner.waiting.len());
            owner.running.start(offset);
            self.requested.insert(offset);
            owner.in_progress.push(offset);
        }
    }

    fn commit(&mut self, owner: &mut SimulatedOwner) {
        for (offset, end) in owner.ended.drain(..) {
            owner.running.progress.finish(offset);
            match end {
                SimulatedEnd::Withdrawn => self.withdrawn.insert(offset),
                SimulatedEnd::Delivered => self.delivered.insert(offset),
                SimulatedEnd::WithdrawalProcessed => false,
            };
        }
        self.committed = owner.running.next_commit();
        if let Some(offset) = owner.running.take_resume_offset() {
            owner.next = offset;
        }
    }

    /// The last owner makes every callback that is left.
    fn finish_all(&mut self) {
        let mut last = self.owner();
        while last.next < self.end() {
            self.read(&mut last, true);
        }
        while !last.waiting.is_empty() {
            self.start(&mut last, 0);
        }
        last.ended
            .extend(last.in_progress.drain(..).map(|offset| (offset, SimulatedEnd::Delivered)));
        self.commit(&mut last);
    }
}

impl SimulatedOwner {
    fn end(&mut self, which: usize) {
        if !self.in_progress.is_empty() {
            let offset = self.in_progress.swap_remove(which % self.in_progress.len());
            self.ended.push((offset, SimulatedEnd::Delivered));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whichever owner reads, starts callbacks, dies, continues or fails to commit: a fire reported
    /// as withdrawn was never requested and never will be, and every other one is delivered.
    #[test]
    fn a_withdrawn_fire_was_never_requested(
        steps in prop::collection::vec(any_step(), 0..150),
    ) {
        let mut partition = SimulatedPartition::default();
        let mut owners = vec![partition.owner()];
        for (generation, step) in (0..).zip(steps) {
            let last = owners.len() - 1;
            match step {
                OwnershipStep::Fire(trigger, gap) => {
                    let trigger = trigger.to_string().as_str().into();
                    let id = FireId { trigger, generation, occurrence: 0, attempt: 1, deferral: 0 };
                    partition.append(gap, SimulatedRecord::Fire(id));
                }
                OwnershipStep::Cancel(trigger, gap) => {
                    let trigger = trigger.to_string().as_str().into();
                    let withdrawal = Withdrawal { trigger, cancel: generation };
                    partition.append(gap, SimulatedRecord::Withdrawal(withdrawal));
                }
                OwnershipStep::Read(who) => {
                    let who = who % owners.len();
                    partition.read(&mut owners[who], who == last);
                }
                OwnershipStep::Start(who, which) => {
                    let who = who % owners.len();
                    partition.start(&mut owners[who], which);
                }
                OwnershipStep::End(who, which) => {
                    let who = who % owners.len();
                    owners[who].end(which);
                }
                // The broker refuses it: the owner is not a member any more.
                OwnershipStep::Commit(who, _) if who % owners.len() != last => {
                    owners.remove(who % owners.len());
                }
                OwnershipStep::Commit(_, result) => {
                    if result == SimulatedCommit::FinalCommit {
                        owners[last].running.prepare_final_commit();
                    }
                    if result != SimulatedCommit::Failed {
                        partition.commit(&mut owners[last]);
                    }
                    if result != SimulatedCommit::Committed {
                        owners[last] = partition.owner();
                    }
                }
                OwnershipStep::TakeOver { dies } => {
                    if dies {
                        owners.pop();
                    }
                    owners.push(partition.owner());
                }
            }
            prop_assert!(partition.withdrawn.is_disjoint(&partition.requested));
        }
        partition.finish_all();
        prop_assert!(partition.withdrawn.is_disjoint(&partition.requested));
        let is_fire = |record: &SimulatedRecord| matches!(record, SimulatedRecord::Fire(_));
        let fires = partition.log.iter().filter(|(_, record)| is_fire(record));
        for (offset, record) in fires {
            let done = [&partition.withdrawn, &partition.delivered].map(|set| set.contains(offset));
            prop_assert!(done[0] != done[1], "{:?} at {}: {:?}", record, offset, done);
        }
    }
}

#[test]
fn the_end_of_a_transaction_that_was_deleted_is_no_lost_fire() {
    let deleted = |committed: (Offset, &str), low, end| {
        let mut running = RunningPartition::restore(committed.0, committed.1, end).unwrap();
        let deleted = running.skip_deleted(0, (low, end));
        (deleted.known, deleted.unread, deleted.may_be_fires())
    };
    assert_eq!(deleted((10, "1:;500"), 11, 11), (0, 1, false));
    assert_eq!(deleted((10, "1:;500"), 11, 12), (0, 1, true), "what is left ends with one, too");
    assert_eq!(deleted((10, "1:;500"), 12, 12), (0, 2, true));
    assert_eq!(deleted((150, "1:fA;656"), 155, 155), (1, 0, true));
}
