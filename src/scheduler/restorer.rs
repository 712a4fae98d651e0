//! The threads that apply what a takeover has read, beside the loop: partitions that fire already
//! do not wait for one that is being brought back.
//!
//! Law: a takeover is worked on by one thread at a time, and is away from its lane meanwhile.
//! Whoever needs its store, or needs it to say where it stands, waits for it first.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::message::{BorrowedMessage, Headers, Message};

use super::lane::fetch;
use super::takeover::state_of;
use crate::codec::ledger_key::STEP;
use crate::codec::schemas::{CodecError, Schemas};
use crate::engine::takeover::{Refusal, Takeover};
use crate::fault;
use crate::kafka::reader::Reader;
use crate::model::input::TriggerRecord;
use crate::model::ledger::LedgerRecord;
use crate::model::{Offset, PartitionId, Timestamp};
use crate::store::{PartitionStore, StoreError};

/// Threads at most: more would only take turns with those that fire.
const THREADS_MAX: usize = 4;

/// Hands out work and takes back takeovers.
#[derive(Debug)]
pub(super) struct Restorers {
    jobs: Sender<Job>,
    results: Receiver<Restored>,
    under_way: usize,
    /// What came back while somebody waited for it.
    arrived: Vec<Restored>,
}

/// Records of one partition, and all that is needed to apply them.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) partition: PartitionId,
    pub(super) takeover: Box<Takeover>,
    pub(super) store: Arc<PartitionStore>,
    pub(super) cluster: String,
    /// When the records were read, in ms since the epoch.
    pub(super) now: Timestamp,
    pub(super) work: Work,
}

/// What is to be applied.
#[derive(Debug)]
pub(super) enum Work {
    /// Records of the ledger, and the offset after the last one.
    Ledger(RawLedger, Offset),
    /// Records of `triggers` below N.
    Triggers(Logged),
}

/// Part of the log below N.
#[derive(Debug)]
pub(super) struct Logged {
    /// What the ledger does not hold.
    pub(super) records: Vec<TriggerRecord>,
    /// When the last one was written that it holds, in ms since the epoch.
    pub(super) held_at: Timestamp,
    /// Whether nothing follows.
    pub(super) last: bool,
}

/// A takeover on its way back.
#[derive(Debug)]
pub(super) struct Restored {
    pub(super) partition: PartitionId,
    pub(super) takeover: Box<Takeover>,
    pub(super) result: Result<(), Unrestored>,
    /// An empty one with room for the next batch: memory that is new for each costs more than
    /// what is copied into it.
    pub(super) emptied: RawLedger,
}

/// Why records could not be applied.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unrestored {
    /// An operator must decide something first.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Rebuild the store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Restorers {
    /// Starts a thread for each core, up to a few.
    pub(super) fn start() -> Self {
        let (jobs, inbox) = channel();
        let (outbox, results) = channel();
        let inbox = Arc::new(Mutex::new(inbox));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..cores.min(THREADS_MAX) {
            let (inbox, outbox) = (Arc::clone(&inbox), outbox.clone());
            super::spawn("restorer", move || work(&inbox, &outbox));
        }
        Self { jobs, results, under_way: 0, arrived: Vec::new() }
    }

    pub(super) fn submit(&mut self, job: Job) {
        self.under_way += 1;
        self.jobs.send(job).expect("the restorers live as long as the loop");
    }

    /// Waits until something has come back, at most `timeout`.
    pub(super) fn wait(&mut self, timeout: Duration) {
        self.arrived.extend(self.results.recv_timeout(timeout));
    }

    /// What has come back since the last call.
    pub(super) fn restored(&mut self) -> Vec<Restored> {
        self.arrived.extend(self.results.try_iter());
        self.under_way -= self.arrived.len();
        std::mem::take(&mut self.arrived)
    }

    /// Waits until everything handed out has come back, and returns that.
    pub(super) fn drain(&mut self) -> Vec<Restored> {
        let missing = self.under_way - self.arrived.len();
        self.arrived.extend(self.results.iter().take(missing));
        self.restored()
    }
}

fn work(inbox: &Mutex<Receiver<Job>>, outbox: &Sender<Restored>) {
    let schemas = Schemas::new();
    loop {
        let next = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        if outbox.send(job.run(&schemas)).is_err() {
            return;
        }
    }
}

impl Job {
    /// Applies the records; the store is let go of before the takeover goes back.
    fn run(self, schemas: &Schemas) -> Restored {
        let Self { partition, mut takeover, store, cluster, now, work } = self;
        let mut emptied = RawLedger::default();
        let result = match work {
            Work::Ledger(raw, position) => {
                let records = raw.read(partition, schemas).map_err(Unrestored::from);
                emptied = raw.emptied();
                records
                    .and_then(|records| ledger(&mut takeover, &store, &cluster, records, position))
            }
            Work::Triggers(logged) => triggers(&mut takeover, &store, &cluster, logged, now),
        };
        drop(store);
        Restored { partition, takeover, result, emptied }
    }
}

