//! Reads the dead letters from the start of the topic to its present end.
//!
//! Invariant: a mark follows its letter in the same partition, so only a reader that has read to
//! the end knows which letters are handled.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;
use std::time::Duration;

use super::LetterError;
use crate::codec::schemas::{CodecError, Schemas};
use crate::config::Settings;
use crate::kafka::Names;
use crate::kafka::admin_client::KafkaAdminClient;
use crate::kafka::reader::{LogReader, ReadEvent};
use crate::model::dead_letter::{Content, DeadLetter, Mark, Origin};
use crate::model::{Offset, PartitionId};

/// How long the broker may take to answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Which letter: its place in the topic of the dead letters, written `partition:offset`; where that
/// is part of a path, `partition-offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LetterId {
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
}

impl fmt::Display for LetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}:{}", self.partition, self.offset))
    }
}

impl FromStr for LetterId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let id = text.split_once([':', '-']).and_then(|(partition, offset)| {
            let partition: u16 = partition.parse().ok()?;
            Some(Self { partition: partition.into(), offset: offset.parse().ok()? })
        });
        id.ok_or_else(|| "write PARTITION:OFFSET, such as 3:41".to_owned())
    }
}

/// The marks by letter.
pub type HandledLetters = HashMap<LetterId, HandledLetter>;

/// The marks of one letter.
#[derive(Clone, Copy, Debug)]
pub struct HandledLetter {
    /// The last mark.
    pub mark: Mark,
    /// How often it was replayed.
    pub replays: u32,
}

/// The state of a letter, as one word.
#[must_use]
pub fn state_of(marks: &HandledLetters, id: LetterId) -> &'static str {
    match marks.get(&id).map(|handled| handled.mark) {
        None => "open",
        Some(Mark::Replayed) => "replayed",
        Some(Mark::Archived) => "archived",
    }
}

/// The dead letters of an installation, or a part of them.
#[derive(Debug)]
pub struct DeadLetterReader {
    reader: LogReader,
    topic: String,
    schemas: Schemas,
    /// What is to be read of each partition.
    ranges: BTreeMap<PartitionId, (Offset, Offset)>,
}

impl DeadLetterReader {
    /// All letters up to now.
    pub fn open(settings: &Settings) -> Result<Self, LetterError> {
        let names = Names::new(&settings.topics.prefix);
        let topic = names.dead_letters();
        let probe = KafkaAdminClient::open(settings, TIMEOUT)?;
        let Some(partitions) = probe.partitions(&topic)? else {
            return Err(LetterError::TopicUnreadable(format!("there is no topic {topic}")));
        };
        let parts =
            (0..partitions).map(|partition| Ok((partition, probe.bounds(&topic, partition)?)));
        let parts = parts.collect::<Result<_, LetterError>>()?;
        let reader =
            LogReader::open(settings, &format!("{}.dead-letters", settings.topics.prefix))?;
        Ok(Self { reader, topic, schemas: Schemas::new(), ranges: parts })
    }

    /// Only the partitions of `ids`, from the first of them on.
    #[must_use]
    pub fn restricted_to(mut self, ids: &BTreeSet<LetterId>) -> Self {
        let first = |partition: PartitionId| {
            ids.iter().find(|id| id.partition == partition).map(|id| id.offset)
        };
        self.ranges.retain(|partition, (low, end)| {
            let from = first(*partition);
            *low = from.unwrap_or(*low).clamp(*low, *end);
            from.is_some()
        });
        self
    }

    /// How many records there are to read.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.ranges.values().map(|(low, end)| end - low).sum()
    }

    /// Calls `on_letter` for every letter, in order within a partition, and returns the marks that
    /// were read: all of them, unless `on_letter` stopped. Calls `on_record` for every record.
    pub fn scan(
        &self,
        mut on_record: impl FnMut(),
        mut on_letter: impl FnMut(LetterId, DeadLetter) -> ControlFlow<()>,
    ) -> Result<HandledLetters, LetterError> {
        let mut marks = HandledLetters::new();
        let mut open = BTreeSet::new();
        for (partition, (low, end)) in &self.ranges {
            if low < end {
                self.reader.start(&self.topic, *partition, *low)?;
                let _new = open.insert(*partition);
            }
        }
        while !open.is_empty() {
            match self.reader.poll(TIMEOUT)? {
                None => {
                    return Err(LetterError::TopicUnreadable(format!("{}: no answer", self.topic)));
                }
                Some(ReadEvent::OutOfRange(reason)) => {
                    let reason =
                        format!("{reason}: letters were deleted during the read; run it again");
                    return Err(LetterError::TopicUnreadable(reason));
                }
                Some(ReadEvent::PartitionEof(partition)) => {
                    let _ended = open.remove(&partition);
                    self.reader.stop(&self.topic, partition)?;
                }
                Some(ReadEvent::Record(record)) => {
                    let (_topic, partition, offset) = record.position();
                    let id = LetterId { partition, offset };
                    on_record();
                    let value = record.value().unwrap_or_default();
                    let Some(letter) = self.decode(id, value)? else { continue };
                    if let Content::Mark(mark) = letter.content {
                        let Origin { partition, offset, .. } = letter.origin;
                        let id = LetterId { partition, offset };
                        let handled = marks.entry(id).or_insert(HandledLetter { mark, replays: 0 });
                        handled.mark = mark;
                        handled.replays += u32::from(mark == Mark::Replayed);
                    } else if on_letter(id, letter).is_break() {
                        break;
                    }
                }
            }
        }
        Ok(marks)
    }

    /// A letter, or `None` for a record that Orloj did not write.
    fn decode(&self, id: LetterId, value: &[u8]) -> Result<Option<DeadLetter>, LetterError> {
        match self.schemas.decode_dead_letter(value) {
            Ok(letter) => Ok(Some(letter)),
            Err(error @ CodecError::Newer { .. }) => {
                Err(LetterError::TopicUnreadable(format!("{id}: {error}")))
            }
            Err(error @ CodecError::Corrupt { .. }) => {
                tracing::warn!(%id, %error, "unreadable record skipped");
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_id_is_its_partition_and_offset() {
        let id = LetterId { partition: 3, offset: 41 };
        assert_eq!(("3:41".parse(), "3-41".parse()), (Ok(id), Ok(id)));
        assert_eq!((id.to_string().as_str(), format!("{id:6}|").as_str()), ("3:41", "3:41  |"));
        for bad in ["", "3", "3:", ":41", "-1:4", "a:b"] {
            assert!(bad.parse::<LetterId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_last_mark_of_a_letter_is_its_state() {
        let id = |offset| LetterId { partition: 3, offset };
        let handled = |mark| HandledLetter { mark, replays: 1 };
        let marks = HandledLetters::from([
            (id(1), handled(Mark::Replayed)),
            (id(2), handled(Mark::Archived)),
        ]);
        let states = [0, 1, 2].map(|offset| state_of(&marks, id(offset)));
        assert_eq!(states, ["open", "replayed", "archived"]);
    }
}
