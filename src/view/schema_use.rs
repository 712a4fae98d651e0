//! Which registrations are undecided although their owner has read past them: they are parked, or
//! wait behind a record of their trigger that is.
//!
//! Invariant: what is parked follows from the cursor and from the schemas that records name, as
//! [`ParkedSchemas`](crate::engine::parked_schemas::ParkedSchemas) says. A use is kept as long as a
//! record from its position on can be parked.

use rusqlite::params;

use super::ViewError;
use super::projector::{Projector, decode_position, encode_position};
use crate::codec::registration::{RawRecord, trigger_named, writer_schema};
use crate::engine::cursor::Cursor;
use crate::model::PartitionId;
use crate::model::text::Text;

/// A record names a schema of a registry.
#[derive(Clone, Debug)]
pub(super) struct SchemaUse {
    /// The trigger that the record is about.
    pub(super) trigger: Text,
    pub(super) schema: u32,
}

impl SchemaUse {
    /// `None` if the record needs no schema of a registry.
    pub(super) fn of(raw: &RawRecord<'_>) -> Option<Self> {
        let schema = writer_schema(raw)?;
        Some(Self { trigger: trigger_named(raw)?, schema })
    }
}

impl Projector<'_> {
    /// The record of `triggers` at `gid` names a schema.
    pub(super) fn apply_schema_use(&self, gid: i64, named: &SchemaUse) -> Result<(), ViewError> {
        let sql = "INSERT OR REPLACE INTO schema_use (gid, id, schema) VALUES (?1, ?2, ?3)";
        let values = params![gid, named.trigger.as_str(), named.schema];
        let _new = self.db.prepare_cached(sql)?.execute(values)?;
        Ok(())
    }

    /// Whether the owner has decided about the registration of a trigger at `gid`.
    pub(super) fn is_decided(
        &self,
        cursor: &Cursor,
        sid: i64,
        gid: i64,
    ) -> Result<bool, ViewError> {
        let (partition, _) = decode_position(gid);
        Ok(gid < self.decided_until(cursor, sid, partition)?)
    }

    /// The position before which the owner has decided about all records of a trigger.
    pub(super) fn decided_until(
        &self,
        cursor: &Cursor,
        sid: i64,
        partition: PartitionId,
    ) -> Result<i64, ViewError> {
        let mut until = encode_position(partition, cursor.next_offset);
        let sql = "SELECT min(u.gid) FROM subject AS s JOIN schema_use AS u ON u.id = s.id \
                   WHERE s.sid = ?1 AND u.schema = ?2 AND u.gid >= ?3 AND u.gid < ?4";
        for (schema, first) in cursor.parked.iter() {
            let first = encode_position(partition, first);
            let mut select = self.db.prepare_cached(sql)?;
            let parked = select.query_row(params![sid, schema, first, until], |row| row.get(0))?;
            until = until.min(Option::<i64>::unwrap_or(parked, until));
        }
        Ok(until)
    }

    /// Forgets the uses below which nothing can be parked any more.
    pub(super) fn forget_schema_uses(
        &self,
        partition: PartitionId,
        cursor: &Cursor,
    ) -> Result<(), ViewError> {
        let until = cursor.replay_from.min(cursor.decided_until());
        let sql = "DELETE FROM schema_use WHERE gid >= ?1 AND gid < ?2";
        let bounds = [encode_position(partition, 0), encode_position(partition, until)];
        let _deleted = self.db.prepare_cached(sql)?.execute(bounds)?;
        Ok(())
    }
}
