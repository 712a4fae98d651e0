//! The cases of `make faults`, in the order in which they are run.
//!
//! Invariant: each has a criterion that a reader of the report understands, and a bound for how
//! late a fire may be.

use super::report::FaultResult;
use super::{
    Scale, all_roles, broker, broker_roles, clock_skew, cluster, delayed_requests, disk,
    disk_space, downtime, five_brokers, foreign_partitioner, kills, lost_responses,
    offline_partition, offsets, poison, processes, refused_signals, registry_away, takeover,
    timeouts, topics, unwritable_topics, upgrades, versions, worker_ends, worker_moves,
};

/// A fault, and what must hold through it.
pub(super) struct FaultCase {
    pub(super) name: &'static str,
    pub(super) criterion: &'static str,
    /// How late a fire may be, in ms, from its due time or its registration: what makes it late
    /// here, and a margin for a busy machine.
    pub(super) late_max_ms: u64,
    pub(super) run: fn(Scale) -> FaultResult,
}

/// All of them.
pub(super) const CASES: &[FaultCase] = &[
    FaultCase {
        name: "kill-scheduler",
        criterion: "SIGKILL at every named step loses, repeats and hurries nothing",
        // No process lives as long as one dies at the steps of a takeover, one after the other.
        late_max_ms: 60_000,
        run: kills::schedulers,
    },
    FaultCase {
        name: "kill-one-of-two",
        criterion: "the same while another scheduler lives, which takes over",
        // The session's timeout, and takeovers that are cut short.
        late_max_ms: 30_000,
        run: kills::one_of_two,
    },
    FaultCase {
        name: "kill-worker",
        criterion: "SIGKILL at every named step repeats only what was under way at a kill",
        // No worker lives as long as one dies before it has requested anything.
        late_max_ms: 30_000,
        run: kills::workers,
    },
    FaultCase {
        name: "stopped",
        criterion: "SIGSTOP in mid-transaction until others took over, then SIGCONT",
        // The session's timeout, and a transaction that is open until the successor fences it.
        late_max_ms: 15_000,
        run: processes::stopped,
    },
    FaultCase {
        name: "paused",
        criterion: "SIGSTOP of one of two for 40 s: it goes on, and the other one fired meanwhile",
        // The session's timeout of 6 s, and a second.
        late_max_ms: 7_000,
        run: processes::paused,
    },
    FaultCase {
        name: "restarted",
        criterion: "a process that ends and starts again has its share back",
        // A member that has left counts as one until the session's timeout is over.
        late_max_ms: 10_000,
        run: processes::restarted,
    },
    FaultCase {
        name: "owner-followed",
        criterion: "who has followed the dead owner fires within a second of the assignment",
        // The session's timeout of 6 s, and Apache's other timings.
        late_max_ms: 12_000,
        run: takeover::followed,
    },
    FaultCase {
        name: "owner-unfollowed",
        criterion: "who has not fires within five seconds, a million pending",
        // The same, and the replay.
        late_max_ms: 16_000,
        run: takeover::cold,
    },
    FaultCase {
        name: "scheduler-ends",
        criterion: "one of two dies: a second beyond its session; or ends: a second",
        // The case bounds it for each signal. One that starts again may wait until the session of
        // its earlier process is over.
        late_max_ms: 8_000,
        run: takeover::ends,
    },
    FaultCase {
        name: "first-transaction",
        criterion: "one that dies in its first transaction, so that no offset names it, is fenced",
        // The session's timeout of 6 s, and Apache's other timings.
        late_max_ms: 10_000,
        run: takeover::first_transaction,
    },
    FaultCase {
        name: "storm",
        criterion: "four processes that come and go, or die, every few seconds",
        // Session's timeouts of members that die soon after each other.
        late_max_ms: 30_000,
        run: processes::rebalance_storm,
    },
    FaultCase {
        name: "namesakes",
        criterion: "of two processes of one name one gives up and says why",
        // Until one of the two gives up, none fires for long.
        late_max_ms: 40_000,
        run: processes::same_names,
    },
    FaultCase {
        name: "broker-restarted",
        criterion: "what is due while the broker restarts fires once; /readyz says that it waits",
        // The broker is away for 25 s and starts again; clients wait before they connect again.
        late_max_ms: 50_000,
        run: broker::restarted,
    },
    FaultCase {
        name: "broker-killed",
        criterion: "what is due while the broker is dead fires once; /readyz says that it waits",
        // The same, and what it had not flushed is recovered.
        late_max_ms: 50_000,
        run: broker::killed,
    },
    FaultCase {
        name: "poison",
        criterion: "each poisonous record becomes one dead letter, and its neighbours fire",
        // SIGKILL and a lost disk, and there is no other process.
        late_max_ms: 40_000,
        run: poison::everywhere,
    },
    FaultCase {
        name: "registry-away",
        criterion: "what needs a schema waits for it, through a takeover; nothing else does",
        // What needs a schema waits while the registry is away and denies access, about 75 s.
        late_max_ms: 120_000,
        run: registry_away::away,
    },
    FaultCase {
        name: "disk-damaged",
        criterion: "damaged files are noticed, or do no harm; what they held is rebuilt",
        // A kill, and the replay of what is rebuilt.
        late_max_ms: 15_000,
        run: disk::damaged,
    },
    FaultCase {
        name: "disk-wiped",
        criterion: "a lost disk loses nothing, also under a running process",
        // The same.
        late_max_ms: 15_000,
        run: disk::wiped,
    },
    FaultCase {
        name: "target-deleted",
        criterion: "each trigger for a deleted topic is one dead letter; others are not held up",
        // A transaction waits for 2 s, until the brokers have said twice that it is deleted.
        late_max_ms: 3_000,
        run: topics::target_deleted,
    },
    FaultCase {
        name: "unwritable-topics",
        criterion: "of topics that take no fire each is one dead letter, and others fire in 2 s",
        // Until it is known which topic has refused a record, or a transaction.
        late_max_ms: 2_000,
        run: unwritable_topics::unwritable,
    },
    FaultCase {
        name: "foreign-partitioner",
        criterion: "records of another hash are forwarded once, even if processes die meanwhile",
        // The last process starts about when they are due.
        late_max_ms: 10_000,
        run: foreign_partitioner::partitioner,
    },
    FaultCase {
        name: "triggers-recreated",
        criterion: "new offsets under old cursors are refused, and accepted on command",
        // Nothing happens while the load runs.
        late_max_ms: 5_000,
        run: topics::recreated,
    },
    FaultCase {
        name: "triggers-widened",
        criterion: "a changed number of partitions is noticed, and refused at a start",
        // Nothing happens while the load runs.
        late_max_ms: 5_000,
        run: topics::widened,
    },
    FaultCase {
        name: "offsets-moved",
        criterion: "what stands behind a moved offset fires again, and nothing else",
        // Nothing happens while those that are pending become due.
        late_max_ms: 5_000,
        run: offsets::moved,
    },
    FaultCase {
        name: "offsets-deleted",
        criterion: "after a shutdown nothing is repeated; after a crash a person is asked",
        // What was not due when the first process ended waits for the second one.
        late_max_ms: 20_000,
        run: offsets::deleted,
    },
    FaultCase {
        name: "offsets-hidden",
        criterion: "a mirror of the offsets behind an open transaction is waited for",
        // Nothing happens while the load runs.
        late_max_ms: 5_000,
        run: offsets::hidden,
    },
    FaultCase {
        name: "held-end",
        criterion: "an EndTxn that arrives late commits nothing",
        // A request is held for 13 s; then the process has no transaction to go on with.
        late_max_ms: 40_000,
        run: delayed_requests::end,
    },
    FaultCase {
        name: "held-offsets",
        criterion: "a TxnOffsetCommit that arrives late moves nothing",
        // The same.
        late_max_ms: 40_000,
        run: delayed_requests::offsets,
    },
    FaultCase {
        name: "responses-lost",
        criterion: "what the broker did and did not report is neither lost nor done again",
        // A lost connection costs a retry, and a lost rebalance the session's timeout.
        late_max_ms: 30_000,
        run: lost_responses::lost,
    },
    FaultCase {
        name: "coordinator-lost",
        criterion: "of three brokers each dies in turn, and fires go on meanwhile",
        // The dead broker's partitions and coordinators move after its session of 9 s.
        late_max_ms: 40_000,
        run: cluster::coordinator_lost,
    },
    FaultCase {
        name: "role-killed",
        criterion: "of three brokers each with a role dies; we add two seconds to Kafka's own time",
        // The case compares it with what a plain producer waits; a dead controller takes 13 s.
        late_max_ms: 20_000,
        run: broker_roles::killed,
    },
    FaultCase {
        name: "role-stopped",
        criterion: "of three brokers each with a role does not answer for a minute",
        // The case allows 15 s, and more only if the broker is the active controller, and the
        // cluster needs more than 11 s to fence it: 4 s after that.
        late_max_ms: 20_000,
        run: broker_roles::stopped,
    },
    FaultCase {
        name: "role-terminated",
        criterion: "of three brokers each with a role is restarted; we add 1.5 s to Kafka's time",
        // It hands its roles over before it ends: a plain producer waits for 1 to 2 s on two cores.
        late_max_ms: 5_000,
        run: broker_roles::terminated,
    },
    FaultCase {
        name: "timeouts",
        criterion: "a broker dies or does not answer, and each timeout is shorter or longer",
        late_max_ms: timeouts::LATE_MAX,
        run: timeouts::neighbours,
    },
    FaultCase {
        name: "five-brokers",
        criterion: "one of five dies: partitions with nothing on it are 250 ms late at most",
        // The case bounds these; the others wait until the dead broker is fenced.
        late_max_ms: 15_000,
        run: five_brokers::one_of_five_killed,
    },
    FaultCase {
        name: "commit-held",
        criterion: "a commit held before its offsets goes on although their coordinator is dead",
        // As when a broker with a role dies.
        late_max_ms: 20_000,
        run: broker_roles::killed_before_offsets,
    },
    FaultCase {
        name: "all-roles",
        criterion: "of three brokers each dies: also callbacks, schedules and the gateway go on",
        // The case compares it with what a plain producer waits. A callback has two ways to go.
        late_max_ms: 30_000,
        run: all_roles::brokers_killed,
    },
    FaultCase {
        name: "rolling-restart",
        criterion: "all processes restart one by one: all kinds of triggers and requests go on",
        // A process hands its partitions over before it ends. A callback has two ways to go.
        late_max_ms: 5_000,
        run: all_roles::processes_restarted,
    },
    FaultCase {
        name: "worker-ends",
        criterion: "SIGTERM while a receiver hangs: others are called in time, and none again",
        // It starts nothing for a second, and the group assigns its partitions.
        late_max_ms: 2_000,
        run: worker_ends::terminated,
    },
    FaultCase {
        name: "worker-moves",
        criterion: "workers come and go: callbacks are made again only if their partition moved",
        // As long as those in progress take when a worker ends, and the group two seconds more.
        late_max_ms: 6_000,
        run: worker_moves::moved,
    },
    FaultCase {
        name: "refused-signals",
        criterion: "a retry that its topic refuses is one dead letter, and delays no callback",
        // Transactions that fail, until it is known which record is refused.
        late_max_ms: 1_000,
        run: refused_signals::refused,
    },
    FaultCase {
        name: "offline-partition",
        criterion: "one of 8 partitions has no leader: its fires wait for it, others soon do not",
        // A dead broker takes 13 s, and the partition without a leader 15 s more.
        late_max_ms: 28_000,
        run: offline_partition::offline,
    },
    FaultCase {
        name: "disk-full",
        criterion: "without room it says so; with room again it goes on by itself",
        // It is full for 20 s; a store is then rebuilt.
        late_max_ms: 45_000,
        run: disk_space::full,
    },
    FaultCase {
        name: "disk-old",
        criterion: "a disk older than the ledger's memory revives nothing",
        // The process that ended is followed by the other one at once.
        late_max_ms: 20_000,
        run: disk_space::old,
    },
    FaultCase {
        name: "disk-slow",
        criterion: "a slow fsync holds up nothing",
        // Half a second is what an fsync takes: nothing waits for it.
        late_max_ms: 500,
        run: disk_space::slow,
    },
    FaultCase {
        name: "disk-slow-peer",
        criterion: "on a slow disk a takeover holds up no partition that stays: 250 ms",
        // The session's timeout of 6 s, and the restore on the slow disk.
        late_max_ms: 12_000,
        run: disk_space::slow_with_dying_peer,
    },
    FaultCase {
        name: "clock-set-back",
        criterion: "a clock that goes back fires nothing early, and a waiting process says so",
        // By 8 s, and what comes later waits for the clock of the one before.
        late_max_ms: 25_000,
        run: clock_skew::set_back,
    },
    FaultCase {
        name: "downtime",
        criterion: "100,000 minute-crons after a week: short turns, the set rate, linear cost",
        // What was missed is a week late. How late the rest is, other cases measure.
        late_max_ms: 0,
        run: downtime::of_a_week,
    },
    FaultCase {
        name: "versions",
        criterion: "what a newer version wrote is refused, and the rest goes on",
        // A partition waits until the older process has ended.
        late_max_ms: 30_000,
        run: versions::side_by_side,
    },
    FaultCase {
        name: "upgrade",
        criterion: "an earlier release is replaced by this one under load, and back",
        // A process hands its partitions over before it ends; the earlier one is slower at that.
        late_max_ms: 10_000,
        run: upgrades::there_and_back,
    },
];

/// Of these a little is run by `make test`.
pub(super) const SHORT: [&str; 7] = [
    "kill-scheduler",
    "kill-worker",
    "stopped",
    "owner-followed",
    "worker-ends",
    "worker-moves",
    "refused-signals",
];
/// These can be run for longer; `make faults-long` runs no other ones.
pub(super) const LONGER: [&str; 21] = [
    "kill-scheduler",
    "kill-one-of-two",
    "kill-worker",
    "paused",
    "scheduler-ends",
    "storm",
    "poison",
    "disk-damaged",
    "disk-wiped",
    "held-end",
    "held-offsets",
    "responses-lost",
    "coordinator-lost",
    "role-killed",
    "role-stopped",
    "role-terminated",
    "five-brokers",
    "rolling-restart",
    "worker-ends",
    "worker-moves",
    "refused-signals",
];

/// They are run by their names only. `internals/reliability.md` says what is known of the first
/// two, `internals/timeouts.md` what the third is for; `make upgrade` runs the last.
pub(super) const BY_NAME: [&str; 4] = ["all-roles", "five-brokers", "timeouts", "upgrade"];
