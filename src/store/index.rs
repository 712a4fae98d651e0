//! The bytes of an index row: all slots of one trigger id.
//!
//! Invariant: a format once written stays readable. Layout, big-endian: `version u8`, then for each
//! slot `kind u8 | flags u8 | key 18 | generation u64`, for a retry also
//! `occurrence u32 | attempt u32 | deferral u32`, for what a caller has a claim to `claim u64`.
//! Version 1 had no callers: any caller may change what it has.

use smallvec::SmallVec;

use super::keys::{self, TIMELINE_KEY_BYTES};
use crate::engine::index_row::{IndexEntry, IndexEntryKind, IndexRow, TriggerCaller};
use crate::model::timeline::TimelineKey;

const VERSION: u8 = 2;
const VERSION_WITHOUT_TENANT: u8 = 1;
const MAIN: u8 = 0;
const RETRY: u8 = 1;
const VETO: u8 = 2;
const PAST: u8 = 3;
const IN_LEDGER: u8 = 1;
const HTTP: u8 = 2;
const LIFECYCLE: u8 = 4;
const HAS_TENANT: u8 = 8;
const FREE: u8 = 16;

/// The stored form of what is known of an id.
pub(super) fn encode(row: &IndexRow) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + row.entries.len() * 40);
    bytes.push(VERSION);
    for entry in &row.entries {
        let kind = match entry.kind {
            IndexEntryKind::Main => MAIN,
            IndexEntryKind::Retry { .. } => RETRY,
            IndexEntryKind::Veto => VETO,
            IndexEntryKind::Remembered => PAST,
        };
        let in_ledger = if entry.in_ledger { IN_LEDGER } else { 0 };
        let http = if entry.is_http { HTTP } else { 0 };
        let lifecycle = if entry.has_lifecycle { LIFECYCLE } else { 0 };
        let tenant = match entry.caller {
            TriggerCaller::NotATrigger => FREE,
            TriggerCaller::Anonymous => 0,
            TriggerCaller::Caller(_) => HAS_TENANT,
        };
        bytes.extend([kind, in_ledger | http | lifecycle | tenant]);
        bytes.extend(keys::timeline(entry.key));
        bytes.extend(entry.generation.to_be_bytes());
        if let IndexEntryKind::Retry { occurrence, attempt, deferral } = entry.kind {
            for number in [occurrence, attempt, deferral] {
                bytes.extend(number.to_be_bytes());
            }
        }
        if let TriggerCaller::Caller(hash) = entry.caller {
            bytes.extend(hash.to_be_bytes());
        }
    }
    bytes
}

/// Reads a stored index row; `None` if it is corrupt or of a newer format.
pub(super) fn decode(bytes: &[u8]) -> Option<IndexRow> {
    let (&version, mut rest) = bytes.split_first()?;
    if !matches!(version, VERSION_WITHOUT_TENANT | VERSION) {
        return None;
    }
    let mut entries = SmallVec::new();
    while !rest.is_empty() {
        let [kind, flags] = take(&mut rest)?;
        let key = keys::parse_timeline(&take::<TIMELINE_KEY_BYTES>(&mut rest)?)?;
        let generation = u64::from_be_bytes(take(&mut rest)?);
        let kind = match kind {
            MAIN => IndexEntryKind::Main,
            RETRY => IndexEntryKind::Retry {
                occurrence: u32::from_be_bytes(take(&mut rest)?),
                attempt: u32::from_be_bytes(take(&mut rest)?),
                deferral: u32::from_be_bytes(take(&mut rest)?),
            },
            VETO => IndexEntryKind::Veto,
            PAST => IndexEntryKind::Remembered,
            _ => return None,
        };
        let (in_ledger, http) = (flags & IN_LEDGER != 0, flags & HTTP != 0);
        let lifecycle = flags & LIFECYCLE != 0;
        let tenant = match (version, flags & HAS_TENANT != 0, flags & FREE != 0) {
            (VERSION_WITHOUT_TENANT, ..) | (_, false, true) => TriggerCaller::NotATrigger,
            (_, false, false) => TriggerCaller::Anonymous,
            (_, true, _) => TriggerCaller::Caller(u64::from_be_bytes(take(&mut rest)?)),
        };
        entries.push(IndexEntry {
            key,
            kind,
            generation,
            in_ledger,
            is_http: http,
            has_lifecycle: lifecycle,
            caller: tenant,
        });
    }
    Some(IndexRow { entries })
}

/// The last key that a row knows of: once everything up to it is decided, the row tells nothing.
pub(super) fn last_key(bytes: &[u8]) -> Option<TimelineKey> {
    decode(bytes)?.entries.iter().map(|slot| slot.key).max()
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

    fn any_kind() -> impl Strategy<Value = IndexEntryKind> {
        prop_oneof![
            Just(IndexEntryKind::Main),
            Just(IndexEntryKind::Veto),
            Just(IndexEntryKind::Remembered),
            (any::<u32>(), any::<u32>(), any::<u32>()).prop_map(
                |(occurrence, attempt, deferral)| {
                    IndexEntryKind::Retry { occurrence, attempt, deferral }
                }
            ),
        ]
    }

    fn any_tenant() -> impl Strategy<Value = TriggerCaller> {
        let callers = any::<u64>().prop_map(TriggerCaller::Caller);
        prop_oneof![Just(TriggerCaller::NotATrigger), Just(TriggerCaller::Anonymous), callers]
    }

    prop_compose! {
        fn any_entry()(
            key in any_key(), kind in any_kind(), generation: u64, in_ledger: bool,
            is_http: bool, has_lifecycle: bool, caller in any_tenant(),
        ) -> IndexEntry {
            IndexEntry { key, kind, generation, in_ledger, is_http, has_lifecycle, caller }
        }
    }

    proptest! {
        #[test]
        fn encoded_rows_decode_to_the_same_rows(
            entries in proptest::collection::vec(any_entry(), 0..5),
        ) {
            let row = IndexRow { entries: entries.into() };
            prop_assert_eq!(decode(&encode(&row)), Some(row));
        }

        #[test]
        fn rows_of_version_1_have_no_tenant(entry in any_entry()) {
            let entry = IndexEntry { caller: TriggerCaller::NotATrigger, ..entry };
            let free = IndexRow { entries: SmallVec::from_iter([entry]) };
            let mut bytes = encode(&free);
            (bytes[0], bytes[2]) = (VERSION_WITHOUT_TENANT, bytes[2] & !FREE);
            prop_assert_eq!(decode(&bytes), Some(free));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _read = decode(&bytes);
        }
    }
}
