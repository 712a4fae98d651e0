//! What the nodes of a run share: the broker, the random numbers, the state of target topics, the
//! counts of faults, and the production reader of users' records.
//!
//! Invariant: nodes share this and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apache_avro::Schema;
use orloj_core::codec::registration::{
    RawRecord, ReadContext, SchemaLookup, WriterSchemas, read_trigger,
};
use orloj_core::codec::schemas::Schemas;
use orloj_core::engine::partition::{LIFECYCLE_COST, PartitionConfig};
use orloj_core::engine::step::InputTopics;
use orloj_core::environment::call_error::{CallError, CallResult};
use orloj_core::model::input::TriggerRecord;
use orloj_core::model::partitioner::Partitioner;
use orloj_core::model::text::Text;
use orloj_core::model::{BrokerId, Millis, Offset, Timestamp};

use super::broker::{SimulatedBroker, SimulatedRawRecord};
use super::fault_kinds::{FaultCounts, FaultKind};
use super::late_requests::{LateCall, LateRequest};
use super::partition_outages::PartitionOutages;
use super::registered_schemas::{KNOWN, REFUSED, SCHEMA};
use super::rng::SimulationRng;
use super::transaction::{LogPlace, OFFSETS, TRANSACTIONS, Topic};

/// Processes.
pub(super) const NODES: usize = 3;
/// Partitions of every topic.
pub(super) const PARTITIONS: usize = 3;
/// Brokers that may lead them.
pub(super) const BROKERS: [BrokerId; 3] = [0, 1, 2];
/// The target that refuses records for some time, or for ever.
pub(super) const REFUSING: &str = "refusing";

/// What a topic refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Each record.
    Records,
    /// The whole transaction, for want of a right. The broker does not name the topic.
    Rights,
}

/// Which calls of transactions fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransactionFaults {
    /// Those of any run, while there are faults.
    Any,
    /// Many, but none hangs, and not two one after the other.
    Some { has_failed: bool },
}

/// How far clocks are set forward and back in some runs, in ms.
pub(super) const CLOCK_STEP: Millis = 3_000;
/// A cancel this long before the due time is never too late, in ms.
pub(super) const GRACE: Millis = 10;

