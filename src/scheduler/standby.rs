//! The thread that follows partitions which others own, pass by pass, so that taking one over
//! replays seconds. It fires nothing and commits nothing.
//!
//! Invariant: a store is open here or in a partition task, never in both: a takeover asks
//! for its store first, and gets it as it is. What a pass is, `engine::follow` says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;

use super::inputs::InputDecoder;
use super::instance_lock::InstanceLock;
use super::local_store::{fetch_index_rows, local_state, valid_state};
use super::{SchedulerError, spawn};
use crate::clock;
use crate::config::Settings;
use crate::engine::cursor::Cursor;
use crate::engine::local_checkpoint::LocalCheckpoint;
use crate::engine::standby::{CatchUpPass, partitions_to_follow};
use crate::kafka::Names;
use crate::kafka::reader::{LogReader, ReadEvent};
use crate::kafka::standby_client::StandbyClient;
use crate::model::input::TriggerRecord;
use crate::model::ledger::LedgerRecord;
use crate::model::{Offset, PartitionId};
use crate::store::{PartitionStore, StoreError, StoreFactory};
use crate::telemetry;

/// Between two passes over everything that is followed.
const PASS_INTERVAL: Duration = Duration::from_millis(500);
/// Between two looks at who is in the group.
const MEMBERS_INTERVAL: Duration = Duration::from_secs(3);
/// How long one poll waits; an order waits no longer.
const POLL: Duration = Duration::from_millis(20);
/// How long a pass waits for records that it knows to be there.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the broker may take to answer: a takeover of the partition waits for it.
const CALL_TIMEOUT: Duration = Duration::from_millis(300);
/// A pass that lasts longer may have met a ledger that was compacted meanwhile: half of its
/// `min.compaction.lag.ms`, because clocks differ.
const PASS_MAX: Duration = Duration::from_secs(30 * 60);
/// Records applied in one batch.
const BATCH: usize = 10_000;

/// The way to the thread.
#[derive(Debug)]
pub(super) struct Standby {
    requests: Sender<StandbyRequest>,
}

/// What the loop asks of the thread.
#[derive(Debug)]
enum StandbyRequest {
    /// These are ours: the others may be followed.
    SetOwned(BTreeSet<PartitionId>),
    /// This one is ours now: stop following it and hand over its store, if it is open here.
    Release(PartitionId, Sender<Option<Arc<PartitionStore>>>),
}

