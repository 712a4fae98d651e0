//! The bytes of a timeline row in the store. On the hot path, hence by hand: big-endian integers
//! and length-prefixed bytes, and a decoder whose texts and payload share the buffer they came in.
//!
//! Law: the first byte is the version. A row of a newer version is told apart from a broken one,
//! and a row of this version begins with its target, so that `target_topic` need not read on.
//!
//! ```text
//!  version u8, kind u8 ─┬─ topic: name, key? ─┬─ id, generation, occurrence, attempt, deferral,
//!                       ├─ http: url, method ─┘  scheduled, in_ledger, payload?, headers, retry?,
//!                       │                        caller?
//!                       └─ veto: trigger, cancel
//! ```

use bytes::{Buf, Bytes};

use crate::model::definition::{Definition, Header, HttpTarget, Target, TopicTarget};
use crate::model::entry::{FireId, FireRow, Row};
use crate::model::retry::RetryLadder;
use crate::model::text::Text;

/// The version this program writes, and the newest it reads.
const VERSION: u8 = 1;

const KIND_TOPIC: u8 = 0;
const KIND_HTTP: u8 = 1;
const KIND_VETO: u8 = 2;

/// The length that stands for "none", as −1 does in Kafka's own protocol.
const NONE: u32 = u32::MAX;

/// Why a row cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// A newer Orloj wrote it: refuse to start, so that nothing is misread.
    #[error("the row has version {0}; a newer Orloj wrote it, so upgrade this process")]
    Newer(u8),
    /// It is not what was written: rebuild the store from Kafka.
    #[error("the row is corrupt; the store must be rebuilt from Kafka")]
    Corrupt,
}

/// Appends the bytes of `row` to `out`.
pub fn encode(row: &Row, out: &mut Vec<u8>) {
    out.push(VERSION);
    match row {
        Row::Fire(fire) => encode_fire(fire, out),
        Row::Veto { trigger, cancel } => {
            out.push(KIND_VETO);
            put_bytes(out, trigger.bytes());
            out.extend_from_slice(&cancel.to_be_bytes());
        }
    }
}

/// Reads a row; its texts and payload are slices of `bytes`.
pub fn decode(bytes: &Bytes) -> Result<Row, RowError> {
    let mut rest = Reader(bytes.clone());
    match rest.u8()? {
        VERSION => {}
        0 => return Err(RowError::Corrupt),
        newer => return Err(RowError::Newer(newer)),
    }
    let row = match rest.u8()? {
        KIND_TOPIC => {
            let target = TopicTarget { topic: rest.text()?, key: rest.optional()? };
            Row::Fire(rest.fire(Target::Topic(target))?.into())
        }
        KIND_HTTP => {
            let target = HttpTarget { url: rest.text()?, method: rest.text()? };
            Row::Fire(rest.fire(Target::Http(target))?.into())
        }
        KIND_VETO => Row::Veto { trigger: rest.text()?, cancel: rest.u64()? },
        _ => return Err(RowError::Corrupt),
    };
    if rest.0.is_empty() { Ok(row) } else { Err(RowError::Corrupt) }
}

fn encode_fire(fire: &FireRow, out: &mut Vec<u8>) {
    let FireRow { id, scheduled, in_ledger, definition } = fire;
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
    match &definition.retry {
        Some(RetryLadder(delays)) => {
            put_len(out, delays.len());
            delays.iter().for_each(|delay| out.extend_from_slice(&delay.to_be_bytes()));
        }
        None => out.extend_from_slice(&NONE.to_be_bytes()),
    }
    put_optional(out, definition.caller.as_ref().map(Text::bytes));
}

