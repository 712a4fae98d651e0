//! A proxy between clients and a broker. It can hold a request back, or all of them, and let it go
//! much later, even when its sender has disconnected; it can delay each request of a kind; it can
//! lose responses, with the connection; it can refuse all connections; and it can make a broker
//! look older than it is.
//!
//! Invariant: per connection everything keeps its order. It knows of Kafka's protocol only that
//! requests and responses are a length and a body, that a request begins with its kind, that the
//! responses of a connection come in the order of its requests, and how a broker lists the versions
//! of its requests.

use std::collections::BTreeMap;
use std::io::{self, Read, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread;
use std::time::Duration;

/// Kinds of requests, as Kafka numbers them.
pub(crate) const PRODUCE: i16 = 0;
pub(crate) const FETCH: i16 = 1;
pub(crate) const LIST_OFFSETS: i16 = 2;
pub(crate) const OFFSET_FETCH: i16 = 9;
pub(crate) const JOIN_GROUP: i16 = 11;
pub(crate) const HEARTBEAT: i16 = 12;
pub(super) const SYNC_GROUP: i16 = 14;
const API_VERSIONS: i16 = 18;
pub(crate) const INIT_PRODUCER_ID: i16 = 22;
pub(crate) const ADD_PARTITIONS_TO_TXN: i16 = 24;
pub(crate) const ADD_OFFSETS_TO_TXN: i16 = 25;
pub(crate) const END_TXN: i16 = 26;
pub(crate) const TXN_OFFSET_COMMIT: i16 = 28;

/// Runs until the test's process ends.
pub(crate) struct Proxy {
    hold: Arc<RequestHold>,
    loss: Arc<Mutex<ResponseLoss>>,
    versions: Arc<Mutex<VersionLimit>>,
    /// Of clients. A connection ends with the thread that serves it.
    connections: Arc<Mutex<Vec<Weak<TcpStream>>>>,
}

/// The newest version of a kind of requests, by the broker's answer to new connections; -1 if it
/// has none.
type VersionLimit = Option<(i16, i16)>;

/// What is held back, and how many requests of each kind there were.
#[derive(Default)]
struct RequestHold {
    state: Mutex<HoldState>,
    changed: Condvar,
    requests: Mutex<BTreeMap<i16, usize>>,
    /// Requests of this kind go on so much later.
    delay: Mutex<Option<(i16, Duration)>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HoldState {
    #[default]
    Open,
    /// The next request of this kind is held back.
    Waiting(i16),
    /// One is held back; all others pass.
    Holding,
    /// All are held back.
    Closed,
    /// Connections are closed at once.
    Cut,
}

/// Which responses are lost.
#[derive(Debug, Default)]
struct ResponseLoss {
    kinds: Vec<i16>,
    /// Of their responses one of so many is lost; none at 0.
    every: u32,
    /// How many there were of each kind since it is lost, and how many were lost ever.
    seen: BTreeMap<i16, u32>,
    lost: BTreeMap<i16, usize>,
}

impl ResponseLoss {
    /// Whether a response of this kind is lost.
    fn loses(&mut self, kind: i16) -> bool {
        if self.every == 0 || !self.kinds.contains(&kind) {
            return false;
        }
        let seen = self.seen.entry(kind).or_default();
        *seen += 1;
        let is_lost = seen.is_multiple_of(self.every);
        *self.lost.entry(kind).or_default() += usize::from(is_lost);
        is_lost
    }
}

impl Proxy {
    /// Passes what comes to `port` on to `broker`.
    pub(crate) fn start(port: u16, broker: String) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let (hold, loss) = (Arc::<RequestHold>::default(), Arc::<Mutex<ResponseLoss>>::default());
        let versions = Arc::<Mutex<VersionLimit>>::default();
        let connections = Arc::<Mutex<Vec<Weak<TcpStream>>>>::default();
        let shared = (Arc::clone(&hold), Arc::clone(&loss), Arc::clone(&versions));
        let accepted = Arc::clone(&connections);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let ((hold, loss, versions), broker) = (shared.clone(), broker.clone());
                let mut accepted = accepted.lock().unwrap();
                if *hold.state.lock().unwrap() == HoldState::Cut {
                    continue;
                }
                let client = Arc::new(client);
                accepted.retain(|client| client.strong_count() > 0);
                accepted.push(Arc::downgrade(&client));
                // A broker that is not there yet is what a client sees as a closed connection.
                thread::spawn(move || connect(&client, &broker, &hold, (loss, versions)));
            }
        });
        Self { hold, loss, versions, connections }
    }

    /// Holds the next request of a kind, and returns when it is held.
    pub(super) fn hold(&self, kind: i16) {
        self.hold_next(kind);
        let is_waiting = |state: &mut HoldState| *state == HoldState::Waiting(kind);
        let state = self.hold.state.lock().unwrap();
        let _held = self.hold.changed.wait_while(state, is_waiting).unwrap();
    }

    /// Holds the next request of a kind.
    pub(crate) fn hold_next(&self, kind: i16) {
        *self.hold.state.lock().unwrap() = HoldState::Waiting(kind);
    }

    /// Holds all requests from now on.
    pub(crate) fn close(&self) {
        *self.hold.state.lock().unwrap() = HoldState::Closed;
    }

    /// Closes all connections, and each new one from now on.
    pub(crate) fn cut(&self) {
        let mut connections = self.connections.lock().unwrap();
        *self.hold.state.lock().unwrap() = HoldState::Cut;
        for client in connections.drain(..).filter_map(|client| client.upgrade()) {
            let _closed = client.shutdown(Shutdown::Both);
        }
    }

    /// Lets go what is held, and connects again.
    pub(crate) fn release(&self) {
        *self.hold.state.lock().unwrap() = HoldState::Open;
        self.hold.changed.notify_all();
    }

    /// Lets go what is held but for the next request of a kind.
    pub(crate) fn release_until(&self, kind: i16) {
        *self.hold.state.lock().unwrap() = HoldState::Waiting(kind);
        self.hold.changed.notify_all();
    }

    /// From now on each request of a kind goes on so much later, and what follows it in its
    /// connection.
    pub(crate) fn delay(&self, kind: i16, by: Duration) {
        *self.hold.delay.lock().unwrap() = Some((kind, by));
    }

    /// How many requests of this kind there were.
    pub(crate) fn requests(&self, kind: i16) -> usize {
        self.hold.requests.lock().unwrap().get(&kind).copied().unwrap_or(0)
    }

    /// From now on loses one of `every` responses of each of these kinds, and closes its
    /// connection. The broker has done what was requested. None at 0.
    pub(crate) fn lose(&self, kinds: &[i16], every: u32) {
        let mut loss = self.loss.lock().unwrap();
        (loss.kinds, loss.every) = (kinds.to_vec(), every);
        loss.seen.clear();
    }

    /// From now on the answer to clients that connect names this newest version of a kind of
    /// requests; -1: the broker has none of that kind.
    pub(crate) fn limit_version(&self, kind: i16, newest: i16) {
        *self.versions.lock().unwrap() = Some((kind, newest));
    }

    /// How many responses of this kind were lost.
    pub(super) fn lost(&self, kind: i16) -> usize {
        self.loss.lock().unwrap().lost.get(&kind).copied().unwrap_or(0)
    }
}

