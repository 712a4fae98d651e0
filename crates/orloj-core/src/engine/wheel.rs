//! The wheel: the near horizon of a partition in memory, as a ring of buckets, one a tick.
//!
//! Invariant: every pending entry with W < key < `loaded_until` is in the wheel, and every entry in
//! the wheel is in the store as well, or in a step that will be written. So the wheel may drop its
//! far end whenever it is over budget; only [`Wheel::load`] adds it again.
//!
//! ```text
//!   W      base             loaded_until        base + ring
//!   │       │                    │                  │
//!   ▼───────▼──┬──┬──┬──┬──┬──┬──▼─┬──┬──┬──┬──┬──┬─┘        RocksDB holds all of it
//!   │ front    │  │  │  │  │  │    │  │  │  │  │  │
//!   └ overdue ─┴──┴── ahead ──┴────┴── not loaded ──►
//! ```

use std::collections::VecDeque;
use std::mem;

use crate::codec::row::RowBytes;
use crate::model::timeline::TimelineKey;
use crate::model::{Millis, Timestamp, work};

/// What an entry costs in memory besides the bytes of its row.
pub const ENTRY_BYTES: usize = size_of::<BucketOp>();

/// Most bytes asked of the store at once: a few ms of reading, so that fires never wait long for
/// it, and more entries than a step fires.
const LOAD_BYTES_MAX: usize = 4 << 20;

/// The pending entries of the near future.
#[derive(Debug)]
pub struct Wheel {
    tick: Millis,
    horizon: Millis,
    budget: usize,
    bytes: usize,
    /// The far end was dropped, and nothing has fired since: entries that are loaded now would be
    /// dropped again.
    over_budget: bool,
    fired_through: TimelineKey,
    loaded_until: TimelineKey,
    /// The tick of the front bucket, which also holds everything older.
    front_tick: u64,
    ring: VecDeque<Bucket>,
}

/// What the wheel needs from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadRequest {
    /// The first key to read.
    pub from: TimelineKey,
    /// The first key not to read.
    pub until: TimelineKey,
    /// Stop after the entry that reaches this many bytes, each entry counted with its row and
    /// [`ENTRY_BYTES`].
    pub bytes_max: usize,
}

/// What firing entries costs, or may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FiringCost {
    /// In plain fires.
    pub fires: usize,
    /// The bytes of what is written, about.
    pub bytes: usize,
}

impl FiringCost {
    /// That many plain fires, of any size.
    #[cfg(test)]
    pub(super) fn of_fires(fires: usize) -> Self {
        Self { fires, bytes: usize::MAX }
    }

    fn is_used_up(self) -> bool {
        self.fires == 0 || self.bytes == 0
    }

    fn less(self, cost: Self) -> Self {
        let fires = self.fires.saturating_sub(cost.fires);
        Self { fires, bytes: self.bytes.saturating_sub(cost.bytes) }
    }
}

impl Wheel {
    /// An empty wheel for a partition with this W. A bucket is `tick` ms
    /// wide, `horizon` ms are held ahead, in `budget` bytes: at most one row more.
    #[must_use]
    pub fn new(tick: Millis, horizon: Millis, budget: usize, fired_through: TimelineKey) -> Self {
        assert!(0 < tick && tick <= horizon, "a wheel has at least one bucket");
        assert!(0 < budget, "a wheel holds at least one entry");
        // One more for the tick that `now` is in, one for the tick that the horizon ends in.
        let buckets = usize::try_from(horizon.div_ceil(tick)).unwrap_or(usize::MAX) + 2;
        Self {
            tick,
            horizon,
            budget,
            bytes: 0,
            over_budget: false,
            fired_through,
            loaded_until: fired_through.successor(),
            front_tick: fired_through.due / tick,
            ring: VecDeque::from_iter((0..buckets).map(|_| Bucket::default())),
        }
    }

    /// Everything pending between W and this key (exclusive) is in memory.
    #[must_use]
    pub fn loaded_until(&self) -> TimelineKey {
        self.loaded_until
    }

