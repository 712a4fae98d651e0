//! One of five brokers dies: who has nothing on it goes on as if nothing had happened.
//!
//! Invariant: every partition has three replicas. Those of one scheduler, the fires, and all
//! coordinators are on brokers that live; those of the other one are on the one that dies, too.
//! What counts is the time in which the broker is dead and in which it starts again, from the
//! second round on.

use std::collections::BTreeSet;

use orloj::clock;

use super::lateness::{fire_times, latest_since};
use super::processes::{assert_no_long_turn, wait_for_ms, wait_until_owned};
use super::report::{FaultFigures, FaultResult};
use super::{FaultFixture, Scale, print_progress};
use crate::brokers::{BrokerCluster, BrokerRole, ReplicaPlan};
use crate::plain_clients::PlainClients;
use crate::plain_transactions::PlainTransactions;
use crate::test_cluster::PARTITIONS;

/// How late a fire may be in a partition that has nothing on the dead broker, in ms.
const APART_LATE_MAX: u64 = 250;
/// For how long a broker is dead, in ms: its cluster fences it after 9 s.
const DEAD_FOR: u64 = 20_000;
/// For how long all brokers run before the first one dies and after each start, in ms.
const SETTLE_FOR: u64 = 5_000;
/// Fires of partitions that have a replica on the dead broker are late by so many ms at least: it
/// is fenced after 9 s.
const FENCED_MIN: u64 = 3_000;
/// The replicas of those partitions, of the coordinators and of the target; the leader first.
const APART: [[i32; 3]; 3] = [[1, 2, 3], [2, 3, 1], [3, 1, 2]];
/// The replicas of the other partitions, one of which is on each of the two other brokers.
const TOGETHER: [[i32; 3]; 2] = [[4, 5, 3], [5, 4, 3]];

pub(super) fn one_of_five_killed(scale: Scale) -> FaultResult {
    let mut brokers = BrokerCluster::<5>::start();
    let fixture = FaultFixture::from_cluster(brokers.installation("five-brokers"));
    let [mut first, mut second] =
        ["first", "second"].map(|name| fixture.cluster.named_scheduler(name));
    let share = PARTITIONS as usize / 2;
    [&first, &second].iter().for_each(|process| wait_until_owned(process, share));
    let together: BTreeSet<_> = second.numbers("taken over", "partition").into_iter().collect();
    assert_eq!(together.len(), share, "{together:?}");
    let plain = PlainClients::start(&brokers.client(), &fixture.cluster.names.scheduler_group());
    let transactions = PlainTransactions::start(&brokers.client(), 1);
    let is_own = |topic: &str| fixture.cluster.names.owns(topic);
    brokers.move_replicas(&plan(&brokers.topics(), is_own, &together));
    let takeovers = first.takeovers().len() + second.takeovers().len();
    let (mut apart_late, mut other_late, mut plain_late, mut plain_transaction) = (0, 0, 0, 0);
    let healthy = fixture.steady_load().during(|| {
        wait_for_ms(SETTLE_FOR);
        let healthy = healthy_late(&fixture, &transactions);
        for round in 0..=if scale == Scale::Long { 10 } else { 2 } {
            // The active controller must not be the one that dies: its election takes longer.
            let controller = brokers.place_of(BrokerRole::Controller);
            let place = if controller == 4 { 3 } else { 4 };
            let failed = clock::now_ms();
            brokers.kill(place);
            wait_for_ms(DEAD_FOR);
            let started = clock::now_ms();
            brokers.start_again_behind_others(place);
            wait_for_ms(SETTLE_FOR);
            let fires = fixture.cluster.fires();
            let times = fire_times(&fixture.client.acknowledged(), &fires);
            let (on_it, apart_from_it): (Vec<_>, Vec<_>) =
                times.iter().partition(|fire| together.contains(&fire.partition()));
            let (other, _) = latest_since(&on_it, failed);
            let (apart, after) = latest_since(&apart_from_it, failed);
            let took = plain.times_since(failed).producer;
            let transaction = transactions.longest_since(failed);
            print_progress(&format!(
                "  broker {} died: {apart} ms late apart from it, {after} ms after its death, \
                 {other} ms on it; it started after {} ms; of what had nothing on it a plain \
                 record took {took} ms and a plain transaction {transaction} ms",
                place + 1,
                started - failed
            ));
            // In the first round five brokers on this machine compile what they do then.
            if round > 0 {
                apart_late = apart.max(apart_late);
                other_late = other.max(other_late);
                plain_late = took.max(plain_late);
                plain_transaction = transaction.max(plain_transaction);
            }
        }
        healthy
    });
    let after = first.takeovers().len() + second.takeovers().len();
    assert_eq!(after, takeovers, "the group survives, and partitions moved");
    [&first, &second].into_iter().for_each(assert_no_long_turn);
    let report = fixture.settled(&mut [&mut first, &mut second]);
    assert!(
        apart_late <= APART_LATE_MAX,
        "{apart_late} ms late in a partition that has nothing on the dead broker; {healthy} ms \
         before any broker died"
    );
    assert!(other_late >= FENCED_MIN, "{other_late} ms late: nothing was on the dead broker");
    let ms = |ms: u64| usize::try_from(ms).unwrap();
    let figures = FaultFigures::of(&report)
        .with("ms late apart from it", ms(apart_late))
        .with("ms late before any broker died", ms(healthy))
        .with("ms a plain record took there", ms(plain_late))
        .with("ms a plain transaction took there", ms(plain_transaction));
    FaultResult::Passed(figures.with("ms late on it", ms(other_late)))
}

/// How late fires are while all brokers live, for as long as one is dead later, in ms: what the
/// machine needs for five of them.
fn healthy_late(fixture: &FaultFixture, transactions: &PlainTransactions) -> u64 {
    let began = clock::now_ms();
    wait_for_ms(DEAD_FOR);
    let fires = fixture.cluster.fires();
    let times = fire_times(&fixture.client.acknowledged(), &fires);
    let (late, _) = latest_since(&times.iter().collect::<Vec<_>>(), began);
    let transaction = transactions.longest_since(began);
    print_progress(&format!(
        "  all brokers live: {late} ms late, and a plain transaction took {transaction} ms"
    ));
    late
}

/// Where the replicas of all partitions of these topics are.
fn plan(
    topics: &[(String, i32)],
    is_own: impl Fn(&str) -> bool,
    together: &BTreeSet<u64>,
) -> ReplicaPlan {
    let partitions = topics.iter().flat_map(|(topic, count)| (0..*count).map(move |p| (topic, p)));
    let places = partitions.map(|(topic, p)| {
        let at = p.unsigned_abs() as usize;
        let replicas = if is_own(topic) && together.contains(&p.unsigned_abs().into()) {
            TOGETHER[at % TOGETHER.len()]
        } else {
            APART[at % APART.len()]
        };
        ((topic.clone(), p), replicas)
    });
    places.collect()
}