impl RequestHold {
    /// Waits if this is the request to be held.
    fn wait_if_held(&self, kind: i16) {
        let mut state = self.state.lock().unwrap();
        if *state == HoldState::Waiting(kind) {
            *state = HoldState::Holding;
            self.changed.notify_all();
            let _released = self.changed.wait_while(state, |state| *state == HoldState::Holding);
        } else {
            let _open = self.changed.wait_while(state, |state| *state == HoldState::Closed);
        }
    }

    /// Waits if requests of this kind are delayed.
    fn wait_if_delayed(&self, kind: i16) {
        let delay = *self.delay.lock().unwrap();
        if let Some((_, by)) = delay.filter(|(delayed, _)| *delayed == kind) {
            let (_sender, pause) = mpsc::channel::<()>();
            let _over = pause.recv_timeout(by);
        }
    }
}

fn connect(
    client: &TcpStream,
    broker: &str,
    hold: &RequestHold,
    (loss, versions): (Arc<Mutex<ResponseLoss>>, Arc<Mutex<VersionLimit>>),
) -> io::Result<()> {
    let server = TcpStream::connect(broker)?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let (answers, to_client) = (server.try_clone()?, client.try_clone()?);
    let (requested, kinds) = mpsc::channel();
    thread::spawn(move || {
        let _ended = answer(answers, &to_client, &kinds, (&loss, &versions));
        let _closed = to_client.shutdown(Shutdown::Both);
    });
    let result = forward(client, &server, hold, &requested);
    let _closed = server.shutdown(Shutdown::Both);
    result
}

