//! Reading the dead letters from the beginning to where they end now.
//!
//! Law: a mark stands behind its letter in the same partition, so only whoever has read to the end
//! knows which letters are dealt with.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rdkafka::message::Message;

use super::CliError;
use crate::config::Settings;
use crate::kafka::Names;
use crate::kafka::probe::Probe;
use crate::kafka::reader::{Read, Reader};
use crate::model::codec::schemas::{CodecError, Schemas};
use crate::model::dead_letter::{Content, DeadLetter, Mark, Origin};
use crate::model::{Offset, PartitionId};

/// How long the broker may take to answer.
const TIMEOUT: Duration = Duration::from_secs(30);
const BAR: &str = "{msg} {wide_bar} {pos}/{len} {eta}";

/// Which letter: its place in the topic of the dead letters, written `partition:offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LetterId {
    /// Its partition.
    pub(super) partition: PartitionId,
    /// Its offset.
    pub(super) offset: Offset,
}

impl fmt::Display for LetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}:{}", self.partition, self.offset))
    }
}

impl FromStr for LetterId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let id = text.split_once(':').and_then(|(partition, offset)| {
            let partition: u16 = partition.parse().ok()?;
            Some(Self { partition: partition.into(), offset: offset.parse().ok()? })
        });
        id.ok_or_else(|| "write PARTITION:OFFSET, such as 3:41".to_owned())
    }
}

/// What was done about which letter.
pub(super) type Marks = HashMap<LetterId, Dealt>;

/// What was done about a letter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dealt {
    /// The last that was done.
    mark: Mark,
    /// How often it was replayed.
    pub(super) replays: u32,
}

/// What was done about a letter, in a word.
pub(super) fn state_of(marks: &Marks, id: LetterId) -> &'static str {
    match marks.get(&id).map(|dealt| dealt.mark) {
        None => "open",
        Some(Mark::Replayed) => "replayed",
        Some(Mark::Archived) => "archived",
    }
}

/// The dead letters of an installation, or a part of them.
pub(super) struct Letters {
    reader: Reader,
    topic: String,
    schemas: Schemas,
    /// What is to be read of each partition.
    parts: BTreeMap<PartitionId, (Offset, Offset)>,
}

impl Letters {
    /// All that there are now.
    pub(super) fn open(settings: &Settings) -> Result<Self, CliError> {
        let names = Names::new(&settings.topics.prefix);
        let topic = names.dead_letters();
        let probe = Probe::open(settings, TIMEOUT)?;
        let Some(partitions) = probe.partitions(&topic)? else {
            return Err(CliError::Refused(format!("there is no topic {topic}")));
        };
        let parts =
            (0..partitions).map(|partition| Ok((partition, probe.bounds(&topic, partition)?)));
        let parts = parts.collect::<Result<_, CliError>>()?;
        let reader = Reader::open(settings, &format!("{}.dead-letters", settings.topics.prefix))?;
        Ok(Self { reader, topic, schemas: Schemas::new(), parts })
    }

    /// Only the partitions of `ids`, from the first of them on.
    pub(super) fn from(mut self, ids: &BTreeSet<LetterId>) -> Self {
        let first = |partition: PartitionId| {
            ids.iter().find(|id| id.partition == partition).map(|id| id.offset)
        };
        self.parts.retain(|partition, (low, end)| {
            let from = first(*partition);
            *low = from.unwrap_or(*low).clamp(*low, *end);
            from.is_some()
        });
        self
    }

    /// How much there is to read.
    pub(super) fn len(&self) -> u64 {
        self.parts.values().map(|(low, end)| end - low).sum()
    }

    /// Shows every letter to `each`, those of a partition in order, and returns the marks that it
    /// came upon: all of them, unless `each` wanted no more.
    pub(super) fn scan(
        &self,
        bar: &ProgressBar,
        mut each: impl FnMut(LetterId, DeadLetter) -> ControlFlow<()>,
    ) -> Result<Marks, CliError> {
        let mut marks = Marks::new();
        let mut open = BTreeSet::new();
        for (partition, (low, end)) in &self.parts {
            if low < end {
                self.reader.start(&self.topic, *partition, *low)?;
                let _new = open.insert(*partition);
            }
        }
        while !open.is_empty() {
            match self.reader.poll(TIMEOUT)? {
                None => return Err(CliError::Refused(format!("{}: no answer", self.topic))),
                Some(Read::OutOfRange(reason)) => {
                    let reason = format!("{reason}: letters were deleted meanwhile; run it again");
                    return Err(CliError::Refused(reason));
                }
                Some(Read::End(partition)) => {
                    let _ended = open.remove(&partition);
                    self.reader.stop(&self.topic, partition)?;
                }
                Some(Read::Record(record)) => {
                    let (_topic, partition, offset) = Reader::place(&record);
                    let id = LetterId { partition, offset };
                    bar.inc(1);
                    let value = record.payload().unwrap_or_default();
                    let Some(letter) = self.read(id, value)? else { continue };
                    if let Content::Mark(mark) = letter.content {
                        let Origin { partition, offset, .. } = letter.origin;
                        let id = LetterId { partition, offset };
                        let dealt = marks.entry(id).or_insert(Dealt { mark, replays: 0 });
                        dealt.mark = mark;
                        dealt.replays += u32::from(mark == Mark::Replayed);
                    } else if each(id, letter).is_break() {
                        break;
                    }
                }
            }
        }
        bar.finish_and_clear();
        Ok(marks)
    }

    /// A letter, or nothing if somebody else wrote something there.
    fn read(&self, id: LetterId, value: &[u8]) -> Result<Option<DeadLetter>, CliError> {
        match self.schemas.decode_dead_letter(value) {
            Ok(letter) => Ok(Some(letter)),
            Err(error @ CodecError::Newer { .. }) => {
                Err(CliError::Refused(format!("{id}: {error}")))
            }
            Err(error @ CodecError::Corrupt { .. }) => {
                tracing::warn!(%id, %error, "passed over");
                Ok(None)
            }
        }
    }
}

/// A bar on standard error; none is drawn where nobody looks.
pub(super) fn progress(what: &'static str, length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(BAR).expect("a test has drawn it");
    ProgressBar::new(length).with_style(style).with_message(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_is_called_by_its_place() {
        let id = LetterId { partition: 3, offset: 41 };
        assert_eq!("3:41".parse(), Ok(id));
        assert_eq!((id.to_string().as_str(), format!("{id:6}|").as_str()), ("3:41", "3:41  |"));
        for bad in ["", "3", "3:", ":41", "-1:4", "a:b"] {
            assert!(bad.parse::<LetterId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_bar_can_be_drawn() {
        progress("reading", 7).inc(1);
    }
}
