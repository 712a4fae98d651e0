//! What was reported to the recipients, as it is committed: in the metadata of the offsets.
//!
//! Invariant: it is committed together with the offsets up to which everything was reported. So the
//! next leader does not report an open circuit again, and reports when it is closed. What does not
//! fit is left out, beginning with the recipients whose last message is the oldest: they may get an
//! open circuit reported again.
//!
//! ```text
//!   metadata   "1:" and, in base64, entries:
//!   entry      recipient u64 | end of its last message u32 | count u16 | circuit …
//!   circuit    host u64 | last sign of it u32; times in seconds since the epoch
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use crate::model::Timestamp;

/// The first characters; others are of another format.
const PREFIX: &str = "1:";
/// Bytes of the entries in one metadata: with the prefix they take 4,002 in base64. Brokers refuse
/// metadata beyond 4,096 (`offset.metadata.max.bytes`).
const BYTES_MAX: usize = 3_000;
/// So many metadata have entries: together 256 kB. A group coordinator writes all offsets of a
/// commit in one batch, and refuses one of more than 1 MiB.
const METADATA_MAX: usize = 64;
/// Circuits of one entry. A recipient with more has several.
const ENTRY_CIRCUITS_MAX: usize = 240;

/// A recipient, by the hash of its address.
pub type RecipientId = u64;

/// What was reported to a recipient.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedState {
    /// When its last message ended.
    pub last_ended: Option<Instant>,
    /// The hosts that were reported to have an open circuit.
    pub open_circuits: OpenCircuits,
}

/// Hosts, by their hashes, and when a circuit of each was last said to be open or half open, in ms
/// since the epoch.
pub type OpenCircuits = BTreeMap<u64, Timestamp>;

/// One moment by two clocks: one process measures with the first, the second is committed.
#[derive(Clone, Copy, Debug)]
pub struct ClockReading {
    /// By the monotonic clock.
    pub monotonic: Instant,
    /// In ms since the epoch.
    pub ms: Timestamp,
}

/// The metadata of so many offsets.
#[must_use]
pub fn encode(
    states: &BTreeMap<RecipientId, ReportedState>,
    offsets: usize,
    now: ClockReading,
) -> Vec<String> {
    let mut newest: Vec<_> = states.iter().collect();
    newest.sort_by_key(|(_, state)| Reverse(state.last_ended));
    let mut all = vec![Vec::new(); offsets];
    for entry in newest.into_iter().flat_map(|(id, state)| entries(*id, state, now)) {
        let has_room = |bytes: &&mut Vec<u8>| bytes.len() + entry.len() <= BYTES_MAX;
        let Some(bytes) = all.iter_mut().take(METADATA_MAX).find(has_room) else { break };
        bytes.extend(&entry);
    }
    all.iter().map(|bytes| format!("{PREFIX}{}", STANDARD_NO_PAD.encode(bytes))).collect()
}

/// The entries of a recipient; none if nothing was reported to it.
fn entries(id: RecipientId, state: &ReportedState, now: ClockReading) -> Vec<Vec<u8>> {
    if *state == ReportedState::default() {
        return Vec::new();
    }
    let ended = state.last_ended.map_or(0, |ended| {
        let age = now.monotonic.saturating_duration_since(ended).as_millis();
        now.ms.saturating_sub(u64::try_from(age).unwrap_or(u64::MAX))
    });
    // Rounded up: within the interval after it no other message is sent.
    let ended = seconds(ended.saturating_add(999));
    let circuits: Vec<_> = state.open_circuits.iter().collect();
    let none: &[(&u64, &Timestamp)] = &[];
    let parts = circuits.chunks(ENTRY_CIRCUITS_MAX);
    let parts = parts.chain(circuits.is_empty().then_some(none));
    let entry = |part: &[(&u64, &Timestamp)]| {
        let count = u16::try_from(part.len()).expect("an entry has a few hundred at most");
        let mut bytes = id.to_be_bytes().to_vec();
        bytes.extend(ended.to_be_bytes());
        bytes.extend(count.to_be_bytes());
        for (host, last_sign) in part {
            bytes.extend(host.to_be_bytes());
            bytes.extend(seconds(**last_sign).to_be_bytes());
        }
        bytes
    };
    parts.map(entry).collect()
}

fn seconds(ms: Timestamp) -> u32 {
    u32::try_from(ms / 1_000).unwrap_or(u32::MAX)
}

/// What the metadata of all offsets say. One of another format says nothing: an open circuit may
/// be reported again.
pub fn decode<'a>(
    metadata: impl Iterator<Item = &'a str>,
    now: ClockReading,
) -> BTreeMap<RecipientId, ReportedState> {
    let mut states = BTreeMap::<RecipientId, ReportedState>::new();
    for metadata in metadata.filter(|metadata| !metadata.is_empty()) {
        let Some(entries) = read(metadata) else {
            tracing::warn!(metadata, "it is unknown what was reported: another version wrote it");
            continue;
        };
        for (id, ended, circuits) in entries {
            let age = Duration::from_millis(now.ms.saturating_sub(ended));
            let state = states.entry(id).or_default();
            state.last_ended = now.monotonic.checked_sub(age);
            state.open_circuits.extend(circuits);
        }
    }
    states
}

/// What still applies when the next leader starts: nothing to recipients that are not present any
/// more, and no circuit if outcomes were missed, because any of them may have closed.
pub fn keep_valid(
    states: &mut BTreeMap<RecipientId, ReportedState>,
    present: &BTreeSet<RecipientId>,
    has_missed_outcomes: bool,
) {
    states.retain(|id, _| present.contains(id));
    if has_missed_outcomes {
        states.values_mut().for_each(|state| state.open_circuits.clear());
    }
}

