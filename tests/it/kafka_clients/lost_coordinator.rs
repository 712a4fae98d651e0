//! What the clients do while the coordinator of their group is dead.
//!
//! Invariant: each call ends in time, and a member stays one until a coordinator says that it is
//! none.

use std::time::Duration;

use orloj::clock;
use orloj::engine::catalog::TopicState;
use orloj::environment::group::MemberMetadata as _;
use orloj::kafka::admin_client::KafkaAdminClient;
use orloj::kafka::group_metadata::GroupMetadata;
use orloj::kafka::member::{CommitMode, Member};
use orloj::kafka::transaction::{OffsetCommit, TransactionalProducer};
use rdkafka::admin::{NewTopic, TopicReplication};

use super::setup::{
    DEADLINE, POLL, TIMEOUT, offset_commit, poll_until_assigned, record, settings_of,
};
use crate::brokers::{BrokerRole, ThreeBrokers};
use crate::kafka_server::{create_topics, unique_prefix};
use crate::test_cluster::exclusive_machine;
use crate::wait::until;

/// The session of a member.
const SESSION: Duration = Duration::from_secs(6);

/// How long an answer may take that does not come, and a margin.
const SHORT: Duration = Duration::from_secs(3);
const MARGIN: Duration = Duration::from_secs(2);
/// How long the cluster may need for another coordinator, and a margin.
const ELECTION_MAX: Duration = Duration::from_secs(20);

/// The client had waited until some broker was connected or disconnected, whatever the timeout was,
/// and for a coordinator that is not in the cluster any more. And it had given all partitions up
/// when its own clock said that the session was over.
#[test]
fn while_the_coordinator_is_dead_offsets_are_added_or_refused_in_time_and_a_member_stays_one() {
    let _machine = exclusive_machine();
    let mut brokers = ThreeBrokers::start();
    let group = unique_prefix("group");
    create_topics(&brokers.client(), &[NewTopic::new(&group, 1, TopicReplication::Fixed(3))]);
    let settings = settings_of(&brokers.bootstrap());
    let member = Member::join(&settings, &group, &group, "a").unwrap();
    poll_until_assigned(&member);
    let coordinator = brokers.place_of(BrokerRole::GroupCoordinator(&group));
    let ids = ids_elsewhere(&brokers, &settings, coordinator);
    // A topic whose leader lives.
    let target = (0..).map(|n| format!("{group}-{n}")).find(|topic| {
        create_topics(&brokers.client(), &[NewTopic::new(topic, 1, TopicReplication::Fixed(3))]);
        brokers.place_of(BrokerRole::Leader(topic)) != coordinator
    });
    let target = target.expect("one of so many has another leader");
    let metadata = member.group_metadata().unwrap();
    let producers = ids.map(|id| TransactionalProducer::open(&settings, &id, TIMEOUT).unwrap());
    for producer in &producers {
        producer.begin().unwrap();
        producer.send(record(&target, 0, "key")).unwrap();
        producer.flush(TIMEOUT).unwrap();
        // From now on the coordinator of the transaction has nothing to do with offsets.
        send_offsets(producer, &group, &metadata, TIMEOUT).unwrap();
    }
    let alone = format!("{group}-alone");
    let replica = [i32::try_from(coordinator).unwrap() + 1];
    let replicas = [&replica[..]];
    let topic = NewTopic::new(&alone, 1, TopicReplication::Variable(&replicas));
    create_topics(&brokers.client(), &[topic.set("min.insync.replicas", "1")]);
    brokers.kill(coordinator);
    let killed = clock::monotonic();
    let [short, long] = producers.each_ref().map(|producer| {
        let timeout = if std::ptr::eq(producer, &producers[0]) { SHORT } else { ELECTION_MAX };
        let began = clock::monotonic();
        let added = send_offsets(producer, &group, &metadata, timeout);
        (added, clock::monotonic() - began)
    });
    assert!(short.0.is_err() && short.1 <= SHORT + MARGIN, "{short:?}");
    assert!(long.0.is_ok() && long.1 <= ELECTION_MAX, "{long:?}");
    producers[1].commit(TIMEOUT).unwrap();
    let mut changes = Vec::new();
    until("the session to be over, and a commit to be accepted", DEADLINE, || {
        changes.extend(member.poll(POLL).unwrap());
        let is_over = clock::monotonic() - killed > SESSION + MARGIN;
        is_over.then(|| member.commit(&[offset_commit(&group, 0, 7)], CommitMode::Sync).ok())?
    });
    assert_eq!(changes, [], "it has lost what it owns");
    // The brokers answer, unlike those that are asked for a topic and say nothing.
    let admin = KafkaAdminClient::open(&settings, TIMEOUT).unwrap();
    let state = admin.topic_state(&alone);
    assert!(
        matches!(&state, Ok(TopicState::Usable { unavailable, .. }) if unavailable.contains(0)),
        "{state:?}"
    );
    let after = member.group_metadata().unwrap();
    assert_eq!((after.member_id(), after.generation), (metadata.member_id(), metadata.generation));
}

/// Two transactional ids whose coordinators are not the broker at this place.
fn ids_elsewhere(
    brokers: &ThreeBrokers,
    settings: &orloj::config::Settings,
    place: usize,
) -> [String; 2] {
    // The topic of transactions exists once there was one.
    let _first = TransactionalProducer::open(settings, "first", TIMEOUT).unwrap();
    let ids = (0..).map(|n| unique_prefix(&format!("id-{n}")));
    let mut elsewhere =
        ids.filter(|id| brokers.place_of(BrokerRole::TransactionCoordinator(id)) != place);
    std::array::from_fn(|_| elsewhere.next().expect("there are always more"))
}

fn send_offsets(
    producer: &TransactionalProducer,
    topic: &str,
    metadata: &GroupMetadata,
    timeout: Duration,
) -> Result<(), orloj::kafka::transaction::TransactionError> {
    let (topic, metadata_text) = (topic.to_owned(), "step".to_owned());
    let commit = OffsetCommit { topic, partition: 0, offset: 1, metadata: metadata_text };
    producer.send_offsets(&[commit], metadata, timeout)
}
