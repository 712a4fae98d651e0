//! A proxy between clients and a broker, which can hold a request back and let it go much later,
//! even when its sender has disconnected.
//!
//! Invariant: per connection everything keeps its order. It knows of Kafka's protocol only that a
//! request is a length and a body that begins with the kind of request.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// Kinds of requests, as Kafka numbers them.
pub(super) const END_TXN: i16 = 26;
pub(super) const TXN_OFFSET_COMMIT: i16 = 28;

/// Runs until the test's process ends.
pub(super) struct Proxy(Arc<RequestHold>);

/// What is held back.
#[derive(Default)]
struct RequestHold {
    state: Mutex<HoldState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HoldState {
    #[default]
    Open,
    /// The next request of this kind is held back.
    Waiting(i16),
    /// One is held back; all others pass.
    Holding,
}

impl Proxy {
    /// Passes what comes to `port` on to `broker`.
    pub(super) fn start(port: u16, broker: String) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let hold = Arc::<RequestHold>::default();
        let shared = Arc::clone(&hold);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (hold, broker) = (Arc::clone(&shared), broker.clone());
                // A broker that is not there yet is what a client sees as a closed connection.
                thread::spawn(move || connect(client, &broker, &hold));
            }
        });
        Self(hold)
    }

    /// Holds the next request of a kind, and returns when it is held.
    pub(super) fn hold(&self, kind: i16) {
        let mut state = self.0.state.lock().unwrap();
        *state = HoldState::Waiting(kind);
        let _held = self.0.changed.wait_while(state, |state| *state != HoldState::Holding).unwrap();
    }

    /// Lets it go.
    pub(super) fn release(&self) {
        *self.0.state.lock().unwrap() = HoldState::Open;
        self.0.changed.notify_all();
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
        }
    }
}

fn connect(client: TcpStream, broker: &str, hold: &RequestHold) -> io::Result<()> {
    let server = TcpStream::connect(broker)?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let (mut answers, mut to_client) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || {
        let _ended = io::copy(&mut answers, &mut to_client);
        let _closed = to_client.shutdown(Shutdown::Both);
    });
    let result = forward(client, &server, hold);
    let _closed = server.shutdown(Shutdown::Both);
    result
}

/// Request by request, until the client has closed its side and the last one is through.
fn forward(mut client: TcpStream, mut server: &TcpStream, hold: &RequestHold) -> io::Result<()> {
    loop {
        let mut length = [0; 4];
        client.read_exact(&mut length)?;
        let mut request = vec![0; u32::from_be_bytes(length) as usize];
        client.read_exact(&mut request)?;
        hold.wait_if_held(i16::from_be_bytes([request[0], request[1]]));
        server.write_all(&length)?;
        server.write_all(&request)?;
    }
}
