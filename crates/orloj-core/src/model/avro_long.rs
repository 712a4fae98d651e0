//! Unsigned 64-bit numbers as Avro's `long`, which is signed.
//!
//! Invariant: every number survives the round trip. Times and offsets are far below the sign bit;
//! other numbers (a nonce, a maximum) wrap to a negative number and back.

use serde::{Deserialize, Deserializer, Serializer};

pub(crate) fn serialize<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_i64(number.cast_signed())
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    i64::deserialize(from).map(i64::cast_unsigned)
}

/// `Option<u64>`.
pub(crate) mod option {
    use super::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(number: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
        match number {
            Some(number) => to.serialize_some(&number.cast_signed()),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
        Ok(Option::<i64>::deserialize(from)?.map(i64::cast_unsigned))
    }
}

/// `Vec<u64>`.
pub(crate) mod list {
    use super::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ptr_arg, reason = "serde hands over the field itself")]
    pub(crate) fn serialize<S: Serializer>(numbers: &Vec<u64>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(numbers.iter().map(|number| number.cast_signed()))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u64>, D::Error> {
        let numbers = Vec::<i64>::deserialize(from)?;
        Ok(numbers.into_iter().map(i64::cast_unsigned).collect())
    }
}
