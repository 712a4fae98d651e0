//! Tries the mutations of the table, one after the other.
//!
//! Invariant: one is found only by a finding of the simulation's audit, or by the scripted test
//! that its entry names. A panic alone is no finding.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Error, Result};
use std::time::{Duration, Instant};

use crate::sources::{SourceCopy, project_root, read_sources};
use crate::subject::Subject;
use crate::table::{Mutation, Table};
use crate::trial::{Ending, SIMULATION, TestPrograms};

/// Within so many seeds the simulation finds a mutation.
const SEEDS: u64 = 1_000;
/// Of the unchanged code.
const SEEDS_UNCHANGED: u64 = 20;
/// For one mutation.
const LIMIT: Duration = Duration::from_secs(600);
/// When a part of them starts no further one, from its beginning on.
const PART: Duration = Duration::from_secs(140);
/// A part has at least so many.
const PART_MIN: usize = 3;

/// Which mutations are tried.
#[derive(Debug)]
pub(crate) enum Selection {
    All,
    /// Those of these names.
    Named(Vec<String>),
    /// As many as there is time for, from one on that follows from the hash of a commit.
    Part(String),
}

/// Builds the copy and tries the selected mutations. Returns whether all were found.
#[expect(clippy::disallowed_methods, reason = "a limit of real time")]
pub(crate) fn run(selection: &Selection) -> Result<bool> {
    let started = Instant::now();
    let root = project_root();
    let text = fs::read_to_string(root.join("tests/mutants/planted.toml"))?;
    let table = Table::parse(&text).map_err(Error::other)?.of(Subject::Core);
    let selected = select(&table, selection).map_err(Error::other)?;
    let mut sources = read_sources(&root, Subject::Core)?;
    let changed = table.apply(&sources).map_err(Error::other)?;
    sources.extend(changed);
    let copy = SourceCopy::write(&root, Subject::Core, "planted", sources)?;
    let programs = TestPrograms::build(&copy)?;
    let (mut tally, mut checked) = (Tally::default(), BTreeSet::new());
    for (tried, (number, mutation)) in selected.iter().enumerate() {
        if matches!(selection, Selection::Part(_)) && tried >= PART_MIN && started.elapsed() > PART
        {
            break;
        }
        let test = mutation.test.as_deref().unwrap_or(SIMULATION);
        if checked.insert(test) {
            check_unchanged(&programs, test)?;
        }
        tally.add(mutation, programs.run(test, *number, SEEDS, LIMIT)?);
    }
    println!("{} found, {} not found", tally.found, tally.survivors.len());
    for name in &tally.survivors {
        println!("  not found: {name}");
    }
    Ok(tally.survivors.is_empty())
}

/// The selected mutations with their numbers, in the order in which they are tried.
fn select<'a>(
    table: &'a Table,
    selection: &Selection,
) -> std::result::Result<Vec<(usize, &'a Mutation)>, String> {
    let mut all: Vec<_> = (1..).zip(&table.mutation).collect();
    match selection {
        Selection::All => {}
        Selection::Named(names) => {
            let is_known = |name: &&String| !table.mutation.iter().any(|m| m.name == **name);
            if let Some(name) = names.iter().find(is_known) {
                return Err(format!("there is no mutation {name}"));
            }
            all.retain(|(_, mutation)| names.contains(&mutation.name));
        }
        Selection::Part(hash) => {
            let digits = hash.get(..8).unwrap_or(hash);
            let number = usize::from_str_radix(digits, 16)
                .map_err(|_| format!("{hash} is not the hash of a commit"))?;
            if !all.is_empty() {
                let first = number % all.len();
                all.rotate_left(first);
            }
        }
    }
    Ok(all)
}

/// Without a mutation the test passes that is to find one.
fn check_unchanged(programs: &TestPrograms, test: &str) -> Result<()> {
    let ending = programs.run(test, 0, SEEDS_UNCHANGED, LIMIT)?;
    if ending == Ending::Passed {
        return Ok(());
    }
    Err(Error::other(format!("without a mutation {test} fails: {ending:?}")))
}

/// What was found.
#[derive(Debug, Default)]
struct Tally {
    found: usize,
    survivors: Vec<String>,
}

impl Tally {
    fn add(&mut self, mutation: &Mutation, ending: Ending) {
        let Mutation { name, why, .. } = mutation;
        let fix = mutation.fix.as_ref().map_or_else(String::new, |fix| format!(" (fix {fix})"));
        let (is_found, how) = match (ending, &mutation.test) {
            (Ending::Found { seed, finding }, _) => (true, format!("seed {seed}: {finding}")),
            (Ending::Failed(_), Some(test)) => (true, format!("test {test}")),
            (Ending::Failed(why) | Ending::Panicked(why), _) => {
                (false, format!("{why}, which is no finding"))
            }
            (Ending::Passed, _) => (false, format!("NOT FOUND: {why}{fix}")),
            (Ending::TimedOut, _) => (false, "NOT FOUND: it does not end".to_owned()),
        };
        println!("{name}: {how}");
        if is_found {
            self.found += 1;
        } else {
            self.survivors.push(name.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(names: &[&str]) -> Table {
        let entry = |name: &&str| {
            format!(
                "[[mutation]]\nname = \"{name}\"\nwhy = \"a rule\"\n[[mutation.edit]]\n\
                 file = \"src/a.rs\"\nfind = \"{name}\"\nreplace = \"MUTATED\"\n"
            )
        };
        Table::parse(&names.iter().map(entry).collect::<String>()).unwrap()
    }

    fn selected(table: &Table, selection: &Selection) -> Vec<String> {
        let selected = select(table, selection).unwrap();
        selected.into_iter().map(|(number, m)| format!("{number}{}", m.name)).collect()
    }

    #[test]
    fn the_part_follows_from_the_hash() {
        let table = table(&["a", "b", "c"]);
        let part = |hash: &str| selected(&table, &Selection::Part(hash.to_owned()));
        assert_eq!(part("00000001ff"), ["2b", "3c", "1a"]);
        assert_eq!(part("00000002ff"), ["3c", "1a", "2b"]);
        assert_eq!(selected(&table, &Selection::All), ["1a", "2b", "3c"]);
        assert!(select(&table, &Selection::Part("no hash".to_owned())).is_err());
    }

    #[test]
    fn a_name_that_is_not_in_the_table_is_refused() {
        let table = table(&["a", "b"]);
        assert_eq!(selected(&table, &Selection::Named(vec!["b".to_owned()])), ["2b"]);
        assert!(select(&table, &Selection::Named(vec!["x".to_owned()])).is_err());
    }

    #[test]
    fn only_a_finding_or_the_named_test_counts() {
        let plain = table(&["a"]).mutation.remove(0);
        let mut scripted = table(&["b"]).mutation.remove(0);
        scripted.test = Some("engine::tests::one".to_owned());
        let mut tally = Tally::default();
        tally.add(&plain, Ending::Found { seed: 1, finding: "LOST".to_owned() });
        tally.add(&scripted, Ending::Failed("assertion failed".to_owned()));
        assert_eq!((tally.found, tally.survivors.len()), (2, 0));
        for ending in [Ending::Passed, Ending::TimedOut, Ending::Panicked("overflow".to_owned())] {
            tally.add(&plain, ending);
        }
        tally.add(&scripted, Ending::Passed);
        assert_eq!((tally.found, tally.survivors.join(" ")), (2, "a a a b".to_owned()));
    }
}
