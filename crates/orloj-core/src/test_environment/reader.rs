//! A reader for tests, which returns what a test has set.
//!
//! Invariant: clones share it. It keeps which partitions are to be read, and from where.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::clock::TestClock;
use crate::environment::call_error::{CallError, CallResult};
use crate::environment::log::{LogEvent, LogReading, LogRecord, RecordHeader};
use crate::model::{Offset, PartitionId, Timestamp};

/// A record as it is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestRecord {
    pub(crate) topic: String,
    pub(crate) partition: PartitionId,
    pub(crate) offset: Offset,
    pub(crate) timestamp: Timestamp,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
}

impl TestRecord {
    /// A record that cancels the trigger `a`, if it is one of `triggers`.
    pub(crate) fn at(topic: &str, partition: PartitionId, offset: Offset) -> Self {
        let key = Some(b"a".to_vec());
        Self { topic: topic.to_owned(), partition, offset, key, ..Self::default() }
    }
}

impl LogRecord for TestRecord {
    fn position(&self) -> (&str, PartitionId, Offset) {
        (&self.topic, self.partition, self.offset)
    }

    fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    fn key(&self) -> Option<&[u8]> {
        self.key.as_deref()
    }

    fn value(&self) -> Option<&[u8]> {
        self.value.as_deref()
    }

    fn headers(&self) -> impl Iterator<Item = RecordHeader<'_>> {
        self.headers.iter().map(|(name, value)| (name.as_str(), Some(value.as_slice())))
    }
}

/// What a reader returns, and what was requested of it.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// What polls return. Without anything, they say that nothing has arrived.
    pub(crate) events: VecDeque<LogEvent<TestRecord>>,
    /// The next poll fails.
    pub(crate) fails: bool,
    /// How long a poll takes that returns something.
    pub(crate) takes: Duration,
    pub(crate) clock: TestClock,
    /// For how long each poll could wait.
    pub(crate) waits: Vec<Duration>,
    /// Until where each partition is read.
    pub(crate) position: Option<Offset>,
    /// The end of each partition when it was fetched.
    pub(crate) fetched_end: Option<Offset>,
    /// `start o.triggers[0] at 5`, and so on.
    calls: Vec<String>,
}

/// Returns what is set.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestReader(Arc<Mutex<Reading>>);

impl TestReader {
    pub(crate) fn reading(&self) -> MutexGuard<'_, Reading> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next polls return these records.
    pub(crate) fn returns(&self, records: impl IntoIterator<Item = TestRecord>) {
        self.reading().events.extend(records.into_iter().map(LogEvent::Record));
    }

    /// What was requested since the last call.
    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.reading().calls)
    }

    fn called(&self, call: String) {
        self.reading().calls.push(call);
    }
}

impl LogReading for TestReader {
    type Record<'a> = TestRecord;

    fn start(&self, topic: &str, partition: PartitionId, offset: Offset) -> CallResult<()> {
        self.called(format!("start {topic}[{partition}] at {offset}"));
        Ok(())
    }

    fn position(&self, _topic: &str, _partition: PartitionId) -> CallResult<Option<Offset>> {
        Ok(self.reading().position)
    }

    fn fetched_end(&self, _topic: &str, _partition: PartitionId) -> Option<Offset> {
        self.reading().fetched_end
    }

    fn stop(&self, topic: &str, partition: PartitionId) -> CallResult<()> {
        self.called(format!("stop {topic}[{partition}]"));
        Ok(())
    }

    fn pause(&self, topic: &str, partition: PartitionId) -> CallResult<()> {
        self.called(format!("pause {topic}[{partition}]"));
        Ok(())
    }

    fn resume(&self, topic: &str, partition: PartitionId) -> CallResult<()> {
        self.called(format!("resume {topic}[{partition}]"));
        Ok(())
    }

    fn poll(&self, timeout: Duration) -> CallResult<Option<LogEvent<TestRecord>>> {
        let mut reading = self.reading();
        reading.waits.push(timeout);
        if std::mem::take(&mut reading.fails) {
            return Err(CallError::new("the broker is away"));
        }
        let event = reading.events.pop_front();
        if event.is_some() {
            reading.clock.advance(reading.takes);
        }
        Ok(event)
    }
}
