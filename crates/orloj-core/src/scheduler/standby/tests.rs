//! Tests of the standby: which partitions it follows, and what becomes of their stores.
//!
//! Invariant: a test does its steps, and the time moves when the test says so.

use super::*;
use crate::engine::local_checkpoint::LocalCheckpoint;
use crate::environment::group::GroupMember;
use crate::model::Offset;
use crate::model::timeline::TimelineKey;
use crate::scheduler::Scheduler;
use crate::scheduler::standby_pass::POLL;
use crate::scheduler::test_scheduler::config;
use crate::test_environment::clock::{MS, SECOND};
use crate::test_environment::cluster::{TestBounds, TestGroup};
use crate::test_environment::store::TestStore;
use crate::test_environment::{NOW, TestEnvironment};

/// Starts a standby that flushes a store every 30 s.
fn start(world: &TestEnvironment, group: &TestGroup) -> Standby<TestEnvironment> {
    let parts = StandbyParts {
        config: StandbyConfig::new(1, "me-".to_owned(), SECOND * 30),
        ledger: world.signals_and_ledger.clone(),
        triggers: world.triggers.clone(),
        cluster: world.cluster.clone(),
        group: group.clone(),
        schemas: world.schemas.clone(),
    };
    let shared = SharedParts {
        environment: world,
        clock: &world.clock,
        reporter: &world.reporter,
        stores: &world.stores,
        codec: &Arc::new(Schemas::new()),
    };
    Standby::start(&config(), parts, &shared)
}

/// A standby of a world in which other members own partitions.
struct Followers {
    world: TestEnvironment,
    group: TestGroup,
    job: StandbyJob<TestEnvironment>,
}

impl Followers {
    /// The process `me` follows what `other` owns.
    fn new(owned: &[PartitionId]) -> Self {
        let (world, group) = (TestEnvironment::default(), TestGroup::default());
        world.clock.set(NOW);
        world.clock.advance(SECOND);
        world.hold("standby");
        let mut standby = start(&world, &group);
        let job = standby.queue.take();
        // The loop's side lives as long as the process.
        std::mem::forget(standby);
        let followers = Self { world, group, job };
        followers.set_members(owned);
        followers
    }

    /// Runs the pass until it reads.
    fn until_reading(&mut self) {
        let reads =
            |job: &StandbyJob<TestEnvironment>| matches!(job.running, Some(PassStage::Reading(_)));
        let is_reading = (0..1_000).any(|_| {
            reads(&self.job) || {
                let _step = self.job.step(&mut ());
                false
            }
        });
        assert!(is_reading, "the pass does not read");
    }

    fn set_members(&self, owned: &[PartitionId]) {
        let member = |id: &str, partitions: &[PartitionId]| GroupMember {
            member_id: id.to_owned(),
            partitions: partitions.to_vec(),
        };
        self.group.answers().members = Some(vec![member("me-1", &[9]), member("other-1", owned)]);
    }

    /// The owner has committed this step, at this offset; the logs end at 10.
    fn commit(&self, step: u64, n: Offset) {
        let cursor = Cursor { next_offset: n, step, ..Cursor::initial(n, 0) };
        self.group.answers().committed = Some((n, cursor.to_metadata("other")));
        self.world.cluster.set("o.ledger", 0, TestBounds::whole(0, 0));
        self.world.cluster.set("o.triggers", 0, TestBounds::whole(0, n));
    }

    /// Steps until the round is over. Returns for how long it pauses then.
    fn round(&mut self) -> Duration {
        for _ in 0..100 {
            match self.job.step(&mut ()) {
                JobStep::Continue => {}
                JobStep::Pause(pause) => return pause,
                JobStep::Done(()) => panic!("it ends with the process"),
            }
        }
        panic!("a round has an end");
    }

    /// A round over all partitions that were followed before.
    fn rounds(&mut self, count: usize) {
        (0..count).for_each(|_| {
            let _pause = self.round();
        });
    }

    fn followed(&self) -> Vec<PartitionId> {
        self.job.followed.keys().copied().collect()
    }

    fn store(&self) -> TestStore {
        self.world.stores.contents().store.clone()
    }
}

