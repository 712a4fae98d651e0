//! A notifier whose group has no committed offsets, as after `offsets.retention.minutes` without a
//! notifier; and with those that an operator has set.
//!
//! Invariant: it reports what follows, or everything from the offsets on that it was given.

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};

use super::{DEADLINE, cluster, mail_number, write_letter};
use crate::mail_server::MailServer;
use crate::test_cluster::{PARTITIONS, TestCluster};
use crate::wait::until;

#[test]
fn without_committed_offsets_a_notifier_reports_what_follows_or_what_an_operator_asks_for() {
    let mail = MailServer::start();
    let callers = "[callers.billing.notify]\nemail = [\"ops@example.com\"]\ninterval = \"1s\"\n";
    let (cluster, _folder) = cluster("notify-offsets", &mail, callers);
    cluster.start_ready("notifier", "first").terminate();
    write_letter(&cluster, "billing");
    delete_group(&cluster);

    let second = cluster.start_ready("notifier", "second");
    second.wait_for_log("it is unknown which of the earlier dead letters", DEADLINE);
    write_letter(&cluster, "billing");
    let first_mail = mail_number(&mail, 1);
    assert!(first_mail.text.contains("Subject: 1 dead letter of billing\n"), "{}", first_mail.text);
    second.terminate();

    delete_group(&cluster);
    set_offsets(&cluster, 0);
    let third = cluster.start_ready("notifier", "third");
    let next_mail = mail_number(&mail, 2);
    assert!(next_mail.text.contains("Subject: 2 dead letters of billing\n"), "{}", next_mail.text);
    third.terminate();
}

/// What expires with the offsets is all that Kafka has of the group.
fn delete_group(cluster: &TestCluster) {
    let admin: AdminClient<DefaultClientContext> = cluster.kafka().create().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (group, options) = (cluster.names.notifier_group(), AdminOptions::new());
    until("the group to be deleted", DEADLINE, || {
        let deleted = runtime.block_on(admin.delete_groups(&[group.as_str()], &options));
        deleted.unwrap()[0].is_ok().then_some(())
    });
}

/// Commits this offset of each partition, without our metadata, as Kafka's own tools do.
fn set_offsets(cluster: &TestCluster, offset: i64) {
    let mut config = cluster.kafka().clone();
    config.set("group.id", cluster.names.notifier_group());
    let consumer: BaseConsumer = config.create().unwrap();
    let mut list = TopicPartitionList::new();
    for topic in [cluster.names.dead_letters(), cluster.names.outcomes()] {
        for partition in 0..PARTITIONS {
            list.add_partition_offset(&topic, partition, Offset::Offset(offset)).unwrap();
        }
    }
    until("the offsets to be committed", DEADLINE, || {
        consumer.commit(&list, CommitMode::Sync).ok()
    });
}
