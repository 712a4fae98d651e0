//! Reads the simulated logs: fetches parts of them, and returns record by record.
//!
//! Invariant: `read_committed`: records in offset order, up to the last stable offset at the time
//! of the fetch. The end of a partition is reported once, until there was something to read again;
//! when it is reported, there may be newer records already.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use orloj_core::codec::ledger_key::{STEP_HEADER, step_header};
use orloj_core::codec::schemas::Schemas;
use orloj_core::environment::call_error::{CallError, CallResult};
use orloj_core::environment::log::{LogEvent, LogReading, LogRecord, RecordHeader};
use orloj_core::model::definition::Header;
use orloj_core::model::{Millis, Offset, PartitionId, Timestamp};

use super::{SimulatedProcess, index, suffix};
use crate::simulation::broker::{SimulatedBroker, SimulatedEffect};
use crate::simulation::cluster::SimulatedCluster;
use crate::simulation::fault_kinds::FaultKind;

/// What is read: topic and partition.
type LogName = (String, PartitionId);

/// A part of a log that was fetched: what a poll returns later.
enum FetchedEvent {
    Record(SimulatedLogRecord),
    /// At this offset there was nothing more to read when it was fetched.
    End(Offset),
}

/// How far a partition is read.
#[derive(Default)]
struct ReadPosition {
    /// Where the next fetch begins.
    next: Offset,
    fetched: VecDeque<FetchedEvent>,
    /// Where its end was reported.
    reported: Option<Offset>,
    /// Nothing is fetched or returned before this time, in ms since the epoch.
    paused_until: Timestamp,
    /// The process does not want to read it now.
    is_paused: bool,
    /// Its last fetch was refused: nothing is fetched until it is started again.
    is_out_of_range: bool,
    /// Its end when it was last fetched, perhaps before it was started.
    end: Option<Offset>,
    /// Until where a poll has returned it, with the markers that follow.
    returned: Option<Offset>,
}

/// A reader of a process.
pub(in crate::simulation) struct SimulatedLogReader {
    process: SimulatedProcess,
    positions: Mutex<BTreeMap<LogName, ReadPosition>>,
    /// The ends of partitions that are not read now: the client keeps them.
    kept_ends: Mutex<BTreeMap<LogName, Offset>>,
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
        Self { process, positions: Mutex::default(), kept_ends: Mutex::default() }
    }

    fn set_paused(&self, topic: &str, partition: PartitionId, is_paused: bool) {
        self.process.call(|cluster, _| {
            let mut positions = self.positions.lock().unwrap();
            if let Some(position) = positions.get_mut(&(topic.to_owned(), partition)) {
                position.is_paused = is_paused;
                cluster.counts.add_many(FaultKind::PartitionFull, u64::from(is_paused));
            }
        });
    }
}

impl LogReading for SimulatedLogReader {
    type Record<'a> = SimulatedLogRecord;

    fn start(&self, topic: &str, partition: PartitionId, offset: Offset) -> CallResult<()> {
        self.process.call(|_, _| {
            let name = (topic.to_owned(), partition);
            let (mut positions, kept) = (self.positions.lock().unwrap(), &self.kept_ends);
            let before = positions.get(&name).and_then(|position| position.end);
            let end = before.or_else(|| kept.lock().unwrap().get(&name).copied());
            let _before =
                positions.insert(name, ReadPosition { next: offset, end, ..Default::default() });
        });
        Ok(())
    }

    fn position(&self, topic: &str, partition: PartitionId) -> CallResult<Option<Offset>> {
        Ok(self.process.call(|_, _| {
            let positions = self.positions.lock().unwrap();
            positions.get(&(topic.to_owned(), partition)).and_then(|position| position.returned)
        }))
    }

    fn fetched_end(&self, topic: &str, partition: PartitionId) -> Option<Offset> {
        self.process.call(|_, _| {
            let positions = self.positions.lock().unwrap();
            positions.get(&(topic.to_owned(), partition)).and_then(|position| position.end)
        })
    }

