//! The copy of the sources that is changed and built.
//!
//! Invariant: files that did not change keep their times, so that cargo builds nothing twice. The
//! copy is a version of its own, so that no artifact of it is taken for one of the project; its
//! program has another name, and its tests another folder for their files.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Error, Result};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use toml::{Table, Value};

use crate::subject::{CORE, SHORT_CASES, Subject};

/// The copy's program. Cargo puts it beside the project's.
const PROGRAM: &str = "orloj-mutated";

/// The root of the project.
pub(crate) fn project_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where cargo builds.
pub(crate) fn target_dir() -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    set.unwrap_or_else(|| project_root().join("target"))
}

/// The files that the copy of a subject has, by their paths.
pub(crate) fn read_sources(root: &Path, subject: Subject) -> Result<BTreeMap<String, String>> {
    let mut sources = BTreeMap::new();
    for folder in subject.copied() {
        collect(root, &root.join(folder), &mut sources)?;
    }
    Ok(sources)
}

fn collect(root: &Path, folder: &Path, sources: &mut BTreeMap<String, String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, sources)?;
        } else {
            let name = path.strip_prefix(root).map_err(Error::other)?.to_string_lossy();
            sources.insert(name.into_owned(), fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

/// A copy of the sources.
#[derive(Clone, Debug)]
pub(crate) struct SourceCopy {
    subject: Subject,
    root: PathBuf,
}

impl SourceCopy {
    /// Writes the copy `name` of a subject with these sources.
    pub(crate) fn write(
        project: &Path,
        subject: Subject,
        name: &str,
        mut sources: BTreeMap<String, String>,
    ) -> Result<Self> {
        let copy = Self { subject, root: target_dir().join("mutants").join(name) };
        copy.link_included(project)?;
        copy.add_switch(&mut sources)?;
        copy.adapt_tests(&mut sources)?;
        let manifest = |path: &str| {
            let text = fs::read_to_string(project.join(path).join("Cargo.toml"))?;
            text.parse::<Table>().map_err(Error::other)
        };
        sources.insert(format!("{CORE}/Cargo.toml"), package(manifest(CORE)?).to_string());
        let root = fs::canonicalize(project)?;
        let workspace = workspace(with_paths_from(&root, manifest("")?), subject, name);
        sources.insert("Cargo.toml".to_owned(), workspace.to_string());
        let lock = fs::read_to_string(project.join("Cargo.lock"))?;
        sources.insert("Cargo.lock".to_owned(), lock);
        copy.remove_others(&sources)?;
        for (path, text) in sources {
            write_if_changed(&copy.root.join(path), &text)?;
        }
        Ok(copy)
    }

    /// Where its tests are run.
    pub(crate) fn directory(&self) -> PathBuf {
        self.root.join(self.subject.directory())
    }

    /// Where its tests may write.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.root.join("scratch")
    }

    /// Cargo, to build its tests.
    pub(crate) fn cargo(&self) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--no-run", "--quiet"]).args(self.subject.built());
        cargo.current_dir(&self.root).env("CARGO_TARGET_DIR", target_dir());
        cargo
    }

    fn link_included(&self, project: &Path) -> Result<()> {
        for included in self.subject.included() {
            let link = self.root.join(included);
            fs::create_dir_all(link.parent().unwrap_or(&self.root))?;
            // It may lead to another clone.
            let _old = fs::remove_file(&link);
            symlink(fs::canonicalize(project.join(included))?, link)?;
        }
        Ok(())
    }

    fn add_switch(&self, sources: &mut BTreeMap<String, String>) -> Result<()> {
        let library = sources.get_mut(&self.subject.file("src/lib.rs"));
        let library = library.ok_or_else(|| Error::other("no library"))?;
        library.push_str("\n#[allow(missing_docs)]\npub mod mutation_switch;\n");
        let switch = include_str!("switch.rs").to_owned();
        sources.insert(self.subject.file("src/mutation_switch.rs"), switch);
        Ok(())
    }

    /// Tests of the project may run at the same time: they start another program, and their files
    /// have the same names. And a trial is no place for all short cases of faults.
    fn adapt_tests(&self, sources: &mut BTreeMap<String, String>) -> Result<()> {
        if self.subject == Subject::Core {
            return Ok(());
        }
        let program = format!("env!(\"CARGO_BIN_EXE_{PROGRAM}\")");
        let folder = format!("{:?}", self.scratch());
        let [cases, short_cases] = SHORT_CASES;
        for (find, replace) in [
            ("env!(\"CARGO_BIN_EXE_orloj\")", program.as_str()),
            ("env!(\"CARGO_TARGET_TMPDIR\")", &folder),
            (cases, short_cases),
        ] {
            let tests = sources.iter_mut().filter(|(path, _)| path.starts_with("tests/"));
            let mut found =
                tests.map(|(_, text)| text).filter(|text| text.contains(find)).peekable();
            if found.peek().is_none() {
                return Err(Error::other(format!("outdated: not in the tests: {find}")));
            }
            found.for_each(|text| *text = text.replace(find, replace));
        }
        Ok(())
    }

    /// Removes what is not in the sources any more.
    fn remove_others(&self, sources: &BTreeMap<String, String>) -> Result<()> {
        for folder in self.subject.copied() {
            let mut old = BTreeMap::new();
            if self.root.join(folder).exists() {
                collect(&self.root, &self.root.join(folder), &mut old)?;
            }
            for path in old.keys().filter(|path| !sources.contains_key(*path)) {
                fs::remove_file(self.root.join(path))?;
            }
        }
        Ok(())
    }
}

