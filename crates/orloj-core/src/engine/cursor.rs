//! The cursor of a partition: how far along the timeline everything is decided.
//!
//! Invariant: every entry with key ≤ W from an offset below N is decided. The cursor is
//! the group's committed offset (N) and its metadata (the rest), written inside the transaction
//! whose effects it describes; no step inserts a row at or below its own W.

use super::parked_schemas::ParkedSchemas;
use crate::model::timeline::{Source, TimelineKey};
use crate::model::{Offset, Timestamp};

/// How far a partition is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// W: every entry up to here is decided.
    pub fired_through: TimelineKey,
    /// N of `triggers`: the next offset to ingest. Committed as the group's offset.
    pub next_offset: Offset,
    /// N of `signals`: the next offset to ingest.
    pub next_signal_offset: Offset,
    /// L: the offset of `triggers` from which an owner without local state must replay.
    pub replay_from: Offset,
    /// S: the latest due time of any entry that was put on the timeline and not into the ledger,
    /// in ms since the epoch. Below `clock + ledger.after` of the owner that scheduled it.
    pub replay_horizon: Timestamp,
    /// The number of the last committed step, over all owners; its high bits are the epoch.
    pub step: u64,
    /// Registrations from here on whose writer schema is in a registry are in the ledger while they
    /// are pending: a replay need not read them.
    pub registry_from: Offset,
    /// The records below N that are not decided.
    pub parked: ParkedSchemas,
}

/// The bits of a step's number below its epoch: enough for 34 years of a thousand steps a second.
const STEP_BITS: u32 = 40;

/// The epoch of a step. An owner that reads the log again from an offset that an operator has set,
/// or that has lost the cursor, starts a new one: steps of different epochs are independent, and no
/// two have the same number.
#[must_use]
pub fn epoch(step: u64) -> u64 {
    step >> STEP_BITS
}

/// The number from which the steps of the epoch after that of `last` are counted.
#[must_use]
pub fn next_epoch_base(last: u64) -> u64 {
    (epoch(last) + 1) << STEP_BITS
}

/// The version of the commit metadata that this program writes.
const VERSION: &str = "orloj1";
/// The version while records are parked. A program that does not know of them must not read it: it
/// would never decide them.
const VERSION_PARKED: &str = "orloj2";
/// The end of the metadata of an owner's final commit.
const FINAL_MARKER: &str = "left=1";

/// Why commit metadata cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// It is not ours: an operator (or another program) moved the offset. Treat it as a replay.
    #[error("the committed offset carries no Orloj metadata")]
    Foreign,
    /// A newer Orloj wrote it: refuse to start, so that nothing is misread.
    #[error("the committed offset was written by a newer Orloj ({0}); upgrade this process")]
    Newer(String),
}

impl Cursor {
    /// The cursor of a partition that never had an owner: everything from `triggers` on is new.
    #[must_use]
    pub fn initial(triggers: Offset, signals: Offset) -> Self {
        Self {
            fired_through: TimelineKey::MIN,
            next_offset: triggers,
            next_signal_offset: signals,
            replay_from: triggers,
            replay_horizon: 0,
            step: 0,
            registry_from: triggers,
            parked: ParkedSchemas::NONE,
        }
    }

    /// Every record of `triggers` below this offset is decided.
    #[must_use]
    pub fn decided_until(&self) -> Offset {
        self.parked.first_offset().unwrap_or(self.next_offset).min(self.next_offset)
    }

    /// The commit metadata: a line of text with a format version. `owner` is the transactional
    /// id whose open transaction a successor may have to end.
    #[must_use]
    pub fn to_metadata(&self, owner: &str) -> String {
        let fired_through = &self.fired_through;
        let (version, parked) = if self.parked.is_empty() {
            (VERSION, String::new())
        } else {
            (VERSION_PARKED, format!(" parked={}", self.parked.to_text()))
        };
        format!(
            "{version} w={}.{}.{}.{} ns={} l={} s={} step={} r={}{parked} tx={owner}",
            fired_through.due,
            fired_through.priority,
            fired_through.source as u8,
            fired_through.offset,
            self.next_signal_offset,
            self.replay_from,
            self.replay_horizon,
            self.step,
            self.registry_from,
        )
    }

    /// The same for the final commit of an owner: it has no open transaction any more.
    #[must_use]
    pub fn to_final_metadata(&self, owner: &str) -> String {
        format!("{} {FINAL_MARKER}", self.to_metadata(owner))
    }

    /// The owner that wrote this metadata, unless it was a final commit: its transaction may still
    /// be open. Metadata that is not ours names no owner.
    #[must_use]
    pub fn active_owner(metadata: &str) -> Option<&str> {
        let mut words = metadata.split(' ');
        if !matches!(words.next(), Some(VERSION | VERSION_PARKED))
            || words.clone().any(|word| word == FINAL_MARKER)
        {
            return None;
        }
        words.find_map(|word| word.strip_prefix("tx="))
    }

    /// Whether the program that wrote this metadata puts registrations whose writer schema is in a
    /// registry into the ledger.
    #[must_use]
    pub fn tells_registry_from(metadata: &str) -> bool {
        metadata.split(' ').any(|word| word.starts_with("r="))
    }

