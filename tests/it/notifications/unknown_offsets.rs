//! A notifier whose group has no committed offsets, as after `offsets.retention.minutes` without a
//! notifier; and with those that an operator has set.
//!
//! Invariant: it continues with what earlier ones have recorded. Without that it reports what
//! follows, or everything from the offsets on that it was given.

use std::collections::BTreeSet;

use orloj::model::outcome::CircuitState;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset, TopicPartitionList};

use super::failure_log::FailureLog;
use super::judge::{FactCounts, NotificationSinks, RECIPIENTS, differences, written};
use super::{CALLERS, DEADLINE, cluster, mail_number, write_letter};
use crate::faults::topic_admin::FaultTopicAdmin;
use crate::mail_server::MailServer;
use crate::records;
use crate::test_cluster::{PARTITIONS, TestCluster};
use crate::wait::until;

/// The partitions that a notifier reads: of dead letters and outcomes.
pub(super) const SOURCE_PARTITIONS: usize = 2 * PARTITIONS as usize;

/// An outage begins before the offsets are deleted, is probed while no notifier runs, and ends
/// after that. Two notifiers have no offsets, one after the other.
#[test]
fn after_the_groups_offsets_were_deleted_nothing_is_lost_or_repeated() {
    let sinks = NotificationSinks::start();
    let (cluster, _folder) = cluster("notify-expired", &sinks.mail, &sinks.callers());
    let cluster = cluster.set("notifier.batch_delay", "100ms");
    let failures = FailureLog::open(&cluster);
    let mut notifier = cluster.start_ready("notifier", "notifier-0");
    failures.write("host-0", CircuitState::Open);
    failures.write_letters("reason-0");
    wait_for_all(&sinks, &cluster);

    for (next, state) in [(1, CircuitState::Open), (2, CircuitState::Closed)] {
        notifier.terminate();
        failures.write("host-0", CircuitState::HalfOpen);
        failures.write("host-0", state);
        failures.write_letters(&format!("reason-{next}"));
        delete_group(&cluster);
        notifier = cluster.start_ready("notifier", &format!("notifier-{next}"));
        notifier.wait_for_log("no committed offset: using the recorded one", DEADLINE);
        wait_for_all(&sinks, &cluster);
    }
    notifier.terminate();
    assert_reported_once(&sinks, &cluster, 5);
}

#[test]
fn without_offsets_and_records_a_notifier_reports_what_follows_or_what_an_operator_asks_for() {
    let mail = MailServer::start();
    let (cluster, _folder) = cluster("notify-offsets", &mail, CALLERS);
    cluster.start_ready("notifier", "first").terminate();
    write_letter(&cluster, "billing");
    delete_group(&cluster);
    delete_records(&cluster);

    let second = cluster.start_ready("notifier", "second");
    second.wait_for_log("it is unknown which of the earlier dead letters", DEADLINE);
    write_letter(&cluster, "billing");
    let first_mail = mail_number(&mail, 1);
    assert!(first_mail.text.contains("Subject: 1 dead letter of billing\n"), "{}", first_mail.text);
    second.terminate();

    // What an operator has set has precedence over what is recorded.
    delete_group(&cluster);
    set_offsets(&cluster, 0);
    let third = cluster.start_ready("notifier", "third");
    let next_mail = mail_number(&mail, 2);
    assert!(next_mail.text.contains("Subject: 2 dead letters of billing\n"), "{}", next_mail.text);
    third.terminate();
}

/// Its group has no offsets of a topic that was deleted. Those that notifiers have recorded are
/// beyond the end of the new topic.
#[test]
fn all_of_a_topic_that_was_created_again_is_reported() {
    let mail = MailServer::start();
    let (cluster, _folder) = cluster("notify-again", &mail, CALLERS);
    let first = cluster.start_ready("notifier", "first");
    (0..3).for_each(|_| write_letter(&cluster, "billing"));
    until("three letters to be reported", DEADLINE, || {
        let mails = mail.received_by("ops@example.com");
        let subjects = mails.iter().filter_map(|mail| mail.text.split("Subject: ").nth(1));
        let counts = subjects.filter_map(|subject| subject.split(' ').next()?.parse::<u32>().ok());
        (counts.sum::<u32>() == 3).then_some(())
    });
    first.terminate();
    let mails = mail.received_by("ops@example.com").len();
    FaultTopicAdmin::of(&cluster).delete(&cluster.names.dead_letters());
    until("the topic to be created again", DEADLINE, || cluster.apply_topics());
    write_letter(&cluster, "billing");

    let second = cluster.start_ready("notifier", "second");
    let next_mail = mail_number(&mail, mails + 1);
    assert!(next_mail.text.contains("Subject: 1 dead letter of billing\n"), "{}", next_mail.text);
    assert!(second.log_text().contains("the log ends before the committed offset"));
    second.terminate();
}

/// Each recipient has got each of so many facts as often as it is written.
pub(super) fn assert_reported_once(sinks: &NotificationSinks, cluster: &TestCluster, facts: usize) {
    let written = written(cluster);
    for ((name, caller), messages) in RECIPIENTS.iter().zip(&sinks.messages()) {
        let written = &written[*caller];
        assert_eq!(written.len(), facts, "{written:?}");
        let found = differences(messages, written, &FactCounts::new());
        assert!(found.is_empty(), "{name}:\n{}", found.join("\n"));
    }
}

/// Waits until each recipient has got everything at least once. Callers have the same facts.
pub(super) fn wait_for_all(sinks: &NotificationSinks, cluster: &TestCluster) {
    let written = written(cluster);
    let (_, caller) = RECIPIENTS[0];
    until("everything to be reported", DEADLINE, || {
        (sinks.unreported(&written[caller]) == 0).then_some(())
    });
}

/// What expires with the offsets is all that Kafka has of the group.
pub(super) fn delete_group(cluster: &TestCluster) {
    FaultTopicAdmin::of(cluster).delete_group(&cluster.names.notifier_group());
}

/// The keys of the topic of notifications, one of each partition that is read.
pub(super) fn recorded_partitions(cluster: &TestCluster) -> BTreeSet<Vec<u8>> {
    let recorded = records::read_all(cluster.kafka(), &cluster.names.notifications());
    recorded.iter().filter_map(|record| record.key()).map(<[u8]>::to_vec).collect()
}

/// Writes a tombstone for each record of the notifiers.
fn delete_records(cluster: &TestCluster) {
    let (topic, keys) = (cluster.names.notifications(), recorded_partitions(cluster));
    assert_eq!(keys.len(), SOURCE_PARTITIONS);
    let producer: BaseProducer = cluster.kafka().create().unwrap();
    for key in &keys {
        let record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(&topic).key(key);
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(DEADLINE).unwrap();
}

/// Commits this offset of each partition, without our metadata, as Kafka's own tools do.
pub(super) fn set_offsets(cluster: &TestCluster, offset: i64) {
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