impl Standby {
    pub(super) fn start(
        settings: &Settings,
        names: &Names,
        partitions: i32,
        identity: &InstanceLock,
        cluster: &str,
        stores: &Arc<StoreFactory>,
    ) -> Result<Self, SchedulerError> {
        let (requests, inbox) = channel();
        let group = names.scheduler_group();
        let worker = StandbyWorker {
            names: names.clone(),
            member_id_prefix: format!("{}-", identity.instance_id),
            cluster: cluster.to_owned(),
            decoder: InputDecoder::new(settings, names, partitions)?,
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

    /// These partitions are ours.
    pub(super) fn set_owned(&self, partitions: &BTreeSet<PartitionId>) {
        let _ended = self.requests.send(StandbyRequest::SetOwned(partitions.clone()));
    }

    /// A partition is ours now: its store, if it was followed.
    pub(super) fn release(&self, partition: PartitionId) -> Option<Arc<PartitionStore>> {
        let (reply, response) = channel();
        self.requests.send(StandbyRequest::Release(partition, reply)).ok()?;
        response.recv().ok()?
    }
}

/// A store that is kept up with its owner.
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

/// The thread's state.
struct StandbyWorker {
    settings: Settings,
    names: Names,
    /// What our own member id begins with.
    member_id_prefix: String,
    cluster: String,
    decoder: InputDecoder,
    /// One for each topic: the event of an end does not say of which.
    ledger: LogReader,
    triggers: LogReader,
    client: StandbyClient,
    stores: Arc<StoreFactory>,
    inbox: Receiver<StandbyRequest>,
    /// Requests that arrived in the middle of a pass.
    pending: Vec<StandbyRequest>,
    owned: BTreeSet<PartitionId>,
    partitions: BTreeMap<PartitionId, StandbyPartition>,
}

/// What a pass reads just now.
#[derive(Clone, Copy, Debug)]
enum StandbySource {
    Ledger,
    Triggers,
}

/// Why a pass was not finished; the next one starts from the beginning.
#[derive(Debug, thiserror::Error)]
enum StandbyError {
    #[error("another request arrived")]
    Interrupted,
    #[error("not yet: {0}")]
    NotReady(String),
    #[error(transparent)]
    Kafka(#[from] KafkaError),
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

    /// Looks who owns what, and follows what falls to us.
    fn refresh_partitions(&mut self) {
        let members = match self.client.group_members() {
            Ok(members) => members,
            Err(error) => return tracing::debug!(%error, "the members of the group cannot be read"),
        };
        let members: Vec<_> =
            members.iter().map(|s| (s.member_id.as_str(), &s.partitions[..])).collect();
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
                    tracing::info!(partition, "standby replay of a partition");
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
                tracing::debug!(partition = id, %error, "standby replay of a partition");
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
            Err(error) => tracing::debug!(partition = id, %error, "standby replay of a partition"),
        }
    }

    /// Brings the store of a partition as far as its owner has committed.
    fn run_pass(&mut self, id: PartitionId) -> Result<(), StandbyError> {
        let not_ready = |what: &str| StandbyError::NotReady(what.to_owned());
        let started = clock::monotonic();
        let Some((offset, metadata)) = self.client.committed(id)? else {
            return Err(not_ready("nothing is committed"));
        };
        let Ok((cursor, _owner)) = Cursor::from_metadata(offset, &metadata) else {
            return Err(not_ready("the cursor is not for us to read"));
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
            return Err(not_ready("the pass took too long to be believed"));
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

    /// The ledger up to the cursor's step: until a record of a later step is met, or the end that
    /// was there when the cursor was read.
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
            // Whatever lies below this is decided: meeting the end afterwards means all of it.
            let stable = self.ledger.last_stable_offset(&topic, id, CALL_TIMEOUT)?;
            self.ledger.start(&topic, id, from)?;
            let mut ended = false;
            while !ended && !pass.is_ledger_read() {
                let mut records = Vec::new();
                ended =
                    self.read_until(StandbySource::Ledger, deadline, |intake, read| match read {
                        ReadEvent::Record(message) => {
                            let (_, _, offset) = LogReader::position(&message);
                            match intake.decode_ledger(&message) {
                                Ok(record) => records.push((offset, record)),
                                Err(error) => {
                                    return Err(StandbyError::NotReady(error.to_string()));
                                }
                            }
                            Ok(records.len() >= BATCH)
                        }
                        _ => Ok(true),
                    })?;
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
        let fetched = fetch_index_rows(store, pass.ids_in_ledger(&records))?;
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
                self.read_until(StandbySource::Triggers, deadline, |intake, read| match read {
                    ReadEvent::Record(message) => {
                        let (_, _, offset) = LogReader::position(&message);
                        passed |= offset + 1 >= plan.triggers_until;
                        if offset < plan.triggers_until && !pass.is_covered(offset) {
                            let record = intake.decode_trigger(&message, clock::now_ms());
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
        let fetched = fetch_index_rows(store, pass.ids_in_triggers(&records))?;
        let rows = pass.on_triggers(records, &fetched);
        Ok(store.bulk_load(&rows)?)
    }

    /// Reads until `take` has enough. Whether it was because the partition's end was met.
    fn read_until(
        &mut self,
        input: StandbySource,
        deadline: Instant,
        mut take: impl FnMut(&InputDecoder, ReadEvent<'_>) -> Result<bool, StandbyError>,
    ) -> Result<bool, StandbyError> {
        loop {
            if let Ok(request) = self.inbox.try_recv() {
                self.pending.push(request);
                return Err(StandbyError::Interrupted);
            }
            let reader = match input {
                StandbySource::Ledger => &self.ledger,
                StandbySource::Triggers => &self.triggers,
            };
            match reader.poll(POLL)? {
                Some(ReadEvent::OutOfRange(what)) => return Err(StandbyError::NotReady(what)),
                Some(read) => {
                    let ended = matches!(read, ReadEvent::PartitionEof(_));
                    if take(&self.decoder, read)? {
                        return Ok(ended);
                    }
                }
                None if clock::monotonic() >= deadline => {
                    return Err(StandbyError::NotReady("no records come".to_owned()));
                }
                None => {}
            }
        }
    }

    /// How far the store of a partition is, if that is worth anything.
    fn local_checkpoint(
        &self,
        id: PartitionId,
    ) -> Result<Option<(LocalCheckpoint, BTreeSet<Offset>)>, StoreError> {
        let Some(StandbyPartition { store, .. }) = self.partitions.get(&id) else {
            return Ok(None);
        };
        valid_state(store, &self.cluster, self.settings.store.state_age_max)
    }
}
