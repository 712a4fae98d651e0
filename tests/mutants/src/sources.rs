//! The copy of the core's sources that is changed and built.
//!
//! Invariant: files that did not change keep their times, so that cargo builds nothing twice. The
//! copy is a version of its own, so that no artifact of it is taken for one of the project.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Error, Result};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// Where the core is, below the root of the project and of the copy.
pub(crate) const CORE: &str = "crates/orloj-core";
/// What the sources of the core include of the rest of the project.
const INCLUDED: [&str; 4] = ["docs", "schemas", "scripts", "tests"];
const LIBRARY: &str = "src/lib.rs";

/// The root of the project.
pub(crate) fn project_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where cargo builds.
pub(crate) fn target_dir() -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    set.unwrap_or_else(|| project_root().join("target"))
}

/// The files of the core below `src` and `tests`, by their paths below the core.
pub(crate) fn read_core(root: &Path) -> Result<BTreeMap<String, String>> {
    let (core, mut sources) = (root.join(CORE), BTreeMap::new());
    for folder in ["src", "tests"] {
        collect(&core, &core.join(folder), &mut sources)?;
    }
    Ok(sources)
}

fn collect(core: &Path, folder: &Path, sources: &mut BTreeMap<String, String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(core, &path, sources)?;
        } else {
            let name = path.strip_prefix(core).map_err(Error::other)?.to_string_lossy();
            sources.insert(name.into_owned(), fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

/// Writes the copy `name` of the core with `sources`. Returns its root.
pub(crate) fn write_copy(
    root: &Path,
    name: &str,
    mut sources: BTreeMap<String, String>,
) -> Result<PathBuf> {
    let copy = target_dir().join("mutants").join(name);
    fs::create_dir_all(copy.join(CORE))?;
    for included in INCLUDED {
        let link = copy.join(included);
        // It may lead to another clone.
        let _old = fs::remove_file(&link);
        symlink(fs::canonicalize(root.join(included))?, link)?;
    }
    let library = sources.get_mut(LIBRARY).ok_or_else(|| Error::other("no library"))?;
    library.push_str("\n#[allow(missing_docs)]\npub mod mutation_switch;\n");
    sources.insert("src/mutation_switch.rs".to_owned(), include_str!("switch.rs").to_owned());
    let manifest = |path: &Path| {
        let text = fs::read_to_string(root.join(path).join("Cargo.toml"))?;
        text.parse::<Table>().map_err(Error::other)
    };
    sources.insert("Cargo.toml".to_owned(), core_manifest(manifest(Path::new(CORE))?));
    remove_others(&copy.join(CORE), &sources)?;
    for (path, text) in sources {
        write_if_changed(&copy.join(CORE).join(path), &text)?;
    }
    write_if_changed(&copy.join("Cargo.toml"), &workspace(manifest(Path::new(""))?, name))?;
    let lock = fs::read_to_string(root.join("Cargo.lock"))?;
    write_if_changed(&copy.join("Cargo.lock"), &lock)?;
    Ok(copy)
}

/// The manifest of the core without what is not built here; the lints are those of the original.
fn core_manifest(mut manifest: Table) -> String {
    manifest.remove("bench");
    let quiet = Table::from_iter([("warnings".to_owned(), Value::from("allow"))]);
    let lints = Table::from_iter([("rust".to_owned(), Value::Table(quiet))]);
    manifest.insert("lints".to_owned(), Value::Table(lints));
    manifest.to_string()
}

/// The workspace of the copy: versions and profiles of the project, so that other crates are
/// built once for both.
fn workspace(mut manifest: Table, name: &str) -> String {
    manifest.retain(|key, _| ["workspace", "profile"].contains(&key));
    if let Some(workspace) = manifest.get_mut("workspace").and_then(Value::as_table_mut) {
        // Without a package of its edition it would be another one.
        workspace.insert("resolver".to_owned(), "3".into());
        if let Some(package) = workspace.get_mut("package").and_then(Value::as_table_mut) {
            package.insert("version".to_owned(), format!("0.0.0-{name}").into());
        }
    }
    manifest.to_string()
}

fn write_if_changed(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::write(path, text)
}

/// Removes what is not in the sources any more.
fn remove_others(core: &Path, sources: &BTreeMap<String, String>) -> Result<()> {
    for folder in ["src", "tests"] {
        let mut old = BTreeMap::new();
        if core.join(folder).exists() {
            collect(core, &core.join(folder), &mut old)?;
        }
        for path in old.keys().filter(|path| !sources.contains_key(*path)) {
            fs::remove_file(core.join(path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_has_a_version_of_its_own_and_no_program() {
        let manifest = "[workspace]\nmembers = [\"crates/orloj-core\"]\n[workspace.package]\n\
            version = \"1.0.0\"\n[package]\nname = \"orloj\"\n[profile.dev]\nopt-level = 3\n";
        let manifest: Table = workspace(manifest.parse().unwrap(), "planted").parse().unwrap();
        assert!(!manifest.contains_key("package"));
        assert_eq!(manifest["workspace"]["package"]["version"].as_str(), Some("0.0.0-planted"));
        assert_eq!(manifest["profile"]["dev"]["opt-level"].as_integer(), Some(3));
    }
}
