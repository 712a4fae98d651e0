//! A target topic of which one partition has no leader for a while, because the broker of its only
//! replica is dead: its fires wait, and no others.
//!
//! Invariant: what Kafka itself needs to replace the broker in all other partitions is measured by
//! a plain producer beside it, and what transactions take afterwards by a transactional one.

use std::thread;

use orloj::clock;
use orloj::model::partitioner::murmur2_partition;
use rdkafka::ClientConfig;
use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use super::lateness::{FireTimes, fire_times};
use super::processes::{assert_no_long_turn, wait_for_ms, wait_until_owned};
use super::report::{FaultFigures, FaultResult};
use super::steady_load::SteadyLoad;
use super::{COMPLETION_DEADLINE, FaultFixture, Scale, assert_clean, print_progress};
use crate::brokers::{BrokerRole, ThreeBrokers};
use crate::kafka_server::{create_topics, unique_prefix};
use crate::load::MARGIN;
use crate::plain_clients::PlainClients;
use crate::plain_transactions::PlainTransactions;
use crate::process::OrlojProcess;
use crate::test_cluster::PARTITIONS;
use crate::test_producer::TARGET_TOPIC_HEADER;
use crate::wait::{until, within};

/// Partitions of the topic, each of which has one replica, and the one whose broker dies.
const WIDE: i32 = 8;
const ALONE: i32 = 0;
/// Fires into the topic, a second.
const PER_SECOND: u64 = 50;
/// How long all may wait when the partition loses its leader, beyond what a plain producer waits
/// for the others, in ms.
const TRANSITION_MAX: u64 = 15_000;
/// How late fires into the other partitions may be from then on, in ms, beyond what two
/// transactions of a plain producer take meanwhile: a fire whose time comes during one is in the
/// next. A broker that cannot end a transaction, because a partition of it has no leader, tries it
/// without a pause (`TransactionMarkerChannelManager`), and takes half a processor for that.
const LATE_MAX: u64 = 250;
/// More than this plain transactions may take, but it excuses nothing, in ms.
const PLAIN_MAX: u64 = 1_000;
/// Partitions of a plain transaction.
const TRANSACTION_RECORDS: usize = 2;
/// How long the partition has no leader then, in ms.
const AWAY: u64 = 30_000;
/// From a leader of the partition until its fires that are due are visible, in ms.
const RETURN_MAX: u64 = 5_000;

/// Times of the case, in ms since the epoch.
#[derive(Clone, Copy, Debug)]
struct Away {
    killed: u64,
    /// Everything but the one partition must fire in time from then on.
    settled: u64,
    /// What a record of a plain producer, and two transactions of another one, took at most from
    /// then until `started`, in ms.
    plain_record: u64,
    plain_transactions: u64,
    /// The broker starts again.
    started: u64,
    /// The partition has a leader.
    returned: u64,
}

pub(super) fn offline(_: Scale) -> FaultResult {
    let mut brokers = ThreeBrokers::start();
    let fixture = FaultFixture::from_cluster(brokers.installation("offline-partition"));
    let mut processes = ["first", "second"].map(|name| fixture.cluster.named_scheduler(name));
    let share = PARTITIONS as usize / processes.len();
    processes.iter().for_each(|process| wait_until_owned(process, share));
    // The death of the active controller would take longer.
    let place = (brokers.place_of(BrokerRole::Controller) + 1) % 3;
    let topic = create_wide_topic(&brokers.client(), place);
    let plain = PlainClients::start(&brokers.client(), &fixture.cluster.names.scheduler_group());
    let transactions = PlainTransactions::start(&brokers.client(), TRANSACTION_RECORDS);
    brokers.wait_until_in_sync();
    let client = fixture.cluster.client();
    let wide = SteadyLoad {
        client: &client,
        per_second: PER_SECOND,
        other: Some((TARGET_TOPIC_HEADER, &topic)),
        ..fixture.steady_load()
    };
    let (away, waited) = fixture.steady_load().during(|| {
        wide.during(|| {
            wait_for_ms(5_000);
            let killed = clock::now_ms();
            brokers.kill(place);
            wait_for_ms(1_000);
            let waited = plain.times_since(killed).producer;
            let settled = killed + waited + TRANSITION_MAX;
            wait_for_ms((settled + AWAY).saturating_sub(clock::now_ms()));
            let started = clock::now_ms();
            let plain_record = plain.times_between(settled, started).producer;
            let plain_transactions = transactions.longest_two_in(settled..started);
            let returned = start_and_wait_for_leader(&mut brokers, place, &topic);
            wait_for_ms(RETURN_MAX);
            let away =
                Away { killed, settled, plain_record, plain_transactions, started, returned };
            (away, waited)
        })
    });
    assert!(processes.iter_mut().all(|process| process.exit_status().is_none()), "one has ended");
    assert!(!processes.iter().any(OrlojProcess::panicked));
    processes.iter().for_each(assert_no_long_turn);
    let takeovers = processes.iter().flat_map(OrlojProcess::takeovers).collect();
    let [first, second] = &mut processes;
    let report = fixture.settled(&mut [first, second]);
    let audit = || fixture.cluster.audit_of((&topic, WIDE), &client, MARGIN);
    let complete = within(COMPLETION_DEADLINE, || Some(audit()).filter(|it| it.is_complete()));
    assert_clean("the wide topic", &complete.unwrap_or_else(audit));
    let (ours, theirs) = (fixture.cluster.fires(), fixture.cluster.fires_into(&topic));
    let ours = fire_times(&fixture.client.acknowledged(), &ours);
    let commands = client.acknowledged();
    let theirs = fire_times(&commands, &theirs).into_iter();
    let is_alone = |fire: &FireTimes<'_>| murmur2_partition(fire.trigger.as_bytes(), WIDE) == ALONE;
    let (alone, mut others): (Vec<_>, Vec<_>) = theirs.partition(is_alone);
    others.extend(ours);
    let transition = assert_others_in_time(away, &others);
    let (waiting, returned) = assert_parked_return(away, &alone);
    let figures = FaultFigures::of(&report).takeovers(takeovers);
    let ms = |ms: u64| usize::try_from(ms).unwrap();
    FaultResult::Passed(
        figures
            .with("ms a plain producer waited", ms(waited))
            .with("ms until the others fired in time", ms(transition))
            .with("fires that waited for the partition", waiting)
            .with("ms until those had fired", ms(returned)),
    )
}