/// The manifest of a package without what is not built here; the lints are those of the original.
fn package(mut manifest: Table) -> Table {
    manifest.remove("bench");
    let quiet = Table::from_iter([("warnings".to_owned(), Value::from("allow"))]);
    let lints = Table::from_iter([("rust".to_owned(), Value::Table(quiet))]);
    manifest.insert("lints".to_owned(), Value::Table(lints));
    manifest
}

/// The manifest with the crates that replace published ones where they are: they are built once for
/// both.
fn with_paths_from(project: &Path, mut manifest: Table) -> Table {
    let patches = manifest.get_mut("patch").and_then(Value::as_table_mut);
    let sources = patches.into_iter().flatten().filter_map(|(_, source)| source.as_table_mut());
    for (_, replacement) in sources.flatten() {
        if let Some(path) = replacement.get_mut("path") {
            let in_project = project.join(path.as_str().unwrap_or_default());
            *path = in_project.display().to_string().into();
        }
    }
    manifest
}

/// The workspace of the copy: versions and profiles of the project, so that other crates are
/// built once for both.
fn workspace(mut manifest: Table, subject: Subject, name: &str) -> Table {
    match subject {
        Subject::Core => manifest.retain(|key, _| ["workspace", "profile"].contains(&key)),
        Subject::Program => {
            manifest = package(manifest);
            if let Some(package) = manifest.get_mut("package").and_then(Value::as_table_mut) {
                package.remove("default-run");
            }
            let program = manifest.get_mut("bin").and_then(|programs| programs.get_mut(0));
            if let Some(program) = program.and_then(Value::as_table_mut) {
                program.insert("name".to_owned(), PROGRAM.into());
            }
        }
    }
    if let Some(workspace) = manifest.get_mut("workspace").and_then(Value::as_table_mut) {
        // Without a package of its edition it would be another one.
        workspace.insert("resolver".to_owned(), "3".into());
        if let Some(package) = workspace.get_mut("package").and_then(Value::as_table_mut) {
            package.insert("version".to_owned(), format!("0.0.0-{name}").into());
        }
    }
    manifest
}

fn write_if_changed(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::write(path, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[workspace]\nmembers = [\"crates/orloj-core\"]\n\
        [workspace.package]\nversion = \"1.0.0\"\n[package]\nname = \"orloj\"\n\
        default-run = \"orloj\"\n[[bin]]\nname = \"orloj\"\npath = \"src/main.rs\"\n\
        [[bench]]\nname = \"suite\"\n[lints]\nworkspace = true\n[profile.dev]\nopt-level = 3\n";

    fn copied(subject: Subject, name: &str) -> Table {
        workspace(MANIFEST.parse().unwrap(), subject, name)
    }

    #[test]
    fn the_copy_has_a_version_of_its_own_and_the_profiles_of_the_project() {
        for (subject, name) in [(Subject::Core, "planted"), (Subject::Program, "program")] {
            let manifest = copied(subject, name);
            let version = &manifest["workspace"]["package"]["version"];
            assert_eq!(version.as_str(), Some(&*format!("0.0.0-{name}")));
            assert_eq!(manifest["profile"]["dev"]["opt-level"].as_integer(), Some(3));
        }
    }

    #[test]
    fn the_copy_builds_the_crates_of_the_project_that_replace_published_ones() {
        let manifest = "[patch.crates-io]\na = { path = \"vendor/a\" }\nb = \"1\"\n";
        let manifest = with_paths_from(Path::new("/project"), manifest.parse().unwrap());
        assert_eq!(manifest["patch"]["crates-io"]["a"]["path"].as_str(), Some("/project/vendor/a"));
        assert_eq!(manifest["patch"]["crates-io"]["b"].as_str(), Some("1"));
    }

    #[test]
    fn only_the_copy_of_the_program_has_a_program_under_another_name() {
        assert!(!copied(Subject::Core, "core").contains_key("package"));
        let manifest = copied(Subject::Program, "program");
        assert_eq!(manifest["bin"][0]["name"].as_str(), Some(PROGRAM));
        assert_eq!(manifest["package"].as_table().unwrap().len(), 1);
        assert!(!manifest.contains_key("bench"));
        assert_eq!(manifest["lints"]["rust"]["warnings"].as_str(), Some("allow"));
    }

    #[test]
    fn tests_start_the_program_of_the_copy_and_write_into_its_folder() {
        let copy = SourceCopy { subject: Subject::Program, root: PathBuf::from("/copy") };
        let adapted = |text: String| {
            let mut sources = BTreeMap::from([("tests/it/a.rs".to_owned(), text)]);
            copy.adapt_tests(&mut sources).map(|()| sources.remove("tests/it/a.rs").unwrap())
        };
        let places = |program: &str, folder: &str| format!("f({program}, {folder}); ");
        let project = places("env!(\"CARGO_BIN_EXE_orloj\")", "env!(\"CARGO_TARGET_TMPDIR\")");
        let copied = places("env!(\"CARGO_BIN_EXE_orloj-mutated\")", "\"/copy/scratch\"");
        let [cases, short_cases] = SHORT_CASES;
        assert_eq!(adapted(project.clone() + cases).unwrap(), copied + short_cases);
        assert!(adapted(project).is_err(), "the cases are not there any more");
    }
}
