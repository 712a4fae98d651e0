//! The shutdown of a worker: what is in progress is finished, and its progress committed.
//!
//! Invariant: what has ended is committed before the partitions move, and a shutdown ends.

use std::time::Duration;

use super::callback::WorkerEnvironment;
use super::results::RESULTS_MAX;
use super::{BUSY_WAIT, Worker, WorkerLoopError};
use crate::environment::Clock as _;

/// How long the last transaction may take beyond the time for the callbacks.
const LAST_COMMIT_MAX: Duration = Duration::from_secs(10);

/// A shutdown in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    /// On the monotonic clock.
    began: Duration,
    /// The last transaction was started.
    is_final: bool,
}

impl<E: WorkerEnvironment> Worker<E> {
    /// One turn of a process that is shutting down: waits for the callbacks in progress and commits
    /// their results. Returns whether it may end. When its member is dropped, it leaves the group,
    /// which moves the partitions to the other members at once: they make the callbacks that wait.
    pub fn leave(&mut self) -> Result<bool, WorkerLoopError> {
        let now = self.clock.monotonic();
        let leaving = *self.leaving.get_or_insert(Leaving { began: now, is_final: false });
        let is_late = now >= leaving.began + self.config.drain_max;
        if now >= leaving.began + self.config.drain_max + LAST_COMMIT_MAX {
            return Ok(true);
        }
        self.report_readiness();
        if self.queue.in_progress() > 0 && !is_late {
            self.poll_once()?;
            return Ok(false);
        }
        if !self.transaction.is_idle() {
            self.poll_transaction()?;
            self.read(BUSY_WAIT)?; // waits for a callback at most
            return Ok(false);
        }
        // Changes of circuits that cannot be written now are not waited for.
        let is_left_out = self.results.has_only_circuits() && !self.left_out().is_empty();
        if leaving.is_final && (self.results.is_empty() || is_left_out) {
            return Ok(true);
        }
        self.process_ended();
        if self.results.waiting() > RESULTS_MAX && self.commit() {
            return Ok(false);
        }
        self.circuits.forget_all("the worker has ended");
        self.update_circuits();
        self.prepare_final_commit(|_| true);
        self.leaving = Some(Leaving { is_final: true, ..leaving });
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
    use super::super::config::WorkerConfig;
    use super::super::test_worker::{
        TestCallbacks, TestWorker, config, fire, offsets, record, topics, worker_with,
    };
    use super::*;
    use crate::model::definition::HttpTarget;
    use crate::model::fire::Fire;
    use crate::test_environment::{NOW, TestEnvironment};

    /// Time for what hangs.
    const DRAIN_MAX: Duration = Duration::from_secs(30);

    fn worker(world: &TestEnvironment) -> (TestWorker, TestCallbacks) {
        worker_with(world, WorkerConfig { drain_max: DRAIN_MAX, ..config() })
    }

    /// A fire for a receiver at this host.
    fn fire_at(host: &str, trigger: &str) -> Fire {
        let mut fire = fire(trigger, 1);
        fire.definition.target = HttpTarget::post(&format!("http://{host}/")).into();
        fire
    }

    /// Turns of the shutdown; whether it has ended.
    fn leave(worker: &mut TestWorker) -> bool {
        (0..20).any(|_| worker.leave().unwrap())
    }

    #[test]
    fn a_callback_that_hangs_delays_no_other_of_a_worker_that_ends() {
        let world = TestEnvironment::default();
        let (mut worker, callbacks) = worker(&world);
        callbacks.hang_at(&["slow"]);
        world.triggers.returns([record(0, NOW, &fire_at("slow", "first"))]);
        (0..20).for_each(|_| worker.poll_once().unwrap());
        assert_eq!(callbacks.requested(), ["first"]);
        assert!(!leave(&mut worker));

        world.clock.advance(Duration::from_secs(1));
        let next = [fire_at("slow", "second"), fire_at("quick", "third")];
        let next: Vec<_> = (1..).zip(&next).map(|(at, fire)| record(at, NOW, fire)).collect();
        world.triggers.returns(next);
        assert!(!leave(&mut worker));
        assert_eq!(callbacks.requested(), ["third"], "that host has still to answer");
        assert_eq!(topics(&world), ["o.signals", "o.outcomes"], "its owner fires it again");

        callbacks.hang_at(&[]);
        assert!(leave(&mut worker));
        assert_eq!((offsets(&world).last(), callbacks.requested().len()), (Some(&(0, 3)), 0));
    }
}