    /// Memory held by entries, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What to load at `now` (ms), or `None` when enough is loaded or the budget is in use. The
    /// low marks lie at half the horizon and half the budget, so that the store is read seldom,
    /// in large slices, ahead of time; a quarter of the budget is kept free for new entries.
    #[must_use]
    pub fn load_request(&self, now: Timestamp) -> Option<LoadRequest> {
        let near = self.loaded_until.due <= now.saturating_add(self.horizon / 2);
        (near && self.has_room()).then(|| LoadRequest {
            from: self.loaded_until,
            until: TimelineKey::first_at(now.saturating_add(self.horizon)),
            bytes_max: (self.budget - self.budget / 4 - self.bytes).min(LOAD_BYTES_MAX),
        })
    }

    /// Takes over what the store has from `loaded_until` up to `reached` (exclusive). Nothing may
    /// happen between [`Wheel::load_request`], the scan and this; rows of steps that are decided
    /// but not in the store yet are inserted and removed again afterwards.
    pub fn load(
        &mut self,
        entries: impl IntoIterator<Item = (TimelineKey, RowBytes)>,
        reached: TimelineKey,
    ) {
        let from = self.loaded_until;
        assert!(from <= reached, "a scan goes forward");
        self.advance_to((reached.due / self.tick).saturating_sub(self.ring.len() as u64 - 1));
        for (key, row) in entries {
            assert!(from <= key && key < reached, "a scan returns what was asked for");
            self.push(key, Some(row));
        }
        self.loaded_until = reached;
        self.shrink();
    }

    /// Inserts an entry; inserting it again has no effect. False: it is not held, because it is
    /// beyond what is loaded and will be read from the store later, or it is not above W.
    pub fn insert(&mut self, key: TimelineKey, row: RowBytes) -> bool {
        if self.fired_through < key && key < self.loaded_until {
            self.push(key, Some(row));
            self.shrink();
        }
        self.fired_through < key && key < self.loaded_until
    }

    /// Removes an entry.
    pub fn remove(&mut self, key: TimelineKey) {
        if self.fired_through < key && key < self.loaded_until {
            self.push(key, None);
            self.shrink();
        }
    }

    /// Moves the entries up to `until` (inclusive) in key order to `out`, as long as some of
    /// `budget` is left; each takes what `cost` says, the last one perhaps more than is left.
    /// Returns whether some is left: then there are no more. Entries that are due but not loaded
    /// yet are not included: see [`Wheel::load_request`].
    pub fn take_due(
        &mut self,
        until: TimelineKey,
        mut budget: FiringCost,
        cost: impl Fn(&RowBytes) -> FiringCost,
        out: &mut Vec<(TimelineKey, RowBytes)>,
    ) -> bool {
        while !budget.is_used_up()
            && let Some(entry) = self.pop(until)
        {
            budget = budget.less(cost(&entry.1));
            out.push(entry);
        }
        !budget.is_used_up()
    }

