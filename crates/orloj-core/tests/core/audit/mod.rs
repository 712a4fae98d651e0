//! The judge: compares what Kafka acknowledged with what a `read_committed` reader saw. One for
//! real runs and for the simulator alike.
//!
//! Law: pure, and it trusts nobody: neither the scheduler's answers nor its headers excuse a fire
//! that the log of commands does not. Answers only decide races that both sides could win.

mod answer;
mod attempts;
mod report;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

pub(crate) use answer::answer;
use attempts::Effective;
pub(crate) use attempts::{Attempt, Reported, Retried};
pub(crate) use report::{Finding, Report, Violation};

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
    /// The same, unless one is pending: then it is ignored. It must ask for an answer.
    Keep {
        due: u64,
        payload: Vec<u8>,
    },
    Cancel,
    /// What nobody can read: it must be rejected.
    Nonsense,
    /// What is to do nothing: a cancel in the name of a caller who has no triggers, or a
    /// replacement of what never was.
    Idle,
}

/// The owner's answer to a command: what it did to the generation that was pending, if any was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// This generation was cancelled or replaced, and must never fire.
    Stopped(u64),
    /// Nothing was pending.
    NothingPending,
    /// This generation was pending and stays; the command is as if it had never been.
    Kept(u64),
    Rejected,
}

/// A record of a target topic, or the first attempt of a callback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fired {
    pub(crate) trigger: String,
    pub(crate) generation: u64,
    pub(crate) occurrence: u32,
    /// When it says that it was due, in ms since the epoch.
    pub(crate) due: u64,
    /// When its transaction ended, in ms since the epoch: no reader of committed records saw it
    /// sooner.
    pub(crate) visible: u64,
    pub(crate) payload: Vec<u8>,
}

/// Everything there is to judge by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence<'a> {
    pub(crate) commands: &'a Commands,
    pub(crate) answers: &'a Answers,
    pub(crate) fires: &'a [Fired],
    /// Later attempts of callbacks, and what workers asked for.
    pub(crate) retried: &'a [Retried],
    pub(crate) reported: &'a [Reported],
    /// A stop appended so many ms or more before the due time must win.
    pub(crate) margin: u64,
    /// What is due after this, in ms since the epoch, may be pending still.
    pub(crate) as_of: u64,
    /// The system says that nothing is left to be done. If not, what is missing is stuck.
    pub(crate) at_rest: bool,
}

/// Judges commands and fires into topics: see [`Evidence`].
pub(crate) fn judge(
    commands: &Commands,
    answers: &Answers,
    fires: &[Fired],
    margin: u64,
    as_of: u64,
) -> Report {
    let (retried, reported) = (&[], &[]);
    let at_rest = true;
    Evidence { commands, answers, fires, retried, reported, margin, as_of, at_rest }.judge()
}

/// How often each generation fired, by trigger.
type Times<'a> = HashMap<(&'a str, u64), u32>;