/// Recipients, when their last messages ended, and circuits.
fn read(metadata: &str) -> Option<Vec<(RecipientId, Timestamp, OpenCircuits)>> {
    let bytes = STANDARD_NO_PAD.decode(metadata.strip_prefix(PREFIX)?).ok()?;
    let (mut rest, mut entries) = (bytes.as_slice(), Vec::new());
    while !rest.is_empty() {
        let id = u64::from_be_bytes(take(&mut rest)?);
        let ended = take_time(&mut rest)?;
        let count = u16::from_be_bytes(take(&mut rest)?);
        let circuits = (0..count).map(|_| {
            let host = u64::from_be_bytes(take(&mut rest)?);
            Some((host, take_time(&mut rest)?))
        });
        let circuits: Option<OpenCircuits> = circuits.collect();
        entries.push((id, ended, circuits?));
    }
    Some(entries)
}

fn take_time(bytes: &mut &[u8]) -> Option<Timestamp> {
    Some(Timestamp::from(u32::from_be_bytes(take(bytes)?)) * 1_000)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const NOW_MS: Timestamp = 1_800_000_000_000;

    fn now() -> ClockReading {
        ClockReading { monotonic: clock::monotonic(), ms: NOW_MS }
    }

    fn seconds_ago(now: ClockReading, seconds: u64) -> Option<Instant> {
        now.monotonic.checked_sub(Duration::from_secs(seconds))
    }

    fn circuits(hosts: impl IntoIterator<Item = u64>) -> OpenCircuits {
        hosts.into_iter().map(|host| (host, NOW_MS - host % 7 * 1_000)).collect()
    }

    fn decoded(metadata: &[String], now: ClockReading) -> BTreeMap<RecipientId, ReportedState> {
        decode(metadata.iter().map(String::as_str), now)
    }

    #[test]
    fn what_is_committed_is_read_by_the_next_leader_whose_clock_starts_elsewhere() {
        let now = now();
        let reported = |seconds, hosts: &[u64]| ReportedState {
            last_ended: seconds_ago(now, seconds),
            open_circuits: circuits(hosts.iter().copied()),
        };
        let states = BTreeMap::from([(7, reported(1, &[u64::MAX, 3])), (8, reported(2, &[]))]);
        let metadata = encode(&states, 2, now);
        assert_eq!(decoded(&metadata, now), states);
        let step = Duration::from_secs(5);
        let later = ClockReading { monotonic: now.monotonic + step, ms: NOW_MS + 8_000 };
        let ended = decoded(&metadata, later)[&7].last_ended;
        assert_eq!(ended, later.monotonic.checked_sub(Duration::from_secs(9)), "8 s went by");
    }

    #[test]
    fn what_was_never_reported_takes_no_place() {
        let now = now();
        let states = BTreeMap::from([(7, ReportedState::default())]);
        assert_eq!(encode(&states, 2, now), ["1:", "1:"]);
        assert!(decoded(&encode(&states, 2, now), now).is_empty());
    }

    #[test]
    fn metadata_fits_what_brokers_keep_and_the_oldest_are_left_out() {
        let now = now();
        let state = |seconds, hosts| ReportedState {
            last_ended: seconds_ago(now, seconds),
            open_circuits: circuits(0..hosts),
        };
        let many: BTreeMap<_, _> = (0..1_000).map(|id| (id, state(1 + id, 1))).collect();
        let metadata = encode(&many, 2, now);
        assert!(metadata.iter().all(|metadata| metadata.len() <= 4_096));
        let kept = decoded(&metadata, now);
        assert!(kept.len() > 200 && kept.keys().copied().eq(0..kept.len() as u64));

        let large = BTreeMap::from([(7, state(1, 1_000))]);
        let metadata = encode(&large, 5, now);
        assert!(metadata.iter().all(|metadata| metadata.len() <= 4_096));
        assert_eq!(decoded(&metadata, now), large, "in several parts");
    }

    #[test]
    fn the_metadata_of_one_commit_fits_into_a_batch_of_the_coordinator() {
        let now = now();
        let state = |id| (id, ReportedState { last_ended: None, open_circuits: circuits(0..240) });
        let metadata = encode(&(0..1_000).map(state).collect(), 500, now);
        assert_eq!(metadata.len(), 500);
        let bytes: usize = metadata.iter().map(String::len).sum();
        assert!((200_000..262_144).contains(&bytes), "{bytes}");
    }

    #[test]
    fn what_was_reported_applies_to_present_recipients_and_if_every_outcome_was_read() {
        let now = now();
        let state = ReportedState { last_ended: Some(now.monotonic), open_circuits: circuits([3]) };
        let mut states = BTreeMap::from([(7, state.clone()), (8, state.clone())]);
        keep_valid(&mut states, &BTreeSet::from([8, 9]), false);
        assert_eq!(states, BTreeMap::from([(8, state.clone())]));
        keep_valid(&mut states, &BTreeSet::from([8]), true);
        let forgotten = ReportedState { open_circuits: OpenCircuits::new(), ..state };
        assert_eq!(states, BTreeMap::from([(8, forgotten)]));
    }

    #[test]
    fn metadata_of_another_format_says_nothing_and_hides_no_other() {
        let now = now();
        let state = ReportedState { last_ended: seconds_ago(now, 1), ..ReportedState::default() };
        let states = BTreeMap::from([(7, state)]);
        let ours = encode(&states, 1, now);
        for other in ["", "2:", "1:*", "1:AA", "text"] {
            assert_eq!(decode([other, ours[0].as_str()].into_iter(), now), states, "{other}");
        }
    }
}
