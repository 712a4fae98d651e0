//! Opens the producers of a process, and keeps the clients of the next ones ready: spares.
//!
//! Invariant: a spare has no producer id, so it ends no transaction, and nothing ends it, however
//! long it waits. At most one is kept. A thread of its own makes it and keeps it connected, so that
//! no caller waits for it; without one, new clients are connected.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::producer_pair::{ConnectedPair, ProducerPair};
use super::transaction::TransactionError;
use crate::clock;
use crate::config::Settings;

/// For how long a new spare waits for a connection, and for the metadata of a topic.
const SPARE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait before a spare is made again after a failure.
const SPARE_PAUSE: Duration = Duration::from_secs(1);
/// How long the broker may take to show that a spare is connected.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a spare sends a request. Brokers and proxies close connections that are not used,
/// after minutes, and then it would take half a second to be taken into use.
pub const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// Opens producers of one transactional id.
#[derive(Clone, Debug)]
pub struct SpareProducers {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    id: String,
    /// Whose metadata a spare knows.
    topics: Vec<String>,
    /// How often a spare sends a request.
    keep_alive: Duration,
    spare: Mutex<Spare>,
    /// How many threads were started.
    threads: AtomicU64,
}

#[derive(Debug)]
enum Spare {
    None,
    /// A thread makes one, or sends a request of one.
    Connecting,
    /// The thread with this number keeps it connected.
    Ready(ConnectedPair, u64),
}

impl SpareProducers {
    /// There is no spare until [`prepare`](Self::prepare) was called.
    #[must_use]
    pub fn new(settings: &Settings, id: &str, topics: Vec<String>, keep_alive: Duration) -> Self {
        let (settings, id, spare) = (settings.clone(), id.to_owned(), Mutex::new(Spare::None));
        let threads = AtomicU64::new(0);
        Self { shared: Arc::new(Shared { settings, id, topics, keep_alive, spare, threads }) }
    }

    /// Begins to make a spare, if there is none. Does not wait.
    pub fn prepare(&self) {
        let mut spare = self.shared.lock();
        if !matches!(*spare, Spare::None) {
            return;
        }
        let number = self.shared.threads.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::downgrade(&self.shared);
        let thread = std::thread::Builder::new().name("spare-producers".to_owned());
        match thread.spawn(move || keep_spare(&shared, number)) {
            Ok(_detached) => *spare = Spare::Connecting,
            Err(error) => tracing::warn!(%error, "a thread cannot be started; no spare producers"),
        }
    }

    /// Whether a spare is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(*self.shared.lock(), Spare::Ready(..))
    }

    /// Takes the spare into use, or new clients if none is ready, and begins to make the next
    /// spare. Blocks, for at most `timeout`, until the broker has ended the open transactions of
    /// earlier producers with the same id.
    pub fn open(&self, timeout: Duration) -> Result<ProducerPair, TransactionError> {
        let began = clock::monotonic();
        let spare = self.take();
        let is_spare = spare.is_some();
        let shared = &*self.shared;
        let pair = match spare {
            Some(spare) => spare.init(timeout)?,
            None => ProducerPair::open(&shared.settings, &shared.id, timeout)?,
        };
        tracing::info!(is_spare, took = ?(clock::monotonic() - began), "producers are opened");
        self.prepare();
        Ok(pair)
    }

    /// The spare, if one is ready and connected.
    fn take(&self) -> Option<ConnectedPair> {
        let spare = self.shared.take(Spare::None, |_| true)?;
        match self.shared.check(&spare) {
            Ok(()) => Some(spare),
            Err(error) => {
                tracing::info!(%error, "the spare producers have no connection; opening new ones");
                close(spare);
                None
            }
        }
    }
}

impl Shared {
    /// The spare, if one is ready of a thread whose number is asked for, in whose place is `next`
    /// then.
    fn take(&self, next: Spare, is_of: impl Fn(u64) -> bool) -> Option<ConnectedPair> {
        let mut place = self.lock();
        match std::mem::replace(&mut *place, next) {
            Spare::Ready(spare, number) if is_of(number) => Some(spare),
            other => {
                *place = other;
                None
            }
        }
    }

    /// Whether a spare has a connection: without one it would look for its coordinator only half a
    /// second later.
    fn check(&self, spare: &ConnectedPair) -> Result<(), TransactionError> {
        let any = self.topics.first().map(std::slice::from_ref).unwrap_or_default();
        spare.fetch_metadata(any, CHECK_TIMEOUT)
    }

    fn lock(&self) -> MutexGuard<'_, Spare> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes it, which may take a while, on a thread of its own.
fn close(spare: ConnectedPair) {
    let thread = std::thread::Builder::new().name("close-spare".to_owned());
    if let Err(error) = thread.spawn(move || drop(spare)) {
        tracing::debug!(%error, "a thread cannot be started; the spare is closed already");
    }
}

/// Makes a spare, and another one when it loses its connection, until it is taken into use or
/// nothing needs it any more.
fn keep_spare(shared: &Weak<Shared>, number: u64) {
    loop {
        let Some(made) = shared.upgrade().map(|shared| make_spare(&shared, number)) else { return };
        if let Err(error) = made {
            tracing::debug!(%error, "spare producers are not connected yet");
            std::thread::park_timeout(SPARE_PAUSE);
            continue;
        }
        if keep_alive(shared, number) == KeptSpare::Taken {
            return;
        }
    }
}

fn make_spare(shared: &Shared, number: u64) -> Result<(), TransactionError> {
    let pair = ConnectedPair::connect(&shared.settings, &shared.id, SPARE_TIMEOUT)?;
    pair.fetch_metadata(&shared.topics, SPARE_TIMEOUT)?;
    *shared.lock() = Spare::Ready(pair, number);
    Ok(())
}

/// Why a spare is not kept any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeptSpare {
    /// It is used, and another thread makes the next one; or nothing needs one.
    Taken,
    /// It has lost its connection.
    Lost,
}

/// Sends a request of the spare again and again. Meanwhile there is none.
fn keep_alive(shared: &Weak<Shared>, number: u64) -> KeptSpare {
    loop {
        let Some(pause) = shared.upgrade().map(|shared| shared.keep_alive) else {
            return KeptSpare::Taken;
        };
        std::thread::park_timeout(pause);
        let Some(shared) = shared.upgrade() else { return KeptSpare::Taken };
        let taken = shared.take(Spare::Connecting, |of| of == number);
        let Some(spare) = taken else { return KeptSpare::Taken };
        if let Err(error) = shared.check(&spare) {
            tracing::debug!(%error, "the spare producers have lost their connection");
            return KeptSpare::Lost;
        }
        *shared.lock() = Spare::Ready(spare, number);
    }
}
