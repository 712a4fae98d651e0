//! The pages of `docs/reference` that are made from the code.
//!
//! Invariant: below its marker such a page says what the code says, so that no default, limit or
//! metric is written twice. Run with `ORLOJ_DOCS=write` to write them again.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "reference/commands.rs"]
mod commands;
#[path = "reference/constants.rs"]
mod constants;
#[path = "reference/faults.rs"]
mod faults;
#[path = "reference/settings.rs"]
mod settings;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

const SETTINGS: &str = include_str!("../orloj.default.toml");
const RECORD_LIMITS: &str = include_str!("../crates/orloj-core/src/model/limits.rs");
const REQUEST_LIMITS: &str = include_str!("../src/gateway/triggers/trigger_body.rs");
const METRICS: &str = include_str!("../src/telemetry.rs");
const FORMATS: &str = include_str!("../docs/reference/formats.md");
const TRIGGER_SCHEMA: &str = include_str!("../schemas/trigger.avsc");
const HEADERS: &str = include_str!("../crates/orloj-core/src/codec/headers_form.rs");

#[test]
fn the_settings_are_those_of_the_default_file() {
    check("configuration", "orloj.default.toml", &settings::page(SETTINGS));
}

#[test]
fn the_limits_are_those_of_the_code() {
    let mut page = "## Of every record\n\n".to_owned();
    page += &constants::limits(RECORD_LIMITS);
    page += "\n## Of a request to the API, besides\n\n";
    page += &constants::limits(REQUEST_LIMITS);
    check("limits", "the constants of the code", &page);
}

#[test]
fn the_metrics_are_those_of_the_code() {
    check("metrics", "src/telemetry.rs", &constants::metrics(METRICS));
}

#[test]
fn the_fault_results_are_those_of_the_last_whole_run() {
    let [whole, longer] = ["faults", "faults-long"].map(|name| {
        let report = fs::read_to_string(format!("docs/reference/{name}.json")).unwrap();
        serde_json::from_str(&report).unwrap()
    });
    let page = faults::page(&whole, &longer);
    check("faults", "the last whole runs (faults.json, faults-long.json)", &page);
}

#[test]
fn the_error_codes_are_those_of_the_api() {
    let description: Value = serde_json::from_str(&commands::run(&["openapi"])).unwrap();
    let mut codes = BTreeMap::new();
    collect_problems(&description, &mut codes);
    assert!(codes.len() > 20, "the description has only {} codes", codes.len());
    let mut page =
        "| code | status | meaning | what to do |\n| --- | --- | --- | --- |\n".to_owned();
    for ((status, code), (title, hint)) in codes {
        writeln!(page, "| `{code}` | {status} | {title} | {hint} |").unwrap();
    }
    check("error-codes", "the description of the API (`orloj openapi`)", &page);
}

#[test]
fn the_commands_are_those_of_the_program() {
    check("command-line", "`orloj --help`", &commands::page());
}

#[test]
fn the_page_of_formats_has_every_header_and_every_avro_field() {
    let schema: Value = serde_json::from_str(TRIGGER_SCHEMA).unwrap();
    let fields = schema["fields"].as_array().unwrap();
    let fields = fields.iter().filter_map(|field| field["name"].as_str());
    let literals = HEADERS.split('"').skip(1).step_by(2);
    let headers = literals
        .filter(|name| ["orloj-", "scheduler-"].iter().any(|prefix| name.starts_with(prefix)));
    let missing: Vec<_> =
        fields.chain(headers).filter(|name| !FORMATS.contains(&format!("`{name}`"))).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

/// Compares what is below the marker of a page with `made`, which comes from `source`.
fn check(name: &str, source: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/reference/{name}.md"));
    let marker = format!(
        "<!-- Below this line the page is made from {source}. Change that, then run\n\
         ORLOJ_DOCS=write cargo test --locked --test reference -->\n\n"
    );
    let page = fs::read_to_string(&path).unwrap();
    let (written, below) = page.split_once("<!-- Below this line").unwrap();
    let below = format!("<!-- Below this line{below}");
    let made = format!("{marker}{made}");
    if std::env::var("ORLOJ_DOCS").is_ok_and(|what| what == "write") {
        fs::write(&path, format!("{written}{made}")).unwrap();
    } else {
        assert!(below == made, "{name}.md is not what {source} says; ORLOJ_DOCS=write renews it");
    }
}

/// Each code of the answers that the description shows, with its status, title and hint.
fn collect_problems(value: &Value, codes: &mut BTreeMap<(u64, String), (String, String)>) {
    match value {
        Value::Object(fields) => {
            let text = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
            let status = fields.get("status").and_then(Value::as_u64);
            if let (Some(code), Some(title), Some(status)) = (text("code"), text("title"), status) {
                codes.insert((status, code), (title, text("hint").unwrap_or_default()));
            }
            fields.values().for_each(|value| collect_problems(value, codes));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_problems(item, codes)),
        _ => {}
    }
}