    /// When to check again: never later than the first entry is due or a load is needed. (After a
    /// cancel it may be earlier.) In ms; at or before `now` means at once.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        let low = self.loaded_until.due.saturating_sub(self.horizon / 2);
        let load = self.has_room().then_some(low);
        let first = self.ring.iter().find(|bucket| !bucket.ops.is_empty());
        load.into_iter().chain(first.map(|bucket| bucket.earliest_due)).min()
    }

    /// A step moved W: nothing at or below it is needed any more.
    pub fn advance(&mut self, fired_through: TimelineKey) {
        self.fired_through = self.fired_through.max(fired_through);
        self.loaded_until = self.loaded_until.max(self.fired_through.successor());
        while self.pop(self.fired_through).is_some() {}
        self.advance_to(self.fired_through.due / self.tick);
    }

    fn has_room(&self) -> bool {
        self.bytes == 0 || (!self.over_budget && self.bytes <= self.budget / 2)
    }

    /// The next entry, if its key is at most `until`.
    fn pop(&mut self, until: TimelineKey) -> Option<(TimelineKey, RowBytes)> {
        while 0 < self.bytes {
            let front = &mut self.ring[0];
            self.bytes -= front.compact();
            if !front.ops.is_empty() {
                let (key, row) = front.pop(until)?;
                self.bytes -= ENTRY_BYTES + row.len();
                self.over_budget = false;
                return Some((key, row));
            }
            if until.due / self.tick <= self.front_tick {
                return None;
            }
            self.advance_to(self.front_tick + 1);
        }
        None
    }

    /// Makes the bucket of `tick` the front one; it takes over the entries of older ones.
    fn advance_to(&mut self, tick: u64) {
        let ahead = tick.saturating_sub(self.front_tick).min(self.ring.len() as u64 - 1);
        if ahead == 0 {
            return;
        }
        let mut front = mem::take(&mut self.ring[0]);
        for _ in 0..ahead {
            self.ring.rotate_left(1);
            self.bytes -= front.merge(mem::take(&mut self.ring[0]));
        }
        // Beyond a whole turn every bucket is empty, and any of them may be the front.
        self.ring[0] = front;
        self.front_tick = tick;
    }

    fn push(&mut self, key: TimelineKey, row: Option<RowBytes>) {
        let ahead = (key.due / self.tick).saturating_sub(self.front_tick);
        assert!(ahead < self.ring.len() as u64, "the ring reaches as far as is loaded");
        let bucket = &mut self.ring[ahead as usize];
        self.bytes += ENTRY_BYTES + row.as_ref().map_or(0, |row| row.len());
        self.bytes -= bucket.push(key, row);
    }

    /// Drops the far end, half a bucket at a time, until the budget is respected or
    /// one entry is left.
    fn shrink(&mut self) {
        while self.budget < self.bytes {
            let holds = |bucket: &Bucket| !bucket.ops.is_empty();
            let first = self.ring.iter().position(holds);
            let Some(last) = self.ring.iter().rposition(holds) else {
                unreachable!("bytes are held by entries");
            };
            let bucket = &mut self.ring[last];
            self.bytes -= bucket.compact();
            let keep = (bucket.ops.len() / 2).max(usize::from(first == Some(last)));
            if let Some((key, bytes)) = bucket.truncate(keep) {
                self.bytes -= bytes;
                self.over_budget = true;
                self.loaded_until = key;
            } else if keep == 1 {
                return;
            }
        }
    }
}

/// An entry that was added, or (`None`) removed.
type BucketOp = (TimelineKey, Option<RowBytes>);

/// The entries of one tick, as a log of additions and removals; sorted when they are due.
#[derive(Debug, Default)]
struct Bucket {
    ops: VecDeque<BucketOp>,
    /// How many ops are removals.
    removals: usize,
    /// In key order, each key once, no removals.
    is_sorted: bool,
    /// No entry is due before, in ms; meaningless when empty.
    earliest_due: Timestamp,
}

impl Bucket {
    /// Adds an op; returns how many bytes were freed by compaction.
    fn push(&mut self, key: TimelineKey, row: Option<RowBytes>) -> usize {
        let last = self.ops.back();
        self.earliest_due = last.map_or(key.due, |_| self.earliest_due.min(key.due));
        self.is_sorted = row.is_some() && last.is_none_or(|last| self.is_sorted && last.0 < key);
        self.removals += usize::from(row.is_none());
        self.ops.push_back((key, row));
        // So a mass cancel frees memory, at a cost spread over the cancels.
        if self.ops.len() / 3 < self.removals { self.compact() } else { 0 }
    }

    /// Sorts the entries by key, with the last op of each key; returns how many bytes
    /// that freed.
    fn compact(&mut self) -> usize {
        if self.is_sorted || self.ops.is_empty() {
            return 0;
        }
        work::count(self.ops.len());
        let mut freed = 0;
        let mut ops = Vec::from(mem::take(&mut self.ops));
        // Stable, and linear when most of it is in order already.
        ops.sort_by_key(|op| op.0);
        ops.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                mem::swap(later, earlier);
                freed += op_bytes(later);
            }
            same
        });
        ops.retain(|op| {
            freed += if op.1.is_none() { op_bytes(op) } else { 0 };
            op.1.is_some()
        });
        *self = Self { ops: ops.into(), removals: 0, is_sorted: true, earliest_due: 0 };
        self.update_earliest_due();
        freed
    }

    /// The first entry of a compacted bucket, if its key is at most `until`.
    fn pop(&mut self, until: TimelineKey) -> Option<(TimelineKey, RowBytes)> {
        let (key, row) = self.ops.pop_front_if(|op| op.0 <= until)?;
        self.update_earliest_due();
        Some((key, row.expect("a compacted bucket holds no removals")))
    }

    /// Takes over the entries of a later bucket; returns how many bytes that freed.
    fn merge(&mut self, mut later: Self) -> usize {
        if self.ops.is_empty() {
            *self = later;
            return 0;
        }
        let freed = later.compact();
        work::count(later.ops.len());
        self.ops.append(&mut later.ops);
        freed
    }

    /// Keeps the first `keep` entries of a compacted bucket. Returns the first key that was
    /// dropped, and the bytes, if any was.
    fn truncate(&mut self, keep: usize) -> Option<(TimelineKey, usize)> {
        let key = self.ops.get(keep)?.0;
        Some((key, self.ops.drain(keep..).map(|op| op_bytes(&op)).sum()))
    }

    fn update_earliest_due(&mut self) {
        self.earliest_due = self.ops.front().map_or(0, |op| op.0.due);
    }
}

