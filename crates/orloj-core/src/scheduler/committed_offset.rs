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
use crate::environment::{Clock, ClusterQueries, Environment};
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
    pub(super) clock: E::Clock,
    pub(super) cancelled: Arc<AtomicBool>,
    /// Of the next request.
    pub(super) timeout: Duration,
    /// A request that takes longer than its timeout by this is a pause of the whole process.
    pub(super) turn_max: Duration,
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
        let Self { offsets, cluster, clock, names, .. } = &*self;
        let limits = (self.timeout, self.turn_max);
        match ask((offsets, cluster, clock), names, partition, limits, &self.cancelled) {
            Ok(offsets) => {
                let offsets = Some(offsets);
                JobStep::Done(CommittedOffsetReply { partition, nonce, offsets })
            }
            Err(error) => {
                tracing::debug!(partition, %error, "committed offsets are not stable yet");
                self.timeout = COMMITTED_OFFSET_TIMEOUT;
                JobStep::Pause(REQUEST_PAUSE)
            }
        }
    }
}

impl<E: Environment> CommittedOffsetJob<E> {
    pub(super) const FIRST_TIMEOUT: Duration = FIRST_COMMITTED_OFFSET_TIMEOUT;
}

/// Asks once. After an error, the earlier owner is fenced: its transaction is open, or the broker
/// is unavailable.
fn ask(
    (offsets, cluster, _clock): (&impl CommittedOffsets, &impl ClusterQueries, &impl Clock),
    names: &Names,
    partition: PartitionId,
    (timeout, _turn_max): (Duration, Duration),
    _cancelled: &AtomicBool,
) -> CallResult<PartitionOffsets> {
    let found = fetch((offsets, timeout), cluster, names, partition);
    if found.is_err() {
        match offsets.latest_metadata(partition) {
            Ok(metadata) => offsets.fence_owner(&metadata),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "the earlier owner cannot be fenced; waiting for its transaction timeout"
                )
            }
        }
    }
    found
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
    use crate::model::{Offset, Timestamp};

    /// Answers each question, in a list of what was asked.
    #[derive(Clone, Default)]
    struct Questions(Arc<Mutex<Vec<String>>>);

    struct Answers {
        questions: Questions,
        stable: CallResult<Option<(Offset, String)>>,
        /// How long the question for the stable offset takes.
        takes: Duration,
        /// Whether the partition is released meanwhile.
        is_released: bool,
        cancelled: AtomicBool,
        clock: TestClock,
    }

    /// Stands still, except while a question takes its time.
    #[derive(Clone, Default)]
    struct TestClock(Arc<Mutex<Duration>>);

    impl Clock for TestClock {
        fn now_ms(&self) -> Timestamp {
            0
        }

        fn until(&self, _: Timestamp) -> Duration {
            Duration::ZERO
        }

        fn monotonic(&self) -> Duration {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn pause(&self, length: Duration) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) += length;
        }
    }

    impl CommittedOffsets for Answers {
        fn stable(&self, _: PartitionId, _: Duration) -> CallResult<Option<(Offset, String)>> {
            self.questions.asked("stable");
            self.clock.pause(self.takes);
            self.cancelled.store(self.is_released, Ordering::SeqCst);
            self.stable.clone()
        }

        fn latest_metadata(&self, _: PartitionId) -> CallResult<String> {
            self.questions.asked("latest");
            Ok("successor".to_owned())
        }

        fn fence_owner(&self, metadata: &str) {
            self.questions.asked(metadata);
        }
    }

    impl Questions {
        fn asked(&self, what: &str) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(what.to_owned());
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

    const TIMEOUT: Duration = Duration::from_secs(2);
    const TURN_MAX: Duration = Duration::from_secs(1);

    /// What is found, and which questions were asked, if the first one takes so long.
    fn questions(
        stable: CallResult<Option<(Offset, String)>>,
        takes: Duration,
        is_released: bool,
    ) -> (CallResult<PartitionOffsets>, String) {
        let (questions, clock) = (Questions::default(), TestClock::default());
        let (names, limits) = (Names::new("o"), (TIMEOUT, TURN_MAX));
        let answers = Answers {
            questions: questions.clone(),
            stable,
            takes,
            is_released,
            cancelled: AtomicBool::default(),
            clock: clock.clone(),
        };
        let found = ask((&answers, &questions, &clock), &names, 0, limits, &answers.cancelled);
        let asked = questions.0.lock().unwrap().join(" ");
        (found, asked)
    }

    #[test]
    fn the_owner_of_a_stable_offset_is_fenced_and_ends_are_read_after_it() {
        let stable = Some((7, "owner".to_owned()));
        let (found, asked) = questions(Ok(stable.clone()), TIMEOUT, false);
        assert_eq!(found.unwrap().committed, stable);
        assert_eq!(asked, "stable owner o.triggers o.signals o.ledger");
        let (found, asked) = questions(Ok(None), Duration::ZERO, false);
        let found = found.unwrap();
        assert_eq!((found.committed, found.ledger_end), (None, 2));
        assert_eq!(asked, "stable o.triggers o.signals o.ledger");
    }

    #[test]
    fn the_owner_whose_transaction_is_open_is_fenced() {
        let (found, asked) = questions(Err(CallError::new("unstable")), TIMEOUT, false);
        assert!(found.is_err());
        assert_eq!(asked, "stable latest successor");
    }

    /// Another process has the partition since.
    #[test]
    fn nobody_is_fenced_after_a_pause_of_the_process() {
        let pause = TIMEOUT + TURN_MAX * 2;
        let (found, asked) = questions(Err(CallError::new("unstable")), pause, false);
        assert!(found.is_err());
        assert_eq!(asked, "stable");
        let (found, asked) = questions(Ok(Some((7, "successor".to_owned()))), pause, false);
        assert!(found.is_err(), "it is asked again");
        assert_eq!(asked, "stable");
    }

    /// The one that wrote the last offset may be its next owner.
    #[test]
    fn nobody_is_fenced_after_the_partition_is_released() {
        let (found, asked) = questions(Err(CallError::new("unstable")), TIMEOUT, true);
        assert!(found.is_err());
        assert_eq!(asked, "stable");
        let stable = Some((7, "successor".to_owned()));
        let (found, asked) = questions(Ok(stable), Duration::ZERO, true);
        assert!(found.is_err(), "it is cancelled");
        assert_eq!(asked, "stable");
    }
}
