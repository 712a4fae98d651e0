//! Awaiting the owner's answer: outcomes, matched with the records that requested them.
//!
//! Invariant: an outcome answers the record whose `orloj-request` it repeats. Only one that an
//! owner of an earlier release wrote, which repeats none, is matched by the trigger and the offset.
//! One thread reads, and memory is bounded: a waiter lives as long as its request, waiters are
//! counted, and an outcome without a waiter is not decoded.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::codec::schemas::Schemas;
use crate::config::Settings;
use crate::health::{Health, PartReporter};
use crate::kafka::Names;
use crate::kafka::error::ClientError;
use crate::kafka::reader::{LogReader, ReadEvent};
use crate::model::outcome::Outcome;
use crate::model::{Offset, PartitionId};
use crate::read_recovery::ReadRecovery;

/// Requests that wait at once. Each holds a connection too, so a higher limit would not help.
const WAITERS_MAX: usize = 10_000;
/// Outcomes of one trigger without a request that may arrive between a waiter's record and its
/// acknowledgement.
const UNREAD_MAX: usize = 64;
/// How long one poll for outcomes takes; it bounds how late the thread sees a shutdown.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);
/// How long the broker may take to return an end offset; it bounds the same.
const BROKER_TIMEOUT: Duration = Duration::from_secs(1);
/// The part of the gateway's health that this is.
const PART: &str = "outcomes";

/// The limit of waiting requests is reached: answer "try again later".
#[derive(Debug, Error)]
#[error("{WAITERS_MAX} requests are waiting for their outcome already")]
pub struct TooManyWaiters;

/// The waiters, shared with the thread that reads outcomes.
#[derive(Clone, Debug, Default)]
pub struct OutcomeAwaiter {
    pending: Arc<Mutex<PendingOutcomes>>,
}

#[derive(Debug, Default)]
struct PendingOutcomes {
    by_trigger: HashMap<String, Vec<Waiter>>,
    count: usize,
    next: u64,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    request: String,
    sender: mpsc::Sender<FoundOutcome>,
}

/// An outcome that may be the one that is waited for.
#[derive(Clone, Debug)]
struct FoundOutcome {
    record: OutcomeRecord,
    /// Its schema has a place for the request: none there means that the record had none.
    has_request_field: bool,
}

/// An outcome, and the position of its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutcomeRecord {
    /// What the owner decided.
    pub outcome: Outcome,
    /// The partition of `outcomes`.
    pub partition: PartitionId,
    /// The offset there.
    pub offset: Offset,
}

/// A waiter; removed when dropped.
#[derive(Debug)]
pub struct PendingOutcome {
    awaiter: OutcomeAwaiter,
    trigger: String,
    number: u64,
    outcomes: mpsc::Receiver<FoundOutcome>,
}

impl OutcomeAwaiter {
    /// Reads outcomes on a thread of its own until `shutdown`. `health` is ready as soon as every
    /// outcome of a record written from then on will be seen, and not if they cannot be read.
    pub fn open(
        settings: &Settings,
        health: Arc<Health>,
        shutdown: CancellationToken,
    ) -> Result<Self, ClientError> {
        let reader = LogReader::open(settings, &format!("{}.gateways", settings.topics.prefix))?;
        let not_started = "reading the end offsets of outcomes".to_owned();
        let mut health = PartReporter::new(health, PART);
        health.report(Some(not_started.clone()));
        let awaiter = Self::default();
        let outcome_reader = OutcomeReader {
            reader,
            topic: Names::new(&settings.topics.prefix).outcomes(),
            partitions: settings.topics.partitions.get().into(),
            awaiter: awaiter.clone(),
            health,
            not_started: Some(not_started),
            positions: BTreeMap::new(),
            recovery: ReadRecovery::new(Duration::ZERO, settings.timeouts.fetch * 2),
            opened: clock::monotonic(),
        };
        let _detached = std::thread::spawn(move || outcome_reader.run(&shutdown));
        Ok(awaiter)
    }

