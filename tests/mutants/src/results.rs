//! What was tried, added up over all runs, and the page of the survivors.
//!
//! Invariant: of a mutant the last result counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::fs;
use std::io::{Error, Result, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::sources::{CORE, project_root, target_dir};
use crate::trial::Ending;

const PAGE: &str = "tests/mutants/survivors.md";
const REASONS: &str = "tests/mutants/reasons.toml";

/// What a mutant is known by; lines move.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(crate) struct Key {
    pub(crate) file: String,
    function: String,
    change: String,
}

impl Key {
    pub(crate) fn new(file: &str, function: &str, change: &str) -> Self {
        let [file, function, change] = [file, function, change].map(str::to_owned);
        Self { file, function, change }
    }

    /// The n-th equal change of its function.
    pub(crate) fn numbered(mut self, count: usize) -> Self {
        if count > 1 {
            self.change.push_str(&format!(" ({count})"));
        }
        self
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.file, self.function, self.change)
    }
}

/// How a mutant ended.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Outcome {
    Survived,
    TimedOut,
    Caught(String),
}

impl Outcome {
    pub(crate) fn of(ending: Ending) -> Self {
        match ending {
            Ending::Passed => Self::Survived,
            Ending::TimedOut => Self::TimedOut,
            Ending::Failed(why) | Ending::Panicked(why) => Self::Caught(why),
            Ending::Found { seed, finding } => Self::Caught(format!("seed {seed}: {finding}")),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Survived => f.write_str("SURVIVED"),
            Self::TimedOut => f.write_str("does not end"),
            Self::Caught(how) => write!(f, "{how}"),
        }
    }
}

/// A mutant that was tried.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Tried {
    key: Key,
    line: usize,
    outcome: Outcome,
}

impl Tried {
    pub(crate) fn new(key: Key, line: usize, outcome: Outcome) -> Self {
        Self { key, line, outcome }
    }
}

/// The table of reasons why a survivor may live.
#[derive(Debug, Default, Deserialize)]
struct Reasons {
    #[serde(default)]
    survivor: Vec<Reason>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reason {
    file: String,
    function: String,
    change: String,
    reason: String,
}

/// All results.
#[derive(Debug, Default)]
pub(crate) struct Results {
    path: PathBuf,
    tried: BTreeMap<Key, Tried>,
}

impl Results {
    pub(crate) fn load() -> Result<Self> {
        let path = target_dir().join("mutants/results.jsonl");
        let text = if path.exists() { fs::read_to_string(&path)? } else { String::new() };
        let tried = text.lines().map(serde_json::from_str::<Tried>);
        let tried: serde_json::Result<Vec<_>> = tried.collect();
        let tried = tried?.into_iter().map(|tried| (tried.key.clone(), tried)).collect();
        Ok(Self { path, tried })
    }

    /// Forgets mutants of sources that have changed.
    pub(crate) fn keep_known(&mut self, keys: &BTreeSet<Key>) {
        self.tried.retain(|key, _| keys.contains(key));
    }

    pub(crate) fn is_known(&self, key: &Key) -> bool {
        self.tried.contains_key(key)
    }

    pub(crate) fn has_survived(&self, key: &Key) -> bool {
        self.tried.get(key).is_some_and(|tried| tried.outcome == Outcome::Survived)
    }

    /// Adds a result, also to the file.
    pub(crate) fn add(&mut self, tried: Tried) -> Result<()> {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&self.path)?;
        writeln!(file, "{}", serde_json::to_string(&tried)?)?;
        let _before = self.tried.insert(tried.key.clone(), tried);
        Ok(())
    }

    /// Writes the page of the survivors.
    pub(crate) fn write_page(&self, root: &Path) -> Result<()> {
        let reasons = fs::read_to_string(root.join(REASONS))?;
        let reasons: Reasons = toml::from_str(&reasons).map_err(Error::other)?;
        fs::write(root.join(PAGE), self.page(&reasons, &commit()?))
    }

    fn page(&self, reasons: &Reasons, commit: &str) -> String {
        let mut page = format!(
            "# Mutants that no test notices\n\n\
             `make mutants MINUTES=n` writes this page: random samples of small changes, at commit \
             {commit}. See [testing](../../docs/internals/testing.md#mutants).\n\n\
             | part | tried | caught | share |\n| --- | --: | --: | --: |\n"
        );
        for area in ["engine", "scheduler"] {
            let of_area = self.tried.values().filter(|it| is_in(area, &it.key));
            let survived = of_area.clone().filter(|it| it.outcome == Outcome::Survived).count();
            let tried = of_area.count();
            let caught = tried - survived;
            let percent = caught * 1_000 / tried.max(1);
            let share = format!("{}.{} %", percent / 10, percent % 10);
            let _written = writeln!(page, "| {area} | {tried} | {caught} | {share} |");
        }
        page.push_str("\n| where | change | why no test notices it |\n| --- | --- | --- |\n");
        for Tried { key, line, outcome } in self.tried.values() {
            if *outcome == Outcome::Survived {
                let Key { file, function, change } = key;
                let is_this = |reason: &&Reason| {
                    (&reason.file, &reason.function, &reason.change) == (file, function, change)
                };
                let reason = reasons.survivor.iter().find(is_this);
                let reason = reason.map_or("No reason yet", |reason| &reason.reason);
                let change = change.replace('|', "\\|");
                let _written = writeln!(
                    page,
                    "| `{CORE}/{file}:{line}` | `{function}`: {change} | {reason} |"
                );
            }
        }
        page
    }
}

fn is_in(area: &str, key: &Key) -> bool {
    key.file.starts_with(&format!("src/{area}/"))
}

/// The commit of the sources.
fn commit() -> Result<String> {
    let mut git = Command::new("git");
    let output = git.args(["rev-parse", "--short", "HEAD"]).current_dir(project_root()).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(file: &str, change: &str, outcome: Outcome) -> (Key, Tried) {
        let key = Key::new(file, "f", change);
        (key.clone(), Tried::new(key, 7, outcome))
    }

    #[test]
    fn the_page_has_shares_and_survivors_with_their_reasons() {
        let caught = Outcome::Caught("a test".to_owned());
        let tried = BTreeMap::from([
            tried("src/engine/a.rs", "replace == with !=", Outcome::Survived),
            tried("src/engine/a.rs", "delete !", caught),
            tried("src/engine/b.rs", "replace || with &&", Outcome::Survived),
            tried("src/scheduler/b.rs", "delete !", Outcome::TimedOut),
        ]);
        let results = Results { path: PathBuf::new(), tried };
        let reason = "[[survivor]]\nfile = \"src/engine/a.rs\"\nfunction = \"f\"\n\
            change = \"replace == with !=\"\nreason = \"It is equivalent.\"\n";
        let page = results.page(&toml::from_str(reason).unwrap(), "abc");
        assert!(page.contains("| engine | 3 | 1 | 33.3 % |"), "{page}");
        assert!(page.contains("| scheduler | 1 | 1 | 100.0 % |"), "{page}");
        assert!(page.contains("a.rs:7` | `f`: replace == with != | It is equivalent. |"), "{page}");
        assert!(page.contains("`f`: replace \\|\\| with && | No reason yet |"), "{page}");
    }
}
