//! One gateway: everything of production but the threads that read, the producer and the sockets.
//!
//! Invariant: it knows only what was delivered to it, and forgets what a process would forget.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use tokio::sync::oneshot;

use super::SharedParts;
use super::rng::SimulationRng;
use super::topics::SimulatedTopics;
use crate::client::{
    Acknowledgement, OutcomeAwaiter, OutcomeRecord, RecordMetadata, RegistrationValidator,
    Submission, SubmissionWriter, SubmitError, TriggerClient,
};
use crate::dead_letters::DeadLetterActions;
use crate::gateway::api::Api;
use crate::gateway::idempotency::InFlightRequests;
use crate::gateway::write_positions::WritePositions;
use crate::guard::Guard;
use crate::health::Health;
use crate::kafka::Names;
use crate::kafka::error::ClientError;
use crate::model::{Offset, Timestamp};
use crate::view::simulated::SimulatedView;

/// A record that is on its way to the broker.
#[derive(Debug)]
pub(super) struct PendingWrite {
    pub(super) submission: Submission,
    reply: oneshot::Sender<Result<RecordMetadata, SubmitError>>,
}

impl PendingWrite {
    /// Its writer learns that it is written, or that it may be.
    pub(super) fn acknowledge(self, offset: Option<Offset>) {
        let record =
            |offset| RecordMetadata { topic: "o.triggers".to_owned(), partition: 0, offset };
        let unknown = SubmitError::NotAcknowledged(ClientError::NotAcknowledged);
        // No request waits for it any more if the request was dropped.
        let _dropped = self.reply.send(offset.map(record).ok_or(unknown));
    }

    /// Its writer learns that it is not written.
    pub(super) fn refuse(self) {
        let _dropped = self.reply.send(Err(SubmitError::NotSent(ClientError::cancelled())));
    }
}

/// Where a gateway's records wait.
#[derive(Clone, Debug, Default)]
struct WriteQueue(Arc<Mutex<VecDeque<PendingWrite>>>);

impl SubmissionWriter for WriteQueue {
    fn write<'a>(&'a self, submission: &'a Submission) -> Acknowledgement<'a> {
        let (reply, acknowledged) = oneshot::channel();
        let write = PendingWrite { submission: submission.clone(), reply };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(write);
        let ended = |_| Err(SubmitError::NotAcknowledged(ClientError::cancelled()));
        Box::pin(async move { acknowledged.await.unwrap_or_else(ended) })
    }
}

/// One gateway.
#[derive(Debug)]
pub(super) struct SimulatedGateway {
    /// Another one after each restart.
    pub(super) number: usize,
    pub(super) router: Router,
    awaiter: OutcomeAwaiter,
    writes: WriteQueue,
    view: SimulatedView,
    /// How far the view has read each topic.
    read: ReadPositions,
    /// The next outcome that is delivered to requests.
    next_outcome: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct ReadPositions {
    triggers: usize,
    ledger: usize,
    outcomes: usize,
    cursors: usize,
}

impl SimulatedGateway {
    pub(super) fn start(
        shared: &SharedParts,
        number: usize,
        dir: &Path,
        clock: &Arc<AtomicU64>,
    ) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        let view = SimulatedView::create(dir, Arc::clone(clock));
        let (router, awaiter, writes) = serve(shared, &view);
        let (read, next_outcome) = (ReadPositions::default(), 0);
        Self { number, router, awaiter, writes, view, read, next_outcome }
    }

    /// The view of the next process is built again from the topics.
    pub(super) fn lose_view(&mut self, dir: &Path, clock: &Arc<AtomicU64>) {
        std::fs::create_dir_all(dir).unwrap();
        self.view = SimulatedView::create(dir, Arc::clone(clock));
        self.read = ReadPositions::default();
    }

    /// A new process on the view of this one. It reads outcomes from now on. Returns what was on
    /// its way to the broker.
    pub(super) fn restart(
        &mut self,
        shared: &SharedParts,
        number: usize,
        topics: &SimulatedTopics<'_>,
    ) -> VecDeque<PendingWrite> {
        let lost = std::mem::take(&mut *self.lock_writes());
        (self.router, self.awaiter, self.writes) = serve(shared, &self.view);
        (self.number, self.next_outcome) = (number, topics.outcomes.len());
        lost
    }

    pub(super) fn next_write(&self) -> Option<PendingWrite> {
        self.lock_writes().pop_front()
    }