/// Request by request, until the client has closed its side and the last one is through.
fn forward(
    mut client: &TcpStream,
    mut server: &TcpStream,
    hold: &RequestHold,
    requested: &Sender<i16>,
) -> io::Result<()> {
    loop {
        let request = frame(&mut client)?;
        let kind = i16::from_be_bytes([request[4], request[5]]);
        *hold.requests.lock().unwrap().entry(kind).or_default() += 1;
        hold.wait_if_held(kind);
        hold.wait_if_delayed(kind);
        // Known before there can be a response. Its receiver may have ended.
        let _kind = requested.send(kind);
        server.write_all(&request)?;
    }
}

/// Response by response, until one is lost or there are no more.
fn answer(
    mut server: TcpStream,
    mut client: &TcpStream,
    kinds: &Receiver<i16>,
    (loss, versions): (&Mutex<ResponseLoss>, &Mutex<VersionLimit>),
) -> io::Result<()> {
    loop {
        let mut response = frame(&mut server)?;
        let kind = kinds.recv().map_err(io::Error::other)?;
        if loss.lock().unwrap().loses(kind) {
            return Ok(());
        }
        if let (API_VERSIONS, Some(limit)) = (kind, *versions.lock().unwrap()) {
            limit_version(&mut response, limit);
        }
        client.write_all(&response)?;
    }
}

/// Changes a broker's list of versions, in the form that it has since version 3 of that request:
/// after the length, the number of the request and an error, the count of the entries and 1; each
/// is a kind, its oldest and its newest version, and a byte for what may be added.
fn limit_version(response: &mut [u8], (kind, newest): (i16, i16)) {
    const ENTRIES: usize = 4 + 4 + 2 + 1;
    const NO_KIND: i16 = i16::MAX;
    let count = usize::from(response[ENTRIES - 1]) - 1;
    let entry = response[ENTRIES..].chunks_exact_mut(7).take(count);
    let mut entry = entry.filter(|entry| entry[..2] == kind.to_be_bytes());
    let entry = entry.next().expect("the broker has requests of that kind");
    if newest < 0 {
        entry[..2].copy_from_slice(&NO_KIND.to_be_bytes());
    } else {
        entry[4..6].copy_from_slice(&newest.to_be_bytes());
    }
}

/// The next length with its body.
fn frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    from.read_exact(&mut frame)?;
    let length = u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize;
    frame.resize(4 + length, 0);
    from.read_exact(&mut frame[4..])?;
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_limited_in_a_list_of_them() {
        let list = |entries: [[u8; 7]; 2]| {
            [&[0, 0, 0, 25, 0, 0, 0, 1, 0, 0, 3], entries.as_flattened()].concat()
        };
        let mut response = list([[0, 0, 0, 3, 0, 13, 0], [0, 28, 0, 0, 0, 5, 0]]);
        limit_version(&mut response, (TXN_OFFSET_COMMIT, 2));
        assert_eq!(response, list([[0, 0, 0, 3, 0, 13, 0], [0, 28, 0, 0, 0, 2, 0]]));
        limit_version(&mut response, (PRODUCE, -1));
        assert_eq!(response, list([[127, 255, 0, 3, 0, 13, 0], [0, 28, 0, 0, 0, 2, 0]]));
    }

    #[test]
    fn one_of_so_many_responses_of_a_kind_is_lost() {
        let mut loss = ResponseLoss { kinds: vec![END_TXN], every: 3, ..ResponseLoss::default() };
        let lost: Vec<_> = (0..6).map(|_| loss.loses(END_TXN)).collect();
        assert_eq!(lost, [false, false, true, false, false, true]);
        assert!((0..9).all(|_| !loss.loses(PRODUCE)));
        assert_eq!(loss.lost, BTreeMap::from([(END_TXN, 2)]));
        loss.every = 0;
        assert!((0..9).all(|_| !loss.loses(END_TXN)));
    }
}
