//! Two transactional producers that take turns, as `producer_turns` says, so that a transaction
//! does not wait until the markers of the previous one are written.
//!
//! Invariant: a transaction starts only after the previous one has ended, so at most one is
//! undecided, and offset order is the order of decisions. After a commit is acknowledged, the
//! broker still writes markers. A producer that starts its next transaction during that time is
//! refused (`CONCURRENT_TRANSACTIONS`), and librdkafka waits 20 ms before it tries again. The other
//! producer does not wait: its markers are written by then, as a rule.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::asked_brokers::first_answer;
use super::group_metadata::GroupMetadata;
use super::producer_turns::ProducerTurns;
use super::transaction::{
    ConnectedProducer, OffsetCommit, ProducerRecord, TransactionError, TransactionalProducer,
};
use crate::clock;
use crate::config::Settings;
use crate::model::Timestamp;

/// How long brokers may take together to say who leads what: one of them may be the broker that
/// does not answer.
const REFRESH_TIMEOUT: Duration = Duration::from_millis(1_500);

/// Two transactional producers of one process.
#[derive(Debug)]
pub struct ProducerPair {
    producers: [TransactionalProducer; 2],
    current: AtomicUsize,
    turns: Mutex<ProducerTurns>,
}

/// The clients of a [`ProducerPair`]; see [`ConnectedProducer`].
#[derive(Debug)]
pub struct ConnectedPair {
    producers: [ConnectedProducer; 2],
}

impl ConnectedPair {
    /// Creates both clients of the pair `number` of the process `id`, and waits for their
    /// connections, at most `timeout`.
    pub fn connect(
        settings: &Settings,
        (id, number): (&str, usize),
        timeout: Duration,
    ) -> Result<Self, TransactionError> {
        let transaction_timeout = settings.scheduler.transaction_timeout;
        let connect =
            |id: String| ConnectedProducer::connect(settings, &id, timeout, transaction_timeout);
        let producers = in_parallel(transactional_ids(id, number), connect)?;
        Ok(Self { producers })
    }

    /// Both fetch the metadata of these topics, in this order. Waits at most `timeout` for each,
    /// also for a connection.
    pub fn fetch_metadata(
        &self,
        topics: &[String],
        timeout: Duration,
    ) -> Result<(), TransactionError> {
        let fetch = |producer: &ConnectedProducer| {
            topics.iter().try_for_each(|topic| producer.fetch_metadata(topic, timeout))
        };
        in_parallel(self.producers.each_ref(), fetch).map(|[(), ()]| ())
    }

    /// Takes them into use. Blocks, for at most `timeout`, until the broker has ended the open
    /// transactions of earlier producers with the same id.
    pub fn init(self, timeout: Duration) -> Result<ProducerPair, TransactionError> {
        let producers = in_parallel(self.producers, |producer| producer.init(timeout))?;
        // What the clients know may be of a time before the failure that they are used after.
        Ok(ProducerPair::new(producers, true))
    }
}

