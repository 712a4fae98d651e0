//! Who is called back in measurements: answers every request with 200, at once or after a while,
//! and counts.
//!
//! Invariant: it costs as little as a receiver can, for it has the same machine as who calls it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use orloj::clock;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;

use crate::wait::until;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const END_OF_HEAD: &[u8] = b"\r\n\r\n";
/// So many may be on their way in at once.
const BACKLOG: u32 = 65_535;

/// A receiver at a port of its own.
pub(crate) struct BenchReceiver {
    address: SocketAddr,
    counts: Arc<RequestCounts>,
    _runtime: Runtime,
}

#[derive(Default)]
struct RequestCounts {
    first: OnceLock<Instant>,
    in_flight: AtomicU32,
    in_flight_max: AtomicU32,
    answered: AtomicU32,
}

impl BenchReceiver {
    /// Answers `pause` after it was asked, so many at once.
    pub(crate) fn open(pause: Duration, connections: u32) -> Self {
        raise_open_files_limit(connections);
        let runtime = Runtime::new().unwrap();
        let seen = Arc::<RequestCounts>::default();
        let _inside = runtime.enter();
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(BACKLOG).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(serve(listener, pause, Arc::clone(&seen)));
        drop(_inside);
        Self { address, counts: seen, _runtime: runtime }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Waits until so many requests are answered; how many that was a second since the first.
    pub(crate) fn rate(&self, count: u32, deadline: Duration) -> f64 {
        let first = until("the first request", deadline, || self.counts.first.get());
        until("all requests", deadline, || {
            (self.counts.answered.load(Relaxed) >= count).then_some(())
        });
        f64::from(count) / (clock::monotonic() - *first).as_secs_f64()
    }

    /// The most requests that were under way at once.
    pub(crate) fn in_flight_max(&self) -> u32 {
        self.counts.in_flight_max.load(Relaxed)
    }
}

impl RequestCounts {
    fn begin(&self) {
        self.first.get_or_init(clock::monotonic);
        let under_way = self.in_flight.fetch_add(1, Relaxed) + 1;
        self.in_flight_max.fetch_max(under_way, Relaxed);
    }

    fn end(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
        self.answered.fetch_add(1, Relaxed);
    }
}

async fn serve(listener: TcpListener, pause: Duration, seen: Arc<RequestCounts>) {
    while let Ok((socket, _)) = listener.accept().await {
        let seen = Arc::clone(&seen);
        tokio::spawn(async move {
            // It ends when the client hangs up.
            let _ended = answer(socket, pause, &seen).await;
        });
    }
}

async fn answer(
    mut socket: TcpStream,
    pause: Duration,
    seen: &RequestCounts,
) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let mut request = Vec::with_capacity(1_024);
    loop {
        while !is_whole(&request) {
            if socket.read_buf(&mut request).await? == 0 {
                return Ok(());
            }
        }
        request.clear();
        seen.begin();
        if !pause.is_zero() {
            let _passed = tokio::time::timeout(pause, std::future::pending::<()>()).await;
        }
        socket.write_all(ANSWER).await?;
        seen.end();
    }
}

/// Whether a request is there with its body. The client sends the next one after the answer.
fn is_whole(request: &[u8]) -> bool {
    let head = request.windows(END_OF_HEAD.len()).position(|bytes| bytes == END_OF_HEAD);
    let Some(head) = head else { return false };
    let lines = std::str::from_utf8(&request[..head]).unwrap().lines();
    let length = lines.filter_map(|line| line.strip_prefix("content-length: ")).next();
    let length: usize = length.map_or(0, |length| length.parse().unwrap());
    request.len() >= head + END_OF_HEAD.len() + length
}

/// Lets this process and those that it starts open what they need: a caller keeps as many free as
/// it uses.
fn raise_open_files_limit(connections: u32) {
    let needed = u64::from(connections) * 2;
    let limit = getrlimit(Resource::Nofile);
    let enough = limit.maximum.is_none_or(|maximum| maximum >= needed);
    assert!(
        enough,
        "{connections} callbacks at once need {needed} open files, and `ulimit -Hn` allows {}: \
         raise it (`LimitNOFILE`, /etc/security/limits.conf)",
        limit.maximum.unwrap_or_default()
    );
    let all = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, all).unwrap();
}
