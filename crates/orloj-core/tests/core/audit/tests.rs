//! The judge, judged: each kind of violation is found, and what is right is clean.

use super::*;

const MARGIN: u64 = 1_000;
const AS_OF: u64 = 100_000;

fn register(offset: u64, due: u64) -> Command {
    let kind = Kind::Register { due, payload: b"body".to_vec() };
    Command { offset, appended: 0, ack: false, kind }
}

fn cancel(offset: u64, appended: u64) -> Command {
    Command { offset, appended, ack: true, kind: Kind::Cancel }
}

fn fire(generation: u64, due: u64) -> Fired {
    let (trigger, payload) = ("t".to_owned(), b"body".to_vec());
    Fired { trigger, generation, occurrence: 0, due, visible: due + 5, payload }
}

fn report(commands: &[Command], answers: &[(u64, Answer)], fires: &[Fired]) -> Report {
    let commands = Commands::from([("t".to_owned(), commands.to_vec())]);
    let mut by_offset = Answers::new();
    for &(offset, answer) in answers {
        by_offset.entry(("t".to_owned(), offset)).or_default().push(answer);
    }
    judge(&commands, &by_offset, fires, MARGIN, AS_OF)
}

fn violations(commands: &[Command], answers: &[(u64, Answer)], fires: &[Fired]) -> Vec<Violation> {
    let mut found: Vec<_> = report(commands, answers, fires)
        .findings
        .into_iter()
        .map(|finding| finding.violation)
        .collect();
    found.sort_unstable();
    found
}