/// Calls `call` for both at the same time.
fn in_parallel<T: Send, U: Send>(
    [first, second]: [T; 2],
    call: impl Fn(T) -> Result<U, TransactionError> + Sync,
) -> Result<[U; 2], TransactionError> {
    let call = &call;
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(move || call(second));
        let first = call(first);
        (first, second.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    Ok([first?, second?])
}

impl ProducerPair {
    fn new(producers: [TransactionalProducer; 2], is_stale: bool) -> Self {
        let turns = Mutex::new(ProducerTurns::new(is_stale, clock::monotonic()));
        Self { producers, current: AtomicUsize::new(0), turns }
    }

    /// Opens both producers of the pair `number` of the process `id`. Blocks, for at most
    /// `timeout`, until the broker has ended the open transactions of earlier ones.
    pub fn open(
        settings: &Settings,
        (id, number): (&str, usize),
        timeout: Duration,
    ) -> Result<Self, TransactionError> {
        let open = |id: String| TransactionalProducer::open(settings, &id, timeout);
        let producers = in_parallel(transactional_ids(id, number), open)?;
        Ok(Self::new(producers, false))
    }

    /// Fetches the metadata of a topic, so that the first record does not wait for it.
    pub fn prefetch_metadata(&self, topic: &str) -> Result<(), TransactionError> {
        self.producers.iter().try_for_each(|producer| producer.prefetch_metadata(topic))
    }

    /// Begins a transaction with the producer whose turn it is; see
    /// [`TransactionalProducer::begin_at`].
    pub fn begin_at(&self, time: Timestamp) -> Result<(), TransactionError> {
        let (next, is_stale) = self.turns().next(clock::monotonic());
        self.current.store(next, Ordering::Relaxed);
        if is_stale {
            let refresh = |timeout| self.current().refresh_metadata(timeout);
            let _is_known = first_answer(REFRESH_TIMEOUT, refresh).is_ok();
        }
        self.turns().on_begin(clock::monotonic());
        self.current().begin_at(time)
    }

    /// See [`TransactionalProducer::send`].
    pub fn send(&self, record: ProducerRecord<'_>) -> Result<(), TransactionError> {
        self.current().send(record)
    }

    /// See [`TransactionalProducer::limit_batch`].
    pub fn limit_batch(
        &self,
        record: &ProducerRecord<'_>,
        bytes_max: usize,
        timeout: Duration,
    ) -> Result<(), TransactionError> {
        self.current().limit_batch(record, bytes_max, timeout)
    }

    /// See [`TransactionalProducer::flush`].
    pub fn flush(&self, timeout: Duration) -> Result<(), TransactionError> {
        self.current().flush(timeout)
    }

    /// See [`TransactionalProducer::is_flushed`].
    pub fn is_flushed(&self, timeout: Duration) -> Result<bool, TransactionError> {
        self.current().is_flushed(timeout)
    }

    /// See [`TransactionalProducer::send_offsets`].
    pub fn send_offsets(
        &self,
        offset_commits: &[OffsetCommit],
        group_metadata: &GroupMetadata,
        timeout: Duration,
    ) -> Result<(), TransactionError> {
        self.current().send_offsets(offset_commits, group_metadata, timeout)
    }

    /// See [`TransactionalProducer::commit`].
    pub fn commit(&self, timeout: Duration) -> Result<(), TransactionError> {
        self.current().commit(timeout)?;
        self.turns().on_ended(clock::monotonic());
        Ok(())
    }

    /// See [`TransactionalProducer::commit_with_offsets`].
    pub fn commit_with_offsets(
        &self,
        offset_commits: &[OffsetCommit],
        group_metadata: &GroupMetadata,
    ) -> Result<(), TransactionError> {
        self.current().commit_with_offsets(offset_commits, group_metadata)?;
        self.turns().on_ended(clock::monotonic());
        Ok(())
    }

    /// See [`TransactionalProducer::abort`].
    pub fn abort(&self, timeout: Duration) -> Result<(), TransactionError> {
        self.current().abort(timeout)?;
        self.turns().on_ended(clock::monotonic());
        Ok(())
    }

    fn turns(&self) -> MutexGuard<'_, ProducerTurns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> &TransactionalProducer {
        &self.producers[self.current.load(Ordering::Relaxed)]
    }
}

/// `<id>` and `<id>/2` of the pair 0, `<id>/3` and `<id>/4` of the pair 1, and so on. An instance
/// id has no slash (`scheduler.instance_id`), so no two processes share one.
fn transactional_ids(id: &str, number: usize) -> [String; 2] {
    [2 * number + 1, 2 * number + 2].map(|place| match place {
        1 => id.to_owned(),
        place => format!("{id}/{place}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_has_transactional_ids_of_its_own() {
        let ids = (0..3).flat_map(|number| transactional_ids("a", number));
        assert_eq!(ids.collect::<Vec<_>>(), ["a", "a/2", "a/3", "a/4", "a/5", "a/6"]);
    }
}
