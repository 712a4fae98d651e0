//! A connection to one broker, for what no client asks of a certain broker.
//!
//! Invariant: it is used again only if the last question was answered, so that no answer is taken
//! for that to the next question. No question waits for long.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// For how long a connection, a write or a read is waited for.
const TIMEOUT: Duration = Duration::from_millis(300);

/// To one broker.
pub(crate) struct BrokerConnection {
    address: SocketAddr,
    open: Option<TcpStream>,
}

impl BrokerConnection {
    /// Nothing is connected yet.
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, open: None }
    }

    /// Sends a whole request, and returns the answer without its length.
    pub(crate) fn ask(&mut self, request: &[u8]) -> io::Result<Vec<u8>> {
        let mut connection = match self.open.take() {
            Some(connection) => connection,
            None => connect(&self.address)?,
        };
        connection.write_all(request)?;
        let mut length = [0; 4];
        connection.read_exact(&mut length)?;
        let mut answer = vec![0; usize::try_from(i32::from_be_bytes(length)).unwrap()];
        connection.read_exact(&mut answer)?;
        self.open = Some(connection);
        Ok(answer)
    }
}

fn connect(address: &SocketAddr) -> io::Result<TcpStream> {
    let connection = TcpStream::connect_timeout(address, TIMEOUT)?;
    connection.set_read_timeout(Some(TIMEOUT))?;
    connection.set_write_timeout(Some(TIMEOUT))?;
    Ok(connection)
}

/// A request of Kafka's protocol by its number and version, with its length, of a client without a
/// name (<https://kafka.apache.org/protocol>).
pub(crate) fn request([key, version]: [i16; 2], body: &[&[u8]]) -> Vec<u8> {
    let (correlation, client) = (0_i32, -1_i16);
    let header = [key.to_be_bytes(), version.to_be_bytes()].concat();
    let request =
        [&header[..], &correlation.to_be_bytes(), &client.to_be_bytes(), &body.concat()].concat();
    let length = i32::try_from(request.len()).unwrap();
    [&length.to_be_bytes()[..], &request].concat()
}
