//! What has happened to a caller's triggers since the last message.
//!
//! Invariant: pure, and bounded: however much happens, what is kept are counts, a few causes, a few
//! examples and a few circuits. Texts from receivers are cut to one short line each.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::model::attempt::excerpt;
use crate::model::dead_letter::{Content, DeadLetter};
use crate::model::outcome::{Circuit, CircuitState};
use crate::model::text::Text;
use crate::model::time::format_time;
use crate::model::{Offset, PartitionId, Timestamp};

/// Causes that are listed; dead letters of other causes are counted together.
pub const CAUSES_MAX: usize = 10;
/// Dead letters that are shown.
pub const EXAMPLES_MAX: usize = 3;
/// Circuits that are shown; others are counted.
pub const CIRCUITS_MAX: usize = 10;

/// One partition of a topic that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourcePartition {
    /// Which topic.
    pub source: NotificationSource,
    /// Which of its partitions.
    pub partition: PartitionId,
}

/// A topic that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotificationSource {
    /// Fires and records that were given up.
    DeadLetters,
    /// Where changes of circuits are written.
    Outcomes,
}

/// The position of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePosition {
    /// In which log.
    pub source_partition: SourcePartition,
    /// Where there.
    pub offset: Offset,
}

/// What has happened. As JSON, it is the data of a webhook's message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Digest {
    /// How many dead letters there are.
    pub dead_letters: u64,
    /// When the first of them was given up, in ms since the epoch.
    #[serde(serialize_with = "time")]
    pub first: Option<Timestamp>,
    /// When the last was.
    #[serde(serialize_with = "time")]
    pub last: Option<Timestamp>,
    /// Why, in the order in which the causes appeared.
    pub causes: Vec<FailureCause>,
    /// How many dead letters have causes beyond those.
    pub other_causes: u64,
    /// The first few of them.
    pub examples: Vec<DeadLetterExample>,
    /// The circuits that opened or closed.
    pub circuits: Vec<CircuitSummary>,
    /// How many changes there are of circuits beyond those.
    pub other_circuits: u64,
    /// The first record in each log that this contains.
    #[serde(skip)]
    first_offsets: BTreeMap<SourcePartition, Offset>,
}

/// A cause of dead letters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureCause {
    /// The host that was called, if one was to be.
    pub host: Option<String>,
    /// The reason of the failure.
    pub reason: Text,
    /// How many dead letters.
    pub count: u64,
}

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterExample {
    /// What `orloj dead-letters` calls it: `partition:offset`.
    pub letter: String,
    /// Its trigger, if that is known.
    pub trigger: Option<Text>,
    /// The whole reason.
    pub reason: Text,
    /// When it was given up, in ms since the epoch.
    #[serde(serialize_with = "time")]
    pub at: Option<Timestamp>,
}

/// A change of a host's circuit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CircuitSummary {
    /// The host, with its port if that is not the scheme's.
    pub host: Text,
    /// Since when it is not called, in ms since the epoch; `None` if that was reported before.
    #[serde(serialize_with = "time")]
    pub opened: Option<Timestamp>,
    /// Since when it is called again; `None` if it is not.
    #[serde(serialize_with = "time")]
    pub closed: Option<Timestamp>,
    /// Why, of the last change.
    pub reason: Text,
}

impl Digest {
    /// Adds the dead letter at `position`.
    pub fn add_dead_letter(&mut self, letter: &DeadLetter, position: SourcePosition) {
        self.record_first_offset(position);
        self.dead_letters += 1;
        self.first = Some(self.first.map_or(letter.at, |first| first.min(letter.at)));
        self.last = self.last.max(Some(letter.at));
        self.count_cause(letter.host(), reason_of(letter));
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(DeadLetterExample {
                letter: format!("{}:{}", position.source_partition.partition, position.offset),
                trigger: letter.trigger().and_then(excerpt),
                reason: excerpt(&letter.reason).unwrap_or_default(),
                at: Some(letter.at),
            });
        }
    }

    /// Adds that a circuit opened or closed at `at`, in ms since the epoch.
    pub fn add_circuit_change(
        &mut self,
        circuit: &Circuit,
        at: Timestamp,
        position: SourcePosition,
    ) {
        self.record_first_offset(position);
        let host = excerpt(circuit.host.as_str()).unwrap_or_default();
        let index = match self.circuits.iter().position(|summary| summary.host == host) {
            Some(index) => index,
            None if self.circuits.len() == CIRCUITS_MAX => {
                self.other_circuits += 1;
                return;
            }
            None => {
                let (opened, closed, reason) = (None, None, Text::default());
                self.circuits.push(CircuitSummary { host, opened, closed, reason });
                self.circuits.len() - 1
            }
        };
        let summary = &mut self.circuits[index];
        summary.reason = excerpt(&circuit.reason).unwrap_or_default();
        if circuit.state == CircuitState::Closed {
            summary.closed = Some(at);
        } else {
            (summary.opened, summary.closed) = (Some(at), None);
        }
    }

    /// Whether nothing has happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first_offsets.is_empty()
    }

    /// The first record in each log that this contains.
    pub fn first_offsets(&self) -> impl Iterator<Item = (SourcePartition, Offset)> {
        self.first_offsets.iter().map(|(log, offset)| (*log, *offset))
    }

    /// The causes, the most frequent first.
    #[must_use]
    pub fn causes_by_count(&self) -> Vec<&FailureCause> {
        let mut causes: Vec<_> = self.causes.iter().collect();
        causes.sort_by_key(|cause| Reverse(cause.count));
        causes
    }

    /// A log is read in order, so the first record that is added has the lowest offset.
    fn record_first_offset(&mut self, position: SourcePosition) {
        let _first = self.first_offsets.entry(position.source_partition).or_insert(position.offset);
    }

    fn count_cause(&mut self, host: Option<String>, reason: Text) {
        let is_same = |cause: &FailureCause| cause.host == host && cause.reason == reason;
        match self.causes.iter().position(is_same) {
            Some(index) => self.causes[index].count += 1,
            None if self.causes.len() < CAUSES_MAX => {
                self.causes.push(FailureCause { host, reason, count: 1 });
            }
            None => self.other_causes += 1,
        }
    }
}

/// What many letters have in common: of an attempt that was answered the status alone, since
/// every body may be another.
fn reason_of(letter: &DeadLetter) -> Text {
    let attempt = match &letter.content {
        Content::Fire { fire, attempts } => {
            let last = fire.history.as_ref().and_then(|history| history.attempts.last());
            last.filter(|last| last.number == *attempts)
        }
        Content::Record { .. } | Content::Mark(_) => None,
    };
    match attempt.map(|attempt| (attempt.status, &attempt.error)) {
        Some((Some(status), _)) => Text::from(format!("answered {status}")),
        Some((None, Some(error))) => error.clone(),
        _ => excerpt(&letter.reason).unwrap_or_default(),
    }
}

/// As RFC 3339.
fn time<S: Serializer>(at: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(format_time).serialize(serializer)
}

#[cfg(test)]
#[path = "digest/samples.rs"]
pub(super) mod samples;
#[cfg(test)]
#[path = "digest/tests.rs"]
mod tests;
