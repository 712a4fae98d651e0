//! The table of mutations: each breaks one rule of the sources, and names how that is found.
//!
//! Invariant: an entry whose text is not in its file exactly once is refused: it is outdated.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;

use crate::subject::Subject;

/// In the text of an edit: whether its mutation is active.
const SWITCH: &str = "MUTATED";

/// `planted.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    pub(crate) mutation: Vec<Mutation>,
}

/// One broken rule.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutation {
    pub(crate) name: String,
    /// What is wrong then, in one sentence.
    pub(crate) why: String,
    /// The commit whose fix it takes back.
    pub(crate) fix: Option<String>,
    /// The scripted test that finds it; without one the simulation does.
    pub(crate) test: Option<String>,
    pub(crate) edit: Vec<Edit>,
}

/// A change of one file. Without `MUTATED` in it, it is made whichever mutation is active: it adds
/// what another edit of the mutation needs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Edit {
    /// In the table it is below the core's folder.
    pub(crate) file: String,
    /// It is in the file exactly once.
    pub(crate) find: String,
    pub(crate) replace: String,
}

impl Table {
    /// Reads a table. The names in it are distinct, and what is to be explained is.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let table: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut names = BTreeMap::new();
        for (at, mutation) in table.mutation.iter().enumerate() {
            let name = &mutation.name;
            if let Some(_earlier) = names.insert(name, at) {
                return Err(format!("{name}: there are two of this name"));
            }
            if mutation.why.trim().is_empty() {
                return Err(format!("{name}: say in `why` which rule is broken"));
            }
            if !mutation.edit.iter().any(|edit| edit.replace.contains(SWITCH)) {
                return Err(format!("{name}: no edit asks whether it is active ({SWITCH})"));
            }
        }
        Ok(table)
    }

    /// With paths from the root of the project.
    pub(crate) fn of(mut self, subject: Subject) -> Self {
        for edit in self.mutation.iter_mut().flat_map(|mutation| &mut mutation.edit) {
            edit.file = subject.file(&edit.file);
        }
        self
    }

    /// The files of `sources` that are changed, with all edits of all mutations. Mutation `i` of
    /// the table is active as number `i + 1`.
    pub(crate) fn apply(
        &self,
        sources: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, String> {
        let mut changes = BTreeMap::<&str, Vec<(Range<usize>, String)>>::new();
        let mut outdated = Vec::new();
        for (at, mutation) in self.mutation.iter().enumerate() {
            for edit in &mutation.edit {
                match place_of(edit, sources) {
                    Ok(place) => {
                        let text = edit.replace.replace(SWITCH, &switch(&edit.file, at + 1));
                        changes.entry(&edit.file).or_default().push((place, text));
                    }
                    Err(why) => outdated.push(format!("{}: {why}", mutation.name)),
                }
            }
        }
        if !outdated.is_empty() {
            return Err(outdated.join("\n"));
        }
        let changed = changes.into_iter().map(|(file, changes)| {
            let text = replace_all(&sources[file], changes);
            Ok((file.to_owned(), text.map_err(|why| format!("{file}: {why}"))?))
        });
        changed.collect()
    }
}

/// The expression that asks for mutation `number` in `file`.
pub(crate) fn switch(file: &str, number: usize) -> String {
    // The tests are another crate than the library.
    let is_library = Subject::ALL.iter().any(|subject| file.starts_with(&subject.file("src/")));
    let root = if is_library { "crate" } else { "orloj_core" };
    format!("{root}::mutation_switch::is_on({number})")
}

/// Where the text of an edit is in its file.
fn place_of(edit: &Edit, sources: &BTreeMap<String, String>) -> Result<Range<usize>, String> {
    let Edit { file, find, .. } = edit;
    let Some(source) = sources.get(file) else { return Err(format!("{file} does not exist")) };
    let mut places = source.match_indices(find.as_str());
    match (places.next(), places.count()) {
        (Some((at, found)), 0) => Ok(at..at + found.len()),
        (None, _) => Err(format!("outdated: not in {file}:\n{find}")),
        (_, more) => Err(format!("{} times in {file}, not once:\n{find}", more + 1)),
    }
}

/// The text with each range replaced.
pub(crate) fn replace_all(
    source: &str,
    mut changes: Vec<(Range<usize>, String)>,
) -> Result<String, String> {
    changes.sort_by_key(|(place, _)| place.start);
    let (mut text, mut until) = (String::with_capacity(source.len() * 2), 0);
    for (place, replacement) in changes {
        if place.start < until {
            return Err(format!("two edits of the same text:\n{}", &source[place]));
        }
        text.push_str(&source[until..place.start]);
        text.push_str(&replacement);
        until = place.end;
    }
    text.push_str(&source[until..]);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = "[[mutation]]\nname = \"one\"\nwhy = \"a rule\"\n\
        [[mutation.edit]]\nfile = \"src/a.rs\"\nfind = \"if late\"\n\
        replace = \"if late && !MUTATED\"\n";

    fn apply_to(source: &str, table: &str) -> Result<String, String> {
        let sources = BTreeMap::from([("src/a.rs".to_owned(), source.to_owned())]);
        Ok(Table::parse(table)?.apply(&sources)?.remove("src/a.rs").unwrap_or_default())
    }

    #[test]
    fn an_edit_becomes_a_switch() {
        let text = apply_to("fn f() { if late { g() } }", ENTRY).expect("it is there");
        let expected = "fn f() { if late && !crate::mutation_switch::is_on(1) { g() } }";
        assert_eq!(text, expected);
    }

    #[test]
    fn an_entry_whose_text_is_not_there_exactly_once_is_refused() {
        for source in ["fn f() {}", "if late {} if late {}"] {
            let why = apply_to(source, ENTRY).expect_err("it is outdated");
            assert!(why.starts_with("one: "), "{why}");
        }
        let why = Table::parse(ENTRY).unwrap().apply(&BTreeMap::new()).expect_err("no file");
        assert!(why.contains("does not exist"), "{why}");
    }

    #[test]
    fn two_edits_of_the_same_text_are_refused() {
        let table = format!("{ENTRY}{}", ENTRY.replace("\"one\"", "\"two\""));
        let why = apply_to("if late {}", &table).expect_err("they are in each other's way");
        assert!(why.contains("the same text"), "{why}");
    }

    #[test]
    fn an_entry_without_a_reason_a_switch_or_a_name_of_its_own_is_refused() {
        let without_switch = ENTRY.replace("MUTATED", "false");
        let without_why = ENTRY.replace("a rule", " ");
        for table in [without_switch, without_why, ENTRY.repeat(2)] {
            let why = Table::parse(&table).expect_err("it is not complete");
            assert!(why.starts_with("one: "), "{why}");
        }
    }

    #[test]
    fn tests_ask_for_the_switch_of_the_library() {
        let of_file = |file: &str| switch(&Subject::Core.file(file), 3);
        assert_eq!(of_file("tests/core/a.rs"), "orloj_core::mutation_switch::is_on(3)");
        assert_eq!(of_file("src/a.rs"), "crate::mutation_switch::is_on(3)");
    }
}
