//! The API by its own description: other people's programs read `/openapi.json`, try what it says,
//! and make clients of it.
//!
//! Invariant: the programs are the published ones, at the versions that `tests/api` pins.

use std::fs;
use std::path::Path;
use std::process::Command;

use orloj::callers::{KeyHash, new_key};
use tempfile::TempDir;

use crate::command::run_to_end;
use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster};

/// An installation whose gateway wants a key.
struct OpenApiFixture {
    cluster: TestCluster,
    scheduler: OrlojProcess,
    gateway: OrlojProcess,
    key: String,
    folder: TempDir,
}

impl OpenApiFixture {
    fn start(test: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (file, key) = (folder.path().join("callers.toml"), new_key().unwrap());
        let hash = KeyHash::of(&key);
        let caller = format!(
            "[callers.tester]\nkeys = [\"{hash}\"]\nrole = \"operator\"\n\
             limits = {{ requests_per_second = 100000 }}\n"
        );
        fs::write(&file, caller).unwrap();
        let cluster = TestCluster::new(test)
            .set("callers.file", file.to_str().unwrap())
            .set("gateway.view_dir", folder.path().join("view").to_str().unwrap());
        let mut scheduler = cluster.scheduler("a");
        let mut gateway = cluster.start("gateway", "g");
        scheduler.wait_until_ready(READY_DEADLINE);
        gateway.wait_until_ready(READY_DEADLINE);
        Self { cluster, scheduler, gateway, key, folder }
    }

    fn url(&self) -> String {
        format!("http://{}", self.gateway.address())
    }

    fn end(self) {
        assert!(!self.gateway.panicked() && !self.scheduler.panicked());
        self.gateway.terminate();
        self.scheduler.terminate();
    }
}

/// It downloads packages: it has a target of its own.
#[test]
#[ignore = "make test-api"]
fn schemathesis_finds_no_fault() {
    let fixture = OpenApiFixture::start("schemathesis");
    let python = run_to_end(Command::new("scripts/packages.sh").args(["python", "api"]));
    let configuration = fs::canonicalize("tests/api/schemathesis.toml").unwrap();
    let said = run_to_end(
        Command::new(python.trim())
            .args(["-m", "schemathesis.cli", "--config-file"])
            .arg(configuration)
            .arg("run")
            .arg(format!("{}/openapi.json", fixture.url()))
            .args(["--header", &format!("Authorization: Bearer {}", fixture.key)])
            .args(["--checks", "all", "--phases", "examples,coverage,fuzzing,stateful"])
            // DELETE cancels a trigger: it does not fire, and can still be looked at, as CANCELLED.
            .args(["--exclude-checks", "use_after_free"])
            .args(["--mode", "all", "--max-examples", "100", "--seed", "1", "--no-color"])
            .args(["--request-timeout", "30", "--continue-on-failure"])
            // What an earlier run found would be tried first: every run is the first.
            .env("HYPOTHESIS_STORAGE_DIRECTORY", fixture.folder.path())
            .current_dir(fixture.folder.path()),
    );
    eprintln!("{}", said.trim());
    fixture.end();
}

/// The same.
#[test]
#[ignore = "make test-api"]
fn a_generated_python_client_works() {
    let fixture = OpenApiFixture::start("python-client");
    let python = run_to_end(Command::new("scripts/packages.sh").args(["python", "api"]));
    let client = fixture.folder.path().join("client");
    run_to_end(
        Command::new(python.trim())
            .args([
                "-m",
                "openapi_python_client",
                "generate",
                "--meta",
                "none",
                "--fail-on-warning",
            ])
            .args(["--config", "tests/api/python-client.yml"])
            .args(["--url", &format!("{}/openapi.json", fixture.url())])
            .arg("--output-path")
            .arg(client.join("orloj_client")),
    );
    let mut example = Command::new(python.trim());
    let said = run_to_end(
        fixture.with_environment(example.arg("tests/api/example.py")).env("PYTHONPATH", client),
    );
    eprintln!("{}", said.trim());
    fixture.end();
}

/// The same.
#[test]
#[ignore = "make test-api"]
fn a_generated_typescript_client_works() {
    let fixture = OpenApiFixture::start("typescript-client");
    let packages = run_to_end(Command::new("scripts/packages.sh").args(["node", "api"]));
    let tools = Path::new(packages.trim()).join("node_modules");
    let folder = fixture.folder.path();
    std::os::unix::fs::symlink(&tools, folder.join("node_modules")).unwrap();
    fs::copy("tests/api/package.json", folder.join("package.json")).unwrap();
    fs::copy("tests/api/example.ts", folder.join("example.ts")).unwrap();
    let tool = |name: &str| Command::new(tools.join(".bin").join(name));
    run_to_end(
        tool("openapi-typescript")
            .arg(format!("{}/openapi.json", fixture.url()))
            .arg("--output")
            .arg(folder.join("orloj.ts")),
    );
    let strict = ["--strict", "--target", "es2022", "--module", "nodenext", "--types", "node"];
    run_to_end(tool("tsc").args(strict).arg("example.ts").current_dir(folder));
    let mut example = Command::new("node");
    let said = run_to_end(fixture.with_environment(example.arg("example.js").current_dir(folder)));
    eprintln!("{}", said.trim());
    fixture.end();
}

impl OpenApiFixture {
    /// A program that is given the address of the API.
    fn with_environment<'a>(&self, program: &'a mut Command) -> &'a mut Command {
        program
            .env("ORLOJ_URL", self.url())
            .env("ORLOJ_KEY", &self.key)
            .env("ORLOJ_TOPIC", self.cluster.target().1)
    }
}
