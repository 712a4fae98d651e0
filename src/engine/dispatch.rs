//! Firing: what is due becomes a record for a topic or a worker.
//!
//! Law: firing writes nothing per trigger into the store. W says that it happened; only an entry
//! that the ledger holds is settled there. A fire that cannot go out fails its own trigger alone.

use std::sync::Arc;

use super::catalog::{Catalog, Finder, TopicState};
use super::known::{IdHash, Slot, SlotKind};
use super::partition::{Due, Fetched, Partition};
use super::register::fire_ledger_key;
use super::step::{Emit, ToTopic};
use crate::model::PartitionId;
use crate::model::dead_letter::{Content, DeadLetter, Origin};
use crate::model::definition::{Definition, Target, TopicTarget};
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::fire::Fire;
use crate::model::ledger::LedgerKey;
use crate::model::outcome::{Outcome, Verdict};
use crate::model::partitioner::murmur2;
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey};

/// Bytes that our own headers and the record's frame add to a fire at most; kept free so that a
/// record that fits by this count is never refused by the broker.
const RECORD_HEADROOM_BYTES: usize = 1_024;

impl Due {
    /// Whether there is nothing to fire.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.late.is_empty() && self.entries.is_empty()
    }

    /// How many fire.
    #[must_use]
    pub fn len(&self) -> usize {
        self.late.len() + self.entries.len()
    }

    /// The target topics that must be looked up before these fire; a topic may come repeatedly.
    pub fn topics(&self) -> impl Iterator<Item = &Text> {
        self.rows().filter_map(|row| match &row.definition.target {
            Target::Topic(target) => Some(&target.topic),
            Target::Http(_) => None,
        })
    }

    /// The ids whose topic is away: their index rows must be fetched, because they will wait.
    #[must_use]
    pub fn waiting(&self, catalog: &Catalog) -> Vec<IdHash> {
        if !catalog.some_away() {
            return Vec::new();
        }
        let away = |row: &&Arc<FireRow>| match &row.definition.target {
            Target::Topic(target) => {
                matches!(catalog.state(&target.topic), Some(TopicState::Away(_)))
            }
            Target::Http(_) => false,
        };
        self.rows().filter(away).map(|row| IdHash::of(&row.id.trigger)).collect()
    }

    fn rows(&self) -> impl Iterator<Item = &Arc<FireRow>> {
        self.late.iter().chain(&self.entries).filter_map(|entry| match &entry.row {
            Row::Fire(row) => Some(row),
            Row::Veto { .. } => None,
        })
    }
}

impl Partition {
    /// Fires what [`take_due`](Self::take_due) gave, and moves W past it. `catalog` knows the
    /// topics they name; `fetched` has the index rows of those that must wait.
    pub fn fire(&mut self, due: Due, catalog: &Catalog, fetched: &Fetched) {
        let Due { late, entries, w } = due;
        assert!(w >= self.cursor.w, "W never moves back");
        let mut topics = Finder::new(catalog);
        for entry in late.into_iter().chain(entries) {
            match entry.row {
                Row::Veto { trigger, .. } => self.settle(LedgerKey::Veto(trigger)),
                Row::Fire(row) => self.dispatch(entry.key, row, &mut topics, fetched),
            }
        }
        self.cursor.w = w;
        self.fired_from = self.cursor.triggers;
        self.wheel.advance(w);
    }

    fn dispatch(
        &mut self,
        key: TimelineKey,
        row: Arc<FireRow>,
        topics: &mut Finder<'_>,
        index: &Fetched,
    ) {
        let settled = row.in_ledger.then(|| fire_ledger_key(&row.id));
        match &row.definition.target {
            Target::Http(_) => {
                let fire = self.fire_of(&row);
                self.draft.emits.push(Emit::ToWorker(Box::new(fire)));
            }
            Target::Topic(target) => match topics.state(&target.topic) {
                Some(&TopicState::Usable { partitions, record_bytes_max }) => {
                    match check_size(&row, target, record_bytes_max) {
                        Ok(()) => {
                            let partition = partition_of(row.record_key(target), partitions);
                            self.draft.emits.push(Emit::ToTopic(ToTopic { row, partition }));
                        }
                        Err(reason) => self.bury(key, &row, reason),
                    }
                }
                Some(TopicState::Refused(reason)) => self.bury(key, &row, reason.clone()),
                // One that nobody looked up counts as away, so that its fire is not lost.
                Some(TopicState::Away(_)) | None => return self.park(key, row, index),
            },
        }
        if let Some(key) = settled {
            self.settle(key);
        }
    }

