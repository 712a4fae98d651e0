//! The role that serves the HTTP API. A write is a record of `triggers`, and the answer is what the
//! trigger's owner says of it; a read comes from the view, which is made from the topics.
//!
//! ```text
//!  request ──► Submission ──► Writer ──► triggers ──► owner
//!     ▲                                                 │
//!     ├── answer ◄── Waiter ◄── Receipts ◄── outcomes ◄─┤
//!     └── answer ◄──────────── View ◄───────────────────┘
//! ```

mod api;
mod batch;
mod body;
mod circuits;
mod code;
mod commands;
mod dead_letters;
mod description;
mod docs;
mod envelope;
mod idempotency;
mod keyed;
mod marks;
mod parameters;
mod patch;
mod problem;
mod rate;
mod request;
mod request_id;
mod resource;
mod routes;
mod schedules;
mod shape;
mod standing;
mod triggers;

pub mod identity;
pub mod judge;
pub mod receipts;
pub mod submission;
pub mod writer;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::{Router, middleware};
use rdkafka::error::KafkaError;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::callers::Callers;
use crate::config::{ConfigError, Settings};
use crate::guard::Guard;
use crate::health::Health;
use crate::kafka::Names;
use crate::model::outcome::Verdict;
use crate::view::{View, ViewError};

use idempotency::InFlight;
use identity::Identity;
use judge::Judge;
use marks::Marks;
use receipts::{Full, Receipts, Told};
use submission::{Batch, Submission};
use writer::{Place, Writer};

/// Why the gateway could not start or had to end: mend what it names and start again.
#[derive(Debug, Error)]
pub enum GatewayError {
    /// The cluster is away, or refuses us.
    #[error("cannot read outcomes or write triggers: {0}")]
    Kafka(#[from] KafkaError),
    /// The listener failed.
    #[error("the HTTP listener failed: {0}")]
    Http(#[from] std::io::Error),
    /// Mend the file of the callers.
    #[error(transparent)]
    Callers(#[from] ConfigError),
    /// Mend the system's certificates.
    #[error("issuers' keys cannot be asked for: {0}")]
    Client(#[from] reqwest::Error),
    /// See what the view says.
    #[error(transparent)]
    View(#[from] ViewError),
}

/// Why a submission was not answered.
#[derive(Debug, Error)]
pub enum SubmitError {
    /// Try again later.
    #[error(transparent)]
    Busy(#[from] Full),
    /// Try again with the same id: the record may be written or not.
    #[error("the record was not acknowledged: {0}")]
    Unwritten(#[from] KafkaError),
}

/// Where a submission stands and what its owner said, if it did so in time.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// The record in `triggers`.
    pub place: Place,
    /// The owner's answer.
    pub told: Option<Told>,
}

impl Receipt {
    /// What the owner said.
    #[must_use]
    pub fn verdict(&self) -> Option<&Verdict> {
        self.told.as_ref().map(|told| &told.outcome.verdict)
    }
}

/// The answers to a batch, as they come.
#[derive(Debug)]
pub struct Answers {
    /// The record in `triggers`.
    pub place: Place,
    answers: JoinSet<(String, Option<Told>)>,
}

impl Answers {
    /// The next trigger and what its owner said, if it did so in time; nothing after the last.
    pub async fn next(&mut self) -> Option<(String, Option<Told>)> {
        let answer = self.answers.join_next().await?;
        Some(answer.expect("a wait for an answer does not panic"))
    }
}

/// Takes submissions and comes back with the owner's answer.
#[derive(Debug)]
pub struct Desk {
    writer: Writer,
    receipts: Receipts,
    answer_timeout: Duration,
}

impl Desk {
    /// Opens a desk that waits `answer_timeout` for each answer. What is submitted before `health`
    /// is ready may go unanswered.
    pub fn open(
        settings: &Settings,
        answer_timeout: Duration,
        health: Arc<Health>,
        shutdown: CancellationToken,
    ) -> Result<Self, KafkaError> {
        let writer = Writer::open(settings, answer_timeout)?;
        let receipts = Receipts::open(settings, health, shutdown)?;
        Ok(Self { writer, receipts, answer_timeout })
    }

    /// Writes a submission and awaits its outcome.
    pub async fn submit(&self, submission: Submission) -> Result<Receipt, SubmitError> {
        let waiter = self.receipts.expect(&submission.id)?;
        let place = self.writer.write(&submission.acknowledged()).await?;
        let told = waiter.answer(place.offset, self.answer_timeout).await;
        Ok(Receipt { place, told })
    }

    /// Writes a batch. Each of its triggers is answered for itself, as soon as its owner has.
    pub async fn submit_batch(&self, batch: Batch) -> Result<Answers, SubmitError> {
        let Batch { submission, ids } = batch;
        let waiters = ids.iter().map(|id| self.receipts.expect(id));
        let waiters = waiters.collect::<Result<Vec<_>, _>>()?;
        let place = self.writer.write(&submission.acknowledged()).await?;
        let mut answers = JoinSet::new();
        for (id, waiter) in ids.into_iter().zip(waiters) {
            let timeout = self.answer_timeout;
            let _handle = answers.spawn(async move { (id, waiter.any_answer(timeout).await) });
        }
        Ok(Answers { place, answers })
    }
}

/// Serves the API, and `probes` beside it, until `shutdown`; requests under way are finished.
pub async fn run(
    settings: &Settings,
    listener: TcpListener,
    probes: Router,
    health: Arc<Health>,
    shutdown: CancellationToken,
) -> Result<(), GatewayError> {
    let timeout = settings.gateway.answer_timeout;
    let callers = Callers::follow(settings, Arc::clone(&health), shutdown.clone())?;
    if callers.now().is_open() {
        let address = listener.local_addr()?;
        tracing::warn!(%address, "no callers.file: whoever reaches this may do everything");
    }
    let desk = Desk::open(settings, timeout, Arc::clone(&health), shutdown.clone())?;
    let view = View::open(settings, Arc::clone(&health), shutdown.clone())?;
    let _detached = tokio::spawn(standing::watch(view.clone(), shutdown.clone()));
    let api = Arc::new(api::Api {
        desk,
        view,
        marks: Marks::default(),
        in_flight: InFlight::default(),
        letters: crate::dead_letters::Desk::new(settings),
        settings: settings.clone(),
        health,
        names: Names::new(&settings.topics.prefix),
        judge: Judge::new(),
        identity: Identity::open(settings, callers.clone())?,
        callers,
        guard: Guard::new(settings),
    });
    let (router, _description) = routes::routes();
    let router = router.with_state(api).layer(middleware::from_fn(rate::tell));
    let router = router.layer(middleware::from_fn(request_id::frame)).merge(probes);
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).with_graceful_shutdown(shutdown.cancelled_owned()).await?;
    Ok(())
}

/// The description of the API: OpenAPI 3.1, as JSON.
#[must_use]
pub fn description() -> String {
    let (_router, document) = routes::routes();
    format!("{document:#}")
}
