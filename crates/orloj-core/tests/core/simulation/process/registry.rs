//! The schema registry, as a process sees it.
//!
//! Invariant: a look-up never waits. What the registry has answered once, the process knows until
//! it ends. A schema to which it denies access is refused after a patience.

use std::time::Duration;

use orloj_core::codec::registration::{SchemaLookup, WriterSchemas};
use orloj_core::environment::SchemaSource;

use super::SimulatedProcess;
use crate::simulation::cluster::RegistryState;
use crate::simulation::fault_kinds::FaultKind;
use crate::simulation::registered_schemas::{DENIED, DENIED_PATIENCE};

/// The writer schemas of a process.
pub(in crate::simulation) struct SimulatedSchemas(pub(in crate::simulation) SimulatedProcess);

impl SchemaSource for SimulatedSchemas {
    fn at(&self, now: Duration) -> impl WriterSchemas + '_ {
        SchemasAt { process: &self.0, now }
    }

    fn refusal(&self, now: Duration) -> Option<String> {
        let since = self.0.state().denied_since?;
        (now < since + 2 * DENIED_PATIENCE).then(|| "401".to_owned())
    }

    fn denies(&self, schema: u32, now: Duration) -> bool {
        schema == DENIED && self.refusal(now).is_some()
    }
}

/// The writer schemas at a time.
struct SchemasAt<'a> {
    process: &'a SimulatedProcess,
    now: Duration,
}

impl WriterSchemas for SchemasAt<'_> {
    fn by_id(&self, id: u32) -> SchemaLookup {
        self.process.call(|cluster, state| {
            if id == DENIED {
                let since = *state.denied_since.get_or_insert(self.now);
                if self.now < since + DENIED_PATIENCE {
                    cluster.counts.add(FaultKind::SchemaDenied);
                    return SchemaLookup::Unreachable;
                }
                cluster.counts.add(FaultKind::SchemaDeniedForLong);
                return SchemaLookup::Refused("401".into());
            }
            if state.known_schemas.contains(&id) {
                return cluster.reader.look_up(id);
            }
            let missed = match cluster.registry {
                RegistryState::Answers if cluster.calm || !cluster.rng.one_in(3) => None,
                RegistryState::Answers => Some(FaultKind::RegistrySlow),
                RegistryState::Away => Some(FaultKind::RegistryAway),
            };
            if let Some(kind) = missed {
                cluster.counts.add(kind);
                return SchemaLookup::Unreachable;
            }
            let _new = state.known_schemas.insert(id);
            cluster.reader.look_up(id)
        })
    }
}