    fn lock_writes(&self) -> MutexGuard<'_, VecDeque<PendingWrite>> {
        self.writes.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers at most so many outcomes to the requests that wait.
    pub(super) fn deliver(&mut self, topics: &SimulatedTopics<'_>, count: usize) {
        let from = self.next_outcome;
        let until = topics.outcomes.len().min(from.saturating_add(count));
        for (place, outcome) in topics.outcomes.iter().enumerate().take(until).skip(from) {
            let (outcome, partition, offset) = (outcome.clone(), 0, place as Offset);
            self.awaiter.on_outcome(OutcomeRecord { outcome, partition, offset });
        }
        self.next_outcome = until;
    }

    /// A request about this trigger has waited long enough.
    pub(super) fn end_waiting(&self, trigger: &str) {
        self.awaiter.end_waiting(trigger);
    }

    /// The view reads a part of each topic, or all of it, and commits.
    pub(super) fn read_topics(
        &mut self,
        topics: &SimulatedTopics<'_>,
        now: Timestamp,
        mut part: impl FnMut(usize) -> usize,
    ) {
        let mut until = |from: usize, end: usize| from + part(end - from);
        let triggers = until(self.read.triggers, topics.triggers.len());
        for record in &topics.triggers[self.read.triggers..triggers] {
            self.view.apply_trigger(record.clone());
        }
        let ledger = until(self.read.ledger, topics.ledger.len());
        for (place, record) in topics.ledger.iter().enumerate().take(ledger).skip(self.read.ledger)
        {
            self.view.apply_ledger(place as Offset, now, record.clone());
        }
        let outcomes = until(self.read.outcomes, topics.outcomes.len());
        let all = topics.outcomes.iter().enumerate();
        for (place, outcome) in all.take(outcomes).skip(self.read.outcomes) {
            self.view.apply_outcome(place as Offset, outcome);
        }
        let reached = topics.commits.iter().take_while(|commit| {
            commit.triggers <= triggers && commit.ledger <= ledger && commit.outcomes <= outcomes
        });
        let cursors = reached.count();
        if cursors > self.read.cursors {
            let newest = topics.commits[cursors - 1];
            self.view.apply_cursor(&newest.cursor, newest.ledger as Offset);
        }
        let cursors = cursors.max(self.read.cursors);
        self.read = ReadPositions { triggers, ledger, outcomes, cursors };
        let all = (topics.triggers.len(), topics.ledger.len(), topics.outcomes.len());
        self.view.commit((all == (triggers, ledger, outcomes)).then_some(now));
    }

    /// The view reads everything. Returns what it shows otherwise than all records say: each
    /// difference by the trigger's id, or by the list.
    pub(super) async fn compare_view(
        &mut self,
        topics: &SimulatedTopics<'_>,
        now: Timestamp,
    ) -> Vec<(String, String)> {
        self.read_topics(topics, now, |count| count);
        let (triggers, ledger) = (topics.triggers.clone(), topics.ledger.clone());
        let outcomes = topics.outcomes.clone();
        let cursors = topics.commits.iter().map(|commit| commit.cursor).collect();
        self.view.view().compare_with_records(triggers, ledger, outcomes, cursors).await
    }
}

/// Everything that a process has in memory.
fn serve(shared: &SharedParts, view: &SimulatedView) -> (Router, OutcomeAwaiter, WriteQueue) {
    let settings = shared.settings.clone();
    let (awaiter, writes) = (OutcomeAwaiter::default(), WriteQueue::default());
    let timeout = settings.gateway.answer_timeout;
    let client = TriggerClient::new(Box::new(writes.clone()), awaiter.clone(), timeout);
    let health = Health::new("gateway");
    health.ready("outcomes");
    let api = Api {
        client,
        view: view.view(),
        view_wait_max: shared.view_wait_max,
        write_positions: WritePositions::default(),
        in_flight: InFlightRequests::default(),
        dead_letter_actions: DeadLetterActions::new(&settings),
        names: Names::new(&settings.topics.prefix),
        validator: RegistrationValidator::new(),
        authenticator: shared.authenticator.clone(),
        callers: shared.callers.clone(),
        guard: Guard::new(&settings),
        settings,
        health,
    };
    (shared.router.clone().with_state(Arc::new(api)), awaiter, writes)
}

/// So many of `count` records are read at once.
pub(super) fn some_of(rng: &mut SimulationRng, count: usize) -> usize {
    if rng.one_in(2) { count } else { rng.place(count + 1) }
}
