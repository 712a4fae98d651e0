//! The bytes of a timeline row, in the store and in memory: the most compact form of a waiting
//! trigger, and most fire directly from it. On the hot path, so written by hand: big-endian
//! integers and length-prefixed bytes, read in place.
//!
//! Invariant: the first byte is the version. A row of a newer version is distinguished from a
//! corrupt one, and a row of version 1 begins with its target, so that [`target_topic`] need not
//! read on. Fields that version 1 has no place for precede it, in a row of version 2; a lifecycle
//! precedes those, in a row of version 3.
//!
//! ```text
//!  [version 3 u8, bytes of a lifecycle as JSON]
//!  [version 2 u8, bytes of what few rows have]
//!  version 1 u8, kind u8 ─┬─ topic: name, key? ─┬─ id, generation, occurrence, attempt, deferral,
//!                         ├─ http: url, method ─┘  scheduled, in_ledger, payload?, headers,
//!                         │                        retry?, caller?
//!                         ├─ veto: trigger, cancel
//!                         └─ watch: trigger, count, (trigger, generation) … (in version 3 only)
//! ```

use std::sync::Arc;

use bytes::Bytes;

pub use super::row_bytes::RowError;
use super::row_bytes::{NONE, RowReader, put_bytes, put_len, put_optional, text};
use super::{row_v2, row_v3};
use crate::model::definition::{Definition, Header, HttpTarget, Target, TopicTarget};
use crate::model::entry::{FireId, FireRow, Row};
use crate::model::lifecycle::Watcher;
use crate::model::retry::RetryPolicy;
use crate::model::text::Text;
use crate::model::{Offset, Timestamp};

/// What nearly every row is.
const VERSION_1: u8 = 1;
/// A row of version 1 with more before it.
const VERSION_2: u8 = 2;
/// A row with a lifecycle before it: the newest version that this program knows.
const VERSION_3: u8 = 3;

const KIND_TOPIC: u8 = 0;
const KIND_HTTP: u8 = 1;
const KIND_VETO: u8 = 2;
const KIND_WATCH: u8 = 3;

/// The bytes of one row: shared by the timeline and by fires, and never changed.
pub type RowBytes = Arc<[u8]>;

/// Appends the bytes of `row` to `out`.
pub fn encode(row: &Row, out: &mut Vec<u8>) {
    match row {
        Row::Fire(fire) => {
            if let Some(lifecycle) = &fire.lifecycle {
                out.push(VERSION_3);
                put_bytes(out, &row_v3::encode(lifecycle));
            }
            if row_v2::is_needed(fire) {
                encode_v2_fields(fire, out);
            }
            out.push(VERSION_1);
            encode_fire(fire, out);
        }
        Row::Veto { trigger, cancel } => {
            out.extend_from_slice(&[VERSION_1, KIND_VETO]);
            put_bytes(out, trigger.bytes());
            out.extend_from_slice(&cancel.to_be_bytes());
        }
        Row::Watch { trigger, watchers } => {
            // Older programs that do not know this kind refuse it by its version.
            out.push(VERSION_3);
            put_bytes(out, &[]);
            out.extend_from_slice(&[VERSION_1, KIND_WATCH]);
            put_bytes(out, trigger.bytes());
            put_len(out, watchers.len());
            for Watcher { trigger, generation } in watchers {
                put_bytes(out, trigger.bytes());
                out.extend_from_slice(&generation.to_be_bytes());
            }
        }
    }
}

/// The bytes of `row`. `scratch` is overwritten; callers that encode many rows reuse it.
pub fn to_bytes(row: &Row, scratch: &mut Vec<u8>) -> RowBytes {
    scratch.clear();
    encode(row, scratch);
    RowBytes::from(scratch.as_slice())
}

/// Reads a row; its texts and payload share one copy of `row`.
pub fn decode(row: &[u8]) -> Result<Row, RowError> {
    let shared = Bytes::copy_from_slice(row);
    let RowParts { mut rest, v2_fields, lifecycle } = RowParts::open(&shared)?;
    let row = match rest.u8()? {
        kind @ (KIND_TOPIC | KIND_HTTP) => {
            let mut fire = FireView::read(&mut rest, kind)?.to_owned_in(&shared)?;
            if let Some(more) = v2_fields {
                row_v2::apply(&mut fire, more, &shared)?;
            }
            fire.lifecycle = lifecycle.map(row_v3::decode).transpose()?;
            Row::Fire(fire)
        }
        KIND_WATCH if lifecycle == Some(&[]) => {
            let trigger = text(&shared, rest.bytes()?)?;
            let mut watchers = Vec::new();
            for _ in 0..rest.u32()? {
                let trigger = text(&shared, rest.bytes()?)?;
                watchers.push(Watcher { trigger, generation: rest.u64()? });
            }
            Row::Watch { trigger, watchers }
        }
        KIND_VETO => {
            let trigger = text(&shared, rest.bytes()?)?;
            Row::Veto { trigger, cancel: rest.u64()? }
        }
        _ => return Err(RowError::Corrupt),
    };
    rest.expect_end()?;
    Ok(row)
}

