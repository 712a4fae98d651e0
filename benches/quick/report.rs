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

/// What one round measures.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    /// Records a second without timer and store.
    #[serde(rename = "pipe_per_s")]
    pub(crate) pipe: f64,
    /// Triggers a second, registered, kept in the timeline and fired.
    #[serde(rename = "register_and_fire_per_s")]
    pub(crate) register_and_fire: f64,
    /// Of ready-made fires.
    pub(crate) ticker: Lateness,
    /// Of triggers that are registered meanwhile.
    pub(crate) scheduler: Lateness,
}

impl Figures {
    /// The median of several rounds, of each figure by itself.
    pub(crate) fn median(rounds: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| {
            let mut figures: Vec<f64> = rounds.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        };
        let lateness = |figure: fn(&Self) -> Lateness| {
            let median = |of: fn(&Lateness) -> u64| {
                let mut figures: Vec<u64> = rounds.iter().map(|r| of(&figure(r))).collect();
                figures.sort_unstable();
                figures[figures.len() / 2]
            };
            Lateness { p50_ms: median(|l| l.p50_ms), p99_ms: median(|l| l.p99_ms) }
        };
        Self {
            pipe: of(|round| round.pipe),
            register_and_fire: of(|round| round.register_and_fire),
            ticker: lateness(|round| round.ticker),
            scheduler: lateness(|round| round.scheduler),
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pipe, register_and_fire, ticker, scheduler } = self;
        write!(f, "pipe {pipe:.0}/s, register-and-fire {register_and_fire:.0}/s, ")?;
        write!(f, "ticker {ticker}, scheduler {scheduler}")
    }
}

/// The result of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    figures: Figures,
    ratio: f64,
    ratio_min: f64,
    p99_of_ticker_max: u64,
    /// Whether no figure is below its floor.
    pub(crate) passed: bool,
}

impl Report {
    pub(crate) fn new(figures: Figures) -> Self {
        let ratio = figures.register_and_fire / figures.pipe;
        let is_punctual = figures.scheduler.p99_ms <= P99_OF_TICKER_MAX * figures.ticker.p99_ms;
        Self {
            figures,
            ratio,
            ratio_min: RATIO_MIN,
            p99_of_ticker_max: P99_OF_TICKER_MAX,
            passed: ratio >= RATIO_MIN && is_punctual,
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
        let Figures { pipe, register_and_fire, ticker, scheduler } = self.figures;
        writeln!(f, "pipe {pipe:.0}/s")?;
        writeln!(f, "register-and-fire {register_and_fire:.0}/s")?;
        writeln!(f, "ratio {:.2} (at least {RATIO_MIN})", self.ratio)?;
        writeln!(f, "lateness at {}/s:", crate::RATE)?;
        writeln!(f, "  ticker    {ticker}")?;
        write!(f, "  scheduler {scheduler}")?;
        writeln!(f, " (p99 at most {P99_OF_TICKER_MAX} times the ticker's)")?;
        writeln!(f, "{}", if self.passed { "passed" } else { "FAILED: below a floor" })
    }
}
