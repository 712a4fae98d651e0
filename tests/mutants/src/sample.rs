//! Tries a random sample of small changes of the engine and the scheduler, for a given time.
//!
//! Invariant: a mutant counts as caught if a test fails with it or does not end. What was tried is
//! kept below the target directory; a mutant is known by its file, its function and what changes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, Result};
use std::time::{Duration, Instant};

use crate::compiling::{Errors, compile};
use crate::operators::{Change, Site, sites};
use crate::rendering::{Active, Rendered, render};
use crate::results::{Key, Outcome, Results, Tried};
use crate::sources::{project_root, read_core, write_copy};
use crate::trial::{Ending, SIMULATION, TestPrograms};

/// Mutants of one build.
const BATCH: usize = 300;
/// Seeds of the simulation for one mutant.
const SEEDS: u64 = 300;
/// For the unit tests of one mutant.
const UNIT_LIMIT: Duration = Duration::from_secs(120);
/// For its seeds.
const SIMULATION_LIMIT: Duration = Duration::from_secs(300);
/// Rounds of compiling, each without the mutants that the one before has refused.
const ROUNDS_MAX: usize = 12;
/// What is changed.
const AREAS: [&str; 2] = ["src/engine/", "src/scheduler/"];

/// A mutant: a change of a site of a file.
#[derive(Clone, Debug)]
struct Candidate {
    key: Key,
    site: usize,
    change: usize,
    line: usize,
}

/// Which mutants are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sampling {
    /// A random part of those that were not tried yet, by this seed.
    New(u64),
    /// Those that no test has noticed.
    Survivors,
}

/// Builds mutants and tries them for `time`. Writes the page of the survivors.
#[expect(clippy::disallowed_methods, reason = "a limit of real time")]
pub(crate) fn run(time: Duration, sampling: Sampling) -> Result<bool> {
    let root = project_root();
    let sources = read_core(&root)?;
    let of_files = sites_of(&sources)?;
    let mut results = Results::load()?;
    let all = candidates(&of_files);
    println!("{} changes are possible", all.len());
    results.keep_known(&all.iter().map(|candidate| candidate.key.clone()).collect());
    let mut chosen = choose(all, &results, sampling);
    chosen.truncate(BATCH);
    let programs = build(&sources, &of_files, &mut chosen)?;
    let unchanged = try_one(&programs, 0)?;
    if unchanged != Outcome::Survived {
        return Err(Error::other(format!("without a mutant: {unchanged}")));
    }
    let started = Instant::now();
    for (at, candidate) in chosen.iter().enumerate() {
        if started.elapsed() > time {
            break;
        }
        let outcome = try_one(&programs, at + 1)?;
        println!("{} {}: {outcome}", candidate.key, candidate.line);
        results.add(Tried::new(candidate.key.clone(), candidate.line, outcome))?;
    }
    results.write_page(&root)?;
    Ok(true)
}

/// Writes the page of the survivors again.
pub(crate) fn write_page() -> Result<bool> {
    let root = project_root();
    let mut results = Results::load()?;
    let all = candidates(&sites_of(&read_core(&root)?)?);
    results.keep_known(&all.into_iter().map(|candidate| candidate.key).collect());
    results.write_page(&root)?;
    Ok(true)
}

/// The name of a module, as tests have it.
fn module_of(area: &str) -> String {
    format!("{}::", area.trim_start_matches("src/").trim_end_matches('/'))
}

/// The sites of each file that is changed.
fn sites_of(sources: &BTreeMap<String, String>) -> Result<BTreeMap<String, Vec<Site>>> {
    let is_changed = |file: &&String| {
        let name = file.rsplit('/').next().unwrap_or_default();
        AREAS.iter().any(|area| file.starts_with(area))
            && !file.contains("/tests/")
            && !name.starts_with("test_")
    };
    let files = sources.keys().filter(is_changed);
    let of_file = |file: &String| {
        let sites = sites(&sources[file]);
        Ok((file.clone(), sites.map_err(|error| Error::other(format!("{file}: {error}")))?))
    };
    files.map(of_file).collect()
}

/// Every change of these sites. Equal ones of one function are numbered.
fn candidates(of_files: &BTreeMap<String, Vec<Site>>) -> Vec<Candidate> {
    let (mut all, mut counts) = (Vec::new(), BTreeMap::<Key, usize>::new());
    for (file, sites) in of_files {
        for (number, site) in sites.iter().enumerate() {
            for (change, Change { what, .. }) in site.changes.iter().enumerate() {
                let key = Key::new(file, &site.function, what);
                let count = counts.entry(key.clone()).or_default();
                *count += 1;
                let key = key.numbered(*count);
                all.push(Candidate { key, site: number, change, line: site.line });
            }
        }
    }
    all
}

/// The mutants to try, in the order in which they are tried.
fn choose(mut all: Vec<Candidate>, results: &Results, sampling: Sampling) -> Vec<Candidate> {
    match sampling {
        Sampling::Survivors => all.retain(|candidate| results.has_survived(&candidate.key)),
        Sampling::New(seed) => {
            all.retain(|candidate| !results.is_known(&candidate.key));
            shuffle(&mut all, seed);
        }
    }
    all
}

