//! The shutdown of a worker: what is in progress is finished, and its progress committed.
//!
//! Invariant: what has ended is committed before the partitions move, and a shutdown ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::callback::{FirePlace, WorkerEnvironment};
use super::circuit::Route;
use super::deferral::DeferralCause;
use super::dispatch::WaitingFire;
use super::in_progress::InProgress;
use super::queue::QueueBounds;
use super::results::RESULTS_MAX;
use super::{BUSY_WAIT, Worker, WorkerLoopError};
use crate::environment::Clock as _;
use crate::model::PartitionId;

/// One in so many of the fires and bytes that may wait are kept for next owners besides those.
const HELD_PART: usize = 4;
/// How long the last transaction may take beyond the time for the callbacks.
const LAST_COMMIT_MAX: Duration = Duration::from_secs(10);

/// A shutdown in progress. Times are of the monotonic clock.
#[derive(Debug)]
pub(super) struct Leaving {
    began_at: Duration,
    /// When the callbacks in progress are not waited for any longer.
    drain_end: Duration,
    /// No further callback starts, and nothing more is read.
    is_closed: bool,
    /// Where a callback was slow: none starts there any more.
    slow_routes: BTreeSet<Route>,
    /// Slow callbacks that have started earlier are in `slow_routes`.
    checked_to: Duration,
    /// Fires of those routes, by partition. They stay open: its next owner makes them.
    held: BTreeMap<PartitionId, Vec<WaitingFire>>,
    held_bytes: usize,
    /// The last transaction was started.
    is_final: bool,
}

impl Leaving {
    fn new(began_at: Duration, drain_max: Duration) -> Self {
        Self {
            began_at,
            drain_end: began_at + drain_max,
            is_closed: true,
            slow_routes: BTreeSet::new(),
            checked_to: Duration::ZERO,
            held: BTreeMap::new(),
            held_bytes: 0,
            is_final: false,
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Keeps a fire for the next owner of its partition; returns it if there is no room.
    fn hold(&mut self, waiting: WaitingFire, queue: QueueBounds) -> Result<(), WaitingFire> {
        let (fires, bytes) = self.held();
        let has_room =
            fires < queue.fires / HELD_PART && bytes + waiting.bytes <= queue.bytes / HELD_PART;
        if !has_room {
            return Err(waiting);
        }
        self.held_bytes += waiting.bytes;
        self.held.entry(waiting.place.partition).or_default().push(waiting);
        Ok(())
    }

    /// How many fires are kept, and their bytes.
    pub(super) fn held(&self) -> (usize, usize) {
        (self.held.values().map(Vec::len).sum(), self.held_bytes)
    }

    /// Removes those of a partition for which `matches` holds.
    pub(super) fn withdraw(
        &mut self,
        partition: PartitionId,
        matches: impl Fn(&WaitingFire) -> bool,
    ) -> Vec<WaitingFire> {
        let Some(held) = self.held.get_mut(&partition) else { return Vec::new() };
        let withdrawn: Vec<_> = held.extract_if(.., |it| matches(it)).collect();
        self.held_bytes -= withdrawn.iter().map(|it| it.bytes).sum::<usize>();
        withdrawn
    }

    /// Opens for as long as a callback is in progress that has started `slow` ago. Those that start
    /// then and are quick have ended by the time at which none is awaited any longer.
    fn update(&mut self, now: Duration, slow: Duration, in_progress: &InProgress) {
        let started = now.saturating_sub(slow);
        let is_slow = in_progress.earliest().is_some_and(|earliest| earliest <= started);
        self.is_closed = !is_slow || self.is_final || now + slow >= self.drain_end;
        if is_slow {
            let routes = in_progress.routes(self.checked_to, started);
            self.slow_routes.extend(routes.cloned());
            self.checked_to = started;
        }
    }
}

impl<E: WorkerEnvironment> Worker<E> {
    /// Whether no callback starts on this route because the worker is shutting down.
    pub(super) fn is_left_to_others(&self, route: &Route) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| leaving.slow_routes.contains(route))
    }

    /// Keeps a fire of such a route until its partition moves: then its next owner makes it at
    /// once, and until then a cancel withdraws it. Without room, here or in the window of its
    /// partition, it goes back to its owner, and returns in seconds.
    pub(super) fn leave_to_others(&mut self, waiting: WaitingFire) {
        let FirePlace { partition, epoch, offset } = waiting.place;
        let owned = self.partitions.get_mut(&partition);
        let running = owned.and_then(|owned| owned.in_epoch(epoch));
        let may_wait = running.is_some_and(|running| running.progress.may_wait(offset));
        let held = match &mut self.leaving {
            Some(leaving) if may_wait => leaving.hold(waiting, self.config.queue),
            _ => Err(waiting),
        };
        if let Err(waiting) = held {
            self.defer_in_shutdown(waiting);
        }
    }

