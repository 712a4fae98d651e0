//! Awaiting the owner's answer: outcomes, matched with the records that requested them.
//!
//! Invariant: one thread reads, and memory is bounded: a waiter lives as long as its request,
//! waiters are counted, and an outcome without a waiter is not decoded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::codec::schemas::Schemas;
use crate::config::Settings;
use crate::health::Health;
use crate::kafka::Names;
use crate::kafka::error::ClientError;
use crate::kafka::reader::{LogReader, ReadEvent};
use crate::model::outcome::Outcome;
use crate::model::{Offset, PartitionId};

/// Requests that wait at once. Each holds a connection too, so a higher limit would not help.
const WAITERS_MAX: usize = 10_000;
/// Outcomes of one trigger that may arrive between a waiter's record and its acknowledgement.
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
    by_trigger: HashMap<String, Vec<(u64, mpsc::Sender<OutcomeRecord>)>>,
    count: usize,
    next: u64,
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
    outcomes: mpsc::Receiver<OutcomeRecord>,
}

impl OutcomeAwaiter {
    /// Reads outcomes on a thread of its own until `shutdown`. `health` is ready as soon as every
    /// outcome of a record written from then on will be seen.
    pub fn open(
        settings: &Settings,
        health: Arc<Health>,
        shutdown: CancellationToken,
    ) -> Result<Self, ClientError> {
        let reader = LogReader::open(settings, &format!("{}.gateways", settings.topics.prefix))?;
        health.not_ready(PART, "reading the end offsets of outcomes");
        let awaiter = Self::default();
        let outcome_reader = OutcomeReader {
            reader,
            topic: Names::new(&settings.topics.prefix).outcomes(),
            partitions: settings.topics.partitions.get().into(),
            awaiter: awaiter.clone(),
            health,
        };
        let _detached = std::thread::spawn(move || outcome_reader.run(&shutdown));
        Ok(awaiter)
    }

    /// Starts to wait for outcomes of `trigger`. To be called before its record is written: the
    /// outcome may arrive before the broker's acknowledgement.
    pub fn subscribe(&self, trigger: &str) -> Result<PendingOutcome, TooManyWaiters> {
        let mut pending = self.lock();
        if pending.count >= WAITERS_MAX {
            return Err(TooManyWaiters);
        }
        let (sender, outcomes) = mpsc::channel(UNREAD_MAX);
        let number = pending.next;
        pending.next += 1;
        pending.count += 1;
        pending.by_trigger.entry(trigger.to_owned()).or_default().push((number, sender));
        Ok(PendingOutcome { awaiter: self.clone(), trigger: trigger.to_owned(), number, outcomes })
    }