/// What the nodes share.
pub(super) struct SimulatedCluster {
    pub(super) broker: SimulatedBroker,
    pub(super) rng: SimulationRng,
    pub(super) counts: FaultCounts,
    pub(super) reader: SimulatedReader,
    pub(super) registry: RegistryState,
    /// Target topics that cannot be reached just now.
    pub(super) unavailable: BTreeSet<Text>,
    /// Until then, in ms since the epoch, no broker says whether a topic can be written.
    pub(super) lookups_unanswered_until: Timestamp,
    /// Target topics whose state shows nothing unusual, and that refuse every record.
    pub(super) refusing: BTreeMap<Text, Refusal>,
    /// Target topics without a leader, although their state does not show it, and until when.
    pub(super) leaderless: BTreeMap<Text, Timestamp>,
    /// Single partitions of target topics that have or had no leader.
    pub(super) partition_outages: PartitionOutages,
    /// Requests whose callers have stopped waiting.
    pub(super) late: Vec<LateRequest>,
    /// `signals` refuses a record that has more bytes.
    pub(super) signal_bytes_max: Option<usize>,
    /// A partition whose topics have no leader just now.
    pub(super) leaderless_partition: Option<usize>,
    /// Clocks differ from true time by at most this, in ms.
    pub(super) skew: Millis,
    /// The old end offsets of partitions of a topic that a broker answers with until a time, in ms
    /// since the epoch, because it does not know that it is not the leader any more.
    pub(super) old_ends: BTreeMap<(&'static str, usize), (Offset, Timestamp)>,
    /// The next time that this partition of `triggers` is read, its leader lags for so long, in ms.
    pub(super) lags_at_fetch: Option<(usize, Millis)>,
    /// A broker that does not lag answers questions, while readers read from the one that does.
    pub(super) another_answers: bool,
    /// The next fetch from a partition of `signals` is refused, once.
    pub(super) refuses_signals: Option<usize>,
    /// Nothing is fetched from this partition of `triggers`.
    pub(super) unfetched: Option<usize>,
    /// How long reading a record takes, in ms.
    pub(super) record_takes: Millis,
    /// Which broker leads each partition of our topics.
    pub(super) leaders: [BrokerId; PARTITIONS],
    /// A broker that says no end of a log until a time, in ms since the epoch.
    pub(super) silent_leader: Option<(BrokerId, Timestamp)>,
    /// Until a time, in ms since the epoch, the new leader of a partition of `triggers` does not
    /// know that more than this is committed: its high watermark lags.
    pub(super) lagging: [(Offset, Timestamp); PARTITIONS],
    /// How long the ledger's newest records are safe from compaction, in ms.
    pub(super) compaction_lag: Millis,
    /// There are triggers with a lifecycle.
    pub(super) has_lifecycles: bool,
    /// There are recurring triggers: the time jumps.
    pub(super) time_jumps: bool,
    /// How long a worker's report is waited for, in ms.
    pub(super) callback_result_timeout: Millis,
    /// Faults have stopped.
    pub(super) calm: bool,
    /// How often the last stable offset of each partition was asked for.
    pub(super) stable_asked: [u64; PARTITIONS],
    pub(super) failing: TransactionFaults,
    /// Steps whose transaction was committed.
    pub(super) steps: u64,
    takeovers: u64,
}

impl SimulatedCluster {
    pub(super) fn new(seed: u64, now: Timestamp, schemas: Arc<Schemas>) -> Self {
        let mut rng = SimulationRng::new(seed);
        Self {
            broker: {
                let timeout = rng.pick(&[60, 60, 150]);
                let mut broker = SimulatedBroker::new(PARTITIONS, now, timeout);
                broker.coordinator.delays_markers = true;
                broker
            },
            skew: rng.pick(&[5, 20, 80]),
            compaction_lag: rng.pick(&[0, 20, 60]),
            callback_result_timeout: rng.pick(&[5_000, 5_000, 5_000, 300]),
            lookups_unanswered_until: 0,
            old_ends: BTreeMap::new(),
            leaders: rng.pick(&[[0, 0, 0], [0, 1, 1], [0, 1, 0], [0, 1, 2]]),
            silent_leader: None,
            lags_at_fetch: None,
            another_answers: false,
            refuses_signals: None,
            unfetched: None,
            record_takes: 0,
            lagging: [(0, 0); PARTITIONS],
            rng,
            counts: FaultCounts::default(),
            reader: SimulatedReader::new(schemas),
            registry: RegistryState::Answers,
            unavailable: BTreeSet::new(),
            refusing: BTreeMap::new(),
            leaderless: BTreeMap::new(),
            partition_outages: PartitionOutages::default(),
            late: Vec::new(),
            signal_bytes_max: None,
            leaderless_partition: None,
            has_lifecycles: false,
            time_jumps: false,
            calm: false,
            stable_asked: [0; PARTITIONS],
            failing: TransactionFaults::Any,
            steps: 0,
            takeovers: 0,
        }
    }

    /// FaultCounts takeovers: fresh for each.
    pub(super) fn next_takeover_number(&mut self) -> u64 {
        self.takeovers += 1;
        self.takeovers
    }

    /// Stores older than this are rebuilt, in ms. Clocks may move by twice the skew while one ages,
    /// and a takeover lasts some time too.
    pub(super) fn state_age_max(&self) -> Millis {
        2 * self.skew + 120
    }

    /// The ledger keeps tombstones for this long, in ms.
    pub(super) fn tombstone_life(&self) -> Millis {
        2 * self.state_age_max()
    }

    /// By how many ms a clock is ahead of true time.
    pub(super) fn any_skew(&mut self) -> i64 {
        let most = i64::try_from(self.skew).unwrap();
        self.rng.between(-most, most)
    }

    /// What a leader whose high watermark lags knows of `triggers`.
    pub(super) fn lagging_end(&self, topic: &str, p: usize) -> Option<Offset> {
        let (end, until) = self.lagging[p];
        (topic == "triggers" && self.broker.now < until).then_some(end)
    }

    /// While there are faults, a request to the brokers sometimes fails.
    pub(super) fn fail_sometimes(&mut self) -> CallResult<()> {
        if self.calm || !self.rng.one_in(50) {
            return Ok(());
        }
        self.counts.add(FaultKind::RequestFailed);
        Err(CallError::new("the broker does not answer"))
    }

