//! Firing: a due entry becomes a record for a topic or a worker.
//!
//! Invariant: firing writes nothing per trigger into the store. W records that it happened; only an
//! entry that is in the ledger is settled there. A fire that cannot be sent fails only its own
//! trigger.

use super::catalog::{CachingCatalog, TopicCatalog, TopicState};
use super::index_row::{IdHash, IndexEntry, IndexEntryKind, IndexRow};
use super::partition::{CorruptRow, DueEntries, IndexRows, Partition};
use super::recurrence::OccurrenceDecision;
use super::registration::fire_ledger_key;
use super::step::{Emit, TopicFire};
use crate::codec::row::{self, FireView, RowBytes, RowError, TargetView};
use crate::model::dead_letter::{Content, DeadLetter, Origin};
use crate::model::definition::Target;
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::fire::{Fire, Withdrawal};
use crate::model::ledger::LedgerKey;
use crate::model::outcome::{Outcome, OutcomeKind};
use crate::model::partitioner::murmur2;
use crate::model::schedule::Overlap;
use crate::model::signal::{CallbackEnded, Signal};
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey, rank};
use crate::model::{PartitionId, Timestamp};

/// Bytes that our own headers and the record's frame add to a fire at most; kept free so that a
/// record that fits by this count is never refused by the broker.
const RECORD_HEADROOM_BYTES: usize = 1_024;

impl DueEntries {
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

    /// The target topics that must be looked up before these fire, with repetitions.
    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.rows().filter_map(|row| row::target_topic(row))
    }

    /// The pools whose topics must be looked up before these fire, with repetitions.
    pub fn pools(&self) -> impl Iterator<Item = &str> {
        let named = self.rows().filter_map(|row| row::target_pool(row));
        named.chain(self.pools.iter().map(Text::as_str))
    }

    /// The ids whose index rows must be fetched: of entries with a lifecycle, which may be
    /// scheduled again, and of those whose topic is unavailable, which will wait.
    #[must_use]
    pub fn ids_to_prefetch(&self, catalog: &TopicCatalog) -> Vec<IdHash> {
        let any_unavailable = catalog.any_unavailable();
        let needs_index_row = |row: &&RowBytes| {
            if !any_unavailable || row::has_lifecycle(row) {
                return row::has_lifecycle(row);
            }
            let topic = row::target_topic(row).and_then(|topic| catalog.state(topic));
            let pool = || row::target_pool(row).and_then(|pool| catalog.pool(pool));
            matches!(topic.or_else(pool), Some(TopicState::Unavailable(_)))
        };
        self.rows().filter(needs_index_row).filter_map(trigger_hash).collect()
    }

    fn rows(&self) -> impl Iterator<Item = &RowBytes> {
        self.late.iter().chain(&self.entries).map(|(_, row)| row)
    }
}

impl Partition {
    /// Fires what [`take_due`](Self::take_due) returned, and moves W past it. `catalog` has the
    /// topics they name; `fetched` has the index rows of those that must wait.
    pub fn fire(
        &mut self,
        due: DueEntries,
        catalog: &TopicCatalog,
        fetched: &IndexRows,
    ) -> Result<(), CorruptRow> {
        self.draft.emits.reserve(due.len());
        let DueEntries { late, entries, withdrawals, pools, fired_through } = due;
        assert!(fired_through >= self.cursor.fired_through, "W never moves back");
        let mut topics = CachingCatalog::new(catalog);
        for withdrawal in withdrawals {
            self.emit_withdrawals(withdrawal, &pools, &topics);
        }
        let fired =
            self.fire_entries(late.into_iter().chain(entries), fired_through, &mut topics, fetched);
        self.next_offset_at_last_fire = self.cursor.next_offset;
        self.wheel.advance(fired_through);
        fired
    }

