//! Tries a random sample of small changes of a subject's sources, for a given time.
//!
//! Invariant: a mutant counts as caught if a test fails with it or does not end. What was tried is
//! kept below the target directory; a mutant is known by its file, its function and what changes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, Result};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::compiling::{Errors, compile};
use crate::operators::{Change, Site, sites};
use crate::rendering::{Active, Rendered, render};
use crate::results::{Key, Outcome, Results, Tried};
use crate::sources::{SourceCopy, project_root, read_sources};
use crate::subject::{CLIENTS, ON_KAFKA, Subject};
use crate::trial::{Ending, SIMULATION, TestPrograms};

/// Mutants of one build.
const BATCH: usize = 300;
/// Seeds of the simulation for one mutant.
const SEEDS: u64 = 300;
/// Schedules of years, and scripted runs of the simulation: some seconds each.
const SCRIPTED: [&str; 6] = [
    "schedules::",
    "simulation::reading",
    "simulation::truncation",
    "simulation::lateness",
    "simulation::a_target_that_refuses_every_record",
    "simulation::callbacks",
];
/// For those of one mutant.
const SCRIPTED_LIMIT: Duration = Duration::from_secs(300);
/// For the unit tests of one mutant.
const UNIT_LIMIT: Duration = Duration::from_secs(120);
/// For its seeds.
const SIMULATION_LIMIT: Duration = Duration::from_secs(300);
/// For its tests on a real Kafka: those of the clients by themselves, and then the others.
const ON_KAFKA_LIMIT: Duration = Duration::from_secs(240);
/// Rounds of compiling, each without the mutants that the one before has refused.
const ROUNDS_MAX: usize = 12;

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
pub(crate) fn run(subject: Subject, time: Duration, sampling: Sampling) -> Result<bool> {
    let sources = read_sources(&project_root(), subject)?;
    let of_files = sites_of(subject, &sources)?;
    let mut results = known_results()?;
    let all = candidates(&of_files);
    println!("{} changes are possible", all.len());
    let mut chosen = choose(all, &results, sampling);
    chosen.truncate(BATCH);
    let programs = build(subject, &sources, &of_files, &mut chosen)?;
    let (unchanged, took) = try_one(subject, &programs, 0)?;
    check_unchanged(&unchanged)?;
    println!("without a mutant: {} s", took.as_secs());
    let started = Instant::now();
    for (at, candidate) in chosen.iter().enumerate() {
        if started.elapsed() > time {
            break;
        }
        let (outcome, took) = try_one(subject, &programs, at + 1)?;
        println!("{} {}: {outcome} ({} s)", candidate.key, candidate.line, took.as_secs());
        results.add(Tried::new(candidate.key.clone(), candidate.line, outcome))?;
    }
    results.write_page(&project_root())?;
    Ok(true)
}

/// Tries every change of these files with the unit tests alone, and prints those that none notices.
/// Nothing is kept: the simulation may notice them.
pub(crate) fn run_unit_tests(subject: Subject, files: &[&str]) -> Result<bool> {
    let sources = read_sources(&project_root(), subject)?;
    let of_files = sites_of(subject, &sources)?;
    if let Some(unknown) = files.iter().find(|file| !of_files.contains_key(**file)) {
        return Err(Error::other(format!("{unknown}: no file that is changed")));
    }
    let mut chosen = candidates(&of_files);
    chosen.retain(|candidate| files.contains(&candidate.key.file.as_str()));
    let programs = build(subject, &sources, &of_files, &mut chosen)?;
    check_unchanged(&Outcome::of(try_unit_tests(subject, &programs, 0)?))?;
    let mut survivors = 0;
    for (number, Candidate { key, line, .. }) in (1..).zip(&chosen) {
        if try_unit_tests(subject, &programs, number)? == Ending::Passed {
            survivors += 1;
            println!("{}:{line} {}", key.file, key.in_file());
        }
    }
    println!("{survivors} of {} are noticed by no unit test", chosen.len());
    Ok(true)
}

/// Prints every change that is possible, and how it ended if it was tried.
pub(crate) fn list(subject: Subject) -> Result<bool> {
    let sources = read_sources(&project_root(), subject)?;
    let all = candidates(&sites_of(subject, &sources)?);
    let results = Results::load()?;
    for Candidate { key, line, .. } in all {
        let Key { file, .. } = &key;
        let outcome = results.outcome(&key).map_or_else(String::new, |it| format!(": {it}"));
        println!("{file}:{line} {}{outcome}", key.in_file());
    }
    Ok(true)
}

/// Writes the page of the survivors again.
pub(crate) fn write_page() -> Result<bool> {
    known_results()?.write_page(&project_root())?;
    Ok(true)
}

/// The results of all subjects, without those of mutants that are not possible any more.
fn known_results() -> Result<Results> {
    let mut keys = BTreeSet::new();
    for subject in Subject::ALL {
        let sources = read_sources(&project_root(), subject)?;
        let all = candidates(&sites_of(subject, &sources)?);
        keys.extend(all.into_iter().map(|candidate| candidate.key));
    }
    let mut results = Results::load()?;
    results.keep_known(&keys);
    Ok(results)
}

