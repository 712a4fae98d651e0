//! Tests of the checker: each kind of violation is found, and a correct run has no findings.

use super::*;

const MARGIN: u64 = 1_000;
const AS_OF: u64 = 100_000;

fn register(offset: u64, due: u64) -> AcknowledgedCommand {
    let kind = CommandKind::Register { due, payload: b"body".to_vec() };
    AcknowledgedCommand { offset, appended: 0, acknowledged: 0, ack: false, kind }
}

fn cancel(offset: u64, appended: u64) -> AcknowledgedCommand {
    let (acknowledged, kind) = (appended, CommandKind::Cancel);
    AcknowledgedCommand { offset, appended, acknowledged, ack: true, kind }
}

fn fire(generation: u64, due: u64) -> ObservedFire {
    let (trigger, payload) = ("t".to_owned(), b"body".to_vec());
    ObservedFire { trigger, generation, occurrence: 0, due, visible: due + 5, payload }
}

fn report(
    commands: &[AcknowledgedCommand],
    answers: &[(u64, OwnerAnswer)],
    fires: &[ObservedFire],
) -> AuditReport {
    let commands = AcknowledgedCommands::from([("t".to_owned(), commands.to_vec())]);
    let mut by_offset = OwnerAnswers::new();
    for &(offset, answer) in answers {
        by_offset.entry(("t".to_owned(), offset)).or_default().push(answer);
    }
    check_commands_only(&commands, &by_offset, fires, MARGIN, AS_OF)
}

fn violations(
    commands: &[AcknowledgedCommand],
    answers: &[(u64, OwnerAnswer)],
    fires: &[ObservedFire],
) -> Vec<Violation> {
    let mut found: Vec<_> = report(commands, answers, fires)
        .findings
        .into_iter()
        .map(|finding| finding.violation)
        .collect();
    found.sort_unstable();
    found
}

