//! Brokers that lack what Orloj needs: a proxy changes what a broker says of its requests.
//!
//! Invariant: no role runs on such a broker, and no process commits without its generation.

use std::num::NonZeroU16;
use std::time::Duration;

use orloj::engine::assignment::AssignmentChange;
use orloj::kafka::member::Member;
use orloj::kafka::topics::TopicDefinitions;
use orloj::kafka::transaction::{OffsetCommit, TransactionalProducer};

use super::setup::{DEADLINE, POLL, TIMEOUT, proxied_broker, record, settings_of};
use crate::faults::proxy::{
    ADD_OFFSETS_TO_TXN, ADD_PARTITIONS_TO_TXN, END_TXN, INIT_PRODUCER_ID, JOIN_GROUP, OFFSET_FETCH,
    TXN_OFFSET_COMMIT,
};
use crate::test_cluster::TestCluster;
use crate::wait::until;

/// How long a process may take to end.
const END_DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn a_broker_that_lacks_a_request_is_refused_with_its_address_and_the_reason() {
    let (_server, proxy, address) = proxied_broker();
    let one = NonZeroU16::MIN;
    let topics = TopicDefinitions::load("old", one, one);
    let settings = settings_of(&address);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for (kind, newest, what) in [
        (INIT_PRODUCER_ID, -1, "it has no transactions (InitProducerId"),
        (ADD_PARTITIONS_TO_TXN, -1, "it has no transactions (AddPartitionsToTxn"),
        (ADD_OFFSETS_TO_TXN, -1, "it has no transactions (AddOffsetsToTxn"),
        (END_TXN, -1, "it has no transactions (EndTxn"),
        (TXN_OFFSET_COMMIT, -1, "(TxnOffsetCommit of version 3)"),
        (TXN_OFFSET_COMMIT, 2, "(TxnOffsetCommit of version 3)"),
        (OFFSET_FETCH, 6, "(OffsetFetch of version 7)"),
        (JOIN_GROUP, 4, "it has no static members of groups (JoinGroup of version 5)"),
    ] {
        proxy.limit_version(kind, newest);
        for refused in [
            runtime.block_on(topics.apply(&settings)).map(drop),
            runtime.block_on(topics.verify(&settings)),
        ] {
            let text = refused.unwrap_err().to_string();
            let broker = format!("Orloj cannot run on the broker {address}: ");
            assert!(text.starts_with(&broker) && text.contains(what), "{text}");
            assert!(text.contains("; Apache Kafka 2.5 and later can"), "{text}");
        }
    }
    for (kind, newest) in [(TXN_OFFSET_COMMIT, 3), (OFFSET_FETCH, 7), (JOIN_GROUP, 5)] {
        proxy.limit_version(kind, newest);
        let applied = runtime.block_on(topics.apply(&settings)).unwrap();
        assert!(applied.differences.is_empty(), "{applied}");
    }
}

#[test]
fn no_role_starts_on_a_broker_without_generations_in_transactions() {
    let (server, proxy, address) = proxied_broker();
    let kafka = [("bootstrap.servers", address.clone())];
    let cluster = TestCluster::with_client("old-broker", server.client(), &kafka);
    proxy.limit_version(TXN_OFFSET_COMMIT, 2);
    let roles = ["scheduler", "worker", "gateway", "notifier"];
    let started = roles.map(|role| match role {
        "scheduler" => cluster.scheduler("first"),
        _ => cluster.start(role, role),
    });
    for (role, mut process) in roles.into_iter().zip(started) {
        let status = until("the end of the process", END_DEADLINE, || process.exit_status());
        let text = process.log_text();
        assert_eq!(status.code(), Some(1), "{role}: {text}");
        let reason = format!(
            "error: Orloj cannot run on the broker {address}: it does not refuse the offsets of a \
             process that its group has expelled (TxnOffsetCommit of version 3)"
        );
        assert!(text.contains(&reason), "{role}: {text}");
    }
}

/// The client had sent the offsets without the generation: the broker took them.
#[test]
fn an_expelled_member_commits_nothing_to_a_coordinator_that_knows_no_generations() {
    let (server, proxy, address) = proxied_broker();
    let (topic, direct) = (server.new_topic(1, &[]), settings_of(server.bootstrap()));
    let joined = Member::join_dynamic(&direct, &topic, &topic).unwrap();
    let assigned = |member: &Member| {
        let changes = member.poll(POLL).unwrap().into_iter();
        let mut assigned = changes.filter(|it| matches!(it, AssignmentChange::Assigned(_)));
        assigned.next().map(drop)
    };
    until("the assignment", DEADLINE, || assigned(&joined));
    let expelled = joined.group_metadata().unwrap();
    drop(joined);
    let next = Member::join_dynamic(&direct, &topic, &topic).unwrap();
    until("the next owner", DEADLINE, || assigned(&next));

    proxy.limit_version(TXN_OFFSET_COMMIT, 2);
    let producer = TransactionalProducer::open(&settings_of(&address), &topic, TIMEOUT).unwrap();
    producer.begin().unwrap();
    producer.send(record(&topic, 0, "key")).unwrap();
    let (partition, metadata) = (0, "step".to_owned());
    let commit = OffsetCommit { topic, partition, offset: 7, metadata };
    let committed = producer.commit_with_offsets(&[commit], &expelled);
    assert!(committed.is_err(), "{committed:?}");
    producer.abort(TIMEOUT).unwrap();
    let offsets = next.committed_offsets();
    let found = until("the offset", DEADLINE, || {
        let _changes = next.poll(POLL).unwrap();
        offsets.committed(0, TIMEOUT).ok()
    });
    assert_eq!(found, None);
}
