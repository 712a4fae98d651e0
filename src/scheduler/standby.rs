//! The standby thread: replays partitions that other processes own, in repeated passes, so that
//! taking one over replays only seconds. It fires nothing and commits nothing.
//!
//! Invariant: a store is open either here or in a partition task. A takeover requests the store
//! from this thread first, and gets it in its current state. `engine::standby` defines what a pass
//! does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use orloj_core::scheduler::inputs::InputDecoder;
use orloj_core::scheduler::local_store::{fetch_index_rows, local_state, valid_state};

use super::instance_lock::InstanceLock;
use super::registry_schemas::RegistrySchemas;
use super::{SchedulerError, spawn};
use crate::clock;
use crate::codec::schemas::Schemas;
use crate::config::Settings;
use crate::engine::cursor::Cursor;
use crate::engine::local_checkpoint::LocalCheckpoint;
use crate::engine::standby::{CatchUpPass, partitions_to_follow};
use crate::kafka::Names;
use crate::kafka::error::ClientError;
use crate::kafka::reader::{LogReader, ReadEvent};
use crate::kafka::standby_client::StandbyClient;
use crate::model::input::TriggerRecord;
use crate::model::ledger::LedgerRecord;
use crate::model::{Offset, PartitionId};
use crate::store::{PartitionStore, StoreError, StoreFactory};
use crate::telemetry;

/// Interval between two passes over all followed partitions.
const PASS_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between two reads of the group's members.
const MEMBERS_INTERVAL: Duration = Duration::from_secs(3);
/// How long one poll waits. A request from the loop waits no longer than that.
const POLL: Duration = Duration::from_millis(20);
/// How long a pass waits for records that must exist.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the broker may take to answer. A takeover may be waiting for it.
const CALL_TIMEOUT: Duration = Duration::from_millis(300);
/// If a pass takes longer, the ledger may have been compacted during it. This is half of the
/// ledger's `min.compaction.lag.ms`, because clocks differ.
const PASS_MAX: Duration = Duration::from_secs(30 * 60);
/// Records applied in one batch.
const BATCH: usize = 10_000;

/// The handle that the loop uses.
#[derive(Debug)]
pub(super) struct Standby {
    requests: Sender<StandbyRequest>,
}

/// A request from the loop.
#[derive(Debug)]
enum StandbyRequest {
    /// The partitions that this process owns. Others may be followed.
    SetOwned(BTreeSet<PartitionId>),
    /// This process now owns the partition: stop following it, and send back its store if it is
    /// open here.
    Release(PartitionId, Sender<Option<Arc<PartitionStore>>>),
}

impl Standby {
    pub(super) fn start(
        settings: &Settings,
        names: &Names,
        partitions: i32,
        instance_lock: &InstanceLock,
        cluster: &str,
        stores: &Arc<StoreFactory>,
    ) -> Result<Self, SchedulerError> {
        let (requests, inbox) = channel();
        let group = names.scheduler_group();
        let schemas = RegistrySchemas::open(&settings.triggers).map_err(SchedulerError::Schemas)?;
        let codec = Arc::new(Schemas::new());
        let worker = StandbyWorker {
            names: names.clone(),
            member_id_prefix: format!("{}-", instance_lock.instance_id),
            cluster: cluster.to_owned(),
            decoder: InputDecoder::new(
                names,
                settings.triggers.partitioner,
                partitions,
                codec,
                schemas,
            ),
            ledger: LogReader::open(settings, &group)?,
            triggers: LogReader::open(settings, &group)?,
            client: StandbyClient::open(settings, &group, &names.triggers(), CALL_TIMEOUT)?,
            stores: Arc::clone(stores),
            settings: settings.clone(),
            inbox,
            pending: Vec::new(),
            owned: BTreeSet::new(),
            partitions: BTreeMap::new(),
        };
        spawn("standby", move || worker.run());
        Ok(Self { requests })
    }

    /// Sets the partitions that this process owns.
    pub(super) fn set_owned(&self, partitions: &BTreeSet<PartitionId>) {
        let _ended = self.requests.send(StandbyRequest::SetOwned(partitions.clone()));
    }

