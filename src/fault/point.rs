//! Places that a test can name, to have the process die or stop there.
//!
//! Law: a place that is not armed costs one load, and without the feature nothing at all. Nothing
//! that stands after a place where the process is killed is done by the thread that reached it.
//!
//! `ORLOJ_FAULT` arms them for the life of a process: `<place>=<action>@<n>`, several with commas
//! between, where the action is `kill` (SIGKILL) or `stop` (SIGSTOP, until someone continues it)
//! and happens the n-th time that the place is reached.

/// The process stands at the place called `name`.
#[cfg(not(feature = "faults"))]
#[inline]
pub fn reached(_name: &'static str) {}

#[cfg(feature = "faults")]
pub use armed::reached;

#[cfg(feature = "faults")]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    /// Read once: a process is armed from its first moment or never.
    static TRAPS: LazyLock<Vec<Trap>> = LazyLock::new(|| {
        let armed = std::env::var("ORLOJ_FAULT").unwrap_or_default();
        armed.split(',').filter(|trap| !trap.is_empty()).map(Trap::parse).collect()
    });

    /// A place, and what happens there when it has been reached often enough.
    struct Trap {
        place: String,
        signal: Signal,
        /// How often it must still be reached.
        left: AtomicU32,
    }

    impl Trap {
        /// Panics on what it cannot read: a test that arms nothing would prove nothing.
        fn parse(text: &str) -> Self {
            let parts = text.split_once('=').zip(text.rsplit_once('@'));
            let Some(((place, rest), (_, count))) = parts else {
                panic!("ORLOJ_FAULT: {text:?} is not <place>=<action>@<n>")
            };
            let signal = match rest.split('@').next() {
                Some("kill") => Signal::KILL,
                Some("stop") => Signal::STOP,
                _ => panic!("ORLOJ_FAULT: {text:?} asks for neither kill nor stop"),
            };
            let left = count.parse().unwrap_or_else(|_| panic!("ORLOJ_FAULT: how often? {text:?}"));
            Self { place: place.to_owned(), signal, left: AtomicU32::new(left) }
        }

        fn spring(&self) {
            // Wraps around after the last: 2^32 more are never reached.
            if self.left.fetch_sub(1, Ordering::Relaxed) != 1 {
                return;
            }
            let _sent = kill_process(getpid(), self.signal);
            if self.signal == Signal::KILL {
                // The signal may take another thread first; this one goes no further.
                loop {
                    std::thread::park();
                }
            }
        }
    }

    /// The process stands at the place called `name`.
    pub fn reached(name: &'static str) {
        TRAPS.iter().filter(|trap| trap.place == name).for_each(Trap::spring);
    }
}
