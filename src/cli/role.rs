//! Runs a role as a process: topics checked, health served, stopped by a signal.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{CliError, signals, topic_definitions};
use crate::config::{Layers, Settings};
use crate::dev::DevCluster;
use crate::health::{self, Health};
use crate::{dev, gateway, notifier, scheduler, telemetry, worker};

/// How long answers to probes may take after the role has ended.
const PROBES_END_MAX: Duration = Duration::from_secs(1);

/// The role of a process.
#[derive(Clone, Copy, Debug)]
pub(super) enum ProcessRole {
    /// Owns partitions.
    Scheduler,
    /// Makes callbacks.
    Worker,
    /// Serves the API.
    Gateway,
    /// Notifies callers of failures.
    Notifier,
}

/// The arguments of `orloj dev`.
#[derive(Debug, Args)]
pub(super) struct DevArguments {
    /// On a real cluster, use the names of the settings whatever they are: join the groups of the
    /// processes that run there.
    #[arg(long)]
    join: bool,
}

impl ProcessRole {
    fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Worker => "worker",
            Self::Gateway => "gateway",
            Self::Notifier => "notifier",
        }
    }

    fn listen(self, settings: &Settings) -> (SocketAddr, &'static str) {
        match self {
            Self::Scheduler => (settings.scheduler.listen, "scheduler.listen"),
            Self::Worker => (settings.worker.listen, "worker.listen"),
            Self::Gateway => (settings.gateway.listen, "gateway.listen"),
            Self::Notifier => (settings.notifier.listen, "notifier.listen"),
        }
    }
}

/// Runs one role until a signal or an error.
pub(super) async fn run(role: ProcessRole, settings: Settings) -> Result<(), CliError> {
    let metrics = telemetry::start_metrics()?;
    let shutdown = CancellationToken::new();
    let health = Health::new(role.name());
    signals::watch(vec![Arc::clone(&health)], shutdown.clone())?;
    let topics = topic_definitions(&settings);
    let verified = shutdown.run_until_cancelled(topics.verify(&settings)).await;
    let Some(verified) = verified else { return Ok(()) };
    verified?;

    let (address, setting) = role.listen(&settings);
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|source| CliError::Listen { address, setting, source })?;
    tracing::info!(role = role.name(), %address, "started");
    let _detached = tokio::spawn(health::upkeep(metrics.clone(), shutdown.clone()));
    if let ProcessRole::Gateway = role {
        let probes = health::routes(vec![Arc::clone(&health)], metrics);
        return Ok(gateway::run(&settings, listener, probes, health, shutdown).await?);
    }
    // Probes and metrics are answered until the role has ended, however long that takes.
    let end_probes = CancellationToken::new();
    let probes = health::serve(listener, Arc::clone(&health), metrics, end_probes.clone());
    let probes = tokio::spawn(probes);
    let ended = tokio::task::spawn_blocking({
        let shutdown = shutdown.clone();
        move || match role {
            ProcessRole::Scheduler => {
                scheduler::run(&settings, shutdown, health).map_err(Into::into)
            }
            ProcessRole::Notifier => notifier::run(&settings, shutdown, health).map_err(Into::into),
            _ => worker::run(&settings, shutdown, health).map_err(CliError::from),
        }
    });
    let result = ended.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    shutdown.cancel();
    end_probes.cancel();
    // A client that holds a connection does not keep the process.
    let _served = tokio::time::timeout(PROBES_END_MAX, probes).await;
    result
}

impl DevArguments {
    /// Runs every role in this process, on a real cluster or on a broker of its own.
    pub(super) async fn run(self, layers: Layers, on_cluster: bool) -> Result<(), CliError> {
        let metrics = telemetry::start_metrics()?;
        let shutdown = CancellationToken::new();
        let roles = dev::RoleHealth::new();
        signals::watch(roles.all(), shutdown.clone())?;
        let _detached = tokio::spawn(health::upkeep(metrics.clone(), shutdown.clone()));
        let cluster = match (on_cluster, self.join) {
            (false, _) => DevCluster::BuiltIn,
            (true, false) => DevCluster::Separate,
            (true, true) => DevCluster::Joined,
        };
        Ok(dev::run(cluster, layers, roles, metrics, shutdown).await?)
    }
}