/// Whether a row has a lifecycle or is a watch: it is not a plain fire.
#[must_use]
pub fn has_lifecycle(row: &[u8]) -> bool {
    row.first() == Some(&VERSION_3)
}

/// Reads an occurrence in place; `None` if what expires there is none.
pub fn view(row: &[u8]) -> Result<Option<FireView<'_>>, RowError> {
    let RowParts { mut rest, .. } = RowParts::open(row)?;
    match rest.u8()? {
        kind @ (KIND_TOPIC | KIND_HTTP) => {
            let fire = FireView::read(&mut rest, kind)?;
            rest.expect_end()?;
            Ok(Some(fire))
        }
        _ => decode(row).map(|_other| None),
    }
}

/// The topic that a row fires into; `None` if it does not, or is corrupt.
#[must_use]
pub fn target_topic(row: &[u8]) -> Option<&str> {
    let RowParts { mut rest, .. } = RowParts::open(row).ok()?;
    if rest.u8().ok()? == KIND_TOPIC { rest.text().ok() } else { None }
}

/// The pool that a row names; `None` if it names none, or is corrupt.
#[must_use]
pub fn target_pool(row: &[u8]) -> Option<&str> {
    if row.first() == Some(&VERSION_1) {
        return None; // nearly every row
    }
    row_v2::pool(RowParts::open(row).ok()?.v2_fields?)
}

/// An occurrence, read in place.
#[derive(Clone, Copy, Debug)]
pub struct FireView<'a> {
    /// The target.
    pub target: TargetView<'a>,
    /// The trigger's id.
    pub trigger: &'a [u8],
    /// The offset of the registration that defines it.
    pub generation: Offset,
    /// 0 for a one-time trigger.
    pub occurrence: u32,
    /// From 1.
    pub attempt: u32,
    /// How often this attempt was sent back.
    pub deferral: u32,
    /// When the occurrence was first due, in ms since the epoch.
    pub scheduled: Timestamp,
    /// Whether the ledger holds it.
    pub in_ledger: bool,
    /// What is delivered.
    pub payload: Option<&'a [u8]>,
    headers: &'a [u8],
    header_count: u32,
    retry: Option<&'a [u8]>,
    caller: Option<&'a [u8]>,
}

/// Where a fire goes.
#[derive(Clone, Copy, Debug)]
pub enum TargetView<'a> {
    /// A topic, and the key of the record.
    Topic {
        /// The topic's name.
        topic: &'a str,
        /// `None` means the trigger's id.
        key: Option<&'a [u8]>,
    },
    /// A callback.
    Http {
        /// The URL.
        url: &'a [u8],
        /// The method.
        method: &'a [u8],
    },
}

impl<'a> FireView<'a> {
    /// The headers carried to the target, in order.
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, Option<&'a [u8]>)> + use<'a> {
        let mut rest = RowReader(self.headers);
        // They were read before, when the view was made.
        (0..self.header_count).map_while(move |_| rest.header().ok())
    }

    /// How many [`headers`](Self::headers) there are.
    #[must_use]
    pub fn header_count(&self) -> usize {
        self.header_count as usize
    }