fn put_optional(out: &mut Vec<u8>, bytes: Option<&Bytes>) {
    match bytes {
        Some(bytes) => put_bytes(out, bytes),
        None => out.extend_from_slice(&NONE.to_be_bytes()),
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_len(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    let len = u32::try_from(len).unwrap_or(NONE);
    assert!(len < NONE, "the limits of a registration are far below 4 GiB");
    out.extend_from_slice(&len.to_be_bytes());
}

/// What is left to read.
struct Reader(Bytes);

impl Reader {
    fn fire(&mut self, target: Target) -> Result<FireRow, RowError> {
        let id = FireId {
            trigger: self.text()?,
            generation: self.u64()?,
            occurrence: self.u32()?,
            attempt: self.u32()?,
            deferral: self.u32()?,
        };
        let scheduled = self.u64()?;
        let in_ledger = match self.u8()? {
            0 => false,
            1 => true,
            _ => return Err(RowError::Corrupt),
        };
        let definition = Definition {
            target,
            payload: self.optional()?,
            headers: self.headers()?,
            retry: self.retry()?,
            caller: self.optional()?.map(text).transpose()?,
        };
        Ok(FireRow { id, scheduled, in_ledger, definition })
    }

    fn headers(&mut self) -> Result<Vec<Header>, RowError> {
        let count = self.u32()?;
        // Nothing is reserved by a count: a corrupt one must not ask for gigabytes.
        (0..count).map(|_| Ok(Header { name: self.text()?, value: self.optional()? })).collect()
    }

    fn retry(&mut self) -> Result<Option<RetryLadder>, RowError> {
        match self.u32()? {
            NONE => Ok(None),
            count => {
                (0..count).map(|_| self.u64()).collect::<Result<_, _>>().map(RetryLadder).map(Some)
            }
        }
    }

    fn text(&mut self) -> Result<Text, RowError> {
        let len = self.u32()?;
        text(self.slice(len)?)
    }

    fn optional(&mut self) -> Result<Option<Bytes>, RowError> {
        match self.u32()? {
            NONE => Ok(None),
            len => self.slice(len).map(Some),
        }
    }

    fn slice(&mut self, len: u32) -> Result<Bytes, RowError> {
        let len = len as usize;
        if len > self.0.len() { Err(RowError::Corrupt) } else { Ok(self.0.split_to(len)) }
    }

    fn u8(&mut self) -> Result<u8, RowError> {
        self.0.try_get_u8().map_err(|_| RowError::Corrupt)
    }

    fn u32(&mut self) -> Result<u32, RowError> {
        self.0.try_get_u32().map_err(|_| RowError::Corrupt)
    }

    fn u64(&mut self) -> Result<u64, RowError> {
        self.0.try_get_u64().map_err(|_| RowError::Corrupt)
    }
}

fn text(bytes: Bytes) -> Result<Text, RowError> {
    Text::from_utf8(bytes).map_err(|_| RowError::Corrupt)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::model::codec::golden;
    use crate::model::codec::samples::{self, any_row};

    fn encoded(row: &Row) -> Bytes {
        let mut out = Vec::new();
        encode(row, &mut out);
        out.into()
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(row in any_row()) {
            let bytes = encoded(&row);
            prop_assert_eq!(decode(&bytes), Ok(row));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in vec(any::<u8>(), 0..200), kind in 0..4u8) {
            let _ = decode(&Bytes::from(bytes.clone()));
            let row = Bytes::from([&[VERSION, kind], bytes.as_slice()].concat());
            let _ = decode(&row);
        }

        #[test]
        fn a_cut_row_is_corrupt(row in any_row(), at in any::<prop::sample::Index>()) {
            let bytes = encoded(&row);
            let cut = bytes.slice(..at.index(bytes.len()));
            prop_assert_eq!(decode(&cut), Err(RowError::Corrupt));
        }
    }

    #[test]
    fn the_bytes_are_these() {
        golden::check("row-topic", &encoded(&samples::topic_row()));
        golden::check("row-http", &encoded(&samples::http_row()));
        golden::check("row-veto", &encoded(&Row::Veto { trigger: "order-7".into(), cancel: 41 }));
    }

    #[test]
    fn a_newer_row_is_not_a_corrupt_one() {
        assert_eq!(decode(&Bytes::from_static(&[2, 0, 9])), Err(RowError::Newer(2)));
        assert_eq!(decode(&Bytes::from_static(&[0])), Err(RowError::Corrupt));
        assert_eq!(decode(&Bytes::new()), Err(RowError::Corrupt));
        let mut longer = encoded(&samples::topic_row()).to_vec();
        longer.push(0);
        assert_eq!(decode(&longer.into()), Err(RowError::Corrupt));
    }
}