    /// Sends an outcome to the waiters of its trigger; `decode` is called only if there are any.
    fn deliver(&self, trigger: &[u8], decode: impl FnOnce() -> Option<OutcomeRecord>) {
        let Ok(trigger) = std::str::from_utf8(trigger) else { return };
        let pending = self.lock();
        let Some(waiters) = pending.by_trigger.get(trigger) else { return };
        let Some(record) = decode() else { return };
        for (_, sender) in waiters {
            // Full: a waiter that reads that slowly times out.
            let _full = sender.try_send(record.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, PendingOutcomes> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingOutcome {
    /// The outcome that answers the record at `offset`, or nothing after `timeout`.
    pub async fn wait_for(self, offset: Offset, timeout: Duration) -> Option<OutcomeRecord> {
        self.wait_until(|outcome| outcome.answers == Some(offset), timeout).await
    }

    /// The first outcome that answers any record, or nothing after `timeout`: the offset of a
    /// registration of a batch is not known to its writer.
    pub async fn wait_for_any(self, timeout: Duration) -> Option<OutcomeRecord> {
        self.wait_until(|outcome| outcome.answers.is_some(), timeout).await
    }

    async fn wait_until(
        mut self,
        is_match: impl Fn(&Outcome) -> bool,
        timeout: Duration,
    ) -> Option<OutcomeRecord> {
        let find = async {
            loop {
                let record = self.outcomes.recv().await?;
                if is_match(&record.outcome) {
                    return Some(record);
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
            waiters.retain(|(number, _)| *number != self.number);
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
    health: Arc<Health>,
}

impl OutcomeReader {
    fn run(self, shutdown: &CancellationToken) {
        let schemas = Schemas::new();
        // Until started, and after the brokers were lost: ask them, because librdkafka does not
        // report that they are back.
        let (mut started, mut disconnected) = (false, true);
        while !shutdown.is_cancelled() {
            if disconnected {
                match if started { self.check_broker() } else { self.start() } {
                    Ok(()) => {
                        (started, disconnected) = (true, false);
                        self.health.ready(PART);
                    }
                    Err(error) => self.health.not_ready(PART, error.to_string()),
                }
            }
            match self.reader.poll(POLL_TIMEOUT) {
                Ok(Some(ReadEvent::Record(record))) => {
                    let (_topic, partition, offset) = record.position();
                    let decode = || {
                        let outcome = schemas.decode_outcome(record.value()?).ok()?;
                        Some(OutcomeRecord { outcome, partition, offset })
                    };
                    self.awaiter.deliver(record.key().unwrap_or_default(), decode);
                }
                // Outcomes are kept for a month and read at once: the topic was created again.
                Ok(Some(ReadEvent::OutOfRange(_))) => (started, disconnected) = (false, true),
                Ok(Some(ReadEvent::PartitionEof(_)) | None) => {}
                Err(error) => {
                    disconnected = true;
                    self.health.not_ready(PART, format!("the brokers cannot be reached: {error}"));
                }
            }
        }
    }

    fn start(&self) -> Result<(), ClientError> {
        // All end offsets before the first fetch: a broker answers a connection in order, and a
        // fetch that waits for records would delay every request behind it.
        let ends = (0..self.partitions)
            .map(|partition| self.reader.last_stable_offset(&self.topic, partition, BROKER_TIMEOUT))
            .collect::<Result<Vec<_>, _>>()?;
        for (partition, end) in (0..).zip(ends) {
            self.reader.start(&self.topic, partition, end)?;
        }
        Ok(())
    }

    fn check_broker(&self) -> Result<(), ClientError> {
        self.reader.last_stable_offset(&self.topic, 0, BROKER_TIMEOUT).map(drop)
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

    fn deliver(awaiter: &OutcomeAwaiter, trigger: &str, answers: Offset) {
        awaiter.deliver(trigger.as_bytes(), || Some(outcome_record(trigger, answers)));
    }

    #[tokio::test]
    async fn an_outcome_reaches_the_request_of_its_record() {
        let awaiter = OutcomeAwaiter::default();
        let first = awaiter.subscribe("tea").unwrap();
        let second = awaiter.subscribe("tea").unwrap();
        deliver(&awaiter, "milk", 1);
        deliver(&awaiter, "tea", 2);
        deliver(&awaiter, "tea", 1);
        assert_eq!(first.wait_for(1, SOON).await, Some(outcome_record("tea", 1)));
        assert_eq!(second.wait_for(2, SOON).await, Some(outcome_record("tea", 2)));
        assert!(awaiter.lock().by_trigger.is_empty());
    }

    #[tokio::test]
    async fn wait_for_any_ignores_outcomes_that_answer_no_record() {
        let awaiter = OutcomeAwaiter::default();
        let waiter = awaiter.subscribe("tea").unwrap();
        let mut outcome = outcome_record("tea", 1);
        outcome.outcome.answers = None;
        awaiter.deliver(b"tea", || Some(outcome));
        deliver(&awaiter, "tea", 7);
        assert_eq!(waiter.wait_for_any(SOON).await, Some(outcome_record("tea", 7)));
    }

    #[tokio::test]
    async fn a_waiter_is_removed_after_its_timeout() {
        let awaiter = OutcomeAwaiter::default();
        let waiter = awaiter.subscribe("tea").unwrap();
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
        let waiters: Vec<_> = (0..WAITERS_MAX).map(|_| awaiter.subscribe("tea").unwrap()).collect();
        assert!(awaiter.subscribe("tea").is_err());
        drop(waiters);
        assert!(awaiter.subscribe("tea").is_ok());
    }
}