    /// The key of the record that goes to the target.
    #[must_use]
    pub fn record_key(&self) -> &'a [u8] {
        match self.target {
            TargetView::Topic { key: Some(key), .. } => key,
            _ => self.trigger,
        }
    }

    fn read(rest: &mut RowReader<'a>, kind: u8) -> Result<Self, RowError> {
        let target = if kind == KIND_TOPIC {
            TargetView::Topic { topic: rest.text()?, key: rest.optional()? }
        } else {
            TargetView::Http { url: rest.bytes()?, method: rest.bytes()? }
        };
        let trigger = rest.bytes()?;
        let (generation, occurrence) = (rest.u64()?, rest.u32()?);
        let (attempt, deferral) = (rest.u32()?, rest.u32()?);
        let scheduled = rest.u64()?;
        let in_ledger = match rest.u8()? {
            0 => false,
            1 => true,
            _ => return Err(RowError::Corrupt),
        };
        let payload = rest.optional()?;
        let header_count = rest.u32()?;
        let headers = rest.0;
        for _ in 0..header_count {
            let _checked = rest.header()?;
        }
        let retry = match rest.u32()? {
            NONE => None,
            count => Some(rest.slice(count.checked_mul(8).ok_or(RowError::Corrupt)?)?),
        };
        let caller = rest.optional()?;
        Ok(Self {
            target,
            trigger,
            generation,
            occurrence,
            attempt,
            deferral,
            scheduled,
            in_ledger,
            payload,
            headers,
            header_count,
            retry,
            caller,
        })
    }

    /// The decoded row of this view, sharing the bytes of `row`.
    fn to_owned_in(self, row: &Bytes) -> Result<FireRow, RowError> {
        let optional = |bytes: Option<&[u8]>| bytes.map(|bytes| row.slice_ref(bytes));
        let target = match self.target {
            TargetView::Topic { topic, key } => Target::Topic(TopicTarget {
                topic: text(row, topic.as_bytes())?,
                key: optional(key),
            }),
            TargetView::Http { url, method } => {
                let (url, method) = (text(row, url)?, text(row, method)?);
                Target::Http(Box::new(HttpTarget { url, method, pool: None, timeout: None }))
            }
        };
        let header = |(name, value): (&str, _)| {
            Ok(Header { name: text(row, name.as_bytes())?, value: optional(value) })
        };
        let delays = |delays: &[u8]| {
            let delay = |bytes: &[u8]| bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b));
            Box::new(RetryPolicy::from_pauses(delays.chunks_exact(8).map(delay).collect()))
        };
        let id = FireId {
            trigger: text(row, self.trigger)?,
            generation: self.generation,
            occurrence: self.occurrence,
            attempt: self.attempt,
            deferral: self.deferral,
        };
        let definition = Definition {
            target,
            payload: optional(self.payload),
            headers: self.headers().map(header).collect::<Result<_, _>>()?,
            retry: self.retry.map(delays),
            caller: self.caller.map(|caller| text(row, caller)).transpose()?,
        };
        let (scheduled, in_ledger) = (self.scheduled, self.in_ledger);
        Ok(FireRow { id, scheduled, in_ledger, definition, history: None, lifecycle: None })
    }
}

/// The version and the length are first, so that readers that need none of it skip it.
fn encode_v2_fields(fire: &FireRow, out: &mut Vec<u8>) {
    out.push(VERSION_2);
    let len_at = out.len();
    out.extend_from_slice(&[0; 4]);
    row_v2::encode(fire, out);
    let len = u32::try_from(out.len() - len_at - 4).expect("a history has a bound in bytes");
    out[len_at..len_at + 4].copy_from_slice(&len.to_be_bytes());
}

fn encode_fire(fire: &FireRow, out: &mut Vec<u8>) {
    let FireRow { id, scheduled, in_ledger, definition, history: _, lifecycle: _ } = fire;
    match &definition.target {
        Target::Topic(target) => {
            out.push(KIND_TOPIC);
            put_bytes(out, target.topic.bytes());
            put_optional(out, target.key.as_ref());
        }
        Target::Http(target) => {
            out.push(KIND_HTTP);
            put_bytes(out, target.url.bytes());
            put_bytes(out, target.method.bytes());
        }
    }
    put_bytes(out, id.trigger.bytes());
    out.extend_from_slice(&id.generation.to_be_bytes());
    out.extend_from_slice(&id.occurrence.to_be_bytes());
    out.extend_from_slice(&id.attempt.to_be_bytes());
    out.extend_from_slice(&id.deferral.to_be_bytes());
    out.extend_from_slice(&scheduled.to_be_bytes());
    out.push(u8::from(*in_ledger));
    put_optional(out, definition.payload.as_ref());
    put_len(out, definition.headers.len());
    for header in &definition.headers {
        put_bytes(out, header.name.bytes());
        put_optional(out, header.value.as_ref());
    }
    match definition.retry.as_deref() {
        Some(RetryPolicy { delays, .. }) if !delays.is_empty() => {
            put_len(out, delays.len());
            delays.iter().for_each(|delay| out.extend_from_slice(&delay.to_be_bytes()));
        }
        _ => out.extend_from_slice(&NONE.to_be_bytes()),
    }
    put_optional(out, definition.caller.as_ref().map(Text::bytes));
}

/// A row of version 1 and what preceded it.
struct RowParts<'a> {
    rest: RowReader<'a>,
    /// The fields of version 2.
    v2_fields: Option<&'a [u8]>,
    /// A lifecycle.
    lifecycle: Option<&'a [u8]>,
}

