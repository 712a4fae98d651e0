//! How far a partition of fires is done when callbacks end out of order.
//!
//! Law: the committed offset is the lowest unfinished one; what is finished above it travels in
//! the commit's metadata, so that a restart repeats nothing. The window between the lowest
//! unfinished offset and the newest begun one is bounded such that the metadata always fits.
//!
//! ```text
//!   offset   40  41  42  43  44  45        40 is committed, with the bits 0 1 1 0 1
//!           open done done open done next
//! ```

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use crate::model::Offset;

/// Offsets in the window. A bit each, in base64 behind the version, they take 4,002 bytes; brokers
/// refuse metadata beyond 4,096 (`offset.metadata.max.bytes`).
pub const WINDOW_MAX: u64 = 24_000;

/// What the metadata begins with; another beginning is another format's.
const VERSION: &str = "1:";

/// Why committed progress cannot be taken up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("progress {0:?} was not written by this version of Orloj: upgrade this worker")]
pub struct ProgressError(pub String);

/// Which fires of a partition are finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Begun, or to be begun again after a restart, and not finished.
    open: BTreeSet<Offset>,
    /// Everything below is open or finished; from here on nothing has been seen.
    next: Offset,
}

impl Progress {
    /// What a commit said. Without metadata somebody moved the offset by hand: nothing above it
    /// is finished.
    pub fn restore(offset: Offset, metadata: &str) -> Result<Self, ProgressError> {
        let unreadable = || ProgressError(metadata.to_owned());
        let mut restored = Self { open: BTreeSet::new(), next: offset };
        if metadata.is_empty() {
            return Ok(restored);
        }
        let text = metadata.strip_prefix(VERSION).ok_or_else(unreadable)?;
        let bits = STANDARD_NO_PAD.decode(text).map_err(|_| unreadable())?;
        for finished in (0..bits.len() * 8).filter(|i| bits[i / 8] & (0x80 >> (i % 8)) != 0) {
            let finished = offset + finished as Offset;
            restored.open.extend(restored.next..finished);
            restored.next = finished + 1;
        }
        Ok(restored)
    }

    /// The lowest unfinished offset: what to commit, and where to read from after a restart.
    #[must_use]
    pub fn floor(&self) -> Offset {
        self.open.first().copied().unwrap_or(self.next)
    }

    /// Whether a fire at `offset` fits into the window.
    #[must_use]
    pub fn has_room(&self, offset: Offset) -> bool {
        self.open.first().is_none_or(|lowest| offset < lowest + WINDOW_MAX)
    }

    /// Takes the next record of the log; whether its callback is to be made. Offsets that are
    /// skipped (the log's own markers) count as finished.
    pub fn begin(&mut self, offset: Offset) -> bool {
        assert!(self.has_room(offset), "{offset} is outside the window of {}", self.floor());
        if offset < self.next {
            return self.open.contains(&offset);
        }
        self.next = offset + 1;
        self.open.insert(offset)
    }

    /// The result of `offset` is about to be committed.
    pub fn finish(&mut self, offset: Offset) {
        assert!(self.open.remove(&offset), "{offset} was not open");
    }

    /// The log begins at `low` now: what was open below it is gone. Says how many were.
    pub fn forget_below(&mut self, low: Offset) -> usize {
        let kept = self.open.split_off(&low);
        let gone = std::mem::replace(&mut self.open, kept).len();
        self.next = self.next.max(low);
        gone
    }

    /// What travels with [`floor`](Self::floor) in a commit.
    #[must_use]
    pub fn metadata(&self) -> String {
        let floor = self.floor();
        let window = usize::try_from(self.next - floor).expect("the window is bounded");
        let mut bits = vec![0xFF_u8; window.div_ceil(8)];
        // Whatever is beyond `next` was never seen, like what is open: it is not finished.
        let unseen = self.next..floor + bits.len() as Offset * 8;
        for offset in self.open.iter().copied().chain(unseen) {
            let place = usize::try_from(offset - floor).expect("the window is bounded");
            bits[place / 8] &= !(0x80 >> (place % 8));
        }
        format!("{VERSION}{}", STANDARD_NO_PAD.encode(bits))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_picture_above_holds() {
        let mut progress = Progress::restore(40, "").unwrap();
        assert!((40..45).all(|offset| progress.begin(offset)));
        for offset in [42, 41, 44] {
            progress.finish(offset);
        }
        assert_eq!((progress.floor(), progress.metadata().as_str()), (40, "1:aA"));
        assert_eq!(Progress::restore(40, "1:aA").unwrap(), progress);
    }

    #[test]
    fn a_full_window_fits_the_metadata_whatever_is_open() {
        let mut progress = Progress::restore(7, "").unwrap();
        assert!((7..7 + WINDOW_MAX).all(|offset| progress.begin(offset)));
        assert!(!progress.has_room(7 + WINDOW_MAX));
        (8..7 + WINDOW_MAX).step_by(2).for_each(|offset| progress.finish(offset));
        assert!(progress.metadata().len() <= 4096, "{}", progress.metadata().len());
        progress.finish(7);
        assert!(progress.has_room(8 + WINDOW_MAX) && !progress.has_room(9 + WINDOW_MAX));
    }

    #[test]
    fn metadata_of_another_format_is_refused() {
        for metadata in ["2:aA", "aA", "1:*"] {
            assert_eq!(Progress::restore(0, metadata), Err(ProgressError(metadata.to_owned())));
        }
    }

    #[test]
    fn what_the_log_has_deleted_is_given_up() {
        let mut progress = Progress::restore(40, "1:aA").unwrap();
        assert_eq!((progress.forget_below(42), progress.floor()), (1, 43));
        assert_eq!((progress.forget_below(99), progress.floor()), (1, 99));
    }

    proptest! {
        #[test]
        fn any_metadata_is_progress_or_refused(noise: String, body in "1:[A-Za-z0-9+/_-]{0,60}") {
            let _read = Progress::restore(9, &noise);
            if let Ok(progress) = Progress::restore(9, &body) {
                let again = Progress::restore(progress.floor(), &progress.metadata());
                prop_assert_eq!(again, Ok(progress));
            }
        }

        /// Records with gaps begin in order and end in any order; a restart at any point calls
        /// exactly what was not finished.
        #[test]
        fn a_restart_calls_what_was_not_finished(
            gaps in prop::collection::vec(1_u64..4, 1..200),
            ends in prop::collection::vec(any::<prop::sample::Index>(), 0..200),
            begun in any::<prop::sample::Index>(),
        ) {
            let offsets = gaps.iter().scan(10, |at, gap| {
                *at += gap;
                Some(*at)
            });
            let offsets: Vec<_> = offsets.collect();
            let begun = begun.index(offsets.len());
            let mut progress = Progress::restore(10, "").unwrap();
            let mut unfinished = BTreeSet::from_iter(offsets.iter().copied());
            for offset in &offsets[..begun] {
                prop_assert!(progress.begin(*offset));
            }
            for end in ends {
                let Some(offset) = offsets[..begun].get(end.index(offsets.len())) else { continue };
                if unfinished.remove(offset) {
                    progress.finish(*offset);
                }
            }
            let floor = progress.floor();
            prop_assert!(unfinished.first().is_none_or(|lowest| floor <= *lowest));
            let mut restored = Progress::restore(floor, &progress.metadata()).unwrap();
            let from_floor = offsets.iter().copied().filter(|offset| *offset >= floor);
            let called: BTreeSet<_> = from_floor.filter(|offset| restored.begin(*offset)).collect();
            prop_assert_eq!(called, unfinished);
        }
    }
}
