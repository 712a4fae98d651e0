//! Job queues with threads.
//!
//! Invariant: the jobs of one thread run one after the other, in the order of submission. Threads
//! end with the process, or when their queue is dropped; a job that pauses then does not go on. A
//! thread that cannot be started is started later.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::environment::job::{Job, JobQueue, JobStep, Threads};

/// A queue of jobs.
pub(crate) struct ThreadQueue<J: Job> {
    jobs: JobSender<J>,
    outputs: Receiver<JobEnd<J::Output>>,
    in_flight: usize,
    _is_open: OpenFlag,
}

/// True until the queue is dropped.
struct OpenFlag(Arc<AtomicBool>);

impl Drop for OpenFlag {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl<J: Job> std::fmt::Debug for ThreadQueue<J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadQueue").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

/// How a job has ended.
#[derive(Debug)]
enum JobEnd<T> {
    Done(T),
    /// It has panicked, which has ended its thread.
    Panicked,
}

/// Reports the panic of a thread, which other threads of the queue would hide.
struct PanicReport<'a, T>(&'a Sender<JobEnd<T>>);

impl<T> Drop for PanicReport<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _is_open = self.0.send(JobEnd::Panicked).is_ok();
        }
    }
}

/// The output of a job. Panics if the job has.
fn output<T>(end: JobEnd<T>) -> T {
    match end {
        JobEnd::Done(output) => output,
        JobEnd::Panicked => panic!("a thread of this queue has panicked"),
    }
}

/// Where jobs are submitted.
enum JobSender<J: Job> {
    /// To threads that run all the time.
    Threads(Sender<J>),
    /// To a new thread for each job.
    PerJob { starter: ThreadStarter<J>, waiting: VecDeque<JobSlot<J>> },
}

/// Starts a thread, which takes the job out of its slot.
type ThreadStarter<J> = Box<dyn Fn(&JobSlot<J>) -> io::Result<()> + Send>;

/// A job until its thread runs.
type JobSlot<J> = Arc<Mutex<Option<J>>>;

impl<J: Job> JobSender<J> {
    fn submit(&mut self, job: J) {
        match self {
            Self::Threads(jobs) => {
                let sent = jobs.send(job);
                assert!(sent.is_ok(), "the threads run as long as their queue");
            }
            Self::PerJob { waiting, .. } => {
                waiting.push_back(Arc::new(Mutex::new(Some(job))));
                self.start_waiting();
            }
        }
    }

    /// Starts threads for the jobs that wait for one, in the order of submission.
    fn start_waiting(&mut self) {
        let Self::PerJob { starter, waiting } = self else { return };
        while let Some(job) = waiting.front() {
            if let Err(error) = starter(job) {
                tracing::warn!(%error, "a thread cannot be started; trying again");
                return;
            }
            let _started = waiting.pop_front();
        }
    }
}

impl<J: Job> ThreadQueue<J> {
    /// Starts the threads.
    pub(crate) fn start(
        name: &'static str,
        threads: Threads,
        worker: impl Fn() -> J::Worker + Send + Sync + 'static,
    ) -> Self {
        let (outbox, outputs) = channel();
        let (worker, is_open) = (Arc::new(worker), Arc::new(AtomicBool::new(true)));
        let flag = OpenFlag(Arc::clone(&is_open));
        let ends = JobEnds { outbox, is_open };
        let jobs = match threads {
            Threads::Fixed(count) => {
                let (jobs, inbox) = channel();
                let inbox = Arc::new(Mutex::new(inbox));
                for _ in 0..count {
                    let (inbox, ends) = (Arc::clone(&inbox), ends.clone());
                    let worker = Arc::clone(&worker);
                    spawn(name, move || run_jobs(&inbox, &ends, &mut worker()))
                        .expect("a thread can be started");
                }
                JobSender::Threads(jobs)
            }
            Threads::PerJob => Self::per_job(Box::new(move |job| {
                let (job, ends, worker) = (Arc::clone(job), ends.clone(), Arc::clone(&worker));
                spawn(name, move || {
                    let job = job.lock().unwrap_or_else(PoisonError::into_inner).take();
                    let job = job.expect("one thread is started for a job");
                    let _is_open = run_job(job, &mut worker(), &ends);
                })
            })),
        };
        Self { jobs, outputs, in_flight: 0, _is_open: flag }
    }

