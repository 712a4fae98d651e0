//! From results to the log: signals, outcomes, dead letters and progress, in one transaction.
//!
//! Law: what a callback led to and that it is finished are committed together or not at all. After
//! any failure the results are forgotten and every partition begins a new life from what is
//! committed: a callback may then be repeated, under the same id.

use std::collections::BTreeSet;
use std::time::Duration;

use super::intake::{Ended, Ending};
use super::lane::Running;
use super::report::{Made, Report};
use super::verdict::Reply;
use super::{Worker, WorkerError};
use crate::clock;
use crate::fault;
use crate::kafka::transaction::{Outgoing, Progress, TransactionError, Transactor};
use crate::model::PartitionId;
use crate::model::dead_letter::Origin;
use crate::model::signal::Signal;
use crate::telemetry;

/// Results that make a transaction due before its time.
pub(super) const RESULTS_MAX: usize = 1_000;
/// Pause after the first failed transaction; each further one in a row doubles it. Callbacks are
/// repeated after a failure, and receivers shall not suffer from a broker that refuses us.
const PAUSE: Duration = Duration::from_millis(200);
/// Doublings of the pause: at most 12.8 s.
const DOUBLINGS_MAX: u32 = 6;

impl Worker {
    /// How long until a transaction is due; `None` if there is nothing to commit.
    pub(super) fn commit_in(&self) -> Option<Duration> {
        let due = self.oldest? + self.settings.worker.commit_interval;
        let full = self.ended.len() >= RESULTS_MAX;
        let left = due.saturating_duration_since(clock::monotonic());
        Some(if full { Duration::ZERO } else { left })
    }

    /// Commits every result there is, if we are a member of the group.
    pub(super) fn commit(&mut self) -> Result<(), WorkerError> {
        self.oldest = None;
        let lanes = &mut self.lanes;
        self.ended.retain(|ended| {
            lanes.get_mut(&ended.partition).is_some_and(|lane| lane.in_life(ended.life).is_some())
        });
        // News of circuits go with any progress, but not without: that is what fences them.
        let running = || self.lanes.values().filter_map(|lane| lane.running.as_ref());
        let news = !self.circuit_news.is_empty() && running().next().is_some();
        if self.ended.is_empty() && !news && !running().any(Running::wants_commit) {
            return Ok(());
        }
        if self.member.fence().is_err() {
            // The group will say what is ours; until then the results wait.
            self.oldest = Some(clock::monotonic());
            return Ok(());
        }
        let begun = clock::monotonic();
        let ended = std::mem::take(&mut self.ended);
        match self.write(ended) {
            Ok(()) => {
                fault::reached("worker.after_commit");
                let took = clock::monotonic() - begun;
                metrics::histogram!(telemetry::COMMIT).record(took.as_secs_f64());
                self.failures = 0;
                self.circuit_news.clear();
                self.health.ready("broker");
                self.unpark()
            }
            Err(error) => self.fail(&error),
        }
    }

    fn write(&mut self, ended: Vec<Ended>) -> Result<(), TransactionError> {
        self.transactor.begin()?;
        let wanting = self
            .lanes
            .iter()
            .filter(|(_, lane)| lane.running.as_ref().is_some_and(Running::wants_commit));
        let mut touched: BTreeSet<_> = wanting.map(|(partition, _)| *partition).collect();
        for ended in ended {
            let Ended { partition, life, offset, .. } = ended;
            let lane = self.lanes.get_mut(&partition).and_then(|lane| lane.in_life(life));
            let Some(running) = lane else { continue };
            running.progress.finish(offset);
            touched.insert(partition);
            let report = self.report(ended);
            fault::reached("worker.before_report");
            self.send(partition, &report)?;
            fault::reached("worker.after_report");
        }
        self.tell_circuits()?;
        if touched.is_empty() {
            touched.extend(self.lanes.iter().find(|(_, l)| l.running.is_some()).map(|(p, _)| *p));
        }
        let progress = touched.into_iter().filter_map(|partition| {
            let running = self.lanes.get_mut(&partition)?.running.as_mut()?;
            let (offset, metadata) = running.next_commit();
            Some(Progress { topic: self.topic.clone(), partition, offset, metadata })
        });
        let progress: Vec<_> = progress.collect();
        let fence = self.member.fence();
        let fence = fence.map_err(|error| TransactionError::Generation(error.to_string()))?;
        self.transactor.commit(&progress, &fence).map(drop)
    }