#[test]
fn what_is_right_is_clean() {
    let stopped = [(9, Answer::Stopped(3))];
    let nothing = [(9, Answer::NothingPending)];
    let replaced = [register(3, 5_000), register(9, 7_000)];
    type Case<'a> = (&'a [Command], &'a [(u64, Answer)], &'a [Fired]);
    let right: [Case<'_>; 7] = [
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
fn the_lost_are_found() {
    assert_eq!(violations(&[register(3, 5_000)], &[], &[]), [Violation::Lost]);
    let cancelled = [register(3, 5_000), cancel(9, 4_900)];
    assert_eq!(violations(&cancelled, &[(9, Answer::NothingPending)], &[]), [Violation::Lost]);
    let replaced = [register(3, 5_000), register(9, 7_000)];
    let stopped = [(9, Answer::Stopped(3))];
    assert_eq!(violations(&replaced, &stopped, &[]), [Violation::Lost]);
}

#[test]
fn the_early_are_found() {
    let early = Fired { visible: 4_999, ..fire(3, 5_000) };
    assert_eq!(violations(&[register(3, 5_000)], &[], &[early]), [Violation::Early]);
}

#[test]
fn duplicates_are_found() {
    let twice = [fire(3, 5_000), fire(3, 5_000)];
    assert_eq!(violations(&[register(3, 5_000)], &[], &twice), [Violation::Duplicate]);
    let cancelled = [register(3, 5_000), cancel(9, 4_000)];
    let stopped = (9, Answer::Stopped(3));
    assert_eq!(violations(&cancelled, &[stopped, stopped], &[]), [Violation::Duplicate]);
}

#[test]
fn ghosts_are_found() {
    let registered = [register(3, AS_OF + 1), cancel(9, 4_000)];
    let stopped = [(9, Answer::Stopped(3))];
    let second = Fired { occurrence: 1, ..fire(3, AS_OF + 1) };
    let foreign = Fired { trigger: "u".to_owned(), ..fire(3, 5_000) };
    for ghost in [fire(4, 5_000), fire(9, 5_000), second, foreign] {
        // A second occurrence is a fire of a cancelled trigger besides.
        let found = violations(&registered, &stopped, &[ghost]);
        assert_eq!(found.first(), Some(&Violation::Ghost), "{found:?}");
    }
}

#[test]
fn stops_that_did_not_stop_are_found() {
    let fired = [fire(3, 5_000)];
    let in_time = [register(3, 5_000), cancel(9, 4_000)];
    let racing = [register(3, 5_000), cancel(9, 4_001)];
    let replaced = [register(3, 5_000), register(9, AS_OF + 1)];
    let wrong: [(&[Command], Answer, &[Fired]); 4] = [
        (&in_time, Answer::NothingPending, &fired),
        (&in_time, Answer::Stopped(2), &[]),
        (&racing, Answer::Stopped(3), &fired),
        (&replaced, Answer::Stopped(3), &fired),
    ];
    for (commands, answer, fires) in wrong {
        let found = violations(commands, &[(9, answer)], fires);
        assert_eq!(found, [Violation::NotStopped], "{commands:?} {answer:?}");
    }
}

#[test]
fn wrong_bodies_are_found() {
    let other_payload = Fired { payload: b"corpse".to_vec(), ..fire(3, 5_000) };
    let other_due = Fired { due: 4_999, ..fire(3, 5_000) };
    for wrong in [other_payload, other_due] {
        let found = violations(&[register(3, 5_000)], &[], &[wrong]);
        assert_eq!(found, [Violation::WrongBody]);
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
    let late = Command { appended: 5_003, ..register(3, 5_000) };
    let report = report(&[late], &[], &[fire(3, 5_000)]);
    assert_eq!((report.late_at(0.0), report.late_at(1.0)), (2, 2));
}

fn keep(offset: u64, due: u64) -> Command {
    let kind = Kind::Keep { due, payload: b"body".to_vec() };
    Command { offset, appended: due - 10, ack: true, kind }
}

#[test]
fn what_is_kept_out_is_as_if_it_had_never_been() {
    let twice = [register(3, 5_000), keep(9, 5_900)];
    assert_eq!(violations(&twice, &[(9, Answer::Kept(3))], &[fire(3, 5_000)]), []);
    assert_eq!(violations(&twice, &[(9, Answer::Kept(3))], &[]), [Violation::Lost]);
    let both = [fire(3, 5_000), fire(9, 5_900)];
    assert_eq!(violations(&twice, &[(9, Answer::Kept(3))], &both), [Violation::Ghost]);
    assert_eq!(violations(&twice, &[(9, Answer::Kept(2))], &both[..1]), [Violation::Ghost]);
    assert_eq!(violations(&twice, &[(9, Answer::NothingPending)], &both), []);
    let first = [keep(3, 5_000)];
    assert_eq!(violations(&first, &[(3, Answer::Kept(1))], &[]), [Violation::Ghost]);
}

#[test]
fn nonsense_is_rejected() {
    let kind = Kind::Nonsense;
    let nonsense = [register(3, 5_000), Command { offset: 9, appended: 0, ack: true, kind }];
    let fired = [fire(3, 5_000)];
    assert_eq!(violations(&nonsense, &[(9, Answer::Rejected)], &fired), []);
    assert_eq!(violations(&nonsense, &[(9, Answer::Stopped(3))], &fired), [Violation::Ghost]);
    assert_eq!(violations(&nonsense, &[], &fired), [Violation::Unanswered]);
}

#[test]
fn what_stops_nothing_that_was_pending_is_found() {
    let stopped = [(3, Answer::Stopped(1))];
    assert_eq!(violations(&[cancel(3, 0)], &stopped, &[]), [Violation::NotStopped]);
}

#[test]
fn what_does_not_come_to_rest_is_stuck() {
    let commands = Commands::from([("t".to_owned(), vec![register(3, 5_000)])]);
    for (at_rest, expected) in [(true, Violation::Lost), (false, Violation::Stuck)] {
        let answers = Answers::new();
        let report = Evidence { at_rest, ..evidence(&commands, &answers) }.judge();
        assert_eq!(report.findings[0].violation, expected);
        assert!(!report.is_complete());
    }
}

#[test]
fn later_attempts_are_asked_for_made_once_and_stopped_by_a_cancel() {
    let trigger = "t".to_owned();
    let of = Attempt { trigger, generation: 3, occurrence: 0, attempt: 2, deferral: 0 };
    let asked = [Reported { of: of.clone(), due: 6_000 }];
    let made = Retried { of, visible: 6_001, decided: 4, payload: b"body".to_vec() };
    let early = Retried { visible: 5_999, ..made.clone() };
    let other = Retried { payload: b"corpse".to_vec(), ..made.clone() };
    let after = Retried { decided: 12, ..made.clone() };
    let once = [register(3, 5_000)];
    let cancelled = [register(3, 5_000), cancel(10, 5_900)];
    let replaced =
        [register(3, 5_000), Command { appended: 4_900, ..register(9, 5_000) }, cancel(11, 6_000)];
    type Case<'a> = (&'a [Command], &'a [Reported], Vec<Retried>, &'a [Violation]);
    let cases: [Case<'_>; 9] = [
        (&once, &asked, vec![made.clone()], &[]),
        (&once, &asked, vec![], &[Violation::Lost]),
        (&once, &asked, vec![made.clone(), made.clone()], &[Violation::Duplicate]),
        (&once, &[], vec![made], &[Violation::Ghost]),
        (&once, &asked, vec![early], &[Violation::Early]),
        (&once, &asked, vec![other], &[Violation::WrongBody]),
        (&cancelled, &asked, vec![], &[]),
        (&cancelled, &asked, vec![after.clone()], &[Violation::NotStopped]),
        (&replaced, &asked, vec![after], &[]),
    ];
    let mut answers = Answers::new();
    answers.insert(("t".to_owned(), 10), vec![Answer::Stopped(3)]);
    answers.insert(("t".to_owned(), 11), vec![Answer::NothingPending]);
    for (commands, reported, retried, expected) in cases {
        let fires = [fire(3, 5_000), fire(9, 5_000)];
        let fires = &fires[..commands.len().div_ceil(2)];
        let commands = Commands::from([("t".to_owned(), commands.to_vec())]);
        let evidence =
            Evidence { fires, reported, retried: &retried, ..evidence(&commands, &answers) };
        let found = evidence.judge().findings.into_iter().map(|finding| finding.violation);
        assert_eq!(found.collect::<Vec<_>>(), expected, "{commands:?} {retried:?}");
    }
}

fn evidence<'a>(commands: &'a Commands, answers: &'a Answers) -> Evidence<'a> {
    let (fires, retried, reported) = (&[], &[], &[]);
    let (margin, as_of, at_rest) = (MARGIN, AS_OF, true);
    Evidence { commands, answers, fires, retried, reported, margin, as_of, at_rest }
}
