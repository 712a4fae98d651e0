//! Awaiting the owner's answer: outcomes, matched with the records that asked for them.
//!
//! Law: one thread reads, and nothing grows without bound: a waiter lives as long as its request,
//! waiters are counted, and an outcome that nobody waits for is not even decoded.

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
use crate::kafka::reader::{Read, Reader};
use crate::model::outcome::Outcome;
use crate::model::{Offset, PartitionId};

/// Requests that wait at once. Each holds a connection too, so more would not help anyone.
const WAITERS_MAX: usize = 10_000;
/// Outcomes of one trigger that may come between a waiter's record and its acknowledgement.
const UNREAD_MAX: usize = 64;
/// How long one look for outcomes takes; it bounds how late the thread hears of a shutdown.
const POLL: Duration = Duration::from_millis(100);
/// How long the broker may take to say where a log ends; it bounds the same.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The part of the gateway's health that this is.
const PART: &str = "outcomes";

/// As many requests wait as may: answer "try again later".
#[derive(Debug, Error)]
#[error("{WAITERS_MAX} requests wait for their outcome already")]
pub struct Full;

/// The waiters, shared with the thread that reads outcomes.
#[derive(Clone, Debug, Default)]
pub struct Receipts {
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    by_trigger: HashMap<String, Vec<(u64, mpsc::Sender<Told>)>>,
    count: usize,
    next: u64,
}

/// An outcome, and where its record stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// What the owner said.
    pub outcome: Outcome,
    /// The partition of `outcomes`.
    pub partition: PartitionId,
    /// The offset there.
    pub offset: Offset,
}

/// One who waits; forgotten when dropped.
#[derive(Debug)]
pub struct Waiter {
    receipts: Receipts,
    trigger: String,
    number: u64,
    outcomes: mpsc::Receiver<Told>,
}

impl Receipts {
    /// Reads outcomes on a thread of its own until `shutdown`. `health` is ready as soon as every
    /// outcome of a record written from then on will be seen.
    pub fn open(
        settings: &Settings,
        health: Arc<Health>,
        shutdown: CancellationToken,
    ) -> Result<Self, KafkaError> {
        let reader = Reader::open(settings, &format!("{}.gateways", settings.topics.prefix))?;
        health.not_ready(PART, "looking for the end of the log");
        let receipts = Self::default();
        let follower = Follower {
            reader,
            topic: Names::new(&settings.topics.prefix).outcomes(),
            partitions: settings.topics.partitions.get().into(),
            receipts: receipts.clone(),
            health,
        };
        let _detached = std::thread::spawn(move || follower.run(&shutdown));
        Ok(receipts)
    }

    /// Begins to wait for outcomes of `trigger`. To be called before its record is written: the
    /// answer may be there before the broker's acknowledgement.
    pub fn expect(&self, trigger: &str) -> Result<Waiter, Full> {
        let mut waiting = self.lock();
        if waiting.count >= WAITERS_MAX {
            return Err(Full);
        }
        let (sender, outcomes) = mpsc::channel(UNREAD_MAX);
        let number = waiting.next;
        waiting.next += 1;
        waiting.count += 1;
        waiting.by_trigger.entry(trigger.to_owned()).or_default().push((number, sender));
        Ok(Waiter { receipts: self.clone(), trigger: trigger.to_owned(), number, outcomes })
    }

