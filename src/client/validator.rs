//! Reads a record as its owner will, before it is written.
//!
//! Invariant: a record that its owner would refuse is never written, and nothing else is refused
//! here: both use the same code.

use crate::codec::registration::{
    FORWARDED, NoWriterSchemas, RawHeader, RawRecord, ReadContext, read_trigger,
};
use crate::codec::schemas::Schemas;
use crate::model::Timestamp;
use crate::model::input::{Forward, Registration, Request};
use crate::model::partitioner::Partitioner;

use super::submission::Submission;

/// Reads records as their owners will.
#[derive(Debug, Default)]
pub struct RegistrationValidator {
    schemas: Schemas,
}

impl RegistrationValidator {
    /// One for the whole process.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The registrations in `submission` if it is written at `now`, in ms since the epoch; or why
    /// it is refused. A cancel or a command has none.
    pub fn validate(
        &self,
        submission: &Submission,
        now: Timestamp,
    ) -> Result<Vec<Registration>, String> {
        let headers = submission.headers.iter();
        let headers = headers.map(|(name, value)| (name.as_str(), Some(value.as_slice())));
        let value = submission.value.as_deref();
        let request = self.read_request(submission.id.as_bytes(), value, headers.collect(), now)?;
        match request {
            Request::Register(registration) => Ok(vec![registration]),
            Request::Change(change) => Ok(vec![change.new]),
            Request::Batch(forwards) => {
                forwards.iter().map(|forward| self.batch_item(forward, now)).collect()
            }
            Request::Cancel { .. } | Request::Command { .. } => Ok(Vec::new()),
            Request::Forward(_) | Request::Unreadable(_) => {
                unreachable!("read_request returns neither")
            }
        }
    }

    /// One registration of a batch.
    fn batch_item(&self, forward: &Forward, now: Timestamp) -> Result<Registration, String> {
        let headers = forward.headers.iter();
        let headers = headers.map(|header| (header.name.as_str(), header.value.as_deref()));
        let request =
            self.read_request(&forward.key, forward.value.as_deref(), headers.collect(), now);
        let id = String::from_utf8_lossy(&forward.key);
        match request.map_err(|reason| format!("{id}: {reason}"))? {
            Request::Register(registration) => Ok(registration),
            _ => Err(format!("{id}: a batch holds registrations only")),
        }
    }

    fn read_request(
        &self,
        key: &[u8],
        value: Option<&[u8]>,
        mut headers: Vec<RawHeader<'_>>,
        now: Timestamp,
    ) -> Result<Request, String> {
        // The time that counts is set when it is written.
        headers.retain(|(name, _)| *name != FORWARDED);
        let raw =
            RawRecord { partition: 0, offset: 0, timestamp: now, key: Some(key), value, headers };
        let context = ReadContext {
            partitioner: Partitioner::Any,
            partitions: 1,
            schemas: &self.schemas,
            writers: &NoWriterSchemas,
        };
        let record = read_trigger(&raw, &context).map_err(|error| error.to_string())?;
        match record.request {
            Request::Unreadable(unreadable) => Err(unreadable.reason),
            request => Ok(request),
        }
    }
}
