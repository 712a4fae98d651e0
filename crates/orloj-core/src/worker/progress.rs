//! The progress of a partition of fires when callbacks end out of order.
//!
//! Invariant: the committed offset is the lowest unfinished one; what is finished above it is
//! stored in the commit's metadata, so that a restart repeats nothing. The number of open offsets
//! is bounded so that the metadata always fits, in whatever order callbacks end.
//!
//! ```text
//!   offset   40  41  42  43  44  45        40 is committed
//!           open done done open done next
//!     near  the bits 0 1 1 0 1             everything lies within WINDOW_MAX, whatever is open
//!     far   the steps 3 2                  to the next open one, and to `next`: few are open
//! ```

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use crate::model::Offset;

/// Within this many offsets any may be open. One bit each, in base64 after the version, takes 4,002
/// bytes; brokers refuse metadata beyond 4,096 (`offset.metadata.max.bytes`).
pub const WINDOW_MAX: u64 = 24_000;
/// Open offsets beyond that window: three bytes each, in base64 after the version, also take 4,002
/// bytes. So a few receivers that hang do not block their partition.
pub const OPEN_MAX: usize = 1_000;
/// The largest distance from the lowest open offset to the newest: what three bytes can encode.
pub const OFFSET_SPAN_MAX: u64 = 1 << (3 * STEP_BITS);

/// Bits of a number in each byte of a step; the eighth bit says that more bytes follow.
const STEP_BITS: u32 = 7;
/// The prefix of either form of the metadata; any other prefix is another format.
const BITS_PREFIX: &str = "1:";
const STEPS_PREFIX: &str = "2:";

/// Why committed progress cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("progress {0:?} was not written by this version of Orloj: upgrade this worker")]
pub struct ProgressError(pub String);

/// Which fires of a partition are finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FireProgress {
    /// Started, or to be started again after a restart, and not finished.
    open: BTreeSet<Offset>,
    /// Everything below is open or finished; nothing from here on has been read.
    next: Offset,
    /// Nothing below can be read any more: `next` follows as soon as the metadata reaches so far.
    log_start: Offset,
}

impl FireProgress {
    /// Restores what was committed. Without metadata the offset was set by hand: nothing above it
    /// is finished.
    pub fn restore(offset: Offset, metadata: &str) -> Result<Self, ProgressError> {
        let mut restored = Self { open: BTreeSet::new(), next: offset, log_start: 0 };
        if metadata.is_empty() {
            return Ok(restored);
        }
        let decode = |text: &str| STANDARD_NO_PAD.decode(text).ok();
        let read = match (metadata.strip_prefix(BITS_PREFIX), metadata.strip_prefix(STEPS_PREFIX)) {
            (Some(bits), _) => decode(bits).map(|bits| restored.decode_bits(&bits)),
            (_, Some(steps)) => decode(steps).and_then(|steps| restored.decode_steps(&steps)),
            _ => None,
        };
        read.map(|()| restored).ok_or_else(|| ProgressError(metadata.to_owned()))
    }

    /// The lowest unfinished offset: what to commit, and where to read from after a restart.
    #[must_use]
    pub fn commit_offset(&self) -> Offset {
        self.open.first().copied().unwrap_or(self.next)
    }

    /// How many fires from `offset` on can be started before another must end.
    #[must_use]
    pub fn room(&self, offset: Offset) -> usize {
        self.room_without(offset, 0)
    }

    /// The same, at least, after so many open ones have ended.
    #[must_use]
    pub fn room_without(&self, offset: Offset, ended: usize) -> usize {
        if offset < self.next {
            return usize::MAX; // it was started before, and is counted
        }
        let ahead = self.open.first().map_or(0, |lowest| offset.saturating_sub(*lowest));
        let near = usize::try_from(WINDOW_MAX.saturating_sub(ahead)).unwrap_or(usize::MAX);
        let open = self.open.len().saturating_sub(ended);
        let far = if ahead < OFFSET_SPAN_MAX { OPEN_MAX.saturating_sub(open) } else { 0 };
        near.max(far)
    }

    /// Whether a fire at `offset` can be started.
    #[must_use]
    pub fn has_room(&self, offset: Offset) -> bool {
        self.room(offset) > 0
    }

