//! Reading partitions from given offsets.

use orloj::clock;
use orloj::kafka::reader::ReadEvent;
use orloj::kafka::transaction::ProducerRecord;

use super::setup::{
    DEADLINE, POLL, TIMEOUT, delete_before, keys, new_topic, read, reader, record, transactional,
    write,
};
use crate::wait::until;

/// Writes a record for each of these keys to a partition, in one transaction.
fn write_keys(topic: &str, partition: i32, keys: &[&str]) {
    let producer = transactional(&format!("{topic}/{partition}/{}", keys[0]));
    producer.begin().unwrap();
    for key in keys {
        producer.send(record(topic, partition, key)).unwrap();
    }
    producer.flush(TIMEOUT).unwrap();
    producer.commit(TIMEOUT).unwrap();
}

#[test]
fn a_record_is_read_with_all_its_parts() {
    let topic = new_topic(2, &[]);
    let producer = transactional(&topic);
    let headers = [("a", Some(&b"1"[..])), ("b", None), ("a", Some(&b"2"[..]))];
    let before = clock::now_ms();
    producer.begin().unwrap();
    producer.send(ProducerRecord { headers: &headers, ..record(&topic, 1, "key") }).unwrap();
    producer.send(ProducerRecord { key: None, value: None, ..record(&topic, 1, "") }).unwrap();
    producer.flush(TIMEOUT).unwrap();
    producer.commit(TIMEOUT).unwrap();
    let reader = reader();
    reader.start(&topic, 1, 0).unwrap();
    let check = |record: &orloj::kafka::record::ConsumerRecord<'_>| {
        assert_eq!((record.topic(), record.partition()), (topic.as_str(), 1));
        assert_eq!(record.position(), (topic.as_str(), 1, record.offset()));
        assert!((before..=clock::now_ms()).contains(&record.timestamp()));
        if record.offset() == 0 {
            assert_eq!((record.key(), record.value()), (Some(&b"key"[..]), Some(&b"value"[..])));
            assert!(record.headers().eq(headers));
            let found = ["a", "b", "c"].map(|name| record.header(name));
            assert_eq!(found, [Some(&b"1"[..]), None, None]);
        } else {
            assert_eq!((record.key(), record.value()), (None, None));
            assert_eq!(record.headers().count(), 0);
        }
        record.offset()
    };
    assert_eq!(read(&reader, 2, check), [0, 1]);
}

#[test]
fn a_partition_is_read_from_its_offset_on_until_it_is_stopped() {
    let (topic, reader) = (new_topic(1, &[]), reader());
    reader.prefetch_metadata(&topic).unwrap();
    write_keys(&topic, 0, &["a", "b", "c"]);
    assert_eq!(reader.position(&topic, 0).unwrap(), None);
    reader.start(&topic, 0, 1).unwrap();
    assert_eq!(keys(&reader, 2), ["b", "c"]);
    until("the end of the partition", DEADLINE, || {
        let event = reader.poll(POLL).unwrap()?;
        matches!(event, ReadEvent::PartitionEof(0)).then_some(())
    });
    let counts_the_marker = || reader.position(&topic, 0).unwrap().filter(|at| *at == 4);
    let _position = until("the position after the marker", DEADLINE, counts_the_marker);
    reader.start(&topic, 0, 0).unwrap();
    assert_eq!(keys(&reader, 3), ["a", "b", "c"], "it was started again");
    reader.stop(&topic, 0).unwrap();
    assert_eq!(reader.position(&topic, 0).unwrap(), None);
    reader.stop(&topic, 0).unwrap();
}

#[test]
fn a_paused_partition_is_not_read_until_it_is_resumed_or_started_again() {
    let (topic, reader) = (new_topic(2, &[]), reader());
    for partition in [0, 1] {
        reader.pause(&topic, partition, true).unwrap(); // no effect: it is not read
        reader.start(&topic, partition, 0).unwrap();
    }
    write_keys(&topic, 0, &["a"]);
    assert_eq!(keys(&reader, 1), ["a"]);
    reader.pause(&topic, 0, true).unwrap();
    write_keys(&topic, 0, &["b"]);
    write_keys(&topic, 1, &["other"]);
    assert_eq!(keys(&reader, 1), ["other"]);
    reader.pause(&topic, 0, false).unwrap();
    assert_eq!(keys(&reader, 1), ["b"]);
    reader.pause(&topic, 0, true).unwrap();
    reader.start(&topic, 0, 0).unwrap();
    assert_eq!(keys(&reader, 2), ["a", "b"]);
}

#[test]
fn an_offset_that_was_deleted_is_out_of_range() {
    let (topic, reader) = (new_topic(1, &[]), reader());
    write(&topic, 0, &[i64::try_from(clock::now_ms()).unwrap(); 3]);
    delete_before(&topic, 2);
    reader.start(&topic, 0, 0).unwrap();
    let reason = until("the error", DEADLINE, || match reader.poll(POLL).unwrap()? {
        ReadEvent::OutOfRange(reason) => Some(reason),
        event => panic!("{event:?}"),
    });
    assert!(!reason.is_empty());
}
