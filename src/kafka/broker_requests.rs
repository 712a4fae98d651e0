//! The requests that a broker must take, and in which versions.
//!
//! Invariant: no role runs on a broker that cannot do what the protocol depends on. librdkafka by
//! itself sends what a broker takes, and leaves out what it does not know.
#![allow(unsafe_code, reason = "rdkafka has no binding for the versions of a broker")]

use std::ffi::{CStr, c_char};

use rdkafka::ClientContext;
use rdkafka::bindings as c;
use rdkafka::client::Client;

/// Bytes of the address of a broker (`RD_KAFKA_NODENAME_SIZE`).
const ADDRESS_BYTES: usize = 256;

/// A kind of requests that a broker must take, in one of the versions that librdkafka sends and
/// that have what we need.
struct NeededRequest {
    /// As Kafka numbers them.
    key: i16,
    name: &'static str,
    oldest: i16,
    newest: i16,
    /// What is missing without it.
    why: &'static str,
}

const NO_TRANSACTIONS: &str = "it has no transactions";

const NEEDED: [NeededRequest; 7] = [
    request(22, "InitProducerId", [0, 4], NO_TRANSACTIONS),
    request(24, "AddPartitionsToTxn", [0, 0], NO_TRANSACTIONS),
    request(25, "AddOffsetsToTxn", [0, 0], NO_TRANSACTIONS),
    request(26, "EndTxn", [0, 1], NO_TRANSACTIONS),
    request(
        28,
        "TxnOffsetCommit",
        [3, 3],
        "it does not refuse the offsets of a process that its group has expelled",
    ),
    request(
        9,
        "OffsetFetch",
        [7, 9],
        "it answers with a committed offset while a transaction changes it",
    ),
    request(11, "JoinGroup", [5, 5], "it has no static members of groups"),
];

const fn request(
    key: i16,
    name: &'static str,
    [oldest, newest]: [i16; 2],
    why: &'static str,
) -> NeededRequest {
    NeededRequest { key, name, oldest, newest, why }
}

/// A broker that does not take what Orloj needs. Upgrade it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "Orloj cannot run on the broker {broker}: {why} ({request} of version {version}); Apache Kafka \
     2.5 and later can, and Orloj is tested with 3.9, 4.1 and 4.3"
)]
pub struct UnsuitableBroker {
    /// Its address, host:port.
    pub broker: String,
    /// Kafka's name of the requests that it does not take.
    pub request: &'static str,
    /// The oldest version that would do.
    pub version: i16,
    /// What it cannot do without them.
    pub why: &'static str,
}

/// Whether the brokers to which `client` is connected take all that is needed; `None` if it is
/// connected to none.
pub(super) fn check<C: ClientContext>(client: &Client<C>) -> Option<Result<(), UnsuitableBroker>> {
    for needed in &NEEDED {
        let mut address: [c_char; ADDRESS_BYTES] = [0; ADDRESS_BYTES];
        // SAFETY: the client lives through this call, which writes at most as many bytes as there
        // are, the last one 0.
        let (connected, broker) = unsafe {
            let connected = c::rd_kafka_brokers_without_api(
                client.native_ptr(),
                needed.key,
                needed.oldest,
                needed.newest,
                address.as_mut_ptr(),
                address.len(),
            );
            (connected, CStr::from_ptr(address.as_ptr()).to_string_lossy().into_owned())
        };
        if connected == 0 {
            return None;
        }
        if !broker.is_empty() {
            let NeededRequest { name: request, oldest: version, why, .. } = *needed;
            return Some(Err(UnsuitableBroker { broker, request, version, why }));
        }
    }
    Some(Ok(()))
}
