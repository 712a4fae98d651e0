//! The scheduler: owns partitions, drives the engine.
//!
//! Law: one OS thread runs the loop — land, group, take over, read, fire, launch —, a second one
//! makes the transaction under way, a third one brings into the stores what is committed. The group
//! is polled only while no transaction is open.
//!
//! ```text
//!   triggers[p], signals[p] ─poll─► decode ──► engine.ingest ─┐
//!                                                             ├─► Step ─► one transaction ─► store
//!   wheel.due(now) ──────────────────────────► engine.fire  ──┘
//! ```

mod ahead;
mod committer;
mod emission;
mod flight;
pub mod identity;
mod intake;
mod lane;
mod launch;
mod report;
mod restorer;
mod sentinel;
mod standby;
mod takeover;
mod targets;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::codec::schemas::Schemas;
use crate::config::{Assignor, Settings};
use crate::engine::partition::{CorruptRow, Rules};
use crate::engine::step::InputTopics;
use crate::engine::takeover::Committed;
use crate::engine::tenure::{Change, Tenure};
use crate::fault;
use crate::health::Health;
use crate::kafka::Names;
use crate::kafka::member::Member;
use crate::kafka::predecessor::Predecessors;
use crate::kafka::probe::Probe;
use crate::kafka::reader::Reader;
use crate::kafka::relay::Relay;
use crate::kafka::transaction::TransactionError;
use crate::model::{Millis, PartitionId, Timestamp};
use crate::store::{StoreError, StoreFactory};
use committer::Committer;
use emission::Emission;
use flight::Flight;
use identity::{Identity, IdentityError};
use intake::Intake;
use lane::{Lane, Stage};
use restorer::Restorers;
use sentinel::Sentinel;
use standby::Standby;
use targets::Targets;
use writer::Writer;

/// Why the scheduler ended other than by being told to.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A client could not be made.
    #[error("Kafka: {0}; check [kafka]")]
    Kafka(#[from] KafkaError),
    /// The group has thrown this member out again and again.
    #[error(
        "the group throws this member out: {0}; does another process have the same \
             scheduler.instance_id?"
    )]
    Outcast(KafkaError),
    /// The local store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The topics are not as they must be.
    #[error("topic {0} does not exist; create the topics with `orloj topics apply`")]
    NoTopic(String),
    /// Another process runs under the same identity.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// A schema cannot be read.
    #[error("schemas: {0}")]
    Schemas(String),
}

/// How long the loop waits at most when there is nothing to do: the group wants to be served.
const IDLE_WAIT: Duration = Duration::from_millis(10);
/// How long a call to the broker may take before it counts as away.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a leaving member waits for the others to take its partitions.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(15);

/// librdkafka joins once a second at most; with a little room, in ms.
const REJOIN_INTERVAL_MS: Millis = 1_050;

/// Whether the broker can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Apache Kafka, or a broker with the same guarantees.
    Guaranteed,
    /// librdkafka's built-in broker, which keeps no committed offsets of transactions: there is
    /// one scheduler, its cursor is in memory, and nothing is ever taken over.
    Trial,
}

/// Runs a scheduler until `shutdown`; blocks. Serves readiness through `health`.
#[expect(clippy::needless_pass_by_value, reason = "every role is started alike")]
pub fn run(
    settings: &Settings,
    shutdown: CancellationToken,
    health: Arc<Health>,
) -> Result<(), SchedulerError> {
    Scheduler::start(settings, health, Mode::Guaranteed)?.serve(&shutdown)
}

/// The same on librdkafka's built-in broker: for trying, never evidence of a guarantee.
#[expect(clippy::needless_pass_by_value, reason = "every role is started alike")]
pub fn run_trial(
    settings: &Settings,
    shutdown: CancellationToken,
    health: Arc<Health>,
) -> Result<(), SchedulerError> {
    Scheduler::start(settings, health, Mode::Trial)?.serve(&shutdown)
}