    fn stop(&self, topic: &str, partition: PartitionId) -> CallResult<()> {
        self.process.call(|_, _| {
            let name = (topic.to_owned(), partition);
            let stopped = self.positions.lock().unwrap().remove(&name);
            if let Some(end) = stopped.and_then(|position| position.end) {
                let _before = self.kept_ends.lock().unwrap().insert(name, end);
            }
        });
        Ok(())
    }

    fn pause(&self, topic: &str, partition: PartitionId) -> CallResult<()> {
        self.set_paused(topic, partition, true);
        Ok(())
    }

    fn resume(&self, topic: &str, partition: PartitionId) -> CallResult<()> {
        self.set_paused(topic, partition, false);
        Ok(())
    }

    /// One event of a partition, if there is any now.
    fn poll(&self, timeout: Duration) -> CallResult<Option<LogEvent<SimulatedLogRecord>>> {
        self.process.call(|cluster, state| {
            // The loop does not wait while the standby does.
            let waits = !timeout.is_zero() && !state.is_standby();
            cluster.broker.now += u64::from(waits && cluster.rng.one_in(8));
            let mut positions = self.positions.lock().unwrap();
            fail_sometimes(cluster, &mut positions)?;
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
                if let Some(event) = next_event(cluster, &name, position) {
                    cluster.broker.now += cluster.record_takes;
                    return Ok(Some(event));
                }
            }
            Ok(None)
        })
    }
}

/// While there are faults, a poll sometimes fails. Then some partitions are not fetched for a time.
fn fail_sometimes(
    cluster: &mut SimulatedCluster,
    positions: &mut BTreeMap<LogName, ReadPosition>,
) -> CallResult<()> {
    if cluster.calm || !cluster.rng.one_in(50) {
        return Ok(());
    }
    cluster.counts.add(FaultKind::ReadFailed);
    for position in positions.values_mut() {
        if cluster.rng.one_in(3) {
            cluster.counts.add(FaultKind::ReaderPaused);
            position.paused_until = cluster.broker.now + cluster.rng.pick(&[1, 5, 30]);
        }
    }
    Err(CallError::new("the broker does not answer"))
}

/// The next event of a partition. Fetches a part of the log if nothing is fetched.
fn next_event(
    cluster: &mut SimulatedCluster,
    name: &LogName,
    position: &mut ReadPosition,
) -> Option<LogEvent<SimulatedLogRecord>> {
    let is_slow = position.paused_until > cluster.broker.now && !cluster.calm;
    let is_unfetched = suffix(&name.0) == "triggers" && cluster.unfetched == Some(index(name.1));
    if is_slow || is_unfetched || position.is_paused || position.is_out_of_range {
        return None;
    }
    if position.fetched.is_empty() {
        let (low, high) = cluster.broker.bounds(suffix(&name.0), index(name.1));
        // A broker that is not the leader any more refuses an offset that exists.
        let mut is_refused = !cluster.calm && cluster.rng.one_in(5_000);
        if suffix(&name.0) == "signals" && cluster.refuses_signals == Some(index(name.1)) {
            (is_refused, cluster.refuses_signals) = (true, None);
        }
        cluster.counts.add_many(FaultKind::OffsetRefused, u64::from(is_refused));
        if is_refused || position.next < low || high < position.next {
            position.is_out_of_range = true;
            cluster.counts.add_many(FaultKind::OutOfRange, u64::from(!is_refused));
            return Some(LogEvent::OutOfRange);
        }
        fetch(cluster, name, position);
    }
    match position.fetched.pop_front()? {
        FetchedEvent::Record(record) => {
            (position.reported, position.returned) = (None, Some(record.offset + 1));
            Some(LogEvent::Record(record))
        }
        FetchedEvent::End(end) => {
            position.returned = Some(end);
            let stable = cluster.broker.stable(suffix(&name.0), index(name.1));
            cluster.counts.add_many(FaultKind::EndStale, u64::from(stable > end));
            Some(LogEvent::End(name.1))
        }
    }
}