/// The sites of each file that is changed.
fn sites_of(
    subject: Subject,
    sources: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, Vec<Site>>> {
    let files = sources.keys().filter(|file| subject.has(file));
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
    subject: Subject,
    sources: &BTreeMap<String, String>,
    of_files: &BTreeMap<String, Vec<Site>>,
    chosen: &mut Vec<Candidate>,
) -> Result<TestPrograms> {
    let root = project_root();
    for _round in 0..ROUNDS_MAX {
        let rendered = render_all(sources, of_files, chosen);
        let mut copied = sources.clone();
        copied.extend(rendered.iter().map(|(file, it)| (file.clone(), it.text.clone())));
        let copy = SourceCopy::write(&root, subject, subject.name(), copied)?;
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

/// The mutants that the compiler complains about: the smallest part around a place, or else all on
/// its lines, since it may mark the operator beside a changed operand.
fn refused(rendered: &BTreeMap<String, Rendered>, errors: &Errors) -> Result<BTreeSet<usize>> {
    let mut refused = BTreeSet::new();
    for (text, places) in errors {
        let around = places.iter().filter_map(|(file, place)| {
            let parts = &rendered.get(file)?.parts;
            let around =
                parts.iter().filter(|(part, _)| part.start <= place.start && place.end <= part.end);
            around.min_by_key(|(part, _)| part.len())
        });
        let beside = places.iter().filter_map(|(file, place)| {
            let Rendered { text, parts } = rendered.get(file)?;
            let lines = lines_around(text, place);
            let on_lines =
                move |part: &Range<usize>| part.start < lines.end && lines.start < part.end;
            Some(parts.iter().filter(move |(part, _)| on_lines(part)))
        });
        let mut numbers: BTreeSet<_> = around.flat_map(|(_, numbers)| numbers.clone()).collect();
        if numbers.is_empty() {
            numbers = beside.flatten().flat_map(|(_, numbers)| numbers.clone()).collect();
        }
        if numbers.is_empty() {
            return Err(Error::other(format!("no mutant is to blame: {places:?} {text}")));
        }
        refused.extend(numbers);
    }
    Ok(refused)
}

/// The whole lines of a text that a place is on.
fn lines_around(text: &str, place: &Range<usize>) -> Range<usize> {
    let start = text.get(..place.start).and_then(|before| before.rfind('\n'));
    let end = text.get(place.end..).and_then(|after| after.find('\n'));
    start.map_or(0, |at| at + 1)..end.map_or(text.len(), |at| place.end + at)
}

/// Without a mutant all tests pass.
fn check_unchanged(outcome: &Outcome) -> Result<()> {
    if *outcome == Outcome::Survived {
        return Ok(());
    }
    Err(Error::other(format!("without a mutant: {outcome}")))
}

fn try_unit_tests(subject: Subject, programs: &TestPrograms, number: usize) -> Result<Ending> {
    let modules = subject.modules().iter();
    let beginnings: Vec<_> = modules.map(|module| format!("{module}::")).collect();
    let beginnings: Vec<_> = beginnings.iter().map(String::as_str).collect();
    programs.run_matching(&beginnings, number, UNIT_LIMIT)
}

/// Unit tests first, because they take seconds; then the simulation, scripted runs and seeds, or
/// Kafka. Returns also how long they took.
#[expect(clippy::disallowed_methods, reason = "a length of real time")]
fn try_one(
    subject: Subject,
    programs: &TestPrograms,
    number: usize,
) -> Result<(Outcome, Duration)> {
    let started = Instant::now();
    let ending = match try_unit_tests(subject, programs, number)? {
        Ending::Passed => match subject {
            Subject::Core => match programs.run_matching(&SCRIPTED, number, SCRIPTED_LIMIT)? {
                Ending::Passed => programs.run(SIMULATION, number, SEEDS, SIMULATION_LIMIT)?,
                ending => ending,
            },
            Subject::Program => match programs.run_matching(&CLIENTS, number, ON_KAFKA_LIMIT)? {
                Ending::Passed => programs.run_named(&ON_KAFKA, number, ON_KAFKA_LIMIT)?,
                ending => ending,
            },
        },
        ending => ending,
    };
    Ok((Outcome::of(ending), started.elapsed()))
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
        let of_files = BTreeMap::from([("src/kafka/a.rs".to_owned(), sites(source).unwrap())]);
        let keys: Vec<_> = candidates(&of_files).into_iter().map(|it| it.key.to_string()).collect();
        let expected = ["replace the body with ()", "replace == with !=", "replace == with != (2)"];
        assert_eq!(keys, expected.map(|what| format!("src/kafka/a.rs f: {what}")));
    }

    #[test]
    fn an_error_is_attributed_to_the_smallest_part() {
        let parts = vec![(0..100, vec![1, 2]), (10..20, vec![2])];
        let text = format!("{}\n{}", "a".repeat(150), "b".repeat(150));
        let rendered = BTreeMap::from([("src/a.rs".to_owned(), Rendered { text, parts })]);
        let blamed = |place| {
            let errors = vec![("mismatched".to_owned(), vec![("src/a.rs".to_owned(), place)])];
            refused(&rendered, &errors).map(|it| it.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(blamed(12..15).unwrap(), [2]);
        assert_eq!(blamed(12..25).unwrap(), [1, 2]);
        assert_eq!(blamed(120..121).unwrap(), [1, 2], "on the line");
        assert!(blamed(200..201).is_err());
    }
}
