//! The bytes of an index row: all slots of one trigger id.
//!
//! Law: a format once written stays readable. Layout, big-endian: `version u8`, then for each
//! slot `kind u8 | flags u8 | key 18 | generation u64`, for a retry also
//! `occurrence u32 | attempt u32 | deferral u32`, for what a caller has a claim to `claim u64`.
//! Version 1 knew of no claims: whoever comes may touch what it has.

use smallvec::SmallVec;

use super::keys::{self, TIMELINE_KEY_BYTES};
use crate::engine::known::{Claim, Known, Slot, SlotKind};
use crate::model::timeline::TimelineKey;

const VERSION: u8 = 2;
const WITHOUT_CLAIMS: u8 = 1;
const MAIN: u8 = 0;
const RETRY: u8 = 1;
const VETO: u8 = 2;
const PAST: u8 = 3;
const IN_LEDGER: u8 = 1;
const HTTP: u8 = 2;
const COURSE: u8 = 4;
const CLAIMED: u8 = 8;
const FREE: u8 = 16;

/// The stored form of what is known of an id.
pub(super) fn encode(known: &Known) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + known.slots.len() * 40);
    bytes.push(VERSION);
    for slot in &known.slots {
        let kind = match slot.kind {
            SlotKind::Main => MAIN,
            SlotKind::Retry { .. } => RETRY,
            SlotKind::Veto => VETO,
            SlotKind::Past => PAST,
        };
        let in_ledger = if slot.in_ledger { IN_LEDGER } else { 0 };
        let http = if slot.http { HTTP } else { 0 };
        let course = if slot.course { COURSE } else { 0 };
        let claim = match slot.claim {
            Claim::Free => FREE,
            Claim::Anonymous => 0,
            Claim::Caller(_) => CLAIMED,
        };
        bytes.extend([kind, in_ledger | http | course | claim]);
        bytes.extend(keys::timeline(slot.key));
        bytes.extend(slot.generation.to_be_bytes());
        if let SlotKind::Retry { occurrence, attempt, deferral } = slot.kind {
            for number in [occurrence, attempt, deferral] {
                bytes.extend(number.to_be_bytes());
            }
        }
        if let Claim::Caller(hash) = slot.claim {
            bytes.extend(hash.to_be_bytes());
        }
    }
    bytes
}

/// Reads a stored index row; `None` if it is corrupt or of a newer format.
pub(super) fn decode(bytes: &[u8]) -> Option<Known> {
    let (&version, mut rest) = bytes.split_first()?;
    if !matches!(version, WITHOUT_CLAIMS | VERSION) {
        return None;
    }
    let mut slots = SmallVec::new();
    while !rest.is_empty() {
        let [kind, flags] = take(&mut rest)?;
        let key = keys::parse_timeline(&take::<TIMELINE_KEY_BYTES>(&mut rest)?)?;
        let generation = u64::from_be_bytes(take(&mut rest)?);
        let kind = match kind {
            MAIN => SlotKind::Main,
            RETRY => SlotKind::Retry {
                occurrence: u32::from_be_bytes(take(&mut rest)?),
                attempt: u32::from_be_bytes(take(&mut rest)?),
                deferral: u32::from_be_bytes(take(&mut rest)?),
            },
            VETO => SlotKind::Veto,
            PAST => SlotKind::Past,
            _ => return None,
        };
        let (in_ledger, http) = (flags & IN_LEDGER != 0, flags & HTTP != 0);
        let course = flags & COURSE != 0;
        let claim = match (version, flags & CLAIMED != 0, flags & FREE != 0) {
            (WITHOUT_CLAIMS, ..) | (_, false, true) => Claim::Free,
            (_, false, false) => Claim::Anonymous,
            (_, true, _) => Claim::Caller(u64::from_be_bytes(take(&mut rest)?)),
        };
        slots.push(Slot { key, kind, generation, in_ledger, http, course, claim });
    }
    Some(Known { slots })
}

/// The last key that a row knows of: once everything up to it is decided, the row tells nothing.
pub(super) fn last_key(bytes: &[u8]) -> Option<TimelineKey> {
    decode(bytes)?.slots.iter().map(|slot| slot.key).max()
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::keys::tests::any_key;

    fn any_kind() -> impl Strategy<Value = SlotKind> {
        prop_oneof![
            Just(SlotKind::Main),
            Just(SlotKind::Veto),
            Just(SlotKind::Past),
            (any::<u32>(), any::<u32>(), any::<u32>()).prop_map(
                |(occurrence, attempt, deferral)| {
                    SlotKind::Retry { occurrence, attempt, deferral }
                }
            ),
        ]
    }

    fn any_claim() -> impl Strategy<Value = Claim> {
        let callers = any::<u64>().prop_map(Claim::Caller);
        prop_oneof![Just(Claim::Free), Just(Claim::Anonymous), callers]
    }

    prop_compose! {
        fn any_slot()(
            key in any_key(), kind in any_kind(), generation: u64, in_ledger: bool, http: bool,
            course: bool, claim in any_claim(),
        ) -> Slot {
            Slot { key, kind, generation, in_ledger, http, course, claim }
        }
    }

    proptest! {
        #[test]
        fn rows_come_back(slots in proptest::collection::vec(any_slot(), 0..5)) {
            let known = Known { slots: slots.into() };
            prop_assert_eq!(decode(&encode(&known)), Some(known));
        }

        #[test]
        fn rows_from_before_claims_are_nobodys(slot in any_slot()) {
            let free = Known { slots: SmallVec::from_iter([Slot { claim: Claim::Free, ..slot }]) };
            let mut bytes = encode(&free);
            (bytes[0], bytes[2]) = (WITHOUT_CLAIMS, bytes[2] & !FREE);
            prop_assert_eq!(decode(&bytes), Some(free));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _read = decode(&bytes);
        }
    }
}
