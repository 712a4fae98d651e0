//! Job queues whose steps the run chooses.
//!
//! Invariant: the jobs of one thread run one after the other, in the order of submission.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use orloj_core::environment::job::{Job, JobQueue, JobStep, Threads};
use orloj_core::model::Timestamp;

use super::SimulatedProcess;

/// A queue of which a step can be done.
pub(in crate::simulation) trait JobSteps {
    /// Whether there is a job.
    fn has_jobs(&self) -> bool;

    /// The name of its threads.
    fn name(&self) -> &'static str;

    /// Does a step of one of the jobs that run at the same time; `choice` says of which. Returns
    /// whether that job goes on at once.
    fn step(&mut self, choice: usize) -> bool;
}

/// A job, and what its last step waits for.
struct SimulatedJob<J: Job> {
    job: J,
    /// A call of it returns at this time, in ms since the epoch.
    blocked_until: Timestamp,
    /// What it results in then.
    output: Option<J::Output>,
}

/// The jobs of a queue, and their outputs.
struct SimulatedJobs<J: Job> {
    process: SimulatedProcess,
    name: &'static str,
    threads: Threads,
    worker: J::Worker,
    jobs: VecDeque<SimulatedJob<J>>,
    outputs: VecDeque<J::Output>,
}

impl<J: Job> JobSteps for SimulatedJobs<J> {
    fn has_jobs(&self) -> bool {
        !self.jobs.is_empty() && self.process.state().held_queue != Some(self.name)
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn step(&mut self, choice: usize) -> bool {
        let running = match self.threads {
            Threads::Fixed(threads) => threads.min(self.jobs.len()),
            Threads::PerJob => self.jobs.len(),
        };
        if running == 0 {
            return false;
        }
        let nth = choice % running;
        let (now, job) = (self.process.true_time(), &mut self.jobs[nth]);
        if now < job.blocked_until {
            return false;
        }
        if job.output.is_none() {
            {
                let mut state = self.process.state();
                (state.job, state.job_takes) = (self.name, Some(0));
            }
            let step = job.job.step(&mut self.worker);
            let mut state = self.process.state();
            state.job = "";
            let took = state.job_takes.take().unwrap_or(0);
            drop(state);
            job.blocked_until = now + took;
            let goes_on = matches!(step, JobStep::Continue) && took == 0;
            if let JobStep::Done(output) = step {
                job.output = Some(output);
            }
            if took > 0 || job.output.is_none() {
                return goes_on;
            }
        }
        let job = self.jobs.remove(nth).expect("it has just run");
        self.outputs.extend(job.output);
        job.job.on_delivered();
        false
    }
}

/// A queue of jobs.
pub(in crate::simulation) struct SimulatedQueue<J: Job> {
    process: SimulatedProcess,
    jobs: Rc<RefCell<SimulatedJobs<J>>>,
    in_flight: usize,
}

impl<J: Job> SimulatedQueue<J>
where
    J::Worker: 'static,
{
    pub(super) fn new(
        process: SimulatedProcess,
        name: &'static str,
        threads: Threads,
        worker: J::Worker,
    ) -> Self {
        let (jobs, outputs) = (VecDeque::new(), VecDeque::new());
        let of = process.clone();
        let jobs = SimulatedJobs { process: of, name, threads, worker, jobs, outputs };
        let jobs = Rc::new(RefCell::new(jobs));
        Self { process, jobs, in_flight: 0 }
    }

    pub(super) fn steps(&self) -> Rc<RefCell<dyn JobSteps>> {
        let jobs: Rc<RefCell<SimulatedJobs<J>>> = Rc::clone(&self.jobs);
        jobs
    }
}

impl<J: Job> JobQueue<J> for SimulatedQueue<J> {
    fn submit(&mut self, job: J) {
        self.in_flight += 1;
        let job = SimulatedJob { job, blocked_until: 0, output: None };
        self.jobs.borrow_mut().jobs.push_back(job);
    }

    /// While the loop waits, a job may go on, and time may pass.
    fn poll(&mut self, timeout: Duration) -> Option<J::Output> {
        if !timeout.is_zero() {
            let (steps, choice) = self.process.call(|cluster, _| {
                cluster.broker.now += u64::from(cluster.rng.one_in(4));
                (cluster.rng.below(3), cluster.rng.place(8))
            });
            for _ in 0..steps {
                let _goes_on = self.jobs.borrow_mut().step(choice);
            }
        }
        let mut jobs = self.jobs.borrow_mut();
        // A result may be late.
        let is_late = |process: &SimulatedProcess| {
            process.call(|cluster, state| cluster.rng.below(10) < state.late_of_ten)
        };
        if jobs.outputs.is_empty() || is_late(&self.process) {
            return None;
        }
        let output = jobs.outputs.pop_front()?;
        self.in_flight -= 1;
        Some(output)
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn drain(&mut self) -> Vec<J::Output> {
        let mut jobs = self.jobs.borrow_mut();
        while !jobs.jobs.is_empty() {
            let is_blocked = |job: &SimulatedJob<J>| job.blocked_until > 0;
            let waits = jobs.jobs.iter().all(is_blocked);
            let choice = self.process.call(|cluster, _| {
                cluster.broker.now += u64::from(waits);
                cluster.rng.place(8)
            });
            let _goes_on = jobs.step(choice);
        }
        self.in_flight = 0;
        jobs.outputs.drain(..).collect()
    }
}
