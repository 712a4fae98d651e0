//! Tests of a transaction's calls: how long each may wait, and what the result says.
//!
//! Invariant: a call takes no time but what a test lets pass.

use super::*;
use crate::environment::{CommittedRecords, Reporter as _};
use crate::test_environment::clock::{MS, SECOND};
use crate::test_environment::member::TestMetadata;
use crate::test_environment::reporter::TestReporter;
use crate::test_environment::{NOW, TestEnvironment};

type TestJob = CommitJob<TestEnvironment, TestRecords>;

/// No records.
#[derive(Debug, Default)]
struct TestRecords;

impl TransactionRecords for TestRecords {
    type Encoder = ();

    fn send(
        &self,
        producer: &impl TransactionalSending,
        (): &(),
        commit_not_before: Timestamp,
        _time_left: impl Fn() -> Duration,
    ) -> Result<(), TransactionError> {
        producer.begin_at(commit_not_before)
    }
}

impl ReportedRecords<TestReporter> for TestRecords {
    fn report(&self, reporter: &TestReporter, _now: Timestamp) {
        reporter.committed(CommittedRecords::default());
    }
}

#[test]
fn a_pause_of_the_process_is_not_a_call_that_hangs() {
    let seconds = Duration::from_secs;
    let (limit, turn_max) = (seconds(20), seconds(1));
    let mut detector = HangDetector { limit, turn_max, looked_at: seconds(0), running: seconds(0) };
    detector.start(seconds(100));
    assert!(!detector.is_hanging(seconds(101)));
    assert!(!detector.is_hanging(seconds(4_000)), "it was stopped for an hour");
    let hangs = (4_001..).map(seconds).position(|now| detector.is_hanging(now));
    assert_eq!(hangs, Some(18), "2 s of 20 have passed");
}

#[test]
fn a_call_hangs_by_the_time_since_it_began_however_often_it_is_looked_at() {
    let (limit, turn_max, zero) = (SECOND * 2, SECOND, Duration::ZERO);
    let mut detector = HangDetector { limit, turn_max, looked_at: zero, running: zero };
    for began in [SECOND * 100, SECOND * 200] {
        detector.start(began);
        let hangs = (0..=300).find(|n| detector.is_hanging(began + MS * 10 * *n));
        assert_eq!(hangs, Some(201), "after 2 s");
    }
}

/// A transaction without records, to be committed so many ms after NOW.
fn job(world: &TestEnvironment, after: u64) -> TestJob {
    world.clock.set(NOW);
    CommitJob {
        clock: world.clock.clone(),
        reporter: world.reporter.clone(),
        producer: Some(Arc::new(world.producer.clone())),
        batch: Arc::default(),
        offset_commits: Vec::new(),
        group_metadata: TestMetadata::default(),
        commit_not_before: NOW + after,
        wait_max: MS * 25,
        timeout: SECOND * 10,
        stage: CommitStage::Send,
        call_began_at: None,
        given_up: GivenUp::default(),
    }
}

/// Does the first steps of a transaction; before each this time passes.
fn until_commit(world: &TestEnvironment, job: &mut TestJob, passes: [Duration; 3]) {
    for time in passes {
        world.clock.advance(time);
        assert!(matches!(job.step(&mut ()), JobStep::Continue));
    }
}

#[test]
fn a_transaction_is_committed_at_its_time_and_waits_for_it_no_longer_than_allowed() {
    for (after, waits) in [(0, None), (10, None), (12, Some(2)), (25, Some(15)), (40, Some(15))] {
        let world = TestEnvironment::default();
        let mut job = job(&world, after);
        until_commit(&world, &mut job, [Duration::ZERO, MS * 4, MS * 6]);
        let ready = world.clock.monotonic();
        if let Some(ms) = waits {
            match job.step(&mut ()) {
                JobStep::Pause(pause) => assert_eq!(pause, MS * ms, "after {after} ms"),
                other => panic!("{other:?}"),
            }
            world.clock.advance(MS * ms);
        }
        assert!(matches!(job.step(&mut ()), JobStep::Done(Ok(at)) if at == ready));
        assert_eq!(world.producer.began_at(), Some(NOW + after));
    }
}

