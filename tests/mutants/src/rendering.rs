//! Sources with the changes of mutants in them, each behind its switch.
//!
//! Invariant: without an active mutant the rendered sources do what the original ones do.

use std::ops::Range;

use crate::operators::{Shape, Site};
use crate::table::switch;

/// A mutant of a site: its number, and which change of the site it makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Active {
    pub(crate) number: usize,
    pub(crate) change: usize,
}

/// A rendered file.
#[derive(Debug, Default)]
pub(crate) struct Rendered {
    pub(crate) text: String,
    /// Parts of the text, and the mutants of which one does not compile if the compiler complains
    /// there.
    pub(crate) parts: Vec<(Range<usize>, Vec<usize>)>,
}

/// What is inserted, in place of `removed` bytes.
struct Insertion {
    at: usize,
    removed: usize,
    /// What follows an expression comes before what precedes the next one.
    is_after: bool,
    /// Of the site, in the order in which they were found: an outer one before an inner one.
    site: usize,
    pieces: Vec<Piece>,
}

/// A text, and the mutant that it belongs to alone.
type Piece = (String, Option<usize>);

/// Renders a file with these mutants of its sites.
pub(crate) fn render(file: &str, source: &str, sites: &[(&Site, Vec<Active>)]) -> Rendered {
    let mut insertions = Vec::new();
    for (number, (site, mutants)) in sites.iter().enumerate() {
        if !mutants.is_empty() {
            insertions.extend(SiteInsertions { file, number, site, mutants }.all());
        }
    }
    insertions.sort_by_key(|insertion| {
        let site = insertion.site;
        let order = if insertion.is_after { usize::MAX - site } else { site };
        (insertion.at, !insertion.is_after, order)
    });
    let (mut rendered, mut until) = (Rendered::default(), 0);
    let mut map = PositionMap::default();
    for insertion in insertions {
        rendered.text.push_str(&source[until..insertion.at]);
        map.note(insertion.at, rendered.text.len(), insertion.is_after);
        for (text, mutant) in insertion.pieces {
            let start = rendered.text.len();
            rendered.text.push_str(&text);
            rendered.parts.extend(mutant.map(|number| (start..rendered.text.len(), vec![number])));
        }
        until = insertion.at + insertion.removed;
        map.note(until, rendered.text.len(), true);
    }
    rendered.text.push_str(&source[until..]);
    for (site, mutants) in sites.iter().filter(|(_, mutants)| !mutants.is_empty()) {
        let numbers = mutants.iter().map(|mutant| mutant.number).collect();
        rendered.parts.push((map.range(&site.range), numbers));
    }
    rendered
}

/// Where positions of the source are in the rendered text.
#[derive(Default)]
struct PositionMap(Vec<(usize, usize, bool)>);

impl PositionMap {
    fn note(&mut self, source: usize, rendered: usize, is_end: bool) {
        self.0.push((source, rendered, is_end));
    }

    /// All that a range has become, insertions at its ends included.
    fn range(&self, range: &Range<usize>) -> Range<usize> {
        let first = self.0.iter().find(|(source, ..)| *source >= range.start);
        let last = self.0.iter().rev().find(|(source, ..)| *source <= range.end);
        let start =
            first.map_or(0, |(source, rendered, _)| rendered.saturating_sub(source - range.start));
        let end = last.map_or(usize::MAX, |(source, rendered, _)| rendered + (range.end - source));
        start..end.max(start)
    }
}

/// Makes the insertions of one site.
struct SiteInsertions<'a> {
    file: &'a str,
    number: usize,
    site: &'a Site,
    mutants: &'a [Active],
}

fn plain(text: &str) -> Vec<Piece> {
    vec![(text.to_owned(), None)]
}

