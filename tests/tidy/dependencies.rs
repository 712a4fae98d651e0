//! Dependencies point one way: what each module of the program and of the core may use.
//!
//! Invariant: a module that `MODULES` does not name is a finding.

use super::check_all;
use super::source::{SourceFile, after};

/// What each module may use of the others. Roles never meet but in topics.
const MODULES: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("codec", &["model"]),
    ("allocator", &[]),
    ("fault", &[]),
    ("engine", &["model", "codec"]),
    ("environment", &["model", "codec", "engine"]),
    ("test_environment", &["model", "codec", "engine", "environment"]),
    ("commit", &["model", "engine", "environment", "test_environment"]),
    ("clock", &["environment", "fault"]),
    ("config", &["model"]),
    ("telemetry", &["config"]),
    (
        "store",
        &["model", "codec", "engine", "environment", "fault", "config", "clock", "telemetry"],
    ),
    (
        "kafka",
        &["model", "codec", "engine", "environment", "fault", "config", "clock", "telemetry"],
    ),
    ("dead_letters", &["model", "codec", "kafka", "config", "clock"]),
    ("guard", &["model", "config", "clock"]),
    ("rate_limit", &[]),
    ("read_recovery", &[]),
    ("health", &["config", "clock", "telemetry"]),
    ("thread_queue", &["environment", "clock"]),
    ("role_reporter", &["environment", "telemetry", "health"]),
    (
        "client",
        &[
            "model",
            "codec",
            "engine",
            "kafka",
            "config",
            "clock",
            "telemetry",
            "health",
            "read_recovery",
        ],
    ),
    ("callers", &["model", "config", "telemetry", "health"]),
    (
        "scheduler",
        &[
            "model",
            "codec",
            "engine",
            "environment",
            "test_environment",
            "commit",
            "fault",
            "store",
            "kafka",
            "config",
            "clock",
            "telemetry",
            "health",
            "read_recovery",
            "thread_queue",
            "role_reporter",
        ],
    ),
    (
        "worker",
        &[
            "model",
            "codec",
            "engine",
            "environment",
            "test_environment",
            "commit",
            "fault",
            "kafka",
            "guard",
            "config",
            "clock",
            "telemetry",
            "health",
            "callers",
            "rate_limit",
            "read_recovery",
            "thread_queue",
            "role_reporter",
        ],
    ),
    (
        "notifier",
        &[
            "model",
            "codec",
            "engine",
            "kafka",
            "guard",
            "config",
            "clock",
            "telemetry",
            "health",
            "callers",
            "read_recovery",
        ],
    ),
    ("view", &["model", "codec", "engine", "kafka", "config", "clock", "telemetry", "health"]),
    (
        "gateway",
        &[
            "model",
            "codec",
            "engine",
            "kafka",
            "guard",
            "config",
            "clock",
            "telemetry",
            "health",
            "client",
            "callers",
            "dead_letters",
            "view",
            "rate_limit",
        ],
    ),
    (
        "dev",
        &[
            "model",
            "codec",
            "engine",
            "kafka",
            "config",
            "telemetry",
            "health",
            "scheduler",
            "worker",
            "gateway",
            "notifier",
        ],
    ),
];

#[test]
fn dependencies_point_one_way() {
    check_all(depends_downwards);
}

pub(super) fn depends_downwards(source: &SourceFile) -> Vec<String> {
    let Some(module) = source.module() else { return Vec::new() };
    if ["lib", "main", "cli"].contains(&module) {
        return Vec::new();
    }
    let Some((_, allowed)) = MODULES.iter().find(|(name, _)| *name == module) else {
        return vec![
            source.finding(
                1,
                "say in MODULES of tests/tidy/dependencies.rs what this module may use",
            ),
        ];
    };
    let depth = source.inside().unwrap_or_default().matches('/').count();
    let is_top = depth == 0 || source.path.ends_with("/mod.rs") && depth == 1;
    let mut findings = Vec::new();
    for (number, production, line) in source.code() {
        let mut used = after(&line, "crate::");
        if is_top && production {
            used.extend(after(&line, "super::"));
        }
        for name in used {
            if name != module && !allowed.contains(&name.as_str()) {
                let what = format!("{module} may use {allowed:?} of the crate, not {name}");
                findings.push(source.finding(number, &what));
            }
        }
        if line.contains("super::super") {
            findings.push(source.finding(number, "write the path from crate::"));
        }
    }
    findings
}