#[test]
fn all_calls_of_a_transaction_have_its_timeout_together() {
    let world = TestEnvironment::default();
    let mut job = job(&world, 0);
    until_commit(&world, &mut job, [Duration::ZERO, SECOND, SECOND * 3]);
    world.clock.advance(SECOND * 4);
    assert!(matches!(job.step(&mut ()), JobStep::Done(Ok(_))));
    assert_eq!(world.producer.sending().timeouts, [FLUSH_WAIT, SECOND * 6, SECOND * 2]);
}

#[test]
fn acknowledgements_are_waited_for_until_the_timeout_or_until_they_are_given_up() {
    let undelivered = TransactionError::Undelivered {
        topic: "out".to_owned(),
        partition: 3,
        reason: "no leader".to_owned(),
    };
    for given_up in [None, Some(undelivered)] {
        let world = TestEnvironment::default();
        world.producer.sending().unflushed = true;
        let mut job = job(&world, 0);
        assert!(matches!(job.step(&mut ()), JobStep::Continue));
        for _ in 0..2 {
            world.clock.advance(SECOND * 4);
            assert!(matches!(job.step(&mut ()), JobStep::Pause(Duration::ZERO)));
        }
        given_up.iter().for_each(|error| job.given_up.set(error.clone()));
        world.clock.advance(SECOND * 2);
        match (job.step(&mut ()), given_up) {
            (JobStep::Done(Err(failure)), given_up) if failure.is_uncommitted => {
                let is_unknown = matches!(failure.error, TransactionError::Unknown(_));
                assert!(given_up.map_or(is_unknown, |given_up| failure.error == given_up));
            }
            other => panic!("{other:?}"),
        }
        assert!(job.producer.is_none());
    }
}

#[test]
fn a_transaction_is_reported_if_it_is_committed() {
    for fails in [false, true] {
        let world = TestEnvironment::default();
        let mut job = job(&world, 0);
        until_commit(&world, &mut job, [Duration::ZERO; 3]);
        let error = TransactionError::Unknown("timeout".to_owned());
        world.producer.sending().fails = fails.then(|| error.clone());
        match job.step(&mut ()) {
            JobStep::Done(result) => {
                let failure = CommitFailure { error, is_uncommitted: false };
                assert_eq!(result.err(), fails.then_some(failure));
            }
            other => panic!("{other:?}"),
        }
        job.on_delivered();
        assert_eq!(world.reporter.reported().committed.len(), usize::from(!fails));
    }
}

/// Closing takes a while: the next transaction, of other producers, would wait for it.
#[test]
fn the_thread_of_the_commits_does_not_close_the_producers_of_a_failed_transaction() {
    let world = TestEnvironment::default();
    let producer = Arc::new(world.producer.clone());
    let mut job = CommitJob { producer: Some(Arc::clone(&producer)), ..job(&world, 0) };
    assert!(matches!(job.step(&mut ()), JobStep::Continue));
    assert_eq!(Arc::strong_count(&producer), 2, "it is used");
    world.producer.sending().fails = Some(TransactionError::Unknown("timeout".to_owned()));
    assert!(matches!(job.step(&mut ()), JobStep::Done(Err(_))));
    assert_eq!(Arc::strong_count(&producer), 1, "the loop alone has it");
}

fn committer(world: &TestEnvironment) -> Committer<TestEnvironment, TestRecords> {
    let limits = (SECOND * 12, SECOND);
    Committer::start(world, || (), limits, MS * 50)
}

fn poll(
    world: &TestEnvironment,
    committer: &mut Committer<TestEnvironment, TestRecords>,
    timeout: Duration,
) -> Option<Result<(), CommitFailure>> {
    committer.poll_result(timeout, world, (&world.clock, &world.reporter))
}

