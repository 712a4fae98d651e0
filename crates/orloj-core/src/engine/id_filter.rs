//! Which ids were inserted since a store was empty: nearly every id of a ledger is read once, and
//! looking up an unknown id in a store of millions of rows is slow.
//!
//! Invariant: an id that was inserted is always found; another one is found by mistake once in a
//! hundred times, and then the store is read. (A Bloom filter, 1970, with the two halves of an
//! id's hash for all its probes: Kirsch and Mitzenmacher 2006.)

use super::index_row::IdHash;

/// Bits for each id that is expected.
const BITS_PER_ID: u64 = 12;
/// Bits set for each id.
const PROBES: usize = 6;
/// 4 MiB: with more than about three million ids there are more mistakes, which only cost time.
const BITS_MAX: u64 = 1 << 25;

/// Ids that were inserted.
#[derive(Clone)]
pub struct IdBloomFilter {
    words: Vec<u64>,
}

impl std::fmt::Debug for IdBloomFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdBloomFilter")
            .field("bits", &(self.words.len() * 64))
            .finish_non_exhaustive()
    }
}

impl IdBloomFilter {
    /// Empty, for about `expected` ids.
    #[must_use]
    pub fn with_capacity(expected: u64) -> Self {
        let bits = expected.saturating_mul(BITS_PER_ID).clamp(64, BITS_MAX).next_power_of_two();
        let words = usize::try_from(bits / 64).expect("BITS_MAX fits into memory");
        Self { words: vec![0; words] }
    }

    /// Inserts an id. Returns whether it may have been inserted before.
    pub fn check_and_insert(&mut self, id: IdHash) -> bool {
        let [mut probe, step] = halves(id);
        let mut was_present = true;
        for _ in 0..PROBES {
            let bit = probe as usize % (self.words.len() * 64);
            let (word, bit) = (&mut self.words[bit / 64], 1 << (bit % 64));
            was_present &= *word & bit != 0;
            *word |= bit;
            probe = probe.wrapping_add(step);
        }
        was_present
    }
}

#[expect(clippy::cast_possible_truncation, reason = "each half is meant")]
fn halves(id: IdHash) -> [u64; 2] {
    [id.0 as u64, (id.0 >> 64) as u64 | 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u32) -> IdHash {
        IdHash::of(&n.to_be_bytes())
    }

    #[test]
    fn every_inserted_id_is_found_and_few_others_are() {
        let mut filter = IdBloomFilter::with_capacity(10_000);
        let false_positives = (0..10_000).filter(|n| filter.check_and_insert(id(*n))).count();
        assert!((0..10_000).all(|n| filter.check_and_insert(id(n))));
        assert!(false_positives < 100, "{false_positives}");
    }

    #[test]
    fn its_size_is_bounded() {
        let bits = |expected| IdBloomFilter::with_capacity(expected).words.len() as u64 * 64;
        assert_eq!((bits(0), bits(u64::MAX)), (64, BITS_MAX));
    }

    #[test]
    fn each_id_sets_a_bit_for_each_probe() {
        for n in 0..128 {
            let mut filter = IdBloomFilter::with_capacity(0);
            assert!(!filter.check_and_insert(IdHash(n << 64)));
            let bits: u32 = filter.words.iter().map(|word| word.count_ones()).sum();
            assert_eq!(bits as usize, PROBES, "id {n}");
        }
    }

    #[test]
    fn it_is_shown_by_its_size() {
        let shown = |expected| format!("{:?}", IdBloomFilter::with_capacity(expected));
        assert_eq!(shown(0), "IdBloomFilter { bits: 64, .. }");
        assert_eq!(shown(u64::MAX), format!("IdBloomFilter {{ bits: {BITS_MAX}, .. }}"));
    }
}
