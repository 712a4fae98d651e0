//! A transaction that takes long: the process says that it is not ready, and asks for the states of
//! the transaction's targets.
//!
//! Invariant: a transaction is given up only if an answer to a question that was asked while it was
//! in progress shows that a partition of a target in it cannot be written.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Scheduler;
use crate::environment::{Clock as _, Environment, Reporter as _};

/// A transaction that takes longer waits for a broker that does not answer. Brokers that answer
/// need less than a second, and about two while one of three is restarted.
const SLOW_TRANSACTION: Duration = Duration::from_secs(4);
/// Why the process is not ready then.
const SLOW: &str = "a transaction waits for a broker that does not answer";

/// What is known of the open transaction, if it takes long.
#[derive(Debug, Default)]
pub(super) struct SlowTransaction {
    /// The process is not ready.
    pub(super) is_reported: bool,
    /// When the states of its targets were last asked for, on the monotonic clock.
    looked_up_at: Option<Duration>,
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
        let SlowTransaction { is_reported, looked_up_at } = &mut self.slow_transaction;
        let asked_since = *looked_up_at;
        if running >= SLOW_TRANSACTION && !std::mem::replace(is_reported, true) {
            self.reporter.not_ready("transaction", SLOW.to_owned());
        }
        if asked_since.is_none_or(|at| now >= at + interval) {
            *looked_up_at = Some(now);
            self.look_up_targets_in_progress(asked_since);
        }
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
                self.committer.give_up(topic, partition);
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
