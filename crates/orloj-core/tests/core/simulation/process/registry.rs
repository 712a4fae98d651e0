//! The schema registry, as a process sees it.
//!
//! Invariant: a look-up never waits. What the registry has answered once, the process knows until
//! it ends.

use orloj_core::codec::registration::{SchemaLookup, WriterSchemas};
use orloj_core::environment::SchemaSource;
use orloj_core::model::Timestamp;

use super::SimulatedProcess;
use crate::simulation::cluster::RegistryState;
use crate::simulation::fault_kinds::FaultKind;

/// The writer schemas of a process.
pub(in crate::simulation) struct SimulatedSchemas(pub(in crate::simulation) SimulatedProcess);

impl SchemaSource for SimulatedSchemas {
    fn at(&self, _now: Timestamp) -> impl WriterSchemas + '_ {
        Self(self.0.clone())
    }

    fn refusal(&self, _now: Timestamp) -> Option<String> {
        None
    }
}

impl WriterSchemas for SimulatedSchemas {
    fn by_id(&self, id: u32) -> SchemaLookup {
        self.0.call(|cluster, state| {
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
