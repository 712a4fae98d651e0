//! A figure: what was measured in each round, the median that counts, and what is asked of it.
//!
//! Invariant: what is compared is compared within a round, because a machine changes its pace
//! between rounds; a ratio is the median of the rounds' ratios.

use serde::{Serialize, Serializer};

/// What is asked of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    bound: f64,
    is_floor: bool,
    fails: bool,
}

impl Goal {
    pub(crate) const fn at_least(bound: f64) -> Self {
        Self { bound, is_floor: true, fails: false }
    }

    pub(crate) const fn at_most(bound: f64) -> Self {
        Self { bound, is_floor: false, fails: false }
    }

    /// Missing it fails the run.
    pub(crate) const fn or_fail(self) -> Self {
        Self { fails: true, ..self }
    }

    fn is_met(self, value: f64) -> bool {
        if self.is_floor { value >= self.bound } else { value <= self.bound }
    }
}

/// One measured quantity.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    /// What it is, unique within its case.
    pub(crate) name: String,
    /// Of its values; empty for a ratio.
    pub(crate) unit: &'static str,
    /// What counts.
    pub(crate) median: f64,
    /// The result of each round.
    pub(crate) rounds: Vec<f64>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "goal_in_words")]
    goal: Option<Goal>,
}

impl Figure {
    pub(crate) fn new(name: impl Into<String>, unit: &'static str, rounds: Vec<f64>) -> Self {
        let mut sorted = rounds.clone();
        sorted.sort_by(f64::total_cmp);
        Self { name: name.into(), unit, median: sorted[sorted.len() / 2], rounds, goal: None }
    }

    /// `this` ÷ `that`, round by round.
    pub(crate) fn ratio(name: impl Into<String>, this: &Self, that: &Self) -> Self {
        let pairs = this.rounds.iter().zip(&that.rounds);
        Self::new(name, "", pairs.map(|(this, that)| this / that).collect())
    }

    pub(crate) fn with_goal(self, goal: Goal) -> Self {
        Self { goal: Some(goal), ..self }
    }

    /// Whether it is as it should be; `None` if nothing is asked of it.
    pub(crate) fn is_met(&self) -> Option<bool> {
        self.goal.map(|goal| goal.is_met(self.median))
    }

    /// Whether it fails the run.
    pub(crate) fn fails(&self) -> bool {
        self.goal.is_some_and(|goal| goal.fails && !goal.is_met(self.median))
    }

    /// What is asked of it, in words; empty if nothing is.
    pub(crate) fn goal(&self) -> String {
        self.goal.map_or_else(String::new, |goal| {
            format!("{} {}", if goal.is_floor { "≥" } else { "≤" }, amount(goal.bound))
        })
    }

    /// The median as people read it.
    pub(crate) fn value(&self) -> String {
        format!("{} {}", amount(self.median), self.unit).trim_end().to_owned()
    }
}

/// A number in as many digits as mean something.
pub(crate) fn amount(value: f64) -> String {
    if value.abs() >= 1_000.0 {
        let digits = format!("{:.0}", value.abs());
        let groups: Vec<_> =
            digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
        return format!("{}{}", if value < 0.0 { "-" } else { "" }, groups.join(","));
    }
    let places = if value.abs() >= 100.0 || value.fract() == 0.0 { 0 } else { 2 };
    format!("{value:.places$}")
}

#[expect(clippy::ref_option, reason = "serde calls it so")]
fn goal_in_words<S: Serializer>(goal: &Option<Goal>, serializer: S) -> Result<S::Ok, S::Error> {
    let goal = goal.expect("an absent goal is skipped");
    let sign = if goal.is_floor { "at least" } else { "at most" };
    serializer.serialize_str(&format!("{sign} {}", goal.bound))
}
