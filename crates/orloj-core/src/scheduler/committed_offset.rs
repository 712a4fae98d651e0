//! Reads the committed offset of a partition for its takeover.
//!
//! Invariant: the request may block while a transaction of an earlier owner is open, so it runs
//! beside the loop. A timeout means that the offset is not known yet, not that there is none. Only
//! an owner fences the earlier one: after a release it fences none, and after a pause of the whole
//! process none before the group has had the time to say that it has expelled this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::truncated_logs::ShortLog;
pub(super) use crate::commit::finding_reader::{
    COMMITTED_OFFSET_TIMEOUT, FIRST_TIMEOUT, LONG_WAIT, REQUEST_PAUSE,
};
use crate::engine::takeover::{NewRecords, PartitionOffsets};
use crate::environment::call_error::{CallError, CallResult};
use crate::environment::group::{CommittedOffsets, GroupMembership};
use crate::environment::job::{Job, JobStep};
use crate::environment::{Clock, ClusterQueries, ProcessEnvironment};
use crate::model::PartitionId;
use crate::model::names::Names;

/// Reads the committed offset of one partition for one takeover. Repeats the request until it
/// succeeds or is cancelled.
pub(super) struct CommittedOffsetJob<O, C, K> {
    pub(super) partition: PartitionId,
    /// Of the takeover.
    pub(super) nonce: u64,
    pub(super) offsets: O,
    pub(super) cluster: C,
    pub(super) names: Names,
    /// The logs that seemed to be cut.
    pub(super) short_logs: Vec<ShortLog>,
    pub(super) clock: K,
    /// The partition is released, or its takeover has started again.
    pub(super) cancelled: Arc<AtomicBool>,
    /// Of the next request.
    pub(super) timeout: Duration,
    /// When it says why it still waits, on the monotonic clock.
    pub(super) report_at: Duration,
    /// A request that takes longer than its timeout by this is a pause of the whole process.
    pub(super) turn_max: Duration,
    /// After how long without a heartbeat the group expels this process.
    pub(super) session_timeout: Duration,
    /// When it last looked at the clock, on the monotonic clock.
    pub(super) looked_at: Duration,
    /// It fences no owner before, on the monotonic clock.
    pub(super) fences_from: Duration,
}

/// The job of a scheduler.
pub(super) type CommittedOffsetJobOf<E> = CommittedOffsetJob<
    <<E as ProcessEnvironment>::Member as GroupMembership>::Offsets,
    <E as ProcessEnvironment>::Cluster,
    <E as ProcessEnvironment>::Clock,
>;

/// A committed offset, and the takeover that asked for it.
#[derive(Debug)]
pub(super) struct CommittedOffsetReply {
    pub(super) partition: PartitionId,
    pub(super) nonce: u64,
    /// `None`: the request was cancelled.
    pub(super) offsets: Option<PartitionOffsets>,
}

impl<O: CommittedOffsets, C: ClusterQueries, K: Clock> Job for CommittedOffsetJob<O, C, K> {
    type Output = CommittedOffsetReply;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<CommittedOffsetReply> {
        let Self { partition, nonce, .. } = *self;
        if self.cancelled.load(Ordering::SeqCst) {
            return JobStep::Done(CommittedOffsetReply { partition, nonce, offsets: None });
        }
        let _was_paused = self.look_at_clock(REQUEST_PAUSE);
        match self.fetch() {
            Ok(offsets) => {
                let offsets = Some(offsets);
                JobStep::Done(CommittedOffsetReply { partition, nonce, offsets })
            }
            Err(error) => {
                if self.is_report_due() {
                    tracing::warn!(
                        partition,
                        %error,
                        "a takeover waits for the committed offset of its partition"
                    );
                } else {
                    tracing::debug!(partition, %error, "committed offsets are not stable yet");
                }
                self.timeout = COMMITTED_OFFSET_TIMEOUT;
                JobStep::Pause(REQUEST_PAUSE)
            }
        }
    }
}

