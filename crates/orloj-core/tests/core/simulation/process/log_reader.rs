//! Reads the simulated logs, record by record.
//!
//! Invariant: `read_committed`: records in offset order, up to the last stable offset. The end of a
//! partition is reported once, until there was something to read again.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use orloj_core::codec::ledger_key::{STEP_HEADER, step_header};
use orloj_core::codec::schemas::Schemas;
use orloj_core::environment::call_error::{CallError, CallResult};
use orloj_core::environment::log::{LogEvent, LogReading, LogRecord, RecordHeader};
use orloj_core::model::definition::Header;
use orloj_core::model::{Offset, PartitionId, Timestamp};

use super::{SimulatedProcess, index, suffix};
use crate::simulation::broker::SimulatedBroker;

/// What is read: topic and partition.
type LogName = (String, PartitionId);

/// How far a partition is read.
#[derive(Clone, Copy, Debug)]
struct ReadPosition {
    next: Offset,
    /// Where its end was reported.
    reported: Option<Offset>,
}

/// A reader of a process.
pub(in crate::simulation) struct SimulatedLogReader {
    process: SimulatedProcess,
    positions: Mutex<BTreeMap<LogName, ReadPosition>>,
}

/// A record, in bytes.
pub(in crate::simulation) struct SimulatedLogRecord {
    topic: String,
    partition: PartitionId,
    offset: Offset,
    timestamp: Timestamp,
    key: Bytes,
    value: Option<Bytes>,
    headers: Vec<Header>,
}

impl LogRecord for SimulatedLogRecord {
    fn position(&self) -> (&str, PartitionId, Offset) {
        (&self.topic, self.partition, self.offset)
    }

    fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    fn key(&self) -> Option<&[u8]> {
        Some(&self.key)
    }

    fn value(&self) -> Option<&[u8]> {
        self.value.as_deref()
    }

    fn headers(&self) -> impl Iterator<Item = RecordHeader<'_>> {
        self.headers.iter().map(|header| (header.name.as_str(), header.value.as_deref()))
    }
}

impl SimulatedLogReader {
    pub(in crate::simulation) fn new(process: SimulatedProcess) -> Self {
        Self { process, positions: Mutex::default() }
    }
}

impl LogReading for SimulatedLogReader {
    type Record<'a> = SimulatedLogRecord;

    fn start(&self, topic: &str, partition: PartitionId, offset: Offset) -> CallResult<()> {
        self.process.call(|_, _| {
            let position = ReadPosition { next: offset, reported: None };
            let _before =
                self.positions.lock().unwrap().insert((topic.to_owned(), partition), position);
        });
        Ok(())
    }

    fn stop(&self, topic: &str, partition: PartitionId) -> CallResult<()> {
        self.process.call(|_, _| {
            let _before = self.positions.lock().unwrap().remove(&(topic.to_owned(), partition));
        });
        Ok(())
    }

    /// One event of a partition, if the fetch returns any now.
    fn poll(&self, timeout: Duration) -> CallResult<Option<LogEvent<SimulatedLogRecord>>> {
        self.process.call(|cluster, state| {
            // The loop does not wait while the standby does.
            let waits = !timeout.is_zero() && !state.is_standby();
            cluster.broker.now += u64::from(waits && cluster.rng.one_in(8));
            cluster.fail_sometimes()?;
            let mut positions = self.positions.lock().unwrap();
            // A fetch may return nothing although there is something.
            if positions.is_empty() || cluster.rng.one_in(4) {
                return Ok(None);
            }
            let first = cluster.rng.place(positions.len());
            let count = positions.len();
            let names: Vec<LogName> =
                positions.keys().cycle().skip(first).take(count).cloned().collect();
            for name in names {
                let position = positions.get_mut(&name).expect("a name of this map");
                let schemas = &cluster.reader.schemas;
                if let Some(event) = next_event(&cluster.broker, &name, position, schemas) {
                    return Ok(Some(event));
                }
            }
            Ok(None)
        })
    }

    fn last_stable_offset(
        &self,
        topic: &str,
        partition: PartitionId,
        _timeout: Duration,
    ) -> CallResult<Offset> {
        self.process.call(|cluster, _| {
            cluster.fail_sometimes()?;
            let p = index(partition);
            match suffix(topic) {
                "triggers" => Ok(cluster.broker.triggers[p].stable()),
                "signals" => Ok(cluster.broker.signals[p].stable()),
                "ledger" => Ok(cluster.broker.ledger[p].stable()),
                _ => Err(CallError::new(format!("there is no topic {topic}"))),
            }
        })
    }
}

/// The next record of a partition, or its end.
fn next_event(
    broker: &SimulatedBroker,
    (topic, partition): &LogName,
    position: &mut ReadPosition,
    schemas: &Schemas,
) -> Option<LogEvent<SimulatedLogRecord>> {
    let (p, states, from) = (index(*partition), &broker.transaction_states, position.next);
    let (low, high) = match suffix(topic) {
        "triggers" => (broker.triggers[p].low, broker.triggers[p].high()),
        "signals" => (broker.signals[p].low, broker.signals[p].high()),
        _ => (broker.ledger[p].low, broker.ledger[p].high()),
    };
    if from < low || high < from {
        return Some(LogEvent::OutOfRange(format!("{topic}[{partition}] has no offset {from}")));
    }
    let record = |offset, timestamp, key, value, headers| SimulatedLogRecord {
        topic: topic.clone(),
        partition: *partition,
        offset,
        timestamp,
        key,
        value,
        headers,
    };
    let (record, next, ended) = match suffix(topic) {
        "triggers" => {
            let fetch = broker.triggers[p].read(states, from, 1);
            let found = fetch.records.into_iter().next();
            let found =
                found.map(|(offset, at, raw)| record(offset, at, raw.key, raw.value, raw.headers));
            (found, fetch.next, fetch.ended)
        }
        "signals" => {
            let fetch = broker.signals[p].read(states, from, 1);
            let found = fetch.records.into_iter().next().map(|(offset, at, signal)| {
                let value = schemas.encode_signal(&signal);
                record(offset, at, Bytes::new(), Some(value.into()), Vec::new())
            });
            (found, fetch.next, fetch.ended)
        }
        _ => {
            let fetch = broker.ledger[p].read(states, from, 1);
            let found = fetch.records.into_iter().next().map(|(offset, at, entry)| {
                let value = entry.value.as_ref().map(|value| schemas.encode_ledger(value).into());
                let step =
                    Header { name: STEP_HEADER.into(), value: Some(step_header(entry.step)) };
                record(offset, at, entry.key.to_bytes().into(), value, vec![step])
            });
            (found, fetch.next, fetch.ended)
        }
    };
    position.next = next;
    if let Some(record) = record {
        position.reported = None;
        return Some(LogEvent::Record(record));
    }
    if ended && position.reported != Some(next) {
        position.reported = Some(next);
        return Some(LogEvent::End(*partition));
    }
    None
}
