//! A transaction that takes long: the process says that it is not ready, and asks for the states of
//! the transaction's targets.
//!
//! Invariant: a transaction that waits for acknowledgements is given up if an answer to a question
//! that was asked while it was in progress shows that a partition of a target in it cannot be
//! written; and once if it takes longer than the brokers usually need to replace one of them. Then
//! nothing is blamed: brokers may wait for the broker that was replaced, in what they do for this
//! transaction, for as long as their own `request.timeout.ms`, and do not for that of other
//! producers.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Scheduler;
use crate::commit::committer::CommitFailure;
use crate::environment::transaction::TransactionError;
use crate::environment::{Clock as _, Environment, ProcessReporter as _};

/// A transaction that takes longer waits for a broker that does not answer. Brokers that answer
/// need less than a second, and about two while one of three is restarted.
const SLOW_TRANSACTION: Duration = Duration::from_secs(4);
/// Brokers replace one of them within 9 s of its last heartbeat, and within 13 s as a rule if it is
/// the controller. A transaction that would have ended a little later is sent again for nothing.
const STALLED_TRANSACTION: Duration = Duration::from_millis(13_500);
/// Why the process is not ready then.
const SLOW: &str = "a transaction waits for a broker that does not answer";

/// Why a partition is not waited for.
const UNAVAILABLE: &str = "the brokers say that it cannot be written now";
/// Why it is sent again with other producers.
const STALLED: &str = "it has taken longer than brokers need to replace one of them";

/// What is known of the open transaction, if it takes long.
#[derive(Debug, Default)]
pub(super) struct SlowTransaction {
    /// The process is not ready.
    pub(super) is_reported: bool,
    /// When the states of its targets were last asked for, on the monotonic clock.
    looked_up_at: Option<Duration>,
    /// Whether it is given up because it takes long is decided.
    is_stall_decided: bool,
    /// One before was given up because it took long, and none was committed since.
    was_given_up: bool,
}

impl SlowTransaction {
    /// A transaction has ended. Returns whether it was reported as slow.
    pub(super) fn on_end(&mut self, result: &Result<(), CommitFailure>) -> bool {
        let was_given_up = result.as_ref().is_err_and(|failure| {
            let is_stalled =
                matches!(&failure.error, TransactionError::Unknown(reason) if reason == STALLED);
            self.was_given_up || is_stalled
        });
        std::mem::replace(self, Self { was_given_up, ..Self::default() }).is_reported
    }
}

impl<E: Environment> Scheduler<E> {
    /// Nothing fires while a transaction waits for a broker. If that takes long, the process says
    /// so, and asks for the states of its targets: a partition that cannot be written now is not
    /// waited for.
    pub(super) fn on_slow_transaction(&mut self) {
        let now = self.clock.monotonic();
        let running = self.committer.running_for(now);
        let interval = self.config.timing.slow_lookup_interval;
        if running < interval {
            return;
        }
        let may_give_up = !self.slow_transaction.was_given_up;
        // Decided once: a transaction may have many targets.
        let is_decided = self.slow_transaction.is_stall_decided;
        if running >= STALLED_TRANSACTION && may_give_up && !is_decided {
            self.slow_transaction.is_stall_decided = true;
            if self.may_be_stalled() {
                self.committer.give_up(TransactionError::Unknown(STALLED.to_owned()));
            }
        }
        let SlowTransaction { is_reported, looked_up_at, .. } = &mut self.slow_transaction;
        let asked_since = *looked_up_at;
        if running >= SLOW_TRANSACTION && !std::mem::replace(is_reported, true) {
            self.reporter.not_ready("transaction", SLOW.to_owned());
        }
        if asked_since.is_none_or(|at| now >= at + interval) {
            *looked_up_at = Some(now);
            self.look_up_targets_in_progress(asked_since);
        }
    }

    /// Whether the open transaction may be sent again although nothing of it is to blame: it is not
    /// the last one of partitions that are released, which is not sent again; no target in it has
    /// failed before; and if the brokers cannot end it, there are other producers, and more than
    /// one pair of them.
    fn may_be_stalled(&self) -> bool {
        let Some(batch) = &self.batch else { return false };
        let mut has_failed = false;
        batch.for_each_target(&self.config.names, |topic, _| {
            has_failed |= self.targets.has_failed(topic);
        });
        !has_failed && !self.assignment.is_releasing() && self.producer_jobs.has_other_ids()
    }

    /// Gives up what the answers since `asked_since` show as unavailable, and asks again.
    fn look_up_targets_in_progress(&mut self, asked_since: Option<Duration>) {
        let Some(batch) = self.batch.clone() else { return };
        let mut topics = BTreeSet::new();
        batch.for_each_target(&self.config.names, |topic, partition| {
            if !self.is_target(topic) {
                return;
            }
            let is_out = |since| self.targets.is_shown_unavailable(topic, partition, since);
            if asked_since.is_some_and(is_out) {
                let topic = topic.to_owned();
                let reason = UNAVAILABLE.to_owned();
                self.committer.give_up(TransactionError::Undelivered { topic, partition, reason });
            }
            if !topics.contains(topic) {
                let _is_new = topics.insert(topic.to_owned());
            }
        });
        self.targets.look_up_now(&topics);
    }
}

#[cfg(test)]
#[path = "slow_transaction/tests.rs"]
mod tests;
