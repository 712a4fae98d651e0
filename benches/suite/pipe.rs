//! The pipe: the backlog's records go to another topic in transactions, with no timer and no store.
//!
//! Law: it is what the scheduler could reach at most, so it has all of the scheduler's Kafka and
//! nothing else. While one transaction is ended, the records of the next are read.

use std::time::Duration;

use rdkafka::message::{BorrowedMessage, Headers, Message};

use orloj::clock;
use orloj::config::Settings;
use orloj::kafka::Names;
use orloj::kafka::reader::{Read, Reader};
use orloj::kafka::transaction::Outgoing;

use crate::outlet::{Outlet, TAKING_TURNS};
use crate::site::{self, PARTITIONS};

/// Records read ahead at most, so that memory stays bounded.
const AHEAD_MAX: usize = 40_000;
/// Records read in one go before the rest is looked after.
const GULP: usize = 1_000;
const PAUSE: Duration = Duration::from_millis(1);

/// Moves `count` records, from the beginning on; a transaction takes records for `batch`.
pub(crate) fn run(settings: &Settings, count: usize, batch: Duration) {
    let names = Names::new(&settings.topics.prefix);
    let output = site::output(settings, "pipe");
    let mut outlet = Outlet::join(settings, "pipe", TAKING_TURNS);
    let reader = Reader::open(settings, &names.workers("pipe")).unwrap();
    for partition in PARTITIONS {
        reader.start(&names.triggers(), partition, 0).unwrap();
    }
    println!("ready");

    let mut ahead = Vec::new();
    let mut next = [0; PARTITIONS.len()];
    let mut left = count;
    let mut open_since = None;
    while left > 0 {
        read(&reader, &mut ahead);
        if open_since.is_none() && !ahead.is_empty() && outlet.is_free(Duration::ZERO) {
            outlet.begin();
            open_since = Some(clock::monotonic());
        }
        let Some(since) = open_since else { continue };
        left -= ahead.len();
        for message in ahead.drain(..) {
            let (_, partition, offset) = Reader::place(&message);
            next[usize::try_from(partition).unwrap()] = offset + 1;
            pass_on(&outlet, &output, &message);
        }
        if left == 0 || clock::monotonic() - since >= batch {
            outlet.submit(next);
            open_since = None;
        }
    }
    while !outlet.is_free(batch) {}
}

fn read<'a>(reader: &'a Reader, ahead: &mut Vec<BorrowedMessage<'a>>) {
    let until = AHEAD_MAX.min(ahead.len() + GULP);
    while ahead.len() < until {
        match reader.poll(PAUSE).unwrap() {
            Some(Read::Record(message)) => ahead.push(message),
            Some(Read::End(_)) => {}
            Some(Read::OutOfRange(what)) => panic!("{what}"),
            None => break,
        }
    }
}

fn pass_on(outlet: &Outlet, output: &str, message: &BorrowedMessage<'_>) {
    let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
    let headers: Vec<_> = headers.map(|header| (header.key, header.value)).collect();
    outlet.send(Outgoing {
        topic: output,
        partition: Some(message.partition()),
        key: message.key(),
        value: message.payload(),
        headers: &headers,
    });
}
