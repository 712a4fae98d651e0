//! The schemas of producers, and the runtime that asks their registry.
//!
//! Invariant: a look-up never waits.

use std::time::Duration;

use tokio::runtime::Runtime;

use crate::codec::registration::WriterSchemas;
use crate::config::TriggerSettings;
use crate::environment::SchemaSource;
use crate::kafka::schema_cache::SchemaCache;

/// The schemas of producers: files, and a registry.
#[derive(Debug)]
pub(super) struct RegistrySchemas {
    cache: SchemaCache,
    /// Runs the requests to the registry.
    _runtime: Option<Runtime>,
}

impl RegistrySchemas {
    /// The error says why they cannot be opened.
    pub(super) fn open(settings: &TriggerSettings) -> Result<Self, String> {
        let (cache, runtime) = SchemaCache::open(settings)?;
        Ok(Self { cache, _runtime: runtime })
    }
}

impl SchemaSource for RegistrySchemas {
    fn at(&self, now: Duration) -> impl WriterSchemas + '_ {
        self.cache.at(now)
    }

    fn refusal(&self, now: Duration) -> Option<String> {
        self.cache.refusal(now)
    }

    fn denies(&self, schema: u32, now: Duration) -> bool {
        self.cache.denies(schema, now)
    }
}
