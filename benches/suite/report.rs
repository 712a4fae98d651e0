//! What was measured, for people and for machines: `report.json`, `report.md` and a chart a file.
//!
//! Invariant: figures are judged only against those of the same run, because machines differ. What
//! has no goal is reported all the same.

use std::fmt::{self, Write as _};
use std::fs;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Value, json};

use crate::case::CaseResult;
use crate::figures::{Figure, amount};
use crate::machine::Machine;

/// A case that has been run.
pub(crate) struct CaseReport {
    pub(crate) case: &'static str,
    pub(crate) criterion: &'static str,
    pub(crate) seconds: u64,
    /// What was measured, or why nothing could be.
    pub(crate) result: Result<CaseResult, String>,
}

/// All cases of a run so far.
pub(crate) struct BenchReport {
    plan: &'static str,
    machine: Machine,
    ended: Vec<CaseReport>,
}

impl BenchReport {
    pub(crate) fn new(plan: &'static str, machine: Machine) -> Self {
        Self { plan, machine, ended: Vec::new() }
    }

    pub(crate) fn add(&mut self, ended: CaseReport) {
        self.ended.push(ended);
    }

    /// Whether everything could be measured, and nothing is below a floor.
    pub(crate) fn passed(&self) -> bool {
        !self.ended.is_empty() && self.ended.iter().all(CaseReport::passed)
    }

    /// Leaves the report in `target/bench`; those of the smaller plans are called as the plan is
    /// (`quick.json`, `quick.md`), without charts.
    pub(crate) fn write(&self) {
        let is_whole = self.is_whole();
        let name = if is_whole { "report" } else { self.plan };
        let folder = folder();
        fs::create_dir_all(&folder).unwrap();
        let json = serde_json::to_vec_pretty(&self.to_json()).unwrap();
        fs::write(folder.join(name).with_extension("json"), json).unwrap();
        fs::write(folder.join(name).with_extension("md"), self.to_markdown()).unwrap();
        let outcomes = self.ended.iter().filter_map(|ended| ended.result.as_ref().ok());
        for chart in outcomes.flat_map(|outcome| &outcome.charts).filter(|_| is_whole) {
            chart.draw(&folder);
        }
    }

    /// Whether every case belongs to the plan, and so every chart.
    fn is_whole(&self) -> bool {
        ["full", "long"].contains(&self.plan)
    }

    /// `N measured, M goals met, K missed, F failed`.
    pub(crate) fn closing_line(&self) -> String {
        let failed = self.ended.iter().filter(|ended| !ended.passed()).count();
        let goals: Vec<_> = self.ended.iter().flat_map(CaseReport::figures).collect();
        let with = |met: bool| goals.iter().filter(|figure| figure.is_met() == Some(met)).count();
        let measured = self.ended.len() - failed;
        let seconds: u64 = self.ended.iter().map(|ended| ended.seconds).sum();
        let (met, missed, minutes) = (with(true), with(false), seconds.div_ceil(60));
        format!(
            "{measured} measured, {failed} failed; {met} goals met, {missed} missed; {minutes} min"
        )
    }

    fn to_json(&self) -> Value {
        let case = |ended: &CaseReport| {
            let failed = ended.result.as_ref().err();
            json!({
                "case": ended.case,
                "criterion": ended.criterion,
                "seconds": ended.seconds,
                "failed": failed,
                "figures": ended.figures().map(FigureResult::of).collect::<Vec<_>>(),
            })
        };
        let cases: Vec<_> = self.ended.iter().map(case).collect();
        json!({
            "plan": self.plan,
            "machine": self.machine,
            "passed": self.passed(),
            "cases": cases,
        })
    }

    fn to_markdown(&self) -> String {
        let mut text = format!("# How fast\n\n{}.\n\n", self.closing_line());
        for (name, value) in self.machine.parts() {
            writeln!(text, "* {name}: {value}").unwrap();
        }
        for ended in &self.ended {
            ended.describe(self.is_whole(), &mut text).unwrap();
        }
        text
    }
}

impl CaseReport {
    fn passed(&self) -> bool {
        self.result.is_ok() && !self.figures().any(Figure::fails)
    }

    fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.result.iter().flat_map(|outcome| &outcome.figures)
    }

    fn describe(&self, is_whole: bool, text: &mut String) -> fmt::Result {
        writeln!(text, "\n## {}\n\n{}. ({} s)\n", self.case, self.criterion, self.seconds)?;
        let outcome = match &self.result {
            Ok(outcome) => outcome,
            Err(reason) => return writeln!(text, "**Not measured**: {reason}"),
        };
        if !outcome.figures.is_empty() {
            writeln!(
                text,
                "| figure | median | rounds | asked | |\n| --- | --- | --- | --- | --- |"
            )?;
        }
        for figure in &outcome.figures {
            let rounds: Vec<_> = figure.rounds.iter().map(|value| amount(*value)).collect();
            let (name, value, goal) = (&figure.name, figure.value(), figure.goal());
            let met = goal_result(figure);
            writeln!(text, "| {name} | {value} | {} | {goal} | {met} |", rounds.join(", "))?;
        }
        for note in &outcome.notes {
            writeln!(text, "\n{note}")?;
        }
        for chart in outcome.charts.iter().filter(|_| is_whole) {
            writeln!(text, "\n![{}]({}.svg)", chart.title, chart.name)?;
        }
        Ok(())
    }
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Err(reason) = &self.result {
            return write!(f, "  FAILED after {} s: {reason}", self.seconds);
        }
        for figure in self.figures() {
            let (name, value) = (&figure.name, figure.value());
            match figure.is_met() {
                Some(_) => {
                    writeln!(f, "  {name}: {value} ({}: {})", figure.goal(), goal_result(figure))?
                }
                None => writeln!(f, "  {name}: {value}")?,
            }
        }
        write!(f, "  measured in {} s", self.seconds)
    }
}

/// A figure, and whether it met its goal.
#[derive(Serialize)]
struct FigureResult<'a> {
    #[serde(flatten)]
    figure: &'a Figure,
    #[serde(skip_serializing_if = "Option::is_none")]
    met: Option<bool>,
}

impl<'a> FigureResult<'a> {
    fn of(figure: &'a Figure) -> Self {
        Self { figure, met: figure.is_met() }
    }
}

fn goal_result(figure: &Figure) -> &'static str {
    match figure.is_met() {
        Some(true) => "met",
        Some(false) if figure.fails() => "FAILED",
        Some(false) => "missed",
        None => "",
    }
}

fn folder() -> PathBuf {
    PathBuf::from("target/bench")
}
