//! What a lane lets in, and what a withdrawal may say, whatever happens to those who read it.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::model::entry::FireId;
use crate::model::fire::Withdrawal;
use crate::worker::progress::WINDOW_MAX;

#[test]
fn a_full_window_stops_reading_until_there_is_room_for_many() {
    let mut lane = Running::restore(0, "", 2 * WINDOW_MAX).unwrap();
    assert!((0..WINDOW_MAX).all(|offset| lane.admit(offset) == Admission::Deliver));
    assert_eq!(lane.admit(WINDOW_MAX), Admission::Stop);
    assert_eq!(lane.admit(WINDOW_MAX + 1), Admission::Ignore);
    let many = OPEN_MAX as u64 / 2;
    (0..many - 1).for_each(|offset| lane.progress.finish(offset));
    assert_eq!(lane.unpark(), None);
    lane.progress.finish(many - 1);
    assert_eq!(lane.unpark(), Some(WINDOW_MAX));
    assert_eq!(lane.admit(WINDOW_MAX), Admission::Deliver);
}

#[test]
fn nothing_is_begun_that_no_commit_has_reserved() {
    let mut lane = Running::restore(7, "", 7).unwrap();
    assert!(!lane.meet(7) && lane.wants_commit());
    assert_eq!(lane.admit(7), Admission::Unreserved);
    assert_eq!(lane.unpark(), None);
    assert_eq!(lane.next_commit(), (7, "1:;508".to_owned()));
    assert!(!lane.wants_commit());
    assert_eq!(lane.unpark(), Some(7));
    assert!(lane.meet(7));
    assert_eq!(lane.admit(7), Admission::Deliver);
    assert!(lane.meet(507) && !lane.meet(508));
}

#[test]
fn the_next_life_doubts_what_was_reserved_and_after_a_farewell_what_was_begun() {
    let mut lane = Running::restore(7, "", 7).unwrap();
    lane.meet(7);
    let (offset, metadata) = lane.next_commit();
    assert!((7..10).all(|offset| lane.admit(offset) == Admission::Deliver));
    lane.begin(8);
    let after_a_crash = Running::restore(offset, &metadata, 10).unwrap();
    assert!(!after_a_crash.is_untouched(507) && after_a_crash.is_untouched(508));
    lane.part();
    let (offset, metadata) = lane.next_commit();
    let after_a_farewell = Running::restore(offset, &metadata, 10).unwrap();
    assert!(!after_a_farewell.is_untouched(8) && after_a_farewell.is_untouched(9));
}

#[test]
fn what_says_nothing_of_a_reservation_is_doubted_up_to_the_end_of_the_log() {
    for metadata in ["", "1:aA"] {
        let lane = Running::restore(40, metadata, 99).unwrap();
        assert!(!lane.is_untouched(98) && lane.is_untouched(99));
    }
    let error = Running::restore(40, "1:aA;soon", 99).unwrap_err();
    assert_eq!(error, ProgressError("1:aA;soon".to_owned()));
}

/// What may happen to a partition and to those who read it. Of several owners the last one is a
/// member of the group; the others do not know yet that they are not.
#[derive(Clone, Debug)]
enum Step {
    /// A fire of a trigger, so many offsets after the last record.
    Fire(u8, Offset),
    /// A cancel of all that the trigger has fired so far.
    Cancel(u8, Offset),
    Read(usize),
    Begin(usize, usize),
    End(usize, usize),
    Commit(usize, Fate),
    /// Another one is assigned the partition; the last one dies, or lives on.
    TakeOver {
        dies: bool,
    },
}

/// What becomes of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Done,
    /// Its owner does not hear of it, and begins a new life.
    DoneUnheard,
    Undone,
    /// It is the last one, and another owner follows.
    Farewell,
}

fn any_step() -> impl Strategy<Value = Step> {
    let index = any::<usize>;
    // A reservation reaches over a few records only.
    let gap = 1..RESERVED / 2;
    let fate = prop_oneof![
        6 => Just(Fate::Done),
        1 => Just(Fate::DoneUnheard),
        1 => Just(Fate::Undone),
        1 => Just(Fate::Farewell),
    ];
    prop_oneof![
        4 => (0_u8..4, gap.clone()).prop_map(|(trigger, gap)| Step::Fire(trigger, gap)),
        2 => (0_u8..4, gap).prop_map(|(trigger, gap)| Step::Cancel(trigger, gap)),
        8 => index().prop_map(Step::Read),
        3 => (index(), index()).prop_map(|(owner, fire)| Step::Begin(owner, fire)),
        2 => (index(), index()).prop_map(|(owner, fire)| Step::End(owner, fire)),
        4 => (index(), fate).prop_map(|(owner, fate)| Step::Commit(owner, fate)),
        1 => any::<bool>().prop_map(|dies| Step::TakeOver { dies }),
    ]
}

#[derive(Clone, Debug)]
enum Record {
    Fire(FireId),
    Withdrawal(Withdrawal),
}

/// What the world can see: the log, what is committed, who was requested.
#[derive(Default)]
struct World {
    log: Vec<(Offset, Record)>,
    committed: (Offset, String),
    requested: BTreeSet<Offset>,
    delivered: BTreeSet<Offset>,
    withdrawn: BTreeSet<Offset>,
}