    fn fire_entries(
        &mut self,
        due: impl Iterator<Item = (TimelineKey, RowBytes)>,
        fired_through: TimelineKey,
        topics: &mut CachingCatalog<'_>,
        fetched: &IndexRows,
    ) -> Result<(), CorruptRow> {
        // Entries that follow from a fire are scheduled after everything that fires with it.
        self.cursor.fired_through = fired_through;
        for (key, row) in due {
            let corrupt = |reason| CorruptRow { key, reason };
            if let Some((partition, scheduled)) = plain_topic_fire(&row, topics).map_err(corrupt)? {
                self.draft.emits.push(Emit::ToTopic(TopicFire { row, partition, scheduled }));
                continue;
            }
            match row::decode(&row).map_err(corrupt)? {
                Row::Veto { trigger, .. } => self.delete_ledger_entry(LedgerKey::Veto(trigger)),
                Row::Watch { trigger, .. } => self.expire_watch(key, trigger, fetched),
                Row::Fire(fire) if fire.lifecycle.is_some() && key.source == Source::Triggers => {
                    self.fire_with_lifecycle(key, fire, topics, fetched);
                }
                Row::Fire(fire) => self.fire_simple(key, fire, row, topics, fetched),
            }
        }
        Ok(())
    }

    /// An occurrence of a trigger without a lifecycle, or a retry.
    fn fire_simple(
        &mut self,
        key: TimelineKey,
        fire: FireRow,
        row: RowBytes,
        topics: &mut CachingCatalog<'_>,
        index: &IndexRows,
    ) {
        let settled = fire.in_ledger.then(|| fire_ledger_key(&fire.id));
        let ends = fire.reports_end().then(|| fire.id.clone());
        match self.try_send(key, fire, row, topics) {
            DispatchResult::Sent => {}
            DispatchResult::Parked(fire) => return self.park(key, *fire, index),
            DispatchResult::DeadLettered => {
                if let Some(id) = ends {
                    let ended = Signal::CallbackEnded(CallbackEnded { id, ok: false });
                    self.send_signal(self.id, ended);
                }
            }
        }
        if let Some(key) = settled {
            self.delete_ledger_entry(key);
        }
    }