    /// Sends a fire back to its owner.
    pub(super) fn defer_in_shutdown(&mut self, waiting: WaitingFire) {
        let now = self.clock.monotonic();
        let lasted = self.leaving.as_ref().map_or(Duration::ZERO, |it| now - it.began_at);
        self.defer(waiting, DeferralCause::ShuttingDown(lasted));
    }

    /// One turn of a process that is shutting down: waits for the callbacks in progress and commits
    /// their results. Returns whether it may end. When its member is dropped, it leaves the group,
    /// which moves the partitions to the other members at once: they make the callbacks that wait.
    ///
    /// A member has all its partitions until it leaves. While a slow callback is waited for, those
    /// of other receivers go on, so that it delays none of them.
    pub fn leave(&mut self) -> Result<bool, WorkerLoopError> {
        let (now, slow) = (self.clock.monotonic(), self.config.timing.slow_callback);
        let drain_max = self.config.drain_max;
        let leaving = self.leaving.get_or_insert_with(|| Leaving::new(now, drain_max));
        leaving.update(now, slow, &self.in_progress);
        let drain_end = leaving.drain_end;
        if now >= drain_end + LAST_COMMIT_MAX {
            return Ok(true);
        }
        self.report_readiness();
        if self.queue.in_progress() > 0 && now < drain_end {
            self.poll_once()?;
            return Ok(false);
        }
        self.commit_last()
    }