#[test]
fn the_members_of_the_group_are_read_every_three_seconds() {
    let mut followers = Followers::new(&[0, 1]);
    assert_eq!(followers.round(), MS * 500);
    assert_eq!(followers.followed(), [0, 1]);
    assert_eq!(followers.world.reporter.reported().followed, Some(2));
    followers.set_members(&[1, 2]);
    followers.world.clock.advance(SECOND * 3 - MS);
    followers.rounds(2);
    assert_eq!(followers.followed(), [0, 1]);
    followers.world.clock.advance(MS);
    followers.rounds(2);
    assert_eq!(followers.followed(), [1, 2]);
    followers.group.answers().members = None;
    followers.world.clock.advance(SECOND * 3);
    followers.rounds(2);
    assert_eq!(followers.followed(), [1, 2], "without an answer they stay");
}

#[test]
fn a_partition_that_this_process_owns_is_not_counted_as_followed_and_not_opened() {
    let mut followers = Followers::new(&[0, 1]);
    followers.rounds(1);
    let _taken = followers.job.stores.take(1);
    followers.rounds(1);
    assert_eq!(followers.world.reporter.reported().followed, Some(1));
    assert_eq!(followers.world.stores.calls(), ["open 0"]);
    followers.world.clock.advance(SECOND * 3);
    followers.rounds(1);
    assert_eq!(followers.followed(), [0, 1], "the loop may give it back");
    followers.job.stores.give_back(1);
    followers.rounds(1);
    assert!(followers.world.stores.calls().contains(&"open 1".to_owned()));
}

#[test]
fn a_partition_that_has_another_owner_is_closed_and_given_to_the_loop_as_closed() {
    let mut followers = Followers::new(&[0]);
    followers.rounds(2);
    followers.set_members(&[]);
    followers.world.clock.advance(SECOND * 3);
    followers.rounds(2);
    assert_eq!(followers.followed(), [0; 0]);
    assert!(matches!(followers.job.stores.take(0), TakenStore::Closed));
}

#[test]
fn a_pass_leaves_the_store_as_far_as_the_committed_cursor() {
    let mut followers = Followers::new(&[0]);
    followers.commit(4, 0);
    followers.rounds(2);
    let state = followers.store().contents().state.clone().expect("it is caught up");
    assert_eq!((state.step, state.applied, state.caught_up_at), (4, 0, NOW + 1_000));
    assert_eq!(state.cluster_id, "here");
    assert!(followers.job.followed[&0].caught_up);
    assert_eq!(followers.world.stores.calls(), ["open 0", "wipe 0", "open 0"], "it was new");
    followers.world.clock.advance(SECOND);
    followers.rounds(2);
    let caught_up_at = followers.store().contents().state.clone().unwrap().caught_up_at;
    assert_eq!(caught_up_at, NOW + 1_000, "nothing is new");
    assert!(matches!(followers.job.stores.take(0), TakenStore::Open(_)));
}

#[test]
fn a_followed_store_is_flushed_every_flush_interval() {
    let mut followers = Followers::new(&[0]);
    followers.world.clock.advance(SECOND * 28);
    for (step, passes, flushes) in [
        (1, SECOND - MS, 0), // 30 s after the process began
        (2, MS, 1),
        (3, SECOND * 30 - MS, 1),
        (4, MS, 2),
    ] {
        followers.world.clock.advance(passes);
        followers.commit(step, 0);
        followers.rounds(2);
        assert_eq!(followers.store().contents().background_flushes, flushes, "step {step}");
    }
}

/// The owner commits nothing new after the flush that was skipped.
#[test]
fn a_flush_that_was_skipped_is_tried_again_in_every_round() {
    let mut followers = Followers::new(&[0]);
    followers.commit(1, 0);
    followers.rounds(2);
    let store = followers.store();
    store.contents().skips_flushes = true;
    followers.world.clock.advance(SECOND * 30);
    for (skips, flushes) in [(true, 1), (false, 2), (false, 2)] {
        store.contents().skips_flushes = skips;
        followers.rounds(1);
        assert_eq!(store.contents().background_flushes, flushes);
    }
}

