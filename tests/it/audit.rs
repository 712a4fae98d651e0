//! The judge: compares what Kafka acknowledged with what a `read_committed` reader saw.
//!
//! Law: pure, and it trusts nobody: neither the scheduler's answers nor its headers excuse a fire
//! that the log of commands does not. Answers only decide races that both sides could win.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// What was written to `triggers` and acknowledged, by trigger id.
pub(crate) type Commands = HashMap<String, Vec<Command>>;

/// What the owner answered, by the trigger id and offset of the command.
pub(crate) type Answers = HashMap<(String, u64), Vec<Answer>>;

/// A record of `triggers` that the broker acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// Its offset; that of a registration is the generation.
    pub(crate) offset: u64,
    /// The broker's timestamp, in ms since the epoch.
    pub(crate) appended: u64,
    /// Whether it asked for an answer.
    pub(crate) ack: bool,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `due` in ms since the epoch.
    Register {
        due: u64,
        payload: Vec<u8>,
    },
    Cancel,
}

/// The owner's answer to a command: what it did to the generation that was pending, if any was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// This generation was cancelled or replaced, and must never fire.
    Stopped(u64),
    /// Nothing was pending.
    NothingPending,
    Rejected,
}

/// A record of a target topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fired {
    pub(crate) trigger: String,
    pub(crate) generation: u64,
    pub(crate) occurrence: u32,
    /// When it says that it was due, in ms since the epoch.
    pub(crate) due: u64,
    /// The broker's timestamp, in ms since the epoch.
    pub(crate) appended: u64,
    pub(crate) payload: Vec<u8>,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Violation {
    /// Due, neither cancelled nor replaced, and not fired.
    Lost,
    /// Fired before its time.
    Early,
    /// Fired, or answered, more than once.
    Duplicate,
    /// Nobody registered what fired.
    Ghost,
    /// Fired although it was stopped in time, or although the owner said it was stopped.
    NotStopped,
    /// Another payload or due time than the registered one.
    WrongBody,
    /// A command that asked for an answer got none.
    Unanswered,
}

/// One violation, with what a person needs to find it in the logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) violation: Violation,
    pub(crate) trigger: String,
    pub(crate) generation: u64,
    pub(crate) why: String,
}

/// The verdict. `Display` prints it whole.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) findings: Vec<Finding>,
    /// Registrations, replacements included.
    pub(crate) registered: usize,
    /// Fires seen, repeated ones included.
    pub(crate) fired: usize,
    /// Not due yet, and not fired.
    pub(crate) pending: usize,
    /// Cancels and replacements that met a registration.
    pub(crate) stops: usize,
    /// Of those, appended early enough that they must win.
    pub(crate) stops_in_time: usize,
    /// Of those, the ones that the fire was ahead of.
    pub(crate) stops_too_late: usize,
    /// Milliseconds from when it could fire (due, or registered if that was later) to the
    /// broker's timestamp of the fire; sorted.
    pub(crate) lateness: Vec<u64>,
}

/// Judges. A stop appended `margin` ms or more before the due time must win; what is due after
/// `as_of` (ms since the epoch) may be pending still.
pub(crate) fn judge(
    commands: &Commands,
    answers: &Answers,
    fires: &[Fired],
    margin: u64,
    as_of: u64,
) -> Report {
    let mut report = Report { fired: fires.len(), ..Report::default() };
    let mut times_fired: HashMap<(&str, u64), u32> = HashMap::with_capacity(fires.len());
    for fire in fires {
        *times_fired.entry((&fire.trigger, fire.generation)).or_default() += 1;
        report.judge_fire(fire, commands.get(&fire.trigger));
    }
    for (trigger, commands) in commands {
        for (place, command) in commands.iter().enumerate() {
            assert!(place == 0 || commands[place - 1].offset < command.offset, "in log order");
            let answer = report.judge_answer(trigger, command, answers);
            let Some(stopped) = place.checked_sub(1).map(|before| &commands[before]) else {
                continue;
            };
            if let Kind::Register { due, .. } = stopped.kind {
                let times = times_fired.get(&(trigger, stopped.offset)).copied().unwrap_or(0);
                let in_time = command.appended + margin <= due;
                report.judge_stop(trigger, stopped.offset, in_time, answer, times);
            }
        }
        let Some(last) = commands.last() else { continue };
        if let Kind::Register { due, .. } = last.kind
            && !times_fired.contains_key(&(trigger.as_str(), last.offset))
        {
            report.judge_silence(trigger, last, due, as_of);
        }
    }
    for (&(trigger, generation), &times) in &times_fired {
        if times > 1 {
            report.find(Violation::Duplicate, trigger, generation, format!("{times} fires"));
        }
    }
    report.lateness.sort_unstable();
    report
}

impl Command {
    fn is_registration(&self) -> bool {
        matches!(self.kind, Kind::Register { .. })
    }
}

impl Report {
    pub(crate) fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Whether nothing is missing that may still come.
    pub(crate) fn is_complete(&self) -> bool {
        let missing = [Violation::Lost, Violation::Unanswered];
        !self.findings.iter().any(|finding| missing.contains(&finding.violation))
    }

    /// The lateness, in ms, that this share of the fires (0 to 1) does not exceed.
    pub(crate) fn late_at(&self, share: f64) -> u64 {
        let last = self.lateness.len().saturating_sub(1);
        let place = (last as f64 * share).ceil() as usize;
        self.lateness.get(place).copied().unwrap_or(0)
    }

