//! A record that its topic has refused, and would refuse again: because it is too large, for
//! example.
//!
//! Invariant: the fire that it is about becomes one dead letter, and no other result waits for it
//! longer than a few transactions take. A topic that cannot be written at all is no fault of a
//! record: then results wait.

use std::sync::Arc;
use std::time::Duration;

use super::Worker;
use super::callback::WorkerEnvironment;
use super::completion::CompletedFire;
use super::result_batch::ResultBatch;
use super::transaction_state::{RefusedRecord, TransactionState};
use crate::engine::catalog::TopicState;
use crate::environment::call_error::CallResult;
use crate::environment::{Clock as _, ProcessReporter as _};

/// How long a result is not sent that was refused, however small: what refuses it is changed by
/// people.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);

impl<E: WorkerEnvironment> Worker<E> {
    /// The state of a topic that has refused a record. If it can be written, the record is at
    /// fault, and its result becomes a smaller one. If no broker has answered, that is not known.
    pub(super) fn on_topic_state(&mut self, state: CallResult<TopicState>) {
        let transaction = std::mem::replace(&mut self.transaction, TransactionState::Idle);
        let TransactionState::Asking(failed, refused) = transaction else {
            unreachable!("no state was asked for");
        };
        match state {
            Ok(TopicState::Usable { record_bytes_max, partitions, .. })
                if refused.partition < partitions =>
            {
                self.isolate(&failed.batch, &refused, record_bytes_max);
            }
            state => {
                self.reporter.not_ready("broker", why_results_wait(&refused, &state));
                self.put_back(&failed.batch);
                self.left_out_partitions.on_failed(refused.partition, self.clock.monotonic());
                self.pause_after_failures();
            }
        }
    }

    /// Makes those results smaller that are too large, or the one that was sent alone. If others
    /// can be at fault, each half of them is sent alone.
    fn isolate(&mut self, batch: &ResultBatch, refused: &RefusedRecord, bytes_max: usize) {
        let now = self.clock.monotonic();
        let current = self.keep_current(batch);
        let size = |result: &CompletedFire| {
            let key = result.report.trigger().map_or(0, |trigger| trigger.bytes().len());
            let of_topic =
                self.encoder.records(&result.report).filter(|(topic, _)| *topic == refused.topic);
            of_topic.map(|(_, value)| key + value.len()).max()
        };
        let is_suspect = |result: &Arc<CompletedFire>| {
            result.place.partition == refused.partition && size(result).is_some()
        };
        let (suspects, mut others): (Vec<_>, Vec<_>) = current.into_iter().partition(is_suspect);
        let was_alone = batch.results.len() == 1 && batch.circuits.is_empty();
        let is_guilty =
            |it: &Arc<CompletedFire>| was_alone || size(it).is_some_and(|size| size > bytes_max);
        let (guilty, rest): (Vec<_>, Vec<_>) = suspects.into_iter().partition(is_guilty);
        let is_unexplained = guilty.is_empty() && rest.is_empty();
        if is_unexplained && self.encoder.is_outcomes(&refused.topic) {
            tracing::warn!(reason = refused.reason, "changes of circuits are refused and dropped");
            self.results.forget_circuits(batch.circuits.len());
        }
        if guilty.is_empty() && !rest.is_empty() {
            for half in rest.chunks(rest.len().div_ceil(2)) {
                self.results.isolate(half.to_vec(), now);
            }
        } else {
            others.extend(rest);
        }
        for result in guilty {
            others.extend(self.reduce(result, &refused.reason));
        }
        self.results.put_back(others, now);
        if is_unexplained {
            self.pause_after_failures();
        }
    }

    /// The smaller result that takes the place of one that is refused. If nothing smaller is left,
    /// it is sent again without others after a while.
    fn reduce(&mut self, result: Arc<CompletedFire>, reason: &str) -> Option<Arc<CompletedFire>> {
        let place = result.place;
        match result.after_refusal(&self.report_context(), reason) {
            Some(smaller) => {
                tracing::error!(?place, reason, "the result of a fire is refused; a dead letter");
                Some(self.results.replace(&result, smaller))
            }
            _ => {
                tracing::error!(?place, reason, "the result of a fire is refused, however small");
                let now = self.clock.monotonic();
                self.results.delay_refused(result, now + REFUSED_PAUSE);
                self.left_out_partitions.on_failed(place.partition, now);
                None
            }
        }
    }
}

/// Why results wait for a topic that has refused a record, and has not been found to take others.
fn why_results_wait(refused: &RefusedRecord, state: &CallResult<TopicState>) -> String {
    let RefusedRecord { topic, reason, .. } = refused;
    match state {
        Ok(state) => {
            tracing::warn!(topic, ?state, reason, "a topic cannot be written");
            format!("{topic} cannot be written: {reason}")
        }
        Err(error) => {
            tracing::warn!(
                topic, %error, reason,
                "a record is refused, and no broker says whether its topic can be written"
            );
            format!(
                "{topic} has refused a record: {reason}; no broker says whether it can be written: \
                 {error}"
            )
        }
    }
}
