//! Transactions: what becomes of their records and offsets.

use orloj::clock;
use orloj::engine::cursor::Cursor;
use orloj::kafka::batch_producer::{BatchProducer, LastOffsets};
use orloj::kafka::error::ClientResult;
use orloj::kafka::orphaned_transactions::OrphanedTransactions;
use orloj::kafka::producer_pair::ProducerPair;
use orloj::kafka::transaction::{ProducerRecord, TransactionError, TransactionalProducer};

use super::setup::{
    DEADLINE, TIMEOUT, keys, me, new_topic, read, reader, record, settings, settings_of,
    transactional,
};
use crate::kafka_server::KafkaServer;
use crate::wait::until;

#[test]
fn records_are_visible_after_a_commit_and_never_after_an_abort() {
    let topic = new_topic(1, &[]);
    let producer = transactional(&topic);
    producer.prefetch_metadata(&topic).unwrap();
    for (key, is_committed) in [("a", true), ("b", false), ("c", true)] {
        producer.begin().unwrap();
        producer.send(record(&topic, 0, key)).unwrap();
        producer.flush(TIMEOUT).unwrap();
        let end = if is_committed { producer.commit(TIMEOUT) } else { producer.abort(TIMEOUT) };
        end.unwrap();
    }
    let reader = reader();
    reader.start(&topic, 0, 0).unwrap();
    assert_eq!(keys(&reader, 2), ["a", "c"]);
}

/// Also in a transaction that it has started before.
#[test]
fn a_batch_producer_that_another_one_has_replaced_writes_nothing_more() {
    let topic = new_topic(1, &[]);
    let open = || BatchProducer::open(&settings(), &topic, TIMEOUT).unwrap();
    let commit = |producer: &BatchProducer, key: &str| -> ClientResult<LastOffsets> {
        producer.send(record(&topic, 0, key))?;
        producer.commit()
    };
    let (first, second) = (open(), open());
    first.begin().and_then(|()| commit(&first, "a")).unwrap_err();
    second.begin().unwrap();
    commit(&second, "b").unwrap();
    second.begin().unwrap();
    let third = open();
    commit(&second, "c").unwrap_err();
    third.begin().unwrap();
    commit(&third, "d").unwrap();
    let reader = reader();
    reader.start(&topic, 0, 0).unwrap();
    assert_eq!(keys(&reader, 2), ["b", "d"]);
}

#[test]
fn records_of_a_transaction_ahead_of_its_time_have_that_time() {
    let topic = new_topic(1, &[]);
    let producer = transactional(&topic);
    let now = clock::now_ms();
    let ahead = now + 60_000;
    for time in [ahead, now - 60_000] {
        producer.begin_at(time).unwrap();
        producer.send(record(&topic, 0, "key")).unwrap();
        producer.flush(TIMEOUT).unwrap();
        producer.commit(TIMEOUT).unwrap();
    }
    let reader = reader();
    reader.start(&topic, 0, 0).unwrap();
    let times = read(&reader, 2, |record| record.timestamp());
    assert_eq!(times[0], ahead);
    assert!((now..=clock::now_ms()).contains(&times[1]), "{times:?}");
}

#[test]
fn a_record_that_is_refused_is_named_and_a_new_producer_goes_on() {
    let topic = new_topic(2, &[("max.message.bytes", "1000")]);
    let producer = transactional(&topic);
    producer.begin().unwrap();
    // Bytes that no codec makes smaller (Knuth's multiplicative hash).
    let large = (0..2_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]);
    let large = large.collect::<Vec<_>>();
    let large = ProducerRecord { value: Some(&large), ..record(&topic, 1, "large") };
    producer.send(large).unwrap();
    let refused = producer.flush(TIMEOUT).unwrap_err();
    let TransactionError::Refused { topic: named, partition, reason } = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!((named, *partition), (&topic, 1));
    assert!(!reason.is_empty());
    producer.abort(TIMEOUT).unwrap();
    drop(producer);
    let producer = transactional(&topic);
    producer.begin().unwrap();
    producer.send(record(&topic, 1, "small")).unwrap();
    producer.flush(TIMEOUT).unwrap();
    producer.commit(TIMEOUT).unwrap();
    let reader = reader();
    reader.start(&topic, 1, 0).unwrap();
    assert_eq!(keys(&reader, 1), ["small"]);
}

