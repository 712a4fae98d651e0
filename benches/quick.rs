//! `make bench-quick`: how fast the scheduler is next to what the machine can do at all.
//!
//! Law: whatever is compared is measured in one run, on one real broker, the same way: the *pipe*
//! moves the records that the scheduler registers and fires, and the *ticker* commits ready-made
//! fires at the times at which the scheduler fires. Below a floor the run fails.
//!
//! ```text
//!   backlog ──► pipe ──────► out ──┐
//!           └─► scheduler ─► out ──┼─► witness (read_committed): the last record, or how late each
//!               ticker ────► out ──┘
//! ```

#![expect(clippy::unwrap_used, reason = "a measurement that cannot go on has failed")]

#[path = "quick/contender.rs"]
mod contender;
#[expect(dead_code, reason = "the tests' fixture can do more than a measurement needs")]
#[path = "../tests/it/kafka_server.rs"]
mod kafka_server;
#[path = "quick/outlet.rs"]
mod outlet;
#[path = "quick/pipe.rs"]
mod pipe;
#[path = "quick/report.rs"]
mod report;
#[path = "quick/site.rs"]
mod site;
#[path = "quick/ticker.rs"]
mod ticker;
#[path = "../tests/it/wait.rs"]
mod wait;
#[path = "quick/witness.rs"]
mod witness;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use orloj::clock;

use contender::Contender;
use report::{Figures, Report};
use site::Site;
use witness::{Lateness, Witness};

/// Records of a backlog: a few seconds of work, so that starting and stopping do not count.
const BACKLOG: u32 = 400_000;
/// How often everything is measured, in turn. The median of each figure counts.
const ROUNDS: u32 = 3;
/// Fires a second while lateness is measured.
const RATE: u32 = 2_000;
/// Seconds of firing before lateness is measured.
const WARM_UP_S: u32 = 2;
/// Seconds of firing in which it is.
const MEASURED_S: u32 = 10;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["pipe", config, count] => pipe::run(&site::settings(config), count.parse().unwrap()),
        ["ticker", config, count] => ticker::run(&site::settings(config), count.parse().unwrap()),
        _ => return measure(),
    }
    ExitCode::SUCCESS
}

fn measure() -> ExitCode {
    let bootstrap = kafka_server::shared().bootstrap();
    // A broker that has just started spends its first seconds compiling itself.
    let _warm = throughput(&Site::prepare(bootstrap));
    let rounds = (1..=ROUNDS).map(|number| {
        let round = round(bootstrap);
        println!("round {number} of {ROUNDS}: {round}");
        round
    });
    let report = Report::new(Figures::median(&rounds.collect::<Vec<_>>()));
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench/quick.json");
    report.write(&file);
    print!("{report}");
    if report.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn round(bootstrap: &str) -> Figures {
    let (pipe, register_and_fire) = throughput(&Site::prepare(bootstrap));
    let ticker = lateness_of_ticker(&Site::prepare(bootstrap));
    let scheduler = lateness_of_scheduler(&Site::prepare(bootstrap));
    Figures { pipe, register_and_fire, ticker, scheduler }
}

/// Records a second, the pipe's and the scheduler's. Both work off the same backlog, one after the
/// other.
fn throughput(site: &Site) -> (f64, f64) {
    let last_due = site.fill(BACKLOG);
    let pipe = {
        let witness = Witness::open(&site.settings, "pipe");
        let mut pipe = Contender::of_this_program("pipe", &site.config, BACKLOG);
        pipe.announce_ready();
        rate(&witness)
    };
    // Everything is overdue when the scheduler starts: no clock holds it back. It still has to
    // take each trigger into its timeline first, because until it has read all input it fires
    // only what was due when the last record that it has read was written.
    wait::until("all triggers to be due", Duration::from_secs(60), || {
        (clock::now_ms() > last_due).then_some(())
    });
    let witness = Witness::open(&site.settings, "scheduler");
    let mut scheduler = Contender::scheduler(&site.config);
    scheduler.answer_ready(site.settings.scheduler.listen);
    (pipe, rate(&witness))
}

/// Records a second, from now, when the contender has its partitions, to the last visible one.
fn rate(witness: &Witness) -> f64 {
    let begun = clock::monotonic();
    witness.count(BACKLOG);
    f64::from(BACKLOG) / (clock::monotonic() - begun).as_secs_f64()
}

fn lateness_of_ticker(site: &Site) -> Lateness {
    let witness = Witness::open(&site.settings, "ticker");
    let count = RATE * (WARM_UP_S + MEASURED_S);
    let mut ticker = Contender::of_this_program("ticker", &site.config, count);
    ticker.announce_ready();
    witness.lateness(count)
}

fn lateness_of_scheduler(site: &Site) -> Lateness {
    let witness = Witness::open(&site.settings, "scheduler");
    let mut scheduler = Contender::scheduler(&site.config);
    scheduler.answer_ready(site.settings.scheduler.listen);
    let count = RATE * (WARM_UP_S + MEASURED_S);
    std::thread::scope(|scope| {
        let _joined = scope.spawn(|| site.register_live(count));
        witness.lateness(count)
    })
}
