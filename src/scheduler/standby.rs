//! The thread that follows partitions which others own, pass by pass, so that taking one over
//! replays seconds. It fires nothing and commits nothing.
//!
//! Law: a store is open here or in a lane, never in both: whoever takes a partition over asks for
//! its store first, and gets it as it is. What a pass is, `engine::follow` says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;

use super::identity::Identity;
use super::intake::Intake;
use super::lane::{fetch, valid_state};
use super::takeover::state_of;
use super::{SchedulerError, spawn};
use crate::clock;
use crate::config::Settings;
use crate::engine::cursor::Cursor;
use crate::engine::follow::{Pass, chosen};
use crate::engine::local::Local;
use crate::kafka::Names;
use crate::kafka::follower::Follower;
use crate::kafka::reader::{Read, Reader};
use crate::model::input::TriggerRecord;
use crate::model::ledger::LedgerRecord;
use crate::model::{Offset, PartitionId};
use crate::store::{PartitionStore, StoreError, StoreFactory};
use crate::telemetry;

/// Between two passes over everything that is followed.
const PASS_INTERVAL: Duration = Duration::from_millis(500);
/// Between two looks at who is in the group.
const ROSTER_INTERVAL: Duration = Duration::from_secs(3);
/// How long one poll waits; an order waits no longer.
const POLL: Duration = Duration::from_millis(20);
/// How long a pass waits for records that it knows to be there.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the broker may take to answer: whoever takes a partition over waits for it.
const CALL_TIMEOUT: Duration = Duration::from_millis(300);
/// A pass that lasts longer may have met a ledger that was compacted meanwhile: half of its
/// `min.compaction.lag.ms`, because clocks differ.
const PASS_MAX: Duration = Duration::from_secs(30 * 60);
/// Records applied in one batch.
const BATCH: usize = 10_000;

/// The way to the thread.
#[derive(Debug)]
pub(super) struct Standby {
    orders: Sender<Order>,
}

/// What the loop asks of the thread.
#[derive(Debug)]
enum Order {
    /// These are ours: the others may be followed.
    Hold(BTreeSet<PartitionId>),
    /// This one is ours now: stop following it and hand over its store, if it is open here.
    Release(PartitionId, Sender<Option<Arc<PartitionStore>>>),
}

impl Standby {
    pub(super) fn start(
        settings: &Settings,
        names: &Names,
        partitions: i32,
        identity: &Identity,
        cluster: &str,
        stores: &Arc<StoreFactory>,
    ) -> Result<Self, SchedulerError> {
        let (orders, inbox) = channel();
        let group = names.schedulers();
        let following = Following {
            names: names.clone(),
            me: format!("{}-", identity.instance),
            cluster: cluster.to_owned(),
            intake: Intake::new(settings, names, partitions)?,
            ledger: Reader::open(settings, &group)?,
            triggers: Reader::open(settings, &group)?,
            follower: Follower::open(settings, &group, &names.triggers(), CALL_TIMEOUT)?,
            stores: Arc::clone(stores),
            settings: settings.clone(),
            inbox,
            waiting: Vec::new(),
            held: BTreeSet::new(),
            open: BTreeMap::new(),
        };
        spawn("standby", move || following.run());
        Ok(Self { orders })
    }

    /// These partitions are ours.
    pub(super) fn hold(&self, partitions: &BTreeSet<PartitionId>) {
        let _ended = self.orders.send(Order::Hold(partitions.clone()));
    }

    /// A partition is ours now: its store, if it was followed.
    pub(super) fn release(&self, partition: PartitionId) -> Option<Arc<PartitionStore>> {
        let (reply, answer) = channel();
        self.orders.send(Order::Release(partition, reply)).ok()?;
        answer.recv().ok()?
    }
}

/// A store that is kept up with its owner.
#[derive(Debug)]
struct Followed {
    store: Arc<PartitionStore>,
    flushed: Instant,
    caught_up: bool,
}

impl Followed {
    fn new(store: PartitionStore) -> Self {
        Self { store: Arc::new(store), flushed: clock::monotonic(), caught_up: false }
    }
}

/// The thread's state.
struct Following {
    settings: Settings,
    names: Names,
    /// What our own member id begins with.
    me: String,
    cluster: String,
    intake: Intake,
    /// One for each topic: the event of an end does not say of which.
    ledger: Reader,
    triggers: Reader,
    follower: Follower,
    stores: Arc<StoreFactory>,
    inbox: Receiver<Order>,
    /// Orders that came in the middle of a pass.
    waiting: Vec<Order>,
    held: BTreeSet<PartitionId>,
    open: BTreeMap<PartitionId, Followed>,
}

