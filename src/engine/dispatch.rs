//! Firing: what is due becomes a record for a topic or a worker.
//!
//! Law: firing writes nothing per trigger into the store. W says that it happened; only an entry
//! that the ledger holds is settled there. A fire that cannot go out fails its own trigger alone.

use super::catalog::{Catalog, Finder, TopicState};
use super::known::{IdHash, Slot, SlotKind};
use super::partition::{CorruptRow, Due, Fetched, Partition};
use super::register::fire_ledger_key;
use super::step::{Emit, ToTopic};
use crate::model::codec::row::{self, FireView, RowBytes, RowError, TargetView};
use crate::model::dead_letter::{Content, DeadLetter, Origin};
use crate::model::definition::Target;
use crate::model::entry::{Entry, FireId, FireRow, Row};
use crate::model::fire::{Fire, Withdrawal};
use crate::model::ledger::LedgerKey;
use crate::model::outcome::{Outcome, Verdict};
use crate::model::partitioner::murmur2;
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey};
use crate::model::{PartitionId, Timestamp};

/// Bytes that our own headers and the record's frame add to a fire at most; kept free so that a
/// record that fits by this count is never refused by the broker.
const RECORD_HEADROOM_BYTES: usize = 1_024;

impl Due {
    /// Whether there is nothing to fire.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.late.is_empty() && self.entries.is_empty() && self.withdrawals.is_empty()
    }

    /// How many fire.
    #[must_use]
    pub fn len(&self) -> usize {
        self.late.len() + self.entries.len()
    }

    /// The target topics that must be looked up before these fire; a topic may come repeatedly.
    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.rows().filter_map(|row| row::target_topic(row))
    }

    /// The pools whose topics must be looked up before these fire; one may come repeatedly.
    pub fn pools(&self) -> impl Iterator<Item = &str> {
        let named = self.rows().filter_map(|row| row::target_pool(row));
        named.chain(self.pools.iter().map(Text::as_str))
    }

    /// The ids whose topic is away: their index rows must be fetched, because they will wait.
    #[must_use]
    pub fn waiting(&self, catalog: &Catalog) -> Vec<IdHash> {
        if !catalog.some_away() {
            return Vec::new();
        }
        let away = |row: &&RowBytes| {
            let topic = row::target_topic(row).and_then(|topic| catalog.state(topic));
            let pool = || row::target_pool(row).and_then(|pool| catalog.pool(pool));
            matches!(topic.or_else(pool), Some(TopicState::Away(_)))
        };
        let fires = self.rows().filter(away).filter_map(|row| row::view(row).ok().flatten());
        fires.map(|fire| IdHash::of(fire.trigger)).collect()
    }

    fn rows(&self) -> impl Iterator<Item = &RowBytes> {
        self.late.iter().chain(&self.entries).map(|(_, row)| row)
    }
}

impl Partition {
    /// Fires what [`take_due`](Self::take_due) gave, and moves W past it. `catalog` knows the
    /// topics they name; `fetched` has the index rows of those that must wait.
    pub fn fire(
        &mut self,
        due: Due,
        catalog: &Catalog,
        fetched: &Fetched,
    ) -> Result<(), CorruptRow> {
        self.draft.emits.reserve(due.len());
        let Due { late, entries, withdrawals, pools, w } = due;
        assert!(w >= self.cursor.w, "W never moves back");
        let mut topics = Finder::new(catalog);
        for withdrawal in withdrawals {
            self.withdraw(withdrawal, &pools, &topics);
        }
        for (key, row) in late.into_iter().chain(entries) {
            let corrupt = |reason| CorruptRow { key, reason };
            if let Some((partition, scheduled)) = plain(&row, &mut topics).map_err(corrupt)? {
                self.draft.emits.push(Emit::ToTopic(ToTopic { row, partition, scheduled }));
                continue;
            }
            match row::decode(&row).map_err(corrupt)? {
                Row::Veto { trigger, .. } => self.settle(LedgerKey::Veto(trigger)),
                Row::Fire(fire) => self.dispatch(key, fire, row, &mut topics, fetched),
            }
        }
        self.cursor.w = w;
        self.fired_from = self.cursor.triggers;
        self.wheel.advance(w);
        Ok(())
    }

    fn dispatch(
        &mut self,
        key: TimelineKey,
        fire: FireRow,
        row: RowBytes,
        topics: &mut Finder<'_>,
        index: &Fetched,
    ) {
        let settled = fire.in_ledger.then(|| fire_ledger_key(&fire.id));
        match &fire.definition.target {
            Target::Http(target) => match self.way_to_pool(target.pool.as_ref(), topics) {
                Ok(true) => {
                    let fire = self.fire_of(fire);
                    self.draft.emits.push(Emit::ToWorker(Box::new(fire)));
                }
                Ok(false) => return self.park(key, fire, index),
                Err(reason) => self.bury(key, fire, reason),
            },
            Target::Topic(target) => match topics.state(target.topic.as_str()) {
                Some(&TopicState::Usable { partitions, record_bytes_max }) => {
                    let view = row::view(&row).ok().flatten().expect("all of it was just read");
                    match check_size(&view, target.topic.as_str(), record_bytes_max) {
                        Ok(()) => {
                            let partition = partition_of(view.record_key(), partitions);
                            let scheduled = fire.scheduled;
                            let fire = ToTopic { row, partition, scheduled };
                            self.draft.emits.push(Emit::ToTopic(fire));
                        }
                        Err(reason) => self.bury(key, fire, reason),
                    }
                }
                Some(TopicState::Refused(reason)) => self.bury(key, fire, reason.clone()),
                // One that nobody looked up counts as away, so that its fire is not lost.
                Some(TopicState::Away(_)) | None => return self.park(key, fire, index),
            },
        }
        if let Some(key) = settled {
            self.settle(key);
        }
    }