    /// Reads the commit metadata of offset `triggers`; also returns the owner that wrote it.
    pub fn from_metadata(
        triggers: Offset,
        metadata: &str,
    ) -> Result<(Self, String), MetadataError> {
        let mut words = metadata.split(' ');
        match words.next() {
            Some(VERSION | VERSION_PARKED) => {}
            Some(other) if other.starts_with("orloj") => {
                return Err(MetadataError::Newer(other.to_owned()));
            }
            _ => return Err(MetadataError::Foreign),
        }
        let mut cursor = Self::initial(triggers, 0);
        let mut owner = String::new();
        for word in words {
            let Some((name, value)) = word.split_once('=') else {
                return Err(MetadataError::Foreign);
            };
            if name == "tx" {
                value.clone_into(&mut owner);
            } else {
                cursor.set_field(name, value).ok_or(MetadataError::Foreign)?;
            }
        }
        Ok((cursor, owner))
    }

    fn set_field(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "w" => self.fired_through = parse_key(value)?,
            "ns" => self.next_signal_offset = value.parse().ok()?,
            "l" => self.replay_from = value.parse().ok()?,
            "s" => self.replay_horizon = value.parse().ok()?,
            "step" => self.step = value.parse().ok()?,
            "r" => self.registry_from = value.parse().ok()?,
            "parked" => self.parked = ParkedSchemas::from_text(value)?,
            _ => {} // a later minor version may have more fields
        }
        Some(())
    }
}

fn parse_key(text: &str) -> Option<TimelineKey> {
    let mut parts = text.split('.');
    let key = TimelineKey {
        due: parts.next()?.parse().ok()?,
        priority: parts.next()?.parse().ok()?,
        source: match parts.next()? {
            "0" => Source::Triggers,
            "1" => Source::Signals,
            _ => return None,
        },
        offset: parts.next()?.parse().ok()?,
    };
    parts.next().is_none().then_some(key)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_metadata_or_refused(text: String, tail in "[ =.a-z0-9]{0,40}") {
            for metadata in [&text, &format!("{VERSION} {tail}")] {
                let _owner = Cursor::active_owner(metadata);
                if let Ok((cursor, owner)) = Cursor::from_metadata(7, metadata) {
                    let again = Cursor::from_metadata(7, &cursor.to_metadata(&owner));
                    prop_assert_eq!(again, Ok((cursor, owner)));
                }
            }
        }
    }

    fn cursor() -> Cursor {
        Cursor {
            fired_through: TimelineKey { due: 17, priority: 3, source: Source::Signals, offset: 9 },
            next_offset: 40,
            next_signal_offset: 8,
            replay_from: 30,
            replay_horizon: 99,
            step: 5,
            registry_from: 20,
            parked: ParkedSchemas::NONE,
        }
    }

    #[test]
    fn metadata_has_this_text() {
        let line = cursor().to_metadata("orloj-a");
        assert_eq!(line, "orloj1 w=17.3.1.9 ns=8 l=30 s=99 step=5 r=20 tx=orloj-a");
        assert_eq!(Cursor::from_metadata(40, &line), Ok((cursor(), "orloj-a".to_owned())));
    }

    #[test]
    fn metadata_with_parked_records_has_a_later_version() {
        let parked = [(3, 35), (9, 38)].into_iter().collect();
        let cursor = Cursor { parked, ..cursor() };
        let line = cursor.to_metadata("orloj-a");
        let text = "orloj2 w=17.3.1.9 ns=8 l=30 s=99 step=5 r=20 parked=3:35,9:38 tx=orloj-a";
        assert_eq!(line, text);
        assert_eq!(Cursor::from_metadata(40, &line), Ok((cursor, "orloj-a".to_owned())));
        assert_eq!(Cursor::active_owner(&line), Some("orloj-a"));
        assert_eq!(cursor.decided_until(), 35);
    }

    #[test]
    fn metadata_of_an_earlier_program_says_nothing_of_the_registry() {
        let line = "orloj1 w=17.3.1.9 ns=8 l=30 s=99 step=5 tx=orloj-a";
        let (read, _owner) = Cursor::from_metadata(40, line).unwrap();
        assert_eq!(read, Cursor { registry_from: 40, ..cursor() });
    }

    #[test]
    fn epochs_share_no_step() {
        for last in [0, 1, (1 << STEP_BITS) - 1] {
            assert_eq!((epoch(last), next_epoch_base(last)), (0, 1 << STEP_BITS));
        }
        assert_eq!((epoch(1 << STEP_BITS), next_epoch_base(1 << STEP_BITS)), (1, 2 << STEP_BITS));
    }

    #[test]
    fn an_owner_that_left_has_no_open_transaction() {
        let line = cursor().to_metadata("orloj-a");
        assert_eq!(Cursor::active_owner(&line), Some("orloj-a"));
        let last = cursor().to_final_metadata("orloj-a");
        assert_eq!(Cursor::active_owner(&last), None);
        assert_eq!(Cursor::from_metadata(40, &last), Ok((cursor(), "orloj-a".to_owned())));
        assert_eq!(Cursor::active_owner("hello tx=orloj-a"), None);
    }

    #[test]
    fn foreign_and_newer_metadata_are_distinguished() {
        assert_eq!(Cursor::from_metadata(0, ""), Err(MetadataError::Foreign));
        assert_eq!(Cursor::from_metadata(0, "hello"), Err(MetadataError::Foreign));
        assert_eq!(Cursor::from_metadata(0, "orloj1 w=1"), Err(MetadataError::Foreign));
        let newer = MetadataError::Newer("orloj3".to_owned());
        assert_eq!(Cursor::from_metadata(0, "orloj3 x"), Err(newer));
    }
}