    /// This process now owns the partition. Returns its store, if it was followed.
    pub(super) fn release(&self, partition: PartitionId) -> Option<Arc<PartitionStore>> {
        let (reply, response) = channel();
        self.requests.send(StandbyRequest::Release(partition, reply)).ok()?;
        response.recv().ok()?
    }
}

/// A followed partition.
#[derive(Debug)]
struct StandbyPartition {
    store: Arc<PartitionStore>,
    flushed_at: Instant,
    caught_up: bool,
}

impl StandbyPartition {
    fn new(store: PartitionStore) -> Self {
        Self { store: Arc::new(store), flushed_at: clock::monotonic(), caught_up: false }
    }
}

/// The state of the thread.
struct StandbyWorker {
    settings: Settings,
    names: Names,
    /// The start of this process's own member id.
    member_id_prefix: String,
    cluster: String,
    decoder: InputDecoder<RegistrySchemas>,
    /// One reader per topic, because the end-of-partition event does not contain the topic.
    ledger: LogReader,
    triggers: LogReader,
    client: StandbyClient,
    stores: Arc<StoreFactory>,
    inbox: Receiver<StandbyRequest>,
    /// Requests that arrived during a pass.
    pending: Vec<StandbyRequest>,
    owned: BTreeSet<PartitionId>,
    partitions: BTreeMap<PartitionId, StandbyPartition>,
}

/// The topic that is being read.
#[derive(Clone, Copy, Debug)]
enum StandbySource {
    Ledger,
    Triggers,
}

