//! Which partition a key belongs to: the hash of Java's clients, and librdkafka's own.
//!
//! murmur2 as in Kafka's `Utils.murmur2` (after Austin Appleby's MurmurHash2, seed 0x9747b28c).

use super::PartitionId;

/// The hash that says which partition of `triggers` is right for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partitioner {
    /// Java's default; every client Orloj ships.
    Murmur2,
    /// librdkafka's default (kcat, and clients in C, Go, Python, .NET).
    Crc32,
    /// Whatever the producer chose: nothing is forwarded, and a cancel must use the same partition.
    Any,
}

impl Partitioner {
    /// The right partition of `key` among `partitions`; `None` when any is.
    #[must_use]
    pub fn partition(self, key: &[u8], partitions: i32) -> Option<PartitionId> {
        assert!(partitions > 0, "a topic has partitions");
        match self {
            Self::Murmur2 => Some(murmur2_partition(key, partitions)),
            Self::Crc32 => {
                let partitions = partitions.unsigned_abs();
                Some((crc32fast::hash(key) % partitions).cast_signed())
            }
            Self::Any => None,
        }
    }
}

/// The partition Java's default partitioner gives a key.
#[must_use]
pub fn murmur2_partition(key: &[u8], partitions: i32) -> PartitionId {
    assert!(partitions > 0, "a topic has partitions");
    (murmur2(key) & 0x7fff_ffff).cast_signed() % partitions
}

/// Kafka's murmur2 of `data`.
#[must_use]
#[expect(clippy::little_endian_bytes, reason = "the algorithm reads little-endian words")]
pub fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k = (k ^ (k >> 24)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    let tail = words.remainder();
    if !tail.is_empty() {
        let word = tail.iter().rev().fold(0, |word, byte| (word << 8) | u32::from(*byte));
        hash = (hash ^ word).wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of Kafka's own `UtilsTest.testMurmur2`.
    #[test]
    fn murmur2_is_that_of_the_java_client() {
        let table: [(&str, i32); 6] = [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ];
        for (key, expected) in table {
            assert_eq!(murmur2(key.as_bytes()).cast_signed(), expected, "{key}");
        }
    }

    #[test]
    fn partitions_are_in_range() {
        for partitioner in [Partitioner::Murmur2, Partitioner::Crc32] {
            for n in 0..1000 {
                let partition = partitioner.partition(format!("key-{n}").as_bytes(), 7);
                assert!(partition.is_some_and(|p| (0..7).contains(&p)));
            }
        }
        assert_eq!(Partitioner::Any.partition(b"key", 7), None);
    }
}