/// The loop's state.
struct Scheduler {
    settings: Settings,
    names: Names,
    rules: Rules,
    /// Holds the data directory for as long as the loop runs.
    _identity: Identity,
    mode: Mode,
    health: Arc<Health>,
    cluster: String,
    member: Member,
    triggers: Reader,
    others: Reader,
    probe: Probe,
    predecessors: Arc<Predecessors>,
    relay: Arc<Relay>,
    committer: Committer,
    flight: Option<Arc<Flight>>,
    /// When the last transaction began.
    launched_at: Instant,
    tenure: Tenure,
    writer: Writer,
    restorers: Restorers,
    stores: Arc<StoreFactory>,
    standby: Option<Standby>,
    lanes: BTreeMap<PartitionId, Lane>,
    /// The partition that launches first next time.
    turn: PartitionId,
    started: Instant,
    /// When the memory of the stores was last told.
    measured_at: Option<Instant>,
    intake: Intake,
    targets: Targets,
    sentinel: Sentinel,
    answers: (Sender<Answer>, Receiver<Answer>),
    refused: Option<String>,
}

/// A committed offset, read by a thread of its own because it may block for long.
type Answer = (PartitionId, u64, Committed);

impl Scheduler {
    fn start(settings: &Settings, health: Arc<Health>, mode: Mode) -> Result<Self, SchedulerError> {
        let scheduler = &settings.scheduler;
        let identity = Identity::claim(&scheduler.data_dir, &scheduler.instance_id)?;
        let names = Names::new(&settings.topics.prefix);
        let id = names.transactional_id("scheduler", &identity.instance);
        let probe = Probe::open(settings, CALL_TIMEOUT)?;
        let partitions = probe
            .partitions(&names.triggers())?
            .ok_or_else(|| SchedulerError::NoTopic(names.triggers()))?;
        health.not_ready("partitions", "no partition is assigned yet");
        let group = names.schedulers();
        let (triggers, others) = (Reader::open(settings, &group)?, Reader::open(settings, &group)?);
        let relay = open_relay(settings, &id)?;
        let pools = settings.topics.pools.iter().map(|pool| names.fires_of(pool));
        let ours = [names.ledger(), names.signals(), names.outcomes(), names.fires()];
        let ours = ours.into_iter().chain(pools);
        ours.into_iter().try_for_each(|topic| relay.meet(&topic))?;
        let predecessors =
            Predecessors::open(settings, &group, &names.triggers(), &id, CALL_TIMEOUT)?;
        triggers.meet(&names.triggers())?;
        others.meet(&names.signals())?;
        others.meet(&names.ledger())?;
        let stores = Arc::new(StoreFactory::new(&scheduler.data_dir, (&settings.store).into())?);
        let cluster = probe.cluster_id().unwrap_or_default();
        let standby = (settings.standby.replicas > 0 && mode == Mode::Guaranteed)
            .then(|| Standby::start(settings, &names, partitions, &identity, &cluster, &stores))
            .transpose()?;
        // An eager group stops everybody anyway: there is nothing to fire on for.
        let cooperative = scheduler.assignor == Assignor::CooperativeSticky;
        let grace = if cooperative { REJOIN_INTERVAL_MS } else { 0 };
        Ok(Self {
            rules: rules(settings, &names, partitions, &id),
            relay: Arc::new(relay),
            member: Member::join(settings, &group, &names.triggers(), &identity.instance)?,
            predecessors: Arc::new(predecessors),
            triggers,
            others,
            committer: Committer::start(
                Emission::new(&names, Schemas::new()),
                scheduler.transaction_timeout * 2,
                scheduler.ahead_max,
            ),
            flight: None,
            launched_at: clock::monotonic(),
            tenure: Tenure::new(grace),
            writer: Writer::start(),
            restorers: Restorers::start(),
            stores,
            standby,
            lanes: BTreeMap::new(),
            turn: 0,
            started: clock::monotonic(),
            measured_at: None,
            intake: Intake::new(settings, &names, partitions)?,
            targets: Targets::new(settings.targets.clone(), names.clone(), probe.clone()),
            sentinel: Sentinel::start(probe.clone(), &names),
            answers: channel(),
            refused: None,
            cluster,
            settings: settings.clone(),
            probe,
            names,
            _identity: identity,
            mode,
            health,
        })
    }

