//! Plain words: what a reader whose first language is not English would have to look up, or would
//! take for a figure of speech, does not come back into names, comments, messages or pages.
//!
//! Invariant: stored and sent names are exempt where they are declared (`rename = …`, `as = …`),
//! and each other exception stands in `EXCEPTIONS` with its reason.

use super::source::{SourceFile, sources, words};

/// The word, and what to write instead.
const WORDS: &[(&str, &str)] = &[
    ("anew", "again"),
    ("anybody", "any process, any caller"),
    ("begun", "started"),
    ("bequeath", "carry over"),
    ("calamity", "fault"),
    ("came", "arrived, was received"),
    ("canary", "connection counter"),
    ("compartment", "bulkhead"),
    ("condemn", "mark as refused"),
    ("condemned", "refused"),
    ("courier", "transport"),
    ("course", "lifecycle"),
    ("crowd", "many callers"),
    ("crowded", "at capacity"),
    ("dealt", "handled"),
    ("deed", "action"),
    ("desk", "client"),
    ("dice", "random numbers"),
    ("errand", "record for workers"),
    ("farewell", "final commit"),
    ("fate", "result"),
    ("gone", "removed, deleted, lost"),
    ("hear", "receive"),
    ("heard", "received"),
    ("hears", "receives"),
    ("heed", "respect"),
    ("heeded", "respected"),
    ("hence", "therefore"),
    ("heritage", "what is carried over"),
    ("lane", "partition task"),
    ("law", "invariant, rule"),
    ("laws", "invariants, rules"),
    ("lookout", "poller"),
    ("mend", "repair, fix"),
    ("mended", "repaired, fixed"),
    ("mends", "repairs, fixes"),
    ("nobody", "no process, no caller"),
    ("obey", "execute"),
    ("outcast", "member that is fenced repeatedly"),
    ("overfed", "over its buffer limit"),
    ("rhythm", "recurrence rule"),
    ("roster", "group members"),
    ("sentinel", "poller"),
    ("siege", "load"),
    ("somebody", "a process, a caller"),
    ("spoken", "decided"),
    ("stood", "was"),
    ("stranger", "unknown caller"),
    ("strangers", "unknown callers"),
    ("tenure", "assignment"),
    ("testimony", "records that were read"),
    ("told", "answered, reported, delivered"),
    ("unheeded", "ignored"),
    ("verdict", "outcome, disposition, finding"),
    ("whoever", "the process that, the caller that"),
    ("wish", "request"),
    ("wishes", "requests"),
    ("witness", "reader"),
];

/// File (or the beginning of its path), word, why it stays there.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("docs/reference/api.md", "dealt", "a field of the API"),
    ("docs/reference/formats.md", "verdict", "a field of the outcomes"),
    ("tests/it/api/dead_letters.rs", "dealt", "the field of a response"),
    ("tests/it/tail.rs", "verdict", "the field of an outcome"),
];

/// Whose text is not ours, or is the bytes of a format.
const EXEMPT: &[&str] =
    &["LICENSE", "schemas/", "tests/golden/", "tests/tidy/words.rs", "benches/peers/"];

#[test]
fn words_are_plain() {
    let findings: Vec<_> = sources().iter().flat_map(listed_words).collect();
    let shown = findings.iter().take(200).cloned().collect::<Vec<_>>().join("\n");
    assert!(findings.is_empty(), "{} words to replace:\n{shown}\n", findings.len());
}

#[test]
fn a_listed_word_is_found() {
    let cases = [
        "/// The law of this file.",
        "fn take_off(desk: Desk) {}",
        "tracing::warn!(\"the group has spoken\")",
        "let was_told = 1;",
    ];
    for line in cases {
        assert_ne!(
            listed_words(&SourceFile::new("src/a.rs", line)),
            Vec::<String>::new(),
            "{line}"
        );
    }
    for line in ["#[serde(rename = \"told\")]", "// plain words, lawful and toldo", "inflight"] {
        assert_eq!(
            listed_words(&SourceFile::new("src/a.rs", line)),
            Vec::<String>::new(),
            "{line}"
        );
    }
}

fn listed_words(source: &SourceFile) -> Vec<String> {
    if EXEMPT.iter().any(|path| source.path.starts_with(path)) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (at, line) in source.text.lines().enumerate() {
        if line.contains("rename = \"") || line.contains("schema(as = ") {
            continue;
        }
        let used = words(line);
        for (word, instead) in WORDS.iter().filter(|(word, _)| used.iter().any(|w| w == word)) {
            let is_exception = |(path, exempt, _): &&(&str, &str, &str)| {
                source.path.starts_with(path) && exempt == word
            };
            if EXCEPTIONS.iter().find(is_exception).is_none() {
                findings.push(source.finding(at + 1, &format!("not `{word}`: {instead}")));
            }
        }
    }
    findings
}
