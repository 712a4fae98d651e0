//! Tests of the view without Kafka: facts are folded into a database in memory, or on disk where
//! it is to be large.

mod asked;
mod history;
mod large;
mod order;
mod plans;
mod retained;
mod stage;

use rusqlite::Connection;

use super::fold::{Fold, Memo};
use super::schema;

/// A view's database and what its thread remembers.
pub(super) struct Scene {
    pub(super) db: Connection,
    pub(super) memo: Memo,
}

impl Scene {
    pub(super) fn new() -> Self {
        let db = Connection::open_in_memory().unwrap();
        schema::make(&db, "test").unwrap();
        let memo = Memo::load(&db, 64).unwrap();
        db.set_prepared_statement_cache_capacity(128);
        Self { db, memo }
    }

    pub(super) fn fold(&mut self) -> Fold<'_> {
        Fold { db: &self.db, memo: &mut self.memo }
    }
}