/// The broker refuses the transaction and names no topic; what is sent after that says why.
#[test]
fn a_transaction_that_may_not_be_written_says_so_at_the_next_record() {
    let server = KafkaServer::with_rules();
    let topic = server.new_topic(1, &[]);
    server.allow_only_describe(&topic);
    let settings = settings_of(server.bootstrap());
    let producer = TransactionalProducer::open(&settings, &topic, TIMEOUT).unwrap();
    producer.begin().unwrap();
    let refused = until("the refusal", DEADLINE, || producer.send(record(&topic, 0, "key")).err());
    assert!(matches!(&refused, TransactionError::UnusableTopic(_)), "{refused:?}");
}

#[test]
fn a_partition_that_does_not_exist_refuses_a_record_at_once() {
    let topic = new_topic(1, &[]);
    let producer = transactional(&topic);
    producer.prefetch_metadata(&topic).unwrap();
    producer.begin().unwrap();
    let sent = producer.send(record(&topic, 1, "key")).and_then(|()| producer.flush(TIMEOUT));
    let is_refused = matches!(&sent, Err(TransactionError::Refused { partition: 1, .. }));
    assert!(is_refused, "{sent:?}");
    producer.abort(TIMEOUT).unwrap();
}

#[test]
fn a_pair_that_is_opened_again_fences_both_producers_of_the_earlier_one() {
    let topic = new_topic(1, &[]);
    let open = || ProducerPair::open(&settings(), (&topic, 0), TIMEOUT).unwrap();
    let first = open();
    first.prefetch_metadata(&topic).unwrap();
    for key in ["a", "b"] {
        first.begin_at(0).unwrap();
        first.send(record(&topic, 0, key)).unwrap();
        first.flush(TIMEOUT).unwrap();
        first.commit(TIMEOUT).unwrap();
    }
    first.begin_at(0).unwrap();
    first.send(record(&topic, 0, "open")).unwrap();
    first.flush(TIMEOUT).unwrap();
    let second = open();
    assert!(first.commit(TIMEOUT).is_err());
    let of_other = first.begin_at(0).and_then(|()| first.send(record(&topic, 0, "other")));
    let of_other =
        of_other.and_then(|()| first.flush(TIMEOUT)).and_then(|()| first.commit(TIMEOUT));
    assert!(of_other.is_err());
    second.begin_at(0).unwrap();
    second.send(record(&topic, 0, "aborted")).unwrap();
    second.abort(TIMEOUT).unwrap();
    second.begin_at(0).unwrap();
    second.send(record(&topic, 0, "c")).unwrap();
    second.flush(TIMEOUT).unwrap();
    second.commit(TIMEOUT).unwrap();
    let reader = reader();
    reader.start(&topic, 0, 0).unwrap();
    assert_eq!(keys(&reader, 3), ["a", "b", "c"]);
}

#[test]
fn the_open_transaction_of_an_earlier_owner_is_ended_and_no_other_one() {
    let topic = new_topic(1, &[]);
    let owner = format!("owner-of-{topic}");
    let metadata = Cursor::initial(0, 0).to_metadata(&owner);
    let orphaned = OrphanedTransactions::open(&settings(), &topic, &topic, me(), TIMEOUT).unwrap();
    assert_eq!(orphaned.committed_metadata(0, TIMEOUT).unwrap(), "");
    let pair = ProducerPair::open(&settings(), (&owner, 0), TIMEOUT).unwrap();
    pair.begin_at(0).unwrap();
    pair.send(record(&topic, 0, "open")).unwrap();
    pair.flush(TIMEOUT).unwrap();
    let stable = || reader().last_stable_offset(&topic, 0, TIMEOUT).unwrap();
    assert_eq!(stable(), 0);
    orphaned.fence_owner(&metadata);
    let fenced = format!("{orphaned:?}");
    for metadata in [metadata, Cursor::initial(0, 0).to_final_metadata("final"), String::new()] {
        orphaned.fence_owner(&metadata);
    }
    orphaned.fence_owner(&Cursor::initial(0, 0).to_metadata("me"));
    assert_eq!(format!("{orphaned:?}"), fenced, "no other owner, and not again at once");
    until("the end of the transaction", DEADLINE, || (stable() == 2).then_some(()));
}
