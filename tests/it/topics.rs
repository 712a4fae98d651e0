//! Topics are created as defined, left alone when they exist, and compared with what is there.

use std::num::NonZeroU16;
use std::time::Duration;

use orloj::clock;
use orloj::kafka::topics::{Difference, TopicDefinitions, TopicError};
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;

use crate::kafka_server::{self, unique_prefix};

fn definitions(prefix: &str, partitions: u16) -> TopicDefinitions {
    TopicDefinitions::load(prefix, NonZeroU16::new(partitions).unwrap(), NonZeroU16::MIN)
}

#[tokio::test]
async fn missing_topics_are_created_once() {
    let client = kafka_server::shared().client();
    let prefix = unique_prefix("topics");
    let topics = definitions(&prefix, 2);

    let missing = topics.verify_with(&client).await.unwrap_err();
    assert!(matches!(&missing, TopicError::Different(all) if all.len() == 7), "{missing}");
    assert!(missing.to_string().contains("orloj topics apply"), "{missing}");

    let first = topics.apply_with(&client).await.unwrap();
    assert_eq!((first.created.len(), first.differences.len()), (7, 0), "{first}");
    let second = topics.apply_with(&client).await.unwrap();
    assert_eq!((second.created.len(), second.differences.len()), (0, 0), "{second}");
    topics.verify_with(&client).await.unwrap();
}

#[tokio::test]
async fn a_difference_is_reported_with_the_command_that_fixes_it() {
    let server = kafka_server::shared();
    let client = server.client();
    let prefix = unique_prefix("topics");
    definitions(&prefix, 2).apply_with(&client).await.unwrap();
    let ledger = format!("{prefix}.ledger");
    // Setting one again resets the others, delete.retention.ms too: it falls to Kafka's 1 d.
    let delete =
        AlterConfig::new(ResourceSpecifier::Topic(&ledger)).set("cleanup.policy", "delete");
    let admin: AdminClient<DefaultClientContext> = client.create().unwrap();
    admin.alter_configs([&delete], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();

    let topics = definitions(&prefix, 3);
    // The broker that is asked knows it a moment after the controller has changed it.
    let deadline = clock::monotonic() + Duration::from_secs(30);
    let differences = loop {
        let Err(TopicError::Different(differences)) = topics.verify_with(&client).await else {
            panic!("the differences are not seen");
        };
        let is_altered = |d: &Difference| matches!(d, Difference::Setting { .. });
        if differences.iter().any(is_altered) || clock::monotonic() > deadline {
            break differences;
        }
    };
    let counts = differences.iter().filter(|d| matches!(d, Difference::Partitions { .. }));
    assert_eq!(counts.count(), 6, "that of notifications has one, whatever the settings say");
    let texts: Vec<_> = differences.iter().map(Difference::to_string).collect();
    let of_setting = |name: &str| {
        let start = format!("{ledger}: {name} is ");
        texts.iter().find(|text| text.starts_with(&start)).unwrap()
    };
    let fix = format!(
        "is delete, must be compact; fix it with: kafka-configs.sh --bootstrap-server {} --alter \
         --entity-type topics --entity-name {ledger} --add-config cleanup.policy=compact",
        server.bootstrap(),
    );
    assert!(of_setting("cleanup.policy").ends_with(&fix), "{texts:?}");
    assert!(of_setting("delete.retention.ms").contains("86400000, must be 604800000 at least"));

    // Nothing is altered by applying: the same is found again.
    assert_eq!(topics.apply_with(&client).await.unwrap().differences, differences);
}