/// The rows of the ledger alone are no state to resume from: a store that was of use is none until
/// the log has been replayed as well, and a new one has no state at all.
fn ledger(
    takeover: &mut Takeover,
    store: &PartitionStore,
    cluster: &str,
    records: Vec<LedgerRecord>,
    position: Offset,
) -> Result<(), Unrestored> {
    let fetched = fetch(store, takeover.ids_in_ledger(&records))?;
    let rows = takeover.on_ledger(records, position, &fetched)?;
    if takeover.must_wipe() {
        store.add(&rows)?;
    } else {
        store.apply(&rows, &state_of(takeover.local(0), cluster, 0))?;
    }
    fault::reached("takeover.after_ledger");
    Ok(())
}

fn triggers(
    takeover: &mut Takeover,
    store: &PartitionStore,
    cluster: &str,
    logged: Logged,
    now: Timestamp,
) -> Result<(), Unrestored> {
    let Logged { records, held_at, last } = logged;
    let fetched = fetch(store, takeover.ids_in_triggers(&records))?;
    let n = takeover.cursor().triggers;
    let applied = if last { n } else { records.last().map_or(n, |record| record.offset + 1) };
    let rows = takeover.on_triggers(records, &fetched);
    takeover.on_held(held_at);
    store.apply(&rows, &state_of(takeover.local(applied), cluster, now))?;
    fault::reached("takeover.after_replay");
    if last {
        takeover.on_triggers_end();
    }
    Ok(())
}

/// Records of the ledger as they were read, one behind the other in one run of bytes: the loop
/// only copies them.
#[derive(Debug, Default)]
pub(super) struct RawLedger {
    bytes: Vec<u8>,
    records: Vec<Raw>,
}

/// Lengths in the run of bytes.
#[derive(Debug)]
struct Raw {
    offset: Offset,
    key: usize,
    value: Option<usize>,
    step: Option<usize>,
}

impl RawLedger {
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn push(&mut self, message: &BorrowedMessage<'_>) {
        let (_, _, offset) = Reader::place(message);
        let (key, value) = (message.key().unwrap_or_default(), message.payload());
        let headers = message.headers();
        let step = headers.as_ref().and_then(|headers| {
            headers.iter().find(|header| header.key == STEP).and_then(|header| header.value)
        });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.unwrap_or_default());
        self.bytes.extend_from_slice(step.unwrap_or_default());
        let (value, step) = (value.map(<[u8]>::len), step.map(<[u8]>::len));
        self.records.push(Raw { offset, key: key.len(), value, step });
    }

    fn emptied(mut self) -> Self {
        self.bytes.clear();
        self.records.clear();
        self
    }

    /// Decodes them. What is corrupt is skipped; what is newer than this program is not for us to
    /// read.
    pub(super) fn read(
        &self,
        partition: PartitionId,
        schemas: &Schemas,
    ) -> Result<Vec<LedgerRecord>, Refusal> {
        let mut rest = &self.bytes[..];
        let mut take = |length: usize| rest.split_off(..length).unwrap_or_default();
        let mut read = Vec::with_capacity(self.records.len());
        for Raw { offset, key, value, step } in &self.records {
            let (key, value, step) = (take(*key), value.map(&mut take), step.map(&mut take));
            match schemas.decode_ledger(key, value, step) {
                Ok(record) => read.push(record),
                Err(CodecError::Newer { .. }) => {
                    return Err(Refusal::NewerLedger { offset: *offset });
                }
                Err(error @ CodecError::Corrupt { .. }) => {
                    tracing::error!(partition, offset, %error, "a ledger record is skipped");
                }
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restored(partition: PartitionId) -> Restored {
        let takeover = Box::new(Takeover::new(partition, "o.triggers", "me", 1, None));
        Restored { partition, takeover, result: Ok(()), emptied: RawLedger::default() }
    }

    #[test]
    fn what_came_back_while_somebody_waited_is_told_once() {
        let (jobs, _inbox) = channel();
        let (outbox, results) = channel();
        let mut restorers = Restorers { jobs, results, under_way: 4, arrived: Vec::new() };
        let ids = |restored: Vec<Restored>| -> Vec<_> {
            restored.into_iter().map(|restored| restored.partition).collect()
        };
        restorers.wait(Duration::ZERO);
        assert_eq!(ids(restorers.restored()), [0; 0]);
        for id in [0, 1] {
            outbox.send(restored(id)).unwrap();
        }
        restorers.wait(Duration::from_secs(60));
        assert_eq!(ids(restorers.restored()), [0, 1], "the one it was woken by, and the other");
        outbox.send(restored(2)).unwrap();
        restorers.wait(Duration::from_secs(60));
        outbox.send(restored(3)).unwrap();
        assert_eq!(ids(restorers.drain()), [2, 3]);
        assert_eq!(ids(restorers.drain()), [0; 0], "nothing is under way that could come");
    }
}