    fn judge_fire(&mut self, fire: &Fired, commands: Option<&Vec<Command>>) {
        let Fired { trigger, generation, occurrence, .. } = fire;
        let registration = commands
            .and_then(|all| all.iter().find(|command| command.offset == *generation))
            .filter(|command| command.is_registration() && *occurrence == 0);
        let Some(Command { appended, kind: Kind::Register { due, payload }, .. }) = registration
        else {
            let why = format!("occurrence {occurrence}, due {}", fire.due);
            return self.find(Violation::Ghost, trigger, *generation, why);
        };
        if fire.appended < *due {
            let why = format!("{} ms early", due - fire.appended);
            self.find(Violation::Early, trigger, *generation, why);
        }
        if fire.payload != *payload || fire.due != *due {
            let why = format!(
                "due {} with {:?}, registered due {due} with {:?}",
                fire.due,
                String::from_utf8_lossy(&fire.payload),
                String::from_utf8_lossy(payload),
            );
            self.find(Violation::WrongBody, trigger, *generation, why);
        }
        self.lateness.push(fire.appended.saturating_sub(*due.max(appended)));
    }

    /// The one answer to a command, if there is one.
    fn judge_answer(
        &mut self,
        trigger: &str,
        command: &Command,
        answers: &Answers,
    ) -> Option<Answer> {
        self.registered += usize::from(command.is_registration());
        // A tuple of borrowed parts cannot look up a tuple of owned ones.
        let all = answers.get(&(trigger.to_owned(), command.offset)).map_or(&[][..], Vec::as_slice);
        match all {
            [] if command.ack => {
                let why = format!("{:?}", command.kind);
                self.find(Violation::Unanswered, trigger, command.offset, why);
            }
            [] | [_] => {}
            many => self.find(Violation::Duplicate, trigger, command.offset, format!("{many:?}")),
        }
        all.first().copied()
    }

    /// A registration was followed by a cancel or by another registration.
    fn judge_stop(
        &mut self,
        trigger: &str,
        generation: u64,
        in_time: bool,
        answer: Option<Answer>,
        times_fired: u32,
    ) {
        let fired = times_fired > 0;
        self.stops += 1;
        self.stops_in_time += usize::from(in_time);
        self.stops_too_late += usize::from(fired);
        let why = |text: &str| format!("{text}; answered {answer:?}");
        if in_time && fired {
            let text = why("fired although it was stopped in time");
            return self.find(Violation::NotStopped, trigger, generation, text);
        }
        match answer {
            Some(Answer::Stopped(stopped)) if stopped != generation || fired => {
                let text = why("the answer says what did not happen");
                self.find(Violation::NotStopped, trigger, generation, text);
            }
            Some(Answer::NothingPending | Answer::Rejected) if !fired => {
                self.find(Violation::Lost, trigger, generation, why("neither fired nor stopped"));
            }
            _ => {}
        }
    }

    fn judge_silence(&mut self, trigger: &str, last: &Command, due: u64, as_of: u64) {
        if due > as_of {
            self.pending += 1;
        } else {
            let why = format!("due {due}, {} ms ago", as_of - due);
            self.find(Violation::Lost, trigger, last.offset, why);
        }
    }

    fn find(&mut self, violation: Violation, trigger: &str, generation: u64, why: String) {
        self.findings.push(Finding { violation, trigger: trigger.to_owned(), generation, why });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Enough to see what they have in common.
        const SHOWN_MAX: usize = 20;
        let Self { registered, fired, pending, stops, stops_in_time, stops_too_late, .. } = self;
        writeln!(f, "{registered} registered, {fired} fired, {pending} pending")?;
        let share = 100.0 * *stops_too_late as f64 / (*stops).max(1) as f64;
        writeln!(
            f,
            "{stops} stopped while pending, {stops_in_time} of them in time; \
             {stops_too_late} too late ({share:.2} %)"
        )?;
        let late = [0.5, 0.99, 0.999, 1.0].map(|share| self.late_at(share));
        let [p50, p99, p999, max] = late;
        writeln!(f, "late by p50 {p50} ms, p99 {p99} ms, p99.9 {p999} ms, max {max} ms")?;
        let mut counts = BTreeMap::<_, usize>::new();
        for finding in &self.findings {
            *counts.entry(finding.violation).or_default() += 1;
        }
        writeln!(f, "violations: {counts:?}")?;
        for Finding { violation, trigger, generation, why } in self.findings.iter().take(SHOWN_MAX)
        {
            writeln!(f, "  {violation:?} {trigger}:{generation}: {why}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
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
        Fired { trigger, generation, occurrence: 0, due, appended: due + 5, payload }
    }

    fn report(commands: &[Command], answers: &[(u64, Answer)], fires: &[Fired]) -> Report {
        let commands = Commands::from([("t".to_owned(), commands.to_vec())]);
        let mut by_offset = Answers::new();
        for &(offset, answer) in answers {
            by_offset.entry(("t".to_owned(), offset)).or_default().push(answer);
        }
        judge(&commands, &by_offset, fires, MARGIN, AS_OF)
    }

    fn violations(
        commands: &[Command],
        answers: &[(u64, Answer)],
        fires: &[Fired],
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
        let early = Fired { appended: 4_999, ..fire(3, 5_000) };
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
}
