//! A case of the suite: what it is given, and what it returns.
//!
//! Invariant: a case knows the plan and the broker; it does not know the other cases or the report.

use crate::chart::Chart;
use crate::figures::Figure;
use crate::pending_clusters::PendingClusters;
use crate::plan::BenchPlan;

/// One measurement.
pub(crate) struct BenchCase {
    pub(crate) name: &'static str,
    pub(crate) criterion: &'static str,
    /// The plans that it belongs to.
    pub(crate) plans: &'static [&'static str],
    pub(crate) run: fn(&BenchRun) -> CaseResult,
}

/// What the cases of a run share.
pub(crate) struct BenchRun {
    pub(crate) plan: BenchPlan,
    /// Where the broker is.
    pub(crate) bootstrap: &'static str,
    pub(crate) pending_clusters: PendingClusters,
}

/// What a case has measured.
#[derive(Debug, Default)]
pub(crate) struct CaseResult {
    pub(crate) figures: Vec<Figure>,
    pub(crate) charts: Vec<Chart>,
    /// Sentences beside the figures.
    pub(crate) notes: Vec<String>,
}

impl BenchRun {
    /// A count of a case's own, divided by what all are divided by.
    pub(crate) fn count(&self, full: u32) -> u32 {
        full / self.plan.shrink
    }

    /// Numbers of the rounds of what is judged by a ratio.
    pub(crate) fn rounds(&self) -> std::ops::RangeInclusive<u32> {
        1..=self.plan.rounds
    }
}