    /// While there are faults, a call of a transaction sometimes fails, once in `n` times.
    pub(super) fn fails(&mut self, n: u64) -> bool {
        match &mut self.failing {
            TransactionFaults::Any => !self.calm && self.rng.one_in(n),
            TransactionFaults::Some { has_failed } => {
                let fails = !*has_failed && self.rng.one_in(n.div_ceil(6));
                *has_failed |= fails;
                fails
            }
        }
    }

    /// A transaction is committed, and its producer knows it.
    pub(super) fn on_committed(&mut self) {
        if let TransactionFaults::Some { has_failed } = &mut self.failing {
            *has_failed = false;
        }
    }

    /// A partition has no leader for some time: of a topic of ours, of the group's offsets, of the
    /// coordinator, or of a target.
    pub(super) fn lose_leader(&mut self) {
        let until = self.broker.now + self.rng.pick(&[10, 60, 60, 300]);
        let p = self.rng.place(PARTITIONS);
        let places: [LogPlace; 6] = [
            (Topic::Ledger, p),
            (Topic::Fires, p),
            (Topic::Others, p),
            (Topic::Signals, p),
            OFFSETS,
            TRANSACTIONS,
        ];
        self.counts.add(FaultKind::LeaderLost);
        match self.rng.place(11) {
            place @ 0..6 => self.broker.lose_leader(places[place], until),
            8.. => self.lose_partition_of_target(until),
            _ => {
                let topic = format!("topic-{}", 2 + self.rng.below(3)).as_str().into();
                let _before = self.leaderless.insert(topic, until);
            }
        }
    }

    /// No broker says for some time whether a topic can be written.
    pub(super) fn leave_lookups_unanswered(&mut self) {
        self.lookups_unanswered_until = self.broker.now + self.rng.pick(&[5, 30, 100]);
    }

    /// The caller does not wait for this request any more; it arrives later.
    pub(super) fn send_late(&mut self, call: LateCall) {
        let delay = self.rng.pick(&[0, 1, 3, 10, 30, 100]);
        self.late.push(LateRequest { arrives: self.broker.now + delay, call });
    }

    /// Executes the late requests that have arrived, in the order in which they were sent.
    pub(super) fn receive_late(&mut self, all: bool) {
        let now = self.broker.now;
        let arrived: Vec<_> =
            self.late.extract_if(.., |request| all || request.arrives <= now).collect();
        for LateRequest { call, .. } in arrived {
            let (kind, committed) = call.execute(&mut self.broker);
            self.counts.add(kind);
            self.steps += committed;
        }
    }

    /// Faults stop. What was late arrives now.
    pub(super) fn calm_down(&mut self) {
        self.calm = true;
        self.unavailable.clear();
        self.old_ends.clear();
        self.silent_leader = None;
        self.lookups_unanswered_until = 0;
        self.lagging = [(0, 0); PARTITIONS];
        self.registry = RegistryState::Answers;
        self.leaderless.clear();
        self.partition_outages.end_all(self.broker.now);
        self.broker.restore_leaders();
        self.receive_late(true);
    }

    /// Markers and late requests take their time.
    pub(super) fn advance(&mut self) {
        if self.broker.write_some_markers(&mut self.rng) {
            self.counts.add(FaultKind::MarkersApart);
        }
        self.receive_late(false);
    }

    /// The upper limit of a batch.
    pub(super) fn batch(&mut self) -> usize {
        if self.calm { 200 } else { self.rng.pick(&[1, 2, 5, 50]) }
    }

    /// The same of fires in a step. One that is small delays other fires whenever some have waited.
    pub(super) fn fires_per_step_max(&mut self) -> usize {
        let most = self.rng.pick(&[1, 2, 50, 1_000]) * self.rng.pick(&[1, LIFECYCLE_COST]);
        if self.calm { 1_000 } else { most }
    }

    /// How often the ends of logs are asked for, in ms. Without a pause that delays other jobs.
    pub(super) fn end_offset_interval(&mut self) -> Millis {
        let interval = self.rng.pick(&[0, 1, 3]);
        if self.calm { interval.max(1) } else { interval }
    }

