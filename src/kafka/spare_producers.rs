//! Opens the producers of a process, and keeps the clients of the next ones ready: spares.
//!
//! Invariant: a spare has no producer id, so it ends no transaction, and nothing ends it, however
//! long it waits. At most one is kept, of the pair that was opened last. A thread of its own makes
//! it and keeps it connected, so that no caller waits for it; without one, new clients are
//! connected.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::asked_brokers::first_answer;
use super::producer_pair::{ConnectedPair, ProducerPair};
use super::transaction::TransactionError;
use crate::clock;
use crate::config::Settings;
use crate::environment::transaction::PRODUCERS_MAX;

/// For how long a new spare waits for a connection, and for the metadata of a topic.
const SPARE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait before a spare is made again after a failure.
const SPARE_PAUSE: Duration = Duration::from_secs(1);
/// How long brokers may take together to show that a spare is connected: one of them may be the
/// broker that does not answer. New clients are connected after that.
const CHECK_TIMEOUT: Duration = Duration::from_millis(1_050);
/// How often a spare sends a request. Brokers and proxies close connections that are not used,
/// after minutes, and then it would take half a second to be taken into use.
pub const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// How long the first producers may take to be opened before others are opened, too.
const OTHERS_AFTER: Duration = Duration::from_secs(2);

/// Opens the producers of a process.
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
    /// Of which pair a spare is made.
    number: AtomicUsize,
    spare: Mutex<Spare>,
    /// How many threads were started.
    threads: AtomicU64,
}

#[derive(Debug)]
enum Spare {
    None,
    /// A thread makes one, or sends a request of one.
    Connecting,
    Ready(SparePair),
}

#[derive(Debug)]
struct SparePair {
    pair: ConnectedPair,
    /// Of the pair.
    number: usize,
    /// The number of the thread that keeps it connected.
    thread: u64,
}

impl SpareProducers {
    /// There is no spare until [`prepare`](Self::prepare) was called.
    #[must_use]
    pub fn new(settings: &Settings, id: &str, topics: Vec<String>, keep_alive: Duration) -> Self {
        let (settings, id, spare) = (settings.clone(), id.to_owned(), Mutex::new(Spare::None));
        let (number, threads) = (AtomicUsize::new(0), AtomicU64::new(0));
        let shared = Shared { settings, id, topics, keep_alive, number, spare, threads };
        Self { shared: Arc::new(shared) }
    }

    /// Begins to make a spare of the pair `number`, if there is none. One of another pair is
    /// closed. Does not wait.
    pub fn prepare(&self, number: usize) {
        self.shared.number.store(number, Ordering::SeqCst);
        if let Some(other) = self.shared.take(Spare::None, |spare| spare.number != number) {
            close(other.pair);
        }
        let mut spare = self.shared.lock();
        if !matches!(*spare, Spare::None) {
            return;
        }
        let thread = self.shared.threads.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::downgrade(&self.shared);
        match spawn("spare-producers", move || keep_spare(&shared, thread)) {
            Ok(()) => *spare = Spare::Connecting,
            Err(error) => tracing::warn!(%error, "a thread cannot be started; no spare producers"),
        }
    }