    /// Starts to wait for the outcome of the record of `trigger` that has this `request`. To be
    /// called before it is written: the outcome may arrive before the broker's acknowledgement.
    pub fn subscribe(
        &self,
        trigger: &str,
        request: &str,
    ) -> Result<PendingOutcome, TooManyWaiters> {
        let mut pending = self.lock();
        if pending.count >= WAITERS_MAX {
            return Err(TooManyWaiters);
        }
        let (sender, outcomes) = mpsc::channel(UNREAD_MAX);
        let number = pending.next;
        pending.next += 1;
        pending.count += 1;
        let waiter = Waiter { number, request: request.to_owned(), sender };
        pending.by_trigger.entry(trigger.to_owned()).or_default().push(waiter);
        Ok(PendingOutcome { awaiter: self.clone(), trigger: trigger.to_owned(), number, outcomes })
    }

    /// Sends an outcome to the waiters of its trigger that it may be for; `decode` is called only
    /// if there are any waiters.
    fn deliver(&self, trigger: &[u8], decode: impl FnOnce() -> Option<FoundOutcome>) {
        let Ok(trigger) = std::str::from_utf8(trigger) else { return };
        let pending = self.lock();
        let Some(waiters) = pending.by_trigger.get(trigger) else { return };
        let Some(found) = decode() else { return };
        let Outcome { answers, request, .. } = &found.record.outcome;
        let is_for = |waiter: &&Waiter| match request {
            Some(request) => *request == *waiter.request,
            None => answers.is_some(),
        };
        for waiter in waiters.iter().filter(is_for) {
            // Full: a waiter that reads that slowly times out.
            let _full = waiter.sender.try_send(found.clone());
        }
    }

    /// Sends an outcome to the request that waits for it, as the thread that reads outcomes does.
    #[cfg(test)]
    pub(crate) fn on_outcome(&self, record: OutcomeRecord) {
        let trigger = record.outcome.trigger.clone();
        let found = FoundOutcome { record, has_request_field: true };
        self.deliver(trigger.bytes(), || Some(found));
    }

    /// Requests that wait for outcomes of this trigger have waited long enough.
    #[cfg(test)]
    pub(crate) fn end_waiting(&self, trigger: &str) {
        let _ended = self.lock().by_trigger.remove(trigger);
    }

    fn lock(&self) -> MutexGuard<'_, PendingOutcomes> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingOutcome {
    /// The outcome of the record, which is at `offset`; nothing after `timeout`.
    pub async fn wait_for(self, offset: Offset, timeout: Duration) -> Option<OutcomeRecord> {
        self.wait_until(|found| found.record.outcome.answers == Some(offset), timeout).await
    }

    /// The outcome of a registration of a batch, whose offset its writer does not know; nothing
    /// after `timeout`. Of an owner of an earlier release it is the first that answers any record.
    pub async fn wait_for_item(self, timeout: Duration) -> Option<OutcomeRecord> {
        self.wait_until(|found| !found.has_request_field, timeout).await
    }

    /// Waits for the outcome with the request, or for one without that `is_match`.
    async fn wait_until(
        mut self,
        is_match: impl Fn(&FoundOutcome) -> bool,
        timeout: Duration,
    ) -> Option<OutcomeRecord> {
        let find = async {
            loop {
                let found = self.outcomes.recv().await?;
                if found.record.outcome.request.is_some() || is_match(&found) {
                    return Some(found.record);
                }
            }
        };
        tokio::time::timeout(timeout, find).await.ok().flatten()
    }
}

impl Drop for PendingOutcome {
    fn drop(&mut self) {
        let mut pending = self.awaiter.lock();
        pending.count -= 1;
        if let Some(waiters) = pending.by_trigger.get_mut(&self.trigger) {
            waiters.retain(|waiter| waiter.number != self.number);
            if waiters.is_empty() {
                let _removed = pending.by_trigger.remove(&self.trigger);
            }
        }
    }
}