    fn per_job(starter: ThreadStarter<J>) -> JobSender<J> {
        JobSender::PerJob { starter, waiting: VecDeque::new() }
    }
}

impl<J: Job> JobQueue<J> for ThreadQueue<J> {
    fn submit(&mut self, job: J) {
        self.in_flight += 1;
        self.jobs.submit(job);
    }

    fn poll(&mut self, timeout: Duration) -> Option<J::Output> {
        self.jobs.start_waiting();
        let output = match self.outputs.recv_timeout(timeout) {
            Ok(end) => output(end),
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => panic!("a thread of this queue has panicked"),
        };
        self.in_flight -= 1;
        Some(output)
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn drain(&mut self) -> Vec<J::Output> {
        self.jobs.start_waiting();
        let outputs: Vec<_> = self.outputs.iter().take(self.in_flight).map(output).collect();
        self.in_flight -= outputs.len();
        outputs
    }
}

/// Where the jobs of a queue end.
struct JobEnds<T> {
    outbox: Sender<JobEnd<T>>,
    is_open: Arc<AtomicBool>,
}

impl<T> Clone for JobEnds<T> {
    fn clone(&self) -> Self {
        Self { outbox: self.outbox.clone(), is_open: Arc::clone(&self.is_open) }
    }
}

fn run_jobs<J: Job>(inbox: &Mutex<Receiver<J>>, ends: &JobEnds<J::Output>, worker: &mut J::Worker) {
    loop {
        let next = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        if !run_job(job, worker, ends) {
            return;
        }
    }
}

/// Returns whether the queue still exists.
fn run_job<J: Job>(mut job: J, worker: &mut J::Worker, ends: &JobEnds<J::Output>) -> bool {
    let _report = PanicReport(&ends.outbox);
    loop {
        match job.step(worker) {
            JobStep::Continue => {}
            JobStep::Pause(pause) => {
                std::thread::sleep(pause);
                if !ends.is_open.load(Ordering::Relaxed) {
                    return false;
                }
            }
            JobStep::Done(output) => {
                let is_open = ends.outbox.send(JobEnd::Done(output)).is_ok();
                job.on_delivered();
                return is_open;
            }
        }
    }
}

/// Starts a thread that ends with the process or when its channel is closed. `top -H` shows its
/// name.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    let _detached = thread.spawn(run)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts down, then returns its number.
    struct Countdown {
        number: u32,
        steps: u32,
    }

    impl Job for Countdown {
        type Output = u32;
        type Worker = ();

        fn step(&mut self, (): &mut ()) -> JobStep<u32> {
            match self.steps.checked_sub(1) {
                None => JobStep::Done(self.number),
                Some(left) if left % 2 == 0 => {
                    self.steps = left;
                    JobStep::Pause(Duration::from_micros(1))
                }
                Some(left) => {
                    self.steps = left;
                    JobStep::Continue
                }
            }
        }
    }

    const DEADLINE: Duration = Duration::from_secs(60);

    #[test]
    fn outputs_arrive_once_and_in_the_order_of_submission() {
        let mut queue = ThreadQueue::start("countdown", Threads::Fixed(1), || ());
        for number in 0..5 {
            queue.submit(Countdown { number, steps: 5 - number });
        }
        assert_eq!(queue.poll(DEADLINE), Some(0));
        assert_eq!((queue.in_flight(), queue.drain()), (4, vec![1, 2, 3, 4]));
        assert_eq!(
            (queue.poll(Duration::ZERO), queue.drain()),
            (None, vec![]),
            "all were returned"
        );
    }

