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

use crate::sources::{project_root, target_dir};
use crate::subject::Subject;
use crate::trial::Ending;

const PAGE: &str = "tests/mutants/survivors.md";
const REASONS: &str = "tests/mutants/reasons.toml";
/// What the reason of a mutant begins with that does what the original does.
const EQUIVALENT: &str = "Equivalent:";
/// The parts of the sources that have a share.
const PARTS: [(&str, Subject, &[&str]); 3] = [
    ("engine", Subject::Core, &["src/engine/"]),
    ("scheduler", Subject::Core, &["src/scheduler/"]),
    ("kafka and scheduler's edge", Subject::Program, &["src/kafka/", "src/scheduler/"]),
];

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

    /// Function and change.
    pub(crate) fn in_file(&self) -> String {
        format!("{}: {}", self.function, self.change)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.file, self.in_file())
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

    fn has_survived(&self) -> bool {
        self.outcome == Outcome::Survived
    }
}

/// The table of reasons why a survivor may live.
#[derive(Debug, Default, Deserialize)]
struct Reasons {
    #[serde(default)]
    survivor: Vec<Reason>,
}

impl Reasons {
    fn of(&self, Key { file, function, change }: &Key) -> Option<&str> {
        let is_this = |reason: &&Reason| {
            (&reason.file, &reason.function, &reason.change) == (file, function, change)
        };
        self.survivor.iter().find(is_this).map(|reason| reason.reason.as_str())
    }
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
        let path = target_dir().join("mutants/tried.jsonl");
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
        self.tried.get(key).is_some_and(Tried::has_survived)
    }

    pub(crate) fn outcome(&self, key: &Key) -> Option<&Outcome> {
        self.tried.get(key).map(|tried| &tried.outcome)
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
             `make mutants MINUTES=n` and `make mutants-kafka MINUTES=n` write this page: random \
             samples of small changes, the last at commit {commit}. What was caught is not tried \
             again; survivors are, with the tests that were written for them. See \
             [testing](../../docs/internals/testing.md#mutants).\n\n\
             | part | tried | caught | equivalent | share |\n| --- | --: | --: | --: | --: |\n"
        );
        for (part, subject, folders) in PARTS {
            let is_in = |folder: &&str| subject.file(folder);
            let folders: Vec<_> = folders.iter().map(is_in).collect();
            let is_of_part = |key: &Key| folders.iter().any(|folder| key.file.starts_with(folder));
            let shares = self.shares(reasons, is_of_part);
            let _written = writeln!(page, "| {part} | {shares} |");
        }
        page.push_str("\n| where | change | why no test notices it |\n| --- | --- | --- |\n");
        for Tried { key, line, .. } in self.tried.values().filter(|tried| tried.has_survived()) {
            let Key { file, function, change } = key;
            let reason = reasons.of(key).unwrap_or("No reason yet");
            let change = change.replace('|', "\\|");
            let _written =
                writeln!(page, "| `{file}:{line}` | `{function}`: {change} | {reason} |");
        }
        page
    }

    /// The cells of a part: how many were tried, caught and are equivalent, and which share of the
    /// others was caught.
    fn shares(&self, reasons: &Reasons, is_of_part: impl Fn(&Key) -> bool) -> String {
        let of_part = self.tried.values().filter(|tried| is_of_part(&tried.key));
        let survived = of_part.clone().filter(|tried| tried.has_survived());
        let is_equivalent =
            |tried: &&Tried| reasons.of(&tried.key).is_some_and(|it| it.starts_with(EQUIVALENT));
        let equivalent = survived.clone().filter(is_equivalent).count();
        let tried = of_part.count();
        let caught = tried - survived.count();
        let permille = caught * 1_000 / (tried - equivalent).max(1);
        let (percent, tenths) = (permille / 10, permille % 10);
        format!("{tried} | {caught} | {equivalent} | {percent}.{tenths} %")
    }
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
            tried("crates/orloj-core/src/engine/a.rs", "replace == with !=", Outcome::Survived),
            tried("crates/orloj-core/src/engine/a.rs", "delete !", caught.clone()),
            tried("crates/orloj-core/src/engine/b.rs", "replace || with &&", Outcome::Survived),
            tried("crates/orloj-core/src/scheduler/b.rs", "delete !", Outcome::TimedOut),
            tried("src/kafka/b.rs", "delete !", Outcome::Survived),
            tried("src/scheduler/b.rs", "delete !", caught),
        ]);
        let results = Results { path: PathBuf::new(), tried };
        let reason = |file: &str, change: &str, reason: &str| {
            format!(
                "[[survivor]]\nfile = \"{file}\"\nfunction = \"f\"\nchange = \"{change}\"\n\
                 reason = \"{reason}\"\n"
            )
        };
        let engine = "crates/orloj-core/src/engine/a.rs";
        let reasons = [
            reason(engine, "replace == with !=", "Equivalent: both are equal."),
            reason("src/kafka/b.rs", "delete !", "It is only slower."),
        ];
        let page = results.page(&toml::from_str(&reasons.concat()).unwrap(), "abc");
        for line in [
            "| engine | 3 | 1 | 1 | 50.0 % |",
            "| scheduler | 1 | 1 | 0 | 100.0 % |",
            "| kafka and scheduler's edge | 2 | 1 | 0 | 50.0 % |",
            &format!("| `{engine}:7` | `f`: replace == with != | Equivalent: both are equal. |"),
            "| `src/kafka/b.rs:7` | `f`: delete ! | It is only slower. |",
            "`f`: replace \\|\\| with && | No reason yet |",
        ] {
            assert!(page.contains(line), "{line}:\n{page}");
        }
    }
}
