//! A fetched record of `triggers` before it is read, what reading it needs, and why it fails.
//!
//! Invariant: bytes are borrowed from the client's buffers; the headers that more than one form
//! reads are named here.

use std::sync::Arc;

use apache_avro::Schema;

use super::schemas::Schemas;
use super::text_field::Reason;
use crate::model::partitioner::Partitioner;
use crate::model::{Offset, PartitionId, Timestamp};

/// Asks for an outcome record when it is `true`.
pub const ACK: &str = "orloj-ack";
/// What the writer of a record recognises its outcome by: the outcome repeats it.
pub const REQUEST: &str = "orloj-request";
/// With it a registration or a `fire-now` is executed once: its repetition changes nothing.
pub const IDEMPOTENCY_KEY: &str = "orloj-idempotency-key";
/// On a record that was moved to its right partition: its first broker timestamp, in ms since
/// the epoch.
pub const FORWARDED: &str = "orloj-forwarded";
/// The caller that a record was written for: the gateway vouches for it.
pub const CALLER: &str = "orloj-caller";
/// Which generation a registration replaces: if another one is pending, or none, it is ignored.
pub const IF_GENERATION: &str = "orloj-if-generation";
/// Changes the pending trigger instead of replacing it; the parts that change are its value.
pub const CHANGE: &str = "orloj-change";
/// A command, on a record with an empty value.
pub const COMMAND: &str = "orloj-command";

/// A header of a fetched record; `None` is Kafka's null.
pub type RawHeader<'a> = (&'a str, Option<&'a [u8]>);

/// A fetched record, still in the client's buffers.
#[derive(Clone, Debug)]
pub struct RawRecord<'a> {
    /// The partition it was fetched from.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
    /// The broker's timestamp, in ms since the epoch.
    pub timestamp: Timestamp,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its value.
    pub value: Option<&'a [u8]>,
    /// Its headers, in order.
    pub headers: Vec<RawHeader<'a>>,
}

/// What reading needs besides the record.
#[derive(Clone, Copy)]
pub struct ReadContext<'a> {
    /// The hash that says which partition is right.
    pub partitioner: Partitioner,
    /// How many partitions `triggers` has.
    pub partitions: i32,
    /// Our own schemas.
    pub schemas: &'a Schemas,
    /// Users' own schemas.
    pub writers: &'a dyn WriterSchemas,
}

impl std::fmt::Debug for ReadContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadContext").field("partitions", &self.partitions).finish_non_exhaustive()
    }
}

/// The source of the schemas that producers registered.
pub trait WriterSchemas {
    /// The schema registered under `id`. Never waits.
    fn by_id(&self, id: u32) -> SchemaLookup;
}

/// Where no record needs the schema of another writer: none is known.
#[derive(Clone, Copy, Debug)]
pub struct NoWriterSchemas;

impl WriterSchemas for NoWriterSchemas {
    fn by_id(&self, _id: u32) -> SchemaLookup {
        SchemaLookup::Unknown
    }
}

/// The result of a look-up.
#[derive(Clone, Debug)]
pub enum SchemaLookup {
    /// This is it.
    Known(Arc<Schema>),
    /// It is not registered.
    Unknown,
    /// It cannot be fetched now: read the record again later.
    Unreachable,
    /// It cannot be used, or the registry refuses to give it: why.
    Refused(Arc<str>),
}

/// Why a record cannot be read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Read the record again later, and later records of its trigger after it.
    #[error("the schema registry does not say now what schema id {id} is")]
    RegistryUnavailable {
        /// The id that was asked for.
        id: u32,
    },
}

/// Why a registration cannot be taken.
#[derive(Debug)]
pub(super) enum RegistrationError {
    /// Its bytes are wrong, and always will be.
    Permanent(Reason),
    /// It may become readable later.
    MayBecomeReadable(Reason),
    /// It cannot be read now.
    NotReadableNow(ReadError),
}

impl From<Reason> for RegistrationError {
    fn from(reason: Reason) -> Self {
        Self::Permanent(reason)
    }
}