    /// The settings of a process, often smaller than the work needs.
    pub(super) fn rules(&mut self, owner: String, ledger_after: Millis) -> PartitionConfig {
        let (sample_interval, idle_commit) =
            (self.rng.pick(&[1, 3, 10]), self.rng.pick(&[0, 5, 20]));
        let records_per_step_max = self.rng.pick(&[10, 100]);
        PartitionConfig {
            ledger_after,
            // A report may arrive after several jumps of time.
            veto_ttl: if self.time_jumps { 1_000_000 } else { 5_000 },
            sample_interval,
            idle_commit,
            cursor_copy_interval: 40,
            records_per_step_max,
            bytes_per_step_max: 400 * records_per_step_max,
            spill_bytes: self.rng.pick(&[1_000, 5_000, 1 << 20]),
            spill_interval: self.rng.pick(&[0, 0, 10, 100, 10_000]),
            cancel_grace: GRACE,
            target_retry_interval: 5,
            callback_result_timeout: self.callback_result_timeout,
            misfire_grace: self.rng.pick(&[60, 60, 400, 100_000]),
            catch_up_rate: self.rng.pick(&[1_000, 50]),
            partitioner: Partitioner::Murmur2,
            partitions: PARTITIONS as i32,
            pools: Vec::new(),
            owner,
            topics: InputTopics { triggers: "o.triggers".into(), signals: "o.signals".into() },
        }
    }

    /// Tick, horizon (ms) and budget (bytes) of a wheel, often smaller than the work needs.
    pub(super) fn wheel(&mut self) -> (Millis, Millis, usize) {
        let tick = self.rng.pick(&[1, 10]);
        (tick, self.rng.pick(&[20, 60, 1_000]), self.rng.pick(&[1, 900, 4_000, 1 << 16]))
    }

    /// The schema registry goes away, or answers again.
    pub(super) fn lose_registry(&mut self) {
        self.registry = match self.registry {
            RegistryState::Answers => RegistryState::Away,
            RegistryState::Away => RegistryState::Answers,
        };
    }
}

/// Reads records of `triggers` as production does.
pub(super) struct SimulatedReader {
    pub(super) schemas: Arc<Schemas>,
    /// The schema that users have registered.
    registered: Arc<Schema>,
}

/// Whether the schema registry answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegistryState {
    Answers,
    /// No request is answered.
    Away,
}

impl WriterSchemas for SimulatedReader {
    fn by_id(&self, id: u32) -> SchemaLookup {
        self.look_up(id)
    }
}

impl SimulatedReader {
    pub(super) fn new(schemas: Arc<Schemas>) -> Self {
        let registered = Arc::new(Schema::parse_str(SCHEMA).unwrap());
        Self { schemas, registered }
    }

    /// What the registry answers if it does.
    pub(super) fn look_up(&self, id: u32) -> SchemaLookup {
        match id {
            REFUSED => SchemaLookup::Refused("422".into()),
            id if KNOWN.contains(&id) => SchemaLookup::Known(Arc::clone(&self.registered)),
            _ => SchemaLookup::Unknown,
        }
    }

    pub(super) fn read(
        &self,
        p: usize,
        offset: Offset,
        at: Timestamp,
        raw: &SimulatedRawRecord,
    ) -> TriggerRecord {
        let read = read_trigger(&raw_record(p, (offset, at), raw), &self.context());
        read.expect("this registry answers")
    }

    fn context(&self) -> ReadContext<'_> {
        ReadContext {
            partitioner: Partitioner::Murmur2,
            partitions: i32::try_from(PARTITIONS).unwrap(),
            schemas: &self.schemas,
            writers: self,
        }
    }
}

fn raw_record(
    p: usize,
    (offset, timestamp): (Offset, Timestamp),
    raw: &SimulatedRawRecord,
) -> RawRecord<'_> {
    RawRecord {
        partition: i32::try_from(p).unwrap(),
        offset,
        timestamp,
        key: Some(&raw.key),
        value: raw.value.as_deref(),
        headers: raw.headers.iter().map(|h| (h.name.as_str(), h.value.as_deref())).collect(),
    }
}

/// The partition a key belongs to.
pub(super) fn partition_of(key: &[u8]) -> usize {
    let partitions = i32::try_from(PARTITIONS).unwrap();
    let partition =
        Partitioner::Murmur2.partition(key, partitions).expect("every key has a partition");
    usize::try_from(partition).unwrap()
}

/// The partitions of a users' topic, which its name ends with.
pub(super) fn partitions_of_target(topic: &str) -> i32 {
    topic.rsplit('-').next().and_then(|digits| digits.parse().ok()).unwrap_or(1)
}
