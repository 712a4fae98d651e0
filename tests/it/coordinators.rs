//! For how long no broker has coordinated certain transactional ids.
//!
//! Invariant: only answers count. A broker coordinates an id if it says what it knows of it, and
//! not that another one does, or that it is still reading its part of `__transaction_state`.
//!
//! Each broker is asked on a connection of its own, by DescribeTransactions, version 0, of Kafka's
//! protocol (<https://kafka.apache.org/protocol>), which changes nothing. A plain producer does not
//! show this: it needs leaders of partitions only.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use orloj::clock;

use crate::background_thread::BackgroundThread;
use crate::broker_connection::{BrokerConnection, request};
use crate::transaction_ends::ResponseFields;
use crate::wait::{until, within};

/// Pause between two questions to one broker.
const PAUSE: Duration = Duration::from_millis(50);
/// Until each id has a coordinator: no broker has failed yet.
const DEADLINE: Duration = Duration::from_secs(60);

/// `DescribeTransactions`, and the version of it.
const DESCRIBE_TRANSACTIONS: [i16; 2] = [65, 0];
const NO_TAGS: u8 = 0;

const KNOWN: i16 = 0;
/// No transaction was ever started with this id: its coordinator says so.
const TRANSACTIONAL_ID_NOT_FOUND: i16 = 105;

/// When an id had a coordinator, in ms since the epoch.
#[derive(Clone, Copy, Debug, Default)]
struct Coordinated {
    last: Option<u64>,
    /// The longest time between two answers of a coordinator, in ms.
    longest: u64,
}

impl Coordinated {
    fn note(&mut self, at: u64) {
        self.longest = self.without(at);
        self.last = Some(at);
    }

    /// For how long it has had none at most, if it has none until then.
    fn without(&self, until: u64) -> u64 {
        self.longest.max(self.last.map_or(0, |last| until.saturating_sub(last)))
    }
}

/// Asks for as long as its value lives.
pub(crate) struct CoordinatorWatch {
    /// By id.
    ids: Arc<Mutex<Vec<Coordinated>>>,
    _threads: Vec<BackgroundThread>,
}

impl CoordinatorWatch {
    /// Asks all brokers about these ids from now on. Each has a coordinator when this returns.
    pub(crate) fn start(ids: &[String], brokers: impl Iterator<Item = SocketAddr>) -> Self {
        let times = Arc::new(Mutex::new(vec![Coordinated::default(); ids.len()]));
        let question = question(ids);
        let threads = brokers.map(|address| {
            let (times, question) = (Arc::clone(&times), question.clone());
            let mut broker = BrokerConnection::new(address);
            BackgroundThread::start(move |stop| {
                while !stop.load(Relaxed) {
                    if let Ok(answer) = broker.ask(&question) {
                        let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
                        let coordinated = error_codes(&answer).into_iter().map(is_coordinator);
                        let now = clock::now_ms();
                        let answered = times.iter_mut().zip(coordinated);
                        answered.filter(|(_, is)| *is).for_each(|(times, _)| times.note(now));
                    }
                    let _stopped = within(PAUSE, || stop.load(Relaxed).then_some(()));
                }
            })
        });
        let watch = Self { _threads: threads.collect(), ids: times };
        until("each transactional id to have a coordinator", DEADLINE, || {
            watch.times().iter().all(|times| times.last.is_some()).then_some(())
        });
        watch
    }

    /// For how long one of the ids has had no coordinator at most, in ms.
    pub(crate) fn longest_without(&self) -> u64 {
        let now = clock::now_ms();
        self.times().iter().map(|times| times.without(now)).max().unwrap_or(0)
    }

    fn times(&self) -> Vec<Coordinated> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn is_coordinator(code: i16) -> bool {
    matches!(code, KNOWN | TRANSACTIONAL_ID_NOT_FOUND)
}

fn question(ids: &[String]) -> Vec<u8> {
    // A length is one more than it is, and 0 is none.
    let length = |length: usize| varint(u32::try_from(length + 1).unwrap());
    let text = |id: &String| [&length(id.len())[..], id.as_bytes()].concat();
    let texts: Vec<u8> = ids.iter().flat_map(text).collect();
    request(DESCRIBE_TRANSACTIONS, &[&[NO_TAGS], &length(ids.len()), &texts, &[NO_TAGS]])
}

/// Seven bits a byte, the lowest first; the highest bit says that another byte follows.
fn varint(mut number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let bits = u8::try_from(number & 0x7f).unwrap();
        number >>= 7;
        if number == 0 {
            bytes.push(bits);
            return bytes;
        }
        bytes.push(bits | 0x80);
    }
}

/// What an answer says of each id, in the order of the question.
fn error_codes(answer: &[u8]) -> Vec<i16> {
    let mut fields = ResponseFields(answer);
    let _correlation = fields.i32();
    fields.skip_tags();
    let _throttled = fields.i32();
    let states = fields.compact_length();
    let codes = (0..states).map(|_| {
        let code = fields.i16();
        let [_id, _state] = std::array::from_fn(|_| fields.skip_compact_text());
        // The timeout, the start, the producer's id and epoch.
        fields.skip(4 + 8 + 8 + 2);
        for _topic in 0..fields.compact_length() {
            fields.skip_compact_text();
            let partitions = fields.compact_length();
            fields.skip(4 * partitions);
            fields.skip_tags();
        }
        fields.skip_tags();
        code
    });
    codes.collect()
}

#[cfg(test)]
mod tests {
    use rdkafka::producer::{BaseProducer, Producer as _};

    use super::*;
    use crate::kafka_server;

    #[test]
    fn the_longest_time_between_two_answers_counts() {
        let mut times = Coordinated::default();
        assert_eq!(times.without(1_000), 0);
        for at in [1_000, 1_050, 4_050, 4_100] {
            times.note(at);
        }
        assert_eq!(times.without(4_200), 3_000);
        assert_eq!(times.without(9_100), 5_000, "it has none since");
    }

    #[test]
    fn a_broker_coordinates_each_id_when_it_runs_alone() {
        // The first transaction of a cluster creates the topic.
        let mut config = kafka_server::shared().client();
        let producer: BaseProducer = config.set("transactional.id", "an-id-0").create().unwrap();
        producer.init_transactions(DEADLINE).unwrap();
        let ids: Vec<String> = (0..20).map(|number| format!("an-id-{number}")).collect();
        let broker = kafka_server::shared().bootstrap().parse().unwrap();
        let watch = CoordinatorWatch::start(&ids, std::iter::once(broker));
        assert_eq!(watch.times().len(), ids.len());
    }

    #[test]
    fn what_is_known_of_a_transaction_is_passed_over() {
        let text = |text: &str| {
            [&varint(u32::try_from(text.len() + 1).unwrap())[..], text.as_bytes()].concat()
        };
        let numbers = [0; 4 + 8 + 8 + 2];
        let topic = [&[2][..], &text("t"), &[3], &[0; 8], &[0]].concat();
        let state = |code: i16, topics: &[u8]| {
            [&code.to_be_bytes()[..], &text("id"), &text("Ongoing"), &numbers, topics, &[0]]
                .concat()
        };
        let answer = [
            &[0; 4][..],
            &[0],
            &[0; 4],
            &[4],
            &state(0, &topic),
            &state(14, &[1]),
            &state(105, &[1]),
            &[0],
        ]
        .concat();
        assert_eq!(error_codes(&answer), [0, 14, 105]);
    }

    #[test]
    fn a_length_of_more_than_seven_bits_has_two_bytes() {
        assert_eq!(varint(127), [127]);
        assert_eq!(varint(300), [0xac, 0x02]);
    }
}
