//! Awaiting the owner's answer: outcomes, matched with the records that asked for them.
//!
//! Invariant: one thread reads, and nothing grows without bound: a waiter lives as long as its
//! request, waiters are counted, and an outcome that nobody waits for is not even decoded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::codec::schemas::Schemas;
use crate::config::Settings;
use crate::health::Health;
use crate::kafka::Names;
use crate::kafka::reader::{LogReader, ReadEvent};
use crate::model::outcome::Outcome;
use crate::model::{Offset, PartitionId};

/// Requests that wait at once. Each holds a connection too, so more would not help anyone.
const WAITERS_MAX: usize = 10_000;
/// Outcomes of one trigger that may come between a waiter's record and its acknowledgement.
const UNREAD_MAX: usize = 64;
/// How long one look for outcomes takes; it bounds how late the thread hears of a shutdown.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);
/// How long the broker may take to say where a log ends; it bounds the same.
const BROKER_TIMEOUT: Duration = Duration::from_secs(1);
/// The part of the gateway's health that this is.
const PART: &str = "outcomes";

/// As many requests wait as may: answer "try again later".
#[derive(Debug, Error)]
#[error("{WAITERS_MAX} requests wait for their outcome already")]
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

/// An outcome, and where its record stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutcomeRecord {
    /// What the owner said.
    pub outcome: Outcome,
    /// The partition of `outcomes`.
    pub partition: PartitionId,
    /// The offset there.
    pub offset: Offset,
}

