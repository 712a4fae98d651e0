//! The types of rdkafka stay in `kafka`; `dev` may use them to start librdkafka's built-in broker.
//!
//! Invariant: every other module sees only `kafka`'s own types, so that another client library
//! would change one folder.

use super::source::{SourceFile, has_word, sources};

/// The modules that may use rdkafka.
const MODULES: &[&str] = &["kafka", "dev"];
/// The crate, and the functions of `kafka` that return its types (for tests and benches).
const NAMES: &[&str] = &["rdkafka", "client_config", "producer_config"];

#[test]
fn only_kafka_uses_rdkafka() {
    let findings: Vec<_> = sources().iter().flat_map(uses_of_rdkafka).collect();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn a_use_of_rdkafka_is_found() {
    let found = |path, text| !uses_of_rdkafka(&SourceFile::new(path, text)).is_empty();
    let code = "use rdkafka::message::Message;\n";
    assert!(found("src/scheduler/inputs.rs", code));
    assert!(found("src/cli/mod.rs", "let config = client_config(settings);\n"));
    assert!(!found("src/kafka/reader.rs", code));
    assert!(!found("tests/it/topics.rs", code));
    assert!(!found("src/scheduler/inputs.rs", "// librdkafka, wrapped by rdkafka\n"));
}

fn uses_of_rdkafka(source: &SourceFile) -> Vec<String> {
    let module = source.module();
    if !source.is_rust() || module.is_none_or(|module| MODULES.contains(&module)) {
        return Vec::new();
    }
    let code = source.code().into_iter();
    let uses = code.filter(|(_, _, line)| NAMES.iter().any(|name| has_word(line, name)));
    uses.map(|(at, _, _)| source.finding(at, "use a type of `kafka`, not of rdkafka")).collect()
}
