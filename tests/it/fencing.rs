//! When the brokers of a cluster do not name one of them any more, and when they name it again: its
//! cluster has fenced it, and it is not fenced any more.
//!
//! Invariant: only answers of the other brokers count, and of these only the ones that name the
//! broker that has answered: one that is fenced itself names none. A question that fails says
//! nothing.
//!
//! Each of them is asked on a connection of its own, by Metadata, version 4, of Kafka's protocol,
//! for no topic (<https://kafka.apache.org/protocol>). A client of librdkafka asks any broker that
//! it knows, and would wait for the one that does not answer.

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
/// Until each has named all brokers once: none has failed yet.
const DEADLINE: Duration = Duration::from_secs(60);

/// `Metadata`, and the version of it.
const METADATA: [i16; 2] = [3, 4];
const NO_TOPICS: i32 = 0;
const CREATE_NO_TOPIC: u8 = 0;

/// When a broker was fenced, in ms since the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FencingTimes {
    /// The time of the first answer that does not name it.
    pub(crate) fenced: Option<u64>,
    /// The time of the first answer after that, by the same broker, that names it.
    pub(crate) unfenced: Option<u64>,
}

impl FencingTimes {
    /// One broker has answered.
    fn note(&mut self, at: u64, is_named: bool) {
        if !is_named {
            self.fenced.get_or_insert(at);
        } else if self.fenced.is_some() {
            self.unfenced.get_or_insert(at);
        }
    }

    /// The first of what two brokers have answered.
    fn first(self, other: Self) -> Self {
        let first = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
        Self {
            fenced: first(self.fenced, other.fenced),
            unfenced: first(self.unfenced, other.unfenced),
        }
    }
}

/// Asks for as long as its value lives.
pub(crate) struct FencingWatch {
    /// By each of the brokers that are asked.
    answers: Vec<Arc<Mutex<FencingTimes>>>,
    _threads: Vec<BackgroundThread>,
}

impl FencingWatch {
    /// Asks the brokers with these ids and addresses whether they name `broker`, from now on. Each
    /// of them has named it when this returns.
    pub(crate) fn start(broker: i32, others: impl Iterator<Item = (i32, SocketAddr)>) -> Self {
        let started = others.map(|(id, address)| {
            let mut asked = AskedBroker { id, connection: BrokerConnection::new(address) };
            until("a broker to name another one", DEADLINE, || {
                (asked.names(broker) == Some(true)).then_some(())
            });
            let times = Arc::<Mutex<FencingTimes>>::default();
            let noted = Arc::clone(&times);
            let thread = BackgroundThread::start(move |stop| {
                while !stop.load(Relaxed) {
                    if let Some(is_named) = asked.names(broker) {
                        let mut times = noted.lock().unwrap_or_else(PoisonError::into_inner);
                        times.note(clock::now_ms(), is_named);
                    }
                    let _stopped = within(PAUSE, || stop.load(Relaxed).then_some(()));
                }
            });
            (times, thread)
        });
        let (answers, _threads): (Vec<_>, Vec<_>) = started.unzip();
        Self { answers, _threads }
    }

    /// What is known now, by the broker that was the first to know it.
    pub(crate) fn times(&self) -> FencingTimes {
        let lock = |times: &Arc<Mutex<FencingTimes>>| {
            *times.lock().unwrap_or_else(PoisonError::into_inner)
        };
        self.answers.iter().map(lock).reduce(FencingTimes::first).unwrap_or_default()
    }
}

/// One of the brokers that are asked.
struct AskedBroker {
    id: i32,
    connection: BrokerConnection,
}

impl AskedBroker {
    /// Whether it names this broker; `None` if it does not answer, or its answer says nothing.
    fn names(&mut self, broker: i32) -> Option<bool> {
        let answer = self.connection.ask(&question()).ok()?;
        is_named(&broker_ids(&answer), self.id, broker)
    }
}

/// Whether `broker` is among the ids that the broker `asked` has answered; `None` if that one is
/// not among them itself.
fn is_named(ids: &[i32], asked: i32, broker: i32) -> Option<bool> {
    ids.contains(&asked).then(|| ids.contains(&broker))
}

fn question() -> Vec<u8> {
    request(METADATA, &[&NO_TOPICS.to_be_bytes(), &[CREATE_NO_TOPIC]])
}

/// The ids of the brokers that an answer names.
fn broker_ids(answer: &[u8]) -> Vec<i32> {
    let mut fields = ResponseFields(answer);
    let [_correlation, _throttled, brokers] = std::array::from_fn(|_| fields.i32());
    let ids = (0..brokers).map(|_| {
        let id = fields.i32();
        let host = fields.i16();
        fields.skip(host.into());
        let _port = fields.i32();
        // Without a rack, that is -1.
        let rack = fields.i16().max(0);
        fields.skip(rack.into());
        id
    });
    ids.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_brokers_of_an_answer_are_known_by_their_ids() {
        let numbers = |numbers: &[i32]| -> Vec<u8> {
            numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
        };
        let text = |text: &str| {
            let length = i16::try_from(text.len()).unwrap().to_be_bytes();
            [&length[..], text.as_bytes()].concat()
        };
        let without_rack = (-1_i16).to_be_bytes().to_vec();
        let answer = [
            numbers(&[0, 0, 2]),
            [numbers(&[1]), text("127.0.0.1"), numbers(&[9_093]), text("east")].concat(),
            [numbers(&[3]), text("kafka"), numbers(&[9_092]), without_rack].concat(),
            // What follows is not of the brokers.
            numbers(&[7, 8, 9]),
        ]
        .concat();
        assert_eq!(broker_ids(&answer), [1, 3]);
    }

    #[test]
    fn an_answer_of_a_broker_that_does_not_name_itself_says_nothing() {
        assert_eq!(is_named(&[1, 2, 3], 2, 1), Some(true));
        assert_eq!(is_named(&[2, 3], 2, 1), Some(false));
        assert_eq!(is_named(&[3], 2, 1), None);
        assert_eq!(is_named(&[], 2, 1), None);
    }

    #[test]
    fn the_first_answers_count() {
        let mut times = FencingTimes::default();
        let answers = [(10, true), (20, false), (30, false), (40, true), (50, false), (60, true)];
        for (at, is_named) in answers {
            times.note(at, is_named);
        }
        assert_eq!(times, FencingTimes { fenced: Some(20), unfenced: Some(40) });
        let other = FencingTimes { fenced: Some(15), unfenced: None };
        assert_eq!(times.first(other), FencingTimes { fenced: Some(15), unfenced: Some(40) });
    }
}