    /// Tells every pool, for nobody remembers which one a fire has gone to. One whose topic cannot
    /// be written is not told: its callbacks are made.
    fn withdraw(&mut self, withdrawal: Withdrawal, pools: &[Text], topics: &Finder<'_>) {
        let reached = |pool: &&Text| self.way_to_pool(Some(pool), topics) == Ok(true);
        let pools: Vec<Text> = pools.iter().filter(reached).cloned().collect();
        let withdrawal = Box::new(withdrawal);
        for pool in std::iter::once(None).chain(pools.into_iter().map(Some)) {
            self.draft.emits.push(Emit::Withdraw { pool, withdrawal: withdrawal.clone() });
        }
    }

    /// Whether the pool's topic takes a fire of this partition, now or never: if it cannot be told
    /// just now, the fire waits. The default pool's topic is there like all of ours.
    fn way_to_pool(&self, pool: Option<&Text>, topics: &Finder<'_>) -> Result<bool, String> {
        let Some(pool) = pool else { return Ok(true) };
        match topics.pool(pool.as_str()) {
            Some(TopicState::Usable { partitions, .. }) if *partitions <= self.id => Err(format!(
                "the topic of pool {pool} has {partitions} partitions and lacks {}: it needs as \
                 many as the other topics; `orloj topics verify` compares them",
                self.id
            )),
            Some(TopicState::Usable { .. }) => Ok(true),
            Some(TopicState::Refused(reason)) => Err(reason.clone()),
            Some(TopicState::Away(_)) | None => Ok(false),
        }
    }

    fn fire_of(&self, row: FireRow) -> Fire {
        let FireRow { id, scheduled, definition, history, .. } = row;
        Fire { id, scheduled, fired: self.clock, definition, history }
    }

    /// A fire nobody will ever be able to make: its trigger alone ends here.
    fn bury(&mut self, key: TimelineKey, row: FireRow, reason: String) {
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
    fn park(&mut self, key: TimelineKey, mut row: FireRow, fetched: &Fetched) {
        let due = self.clock.max(self.cursor.w.due) + self.rules.park.max(1);
        let parked = TimelineKey { due, ..key };
        let hash = IdHash::of(&row.id.trigger);
        let mut known = self.known(hash, fetched);
        let slot = known.take(|slot| slot.key == key).into_iter().next();
        let mut slot = slot.unwrap_or_else(|| Slot {
            key,
            kind: kind_of(&row.id),
            generation: row.id.generation,
            in_ledger: true,
            http: row.definition.target.is_http(),
        });
        slot.key = parked;
        slot.in_ledger = true;
        known.slots.push(slot);
        row.in_ledger = true;
        self.schedule(Entry { key: parked, row: Row::Fire(row) });
        self.know(hash, known, fetched);
    }
}

/// What stands in the index for a fire that nothing is known of any more.
fn kind_of(id: &FireId) -> SlotKind {
    let FireId { occurrence, attempt, deferral, .. } = *id;
    match fire_ledger_key(id) {
        LedgerKey::Retry { .. } => SlotKind::Retry { occurrence, attempt, deferral },
        _ => SlotKind::Main,
    }
}

/// Nearly every fire: to a usable topic, of a size that fits, and nothing to settle. It goes out as
/// it stands, to this partition; when it was due is for the books.
fn plain(
    row: &RowBytes,
    topics: &mut Finder<'_>,
) -> Result<Option<(PartitionId, Timestamp)>, RowError> {
    let Some(fire) = row::view(row)?.filter(|fire| !fire.in_ledger) else { return Ok(None) };
    let TargetView::Topic { topic, .. } = fire.target else { return Ok(None) };
    let Some(&TopicState::Usable { partitions, record_bytes_max }) = topics.state(topic) else {
        return Ok(None);
    };
    let fits = record_bytes(&fire) <= record_bytes_max;
    Ok(fits.then(|| (partition_of(fire.record_key(), partitions), fire.scheduled)))
}

fn check_size(fire: &FireView<'_>, topic: &str, record_bytes_max: usize) -> Result<(), String> {
    let bytes = record_bytes(fire);
    if bytes <= record_bytes_max {
        return Ok(());
    }
    Err(format!(
        "a fire of {bytes} bytes does not fit topic {topic}, which takes {record_bytes_max}: raise \
         its max.message.bytes or send less"
    ))
}

fn record_bytes(fire: &FireView<'_>) -> usize {
    let header =
        |(name, value): (&str, Option<&[u8]>)| name.len() + value.map_or(0, <[u8]>::len) + 8;
    let headers: usize = fire.headers().map(header).sum();
    let payload = fire.payload.map_or(0, <[u8]>::len);
    payload + fire.record_key().len() + headers + RECORD_HEADROOM_BYTES
}

/// The partition Java's default partitioner gives a key.
fn partition_of(key: &[u8], partitions: i32) -> PartitionId {
    assert!(partitions > 0, "a usable topic has partitions");
    (murmur2(key) & 0x7fff_ffff).cast_signed() % partitions
}
