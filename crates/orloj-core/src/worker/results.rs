//! What is finished and not committed: results of fires, and changes of circuits.
//!
//! Invariant: results are counted, in number and in bytes, until they are committed or their
//! partition has another owner; so are those in a transaction that is in progress. One that is not
//! committed comes back and is first in the next one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::completion::CompletedFire;
use crate::model::outcome::Outcome;

/// Results in one transaction, and changes of circuits. So many results make one due before the
/// commit interval has passed.
pub(crate) const RESULTS_MAX: usize = 1_000;

/// What is finished and not committed.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pending: VecDeque<Arc<CompletedFire>>,
    /// Results that are sent without others, because a topic has refused a record of one of them.
    isolated: VecDeque<Vec<Arc<CompletedFire>>>,
    /// Results that are refused whatever they contain, and until when they are not sent, on the
    /// monotonic clock.
    refused: Vec<(Arc<CompletedFire>, Duration)>,
    /// Of all that is not committed, a transaction in progress included.
    count: usize,
    bytes: usize,
    circuits: Vec<Arc<Outcome>>,
    /// Since when something waits, on the monotonic clock.
    oldest_at: Option<Duration>,
}

impl Results {
    /// How many results are not committed.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Their bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many wait for a transaction, without those that are refused.
    pub(crate) fn waiting(&self) -> usize {
        self.pending.len() + self.isolated.iter().map(Vec::len).sum::<usize>()
    }

    /// Whether nothing waits for a transaction, but for what is refused.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting() == 0 && self.circuits.is_empty()
    }

    /// Since when something waits.
    pub(crate) fn oldest_at(&self) -> Option<Duration> {
        self.oldest_at
    }

    /// Whether a transaction is due at once: it would be full.
    pub(crate) fn is_due(&self, bytes_max: usize) -> bool {
        !self.isolated.is_empty() || self.pending.len() >= RESULTS_MAX || self.bytes >= bytes_max
    }

    /// A fire is finished at `now` on the monotonic clock.
    pub(crate) fn add(&mut self, result: CompletedFire, now: Duration) {
        self.oldest_at.get_or_insert(now);
        self.count += 1;
        self.bytes += result.bytes;
        self.pending.push_back(Arc::new(result));
    }

    /// A circuit has changed at `now` on the monotonic clock.
    pub(crate) fn add_circuit(&mut self, outcome: Outcome, now: Duration) {
        self.oldest_at.get_or_insert(now);
        self.circuits.push(Arc::new(outcome));
    }

    /// When the first of those that are refused is sent again, on the monotonic clock.
    pub(crate) fn refused_until(&self) -> Option<Duration> {
        self.refused.iter().map(|(_, until)| *until).min()
    }

    /// Takes what the next transaction contains: at most [`RESULTS_MAX`] results, and no further
    /// one from `bytes_max` on. What is not `current` any more is dropped; of the rest only what is
    /// `chosen` is taken. Also returns whether they are sent without others.
    pub(crate) fn take(
        &mut self,
        bytes_max: usize,
        now: Duration,
        current: impl Fn(&CompletedFire) -> bool,
        chosen: impl Fn(&CompletedFire) -> bool,
    ) -> (Vec<Arc<CompletedFire>>, bool) {
        self.drop_outdated(&current);
        self.isolate_refused(now);
        let is_chosen = |group: &Vec<Arc<CompletedFire>>| group.iter().all(|it| chosen(it));
        let at = self.isolated.iter().position(is_chosen);
        if let Some(group) = at.and_then(|at| self.isolated.remove(at)) {
            return (group, true);
        }
        let (mut taken, mut left, mut bytes) = (Vec::new(), VecDeque::new(), 0);
        for result in self.pending.drain(..) {
            if taken.len() < RESULTS_MAX && bytes < bytes_max && chosen(&result) {
                bytes += result.bytes;
                taken.push(result);
            } else {
                left.push_back(result);
            }
        }
        self.pending = left;
        (taken, false)
    }

    /// Whether nothing but changes of circuits waits for a transaction.
    pub(crate) fn has_only_circuits(&self) -> bool {
        self.waiting() == 0 && !self.circuits.is_empty()
    }

    /// The changes of circuits that the next transaction contains.
    pub(crate) fn circuits(&self) -> Vec<Arc<Outcome>> {
        self.circuits.iter().take(RESULTS_MAX).cloned().collect()
    }

    /// A transaction begins at `now` with what was taken.
    pub(crate) fn on_taken(&mut self, now: Duration) {
        self.oldest_at = (!self.is_empty()).then_some(now);
    }

    /// These were not committed, and their partitions are still ours.
    pub(crate) fn put_back(&mut self, results: Vec<Arc<CompletedFire>>, now: Duration) {
        self.oldest_at.get_or_insert(now);
        results.into_iter().rev().for_each(|result| self.pending.push_front(result));
    }

    /// The same; they are sent without others.
    pub(crate) fn isolate(&mut self, results: Vec<Arc<CompletedFire>>, now: Duration) {
        self.oldest_at.get_or_insert(now);
        self.isolated.push_back(results);
    }

    /// The same; it is sent without others, and not before `until` on the monotonic clock.
    pub(crate) fn delay_refused(&mut self, result: Arc<CompletedFire>, until: Duration) {
        self.refused.push((result, until));
    }

    fn isolate_refused(&mut self, now: Duration) {
        let due = self.refused.extract_if(.., |(_, until)| *until <= now);
        self.isolated.extend(due.map(|(result, _)| vec![result]));
    }

    /// Counts `other` instead of `result`.
    pub(crate) fn replace(
        &mut self,
        result: &CompletedFire,
        other: CompletedFire,
    ) -> Arc<CompletedFire> {
        self.bytes = self.bytes - result.bytes + other.bytes;
        Arc::new(other)
    }

    /// These are committed, or not ours any more.
    pub(crate) fn forget(&mut self, results: &[Arc<CompletedFire>]) {
        self.count -= results.len();
        self.bytes -= results.iter().map(|result| result.bytes).sum::<usize>();
    }

    /// So many changes of circuits are committed, or will not be.
    pub(crate) fn forget_circuits(&mut self, count: usize) {
        drop(self.circuits.drain(..count.min(self.circuits.len())));
    }

    fn drop_outdated(&mut self, current: &impl Fn(&CompletedFire) -> bool) {
        let (count, bytes) = (&mut self.count, &mut self.bytes);
        let mut keep = |result: &Arc<CompletedFire>| {
            let keeps = current(result);
            if !keeps {
                *count -= 1;
                *bytes -= result.bytes;
            }
            keeps
        };
        self.pending.retain(&mut keep);
        self.isolated.iter_mut().for_each(|group| group.retain(&mut keep));
        self.isolated.retain(|group| !group.is_empty());
        self.refused.retain(|(result, _)| keep(result));
    }
}
