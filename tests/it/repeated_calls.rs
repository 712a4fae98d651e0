//! A call to Kafka that is made again and again beside Orloj: how long it takes.
//!
//! Invariant: the next call begins when the one before has returned.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use orloj::clock;

use crate::background_thread::BackgroundThread;
use crate::wait::{until, within};

/// Pause between two calls: they are not to take the processors from what they are compared with.
const PAUSE: Duration = Duration::from_millis(100);
const DEADLINE: Duration = Duration::from_secs(120);

/// When a call began, in ms since the epoch, and how long it took, in ms.
type Times = Arc<Mutex<Vec<(u64, u64)>>>;

/// The calls; they end with their value.
pub(crate) struct RepeatedCalls {
    what: &'static str,
    times: Times,
    _thread: BackgroundThread,
}

impl RepeatedCalls {
    /// Starts to call `call`, and waits until it has returned once.
    pub(crate) fn start(what: &'static str, mut call: impl FnMut() + Send + 'static) -> Self {
        let times = Times::default();
        let known = Arc::clone(&times);
        let thread = BackgroundThread::start(move |stop| {
            while !stop.load(Relaxed) {
                let began = clock::now_ms();
                call();
                let time = (began, clock::now_ms().saturating_sub(began));
                known.lock().unwrap_or_else(PoisonError::into_inner).push(time);
                let _stopped = within(PAUSE, || stop.load(Relaxed).then_some(()));
            }
        });
        let calls = Self { what, times, _thread: thread };
        until(what, DEADLINE, || calls.last_began());
        calls
    }

    /// How long one took at most, in ms, of those that were in progress at a time in `times`, in ms
    /// since the epoch, once each that began before now has returned.
    pub(crate) fn longest_in(&self, times: Range<u64>) -> u64 {
        self.took_in(times).into_iter().max().unwrap_or(0)
    }

    /// How long one and the next took together at most, without the pause between them, in ms, if
    /// both were in progress at a time in `times`.
    pub(crate) fn longest_two_in(&self, times: Range<u64>) -> u64 {
        let took = self.took_in(times);
        took.windows(2).map(|two| two.iter().sum()).max().unwrap_or(0)
    }

    fn took_in(&self, times: Range<u64>) -> Vec<u64> {
        self.catch_up();
        let all = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let is_counted =
            |(began, took): &&(u64, u64)| *began < times.end && began + took >= times.start;
        all.iter().filter(is_counted).map(|(_, took)| *took).collect()
    }

    /// Waits until each that began before now has returned.
    pub(crate) fn catch_up(&self) {
        let now = clock::now_ms();
        until(self.what, DEADLINE, || self.last_began().filter(|began| *began > now));
    }

    fn last_began(&self) -> Option<u64> {
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.last().map(|(began, _)| *began)
    }
}