/// The thread that reads outcomes.
struct OutcomeReader {
    reader: LogReader,
    topic: String,
    partitions: PartitionId,
    awaiter: OutcomeAwaiter,
    health: PartReporter,
    /// Why it is not read; `None` once it is.
    not_started: Option<String>,
    /// Where each partition is read.
    positions: BTreeMap<PartitionId, Offset>,
    recovery: ReadRecovery<PartitionId>,
    opened: Instant,
}

impl OutcomeReader {
    fn run(mut self, shutdown: &CancellationToken) {
        let schemas = Schemas::new();
        while !shutdown.is_cancelled() {
            if self.not_started.is_some() {
                self.not_started = self.start().err().map(|error| error.to_string());
            }
            self.read_again();
            self.report();
            self.read(&schemas);
        }
    }

    /// Reads one record; waits at most [`POLL_TIMEOUT`] for it.
    fn read(&mut self, schemas: &Schemas) {
        let error = match self.reader.poll(POLL_TIMEOUT) {
            Ok(Some(ReadEvent::Record(record))) => {
                let (_topic, partition, offset) = record.position();
                let _before = self.positions.insert(partition, offset + 1);
                self.recovery.on_read(partition);
                let decode = || {
                    let value = record.value()?;
                    let outcome = schemas.decode_outcome(value).ok()?;
                    let has_request_field = schemas.has_request_field(value);
                    let record = OutcomeRecord { outcome, partition, offset };
                    Some(FoundOutcome { record, has_request_field })
                };
                self.awaiter.deliver(record.key().unwrap_or_default(), decode);
                return;
            }
            // Outcomes are kept for a month and read at once: the topic was created again.
            Ok(Some(ReadEvent::OutOfRange(reason))) => {
                self.not_started = Some(reason);
                return;
            }
            Ok(Some(ReadEvent::PartitionEof(partition))) => {
                self.recovery.on_read(partition);
                return;
            }
            Ok(None) => return,
            Err(error) => error,
        };
        tracing::warn!(%error, "outcomes cannot be read");
        let now = self.now();
        self.recovery.on_error(&error, 0..self.partitions, now);
    }

    fn start(&mut self) -> Result<(), ClientError> {
        // All end offsets before the first fetch: a broker answers a connection in order, and a
        // fetch that waits for records would delay every request behind it.
        let ends = (0..self.partitions)
            .map(|partition| self.reader.last_stable_offset(&self.topic, partition, BROKER_TIMEOUT))
            .collect::<Result<Vec<_>, _>>()?;
        for (partition, end) in (0..).zip(ends) {
            self.reader.start(&self.topic, partition, end)?;
            let _before = self.positions.insert(partition, end);
        }
        Ok(())
    }

    /// Reads partitions again that have returned nothing since an error, if it is time.
    fn read_again(&mut self) {
        let now = self.now();
        for partition in self.recovery.next_reads(now) {
            let Some(offset) = self.positions.get(&partition) else { continue };
            if let Err(error) = self.reader.start(&self.topic, partition, *offset) {
                tracing::warn!(partition, %error, "outcomes cannot be read again; trying later");
            }
        }
    }

    fn report(&mut self) {
        let unreadable = self.recovery.reason(self.now());
        let unreadable = unreadable.map(|error| format!("outcomes cannot be read: {error}"));
        self.health.report(self.not_started.clone().or(unreadable));
    }

