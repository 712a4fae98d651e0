//! Named points at which a test can kill or stop the process.
//!
//! Invariant: a point that is not armed costs one load, and without the feature nothing. The thread
//! that reaches a point at which the process is killed executes nothing after it.
//!
//! `ORLOJ_FAULT` arms them for the lifetime of a process: `<point>=<action>@<n>`, several separated
//! by commas, where the action is `kill` (SIGKILL) or `stop` (SIGSTOP, until SIGCONT) and happens
//! the n-th time that the point is reached. `clock=back<ms>@<n>` sets the clock back from its n-th
//! reading on, `clock=ahead<ms>@<n>` ahead.

/// The process has reached the point `name`.
#[cfg(not(feature = "faults"))]
#[inline]
pub fn reached(_name: &'static str) {}

/// The time of a clock that may have been set back or ahead; `now` in ms since the epoch.
#[cfg(not(feature = "faults"))]
#[inline]
#[must_use]
pub fn set_clock(now: u64) -> u64 {
    now
}

#[cfg(feature = "faults")]
pub use armed::{reached, set_clock};

#[cfg(feature = "faults")]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    /// Read once: a process is armed from its first moment or never.
    static ARMED_FAULTS: LazyLock<Vec<ArmedFault>> = LazyLock::new(|| {
        let armed = std::env::var("ORLOJ_FAULT").unwrap_or_default();
        armed.split(',').filter(|fault| !fault.is_empty()).map(ArmedFault::parse).collect()
    });

    enum FaultAction {
        SendSignal(Signal),
        /// Ahead by this many ms.
        SetClock(i64),
    }

    /// A point, and what happens there when it has been reached often enough.
    struct ArmedFault {
        point: String,
        action: FaultAction,
        /// How often it must still be reached.
        hits_left: AtomicU32,
    }

    impl ArmedFault {
        /// Panics on what it cannot read: a test that arms nothing would prove nothing.
        fn parse(text: &str) -> Self {
            let parts = text.split_once('=').zip(text.rsplit_once('@'));
            let Some(((point, rest), (_, count))) = parts else {
                panic!("ORLOJ_FAULT: {text:?} is not <point>=<action>@<n>")
            };
            let action = rest.split('@').next().unwrap_or_default();
            let ms_after = |word| action.strip_prefix(word)?.parse::<u32>().ok().map(i64::from);
            let ahead = ms_after("ahead").or_else(|| Some(-ms_after("back")?));
            let action = match (action, ahead) {
                ("kill", _) => FaultAction::SendSignal(Signal::KILL),
                ("stop", _) => FaultAction::SendSignal(Signal::STOP),
                (_, Some(ms)) => FaultAction::SetClock(ms),
                _ => panic!("ORLOJ_FAULT: {text:?} is not a known action"),
            };
            let left = count.parse().unwrap_or_else(|_| panic!("ORLOJ_FAULT: how often? {text:?}"));
            Self { point: point.to_owned(), action, hits_left: AtomicU32::new(left) }
        }

        /// Whether it has been reached often enough; true only once.
        fn hit(&self) -> bool {
            // Wraps around after the last: 2^32 more are never reached.
            self.hits_left.fetch_sub(1, Ordering::Relaxed) == 1
        }
    }

    fn send_signal(signal: Signal) {
        let _sent = kill_process(getpid(), signal);
        if signal == Signal::KILL {
            // The signal may take another thread first; this one goes no further.
            loop {
                std::thread::park();
            }
        }
    }

    /// By how many ms the clock was set ahead so far.
    static AHEAD_MS: AtomicI64 = AtomicI64::new(0);

    /// The time of a clock that may have been set back or ahead; `now` in ms since the epoch.
    #[must_use]
    pub fn set_clock(now: u64) -> u64 {
        for fault in ARMED_FAULTS.iter().filter(|fault| fault.point == "clock") {
            if let FaultAction::SetClock(ahead) = fault.action
                && fault.hit()
            {
                AHEAD_MS.fetch_add(ahead, Ordering::Relaxed);
            }
        }
        now.saturating_add_signed(AHEAD_MS.load(Ordering::Relaxed))
    }

    /// The process has reached the point `name`.
    pub fn reached(name: &'static str) {
        for fault in ARMED_FAULTS.iter().filter(|fault| fault.point == name) {
            if let FaultAction::SendSignal(signal) = fault.action
                && fault.hit()
            {
                send_signal(signal);
            }
        }
    }
}