/// A pass that has read everything, and has taken this time.
fn completed_after(took: Duration) -> (Followers, Option<u64>) {
    let mut followers = Followers::new(&[0]);
    followers.commit(4, 0);
    followers.rounds(1);
    followers.until_reading();
    followers.world.clock.advance(took);
    followers.rounds(1);
    let step = followers.store().contents().state.as_ref().map(|state| state.step);
    (followers, step)
}

#[test]
fn a_pass_that_took_so_long_that_the_ledger_may_be_compacted_is_not_used() {
    let pass_max = SECOND * 60 * 30;
    let (_followers, step) = completed_after(pass_max);
    assert_eq!(step, Some(4));
    let (followers, step) = completed_after(pass_max + MS);
    assert_eq!(step, None);
    assert_eq!(followers.world.stores.calls().last().unwrap(), "wipe 0");
    assert!(matches!(followers.job.stores.take(0), TakenStore::Closed));
}

#[test]
fn a_pass_over_a_partition_that_is_assigned_to_this_process_is_abandoned() {
    let mut followers = Followers::new(&[0]);
    followers.commit(4, 8);
    followers.rounds(1);
    followers.until_reading();
    assert!(matches!(followers.job.stores.take(0), TakenStore::InUse));
    assert!(matches!(followers.job.step(&mut ()), JobStep::Continue));
    assert!(followers.job.running.is_none());
    assert!(matches!(followers.job.stores.take(0), TakenStore::Open(_)));
    assert_eq!(followers.world.triggers.calls(), ["stop o.triggers[0]"]);
    assert_eq!(followers.store().contents().state, None, "as the last complete pass has left it");
}

#[test]
fn a_pass_that_waits_for_a_transaction_pauses() {
    let mut followers = Followers::new(&[0]);
    followers.commit(4, 0);
    let bounds = TestBounds { stable: 2, ..TestBounds::whole(0, 3) };
    followers.world.cluster.set("o.ledger", 0, bounds);
    followers.rounds(1);
    followers
        .world
        .signals_and_ledger
        .reading()
        .events
        .push_back(crate::environment::log::LogEvent::End(0));
    assert_eq!(followers.round(), POLL);
}

#[test]
fn without_a_cursor_that_is_known_nothing_is_read_and_the_store_stays() {
    let unknown = Some((3, "orloj9;".to_owned()));
    for committed in [None, unknown] {
        let mut followers = Followers::new(&[0]);
        followers.commit(4, 0);
        followers.group.answers().committed = committed;
        followers.rounds(3);
        assert_eq!(followers.world.stores.calls(), ["open 0"]);
        assert_eq!(followers.store().contents().state, None);
        assert!(matches!(followers.job.stores.take(0), TakenStore::Open(_)));
    }
}

#[test]
fn a_followed_store_that_fails_is_deleted_and_that_of_a_pass_without_answers_is_not() {
    for store_fails in [true, false] {
        let mut followers = Followers::new(&[0]);
        followers.commit(4, 0);
        followers.rounds(1);
        let _opened = followers.job.step(&mut ());
        if store_fails {
            followers.store().contents().fails = true;
        } else {
            followers.world.cluster = TestEnvironment::default().cluster;
            followers.job.cluster = followers.world.cluster.clone();
        }
        let _calls = followers.world.stores.calls();
        followers.rounds(1);
        let wipes = if store_fails { vec!["wipe 0"] } else { vec![] };
        assert_eq!(followers.world.stores.calls(), wipes);
        let is_open = matches!(followers.job.stores.take(0), TakenStore::Open(_));
        assert_eq!(is_open, !store_fails);
    }
}

#[test]
fn a_store_that_cannot_be_opened_is_deleted_and_followed_again() {
    let mut followers = Followers::new(&[0]);
    followers.world.stores.contents().fails = true;
    followers.rounds(2);
    assert_eq!(followers.world.stores.calls(), ["open 0", "wipe 0"]);
    followers.world.stores.contents().fails = false;
    followers.rounds(1);
    assert_eq!(followers.world.stores.calls(), ["open 0"]);
}

#[test]
fn the_standby_ends_with_the_loop() {
    let mut followers = Followers::new(&[0]);
    followers.job.stores.close();
    assert!(matches!(followers.job.step(&mut ()), JobStep::Done(())));
}

