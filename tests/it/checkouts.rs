//! Checkouts on one machine, which share one build of the native libraries.
//!
//! Invariant: what runs in a checkout is what it contains, whichever `make` has built last.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::test_cluster::exclusive_machine;

const MANIFEST: &str = "[package]\nname = \"program\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";

/// A checkout with our `Makefile`, whose program prints `text`.
fn checkout(root: &Path, text: &str) {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["src", "scripts", "crates", "benches", "tests"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::copy(ours.join("Makefile"), root.join("Makefile")).unwrap();
    for entry in fs::read_dir(ours.join("scripts")).unwrap() {
        let script = entry.unwrap().path();
        let _bytes = fs::copy(&script, root.join("scripts").join(script.file_name().unwrap()));
    }
    fs::write(root.join("Cargo.toml"), MANIFEST).unwrap();
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
    let changed = || fs::metadata(first.join("src/main.rs")).unwrap().modified().unwrap();
    let before = changed();
    assert_eq!(run_program(&first, &target_dir), "the first\n");
    assert_eq!(changed(), before, "it was built last: nothing is built again");
}