/// Why a pass was not completed. The next pass starts from the beginning.
#[derive(Debug, thiserror::Error)]
enum StandbyError {
    #[error("another request arrived")]
    Interrupted,
    #[error("not yet: {0}")]
    NotReady(String),
    #[error(transparent)]
    Kafka(#[from] ClientError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl StandbyWorker {
    fn run(mut self) {
        let mut members_read_at = None;
        loop {
            let now = clock::monotonic();
            if members_read_at.is_none_or(|at| now.duration_since(at) >= MEMBERS_INTERVAL) {
                members_read_at = Some(now);
                self.refresh_partitions();
            }
            for id in self.partitions.keys().copied().collect::<Vec<_>>() {
                if self.pending.is_empty() {
                    self.catch_up(id);
                }
            }
            for request in std::mem::take(&mut self.pending) {
                self.handle_request(request);
            }
            match self.inbox.recv_timeout(PASS_INTERVAL) {
                Ok(request) => self.handle_request(request),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn handle_request(&mut self, request: StandbyRequest) {
        match request {
            StandbyRequest::SetOwned(partitions) => self.owned = partitions,
            StandbyRequest::Release(partition, reply) => {
                let _new = self.owned.insert(partition);
                let store = self.partitions.remove(&partition).map(|followed| followed.store);
                let _receiver_closed = reply.send(store);
            }
        }
    }

    /// Reads the group's members, and opens and closes stores so that the right partitions are
    /// followed.
    fn refresh_partitions(&mut self) {
        let members = match self.client.group_members() {
            Ok(members) => members,
            Err(error) => return tracing::debug!(%error, "the members of the group cannot be read"),
        };
        let members: Vec<_> =
            members.iter().map(|m| (m.member_id.as_str(), &m.partitions[..])).collect();
        let replicas = usize::from(self.settings.standby.replicas);
        let mut wanted = partitions_to_follow(
            &members,
            |member| member.starts_with(&self.member_id_prefix),
            replicas,
        );
        wanted.retain(|partition| !self.owned.contains(partition));
        self.partitions.retain(|partition, _| wanted.contains(partition));
        for partition in wanted {
            if self.partitions.contains_key(&partition) {
                continue;
            }
            match self.stores.open(partition) {
                Ok(store) => {
                    tracing::info!(partition, "standby replay started");
                    let _none = self.partitions.insert(partition, StandbyPartition::new(store));
                }
                Err(error) => {
                    tracing::warn!(partition, %error, "the local store is rebuilt from Kafka");
                    let _wiped = self.stores.wipe(partition);
                }
            }
        }
        metrics::gauge!(telemetry::FOLLOWED).set(self.partitions.len() as f64);
    }

    fn catch_up(&mut self, id: PartitionId) {
        let result = self.run_pass(id);
        let (ledger, triggers) = (self.names.ledger(), self.names.triggers());
        for (reader, topic) in [(&self.ledger, ledger), (&self.triggers, triggers)] {
            if let Err(error) = reader.stop(&topic, id) {
                tracing::debug!(partition = id, %error, "reading a partition cannot be stopped");
            }
        }
        match result {
            Ok(()) => {}
            Err(StandbyError::Store(error)) => {
                tracing::error!(partition = id, %error, "the local store is rebuilt from Kafka");
                drop(self.partitions.remove(&id));
                if let Err(error) = self.stores.wipe(id) {
                    tracing::error!(partition = id, %error, "the local store cannot be removed");
                }
            }
            Err(error) => {
                tracing::debug!(partition = id, %error, "standby replay failed; trying again")
            }
        }
    }

    /// Applies to the store what the owner has committed.
    fn run_pass(&mut self, id: PartitionId) -> Result<(), StandbyError> {
        let not_ready = |what: &str| StandbyError::NotReady(what.to_owned());
        let started = clock::monotonic();
        let Some((offset, metadata)) = self.client.committed(id)? else {
            return Err(not_ready("no offset is committed"));
        };
        let Ok((cursor, _owner)) = Cursor::from_metadata(offset, &metadata) else {
            return Err(not_ready("the cursor has an unknown format"));
        };
        let (ledger_low, ledger_end) = self.client.bounds(&self.names.ledger(), id)?;
        let local = self.local_checkpoint(id)?;
        if local.as_ref().is_some_and(|(local, _)| local.step == cursor.step) {
            return Ok(());
        }
        let mut pass = CatchUpPass::begin(local, cursor, ledger_end);
        if pass.must_wipe() {
            drop(self.partitions.remove(&id));
            self.stores.wipe(id)?;
            let _none = self.partitions.insert(id, StandbyPartition::new(self.stores.open(id)?));
        }
        self.read_ledger(id, &mut pass, ledger_low)?;
        self.read_triggers(id, &mut pass)?;
        if clock::monotonic().duration_since(started) > PASS_MAX {
            drop(self.partitions.remove(&id));
            self.stores.wipe(id)?;
            return Err(not_ready(
                "the pass took too long: the ledger may have been compacted during it",
            ));
        }
        let local = pass.finish();
        let Some(followed) = self.partitions.get_mut(&id) else { return Ok(()) };
        let state = local_state(local, &self.cluster, clock::now_ms());
        followed.store.apply(&[], &state)?;
        followed.store.drop_through(local.fired_through)?;
        if !std::mem::replace(&mut followed.caught_up, true) {
            tracing::info!(partition = id, offset, "caught up");
        }
        let now = clock::monotonic();
        if now.duration_since(followed.flushed_at) >= self.settings.store.flush_interval {
            followed.flushed_at = now;
            followed.store.flush_in_background()?;
        }
        Ok(())
    }

    /// Reads the ledger up to the cursor's step: until a record of a later step, or until the end
    /// offset at the time the cursor was read.
    fn read_ledger(
        &mut self,
        id: PartitionId,
        pass: &mut CatchUpPass,
        low: Offset,
    ) -> Result<(), StandbyError> {
        let (topic, plan) = (self.names.ledger(), pass.plan());
        let mut from = plan.ledger_from.max(low);
        let deadline = clock::monotonic() + READ_TIMEOUT;
        while from < plan.ledger_until && !pass.is_ledger_read() {
            // No transaction is open below this offset. If the end is reached after that, all
            // records below it have been read.
            let stable = self.ledger.last_stable_offset(&topic, id, CALL_TIMEOUT)?;
            self.ledger.start(&topic, id, from)?;
            let mut ended = false;
            while !ended && !pass.is_ledger_read() {
                let mut records = Vec::new();
                ended =
                    self.read_until(
                        StandbySource::Ledger,
                        deadline,
                        |decoder, event| match event {
                            ReadEvent::Record(record) => {
                                let offset = record.offset();
                                match decoder.decode_ledger(&record) {
                                    Ok(record) => records.push((offset, record)),
                                    Err(error) => {
                                        return Err(StandbyError::NotReady(error.to_string()));
                                    }
                                }
                                Ok(records.len() >= BATCH)
                            }
                            _ => Ok(true),
                        },
                    )?;
                from = records.last().map_or(from, |(offset, _)| offset + 1);
                self.apply_ledger(id, pass, records)?;
            }
            if ended && stable >= plan.ledger_until {
                break;
            }
        }
        Ok(())
    }

    fn apply_ledger(
        &self,
        id: PartitionId,
        pass: &mut CatchUpPass,
        records: Vec<(Offset, LedgerRecord)>,
    ) -> Result<(), StandbyError> {
        let Some(StandbyPartition { store, .. }) = self.partitions.get(&id) else { return Ok(()) };
        let fetched = fetch_index_rows(&**store, pass.ids_in_ledger(&records))?;
        let rows = pass.on_ledger(records, &fetched);
        Ok(store.bulk_load(&rows)?)
    }

    fn read_triggers(
        &mut self,
        id: PartitionId,
        pass: &mut CatchUpPass,
    ) -> Result<(), StandbyError> {
        let plan = pass.plan();
        if plan.triggers_from >= plan.triggers_until {
            return Ok(());
        }
        self.triggers.start(&self.names.triggers(), id, plan.triggers_from)?;
        let deadline = clock::monotonic() + READ_TIMEOUT;
        let mut passed = false;
        while !passed {
            let mut records = Vec::new();
            let ended =
                self.read_until(StandbySource::Triggers, deadline, |decoder, event| match event {
                    ReadEvent::Record(record) => {
                        let offset = record.offset();
                        passed |= offset + 1 >= plan.triggers_until;
                        if offset < plan.triggers_until && !pass.is_covered(offset) {
                            let record = decoder.decode_trigger(&record, clock::now_ms());
                            let record =
                                record.map_err(|e| StandbyError::NotReady(e.to_string()))?;
                            records.push(record);
                        }
                        Ok(passed || records.len() >= BATCH)
                    }
                    _ => Ok(true),
                })?;
            passed |= ended && records.len() < BATCH;
            self.apply_triggers(id, pass, records)?;
        }
        Ok(())
    }

    fn apply_triggers(
        &self,
        id: PartitionId,
        pass: &mut CatchUpPass,
        records: Vec<TriggerRecord>,
    ) -> Result<(), StandbyError> {
        let Some(StandbyPartition { store, .. }) = self.partitions.get(&id) else { return Ok(()) };
        let fetched = fetch_index_rows(&**store, pass.ids_in_triggers(&records))?;
        let rows = pass.on_triggers(records, &fetched);
        Ok(store.bulk_load(&rows)?)
    }

    /// Reads until `take` returns true. Returns whether the last event was the end of the
    /// partition.
    fn read_until(
        &mut self,
        source: StandbySource,
        deadline: Instant,
        mut take: impl FnMut(
            &InputDecoder<RegistrySchemas>,
            ReadEvent<'_>,
        ) -> Result<bool, StandbyError>,
    ) -> Result<bool, StandbyError> {
        loop {
            if let Ok(request) = self.inbox.try_recv() {
                self.pending.push(request);
                return Err(StandbyError::Interrupted);
            }
            let reader = match source {
                StandbySource::Ledger => &self.ledger,
                StandbySource::Triggers => &self.triggers,
            };
            match reader.poll(POLL)? {
                Some(ReadEvent::OutOfRange(error)) => return Err(StandbyError::NotReady(error)),
                Some(event) => {
                    let ended = matches!(event, ReadEvent::PartitionEof(_));
                    if take(&self.decoder, event)? {
                        return Ok(ended);
                    }
                }
                None if clock::monotonic() >= deadline => {
                    return Err(StandbyError::NotReady("no records arrive".to_owned()));
                }
                None => {}
            }
        }
    }

    /// The state of the partition's store, if it is valid.
    fn local_checkpoint(
        &self,
        id: PartitionId,
    ) -> Result<Option<(LocalCheckpoint, BTreeSet<Offset>)>, StoreError> {
        let Some(StandbyPartition { store, .. }) = self.partitions.get(&id) else {
            return Ok(None);
        };
        valid_state(&**store, &self.cluster, self.settings.store.state_age_max, clock::now_ms())
    }
}