    #[test]
    fn a_thread_of_its_own_does_not_wait_for_the_others() {
        let mut queue = ThreadQueue::start("countdown", Threads::PerJob, || ());
        queue.submit(Countdown { number: 1, steps: u32::MAX });
        queue.submit(Countdown { number: 2, steps: 0 });
        assert_eq!(queue.poll(DEADLINE), Some(2));
        assert_eq!(queue.in_flight(), 1);
    }

    /// Pauses once, although its thread was unparked, as by the end of `std::thread::scope`.
    struct Unparked {
        paused_at: Option<std::time::Instant>,
    }

    impl Job for Unparked {
        type Output = Duration;
        type Worker = ();

        fn step(&mut self, (): &mut ()) -> JobStep<Duration> {
            if let Some(paused_at) = self.paused_at {
                return JobStep::Done(paused_at.elapsed());
            }
            std::thread::current().unpark();
            self.paused_at = Some(crate::clock::monotonic());
            JobStep::Pause(PAUSE)
        }
    }

    const PAUSE: Duration = Duration::from_millis(20);

    #[test]
    fn a_pause_is_not_shorter_than_requested() {
        let mut queue = ThreadQueue::start("unparked", Threads::PerJob, || ());
        queue.submit(Unparked { paused_at: None });
        assert!(queue.poll(DEADLINE).unwrap() >= PAUSE);
    }

    /// Panics.
    struct Panic;

    impl Job for Panic {
        type Output = ();
        type Worker = ();

        fn step(&mut self, (): &mut ()) -> JobStep<()> {
            panic!("a job of this test panics")
        }
    }

    #[test]
    #[should_panic(expected = "a thread of this queue has panicked")]
    fn a_panic_of_one_of_several_threads_is_noticed() {
        let mut queue = ThreadQueue::start("panic", Threads::Fixed(2), || ());
        queue.submit(Panic);
        let _output = queue.poll(Duration::from_secs(5));
    }

    #[test]
    #[should_panic(expected = "a thread of this queue has panicked")]
    fn a_panic_of_a_job_with_a_thread_of_its_own_is_noticed() {
        let mut queue = ThreadQueue::start("panic", Threads::PerJob, || ());
        queue.submit(Panic);
        let _output = queue.poll(Duration::from_secs(5));
    }

    /// Pauses again and again.
    struct Endless(#[expect(dead_code, reason = "closed when the job is dropped")] Sender<()>);

    impl Job for Endless {
        type Output = ();
        type Worker = ();

        fn step(&mut self, (): &mut ()) -> JobStep<()> {
            JobStep::Pause(Duration::from_millis(1))
        }
    }

    #[test]
    fn a_job_that_pauses_ends_with_its_queue() {
        for threads in [Threads::PerJob, Threads::Fixed(1)] {
            let (job, is_running) = channel();
            let mut queue = ThreadQueue::start("endless", threads, || ());
            queue.submit(Endless(job));
            assert_eq!(is_running.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Timeout));
            drop(queue);
            assert_eq!(is_running.recv_timeout(DEADLINE), Err(RecvTimeoutError::Disconnected));
        }
    }

    #[test]
    fn a_job_whose_thread_cannot_be_started_waits() {
        let (outbox, outputs) = channel();
        let ends = JobEnds { outbox, is_open: Arc::new(AtomicBool::new(true)) };
        let flag = OpenFlag(Arc::clone(&ends.is_open));
        let failures = Mutex::new(2);
        let jobs = ThreadQueue::<Countdown>::per_job(Box::new(move |job| {
            let mut failures = failures.lock().unwrap();
            if *failures > 0 {
                *failures -= 1;
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let job = job.lock().unwrap().take().unwrap();
            let _is_open = run_job(job, &mut (), &ends);
            Ok(())
        }));
        let mut queue = ThreadQueue { jobs, outputs, in_flight: 0, _is_open: flag };
        queue.submit(Countdown { number: 1, steps: 0 });
        queue.submit(Countdown { number: 2, steps: 0 });
        assert_eq!(queue.in_flight(), 2);
        assert_eq!((queue.poll(DEADLINE), queue.poll(DEADLINE)), (Some(1), Some(2)));
    }
}