impl<O: CommittedOffsets, C: ClusterQueries, K: Clock> CommittedOffsetJob<O, C, K> {
    /// Whether it says now why it still waits.
    fn is_report_due(&mut self) -> bool {
        let now = self.clock.monotonic();
        let is_due = now >= self.report_at;
        if is_due {
            self.report_at = now + LONG_WAIT;
        }
        is_due
    }

    /// Reads the stable offset first and the end offsets after it, so that these are not older.
    fn fetch(&mut self) -> CallResult<PartitionOffsets> {
        let p = self.partition;
        let offset = self.offsets.stable(p, self.timeout);
        self.check_owner(self.timeout)?;
        if offset.is_err() {
            self.fence_previous_owner()?;
        }
        let committed = offset?;
        // The earlier owner may have failed after it sent fires and before it added this offset to
        // the transaction.
        if let Some((_, metadata)) = &committed {
            self.offsets.fence_owner(metadata);
        }
        self.offsets.fence_absent_members();
        let Self { cluster, names, .. } = self;
        let (triggers_low, triggers_end) = cluster.bounds(&names.triggers(), p)?;
        let (signals_low, signals_end) = cluster.bounds(&names.signals(), p)?;
        let (ledger_low, ledger_end) = cluster.bounds(&names.ledger(), p)?;
        // After its bounds: what is below them was there when this is answered.
        let new_records = self.short_logs.iter().map(|log| {
            let ShortLog { topic, end, offset, new_from } = log.clone();
            let first = cluster.offset_for_time(&topic, p, new_from)?;
            Ok(NewRecords { topic, first, end, offset })
        });
        let new_records = new_records.collect::<CallResult<Vec<_>>>()?;
        Ok(PartitionOffsets {
            committed,
            triggers_low,
            triggers_end,
            signals_low,
            signals_end,
            ledger_low,
            ledger_end,
            new_records,
        })
    }