/// Fetches a part of the log: some records, and perhaps the end.
fn fetch(cluster: &mut SimulatedCluster, name: &LogName, position: &mut ReadPosition) {
    let max = if cluster.calm { 50 } else { cluster.rng.pick(&[1, 1, 2, 10, 50]) };
    let schemas = Arc::clone(&cluster.reader.schemas);
    let is_read =
        |(of, _): &mut (usize, Millis)| suffix(&name.0) == "triggers" && *of == index(name.1);
    if let Some((p, length)) = cluster.lags_at_fetch.take_if(is_read) {
        cluster.lagging[p] = (0, cluster.broker.now + length);
    }
    let (mut records, mut next, mut ended) =
        read(&cluster.broker, name, position.next, max, &schemas);
    if let Some(known) = cluster.lagging_end(suffix(&name.0), index(name.1))
        && next > known
    {
        cluster.counts.add(FaultKind::EndEarly);
        records.retain(|record| record.offset < known);
        (next, ended) = (known.max(position.next), true);
    }
    let (_low, end) = cluster.broker.bounds(suffix(&name.0), index(name.1));
    let known = cluster.lagging_end(suffix(&name.0), index(name.1));
    position.end = Some(known.map_or(end, |known| known.min(end)));
    let is_part = !ended && !records.is_empty();
    cluster.counts.add_many(FaultKind::FetchedInParts, u64::from(is_part));
    let skips = |record: &SimulatedLogRecord, before: Offset| record.offset > before;
    let gaps = records.first().is_some_and(|record| skips(record, position.next));
    cluster.counts.add_many(FaultKind::OffsetGap, u64::from(gaps));
    position.next = next;
    position.fetched.extend(records.into_iter().map(FetchedEvent::Record));
    if !ended || position.reported == Some(next) && position.fetched.is_empty() {
        return;
    }
    position.reported = Some(next);
    if !cluster.calm && cluster.rng.one_in(20) {
        cluster.counts.add(FaultKind::EndMissing);
        return;
    }
    position.fetched.push_back(FetchedEvent::End(next));
}

/// At most `max` records of a log from `from` on, where to continue, and whether there is nothing
/// more to read.
fn read(
    broker: &SimulatedBroker,
    (topic, partition): &LogName,
    from: Offset,
    max: usize,
    schemas: &Schemas,
) -> (Vec<SimulatedLogRecord>, Offset, bool) {
    let (p, states) = (index(*partition), &broker.transaction_states);
    let record = |offset, timestamp, key, value, headers| SimulatedLogRecord {
        topic: topic.clone(),
        partition: *partition,
        offset,
        timestamp,
        key,
        value,
        headers,
    };
    match suffix(topic) {
        "triggers" => {
            let fetch = broker.triggers[p].read(states, from, max);
            let found = fetch.records.into_iter();
            let found =
                found.map(|(offset, at, raw)| record(offset, at, raw.key, raw.value, raw.headers));
            (found.collect(), fetch.next, fetch.ended)
        }
        "signals" => {
            let fetch = broker.signals[p].read(states, from, max);
            let found = fetch.records.into_iter().map(|(offset, at, signal)| {
                let value = schemas.encode_signal(&signal);
                record(offset, at, Bytes::new(), Some(value.into()), Vec::new())
            });
            (found.collect(), fetch.next, fetch.ended)
        }
        "fires" => {
            let fetch = broker.fires[p].read(states, from, max);
            let found = fetch.records.into_iter().map(|(offset, at, sent)| {
                let value = match &sent.effect {
                    SimulatedEffect::Callback(fire) => schemas.encode_fire(fire),
                    SimulatedEffect::Withdrawal(withdrawal) => {
                        schemas.encode_withdrawal(withdrawal)
                    }
                    other => unreachable!("{other:?} is not written there"),
                };
                record(offset, at, Bytes::new(), Some(value.into()), Vec::new())
            });
            (found.collect(), fetch.next, fetch.ended)
        }
        _ => {
            let fetch = broker.ledger[p].read(states, from, max);
            let found = fetch.records.into_iter().map(|(offset, at, entry)| {
                let value = entry.value.as_ref().map(|value| schemas.encode_ledger(value).into());
                let step =
                    Header { name: STEP_HEADER.into(), value: Some(step_header(entry.step)) };
                record(offset, at, entry.key.to_bytes().into(), value, vec![step])
            });
            (found.collect(), fetch.next, fetch.ended)
        }
    }
}