#[test]
fn correct_runs_have_no_findings() {
    let stopped = [(9, OwnerAnswer::Stopped(3))];
    let nothing = [(9, OwnerAnswer::NothingPending)];
    let replaced = [register(3, 5_000), register(9, 7_000)];
    type CommandCase<'a> =
        (&'a [AcknowledgedCommand], &'a [(u64, OwnerAnswer)], &'a [ObservedFire]);
    let right: [CommandCase<'_>; 7] = [
        (&[register(3, 5_000)], &[], &[fire(3, 5_000)]),
        (&[register(3, AS_OF + 1)], &[], &[]),
        (&[register(3, 5_000), cancel(9, 4_000)], &stopped, &[]),
        (&[register(3, 5_000), cancel(9, 5_900)], &stopped, &[]),
        (&[register(3, 5_000), cancel(9, 4_001)], &nothing, &[fire(3, 5_000)]),
        (&replaced, &stopped, &[fire(9, 7_000)]),
        (&replaced, &[], &[fire(9, 7_000)]),
    ];
    for (commands, answers, fires) in right {
        let report = report(commands, answers, fires);
        assert!(report.is_clean() && report.is_complete(), "{commands:?}: {report}");
    }
}

#[test]
fn lost_fires_are_found() {
    assert_eq!(violations(&[register(3, 5_000)], &[], &[]), [Violation::Lost]);
    let cancelled = [register(3, 5_000), cancel(9, 4_900)];
    assert_eq!(violations(&cancelled, &[(9, OwnerAnswer::NothingPending)], &[]), [Violation::Lost]);
    let replaced = [register(3, 5_000), register(9, 7_000)];
    let stopped = [(9, OwnerAnswer::Stopped(3))];
    assert_eq!(violations(&replaced, &stopped, &[]), [Violation::Lost]);
}

#[test]
fn early_fires_are_found() {
    let early = ObservedFire { visible: 4_999, ..fire(3, 5_000) };
    assert_eq!(violations(&[register(3, 5_000)], &[], &[early]), [Violation::Early]);
}

#[test]
fn duplicates_are_found() {
    let twice = [fire(3, 5_000), fire(3, 5_000)];
    assert_eq!(violations(&[register(3, 5_000)], &[], &twice), [Violation::Duplicate]);
    let cancelled = [register(3, 5_000), cancel(9, 4_000)];
    let stopped = (9, OwnerAnswer::Stopped(3));
    assert_eq!(violations(&cancelled, &[stopped, stopped], &[]), [Violation::Duplicate]);
}

#[test]
fn unexpected_fires_are_found() {
    let registered = [register(3, AS_OF + 1), cancel(9, 4_000)];
    let stopped = [(9, OwnerAnswer::Stopped(3))];
    let second = ObservedFire { occurrence: 1, ..fire(3, AS_OF + 1) };
    let foreign = ObservedFire { trigger: "u".to_owned(), ..fire(3, 5_000) };
    for ghost in [fire(4, 5_000), fire(9, 5_000), second, foreign] {
        // A second occurrence is a fire of a cancelled trigger besides.
        let found = violations(&registered, &stopped, &[ghost]);
        assert_eq!(found.first(), Some(&Violation::Unexpected), "{found:?}");
    }
}

#[test]
fn ineffective_stops_are_found() {
    let fired = [fire(3, 5_000)];
    let in_time = [register(3, 5_000), cancel(9, 4_000)];
    let racing = [register(3, 5_000), cancel(9, 4_001)];
    let replaced = [register(3, 5_000), register(9, AS_OF + 1)];
    let wrong: [(&[AcknowledgedCommand], OwnerAnswer, &[ObservedFire]); 4] = [
        (&in_time, OwnerAnswer::NothingPending, &fired),
        (&in_time, OwnerAnswer::Stopped(2), &[]),
        (&racing, OwnerAnswer::Stopped(3), &fired),
        (&replaced, OwnerAnswer::Stopped(3), &fired),
    ];
    for (commands, answer, fires) in wrong {
        let found = violations(commands, &[(9, answer)], fires);
        assert_eq!(found, [Violation::NotStopped], "{commands:?} {answer:?}");
    }
}

#[test]
fn a_stop_that_was_not_acknowledged_before_the_due_time_may_be_too_late() {
    let unacknowledged = AcknowledgedCommand { acknowledged: 5_000, ..cancel(9, 4_000) };
    for (stop, expected) in [
        (unacknowledged, vec![]),
        (
            AcknowledgedCommand { acknowledged: 4_999, ..cancel(9, 4_000) },
            vec![Violation::NotStopped],
        ),
    ] {
        let commands = [register(3, 5_000), stop];
        let found = violations(&commands, &[(9, OwnerAnswer::NothingPending)], &[fire(3, 5_000)]);
        assert_eq!(found, expected, "{commands:?}");
    }
}

#[test]
fn wrong_contents_are_found() {
    let other_payload = ObservedFire { payload: b"other".to_vec(), ..fire(3, 5_000) };
    let other_due = ObservedFire { due: 4_999, ..fire(3, 5_000) };
    for wrong in [other_payload, other_due] {
        let found = violations(&[register(3, 5_000)], &[], &[wrong]);
        assert_eq!(found, [Violation::WrongContent]);
    }
}

#[test]
fn unanswered_commands_are_found() {
    let cancelled = [register(3, 5_000), cancel(9, 4_000)];
    let report = report(&cancelled, &[], &[]);
    assert_eq!(report.findings[0].violation, Violation::Unanswered);
    assert!(!report.is_complete());
}

#[test]
fn lateness_counts_from_when_it_could_fire() {
    let late = AcknowledgedCommand { appended: 5_003, ..register(3, 5_000) };
    let report = report(&[late], &[], &[fire(3, 5_000)]);
    assert_eq!((report.lateness_at(0.0), report.lateness_at(1.0)), (2, 2));
}

fn keep(offset: u64, due: u64) -> AcknowledgedCommand {
    let kind = CommandKind::Keep { due, payload: b"body".to_vec() };
    let (appended, acknowledged) = (due - 10, due - 10);
    AcknowledgedCommand { offset, appended, acknowledged, ack: true, kind }
}

#[test]
fn an_ignored_registration_has_no_effect() {
    let twice = [register(3, 5_000), keep(9, 5_900)];
    assert_eq!(violations(&twice, &[(9, OwnerAnswer::Kept(3))], &[fire(3, 5_000)]), []);
    assert_eq!(violations(&twice, &[(9, OwnerAnswer::Kept(3))], &[]), [Violation::Lost]);
    let both = [fire(3, 5_000), fire(9, 5_900)];
    assert_eq!(violations(&twice, &[(9, OwnerAnswer::Kept(3))], &both), [Violation::Unexpected]);
    assert_eq!(
        violations(&twice, &[(9, OwnerAnswer::Kept(2))], &both[..1]),
        [Violation::Unexpected]
    );
    assert_eq!(violations(&twice, &[(9, OwnerAnswer::NothingPending)], &both), []);
    let first = [keep(3, 5_000)];
    assert_eq!(violations(&first, &[(3, OwnerAnswer::Kept(1))], &[]), [Violation::Unexpected]);
}

#[test]
fn valid_commands_must_not_be_rejected() {
    let rejected = [(9, OwnerAnswer::Rejected)];
    let fired = [fire(3, 5_000)];
    for command in [cancel(9, 4_000), register(9, 7_000), keep(9, 5_900)] {
        let commands = [register(3, 5_000), command];
        assert_eq!(violations(&commands, &rejected, &fired), [Violation::Rejected]);
    }
}

#[test]
fn malformed_records_must_be_rejected() {
    let kind = CommandKind::Malformed;
    let nonsense = [register(3, 5_000), AcknowledgedCommand { ack: true, kind, ..register(9, 0) }];
    let fired = [fire(3, 5_000)];
    assert_eq!(violations(&nonsense, &[(9, OwnerAnswer::Rejected)], &fired), []);
    assert_eq!(
        violations(&nonsense, &[(9, OwnerAnswer::Stopped(3))], &fired),
        [Violation::Unexpected]
    );
    assert_eq!(violations(&nonsense, &[], &fired), [Violation::Unanswered]);
}

#[test]
fn stopping_what_was_not_pending_is_found() {
    let stopped = [(3, OwnerAnswer::Stopped(1))];
    assert_eq!(violations(&[cancel(3, 0)], &stopped, &[]), [Violation::NotStopped]);
}

#[test]
fn missing_fires_are_stuck_while_the_system_is_not_idle() {
    let commands = AcknowledgedCommands::from([("t".to_owned(), vec![register(3, 5_000)])]);
    for (at_rest, expected) in [(true, Violation::Lost), (false, Violation::Stuck)] {
        let answers = OwnerAnswers::new();
        let report = AuditInput { is_idle: at_rest, ..input(&commands, &answers) }.check();
        assert_eq!(report.findings[0].violation, expected);
        assert!(!report.is_complete());
    }
}

#[test]
fn later_attempts_are_requested_made_once_and_stopped_by_a_cancel() {
    let trigger = "t".to_owned();
    let of = AttemptKey { trigger, generation: 3, occurrence: 0, attempt: 2, deferral: 0 };
    let asked = [RequestedRetry { key: of.clone(), due: 6_000, may_be_missing: false }];
    let deleted = [RequestedRetry { may_be_missing: true, ..asked[0].clone() }];
    let made =
        ObservedRetry { key: of, visible: 6_001, decided_before: 4, payload: b"body".to_vec() };
    let early = ObservedRetry { visible: 5_999, ..made.clone() };
    let other = ObservedRetry { payload: b"other".to_vec(), ..made.clone() };
    let after = ObservedRetry { decided_before: 12, ..made.clone() };
    let once = [register(3, 5_000)];
    let cancelled = [register(3, 5_000), cancel(10, 5_900)];
    let replaced = [
        register(3, 5_000),
        AcknowledgedCommand { appended: 4_900, ..register(9, 5_000) },
        cancel(11, 6_000),
    ];
    type AttemptCase<'a> =
        (&'a [AcknowledgedCommand], &'a [RequestedRetry], Vec<ObservedRetry>, &'a [Violation]);
    let cases: [AttemptCase<'_>; 12] = [
        (&once, &asked, vec![made.clone()], &[]),
        (&once, &asked, vec![], &[Violation::Lost]),
        (&once, &deleted, vec![], &[]),
        // What was read before it was deleted is stopped like any other.
        (&cancelled, &deleted, vec![], &[]),
        (&cancelled, &[], vec![], &[Violation::NotStopped]),
        (&once, &asked, vec![made.clone(), made.clone()], &[Violation::Duplicate]),
        (&once, &[], vec![made], &[Violation::Unexpected]),
        (&once, &asked, vec![early], &[Violation::Early]),
        (&once, &asked, vec![other], &[Violation::WrongContent]),
        (&cancelled, &asked, vec![], &[]),
        (&cancelled, &asked, vec![after.clone()], &[Violation::NotStopped]),
        (&replaced, &asked, vec![after], &[]),
    ];
    let mut answers = OwnerAnswers::new();
    answers.insert(("t".to_owned(), 10), vec![OwnerAnswer::Stopped(3)]);
    answers.insert(("t".to_owned(), 11), vec![OwnerAnswer::NothingPending]);
    for (commands, reported, retried, expected) in cases {
        let fires = [fire(3, 5_000), fire(9, 5_000)];
        let fires = &fires[..commands.len().div_ceil(2)];
        let commands = AcknowledgedCommands::from([("t".to_owned(), commands.to_vec())]);
        let input = AuditInput { fires, reported, retried: &retried, ..input(&commands, &answers) };
        let found = input.check().findings.into_iter().map(|finding| finding.violation);
        assert_eq!(found.collect::<Vec<_>>(), expected, "{commands:?} {retried:?}");
    }
}

fn input<'a>(commands: &'a AcknowledgedCommands, answers: &'a OwnerAnswers) -> AuditInput<'a> {
    let (fires, retried, reported) = (&[], &[], &[]);
    let (margin, as_of, at_rest) = (MARGIN, AS_OF, true);
    AuditInput { commands, answers, fires, retried, reported, margin, as_of, is_idle: at_rest }
}