/// A worker, as `intake`, `dispatch` and `commit` make it of a [`Running`].
struct Owner {
    running: Running,
    next: Offset,
    waiting: Vec<(Offset, FireId)>,
    under_way: Vec<Offset>,
    /// Offset, and whether it was withdrawn, if it is a fire.
    ended: Vec<(Offset, Option<bool>)>,
}

impl World {
    fn end(&self) -> Offset {
        self.log.last().map_or(0, |(offset, _)| offset + 1)
    }

    fn owner(&self) -> Owner {
        let (offset, metadata) = &self.committed;
        let running = Running::restore(*offset, metadata, self.end()).unwrap();
        let next = running.progress.floor();
        let (waiting, under_way, ended) = (Vec::new(), Vec::new(), Vec::new());
        Owner { running, next, waiting, under_way, ended }
    }

    fn append(&mut self, gap: Offset, record: Record) {
        self.log.push((self.end() + gap - 1, record));
    }

    fn read(&mut self, owner: &mut Owner, is_member: bool) {
        let record = self.log.iter().find(|(offset, _)| *offset >= owner.next).cloned();
        let Some((offset, record)) = record else { return };
        if !owner.running.meet(offset) && is_member {
            self.commit(owner);
        }
        match owner.running.admit(offset) {
            Admission::Ignore => {}
            Admission::Stop => panic!("a short log fills no window"),
            Admission::Unreserved => return,
            Admission::Deliver => match record {
                Record::Fire(id) => owner.waiting.push((offset, id)),
                Record::Withdrawal(withdrawal) => {
                    let Owner { running, waiting, ended, .. } = owner;
                    let meant = |(offset, id): &mut (Offset, FireId)| {
                        running.is_untouched(*offset) && withdrawal.means(id)
                    };
                    ended.extend(waiting.extract_if(.., meant).map(|(at, _)| (at, Some(true))));
                    ended.push((offset, None));
                }
            },
        }
        owner.next = offset + 1;
    }

    fn begin(&mut self, owner: &mut Owner, which: usize) {
        if !owner.waiting.is_empty() {
            let (offset, _) = owner.waiting.remove(which % owner.waiting.len());
            owner.running.begin(offset);
            self.requested.insert(offset);
            owner.under_way.push(offset);
        }
    }

    fn commit(&mut self, owner: &mut Owner) {
        for (offset, withdrawn) in owner.ended.drain(..) {
            owner.running.progress.finish(offset);
            match withdrawn {
                Some(true) => self.withdrawn.insert(offset),
                Some(false) => self.delivered.insert(offset),
                None => false,
            };
        }
        self.committed = owner.running.next_commit();
        if let Some(offset) = owner.running.unpark() {
            owner.next = offset;
        }
    }

    /// Whoever is left makes everything that is left.
    fn settle(&mut self) {
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

impl Owner {
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
    fn what_was_withdrawn_was_requested_by_nobody(
        steps in prop::collection::vec(any_step(), 0..150),
    ) {
        let mut world = World::default();
        let mut owners = vec![world.owner()];
        for (generation, step) in (0..).zip(steps) {
            let last = owners.len() - 1;
            match step {
                Step::Fire(trigger, gap) => {
                    let trigger = trigger.to_string().as_str().into();
                    let id = FireId { trigger, generation, occurrence: 0, attempt: 1, deferral: 0 };
                    world.append(gap, Record::Fire(id));
                }
                Step::Cancel(trigger, gap) => {
                    let trigger = trigger.to_string().as_str().into();
                    let withdrawal = Withdrawal { trigger, cancel: generation };
                    world.append(gap, Record::Withdrawal(withdrawal));
                }
                Step::Read(who) => {
                    let who = who % owners.len();
                    world.read(&mut owners[who], who == last);
                }
                Step::Begin(who, which) => {
                    let who = who % owners.len();
                    world.begin(&mut owners[who], which);
                }
                Step::End(who, which) => {
                    let who = who % owners.len();
                    owners[who].end(which);
                }
                // The broker refuses it, and the group says why.
                Step::Commit(who, _) if who % owners.len() != last => {
                    owners.remove(who % owners.len());
                }
                Step::Commit(_, fate) => {
                    if fate == Fate::Farewell {
                        owners[last].running.part();
                    }
                    if fate != Fate::Undone {
                        world.commit(&mut owners[last]);
                    }
                    if fate != Fate::Done {
                        owners[last] = world.owner();
                    }
                }
                Step::TakeOver { dies } => {
                    if dies {
                        owners.pop();
                    }
                    owners.push(world.owner());
                }
            }
            prop_assert!(world.withdrawn.is_disjoint(&world.requested));
        }
        world.settle();
        prop_assert!(world.withdrawn.is_disjoint(&world.requested));
        let fires = world.log.iter().filter(|(_, record)| matches!(record, Record::Fire(_)));
        for (offset, record) in fires {
            let done = [&world.withdrawn, &world.delivered].map(|set| set.contains(offset));
            prop_assert!(done[0] != done[1], "{:?} at {}: {:?}", record, offset, done);
        }
    }
}
