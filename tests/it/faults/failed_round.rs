//! What is known of one round of a case in which a broker with a role fails, and the line about it.
//!
//! Invariant: the times of the line count from just before the fault.

use std::fmt::{Display, Formatter, Result};

use crate::fencing::FencingTimes;
use crate::plain_clients::PlainTimes;

/// What Kafka itself needed when a broker failed, in ms.
#[derive(Clone, Copy, Debug)]
pub(super) struct KafkaWaits {
    /// For how long a plain client waited at most.
    pub(super) plain: u64,
    /// From just before the fault until the first answer of another broker that does not name the
    /// one that failed: only then others get its roles.
    pub(super) fencing: Option<u64>,
    /// The broker was the active controller: another one is elected before it is fenced.
    pub(super) is_controller: bool,
}

/// A broker has failed, and is back. Times are in ms, and single ones since the epoch.
pub(super) struct FailedRound {
    /// For what it was chosen.
    pub(super) role: String,
    /// Its id.
    pub(super) broker: usize,
    /// What else it was a moment before.
    pub(super) other_roles: Vec<&'static str>,
    /// It was the active controller, by its role or by one of these.
    pub(super) is_controller: bool,
    /// Just before the fault.
    pub(super) began: u64,
    pub(super) fencing: FencingTimes,
    pub(super) plain: PlainTimes,
    /// For how long a plain transaction waited at most.
    pub(super) transaction: u64,
    /// For how long a transactional id of the schedulers had no coordinator at most.
    pub(super) coordinator: u64,
    pub(super) takeovers: usize,
    pub(super) latest: Option<LatestFire>,
    /// The long turns of each process since then.
    pub(super) long_turns: Vec<String>,
}

/// The fire that was the latest of those that became visible in a round. Times are in ms since the
/// epoch.
pub(super) struct LatestFire {
    pub(super) late: u64,
    pub(super) due: u64,
    /// When its registration was.
    pub(super) appended: u64,
    pub(super) visible: u64,
    /// Of the topic of its registration.
    pub(super) partition: i32,
    /// Which broker led that partition just before the fault.
    pub(super) leader: Option<i32>,
}

impl FailedRound {
    /// How late a fire was at most, in ms.
    pub(super) fn late(&self) -> u64 {
        self.latest.as_ref().map_or(0, |fire| fire.late)
    }

    pub(super) fn waits(&self) -> KafkaWaits {
        let fencing = self.fencing.fenced.map(|at| at.saturating_sub(self.began));
        let is_controller = self.is_controller;
        KafkaWaits { plain: self.plain.longest(), fencing, is_controller }
    }

    fn ms_after_fault(&self, time: u64) -> i64 {
        time.cast_signed() - self.began.cast_signed()
    }
}

impl Display for FailedRound {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { role, broker, plain, transaction, coordinator, takeovers, .. } = self;
        write!(f, "{role}, broker {broker}")?;
        if !self.other_roles.is_empty() {
            write!(f, ", also {}", self.other_roles.join(", "))?;
        }
        let after = |time: Option<u64>| {
            let ms = time.map(|time| format!("after {} ms", self.ms_after_fault(time)));
            ms.unwrap_or_else(|| "never".to_owned())
        };
        let FencingTimes { fenced, unfenced } = self.fencing;
        write!(f, ": fenced {}, named again {}", after(fenced), after(unfenced))?;
        match &self.latest {
            None => write!(f, "; no fire")?,
            Some(fire) => {
                let LatestFire { late, partition, .. } = fire;
                let [due, appended, visible] =
                    [fire.due, fire.appended, fire.visible].map(|time| self.ms_after_fault(time));
                let leader = fire.leader.map_or_else(|| "none".to_owned(), |id| id.to_string());
                write!(
                    f,
                    "; a fire was {late} ms late: due after {due} ms, registered after {appended} \
                     ms in partition {partition}, which broker {leader} led, and visible after \
                     {visible} ms"
                )?;
            }
        }
        write!(
            f,
            "; a plain producer waited {} ms, a plain consumer {} ms and for its commit {} ms, a \
             plain transaction {transaction} ms; an id had no coordinator for {coordinator} ms; \
             {takeovers} takeovers; long turns: {}",
            plain.producer,
            plain.consumer,
            plain.commit,
            listed(&self.long_turns)
        )
    }
}

/// The long turns of all rounds that had any.
pub(super) fn long_turns_by_round(rounds: &[FailedRound]) -> String {
    let with_turns = (1..).zip(rounds).filter(|(_, round)| !round.long_turns.is_empty());
    let lines = with_turns.map(|(number, round): (usize, _)| {
        format!("round {number}, {}: {}", round.role, listed(&round.long_turns))
    });
    listed(&lines.collect::<Vec<_>>())
}

fn listed(words: &[String]) -> String {
    if words.is_empty() { "none".to_owned() } else { words.join("; ") }
}
