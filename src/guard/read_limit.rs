//! A connection with a limit on what its receiver may send.
//!
//! Invariant: between the heads of two responses the bytes that are read are limited. The HTTP
//! client skips interim responses (1xx) as fast as they arrive, and TLS its own messages: without a
//! limit they would use a processor until the attempt times out.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf, Take};
use tokio::net::TcpStream;

/// More bytes than a response may have.
#[derive(Debug, thiserror::Error)]
#[error("{0} bytes were received, and the head of the response was not complete")]
struct ResponseTooLarge(u64);

/// An extension of each response: set when its head is complete.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseHeadSeen(Arc<AtomicBool>);

impl ResponseHeadSeen {
    /// Restarts the limit: for the body, and the next response head.
    pub(super) fn set(&self) {
        self.0.store(true, Relaxed);
    }
}

/// Reads at most `max` bytes between two heads.
#[derive(Debug)]
pub(super) struct LimitedReader {
    stream: Take<TcpStream>,
    max: u64,
    head: ResponseHeadSeen,
}

impl LimitedReader {
    pub(super) fn new(stream: TcpStream, max: u64) -> Self {
        Self { stream: stream.take(max), max, head: ResponseHeadSeen::default() }
    }

    fn inner(self: Pin<&mut Self>) -> Pin<&mut TcpStream> {
        Pin::new(self.get_mut().stream.get_mut())
    }
}

impl Connection for LimitedReader {
    fn connected(&self) -> Connected {
        Connected::new().extra(self.head.clone())
    }
}

impl AsyncRead for LimitedReader {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.head.0.swap(false, Relaxed) {
            this.stream.set_limit(this.max);
        }
        if this.stream.limit() == 0 {
            return Poll::Ready(Err(io::Error::other(ResponseTooLarge(this.max))));
        }
        Pin::new(&mut this.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for LimitedReader {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.inner().poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.inner().poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.get_ref().is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_read_limit_starts_again_after_a_response_head() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut receiver, _) = listener.accept().await.unwrap();
        receiver.write_all(&[7; 100]).await.unwrap();

        let mut limited = LimitedReader::new(stream, 40);
        let mut received = Vec::new();
        let error = limited.read_to_end(&mut received).await.unwrap_err();
        assert_eq!(received.len(), 40);
        assert!(error.to_string().starts_with("40 bytes were received"), "{error}");

        limited.head.set();
        let mut received = Vec::new();
        assert!(limited.read_to_end(&mut received).await.is_err());
        assert_eq!(received.len(), 40);
    }
}
