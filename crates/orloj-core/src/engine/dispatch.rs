//! Firing: what is due becomes a record for a topic or a worker.
//!
//! Law: firing writes nothing per trigger into the store. W says that it happened; only an entry
//! that the ledger holds is settled there. A fire that cannot go out fails its own trigger alone.

use super::catalog::{Catalog, Finder, TopicState};
use super::known::{IdHash, Known, Slot, SlotKind};
use super::partition::{CorruptRow, Due, Fetched, Partition};
use super::register::fire_ledger_key;
use super::series::Judged;
use super::step::{Emit, ToTopic};
use crate::codec::row::{self, FireView, RowBytes, RowError, TargetView};
use crate::model::dead_letter::{Content, DeadLetter, Origin};
use crate::model::definition::Target;
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::fire::{Fire, Withdrawal};
use crate::model::ledger::LedgerKey;
use crate::model::outcome::{Outcome, Verdict};
use crate::model::partitioner::murmur2;
use crate::model::schedule::Overlap;
use crate::model::signal::{Settled, Signal};
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey, rank};
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

    /// The ids whose index rows must be fetched: of those with a course, because more follows, and
    /// of those whose topic is away, because they will wait.
    #[must_use]
    pub fn lasting(&self, catalog: &Catalog) -> Vec<IdHash> {
        let some_away = catalog.some_away();
        let lasts = |row: &&RowBytes| {
            if !some_away || row::has_course(row) {
                return row::has_course(row);
            }
            let topic = row::target_topic(row).and_then(|topic| catalog.state(topic));
            let pool = || row::target_pool(row).and_then(|pool| catalog.pool(pool));
            matches!(topic.or_else(pool), Some(TopicState::Away(_)))
        };
        self.rows().filter(lasts).filter_map(id_of).collect()
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
        let fired = self.fire_all(late.into_iter().chain(entries), w, &mut topics, fetched);
        self.fired_from = self.cursor.triggers;
        self.wheel.advance(w);
        fired
    }

    fn fire_all(
        &mut self,
        due: impl Iterator<Item = (TimelineKey, RowBytes)>,
        w: TimelineKey,
        topics: &mut Finder<'_>,
        fetched: &Fetched,
    ) -> Result<(), CorruptRow> {
        // What follows from a fire is put behind all that fires with it.
        self.cursor.w = w;
        for (key, row) in due {
            let corrupt = |reason| CorruptRow { key, reason };
            if let Some((partition, scheduled)) = plain(&row, topics).map_err(corrupt)? {
                self.draft.emits.push(Emit::ToTopic(ToTopic { row, partition, scheduled }));
                continue;
            }
            match row::decode(&row).map_err(corrupt)? {
                Row::Veto { trigger, .. } => self.settle(LedgerKey::Veto(trigger)),
                Row::Watch { trigger, .. } => self.forget_watch(key, trigger, fetched),
                Row::Fire(fire) if fire.course.is_some() && key.source == Source::Triggers => {
                    self.run(key, fire, topics, fetched);
                }
                Row::Fire(fire) => self.dispatch(key, fire, row, topics, fetched),
            }
        }
        Ok(())
    }

    /// An occurrence of a trigger without a course, or a retry.
    fn dispatch(
        &mut self,
        key: TimelineKey,
        fire: FireRow,
        row: RowBytes,
        topics: &mut Finder<'_>,
        index: &Fetched,
    ) {
        let settled = fire.in_ledger.then(|| fire_ledger_key(&fire.id));
        let ends = fire.settles().then(|| fire.id.clone());
        match self.send(key, fire, row, topics) {
            Sent::Gone => {}
            Sent::Waits(fire) => return self.park(key, *fire, index),
            Sent::Buried => {
                if let Some(id) = ends {
                    let ended = Signal::Settled(Settled { id, ok: false });
                    self.send_signal(self.id, ended);
                }
            }
        }
        if let Some(key) = settled {
            self.settle(key);
        }
    }

    /// An entry with a course: it fires, waits, or is left out, and the next one takes its place.
    fn run(
        &mut self,
        key: TimelineKey,
        mut row: FireRow,
        topics: &mut Finder<'_>,
        index: &Fetched,
    ) {
        let hash = IdHash::of(&row.id.trigger);
        let mut known = self.known(hash, index);
        let slot = Slot::of(key, &row);
        if slot.kind == SlotKind::Past {
            self.forget_or_give_up(&mut known, &slot, row);
        } else if row.course.as_ref().is_some_and(|course| course.awaits.is_some()) {
            self.go_on(&mut known, &slot, row);
        } else if self.has_expired(&row) {
            let (generation, fire_at) = (row.id.generation, row.scheduled);
            self.note(row.id.trigger.clone(), Verdict::Expired { generation, fire_at });
            self.end_unfired(&mut known, &slot, row, false);
        } else {
            match self.judge(&mut row, key.due) {
                Judged::Waits(due) => {
                    let due = due.max(self.least());
                    self.stand(&mut known, &slot, row, due);
                }
                Judged::Over => self.leave_out(&mut known, &slot, row),
                Judged::Fires => match self.overlap(&mut row) {
                    Some(Overlap::Skip) => self.leave_out(&mut known, &slot, row),
                    Some(_) => {
                        let due = Self::queued_until(&row).max(self.least());
                        self.stand(&mut known, &slot, row, due);
                    }
                    None => self.fire_course(&mut known, &slot, row, topics),
                },
            }
        }
        self.know(hash, known, index);
    }

    fn fire_course(
        &mut self,
        known: &mut Known,
        slot: &Slot,
        mut row: FireRow,
        topics: &mut Finder<'_>,
    ) {
        let course = row.course.as_deref();
        let (recurs, called) =
            course.map_or((false, false), |course| (course.series.is_some(), course.called));
        let scheduled = row.scheduled;
        if recurs && called {
            // It is due by the command, and not instead of the next regular one.
            row.scheduled = self.clock;
            self.draft.called_at = self.clock;
        }
        let http = row.definition.target.is_http();
        let open = http && row.settles();
        let bytes = self.encode(&Row::Fire(FireRow { course: None, ..row.clone() }));
        let end = match self.send(slot.key, row.clone(), bytes, topics) {
            Sent::Gone => (!open).then_some(true),
            Sent::Buried => Some(false),
            Sent::Waits(_) => {
                row.scheduled = scheduled;
                let due = self.parked_until();
                return self.stand(known, slot, row, due);
            }
        };
        row.scheduled = scheduled;
        if recurs {
            self.advance(known, slot, row, end);
        } else {
            self.rest(known, slot, row, end);
        }
    }

    /// Whether a one-time trigger comes too late by its own rule.
    fn has_expired(&self, row: &FireRow) -> bool {
        let course = row.course.as_deref().filter(|course| !course.called);
        let most = course.and_then(|course| course.expire_after);
        most.is_some_and(|most| row.scheduled.saturating_add(most) < self.clock)
    }

    /// Makes the record of a fire, if it can be made now or never.
    fn send(
        &mut self,
        key: TimelineKey,
        fire: FireRow,
        row: RowBytes,
        topics: &mut Finder<'_>,
    ) -> Sent {
        match &fire.definition.target {
            Target::Http(target) => match self.way_to_pool(target.pool.as_ref(), topics) {
                Ok(true) => {
                    let fire = self.fire_of(key, fire);
                    self.draft.emits.push(Emit::ToWorker(Box::new(fire)));
                    Sent::Gone
                }
                Ok(false) => Sent::Waits(Box::new(fire)),
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
                            Sent::Gone
                        }
                        Err(reason) => self.bury(key, fire, reason),
                    }
                }
                Some(TopicState::Refused(reason)) => self.bury(key, fire, reason.clone()),
                // One that nobody looked up counts as away, so that its fire is not lost.
                Some(TopicState::Away(_)) | None => Sent::Waits(Box::new(fire)),
            },
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

    fn fire_of(&self, key: TimelineKey, row: FireRow) -> Fire {
        let (settles, priority, fired) = (row.settles(), rank(key.priority), self.clock);
        let FireRow { id, scheduled, definition, history, .. } = row;
        Fire { id, scheduled, fired, definition, history, settles, priority }
    }

    /// A fire nobody will ever be able to make: its trigger alone ends here.
    fn bury(&mut self, key: TimelineKey, row: FireRow, reason: String) -> Sent {
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
            content: Content::Fire { attempts: row.id.attempt, fire: self.fire_of(key, row) },
        };
        self.draft.emits.push(Emit::DeadLetter(Box::new(letter)));
        Sent::Buried
    }

    /// The target cannot be reached just now: the entry waits on, in the ledger, because its new
    /// place depends on more than its record's bytes.
    fn park(&mut self, key: TimelineKey, mut row: FireRow, fetched: &Fetched) {
        let due = self.parked_until();
        let parked = TimelineKey { due, ..key };
        let hash = IdHash::of(&row.id.trigger);
        let mut known = self.known(hash, fetched);
        let _fired = known.take(|slot| slot.key == key);
        row.in_ledger = true;
        known.slots.push(Slot::of(parked, &row));
        self.schedule(Entry { key: parked, row: Row::Fire(row) });
        self.know(hash, known, fetched);
    }

    fn parked_until(&self) -> Timestamp {
        self.clock.max(self.cursor.w.due) + self.rules.park.max(1)
    }
}

/// What became of a fire.
enum Sent {
    /// It is on its way.
    Gone,
    /// Its topic cannot be reached just now.
    Waits(Box<FireRow>),
    /// Nobody will ever be able to make it.
    Buried,
}

/// The trigger that a row is about.
fn id_of(row: &RowBytes) -> Option<IdHash> {
    match row::view(row).ok()? {
        Some(fire) => Some(IdHash::of(fire.trigger)),
        None => match row::decode(row).ok()? {
            Row::Watch { trigger, .. } => Some(IdHash::of(&trigger)),
            Row::Fire(_) | Row::Veto { .. } => None,
        },
    }
}

/// Nearly every fire: to a usable topic, of a size that fits, and nothing to settle. It goes out as
/// it stands, to this partition; when it was due is for the books.
fn plain(
    row: &RowBytes,
    topics: &mut Finder<'_>,
) -> Result<Option<(PartitionId, Timestamp)>, RowError> {
    if row::has_course(row) {
        return Ok(None);
    }
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
pub(super) fn partition_of(key: &[u8], partitions: i32) -> PartitionId {
    assert!(partitions > 0, "a usable topic has partitions");
    (murmur2(key) & 0x7fff_ffff).cast_signed() % partitions
}
