//! Places that a test can name, to have the process die or stop there.
//!
//! Invariant: a place that is not armed costs one load, and without the feature nothing at all.
//! Nothing that stands after a place where the process is killed is done by the thread that reached
//! it.
//!
//! `ORLOJ_FAULT` arms them for the life of a process: `<place>=<action>@<n>`, several with commas
//! between, where the action is `kill` (SIGKILL) or `stop` (SIGSTOP, until someone continues it)
//! and happens the n-th time that the place is reached. `clock=back<ms>@<n>` sets the clock back
//! from its n-th reading on.

/// The process stands at the place called `name`.
#[cfg(not(feature = "faults"))]
#[inline]
pub fn reached(_name: &'static str) {}

/// What a clock says that was perhaps set back; `now` in ms since the epoch.
#[cfg(not(feature = "faults"))]
#[inline]
#[must_use]
pub fn set_back(now: u64) -> u64 {
    now
}

#[cfg(feature = "faults")]
pub use armed::{reached, set_back};

#[cfg(feature = "faults")]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    /// Read once: a process is armed from its first moment or never.
    static ARMED_FAULTS: LazyLock<Vec<ArmedFault>> = LazyLock::new(|| {
        let armed = std::env::var("ORLOJ_FAULT").unwrap_or_default();
        armed.split(',').filter(|fault| !fault.is_empty()).map(ArmedFault::parse).collect()
    });

    enum FaultAction {
        SendSignal(Signal),
        /// By so many ms.
        SetClockBack(u64),
    }

    /// A place, and what happens there when it has been reached often enough.
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
            let Some(((place, rest), (_, count))) = parts else {
                panic!("ORLOJ_FAULT: {text:?} is not <place>=<action>@<n>")
            };
            let action = rest.split('@').next().unwrap_or_default();
            let back = action.strip_prefix("back").and_then(|ms| ms.parse().ok());
            let action = match (action, back) {
                ("kill", _) => FaultAction::SendSignal(Signal::KILL),
                ("stop", _) => FaultAction::SendSignal(Signal::STOP),
                (_, Some(ms)) => FaultAction::SetClockBack(ms),
                _ => panic!("ORLOJ_FAULT: {text:?} asks for nothing that there is"),
            };
            let left = count.parse().unwrap_or_else(|_| panic!("ORLOJ_FAULT: how often? {text:?}"));
            Self { point: place.to_owned(), action, hits_left: AtomicU32::new(left) }
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

    /// By how many ms the clock was set back so far.
    static SET_BACK_MS: AtomicU64 = AtomicU64::new(0);

    /// What a clock says that was perhaps set back; `now` in ms since the epoch.
    #[must_use]
    pub fn set_back(now: u64) -> u64 {
        for fault in ARMED_FAULTS.iter().filter(|trap| trap.point == "clock") {
            if let FaultAction::SetClockBack(ms) = fault.action
                && fault.hit()
            {
                SET_BACK_MS.fetch_add(ms, Ordering::Relaxed);
            }
        }
        now.saturating_sub(SET_BACK_MS.load(Ordering::Relaxed))
    }

    /// The process stands at the place called `name`.
    pub fn reached(name: &'static str) {
        for fault in ARMED_FAULTS.iter().filter(|trap| trap.point == name) {
            if let FaultAction::SendSignal(signal) = fault.action
                && fault.hit()
            {
                send_signal(signal);
            }
        }
    }
}
