//! Which records below N are parked: they were read, and are not decided yet, because the registry
//! does not give the schema that they were written with.
//!
//! Invariant: the parked records follow from the log and from what is stored here. A record is
//! parked if its writer schema has an offset here that is not above its own, or if an earlier
//! record of its trigger is parked. So an owner that takes over parks the same records again.

use crate::model::Offset;

/// Schemas that can be missing at once. Each takes up to 32 bytes of the commit metadata, of which
/// a broker keeps 4,096; all are part of every cursor, which is copied.
pub const PARKED_SCHEMAS_MAX: usize = 12;

/// The writer schemas that records wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParkedSchemas {
    count: usize,
    ids: [u32; PARKED_SCHEMAS_MAX],
    /// Of each schema, the first record that is parked because of it: an earlier one may be, if it
    /// waits behind another of its trigger.
    first: [Offset; PARKED_SCHEMAS_MAX],
}

impl ParkedSchemas {
    /// Nothing is parked.
    pub const NONE: Self =
        Self { count: 0, ids: [0; PARKED_SCHEMAS_MAX], first: [0; PARKED_SCHEMAS_MAX] };

    /// Whether nothing is parked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The first parked record.
    #[must_use]
    pub fn first_offset(&self) -> Option<Offset> {
        self.iter().map(|(_, offset)| offset).min()
    }

    /// The first record that is parked because of `schema`.
    #[must_use]
    pub fn first_of(&self, schema: u32) -> Option<Offset> {
        self.iter().find(|(other, _)| *other == schema).map(|(_, offset)| offset)
    }

    /// Whether one more schema fits.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.count < PARKED_SCHEMAS_MAX
    }

    /// From `offset` on records with `schema`, which has no parked record yet, are parked. Returns
    /// false if there is no room for one more schema.
    #[must_use]
    pub fn insert(&mut self, schema: u32, offset: Offset) -> bool {
        let at = self.count;
        let (Some(id), Some(first)) = (self.ids.get_mut(at), self.first.get_mut(at)) else {
            return false;
        };
        (*id, *first) = (schema, offset);
        self.count += 1;
        true
    }

    /// All schemas, with their first records.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Offset)> {
        self.ids.into_iter().zip(self.first).take(self.count)
    }

    /// Those whose first record is below `until`.
    #[must_use]
    pub fn below(&self, until: Offset) -> Self {
        self.iter().filter(|(_, offset)| *offset < until).collect()
    }

    /// As text: `schema:offset` of each, with commas.
    #[must_use]
    pub fn to_text(&self) -> String {
        let each: Vec<_> =
            self.iter().map(|(schema, offset)| format!("{schema}:{offset}")).collect();
        each.join(",")
    }

    /// Reads that text.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let mut parked = Self::NONE;
        for each in text.split(',') {
            let (schema, offset) = each.split_once(':')?;
            let (schema, offset) = (schema.parse().ok()?, offset.parse().ok()?);
            if parked.first_of(schema).is_some() || !parked.insert(schema, offset) {
                return None;
            }
        }
        Some(parked)
    }
}

impl FromIterator<(u32, Offset)> for ParkedSchemas {
    /// Takes the first ones, if there are too many.
    fn from_iter<T: IntoIterator<Item = (u32, Offset)>>(schemas: T) -> Self {
        let mut parked = Self::NONE;
        for (schema, offset) in schemas {
            let _has_room = parked.insert(schema, offset);
        }
        parked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_text_is_read_again() {
        let parked: ParkedSchemas = [(7, 15), (u32::MAX, 20)].into_iter().collect();
        assert_eq!(parked.to_text(), "7:15,4294967295:20");
        assert_eq!(ParkedSchemas::from_text(&parked.to_text()), Some(parked));
        assert_eq!((parked.first_offset(), parked.first_of(7)), (Some(15), Some(15)));
        assert_eq!((parked.first_of(8), parked.below(15)), (None, ParkedSchemas::NONE));
        for text in ["", "7", "7:", "7:1,", "7:1,7:2", "x:1"] {
            assert_eq!(ParkedSchemas::from_text(text), None, "{text}");
        }
    }

    #[test]
    fn its_text_fits_into_commit_metadata() {
        let mut parked = ParkedSchemas::NONE;
        for schema in 0..PARKED_SCHEMAS_MAX as u32 {
            assert!(parked.insert(u32::MAX - schema, Offset::MAX));
        }
        assert!(!parked.insert(1, 1), "it is full");
        assert!(parked.to_text().len() <= 32 * PARKED_SCHEMAS_MAX);
    }

    #[test]
    fn there_is_room_until_the_last_schema() {
        let mut parked = ParkedSchemas::NONE;
        assert!(parked.is_empty());
        for schema in 0..PARKED_SCHEMAS_MAX as u32 {
            assert!(parked.has_room());
            assert!(parked.insert(schema, 50 - Offset::from(schema)));
            assert!(!parked.is_empty());
        }
        assert!(!parked.has_room());
        assert_eq!((parked.first_offset(), parked.first_of(3)), (Some(39), Some(47)));
        assert_eq!(parked.below(41).to_text(), "10:40,11:39");
    }
}