    fn report(&self, ended: Ended) -> Report {
        let Ended { partition, offset, at, ending, .. } = ended;
        let origin = Origin { topic: self.topic.as_str().into(), partition, offset };
        match ending {
            Ending::Attempt(fire, reply, took) => {
                let made = Made { reply: &reply, took, ended: at, worker: &self.name };
                let report = Report::of_attempt(*fire, &made, origin, &self.policy);
                count(&report, &reply);
                report
            }
            Ending::Deferred { fire, due, reason } => Report::of_deferral(*fire, due, reason),
            Ending::Withdrawn { id, settles } => {
                metrics::counter!(telemetry::CALLBACKS, "result" => "withdrawn").increment(1);
                Report::of_withdrawal(id, settles, at)
            }
            Ending::Heard => Report::default(),
            Ending::Unreadable(record) => {
                metrics::counter!(telemetry::DEAD_LETTERS, "reason" => "unreadable").increment(1);
                Report::of_unreadable(record, origin, at)
            }
        }
    }

    /// What came in at partition p goes out at partition p, so that a transaction touches few.
    fn send(&self, partition: PartitionId, report: &Report) -> Result<(), TransactionError> {
        let key = report.trigger().map(|trigger| trigger.bytes().as_ref());
        let send = |topic: &str, value: &[u8]| {
            let (partition, value) = (Some(partition), Some(value));
            self.transactor.send(Outgoing { topic, partition, key, value, headers: &[] })
        };
        if let Some(signal) = &report.signal {
            send(&self.names.signals(), &self.schemas.encode_signal(signal))?;
        }
        if let Some(letter) = &report.dead_letter {
            send(&self.names.dead_letters(), &self.schemas.encode_dead_letter(letter))?;
        }
        if let Some(outcome) = &report.outcome {
            send(&self.names.outcomes(), &self.schemas.encode_outcome(outcome))?;
        }
        Ok(())
    }

    /// Their key decides the partition, so that a reader sees the changes of a circuit in order.
    fn tell_circuits(&self) -> Result<(), TransactionError> {
        for news in &self.circuit_news {
            let value = self.schemas.encode_outcome(news);
            self.transactor.send(Outgoing {
                topic: &self.names.outcomes(),
                partition: None,
                key: Some(news.trigger.bytes()),
                value: Some(&value),
                headers: &[],
            })?;
        }
        Ok(())
    }

    /// Reads on where a full window had stopped it.
    fn unpark(&mut self) -> Result<(), WorkerError> {
        for (partition, lane) in &mut self.lanes {
            if let Some(offset) = lane.running.as_mut().and_then(|running| running.unpark()) {
                self.reader.start(&self.topic, *partition, offset)?;
            }
        }
        Ok(())
    }

    /// A transaction failed, or nobody knows: a new transactor makes the broker decide.
    fn fail(&mut self, error: &TransactionError) -> Result<(), WorkerError> {
        tracing::warn!(%error, "a transaction failed; beginning again from what is committed");
        metrics::counter!(telemetry::COMMIT_FAILURES).increment(1);
        self.health.not_ready("broker", error.to_string());
        loop {
            std::thread::park_timeout(PAUSE * 2_u32.pow(self.failures.min(DOUBLINGS_MAX)));
            self.failures += 1;
            match open_transactor(&self.settings, &self.id) {
                Ok(transactor) => {
                    self.transactor = transactor;
                    return self.begin_again();
                }
                Err(error) if self.shutdown.is_cancelled() => return Err(error.into()),
                Err(error) => tracing::warn!(%error, "no transactional producer yet"),
            }
        }
    }

    /// Every partition begins a new life.
    pub(super) fn begin_again(&mut self) -> Result<(), WorkerError> {
        let partitions: Vec<_> = self.lanes.keys().copied().collect();
        for partition in partitions {
            self.reader.stop(&self.topic, partition)?;
            self.begin_life(partition);
        }
        Ok(())
    }
}

/// Opens the transactor, and ends what an earlier one of the same id left open.
pub(super) fn open_transactor(
    settings: &super::Settings,
    id: &str,
) -> Result<Transactor, TransactionError> {
    Transactor::open(settings, id, settings.scheduler.transaction_timeout * 3)
}

fn count(report: &Report, reply: &Reply) {
    let result = match (&report.signal, &report.dead_letter) {
        (Some(Signal::Retry(_)), _) => "retried",
        (_, Some(_)) => "exhausted",
        (_, None) => "delivered",
    };
    metrics::counter!(telemetry::CALLBACKS, "result" => result).increment(1);
    if report.dead_letter.is_some() {
        let reason = if matches!(reply, Reply::Impossible(_)) { "impossible" } else { "exhausted" };
        metrics::counter!(telemetry::DEAD_LETTERS, "reason" => reason).increment(1);
    }
}
