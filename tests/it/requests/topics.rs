//! What the topics have in the end, for the checker.
//!
//! Invariant: records are read as their owner reads them.

use orloj::codec::registration::{NoWriterSchemas, RawRecord, ReadContext, read_trigger};
use orloj::model::partitioner::Partitioner;
use rdkafka::message::{Headers as _, Message as _};

use crate::audit::explain::{TriggerLogs, reading};
use crate::records;
use crate::test_cluster::{PARTITIONS, TestCluster};

/// Everything that is committed now.
pub(super) fn read(cluster: &TestCluster) -> TriggerLogs {
    // Decisions first: every record that has one is there.
    let outcomes = cluster.outcomes();
    let fires = cluster.fires();
    let mut logs = TriggerLogs::new();
    let context = ReadContext {
        partitioner: Partitioner::Murmur2,
        partitions: PARTITIONS,
        schemas: cluster.schemas(),
        writers: &NoWriterSchemas,
    };
    for record in records::read_all(cluster.kafka(), &cluster.names.triggers()) {
        let headers = record.headers().map(|headers| {
            headers.iter().map(|header| (header.key, header.value)).collect::<Vec<_>>()
        });
        let raw = RawRecord {
            partition: record.partition(),
            offset: u64::try_from(record.offset()).unwrap(),
            timestamp: records::appended(&record),
            key: record.key(),
            value: record.payload(),
            headers: headers.unwrap_or_default(),
        };
        let read = read_trigger(&raw, &context);
        let Ok(read) = read else { panic!("{record:?} needs a schema") };
        reading::add_record(&mut logs, &read);
    }
    for outcome in outcomes {
        reading::add_outcome(&mut logs, &outcome);
    }
    for fire in fires {
        reading::add_fire(&mut logs, &fire.trigger, fire.generation, fire.visible);
    }
    logs
}
