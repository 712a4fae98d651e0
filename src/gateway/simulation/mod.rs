//! The gateway under random requests, without Kafka: the production router, client, view and engine
//! around topics in memory. Records and answers are lost, owners and gateways are killed, views are
//! built again, and each answer must follow from the log. In the end each view must show what the
//! second opinion of the view's tests says of all records.
//!
//! Invariant: a run follows from its seed. Nothing here decides what a gateway or an owner decides.
//!
//! ```text
//!  requests ─► router, handlers ─► SubmissionWriter ─► SimulatedTopics ─► engine
//!                │       ▲                                   │
//!                │       └── OutcomeAwaiter ◄── outcomes ────┤
//!                └─────────── View ◄── SimulatedView ◄───────┘
//! ```

#[path = "../../../crates/orloj-core/tests/core/audit/explain/mod.rs"]
mod explain;
mod gateway;
#[path = "../../../crates/orloj-core/tests/core/simulation/rng.rs"]
#[expect(dead_code, reason = "the simulation of the scheduler uses more of it")]
mod rng;
mod run;
mod scenarios;
#[path = "../../../crates/orloj-core/tests/core/schedules/test_partition.rs"]
#[expect(dead_code, reason = "the tests of schedules use more of it")]
mod test_partition;
mod topics;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::runtime::{Builder, Runtime};

use crate::callers::{CallerTable, Callers};
use crate::codec::schemas::Schemas;
use crate::config::{Layers, Settings};
use crate::gateway::api::Api;
use crate::gateway::auth::Authenticator;
use crate::gateway::routes;
use run::GatewayRun;

/// Without `ORLOJ_SEEDS`: so many runs.
const SEEDS: u64 = 20;
/// The requests of a run.
const REQUESTS: usize = 1_000;

/// A read waits until the simulation has the view read what it waits for.
const UNTIL_READ: Duration = Duration::from_secs(3_600);

/// What all runs share, because it takes long to make.
struct SharedParts {
    router: Router<Arc<Api>>,
    settings: Settings,
    /// How long a read waits for the view.
    view_wait_max: Duration,
    schemas: Schemas,
    callers: Callers,
    authenticator: Authenticator,
}

impl SharedParts {
    fn new(view_wait_max: Duration) -> Self {
        let overrides = vec![
            "topics.prefix=o".to_owned(),
            "topics.partitions=1".to_owned(),
            "kafka.bootstrap.servers=127.0.0.1:1".to_owned(),
            // The simulation says who has waited long enough.
            "gateway.answer_timeout=1h".to_owned(),
        ];
        let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
        let (router, _description) = routes::routes();
        let callers = Callers::fixed(CallerTable::read(&settings).unwrap());
        let authenticator = Authenticator::open(&settings, callers.clone()).unwrap();
        let schemas = Schemas::new();
        Self { router, settings, view_wait_max, schemas, callers, authenticator }
    }
}

/// One thread for requests, and one for queries, which are made in the order in which they began.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap()
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// `ORLOJ_SEEDS` says how many seeds, `ORLOJ_SEED` which is the first.
#[test]
fn no_seed_gives_an_answer_that_the_log_does_not_explain() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let shared = SharedParts::new(UNTIL_READ);
    let first = setting("ORLOJ_SEED").unwrap_or(1);
    let count = setting("ORLOJ_SEEDS").unwrap_or(if first == 1 { SEEDS } else { 1 });
    let mut counts = run::AnswerCounts::default();
    for seed in first..first + count {
        let folder = tempfile::tempdir().unwrap();
        let run = GatewayRun::new(&shared, folder.path(), seed);
        let (found, answers) = runtime.block_on(run.run(REQUESTS));
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "ORLOJ_SEED={seed}:\n{}", found.join("\n"));
        counts.add(&answers);
    }
    println!("{count} runs: {counts}");
    counts.assert_varied();
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let shared = SharedParts::new(UNTIL_READ);
    let mut histories = Vec::new();
    for _ in 0..2 {
        let folder = tempfile::tempdir().unwrap();
        let run = GatewayRun::new(&shared, folder.path(), 3);
        let (_found, answers) = runtime.block_on(run.run(300));
        histories.push(answers.to_string());
    }
    assert_eq!(histories[0], histories[1]);
}
