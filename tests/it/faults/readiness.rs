//! A probe that requests `/readyz` all the time, and checks whether the answers were correct.
//!
//! Invariant: a process that lets a fire wait for long has said meanwhile that it is not ready. One
//! that cannot be asked has said so, too.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orloj::clock;

use crate::audit::{AcknowledgedCommands, ObservedFire};
use crate::background_thread::BackgroundThread;
use crate::process::{self, OrlojProcess};
use crate::wait::within;

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(100);
/// A fire may be late by this much, in ms, while the process is ready: a transaction's timeout and
/// a margin.
const UNREPORTED_MAX_MS: u64 = 15_000;

/// What one process answered, for as long as this lives.
pub(super) struct ReadinessProbe {
    /// When it was not ready, in ms since the epoch.
    not_ready: Arc<Mutex<Vec<u64>>>,
    _thread: BackgroundThread,
}

impl ReadinessProbe {
    pub(super) fn of(process: &OrlojProcess) -> Self {
        let not_ready = Arc::<Mutex<Vec<u64>>>::default();
        let (noted, address) = (not_ready.clone(), process.address());
        let thread = BackgroundThread::start(move |ended| {
            while within(PAUSE, || ended.load(Relaxed).then_some(())).is_none() {
                let asked = clock::now_ms();
                if !process::is_ready(&address) {
                    noted.lock().unwrap().push(asked);
                }
            }
        });
        Self { not_ready, _thread: thread }
    }

    /// How often it was not ready.
    pub(super) fn not_ready(&self) -> usize {
        self.not_ready.lock().unwrap().len()
    }

    fn was_not_ready(&self, from: u64, until: u64) -> bool {
        self.not_ready.lock().unwrap().iter().any(|at| (from..=until).contains(at))
    }
}

/// Panics if a fire waited for long while every process called itself ready.
pub(super) fn assert_readiness_was_correct(
    probes: &[&ReadinessProbe],
    commands: &AcknowledgedCommands,
    fires: &[ObservedFire],
) {
    for fire in fires {
        let all = commands.get(&fire.trigger).map_or(&[][..], Vec::as_slice);
        let known = all.iter().find(|command| command.offset == fire.generation);
        let from = known.map_or(0, |command| command.appended).max(fire.due);
        let silent = fire.visible.saturating_sub(from) > UNREPORTED_MAX_MS
            && !probes.iter().any(|probe| probe.was_not_ready(from, fire.visible));
        let late = fire.visible.saturating_sub(from);
        assert!(!silent, "{} was {late} ms late, and /readyz said all was well", fire.trigger);
    }
}
