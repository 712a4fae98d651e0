//! What was measured, for people and for machines, and whether it is good enough.
//!
//! Law: figures are judged only against those of the same run, because machines differ.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::witness::Lateness;

/// Least share of the pipe's throughput.
const RATIO_MIN: f64 = 0.35;
/// Largest multiple of the ticker's 99th percentile.
const P99_OF_TICKER_MAX: u64 = 2;

/// Records a second over the same backlog.
pub(crate) struct Throughput {
    pub(crate) pipe: f64,
    pub(crate) register_and_fire: f64,
}

impl Throughput {
    /// The best of two rounds, of each by itself.
    pub(crate) fn best(self, other: Self) -> Self {
        Self {
            pipe: self.pipe.max(other.pipe),
            register_and_fire: self.register_and_fire.max(other.register_and_fire),
        }
    }
}

/// The result of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pipe_per_s: u64,
    register_and_fire_per_s: u64,
    ratio: f64,
    ratio_min: f64,
    ticker: Lateness,
    scheduler: Lateness,
    p99_of_ticker_max: u64,
    /// Whether all floors were kept.
    pub(crate) passed: bool,
}

impl Report {
    pub(crate) fn new(throughput: &Throughput, ticker: Lateness, scheduler: Lateness) -> Self {
        let ratio = throughput.register_and_fire / throughput.pipe;
        let punctual = scheduler.p99_ms <= P99_OF_TICKER_MAX * ticker.p99_ms;
        Self {
            pipe_per_s: throughput.pipe as u64,
            register_and_fire_per_s: throughput.register_and_fire as u64,
            ratio,
            ratio_min: RATIO_MIN,
            ticker,
            scheduler,
            p99_of_ticker_max: P99_OF_TICKER_MAX,
            passed: ratio >= RATIO_MIN && punctual,
        }
    }

    /// Leaves the report for machines.
    pub(crate) fn write(&self, file: &Path) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, serde_json::to_vec_pretty(self).unwrap()).unwrap();
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ticker, scheduler, .. } = self;
        let (ratio_min, times) = (self.ratio_min, self.p99_of_ticker_max);
        writeln!(f, "pipe {}/s", self.pipe_per_s)?;
        writeln!(f, "register-and-fire {}/s", self.register_and_fire_per_s)?;
        writeln!(f, "ratio {:.2} (floor {ratio_min})", self.ratio)?;
        writeln!(f, "lateness at {}/s   p50      p99", crate::RATE)?;
        writeln!(f, "  ticker       {:>6} ms {:>5} ms", ticker.p50_ms, ticker.p99_ms)?;
        write!(f, "  scheduler    {:>6} ms {:>5} ms", scheduler.p50_ms, scheduler.p99_ms)?;
        writeln!(f, " (p99: at most {times} times the ticker's)")?;
        writeln!(f, "{}", if self.passed { "passed" } else { "FAILED: below a floor" })
    }
}
