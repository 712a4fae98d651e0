//! Work beside the loop.
//!
//! Invariant: a job is a sequence of steps, and a process can die between any two. Its output is
//! delivered once, to the loop. In production threads run the steps; the simulation runs them in
//! an order of its own.

use std::time::Duration;

/// Work that the loop does not wait for.
pub trait Job: Send + 'static {
    /// What it results in.
    type Output: Send + 'static;
    /// What a thread keeps from one job to the next.
    type Worker: 'static;

    /// Does the next step.
    fn step(&mut self, worker: &mut Self::Worker) -> JobStep<Self::Output>;

    /// Called after the output was delivered, while the loop continues.
    fn on_delivered(self)
    where
        Self: Sized,
    {
    }
}

/// What a step has achieved.
#[derive(Debug)]
pub enum JobStep<T> {
    /// There are more steps.
    Continue,
    /// There are more steps, after this pause.
    Pause(Duration),
    /// It is done.
    Done(T),
}

/// How many jobs of a queue run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// At most so many; the jobs of one thread run in the order of submission.
    Fixed(usize),
    /// Each job has a thread of its own, because it may block for long.
    PerJob,
}

/// Jobs that were submitted, and the outputs of those that are done.
pub trait JobQueue<J: Job> {
    /// Submits a job.
    fn submit(&mut self, job: J);

    /// The next output; waits at most `timeout` for it.
    fn poll(&mut self, timeout: Duration) -> Option<J::Output>;

    /// How many jobs were submitted whose output was not returned yet.
    fn in_flight(&self) -> usize;

    /// Waits for all submitted jobs and returns their outputs.
    fn drain(&mut self) -> Vec<J::Output>;
}