    /// Whether a fire that is open at `offset` may stay so until its partition moves: half of the
    /// window, or of the open offsets beyond it, is left for those that start.
    #[must_use]
    pub fn may_wait(&self, offset: Offset) -> bool {
        let ahead = offset.saturating_sub(self.commit_offset());
        let is_near = ahead <= WINDOW_MAX / 2;
        is_near || ahead <= OFFSET_SPAN_MAX / 2 && self.open.len() <= OPEN_MAX / 2
    }

    /// Records the next record of the log; returns whether its callback is to be made. Offsets that
    /// are skipped (the log's own markers) count as finished.
    pub fn start(&mut self, offset: Offset) -> bool {
        assert!(
            self.has_room(offset),
            "{offset} is outside the window of {}",
            self.commit_offset()
        );
        if offset < self.next {
            return self.open.contains(&offset);
        }
        self.next = offset + 1;
        self.open.insert(offset)
    }

    /// The result of `offset` is about to be committed.
    pub fn finish(&mut self, offset: Offset) {
        assert!(self.open.remove(&offset), "{offset} was not open");
        self.follow_log_start();
    }

    /// The log starts at `low` now: drops the open offsets from `from` on that lie below it, and
    /// were not read. Returns how many there were. If too many others are open for the metadata to
    /// reach as far as `low`, there is no room for a record there until some have ended.
    pub fn drop_unread(&mut self, from: Offset, low: Offset) -> usize {
        let before = self.open.len();
        self.open.retain(|offset| *offset < from || *offset >= low);
        self.log_start = low;
        self.follow_log_start();
        before - self.open.len()
    }

    fn follow_log_start(&mut self) {
        let start = self.log_start;
        let distance = self.open.first().map_or(0, |lowest| start.saturating_sub(*lowest));
        let is_near = distance <= WINDOW_MAX;
        if is_near || self.open.len() <= OPEN_MAX && distance <= OFFSET_SPAN_MAX {
            self.next = self.next.max(start);
        }
    }

    /// The first offset that was in the log when something below it was found to be deleted; or 0.
    #[must_use]
    pub fn log_start(&self) -> Offset {
        self.log_start
    }

    /// Everything from here on was not read.
    #[must_use]
    pub fn read_end(&self) -> Offset {
        self.next
    }

    /// The log ends at `end`: what is written from there on is unfinished. Returns whether anything
    /// from there on was read before.
    pub fn cut(&mut self, end: Offset) -> bool {
        let is_cut = end < self.next;
        self.open.retain(|offset| *offset < end);
        (self.next, self.log_start) = (self.next.min(end), self.log_start.min(end));
        is_cut
    }

    /// The metadata that is committed with [`commit_offset`](Self::commit_offset).
    #[must_use]
    pub fn metadata(&self) -> String {
        let is_near = self.next - self.commit_offset() <= WINDOW_MAX;
        let (form, bytes) = if is_near {
            (BITS_PREFIX, self.encode_bits())
        } else {
            (STEPS_PREFIX, self.encode_steps())
        };
        format!("{form}{}", STANDARD_NO_PAD.encode(bytes))
    }

    fn encode_bits(&self) -> Vec<u8> {
        let floor = self.commit_offset();
        let window = usize::try_from(self.next - floor).expect("the window is bounded");
        let mut bits = vec![0xFF_u8; window.div_ceil(8)];
        // Offsets from `next` on were never read: like open ones, they are not finished.
        let unseen = self.next..floor + bits.len() as Offset * 8;
        for offset in self.open.iter().copied().chain(unseen) {
            let place = usize::try_from(offset - floor).expect("the window is bounded");
            bits[place / 8] &= !(0x80 >> (place % 8));
        }
        bits
    }

    fn decode_bits(&mut self, bits: &[u8]) {
        let committed = self.next;
        for finished in (0..bits.len() * 8).filter(|i| bits[i / 8] & (0x80 >> (i % 8)) != 0) {
            let finished = committed + finished as Offset;
            self.open.extend(self.next..finished);
            self.next = finished + 1;
        }
    }