/// A random order that follows from the seed (xorshift64*).
fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for last in (1..items.len()).rev() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let random = state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        let other = usize::try_from(random).unwrap_or(0) % (last + 1);
        items.swap(last, other);
    }
}

/// Builds the tests with these mutants, without those that do not compile. Mutant `i` is active as
/// number `i + 1`.
fn build(
    sources: &BTreeMap<String, String>,
    of_files: &BTreeMap<String, Vec<Site>>,
    chosen: &mut Vec<Candidate>,
) -> Result<TestPrograms> {
    let root = project_root();
    for _round in 0..ROUNDS_MAX {
        let rendered = render_all(sources, of_files, chosen);
        let mut copied = sources.clone();
        copied.extend(rendered.iter().map(|(file, it)| (file.clone(), it.text.clone())));
        let copy = write_copy(&root, "sampled", copied)?;
        let errors = compile(&copy)?;
        if errors.is_empty() {
            return TestPrograms::build(&copy);
        }
        let refused = refused(&rendered, &errors)?;
        println!("{} of {} mutants do not compile", refused.len(), chosen.len());
        let mut number = 0;
        chosen.retain(|_| {
            number += 1;
            !refused.contains(&number)
        });
    }
    Err(Error::other(format!("it does not compile after {ROUNDS_MAX} rounds")))
}

fn render_all(
    sources: &BTreeMap<String, String>,
    of_files: &BTreeMap<String, Vec<Site>>,
    chosen: &[Candidate],
) -> BTreeMap<String, Rendered> {
    let mut rendered = BTreeMap::new();
    for (file, sites) in of_files {
        let mut active = vec![Vec::new(); sites.len()];
        for (number, candidate) in (1..).zip(chosen) {
            if candidate.key.file == *file {
                active[candidate.site].push(Active { number, change: candidate.change });
            }
        }
        if active.iter().any(|mutants: &Vec<Active>| !mutants.is_empty()) {
            let sites: Vec<_> = sites.iter().zip(active).collect();
            let _none = rendered.insert(file.clone(), render(file, &sources[file], &sites));
        }
    }
    rendered
}

/// The mutants that the compiler complains about.
fn refused(rendered: &BTreeMap<String, Rendered>, errors: &Errors) -> Result<BTreeSet<usize>> {
    let mut refused = BTreeSet::new();
    for (text, places) in errors {
        let parts = places.iter().filter_map(|(file, place)| {
            let parts = &rendered.get(file)?.parts;
            let around =
                parts.iter().filter(|(part, _)| part.start <= place.start && place.end <= part.end);
            around.min_by_key(|(part, _)| part.len())
        });
        let mut numbers = parts.flat_map(|(_, numbers)| numbers.iter().copied()).peekable();
        if numbers.peek().is_none() {
            return Err(Error::other(format!("no mutant is to blame: {places:?} {text}")));
        }
        refused.extend(numbers);
    }
    Ok(refused)
}

/// Unit tests first, because they take seconds; then the simulation.
fn try_one(programs: &TestPrograms, number: usize) -> Result<Outcome> {
    match programs.run_all(&AREAS.map(module_of), number, UNIT_LIMIT)? {
        Ending::Passed => {}
        ending => return Ok(Outcome::of(ending)),
    }
    Ok(Outcome::of(programs.run(SIMULATION, number, SEEDS, SIMULATION_LIMIT)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_follows_from_the_seed() {
        let order = |seed| {
            let mut items: Vec<u32> = (0..100).collect();
            shuffle(&mut items, seed);
            items
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let mut sorted = order(7);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<u32>>());
    }

    #[test]
    fn equal_changes_of_a_function_are_different_mutants() {
        let source = "fn f() { g(1 == 2, 3 == 4) }";
        let of_files = BTreeMap::from([("src/engine/a.rs".to_owned(), sites(source).unwrap())]);
        let keys: Vec<_> = candidates(&of_files).into_iter().map(|it| it.key.to_string()).collect();
        let expected = ["replace the body with ()", "replace == with !=", "replace == with != (2)"];
        assert_eq!(keys, expected.map(|what| format!("src/engine/a.rs f: {what}")));
    }

    #[test]
    fn an_error_is_attributed_to_the_smallest_part() {
        let parts = vec![(0..100, vec![1, 2]), (10..20, vec![2])];
        let rendered =
            BTreeMap::from([("src/a.rs".to_owned(), Rendered { text: String::new(), parts })]);
        let blamed = |place| {
            let errors = vec![("mismatched".to_owned(), vec![("src/a.rs".to_owned(), place)])];
            refused(&rendered, &errors).map(|it| it.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(blamed(12..15).unwrap(), [2]);
        assert_eq!(blamed(12..25).unwrap(), [1, 2]);
        assert!(blamed(200..201).is_err());
    }
}