    /// Whether a spare is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(*self.shared.lock(), Spare::Ready(_))
    }

    /// Opens the first pair of a process, and returns its number. That is another one than 0 if the
    /// broker cannot end the transaction of an earlier process now. Blocks, for at most `timeout`,
    /// until a pair is open.
    pub fn open_first(&self, timeout: Duration) -> Result<(usize, ProducerPair), TransactionError> {
        let (sender, opened) = channel();
        let deadline = clock::monotonic() + timeout;
        let mut failed = None;
        for number in 0..PRODUCERS_MAX {
            let (producers, sender) = (self.clone(), sender.clone());
            let open = move || {
                let pair = producers.shared.open_new(number, timeout);
                // No caller waits for one that is opened later.
                let _is_awaited = sender.send((number, pair)).is_ok();
            };
            spawn("open-producers", open)
                .map_err(|error| TransactionError::Unknown(error.to_string()))?;
            let is_last = number + 1 == PRODUCERS_MAX;
            let wait = if is_last { timeout } else { OTHERS_AFTER };
            match opened.recv_timeout(wait.min(deadline - clock::monotonic())) {
                Ok((number, Ok(pair))) => {
                    self.prepare(number);
                    return Ok((number, pair));
                }
                Ok((_, Err(error))) => failed = Some(error),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
        let late = || TransactionError::Unknown("no producer could be opened in time".to_owned());
        Err(failed.unwrap_or_else(late))
    }

    /// Takes the spare of the pair `number` into use, or new clients if none is ready. Blocks, for
    /// at most `timeout`, until the broker has ended the open transactions of earlier producers of
    /// the pair.
    pub fn open(&self, number: usize, timeout: Duration) -> Result<ProducerPair, TransactionError> {
        let began = clock::monotonic();
        let spare = self.take(number);
        let is_spare = spare.is_some();
        let pair = match spare {
            Some(spare) => spare.init(timeout)?,
            None => self.shared.open_new(number, timeout)?,
        };
        let took = clock::monotonic() - began;
        tracing::info!(number, is_spare, ?took, "producers are opened");
        Ok(pair)
    }

    /// The spare of the pair `number`, if it is ready and connected.
    fn take(&self, number: usize) -> Option<ConnectedPair> {
        let spare = self.shared.take(Spare::None, |spare| spare.number == number)?;
        match self.shared.check(&spare.pair) {
            Ok(()) => Some(spare.pair),
            Err(error) => {
                tracing::info!(%error, "the spare producers have no connection; opening new ones");
                close(spare.pair);
                None
            }
        }
    }
}

impl Shared {
    /// Opens a pair without a spare. Its first records do not wait for metadata.
    fn open_new(&self, number: usize, timeout: Duration) -> Result<ProducerPair, TransactionError> {
        let pair = ProducerPair::open(&self.settings, (&self.id, number), timeout)?;
        self.topics.iter().try_for_each(|topic| pair.prefetch_metadata(topic))?;
        Ok(pair)
    }

    /// The spare, if one is ready and asked for, in whose place is `next` then.
    fn take(&self, next: Spare, is_asked_for: impl Fn(&SparePair) -> bool) -> Option<SparePair> {
        let mut place = self.lock();
        match std::mem::replace(&mut *place, next) {
            Spare::Ready(spare) if is_asked_for(&spare) => Some(spare),
            other => {
                *place = other;
                None
            }
        }
    }

    /// The spare is ready; or it is closed, if one of another pair is wanted meanwhile. Returns
    /// whether it is ready.
    fn put_back(&self, spare: SparePair) -> bool {
        let mut place = self.lock();
        // Under the lock: `prepare` closes a spare of another pair only if it is ready.
        let is_wanted = self.number.load(Ordering::SeqCst) == spare.number;
        if is_wanted {
            *place = Spare::Ready(spare);
        } else {
            close(spare.pair);
        }
        is_wanted
    }

    /// Whether a spare has a connection: without one it would look for its coordinator only half a
    /// second later.
    fn check(&self, spare: &ConnectedPair) -> Result<(), TransactionError> {
        let any = self.topics.first().map(std::slice::from_ref).unwrap_or_default();
        first_answer(CHECK_TIMEOUT, |timeout| spare.fetch_metadata(any, timeout))
    }

    fn lock(&self) -> MutexGuard<'_, Spare> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes it, which may take a while, on a thread of its own.
fn close(spare: ConnectedPair) {
    if let Err(error) = spawn("close-spare", move || drop(spare)) {
        tracing::debug!(%error, "a thread cannot be started; the spare is closed already");
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let _detached = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
    Ok(())
}

/// Makes a spare, and another one when it loses its connection, until it is taken into use or
/// nothing needs it any more.
fn keep_spare(shared: &Weak<Shared>, thread: u64) {
    loop {
        let Some(made) = shared.upgrade().map(|shared| make_spare(&shared, thread)) else { return };
        if let Err(error) = made {
            tracing::debug!(%error, "spare producers are not connected yet");
            std::thread::sleep(SPARE_PAUSE);
            continue;
        }
        if keep_alive(shared, thread) == KeptSpare::Taken {
            return;
        }
    }
}

fn make_spare(shared: &Shared, thread: u64) -> Result<(), TransactionError> {
    loop {
        let number = shared.number.load(Ordering::SeqCst);
        let pair = ConnectedPair::connect(&shared.settings, (&shared.id, number), SPARE_TIMEOUT)?;
        pair.fetch_metadata(&shared.topics, SPARE_TIMEOUT)?;
        if shared.put_back(SparePair { pair, number, thread }) {
            return Ok(());
        }
    }
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
fn keep_alive(shared: &Weak<Shared>, thread: u64) -> KeptSpare {
    loop {
        let Some(pause) = shared.upgrade().map(|shared| shared.keep_alive) else {
            return KeptSpare::Taken;
        };
        std::thread::sleep(pause);
        let Some(shared) = shared.upgrade() else { return KeptSpare::Taken };
        let taken = shared.take(Spare::Connecting, |spare| spare.thread == thread);
        let Some(spare) = taken else { return KeptSpare::Taken };
        if let Err(error) = shared.check(&spare.pair) {
            tracing::debug!(%error, "the spare producers have lost their connection");
            return KeptSpare::Lost;
        }
        if !shared.put_back(spare) {
            return KeptSpare::Lost;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layers;

    /// A spare of the pair that has failed would be kept while another one is in use.
    #[test]
    fn a_spare_of_a_pair_that_is_not_wanted_any_more_is_not_put_back() {
        let overrides = vec!["kafka.bootstrap.servers=127.0.0.1:1".to_owned()];
        let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
        let producers = SpareProducers::new(&settings, "id", Vec::new(), KEEP_ALIVE);
        let spare = |number| {
            let pair = ConnectedPair::connect(&settings, ("id", number), Duration::ZERO).unwrap();
            SparePair { pair, number, thread: 0 }
        };
        producers.shared.number.store(1, Ordering::SeqCst);
        assert!(!producers.shared.put_back(spare(0)) && !producers.is_ready());
        assert!(producers.shared.put_back(spare(1)) && producers.is_ready());
    }
}