    /// Commits what is known. Returns whether that is done.
    fn commit_last(&mut self) -> Result<bool, WorkerLoopError> {
        if !self.transaction.is_idle() {
            self.poll_transaction()?;
            self.read(BUSY_WAIT)?; // waits for a callback at most
            return Ok(false);
        }
        // Changes of circuits that cannot be written now are not waited for.
        let is_left_out = self.results.has_only_circuits() && !self.left_out().is_empty();
        let is_final = self.leaving.as_ref().is_some_and(|leaving| leaving.is_final);
        if is_final && (self.results.is_empty() || is_left_out) {
            return Ok(true);
        }
        self.process_ended();
        if self.results.waiting() > RESULTS_MAX && self.commit() {
            return Ok(false);
        }
        self.circuits.forget_all("the worker has ended");
        self.update_circuits();
        self.prepare_final_commit(|_| true);
        if let Some(leaving) = &mut self.leaving {
            leaving.is_final = true;
        }
        // The member releases the partitions when it leaves the group.
        if self.commit() {
            return Ok(false);
        }
        let may_commit = !self.partitions.is_empty() && !self.results.is_empty();
        if may_commit {
            self.poll_once()?; // the group may give metadata later
        }
        Ok(!may_commit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::schemas::Schemas;
    use crate::engine::assignment::AssignmentChange;
    use crate::model::Offset;
    use crate::model::definition::HttpTarget;
    use crate::model::fire::{Fire, Withdrawal};
    use crate::test_environment::cluster::TestBounds;
    use crate::test_environment::reader::TestRecord;
    use crate::test_environment::{NOW, TestEnvironment};
    use crate::worker::config::WorkerConfig;
    use crate::worker::fetched_record::FetchedRecord;
    use crate::worker::progress::{OPEN_MAX, WINDOW_MAX};
    use crate::worker::test_worker::{
        FIRES, TestCallbacks, TestWorker, config, fire, offsets, record, topics, worker_with,
    };

    /// Time for what hangs.
    const DRAIN_MAX: Duration = Duration::from_secs(30);

    /// A worker whose host `slow` hangs, and which is about to read a fire for it at offset 0.
    fn worker(world: &TestEnvironment, queue: QueueBounds) -> (TestWorker, TestCallbacks) {
        let config = WorkerConfig { drain_max: DRAIN_MAX, queue, ..config() };
        let (worker, callbacks) = worker_with(world, config);
        callbacks.hang_at(&["slow"]);
        world.triggers.returns([record(0, NOW, &fire_at("slow", "first"))]);
        (worker, callbacks)
    }

    /// A fire for a receiver at this host.
    fn fire_at(host: &str, trigger: &str) -> Fire {
        let mut fire = fire(trigger, 1);
        fire.definition.target = HttpTarget::post(&format!("http://{host}/")).into();
        fire
    }

    /// Room for all fires of a test.
    fn large_queue() -> QueueBounds {
        QueueBounds { fires: 100 * OPEN_MAX, ..config().queue }
    }

    /// Turns of the shutdown; whether it has ended.
    fn leave(worker: &mut TestWorker) -> bool {
        (0..20).any(|_| worker.leave().unwrap())
    }

    /// Turns of the loop, and some of the shutdown; whether it has ended.
    fn run_until_leaving(worker: &mut TestWorker) -> bool {
        (0..20).for_each(|_| worker.poll_once().unwrap());
        leave(worker)
    }

    /// The same, which has been shutting down for a second and waits for that host.
    fn leaving_worker(world: &TestEnvironment, queue: QueueBounds) -> (TestWorker, TestCallbacks) {
        let (mut worker, callbacks) = worker(world, queue);
        assert!(!run_until_leaving(&mut worker));
        world.clock.advance(Duration::from_secs(1));
        (worker, callbacks)
    }

    #[test]
    fn a_callback_that_hangs_delays_no_other_of_a_worker_that_ends() {
        let world = TestEnvironment::default();
        let (mut worker, callbacks) = leaving_worker(&world, config().queue);
        assert_eq!(callbacks.requested(), ["first"]);
        let next = [fire_at("slow", "second"), fire_at("quick", "third")];
        let next: Vec<_> = (1..).zip(&next).map(|(at, fire)| record(at, NOW, fire)).collect();
        world.triggers.returns(next);
        assert!(!leave(&mut worker));
        assert_eq!(callbacks.requested(), ["third"], "that host has still to answer");
        assert_eq!(topics(&world), ["o.outcomes"], "it does not return later than the worker ends");

        callbacks.hang_at(&[]);
        assert!(leave(&mut worker));
        assert_eq!(callbacks.requested().len(), 0);
        assert_eq!(offsets(&world).last(), Some(&(0, 1)), "the next owner makes it");
    }

    #[test]
    fn a_cancel_withdraws_what_a_worker_that_ends_leaves_to_others() {
        // No other worker can have started it: the log ended before it.
        let second = record(200, NOW, &fire_at("slow", "second"));
        let world = TestEnvironment::default();
        let bytes = HELD_PART * FetchedRecord::of(&second).bytes();
        let queue = QueueBounds { bytes, ..config().queue };
        let (mut worker, callbacks) = leaving_worker(&world, queue);
        let cancel = Withdrawal { trigger: "second".into(), cancel: 2 };
        let value = Some(Schemas::new().encode_withdrawal(&cancel));
        let cancel = TestRecord { offset: 201, value, ..second.clone() };
        let third = record(202, NOW, &fire_at("slow", "third"));
        world.triggers.returns([second, cancel, third]);
        assert!(!leave(&mut worker));
        assert!(!topics(&world).contains(&"o.signals".to_owned()), "its bytes are free");
        callbacks.hang_at(&[]);
        assert!(leave(&mut worker));
        assert_eq!(callbacks.requested(), ["first"]);
        assert_eq!(offsets(&world).last(), Some(&(0, 202)), "the next owner makes the third");
    }

    #[test]
    fn what_a_worker_that_ends_has_no_room_for_goes_back_to_its_owner() {
        let record_bytes = FetchedRecord::of(&slow(1, 1).next().unwrap()).bytes();
        let fires = QueueBounds { fires: HELD_PART, ..config().queue };
        let bytes = QueueBounds { bytes: HELD_PART * record_bytes, ..config().queue };
        for queue in [fires, bytes] {
            let world = TestEnvironment::default();
            let (mut worker, callbacks) = leaving_worker(&world, queue);
            world.triggers.returns(slow(1, 2));
            assert!(!leave(&mut worker));
            assert_eq!(topics(&world), ["o.signals"], "{queue:?}");
            callbacks.hang_at(&[]);
            assert!(leave(&mut worker));
            assert_eq!(offsets(&world).last(), Some(&(0, 1)), "one is left to the next owner");
        }
    }

    /// Fires for the host that hangs, from this offset on.
    fn slow(from: Offset, count: usize) -> impl Iterator<Item = TestRecord> {
        (from..).take(count).map(|at| record(at, NOW, &fire_at("slow", &at.to_string())))
    }

    /// Turns of the shutdown, which does not end. Returns how many fires went back to their owner.
    fn deferred(world: &TestEnvironment, worker: &mut TestWorker) -> usize {
        assert!(!(0..200).any(|_| leave(worker)));
        topics(world).iter().filter(|topic| *topic == "o.signals").count()
    }

    #[test]
    fn a_worker_that_ends_keeps_fires_in_half_of_the_window_of_their_partition() {
        let world = TestEnvironment::default();
        let (mut worker, _callbacks) = leaving_worker(&world, large_queue());
        let half = WINDOW_MAX / 2;
        world.triggers.returns(slow(1, 2 * OPEN_MAX).chain(slow(half, 2)));
        assert_eq!(deferred(&world, &mut worker), 1);
    }

    #[test]
    fn a_worker_that_ends_keeps_half_of_the_open_fires_beyond_that_window() {
        let world = TestEnvironment::default();
        let (mut worker, callbacks) = leaving_worker(&world, large_queue());
        world.triggers.returns(slow(WINDOW_MAX, OPEN_MAX / 2 - 1));
        assert_eq!(deferred(&world, &mut worker), 0);
        let last = record(2 * WINDOW_MAX, NOW, &fire_at("quick", "last"));
        world.triggers.returns(slow(WINDOW_MAX + 500, OPEN_MAX / 2).chain([last]));
        assert_eq!(deferred(&world, &mut worker), OPEN_MAX / 2);
        assert_eq!(callbacks.requested(), ["first", "last"]);
    }

    #[test]
    fn what_a_worker_that_ends_keeps_goes_back_when_its_partition_cannot_be_read() {
        let world = TestEnvironment::default();
        let (mut worker, callbacks) = leaving_worker(&world, large_queue());
        let last = WINDOW_MAX + 1;
        world.triggers.returns(slow(1, OPEN_MAX).chain([record(
            last,
            NOW,
            &fire_at("quick", "last"),
        )]));
        assert_eq!(deferred(&world, &mut worker), OPEN_MAX);
        assert!(world.triggers.calls().contains(&format!("start {FIRES}[0] at {last}")));
        world.triggers.returns([record(last, NOW, &fire_at("quick", "last"))]);
        assert_eq!(deferred(&world, &mut worker), OPEN_MAX);
        assert_eq!(callbacks.requested(), ["first", "last"]);
    }

    #[test]
    fn what_waits_for_its_turn_does_not_go_back_with_what_a_worker_that_ends_keeps() {
        const CONCURRENT: usize = 100;
        let world = TestEnvironment::default();
        let (mut worker, callbacks) = leaving_worker(&world, large_queue());
        callbacks.hang_at(&["slow", "busy"]);
        let busy = (1..).take(CONCURRENT).map(|at| record(at, NOW, &fire_at("busy", "busy")));
        let kept = slow(CONCURRENT as Offset + 1, OPEN_MAX);
        let last = record(WINDOW_MAX + 1, NOW, &fire_at("quick", "last"));
        world.triggers.returns(busy.chain(kept).chain([last]));
        assert_eq!(deferred(&world, &mut worker), OPEN_MAX);
        assert_eq!(worker.queue.waiting(), 1, "one of its caller has not ended");
    }

    #[test]
    fn a_worker_that_ends_starts_no_callback_that_it_could_not_await() {
        let world = TestEnvironment::default();
        let (mut worker, callbacks) = worker(&world, config().queue);
        assert!(!run_until_leaving(&mut worker));
        world.clock.advance(DRAIN_MAX - Duration::from_secs(1));
        world.triggers.returns([record(1, NOW, &fire_at("quick", "second"))]);
        assert!(!leave(&mut worker));
        world.clock.advance(Duration::from_secs(1));
        assert!(leave(&mut worker), "the first one is not waited for any longer");
        assert_eq!(callbacks.requested(), ["first"]);
        assert_eq!(offsets(&world).last(), Some(&(0, 0)), "both are left to the next owner");
    }

    #[test]
    fn partitions_that_are_assigned_during_the_shutdown_are_read() {
        let world = TestEnvironment::default();
        let (mut worker, callbacks) = leaving_worker(&world, config().queue);
        world.cluster.set(FIRES, 1, TestBounds::whole(0, 100));
        let assigned = AssignmentChange::Assigned(vec![1]);
        world.member.membership().polls.push_back(Ok(vec![assigned]));
        assert!(!leave(&mut worker));
        let second = TestRecord { partition: 1, ..record(0, NOW, &fire_at("quick", "second")) };
        world.triggers.returns([second]);
        assert!(!leave(&mut worker));
        assert_eq!(callbacks.requested(), ["first", "second"]);
    }
}