#[test]
fn the_loop_takes_a_store_from_the_standby_and_gives_it_back() {
    let world = TestEnvironment::default();
    world.hold("standby");
    let mut standby = start(&world, &TestGroup::default());
    assert!(matches!(standby.take(0), TakenStore::Closed));
    assert!(standby.stores.is_taken(0));
    standby.give_back(0);
    assert!(!standby.stores.is_taken(0));
    let stores = Arc::clone(&standby.stores);
    drop(standby);
    assert!(stores.is_closed());
}

/// A scheduler with a standby, to which a test gives stores, and which owns nothing.
fn scheduler(
    world: &TestEnvironment,
) -> (Scheduler<TestEnvironment>, Arc<StandbyStores<TestStore>>) {
    world.clock.set(NOW);
    world.hold("standby");
    let standby = start(world, &TestGroup::default());
    let stores = Arc::clone(&standby.stores);
    let mut scheduler = world.scheduler();
    scheduler.standby = Some(standby);
    (scheduler, stores)
}

/// A store that a pass has left at step 0.
fn followed_store() -> Arc<TestStore> {
    let store = TestStore::default();
    let local = LocalCheckpoint {
        applied_until: 0,
        step: 0,
        ledger_position: 0,
        fired_through: TimelineKey::MIN,
    };
    store.contents().state = Some(local_state(local, "here", NOW));
    Arc::new(store)
}

#[test]
fn a_takeover_begins_with_the_store_of_the_standby() {
    let world = TestEnvironment::default();
    let (mut scheduler, stores) = scheduler(&world);
    stores.put(0, followed_store());
    scheduler.take_over(0).unwrap();
    assert_eq!(scheduler.tasks.len(), 1);
    assert_eq!(world.stores.calls(), [""; 0], "it is open");
    assert!(stores.is_taken(0));
    scheduler.release(&[0]).unwrap();
    assert!(stores.is_taken(0), "a job closes it");
    scheduler.take_awaited_stores().unwrap();
    assert!(!stores.is_taken(0), "the standby may follow it");
}

#[test]
fn a_takeover_waits_for_a_store_that_the_standby_is_using_and_counts_from_the_assignment() {
    let world = TestEnvironment::default();
    let (mut scheduler, stores) = scheduler(&world);
    assert!(matches!(stores.begin(0), FollowedStore::Closed));
    world.clock.advance(SECOND);
    scheduler.take_over(0).unwrap();
    for _ in 0..3 {
        world.clock.advance(SECOND);
        scheduler.take_awaited_stores().unwrap();
        assert_eq!((scheduler.tasks.len(), scheduler.awaited_stores.len()), (0, 1));
        assert!(scheduler.awaited_stores.has_jobs());
    }
    stores.put(0, followed_store());
    scheduler.take_awaited_stores().unwrap();
    assert_eq!((scheduler.tasks.len(), scheduler.awaited_stores.len()), (1, 0));
    assert_eq!(scheduler.tasks[&0].takeover_started_at, SECOND);
    assert_eq!(world.stores.calls(), [""; 0]);
}

#[test]
fn a_store_whose_partition_is_released_while_the_loop_waits_for_it_stays_with_the_standby() {
    let world = TestEnvironment::default();
    let (mut scheduler, stores) = scheduler(&world);
    assert!(matches!(stores.begin(0), FollowedStore::Closed));
    scheduler.take_over(0).unwrap();
    scheduler.release(&[0]).unwrap();
    assert_eq!(scheduler.awaited_stores.len(), 0);
    assert!(!stores.is_taken(0));
    stores.put(0, followed_store());
    scheduler.take_awaited_stores().unwrap();
    assert_eq!(scheduler.tasks.len(), 0);
}

#[test]
fn a_store_that_is_being_opened_is_given_back_to_the_standby_when_it_is_closed_again() {
    let world = TestEnvironment::default();
    let (mut scheduler, stores) = scheduler(&world);
    scheduler.take_over(0).unwrap();
    scheduler.release(&[0]).unwrap();
    assert!(stores.is_taken(0), "a job is opening it");
    scheduler.take_awaited_stores().unwrap();
    assert!(!stores.is_taken(0));
}
