//! A receiver that plays a script on each of its connections, whatever the client does.
//!
//! Invariant: it keeps to real sockets, so that what is tried is what the network can do to us. It
//! counts what it was asked, and hangs up only if the script ends.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

use super::certificates::{self, TestCertificate};

/// Between two bytes of one that drips.
const DRIP: Duration = Duration::from_millis(100);
/// The longest head of a request that we send.
const HEAD_MAX: usize = 65_536;

/// What it does next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ScriptStep {
    /// Takes a request in.
    Take,
    /// Takes in the head of a request, and leaves its body where it is.
    TakeHead,
    /// Says it.
    Say(&'static [u8]),
    /// Says it so often.
    Repeat(usize, &'static [u8]),
    /// Sends it again and again, as fast as it is read.
    Flood(&'static [u8]),
    /// Says it over and over, a byte at a time.
    Drip(&'static [u8]),
    /// Says nothing until the client hangs up.
    Hang,
    /// Ends the connection without a word of TCP's.
    Reset,
}

/// How one gets in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ConnectionMode {
    /// Over HTTP.
    Http,
    /// Not at all: no connection is accepted, and the queue is full.
    Full,
    /// Over HTTPS, says the URL; the script begins where TLS should.
    NoTls,
    /// Over HTTPS.
    Tls(TestCertificate),
}

/// A receiver at a port of its own.
#[derive(Debug)]
pub(crate) struct HostileReceiver {
    pub(crate) url: String,
    requests: Arc<AtomicUsize>,
    /// Who waits to be accepted for ever.
    _queue: Vec<io::Result<TcpStream>>,
}

impl HostileReceiver {
    pub(crate) fn start(
        runtime: &Runtime,
        door: ConnectionMode,
        script: &'static [ScriptStep],
    ) -> Self {
        let _inside = runtime.enter();
        let requests = Arc::<AtomicUsize>::default();
        let listener = listen(if matches!(door, ConnectionMode::Full) { 1 } else { 1_024 });
        let address = listener.local_addr().unwrap();
        let scheme = if matches!(door, ConnectionMode::NoTls | ConnectionMode::Tls(_)) {
            "https"
        } else {
            "http"
        };
        let url = format!("{scheme}://{address}/");
        let queue = match door {
            ConnectionMode::Full => fill(address),
            _ => Vec::new(),
        };
        runtime.spawn(serve(listener, door, script, Arc::clone(&requests)));
        Self { url, requests, _queue: queue }
    }

    /// Requests that were taken in.
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Relaxed)
    }
}

fn listen(backlog: u32) -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket.listen(backlog).unwrap()
}

/// Connects until the queue accepts no more connections.
fn fill(address: SocketAddr) -> Vec<io::Result<TcpStream>> {
    let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(50));
    let mut queue = Vec::new();
    while queue.last().is_none_or(Result::is_ok) {
        queue.push(connect());
    }
    queue
}

async fn serve(
    listener: TcpListener,
    door: ConnectionMode,
    script: &'static [ScriptStep],
    requests: Arc<AtomicUsize>,
) {
    let tls = match door {
        ConnectionMode::Full => return std::future::pending().await,
        ConnectionMode::Tls(identity) => Some(TlsAcceptor::from(certificates::server(identity))),
        ConnectionMode::Http | ConnectionMode::NoTls => None,
    };
    while let Ok((mut socket, _)) = listener.accept().await {
        let (tls, requests) = (tls.clone(), Arc::clone(&requests));
        tokio::spawn(async move {
            let played = match &tls {
                None => play(&mut socket, script, &requests).await,
                Some(tls) => match tls.accept(&mut socket).await {
                    Ok(mut stream) => play(&mut stream, script, &requests).await,
                    Err(error) => Err(error),
                },
            };
            // An error means that the client has disconnected.
            if let Ok(ConnectionEnd::Reset) = played {
                socket.set_zero_linger().unwrap();
            }
        });
    }
}

/// How the connection ends.
enum ConnectionEnd {
    Closed,
    Reset,
}

async fn play(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    script: &[ScriptStep],
    requests: &AtomicUsize,
) -> io::Result<ConnectionEnd> {
    for act in script {
        match *act {
            ScriptStep::Take | ScriptStep::TakeHead => {
                let body = take_head(stream).await?;
                requests.fetch_add(1, Relaxed);
                if matches!(act, ScriptStep::Take) {
                    tokio::io::copy(&mut (&mut *stream).take(body), &mut tokio::io::sink()).await?;
                }
            }
            ScriptStep::Say(words) => stream.write_all(words).await?,
            ScriptStep::Repeat(times, words) => {
                let all = words.repeat(times);
                stream.write_all(&all).await?;
            }
            ScriptStep::Flood(words) => {
                let much = words.repeat(65_536 / words.len() + 1);
                loop {
                    stream.write_all(&much).await?;
                }
            }
            ScriptStep::Drip(words) => {
                let mut drops = tokio::time::interval(DRIP);
                for byte in words.iter().cycle() {
                    drops.tick().await;
                    stream.write_all(&[*byte]).await?;
                    stream.flush().await?;
                }
            }
            ScriptStep::Hang => {
                let _until_it_hangs_up = tokio::io::copy(stream, &mut tokio::io::sink()).await?;
            }
            ScriptStep::Reset => return Ok(ConnectionEnd::Reset),
        }
        stream.flush().await?;
    }
    Ok(ConnectionEnd::Closed)
}

/// Reads the head of a request; the bytes of the body that follows it.
async fn take_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<u64> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
        assert!(head.len() < HEAD_MAX, "we send short heads");
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    assert!(!head.contains("accept-encoding"), "we ask for no encoding: {head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    Ok(length.map_or(0, |length| length.parse().unwrap()))
}
