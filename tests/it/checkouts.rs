//! Checkouts on one machine, which share one build of the native libraries.
//!
//! Invariant: what runs in a checkout is what it contains, whichever `make` has built last.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use tempfile::TempDir;

use crate::test_cluster::exclusive_machine;

const MANIFEST: &str = "[package]\nname = \"program\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";

/// A checkout with our `Makefile`, whose program prints `text`.
fn checkout(root: &Path, text: &str) {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["src", "scripts", "crates", "benches", "tests", "vendor"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::copy(ours.join("Makefile"), root.join("Makefile")).unwrap();
    for entry in fs::read_dir(ours.join("scripts")).unwrap() {
        let script = entry.unwrap().path();
        let _bytes = fs::copy(&script, root.join("scripts").join(script.file_name().unwrap()));
    }
    fs::write(root.join("Cargo.toml"), MANIFEST).unwrap();
    fs::write(root.join("vendor/client.c"), "int version;").unwrap();
    fs::write(root.join("src/main.rs"), format!("fn main() {{ println!(\"{text}\") }}")).unwrap();
}

/// What its program prints, built after a command of the `Makefile`.
fn run_program(root: &Path, target_dir: &Path) -> String {
    let _list = output(root, target_dir, &["make", "help"]);
    output(root, target_dir, &["cargo", "run", "--quiet", "--offline"])
}

fn output(root: &Path, target_dir: &Path, command: &[&str]) -> String {
    let mut process = Command::new(command[0]);
    process.args(&command[1..]).current_dir(root).env("CARGO_TARGET_DIR", target_dir);
    let output = process.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn modified(root: &Path, file: &str) -> SystemTime {
    fs::metadata(root.join(file)).unwrap().modified().unwrap()
}

/// Whether cargo takes what was built last for what is in `vendor`.
fn has_old_vendor(root: &Path) -> bool {
    modified(root, "vendor/client.c") < modified(root, "src/main.rs")
}

#[test]
fn a_checkout_runs_its_own_sources_after_another_one_was_built() {
    let _machine = exclusive_machine();
    let folder = TempDir::new().unwrap();
    let [first, second, target_dir] =
        ["first", "second", "target"].map(|it| folder.path().join(it));
    checkout(&first, "the first");
    assert_eq!(run_program(&first, &target_dir), "the first\n");
    checkout(&second, "the second");
    assert_eq!(run_program(&second, &target_dir), "the second\n");
    assert_eq!(run_program(&first, &target_dir), "the first\n");
    let before = modified(&first, "src/main.rs");
    assert_eq!(run_program(&first, &target_dir), "the first\n");
    let after = modified(&first, "src/main.rs");
    assert_eq!(after, before, "it was built last: nothing is built again");
}

#[test]
fn the_vendored_sources_are_built_again_only_if_they_differ() {
    let _machine = exclusive_machine();
    let folder = TempDir::new().unwrap();
    let [first, second, target_dir] =
        ["first", "second", "target"].map(|it| folder.path().join(it));
    for root in [&first, &second] {
        checkout(root, "a program");
    }
    let make = |root: &Path| drop(output(root, &target_dir, &["make", "help"]));
    make(&first);
    assert!(!has_old_vendor(&first), "none was built before");
    make(&second);
    assert!(has_old_vendor(&second), "the other checkout has the same");
    fs::write(first.join("vendor/client.c"), "long version;").unwrap();
    make(&first);
    assert!(!has_old_vendor(&first));
    make(&second);
    assert!(!has_old_vendor(&second), "another one was built last");
}