    /// An entry with a lifecycle: it fires, waits or is skipped, and the next one replaces it.
    fn fire_with_lifecycle(
        &mut self,
        key: TimelineKey,
        mut row: FireRow,
        topics: &mut CachingCatalog<'_>,
        index: &IndexRows,
    ) {
        let hash = IdHash::of(&row.id.trigger);
        let mut index_row = self.index_row(hash, index);
        let entry = IndexEntry::for_row(key, &row);
        if entry.kind == IndexEntryKind::Remembered {
            self.expire_lifecycle(&mut index_row, &entry, row);
        } else if row.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.dependencies.is_some()) {
            self.finish_waiting(&mut index_row, &entry, row);
        } else if self.has_expired(&row) {
            let (generation, fire_at) = (row.id.generation, row.scheduled);
            self.emit_outcome(row.id.trigger.clone(), OutcomeKind::Expired { generation, fire_at });
            self.complete_unfired(&mut index_row, &entry, row, false);
        } else {
            match self.decide_occurrence(&mut row, key.due) {
                OccurrenceDecision::WaitUntil(due) => {
                    let due = due.max(self.min_due());
                    self.reschedule(&mut index_row, &entry, row, due);
                }
                OccurrenceDecision::Finished => self.skip_occurrence(&mut index_row, &entry, row),
                OccurrenceDecision::Fire => match self.check_overlap(&mut row) {
                    Some(Overlap::Skip) => self.skip_occurrence(&mut index_row, &entry, row),
                    Some(_) => {
                        let due = Self::queued_until(&row).max(self.min_due());
                        self.reschedule(&mut index_row, &entry, row, due);
                    }
                    None => self.fire_occurrence(&mut index_row, &entry, row, topics),
                },
            }
        }
        self.put_index_row(hash, index_row, index);
    }

    fn fire_occurrence(
        &mut self,
        index_row: &mut IndexRow,
        entry: &IndexEntry,
        mut row: FireRow,
        topics: &mut CachingCatalog<'_>,
    ) {
        let lifecycle = row.lifecycle.as_deref();
        let (recurs, called) = lifecycle.map_or((false, false), |lifecycle| {
            (lifecycle.recurrence.is_some(), lifecycle.fire_now_requested)
        });
        let scheduled = row.scheduled;
        if recurs && called {
            // It is due because of the command, in addition to the next regular one.
            row.scheduled = self.clock;
            self.draft.fired_by_command_at = self.clock;
        }
        let http = row.definition.target.is_http();
        let open = http && row.reports_end();
        let bytes = self.encode(&Row::Fire(FireRow { lifecycle: None, ..row.clone() }));
        let end = match self.try_send(entry.key, row.clone(), bytes, topics) {
            DispatchResult::Sent => (!open).then_some(true),
            DispatchResult::DeadLettered => Some(false),
            DispatchResult::Parked(_) => {
                row.scheduled = scheduled;
                let due = self.parked_until();
                return self.reschedule(index_row, entry, row, due);
            }
        };
        row.scheduled = scheduled;
        if recurs {
            self.advance_recurrence(index_row, entry, row, end);
        } else {
            self.complete(index_row, entry, row, end);
        }
    }

    /// Whether a one-time trigger is later than its `expireAfter`.
    fn has_expired(&self, row: &FireRow) -> bool {
        let lifecycle = row.lifecycle.as_deref().filter(|lifecycle| !lifecycle.fire_now_requested);
        let most = lifecycle.and_then(|lifecycle| lifecycle.expire_after);
        most.is_some_and(|most| row.scheduled.saturating_add(most) < self.clock)
    }

    /// Sends a fire if it can be sent now; one that can never be sent is a dead letter.
    fn try_send(
        &mut self,
        key: TimelineKey,
        fire: FireRow,
        row: RowBytes,
        topics: &mut CachingCatalog<'_>,
    ) -> DispatchResult {
        match &fire.definition.target {
            Target::Http(target) => match self.is_pool_writable(target.pool.as_ref(), topics) {
                Ok(true) => {
                    let fire = self.make_fire(key, fire);
                    self.draft.emits.push(Emit::ToWorker(Box::new(fire)));
                    DispatchResult::Sent
                }
                Ok(false) => DispatchResult::Parked(Box::new(fire)),
                Err(reason) => self.emit_dead_letter(key, fire, reason),
            },
            Target::Topic(target) => match topics.state(target.topic.as_str()) {
                Some(&TopicState::Usable { partitions, record_bytes_max }) => {
                    let view = row::view(&row).ok().flatten().expect("the row was just decoded");
                    match check_size(&view, target.topic.as_str(), record_bytes_max) {
                        Ok(()) => {
                            let partition = murmur2_partition(view.record_key(), partitions);
                            let scheduled = fire.scheduled;
                            let fire = TopicFire { row, partition, scheduled };
                            self.draft.emits.push(Emit::ToTopic(fire));
                            DispatchResult::Sent
                        }
                        Err(reason) => self.emit_dead_letter(key, fire, reason),
                    }
                }
                Some(TopicState::Unusable(reason)) => {
                    self.emit_dead_letter(key, fire, reason.clone())
                }
                // One that was not looked up counts as unavailable, so that its fire is not lost.
                Some(TopicState::Unavailable(_)) | None => DispatchResult::Parked(Box::new(fire)),
            },
        }
    }

    /// Sends a withdrawal to every pool, because the pool of a fire is not stored. Pools whose
    /// topics cannot be written get none: their callbacks are made.
    fn emit_withdrawals(
        &mut self,
        withdrawal: Withdrawal,
        pools: &[Text],
        topics: &CachingCatalog<'_>,
    ) {
        let reached = |pool: &&Text| self.is_pool_writable(Some(pool), topics) == Ok(true);
        let pools: Vec<Text> = pools.iter().filter(reached).cloned().collect();
        let withdrawal = Box::new(withdrawal);
        for pool in std::iter::once(None).chain(pools.into_iter().map(Some)) {
            self.draft.emits.push(Emit::Withdraw { pool, withdrawal: withdrawal.clone() });
        }
    }

    /// Whether a fire of this partition can be written to the pool's topic. The default pool's
    /// topic exists like all of ours.
    fn is_pool_writable(
        &self,
        pool: Option<&Text>,
        topics: &CachingCatalog<'_>,
    ) -> Result<bool, String> {
        let Some(pool) = pool else { return Ok(true) };
        match topics.pool(pool.as_str()) {
            Some(TopicState::Usable { partitions, .. }) if *partitions <= self.id => Err(format!(
                "the topic of pool {pool} has {partitions} partitions and lacks {}: it needs as \
                 many as the other topics; `orloj topics verify` compares them",
                self.id
            )),
            Some(TopicState::Usable { .. }) => Ok(true),
            Some(TopicState::Unusable(reason)) => Err(reason.clone()),
            Some(TopicState::Unavailable(_)) | None => Ok(false),
        }
    }

    fn make_fire(&self, key: TimelineKey, row: FireRow) -> Fire {
        let (settles, priority, fired) = (row.reports_end(), rank(key.priority), self.clock);
        let FireRow { id, scheduled, definition, history, .. } = row;
        Fire { id, scheduled, fired, definition, history, report_end: settles, priority }
    }

    /// A fire that can never be sent: only its own trigger ends.
    fn emit_dead_letter(
        &mut self,
        key: TimelineKey,
        row: FireRow,
        reason: String,
    ) -> DispatchResult {
        let topics = &self.config.topics;
        let topic = match key.source {
            Source::Triggers => topics.triggers.clone(),
            Source::Signals => topics.signals.clone(),
        };
        let kind = OutcomeKind::Failed {
            generation: row.id.generation,
            occurrence: row.id.occurrence,
            attempt: row.id.attempt,
            status: None,
            reason: reason.clone(),
            retry_at: None,
        };
        let trigger = row.id.trigger.clone();
        let outcome = Outcome { trigger, answers: None, at: self.clock, kind };
        self.draft.emits.push(Emit::Outcome(Box::new(outcome)));
        let letter = DeadLetter {
            origin: Origin { topic, partition: self.id, offset: key.offset },
            reason,
            at: self.clock,
            content: Content::Fire { attempts: row.id.attempt, fire: self.make_fire(key, row) },
        };
        self.draft.emits.push(Emit::DeadLetter(Box::new(letter)));
        DispatchResult::DeadLettered
    }

    /// The target cannot be reached now: the entry waits, in the ledger, because its new key
    /// depends on more than its record's bytes.
    fn park(&mut self, key: TimelineKey, mut row: FireRow, fetched: &IndexRows) {
        let due = self.parked_until();
        let parked = TimelineKey { due, ..key };
        let hash = IdHash::of(&row.id.trigger);
        let mut index_row = self.index_row(hash, fetched);
        let _fired = index_row.extract_if(|entry| entry.key == key);
        row.in_ledger = true;
        index_row.entries.push(IndexEntry::for_row(parked, &row));
        self.schedule_entry(Entry { key: parked, row: Row::Fire(row) });
        self.put_index_row(hash, index_row, fetched);
    }

    fn parked_until(&self) -> Timestamp {
        self.clock.max(self.cursor.fired_through.due) + self.config.park_interval.max(1)
    }
}

