//! The primitives of a row's bytes: big-endian integers, length-prefixed bytes, and a reader.
//!
//! Invariant: reading never goes beyond the row; what is missing is [`RowError::Corrupt`].

use bytes::Bytes;

use crate::model::text::Text;

/// The length that means "none", as −1 does in Kafka's own protocol.
pub(super) const NONE: u32 = u32::MAX;

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

#[inline]
pub(super) fn put_optional(out: &mut Vec<u8>, bytes: Option<&Bytes>) {
    match bytes {
        Some(bytes) => put_bytes(out, bytes),
        None => out.extend_from_slice(&NONE.to_be_bytes()),
    }
}

#[inline]
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_len(out, bytes.len());
    out.extend_from_slice(bytes);
}

#[inline]
pub(super) fn put_len(out: &mut Vec<u8>, len: usize) {
    let len = u32::try_from(len).unwrap_or(NONE);
    assert!(len < NONE, "the limits of a registration are far below 4 GiB");
    out.extend_from_slice(&len.to_be_bytes());
}

/// What is left to read.
pub(super) struct RowReader<'a>(pub(super) &'a [u8]);

impl<'a> RowReader<'a> {
    #[inline]
    pub(super) fn expect_end(&self) -> Result<(), RowError> {
        if self.0.is_empty() { Ok(()) } else { Err(RowError::Corrupt) }
    }

    #[inline]
    pub(super) fn header(&mut self) -> Result<(&'a str, Option<&'a [u8]>), RowError> {
        Ok((self.text()?, self.optional()?))
    }

    #[inline]
    pub(super) fn text(&mut self) -> Result<&'a str, RowError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| RowError::Corrupt)
    }

    #[inline]
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], RowError> {
        let len = self.u32()?;
        self.slice(len)
    }

    #[inline]
    pub(super) fn optional(&mut self) -> Result<Option<&'a [u8]>, RowError> {
        match self.u32()? {
            NONE => Ok(None),
            len => self.slice(len).map(Some),
        }
    }

    #[inline]
    pub(super) fn slice(&mut self, len: u32) -> Result<&'a [u8], RowError> {
        let (slice, rest) = self.0.split_at_checked(len as usize).ok_or(RowError::Corrupt)?;
        self.0 = rest;
        Ok(slice)
    }

    #[inline]
    pub(super) fn u8(&mut self) -> Result<u8, RowError> {
        self.array::<1>().map(|[byte]| byte)
    }

    #[inline]
    pub(super) fn u16(&mut self) -> Result<u16, RowError> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Result<u32, RowError> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub(super) fn u64(&mut self) -> Result<u64, RowError> {
        self.array().map(u64::from_be_bytes)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], RowError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(RowError::Corrupt)?;
        self.0 = rest;
        Ok(*array)
    }
}

/// A text that shares the bytes of its row.
#[inline]
pub(super) fn text(row: &Bytes, text: &[u8]) -> Result<Text, RowError> {
    Text::from_utf8(row.slice_ref(text)).map_err(|_| RowError::Corrupt)
}