/// What a pass reads just now.
#[derive(Clone, Copy, Debug)]
enum Input {
    Ledger,
    Triggers,
}

/// Why a pass was not finished; the next one begins anew.
#[derive(Debug, thiserror::Error)]
enum Unfinished {
    #[error("an order came")]
    Ordered,
    #[error("not yet: {0}")]
    NotYet(String),
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Following {
    fn run(mut self) {
        let mut looked = None;
        loop {
            let now = clock::monotonic();
            if looked.is_none_or(|at| now.duration_since(at) >= ROSTER_INTERVAL) {
                looked = Some(now);
                self.choose();
            }
            for id in self.open.keys().copied().collect::<Vec<_>>() {
                if self.waiting.is_empty() {
                    self.keep_up(id);
                }
            }
            for order in std::mem::take(&mut self.waiting) {
                self.obey(order);
            }
            match self.inbox.recv_timeout(PASS_INTERVAL) {
                Ok(order) => self.obey(order),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Hold(partitions) => self.held = partitions,
            Order::Release(partition, reply) => {
                let _new = self.held.insert(partition);
                let store = self.open.remove(&partition).map(|followed| followed.store);
                let _gone = reply.send(store);
            }
        }
    }

    /// Looks who owns what, and follows what falls to us.
    fn choose(&mut self) {
        let seats = match self.follower.roster() {
            Ok(seats) => seats,
            Err(error) => return tracing::debug!(%error, "who is in the group is not known"),
        };
        let seats: Vec<_> = seats.iter().map(|s| (s.member.as_str(), &s.partitions[..])).collect();
        let replicas = usize::from(self.settings.standby.replicas);
        let mut wanted = chosen(&seats, |member| member.starts_with(&self.me), replicas);
        wanted.retain(|partition| !self.held.contains(partition));
        self.open.retain(|partition, _| wanted.contains(partition));
        for partition in wanted {
            if self.open.contains_key(&partition) {
                continue;
            }
            match self.stores.open(partition) {
                Ok(store) => {
                    tracing::info!(partition, "following");
                    let _none = self.open.insert(partition, Followed::new(store));
                }
                Err(error) => {
                    tracing::warn!(partition, %error, "the local store is rebuilt from Kafka");
                    let _wiped = self.stores.wipe(partition);
                }
            }
        }
        metrics::gauge!(telemetry::FOLLOWED).set(self.open.len() as f64);
    }

    fn keep_up(&mut self, id: PartitionId) {
        let result = self.pass(id);
        let (ledger, triggers) = (self.names.ledger(), self.names.triggers());
        for (reader, topic) in [(&self.ledger, ledger), (&self.triggers, triggers)] {
            if let Err(error) = reader.stop(&topic, id) {
                tracing::debug!(partition = id, %error, "following");
            }
        }
        match result {
            Ok(()) => {}
            Err(Unfinished::Store(error)) => {
                tracing::error!(partition = id, %error, "the local store is rebuilt from Kafka");
                drop(self.open.remove(&id));
                if let Err(error) = self.stores.wipe(id) {
                    tracing::error!(partition = id, %error, "the local store cannot be removed");
                }
            }
            Err(unfinished) => tracing::debug!(partition = id, %unfinished, "following"),
        }
    }

    /// Brings the store of a partition as far as its owner has committed.
    fn pass(&mut self, id: PartitionId) -> Result<(), Unfinished> {
        let not_yet = |what: &str| Unfinished::NotYet(what.to_owned());
        let begun = clock::monotonic();
        let Some((offset, metadata)) = self.follower.committed(id)? else {
            return Err(not_yet("nothing is committed"));
        };
        let Ok((cursor, _owner)) = Cursor::from_metadata(offset, &metadata) else {
            return Err(not_yet("the cursor is not for us to read"));
        };
        let (ledger_low, ledger_end) = self.follower.bounds(&self.names.ledger(), id)?;
        let local = self.local(id)?;
        if local.as_ref().is_some_and(|(local, _)| local.step == cursor.step) {
            return Ok(());
        }
        let mut pass = Pass::begin(local, cursor, ledger_end);
        if pass.must_wipe() {
            drop(self.open.remove(&id));
            self.stores.wipe(id)?;
            let _none = self.open.insert(id, Followed::new(self.stores.open(id)?));
        }
        self.read_ledger(id, &mut pass, ledger_low)?;
        self.read_triggers(id, &mut pass)?;
        if clock::monotonic().duration_since(begun) > PASS_MAX {
            drop(self.open.remove(&id));
            self.stores.wipe(id)?;
            return Err(not_yet("the pass took too long to be believed"));
        }
        let local = pass.finish();
        let Some(followed) = self.open.get_mut(&id) else { return Ok(()) };
        let state = state_of(local, &self.cluster, clock::now_ms());
        followed.store.apply(&[], &state)?;
        followed.store.decided(local.w)?;
        if !std::mem::replace(&mut followed.caught_up, true) {
            tracing::info!(partition = id, offset, "caught up");
        }
        let now = clock::monotonic();
        if now.duration_since(followed.flushed) >= self.settings.store.flush_interval {
            followed.flushed = now;
            followed.store.flush_in_background()?;
        }
        Ok(())
    }

    /// The ledger up to the cursor's step: until a record of a later step is met, or the end that
    /// was there when the cursor was read.
    fn read_ledger(
        &mut self,
        id: PartitionId,
        pass: &mut Pass,
        low: Offset,
    ) -> Result<(), Unfinished> {
        let (topic, plan) = (self.names.ledger(), pass.plan());
        let mut from = plan.ledger_from.max(low);
        let deadline = clock::monotonic() + READ_TIMEOUT;
        while from < plan.ledger_until && !pass.ledger_is_read() {
            // Whatever lies below this is decided: meeting the end afterwards means all of it.
            let stable = self.ledger.stable_end(&topic, id, CALL_TIMEOUT)?;
            self.ledger.start(&topic, id, from)?;
            let mut ended = false;
            while !ended && !pass.ledger_is_read() {
                let mut records = Vec::new();
                ended = self.read_some(Input::Ledger, deadline, |intake, read| match read {
                    Read::Record(message) => {
                        let (_, _, offset) = Reader::place(&message);
                        match intake.ledger(&message) {
                            Ok(record) => records.push((offset, record)),
                            Err(error) => return Err(Unfinished::NotYet(error.to_string())),
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
        pass: &mut Pass,
        records: Vec<(Offset, LedgerRecord)>,
    ) -> Result<(), Unfinished> {
        let Some(Followed { store, .. }) = self.open.get(&id) else { return Ok(()) };
        let fetched = fetch(store, pass.ids_in_ledger(&records))?;
        let rows = pass.ledger(records, &fetched);
        Ok(store.add(&rows)?)
    }

    fn read_triggers(&mut self, id: PartitionId, pass: &mut Pass) -> Result<(), Unfinished> {
        let plan = pass.plan();
        if plan.triggers_from >= plan.triggers_until {
            return Ok(());
        }
        self.triggers.start(&self.names.triggers(), id, plan.triggers_from)?;
        let deadline = clock::monotonic() + READ_TIMEOUT;
        let mut passed = false;
        while !passed {
            let mut records = Vec::new();
            let ended = self.read_some(Input::Triggers, deadline, |intake, read| match read {
                Read::Record(message) => {
                    let (_, _, offset) = Reader::place(&message);
                    passed |= offset + 1 >= plan.triggers_until;
                    if offset < plan.triggers_until && !pass.holds(offset) {
                        let record = intake.trigger(&message, clock::now_ms());
                        let record = record.map_err(|e| Unfinished::NotYet(e.to_string()))?;
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
        pass: &mut Pass,
        records: Vec<TriggerRecord>,
    ) -> Result<(), Unfinished> {
        let Some(Followed { store, .. }) = self.open.get(&id) else { return Ok(()) };
        let fetched = fetch(store, pass.ids_in_triggers(&records))?;
        let rows = pass.triggers(records, &fetched);
        Ok(store.add(&rows)?)
    }

    /// Reads until `take` has enough. Whether it was because the partition's end was met.
    fn read_some(
        &mut self,
        input: Input,
        deadline: Instant,
        mut take: impl FnMut(&Intake, Read<'_>) -> Result<bool, Unfinished>,
    ) -> Result<bool, Unfinished> {
        loop {
            if let Ok(order) = self.inbox.try_recv() {
                self.waiting.push(order);
                return Err(Unfinished::Ordered);
            }
            let reader = match input {
                Input::Ledger => &self.ledger,
                Input::Triggers => &self.triggers,
            };
            match reader.poll(POLL)? {
                Some(Read::OutOfRange(what)) => return Err(Unfinished::NotYet(what)),
                Some(read) => {
                    let ended = matches!(read, Read::End(_));
                    if take(&self.intake, read)? {
                        return Ok(ended);
                    }
                }
                None if clock::monotonic() >= deadline => {
                    return Err(Unfinished::NotYet("no records come".to_owned()));
                }
                None => {}
            }
        }
    }

    /// How far the store of a partition is, if that is worth anything.
    fn local(&self, id: PartitionId) -> Result<Option<(Local, BTreeSet<Offset>)>, StoreError> {
        let Some(Followed { store, .. }) = self.open.get(&id) else { return Ok(None) };
        valid_state(store, &self.cluster, self.settings.store.state_age_max)
    }
}
