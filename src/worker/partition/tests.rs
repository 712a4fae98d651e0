//! What a lane lets in, and what a withdrawal may say, whatever happens to those who read it.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::model::entry::FireId;
use crate::model::fire::Withdrawal;
use crate::worker::progress::WINDOW_MAX;

#[test]
fn a_full_window_stops_reading_until_there_is_room_for_many() {
    let mut lane = RunningPartition::restore(0, "", 2 * WINDOW_MAX).unwrap();
    assert!((0..WINDOW_MAX).all(|offset| lane.admit(offset) == RecordAdmission::Deliver));
    assert_eq!(lane.admit(WINDOW_MAX), RecordAdmission::WindowFull);
    assert_eq!(lane.admit(WINDOW_MAX + 1), RecordAdmission::Ignore);
    let many = OPEN_MAX as u64 / 2;
    (0..many - 1).for_each(|offset| lane.progress.finish(offset));
    assert_eq!(lane.take_resume_offset(), None);
    lane.progress.finish(many - 1);
    assert_eq!(lane.take_resume_offset(), Some(WINDOW_MAX));
    assert_eq!(lane.admit(WINDOW_MAX), RecordAdmission::Deliver);
}

#[test]
fn no_callback_begins_at_an_offset_that_no_commit_has_reserved() {
    let mut lane = RunningPartition::restore(7, "", 7).unwrap();
    assert!(!lane.on_record(7) && lane.needs_commit());
    assert_eq!(lane.admit(7), RecordAdmission::NotReserved);
    assert_eq!(lane.take_resume_offset(), None);
    assert_eq!(lane.next_commit(), (7, "1:;508".to_owned()));
    assert!(!lane.needs_commit());
    assert_eq!(lane.take_resume_offset(), Some(7));
    assert!(lane.on_record(7));
    assert_eq!(lane.admit(7), RecordAdmission::Deliver);
    assert!(lane.on_record(507) && !lane.on_record(508));
}

#[test]
fn after_a_crash_reserved_offsets_may_have_begun_and_after_a_final_commit_only_begun_ones() {
    let mut lane = RunningPartition::restore(7, "", 7).unwrap();
    lane.on_record(7);
    let (offset, metadata) = lane.next_commit();
    assert!((7..10).all(|offset| lane.admit(offset) == RecordAdmission::Deliver));
    lane.begin(8);
    let after_a_crash = RunningPartition::restore(offset, &metadata, 10).unwrap();
    assert!(!after_a_crash.was_never_begun(507) && after_a_crash.was_never_begun(508));
    lane.prepare_final_commit();
    let (offset, metadata) = lane.next_commit();
    let after_a_farewell = RunningPartition::restore(offset, &metadata, 10).unwrap();
    assert!(!after_a_farewell.was_never_begun(8) && after_a_farewell.was_never_begun(9));
}

#[test]
fn without_a_reservation_everything_up_to_the_log_end_may_have_begun() {
    for metadata in ["", "1:aA"] {
        let lane = RunningPartition::restore(40, metadata, 99).unwrap();
        assert!(!lane.was_never_begun(98) && lane.was_never_begun(99));
    }
    let error = RunningPartition::restore(40, "1:aA;soon", 99).unwrap_err();
    assert_eq!(error, ProgressError("1:aA;soon".to_owned()));
}

/// What may happen to a partition and to those who read it. Of several owners the last one is a
/// member of the group; the others do not know yet that they are not.
#[derive(Clone, Debug)]
enum OwnershipStep {
    /// A fire of a trigger, so many offsets after the last record.
    Fire(u8, Offset),
    /// A cancel of all that the trigger has fired so far.
    Cancel(u8, Offset),
    Read(usize),
    Begin(usize, usize),
    End(usize, usize),
    Commit(usize, SimulatedCommit),
    /// Another one is assigned the partition; the last one dies, or lives on.
    TakeOver {
        dies: bool,
    },
}

/// What becomes of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SimulatedCommit {
    Committed,
    /// Its owner does not hear of it, and begins a new life.
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
        3 => (index(), index()).prop_map(|(owner, fire)| OwnershipStep::Begin(owner, fire)),
        2 => (index(), index()).prop_map(|(owner, fire)| OwnershipStep::End(owner, fire)),
        4 => (index(), commit).prop_map(|(owner, fate)| OwnershipStep::Commit(owner, fate)),
        1 => any::<bool>().prop_map(|dies| OwnershipStep::TakeOver { dies }),
    ]
}