fn op_bytes(op: &BucketOp) -> usize {
    ENTRY_BYTES + op.1.as_ref().map_or(0, |row| row.len())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::engine::step::RowOp;
    use crate::model::timeline::Source;

    const NOW: Timestamp = 1_790_000_000_000;
    const ONE: FiringCost = FiringCost { fires: 1, bytes: 1 };

    fn key(due: Timestamp, offset: u64) -> TimelineKey {
        TimelineKey { due, priority: 0, source: Source::Triggers, offset }
    }

    fn row(size: usize) -> RowBytes {
        RowBytes::from(vec![7; size])
    }

    /// Loads what is wanted from `store`, once.
    fn load(wheel: &mut Wheel, now: Timestamp, store: &BTreeMap<TimelineKey, RowBytes>) -> bool {
        let Some(load) = wheel.load_request(now) else { return false };
        let mut entries = Vec::new();
        let (mut bytes, mut reached) = (0, load.until);
        for (key, row) in store.range(load.from..load.until) {
            entries.push((*key, row.clone()));
            bytes += ENTRY_BYTES + row.len();
            if load.bytes_max <= bytes {
                reached = key.successor();
                break;
            }
        }
        wheel.load(entries, reached);
        true
    }

    fn load_all(wheel: &mut Wheel, now: Timestamp, store: &BTreeMap<TimelineKey, RowBytes>) {
        while load(wheel, now, store) {}
    }

    fn take(wheel: &mut Wheel, until: TimelineKey, max: usize) -> Vec<TimelineKey> {
        let mut out = Vec::new();
        wheel.take_due(until, FiringCost::of_fires(max), |_| ONE, &mut out);
        out.into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn entries_at_bucket_boundaries_are_due_in_their_millisecond() {
        let mut wheel = Wheel::new(10, 100, 1 << 20, key(999, 0));
        load_all(&mut wheel, 999, &BTreeMap::new());
        let keys = [1000, 1009, 1010, 1011, 1019, 1020].map(|due| key(due, due));
        for key in keys.iter().rev() {
            assert!(wheel.insert(*key, row(1)));
        }
        for key in keys {
            assert_eq!(wheel.next_due(), Some(key.due));
            assert!(take(&mut wheel, TimelineKey::last_at(key.due - 1), 9).is_empty());
            assert_eq!(take(&mut wheel, TimelineKey::last_at(key.due), 9), [key]);
        }
        assert_eq!(wheel.bytes(), 0);
    }

    #[test]
    fn ties_are_ordered_by_priority_then_source_then_offset() {
        let mut wheel = Wheel::new(10, 100, 1 << 20, key(0, 0));
        load_all(&mut wheel, 0, &BTreeMap::new());
        let tie = |priority, source, offset| TimelineKey { due: 5, priority, source, offset };
        let (triggers, signals) = (Source::Triggers, Source::Signals);
        let keys =
            [tie(0, triggers, 2), tie(0, triggers, 3), tie(0, signals, 1), tie(1, triggers, 0)];
        for at in [2, 0, 3, 1] {
            wheel.insert(keys[at], row(1));
        }
        assert_eq!(take(&mut wheel, key(5, 2), 9), keys[..1]);
        assert_eq!(take(&mut wheel, TimelineKey::last_at(5), 1), keys[1..2]);
        assert_eq!(take(&mut wheel, TimelineKey::last_at(5), 9), keys[2..]);
    }

    #[test]
    fn a_new_partition_does_not_advance_tick_by_tick_from_the_epoch() {
        let mut wheel = Wheel::new(1, 30_000, 1 << 20, TimelineKey::MIN);
        let keys = [key(5, 1), key(NOW - 86_400_000, 2), key(NOW - 1, 3), key(NOW + 7, 4)];
        let store = BTreeMap::from(keys.map(|key| (key, row(1))));
        load_all(&mut wheel, NOW, &store);
        assert_eq!(take(&mut wheel, TimelineKey::last_at(NOW), 9), keys[..3]);
        wheel.advance(TimelineKey::last_at(NOW));
        assert_eq!(wheel.next_due(), Some(NOW + 7));
        assert_eq!(take(&mut wheel, TimelineKey::last_at(NOW + 7), 9), keys[3..]);
    }

    #[test]
    fn a_million_entries_of_one_ms_stream_through_a_small_budget() {
        let (total, size, budget) = (1_000_000, 30, 1 << 20);
        let mut wheel = Wheel::new(10, 1000, budget, key(NOW - 1, 0));
        let mut fired = 0;
        while fired < total {
            if let Some(load) = wheel.load_request(NOW) {
                let first = if load.from.due < NOW { 0 } else { load.from.offset };
                let count = load.bytes_max.div_ceil(ENTRY_BYTES + size) as u64;
                let last = total.min(first + count);
                let reached = if last == total { load.until } else { key(NOW, last) };
                wheel.load((first..last).map(|offset| (key(NOW, offset), row(size))), reached);
            }
            assert!(wheel.bytes() <= budget + ENTRY_BYTES + size);
            let due = take(&mut wheel, TimelineKey::last_at(NOW), 5000);
            assert!(!due.is_empty());
            assert!(due.iter().map(|key| key.offset).eq(fired..fired + due.len() as u64));
            fired += due.len() as u64;
            wheel.advance(due[due.len() - 1]);
        }
    }

    #[test]
    fn a_row_larger_than_the_budget_is_still_loaded() {
        let mut wheel = Wheel::new(10, 1000, 100, key(NOW, 0));
        let store = BTreeMap::from([1, 2, 3].map(|due| (key(NOW + due, due), row(1000))));
        for due in [1, 2, 3] {
            load_all(&mut wheel, NOW + due, &store);
            assert_eq!(take(&mut wheel, TimelineKey::last_at(NOW + due), 9), [key(NOW + due, due)]);
            wheel.advance(key(NOW + due, due));
        }
    }

    #[test]
    fn a_mass_cancel_of_one_bucket_frees_its_memory() {
        let mut wheel = Wheel::new(10, 1000, 1 << 30, key(NOW, 0));
        load_all(&mut wheel, NOW, &BTreeMap::new());
        for offset in 0..300_000 {
            wheel.insert(key(NOW + 5, offset), row(10));
        }
        for offset in (0..300_000).rev().filter(|offset| offset % 1000 != 0) {
            wheel.remove(key(NOW + 5, offset));
        }
        assert!(wheel.bytes() <= 3 * 300 * (ENTRY_BYTES + 10));
        assert_eq!(take(&mut wheel, TimelineKey::last_at(NOW + 5), usize::MAX).len(), 300);
        assert_eq!(wheel.bytes(), 0);
    }

    #[derive(Clone, Debug)]
    enum WheelOp {
        Register { in_ms: u64, size: usize },
        Cancel { nth: usize },
        Commit,
        Load,
        Fire { after_ms: u64, max: usize },
    }

    fn wheel_op() -> impl Strategy<Value = WheelOp> {
        prop_oneof![
            6 => (1..400u64, 0..60usize)
                .prop_map(|(in_ms, size)| WheelOp::Register { in_ms, size }),
            2 => any::<usize>().prop_map(|nth| WheelOp::Cancel { nth }),
            2 => Just(WheelOp::Commit),
            2 => Just(WheelOp::Load),
            2 => (0..80u64, 1..8usize).prop_map(|(after_ms, max)| WheelOp::Fire { after_ms, max }),
        ]
    }

    fn apply_row_op(wheel: &mut Wheel, row: &RowOp) {
        match row {
            RowOp::Put { key, row } => _ = wheel.insert(*key, row.clone()),
            RowOp::Delete { key } => wheel.remove(*key),
            _ => {}
        }
    }

    /// Changes that a load could not see are applied again.
    fn apply_row_op_within(
        from: TimelineKey,
        reached: TimelineKey,
        wheel: &mut Wheel,
        row: &RowOp,
    ) {
        if let RowOp::Put { key, .. } | RowOp::Delete { key } = row
            && (from..reached).contains(key)
        {
            apply_row_op(wheel, row);
        }
    }

    /// A small model of a partition's shell: rows reach the store some time after they are decided.
    struct TestShell {
        wheel: Wheel,
        store: BTreeMap<TimelineKey, RowBytes>,
        unapplied: Vec<RowOp>,
        pending: BTreeMap<TimelineKey, RowBytes>,
        now: Timestamp,
        offset: u64,
        budget: usize,
    }

    impl TestShell {
        fn run(&mut self, act: &WheelOp) {
            match *act {
                WheelOp::Register { in_ms, size } => {
                    self.offset += 1;
                    let (key, row) = (key(self.now + in_ms, self.offset), row(size));
                    self.pending.insert(key, row.clone());
                    self.add_row_op(RowOp::Put { key, row });
                }
                WheelOp::Cancel { nth } => {
                    let key = self.pending.keys().nth(nth % self.pending.len().max(1)).copied();
                    if let Some(key) = key {
                        self.pending.remove(&key);
                        self.add_row_op(RowOp::Delete { key });
                    }
                }
                WheelOp::Commit => self.commit(),
                WheelOp::Load => {
                    let mut loads = 0;
                    let mut from = self.wheel.loaded_until();
                    while load(&mut self.wheel, self.now, &self.store) {
                        let reached = self.wheel.loaded_until();
                        for row in &self.unapplied {
                            apply_row_op_within(from, reached, &mut self.wheel, row);
                        }
                        from = self.wheel.loaded_until();
                        loads += 1;
                        assert!(loads <= self.offset + 2, "loading ends");
                    }
                }
                WheelOp::Fire { after_ms, max } => self.fire(after_ms, max),
            }
            assert!(self.wheel.bytes() <= self.budget + ENTRY_BYTES + 60);
            if let Some((first, _)) = self.pending.first_key_value() {
                assert!(self.wheel.next_due().is_some_and(|at| at <= first.due));
            }
        }

        fn add_row_op(&mut self, row: RowOp) {
            apply_row_op(&mut self.wheel, &row);
            self.unapplied.push(row);
        }

        fn commit(&mut self) {
            for row in self.unapplied.drain(..) {
                match row {
                    RowOp::Put { key, row } => _ = self.store.insert(key, row),
                    RowOp::Delete { key } => _ = self.store.remove(&key),
                    _ => {}
                }
            }
        }

        /// Fires what is due and loaded: exactly that, in key order.
        fn fire(&mut self, after_ms: u64, max: usize) {
            self.now += after_ms;
            let until = TimelineKey::last_at(self.now);
            let end = self.wheel.loaded_until().min(until.successor());
            let expected: Vec<_> =
                self.pending.range(..end).take(max).map(|(k, r)| (*k, r.clone())).collect();
            let mut out = Vec::new();
            self.wheel.take_due(until, FiringCost::of_fires(max), |_| ONE, &mut out);
            assert_eq!(out, expected);
            for (key, _) in &out {
                self.pending.remove(key);
            }
            let all = self.pending.first_key_value().is_none_or(|(first, _)| until < *first);
            let taken = out.last().map(|(key, _)| *key);
            if let Some(w) = if all { Some(until) } else { taken } {
                self.wheel.advance(w);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn nothing_is_lost_doubled_or_out_of_order(
            acts in prop::collection::vec(wheel_op(), 1..200),
            tick in 1..20u64,
            horizon in 20..300u64,
            budget in 1..4000usize,
        ) {
            let mut shell = TestShell {
                wheel: Wheel::new(tick, horizon, budget, TimelineKey::MIN),
                store: BTreeMap::new(),
                unapplied: Vec::new(),
                pending: BTreeMap::new(),
                now: NOW,
                offset: 0,
                budget,
            };
            for act in &acts {
                shell.run(act);
            }
            for _ in 0..=2 * acts.len() + 10 {
                shell.run(&WheelOp::Commit);
                shell.run(&WheelOp::Load);
                shell.run(&WheelOp::Fire { after_ms: 50, max: 8 });
            }
            prop_assert!(shell.pending.is_empty(), "never fired: {:?}", shell.pending);
            prop_assert_eq!(shell.wheel.bytes(), 0, "nothing is left");
        }
    }
}