impl SiteInsertions<'_> {
    fn all(&self) -> Vec<Insertion> {
        let Range { start, end } = self.site.range;
        let only = self.on(&self.mutants[0]);
        match &self.site.shape {
            Shape::Body { at } => vec![self.insert(*at, 0, false, self.returns())],
            Shape::Compare { op, text } => {
                self.around(op, "(match (&(", "), &(", self.choice(text, "mutant_l"))
            }
            Shape::Arithmetic { op, text } => {
                self.around(op, "(match ((", "), (", self.choice(text, "mutant_l"))
            }
            Shape::Assign { op, text } => {
                self.around(op, "(match (&mut (", "), (", self.choice(text, "*mutant_l"))
            }
            Shape::Logic { op, is_and } => {
                let ends = if *is_and { only } else { format!("!{only}") };
                let between = format!("; if mutant_l == {ends} {{ mutant_l }} else {{ ");
                self.around(op, "({ let mutant_l = ", &between, plain(" } })"))
            }
            Shape::Not { op } => vec![
                self.insert(op.start, op.len(), false, plain(&format!("({only} == ("))),
                self.insert(end, 0, true, plain("))")),
            ],
            Shape::Negative { op } => {
                let after = format!(")) {{ l => if {only} {{ l }} else {{ -l }} }})");
                vec![
                    self.insert(op.start, op.len(), false, plain("(match ((")),
                    self.insert(end, 0, true, plain(&after)),
                ]
            }
            Shape::ArmRemoved { at } => {
                vec![self.insert(*at, 0, true, plain(&format!(" if !{only}")))]
            }
            Shape::Guard => {
                let before = format!("({} || !{} && (", self.of("true"), self.of("false"));
                vec![
                    self.insert(start, 0, false, plain(&before)),
                    self.insert(end, 0, true, plain("))")),
                ]
            }
            Shape::Field { value, name, base, is_short } => {
                let name_again = if *is_short { format!("{name}: ") } else { String::new() };
                let before = format!("{name_again}if {only} {{ ({base}).{name} }} else {{ ");
                vec![
                    self.insert(value.start, 0, false, plain(&before)),
                    self.insert(value.end, 0, true, plain(" }")),
                ]
            }
        }
    }

    fn insert(&self, at: usize, removed: usize, is_after: bool, pieces: Vec<Piece>) -> Insertion {
        Insertion { at, removed, is_after, site: self.number, pieces }
    }

    fn on(&self, mutant: &Active) -> String {
        switch(self.file, mutant.number)
    }

    fn text_of(&self, mutant: &Active) -> &str {
        &self.site.changes[mutant.change].text
    }

    /// Asks for the mutant whose new text is `text`.
    fn of(&self, text: &str) -> String {
        let mutant = self.mutants.iter().find(|mutant| self.text_of(mutant) == text);
        mutant.map_or_else(|| "false".to_owned(), |mutant| self.on(mutant))
    }

    fn around(
        &self,
        op: &Range<usize>,
        before: &str,
        between: &str,
        after: Vec<Piece>,
    ) -> Vec<Insertion> {
        let Range { start, end } = self.site.range;
        vec![
            self.insert(start, 0, false, plain(before)),
            self.insert(op.start, op.len(), false, plain(between)),
            self.insert(end, 0, true, after),
        ]
    }

    fn returns(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for mutant in self.mutants {
            pieces.push((format!(" if {} {{ ", self.on(mutant)), None));
            pieces.push((format!("return {}", self.text_of(mutant)), Some(mutant.number)));
            pieces.push(("; }".to_owned(), None));
        }
        pieces
    }

    /// Both operands, with one of the operators.
    fn choice(&self, text: &str, left: &str) -> Vec<Piece> {
        let mut pieces = plain(")) { (mutant_l, mutant_r) => ");
        for mutant in self.mutants {
            let new = self.text_of(mutant);
            pieces.push((format!("if {} {{ ", self.on(mutant)), None));
            pieces.push((format!("{left} {new} mutant_r"), Some(mutant.number)));
            pieces.push((" } else ".to_owned(), None));
        }
        pieces.push((format!("{{ {left} {text} mutant_r }} }})"), None));
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::sites;

    /// Every change of a source, and the rendered text.
    fn all(source: &str) -> (Vec<String>, String) {
        let sites = sites(source).unwrap();
        let (mut whats, mut active) = (Vec::new(), Vec::new());
        for site in &sites {
            let changes = 0..site.changes.len();
            let mutants = changes.map(|change| {
                whats.push(site.changes[change].what.clone());
                Active { number: whats.len(), change }
            });
            active.push((site, mutants.collect()));
        }
        (whats, render("src/a.rs", source, &active).text)
    }

    #[test]
    fn what_is_rendered_is_a_source_again() {
        let source = "impl A { fn f(&self, a: u64, b: &B) -> bool {\n    let x = -1;\n    \
            self.n += a * 2;\n    let s = S { a: 1, b, ..s };\n    \
            match b { B::C if a > 1 => !self.g(), B::D => a + 1 == 2 || x < 3, _ => true }\n} }";
        let (whats, text) = all(source);
        assert!(syn::parse_file(&text).is_ok(), "{text}");
        for what in [
            "replace the body with true",
            "delete -",
            "replace += with -=",
            "replace * with +",
            "delete the field b",
            "replace the guard a > 1 with false",
            "delete the arm B :: D",
            "delete !",
            "replace + with *",
            "replace == with !=",
            "replace || with &&",
            "replace < with <=",
        ] {
            assert!(whats.iter().any(|known| known == what), "{what}: {whats:?}");
        }
    }

    #[test]
    fn tests_constants_and_conditions_with_let_are_left_alone() {
        let source = "const A: u64 = 1 + 2;\n#[cfg(test)]\nmod tests { fn f() { g() } }\n\
            #[test]\nfn t() { g() }\nconst fn c() -> u64 { 1 }";
        assert_eq!(all(source), (Vec::new(), source.to_owned()));
        let (whats, _) = all("fn f(a: Option<u8>) { if let Some(b) = a && b == 1 { g() } }");
        assert_eq!(whats, ["replace the body with ()", "replace == with !="]);
    }

    #[test]
    fn a_complaint_is_about_the_smallest_part_around_it() {
        let source = "fn f() -> u64 { a + b }";
        let sites = sites(source).unwrap();
        let mutants = |first, count| -> Vec<_> {
            (0..count).map(|change| Active { number: first + change, change }).collect()
        };
        let active = [(&sites[0], mutants(1, 2)), (&sites[1], mutants(3, 2))];
        let Rendered { text, parts } = render("src/a.rs", source, &active);
        let own = |number: usize| {
            let part = parts.iter().find(|(_, numbers)| *numbers == [number]);
            &text[part.expect("it has a part of its own").0.clone()]
        };
        assert_eq!(
            [own(2), own(3), own(4)],
            ["return 1", "mutant_l - mutant_r", "mutant_l * mutant_r"]
        );
        let whole = parts.iter().find(|(_, numbers)| *numbers == [3, 4]).unwrap();
        assert!(
            text[whole.0.clone()].starts_with("(match") && text[whole.0.clone()].ends_with("})")
        );
    }
}
