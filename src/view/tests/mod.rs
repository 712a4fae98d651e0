//! Tests of the view without Kafka: records are applied to a database in memory, or on disk for
//! large lists.

mod changes;
mod fixture_events;
mod history;
mod history_actions;
mod large_lists;
mod queries;
mod query_plans;
mod read_order;
mod registration_cost;
mod retention;
mod second_opinion;
mod view_replay;

use rusqlite::Connection;

use super::projector::{Projector, ProjectorCache};
use super::schema;

/// A view's database and the cache of its thread.
pub(super) struct ViewFixture {
    pub(super) db: Connection,
    pub(super) cache: ProjectorCache,
}

impl ViewFixture {
    pub(super) fn new() -> Self {
        Self::with_payload_max(64)
    }

    /// The view keeps payloads of so many bytes.
    pub(super) fn with_payload_max(payload_max: usize) -> Self {
        let db = Connection::open_in_memory().unwrap();
        schema::create_tables(&db, "test", 0).unwrap();
        let cache = ProjectorCache::load(&db, payload_max).unwrap();
        db.set_prepared_statement_cache_capacity(128);
        Self { db, cache }
    }

    pub(super) fn projector(&mut self) -> Projector<'_> {
        Projector { db: &self.db, cache: &mut self.cache }
    }
}