impl Evidence<'_> {
    /// The verdict.
    pub(crate) fn judge(&self) -> Report {
        let mut report = Report { fired: self.fires.len(), ..Report::default() };
        let mut times = Times::with_capacity(self.fires.len());
        for fire in self.fires {
            *times.entry((&fire.trigger, fire.generation)).or_default() += 1;
            report.judge_fire(fire, self.commands.get(&fire.trigger));
        }
        let mut effective = Effective::default();
        for (trigger, commands) in self.commands {
            let last = self.judge_commands(trigger, commands, &times, &mut effective, &mut report);
            if let Some((command, due)) = last
                && !times.contains_key(&(trigger.as_str(), command.offset))
            {
                self.judge_silence(trigger, command, due, &mut report);
            }
        }
        for ((trigger, generation), times) in times.into_iter().filter(|(_, times)| *times > 1) {
            report.find(Violation::Duplicate, trigger, generation, format!("{times} fires"));
        }
        self.judge_attempts(&effective, &mut report);
        report.lateness.sort_unstable();
        report
    }

    /// All commands of a trigger, in log order. Returns the registration that nothing stopped.
    fn judge_commands<'c>(
        &self,
        trigger: &'c str,
        commands: &'c [Command],
        times: &Times<'_>,
        effective: &mut Effective<'c>,
        report: &mut Report,
    ) -> Option<(&'c Command, u64)> {
        let mut pending: Option<(&Command, u64)> = None;
        for (place, command) in commands.iter().enumerate() {
            assert!(place == 0 || commands[place - 1].offset < command.offset, "in log order");
            report.registered += usize::from(command.registers().is_some());
            let answer = self.answer(trigger, command, report);
            let fired = times.contains_key(&(trigger, command.offset));
            let ignored = match (&command.kind, answer) {
                (Kind::Nonsense, None | Some(Answer::Rejected)) => true,
                (Kind::Idle, None | Some(Answer::NothingPending | Answer::Kept(_))) if !fired => {
                    true
                }
                (Kind::Keep { .. }, Some(Answer::Kept(kept))) => {
                    let stays = pending.is_some_and(|(pending, _)| pending.offset == kept);
                    if !stays || fired {
                        let why = format!("kept {kept}, which was not pending, or fired itself");
                        report.find(Violation::Ghost, trigger, command.offset, why);
                    }
                    true
                }
                (Kind::Nonsense | Kind::Idle, other) | (_, other @ Some(Answer::Kept(_))) => {
                    let why = format!("{:?} answered {other:?}", command.kind);
                    report.find(Violation::Ghost, trigger, command.offset, why);
                    true
                }
                (_, Some(Answer::Rejected)) => true,
                _ => false,
            };
            if ignored {
                continue;
            }
            if let Some((stopped, due)) = pending {
                let times = times.get(&(trigger, stopped.offset)).copied().unwrap_or(0);
                self.judge_stop(trigger, (stopped, due), command, answer, times > 0, report);
            } else if let Some(Answer::Stopped(other)) = answer
                && !self.was_reported(trigger, other)
            {
                let why = format!("stopped {other}, but nothing was pending");
                report.find(Violation::NotStopped, trigger, command.offset, why);
            }
            pending = command.registers().map(|due| (command, due));
            effective.entry(trigger).or_default().push(command);
        }
        pending
    }

    /// The one answer to a command, if there is one.
    fn answer(&self, trigger: &str, command: &Command, report: &mut Report) -> Option<Answer> {
        // A tuple of borrowed parts cannot look up a tuple of owned ones.
        let key = (trigger.to_owned(), command.offset);
        let all = self.answers.get(&key).map_or(&[][..], Vec::as_slice);
        match all {
            [] if command.ack => {
                let why = format!("{:?}", command.kind);
                report.find(Violation::Unanswered, trigger, command.offset, why);
            }
            [] | [_] => {}
            many => report.find(Violation::Duplicate, trigger, command.offset, format!("{many:?}")),
        }
        all.first().copied()
    }

    /// A registration was followed by a cancel or by another registration.
    fn judge_stop(
        &self,
        trigger: &str,
        (stopped, due): (&Command, u64),
        by: &Command,
        answer: Option<Answer>,
        fired: bool,
        report: &mut Report,
    ) {
        let generation = stopped.offset;
        let in_time = by.appended + self.margin <= due;
        report.stops += 1;
        report.stops_in_time += usize::from(in_time);
        report.stops_too_late += usize::from(fired);
        let why = |text: &str| format!("{text}; {} answered {answer:?}", by.offset);
        if in_time && fired {
            let text = why("fired although it was stopped in time");
            return report.find_by(by.offset, Violation::NotStopped, trigger, generation, text);
        }
        match answer {
            // A cancel that finds nothing pending may stop a retry, of this generation or before.
            Some(Answer::Stopped(other))
                if fired && by.kind == Kind::Cancel && self.was_reported(trigger, other) => {}
            Some(Answer::Stopped(other)) if other != generation || fired => {
                let text = why("the answer says what did not happen");
                report.find_by(by.offset, Violation::NotStopped, trigger, generation, text);
            }
            Some(Answer::NothingPending) if !fired => {
                let text = why("neither fired nor stopped");
                report.find_by(by.offset, Violation::Lost, trigger, generation, text);
            }
            _ => {}
        }
    }

    fn judge_silence(&self, trigger: &str, last: &Command, due: u64, report: &mut Report) {
        if due > self.as_of {
            report.pending += 1;
        } else {
            let why = format!("due {due}, {} ms ago", self.as_of - due);
            report.find(self.missing(), trigger, last.offset, why);
        }
    }

    /// What it is called that something due has not happened.
    fn missing(&self) -> Violation {
        if self.at_rest { Violation::Lost } else { Violation::Stuck }
    }
}

impl Command {
    /// The due time, if it registers something.
    pub(crate) fn registers(&self) -> Option<u64> {
        match self.kind {
            Kind::Register { due, .. } | Kind::Keep { due, .. } => Some(due),
            Kind::Cancel | Kind::Nonsense | Kind::Idle => None,
        }
    }

    /// What it wants delivered.
    fn payload(&self) -> Option<&[u8]> {
        match &self.kind {
            Kind::Register { payload, .. } | Kind::Keep { payload, .. } => Some(payload),
            Kind::Cancel | Kind::Nonsense | Kind::Idle => None,
        }
    }
}

impl Report {
    fn judge_fire(&mut self, fire: &Fired, commands: Option<&Vec<Command>>) {
        let Fired { trigger, generation, occurrence, .. } = fire;
        let registration = commands
            .and_then(|all| all.iter().find(|command| command.offset == *generation))
            .filter(|_| *occurrence == 0);
        let due = registration.and_then(Command::registers);
        let (Some(due), Some(registration)) = (due, registration) else {
            let why = format!("occurrence {occurrence}, due {}", fire.due);
            return self.find(Violation::Ghost, trigger, *generation, why);
        };
        if fire.visible < due {
            let why = format!("{} ms early", due - fire.visible);
            self.find(Violation::Early, trigger, *generation, why);
        }
        let payload = registration.payload().unwrap_or_default();
        if fire.payload != payload || fire.due != due {
            let why = format!(
                "due {} with {:?}, registered due {due} with {:?}",
                fire.due,
                String::from_utf8_lossy(&fire.payload),
                String::from_utf8_lossy(payload),
            );
            self.find(Violation::WrongBody, trigger, *generation, why);
        }
        self.lateness.push(fire.visible.saturating_sub(due.max(registration.appended)));
    }
}
