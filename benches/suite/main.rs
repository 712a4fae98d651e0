//! `make bench`, `make bench-quick`, `make bench-long`: how fast the scheduler is next to what the
//! machine can do at all.
//!
//! Invariant: whatever is compared is measured in one run, on one real broker, the same way: the
//! *pipe* moves the records that the scheduler registers and fires, and the *ticker* commits
//! ready-made fires at the times at which the scheduler fires. Each case is a row of a table, with
//! a criterion.
//!
//! ```text
//!   backlog ──► pipe ──────► out ──┐
//!           └─► scheduler ─► out ──┼─► reader (read_committed): the last record, or how late each
//!               ticker ────► out ──┘
//! ```

#![expect(clippy::unwrap_used, reason = "a measurement that cannot go on has failed")]

mod bench_cluster;
#[path = "../../tests/it/broker_jvm.rs"]
mod broker_jvm;
mod caller;
mod case;
mod cases;
mod chart;
#[path = "../../crates/orloj-core/tests/core/command.rs"]
mod command;
mod figures;
#[expect(dead_code, reason = "the tests' fixture can do more than a measurement needs")]
#[path = "../../tests/it/kafka_server.rs"]
mod kafka_server;
mod load_generator;
mod machine;
mod measured_process;
mod output_reader;
mod peers;
mod pending_clusters;
mod pipe;
mod plan;
mod progress;
mod receiver;
mod report;
mod run;
mod ticker;
mod transaction_writer;
#[path = "../../tests/it/wait.rs"]
mod wait;

use std::process::ExitCode;
use std::time::Duration;

use orloj::allocator;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["pipe", config, count, batch_ms] => {
            allocator::disable_huge_pages();
            let batch = Duration::from_millis(batch_ms.parse().unwrap());
            pipe::run(&bench_cluster::settings(config), count.parse().unwrap(), batch);
        }
        ["ticker", config, count, rate] => {
            allocator::disable_huge_pages();
            ticker::run(
                &bench_cluster::settings(config),
                count.parse().unwrap(),
                rate.parse().unwrap(),
            );
        }
        ["caller", _config, url, count, at_once] => {
            caller::run(url, count.parse().unwrap(), at_once.parse().unwrap());
        }
        [scale] => {
            let Some(plan) = plan::named(scale) else {
                eprintln!("{scale}? Say quick, full, long or floor; CASES=a,b: only those cases.");
                return ExitCode::FAILURE;
            };
            return run::all(plan);
        }
        _ => {
            eprintln!("usage: suite quick|full|long");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