    fn fire_of(&self, row: &FireRow) -> Fire {
        let FireRow { id, scheduled, definition, .. } = row.clone();
        Fire { id, scheduled, fired: self.clock, definition }
    }

    /// A fire nobody will ever be able to make: its trigger alone ends here.
    fn bury(&mut self, key: TimelineKey, row: &FireRow, reason: String) {
        let topics = &self.rules.topics;
        let topic = match key.source {
            Source::Triggers => topics.triggers.clone(),
            Source::Signals => topics.signals.clone(),
        };
        let verdict = Verdict::Failed {
            generation: row.id.generation,
            occurrence: row.id.occurrence,
            attempt: row.id.attempt,
            status: None,
            reason: reason.clone(),
            retry_at: None,
        };
        let trigger = row.id.trigger.clone();
        let outcome = Outcome { trigger, answers: None, at: self.clock, verdict };
        self.draft.emits.push(Emit::Outcome(Box::new(outcome)));
        let letter = DeadLetter {
            origin: Origin { topic, partition: self.id, offset: key.offset },
            reason,
            at: self.clock,
            content: Content::Fire { attempts: row.id.attempt, fire: self.fire_of(row) },
        };
        self.draft.emits.push(Emit::DeadLetter(Box::new(letter)));
    }

    /// The target cannot be reached just now: the entry waits on, in the ledger, because its new
    /// place depends on more than its record's bytes.
    fn park(&mut self, key: TimelineKey, row: Arc<FireRow>, fetched: &Fetched) {
        let due = self.clock.max(self.cursor.w.due) + self.rules.park.max(1);
        let parked = TimelineKey { due, ..key };
        let hash = IdHash::of(&row.id.trigger);
        let mut known = self.known(hash, fetched);
        let mut slot = known.take(|slot| slot.key == key).into_iter().next().unwrap_or(Slot {
            key,
            kind: SlotKind::Main,
            generation: row.id.generation,
            in_ledger: true,
            http: false,
        });
        slot.key = parked;
        slot.in_ledger = true;
        known.slots.push(slot);
        let row = FireRow { in_ledger: true, ..Arc::unwrap_or_clone(row) };
        self.schedule(Entry { key: parked, row: Row::Fire(row.into()) });
        self.know(hash, known, fetched);
    }
}

fn check_size(row: &FireRow, target: &TopicTarget, record_bytes_max: usize) -> Result<(), String> {
    let bytes = record_bytes(&row.definition, target, &row.id.trigger);
    if bytes <= record_bytes_max {
        return Ok(());
    }
    Err(format!(
        "a fire of {bytes} bytes does not fit topic {}, which takes {record_bytes_max}: raise its \
         max.message.bytes or send less",
        target.topic
    ))
}

fn record_bytes(definition: &Definition, target: &TopicTarget, id: &Text) -> usize {
    let headers = definition.headers.iter().map(|header| {
        header.name.bytes().len() + header.value.as_ref().map_or(0, bytes::Bytes::len) + 8
    });
    let key = target.key.as_ref().unwrap_or_else(|| id.bytes()).len();
    let payload = definition.payload.as_ref().map_or(0, bytes::Bytes::len);
    payload + key + headers.sum::<usize>() + RECORD_HEADROOM_BYTES
}

/// The partition Java's default partitioner gives a key.
fn partition_of(key: &[u8], partitions: i32) -> PartitionId {
    assert!(partitions > 0, "a usable topic has partitions");
    (murmur2(key) & 0x7fff_ffff).cast_signed() % partitions
}
