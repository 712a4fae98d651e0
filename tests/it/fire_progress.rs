//! Whether fires go on: what each partition of a target has, read as its fires come.
//!
//! Invariant: a partition has caught up if something that was due later has fired, and at its time.
//! Before that the machine is busy with what was late, and the end of a fault would be measured
//! with its begin.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use orloj::clock;
use rdkafka::ClientConfig;
use rdkafka::message::Message as _;

use crate::background_thread::BackgroundThread;
use crate::records;
use crate::wait::until;

const POLL: Duration = Duration::from_millis(100);
/// What fires no later than this has been fired at its time, in ms. And what was due no later than
/// this after the begin of a fault may have been fired before it.
const LATE_MAX: u64 = 1_000;

/// Reads the fires of a target.
pub(crate) struct FireProgress {
    /// Of each partition, when the last one that fired was due, in ms since the epoch.
    last_due: Arc<[AtomicU64]>,
    _thread: BackgroundThread,
}

impl FireProgress {
    pub(crate) fn start(client: &ClientConfig, target: &str) -> Self {
        let (consumer, partitions) = records::reader(client, target);
        let last_due: Arc<[AtomicU64]> = (0..partitions).map(|_| AtomicU64::new(0)).collect();
        let seen = Arc::clone(&last_due);
        let thread = BackgroundThread::start(move |stop| {
            while !stop.load(Relaxed) {
                let Some(Ok(fire)) = consumer.poll(POLL) else { continue };
                let due = records::due_of(&fire.detach());
                seen[usize::try_from(fire.partition()).unwrap()].store(due, Relaxed);
            }
        });
        Self { last_due, _thread: thread }
    }

    /// Waits until each partition has caught up after a fault that starts now. `check` is called
    /// before each look.
    pub(crate) fn wait_until_caught_up(&self, deadline: Duration, mut check: impl FnMut()) {
        let began = clock::now_ms();
        until("all partitions to fire at their times", deadline, || {
            check();
            let since = (began + LATE_MAX).max(clock::now_ms() - LATE_MAX);
            self.last_due.iter().all(|due| due.load(Relaxed) >= since).then_some(())
        });
    }
}