/// The other partitions are on the two other brokers. Kafka wants as many replicas of each.
fn create_wide_topic(client: &ClientConfig, place: usize) -> String {
    let id = |place: usize| i32::try_from(place % 3 + 1).unwrap();
    let [alone, one, other] = [0, 1, 2].map(|n| [id(place + n)]);
    let replicas = (0..WIDE).map(|partition| match partition {
        ALONE => &alone[..],
        partition if partition % 2 == 0 => &one,
        _ => &other,
    });
    let replicas: Vec<_> = replicas.collect();
    let name = unique_prefix("wide");
    let topic = NewTopic::new(&name, WIDE, TopicReplication::Variable(&replicas))
        .set("message.timestamp.type", "LogAppendTime")
        .set("min.insync.replicas", "1");
    create_topics(client, &[topic]);
    name
}

/// Returns when the partition had a leader again, in ms since the epoch.
fn start_and_wait_for_leader(brokers: &mut ThreeBrokers, place: usize, topic: &str) -> u64 {
    let consumer: BaseConsumer = brokers.client().create().unwrap();
    thread::scope(|scope| {
        let returned = scope.spawn(|| {
            until("the partition to have a leader", COMPLETION_DEADLINE, || {
                let metadata = consumer.fetch_metadata(Some(topic), COMPLETION_DEADLINE).ok()?;
                let mut partitions = metadata.topics()[0].partitions().iter();
                let leader = partitions.find(|it| it.id() == ALONE)?.leader();
                (leader > 0).then(clock::now_ms)
            })
        });
        brokers.start_again(place);
        returned.join().unwrap()
    })
}

/// Returns how long after the kill fires were late.
fn assert_others_in_time(away: Away, others: &[FireTimes<'_>]) -> u64 {
    let while_away: Vec<_> = others
        .iter()
        .filter(|fire| fire.visible >= away.killed && fire.from < away.started)
        .collect();
    let allowed = LATE_MAX + away.plain_record.max(away.plain_transactions).min(PLAIN_MAX);
    let late = while_away.iter().filter(|fire| fire.late() > allowed);
    let transition = late.map(|fire| fire.visible - away.killed).max().unwrap_or(0);
    let latest = while_away.iter().max_by_key(|fire| fire.late_after(away.settled)).unwrap();
    let late = latest.late_after(away.settled);
    let after = while_away.iter().filter(|fire| fire.from >= away.settled).count();
    let returning = others.iter().filter(|fire| fire.from >= away.started);
    print_progress(&format!(
        "  the others fired in time {transition} ms after the kill; {after} later ones were \
         {late} ms late, a plain record {} ms, two plain transactions {} ms, and {} ms while the \
         broker started",
        away.plain_record,
        away.plain_transactions,
        returning.map(FireTimes::late).max().unwrap_or(0)
    ));
    assert!(after > 0, "nothing fired while the partition was away");
    assert!(late <= allowed, "{latest:?} was {late} ms late; {allowed} are allowed: {away:?}");
    transition
}

/// Returns how many fires waited, and how long after the partition's return the last of them was
/// visible.
fn assert_parked_return(away: Away, alone: &[FireTimes<'_>]) -> (usize, u64) {
    let waited = alone.iter().filter(|it| it.from < away.returned && it.visible > away.settled);
    let (waiting, last) = waited.fold((0, 0), |(n, last), it| (n + 1, last.max(it.visible)));
    let took = last.saturating_sub(away.returned);
    print_progress(&format!("  {waiting} fires waited, and were sent {took} ms after its return"));
    assert!(waiting > 0, "no fire has waited for the partition");
    assert!(took <= RETURN_MAX, "{took} ms until they fired; {RETURN_MAX} are allowed: {away:?}");
    (waiting, took)
}