    /// The offset is not stable: an earlier owner's transaction is open, or the broker is
    /// unavailable.
    fn fence_previous_owner(&mut self) -> CallResult<()> {
        match self.offsets.latest_metadata(self.partition) {
            Ok(metadata) => {
                self.check_owner(COMMITTED_OFFSET_TIMEOUT)?;
                self.offsets.fence_owner(&metadata);
                self.offsets.fence_absent_members();
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    "the earlier owner cannot be fenced; waiting for its transaction timeout"
                )
            }
        }
        Ok(())
    }

    /// Fails if the partition may belong to another process since the last look at the clock, after
    /// which a request was sent with this timeout: the owner that its answer names may be the next
    /// one, and must not be fenced.
    fn check_owner(&mut self, timeout: Duration) -> CallResult<()> {
        let was_paused = self.look_at_clock(timeout);
        if self.cancelled.load(Ordering::SeqCst) {
            return Err(CallError::new("the takeover is cancelled"));
        }
        if was_paused || self.looked_at < self.fences_from {
            return Err(CallError::new(
                "this process was paused; it asks again when it would know of a lost partition",
            ));
        }
        Ok(())
    }

    /// Looks at the clock, at most `expected` after the last look. Returns whether the whole
    /// process was paused meanwhile. If it has sent no heartbeat for so long that the group may
    /// have expelled it, it fences no owner for the time in which a heartbeat is answered or fails.
    fn look_at_clock(&mut self, expected: Duration) -> bool {
        let now = self.clock.monotonic();
        let passed = now - std::mem::replace(&mut self.looked_at, now);
        let was_paused = passed > expected + self.turn_max;
        // At least two heartbeats fit into half a session, less one that a pause has just missed.
        if was_paused && passed >= self.session_timeout / 2 {
            self.fences_from = now + self.session_timeout;
        }
        was_paused
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Mutex, PoisonError};

    use super::*;
    use crate::engine::catalog::TopicState;
    use crate::model::{BrokerId, Offset, Timestamp};
    use crate::test_environment::clock::TestClock;

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
        cancelled: Arc<AtomicBool>,
        clock: TestClock,
    }

    impl CommittedOffsets for Answers {
        fn stable(&self, _: PartitionId, _: Duration) -> CallResult<Option<(Offset, String)>> {
            self.questions.asked("stable");
            self.clock.advance(self.takes);
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

        fn fence_absent_members(&self) {
            self.questions.asked("absent");
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

        fn leaders(&self, _: &str) -> CallResult<BTreeMap<PartitionId, BrokerId>> {
            Ok(BTreeMap::new())
        }

        fn end_offsets(
            &self,
            _: &str,
            _: &[PartitionId],
            _: Duration,
        ) -> CallResult<BTreeMap<PartitionId, Offset>> {
            Ok(BTreeMap::new())
        }

        fn last_stable_offset(&self, topic: &str, _: PartitionId) -> CallResult<Offset> {
            self.asked(topic);
            Ok(2)
        }

        fn offset_for_time(
            &self,
            topic: &str,
            _: PartitionId,
            time: Timestamp,
        ) -> CallResult<Offset> {
            self.asked(&format!("{topic}@{time}"));
            Ok(1)
        }

        fn topic_state(&self, _: &str) -> CallResult<TopicState> {
            Err(CallError::new("not asked"))
        }
    }

    const TIMEOUT: Duration = Duration::from_secs(2);
    const TURN_MAX: Duration = Duration::from_secs(1);
    const SESSION: Duration = Duration::from_secs(6);

    fn job(
        offsets: Answers,
        short_logs: Vec<ShortLog>,
    ) -> CommittedOffsetJob<Answers, Questions, TestClock> {
        CommittedOffsetJob {
            partition: 0,
            nonce: 1,
            cluster: offsets.questions.clone(),
            names: Names::new("o"),
            short_logs,
            clock: offsets.clock.clone(),
            cancelled: Arc::clone(&offsets.cancelled),
            offsets,
            timeout: TIMEOUT,
            report_at: LONG_WAIT,
            turn_max: TURN_MAX,
            session_timeout: SESSION,
            looked_at: Duration::ZERO,
            fences_from: Duration::ZERO,
        }
    }

    /// What is found, and which questions were asked, if the first one takes so long.
    fn questions(
        stable: CallResult<Option<(Offset, String)>>,
        takes: Duration,
        is_released: bool,
    ) -> (CallResult<PartitionOffsets>, String) {
        questions_if_short(Vec::new(), stable, takes, is_released)
    }

    /// The same, if a log seemed to be shorter.
    fn questions_if_short(
        short_logs: Vec<ShortLog>,
        stable: CallResult<Option<(Offset, String)>>,
        takes: Duration,
        is_released: bool,
    ) -> (CallResult<PartitionOffsets>, String) {
        let (questions, clock) = (Questions::default(), TestClock::default());
        let cancelled = Arc::new(AtomicBool::default());
        let offsets = Answers {
            questions: questions.clone(),
            stable,
            takes,
            is_released,
            cancelled: Arc::clone(&cancelled),
            clock,
        };
        let mut job = job(offsets, short_logs);
        let found = job.fetch();
        let asked = questions.0.lock().unwrap().join(" ");
        (found, asked)
    }

    /// Who dies in its first transaction for a partition is named by no offset of it: also members
    /// that are absent are fenced.
    #[test]
    fn the_owner_of_a_stable_offset_is_fenced_and_ends_are_read_after_it() {
        let stable = Some((7, "owner".to_owned()));
        let (found, asked) = questions(Ok(stable.clone()), TIMEOUT, false);
        assert_eq!(found.unwrap().committed, stable);
        assert_eq!(asked, "stable owner absent o.triggers o.signals o.ledger");
        let (found, asked) = questions(Ok(None), Duration::ZERO, false);
        let found = found.unwrap();
        assert_eq!((found.committed, found.ledger_end), (None, 2));
        assert_eq!(asked, "stable absent o.triggers o.signals o.ledger");
    }

    #[test]
    fn what_is_new_in_a_log_that_seemed_to_be_shorter_is_read_after_its_bounds() {
        let topic = "o.signals".to_owned();
        let log = ShortLog { topic: topic.clone(), end: 4, offset: 9, new_from: 70 };
        let (found, asked) = questions_if_short(vec![log], Ok(None), TIMEOUT, false);
        let new_records = NewRecords { topic, first: 1, end: 4, offset: 9 };
        assert_eq!(found.unwrap().new_records, [new_records]);
        assert_eq!(asked, "stable absent o.triggers o.signals o.ledger o.signals@70");
    }

    #[test]
    fn a_takeover_that_waits_for_long_says_why_again_and_again() {
        let clock = TestClock::default();
        let offsets = Answers {
            questions: Questions::default(),
            stable: Ok(None),
            takes: Duration::ZERO,
            is_released: false,
            cancelled: Arc::default(),
            clock: clock.clone(),
        };
        let mut job = job(offsets, Vec::new());
        let mut reports = 0;
        for _ in 0..LONG_WAIT.as_secs() * 3 {
            clock.advance(Duration::from_secs(1));
            reports += usize::from(job.is_report_due());
        }
        assert_eq!(reports, 3);
    }

    #[test]
    fn the_owner_whose_transaction_is_open_is_fenced() {
        let (found, asked) = questions(Err(CallError::new("unstable")), TIMEOUT, false);
        assert!(found.is_err());
        assert_eq!(asked, "stable latest successor absent");
    }

    /// Another process has the partition since.
    #[test]
    fn no_owner_is_fenced_after_a_pause_of_the_process() {
        let late = TIMEOUT + TURN_MAX;
        let pause = late + Duration::from_millis(1);
        for (takes, questions_asked) in
            [(late, "stable latest successor absent"), (pause, "stable")]
        {
            let (found, asked) = questions(Err(CallError::new("unstable")), takes, false);
            assert!(found.is_err());
            assert_eq!(asked, questions_asked, "the answer takes {takes:?}");
        }
        let (found, asked) = questions(Ok(Some((7, "successor".to_owned()))), pause, false);
        assert!(found.is_err(), "it is asked again");
        assert_eq!(asked, "stable");
    }

    /// What was asked when a job that waits for its offset makes steps after these times.
    fn asked_after(waits: &[Duration]) -> String {
        let (questions, clock) = (Questions::default(), TestClock::default());
        let offsets = Answers {
            questions: questions.clone(),
            stable: Err(CallError::new("unstable")),
            takes: Duration::ZERO,
            is_released: false,
            cancelled: Arc::default(),
            clock: clock.clone(),
        };
        let mut job = job(offsets, Vec::new());
        for wait in waits {
            clock.advance(*wait);
            assert!(matches!(job.step(&mut ()), JobStep::Pause(_)));
        }
        questions.0.lock().unwrap().join(" ")
    }

    /// The answer to a request after the pause names the next owner.
    #[test]
    fn no_owner_is_fenced_for_a_session_after_a_pause_between_two_requests() {
        let fenced = "stable latest successor absent";
        let short = REQUEST_PAUSE + TURN_MAX;
        assert_eq!(asked_after(&[short]), fenced);
        assert_eq!(asked_after(&[SESSION / 2 - TURN_MAX]), fenced, "it cannot be expelled yet");
        assert_eq!(asked_after(&[SESSION / 2]), "stable");
        let steps = |count: u32| [vec![SESSION / 2], vec![SESSION / 12; count as usize]].concat();
        assert_eq!(asked_after(&steps(11)), ["stable"; 12].join(" "));
        assert_eq!(asked_after(&steps(12)), [&["stable"; 12].join(" "), fenced].join(" "));
    }

    /// The one that wrote the last offset may be its next owner.
    #[test]
    fn no_owner_is_fenced_after_the_partition_is_released() {
        let (found, asked) = questions(Err(CallError::new("unstable")), TIMEOUT, true);
        assert!(found.is_err());
        assert_eq!(asked, "stable");
        let stable = Some((7, "successor".to_owned()));
        let (found, asked) = questions(Ok(stable), Duration::ZERO, true);
        assert!(found.is_err(), "it is cancelled");
        assert_eq!(asked, "stable");
    }
}
