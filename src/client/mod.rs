//! The client of `triggers`: what the gateway and the command line use to write records and to
//! await their outcomes.
//!
//! Invariant: what a trigger's owner would refuse is refused here, before it is written, by the
//! code with which the owner reads it.
//!
//! ```text
//!  NewTrigger ──► Submission ──► TriggerProducer ──► triggers ──► owner
//!                                                                   │
//!  SubmitResult ◄── TriggerClient ◄── OutcomeAwaiter ◄── outcomes ◄─┘
//! ```

mod checks;
mod envelope;
mod new_trigger;
mod outcome_awaiter;
mod producer;
mod registration;
mod submission;
mod validator;

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::config::Settings;
use crate::health::Health;
use crate::kafka::error::ClientError;
use crate::model::outcome::OutcomeKind;

pub use checks::ValidationError;
pub use envelope::{BatchEnvelope, retry_policy_json};
pub use new_trigger::{
    FireTime, LIFECYCLE_HEADERS, NewTrigger, after_header_value, default_payload,
};
pub use outcome_awaiter::{OutcomeAwaiter, OutcomeRecord, PendingOutcome, TooManyWaiters};
#[cfg(test)]
pub(crate) use producer::Acknowledgement;
pub(crate) use producer::SubmissionWriter;
pub use producer::{RecordMetadata, TriggerProducer};
pub use registration::{BatchSubmission, SubmissionRules};
pub use submission::Submission;
pub use validator::RegistrationValidator;

/// Why a submission was not answered.
#[derive(Debug, Error)]
pub enum SubmitError {
    /// Try again later.
    #[error(transparent)]
    Busy(#[from] TooManyWaiters),
    /// Try again later: the record is not written.
    #[error("the record was not sent: {0}")]
    NotSent(ClientError),
    /// The record may be written or not.
    #[error("the record was not acknowledged: {0}")]
    NotAcknowledged(ClientError),
}

/// The record of a submission and its outcome, if the owner answered in time.
#[derive(Clone, Debug)]
pub struct SubmitResult {
    /// The record in `triggers`.
    pub record: RecordMetadata,
    /// The outcome; `None` if the owner did not answer in time.
    pub outcome: Option<OutcomeRecord>,
}

impl SubmitResult {
    /// What the owner decided.
    #[must_use]
    pub fn outcome_kind(&self) -> Option<&OutcomeKind> {
        self.outcome.as_ref().map(|record| &record.outcome.kind)
    }
}

/// The outcomes of a batch, as they arrive.
#[derive(Debug)]
pub struct BatchResults {
    /// The record in `triggers`.
    pub record: RecordMetadata,
    outcomes: JoinSet<(String, Option<OutcomeRecord>)>,
}

impl BatchResults {
    /// The next trigger and its outcome, if its owner answered in time; `None` after the last.
    pub async fn next(&mut self) -> Option<(String, Option<OutcomeRecord>)> {
        let answer = self.outcomes.join_next().await?;
        Some(answer.expect("a task that waits for an outcome does not panic"))
    }
}

/// Writes submissions and awaits their outcomes.
#[derive(Debug)]
pub struct TriggerClient {
    writer: Box<dyn SubmissionWriter>,
    awaiter: OutcomeAwaiter,
    answer_timeout: Duration,
}

impl TriggerClient {
    /// Opens a client that waits `answer_timeout` for each outcome. Outcomes of submissions that
    /// are written before `health` is ready may be missed.
    pub fn open(
        settings: &Settings,
        answer_timeout: Duration,
        health: Arc<Health>,
        shutdown: CancellationToken,
    ) -> Result<Self, ClientError> {
        let producer = TriggerProducer::open(settings, answer_timeout)?;
        let awaiter = OutcomeAwaiter::open(settings, health, shutdown)?;
        Ok(Self::new(Box::new(producer), awaiter, answer_timeout))
    }

    /// A client that writes with `writer` and receives outcomes from `awaiter`.
    pub(crate) fn new(
        writer: Box<dyn SubmissionWriter>,
        awaiter: OutcomeAwaiter,
        answer_timeout: Duration,
    ) -> Self {
        Self { writer, awaiter, answer_timeout }
    }

    /// Writes a submission and awaits its outcome.
    pub async fn submit(&self, submission: Submission) -> Result<SubmitResult, SubmitError> {
        let request = Uuid::now_v7().to_string();
        let pending = self.awaiter.subscribe(&submission.id, &request)?;
        let record = self.writer.write(&submission.with_ack().with_request(&request)).await?;
        let outcome = pending.wait_for(record.offset, self.answer_timeout).await;
        Ok(SubmitResult { record, outcome })
    }

    /// Writes a batch. Each of its triggers has its own outcome, as soon as its owner answers.
    pub async fn submit_batch(&self, batch: BatchSubmission) -> Result<BatchResults, SubmitError> {
        let BatchSubmission { submission, ids } = batch;
        let request = Uuid::now_v7().to_string();
        let pending = ids.iter().map(|id| self.awaiter.subscribe(id, &request));
        let waiters = pending.collect::<Result<Vec<_>, _>>()?;
        let record = self.writer.write(&submission.with_ack().with_request(&request)).await?;
        let mut outcomes = JoinSet::new();
        for (id, waiter) in ids.into_iter().zip(waiters) {
            let timeout = self.answer_timeout;
            let _handle = outcomes.spawn(async move { (id, waiter.wait_for_item(timeout).await) });
        }
        Ok(BatchResults { record, outcomes })
    }
}

#[cfg(test)]
mod tests;