/// One who waits; forgotten when dropped.
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
    ) -> Result<Self, KafkaError> {
        let reader = LogReader::open(settings, &format!("{}.gateways", settings.topics.prefix))?;
        health.not_ready(PART, "looking for the end of the log");
        let receipts = Self::default();
        let follower = OutcomeReader {
            reader,
            topic: Names::new(&settings.topics.prefix).outcomes(),
            partitions: settings.topics.partitions.get().into(),
            awaiter: receipts.clone(),
            health,
        };
        let _detached = std::thread::spawn(move || follower.run(&shutdown));
        Ok(receipts)
    }

    /// Begins to wait for outcomes of `trigger`. To be called before its record is written: the
    /// answer may be there before the broker's acknowledgement.
    pub fn subscribe(&self, trigger: &str) -> Result<PendingOutcome, TooManyWaiters> {
        let mut waiting = self.lock();
        if waiting.count >= WAITERS_MAX {
            return Err(TooManyWaiters);
        }
        let (sender, outcomes) = mpsc::channel(UNREAD_MAX);
        let number = waiting.next;
        waiting.next += 1;
        waiting.count += 1;
        waiting.by_trigger.entry(trigger.to_owned()).or_default().push((number, sender));
        Ok(PendingOutcome { awaiter: self.clone(), trigger: trigger.to_owned(), number, outcomes })
    }

    /// Hands an outcome to those who wait for its trigger; `decode` is called if there are any.
    fn deliver(&self, trigger: &[u8], decode: impl FnOnce() -> Option<OutcomeRecord>) {
        let Ok(trigger) = std::str::from_utf8(trigger) else { return };
        let waiting = self.lock();
        let Some(waiters) = waiting.by_trigger.get(trigger) else { return };
        let Some(told) = decode() else { return };
        for (_, sender) in waiters {
            // Full: whoever reads that slowly has run out of time, and is told where to look.
            let _full = sender.try_send(told.clone());
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

    /// The first outcome that answers any record, or nothing after `timeout`: where a registration
    /// of a batch will stand its writer does not know.
    pub async fn wait_for_any(self, timeout: Duration) -> Option<OutcomeRecord> {
        self.wait_until(|outcome| outcome.answers.is_some(), timeout).await
    }

    async fn wait_until(
        mut self,
        is_it: impl Fn(&Outcome) -> bool,
        timeout: Duration,
    ) -> Option<OutcomeRecord> {
        let find = async {
            loop {
                let told = self.outcomes.recv().await?;
                if is_it(&told.outcome) {
                    return Some(told);
                }
            }
        };
        tokio::time::timeout(timeout, find).await.ok().flatten()
    }
}

impl Drop for PendingOutcome {
    fn drop(&mut self) {
        let mut waiting = self.awaiter.lock();
        waiting.count -= 1;
        if let Some(waiters) = waiting.by_trigger.get_mut(&self.trigger) {
            waiters.retain(|(number, _)| *number != self.number);
            if waiters.is_empty() {
                let _gone = waiting.by_trigger.remove(&self.trigger);
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
        // Until started, and whenever the brokers went: ask, because librdkafka never says that
        // they came back.
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
                    let (_topic, partition, offset) = LogReader::position(&record);
                    let decode = || {
                        let outcome = schemas.decode_outcome(record.payload()?).ok()?;
                        Some(OutcomeRecord { outcome, partition, offset })
                    };
                    self.awaiter.deliver(record.key().unwrap_or_default(), decode);
                }
                // Outcomes are kept for a month and read at once: somebody made the topic anew.
                Ok(Some(ReadEvent::OutOfRange(_))) => (started, disconnected) = (false, true),
                Ok(Some(ReadEvent::PartitionEof(_)) | None) => {}
                Err(error) => {
                    disconnected = true;
                    self.health.not_ready(PART, format!("the broker is away: {error}"));
                }
            }
        }
    }

    fn start(&self) -> Result<(), KafkaError> {
        // All ends before the first fetch: a broker answers a connection in order, and a fetch
        // that waits for records would hold up every question behind it.
        let ends = (0..self.partitions)
            .map(|partition| self.reader.last_stable_offset(&self.topic, partition, BROKER_TIMEOUT))
            .collect::<Result<Vec<_>, _>>()?;
        for (partition, end) in (0..).zip(ends) {
            self.reader.start(&self.topic, partition, end)?;
        }
        Ok(())
    }

    fn check_broker(&self) -> Result<(), KafkaError> {
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
        let verdict = OutcomeKind::Cancelled { generation: answers };
        let (trigger, answers) = (Text::from(trigger), Some(answers));
        let outcome = Outcome { trigger, answers, at: 0, kind: verdict };
        OutcomeRecord { outcome, partition: 3, offset: 41 }
    }

    fn deliver(receipts: &OutcomeAwaiter, trigger: &str, answers: Offset) {
        receipts.deliver(trigger.as_bytes(), || Some(outcome_record(trigger, answers)));
    }

    #[tokio::test]
    async fn an_outcome_reaches_the_request_of_its_record() {
        let receipts = OutcomeAwaiter::default();
        let first = receipts.subscribe("tea").unwrap();
        let second = receipts.subscribe("tea").unwrap();
        deliver(&receipts, "milk", 1);
        deliver(&receipts, "tea", 2);
        deliver(&receipts, "tea", 1);
        assert_eq!(first.wait_for(1, SOON).await, Some(outcome_record("tea", 1)));
        assert_eq!(second.wait_for(2, SOON).await, Some(outcome_record("tea", 2)));
        assert!(receipts.lock().by_trigger.is_empty());
    }

    #[tokio::test]
    async fn wait_for_any_ignores_outcomes_that_answer_no_record() {
        let receipts = OutcomeAwaiter::default();
        let waiter = receipts.subscribe("tea").unwrap();
        let mut outcome = outcome_record("tea", 1);
        outcome.outcome.answers = None;
        receipts.deliver(b"tea", || Some(outcome));
        deliver(&receipts, "tea", 7);
        assert_eq!(waiter.wait_for_any(SOON).await, Some(outcome_record("tea", 7)));
    }

    #[tokio::test]
    async fn a_waiter_is_removed_after_its_timeout() {
        let receipts = OutcomeAwaiter::default();
        let waiter = receipts.subscribe("tea").unwrap();
        deliver(&receipts, "tea", 1);
        assert_eq!(waiter.wait_for(7, Duration::from_millis(1)).await, None);
        let waiting = receipts.lock();
        assert_eq!((waiting.count, waiting.by_trigger.len()), (0, 0));
    }

    #[test]
    fn an_outcome_without_a_waiter_is_not_decoded() {
        OutcomeAwaiter::default().deliver(b"tea", || panic!("nobody waits"));
    }

    #[test]
    fn waiters_are_counted() {
        let receipts = OutcomeAwaiter::default();
        let waiters: Vec<_> =
            (0..WAITERS_MAX).map(|_| receipts.subscribe("tea").unwrap()).collect();
        assert!(receipts.subscribe("tea").is_err());
        drop(waiters);
        assert!(receipts.subscribe("tea").is_ok());
    }
}