impl<'a> RowParts<'a> {
    /// Reads the versions and what precedes version 1.
    fn open(row: &'a [u8]) -> Result<Self, RowError> {
        let mut rest = RowReader(row);
        let mut parts = Self { rest: RowReader(&[]), v2_fields: None, lifecycle: None };
        let mut version = rest.u8()?;
        let newest = version;
        if version == VERSION_3 {
            parts.lifecycle = Some(rest.bytes()?);
            version = rest.u8()?;
        }
        if version == VERSION_2 {
            parts.v2_fields = Some(rest.bytes()?);
            version = rest.u8()?;
        }
        match version {
            VERSION_1 => Ok(Self { rest, ..parts }),
            newer if newer == newest && newer > VERSION_3 => Err(RowError::Newer(newer)),
            _ => Err(RowError::Corrupt),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::codec::golden;
    use crate::codec::samples::{self, any_row};

    fn encoded(row: &Row) -> RowBytes {
        to_bytes(row, &mut Vec::new())
    }

    proptest! {
        #[test]
        fn any_encoded_row_is_read_back(row in any_row()) {
            let bytes = encoded(&row);
            let target = match &row {
                Row::Fire(fire) => Some(&fire.definition.target),
                Row::Veto { .. } | Row::Watch { .. } => None,
            };
            let topic = match target {
                Some(Target::Topic(target)) => Some(target.topic.as_str()),
                _ => None,
            };
            prop_assert_eq!(target_topic(&bytes), topic);
            let pool = match target {
                Some(Target::Http(target)) => target.pool.as_ref().map(Text::as_str),
                _ => None,
            };
            prop_assert_eq!(target_pool(&bytes), pool);
            prop_assert_eq!(view(&bytes).map(|fire| fire.is_some()), Ok(target.is_some()));
            let is_lifecycle = match &row {
                Row::Fire(fire) => fire.lifecycle.is_some(),
                Row::Watch { .. } => true,
                Row::Veto { .. } => false,
            };
            prop_assert_eq!(has_lifecycle(&bytes), is_lifecycle);
            prop_assert_eq!(decode(&bytes), Ok(row));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in vec(any::<u8>(), 0..200), kind in 0..5u8) {
            let _ = (decode(&bytes), target_pool(&bytes));
            let row = [&[VERSION_1, kind], bytes.as_slice()].concat();
            if decode(&row).is_ok() {
                prop_assert!(view(&row).is_ok());
            }
            let len = [0, 0, 0, u8::try_from(bytes.len()).unwrap()];
            let plain = encoded(&samples::http_row());
            for version in [VERSION_2, VERSION_3] {
                let row = [&[version], &len[..], bytes.as_slice(), &plain].concat();
                let _ = (decode(&row), target_pool(&row));
                prop_assert!(view(&row).is_ok());
            }
        }

        #[test]
        fn a_cut_row_is_corrupt(row in any_row(), at in any::<prop::sample::Index>()) {
            let bytes = encoded(&row);
            let cut = &bytes[..at.index(bytes.len())];
            prop_assert_eq!(decode(cut), Err(RowError::Corrupt));
        }
    }

    #[test]
    fn encoded_rows_match_the_golden_files() {
        golden::check("row-topic", &encoded(&samples::topic_row()));
        golden::check("row-http", &encoded(&samples::http_row()));
        golden::check("row-retry", &encoded(&samples::retry_row()));
        golden::check("row-series", &encoded(&samples::recurring_row()));
        golden::check("row-watch", &encoded(&samples::watch_row()));
        golden::check("row-veto", &encoded(&Row::Veto { trigger: "order-7".into(), cancel: 41 }));
    }

    #[test]
    fn a_row_of_the_first_release_without_pauses_has_one_attempt() {
        let Row::Fire(fire) = samples::http_row() else { unreachable!() };
        let definition = Definition { retry: None, caller: None, ..fire.definition };
        let fire = FireRow { definition, ..fire };
        let mut bytes = encoded(&Row::Fire(fire)).to_vec();
        // How many pauses, and no caller.
        let count = bytes.len() - 8;
        bytes[count..count + 4].copy_from_slice(&[0; 4]);
        let Ok(Row::Fire(read)) = decode(&bytes) else { unreachable!() };
        assert_eq!(read.definition.retry.map(|policy| policy.attempts), Some(Some(1)));
    }

    #[test]
    fn a_newer_row_is_not_a_corrupt_one() {
        assert_eq!(decode(&[4, 0, 9]), Err(RowError::Newer(4)));
        assert_eq!(decode(&[3, 0, 0, 0, 0, 4]), Err(RowError::Corrupt));
        assert_eq!(decode(&[2, 0, 0, 0, 0, 2]), Err(RowError::Corrupt));
        assert_eq!(decode(&[0]), Err(RowError::Corrupt));
        assert_eq!(decode(&[]), Err(RowError::Corrupt));
        let mut longer = encoded(&samples::topic_row()).to_vec();
        longer.push(0);
        assert_eq!(decode(&longer), Err(RowError::Corrupt));
    }
}