/// The result of sending a fire.
enum DispatchResult {
    /// It is in the draft.
    Sent,
    /// Its topic cannot be reached now.
    Parked(Box<FireRow>),
    /// It can never be sent.
    DeadLettered,
}

/// The trigger that a row is about.
fn trigger_hash(row: &RowBytes) -> Option<IdHash> {
    match row::view(row).ok()? {
        Some(fire) => Some(IdHash::of(fire.trigger)),
        None => match row::decode(row).ok()? {
            Row::Watch { trigger, .. } => Some(IdHash::of(&trigger)),
            Row::Fire(_) | Row::Veto { .. } => None,
        },
    }
}

/// The common case: a fire to a usable topic, of a size that fits, with nothing to settle. Its row
/// is sent unchanged. Returns the target's partition, and when it was due, for metrics.
fn plain_topic_fire(
    row: &RowBytes,
    topics: &mut CachingCatalog<'_>,
) -> Result<Option<(PartitionId, Timestamp)>, RowError> {
    if row::has_lifecycle(row) {
        return Ok(None);
    }
    let Some(fire) = row::view(row)?.filter(|fire| !fire.in_ledger) else { return Ok(None) };
    let TargetView::Topic { topic, .. } = fire.target else { return Ok(None) };
    let Some(&TopicState::Usable { partitions, record_bytes_max }) = topics.state(topic) else {
        return Ok(None);
    };
    let fits = record_bytes(&fire) <= record_bytes_max;
    Ok(fits.then(|| (murmur2_partition(fire.record_key(), partitions), fire.scheduled)))
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
pub(super) fn murmur2_partition(key: &[u8], partitions: i32) -> PartitionId {
    assert!(partitions > 0, "a usable topic has partitions");
    (murmur2(key) & 0x7fff_ffff).cast_signed() % partitions
}