#[derive(Clone, Debug)]
enum SimulatedRecord {
    Fire(FireId),
    Withdrawal(Withdrawal),
}

/// What the world can see: the log, what is committed, who was requested.
#[derive(Default)]
struct SimulatedPartition {
    log: Vec<(Offset, SimulatedRecord)>,
    committed: (Offset, String),
    requested: BTreeSet<Offset>,
    delivered: BTreeSet<Offset>,
    withdrawn: BTreeSet<Offset>,
}

/// A worker, as `intake`, `dispatch` and `commit` make it of a [`Running`].
struct SimulatedOwner {
    running: RunningPartition,
    next: Offset,
    waiting: Vec<(Offset, FireId)>,
    under_way: Vec<Offset>,
    /// Offset, and whether it was withdrawn, if it is a fire.
    ended: Vec<(Offset, Option<bool>)>,
}

impl SimulatedPartition {
    fn end(&self) -> Offset {
        self.log.last().map_or(0, |(offset, _)| offset + 1)
    }

    fn owner(&self) -> SimulatedOwner {
        let (offset, metadata) = &self.committed;
        let running = RunningPartition::restore(*offset, metadata, self.end()).unwrap();
        let next = running.progress.commit_offset();
        let (waiting, under_way, ended) = (Vec::new(), Vec::new(), Vec::new());
        SimulatedOwner { running, next, waiting, under_way, ended }
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
                        running.was_never_begun(*offset) && withdrawal.matches(id)
                    };
                    ended.extend(waiting.extract_if(.., matches).map(|(at, _)| (at, Some(true))));
                    ended.push((offset, None));
                }
            },
        }
        owner.next = offset + 1;
    }

    fn begin(&mut self, owner: &mut SimulatedOwner, which: usize) {
        if !owner.waiting.is_empty() {
            let (offset, _) = owner.waiting.remove(which % owner.waiting.len());
            owner.running.begin(offset);
            self.requested.insert(offset);
            owner.under_way.push(offset);
        }
    }

    fn commit(&mut self, owner: &mut SimulatedOwner) {
        for (offset, withdrawn) in owner.ended.drain(..) {
            owner.running.progress.finish(offset);
            match withdrawn {
                Some(true) => self.withdrawn.insert(offset),
                Some(false) => self.delivered.insert(offset),
                None => false,
            };
        }
        self.committed = owner.running.next_commit();
        if let Some(offset) = owner.running.take_resume_offset() {
            owner.next = offset;
        }
    }

    /// Whoever is left makes everything that is left.
    fn finish_all(&mut self) {
        let mut last = self.owner();
        while last.next < self.end() {
            self.read(&mut last, true);
        }
        while !last.waiting.is_empty() {
            self.begin(&mut last, 0);
        }
        last.ended.extend(last.under_way.drain(..).map(|offset| (offset, Some(false))));
        self.commit(&mut last);
    }
}

impl SimulatedOwner {
    fn end(&mut self, which: usize) {
        if !self.under_way.is_empty() {
            let offset = self.under_way.swap_remove(which % self.under_way.len());
            self.ended.push((offset, Some(false)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whoever reads, begins, dies, lives on or commits in vain: what is told to be withdrawn was
    /// requested by nobody, never will be, and everything else is delivered.
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
                OwnershipStep::Begin(who, which) => {
                    let who = who % owners.len();
                    partition.begin(&mut owners[who], which);
                }
                OwnershipStep::End(who, which) => {
                    let who = who % owners.len();
                    owners[who].end(which);
                }
                // The broker refuses it, and the group says why.
                OwnershipStep::Commit(who, _) if who % owners.len() != last => {
                    owners.remove(who % owners.len());
                }
                OwnershipStep::Commit(_, fate) => {
                    if fate == SimulatedCommit::FinalCommit {
                        owners[last].running.prepare_final_commit();
                    }
                    if fate != SimulatedCommit::Failed {
                        partition.commit(&mut owners[last]);
                    }
                    if fate != SimulatedCommit::Committed {
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