#[test]
fn how_long_a_transaction_took_is_reported_when_it_has_ended() {
    let world = TestEnvironment::default();
    let mut committer = committer(&world);
    assert_eq!(poll(&world, &mut committer, SECOND), None, "none is open");
    assert_eq!(world.clock.monotonic(), Duration::ZERO, "there is nothing to wait for");
    world.clock.advance(SECOND);
    world.hold("committer");
    committer.submit(job(&world, 0));
    assert_eq!(poll(&world, &mut committer, MS * 30), None);
    world.let_go("committer");
    assert_eq!(poll(&world, &mut committer, MS), Some(Ok(())));
    assert_eq!(world.reporter.reported().transactions, [MS * 30]);
    assert_eq!(poll(&world, &mut committer, MS), None);
}

#[test]
fn fires_are_decided_as_early_as_the_last_transactions_have_taken_to_prepare() {
    let world = TestEnvironment::default();
    let mut committer = committer(&world);
    for _ in 0..8 {
        assert_eq!(committer.commit_lead_ms(), 0);
        world.clock.advance(SECOND);
        world.hold("committer");
        committer.submit(job(&world, 0));
        let _none = poll(&world, &mut committer, MS * 30);
        world.let_go("committer");
        assert_eq!(poll(&world, &mut committer, MS), Some(Ok(())));
    }
    assert_eq!(committer.commit_lead_ms(), 30);
}

/// Polls until the open transaction has a result, and returns it and how many seconds that took.
fn wait_for_result(
    world: &TestEnvironment,
    committer: &mut Committer<TestEnvironment, TestRecords>,
) -> (Result<(), CommitFailure>, usize) {
    let mut results = (1..=30).map(|second| (poll(world, committer, SECOND), second));
    let found = results.find_map(|(result, second)| Some((result?, second)));
    found.expect("a call hangs, and the transaction has a result all the same")
}

/// The calls of as many transactions as may hang do not return; each has a result all the same.
fn hang_as_many_as_allowed(
    world: &TestEnvironment,
    committer: &mut Committer<TestEnvironment, TestRecords>,
) {
    world.hold("committer");
    for _ in 0..3 {
        committer.submit(job(world, 0));
        let (result, _) = wait_for_result(world, committer);
        assert!(result.is_err());
    }
}

#[test]
fn a_transaction_with_a_call_that_does_not_return_has_an_unknown_outcome_and_the_next_one_runs() {
    let world = TestEnvironment::default();
    let mut committer = committer(&world);
    for _ in 0..5 {
        world.hold("committer");
        committer.submit(job(&world, 0));
        let (result, seconds) = wait_for_result(&world, &mut committer);
        // It may go on, and commit.
        assert!(matches!(&result, Err(failure) if !failure.is_uncommitted), "{result:?}");
        assert_eq!(seconds, 13, "after 12 s");
        world.let_go("committer"); // it returns, too late
        committer.submit(job(&world, 0));
        assert_eq!(poll(&world, &mut committer, MS), Some(Ok(())));
    }
}

#[test]
fn a_process_ends_if_too_many_calls_do_not_return() {
    let world = TestEnvironment::default();
    let mut committer = committer(&world);
    hang_as_many_as_allowed(&world, &mut committer);
    committer.submit(job(&world, 0));
    let fourth = std::panic::AssertUnwindSafe(|| wait_for_result(&world, &mut committer));
    let end = std::panic::catch_unwind(fourth).unwrap_err();
    assert_eq!(end.downcast_ref(), Some(&"the process ends"));
}

#[test]
fn calls_that_have_returned_by_then_do_not_end_the_process() {
    let world = TestEnvironment::default();
    let mut committer = committer(&world);
    hang_as_many_as_allowed(&world, &mut committer);
    let never = CommitJob { wait_max: SECOND * 100, ..job(&world, 100_000) };
    committer.submit(never);
    world.let_go("committer"); // the first three return
    assert!(wait_for_result(&world, &mut committer).0.is_err());
}

#[test]
#[should_panic(expected = "the previous transaction has not ended yet")]
fn no_transaction_is_submitted_while_one_is_open() {
    let world = TestEnvironment::default();
    let mut committer = committer(&world);
    committer.submit(job(&world, 0));
    committer.submit(job(&world, 0));
}