    /// On the monotonic clock.
    fn now(&self) -> Duration {
        clock::monotonic().duration_since(self.opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::outcome::OutcomeKind;
    use crate::model::text::Text;

    const SOON: Duration = Duration::from_secs(5);

    fn outcome_record(trigger: &str, answers: Offset) -> OutcomeRecord {
        let kind = OutcomeKind::Cancelled { generation: answers };
        let (trigger, answers) = (Text::from(trigger), Some(answers));
        let outcome = Outcome { trigger, answers, request: None, at: 0, kind };
        OutcomeRecord { outcome, partition: 3, offset: 41 }
    }

    /// Delivers an outcome by an owner of an earlier release.
    fn deliver(awaiter: &OutcomeAwaiter, trigger: &str, answers: Offset) {
        deliver_record(awaiter, outcome_record(trigger, answers), false);
    }

    fn deliver_record(awaiter: &OutcomeAwaiter, record: OutcomeRecord, has_request_field: bool) {
        let trigger = record.outcome.trigger.clone();
        awaiter.deliver(trigger.bytes(), || Some(FoundOutcome { record, has_request_field }));
    }

    fn requested(answers: Offset, request: Option<&str>) -> OutcomeRecord {
        let mut record = outcome_record("tea", answers);
        record.outcome.request = request.map(Text::from);
        record
    }

    #[tokio::test]
    async fn an_outcome_reaches_the_request_of_its_record() {
        let awaiter = OutcomeAwaiter::default();
        let first = awaiter.subscribe("tea", "r-1").unwrap();
        let second = awaiter.subscribe("tea", "r-2").unwrap();
        deliver(&awaiter, "milk", 1);
        deliver(&awaiter, "tea", 2);
        deliver(&awaiter, "tea", 1);
        assert_eq!(first.wait_for(1, SOON).await, Some(outcome_record("tea", 1)));
        assert_eq!(second.wait_for(2, SOON).await, Some(outcome_record("tea", 2)));
        assert!(awaiter.lock().by_trigger.is_empty());
    }

    #[tokio::test]
    async fn an_item_takes_no_outcome_that_answers_no_record() {
        let awaiter = OutcomeAwaiter::default();
        let waiter = awaiter.subscribe("tea", "r-1").unwrap();
        let mut outcome = outcome_record("tea", 1);
        outcome.outcome.answers = None;
        deliver_record(&awaiter, outcome, false);
        deliver(&awaiter, "tea", 7);
        assert_eq!(waiter.wait_for_item(SOON).await, Some(outcome_record("tea", 7)));
    }

    #[tokio::test]
    async fn a_request_takes_no_outcome_of_another_record() {
        for is_item in [true, false] {
            let awaiter = OutcomeAwaiter::default();
            let waiter = awaiter.subscribe("tea", "r-1").unwrap();
            for record in [requested(3, Some("r-2")), requested(4, None)] {
                deliver_record(&awaiter, record, true);
            }
            // Its record was written into a wrong partition, and forwarded: its offset is another.
            deliver_record(&awaiter, requested(5, Some("r-1")), true);
            let found = match is_item {
                true => waiter.wait_for_item(SOON).await,
                false => waiter.wait_for(1, SOON).await,
            };
            assert_eq!(found, Some(requested(5, Some("r-1"))));
        }
    }

    #[tokio::test]
    async fn the_outcomes_of_other_requests_take_no_place() {
        let awaiter = OutcomeAwaiter::default();
        let waiter = awaiter.subscribe("tea", "r-1").unwrap();
        for answers in 0..=UNREAD_MAX as Offset {
            deliver_record(&awaiter, requested(answers, Some("r-2")), true);
        }
        deliver_record(&awaiter, requested(7, Some("r-1")), true);
        assert_eq!(waiter.wait_for(7, SOON).await, Some(requested(7, Some("r-1"))));
    }

    #[tokio::test]
    async fn a_waiter_is_removed_after_its_timeout() {
        let awaiter = OutcomeAwaiter::default();
        let waiter = awaiter.subscribe("tea", "r-1").unwrap();
        deliver(&awaiter, "tea", 1);
        assert_eq!(waiter.wait_for(7, Duration::from_millis(1)).await, None);
        let pending = awaiter.lock();
        assert_eq!((pending.count, pending.by_trigger.len()), (0, 0));
    }

    #[test]
    fn an_outcome_without_a_waiter_is_not_decoded() {
        OutcomeAwaiter::default().deliver(b"tea", || panic!("there is no waiter"));
    }

    #[test]
    fn waiters_are_counted() {
        let awaiter = OutcomeAwaiter::default();
        let waiters: Vec<_> =
            (0..WAITERS_MAX).map(|_| awaiter.subscribe("tea", "r").unwrap()).collect();
        assert!(awaiter.subscribe("tea", "r").is_err());
        drop(waiters);
        assert!(awaiter.subscribe("tea", "r").is_ok());
    }
}
