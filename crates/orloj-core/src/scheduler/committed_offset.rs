//! Reads the committed offset of a partition for its takeover.
//!
//! Invariant: the request may block while a transaction of an earlier owner is open, so it runs
//! beside the loop. A timeout means that the offset is not known yet, not that there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::engine::takeover::PartitionOffsets;
use crate::environment::call_error::CallResult;
use crate::environment::group::{CommittedOffsets, GroupMembership};
use crate::environment::job::{Job, JobStep};
use crate::environment::{ClusterQueries, Environment};
use crate::model::PartitionId;
use crate::model::names::Names;

/// Timeout of a request after the first one.
const COMMITTED_OFFSET_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of the first request. Without an open transaction the answer takes less.
const FIRST_COMMITTED_OFFSET_TIMEOUT: Duration = Duration::from_millis(150);
/// Pause between two requests.
const REQUEST_PAUSE: Duration = Duration::from_millis(50);

/// Reads the committed offset of one partition for one takeover. Repeats the request until it
/// succeeds or is cancelled.
pub(super) struct CommittedOffsetJob<E: Environment> {
    pub(super) partition: PartitionId,
    /// Of the takeover.
    pub(super) nonce: u64,
    pub(super) offsets: <E::Member as GroupMembership>::Offsets,
    pub(super) cluster: E::Cluster,
    pub(super) names: Names,
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) timeout: Duration,
}

/// A committed offset, and the takeover that asked for it.
#[derive(Debug)]
pub(super) struct CommittedOffsetReply {
    pub(super) partition: PartitionId,
    pub(super) nonce: u64,
    /// `None`: the request was cancelled.
    pub(super) offsets: Option<PartitionOffsets>,
}

impl<E: Environment> Job for CommittedOffsetJob<E> {
    type Output = CommittedOffsetReply;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<CommittedOffsetReply> {
        let Self { partition, nonce, .. } = *self;
        if self.cancelled.load(Ordering::SeqCst) {
            return JobStep::Done(CommittedOffsetReply { partition, nonce, offsets: None });
        }
        let Self { offsets, cluster, names, timeout, .. } = &*self;
        match fetch((offsets, *timeout), cluster, names, partition) {
            Ok(offsets) => {
                let offsets = Some(offsets);
                JobStep::Done(CommittedOffsetReply { partition, nonce, offsets })
            }
            Err(error) => {
                tracing::debug!(partition, %error, "committed offsets are not stable yet");
                self.fence_previous_owner();
                self.timeout = COMMITTED_OFFSET_TIMEOUT;
                JobStep::Pause(REQUEST_PAUSE)
            }
        }
    }
}

impl<E: Environment> CommittedOffsetJob<E> {
    pub(super) const FIRST_TIMEOUT: Duration = FIRST_COMMITTED_OFFSET_TIMEOUT;

    /// The offset is not stable: an earlier owner's transaction is open, or the broker is
    /// unavailable.
    fn fence_previous_owner(&self) {
        match self.offsets.latest_metadata(self.partition) {
            Ok(metadata) => self.offsets.fence_owner(&metadata),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "the earlier owner cannot be fenced; waiting for its transaction timeout"
                )
            }
        }
    }
}

/// Reads the stable offset first and the end offsets after it, so that these are not older.
fn fetch(
    (offsets, timeout): (&impl CommittedOffsets, Duration),
    cluster: &impl ClusterQueries,
    names: &Names,
    p: PartitionId,
) -> CallResult<PartitionOffsets> {
    let offset = offsets.stable(p, timeout)?;
    // The earlier owner may have failed after it sent fires and before it added this offset to
    // the transaction.
    if let Some((_, metadata)) = &offset {
        offsets.fence_owner(metadata);
    }
    let (triggers_low, triggers_end) = cluster.bounds(&names.triggers(), p)?;
    let (signals_low, signals_end) = cluster.bounds(&names.signals(), p)?;
    let (ledger_low, ledger_end) = cluster.bounds(&names.ledger(), p)?;
    Ok(PartitionOffsets {
        committed: offset,
        triggers_low,
        triggers_end,
        signals_low,
        signals_end,
        ledger_low,
        ledger_end,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;
    use crate::engine::catalog::TopicState;
    use crate::environment::call_error::CallError;
    use crate::model::Offset;

    /// Answers each question, in a list of what was asked.
    #[derive(Clone, Default)]
    struct Questions(Arc<Mutex<Vec<String>>>);

    impl Questions {
        fn asked(&self, what: &str) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(what.to_owned());
        }
    }

    struct Answers(Questions, Option<(Offset, String)>);

    impl CommittedOffsets for Answers {
        fn stable(&self, _: PartitionId, _: Duration) -> CallResult<Option<(Offset, String)>> {
            self.0.asked("stable");
            Ok(self.1.clone())
        }

        fn latest_metadata(&self, _: PartitionId) -> CallResult<String> {
            Err(CallError::new("not asked"))
        }

        fn fence_owner(&self, metadata: &str) {
            self.0.asked(metadata);
        }
    }

    impl ClusterQueries for Questions {
        fn bounds(&self, topic: &str, _: PartitionId) -> CallResult<(Offset, Offset)> {
            self.asked(topic);
            Ok((1, 2))
        }

        fn last_stable_offset(&self, topic: &str, _: PartitionId) -> CallResult<Offset> {
            self.asked(topic);
            Ok(2)
        }

        fn topic_state(&self, _: &str) -> TopicState {
            TopicState::Unavailable("not asked".to_owned())
        }
    }

    #[test]
    fn the_owner_of_a_stable_offset_is_fenced_and_ends_are_read_after_it() {
        let (questions, names) = (Questions::default(), Names::new("o"));
        let answers = Answers(questions.clone(), Some((7, "owner".to_owned())));
        let found = fetch((&answers, Duration::ZERO), &questions, &names, 0).unwrap();
        assert_eq!(found.committed, answers.1);
        let asked = std::mem::take(&mut *questions.0.lock().unwrap());
        assert_eq!(asked, ["stable", "owner", "o.triggers", "o.signals", "o.ledger"]);
        let nothing = Answers(questions.clone(), None);
        let found = fetch((&nothing, Duration::ZERO), &questions, &names, 0).unwrap();
        assert_eq!((found.committed, found.ledger_end), (None, 2));
        let asked = questions.0.lock().unwrap().join(" ");
        assert_eq!(asked, "stable o.triggers o.signals o.ledger");
    }
}
