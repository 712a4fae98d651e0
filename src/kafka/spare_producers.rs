//! Opens the producers of a process, and keeps the clients of the next ones ready: spares.
//!
//! Invariant: a spare has no producer id, so it ends no transaction, and nothing ends it, however
//! long it waits. At most one is kept. A thread of its own makes it, so that no caller waits for
//! it; without one, new clients are connected.

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
    spare: Mutex<Spare>,
}

#[derive(Debug)]
enum Spare {
    None,
    /// A thread makes one.
    Connecting,
    Ready(ConnectedPair),
}

impl SpareProducers {
    /// There is no spare until [`prepare`](Self::prepare) was called.
    #[must_use]
    pub fn new(settings: &Settings, id: &str, topics: Vec<String>) -> Self {
        let (settings, id) = (settings.clone(), id.to_owned());
        Self { shared: Arc::new(Shared { settings, id, topics, spare: Mutex::new(Spare::None) }) }
    }

    /// Begins to make a spare, if there is none. Does not wait.
    pub fn prepare(&self) {
        let mut spare = self.shared.lock();
        if !matches!(*spare, Spare::None) {
            return;
        }
        let shared = Arc::downgrade(&self.shared);
        let thread = std::thread::Builder::new().name("spare-producers".to_owned());
        match thread.spawn(move || make_spare(&shared)) {
            Ok(_detached) => *spare = Spare::Connecting,
            Err(error) => tracing::warn!(%error, "a thread cannot be started; no spare producers"),
        }
    }

    /// Whether a spare is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(*self.shared.lock(), Spare::Ready(_))
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
        let mut place = self.shared.lock();
        let spare = match std::mem::replace(&mut *place, Spare::None) {
            Spare::Ready(spare) => spare,
            other => {
                *place = other;
                return None;
            }
        };
        drop(place);
        // Brokers close connections that are not used. The client connects again when it must, but
        // without a connection it would look for its coordinator only half a second later.
        let any = self.shared.topics.first().map(std::slice::from_ref).unwrap_or_default();
        match spare.fetch_metadata(any, CHECK_TIMEOUT) {
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

/// Makes a spare, until that succeeds or nothing needs it any more.
fn make_spare(shared: &Weak<Shared>) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let connected = ConnectedPair::connect(&shared.settings, &shared.id, SPARE_TIMEOUT);
        let made = connected.and_then(|pair| {
            pair.fetch_metadata(&shared.topics, SPARE_TIMEOUT)?;
            Ok(pair)
        });
        match made {
            Ok(pair) => {
                *shared.lock() = Spare::Ready(pair);
                return;
            }
            Err(error) => tracing::debug!(%error, "spare producers are not connected yet"),
        }
        drop(shared);
        std::thread::park_timeout(SPARE_PAUSE);
    }
}
