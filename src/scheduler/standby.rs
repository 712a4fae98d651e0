//! Opens what a standby works with: `orloj_core::scheduler::standby` is the standby.
//!
//! Invariant: its clients are not members of the group, and their requests are short. It has
//! readers of its own, so that the loop's are not delayed.

use std::time::Duration;

use orloj_core::scheduler::config::StandbyConfig;
use orloj_core::scheduler::standby::StandbyParts;

use super::SchedulerError;
use super::environment::KafkaEnvironment;
use super::instance_lock::InstanceLock;
use super::registry_schemas::RegistrySchemas;
use crate::config::Settings;
use crate::kafka::Names;
use crate::kafka::admin_client::KafkaAdminClient;
use crate::kafka::environment::KafkaQueries;
use crate::kafka::reader::LogReader;
use crate::kafka::standby_client::StandbyClient;

/// How long the broker may take to answer. A takeover may be waiting for it.
const CALL_TIMEOUT: Duration = Duration::from_millis(300);

/// Opens the clients of a standby.
pub(super) fn open(
    settings: &Settings,
    names: &Names,
    instance_lock: &InstanceLock,
) -> Result<StandbyParts<KafkaEnvironment>, SchedulerError> {
    let group = names.scheduler_group();
    let triggers = LogReader::open(settings, &group)?;
    let cluster = KafkaQueries {
        admin: KafkaAdminClient::open(settings, CALL_TIMEOUT)?,
        reader: triggers.clone(),
        timeout: CALL_TIMEOUT,
    };
    Ok(StandbyParts {
        config: StandbyConfig::new(
            usize::from(settings.standby.replicas),
            format!("{}-", instance_lock.instance_id),
            settings.store.flush_interval,
        ),
        ledger: LogReader::open(settings, &group)?,
        triggers,
        cluster,
        group: StandbyClient::open(settings, &group, &names.triggers(), CALL_TIMEOUT)?,
        schemas: RegistrySchemas::open(&settings.triggers).map_err(SchedulerError::Schemas)?,
    })
}