    fn serve(mut self, shutdown: &CancellationToken) -> Result<(), SchedulerError> {
        while !shutdown.is_cancelled() {
            self.turn()?;
        }
        self.leave()
    }

    /// One turn of the loop: everything that can be done now, then a short wait.
    fn turn(&mut self) -> Result<(), SchedulerError> {
        let now = clock::now_ms();
        let wait = self.wait_until(now);
        if !self.tenure.is_free() {
            self.land(wait.min(Duration::from_millis(1)))?;
        }
        self.hear_writer()?;
        if self.tenure.is_free() {
            self.follow_group()?;
        }
        self.advance_takeovers()?;
        let wait = match self.spacing() {
            _ if !self.tenure.is_free() => Duration::ZERO,
            Duration::ZERO => wait,
            spacing => wait.min(spacing),
        };
        self.read_inputs(wait)?;
        let now = clock::now_ms();
        for id in self.active_lanes() {
            if let Err(error) = self.decide(id, now) {
                self.rebuild_store(id, &error)?;
            }
        }
        if self.tenure.is_free() {
            self.launch()?;
        }
        self.report_memory();
        Ok(())
    }

    /// How long nothing is due.
    fn wait_until(&mut self, now: Timestamp) -> Duration {
        let restoring = self.lanes.values().any(|l| matches!(l.stage, Stage::Restoring(_)));
        if restoring {
            return Duration::from_millis(1);
        }
        let next = self.lanes.values_mut().filter_map(|lane| lane.active()?.next_wakeup()).min();
        let now = now + self.committer.ahead();
        next.map_or(IDLE_WAIT, |due| Duration::from_millis(due.saturating_sub(now)).min(IDLE_WAIT))
    }

    /// Loads the wheel of a partition, fires what is due, and checks whether it may at all. What is
    /// decided ahead of its time is committed no sooner: see [`Flight::time`].
    fn decide(&mut self, id: PartitionId, now: Timestamp) -> Result<(), LaneError> {
        let then = now + self.committer.ahead();
        let fire_max = self.settings.scheduler.fire_max.get();
        let Some(lane) = self.lanes.get_mut(&id) else { return Ok(()) };
        let Some(partition) = lane.active() else { return Ok(()) };
        let _behind = partition.observe(then);
        // Without room what is late fires all the same: it belongs to the step that took it in.
        let room = fire_max.saturating_sub(partition.drafted());
        lane.load()?;
        let Stage::Active(partition) = &mut lane.stage else { return Ok(()) };
        let due = partition.take_due(room);
        let catalog = self.targets.catalog(due.topics(), due.pools(), now);
        let fetched = lane::fetch(&lane.store, due.lasting(&catalog))?;
        partition.fire(due, &catalog, &fetched)?;
        Ok(())
    }

    fn active_lanes(&self) -> Vec<PartitionId> {
        let active = |lane: &&Lane| matches!(lane.stage, Stage::Active(_));
        self.lanes.values().filter(active).map(|lane| lane.id).collect()
    }

    /// Hears what the group says. No transaction is open here.
    fn follow_group(&mut self) -> Result<(), SchedulerError> {
        match self.member.poll(Duration::ZERO) {
            Ok(changes) => changes.into_iter().try_for_each(|change| self.take_change(change))?,
            Err(fatal) => {
                tracing::warn!(error = %fatal, "thrown out of the group; joining anew");
                let all = self.tenure.held().iter().copied().collect();
                self.take_change(Change::Lost(all))?;
                self.member.join_anew(fatal).map_err(SchedulerError::Outcast)?;
            }
        }
        let orders = self.tenure.on_time(self.uptime());
        self.obey(orders)
    }

    fn take_change(&mut self, change: Change) -> Result<(), SchedulerError> {
        tracing::info!(?change, "the group has spoken");
        let orders = self.tenure.on_change(change, self.uptime());
        self.obey(orders)?;
        self.report_readiness();
        self.sentinel.watch(self.tenure.held().iter().copied());
        if let Some(standby) = &self.standby {
            standby.hold(self.tenure.held());
        }
        Ok(())
    }

