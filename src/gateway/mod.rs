//! The role that serves the HTTP API. It holds no state of its own: a write is a record of
//! `triggers`, and the answer is what the trigger's owner says of it.
//!
//! ```text
//!  request ──► Submission ──► Writer ──► triggers ──► owner
//!     ▲                                                 │
//!     └── answer ◄── Waiter ◄── Receipts ◄── outcomes ◄─┘
//! ```

mod problem;
mod rate;
mod request;
mod triggers;

pub mod identity;
pub mod judge;
pub mod receipts;
pub mod submission;
pub mod writer;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::Response;
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
use crate::model::outcome::{Outcome, Verdict};
use crate::{clock, telemetry};

use identity::Identity;
use judge::Judge;
use problem::Problem;
use receipts::{Full, Receipts};
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
    pub outcome: Option<Outcome>,
}

impl Receipt {
    /// What the owner said.
    #[must_use]
    pub fn verdict(&self) -> Option<&Verdict> {
        self.outcome.as_ref().map(|outcome| &outcome.verdict)
    }
}

/// The answers to a batch, as they come.
#[derive(Debug)]
pub struct Answers {
    /// The record in `triggers`.
    pub place: Place,
    answers: JoinSet<(String, Option<Outcome>)>,
}

impl Answers {
    /// The next trigger and what its owner said, if it did so in time; nothing after the last.
    pub async fn next(&mut self) -> Option<(String, Option<Outcome>)> {
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
        let outcome = waiter.answer(place.offset, self.answer_timeout).await;
        Ok(Receipt { place, outcome })
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
    let api = Arc::new(triggers::Api {
        desk,
        health,
        names: Names::new(&settings.topics.prefix),
        pools: settings.topics.pools.clone(),
        judge: Judge::new(),
        identity: Identity::open(settings, callers)?,
        answer_timeout: timeout,
        guard: Guard::new(settings),
        resolve_timeout: settings.gateway.resolve_timeout,
    });
    let not_found = || async { Problem::new(StatusCode::NOT_FOUND, "there is nothing here") };
    let router = triggers::routes(api).fallback(not_found);
    let router = router.layer(middleware::from_fn(rate::tell)).layer(middleware::from_fn(measure));
    let service = router.merge(probes).into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).with_graceful_shutdown(shutdown.cancelled_owned()).await?;
    Ok(())
}

async fn measure(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("none", MatchedPath::as_str).to_owned();
    let begun = clock::monotonic();
    let response = next.run(request).await;
    let status = response.status().as_u16().to_string();
    metrics::counter!(telemetry::REQUESTS, "route" => route, "status" => status).increment(1);
    metrics::histogram!(telemetry::REQUEST_DURATION).record(clock::monotonic() - begun);
    response
}
