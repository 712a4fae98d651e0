//! The crates of which mutants are tried, and the tests that are to notice.
//!
//! Invariant: files are named by their paths from the root of the project.

/// The folder of the core.
pub(crate) const CORE: &str = "crates/orloj-core";

/// A crate whose sources are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// What Orloj knows and decides, without native code.
    Core,
    /// The program: the clients and threads for the core's loop.
    Program,
}

/// The beginning of the names of tests of the clients by themselves, 80 s in all.
pub(crate) const CLIENTS: [&str; 1] = ["kafka_clients::"];

/// Tests of the program on a real Kafka, for what its unit tests cannot reach. They run in one
/// process, so that they share a broker; those that need the whole machine take turns.
///
/// What measures how late a fire is, to a second, is not here, but for a takeover by the process
/// that has followed: any other work on this machine would be a finding.
pub(crate) const ON_KAFKA: [&str; 10] = [
    // Topics are created, and compared with their definitions.
    "topics::missing_topics_are_created_once",
    "topics::a_difference_is_reported_with_the_command_that_fixes_it",
    // What the broker refuses, schemas that do not exist, targets that cannot be written.
    "bad_input::bad_records_become_dead_letters_and_their_neighbours_fire",
    // Records are read, written and committed in one transaction, in other partitions too.
    "foreign_clients::records_of_a_foreign_partitioner_are_forwarded_and_fire_once",
    // SIGKILL, and a takeover without a disk.
    "schedules::commands_take_effect_and_survive_a_takeover",
    // SIGTERM, and a member that joins again under its name and inherits what it has released.
    "restarts::a_restarted_scheduler_does_not_read_its_own_ledger_records_again",
    // A member joins, and partitions are revoked, released and assigned.
    "worker::a_partition_that_moves_repeats_only_what_was_not_finished",
    // Records without a transaction, and batches in one without offsets.
    "gateway::a_registration_returns_the_owners_outcome",
    "dead_letters::dead_letters_are_listed_shown_replayed_once_and_archived",
    // An owner that is stopped in mid-transaction is fenced and joins again; one that dies there is
    // fenced by its standby. See `SHORT_CASES`.
    "faults::short_fault_cases_pass",
];

/// The short cases of faults, in their source and in the copy. The others take a minute, and kill
/// the program at steps of the core.
pub(crate) const SHORT_CASES: [&str; 2] = [
    "const SHORT: [&str; 4] = \
     [\"kill-scheduler\", \"kill-worker\", \"stopped\", \"owner-followed\"];",
    "const SHORT: [&str; 2] = [\"stopped\", \"owner-followed\"];",
];

impl Subject {
    pub(crate) const ALL: [Self; 2] = [Self::Core, Self::Program];

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|subject| subject.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Program => "program",
        }
    }

    /// The path of one of its files.
    pub(crate) fn file(self, path: &str) -> String {
        match self {
            Self::Core => format!("{CORE}/{path}"),
            Self::Program => path.to_owned(),
        }
    }

    /// The folder of its manifest.
    pub(crate) fn directory(self) -> &'static str {
        match self {
            Self::Core => CORE,
            Self::Program => "",
        }
    }

    /// Modules whose sources are changed; their unit tests are run.
    pub(crate) fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Core => &["engine", "scheduler", "commit", "worker"],
            Self::Program => &["kafka", "scheduler"],
        }
    }

    /// Whether a file is changed.
    pub(crate) fn has(self, file: &str) -> bool {
        let name = file.rsplit('/').next().unwrap_or_default();
        let is_in = |module: &str| file.starts_with(&self.file(&format!("src/{module}/")));
        self.modules().iter().any(|module| is_in(module))
            && !file.contains("/tests/")
            && name != "tests.rs"
            && !name.starts_with("test_")
    }

    /// Folders of which the copy has all files. The core's are among the program's: a link would be
    /// built again only if its files were newer than those of another clone.
    pub(crate) fn copied(self) -> &'static [&'static str] {
        match self {
            Self::Core => &["crates/orloj-core/src", "crates/orloj-core/tests"],
            Self::Program => {
                &["src", "tests/it", "crates/orloj-core/src", "crates/orloj-core/tests"]
            }
        }
    }

    /// What these files include of the rest of the project, and what tests read of it.
    pub(crate) fn included(self) -> &'static [&'static str] {
        match self {
            Self::Core => &["docs", "schemas", "scripts", "tests"],
            Self::Program => {
                &["docs", "schemas", "scripts", "topics", "tests/golden", "orloj.default.toml"]
            }
        }
    }

    /// The package and the programs with its tests, as arguments of cargo. The features are those
    /// of `make test`: other ones would compile the dependencies again.
    pub(crate) fn built(self) -> &'static [&'static str] {
        match self {
            Self::Core => &["--package", "orloj-core", "--lib", "--test", "core"],
            Self::Program => {
                &["--package", "orloj", "--features", "faults", "--lib", "--test", "it"]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_and_other_modules_are_not_changed() {
        let core = ["engine/a.rs", "scheduler/b/c.rs"];
        assert!(core.iter().all(|file| Subject::Core.has(&format!("{CORE}/src/{file}"))));
        let others = ["engine/tests/a.rs", "engine/a/tests.rs", "engine/test_clock.rs"];
        for file in others.into_iter().chain(["model/a.rs", "engine.rs"]) {
            assert!(!Subject::Core.has(&format!("{CORE}/src/{file}")), "{file}");
        }
        assert!(Subject::Program.has("src/kafka/member.rs"));
        assert!(!Subject::Program.has("src/gateway/mod.rs"));
        assert!(!Subject::Program.has(&format!("{CORE}/src/scheduler/mod.rs")));
        assert_eq!(Subject::named("program"), Some(Subject::Program));
        assert_eq!(Subject::named("worker"), None);
    }
}
