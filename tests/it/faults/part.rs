//! Which cases a run of limited time has: those that follow a place in the table which depends on
//! the commit, so that in time all are run.
//!
//! Invariant: how long a case takes is what the last whole run says.

use std::collections::HashMap;
use std::fs;

use serde_json::Value;

use super::report::FULL;

/// What a part may take, in seconds. A case that takes longer is a part alone.
const PART_MAX: u64 = 330;
/// Of a case that the last whole run did not have.
const UNKNOWN: u64 = 300;

/// The cases of the part that belongs to a commit's hash.
pub(super) fn cases_of<'a>(commit: &str, names: &[&'a str]) -> Vec<&'a str> {
    part(place(commit, names.len()), names, &seconds()).iter().map(|&at| names[at]).collect()
}

/// A place below `count` that depends on a hash.
fn place(commit: &str, count: usize) -> usize {
    let digits = commit.get(..8).and_then(|digits| usize::from_str_radix(digits, 16).ok());
    digits.unwrap_or_else(|| panic!("{commit:?} is not the hash of a commit")) % count
}

fn seconds() -> HashMap<String, u64> {
    let report = fs::read_to_string(FULL.kept).unwrap_or_default();
    let report: Value = serde_json::from_str(&report).unwrap_or_default();
    let cases = report["cases"].as_array().into_iter().flatten();
    let took = |case: &Value| Some((case["case"].as_str()?.to_owned(), case["seconds"].as_u64()?));
    cases.filter_map(took).collect()
}

fn part(first: usize, names: &[&str], seconds: &HashMap<String, u64>) -> Vec<usize> {
    let (mut chosen, mut total) = (Vec::new(), 0);
    for at in (0..names.len()).map(|n| (first + n) % names.len()) {
        total += seconds.get(names[at]).copied().unwrap_or(UNKNOWN);
        if !chosen.is_empty() && total > PART_MAX {
            break;
        }
        chosen.push(at);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::super::{BY_NAME, CASES, LONGER, SHORT};
    use super::*;

    #[test]
    fn the_short_and_the_longer_cases_are_cases() {
        let is_case = |name: &&str| CASES.iter().any(|case| case.name == *name);
        let names = SHORT.iter().chain(&LONGER).chain(&BY_NAME);
        assert_eq!(names.copied().filter(|name| !is_case(name)).collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn every_case_belongs_to_a_part_and_no_part_takes_too_long() {
        let names = ["a", "b", "c", "d"];
        let seconds = [("a", 20), ("b", 1_000), ("c", 20)];
        let seconds = seconds.map(|(name, seconds)| (name.to_owned(), seconds)).into();
        let parts = [0, 1, 2, 3].map(|first| part(first, &names, &seconds));
        assert_eq!(parts, [vec![0], vec![1], vec![2, 3], vec![3, 0]]);
    }

    #[test]
    fn hashes_lead_to_every_place() {
        let places = (0..29).map(|n| place(&format!("{n:08x}f00d"), 29));
        assert!(places.eq(0..29));
    }
}