    /// Milliseconds since the start; never runs back.
    fn uptime(&self) -> Millis {
        let uptime = clock::monotonic().duration_since(self.started);
        ms(uptime)
    }

    /// Nothing of ours has an effect on these any more: whoever waits for them goes first, our
    /// disk comes after.
    fn let_go(&mut self, partitions: &[PartitionId]) -> Result<(), SchedulerError> {
        fault::reached("revoke.after_last_words");
        for partition in partitions {
            self.stop_reading(*partition)?;
        }
        let lanes: Vec<_> = partitions.iter().filter_map(|id| self.lanes.remove(id)).collect();
        self.member.release(partitions)?;
        self.await_stores()?;
        for lane in lanes {
            lane.store.flush()?;
        }
        Ok(())
    }

    fn stop_reading(&self, partition: PartitionId) -> Result<(), KafkaError> {
        self.triggers.stop(&self.names.triggers(), partition)?;
        self.others.stop(&self.names.signals(), partition)?;
        self.others.stop(&self.names.ledger(), partition)
    }

    /// Hands everything over (or, if so configured, keeps it for the next run) and ends.
    fn leave(mut self) -> Result<(), SchedulerError> {
        let deadline = clock::monotonic() + LEAVE_TIMEOUT;
        while !self.tenure.is_free() && clock::monotonic() < deadline {
            self.land(Duration::from_millis(10))?;
        }
        self.tenure.leave();
        let hand_over = self.settings.scheduler.leave_on_shutdown && self.mode == Mode::Guaranteed;
        if hand_over {
            self.member.hand_over(&self.names.ledger(), CALL_TIMEOUT)?;
        } else if self.tenure.is_free() {
            let all = self.tenure.held().iter().copied().collect();
            let orders = self.tenure.on_change(Change::Revoked(all), self.uptime());
            self.obey(orders)?;
        }
        let gone = |this: &Self| {
            this.tenure.held().is_empty() && (!hand_over || this.member.has_handed_over())
        };
        while !gone(&self) && clock::monotonic() < deadline {
            self.turn()?;
        }
        Ok(())
    }
}

/// Why a partition's store must be looked at.
#[derive(Debug, thiserror::Error)]
enum LaneError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Corrupt(#[from] CorruptRow),
}

/// A thread that ends with the process or when its channel closes. Its name is what `top -H` shows.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.to_owned());
    let _detached = thread.spawn(run).expect("the system has room for a few threads");
}

fn open_relay(settings: &Settings, id: &str) -> Result<Relay, TransactionError> {
    // Whatever an earlier process of this identity left open is ended first.
    let timeout = settings.scheduler.transaction_timeout * 3;
    Relay::open(settings, id, timeout)
}

/// In whole ms.
fn ms(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

fn rules(settings: &Settings, names: &Names, partitions: i32, owner: &str) -> Rules {
    let scheduler = &settings.scheduler;
    Rules {
        ledger_after: ms(scheduler.ledger_after),
        veto_ttl: ms(scheduler.veto_ttl),
        sample_interval: ms(scheduler.sample_interval),
        idle_commit: ms(scheduler.idle_commit_interval),
        mirror_interval: ms(scheduler.mirror_interval),
        ingest_max: scheduler.ingest_max.get(),
        spill_bytes: 0,
        spill_interval: ms(settings.store.flush_interval),
        cancel_grace: sentinel::GRACE_MS,
        park: ms(scheduler.park),
        open_ttl: ms(scheduler.open_ttl),
        misfire_grace: ms(scheduler.misfire_grace),
        catch_up_rate: scheduler.catch_up_rate.get(),
        partitioner: settings.triggers.partitioner,
        partitions,
        pools: settings.topics.pools.iter().map(|pool| pool.as_str().into()).collect(),
        owner: owner.to_owned(),
        topics: InputTopics { triggers: names.triggers().into(), signals: names.signals().into() },
    }
}
