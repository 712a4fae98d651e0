//! A thread that works for as long as its value lives.
//!
//! Invariant: the thread has ended when its value is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

pub(crate) struct BackgroundThread {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundThread {
    /// `work` ends soon after its argument is set.
    pub(crate) fn start(work: impl FnOnce(&AtomicBool) + Send + 'static) -> Self {
        let ended = Arc::<AtomicBool>::default();
        let end = Arc::clone(&ended);
        Self { ended, thread: Some(thread::spawn(move || work(&end))) }
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