    /// Hands an outcome to those who wait for its trigger; `decode` is called if there are any.
    fn deliver(&self, trigger: &[u8], decode: impl FnOnce() -> Option<Told>) {
        let Ok(trigger) = std::str::from_utf8(trigger) else { return };
        let waiting = self.lock();
        let Some(waiters) = waiting.by_trigger.get(trigger) else { return };
        let Some(told) = decode() else { return };
        for (_, sender) in waiters {
            // Full: whoever reads that slowly has run out of time, and is told where to look.
            let _full = sender.try_send(told.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    /// The outcome that answers the record at `offset`, or nothing after `timeout`.
    pub async fn answer(self, offset: Offset, timeout: Duration) -> Option<Told> {
        self.find(|outcome| outcome.answers == Some(offset), timeout).await
    }

    /// The first outcome that answers any record, or nothing after `timeout`: where a registration
    /// of a batch will stand its writer does not know.
    pub async fn any_answer(self, timeout: Duration) -> Option<Told> {
        self.find(|outcome| outcome.answers.is_some(), timeout).await
    }

    async fn find(mut self, is_it: impl Fn(&Outcome) -> bool, timeout: Duration) -> Option<Told> {
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

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiting = self.receipts.lock();
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
struct Follower {
    reader: Reader,
    topic: String,
    partitions: PartitionId,
    receipts: Receipts,
    health: Arc<Health>,
}

impl Follower {
    fn run(self, shutdown: &CancellationToken) {
        let schemas = Schemas::new();
        // Until started, and whenever the brokers went: ask, because librdkafka never says that
        // they came back.
        let (mut started, mut away) = (false, true);
        while !shutdown.is_cancelled() {
            if away {
                match if started { self.is_there() } else { self.start() } {
                    Ok(()) => {
                        (started, away) = (true, false);
                        self.health.ready(PART);
                    }
                    Err(error) => self.health.not_ready(PART, error.to_string()),
                }
            }
            match self.reader.poll(POLL) {
                Ok(Some(Read::Record(record))) => {
                    let (_topic, partition, offset) = Reader::place(&record);
                    let decode = || {
                        let outcome = schemas.decode_outcome(record.payload()?).ok()?;
                        Some(Told { outcome, partition, offset })
                    };
                    self.receipts.deliver(record.key().unwrap_or_default(), decode);
                }
                // Outcomes are kept for a month and read at once: somebody made the topic anew.
                Ok(Some(Read::OutOfRange(_))) => (started, away) = (false, true),
                Ok(Some(Read::End(_)) | None) => {}
                Err(error) => {
                    away = true;
                    self.health.not_ready(PART, format!("the broker is away: {error}"));
                }
            }
        }
    }

    fn start(&self) -> Result<(), KafkaError> {
        // All ends before the first fetch: a broker answers a connection in order, and a fetch
        // that waits for records would hold up every question behind it.
        let ends = (0..self.partitions)
            .map(|partition| self.reader.stable_end(&self.topic, partition, ANSWER_TIMEOUT))
            .collect::<Result<Vec<_>, _>>()?;
        for (partition, end) in (0..).zip(ends) {
            self.reader.start(&self.topic, partition, end)?;
        }
        Ok(())
    }

    fn is_there(&self) -> Result<(), KafkaError> {
        self.reader.stable_end(&self.topic, 0, ANSWER_TIMEOUT).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::outcome::Verdict;
    use crate::model::text::Text;

    const SOON: Duration = Duration::from_secs(5);

    fn told(trigger: &str, answers: Offset) -> Told {
        let verdict = Verdict::Cancelled { generation: answers };
        let (trigger, answers) = (Text::from(trigger), Some(answers));
        let outcome = Outcome { trigger, answers, at: 0, verdict };
        Told { outcome, partition: 3, offset: 41 }
    }

    fn deliver(receipts: &Receipts, trigger: &str, answers: Offset) {
        receipts.deliver(trigger.as_bytes(), || Some(told(trigger, answers)));
    }

    #[tokio::test]
    async fn an_answer_finds_the_record_that_asked() {
        let receipts = Receipts::default();
        let first = receipts.expect("tea").unwrap();
        let second = receipts.expect("tea").unwrap();
        deliver(&receipts, "milk", 1);
        deliver(&receipts, "tea", 2);
        deliver(&receipts, "tea", 1);
        assert_eq!(first.answer(1, SOON).await, Some(told("tea", 1)));
        assert_eq!(second.answer(2, SOON).await, Some(told("tea", 2)));
        assert!(receipts.lock().by_trigger.is_empty());
    }

    #[tokio::test]
    async fn any_answer_is_one_to_a_record() {
        let receipts = Receipts::default();
        let waiter = receipts.expect("tea").unwrap();
        let mut note = told("tea", 1);
        note.outcome.answers = None;
        receipts.deliver(b"tea", || Some(note));
        deliver(&receipts, "tea", 7);
        assert_eq!(waiter.any_answer(SOON).await, Some(told("tea", 7)));
    }

    #[tokio::test]
    async fn who_is_not_answered_is_forgotten() {
        let receipts = Receipts::default();
        let waiter = receipts.expect("tea").unwrap();
        deliver(&receipts, "tea", 1);
        assert_eq!(waiter.answer(7, Duration::from_millis(1)).await, None);
        let waiting = receipts.lock();
        assert_eq!((waiting.count, waiting.by_trigger.len()), (0, 0));
    }

    #[test]
    fn what_nobody_waits_for_is_not_decoded() {
        Receipts::default().deliver(b"tea", || panic!("nobody waits"));
    }

    #[test]
    fn waiters_are_counted() {
        let receipts = Receipts::default();
        let waiters: Vec<_> = (0..WAITERS_MAX).map(|_| receipts.expect("tea").unwrap()).collect();
        assert!(receipts.expect("tea").is_err());
        drop(waiters);
        assert!(receipts.expect("tea").is_ok());
    }
}
