//! The key of a ledger record as text, and the header that orders its values.
//!
//! Invariant: an id is last, so that whatever characters it has, a key is read as it was
//! written.

use bytes::Bytes;

use crate::model::Offset;
use crate::model::ledger::LedgerKey;
use crate::model::text::Text;

/// The header that carries the number of the step which wrote a ledger record, as digits.
pub const STEP_HEADER: &str = "orloj-step";

impl LedgerKey {
    /// The bytes of [`LedgerKey::Cursor`].
    pub const CURSOR: &[u8] = b"~cursor";
    /// The bytes of [`LedgerKey::Barrier`].
    pub const BARRIER: &[u8] = b"~barrier";

    /// The key's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Main(id) => format!("m|{id}"),
            Self::Retry { trigger, generation, occurrence } => {
                format!("r|{generation}|{occurrence}|{trigger}")
            }
            Self::Veto(id) => format!("v|{id}"),
            Self::Skip(offset) => format!("~skip|{offset}"),
            Self::Cursor => "~cursor".to_owned(),
            Self::Barrier => "~barrier".to_owned(),
        }
        .into_bytes()
    }

    /// Reads a key; `None` if it is none of ours.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        match text.split_once('|') {
            None if text == "~cursor" => Some(Self::Cursor),
            None if text == "~barrier" => Some(Self::Barrier),
            None => None,
            Some(("m", id)) => Some(Self::Main(Text::from(id))),
            Some(("v", id)) => Some(Self::Veto(Text::from(id))),
            Some(("~skip", offset)) => Some(Self::Skip(offset.parse().ok()?)),
            Some(("r", rest)) => {
                let (generation, rest) = rest.split_once('|')?;
                let (occurrence, id) = rest.split_once('|')?;
                let (generation, occurrence): (Offset, u32) =
                    (generation.parse().ok()?, occurrence.parse().ok()?);
                Some(Self::Retry { trigger: Text::from(id), generation, occurrence })
            }
            Some(_) => None,
        }
    }
}

/// The value of the header [`STEP_HEADER`].
#[must_use]
pub fn step_header(step: u64) -> Bytes {
    Bytes::from(step.to_string())
}

/// Reads the header [`STEP_HEADER`].
pub(super) fn parse_step(header: Option<&[u8]>) -> Option<u64> {
    std::str::from_utf8(header?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_key_or_none(bytes: Vec<u8>, text in "(m|v|r|~skip|~)\\|?[0-9|x]{0,12}") {
            let _read = LedgerKey::parse(&bytes);
            let _step = parse_step(Some(&bytes));
            if let Some(key) = LedgerKey::parse(text.as_bytes()) {
                prop_assert_eq!(LedgerKey::parse(&key.to_bytes()), Some(key));
            }
        }
    }

    #[test]
    fn keys_are_these_texts() {
        let retry = LedgerKey::Retry { trigger: "a|b".into(), generation: 41, occurrence: 2 };
        let table = [
            (LedgerKey::Main("a|b".into()), "m|a|b"),
            (retry, "r|41|2|a|b"),
            (LedgerKey::Veto("~cursor".into()), "v|~cursor"),
            (LedgerKey::Skip(7), "~skip|7"),
            (LedgerKey::Cursor, "~cursor"),
            (LedgerKey::Barrier, "~barrier"),
        ];
        for (key, text) in table {
            assert_eq!(key.to_bytes(), text.as_bytes());
            assert_eq!(LedgerKey::parse(text.as_bytes()), Some(key));
        }
        assert_eq!(LedgerKey::parse(LedgerKey::CURSOR), Some(LedgerKey::Cursor));
        assert_eq!(LedgerKey::parse(LedgerKey::BARRIER), Some(LedgerKey::Barrier));
        for bad in ["", "x|a", "~skip|x", "r|1|a", "~other", "m"] {
            assert_eq!(LedgerKey::parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(parse_step(Some(&step_header(9))), Some(9));
        assert_eq!(parse_step(None), None);
    }
}