    fn encode_steps(&self) -> Vec<u8> {
        let mut steps = Vec::new();
        let next = self.open.iter().skip(1).copied().chain([self.next]);
        for (from, to) in self.open.iter().zip(next) {
            let mut step = to - from;
            while step >> STEP_BITS != 0 {
                steps.push(0x80 | (step & 0x7F) as u8);
                step >>= STEP_BITS;
            }
            steps.push(step as u8);
        }
        steps
    }

    fn decode_steps(&mut self, steps: &[u8]) -> Option<()> {
        let (mut step, mut shift) = (0, 0);
        for byte in steps {
            step |= Offset::from(byte & 0x7F).checked_shl(shift)?;
            shift += STEP_BITS;
            if byte & 0x80 == 0 {
                if step == 0 {
                    return None;
                }
                self.open.insert(self.next);
                self.next = self.next.checked_add(step)?;
                (step, shift) = (0, 0);
            }
        }
        (shift == 0).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_example_in_the_module_comment_is_correct() {
        let mut progress = FireProgress::restore(40, "").unwrap();
        assert!((40..45).all(|offset| progress.start(offset)));
        for offset in [42, 41, 44] {
            progress.finish(offset);
        }
        assert_eq!((progress.commit_offset(), progress.metadata().as_str()), (40, "1:aA"));
        assert_eq!(FireProgress::restore(40, "1:aA").unwrap(), progress);
    }

    #[test]
    fn a_full_window_fits_the_metadata_whatever_is_open() {
        let mut progress = FireProgress::restore(7, "").unwrap();
        assert!((7..7 + WINDOW_MAX).all(|offset| progress.start(offset)));
        assert!(!progress.has_room(7 + WINDOW_MAX));
        (8..7 + WINDOW_MAX).step_by(2).for_each(|offset| progress.finish(offset));
        assert!(progress.metadata().len() <= 4096, "{}", progress.metadata().len());
        progress.finish(7);
        assert!(progress.has_room(8 + WINDOW_MAX) && !progress.has_room(9 + WINDOW_MAX));
    }

    #[test]
    fn a_few_open_offsets_fit_the_metadata_at_any_distance() {
        let mut progress = FireProgress::restore(7, "").unwrap();
        let apart = OFFSET_SPAN_MAX / OPEN_MAX as u64;
        let open: Vec<_> = (0..OPEN_MAX as u64).map(|n| 7 + n * apart).collect();
        assert!(open.iter().all(|offset| progress.start(*offset)));
        let newest = *open.last().unwrap();
        assert!(!progress.has_room(newest + 1), "{OPEN_MAX} are open");
        let metadata = progress.metadata();
        assert!(metadata.starts_with(STEPS_PREFIX) && metadata.len() <= 4096, "{}", metadata.len());
        let restored = FireProgress::restore(7, &metadata).unwrap();
        assert_eq!(restored, progress);
        assert!(restored.has_room(newest), "what was started before is started again");

        progress.finish(newest);
        assert!(progress.has_room(6 + OFFSET_SPAN_MAX) && !progress.has_room(7 + OFFSET_SPAN_MAX));
        open[1..open.len() - 1].iter().for_each(|offset| progress.finish(*offset));
        assert!(progress.start(6 + OFFSET_SPAN_MAX));
        progress.finish(6 + OFFSET_SPAN_MAX);
        assert_eq!(FireProgress::restore(7, &progress.metadata()).unwrap(), progress);
    }

    #[test]
    fn what_waits_for_another_worker_leaves_half_of_the_room_to_others() {
        let far = WINDOW_MAX / 2 + 1;
        for (open, offset, may_wait) in [
            (OPEN_MAX, far - 1, true),
            (OPEN_MAX / 2, far, true),
            (OPEN_MAX / 2 + 1, far, false),
            (2, OFFSET_SPAN_MAX / 2, true),
            (2, OFFSET_SPAN_MAX / 2 + 1, false),
        ] {
            let mut progress = FireProgress::restore(0, "").unwrap();
            assert!((1..open as Offset).all(|open| progress.start(open - 1)));
            assert!(progress.start(offset));
            assert_eq!(progress.may_wait(offset), may_wait, "{open} open, {offset}");
        }
    }

    #[test]
    fn one_callback_that_does_not_end_blocks_no_other() {
        let mut progress = FireProgress::restore(0, "").unwrap();
        assert!(progress.start(0));
        for offset in 1..10 * WINDOW_MAX {
            assert!(progress.start(offset));
            progress.finish(offset);
        }
        assert_eq!((progress.commit_offset(), progress.metadata().as_str()), (0, "2:gNMO"));
    }

    #[test]
    fn metadata_of_another_format_is_refused() {
        for metadata in ["3:aA", "aA", "1:*", "2:*", "2:AA", "2:gA", "2://///////////w8"] {
            assert_eq!(FireProgress::restore(0, metadata), Err(ProgressError(metadata.to_owned())));
        }
    }

    #[test]
    fn offsets_that_the_log_has_deleted_are_dropped() {
        let mut progress = FireProgress::restore(40, "1:aA").unwrap();
        assert_eq!((progress.drop_unread(0, 42), progress.commit_offset()), (1, 43));
        assert_eq!((progress.drop_unread(0, 99), progress.commit_offset()), (1, 99));
    }

    #[test]
    fn what_is_written_again_after_a_cut_is_unfinished() {
        let mut progress = FireProgress::restore(40, "1:aA").unwrap();
        assert!(!progress.clone().cut(45), "nothing is missing");
        assert!(progress.cut(42) && !progress.cut(42));
        assert_eq!((progress.commit_offset(), progress.read_end()), (40, 42));
        assert_eq!([40, 41, 42].map(|offset| progress.start(offset)), [true, false, true]);
        assert!(progress.cut(30));
        assert_eq!((progress.commit_offset(), progress.start(30)), (30, true));
    }

    #[test]
    fn after_a_jump_of_the_log_start_the_metadata_still_fits() {
        let low = 1_000_000;
        for open in [3, 5_000] {
            let mut progress = FireProgress::restore(0, "").unwrap();
            assert!((0..open).all(|offset| progress.start(offset)));
            assert_eq!(progress.drop_unread(open, low), 0, "all were read");
            assert!(progress.metadata().len() <= 4_096, "{}", progress.metadata().len());
            assert_eq!(progress.has_room(low), open < OPEN_MAX as u64);
            (0..open).for_each(|offset| progress.finish(offset));
            assert!(progress.start(low));
            assert_eq!((progress.commit_offset(), progress.room(low + 1)), (low, 23_999));
        }
    }

    proptest! {
        #[test]
        fn any_metadata_is_progress_or_refused(
            noise: String,
            body in "[12]:[A-Za-z0-9+/_-]{0,60}",
        ) {
            let _read = FireProgress::restore(9, &noise);
            if let Ok(progress) = FireProgress::restore(9, &body) {
                let again = FireProgress::restore(progress.commit_offset(), &progress.metadata());
                prop_assert_eq!(again, Ok(progress));
            }
        }

        /// Records with gaps start in order and end in any order; a restart at any point calls
        /// exactly what was not finished.
        #[test]
        fn a_restart_calls_what_was_not_finished(
            gaps in vec(prop_oneof![9 => 1_u64..4, 1 => 5_000_u64..9_000], 1..200),
            ends in vec(any::<prop::sample::Index>(), 0..200),
            started in any::<prop::sample::Index>(),
        ) {
            let offsets = gaps.iter().scan(10, |at, gap| {
                *at += gap;
                Some(*at)
            });
            let offsets: Vec<_> = offsets.collect();
            let started = started.index(offsets.len());
            let mut progress = FireProgress::restore(10, "").unwrap();
            let mut unfinished = BTreeSet::from_iter(offsets.iter().copied());
            for offset in &offsets[..started] {
                prop_assert!(progress.start(*offset));
            }
            for end in ends {
                let at = end.index(offsets.len());
                let Some(offset) = offsets[..started].get(at) else { continue };
                if unfinished.remove(offset) {
                    progress.finish(*offset);
                }
            }
            let floor = progress.commit_offset();
            prop_assert!(unfinished.first().is_none_or(|lowest| floor <= *lowest));
            let mut restored = FireProgress::restore(floor, &progress.metadata()).unwrap();
            let from_floor = offsets.iter().copied().filter(|offset| *offset >= floor);
            let called: BTreeSet<_> = from_floor.filter(|offset| restored.start(*offset)).collect();
            prop_assert_eq!(called, unfinished);
        }
    }
}
